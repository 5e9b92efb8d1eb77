"""Instructions on bits: logic, shifts, fields, bytes, counts.

Tests: tests/ptxsim/test_ptx_data.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxsim.frame import Step
from ptxsim.instruction_table import apply, compute, instruction
from ptxsim.site import Site
from ptxsim.types import I64, U32, U64, Array, bits

_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@instruction(*_LOGIC)
def _logic(site: Site) -> Step:
    dtype = bits(site.dtype())
    return compute(site, _LOGIC[site.instruction.opcode], [dtype, dtype], dtype)


@instruction("not")
def _not(site: Site) -> Step:
    dtype = bits(site.dtype())
    return compute(site, np.invert, [dtype], dtype)


@instruction("cnot")
def _logical_not(site: Site) -> Step:
    dtype = bits(site.dtype())
    return compute(site, lambda x: (x == 0).astype(dtype), [dtype], dtype)


@instruction("lop3")
def _lookup(site: Site) -> Step:
    """Any function of three bits, as a table of its eight values."""
    if site.has("BOOL"):
        site.refuse("must not have .BOOL")
    table = int(site.text(4), 0)

    def function(a: Array, b: Array, c: Array) -> Array:
        result = (a ^ a) | (b ^ b) | (c ^ c)
        for case in range(8):
            if table >> case & 1:
                result = result | (
                    (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
                )
        return result

    return compute(site, function, [U32] * 3, U32)


# --- shifts ------------------------------------------------------------------------------


@instruction("shl", "shr")
def _shift(site: Site) -> Step:
    """Shift; distances of the width or more give zero, or copies of the sign."""
    dtype = site.dtype()
    left = site.instruction.opcode == "shl"
    dtype = bits(dtype) if left else dtype
    width = 8 * dtype.itemsize
    move: Callable[..., Array] = np.left_shift if left else np.right_shift
    constant = site.text(2).isdigit() and int(site.text(2)) < width
    if constant:  # nothing to clamp
        distance = np.array([int(site.text(2))]).astype(dtype)
        return compute(site, lambda x: move(x, distance), [dtype], dtype)

    def function(x: Array, distance: Array) -> Array:
        short = np.minimum(distance, width - 1).astype(dtype)
        shifted = move(x, short)
        if left or dtype.kind == "u":
            shifted = np.where(distance >= width, dtype.type(0), shifted)
        return shifted

    return compute(site, function, [dtype, U32], dtype)


@instruction("shf")
def _funnel_shift(site: Site) -> Step:
    """Shift two registers as one and give the upper (l) or the lower (r)."""
    left, clamps = site.has("l"), site.has("clamp")

    def function(low: Array, high: Array, distance: Array) -> Array:
        distance = np.minimum(distance, 32) if clamps else distance & 31
        both = high.astype(U64) << 32 | low
        shifted = both << distance.astype(U64) >> 32 if left else both >> distance.astype(U64)
        return shifted.astype(U32)

    return compute(site, function, [U32] * 3, U32)


# --- fields ------------------------------------------------------------------------------


@instruction("bfe")
def _extract(site: Site) -> Step:
    """``bfe d, a, position, length``; signed ones are extended by the field's upper bit."""
    dtype = site.dtype()
    width, plain = 8 * dtype.itemsize, bits(dtype)

    def function(x: Array, position: Array, length: Array) -> Array:
        position, length = position & 255, length & 255
        shifted = _shifted(x.view(plain), position, np.right_shift)
        field = shifted & _ones(length, plain)
        if dtype.kind == "u":
            return field
        top = np.minimum(position + length - 1, width - 1)
        sign = _shifted(x.view(plain), top, np.right_shift) & plain.type(1)
        sign = np.where(length == 0, plain.type(0), sign)
        length_in_x = np.minimum(length, width - np.minimum(position, width))
        return np.where(sign != 0, field | ~_ones(length_in_x, plain), field).view(dtype)

    return compute(site, function, [dtype, U32, U32], dtype)


@instruction("bfi")
def _insert(site: Site) -> Step:
    """``bfi d, field, base, position, length``."""
    dtype = bits(site.dtype())

    def function(field: Array, base: Array, position: Array, length: Array) -> Array:
        position, length = position & 255, length & 255
        mask = _shifted(_ones(length, dtype), position, np.left_shift)
        return (base & ~mask) | (_shifted(field, position, np.left_shift) & mask)

    return compute(site, function, [dtype, dtype, U32, U32], dtype)


def _ones(length: Array, dtype: np.dtype) -> Array:
    """A mask of ``length`` low bits, at most all."""
    width = 8 * dtype.itemsize
    short = np.minimum(length, width - 1).astype(dtype)
    some = (dtype.type(1) << short) - dtype.type(1)
    return np.where(length >= width, ~dtype.type(0), some)


def _shifted(x: Array, distance: Array, move: Callable[..., Array]) -> Array:
    """A shift that gives zero for a distance of the width or more."""
    width = 8 * x.dtype.itemsize
    short = np.minimum(distance, width - 1).astype(x.dtype)
    return np.where(distance >= width, x.dtype.type(0), move(x, short))


@instruction("bmsk")
def _mask(site: Site) -> Step:
    """``bmsk d, position, length``: ones in a field."""
    wraps = site.has("wrap")

    def function(position: Array, length: Array) -> Array:
        if wraps:
            position, length = position & 31, length & 31
        return _shifted(_ones(length, U32), position, np.left_shift)

    return compute(site, function, [U32, U32], U32)


@instruction("szext")
def _extend(site: Site) -> Step:
    """``szext d, a, n``: the low n bits, extended by zeros or by their sign."""
    dtype, wraps = site.dtype(), site.has("wrap")

    def function(x: Array, count: Array) -> Array:
        count = count & 31 if wraps else np.minimum(count, 32)
        mask = _ones(count, U32)
        low = x.view(U32) & mask
        if dtype.kind == "u":
            return low
        top = (x.view(U32) >> np.maximum(count, 1).astype(U32) - 1) & 1
        return np.where((top != 0) & (count > 0), low | ~mask, low).astype(U32)

    return compute(site, function, [dtype, U32], U32)


# --- counts ------------------------------------------------------------------------------


@instruction("popc")
def _population(site: Site) -> Step:
    return compute(site, lambda x: np.bitwise_count(x).astype(U32), [bits(site.dtype())], U32)


@instruction("brev")
def _reverse(site: Site) -> Step:
    dtype = bits(site.dtype())
    return compute(site, _reversed, [dtype], dtype)


def _reversed(x: Array) -> Array:
    dtype, step = x.dtype, 1
    masks = {1: 0x55, 2: 0x33, 4: 0x0F}
    for step, pattern in masks.items():
        mask = dtype.type(int.from_bytes(bytes([pattern] * dtype.itemsize), "little"))
        x = (x >> step & mask) | ((x & mask) << step)
    return x.byteswap()


@instruction("clz")
def _leading_zeros(site: Site) -> Step:
    dtype = bits(site.dtype())
    width = 8 * dtype.itemsize
    return compute(site, lambda x: (width - _bit_length(x)).astype(U32), [dtype], U32)


def _bit_length(x: Array) -> Array:
    """The bit length of an integer: 1 plus the index of its highest set bit, 0 for 0."""
    for distance in (1, 2, 4, 8, 16, 32)[: {4: 5, 8: 6}[x.dtype.itemsize]]:
        x = x | x >> distance
    return np.bitwise_count(x).astype(I64)


@instruction("bfind")
def _find_highest(site: Site) -> Step:
    """The highest bit unlike the sign, or 0xffffffff; .shiftamt: its distance from the top."""
    dtype, distance = site.dtype(), site.has("shiftamt")
    plain, width = bits(dtype), 8 * site.dtype().itemsize

    def function(x: Array) -> Array:
        if dtype.kind == "i":
            x = np.where(x < 0, ~x, x)
        position = _bit_length(x.view(plain)) - 1
        if distance:
            position = np.where(position < 0, -1, width - 1 - position)
        return position.astype(U32)

    return compute(site, function, [dtype], U32)


@instruction("fns")
def _find_nth(site: Site) -> Step:
    """``fns d, mask, base, offset``: the n-th set bit from a base on, up or down."""

    def one(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        remaining, step = abs(offset), 1 if offset > 0 else -1
        while 0 <= base < 32:
            remaining -= mask >> base & 1
            if not remaining:
                return base
            base += step
        return 0xFFFFFFFF

    def function(mask: Array, base: Array, offset: Array) -> Array:
        lists = [v.tolist() for v in np.broadcast_arrays(mask, base, offset)]
        return np.array([one(*values) for values in zip(*lists, strict=True)], U32)

    return compute(site, function, [U32, U32, np.dtype(np.int32)], U32)


# --- bytes -------------------------------------------------------------------------------


@instruction("prmt")
def _permute(site: Site) -> Step:
    """Four of eight bytes; a selector's upper bit asks for copies of the byte's sign."""
    mode = site.one_of(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))
    slots = [site.source(operand, U32) for operand in (1, 2, 3)]
    function = _permute_bytes if not mode else _permute_mode(mode)
    return apply(function, slots, [U32] * 3, site.target(0, U32))


def _permute_bytes(low: Array, high: Array, selector: Array) -> Array:
    both = high.astype(U64) << 32 | low
    selector = selector.astype(U64)
    result = np.zeros_like(both)
    for index in range(4):
        nibble = selector >> 4 * index & 15
        byte = both >> (nibble & 7) * 8 & 255
        sign = np.where(byte >> 7 != 0, np.uint64(255), np.uint64(0))
        result = result | np.where(nibble >> 3 != 0, sign, byte) << 8 * index
    return result.astype(U32)


_ORDERS = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, n + 7, n + 6, n + 5],
    "rc8": lambda n: [n, n, n, n],
    "ecl": lambda n: [max(n, k) for k in range(4)],
    "ecr": lambda n: [min(n, k) for k in range(4)],
    "rc16": lambda n: [n % 2 * 2, n % 2 * 2 + 1] * 2,
}


def _permute_mode(mode: str) -> Callable[[Array, Array, Array], Array]:
    orders = [_ORDERS[mode](n) for n in range(4)]
    selectors = np.array(
        [sum((byte & 7) << 4 * index for index, byte in enumerate(order)) for order in orders], U32
    )
    return lambda low, high, control: _permute_bytes(low, high, selectors[control & 3])
