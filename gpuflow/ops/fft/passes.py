"""Long Fourier transforms as kernels: a pass for each factor of the length.

Each pass takes r elements that are far apart, transforms them, turns the results, and writes them
so that the next pass finds its own in order:

    y[q + s (r p + j)] = w^(p j) sum_k x[q + s (p + m k)] e^(-2 pi i j k / r)

where s is the product of the radices before, m what is left, and w = e^(-2 pi i / (r m)).

All passes run through memory in vectors: the first one along p, the others along q. Between passes
real and imaginary parts lie apart. Inverse transforms exchange both parts before and after.

Source: Stockham's algorithm; Van Loan, Computational Frameworks for the Fast Fourier Transform,
1992, section 1.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Launch, Launches
from gpuflow.core.views import View
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Axis, Kernel, Mode, Operand, Role, Stride, Value
from gpuflow.kir.scalar import PARTS, storage_bytes
from gpuflow.ops.handwritten.launch import builder_of, launch, number, parallel_axes

SHORTEST, LONGEST = 1 << 12, 1 << 20
MOST_LINES = 32  # of more, launches would take longer to make than calls of the library
_END_BITS = 3  # of the radices of the first and the last pass
_MOST_BITS = 4  # of the others: more numbers than 16 at a time do not fit into the registers
_SHORT = 8  # so many side by side are known to LLVM

X, OUT, WORKSPACE = 0, 1, 2
Number = tuple[Value, Value]


def radices(length: int) -> tuple[int, ...] | None:
    """The factors of the passes, or None where kernels are no gain.

    The first and the last pass, which read and write complex numbers, have radix 8: LLVM makes
    vectors of no more. Small ones come first, while a pass finds few elements side by side.
    """
    if not SHORTEST <= length <= LONGEST:
        return None
    twos, rest, inner = 0, length, []
    while rest % 2 == 0:
        twos, rest = twos + 1, rest // 2
    for factor in (3, 5):
        while rest % factor == 0:
            inner.append(factor)
            rest //= factor
    twos -= 2 * _END_BITS
    if rest != 1 or twos < 0:
        return None
    passes = -(-twos // _MOST_BITS)
    least, more = divmod(twos, max(passes, 1))
    powers = [1 << (least + (k >= passes - more)) for k in range(passes)]
    return (1 << _END_BITS, *powers, *inner, 1 << _END_BITS)


def roots(powers: Any, order: int) -> tuple[Any, Any]:
    """Both parts of e^(-2 pi i power / order).

    Angles are mirrored into an eighth of a turn first, where their rounding is smallest.
    """
    eighths, rest = np.divmod(8 * (np.asarray(powers) % order), order)
    angles = np.where(eighths % 2 == 1, order - rest, rest) * (np.pi / 4 / order)
    cosines, sines = np.cos(angles), np.sin(angles)
    is_turned = (eighths + 1) // 2 % 2 == 1
    re, im = np.where(is_turned, sines, cosines), np.where(is_turned, cosines, sines)
    return np.where((eighths + 2) // 4 == 1, -re, re), np.where(eighths >= 4, im, -im)


# --- arithmetic ----------------------------------------------------------------------------


class _Numbers:
    """Arithmetic of complex numbers, which are pairs of values."""

    def __init__(self, builder: Builder, dtype: str) -> None:
        self.builder, self.dtype = builder, dtype

    def add(self, a: Number, b: Number) -> Number:
        """``a + b``."""
        apply = self.builder.apply
        return apply("add", a[0], b[0]), apply("add", a[1], b[1])

    def sub(self, a: Number, b: Number) -> Number:
        """``a - b``."""
        apply = self.builder.apply
        return apply("sub", a[0], b[0]), apply("sub", a[1], b[1])

    def mul(self, a: Number, b: Number) -> Number:
        """``a b``."""
        apply = self.builder.apply
        re = apply("sub", apply("mul", a[0], b[0]), apply("mul", a[1], b[1]))
        return re, apply("add", apply("mul", a[0], b[1]), apply("mul", a[1], b[0]))

    def scaled(self, a: Number, factor: float) -> Number:
        """``a`` times a real number."""
        by = self.builder.const(self.dtype, factor)
        return self.builder.apply("mul", a[0], by), self.builder.apply("mul", a[1], by)

    def turned(self, a: Number) -> Number:
        """``-i a``."""
        return a[1], self.builder.apply("neg", a[0])

    def root(self, a: Number, power: int, order: int) -> Number:
        """``a e^(-2 pi i power / order)``."""
        power %= order
        if power == 0:
            return a
        if 4 * power == order:
            return self.turned(a)
        if 8 * power == order:
            return self.scaled(self.add(a, self.turned(a)), 0.5**0.5)
        re, im = (self.builder.const(self.dtype, float(part)) for part in roots(power, order))
        return self.mul(a, (re, im))

    def transformed(self, a: Sequence[Number]) -> list[Number]:
        """The Fourier transform of a few numbers."""
        count = len(a)
        if count == 1:
            return list(a)
        if count % 2:
            return self._odd(a)
        if count % 4 == 0 and count > 4:
            return self._split(a, 4)
        evens, odds = self.transformed(a[::2]), self.transformed(a[1::2])
        odds = [self.root(x, k, count) for k, x in enumerate(odds)]
        pairs = list(zip(evens, odds, strict=True))
        return [self.add(x, y) for x, y in pairs] + [self.sub(x, y) for x, y in pairs]

    def _split(self, a: Sequence[Number], step: int) -> list[Number]:
        """Transforms of every ``step``-th number, turned and transformed across."""
        count, length = len(a), len(a) // step
        rows = [self.transformed(a[k::step]) for k in range(step)]
        out: list[Number] = [a[0]] * count
        for j in range(length):
            column = [self.root(rows[k][j], j * k, count) for k in range(step)]
            out[j::length] = self.transformed(column)
        return out

    def _odd(self, a: Sequence[Number]) -> list[Number]:
        """An odd number of them: sums and differences of mirrored pairs."""
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
                cosine, sine = roots(-j * k, count)
                even = self.add(even, self.scaled(sums[k - 1], float(cosine)))
                part = self.scaled(differences[k - 1], float(sine))
                odd = part if odd is None else self.add(odd, part)
            assert odd is not None  # there is at least one pair
            out[j] = self.add(even, self.turned(odd))
            out[count - j] = self.sub(even, self.turned(odd))
        return out


# --- kernels -------------------------------------------------------------------------------


@cache
def _kernel(dtype: str, radix: int, kind: str, inverse: bool, short: bool = False) -> Kernel:
    """A pass.

    Args:
        dtype: of complex numbers.
        radix: r.
        kind: "first" reads complex numbers and has s = 1; "last" writes complex numbers and has
            m = 1; those between are "inner".
        inverse: parts are exchanged where complex numbers are read or written.
        short: s is 8.
    """
    part = PARTS[dtype]
    # The one axis of the first pass is p, that of the last one q; between, q lies inside p.
    axes = parallel_axes(2 if kind == "inner" else 1)
    if short:
        axes = (axes[0], Axis(axes[1].name, Role.PARALLEL, _SHORT))
    outer = (Stride.ANY,) * (len(axes) - 1)
    across, along = (*outer, Stride.ZERO), (*outer, Stride.UNIT)
    still = (Stride.ZERO,) * len(axes)
    complex_in, complex_out = kind == "first", kind == "last"
    operands = [Operand("x", dtype, Mode.IN, along)] if complex_in else []
    operands += [] if complex_in else [Operand(f"x{k}", part, Mode.IN, along) for k in (0, 1)]
    if kind != "last":
        turns = along if kind == "first" else across
        operands += [Operand(f"t{k}", part, Mode.IN, turns) for k in (0, 1)]
    outs = still if kind == "first" else along
    # An operand for each result, so that LLVM knows that their stores do not meet.
    names = [f"o{j}" for j in range(radix)]
    if kind == "first":
        names = ["o0"]
        operands.append(Operand("place", "int64", Mode.INDEX, along))
    if complex_out:
        operands += [Operand(name, dtype, Mode.OUT, outs) for name in names]
        operands.append(Operand("scale", part, Mode.IN, still))
    else:
        operands += [Operand(f"{name}_{k}", part, Mode.OUT, outs) for name in names for k in (0, 1)]
    operands += [number(name, len(axes)) for name in ("x_step", "t_step")]
    builder = builder_of(operands, axes)
    math, order = _Numbers(builder, part), (1, 0) if inverse else (0, 1)

    def offset(name: str, k: int) -> Value | None:
        if k == 0:
            return None
        return builder.apply("mul", builder.const("int64", k), builder.load(name))

    def loaded(k: int) -> Number:
        at = offset("x_step", k)
        if complex_in:
            return builder.load("x", at, part=order[0]), builder.load("x", at, part=order[1])
        return builder.load("x0", at), builder.load("x1", at)

    with ExitStack() as loops:
        for axis in axes:
            loops.enter_context(builder.for_axis(axis.name))
        transformed = math.transformed([loaded(k) for k in range(radix)])
        for j, value in enumerate(transformed):
            if kind == "last":
                by = builder.load("scale")
                for k in (0, 1):
                    scaled = builder.apply("mul", value[k], by)
                    builder.store(f"o{j}", scaled, part=order[k])
                continue
            if j:
                at = offset("t_step", j - 1)
                value = math.mul(value, (builder.load("t0", at), builder.load("t1", at)))
            if kind == "first":
                place = builder.apply("mul", builder.load("place"), builder.const("int64", radix))
                at = builder.apply("add", place, builder.const("int64", j))
                for k in (0, 1):
                    builder.store(f"o0_{k}", value[k], at)
                continue
            for k in (0, 1):
                builder.store(f"o{j}_{k}", value[k])
    name = f"fft_{kind}_{radix}" + ("_inverse" if inverse else "")
    return Kernel(name, axes, tuple(operands), builder.finish())


# --- launches ------------------------------------------------------------------------------


@lru_cache(16)
def _turns(radix: int, rest: int, dtype: str) -> np.ndarray:
    """w^(p j) of a pass for 0 < j < r and p < m: real and imaginary parts."""
    powers = np.outer(np.arange(1, radix), np.arange(rest))
    return np.stack(roots(powers, radix * rest)).astype(PARTS[dtype])


@lru_cache(16)
def _scale(length: int, dtype: str) -> np.ndarray:
    return np.array([1 / length], PARTS[dtype])


@record
class _Pass:
    """One pass: its radix r, s and m, and whether its results go to the front of the workspace."""

    dtype: str
    length: int
    radix: int
    done: int
    rest: int
    to_front: bool
    inverse: bool

    def launch(self, kind: str, first: int, out: int, table: int) -> Launch:
        """The launch of a pass.

        Args:
            kind: see ``_kernel``.
            first, out: the first element of the line in the operand and in the result.
            table: the address of its turns, or of the last one's scale.
        """
        radix, s, m, size = self.radix, self.done, self.rest, storage_bytes(PARTS[self.dtype])
        half = self.length * size
        front, back = ([(WORKSPACE, k * half), (WORKSPACE, (k + 1) * half)] for k in (0, 2))
        source, target = (back, front) if self.to_front else (front, back)
        turns = (radix - 1) * m * size
        arrays = {
            "x": (X, 2 * first * size), "x0": source[0], "x1": source[1],
            "t0": (None, table), "t1": (None, table + turns), "scale": (None, table),
        }  # fmt: skip
        for j in range(radix):
            arrays[f"o{j}"] = OUT, 2 * (out + j * s) * size
            for k, (array, at) in enumerate(target):
                arrays[f"o{j}_{k}"] = array, at + j * s * size
        extents = {"first": [m], "inner": [m, s], "last": [s]}[kind]
        outer = {"x": s, "t": 1, "o": s * radix}
        strides = {name: [outer.get(name[0], 0)] for name in arrays}
        numbers = {"x_step": s * m, "t_step": m}
        short = kind == "inner" and s == _SHORT
        kernel = _kernel(self.dtype, radix, kind, self.inverse and kind != "inner", short)
        return launch(kernel, arrays, extents, strides, numbers, self.length)


def fft_launches(
    views: Sequence[View], outs: Sequence[ShapedArray], length: int, inverse: bool
) -> Launches | None:
    """The launches of complex transforms along the last dimension, or None: the library does it.

    Args:
        views: how the operand lies.
        outs: the type of the result.
        length: of the transforms.
        inverse: whether they are inverse ones, which divide by the length.
    """
    (view,), (out,) = views, outs
    lines = prod(out.shape[:-1])
    factors = radices(length)
    if factors is None or not 0 < lines <= MOST_LINES or not view.is_contiguous:
        return None
    dtype = storage_name(out.dtype)
    kept: list[np.ndarray] = []
    launches: list[Launch] = []
    for line in range(lines):
        done, rest = 1, length
        for number_of, radix in enumerate(factors):
            rest //= radix
            kind = "first" if done == 1 else "inner" if rest > 1 else "last"
            table = _scale(length if inverse else 1, dtype)
            if kind != "last":
                table = _turns(radix, rest, dtype)
            kept.append(table)
            fft_pass = _Pass(dtype, length, radix, done, rest, number_of % 2 == 0, inverse)
            first = view.offset + line * length
            launches.append(fft_pass.launch(kind, first, line * length, table.ctypes.data))
            done *= radix
    return Launches(tuple(launches), 4 * length * storage_bytes(PARTS[dtype]), tuple(kept))
