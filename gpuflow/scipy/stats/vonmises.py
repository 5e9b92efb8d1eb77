"""The von Mises distribution."""

from __future__ import annotations

import math

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.bessel import i0e
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import guarded


@composite
def logpdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """The logarithm of the density at ``x``."""
    x, kappa = real_operands("vonmises.logpdf", x, kappa)
    # cos(x) - 1 without cancellation.
    angle = -2.0 * jnp.square(jnp.sin(0.5 * x))
    return guarded(kappa * angle - jnp.log(2.0 * math.pi * i0e(kappa)), kappa >= 0.0)


@composite
def pdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """The density at ``x``."""
    return jnp.exp(logpdf(x, kappa))
