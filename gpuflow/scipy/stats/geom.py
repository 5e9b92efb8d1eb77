"""The geometric distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import distribution, guarded, is_whole, log_power, shift

_function = distribution("p: probability of success of a trial, in (0, 1].")


@_function
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of ``k`` in the geometric distribution.

    Example:
        >>> gf.scipy.stats.geom.logpmf(jnp.array([0, 1, 2]), 0.5).round(4)
        Array([   -inf, -0.6931, -1.3863], dtype=float32)
    """
    k, p = shift("geom.logpmf", k, loc, p)
    possible = (k >= 1.0) & is_whole(k)
    log = log_power(jnp.where(possible, k - 1.0, 0.0), 1.0 - p, p) + jnp.log(p)
    log = jnp.where(possible, log, -jnp.inf)
    return guarded(log, (p > 0.0) & (p <= 1.0), ~jnp.isnan(k))


@_function
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of ``k`` in the geometric distribution.

    With ``j = k - loc`` it is ``(1 - p)**(j - 1) * p`` for ``j`` from 1 on.

    Example:
        >>> gf.scipy.stats.geom.pmf(jnp.array([0, 1, 2]), 0.5).round(4)
        Array([0.  , 0.5 , 0.25], dtype=float32)
    """
    return jnp.exp(logpmf(k, p, loc))


publish(globals(), "stats.geom", public_names(globals(), __name__))
