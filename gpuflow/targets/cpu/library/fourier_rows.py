"""Fourier transforms of blocks of rows: load, passes in cache, store, as LLVM IR text.

A block has as many rows of the batch as a vector has lanes. It is loaded into scratch memory of the
thread, deinterleaved: for each element a vector of real and a vector of imaginary components. The
passes (``fourier_passes``) alternate between the two halves of that memory, and the result is
stored. Rows may have any layout in memory; three functions load and store:

    columns   adjacent rows are contiguous: an element of all rows is two vectors
    rows      elements are contiguous: squares of elements and rows are transposed
    others    one element at a time

If a block has fewer rows, the last one takes the lanes of the missing ones. It is then stored
several times, with the same values.

A real row of even length is read as a complex one of half the length (Cooley, Lewis and Welch,
The Fast Fourier Transform Algorithm, J. Sound Vib. 12, 1970); one of odd length as complex numbers
whose imaginary parts are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuflow.base.caches import cache
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.machine_code import AS_WRITTEN
from gpuflow.targets.cpu.library.fourier_passes import (
    KINDS,
    ROW,
    VECTOR_BYTES,
    ComplexArithmetic,
    ComplexValue,
    lanes_of,
)
from gpuflow.targets.cpu.runtime.native.function_text import FunctionText, Value
from gpuflow.targets.cpu.runtime.native.object_code import Module, load_native, slots_text

# gf_fourier_KIND_TYPE(arguments, lo, hi): an index is a block of rows of a group.
#   0  slots: flags, memory, number, bytes  4  byte offset of the second half of a slot
#   5  elements that are read  6  that are written  7  length of the complex transform
#   8  whether components are exchanged when they are read  9  when they are written
#  10  address of a factor of all results  11  number of passes  12  their table
#  13  e^(-2 pi i k / n) of a real transform of length n  14  rows of a group  15  its blocks
#  16  source  17  bytes between its elements  18  between its rows  19  between its groups
#  20 to 23  the same for the target  24  twiddle factors of each block and element, or 0
BACK, SCALE, ROWS, MIRROR, SOURCE, TARGET, TWIDDLES = 4, 10, 12, 13, 16, 20, 24
COMPLEX, FROM_REAL, TO_REAL, FROM_ODD, TO_ODD = range(5)

_ELEMENT = 2 * VECTOR_BYTES


class _Layout:
    """Shuffles between interleaved and deinterleaved complex numbers.

    Two interleaved vectors hold a complex number for each lane. Deinterleaving them within 128-bit
    chunks takes one instruction per component, but permutes the lanes. ``rows`` lists their rows.
    """

    def __init__(self, lanes: int, scalar_bytes: int) -> None:
        of_chunk = 16 // scalar_bytes  # scalars in 128 bits
        chunks = range(0, lanes, of_chunk)
        evens = range(0, of_chunk, 2)
        self.lanes, self.half = lanes, lanes // 2
        self.deinterleaved = [
            [side + chunk + k + component for chunk in chunks for side in (0, lanes) for k in evens]
            for component in (0, 1)
        ]
        interleaved = [0] * (2 * lanes)
        for component in (0, 1):
            for lane, index in enumerate(self.deinterleaved[component]):
                interleaved[index] = component * lanes + lane
        self.interleaved = [interleaved[:lanes], interleaved[lanes:]]
        self.rows = [index // 2 for index in self.deinterleaved[0]]


def rows_of_lanes(dtype: str) -> list[int]:
    """The row of a block in each lane of a vector between passes."""
    return _Layout(lanes_of(dtype), KINDS[dtype][1]).rows


@cache
def rows_function(dtype: str, kind: int, anywhere: bool) -> int:
    """The address of the function for a dtype and a kind, COMPLEX and so on.

    ``anywhere``: blocks may be neither "columns" nor "rows", which needs much more code.
    """
    symbol = f"gf_fourier_{kind}_{dtype}"
    text = slots_text() + "\n".join(_texts(symbol, dtype, kind, anywhere))
    return load_native(Module(text, (symbol,), level=AS_WRITTEN), kernel_cache()).addresses[symbol]


def are_columns_or_rows(dtype: str, element: int, row: int, rows: int, count: int) -> bool:
    """Whether all blocks of a group can be read or written as "columns" or as "rows".

    Args:
        dtype: dtype of a component.
        element, row: bytes between elements and between rows.
        rows: number of rows of the group.
        count: number of elements of a row.
    """
    lanes, unit = lanes_of(dtype), 2 * KINDS[dtype][1]
    return (row == unit and rows % lanes == 0) or (element == unit and 2 * count >= lanes)


def _texts(symbol: str, dtype: str, kind: int, anywhere: bool) -> list[str]:
    texts = []
    for name in (*_variants("read", kind, anywhere), *_variants("write", kind, anywhere)):
        function = FunctionText(name, _MOVE_ARGUMENTS, True)
        _MOVES[name](_Mover(function, dtype))
        texts.append(function.text())
    if kind in _MIRRORS:
        name, write = _MIRRORS[kind]
        function = FunctionText(name, _MIRROR_ARGUMENTS, True)
        write(function, dtype)
        texts.append(function.text())
    return [*texts, _block_function_text(symbol, dtype, kind, anywhere)]


def _variants(name: str, kind: int, anywhere: bool) -> list[str]:
    """Names of the functions that read or write blocks, in order of preference."""
    if kind == (FROM_ODD if name == "read" else TO_ODD):
        return [f"{name}_reals"]
    variants = ("columns", "rows", "others") if anywhere else ("columns", "rows")
    return [f"{name}_{variant}" for variant in variants]


# --- reading and writing -----------------------------------------------------------------------

# Arguments of a function that copies a block between arrays at x and scratch memory at y: ``count``
# elements with a stride of ``step`` bytes, of ``rows`` rows with a stride of ``across`` bytes. Real
# components are at offset ``first``: 0, or the bytes of a vector if components are exchanged.
# Stored elements are multiplied by the factor at ``scale``, and by ``twiddles`` if not null.
_MOVE_ARGUMENTS = [
    ("ptr noalias", "x"), ("i64", "step"), ("i64", "across"), ("i64", "rows"),
    ("ptr noalias", "y"), ("i64", "count"), ("i64", "first"), ("ptr", "scale"), ("ptr", "twiddles"),
]  # fmt: skip


class _Mover:
    """Builder of a function that reads or writes a block.

    ``unit`` are the bytes of a complex number, ``second`` is the offset of imaginary components.
    """

    def __init__(self, function: FunctionText, dtype: str) -> None:
        self.function = function
        self.ops = ComplexArithmetic(function, dtype)
        self.layout = _Layout(self.ops.lanes, self.ops.scalar_bytes)
        self.unit = 2 * self.ops.scalar_bytes
        self.second = function.op(f"xor i64 %first, {VECTOR_BYTES}")

    def deinterleave(self, pair: Sequence[Value], y: Value) -> None:
        """Store two interleaved vectors as an element of scratch memory."""
        for indices, offset in zip(self.layout.deinterleaved, ("%first", self.second), strict=True):
            component = self.ops.shuffled(pair[0], pair[1], indices)
            self.ops.write(component, self.function.at(y, offset))

    def interleave(self, y: Value, k: Value, scale: Value) -> list[Value]:
        """Load element k of scratch memory, scaled and multiplied by its twiddle, interleaved."""
        function, ops = self.function, self.ops
        scratch = function.variable(ops.vector, 2)
        value = ops.read(y), ops.read(function.at(y, VECTOR_BYTES))
        ops.write_pair(ops.scaled(value, scale), scratch)
        has_twiddles = function.op("icmp ne ptr %twiddles, null")
        with function.where(has_twiddles):
            factors = function.at("%twiddles", function.mul(k, _ELEMENT))
            by = ops.read_pair(factors, ops.scalar_bytes)
            ops.write_pair(ops.mul(ops.read_pair(scratch), by), scratch)
        value = ops.read_pair(scratch)
        swapped = function.op("icmp ne i64 %first, 0")
        components = [
            function.op(f"select i1 {swapped}, {ops.vector} {a}, {ops.vector} {b}")
            for a, b in (value[::-1], value)
        ]
        re, im = components
        return [ops.shuffled(re, im, indices) for indices in self.layout.interleaved]

    def scale(self) -> Value:
        """The factor of all results, as a vector."""
        return self.ops.everywhere("%scale")

    def row_starts(self) -> list[Value]:
        """The address of each row's first element; missing rows are the last one."""
        function = self.function
        last = function.sub("%rows", 1)
        return [
            function.at("%x", function.mul(function.least(last, k), "%across"))
            for k in range(self.layout.lanes)
        ]

    def transposed(self, square: Sequence[Value]) -> list[Value]:
        """Transpose a square of complex numbers, whose rows are interleaved vectors."""
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
                    for target, units in ((i, low), (i + distance, high)):
                        indices = [2 * unit + component for unit in units for component in (0, 1)]
                        rows[target] = self.ops.shuffled(a, b, indices)
            distance *= 2
        return rows


def _read_columns(mover: _Mover) -> None:
    function, ops = mover.function, mover.ops
    with function.loop(0, "%count") as k:
        at = function.at("%x", function.mul(k, "%step"))
        pair = [ops.read(function.at(at, n * VECTOR_BYTES), mover.unit) for n in (0, 1)]
        mover.deinterleave(pair, function.at("%y", function.mul(k, _ELEMENT)))


def _write_columns(mover: _Mover) -> None:
    function, ops = mover.function, mover.ops
    scale = mover.scale()
    with function.loop(0, "%count") as k:
        at = function.at("%x", function.mul(k, "%step"))
        pair = mover.interleave(function.at("%y", function.mul(k, _ELEMENT)), k, scale)
        for n, vector in enumerate(pair):
            ops.write(vector, function.at(at, n * VECTOR_BYTES), mover.unit)


def _read_rows(mover: _Mover) -> None:
    """Transpose squares of rows and elements; the last square may overlap the one before."""
    function, ops, half = mover.function, mover.ops, mover.layout.half
    starts = mover.row_starts()
    last = function.sub("%count", half)
    with function.loop(0, "%count", half) as unclamped:
        first = function.least(unclamped, last)
        offset = function.mul(first, mover.unit)
        rows = [ops.read(function.at(start, offset), mover.unit) for start in starts]
        sides = [mover.transposed(rows[:half]), mover.transposed(rows[half:])]
        y = function.at("%y", function.mul(first, _ELEMENT))
        for k, pair in enumerate(zip(*sides, strict=True)):
            mover.deinterleave(pair, function.at(y, k * _ELEMENT))


def _write_rows(mover: _Mover) -> None:
    function, ops, half = mover.function, mover.ops, mover.layout.half
    starts, scale = mover.row_starts(), mover.scale()
    last = function.sub("%count", half)
    with function.loop(0, "%count", half) as unclamped:
        first = function.least(unclamped, last)
        y = function.at("%y", function.mul(first, _ELEMENT))
        pairs = [
            mover.interleave(function.at(y, k * _ELEMENT), function.add(first, k), scale)
            for k in range(half)
        ]
        offset = function.mul(first, mover.unit)
        for side in (0, 1):
            rows = mover.transposed([pair[side] for pair in pairs])
            for row, start in zip(rows, starts[side * half :], strict=False):
                ops.write(row, function.at(start, offset), mover.unit)


def _read_others(mover: _Mover) -> None:
    function, ops = mover.function, mover.ops
    starts, size = mover.row_starts(), ops.scalar_bytes
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at("%y", function.mul(k, _ELEMENT))
        for component, component_offset in enumerate(("%first", mover.second)):
            out = function.at(y, component_offset)
            for lane, row in enumerate(mover.layout.rows):
                at = function.at(function.at(starts[row], offset), component * size)
                scalar = function.load(ops.scalar, at, size)
                function.store(ops.scalar, scalar, function.at(out, lane * size), size)


def _write_others(mover: _Mover) -> None:
    function, ops = mover.function, mover.ops
    starts, scale, size = mover.row_starts(), mover.scale(), ops.scalar_bytes
    buffer = function.variable(ops.vector, 2)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        pair = mover.interleave(function.at("%y", function.mul(k, _ELEMENT)), k, scale)
        for n, vector in enumerate(pair):
            ops.write(vector, function.at(buffer, n * VECTOR_BYTES))
        for row, start in enumerate(starts):
            at = function.at(start, offset)
            for component in (0, 1):
                here = function.at(buffer, (2 * row + component) * size)
                scalar = function.load(ops.scalar, here, size)
                function.store(ops.scalar, scalar, function.at(at, component * size), size)


def _read_reals(mover: _Mover) -> None:
    """Read real numbers one at a time; imaginary components are 0."""
    function, ops = mover.function, mover.ops
    starts, size = mover.row_starts(), ops.scalar_bytes
    zero = ops.constant(0.0)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at("%y", function.mul(k, _ELEMENT))
        for lane, row in enumerate(mover.layout.rows):
            scalar = function.load(ops.scalar, function.at(starts[row], offset), size)
            function.store(ops.scalar, scalar, function.at(y, lane * size), size)
        ops.write(zero, function.at(y, VECTOR_BYTES))


def _write_reals(mover: _Mover) -> None:
    function, ops = mover.function, mover.ops
    starts, scale, size = mover.row_starts(), mover.scale(), ops.scalar_bytes
    buffer = function.variable(ops.vector)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at(function.at("%y", "%first"), function.mul(k, _ELEMENT))
        ops.write(ops.apply("fmul", ops.read(y), scale), buffer)
        for lane, row in enumerate(mover.layout.rows):
            scalar = function.load(ops.scalar, function.at(buffer, lane * size), size)
            function.store(ops.scalar, scalar, function.at(starts[row], offset), size)


_MOVES: dict[str, Callable[[_Mover], None]] = {
    "read_columns": _read_columns,
    "read_rows": _read_rows,
    "read_others": _read_others,
    "write_columns": _write_columns,
    "write_rows": _write_rows,
    "write_others": _write_others,
    "read_reals": _read_reals,
    "write_reals": _write_reals,
}


# --- real transforms ---------------------------------------------------------------------------

# Arguments of a function that converts from x to y, between half a spectrum (n / 2 + 1 elements)
# and the transform of length n / 2 of pairs of real numbers.
_MIRROR_ARGUMENTS = [
    ("ptr noalias", "x"),
    ("ptr noalias", "y"),
    ("i64", "length"),
    ("ptr", "mirror"),
]


def mirrored(
    ops: ComplexArithmetic, a: ComplexValue, b: ComplexValue, root: ComplexValue, from_real: bool
) -> tuple[ComplexValue, ComplexValue]:
    """Compute elements k and n / 2 - k of half a spectrum from those of pairs, or vice versa.

    With A = a + conj(b) and B = a - conj(b), the results are A + D and conj(A - D). D is -i w B in
    transforms of real numbers, whose results are halved, and i conj(w) B in those to real numbers.
    ``a`` and ``b`` are elements k and n / 2 - k, and ``root`` is w = e^(-2 pi i k / n).
    """
    apply = ops.apply
    total = apply("fadd", a[0], b[0]), apply("fsub", a[1], b[1])
    difference = apply("fsub", a[0], b[0]), apply("fadd", a[1], b[1])
    half = ops.constant(0.5)
    if from_real:
        total, root = ops.scaled(total, half), ops.scaled(root, half)
        rotated = ops.rotated(ops.mul(root, difference))
    else:
        # i conj(w) B = conj(-i w conj(B))
        rotated = ops.conj(ops.rotated(ops.mul(root, ops.conj(difference))))
    # -Im(A) is computed as a difference, not negated, so that a zero is +0 in both results.
    negated = apply("fsub", b[1], a[1])
    if from_real:
        negated = apply("fmul", negated, half)
    other = apply("fsub", total[0], rotated[0]), apply("fadd", negated, rotated[1])
    return ops.add(total, rotated), other


def _mirror_pairs(function: FunctionText, dtype: str, from_real: bool) -> None:
    ops = ComplexArithmetic(function, dtype)
    size = ops.scalar_bytes
    half = function.op("lshr i64 %length, 1")
    with function.loop(1, function.add(half, 1)) as k:
        offsets = [function.mul(j, _ELEMENT) for j in (k, function.sub("%length", k))]
        a, b = (ops.read_pair(function.at("%x", offset)) for offset in offsets)
        factors = function.at("%mirror", function.mul(k, 2 * size))
        root = ops.everywhere(factors), ops.everywhere(function.at(factors, size))
        both = mirrored(ops, a, b, root, from_real)
        for value, offset in zip(both, offsets, strict=True):
            # Transforms to real numbers are inverse, so their components are exchanged.
            re, im = value if from_real else value[::-1]
            ops.write_pair((re, im), function.at("%y", offset))


def _from_real(function: FunctionText, dtype: str) -> None:
    _mirror_pairs(function, dtype, True)
    ops = ComplexArithmetic(function, dtype)
    re, im = ops.read_pair("%x")
    zero = ops.constant(0.0)
    last = function.at("%y", function.mul("%length", _ELEMENT))
    ops.write_pair((ops.apply("fadd", re, im), zero), "%y")
    ops.write_pair((ops.apply("fsub", re, im), zero), last)


def _to_real(function: FunctionText, dtype: str) -> None:
    """Convert half a spectrum; imaginary parts of its first and last element are ignored."""
    _mirror_pairs(function, dtype, False)
    ops = ComplexArithmetic(function, dtype)
    first = ops.read("%x")
    last = ops.read(function.at("%x", function.mul("%length", _ELEMENT)))
    re, im = ops.apply("fadd", first, last), ops.apply("fsub", first, last)
    ops.write_pair((im, re), "%y")


def _to_odd(function: FunctionText, dtype: str) -> None:
    """Extend half a spectrum of odd length to all of it, with components exchanged."""
    ops = ComplexArithmetic(function, dtype)
    half = function.op("lshr i64 %length, 1")
    ops.write_pair((ops.constant(0.0), ops.read("%x")), "%y")
    with function.loop(1, function.add(half, 1)) as k:
        offsets = [function.mul(j, _ELEMENT) for j in (k, function.sub("%length", k))]
        value = ops.read_pair(function.at("%x", offsets[0]))
        for one, offset in zip((value, ops.conj(value)), offsets, strict=True):
            ops.write_pair((one[1], one[0]), function.at("%y", offset))


_MIRRORS = {
    FROM_REAL: ("from_real", _from_real),
    TO_REAL: ("to_real", _to_real),
    TO_ODD: ("to_odd", _to_odd),
}

# gf_fourier_NAME_TYPE(arguments, lo, hi): the same conversion for long rows of interleaved complex
# numbers. An index is a chunk of a row.
#   0  source  1  target  2  bytes between rows of the source  3  of the target
#   4  length of the complex transform  5  as MIRROR  6  chunks of a row  7  elements of a chunk
LONG_NAMES = {FROM_REAL: "from_real", TO_REAL: "to_real"}


@cache
def long_function(dtype: str, kind: int) -> int:
    """The address of the conversion of long rows for a dtype, and FROM_REAL or TO_REAL."""
    symbol = f"gf_fourier_{LONG_NAMES[kind]}_{dtype}"
    text = slots_text() + _long_text(symbol, dtype, kind == FROM_REAL)
    return load_native(Module(text, (symbol,), level=AS_WRITTEN), kernel_cache()).addresses[symbol]


def _long_text(symbol: str, dtype: str, from_real: bool) -> str:
    function = FunctionText(symbol, [("ptr", "arguments"), ("i64", "low"), ("i64", "high")])
    ops = ComplexArithmetic(function, dtype)
    lanes, unit = ops.lanes, 2 * ops.scalar_bytes

    def argument(k: int, kind: str = "i64") -> Value:
        return function.load(kind, function.at("%arguments", 8 * k), 8)

    length, mirror, chunks, size = argument(4), argument(5, "ptr"), argument(6), argument(7)
    half = function.op(f"lshr i64 {length}, 1")
    forward = [range(component, 2 * lanes, 2) for component in (0, 1)]
    backward = [indices[::-1] for indices in forward]
    order = [(vector_offset % 2) * lanes + vector_offset // 2 for vector_offset in range(2 * lanes)]
    interleaved = [order[:lanes], order[lanes:]]

    def read(at: Value, indices: Sequence[Sequence[int]]) -> ComplexValue:
        pair = [ops.read(function.at(at, n * VECTOR_BYTES), unit) for n in (0, 1)]
        re, im = (ops.shuffled(pair[0], pair[1], order) for order in indices)
        return re, im

    def write(value: ComplexValue, at: Value) -> None:
        for n, order in enumerate(interleaved):
            vector = ops.shuffled(value[0], value[1], order)
            ops.write(vector, function.at(at, n * VECTOR_BYTES), unit)

    def load_scalar(at: Value) -> Value:
        return function.load(ops.scalar, at, ops.scalar_bytes)

    def store_scalar(value: Value, at: Value) -> None:
        function.store(ops.scalar, value, at, ops.scalar_bytes)

    def ends(x: Value, y: Value) -> None:
        """Emit the first and last element, which mirror themselves."""
        offset = function.mul(length, unit)
        second = function.at(x, ops.scalar_bytes if from_real else offset)
        a, b = load_scalar(x), load_scalar(second)
        total = function.op(f"fadd {ops.scalar} {a}, {b}")
        difference = function.op(f"fsub {ops.scalar} {a}, {b}")
        last = function.at(y, offset) if from_real else function.at(y, ops.scalar_bytes)
        store_scalar(total, y)
        store_scalar(difference, last)
        if from_real:
            for at in (y, last):
                store_scalar("0.0", function.at(at, ops.scalar_bytes))

    with function.loop("%low", "%high") as index:
        row = function.op(f"sdiv i64 {index}, {chunks}")
        chunk = function.sub(index, function.mul(row, chunks))
        x = function.at(argument(0, "ptr"), function.mul(row, argument(2)))
        y = function.at(argument(1, "ptr"), function.mul(row, argument(3)))
        with function.where(function.op(f"icmp eq i64 {chunk}, 0")):
            ends(x, y)
        start = function.add(function.mul(chunk, size), 1)
        stop = function.least(function.add(start, size), function.add(half, 1))
        with function.loop(start, stop, lanes) as unclamped:
            # The last vector starts earlier if the remainder is shorter, and overlaps.
            k = function.least(unclamped, function.sub(function.add(half, 1), lanes))
            vector_offset = function.mul(k, unit)
            opposite = function.mul(function.sub(function.sub(length, k), lanes - 1), unit)
            a = read(function.at(x, vector_offset), forward)
            b = read(function.at(x, opposite), backward)
            root = read(function.at(mirror, vector_offset), forward)
            first, second = mirrored(ops, a, b, root, from_real)
            write(first, function.at(y, vector_offset))
            reversed_lanes = list(range(lanes))[::-1]
            re, im = (ops.shuffled(one, "poison", reversed_lanes) for one in second)
            write((re, im), function.at(y, opposite))
    return function.text()


# --- the transform of a block ------------------------------------------------------------------


def _block_function_text(symbol: str, dtype: str, kind: int, anywhere: bool) -> str:
    """The function of an instruction: for each block read, mirror, run the passes, and write."""
    function = FunctionText(symbol, [("ptr", "arguments"), ("i64", "low"), ("i64", "high")])
    lanes, unit = lanes_of(dtype), 2 * KINDS[dtype][1]

    def argument(k: int, kind: str = "i64") -> Value:
        return function.load(kind, function.at("%arguments", 8 * k), 8)

    slot_flags = argument(0, "ptr")
    slot = function.op(f"call i64 @claim(ptr {slot_flags}, i64 {argument(2)})")
    front = function.at(argument(1, "ptr"), function.mul(slot, argument(3)))
    back = function.at(front, argument(BACK))
    length, passes, table = argument(7), argument(11), argument(ROWS, "ptr")
    rows, blocks, mirror = argument(14), argument(15), argument(MIRROR, "ptr")
    twiddles, scale = argument(TWIDDLES, "ptr"), argument(SCALE, "ptr")
    here, other = function.variable("ptr"), function.variable("ptr")

    def swap() -> None:
        a, b = function.load("ptr", here, 8), function.load("ptr", other, 8)
        function.store("ptr", b, here, 8)
        function.store("ptr", a, other, 8)

    def where(condition: str) -> Value:
        return function.op(f"icmp {condition}")

    def both(a: Value, b: Value) -> Value:
        return function.op(f"and i1 {a}, {b}")

    def move(name: str, at: int, group: Value, first: Value, twiddles: Value, swaps: int) -> None:
        """Emit the calls that read or write a block; the first variant that applies runs."""
        step, across, group_step = argument(at + 1), argument(at + 2), argument(at + 3)
        offset = function.add(function.mul(group, group_step), function.mul(first, across))
        x = function.at(argument(at, "ptr"), offset)
        remaining = function.least(function.sub(rows, first), lanes)
        count = argument(5 if name == "read" else 6)
        swapped = function.mul(argument(swaps), VECTOR_BYTES)
        y = function.load("ptr", here, 8)
        conditions = {
            f"{name}_columns": both(
                where(f"eq i64 {across}, {unit}"), where(f"eq i64 {remaining}, {lanes}")
            ),
            f"{name}_rows": both(
                where(f"eq i64 {step}, {unit}"), where(f"sge i64 {count}, {lanes // 2}")
            ),
        }
        done = "false"
        for variant in _variants(name, kind, anywhere):
            applies = conditions.get(variant, "true")
            condition = both(applies, function.op(f"xor i1 {done}, true"))
            done = function.op(f"or i1 {done}, {applies}")
            with function.where(condition):
                function.do(
                    f"call void @{variant}(ptr {x}, i64 {step}, i64 {across}, i64 {remaining}, "
                    f"ptr {y}, i64 {count}, i64 {swapped}, ptr {scale}, ptr {twiddles})"
                )

    def mirror_by() -> None:
        name, _ = _MIRRORS[kind]
        a, b = function.load("ptr", here, 8), function.load("ptr", other, 8)
        function.do(f"call void @{name}(ptr {a}, ptr {b}, i64 {length}, ptr {mirror})")
        swap()

    with function.loop("%low", "%high") as k:
        group = function.op(f"sdiv i64 {k}, {blocks}")
        block = function.sub(k, function.mul(group, blocks))
        first = function.mul(block, lanes)
        function.store("ptr", front, here, 8)
        function.store("ptr", back, other, 8)
        move("read", SOURCE, group, first, "null", 8)
        if kind in (TO_REAL, TO_ODD):
            mirror_by()
        with function.loop(0, passes) as n:
            row = function.at(table, function.mul(n, 8 * ROW))
            x, y = function.load("ptr", here, 8), function.load("ptr", other, 8)
            function.do(f"call void {function.load('ptr', row, 8)}(ptr {x}, ptr {y}, ptr {row})")
            swap()
        if kind == FROM_REAL:
            mirror_by()
        has_twiddles = where(f"ne ptr {twiddles}, null")
        own = function.at(twiddles, function.mul(block, function.mul(length, _ELEMENT)))
        own_twiddles = function.op(f"select i1 {has_twiddles}, ptr {own}, ptr null")
        move("write", TARGET, group, first, own_twiddles, 9)
    function.do(f"call void @release(ptr {slot_flags}, i64 {slot})")
    return function.text()
