"""argmax and argmin against NumPy: dtypes, axes, sizes, ties, nan and signed zeros."""

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
# One element, few, primes, a block of a search (4096) and around it, many rows, many parts.
SHAPES = [
    *[(1,), (7,), (4096,), (4097,), (8209,), (200_003,), (1, 1), (3, 1), (1, 70_001)],
    *[(5, 17), (131, 10), (1024, 10), (3, 4099), (300, 67), (70_001, 3), (40, 33, 5)],
]


def random(shape, dtype, seed=0):
    """Few different values, so that there are ties."""
    numbers = np.random.default_rng(seed).integers(-20, 20, shape)
    if dtype == "bool":
        return numbers > 17
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return numbers.astype(kind)


def expected(name, x, axis):
    x = x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x
    return getattr(np, name)(x, axis)


def jitted(name, axis):
    return gf.jit(lambda x: getattr(jnp, name)(x, axis))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_along_every_axis(name, dtype):
    with gf.enable_x64():
        for shape in [(5, 17), (3, 4099), (4, 3, 10)]:
            x = random(shape, dtype)
            for axis in range(len(shape)):
                result = np.asarray(jitted(name, axis)(x))
                np.testing.assert_array_equal(result, expected(name, x, axis))
                assert result.dtype == np.int64


@pytest.mark.parametrize("shape", SHAPES)
def test_every_size(shape):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for axis in range(len(shape)):
        result = np.asarray(jitted("argmax", axis)(x))
        np.testing.assert_array_equal(result, x.argmax(axis))
        assert result.dtype == np.int32
        np.testing.assert_array_equal(jitted("argmin", axis)(x), x.argmin(axis))


@pytest.mark.parametrize("shape", [(9,), (9, 40), (40, 9), (5000,), (3, 5000), (5000, 3)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -np.nan])
def test_special_values_at_several_places(shape, value):
    """The first nan wins, whatever its sign and payload; infinities are numbers."""
    rng = np.random.default_rng(2)
    for count in (1, 2, 5):
        x = rng.standard_normal(shape).astype(np.float32)
        x.flat[rng.choice(x.size, count, replace=False)] = value
        x.flat[rng.integers(x.size)] = np.inf
        for axis in range(len(shape)):
            np.testing.assert_array_equal(jitted("argmax", axis)(x), x.argmax(axis))
            np.testing.assert_array_equal(jitted("argmin", axis)(x), x.argmin(axis))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_nan_of_different_bits_and_signed_zeros(dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    zeros = np.array([-0.0, 0.0, -0.0, 0.0], kind)
    nans = np.array([1.0, -np.nan, np.nan, np.inf], kind)
    with gf.enable_x64():
        for name in ("argmax", "argmin"):
            assert int(jitted(name, 0)(zeros)) == int(jitted(name, 0)(zeros[1:])) == 0
            assert int(jitted(name, 0)(nans)) == int(jitted(name, 0)(nans[::-1].copy())) == 1


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint32", "float32"])
def test_equal_elements_give_the_first(dtype):
    """Even where all of them are the neutral element of the reduction."""
    for low in (True, False):
        limits = np.iinfo(dtype) if dtype.startswith(("int", "uint")) else None
        value = (limits.min if low else limits.max) if limits else (0 if low else 1)
        for shape in [(5,), (300, 5), (5, 300), (3, 9000), (9000, 3), (200_000,)]:
            x = np.full(shape, value, dtype)
            for axis in range(len(shape)):
                assert not np.asarray(jitted("argmax", axis)(x)).any()
                assert not np.asarray(jitted("argmin", axis)(x)).any()


def test_one_kernel_with_its_producer():
    x = random((40, 500), "float32")
    for axis in (None, 0, 1):
        function = gf.jit(lambda x, axis=axis: jnp.argmax(jnp.abs(x) * 2 + 1, axis))
        np.testing.assert_array_equal(function(x), (np.abs(x) * 2 + 1).argmax(axis))
    for axis in (0, 1):
        lowered = gf.jit(lambda x, axis=axis: jnp.argmax(x * 2 + 1, axis)).lower(x)
        kernels = [line for line in lowered.compile().as_text().splitlines() if "kernel " in line]
        assert len(kernels) == 1 and "mul_add_argmax" in kernels[0]


def test_beside_other_reductions_and_stores():
    x = random((60, 700), "float32")

    def function(x, axis):
        y = x * 2
        return y, y.argmax(axis), y.max(axis), y.argmin(axis), y.sum(axis)

    for axis in (0, 1):
        result = gf.jit(function, static_argnums=1)(x, axis)
        y = x * 2
        wanted = y, y.argmax(axis), y.max(axis), y.argmin(axis), y.sum(axis)
        for a, b in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_views():
    x = random((70, 90), "float32")
    for name, view in {
        "reversed": lambda x: x[::-1, ::-1],
        "transposed": lambda x: x.T,
        "strided": lambda x: x[1::3, ::-2],
        "broadcast": lambda x: x[:, :1] + jnp.zeros((1, 50), x.dtype),
    }.items():
        for axis in (0, 1):
            result = gf.jit(lambda x, view=view, axis=axis: view(x).argmax(axis))(x)
            np.testing.assert_array_equal(result, np.asarray(view(x)).argmax(axis), err_msg=name)


def test_under_vmap_and_in_a_scan():
    x = random((6, 50, 20), "float32")
    for axis in (0, 1):
        mapped = gf.jit(gf.vmap(lambda x, axis=axis: jnp.argmax(x, axis)))
        np.testing.assert_array_equal(mapped(x), x.argmax(axis + 1))

        def step(total, row, axis=axis):
            places = jnp.argmax(row, axis)
            return total + places.sum(), places

        total, places = gf.jit(lambda x, step=step: lax.scan(step, jnp.int32(0), x))(x)
        np.testing.assert_array_equal(places, x.argmax(axis + 1))
        assert int(total) == x.argmax(axis + 1).sum()


@pytest.mark.parametrize("index_dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_index_dtypes(index_dtype):
    x = random((100, 3), "float32")
    with gf.enable_x64():
        result = gf.jit(lambda x: lax.argmax(x, 0, np.dtype(index_dtype)))(x)
        assert result.dtype == index_dtype
        np.testing.assert_array_equal(result, x.argmax(0))


def test_an_axis_must_not_be_empty():
    with pytest.raises(ValueError, match="must not be empty"):
        gf.jit(lambda x: jnp.argmax(x, 1))(np.zeros((2, 0), np.float32))
    assert gf.jit(lambda x: jnp.argmax(x, 1))(np.zeros((0, 2), np.float32)).shape == (0,)
