"""Integer arithmetic, and the instructions that have an integer and a float form.

Addition, subtraction and low products are the same for signed and unsigned integers, so they work
on unsigned ones, which wrap around.

Tests: tests/ptxsim/test_ptx_arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxsim import floats
from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import compute, instruction
from ptxsim.site import Site
from ptxsim.types import (
    BOOL,
    I32,
    I64,
    PACKED,
    TYPES,
    U32,
    U64,
    Array,
    bits,
    is_float,
    signed,
    unsigned,
)


def _is_float(site: Site) -> bool:
    name = site.type_name()
    return is_float(PACKED.get(name, TYPES[name]))


def _packed_integers(site: Site, function: Callable[..., Array], count: int) -> Step:
    element = PACKED[site.type_name()]
    pair = TYPES[site.type_name()]
    return compute(site, floats.packed(function, element, pair), [pair] * count, pair)


# --- sums --------------------------------------------------------------------------------

_SUMS: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "sub": np.subtract}


@instruction("add", "sub")
def _sum(site: Site) -> Step:
    name = site.instruction.opcode
    if site.has("cc"):
        return _carry(site, name, takes=False)
    if _is_float(site):
        return floats.binary(site, name)
    if site.type_name() in PACKED:
        return _packed_integers(site, _SUMS[name], 2)
    dtype = site.dtype()
    if site.has("sat"):
        return compute(site, _saturated(_SUMS[name]), [dtype, dtype], dtype)
    dtype = bits(dtype)
    return compute(site, _SUMS[name], [dtype, dtype], dtype)


def _saturated(function: Callable[..., Array]) -> Callable[..., Array]:
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    return lambda *args: np.clip(function(*(x.astype(I64) for x in args)), low, high).astype(I32)


@instruction("addc", "subc")
def _sum_with_carry(site: Site) -> Step:
    return _carry(site, site.instruction.opcode[:3], takes=True)


def _carry(site: Site, name: str, takes: bool) -> Step:
    """A sum that takes the carry, sets it (.cc), or both; for sub it is the borrow."""
    dtype = bits(site.dtype())
    a, b, d = site.source(1, dtype), site.source(2, dtype), site.target(0, dtype)
    return _chain(site, d, dtype, takes, lambda r: (r[a].view(dtype), r[b].view(dtype)), name)


def _chain(
    site: Site,
    d: int,
    dtype: np.dtype,
    takes: bool,
    operands: Callable[..., tuple[Array, Array]],
    name: str,
) -> Step:
    flag, sets = site.flag(), site.has("cc")
    if takes:
        site.reads.append(flag)
    if sets:
        site.writes.append(flag)
    function = _SUMS[name]

    def step(frame: Frame) -> None:
        registers = frame.registers
        x, y = operands(registers)
        total = function(x, y)
        over = total < x if name == "add" else x < y
        if takes:
            carry = registers[flag].view(BOOL)
            after = function(total, carry.astype(dtype))
            over = over | ((after < total) if name == "add" else (total < after))
            total = after
        registers[d] = total
        if sets:
            registers[flag] = over

    return step


# --- products ----------------------------------------------------------------------------


@instruction("mul", "mad")
def _product(site: Site) -> Step:
    """``mul.lo``, ``mul.hi``, ``mul.wide``, and the same with a sum; floats."""
    adds = site.instruction.opcode == "mad"
    if _is_float(site):
        return floats.multiply_add(site) if adds else floats.binary(site, "mul")
    if site.has("cc"):
        return _product_chain(site, takes=False)
    dtype = site.dtype()
    if site.has("wide"):
        wide = signed(2 * dtype.itemsize) if dtype.kind == "i" else unsigned(2 * dtype.itemsize)
        both: Callable[..., Array] = lambda x, y: x.astype(wide) * y.astype(wide)  # noqa: E731
        if adds:
            return compute(site, lambda x, y, z: both(x, y) + z, [dtype, dtype, wide], wide)
        return compute(site, both, [dtype, dtype], wide)
    function = _high if site.has("hi") else np.multiply
    dtype = dtype if site.has("hi") else bits(dtype)
    if not adds:
        return compute(site, function, [dtype, dtype], dtype)
    total: Callable[..., Array] = lambda x, y, z: function(x, y) + z  # noqa: E731
    if site.has("sat"):
        total = _saturated(lambda x, y, z: (x * y >> 32) + z)
    return compute(site, total, [dtype] * 3, dtype)


def _high(x: Array, y: Array) -> Array:
    """The upper half of the product."""
    size = x.dtype.itemsize
    if size < 8:
        wide = signed(2 * size) if x.dtype.kind == "i" else unsigned(2 * size)
        return (x.astype(wide) * y.astype(wide) >> 8 * size).astype(x.dtype)
    a, b = x.view(U64), y.view(U64)
    low, a1, b1 = np.uint64(0xFFFFFFFF), a >> 32, b >> 32
    a0, b0 = a & low, b & low
    middle = a1 * b0 + (a0 * b0 >> 32)
    other = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> 32) + (other >> 32)
    if x.dtype.kind == "i":  # a negative number is its bits less 2**64
        high = high - np.where(x < 0, b, 0) - np.where(y < 0, a, 0)
    return high.view(x.dtype)


@instruction("madc")
def _product_with_carry(site: Site) -> Step:
    return _product_chain(site, takes=True)


def _product_chain(site: Site, takes: bool) -> Step:
    dtype = site.dtype()
    high, plain = site.has("hi"), bits(dtype)
    a, b = site.source(1, dtype), site.source(2, dtype)
    c, d = site.source(3, dtype), site.target(0, dtype)

    def operands(registers: list[Array]) -> tuple[Array, Array]:
        x, y = registers[a].view(dtype), registers[b].view(dtype)
        product = _high(x, y) if high else x * y
        product, added = product.view(plain), registers[c].view(plain)
        return np.broadcast_to(product, np.broadcast_shapes(product.shape, added.shape)), added

    return _chain(site, d, plain, takes, operands, "add")


@instruction("mul24", "mad24")
def _product24(site: Site) -> Step:
    """Products of the low 24 bits: the low 32 or the high 32 of 48 bits."""
    dtype = site.dtype()
    wide = I64 if dtype.kind == "i" else U64

    def product(x: Array, y: Array) -> Array:
        both = [(v << 8 >> 8).astype(wide) for v in (x, y)]
        whole = both[0] * both[1]
        return (whole >> 16 if site.has("hi") else whole).astype(dtype)

    if site.instruction.opcode == "mul24":
        return compute(site, product, [dtype, dtype], dtype)
    if site.has("sat"):
        site.refuse("must not have .sat")
    return compute(site, lambda x, y, z: product(x, y) + z, [dtype] * 3, dtype)


@instruction("sad")
def _absolute_difference(site: Site) -> Step:
    """``sad d, a, b, c``: c + |a - b|."""
    dtype = site.dtype()

    def function(x: Array, y: Array, z: Array) -> Array:
        return z + np.where(x < y, y - x, x - y)

    return compute(site, function, [dtype] * 3, dtype)


@instruction("dp4a", "dp2a")
def _dot(site: Site) -> Step:
    """c plus the dot product of four bytes each, or of two 16-bit halves and two bytes."""
    types = [name for name in site.instruction.types() if name in ("u32", "s32")]
    kinds = ["i" if name == "s32" else "u" for name in types]
    four = site.instruction.opcode == "dp4a"
    first = np.dtype(f"{kinds[0]}{1 if four else 2}")
    second = np.dtype(f"{kinds[1]}1")
    halves = slice(None) if four else slice(2, 4) if site.has("hi") else slice(0, 2)

    def function(x: Array, y: Array, z: Array) -> Array:
        a = np.ascontiguousarray(x).view(first).reshape(len(x), -1).astype(I64)
        b = np.ascontiguousarray(y).view(second).reshape(len(y), -1)[:, halves].astype(I64)
        return ((a * b).sum(axis=1) + z).astype(U32)

    return compute(site, function, [U32] * 3, U32)


# --- quotients ---------------------------------------------------------------------------


@instruction("div", "rem")
def _quotient(site: Site) -> Step:
    if _is_float(site):
        return floats.division(site)
    dtype, name = site.dtype(), site.instruction.opcode
    a, b, d = site.source(1, dtype), site.source(2, dtype), site.target(0, dtype)
    least, text = np.iinfo(dtype).min, site.instruction.text
    (result_slot,) = site.writes
    site.may_be_undefined = True

    def step(frame: Frame) -> None:
        x, y = frame.registers[a].view(dtype), frame.registers[b].view(dtype)
        bad = y == 0
        if dtype.kind == "i":
            bad = bad | ((x == least) & (y == -1))
        if np.count_nonzero(bad):
            if frame.run.checks.division:
                frame.run.undefined.note(frame, result_slot, bad, _division_fault(text, bad, y))
            x, y, bad = np.broadcast_arrays(x, y, bad)
            y = np.where(bad, dtype.type(1), y)
        # NumPy rounds quotients down and PTX to zero.
        remainder = np.fmod(x, y)
        result = remainder if name == "rem" else (x - remainder) // y
        frame.registers[d] = result

    return step


def _division_fault(text: str, bad: Array, y: Array) -> str:
    index = int(np.argmax(bad))
    if y[index if len(y) > 1 else 0] == 0:
        return f"division by zero, `{text}`"
    return f"division whose quotient overflows, the least integer by -1: `{text}`"


# --- sizes and signs ---------------------------------------------------------------------


@instruction("min", "max")
def _extreme(site: Site) -> Step:
    largest = site.instruction.opcode == "max"
    if _is_float(site):
        return floats.extreme(site, largest)
    function: Callable[..., Array] = np.maximum if largest else np.minimum
    if site.has("relu"):
        plain = function
        function = lambda x, y: np.maximum(plain(x, y), x.dtype.type(0))  # noqa: E731
    if site.type_name() in PACKED:
        return _packed_integers(site, function, 2)
    dtype = site.dtype()
    return compute(site, function, [dtype, dtype], dtype)


@instruction("neg")
def _negative(site: Site) -> Step:
    if _is_float(site):
        return floats.negative(site)
    dtype = site.dtype()
    return compute(site, np.negative, [dtype], dtype)


@instruction("abs")
def _magnitude(site: Site) -> Step:
    if _is_float(site):
        return floats.magnitude(site)
    dtype = site.dtype()
    return compute(site, np.abs, [dtype], dtype)
