"""Large ops outside of jit are programs of one equation: the values of NumPy, and one program."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.runtime import eager

LARGE, COSTLY, NARROW = 1 << 15, 1 << 12, 1 << 10


def numbers(count, dtype):
    x = np.random.default_rng(count).standard_normal(count) * 3
    x[:6] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40]
    if np.dtype(dtype).kind == "c":
        x = x + 1j * x[::-1]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def is_program(primitive, *operands, **params):
    """Whether such an op runs as a program."""
    x = operands[0]
    avals = tuple(operand.aval for operand in operands)
    return eager.cached_call(primitive, avals, params, x.device.driver).program is not None


@pytest.mark.parametrize(
    "dtype, count",
    [
        (np.float32, LARGE),
        (np.int32, LARGE),
        (np.complex64, LARGE),
        (np.float16, NARROW),
        (ml_dtypes.bfloat16, NARROW),
    ],
)
def test_values(dtype, count):
    for size in (count - 1, count, count + 1):
        x = numbers(size, dtype)
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        y = jnp.asarray(x)
        product, negative = lax.mul(y, y), lax.neg(y)
        assert is_program(lax.mul_p, y, y) is is_program(lax.neg_p, y) is (size >= count)
        with np.errstate(all="ignore"):
            wanted = x * x
        got, negated = (np.asarray(v).astype(wide.dtype) for v in (negative, -x))
        np.testing.assert_array_equal(got, negated)
        eps = {2: 1e-2, 4: 1e-6, 8: 1e-6}[x.dtype.itemsize]
        np.testing.assert_allclose(
            np.asarray(product).astype(wide.dtype), wanted.astype(wide.dtype), rtol=eps
        )


def test_costly_ops_are_programs_earlier():
    """What NumPy computes one by one, or in a dozen passes, gains by a kernel from 4,096 on."""
    x = numbers(COSTLY, np.float32)
    words = np.arange(COSTLY, dtype=np.int32) - 5
    cases = [(lax.exp_p, x), (lax.expm1_p, x), (lax.sin_p, x + 1j * x[::-1]), (lax.clz_p, words)]
    for primitive, values in cases:
        assert is_program(primitive, jnp.asarray(values)), primitive
        assert not is_program(primitive, jnp.asarray(values[1:])), primitive
        small, large = (np.asarray(primitive.bind(jnp.asarray(v))) for v in (values[1:], values))
        np.testing.assert_allclose(large[1:], small, rtol=1e-6 if values is not words else 0)
    assert is_program(lax.shift_left_p, jnp.asarray(words), jnp.asarray(words))


def test_reductions():
    x = numbers(LARGE, np.float32)[6:].repeat(2)
    rows = x[: 1 << 15].reshape(-1, 16)
    for axes in ((0,), (1,), (0, 1)):
        out = lax.reduce_sum(jnp.asarray(rows), axes)
        wanted = rows.astype(np.float64).sum(axes)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(lax.reduce_max(jnp.asarray(rows), axes), rows.max(axes))
    assert int(lax.argmax(jnp.asarray(x), 0, np.int32)) == x.argmax()
    assert is_program(lax.reduce_sum_p, jnp.asarray(rows), axes=(1,))
    assert is_program(lax.argmax_p, jnp.asarray(x), axes=(0,), index_dtype=np.dtype(np.int32))


def test_a_result_is_its_own():
    x = jnp.asarray(numbers(LARGE, np.float32))
    before = np.array(x)
    gf.jit(lambda y: y * 0, donate_argnums=0)(lax.max(x, x))
    np.testing.assert_array_equal(x, before)


def test_checks_name_the_op():
    x = jnp.zeros(LARGE)
    with gf.debug_nans(True), pytest.raises(FloatingPointError, match="div"):
        lax.div(x, x)


def test_moved_elements_are_programs_earlier():
    """What changes the order of elements, or repeats them; not what takes some, or keeps order."""
    x = jnp.asarray(numbers(COSTLY, np.float32)).reshape(16, -1)
    assert is_program(lax.transpose_p, x, permutation=(1, 0))
    assert not is_program(lax.transpose_p, x[1:], permutation=(1, 0))
    assert is_program(lax.broadcast_in_dim_p, x, shape=(2, 16, 256), broadcast_dimensions=(1, 2))
    assert not is_program(lax.reshape_p, x, new_sizes=(256, 16))
    params = {"start_indices": (0, 0), "limit_indices": (16, 256), "strides": (1, 1)}
    assert not is_program(lax.slice_p, x, **params)
    np.testing.assert_array_equal(lax.transpose(x, (1, 0)), np.asarray(x).T)


def test_others_are_numpys():
    assert not is_program(lax.neg_p, jnp.ones(LARGE - 1))
    assert not is_program(lax.exp_p, jnp.ones(COSTLY - 1))
    assert not is_program(lax.rev_p, jnp.ones(LARGE - 1), dimensions=(0,))
    start = {"start_indices": (1,), "limit_indices": (LARGE,), "strides": (2,)}
    assert not is_program(lax.slice_p, jnp.ones(LARGE), **start)
    assert not is_program(lax.concatenate_p, jnp.ones(9), jnp.ones(9), dimension=0)


def test_reversals_and_ops_by_index():
    x = jnp.arange(float(LARGE))
    assert is_program(lax.rev_p, x, dimensions=(0,))
    np.testing.assert_array_equal(lax.rev(x, (0,)), np.asarray(x)[::-1])
    assert is_program(lax.concatenate_p, x, x, dimension=0)
    np.testing.assert_array_equal(jnp.arange(LARGE), np.arange(LARGE))
    np.testing.assert_array_equal(lax.pad(x, 0.0, [(1, 2, 0)])[1:-2], np.asarray(x))
    assert not is_program(lax.sort_p, jnp.ones(LARGE), dimension=0, is_stable=True, num_keys=1)
