"""Sums inside of functions of 16-bit floats: results that have a value there must not overflow.

The sum of 70,000 elements, or of a few large squares, leaves the range of float16; the mean,
logarithm, norm or quotient that is asked for does not.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn
from gpuflow.scipy import integrate, special, stats

COUNT = 70_000
ZEROS = np.zeros(COUNT)
SIGNS = np.tile([-200.0, 200.0], COUNT // 2)
WITH_NAN = np.where(np.arange(COUNT) % 7 == 0, np.nan, SIGNS)
LOG = np.log(COUNT)

# Name: function, operand, the result in exact arithmetic (of the first two elements).
CASES = {
    "logsumexp": (special.logsumexp, ZEROS, LOG),
    "logsumexp with weights": (lambda x: special.logsumexp(x, b=x + 1), ZEROS, LOG),
    "softmax": (lambda x: nn.softmax(x)[:2], ZEROS, 1 / COUNT),
    "log_softmax": (lambda x: nn.log_softmax(x)[:2], ZEROS, -LOG),
    "special.log_softmax": (lambda x: special.log_softmax(x)[:2], ZEROS, -LOG),
    "logmeanexp": (nn.logmeanexp, ZEROS, 0),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x)[-1], ZEROS, LOG),
    "logaddexp.reduce": (jnp.logaddexp.reduce, ZEROS, LOG),
    "logaddexp2.reduce": (jnp.logaddexp2.reduce, ZEROS, np.log2(COUNT)),
    "standardize": (lambda x: nn.standardize(x)[:2], SIGNS, [-1, 1]),
    "standardize stable": (lambda x: nn.standardize(x, algorithm="stable")[:2], SIGNS, [-1, 1]),
    "mean": (jnp.mean, ZEROS + 2, 2),
    "std": (jnp.std, SIGNS * 2, 400),
    "var": (jnp.var, SIGNS, 40_000),
    "nanmean": (jnp.nanmean, WITH_NAN + 300, np.nanmean(WITH_NAN + 300)),
    "nanstd": (jnp.nanstd, WITH_NAN * 2, 400),
    "nanvar": (jnp.nanvar, WITH_NAN, 40_000),
    "average": (lambda x: jnp.average(x, weights=x), ZEROS + 3, 3),
    "cov": (jnp.cov, SIGNS, 40_000),
    "corrcoef": (lambda x: jnp.corrcoef(2 * x, -x)[0], SIGNS, [1, -1]),
    "norm": (jnp.linalg.norm, SIGNS[:100], 2000),
    "vector_norm": (lambda x: jnp.linalg.vector_norm(x, ord=3), SIGNS[:8], 400),
    "norm of a matrix": (lambda x: jnp.linalg.norm(x.reshape(4, 4)), SIGNS[:16], 800),
    "trapezoid": (lambda x: jnp.trapezoid(x, dx=0.25), ZEROS + 2, COUNT / 2),
    "integrate.trapezoid": (lambda x: integrate.trapezoid(x, dx=0.25), ZEROS + 2, COUNT / 2),
    "sem": (lambda x: stats.sem(x), SIGNS, 200 / COUNT**0.5),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_sums_are_made_in_float32(name, dtype):
    function, operand, expected = CASES[name]
    x = jnp.asarray(operand, dtype)
    # One rounding of the result; the operands are exact.
    rounding = float(jnp.finfo(dtype).eps)
    for call in (function, gf.jit(function), lambda x: gf.vmap(function)(x[None])[0]):
        out = call(x)
        assert out.dtype == dtype
        np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=rounding, atol=1e-7)


def test_derivatives_are_those_of_float32():
    x = jnp.zeros(COUNT, jnp.float16)
    np.testing.assert_allclose(gf.grad(nn.logmeanexp)(x)[0], 1 / COUNT, rtol=0.05)
    slope = gf.grad(lambda x: jnp.linalg.norm(x))(jnp.full(100, 300, jnp.float16))
    np.testing.assert_allclose(slope, np.full(100, 0.1), rtol=1e-3)


def test_dtypes_of_results_follow_the_operands():
    """Weights of float32 make the result float32, whichever way they are passed."""
    x, w = jnp.ones(4, jnp.float16), jnp.ones(4)
    assert special.logsumexp(x, b=w).dtype == "float32"
    assert special.logsumexp(x, None, w).dtype == "float32"
    assert jnp.average(x, weights=w).dtype == "float32"
    assert jnp.cov(x, aweights=w).dtype == "float32"
    assert jnp.cov(x, fweights=jnp.ones(4, int)).dtype == "float16"
    assert jnp.cov(jnp.ones(4), dtype=jnp.float16).dtype == "float16"
    assert jnp.corrcoef(x, x).dtype == "float16"
    assert jnp.nanstd(x, dtype=jnp.float32).dtype == "float32"
    assert jnp.nanmean(jnp.ones(4), dtype=jnp.float16).dtype == "float16"
