"""Integration of sampled functions.

Tests: tests/numpy/test_narrow_sums.py, tests/test_stored_values.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """Integrate samples by the trapezoidal rule.

    Args:
        y: samples along ``axis``.
        x: coordinates of the samples; None uses the spacing ``dx``.
        dx: sample spacing.
        axis: the axis.
    """
    return jnp.trapezoid(y, x, dx, axis)


publish(globals(), "scipy.integrate", public_names(globals(), __name__))
