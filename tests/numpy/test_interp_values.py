"""interp where points are infinite, huge, close together or equal, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

INF = np.inf
BIG = 3e38
QUARTERS = np.arange(-4, 20) / 4

# Name: x, xp, fp.
CASES = {
    "one infinite value": (QUARTERS, [0, 1, 2, 3], [1, 2, INF, INF]),
    "both infinities": (QUARTERS, [0, 1, 2, 3], [-INF, 2, INF, 5]),
    "infinite first": (QUARTERS, [0, 1, 2, 3], [INF, 2, 3, 4]),
    "infinite places": ([-INF, -1e30, -1, 0, 1, 1e30, INF], [-INF, 0, INF], [1, 2, 3]),
    "rise overflows": (QUARTERS, [0, 1, 2], [-BIG, BIG, -BIG]),
    "width overflows": ([-BIG, -1e38, 0, 1e38, BIG], [-BIG, BIG], [-1, 1]),
    "both overflow": ([-BIG, -1.5e38, 0, 1.5e38, BIG], [-BIG, BIG], [-BIG, BIG]),
    "close places": ([0, 2.5e-20, 5e-20, 1e-19], [0, 5e-20, 1e-19], [1, 2, 5]),
    "equal places": ([0, 0.5, 1, 1.5, 2], [0, 1, 1, 2, 2], [1, 2, 3, 4, 5]),
    "cancelling": ([0, 1, 2], [0, 1, 2], [1e30, 1, 1e30]),
    "nan": ([np.nan, 0, 1, 0.5, 1.5], [0, 1, 2], [1, 2, np.nan]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["eager", "jit", "vmap"])
def test_interp_against_numpy(name, mode):
    """A segment with an infinite end was nan everywhere, also at the knot of the finite end."""
    x, xp, fp = (np.asarray(part, np.float32) for part in CASES[name])
    expected = np.interp(x.astype(np.float64), xp.astype(np.float64), fp.astype(np.float64))
    call = {
        "eager": jnp.interp,
        "jit": gf.jit(jnp.interp),
        "vmap": gf.vmap(jnp.interp, (0, None, None)),
    }
    # Three roundings of float32.
    np.testing.assert_allclose(np.asarray(call[mode](x, xp, fp)), expected, rtol=3e-7)


def test_interp_of_complex_values_takes_each_component_alone():
    xp, fp = np.array([0.0, 1.0]), np.array([1 + 2j, complex(3, INF)])
    expected = np.interp([0.0, 0.5, 1.0], xp, fp)
    np.testing.assert_array_equal(
        np.asarray(jnp.interp(np.array([0.0, 0.5, 1.0]), xp, fp)), expected
    )


def test_derivatives_beside_infinite_values_are_finite():
    xp = jnp.array([0.0, 1.0, 2.0, 3.0])
    fp = jnp.array([0.0, 2.0, 3.0, INF])
    slope = gf.grad(lambda x: jnp.interp(x, xp, fp))
    np.testing.assert_array_equal([slope(0.5), slope(1.0), slope(1.5)], [2.0, 1.0, 1.0])
    weights = gf.grad(lambda f: jnp.interp(1.25, xp, f))(fp)
    np.testing.assert_array_equal(weights, [0.0, 0.75, 0.25, 0.0])
