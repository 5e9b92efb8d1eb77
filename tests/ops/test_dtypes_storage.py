"""Dtypes that are for storage: floats of 4 and 8 bits, integers of 2 and 4; eager and compiled."""

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

FLOATS = [
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3b11fnuz,
    ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e3m4,
    ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float4_e2m1fn,
]
INTEGERS = [
    (ml_dtypes.int4, -8, 7),
    (ml_dtypes.uint4, 0, 15),
    (ml_dtypes.int2, -2, 1),
    (ml_dtypes.uint2, 0, 3),
]
MODES = [lambda f: f, gf.jit]
X = np.array([0.0, -0.0, 1.5, -3.0, 0.07, 100.0, 300.0, 1e9, np.inf, np.nan], np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_narrow_floats(dtype, mode):
    got = mode(lambda x: lax.convert_element_type(x, dtype))(X)
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got).astype(float), X.astype(dtype).astype(float))
    back = mode(lambda x: lax.convert_element_type(x, jnp.float32))(got)
    np.testing.assert_array_equal(back, X.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(("dtype", "low", "high"), INTEGERS)
@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_narrow_integers_saturate(dtype, low, high, mode):
    got = mode(lambda x: lax.convert_element_type(x, dtype))(X)
    want = np.clip(np.nan_to_num(np.trunc(X), nan=0.0), low, high)
    np.testing.assert_array_equal(np.asarray(got).astype(float), want)


@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_between_storage_dtypes(mode):
    """NumPy has no casts between them: int4 to uint4 raised."""
    dtypes = [*FLOATS, ml_dtypes.int4, ml_dtypes.uint4]
    x = np.array([1, 2, 4], np.float32)
    for source in dtypes:
        for target in dtypes:
            out = mode(lambda x, t=target: lax.convert_element_type(x, t))(x.astype(source))
            assert out.dtype == target
            np.testing.assert_array_equal(np.asarray(out).astype(np.float32), x)
    signed = mode(lambda x: x.astype(jnp.uint4))(jnp.array([-8, -1, 7], jnp.int4))
    np.testing.assert_array_equal(np.asarray(signed).astype(int), [8, 15, 7])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_arithmetic_rounds_to_the_dtype(dtype, mode):
    """The newest formats had no kernels, and failed when the compiled function first ran."""
    x, y = (np.array(v, np.float32).astype(dtype) for v in ([1, 2, 4, 0.5], [2, 1, 2, 4]))
    sums, products, largest, added = mode(
        lambda x, y: (x + y, x * y, lax.max(x, y), lax.reduce_sum(x, (0,)))
    )(x, y)
    wide_x, wide_y = x.astype(np.float32), y.astype(np.float32)
    for got, want in (
        (sums, wide_x + wide_y),
        (products, wide_x * wide_y),
        (largest, np.maximum(wide_x, wide_y)),
        (added, wide_x.sum()),
    ):
        assert got.dtype == dtype
        wanted = np.asarray(want).astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(np.asarray(got).astype(np.float32), wanted)


@pytest.mark.parametrize("dtype", [ml_dtypes.int1, ml_dtypes.uint1, ml_dtypes.float6_e2m3fn])
@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_other_storage_dtypes_are_refused(dtype, mode):
    """Casting to int1 was accepted, and what followed failed when it ran."""
    for make in (
        lambda x: lax.convert_element_type(x, dtype),
        lambda x: x.astype(dtype),
        lambda x: jnp.zeros(3, dtype),
        lambda x: lax.iota(dtype, 3),
        lambda x: lax.bitcast_convert_type(x, dtype),
    ):
        with pytest.raises(TypeError, match=np.dtype(dtype).name):
            mode(make)(jnp.ones(4, jnp.int8))
    with pytest.raises(TypeError, match=r"\[aval\] arrays must hold"):
        mode(jnp.asarray)(np.zeros(3, dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *[row[0] for row in INTEGERS]])
@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_layout(dtype, mode):
    x = np.arange(6).reshape(2, 3).astype(dtype)

    def f(x):
        return x.T, x[::-1], x.reshape(3, 2), jnp.concatenate([x, x]), x[:, 1], x[jnp.array([1])]

    for got, want in zip(
        mode(f)(x),
        (x.T, x[::-1], x.reshape(3, 2), np.concatenate([x, x]), x[:, 1], x[np.array([1])]),
        strict=True,
    ):
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got).astype(float), want.astype(float))


@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_casts_to_integers_saturate(source, target):
    with gf.enable_x64():
        bounds = np.iinfo(target)
        x = jnp.asarray(
            [0.0, -0.9, 1.9, -1.9, 127.6, -129.0, 4e4, -4e4, 3e38, -3e38, np.inf, -np.inf, np.nan]
        ).astype(source)
        exact = np.asarray(x).astype(np.float64)
        want = []
        for value in exact:
            if np.isnan(value):
                want.append(0)
            elif np.isinf(value):
                want.append(bounds.max if value > 0 else bounds.min)
            else:
                want.append(min(max(int(value), bounds.min), bounds.max))
        for mode in MODES:
            got = mode(lambda x: x.astype(target))(x)
            assert np.asarray(got).tolist() == want


def test_the_x64_switch():
    assert jnp.asarray(np.float64(1)).dtype == np.float32
    with gf.enable_x64():
        assert jnp.asarray(np.float64(1)).dtype == np.float64
        assert gf.jit(lambda x: x + 1)(jnp.arange(3)).dtype == np.int64
    assert gf.jit(lambda x: x + 1)(jnp.arange(3)).dtype == np.int32


@pytest.mark.parametrize("dtype", [row[0] for row in INTEGERS])
@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_bits_of_narrow_integers(dtype, mode):
    """`|` and `~` of int4 raised: against the same bits in Python's integers, every pair."""
    bounds = ml_dtypes.iinfo(dtype)
    width = bounds.bits
    values = np.arange(int(bounds.min), int(bounds.max) + 1)
    x, y = (v.ravel() for v in np.meshgrid(values, values))

    def wrapped(v):
        low = v & (2**width - 1)
        return np.where((low >> (width - 1) & 1) * (bounds.min < 0), low - 2**width, low)

    def logical(x, y):
        inside = (y >= 0) & (y < width)
        return np.where(inside, (x & (2**width - 1)) >> np.clip(y, 0, width - 1), 0)

    inside = (y >= 0) & (y < width)
    least = np.where(inside, y, width - 1)
    as_signed = np.where(x >= 2 ** (width - 1), x - 2**width, x)
    want = {
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "not": ~x,
        "left": np.where(inside, x << np.clip(y, 0, width - 1), 0),
        "logical": logical(x, y),
        "arithmetic": as_signed >> least,
        "count": np.array([bin(int(v) & (2**width - 1)).count("1") for v in x]),
        "zeros": np.array([width - int(int(v) & (2**width - 1)).bit_length() for v in x]),
    }
    got = mode(
        lambda x, y: {
            "and": x & y,
            "or": x | y,
            "xor": x ^ y,
            "not": ~x,
            "left": lax.shift_left(x, y),
            "logical": lax.shift_right_logical(x, y),
            "count": lax.population_count(x),
            "arithmetic": lax.shift_right_arithmetic(x, y),
            "zeros": lax.clz(x),
        }
    )(jnp.asarray(x.astype(dtype)), jnp.asarray(y.astype(dtype)))
    for name, value in want.items():
        assert got[name].dtype == dtype
        np.testing.assert_array_equal(np.asarray(got[name]).astype(int), wrapped(value), name)


@pytest.mark.parametrize("mode", MODES, ids=["eager", "jit"])
def test_bitcasts_of_all_bytes(mode):
    """Of float8 they failed under jit, and int4 counted as a byte."""
    codes = np.arange(256, dtype=np.uint8)
    for dtype in (*FLOATS[:-1], np.int8, ml_dtypes.bfloat16, np.float32):
        there = mode(lambda x, t=dtype: x.view(t))(codes)
        assert there.tobytes() == codes.tobytes() and there.dtype == dtype
        back = mode(lambda x: x.view(jnp.uint8))(there)
        np.testing.assert_array_equal(back, codes)
    for dtype in (ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.float4_e2m1fn):
        parts = mode(lambda x, t=dtype: lax.bitcast_convert_type(x, t))(codes)
        width = 2 if dtype == ml_dtypes.uint2 else 4
        assert parts.shape == (256, 8 // width)
        places = np.arange(0, 8, width, dtype=np.uint8)
        bits = codes[:, None] >> places & np.uint8(2**width - 1)
        np.testing.assert_array_equal(np.asarray(parts).view(np.uint8), bits)
        back = mode(lambda x: lax.bitcast_convert_type(x, jnp.uint8))(parts)
        np.testing.assert_array_equal(back, codes)
