"""Conversions of long rows between half spectra and transforms of pairs of real numbers.

Rows that are split into matrices (``fourier_writer``) are never in a thread's scratch memory. So
the step that ``fourier_rows`` does within a block is a separate pass over interleaved complex
numbers. The length of the complex transform must be at least four vectors of lanes, as
``fourier_lengths.split_shape`` ensures.

Tests: tests/targets/cpu/test_fourier_rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpuflow.base.caches import cache
from gpuflow.targets.cpu.library.fourier_passes import (
    VECTOR_BYTES,
    ComplexArithmetic,
    ComplexValue,
)
from gpuflow.targets.cpu.library.fourier_rows import (
    FROM_REAL,
    ROWS_PARAMETERS,
    TO_REAL,
    load_argument,
    load_rows_function,
    mirror_pair,
)
from gpuflow.targets.cpu.runtime.native.function_text import FunctionText, Value

# gf_fourier_NAME_TYPE(arguments, lo, hi): an index is a chunk of a row. Arguments, which
# ``FourierWriter._emit_mirror`` fills:
#   0  source  1  target  2  bytes between rows of the source  3  of the target
#   4  length of the complex transform  5  e^(-2 pi i k / n), n the real length
#   6  chunks of a row  7  elements of a chunk
LONG_NAMES = {FROM_REAL: "from_real", TO_REAL: "to_real"}


@cache
def long_function(dtype: str, kind: int) -> int:
    """The address of the conversion of long rows for a dtype, and FROM_REAL or TO_REAL."""
    symbol = f"gf_fourier_{LONG_NAMES[kind]}_{dtype}"
    return load_rows_function(symbol, [_long_text(symbol, dtype, kind == FROM_REAL)])


def _long_text(symbol: str, dtype: str, from_real: bool) -> str:
    function = FunctionText(symbol, ROWS_PARAMETERS)
    ops = ComplexArithmetic(function, dtype)
    lanes, unit = ops.lanes, 2 * ops.scalar_bytes
    argument = partial(load_argument, function)
    length, mirror, chunks, chunk_length = argument(4), argument(5, "ptr"), argument(6), argument(7)
    half = function.emit(f"lshr i64 {length}, 1")
    forward = [range(component, 2 * lanes, 2) for component in (0, 1)]
    backward = [indices[::-1] for indices in forward]
    alternating = [k % 2 * lanes + k // 2 for k in range(2 * lanes)]
    interleaved = [alternating[:lanes], alternating[lanes:]]

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

    def emit_ends(x: Value, y: Value) -> None:
        """Emit the first and last element, which mirror themselves."""
        offset = function.mul(length, unit)
        second = function.at(x, ops.scalar_bytes if from_real else offset)
        a, b = load_scalar(x), load_scalar(second)
        total = function.emit(f"fadd {ops.scalar} {a}, {b}")
        difference = function.emit(f"fsub {ops.scalar} {a}, {b}")
        last = function.at(y, offset) if from_real else function.at(y, ops.scalar_bytes)
        store_scalar(total, y)
        store_scalar(difference, last)
        if from_real:
            for at in (y, last):
                store_scalar("0.0", function.at(at, ops.scalar_bytes))

    with function.loop("%low", "%high") as index:
        row = function.emit(f"sdiv i64 {index}, {chunks}")
        chunk = function.sub(index, function.mul(row, chunks))
        x = function.at(argument(0, "ptr"), function.mul(row, argument(2)))
        y = function.at(argument(1, "ptr"), function.mul(row, argument(3)))
        with function.if_then(function.emit(f"icmp eq i64 {chunk}, 0")):
            emit_ends(x, y)
        start = function.add(function.mul(chunk, chunk_length), 1)
        stop = function.smin(function.add(start, chunk_length), function.add(half, 1))
        with function.loop(start, stop, lanes) as unclamped:
            # The last vector starts earlier if the remainder is shorter, and overlaps.
            k = function.smin(unclamped, function.sub(function.add(half, 1), lanes))
            vector_offset = function.mul(k, unit)
            opposite = function.mul(function.sub(function.sub(length, k), lanes - 1), unit)
            a = read(function.at(x, vector_offset), forward)
            b = read(function.at(x, opposite), backward)
            root = read(function.at(mirror, vector_offset), forward)
            first, second = mirror_pair(ops, a, b, root, from_real)
            write(first, function.at(y, vector_offset))
            reversed_lanes = list(range(lanes))[::-1]
            re, im = (ops.shuffled(vector, "poison", reversed_lanes) for vector in second)
            write((re, im), function.at(y, opposite))
    return function.text()
