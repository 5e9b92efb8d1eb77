"""Every arithmetic instruction of the PTX interpreter against NumPy, or values worked out by hand.

Floats that must be rounded once are compared with exact rational arithmetic.
"""

from fractions import Fraction

import numpy as np
import pytest
from ptx_run import BF16, lanes

from ptxsim.checks import Checks
from ptxsim.faults import PtxError

random = np.random.default_rng(0)
INTEGERS = {
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "u16": np.uint16,
    "s16": np.int16,
}
FLOATS = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": BF16}


def integers(name, count=64):
    """Random numbers of all sizes, with the extremes."""
    dtype = np.dtype(INTEGERS[name])
    words = random.integers(0, 2**64, count, dtype=np.uint64)
    words >>= random.integers(0, 64, count, dtype=np.uint64)
    words[:4] = 0, 1, 2**64 - 1, 1 << (8 * dtype.itemsize - 1)
    return words.astype(f"u{dtype.itemsize}").view(dtype)


def floats(name, count=64):
    """Random numbers of many sizes, with zeros, infinities, NaN and subnormal numbers."""
    dtype = np.dtype(FLOATS[name])
    spread = 6.0 if name == "f16" else 12.0
    values = random.standard_normal(count) * 2.0 ** random.uniform(-spread, spread, count)
    values[:8] = 0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-5 if name == "f16" else 1e-39
    return values.astype(dtype)


def wide(x):
    return [int(v) for v in x]


def wrapped(values, dtype):
    mask = (1 << 8 * np.dtype(dtype).itemsize) - 1
    return np.array([v & mask for v in values], f"u{np.dtype(dtype).itemsize}").view(dtype)


# --- integers ----------------------------------------------------------------------------

EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul.lo": lambda x, y: x * y,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("opcode", EXACT)
def test_integer_arithmetic_wraps(opcode, name):
    x, y = integers(name), integers(name)
    result = lanes(f"{opcode}.{name} $0, $1, $2;", x, y, result=x.dtype)
    exact = [EXACT[opcode](a, b) for a, b in zip(wide(x), wide(y), strict=True)]
    np.testing.assert_array_equal(result, wrapped(exact, x.dtype))


@pytest.mark.parametrize("name", INTEGERS)
def test_products_high_and_wide(name):
    x, y = integers(name), integers(name)
    bits = 8 * x.itemsize
    exact = [a * b for a, b in zip(wide(x), wide(y), strict=True)]
    high = lanes(f"mul.hi.{name} $0, $1, $2;", x, y, result=x.dtype)
    np.testing.assert_array_equal(high, wrapped([v >> bits for v in exact], x.dtype))
    z = integers(name)
    high = lanes(f"mad.lo.{name} $0, $1, $2, $3;", x, y, z, result=x.dtype)
    total = [v + c for v, c in zip(exact, wide(z), strict=True)]
    np.testing.assert_array_equal(high, wrapped(total, x.dtype))
    high = lanes(f"mad.hi.{name} $0, $1, $2, $3;", x, y, z, result=x.dtype)
    total = [(v >> bits) + c for v, c in zip(exact, wide(z), strict=True)]
    np.testing.assert_array_equal(high, wrapped(total, x.dtype))
    if bits < 64:
        result = np.dtype(f"{x.dtype.kind}{2 * x.itemsize}")
        high = lanes(f"mul.wide.{name} $0, $1, $2;", x, y, result=result)
        np.testing.assert_array_equal(high, wrapped(exact, result))
        added = np.arange(len(x)).astype(result)
        high = lanes(f"mad.wide.{name} $0, $1, $2, $3;", x, y, added, result=result)
        total = [v + c for v, c in zip(exact, wide(added), strict=True)]
        np.testing.assert_array_equal(high, wrapped(total, result))


@pytest.mark.parametrize("name", INTEGERS)
def test_quotients_round_to_zero(name):
    x, y = integers(name), integers(name)
    y[(y == 0) | (y == -1 if y.dtype.kind == "i" else False)] = 3
    quotient = [int(Fraction(a, b)) for a, b in zip(wide(x), wide(y), strict=True)]
    rest = [a - b * q for a, b, q in zip(wide(x), wide(y), quotient, strict=True)]
    result = lanes(f"div.{name} $0, $1, $2;", x, y, result=x.dtype)
    np.testing.assert_array_equal(result, wrapped(quotient, x.dtype))
    result = lanes(f"rem.{name} $0, $1, $2;", x, y, result=x.dtype)
    np.testing.assert_array_equal(result, wrapped(rest, x.dtype))


def test_integer_division_by_zero_is_an_error():
    x, y = np.full(4, 7, np.int32), np.array([1, 2, 0, 3], np.int32)
    with pytest.raises(PtxError, match=r"division by zero.*block \(0, 0, 0\), thread \(2, 0, 0\)"):
        lanes("div.s32 $0, $1, $2;", x, y)
    lanes("div.s32 $0, $1, $2;", x, y, checks=Checks(division=False))
    least = np.full(4, -(2**31), np.int32)
    with pytest.raises(PtxError, match="quotient overflows"):
        lanes("div.s32 $0, $1, $2;", least, np.full(4, -1, np.int32))


def test_a_quotient_that_is_undefined_may_be_computed_with_but_not_used():
    x, y = np.full(4, 7, np.int32), np.array([1, 2, 0, 3], np.int32)
    text = """div.s32 $0, $1, $2;
    add.s32 $0, $0, 1;
    setp.eq.s32 %p1, $2, 0;
    """
    result = lanes(text + "selp.b32 $0, -1, $0, %p1;", x, y, result=np.int32)
    assert result.tolist() == [8, 4, -1, 3]
    result = lanes(text + "@%p1 mov.b32 $0, 5;", x, y, result=np.int32)
    assert result.tolist() == [8, 4, 5, 3]
    for used in (
        "selp.b32 $0, $0, -1, %p1;",
        "@!%p1 mov.b32 $0, 5;",
        "@%p1 add.s32 $0, $0, 5;",
        "setp.lt.s32 %p1, $0, 3; @%p1 bra DONE; mov.b32 $0, 1; DONE:",
        "setp.lt.s32 %p1, $0, 3; @%p1 mov.b32 $0, 1;",
        "shfl.sync.idx.b32 $0, $0, 0, 31, 15;",
    ):
        with pytest.raises(PtxError, match=r"division by zero, `div.s32 .*thread \(2, 0, 0\)"):
            lanes(text + used, x, y)


def test_saturated_sums():
    x = np.array([2**31 - 1, -(2**31), 5, -5], np.int32)
    result = lanes("add.sat.s32 $0, $1, $2;", x, x, result=np.int32)
    assert result.tolist() == [2**31 - 1, -(2**31), 10, -10]
    result = lanes("sub.sat.s32 $0, $1, $2;", x, -x, result=np.int32)
    assert result.tolist() == [2**31 - 1, 0, 10, -10]
    result = lanes("mad.hi.sat.s32 $0, $1, $2, $3;", x, x, x, result=np.int32)
    assert result.tolist() == [2**31 - 1, -(2**30), 5, -5]


@pytest.mark.parametrize("name", ["u32", "u64"])
def test_carry_chains_add_and_subtract_longer_numbers(name):
    a, b, c, d = (integers(name) for _ in range(4))
    bits = 8 * a.itemsize
    for opcode, carried, sign in (("add", "addc", 1), ("sub", "subc", -1)):
        exact = [
            (h1 << bits | l1) + sign * (h2 << bits | l2)
            for l1, h1, l2, h2 in zip(*map(wide, (a, b, c, d)), strict=True)
        ]
        low = f"{opcode}.cc.{name} $0, $1, $3;"
        result = lanes(low, a, b, c, d, result=a.dtype)
        np.testing.assert_array_equal(result, wrapped(exact, a.dtype))
        high = f"{low} {carried}.{name} $0, $2, $4;"
        result = lanes(high, a, b, c, d, result=a.dtype)
        np.testing.assert_array_equal(result, wrapped([v >> bits for v in exact], a.dtype))
        third = f"{low} {carried}.cc.{name} $0, $2, $4; {carried}.{name} $0, 0, 0;"
        result = lanes(third, a, b, c, d, result=a.dtype)
        np.testing.assert_array_equal(result, wrapped([v >> 2 * bits for v in exact], a.dtype))


def test_products_with_carries():
    """128-bit products, as compilers spell them."""
    x, y, z = integers("u64"), integers("u64"), integers("u64")
    chain = "mad.lo.cc.u64 $0, $1, $2, $3; madc.hi.u64 $0, $1, $2, 0;"
    exact = [a * b + c for a, b, c in zip(wide(x), wide(y), wide(z), strict=True)]
    result = lanes(chain, x, y, z, result=np.uint64)
    np.testing.assert_array_equal(result, wrapped([v >> 64 for v in exact], np.uint64))


@pytest.mark.parametrize("name", ["u32", "s32"])
def test_products_of_24_bits(name):
    x, y, z = integers(name), integers(name), integers(name)
    low = [(v & 0xFFFFFF) - (0x1000000 if name == "s32" and v & 0x800000 else 0) for v in wide(x)]
    other = [(v & 0xFFFFFF) - (0x1000000 if name == "s32" and v & 0x800000 else 0) for v in wide(y)]
    exact = [a * b for a, b in zip(low, other, strict=True)]
    result = lanes(f"mul24.lo.{name} $0, $1, $2;", x, y, result=x.dtype)
    np.testing.assert_array_equal(result, wrapped(exact, x.dtype))
    result = lanes(f"mul24.hi.{name} $0, $1, $2;", x, y, result=x.dtype)
    np.testing.assert_array_equal(result, wrapped([v >> 16 for v in exact], x.dtype))
    result = lanes(f"mad24.lo.{name} $0, $1, $2, $3;", x, y, z, result=x.dtype)
    total = [a + b for a, b in zip(exact, wide(z), strict=True)]
    np.testing.assert_array_equal(result, wrapped(total, x.dtype))


@pytest.mark.parametrize("name", ["s16", "s32", "s64"])
def test_negation_and_magnitude(name):
    x = integers(name)
    result = lanes(f"neg.{name} $0, $1;", x, result=x.dtype)
    np.testing.assert_array_equal(result, wrapped([-v for v in wide(x)], x.dtype))
    result = lanes(f"abs.{name} $0, $1;", x, result=x.dtype)
    np.testing.assert_array_equal(result, wrapped([abs(v) for v in wide(x)], x.dtype))


@pytest.mark.parametrize("name", ["u32", "s32", "u64"])
def test_sum_of_absolute_differences(name):
    x, y, z = integers(name), integers(name), integers(name)
    result = lanes(f"sad.{name} $0, $1, $2, $3;", x, y, z, result=x.dtype)
    exact = [c + abs(a - b) for a, b, c in zip(wide(x), wide(y), wide(z), strict=True)]
    np.testing.assert_array_equal(result, wrapped(exact, x.dtype))


def test_dot_products_of_bytes():
    x, y, z = (integers("u32") for _ in range(3))
    for first, second in (("u32", "u32"), ("s32", "u32"), ("s32", "s32")):
        one, two = (np.int8 if t == "s32" else np.uint8 for t in (first, second))
        a, b = x.view(one).reshape(-1, 4).astype(int), y.view(two).reshape(-1, 4).astype(int)
        result = lanes(f"dp4a.{first}.{second} $0, $1, $2, $3;", x, y, z)
        np.testing.assert_array_equal(result, wrapped(wide((a * b).sum(1) + z.astype(int)), "u4"))
        half = np.int16 if first == "s32" else np.uint16
        a = x.view(half).reshape(-1, 2).astype(int)
        for place, name in enumerate(("lo", "hi")):
            result = lanes(f"dp2a.{name}.{first}.{second} $0, $1, $2, $3;", x, y, z)
            exact = (a * b[:, 2 * place : 2 * place + 2]).sum(1) + z.astype(int)
            np.testing.assert_array_equal(result, wrapped(wide(exact), "u4"))


def test_packed_integers():
    x, y = integers("u32"), integers("u32")
    for name, part in (("u16x2", np.uint16), ("s16x2", np.int16)):
        a, b = x.view(part), y.view(part)
        for opcode, function in (("add", np.add), ("min", np.minimum), ("max", np.maximum)):
            result = lanes(f"{opcode}.{name} $0, $1, $2;", x, y)
            np.testing.assert_array_equal(result, function(a, b).view(np.uint32))
            if name == "s16x2" and opcode != "add":
                result = lanes(f"{opcode}.s16x2.relu $0, $1, $2;", x, y)
                positive = np.maximum(function(a, b), 0).astype(np.int16)
                np.testing.assert_array_equal(result, positive.view(np.uint32))
    result = lanes("max.s32.relu $0, $1, $2;", np.array([-5, 3], "i4"), np.array([-7, 1], "i4"))
    assert result.tolist() == [0, 3]


# --- floats ------------------------------------------------------------------------------

ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def same(found, want):
    """Equal values, NaN with NaN, and zeros of the same sign."""
    np.testing.assert_array_equal(found.astype(float), want.astype(float))
    numbers = ~np.isnan(want.astype(float))
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("opcode", ARITHMETIC)
def test_float_arithmetic(opcode, name):
    x, y = floats(name), np.roll(floats(name), 3)
    with np.errstate(all="ignore"):
        want = ARITHMETIC[opcode](x, y)
    same(lanes(f"{opcode}.rn.{name} $0, $1, $2;", x, y, result=x.dtype), want)


def rounded(exact, dtype, mode):
    """An exact fraction rounded in a direction, by search among the neighbors."""
    near = dtype(float(exact)) if abs(exact) < 1e300 else dtype(np.inf)
    around = [near]
    for direction in (-np.inf, np.inf):
        around.append(np.nextafter(near, dtype(direction)))
    numbers = sorted({float(v) for v in around if np.isfinite(v)})
    below = [v for v in numbers if Fraction(v) <= exact]
    above = [v for v in numbers if Fraction(v) >= exact]
    if mode == "rn":
        low, high = max(below), min(above)
        if exact - Fraction(low) != Fraction(high) - exact:
            return low if exact - Fraction(low) < Fraction(high) - exact else high
        even = int(np.array(low, dtype).view(f"u{np.dtype(dtype).itemsize}")) % 2 == 0
        return low if even else high
    if mode == "rm" or (mode == "rz" and exact > 0):
        return max(below)
    return min(above)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "div", "fma"])
def test_rounding_in_every_direction(opcode, name, mode):
    dtype = FLOATS[name]
    x, y, z = (random.standard_normal(64).astype(dtype) for _ in range(3))
    x[:32] *= dtype(2.0**-30)  # sums that need many more bits
    z[16:48] = -(x * y)[16:48]  # fma that cancels
    exact = {
        "add": lambda a, b, c: a + b,
        "sub": lambda a, b, c: a - b,
        "mul": lambda a, b, c: a * b,
        "div": lambda a, b, c: a / b,
        "fma": lambda a, b, c: a * b + c,
    }[opcode]
    given = (x, y, z) if opcode == "fma" else (x, y)
    operands = ", ".join(f"${k + 1}" for k in range(len(given)))
    result = lanes(f"{opcode}.{mode}.{name} $0, {operands};", *given, result=dtype)
    want = [
        rounded(exact(*(Fraction(float(v)) for v in values)), dtype, mode)
        for values in zip(x, y, z, strict=True)
    ]
    np.testing.assert_array_equal(result.astype(float), want)


def test_fma_of_float32_does_not_round_twice():
    """2**-24 + 2**-53 added to 1 is above a tie of float32, and a tie of float64's rounding."""
    x = np.array([1 + 2**-12, 2.0**-75, 2.0**-80, 1 + 2**-23], np.float32)
    y = np.array([2.0**-12, 2.0**-75, 2.0**-69, 1 + 2**-23], np.float32)
    z = np.array([1.0, 2.0**-149, 2.0**-126, 2.0**-60], np.float32)
    want = [
        rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), np.float32, "rn")
        for a, b, c in zip(x, y, z, strict=True)
    ]
    result = lanes("fma.rn.f32 $0, $1, $2, $3;", x, y, z, result=np.float32)
    np.testing.assert_array_equal(result.astype(float), want)


def test_fma_of_float64_is_exact_where_parts_underflow_or_overflow():
    x = np.array([1e-200, 1e200, 2.0**-600, 1e300, 5e-324, 0.0, np.inf, -0.0])
    y = np.array([1e-200, 1e200, 2.0**-474, 1e10, 0.5, 3.0, 1.0, 1.0])
    z = np.array([1e-300, -1e300, 2.0**-1074, -1e308, 5e-324, -0.0, 1.0, -0.0])
    result = lanes("fma.rn.f64 $0, $1, $2, $3;", x, y, z, result=np.float64)
    want = [1e-300, np.inf, 2 * 2.0**-1074, np.inf, 1e-323, 0.0, np.inf, -0.0]
    np.testing.assert_array_equal(result, want)
    assert np.signbit(result[-1])


def test_fma_of_float64_whose_factors_are_the_same_in_all_lanes():
    """The interpreter keeps one element of what all lanes share: a loop's first carry, say."""
    z = np.array([0.4, -0.7, 2.0**-1000, 0.0])
    for factors in ((0.6, 0.0), (2.0**-600, 2.0**-500), (3.0, 2.0)):
        text = [f"0d{np.float64(factor).view(np.uint64):016X}" for factor in factors]
        result = lanes(f"fma.rn.f64 $0, {text[0]}, {text[1]}, $1;", z, result=np.float64)
        want = [float(Fraction(factors[0]) * Fraction(factors[1]) + Fraction(v)) for v in z]
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fma_of_halves_is_rounded_once(name):
    x, y, z = floats(name), np.roll(floats(name), 5), np.roll(floats(name), 9)
    finite = np.isfinite((x.astype(float) * y.astype(float)) + z.astype(float))
    result = lanes(f"fma.rn.{name} $0, $1, $2, $3;", x, y, z, result=x.dtype)
    # float64 holds these products and sums exactly, or the test would be too weak
    want = (x[finite].astype(float) * y[finite].astype(float)) + z[finite].astype(float)
    inside = np.abs(want) < 6e4
    if name == "f16":
        np.testing.assert_array_equal(result[finite][inside], want[inside].astype(np.float16))
    error = np.abs(result[finite][inside].astype(float) - want[inside])
    assert (error <= np.abs(want[inside]) * 2.0 ** (-11 if name == "f16" else -8) + 1e-7).all()


@pytest.mark.parametrize("name", FLOATS)
def test_extremes_of_floats(name):
    x, y = floats(name), np.roll(floats(name), 1)
    for opcode, plain, nan in (("min", np.fmin, np.minimum), ("max", np.fmax, np.maximum)):
        result = lanes(f"{opcode}.{name} $0, $1, $2;", x, y, result=x.dtype)
        np.testing.assert_array_equal(result.astype(float), plain(x.astype(float), y.astype(float)))
        result = lanes(f"{opcode}.NaN.{name} $0, $1, $2;", x, y, result=x.dtype)
        np.testing.assert_array_equal(result.astype(float), nan(x.astype(float), y.astype(float)))
    zeros = np.array([0.0, -0.0], x.dtype)
    result = lanes(f"max.{name} $0, $1, $2;", zeros, zeros[::-1].copy(), result=x.dtype)
    assert not np.signbit(result).any()
    result = lanes(f"min.{name} $0, $1, $2;", zeros, zeros[::-1].copy(), result=x.dtype)
    assert np.signbit(result).all()


def test_extremes_of_three_and_by_size():
    x, y, z = (np.array(v, np.float32) for v in ([1, -9], [5, 2], [3, 4]))
    assert lanes("max.f32 $0, $1, $2, $3;", x, y, z, result="f4").tolist() == [5, 4]
    assert lanes("max.xorsign.abs.f32 $0, $1, $2;", x, y, result="f4").tolist() == [5, -9]
    assert lanes("min.abs.f32 $0, $1, $2;", x, y, result="f4").tolist() == [1, 2]


@pytest.mark.parametrize("name", FLOATS)
def test_signs(name):
    x, y = floats(name), np.roll(floats(name), 1)
    same(lanes(f"neg.{name} $0, $1;", x, result=x.dtype), -x)
    same(lanes(f"abs.{name} $0, $1;", x, result=x.dtype), np.abs(x))
    if name in ("f32", "f64"):
        result = lanes(f"copysign.{name} $0, $1, $2;", x, y, result=x.dtype)
        same(result, np.copysign(y, x))


FUNCTIONS = {
    "rcp.rn": lambda x: 1 / x,
    "rcp.approx": lambda x: 1 / x,
    "sqrt.rn": np.sqrt,
    "sqrt.approx": np.sqrt,
    "rsqrt.approx": lambda x: 1 / np.sqrt(x),
    "ex2.approx": np.exp2,
    "lg2.approx": np.log2,
    "sin.approx": np.sin,
    "cos.approx": np.cos,
    "tanh.approx": np.tanh,
}


@pytest.mark.parametrize("opcode", FUNCTIONS)
def test_functions(opcode):
    x = np.abs(floats("f32")) if "sin" not in opcode else floats("f32")
    x = np.append(x[np.isfinite(x)], np.float32(2.5))
    with np.errstate(all="ignore"):
        want = FUNCTIONS[opcode](x.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(lanes(f"{opcode}.f32 $0, $1;", x, result="f4"), want)


def test_functions_of_other_types():
    x = np.array([0.5, 2, 9], np.float64)
    np.testing.assert_array_equal(lanes("sqrt.rn.f64 $0, $1;", x, result="f8"), np.sqrt(x))
    np.testing.assert_array_equal(lanes("rcp.rn.f64 $0, $1;", x, result="f8"), 1 / x)
    result = lanes("rcp.approx.ftz.f64 $0, $1;", x, result="f8")
    assert (result.view(np.uint64) & 0xFFFFFFFF == 0).all()
    np.testing.assert_allclose(result, 1 / x, rtol=2.0**-20)
    h = x.astype(np.float16)
    np.testing.assert_array_equal(lanes("ex2.approx.f16 $0, $1;", h, result="f2"), np.exp2(h))
    for mode, value in (("rz", 1.4142135), ("rp", 1.4142137), ("rm", 1.4142135)):
        two = np.full(2, 2, np.float32)
        result = lanes(f"sqrt.{mode}.f32 $0, $1;", two, result="f4")
        assert result[0] == np.float32(value)


def test_division_forms():
    x, y = floats("f32"), np.roll(floats("f32"), 7)
    with np.errstate(all="ignore"):
        want = x / y
    for form in ("rn", "approx", "full"):
        same(lanes(f"div.{form}.f32 $0, $1, $2;", x, y, result="f4"), want)


def test_flushing_saturation_and_relu():
    x = np.array([1e-40, -1e-40, 0.25, 1.5, -2, np.nan], np.float32)
    one = np.ones(6, np.float32)
    result = lanes("mul.ftz.f32 $0, $1, $2;", x, one, result="f4")
    assert result[:2].tolist() == [0, 0] and np.signbit(result[:2]).tolist() == [False, True]
    result = lanes("mul.sat.f32 $0, $1, $2;", x, one, result="f4")
    np.testing.assert_array_equal(result, np.array([1e-40, 0, 0.25, 1, 0, 0], np.float32))
    h = x.astype(np.float16)
    result = lanes("fma.rn.relu.f16 $0, $1, $2, $2;", h, np.zeros(6, "f2"), result="f2")
    np.testing.assert_array_equal(result, np.array([0, 0, 0, 0, 0, np.nan], np.float16))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packed_floats(name):
    part = FLOATS[name]
    a, b, c = (random.standard_normal(64).astype(part) for _ in range(3))
    x, y, z = (v.view(np.uint32) for v in (a, b, c))
    for opcode, function in ARITHMETIC.items():
        result = lanes(f"{opcode}.rn.{name}x2 $0, $1, $2;", x, y)
        np.testing.assert_array_equal(result.view(part).astype(float), function(a, b).astype(float))
    result = lanes(f"fma.rn.{name}x2 $0, $1, $2, $3;", x, y, z).view(part)
    single = lanes(f"fma.rn.{name} $0, $1, $2, $3;", a, b, c, result=part)
    np.testing.assert_array_equal(result.astype(float), single.astype(float))
    result = lanes(f"neg.{name}x2 $0, $1;", x).view(part)
    np.testing.assert_array_equal(result.astype(float), -a.astype(float))


def test_pairs_of_float32():
    a, b, c = (random.standard_normal(64).astype(np.float32) for _ in range(3))
    x, y, z = (v.view(np.uint64) for v in (a, b, c))
    result = lanes("add.rn.f32x2 $0, $1, $2;", x, y, result=np.uint64)
    np.testing.assert_array_equal(result.view(np.float32), a + b)
    result = lanes("fma.rn.f32x2 $0, $1, $2, $3;", x, y, z, result=np.uint64)
    single = lanes("fma.rn.f32 $0, $1, $2, $3;", a, b, c, result=np.float32)
    np.testing.assert_array_equal(result.view(np.float32), single)


def test_tests_of_numbers():
    x = np.array([0, 1, 1e-40, np.inf, np.nan, -2], np.float32)
    want = {
        "finite": [1, 1, 1, 0, 0, 1],
        "infinite": [0, 0, 0, 1, 0, 0],
        "number": [1, 1, 1, 1, 0, 1],
        "notanumber": [0, 0, 0, 0, 1, 0],
        "normal": [0, 1, 0, 0, 0, 1],
        "subnormal": [0, 0, 1, 0, 0, 0],
    }
    for how, values in want.items():
        result = lanes(f"testp.{how}.f32 %p1, $1; selp.u32 $0, 1, 0, %p1;", x)
        assert result.tolist() == values
