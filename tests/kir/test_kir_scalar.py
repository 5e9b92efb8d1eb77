"""The scalar table against independent references: math and mpmath for floats, Python ints."""

import math
import subprocess
import sys
import warnings

import ml_dtypes
import mpmath
import numpy as np
import pytest
from together import together

from gpuflow.kir.reference import cast
from gpuflow.kir.scalar import (
    COMPUTE_DTYPES,
    FUNCTIONS,
    NARROW_DTYPES,
    compute_dtype,
    dtype_kind,
    storage_bytes,
)

INF, NAN = math.inf, math.nan
FLOATS = ("float32", "float64")
INTEGERS = tuple(dtype for dtype in COMPUTE_DTYPES if dtype_kind(dtype) in ("int", "uint"))


def float_samples(dtype):
    limits = np.finfo(dtype)
    special = [0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 7.25, 0.1, 0.75, 20.0, 88.0, 1e-3, 1e-10]
    special += [limits.max, limits.tiny, limits.smallest_subnormal, limits.eps, 2.0**31, INF]
    special += list(np.random.default_rng(7).uniform(0, 4, 12))
    values = np.array(special, dtype)
    return np.concatenate([values, -values, np.array([NAN], dtype)])


def integer_samples(dtype):
    bounds = np.iinfo(dtype)
    near = [0, 1, 2, 3, 5, 7, 8, 15, 31, 63, 64, 100, bounds.max, bounds.max - 1, bounds.min]
    if bounds.min < 0:
        near += [-1, -2, -3, -7, -100, bounds.min + 1]
    return np.array(near, dtype)


def wrap(value, dtype):
    bits = 8 * np.dtype(dtype).itemsize
    value %= 2**bits
    return value - 2**bits if dtype_kind(dtype) == "int" and value >= 2 ** (bits - 1) else value


def one(fn, *arrays):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = FUNCTIONS[fn](*arrays)
    return result


def test_the_table_is_closed_and_complete():
    words = """add sub mul neg abs max min div rem floor ceil round round_away trunc sign sqrt rsqrt
    cbrt exp exp2 expm1 log log1p log2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
    atan2 pow hypot fma erf erfc erf_inv lgamma digamma logistic eq ne lt le gt ge and or xor not
    shift_left shift_right_logical shift_right_arithmetic population_count clz is_finite nextafter
    copysign threefry2x32"""
    names = words.split()
    names += [f"round_{dtype}" for dtype in NARROW_DTYPES]
    names += [f"bitcast_{dtype}" for dtype in COMPUTE_DTYPES if dtype != "bool"]
    assert set(FUNCTIONS) == set(names)
    assert all(FUNCTIONS[name].name == name for name in names)


# Each reference takes mpmath numbers and is called only where the result is an ordinary number.
UNARY = {
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "log2": lambda x: mpmath.log(x, 2),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "asin": mpmath.asin,
    "acos": mpmath.acos,
    "atan": mpmath.atan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "asinh": lambda x: mpmath.sign(x) * mpmath.asinh(abs(x)),
    "acosh": mpmath.acosh,
    "atanh": mpmath.atanh,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
    "digamma": mpmath.digamma,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
}
DOMAINS = {
    "sqrt": (0, INF),
    "rsqrt": (1e-300, INF),
    "log": (1e-300, INF),
    "log2": (1e-300, INF),
    "log1p": (-1 + 1e-9, INF),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "acosh": (1, INF),
    "atanh": (-1 + 1e-9, 1 - 1e-9),
    "lgamma": (1e-30, 1e8),
    "digamma": (1e-30, 1e8),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fn", sorted(UNARY))
def test_unary_floats_match_mpmath(fn, dtype):
    low, high = DOMAINS.get(fn, (-INF, INF))
    limits = np.finfo(dtype)
    samples = [x for x in float_samples(dtype) if np.isfinite(x) and low <= float(x) <= high]
    result = one(fn, np.array(samples, dtype))
    assert result.dtype == dtype
    with mpmath.workdps(40):
        for x, got in zip(samples, result, strict=True):
            if fn not in ("sqrt", "cbrt", "tanh", "atan", "logistic") and abs(x) > 2**40:
                continue  # overflow or argument reduction, which mpmath does at great length
            want = UNARY[fn](mpmath.mpf(float(x)))
            if abs(want) > limits.max:
                assert abs(got) == INF, (fn, x, got)
                continue
            # 8 ulp: NumPy's and SciPy's own bounds; near a zero of lgamma or digamma, absolute.
            loose = float(limits.eps) if fn in ("lgamma", "digamma") else 0.0
            bound = 8 * (float(limits.eps) * abs(want) + loose) + float(limits.smallest_subnormal)
            assert abs(mpmath.mpf(float(got)) - want) <= bound, (fn, x, got, want)


SPECIAL = {
    "abs": [(-0.0, 0.0), (-INF, INF), (NAN, NAN)],
    "neg": [(0.0, -0.0), (INF, -INF), (NAN, NAN)],
    "sign": [(-0.0, -0.0), (0.0, 0.0), (NAN, NAN), (-INF, -1.0), (3.0, 1.0)],
    "floor": [(-0.0, -0.0), (-0.5, -1.0), (INF, INF), (NAN, NAN)],
    "ceil": [(-0.5, -0.0), (0.2, 1.0), (-INF, -INF)],
    "trunc": [(-0.5, -0.0), (-1.7, -1.0), (INF, INF)],
    "round": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (NAN, NAN), (-INF, -INF)],
    "round_away": [
        (0.5, 1.0),
        (2.5, 3.0),
        (-0.5, -1.0),
        (-0.2, -0.0),
        (INF, INF),
        (NAN, NAN),
        (0.49999997, 0.0),
    ],
    "sqrt": [(-0.0, -0.0), (-1.0, NAN), (INF, INF)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN)],
    "cbrt": [(-0.0, -0.0), (-8.0, -2.0), (-INF, -INF)],
    "exp": [(-INF, 0.0), (INF, INF), (NAN, NAN)],
    "exp2": [(-INF, 0.0), (10.0, 1024.0), (INF, INF)],
    "expm1": [(-INF, -1.0), (-0.0, -0.0), (INF, INF)],
    "log": [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (INF, INF)],
    "log1p": [(-1.0, -INF), (-2.0, NAN), (-0.0, -0.0)],
    "log2": [(8.0, 3.0), (0.0, -INF), (-1.0, NAN)],
    "sin": [(-0.0, -0.0), (INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-INF, NAN)],
    "tan": [(-0.0, -0.0), (INF, NAN)],
    "asin": [(2.0, NAN), (-0.0, -0.0)],
    "acos": [(1.0, 0.0), (-1.5, NAN)],
    "atan": [(INF, math.pi / 2), (-0.0, -0.0)],
    "sinh": [(-INF, -INF), (-0.0, -0.0)],
    "cosh": [(-INF, INF), (0.0, 1.0)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0)],
    "asinh": [(-INF, -INF), (-0.0, -0.0)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (INF, INF)],
    "atanh": [(1.0, INF), (-1.0, -INF), (2.0, NAN), (-0.0, -0.0)],
    "erf": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0), (NAN, NAN)],
    "erfc": [(INF, 0.0), (-INF, 2.0), (0.0, 1.0)],
    "erf_inv": [(1.0, INF), (-1.0, -INF), (1.5, NAN), (0.0, 0.0), (NAN, NAN)],
    "lgamma": [(0.0, INF), (-1.0, INF), (INF, INF), (-INF, INF), (1.0, 0.0), (2.0, 0.0)],
    "digamma": [(0.0, NAN), (-0.0, NAN), (-3.0, NAN), (INF, INF), (NAN, NAN)],
    "logistic": [(INF, 1.0), (-INF, 0.0), (0.0, 0.5), (NAN, NAN)],
    "is_finite": [(INF, False), (-INF, False), (NAN, False), (-0.0, True), (1e30, True)],
}


@together(size=24)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fn", sorted(SPECIAL))
def test_unary_special_values(fn, dtype):
    points, wanted = zip(*SPECIAL[fn], strict=True)
    result = one(fn, np.array(points, dtype))
    want = np.array(wanted).astype(result.dtype)
    np.testing.assert_array_equal(result, want)
    if result.dtype.kind == "f":
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(result)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("dtype", FLOATS)
def test_erf_inv_inverts_erf(dtype):
    x = np.linspace(-0.99, 0.99, 33).astype(dtype)
    result = one("erf_inv", x).astype(np.float64)
    back = [math.erf(value) for value in result]
    # One rounding of the result, times the slope of erf (at most 1.13).
    np.testing.assert_allclose(back, x.astype(np.float64), atol=4 * np.finfo(dtype).eps)


def _math_pow(x, y):
    try:
        return math.pow(x, y)
    except OverflowError:
        odd = y == math.floor(y) and y % 2 == 1
        return -INF if x < 0 and odd else INF
    except ValueError:
        if x == 0:
            odd = y == math.floor(y) and abs(y) % 2 == 1
            return math.copysign(INF, x) if odd else INF
        return NAN


def _maximum(x, y):
    if math.isnan(x) or math.isnan(y):
        return NAN
    return max(x, y, key=lambda value: (value, math.copysign(1, value)))


def _minimum(x, y):
    return -_maximum(-x, -y)


def _divide(x, y):
    if y == 0:
        sign = math.copysign(1, x) * math.copysign(1, y)
        return NAN if x == 0 or math.isnan(x) else sign * INF
    return x / y


def _fmod(x, y):
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return NAN
    return math.fmod(x, y)


def _add(x, y):
    return x + y


BINARY = {
    "add": _add,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": _divide,
    "rem": _fmod,
    "max": _maximum,
    "min": _minimum,
    "atan2": math.atan2,
    "pow": _math_pow,
    "hypot": math.hypot,
    "copysign": math.copysign,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fn", sorted(BINARY))
def test_binary_floats_match_math(fn, dtype):
    samples = float_samples(dtype)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(samples, samples))
    result = one(fn, x, y)
    with np.errstate(all="ignore"):
        want = np.array([BINARY[fn](float(a), float(b)) for a, b in zip(x, y)]).astype(dtype)
    rounds = fn in ("atan2", "pow", "hypot")
    # 4 ulp for the library functions; the others round once, from float64 to float32 exactly.
    limits = np.finfo(dtype)
    tolerance = {"rtol": 4 * limits.eps, "atol": 2 * limits.smallest_subnormal}
    if rounds:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(result, want, **tolerance)
    else:
        np.testing.assert_array_equal(result, want)
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(result)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter_steps_to_the_neighbor(dtype):
    x = np.array([0.0, -0.0, 1.0, 1.0, INF, np.finfo(dtype).max, NAN], dtype)
    y = np.array([1.0, -1.0, 2.0, 0.0, 0.0, INF, 1.0], dtype)
    tiny, eps = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).eps
    want = np.array([tiny, -tiny, 1 + eps, 1 - eps / 2, np.finfo(dtype).max, INF, NAN], dtype)
    np.testing.assert_array_equal(one("nextafter", x, y), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_fma_rounds_once(dtype):
    eps = float(np.finfo(dtype).eps)
    x = np.array([1 + eps, 2.0, INF, 0.0], dtype)
    y = np.array([1 - eps, 3.0, 0.0, 5.0], dtype)
    z = np.array([-1.0, 4.0, 1.0, -0.0], dtype)
    # (1 + eps)(1 - eps) - 1 is 0 when the product is rounded first.
    np.testing.assert_array_equal(one("fma", x, y, z), np.array([-(eps**2), 10, NAN, 0], dtype))


def _truncated(x, y, dtype):
    if y == 0:
        return -1
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _shift_right_arithmetic(x, y, dtype):
    bits = 8 * np.dtype(dtype).itemsize
    signed = x - 2**bits if x >= 2 ** (bits - 1) else x
    return signed >> min(y % 2**bits, bits - 1)


def _shift(x, y, dtype, move):
    bits = 8 * np.dtype(dtype).itemsize
    count = y % 2**bits
    return move(x % 2**bits, count) if count < bits else 0


INTEGER_BINARY = {
    "add": lambda x, y, dtype: x + y,
    "sub": lambda x, y, dtype: x - y,
    "mul": lambda x, y, dtype: x * y,
    "max": lambda x, y, dtype: max(x, y),
    "min": lambda x, y, dtype: min(x, y),
    "div": _truncated,
    "rem": lambda x, y, dtype: x if y == 0 else x - y * _truncated(x, y, dtype),
    "and": lambda x, y, dtype: x & y,
    "or": lambda x, y, dtype: x | y,
    "xor": lambda x, y, dtype: x ^ y,
    "shift_left": lambda x, y, dtype: _shift(x, y, dtype, lambda a, n: a << n),
    "shift_right_logical": lambda x, y, dtype: _shift(x, y, dtype, lambda a, n: a >> n),
    "shift_right_arithmetic": _shift_right_arithmetic,
}
INTEGER_UNARY = {
    "neg": lambda x, dtype: -x,
    "abs": lambda x, dtype: abs(x),
    "sign": lambda x, dtype: (x > 0) - (x < 0),
    "not": lambda x, dtype: ~x,
    "population_count": lambda x, dtype: (x % 2 ** (8 * np.dtype(dtype).itemsize)).bit_count(),
    "clz": lambda x, dtype: (
        8 * np.dtype(dtype).itemsize - (x % 2 ** (8 * np.dtype(dtype).itemsize)).bit_length()
    ),
}


@together(size=26)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fn", sorted(INTEGER_BINARY))
def test_binary_integers_match_python(fn, dtype):
    samples = integer_samples(dtype)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(samples, samples))
    result = one(fn, x, y)
    pairs = zip(x, y, strict=True)
    want = [wrap(INTEGER_BINARY[fn](int(a), int(b), dtype), dtype) for a, b in pairs]
    np.testing.assert_array_equal(result, np.array(want, dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fn", sorted(INTEGER_UNARY))
def test_unary_integers_match_python(fn, dtype):
    samples = integer_samples(dtype)
    want = [wrap(INTEGER_UNARY[fn](int(x), dtype), dtype) for x in samples]
    np.testing.assert_array_equal(one(fn, samples), np.array(want, dtype))


@pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
def test_comparisons_are_total(dtype):
    kind = dtype_kind(dtype)
    samples = np.array([False, True])
    if kind != "bool":
        samples = float_samples(dtype) if kind == "float" else integer_samples(dtype)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(samples, samples))
    pairs = [(a.item(), b.item()) for a, b in zip(x, y, strict=True)]
    assert one("eq", x, y).tolist() == [a == b for a, b in pairs]
    assert one("ne", x, y).tolist() == [a != b for a, b in pairs]
    assert one("lt", x, y).tolist() == [a < b for a, b in pairs]
    assert one("le", x, y).tolist() == [a <= b for a, b in pairs]
    assert one("gt", x, y).tolist() == [a > b for a, b in pairs]
    assert one("ge", x, y).tolist() == [a >= b for a, b in pairs]


def test_bool_logic():
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert one("and", x, y).tolist() == [False, False, False, True]
    assert one("or", x, y).tolist() == [False, True, True, True]
    assert one("xor", x, y).tolist() == [False, True, True, False]
    assert one("not", x).tolist() == [True, True, False, False]


@pytest.mark.parametrize("storage", NARROW_DTYPES)
def test_rounding_gives_the_nearest_stored_value(storage):
    narrow = np.dtype(np.float16 if storage == "float16" else getattr(ml_dtypes, storage))
    itemtype = np.uint8 if narrow.itemsize == 1 else np.uint16
    codes = np.arange(2 ** (8 * narrow.itemsize), dtype=np.uint32).astype(itemtype)
    with np.errstate(invalid="ignore"):  # signalling nans
        stored = codes.view(narrow).astype(np.float64)
    stored = np.unique(stored[np.isfinite(stored)])
    x = np.random.default_rng(3).uniform(-4, 4, 200).astype(np.float32)
    above = np.searchsorted(stored, x.astype(np.float64))
    nearest = np.minimum(abs(stored[above] - x), abs(stored[above - 1] - x))
    result = one(f"round_{storage}", x)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(abs(result.astype(np.float64) - x), nearest)
    exact = stored.astype(np.float32)
    np.testing.assert_array_equal(one(f"round_{storage}", exact), exact)


def test_bitcasts_keep_the_bits():
    x = np.array([1.0, -0.0, INF], np.float32)
    assert one("bitcast_uint32", x).tolist() == [0x3F800000, 0x80000000, 0x7F800000]
    assert one("bitcast_int32", x).tolist() == [0x3F800000, -0x80000000, 0x7F800000]
    assert one("bitcast_float32", one("bitcast_uint32", x)).tobytes() == x.tobytes()
    assert one("bitcast_uint64", np.array([1.0])).tolist() == [0x3FF0000000000000]
    assert one("bitcast_int8", np.array([255], np.uint8)).tolist() == [-1]


def test_threefry_matches_the_published_vectors():
    # Random123's known-answer tests for threefry2x32-20; key words follow the counter there.
    cases = [
        ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 4, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    for given, want in cases:
        words = (np.array([word], np.uint32) for word in given)
        result = FUNCTIONS["threefry2x32"](*words)
        assert tuple(int(part[0]) for part in result) == want


def test_casts_saturate_truncate_and_wrap():
    x = np.array([NAN, INF, -INF, 1.9, -1.9, 300.0, -300.0, 2.0**63, -0.5])
    assert cast(x, "int8").tolist() == [0, 127, -128, 1, -1, 127, -128, 127, 0]
    assert cast(x, "uint8").tolist() == [0, 255, 0, 1, 0, 255, 0, 255, 0]
    assert cast(x, "int64")[[1, 2, 7]].tolist() == [2**63 - 1, -(2**63), 2**63 - 1]
    assert cast(x, "uint64")[[1, 7]].tolist() == [2**64 - 1, 2**63]
    assert cast(x.astype(np.float32), "int32")[[1, 2]].tolist() == [2**31 - 1, -(2**31)]
    assert cast(x, "bool").tolist() == [True] * 9
    assert cast(np.array([0.0, -0.0]), "bool").tolist() == [False, False]
    assert cast(np.array([256, 257, -1]), "uint8").tolist() == [0, 1, 255]
    assert cast(np.array([True, False]), "float32").tolist() == [1.0, 0.0]
    assert cast(np.array([1e300]), "float32").tolist() == [INF]


def test_result_rules():
    assert FUNCTIONS["add"].results(("int8", "int8")) == ("int8",)
    assert FUNCTIONS["lt"].results(("float32", "float32")) == ("bool",)
    assert FUNCTIONS["bitcast_uint32"].results(("float32",)) == ("uint32",)
    assert FUNCTIONS["threefry2x32"].results(("uint32",) * 4) == ("uint32", "uint32")


@pytest.mark.parametrize(
    ("fn", "dtypes"),
    [
        ("add", ("int8", "int16")),
        ("add", ("bool", "bool")),
        ("add", ("float32",)),
        ("exp", ("int32",)),
        ("and", ("float32", "float32")),
        ("bitcast_uint64", ("float32",)),
        ("round_float16", ("float64",)),
        ("threefry2x32", ("uint64",) * 4),
        ("neg", ("float16",)),
    ],
)
def test_unsuitable_dtypes_are_refused(fn, dtypes):
    with pytest.raises(TypeError, match=rf"\[{fn}\] must have \d argument.*Fix: cast"):
        FUNCTIONS[fn].results(dtypes)


def test_storage_dtypes():
    assert [compute_dtype(name) for name in ("bool", "bfloat16", "float16", "uint8")] == [
        "bool",
        "float32",
        "float32",
        "uint8",
    ]
    sizes = [storage_bytes(name) for name in ("bool", "float16", "bfloat16", "float8_e5m2")]
    assert sizes == [1, 2, 2, 1]
    assert storage_bytes("int64") == 8
    assert [compute_dtype(name) for name in ("complex64", "complex128")] == ["float32", "float64"]
    assert storage_bytes("complex64") == 8
    with pytest.raises(ValueError, match="storage dtype; got 'int4'"):
        compute_dtype("int4")


def test_scipy_is_not_imported_with_the_table():
    code = "import sys, gpuflow.kir.interpret; assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
