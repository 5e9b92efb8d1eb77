"""Distributions at the edges of their supports and far out, where formulas lose the number."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.scipy import stats

INF = np.inf
MODES = {"eager": lambda f: f, "jit": gf.jit, "vmap": gf.vmap}


def _mass(a, b):
    """The normal probability between a and b."""
    a, b = mp.mpf(a), mp.mpf(b)
    if b <= 0:
        return _mass(-b, -a)
    root = mp.sqrt(2)
    if a > 0:
        return (mp.erfc(a / root) - mp.erfc(b / root)) / 2
    return 1 - (mp.erfc(-a / root) + mp.erfc(b / root)) / 2


def _truncated(y, a, b):
    """logpdf, logcdf, logsf."""
    with mp.workdps(60):
        y, mass = mp.mpf(y), _mass(a, b)
        log = -(y**2) / 2 - mp.log(2 * mp.pi) / 2 - mp.log(mass)
        return [float(v) for v in (log, mp.log(_mass(a, y) / mass), mp.log(_mass(y, b) / mass))]


TRUNCATED = [
    (-1.0, -INF, 0.0),
    (-10.0, -INF, 0.0),
    (1000.5, 1000.0, 1001.0),
    (1e4 + 0.0625, 1e4, 1e4 + 1),
    (-51.0, -INF, -50.0),
    (-11.5, -12.0, -9.0),
    (0.5, -1.0, 2.0),
    (33.0, 30.0, INF),
]


@pytest.mark.parametrize("mode", MODES)
def test_truncated_normal_far_out(mode):
    """Squares far out swallowed the difference of the logarithms that is asked for."""
    y, a, b = (np.array(part, np.float32) for part in zip(*TRUNCATED, strict=True))
    expected = np.array([_truncated(*map(float, row)) for row in zip(y, a, b, strict=True)]).T
    for name, want in zip(("logpdf", "logcdf", "logsf"), expected, strict=True):
        got = MODES[mode](getattr(stats.truncnorm, name))(y, a, b)
        # exp of a logarithm near -52 has 52 roundings of float32.
        np.testing.assert_allclose(np.asarray(got), want, rtol=4e-6, atol=1e-30)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_truncated_normal_where_squares_overflow(mode, dtype):
    """The probability of less than -1e300 is 0, and was nan."""
    far = 1e30 if dtype == "float32" else 1e300
    with gf.enable_x64(dtype == "float64"):
        y = np.array([-far, -far / 4], dtype)
        a, b = np.array([-INF, -INF], dtype), np.array([0.0, 0.0], dtype)
        for name, below in (("cdf", 0), ("sf", 1), ("logcdf", -INF), ("logsf", 0), ("pdf", 0)):
            function = MODES[mode](getattr(stats.truncnorm, name))
            np.testing.assert_array_equal(np.asarray(function(y, a, b)), [below, below])
        # Cut off far out, all of it is at the end next to 0.
        a, b = np.array([-2 * far, far], dtype), np.array([-far, 3 * far], dtype)
        y = np.array([-1.5 * far, 2 * far], dtype)
        got = MODES[mode](stats.truncnorm.logcdf)(y, a, b)
        np.testing.assert_array_equal(np.asarray(got), [-INF, 0])


DIRICHLET = [
    # point, concentrations, density
    ((1, 0), (1, 1), 1),
    ((0, 1), (1, 1), 1),
    ((1, 0), (2, 1), 2),
    ((0, 1), (1, 2), 2),
    ((1, 0), (1, 2), 0),
    ((0, 1), (2, 1), 0),
    ((1, 0), (0.5, 1), 0.5),
    ((1, 0), (0.5, 0.5), INF),
    ((0, 1), (0.5, 1), INF),
    ((0, 1), (2, 0.5), 0),
    ((1, 0), (2, 0.5), INF),
    ((1, 0), (2, 2), 0),
    ((0.5, 0.5), (1, 1), 1),
    ((1.5, -0.5), (1, 1), 0),
    ((0.5, 0.25), (1, 1), 0),
]


@pytest.mark.parametrize("mode", MODES)
def test_dirichlet_on_the_boundary_of_the_simplex(mode):
    """Where alpha is 1 the density goes on up to the edge; it was 0 there."""
    points, alphas, expected = (np.array(p, np.float32) for p in zip(*DIRICHLET, strict=True))
    with np.errstate(divide="ignore"):
        logs = np.log(expected)
    for name, want in (("pdf", expected), ("logpdf", logs)):
        function = MODES[mode](getattr(stats.dirichlet, name))
        if mode == "vmap":
            got = function(points, alphas)
        else:
            got = [function(x, alpha) for x, alpha in zip(points, alphas, strict=True)]
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "count"), [("float16", 3), ("bfloat16", 3), ("float32", 5000)])
def test_dirichlet_of_rounded_points(dtype, count):
    """Entries that are rounded to their dtype do not sum up to 1 by more than 1e-6."""
    x = jnp.asarray(np.random.default_rng(3).dirichlet(np.ones(count)), dtype)
    assert np.isfinite(float(stats.dirichlet.logpdf(x, jnp.ones(count, dtype)).astype("float32")))
