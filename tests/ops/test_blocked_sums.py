"""Sums and running sums outside of jit: their error does not grow with the length.

NumPy adds rows one after the other: of two million rows of three numbers a variance was wrong in
the third digit, while the same function under jit was right in the seventh.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.ops.reductions.blocked_sums import blocked_sum

ULP = 2.0**-24
CUTS = {
    "rows": lambda x: x,
    "reversed": lambda x: x[::-1, ::-1],
    "every_second": lambda x: x[::2, ::3],
    "transposed": lambda x: x.T,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("shape", [(200_003, 3), (3, 200_003), (4_001, 600), (65, 64), (63, 2)])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_sums_of_long_axes(shape, axis, cut):
    """Blocks of 32, in at most 4 levels: 8 units of rounding were measured, and 624 of NumPy."""
    x = CUTS[cut](np.random.default_rng(0).random(shape, np.float32))
    axes = (0, 1) if axis is None else (axis,)
    expected = x.sum(axis=axes, dtype=np.float64)
    assert np.abs(blocked_sum(x, axes) - expected).max() <= 12 * ULP * expected.max()
    assert np.abs(jnp.sum(jnp.asarray(x), axis) - expected).max() <= 12 * ULP * expected.max()


def test_middle_axes_and_several_at_once():
    """Whole numbers are added exactly in any order: no element is lost or added twice."""
    random = np.random.default_rng(1)
    x = random.integers(-9, 9, (70, 5, 131, 4)).astype(np.float32)
    for axes in [(0,), (1,), (2,), (0, 2), (0, 1, 2), (0, 3), (0, 1, 2, 3), (2, 3), ()]:
        np.testing.assert_array_equal(blocked_sum(x, axes), x.sum(axis=axes))
        cut = x[:, ::-1, ::2]
        np.testing.assert_array_equal(blocked_sum(cut, axes), cut.sum(axis=axes))
    broadcast = np.broadcast_to(x[0, 0, 0, 0], (1000, 3))
    np.testing.assert_array_equal(blocked_sum(broadcast, (0,)), broadcast.sum(0))


def test_variance_and_softmax_of_many_rows():
    x = np.random.default_rng(2).random((1_000_003, 3), np.float32)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(jnp.var(jnp.asarray(x), 0), exact.var(0), rtol=1e-6)
    powers = np.exp(exact)
    np.testing.assert_allclose(gf.nn.softmax(jnp.asarray(x), 0), powers / powers.sum(0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_round_once(dtype, reverse):
    x = np.random.default_rng(3).random((50_000, 2)).astype(dtype)
    order = slice(None, None, -1 if reverse else 1)
    expected = x[order].astype(np.complex128).cumsum(0)[order]
    error = np.abs(lax.cumsum(jnp.asarray(x), 0, reverse) - expected) / np.abs(expected)
    assert error.max() <= 2 * ULP
