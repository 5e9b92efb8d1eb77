"""Values of 16-bit floats: rounded where they are made, whatever is stored and what is fused."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

NARROW = ("bfloat16", "float16")


def numbers(size, dtype):
    return jnp.asarray(np.random.default_rng(size).standard_normal(size), dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("size", [1, 5, 100, 5000])
def test_gradient_of_a_maximum(dtype, size):
    """The maximum was rounded, and equal to none of the values computed again: 0 / 0."""
    x = numbers(size, dtype)
    slope = gf.grad(lambda x: jnp.max(x * x * x).astype("float32"))
    want = np.asarray(slope(x), np.float32)
    assert want.any()
    np.testing.assert_array_equal(np.asarray(gf.jit(slope)(x), np.float32), want)


@pytest.mark.parametrize("dtype", NARROW)
def test_overflow_is_seen(dtype):
    large = 300.0 if dtype == "float16" else 3e38
    x = jnp.asarray([large, 1.0], dtype)
    got = gf.jit(lambda x: x * x / x)(x)  # infinite on the way
    np.testing.assert_array_equal(np.asarray(got, np.float32), [np.inf, 1.0])


@pytest.mark.parametrize("dtype", NARROW)
def test_jit_gives_what_ops_one_by_one_give(dtype):
    x, y = numbers(1000, dtype), numbers(1001, dtype)[1:]

    def function(x, y):
        z = x * y + x
        w = (z - y) * (z + y) / (abs(x) + 1)
        return z, w, jnp.maximum(w, z) * x, jnp.where(w > z, w, -z) + y

    for got, want in zip(gf.jit(function)(x, y), function(x, y), strict=True):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


def test_signaling_nan_stays_nan():
    """Its payload may lie in the lower half, which bfloat16 does not have: that left infinity."""
    bits = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x3F800001], np.uint32)

    def function(bits):
        narrow = lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.bfloat16)
        return lax.bitcast_convert_type(narrow, jnp.uint16), narrow != narrow

    codes, is_nan = gf.jit(function)(bits)
    np.testing.assert_array_equal(codes, np.array([0x7FC0, 0xFFC0, 0x7FC0, 0x3F80], np.uint16))
    np.testing.assert_array_equal(is_nan, [True, True, True, False])


@pytest.mark.parametrize("narrow", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn])
@pytest.mark.parametrize("wide", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_a_narrow_value_that_is_stored_as_another_dtype_is_rounded(narrow, wide):
    x = jnp.array([1.001, 3.14159, -100.3, 1e-3, 0.3], jnp.float32)

    def through(x):
        return x.astype(narrow).astype(wide)

    np.testing.assert_array_equal(
        np.asarray(gf.jit(through)(x), np.float64), np.asarray(through(x), np.float64)
    )
