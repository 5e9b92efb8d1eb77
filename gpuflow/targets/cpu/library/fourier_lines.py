"""Transforms of blocks of lines as one function: read, passes in cache, write, as LLVM text.

A block has as many batch rows as a vector has elements. It is read into memory of the thread, with
both components of an element of all rows contiguous; the passes (``fourier_passes``) alternate in
that memory, and the result is written. So a row's elements may have any layout, contiguous or
strided:

    columns   the lines of a block lie side by side: an element of all is two vectors
    rows      elements lie side by side: squares of elements and lines are transposed
    others    numbers one by one

If a block has fewer rows, the last one is repeated for the missing ones, and is written as often,
with the same values.

A real line of even length is read as a complex one of half the length (Cooley, Lewis and Welch,
The Fast Fourier Transform Algorithm, J. Sound Vib. 12, 1970); one of odd length as complex numbers
whose imaginary parts are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.machine_code import AS_WRITTEN
from gpuflow.targets.cpu.library.fourier_passes import (
    KINDS,
    ROW,
    VECTOR_BYTES,
    Number,
    Numbers,
    lanes_of,
)
from gpuflow.targets.cpu.runtime.native.function_text import FunctionText, Value
from gpuflow.targets.cpu.runtime.native.object_code import Module, load_native, slots_text

# gf_fourier_KIND_TYPE(words, lo, hi); an index is a block of lines of a group.
#   0  slots: marks, memory, number, bytes  4  where the second half of a slot begins
#   5  elements that are read  6  that are written  7  length of the complex transform
#   8  whether parts are exchanged when they are read  9  when they are written
#  10  address of a factor for all results  11  number of passes  12  their rows
#  13  e^(-2 pi i k / n) of a real transform of length n  14  lines of a group  15  blocks of it
#  16  source  17  bytes between its elements  18  its lines  19  its groups
#  20  to 23: the target  24  factors for each block and element, or 0
BACK, SCALE, ROWS, MIRROR, SOURCE, TARGET, TURNS = 4, 10, 12, 13, 16, 20, 24
COMPLEX, FROM_REAL, TO_REAL, FROM_ODD, TO_ODD = range(5)

_ELEMENT = 2 * VECTOR_BYTES


class _Layout:
    """How numbers in memory become vectors of both parts.

    Two vectors of memory hold a complex number for each lane. Taking them apart within 128 bits
    is one instruction for each part, which gives lanes an order of their own.
    """

    def __init__(self, lanes: int, scalar_bytes: int) -> None:
        of_chunk = 16 // scalar_bytes  # numbers in 128 bits
        chunks = range(0, lanes, of_chunk)
        evens = range(0, of_chunk, 2)
        self.lanes, self.half = lanes, lanes // 2
        self.apart = [
            [side + chunk + k + part for chunk in chunks for side in (0, lanes) for k in evens]
            for part in (0, 1)
        ]
        together = [0] * (2 * lanes)
        for part in (0, 1):
            for lane, place in enumerate(self.apart[part]):
                together[place] = part * lanes + lane
        self.together = [together[:lanes], together[lanes:]]
        self.lines = [place // 2 for place in self.apart[0]]  # the line in each lane


def lines_of_lanes(dtype: str) -> list[int]:
    """Which line of a block each element of a vector belongs to."""
    return _Layout(lanes_of(dtype), KINDS[dtype][1]).lines


@cache
def lines_function(dtype: str, kind: int, anywhere: bool) -> int:
    """The address of the function for a dtype, and for complex numbers or from or to real ones.

    ``anywhere``: for blocks that are neither whole columns nor rows as well, which is much code.
    """
    symbol = f"gf_fourier_{kind}_{dtype}"
    text = slots_text() + "\n".join(_texts(symbol, dtype, kind, anywhere))
    return load_native(Module(text, (symbol,), level=AS_WRITTEN), kernel_cache()).addresses[symbol]


def are_columns_or_rows(dtype: str, element: int, line: int, lines: int, count: int) -> bool:
    """Whether all blocks of a group's lines are whole columns, or rows.

    Args:
        dtype: of real numbers.
        element, line: bytes between elements and between lines.
        lines: of the group.
        count: a line's elements.
    """
    lanes, unit = lanes_of(dtype), 2 * KINDS[dtype][1]
    return (line == unit and lines % lanes == 0) or (element == unit and 2 * count >= lanes)


def _texts(symbol: str, dtype: str, kind: int, anywhere: bool) -> list[str]:
    texts = []
    for name in (*_ways("read", kind, anywhere), *_ways("write", kind, anywhere)):
        function = FunctionText(name, _MOVE_ARGUMENTS, True)
        _MOVES[name](_Mover(function, dtype))
        texts.append(function.text())
    if kind in _MIRRORS:
        name, write = _MIRRORS[kind]
        function = FunctionText(name, _MIRROR_ARGUMENTS, True)
        write(function, dtype)
        texts.append(function.text())
    return [*texts, _driver_text(symbol, dtype, kind, anywhere)]


def _ways(name: str, kind: int, anywhere: bool) -> list[str]:
    """The moves to read or write blocks by: the first that fits is taken."""
    if kind == (FROM_ODD if name == "read" else TO_ODD):
        return [f"{name}_reals"]
    ways = ("columns", "rows", "others") if anywhere else ("columns", "rows")
    return [f"{name}_{way}" for way in ways]


# --- reading and writing -----------------------------------------------------------------------

# Moves between memory at x and elements at y: ``count`` elements, ``step`` bytes apart, of lines
# that are ``across`` bytes apart, of which there are ``lines``. Real parts lie at ``first``, 0 or
# the bytes of a vector. What is written is multiplied by the factor at ``scale``, and by those at
# ``turns``, if there are any.
_MOVE_ARGUMENTS = [
    ("ptr noalias", "x"), ("i64", "step"), ("i64", "across"), ("i64", "lines"),
    ("ptr noalias", "y"), ("i64", "count"), ("i64", "first"), ("ptr", "scale"), ("ptr", "turns"),
]  # fmt: skip


class _Mover:
    """Common data of the moves."""

    def __init__(self, function: FunctionText, dtype: str) -> None:
        self.function = function
        self.numbers = Numbers(function, dtype)
        self.layout = _Layout(self.numbers.lanes, self.numbers.scalar_bytes)
        self.unit = 2 * self.numbers.scalar_bytes
        self.second = function.op(f"xor i64 %first, {VECTOR_BYTES}")

    def taken_apart(self, pair: Sequence[Value], y: Value) -> None:
        """Write two vectors of memory as an element."""
        for places, offset in zip(self.layout.apart, ("%first", self.second), strict=True):
            part = self.numbers.shuffled(pair[0], pair[1], places)
            self.numbers.write(part, self.function.at(y, offset))

    def put_together(self, y: Value, number: Value, scale: Value) -> list[Value]:
        """An element as two vectors of memory."""
        function, numbers = self.function, self.numbers
        kept = function.variable(numbers.vector, 2)
        value = numbers.read(y), numbers.read(function.at(y, VECTOR_BYTES))
        numbers.write_pair(numbers.scaled(value, scale), kept)
        has_turns = function.op("icmp ne ptr %turns, null")
        with function.where(has_turns):
            factors = function.at("%turns", function.mul(number, _ELEMENT))
            by = numbers.read_pair(factors, numbers.scalar_bytes)
            numbers.write_pair(numbers.mul(numbers.read_pair(kept), by), kept)
        value = numbers.read_pair(kept)
        swapped = function.op("icmp ne i64 %first, 0")
        parts = [
            function.op(f"select i1 {swapped}, {numbers.vector} {a}, {numbers.vector} {b}")
            for a, b in (value[::-1], value)
        ]
        return [numbers.shuffled(parts[0], parts[1], places) for places in self.layout.together]

    def scale(self) -> Value:
        """The factor of all results."""
        return self.numbers.everywhere("%scale")

    def line_starts(self) -> list[Value]:
        """The first element of each line, the last line for those that are missing."""
        function = self.function
        last = function.sub("%lines", 1)
        return [
            function.at("%x", function.mul(function.least(last, k), "%across"))
            for k in range(self.layout.lanes)
        ]

    def transposed(self, square: Sequence[Value]) -> list[Value]:
        """Vectors of complex numbers as a square, with rows for columns."""
        rows, half = list(square), self.layout.half
        distance = 1
        while distance < half:
            low, high = [], []
            for unit in range(half):
                if unit & distance:
                    low.append(half + unit - distance)
                    high.append(half + unit)
                else:
                    low.append(unit)
                    high.append(unit + distance)
            for i in range(half):
                if not i & distance:
                    a, b = rows[i], rows[i + distance]
                    for place, units in ((i, low), (i + distance, high)):
                        places = [2 * unit + part for unit in units for part in (0, 1)]
                        rows[place] = self.numbers.shuffled(a, b, places)
            distance *= 2
        return rows


def _read_columns(mover: _Mover) -> None:
    function, numbers = mover.function, mover.numbers
    with function.loop(0, "%count") as k:
        at = function.at("%x", function.mul(k, "%step"))
        pair = [numbers.read(function.at(at, n * VECTOR_BYTES), mover.unit) for n in (0, 1)]
        mover.taken_apart(pair, function.at("%y", function.mul(k, _ELEMENT)))


def _write_columns(mover: _Mover) -> None:
    function, numbers = mover.function, mover.numbers
    scale = mover.scale()
    with function.loop(0, "%count") as k:
        at = function.at("%x", function.mul(k, "%step"))
        pair = mover.put_together(function.at("%y", function.mul(k, _ELEMENT)), k, scale)
        for n, part in enumerate(pair):
            numbers.write(part, function.at(at, n * VECTOR_BYTES), mover.unit)


def _read_rows(mover: _Mover) -> None:
    """Squares of lines and elements; the last ones again where the number of elements is odd."""
    function, numbers, half = mover.function, mover.numbers, mover.layout.half
    starts = mover.line_starts()
    last = function.sub("%count", half)
    with function.loop(0, "%count", half) as look:
        first = function.least(look, last)
        offset = function.mul(first, mover.unit)
        rows = [numbers.read(function.at(start, offset), mover.unit) for start in starts]
        sides = [mover.transposed(rows[:half]), mover.transposed(rows[half:])]
        y = function.at("%y", function.mul(first, _ELEMENT))
        for k, pair in enumerate(zip(*sides, strict=True)):
            mover.taken_apart(pair, function.at(y, k * _ELEMENT))


def _write_rows(mover: _Mover) -> None:
    function, numbers, half = mover.function, mover.numbers, mover.layout.half
    starts, scale = mover.line_starts(), mover.scale()
    last = function.sub("%count", half)
    with function.loop(0, "%count", half) as look:
        first = function.least(look, last)
        y = function.at("%y", function.mul(first, _ELEMENT))
        pairs = [
            mover.put_together(function.at(y, k * _ELEMENT), function.add(first, k), scale)
            for k in range(half)
        ]
        offset = function.mul(first, mover.unit)
        for side in (0, 1):
            rows = mover.transposed([pair[side] for pair in pairs])
            for row, start in zip(rows, starts[side * half :], strict=False):
                numbers.write(row, function.at(start, offset), mover.unit)


def _read_others(mover: _Mover) -> None:
    function, numbers = mover.function, mover.numbers
    starts, size = mover.line_starts(), numbers.scalar_bytes
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at("%y", function.mul(k, _ELEMENT))
        for part, place in enumerate(("%first", mover.second)):
            out = function.at(y, place)
            for lane, line in enumerate(mover.layout.lines):
                at = function.at(function.at(starts[line], offset), part * size)
                number = function.load(numbers.scalar, at, size)
                function.store(numbers.scalar, number, function.at(out, lane * size), size)


def _write_others(mover: _Mover) -> None:
    function, numbers = mover.function, mover.numbers
    starts, scale, size = mover.line_starts(), mover.scale(), numbers.scalar_bytes
    kept = function.variable(numbers.vector, 2)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        pair = mover.put_together(function.at("%y", function.mul(k, _ELEMENT)), k, scale)
        for n, vector in enumerate(pair):
            numbers.write(vector, function.at(kept, n * VECTOR_BYTES))
        for line, start in enumerate(starts):
            at = function.at(start, offset)
            for part in (0, 1):
                here = function.at(kept, (2 * line + part) * size)
                number = function.load(numbers.scalar, here, size)
                function.store(numbers.scalar, number, function.at(at, part * size), size)


def _read_reals(mover: _Mover) -> None:
    """Real numbers one by one."""
    function, numbers = mover.function, mover.numbers
    starts, size = mover.line_starts(), numbers.scalar_bytes
    zero = numbers.constant(0.0)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at("%y", function.mul(k, _ELEMENT))
        for lane, line in enumerate(mover.layout.lines):
            number = function.load(numbers.scalar, function.at(starts[line], offset), size)
            function.store(numbers.scalar, number, function.at(y, lane * size), size)
        numbers.write(zero, function.at(y, VECTOR_BYTES))


def _write_reals(mover: _Mover) -> None:
    function, numbers = mover.function, mover.numbers
    starts, scale, size = mover.line_starts(), mover.scale(), numbers.scalar_bytes
    kept = function.variable(numbers.vector)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at(function.at("%y", "%first"), function.mul(k, _ELEMENT))
        numbers.write(numbers.apply("fmul", numbers.read(y), scale), kept)
        for lane, line in enumerate(mover.layout.lines):
            number = function.load(numbers.scalar, function.at(kept, lane * size), size)
            function.store(numbers.scalar, number, function.at(starts[line], offset), size)


_MOVES: dict[str, Callable[[_Mover], None]] = {
    "read_columns": _read_columns, "read_rows": _read_rows, "read_others": _read_others,
    "write_columns": _write_columns, "write_rows": _write_rows, "write_others": _write_others,
    "read_reals": _read_reals, "write_reals": _write_reals,
}  # fmt: skip


# --- real transforms ---------------------------------------------------------------------------

# Between half a spectrum, of n / 2 + 1 elements, and the transform of length n / 2 of real numbers
# in pairs, from x to y.
_MIRROR_ARGUMENTS = [
    ("ptr noalias", "x"), ("ptr noalias", "y"), ("i64", "length"), ("ptr", "mirror"),
]  # fmt: skip


def mirrored(
    numbers: Numbers, a: Number, b: Number, root: Number, from_real: bool
) -> tuple[Number, Number]:
    """Elements k and n / 2 - k of one side from those of the other.

    With A = a + conj(b) and B = a - conj(b) they are A + D and conj(A - D), where D is -i w B of
    transforms of real numbers, i conj(w) B of those to real ones, which are twice as large.
    """
    apply = numbers.apply
    total = apply("fadd", a[0], b[0]), apply("fsub", a[1], b[1])
    rest = apply("fsub", a[0], b[0]), apply("fadd", a[1], b[1])
    half = numbers.constant(0.5)
    if from_real:
        total, root = numbers.scaled(total, half), numbers.scaled(root, half)
        turned = numbers.turned(numbers.mul(root, rest))
    else:
        # i conj(w) B = conj(-i w conj(B))
        turned = numbers.conj(numbers.turned(numbers.mul(root, numbers.conj(rest))))
    # The negated imaginary part of A as a difference, so that zeros are positive on both sides.
    negated = apply("fsub", b[1], a[1])
    if from_real:
        negated = apply("fmul", negated, half)
    other = apply("fsub", total[0], turned[0]), apply("fadd", negated, turned[1])
    return numbers.add(total, turned), other


def _mirror_pairs(function: FunctionText, dtype: str, from_real: bool) -> None:
    numbers = Numbers(function, dtype)
    size = numbers.scalar_bytes
    half = function.op("lshr i64 %length, 1")
    with function.loop(1, function.add(half, 1)) as k:
        places = [function.mul(j, _ELEMENT) for j in (k, function.sub("%length", k))]
        a, b = (numbers.read_pair(function.at("%x", place)) for place in places)
        factors = function.at("%mirror", function.mul(k, 2 * size))
        root = numbers.everywhere(factors), numbers.everywhere(function.at(factors, size))
        both = mirrored(numbers, a, b, root, from_real)
        for value, place in zip(both, places, strict=True):
            # Transforms to real numbers are inverse ones: their parts are exchanged.
            re, im = value if from_real else value[::-1]
            numbers.write_pair((re, im), function.at("%y", place))


def _from_real(function: FunctionText, dtype: str) -> None:
    _mirror_pairs(function, dtype, True)
    numbers = Numbers(function, dtype)
    re, im = numbers.read_pair("%x")
    zero = numbers.constant(0.0)
    last = function.at("%y", function.mul("%length", _ELEMENT))
    numbers.write_pair((numbers.apply("fadd", re, im), zero), "%y")
    numbers.write_pair((numbers.apply("fsub", re, im), zero), last)


def _to_real(function: FunctionText, dtype: str) -> None:
    """Imaginary parts of the elements that are their own mirror count for nothing."""
    _mirror_pairs(function, dtype, False)
    numbers = Numbers(function, dtype)
    first = numbers.read("%x")
    last = numbers.read(function.at("%x", function.mul("%length", _ELEMENT)))
    re, im = numbers.apply("fadd", first, last), numbers.apply("fsub", first, last)
    numbers.write_pair((im, re), "%y")


def _to_odd(function: FunctionText, dtype: str) -> None:
    """The other half of a spectrum of odd length; parts are exchanged."""
    numbers = Numbers(function, dtype)
    half = function.op("lshr i64 %length, 1")
    numbers.write_pair((numbers.constant(0.0), numbers.read("%x")), "%y")
    with function.loop(1, function.add(half, 1)) as k:
        places = [function.mul(j, _ELEMENT) for j in (k, function.sub("%length", k))]
        value = numbers.read_pair(function.at("%x", places[0]))
        for one, place in zip((value, numbers.conj(value)), places, strict=True):
            numbers.write_pair((one[1], one[0]), function.at("%y", place))


_MIRRORS = {
    FROM_REAL: ("from_real", _from_real), TO_REAL: ("to_real", _to_real),
    TO_ODD: ("to_odd", _to_odd),
}  # fmt: skip

# gf_fourier_NAME_TYPE(words, lo, hi): the same for long lines, which lie in memory; an index is a
# part of a line.
#   0  source  1  target  2  bytes between lines of the source  3  of the target
#   4  length of the complex transform  5  as MIRROR  6  parts of a line  7  elements of a part
LONG_NAMES = {FROM_REAL: "from_real", TO_REAL: "to_real"}


@cache
def long_function(dtype: str, kind: int) -> int:
    """The address of the function for a dtype and FROM_REAL or TO_REAL."""
    symbol = f"gf_fourier_{LONG_NAMES[kind]}_{dtype}"
    text = slots_text() + _long_text(symbol, dtype, kind == FROM_REAL)
    return load_native(Module(text, (symbol,), level=AS_WRITTEN), kernel_cache()).addresses[symbol]


def _long_text(symbol: str, dtype: str, from_real: bool) -> str:
    function = FunctionText(symbol, [("ptr", "words"), ("i64", "low"), ("i64", "high")])
    numbers = Numbers(function, dtype)
    lanes, unit = numbers.lanes, 2 * numbers.scalar_bytes

    def word(k: int, kind: str = "i64") -> Value:
        return function.load(kind, function.at("%words", 8 * k), 8)

    length, mirror, parts, size = word(4), word(5, "ptr"), word(6), word(7)
    half = function.op(f"lshr i64 {length}, 1")
    forward = [range(part, 2 * lanes, 2) for part in (0, 1)]
    backward = [places[::-1] for places in forward]
    order = [(place % 2) * lanes + place // 2 for place in range(2 * lanes)]
    together = [order[:lanes], order[lanes:]]

    def read(at: Value, places: Sequence[Sequence[int]]) -> Number:
        pair = [numbers.read(function.at(at, n * VECTOR_BYTES), unit) for n in (0, 1)]
        re, im = (numbers.shuffled(pair[0], pair[1], order) for order in places)
        return re, im

    def write(value: Number, at: Value) -> None:
        for n, order in enumerate(together):
            part = numbers.shuffled(value[0], value[1], order)
            numbers.write(part, function.at(at, n * VECTOR_BYTES), unit)

    def number(at: Value) -> Value:
        return function.load(numbers.scalar, at, numbers.scalar_bytes)

    def put(value: Value, at: Value) -> None:
        function.store(numbers.scalar, value, at, numbers.scalar_bytes)

    def ends(x: Value, y: Value) -> None:
        """The elements that are their own mirror."""
        offset = function.mul(length, unit)
        second = function.at(x, numbers.scalar_bytes if from_real else offset)
        a, b = number(x), number(second)
        total = function.op(f"fadd {numbers.scalar} {a}, {b}")
        rest = function.op(f"fsub {numbers.scalar} {a}, {b}")
        last = function.at(y, offset) if from_real else function.at(y, numbers.scalar_bytes)
        put(total, y)
        put(rest, last)
        if from_real:
            for at in (y, last):
                put("0.0", function.at(at, numbers.scalar_bytes))

    with function.loop("%low", "%high") as index:
        line = function.op(f"sdiv i64 {index}, {parts}")
        part = function.sub(index, function.mul(line, parts))
        x = function.at(word(0, "ptr"), function.mul(line, word(2)))
        y = function.at(word(1, "ptr"), function.mul(line, word(3)))
        with function.where(function.op(f"icmp eq i64 {part}, 0")):
            ends(x, y)
        start = function.add(function.mul(part, size), 1)
        stop = function.least(function.add(start, size), function.add(half, 1))
        with function.loop(start, stop, lanes) as look:
            # The last vector again where there is no whole one.
            k = function.least(look, function.sub(function.add(half, 1), lanes))
            place = function.mul(k, unit)
            opposite = function.mul(function.sub(function.sub(length, k), lanes - 1), unit)
            a, b = read(function.at(x, place), forward), read(function.at(x, opposite), backward)
            root = read(function.at(mirror, place), forward)
            first, second = mirrored(numbers, a, b, root, from_real)
            write(first, function.at(y, place))
            turned = list(range(lanes))[::-1]
            re, im = (numbers.shuffled(one, "poison", turned) for one in second)
            write((re, im), function.at(y, opposite))
    return function.text()


# --- all of it ---------------------------------------------------------------------------------


def _driver_text(symbol: str, dtype: str, kind: int, anywhere: bool) -> str:
    function = FunctionText(symbol, [("ptr", "words"), ("i64", "low"), ("i64", "high")])
    lanes, unit = lanes_of(dtype), 2 * KINDS[dtype][1]

    def word(k: int, kind: str = "i64") -> Value:
        return function.load(kind, function.at("%words", 8 * k), 8)

    marks = word(0, "ptr")
    slot = function.op(f"call i64 @claim(ptr {marks}, i64 {word(2)})")
    front = function.at(word(1, "ptr"), function.mul(slot, word(3)))
    back = function.at(front, word(BACK))
    length, passes, rows = word(7), word(11), word(ROWS, "ptr")
    lines, blocks, mirror = word(14), word(15), word(MIRROR, "ptr")
    turns, scale = word(TURNS, "ptr"), word(SCALE, "ptr")
    here, other = function.variable("ptr"), function.variable("ptr")

    def swap() -> None:
        a, b = function.load("ptr", here, 8), function.load("ptr", other, 8)
        function.store("ptr", b, here, 8)
        function.store("ptr", a, other, 8)

    def where(condition: str) -> Value:
        return function.op(f"icmp {condition}")

    def both(a: Value, b: Value) -> Value:
        return function.op(f"and i1 {a}, {b}")

    def move(name: str, at: int, group: Value, first: Value, turns: Value, swaps: int) -> None:
        """Read or write a block by the function for how its numbers lie."""
        step, across, apart = word(at + 1), word(at + 2), word(at + 3)
        offset = function.add(function.mul(group, apart), function.mul(first, across))
        x = function.at(word(at, "ptr"), offset)
        left = function.least(function.sub(lines, first), lanes)
        count = word(5 if name == "read" else 6)
        swapped = function.mul(word(swaps), VECTOR_BYTES)
        y = function.load("ptr", here, 8)
        fitting = {
            f"{name}_columns": both(
                where(f"eq i64 {across}, {unit}"), where(f"eq i64 {left}, {lanes}")
            ),
            f"{name}_rows": both(
                where(f"eq i64 {step}, {unit}"), where(f"sge i64 {count}, {lanes // 2}")
            ),
        }
        taken = "false"
        for way in _ways(name, kind, anywhere):
            fits = fitting.get(way, "true")
            condition = both(fits, function.op(f"xor i1 {taken}, true"))
            taken = function.op(f"or i1 {taken}, {fits}")
            with function.where(condition):
                function.do(
                    f"call void @{way}(ptr {x}, i64 {step}, i64 {across}, i64 {left}, "
                    f"ptr {y}, i64 {count}, i64 {swapped}, ptr {scale}, ptr {turns})"
                )

    def mirror_by() -> None:
        name, _ = _MIRRORS[kind]
        a, b = function.load("ptr", here, 8), function.load("ptr", other, 8)
        function.do(f"call void @{name}(ptr {a}, ptr {b}, i64 {length}, ptr {mirror})")
        swap()

    with function.loop("%low", "%high") as k:
        group = function.op(f"sdiv i64 {k}, {blocks}")
        number = function.sub(k, function.mul(group, blocks))
        first = function.mul(number, lanes)
        function.store("ptr", front, here, 8)
        function.store("ptr", back, other, 8)
        move("read", SOURCE, group, first, "null", 8)
        if kind in (TO_REAL, TO_ODD):
            mirror_by()
        with function.loop(0, passes) as n:
            row = function.at(rows, function.mul(n, 8 * ROW))
            x, y = function.load("ptr", here, 8), function.load("ptr", other, 8)
            function.do(f"call void {function.load('ptr', row, 8)}(ptr {x}, ptr {y}, ptr {row})")
            swap()
        if kind == FROM_REAL:
            mirror_by()
        has_turns = where(f"ne ptr {turns}, null")
        own = function.at(turns, function.mul(number, function.mul(length, _ELEMENT)))
        turned = function.op(f"select i1 {has_turns}, ptr {own}, ptr null")
        move("write", TARGET, group, first, turned, 9)
    function.do(f"call void @release(ptr {marks}, i64 {slot})")
    return function.text()
