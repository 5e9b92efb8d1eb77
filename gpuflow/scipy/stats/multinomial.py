"""The multinomial distribution.

Tests: tests/scipy_surface/test_stats_samples.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import typed_operands
from gpuflow.scipy.stats.common import log_poisson


@composite
def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return the logarithm of the probability of the counts ``x`` in the multinomial distribution.

    Args:
        x: i32[..., m], counts.
        n: i32[...], total number of trials.
        p: f32[..., m], probabilities of the m outcomes, with sum 1.

    Returns:
        f32[...]; -inf if the counts do not sum to ``n``.

    Raises:
        ValueError: if counts are not integers.

    Example:
        >>> x, p = jnp.array([1, 1, 0]), jnp.array([0.5, 0.25, 0.25])
        >>> gf.scipy.stats.multinomial.logpmf(x, 2, p).round(3)
        Array(-1.386, dtype=float32)
    """
    x, n = jnp.asarray(x), jnp.asarray(n)
    x = x.astype(dtypes.default_int()) if dtypes.is_bool(aval_of(x).dtype) else x
    (p,) = typed_operands("multinomial.logpmf", jnp.asarray(p))
    types = [aval_of(v).dtype for v in (x, n)]
    check(
        all(dtypes.is_integer(dtype) for dtype in types),
        lambda: (
            f"[multinomial.logpmf] x and n must be of integer type; got x.dtype={types[0]}, "
            f"n.dtype={types[1]}. Fix: x.astype(jnp.int32)."
        ),
        ValueError,
    )
    whole = jnp.equal(jnp.sum(x, -1), n) & jnp.all(x >= 0, -1)
    x, n = x.astype(p.dtype), n.astype(p.dtype)
    p = jnp.broadcast_to(p, jnp.broadcast_shapes(aval_of(p).shape, aval_of(x).shape))
    # Independent Poisson variables, given their sum. Large terms cancel within each logarithm.
    means = n[..., None] * p
    terms = jnp.where((x == 0.0) & (means == 0.0), 0.0, log_poisson(jnp.maximum(x, 0.0), means))
    excess = n * (jnp.sum(p, -1) - 1.0)
    log = jnp.sum(terms, -1) - log_poisson(jnp.maximum(n, 0.0), n) + excess
    return jnp.where(whole, log, -jnp.inf)


@composite
def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Return the probability of the counts ``x`` in the multinomial distribution.

    Args:
        x: i32[..., m], counts.
        n: i32[...], total number of trials.
        p: f32[..., m], probabilities with sum 1.

    Returns:
        f32[...]; 0 if the counts do not sum to ``n``.

    Raises:
        ValueError: if counts are not integers.

    Example:
        >>> x, p = jnp.array([1, 1, 0]), jnp.array([0.5, 0.25, 0.25])
        >>> gf.scipy.stats.multinomial.pmf(x, 2, p).round(3)
        Array(0.25, dtype=float32)
    """
    return jnp.exp(logpmf(x, n, p))


publish(globals(), "stats.multinomial", public_names(globals(), __name__))
