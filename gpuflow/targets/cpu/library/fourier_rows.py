"""Fourier transforms of blocks of rows: load, passes in cache, store, as LLVM IR text.

A block has as many rows of the batch as a vector has lanes. It is loaded into scratch memory of the
thread, deinterleaved: for each element a vector of real and a vector of imaginary components. The
passes (``fourier_passes``) alternate between the two halves of that memory, and the result is
stored. Rows may have any layout in memory; three functions load and store:

    columns   adjacent rows are contiguous: an element of all rows is two vectors
    rows      elements are contiguous: squares of elements and rows are transposed
    others    one element at a time; in transforms of odd length, ``reals`` on the real side

If a block has fewer rows, the last one takes the lanes of the missing ones. It is then stored
several times, with the same values.

A real row of even length is read as a complex one of half the length (Cooley, Lewis and Welch,
The Fast Fourier Transform Algorithm, J. Sound Vib. 12, 1970); one of odd length as complex numbers
whose imaginary parts are 0.

Tests: tests/targets/cpu/test_fourier_rows.py, tests/targets/cpu/test_native_fourier.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpuflow.base.caches import cache
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.machine_code import SIMPLIFY_ONLY
from gpuflow.targets.cpu.library.fourier_passes import (
    ELEMENT_BYTES,
    PASS_ROW_SLOTS,
    SCALAR_TYPES,
    VECTOR_BYTES,
    ComplexArithmetic,
    ComplexValue,
    lanes_of,
)
from gpuflow.targets.cpu.runtime.native.function_text import FunctionText, Value
from gpuflow.targets.cpu.runtime.native.object_code import NativeModule, load_native, slots_text

# gf_fourier_KIND_TYPE(arguments, lo, hi): an index is a block of rows of a group. Arguments, which
# ``FourierWriter.transform`` fills:
#   0  slots: flags, memory, number, bytes  4  byte offset of the second half of a slot
#   5  elements that are read  6  that are written  7  length of the complex transform
#   8  whether components are exchanged when they are read  9  when they are written
#  10  address of a factor of all results  11  number of passes  12  their table
#  13  e^(-2 pi i k / n) of a real transform of length n  14  rows of a group  15  its blocks
#  16  source  17  bytes between its elements  18  between its rows  19  between its groups
#  20 to 23  the same for the target  24  twiddle factors of each block and element, or 0
BACK_OFFSET, READ_COUNT, WRITE_COUNT, LENGTH, READ_EXCHANGE, WRITE_EXCHANGE = range(4, 10)
SCALE, PASS_COUNT, PASS_TABLE, MIRROR, ROW_COUNT, BLOCK_COUNT = range(10, 16)
SOURCE, TARGET, TWIDDLES = 16, 20, 24
# Kinds of transforms: lengths of real rows are even in FROM_REAL and TO_REAL, odd in the last two.
COMPLEX, FROM_REAL, TO_REAL, FROM_ODD, TO_ODD = range(5)
# Parameters of a function that native programs run: it computes the indices low <= index < high.
ROWS_PARAMETERS = [("ptr", "arguments"), ("i64", "low"), ("i64", "high")]


class _Interleaving:
    """Shuffles between interleaved and deinterleaved complex numbers.

    Two interleaved vectors hold a complex number for each lane. Deinterleaving them within 128-bit
    chunks takes one instruction per component, but permutes the lanes.

    Attributes:
        lanes, half: lanes of a vector, and half of them: complex numbers of an interleaved vector.
        deinterleaved: for each component, the shuffle of two interleaved vectors to its vector.
        interleaved: the inverse: the shuffles of the two components to each interleaved vector.
        lane_rows: the row of the block in each lane of a deinterleaved vector.
    """

    def __init__(self, lanes: int, scalar_bytes: int) -> None:
        chunk_scalars = 16 // scalar_bytes  # scalars in 128 bits
        chunks = range(0, lanes, chunk_scalars)
        evens = range(0, chunk_scalars, 2)
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
        self.lane_rows = [index // 2 for index in self.deinterleaved[0]]


def lane_rows(dtype: str) -> list[int]:
    """The row of a block in each lane of a vector between passes."""
    return _Interleaving(lanes_of(dtype), SCALAR_TYPES[dtype].bytes).lane_rows


@cache
def rows_function(dtype: str, kind: int, allows_any_layout: bool) -> int:
    """The address of the function for a dtype and a kind, COMPLEX and so on.

    ``allows_any_layout``: blocks may be neither "columns" nor "rows", which needs much more code.
    """
    symbol = f"gf_fourier_{kind}_{dtype}"
    return load_rows_function(symbol, _module_texts(symbol, dtype, kind, allows_any_layout))


def load_rows_function(symbol: str, functions: Sequence[str]) -> int:
    """The address of ``symbol`` in a module of these functions, which may claim slots."""
    module = NativeModule(slots_text() + "\n".join(functions), (symbol,), level=SIMPLIFY_ONLY)
    return load_native(module, kernel_cache()).addresses[symbol]


def load_argument(function: FunctionText, slot: int, type_: str = "i64") -> Value:
    """Emit the load of a slot of the argument block of a function with ROWS_PARAMETERS."""
    return function.load(type_, function.at("%arguments", 8 * slot), 8)


def are_columns_or_rows(dtype: str, element: int, row: int, rows: int, count: int) -> bool:
    """Whether all blocks of a group can be read or written as "columns" or as "rows".

    Args:
        dtype: dtype of a component.
        element, row: bytes between elements and between rows.
        rows: number of rows of the group.
        count: number of elements of a row.
    """
    lanes, unit = lanes_of(dtype), 2 * SCALAR_TYPES[dtype].bytes
    return (row == unit and rows % lanes == 0) or (element == unit and 2 * count >= lanes)


def _module_texts(symbol: str, dtype: str, kind: int, allows_any_layout: bool) -> list[str]:
    texts = []
    reads, writes = (_variants(name, kind, allows_any_layout) for name in ("read", "write"))
    for name in (*reads, *writes):
        function = FunctionText(name, _COPY_PARAMETERS, True)
        _COPY_BODIES[name](_CopyBuilder(function, dtype))
        texts.append(function.text())
    if kind in _MIRROR_STEPS:
        name, write = _MIRROR_STEPS[kind]
        function = FunctionText(name, _MIRROR_PARAMETERS, True)
        write(function, dtype)
        texts.append(function.text())
    return [*texts, _block_function_text(symbol, dtype, kind, allows_any_layout)]


def _variants(name: str, kind: int, allows_any_layout: bool) -> list[str]:
    """Names of the functions that read or write blocks, in order of preference."""
    if kind == (FROM_ODD if name == "read" else TO_ODD):
        return [f"{name}_reals"]
    variants = ("columns", "rows", "others") if allows_any_layout else ("columns", "rows")
    return [f"{name}_{variant}" for variant in variants]


# --- reading and writing -----------------------------------------------------------------------

# Parameters of a function that copies a block between arrays at x and scratch memory at y:
# ``count`` elements with a stride of ``step`` bytes, of ``rows`` rows with a stride of ``across``
# bytes. There is at least one row and one element. Real components are at offset ``first`` of y: 0,
# or the bytes of a vector if components are exchanged. Stored elements are multiplied by the factor
# at ``scale``, and by ``twiddles`` if not null. Scratch memory is aligned to vectors, arrays to a
# component.
_COPY_PARAMETERS = [
    ("ptr noalias", "x"), ("i64", "step"), ("i64", "across"), ("i64", "rows"),
    ("ptr noalias", "y"), ("i64", "count"), ("i64", "first"), ("ptr", "scale"), ("ptr", "twiddles"),
]  # fmt: skip


class _CopyBuilder:
    """Builder of a function that reads or writes a block.

    ``unit`` are the bytes of a complex number, ``second`` is the offset of imaginary components.
    """

    def __init__(self, function: FunctionText, dtype: str) -> None:
        self.function = function
        self.ops = ComplexArithmetic(function, dtype)
        self.interleaving = _Interleaving(self.ops.lanes, self.ops.scalar_bytes)
        self.unit = 2 * self.ops.scalar_bytes
        self.second = function.emit(f"xor i64 %first, {VECTOR_BYTES}")

    def deinterleave(self, pair: Sequence[Value], y: Value) -> None:
        """Store two interleaved vectors as an element of scratch memory."""
        for indices, offset in zip(
            self.interleaving.deinterleaved, ("%first", self.second), strict=True
        ):
            component = self.ops.shuffled(pair[0], pair[1], indices)
            self.ops.write(component, self.function.at(y, offset))

    def interleave(self, y: Value, k: Value, scale: Value) -> list[Value]:
        """Load element k of scratch memory, scaled and multiplied by its twiddle, interleaved."""
        function, ops = self.function, self.ops
        scratch = function.alloca(ops.vector, 2)
        value = ops.read(y), ops.read(function.at(y, VECTOR_BYTES))
        ops.write_pair(ops.scaled(value, scale), scratch)
        has_twiddles = function.emit("icmp ne ptr %twiddles, null")
        with function.if_then(has_twiddles):
            factors = function.at("%twiddles", function.mul(k, ELEMENT_BYTES))
            by = ops.read_pair(factors, ops.scalar_bytes)
            ops.write_pair(ops.mul(ops.read_pair(scratch), by), scratch)
        value = ops.read_pair(scratch)
        swapped = function.emit("icmp ne i64 %first, 0")
        components = [
            function.emit(f"select i1 {swapped}, {ops.vector} {a}, {ops.vector} {b}")
            for a, b in (value[::-1], value)
        ]
        re, im = components
        return [ops.shuffled(re, im, indices) for indices in self.interleaving.interleaved]

    def scale(self) -> Value:
        """The factor of all results, as a vector."""
        return self.ops.load_splat("%scale")

    def row_starts(self) -> list[Value]:
        """The address of each row's first element; missing rows are the last one."""
        function = self.function
        last = function.sub("%rows", 1)
        return [
            function.at("%x", function.mul(function.smin(last, k), "%across"))
            for k in range(self.interleaving.lanes)
        ]

    def transposed(self, square: Sequence[Value]) -> list[Value]:
        """Transpose a square of complex numbers, whose rows are interleaved vectors."""
        rows, half = list(square), self.interleaving.half
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


def _read_columns(builder: _CopyBuilder) -> None:
    function, ops = builder.function, builder.ops
    with function.loop(0, "%count") as k:
        at = function.at("%x", function.mul(k, "%step"))
        pair = [ops.read(function.at(at, n * VECTOR_BYTES), builder.unit) for n in (0, 1)]
        builder.deinterleave(pair, function.at("%y", function.mul(k, ELEMENT_BYTES)))


def _write_columns(builder: _CopyBuilder) -> None:
    function, ops = builder.function, builder.ops
    scale = builder.scale()
    with function.loop(0, "%count") as k:
        at = function.at("%x", function.mul(k, "%step"))
        pair = builder.interleave(function.at("%y", function.mul(k, ELEMENT_BYTES)), k, scale)
        for n, vector in enumerate(pair):
            ops.write(vector, function.at(at, n * VECTOR_BYTES), builder.unit)


def _read_rows(builder: _CopyBuilder) -> None:
    """Transpose squares of rows and elements; the last square may overlap the one before."""
    function, ops, half = builder.function, builder.ops, builder.interleaving.half
    starts = builder.row_starts()
    last = function.sub("%count", half)
    with function.loop(0, "%count", half) as unclamped:
        first = function.smin(unclamped, last)
        offset = function.mul(first, builder.unit)
        rows = [ops.read(function.at(start, offset), builder.unit) for start in starts]
        sides = [builder.transposed(rows[:half]), builder.transposed(rows[half:])]
        y = function.at("%y", function.mul(first, ELEMENT_BYTES))
        for k, pair in enumerate(zip(*sides, strict=True)):
            builder.deinterleave(pair, function.at(y, k * ELEMENT_BYTES))


def _write_rows(builder: _CopyBuilder) -> None:
    function, ops, half = builder.function, builder.ops, builder.interleaving.half
    starts, scale = builder.row_starts(), builder.scale()
    last = function.sub("%count", half)
    with function.loop(0, "%count", half) as unclamped:
        first = function.smin(unclamped, last)
        y = function.at("%y", function.mul(first, ELEMENT_BYTES))
        pairs = [
            builder.interleave(function.at(y, k * ELEMENT_BYTES), function.add(first, k), scale)
            for k in range(half)
        ]
        offset = function.mul(first, builder.unit)
        for side in (0, 1):
            rows = builder.transposed([pair[side] for pair in pairs])
            for row, start in zip(rows, starts[side * half :], strict=False):
                ops.write(row, function.at(start, offset), builder.unit)


def _read_others(builder: _CopyBuilder) -> None:
    function, ops = builder.function, builder.ops
    starts, size = builder.row_starts(), ops.scalar_bytes
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at("%y", function.mul(k, ELEMENT_BYTES))
        for component, component_offset in enumerate(("%first", builder.second)):
            out = function.at(y, component_offset)
            for lane, row in enumerate(builder.interleaving.lane_rows):
                at = function.at(function.at(starts[row], offset), component * size)
                scalar = function.load(ops.scalar, at, size)
                function.store(ops.scalar, scalar, function.at(out, lane * size), size)


def _write_others(builder: _CopyBuilder) -> None:
    function, ops = builder.function, builder.ops
    starts, scale, size = builder.row_starts(), builder.scale(), ops.scalar_bytes
    buffer = function.alloca(ops.vector, 2)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        pair = builder.interleave(function.at("%y", function.mul(k, ELEMENT_BYTES)), k, scale)
        for n, vector in enumerate(pair):
            ops.write(vector, function.at(buffer, n * VECTOR_BYTES))
        for row, start in enumerate(starts):
            at = function.at(start, offset)
            for component in (0, 1):
                here = function.at(buffer, (2 * row + component) * size)
                scalar = function.load(ops.scalar, here, size)
                function.store(ops.scalar, scalar, function.at(at, component * size), size)


def _read_reals(builder: _CopyBuilder) -> None:
    """Read real numbers one at a time; imaginary components are 0."""
    function, ops = builder.function, builder.ops
    starts, size = builder.row_starts(), ops.scalar_bytes
    zero = ops.constant(0.0)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at("%y", function.mul(k, ELEMENT_BYTES))
        for lane, row in enumerate(builder.interleaving.lane_rows):
            scalar = function.load(ops.scalar, function.at(starts[row], offset), size)
            function.store(ops.scalar, scalar, function.at(y, lane * size), size)
        ops.write(zero, function.at(y, VECTOR_BYTES))


def _write_reals(builder: _CopyBuilder) -> None:
    function, ops = builder.function, builder.ops
    starts, scale, size = builder.row_starts(), builder.scale(), ops.scalar_bytes
    buffer = function.alloca(ops.vector)
    with function.loop(0, "%count") as k:
        offset = function.mul(k, "%step")
        y = function.at(function.at("%y", "%first"), function.mul(k, ELEMENT_BYTES))
        ops.write(ops.binary("fmul", ops.read(y), scale), buffer)
        for lane, row in enumerate(builder.interleaving.lane_rows):
            scalar = function.load(ops.scalar, function.at(buffer, lane * size), size)
            function.store(ops.scalar, scalar, function.at(starts[row], offset), size)


_COPY_BODIES: dict[str, Callable[[_CopyBuilder], None]] = {
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
_MIRROR_PARAMETERS = [
    ("ptr noalias", "x"),
    ("ptr noalias", "y"),
    ("i64", "length"),
    ("ptr", "mirror"),
]


def mirror_pair(
    ops: ComplexArithmetic, a: ComplexValue, b: ComplexValue, root: ComplexValue, from_real: bool
) -> tuple[ComplexValue, ComplexValue]:
    """Compute elements k and n / 2 - k of half a spectrum from those of pairs, or vice versa.

    With A = a + conj(b) and B = a - conj(b), the results are A + D and conj(A - D). D is -i w B in
    transforms of real numbers, whose results are halved, and i conj(w) B in those to real numbers.
    ``a`` and ``b`` are elements k and n / 2 - k, and ``root`` is w = e^(-2 pi i k / n).
    """
    binary = ops.binary
    total = binary("fadd", a[0], b[0]), binary("fsub", a[1], b[1])
    difference = binary("fsub", a[0], b[0]), binary("fadd", a[1], b[1])
    half = ops.constant(0.5)
    if from_real:
        total, root = ops.scaled(total, half), ops.scaled(root, half)
        rotated = ops.rotated(ops.mul(root, difference))
    else:
        # i conj(w) B = conj(-i w conj(B))
        rotated = ops.conj(ops.rotated(ops.mul(root, ops.conj(difference))))
    # -Im(A) is computed as a difference, not negated, so that a zero is +0 in both results.
    negated = binary("fsub", b[1], a[1])
    if from_real:
        negated = binary("fmul", negated, half)
    opposite = binary("fsub", total[0], rotated[0]), binary("fadd", negated, rotated[1])
    return ops.add(total, rotated), opposite


def _mirror_pairs(function: FunctionText, dtype: str, from_real: bool) -> None:
    ops = ComplexArithmetic(function, dtype)
    size = ops.scalar_bytes
    half = function.emit("lshr i64 %length, 1")
    with function.loop(1, function.add(half, 1)) as k:
        offsets = [function.mul(j, ELEMENT_BYTES) for j in (k, function.sub("%length", k))]
        a, b = (ops.read_pair(function.at("%x", offset)) for offset in offsets)
        factors = function.at("%mirror", function.mul(k, 2 * size))
        root = ops.load_splat(factors), ops.load_splat(function.at(factors, size))
        pair = mirror_pair(ops, a, b, root, from_real)
        for value, offset in zip(pair, offsets, strict=True):
            # Transforms to real numbers are inverse, so their components are exchanged.
            re, im = value if from_real else value[::-1]
            ops.write_pair((re, im), function.at("%y", offset))


def _from_real(function: FunctionText, dtype: str) -> None:
    _mirror_pairs(function, dtype, True)
    ops = ComplexArithmetic(function, dtype)
    re, im = ops.read_pair("%x")
    zero = ops.constant(0.0)
    last = function.at("%y", function.mul("%length", ELEMENT_BYTES))
    ops.write_pair((ops.binary("fadd", re, im), zero), "%y")
    ops.write_pair((ops.binary("fsub", re, im), zero), last)


def _to_real(function: FunctionText, dtype: str) -> None:
    """Convert half a spectrum; imaginary parts of its first and last element are ignored."""
    _mirror_pairs(function, dtype, False)
    ops = ComplexArithmetic(function, dtype)
    first = ops.read("%x")
    last = ops.read(function.at("%x", function.mul("%length", ELEMENT_BYTES)))
    re, im = ops.binary("fadd", first, last), ops.binary("fsub", first, last)
    ops.write_pair((im, re), "%y")


def _to_odd(function: FunctionText, dtype: str) -> None:
    """Extend half a spectrum of odd length to all of it, with components exchanged."""
    ops = ComplexArithmetic(function, dtype)
    half = function.emit("lshr i64 %length, 1")
    ops.write_pair((ops.constant(0.0), ops.read("%x")), "%y")
    with function.loop(1, function.add(half, 1)) as k:
        offsets = [function.mul(j, ELEMENT_BYTES) for j in (k, function.sub("%length", k))]
        value = ops.read_pair(function.at("%x", offsets[0]))
        for (re, im), offset in zip((value, ops.conj(value)), offsets, strict=True):
            ops.write_pair((im, re), function.at("%y", offset))


_MIRROR_STEPS = {
    FROM_REAL: ("from_real", _from_real),
    TO_REAL: ("to_real", _to_real),
    TO_ODD: ("to_odd", _to_odd),
}


# --- the transform of a block ------------------------------------------------------------------


def _block_function_text(symbol: str, dtype: str, kind: int, allows_any_layout: bool) -> str:
    """The function of an instruction: for each block read, mirror, run the passes, and write."""
    function = FunctionText(symbol, ROWS_PARAMETERS)
    lanes, unit = lanes_of(dtype), 2 * SCALAR_TYPES[dtype].bytes
    argument = partial(load_argument, function)

    slot_flags = argument(0, "ptr")
    slot = function.emit(f"call i64 @claim(ptr {slot_flags}, i64 {argument(2)})")
    front = function.at(argument(1, "ptr"), function.mul(slot, argument(3)))
    back = function.at(front, argument(BACK_OFFSET))
    length, passes, table = argument(LENGTH), argument(PASS_COUNT), argument(PASS_TABLE, "ptr")
    rows, blocks, mirror = argument(ROW_COUNT), argument(BLOCK_COUNT), argument(MIRROR, "ptr")
    twiddles, scale = argument(TWIDDLES, "ptr"), argument(SCALE, "ptr")
    current, spare = function.alloca("ptr"), function.alloca("ptr")

    def swap() -> None:
        a, b = function.load("ptr", current, 8), function.load("ptr", spare, 8)
        function.store("ptr", b, current, 8)
        function.store("ptr", a, spare, 8)

    def compare(condition: str) -> Value:
        return function.emit(f"icmp {condition}")

    def and_(a: Value, b: Value) -> Value:
        return function.emit(f"and i1 {a}, {b}")

    def emit_copy(
        name: str, at: int, group: Value, first: Value, twiddles: Value, exchange_slot: int
    ) -> None:
        """Emit the calls that read or write a block; the first variant that applies runs."""
        step, across, group_step = argument(at + 1), argument(at + 2), argument(at + 3)
        offset = function.add(function.mul(group, group_step), function.mul(first, across))
        x = function.at(argument(at, "ptr"), offset)
        remaining = function.smin(function.sub(rows, first), lanes)
        count = argument(READ_COUNT if name == "read" else WRITE_COUNT)
        swapped = function.mul(argument(exchange_slot), VECTOR_BYTES)
        y = function.load("ptr", current, 8)
        conditions = {
            f"{name}_columns": and_(
                compare(f"eq i64 {across}, {unit}"), compare(f"eq i64 {remaining}, {lanes}")
            ),
            f"{name}_rows": and_(
                compare(f"eq i64 {step}, {unit}"), compare(f"sge i64 {count}, {lanes // 2}")
            ),
        }
        done = "false"
        for variant in _variants(name, kind, allows_any_layout):
            applies = conditions.get(variant, "true")
            condition = and_(applies, function.emit(f"xor i1 {done}, true"))
            done = function.emit(f"or i1 {done}, {applies}")
            with function.if_then(condition):
                function.emit_void(
                    f"call void @{variant}(ptr {x}, i64 {step}, i64 {across}, i64 {remaining}, "
                    f"ptr {y}, i64 {count}, i64 {swapped}, ptr {scale}, ptr {twiddles})"
                )

    def emit_mirror() -> None:
        name, _ = _MIRROR_STEPS[kind]
        a, b = function.load("ptr", current, 8), function.load("ptr", spare, 8)
        function.emit_void(f"call void @{name}(ptr {a}, ptr {b}, i64 {length}, ptr {mirror})")
        swap()

    with function.loop("%low", "%high") as k:
        group = function.emit(f"sdiv i64 {k}, {blocks}")
        block = function.sub(k, function.mul(group, blocks))
        first = function.mul(block, lanes)
        function.store("ptr", front, current, 8)
        function.store("ptr", back, spare, 8)
        emit_copy("read", SOURCE, group, first, "null", READ_EXCHANGE)
        if kind in (TO_REAL, TO_ODD):
            emit_mirror()
        with function.loop(0, passes) as n:
            row = function.at(table, function.mul(n, 8 * PASS_ROW_SLOTS))
            x, y = function.load("ptr", current, 8), function.load("ptr", spare, 8)
            function.emit_void(
                f"call void {function.load('ptr', row, 8)}(ptr {x}, ptr {y}, ptr {row})"
            )
            swap()
        if kind == FROM_REAL:
            emit_mirror()
        has_twiddles = compare(f"ne ptr {twiddles}, null")
        block_twiddles = function.at(
            twiddles, function.mul(block, function.mul(length, ELEMENT_BYTES))
        )
        twiddles_or_null = function.emit(
            f"select i1 {has_twiddles}, ptr {block_twiddles}, ptr null"
        )
        emit_copy("write", TARGET, group, first, twiddles_or_null, WRITE_EXCHANGE)
    function.emit_void(f"call void @release(ptr {slot_flags}, i64 {slot})")
    return function.text()
