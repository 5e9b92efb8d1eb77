"""Passes of Stockham Fourier transforms, vectorized over rows, as LLVM IR text.

Each lane of a vector is a row of the batch, so arithmetic is that of one row, without shuffles. A
pass of radix r loads r elements with a large stride, computes their transform, multiplies the
results by twiddle factors, and stores them in the order of the next pass (autosort):

    y[q + s (r p + j)] = w^(p j) sum_k x[q + s (p + m k)] e^(-2 pi i j k / r)

where s is the product of the previous radices, m the remaining length, and w = e^(-2 pi i / (r m)).

Element k of a block is at byte k * ELEMENT_BYTES: a vector of real components, then a vector of
imaginary ones. Passes read and write such blocks, which must be aligned to VECTOR_BYTES and must
not overlap.

Source: Stockham's algorithm; Van Loan, Computational Frameworks for the Fast Fourier Transform,
1992, section 1.7.

Tests: tests/targets/cpu/test_fourier_rows.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.machine_code import SIMPLIFY_ONLY
from gpuflow.targets.cpu.runtime.native.function_text import FunctionText, Value
from gpuflow.targets.cpu.runtime.native.object_code import NativeModule, load_native

VECTOR_BYTES = 32  # LLVM uses several registers if the processor's are shorter
ELEMENT_BYTES = 2 * VECTOR_BYTES  # an element of all rows of a block: real, then imaginary vector


class ScalarType(NamedTuple):
    """A component of complex numbers: its LLVM type and its size in bytes."""

    llvm: str
    bytes: int


SCALAR_TYPES = {"float32": ScalarType("float", 4), "float64": ScalarType("double", 8)}

# Radices with unrolled passes. Other odd radices are computed by sums over all pairs of elements.
RADICES = (2, 3, 4, 5, 6, 7, 8, 10)
MAX_RADIX = 127  # of such sums: above, Bluestein's algorithm is faster and more exact
_PARTIAL_SUM_TERMS = 8  # see _sum_pairs

ComplexValue = tuple[Value, Value]  # real and imaginary vector


def roots(powers: Any, order: int) -> tuple[Any, Any]:
    """Return real and imaginary parts of e^(-2 pi i power / order), in float64.

    ``powers`` are integers of any sign and shape; ``order`` is positive.
    Angles are first reduced to an eighth of a circle, where rounding errors are smallest.
    """
    eighths, remainder = np.divmod(8 * (np.asarray(powers) % order), order)
    angles = np.where(eighths % 2 == 1, order - remainder, remainder) * (np.pi / 4 / order)
    cosines, sines = np.cos(angles), np.sin(angles)
    is_rotated = (eighths + 1) // 2 % 2 == 1
    re, im = np.where(is_rotated, sines, cosines), np.where(is_rotated, cosines, sines)
    return np.where((eighths + 2) // 4 == 1, -re, re), np.where(eighths >= 4, im, -im)


def lanes_of(dtype: str) -> int:
    """Number of lanes of a vector, each of which is a row."""
    return VECTOR_BYTES // SCALAR_TYPES[dtype].bytes


# --- arithmetic ------------------------------------------------------------------------------


class ComplexArithmetic:
    """Emits arithmetic of complex numbers, each a pair of vectors, into a function.

    Args:
        function: the function under construction.
        dtype: dtype of a component: "float32" or "float64".
    """

    def __init__(self, function: FunctionText, dtype: str) -> None:
        self.function = function
        self.scalar, self.scalar_bytes = SCALAR_TYPES[dtype]
        self.real = np.dtype(dtype)
        self.lanes = lanes_of(dtype)
        self.vector = f"<{self.lanes} x {self.scalar}>"

    # --- real vectors

    def binary(self, instruction: str, a: Value, b: Value) -> Value:
        """``fadd``, ``fsub`` or ``fmul``; LLVM may contract a product and a sum to an fma."""
        return self.function.emit(f"{instruction} contract {self.vector} {a}, {b}")

    def constant(self, value: float) -> Value:
        """The splat of a constant."""
        (bits,) = struct.unpack("<Q", struct.pack("<d", float(self.real.type(value))))
        return f"<{', '.join([f'{self.scalar} 0x{bits:016X}'] * self.lanes)}>"

    def load_splat(self, at: Value) -> Value:
        """Load a scalar, and broadcast it to a vector."""
        scalar = self.function.load(self.scalar, at, self.scalar_bytes)
        inserted = f"insertelement {self.vector} poison, {self.scalar} {scalar}, i32 0"
        return self.shuffled(self.function.emit(inserted), "poison", [0] * self.lanes)

    def shuffled(self, a: Value, b: Value, indices: Sequence[int]) -> Value:
        """Shuffle two vectors; indices of the second vector follow those of the first."""
        mask = ", ".join(f"i32 {k}" for k in indices)
        operands = f"{self.vector} {a}, {self.vector} {b}"
        return self.function.emit(f"shufflevector {operands}, <{len(indices)} x i32> <{mask}>")

    def read(self, at: Value, align: int = VECTOR_BYTES) -> Value:
        """Load the vector at an address."""
        return self.function.load(self.vector, at, align)

    def write(self, value: Value, at: Value, align: int = VECTOR_BYTES) -> None:
        """Write a vector to an address."""
        self.function.store(self.vector, value, at, align)

    # --- complex numbers

    def read_pair(self, at: Value, align: int = VECTOR_BYTES) -> ComplexValue:
        """Load an element in the layout between passes: a vector of each component."""
        return self.read(at, align), self.read(self.function.at(at, VECTOR_BYTES), align)

    def write_pair(self, value: ComplexValue, at: Value) -> None:
        """Store an element in the layout between passes: a vector of each component."""
        self.write(value[0], at)
        self.write(value[1], self.function.at(at, VECTOR_BYTES))

    def add(self, a: ComplexValue, b: ComplexValue) -> ComplexValue:
        """``a + b``."""
        return self.binary("fadd", a[0], b[0]), self.binary("fadd", a[1], b[1])

    def sub(self, a: ComplexValue, b: ComplexValue) -> ComplexValue:
        """``a - b``."""
        return self.binary("fsub", a[0], b[0]), self.binary("fsub", a[1], b[1])

    def mul(self, a: ComplexValue, b: ComplexValue) -> ComplexValue:
        """``a b``."""
        re = self.binary("fsub", self.binary("fmul", a[0], b[0]), self.binary("fmul", a[1], b[1]))
        return re, self.binary(
            "fadd", self.binary("fmul", a[0], b[1]), self.binary("fmul", a[1], b[0])
        )

    def scaled(self, a: ComplexValue, by: Value) -> ComplexValue:
        """``a`` times a real vector."""
        return self.binary("fmul", a[0], by), self.binary("fmul", a[1], by)

    def rotated(self, a: ComplexValue) -> ComplexValue:
        """``-i a``."""
        return a[1], self.function.emit(f"fneg contract {self.vector} {a[0]}")

    def conj(self, a: ComplexValue) -> ComplexValue:
        """The conjugate of ``a``."""
        return a[0], self.function.emit(f"fneg contract {self.vector} {a[1]}")

    def root(self, a: ComplexValue, power: int, order: int) -> ComplexValue:
        """``a e^(-2 pi i power / order)``."""
        power %= order
        if power == 0:
            return a
        if 4 * power == order:
            return self.rotated(a)
        if 8 * power == order:
            return self.scaled(self.add(a, self.rotated(a)), self.constant(0.5**0.5))
        re, im = (self.constant(float(component)) for component in roots(power, order))
        return self.mul(a, (re, im))

    def transformed(self, a: Sequence[ComplexValue]) -> list[ComplexValue]:
        """The Fourier transform of a short list of values, unrolled, in natural order."""
        count = len(a)
        if count == 1:
            return list(a)
        if count % 4 == 0 and count > 4:
            return self._cooley_tukey(a, 4)
        if count % 2:
            return self._odd_transform(a)
        evens, odds = self.transformed(a[::2]), self.transformed(a[1::2])
        odds = [self.root(x, k, count) for k, x in enumerate(odds)]
        pairs = list(zip(evens, odds, strict=True))
        return [self.add(x, y) for x, y in pairs] + [self.sub(x, y) for x, y in pairs]

    def _cooley_tukey(self, a: Sequence[ComplexValue], step: int) -> list[ComplexValue]:
        """A Cooley-Tukey step: transforms of every ``step``-th value, twiddles, then across.

        ``step`` divides the number of values.
        """
        count, length = len(a), len(a) // step
        rows = [self.transformed(a[k::step]) for k in range(step)]
        out: list[ComplexValue] = [a[0]] * count
        for j in range(length):
            column = [self.root(rows[k][j], j * k, count) for k in range(step)]
            out[j::length] = self.transformed(column)
        return out

    def _odd_transform(self, a: Sequence[ComplexValue]) -> list[ComplexValue]:
        """The transform of an odd number of values, by sums and differences of mirrored pairs."""
        count, half = len(a), len(a) // 2
        sums = [self.add(a[k], a[count - k]) for k in range(1, half + 1)]
        differences = [self.sub(a[k], a[count - k]) for k in range(1, half + 1)]
        first = a[0]
        for pair in sums:
            first = self.add(first, pair)
        out = [first] * count
        for j in range(1, half + 1):
            even, odd = a[0], None
            for k in range(1, half + 1):
                cosine, sine = (self.constant(float(term)) for term in roots(-j * k, count))
                even = self.add(even, self.scaled(sums[k - 1], cosine))
                term = self.scaled(differences[k - 1], sine)
                odd = term if odd is None else self.add(odd, term)
            assert odd is not None  # there is at least one pair
            out[j] = self.add(even, self.rotated(odd))
            out[count - j] = self.sub(even, self.rotated(odd))
        return out


# --- functions -------------------------------------------------------------------------------

# A pass transforms all elements of a block from x to y: pass(x, y, row), where row is its row of a
# table of passes, with these 64-bit slots (``fourier_writer.Writer._passes`` fills them):
#   0  the pass  1  s  2  m  3  r - 1 twiddle factors for each p > 0  4  r
#   5  in a pass of pairs: cosines and sines of 2 pi j k / r, for 0 < j, k <= r // 2
# A row may be a product with factors instead of a pass (Bluestein's algorithm):
#   0  the function  1  number of elements  2  number written: zeros follow the products
#   3  the factors  4  whether components of the products are exchanged
PASS_ROW_SLOTS = 6
_POINTER_SLOTS = (3, 5)
_PASS_PARAMETERS = [("ptr noalias", "x"), ("ptr noalias", "y"), ("ptr noalias", "row")]
_DECLARATIONS = "declare i64 @llvm.smin.i64(i64, i64)\n"


@cache
def pass_function(dtype: str, radix: int) -> int:
    """The address of the pass of a radix: the pass of pairs if it is not in RADICES.

    A radix that is not in RADICES must be odd, and from 5 to MAX_RADIX.
    """
    is_unrolled = radix in RADICES
    symbol = f"gf_fourier_pass_{radix if is_unrolled else 'pairs'}_{dtype}"
    text = _pass_text(symbol, dtype, radix) if is_unrolled else _pairs_text(symbol, dtype)
    module = NativeModule(_DECLARATIONS + text, (symbol,), level=SIMPLIFY_ONLY)
    return load_native(module, kernel_cache()).addresses[symbol]


@cache
def product_function(dtype: str) -> int:
    """The address of the function that multiplies elements by factors, in a table of passes."""
    symbol = f"gf_fourier_product_{dtype}"
    text = _DECLARATIONS + _product_text(symbol, dtype)
    return load_native(
        NativeModule(text, (symbol,), level=SIMPLIFY_ONLY), kernel_cache()
    ).addresses[symbol]


def _load_pass_fields(function: FunctionText) -> list[Value]:
    """Load slots 1 to 5 of a row of the table of passes."""
    return [
        function.load("ptr" if k in _POINTER_SLOTS else "i64", function.at("%row", 8 * k), 8)
        for k in range(1, PASS_ROW_SLOTS)
    ]


def _pass_text(symbol: str, dtype: str, radix: int) -> str:
    """The pass of a radix in RADICES: unrolled butterflies for each p and q."""
    function = FunctionText(symbol, _PASS_PARAMETERS)
    ops = ComplexArithmetic(function, dtype)
    s, m, twiddles, _, _ = _load_pass_fields(function)
    row_bytes = function.mul(s, ELEMENT_BYTES)
    x_step = function.mul(row_bytes, m)

    def emit_butterflies(p: Value, factors: Sequence[ComplexValue]) -> None:
        x = function.at("%x", function.mul(p, row_bytes))
        y = function.at("%y", function.mul(p, function.mul(row_bytes, radix)))
        with function.loop(0, row_bytes, ELEMENT_BYTES) as q:
            first, out = function.at(x, q), function.at(y, q)
            addresses = [function.at(first, function.mul(x_step, k)) for k in range(radix)]
            values = ops.transformed([ops.read_pair(at) for at in addresses])
            for j, value in enumerate(values):
                if j and factors:
                    value = ops.mul(value, factors[j - 1])
                ops.write_pair(value, function.at(out, function.mul(row_bytes, j)))

    emit_butterflies("0", ())
    size = ops.scalar_bytes
    with function.loop(1, m) as p:
        row = function.at(twiddles, function.mul(function.sub(p, 1), 2 * (radix - 1) * size))
        scalars = [ops.load_splat(function.at(row, k * size)) for k in range(2 * (radix - 1))]
        emit_butterflies(p, list(zip(scalars[::2], scalars[1::2], strict=True)))
    return function.text()


def _product_text(symbol: str, dtype: str) -> str:
    """The product of elements with factors, followed by zeros."""
    function = FunctionText(symbol, _PASS_PARAMETERS)
    ops = ComplexArithmetic(function, dtype)
    count, total, table, exchange, _ = _load_pass_fields(function)
    size = ops.scalar_bytes
    first = function.mul(exchange, VECTOR_BYTES)
    second = function.sub(VECTOR_BYTES, first)
    with function.loop(0, count) as k:
        offset = function.mul(k, ELEMENT_BYTES)
        factors = function.at(table, function.mul(k, 2 * size))
        by = ops.load_splat(factors), ops.load_splat(function.at(factors, size))
        value = ops.mul(ops.read_pair(function.at("%x", offset)), by)
        out = function.at("%y", offset)
        for component, position in zip(value, (first, second), strict=True):
            ops.write(component, function.at(out, position))
    zero = ops.constant(0.0)
    with function.loop(count, total) as k:
        ops.write_pair((zero, zero), function.at("%y", function.mul(k, ELEMENT_BYTES)))
    return function.text()


def _pairs_text(symbol: str, dtype: str) -> str:
    """The pass of any odd radix: ``ComplexArithmetic._odd_transform`` as loops, by two results."""
    function = FunctionText(symbol, _PASS_PARAMETERS)
    ops = ComplexArithmetic(function, dtype)
    s, m, twiddles, radix, table = _load_pass_fields(function)
    size = ops.scalar_bytes
    most_pairs = MAX_RADIX // 2
    # For each pair: its sum, then its difference.
    pair_sums = function.alloca(ops.vector, 4 * most_pairs)
    half = function.emit(f"lshr i64 {radix}, 1")
    row_bytes = function.mul(s, ELEMENT_BYTES)
    x_step = function.mul(row_bytes, m)
    twiddle_bytes = function.mul(function.sub(radix, 1), 2 * size)

    def store(value: ComplexValue, j: Value, out: Value, row: Value, has_twiddles: Value) -> None:
        """Multiply result j by its root, unless p is 0, and write it."""
        at = function.at(out, function.mul(row_bytes, j))
        ops.write_pair(value, at)
        with function.if_then(has_twiddles):
            factors_at = function.at(row, function.mul(function.sub(j, 1), 2 * size))
            by = ops.load_splat(factors_at), ops.load_splat(function.at(factors_at, size))
            ops.write_pair(ops.mul(value, by), at)

    with function.loop(0, m) as p:
        has_twiddles = function.emit(f"icmp ne i64 {p}, 0")
        row = function.at(twiddles, function.mul(function.sub(p, 1), twiddle_bytes))
        x = function.at("%x", function.mul(p, row_bytes))
        y = function.at("%y", function.mul(p, function.mul(row_bytes, radix)))
        with function.loop(0, row_bytes, ELEMENT_BYTES) as q:
            first, out = function.at(x, q), function.at(y, q)
            start = ops.read_pair(first)
            total_sum = function.alloca(ops.vector, 2)
            ops.write_pair(start, total_sum)
            with function.loop(1, function.add(half, 1)) as k:
                a = ops.read_pair(function.at(first, function.mul(x_step, k)))
                mirrored = function.mul(x_step, function.sub(radix, k))
                b = ops.read_pair(function.at(first, mirrored))
                total = ops.add(a, b)
                ops.write_pair(ops.add(ops.read_pair(total_sum), total), total_sum)
                at = function.at(pair_sums, function.mul(function.sub(k, 1), 2 * ELEMENT_BYTES))
                ops.write_pair(total, at)
                ops.write_pair(ops.sub(a, b), function.at(at, ELEMENT_BYTES))
            ops.write_pair(ops.read_pair(total_sum), out)
            # Results j and j + 1; if their number is odd, one is computed twice.
            with function.loop(1, function.add(half, 1), 2) as unclamped:
                j = function.smin(unclamped, function.sub(half, 1))
                sums = [function.alloca(ops.vector, 4) for _ in range(2)]
                for accumulator in sums:
                    ops.write_pair(start, accumulator)
                    zero = ops.constant(0.0)
                    ops.write_pair((zero, zero), function.at(accumulator, ELEMENT_BYTES))
                _sum_pairs(ops, j, half, pair_sums, table, sums)
                for j_offset, accumulator in enumerate(sums):
                    result = function.add(j, j_offset)
                    even = ops.read_pair(accumulator)
                    odd = ops.rotated(ops.read_pair(function.at(accumulator, ELEMENT_BYTES)))
                    store(ops.add(even, odd), result, out, row, has_twiddles)
                    mirrored_result = function.sub(radix, result)
                    store(ops.sub(even, odd), mirrored_result, out, row, has_twiddles)
    return function.text()


def _sum_pairs(
    ops: ComplexArithmetic,
    j: Value,
    half: Value,
    pair_sums: Value,
    table: Value,
    sums: Sequence[Value],
) -> None:
    """Add cosines times sums of pairs, and sines times differences, for results j and j + 1.

    Terms are summed in groups of _PARTIAL_SUM_TERMS, because rounding errors grow with the length
    of a sum.

    Args:
        ops: arithmetic of the function under construction.
        j: the first of the two results, from 1 to ``half - 1``.
        half: number of pairs, (r - 1) / 2.
        pair_sums: address of the sum and the difference of each pair.
        table: address of the cosines and sines, see slot 5 of the table of passes.
        sums: addresses of the accumulators of results j and j + 1: the sum of the cosine terms,
            then that of the sine terms.
    """
    function, size = ops.function, ops.scalar_bytes
    row_bytes = function.mul(half, 2 * size)
    rows = [function.at(table, function.mul(function.sub(j, 1), row_bytes))]
    rows.append(function.at(rows[0], row_bytes))
    zero = ops.constant(0.0)
    partials = [function.alloca(ops.vector, 4) for _ in sums]
    accumulators = [
        (function.at(partial, offset), function.at(whole, offset))
        for partial, whole in zip(partials, sums, strict=True)
        for offset in (0, ELEMENT_BYTES)
    ]
    with function.loop(0, half, _PARTIAL_SUM_TERMS) as first:
        for partial, _ in accumulators:
            ops.write_pair((zero, zero), partial)
        stop = function.smin(half, function.add(first, _PARTIAL_SUM_TERMS))
        with function.loop(first, stop) as k:
            at = function.at(pair_sums, function.mul(k, 2 * ELEMENT_BYTES))
            pair = ops.read_pair(at), ops.read_pair(function.at(at, ELEMENT_BYTES))
            for n, (partial, _) in enumerate(accumulators):
                factors = function.at(rows[n // 2], function.mul(k, 2 * size))
                by = ops.load_splat(function.at(factors, n % 2 * size))
                term = ops.scaled(pair[n % 2], by)
                ops.write_pair(ops.add(ops.read_pair(partial), term), partial)
        for partial, whole in accumulators:
            total = ops.add(ops.read_pair(whole), ops.read_pair(partial))
            ops.write_pair(total, whole)
