"""Spherical harmonics.

Tests: tests/scipy_surface/test_special_accuracy.py, tests/scipy_surface/test_special_rules.py.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import known
from gpuflow.scipy.special.common import scalar_like

_MAX_DEGREE = 10_000


def _legendre(degree: Any, order: Any, cosine: Any, sine: Any, top: int) -> Any:
    """The normalized associated Legendre function of ``cosine``, for ``0 <= order <= degree``.

    Along the diagonal to ``order``, then up to ``degree``. Source: DLMF 14.30.1, 14.10.3.
    """

    def along_diagonal(i: Any, value: Any) -> Any:
        k = scalar_like(i + 1, cosine)
        step = -jnp.sqrt((2.0 * k + 1.0) / (2.0 * k)) * sine
        return jnp.where(k <= order, value * step, value)

    start = jnp.full_like(cosine, 0.5 / math.sqrt(math.pi))
    diagonal = lax.fori_loop(0, top, along_diagonal, start)

    def up(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        below, here = state
        k = scalar_like(i + 1, cosine)
        square = order * order
        rises = (k > order) & (k <= degree)
        width = jnp.where(rises, k * k - square, 1.0)
        first = jnp.sqrt((4.0 * k * k - 1.0) / width)
        last = (k - 1.0) * (k - 1.0) - square
        second = (2.0 * k + 1.0) * jnp.where(rises, last, 0.0)
        second = jnp.sqrt(jnp.maximum(second / (jnp.maximum(2.0 * k - 3.0, 1.0) * width), 0.0))
        above = first * cosine * here - second * below
        return jnp.where(rises, here, below), jnp.where(rises, above, here)

    return lax.fori_loop(0, top, up, (jnp.zeros_like(cosine), diagonal))[1]


@composite
def sph_harm_y(
    n: ArrayLike,
    m: ArrayLike,
    theta: ArrayLike,
    phi: ArrayLike,
    diff_n: int | None = None,
    n_max: int | None = None,
) -> Array:
    """Compute spherical harmonics, orthonormal, with the Condon-Shortley phase.

    Args:
        n: i32[...], degrees >= 0.
        m: i32[...], orders, ``abs(m) <= n``.
        theta: polar angle in radians, from 0 to pi.
        phi: azimuth in radians.
        diff_n: must be None; use ``jvp`` for derivatives.
        n_max: the highest degree, a static int; required if ``n`` is traced.

    Returns:
        complex64, or complex128 with x64, of the common shape; at least one-dimensional.

    Raises:
        TypeError: if angles are complex or 16-bit floats.
        NotImplementedError: if ``diff_n`` is given.
        ValueError: if ``n`` is traced and ``n_max`` is not given.

    Example:
        >>> out = gf.scipy.special.sph_harm_y(1, 0, jnp.array([0., jnp.pi / 2]), 0.)
        >>> jnp.round(out.real, 3) + 0.0
        Array([0.489, 0.   ], dtype=float32)
    """
    if diff_n is not None:
        raise NotImplementedError(
            f"[sph_harm_y] diff_n must be None; got {diff_n}. Fix: jvp of sph_harm_y."
        )
    if n_max is None:
        if isinstance(n, Tracer):
            raise ValueError(
                "[sph_harm_y] n_max must be given where n is traced, it must be known; got "
                f"n: {aval_of(n)}. Fix: n_max=10."
            )
        degrees = known("sph_harm_y", "n", n, "n_max=10.")
        check(
            degrees.dtype.kind in "iu",
            lambda: f"[sph_harm_y] n must hold integers; got {brief(n)}. Fix: n.astype(int).",
        )
        n_max = int(degrees.max(initial=0))
    theta, phi = jnp.atleast_1d(jnp.asarray(theta)), jnp.asarray(phi)
    check(
        {dtypes.inexact_dtype(aval_of(x).dtype) for x in (theta, phi)}
        <= {dtypes.float32, dtypes.float64},
        lambda: (
            f"[sph_harm_y] angles must be float32 or float64; got {aval_of(theta)} and "
            f"{aval_of(phi)}. Fix: theta.astype(jnp.float32)."
        ),
    )
    dtype = dtypes.default_float()
    degree, order = (jnp.asarray(v).astype(dtype) for v in (n, jnp.abs(jnp.asarray(m))))
    negative = jnp.asarray(m) < 0
    operands = [degree, order, theta.astype(dtype), phi.astype(dtype), negative]
    return _harmonic(*jnp.broadcast_arrays(*operands), top=index(n_max))


def _harmonic(degree: Any, order: Any, theta: Any, phi: Any, negative: Any, top: int) -> Any:
    size = _legendre(degree, order, jnp.cos(theta), jnp.sin(theta), top)
    angle = order * phi
    odd = order - 2.0 * jnp.floor(0.5 * order)
    sign = jnp.where(negative & (odd != 0.0), -1.0, 1.0)
    sine_sign = jnp.where(negative, -1.0, 1.0)
    return lax.complex(sign * size * jnp.cos(angle), sign * sine_sign * size * jnp.sin(angle))


@composite
def lpmn_values(m: int, n: int, z: ArrayLike, is_normalized: bool) -> Array:
    """Compute associated Legendre functions of the first kind, with the Condon-Shortley phase.

    Args:
        m: the highest order, a static int equal to ``n``.
        n: the highest degree.
        z: f32[k] or f64[k], from -1 to 1.
        is_normalized: whether to normalize so that the functions times ``exp(1j * order * phi)``
            are orthonormal on the sphere.

    Returns:
        An array of shape ``(n + 1, n + 1, k)``, by order, degree and point; 0 if the order is
        larger than the degree.

    Raises:
        TypeError: if ``z`` is neither float32 nor float64.
        ValueError: if ``z`` is not a vector, or ``n`` is negative or very large.
        NotImplementedError: if ``m`` and ``n`` differ.

    Example:
        >>> jnp.round(gf.scipy.special.lpmn_values(1, 1, jnp.array([0.5]), False)[0], 3)
        Array([[1. ],
               [0.5]], dtype=float32)

    Source: DLMF 14.10.3; the normalization is that of 14.30.1.
    """
    aval = aval_of(z)
    check(
        aval.dtype in (dtypes.float32, dtypes.float64),
        lambda: f"[lpmn_values] z must be float32 or float64; got {aval}. Fix: z.astype(float).",
    )
    check(
        aval.ndim == 1,
        lambda: f"[lpmn_values] z must be a vector; got {aval}. Fix: z.ravel().",
        ValueError,
    )
    top, same = index(n), index(m)
    if top != same:
        raise NotImplementedError(
            f"[lpmn_values] m and n must be equal; got {same} and {top}. Fix: a slice of the "
            "result for the larger one."
        )
    check(
        0 <= top <= _MAX_DEGREE,
        lambda: f"[lpmn_values] n must be from 0 to {_MAX_DEGREE}; got {top}. Fix: n=1.",
        ValueError,
    )
    order, degree = np.mgrid[: top + 1, : top + 1]
    defined = order <= degree
    factor = np.where(defined, 1.0, 0.0)
    if not is_normalized:
        logs = np.array([math.lgamma(k + 1) for k in range(2 * top + 1)])
        ratio = logs[degree + order] - logs[np.abs(degree - order)]
        norm = 0.5 * (ratio + np.log(4.0 * math.pi / (2.0 * degree + 1.0)))
        factor = factor * np.exp(np.where(defined, norm, 0.0))
    grid = [v.astype(aval.dtype)[:, :, None] for v in (degree, order, factor)]
    points = jnp.asarray(z)
    shape = (top + 1, top + 1, aval.shape[0])
    cosine, sine = (jnp.broadcast_to(v, shape) for v in (points, jnp.sqrt(1.0 - points * points)))
    values = _legendre(grid[0], grid[1], cosine, sine, top)
    return jnp.where(defined[:, :, None], values * grid[2], scalar_like(0, values))
