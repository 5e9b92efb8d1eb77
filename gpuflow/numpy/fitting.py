"""Fitting polynomials to data.

Tests: tests/numpy/test_numpy_gradients.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import ArrayLike
from gpuflow.numpy.arguments import as_array, as_arrays, truncated_int
from gpuflow.numpy.contractions import outer
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.elementary import sqrt
from gpuflow.numpy.exact_products import exact_matmul
from gpuflow.numpy.least_squares import lstsq
from gpuflow.numpy.matrices import vander
from gpuflow.numpy.promotion import check_strict, promote_dtypes_inexact
from gpuflow.numpy.ranks import atleast_1d
from gpuflow.numpy.shaping import expand_dims
from gpuflow.numpy.solvers import inv


@composite
def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: Any = False,
) -> Any:
    """Fit a polynomial to points by least squares.

    Args:
        x: vector of coordinates.
        y: vector of values, or a matrix with a column for each polynomial.
        deg: degree of the polynomial.
        rcond: singular values below ``rcond`` times the largest one count as 0; None uses the
            number of points times the machine epsilon.
        full: whether to return residuals, rank, singular values and ``rcond`` too.
        w: vector of weights, which multiply the residuals before squaring; None weights all
            equally.
        cov: whether to return the covariance matrix too; ``"unscaled"`` if the weights are
            reciprocal standard deviations.

    Returns:
        Coefficients of shape (deg + 1,) or (deg + 1, columns), highest power first; with ``full``
        or ``cov`` a tuple.

    Raises:
        TypeError: if shapes do not match.
        ValueError: if the degree is negative, integers are given without ``rcond``, or there are
            too few points for a covariance.

    Example:
        >>> x = jnp.array([0., 1., 2., 3.])
        >>> jnp.round(jnp.polyfit(x, 2 * x**2 + 1, 2), 3) + 0.0
        Array([2., 0., 1.], dtype=float32)
    """
    order = truncated_int("polyfit", "deg", deg) + 1
    x, y = as_arrays("polyfit", x, y)
    avals = aval_of(x), aval_of(y)
    check(
        order > 0,
        lambda: f"[polyfit] deg must not be negative; got {deg}. Fix: deg=1.",
        ValueError,
    )
    check(
        avals[0].ndim == 1
        and avals[0].size > 0
        and avals[1].ndim in (1, 2)
        and avals[1].shape[0] == avals[0].shape[0],
        lambda: (
            "[polyfit] x must be a vector, and y a vector or matrix of the same length; got "
            f"{avals[0]} and {avals[1]}. Fix: jnp.ravel."
        ),
    )
    check(
        rcond is not None or dtypes.is_inexact(avals[0].dtype),
        lambda: (
            f"[polyfit] x must hold floats, whose precision rcond is made of; got {avals[0]}. "
            "Fix: x.astype(float), or give rcond."
        ),
        ValueError,
    )
    check_strict(x, y)
    (x,) = promote_dtypes_inexact(x)
    if rcond is None:
        rcond = avals[0].size * float(ml_dtypes.finfo(aval_of(x).dtype).eps)
    left, right = vander(x, order), promote_dtypes_inexact(y)[0]
    if w is not None:
        left, right = _weighted(left, right, as_array("polyfit", w))
    scale = sqrt(lax.reduce_sum(left * left, (0,)))
    left = left / scale[None]
    coefficients, residuals, rank, singular = lstsq(left, right, rcond)
    coefficients = (coefficients.T / (scale[None] if aval_of(coefficients).ndim == 2 else scale)).T
    if full:
        return coefficients, residuals, rank, singular, asarray(rcond)
    if not cov:
        return coefficients
    return coefficients, _covariance(left, scale, right, residuals, order, cov)


def _weighted(left: Any, right: Any, w: Any) -> tuple[Any, Any]:
    check(
        aval_of(w).shape == aval_of(left).shape[:1],
        lambda: (
            f"[polyfit] w must hold one weight for each point; got {aval_of(w)} for "
            f"{aval_of(left).shape[0]} points. Fix: jnp.broadcast_to(w, x.shape)."
        ),
    )
    (w,) = promote_dtypes_inexact(w)
    return left * w[:, None], right * (w[:, None] if aval_of(right).ndim == 2 else w)


def _covariance(left: Any, scale: Any, right: Any, residuals: Any, order: int, cov: Any) -> Any:
    base = inv(exact_matmul(left.T, left)) / outer(scale, scale)
    points = aval_of(left).shape[0]
    if isinstance(cov, str) and cov == "unscaled":
        factor = asarray(1.0)
    else:
        check(
            points > order,
            lambda: (
                f"[polyfit] a covariance needs more than {order} points; got {points}. "
                "Fix: cov='unscaled'."
            ),
            ValueError,
        )
        factor = residuals / (points - order)
    factor = atleast_1d(factor)
    if aval_of(right).ndim == 1:
        return base * factor[None]
    return expand_dims(base, 2) * factor[None, None]
