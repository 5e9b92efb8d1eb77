"""Interpolation on grids.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.aval import aval_of
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.promotion import promote_dtypes_inexact
from gpuflow.tree_util import register_pytree_node

_METHODS = ("linear", "nearest")


class RegularGridInterpolator:
    """Interpolator of values on a rectilinear grid.

    Args:
        points: ascending coordinates for each axis of the grid.
        values: an array with the axes of the grid, followed by any others.
        method: "linear", or "nearest".
        bounds_error: must be False.
        fill_value: value outside of the grid; None extrapolates linearly.

    Raises:
        ValueError: if the method is unknown, there are too few axes, or the dtype of ``values``
            cannot hold the fill value.
        NotImplementedError: if ``bounds_error`` is set.
    """

    method: str
    bounds_error: bool
    fill_value: Any
    grid: tuple[Any, ...]
    values: Any

    def __init__(
        self,
        points: Sequence[Any],
        values: Any,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: Any = np.nan,
    ) -> None:
        name = "RegularGridInterpolator"
        check_choice(name, "method", method, _METHODS)
        check(
            not bounds_error,
            lambda: (
                f"[{name}] bounds_error must be False, as values are known only at run time; "
                f"got {bounds_error}. Fix: fill_value=jnp.nan."
            ),
            NotImplementedError,
        )
        (values,) = promote_dtypes_inexact(as_array(name, values))
        check(
            len(points) <= aval_of(values).ndim,
            lambda: (
                f"[{name}] values must have an axis for each array of points; got "
                f"{aval_of(values)} for {len(points)}. Fix: reshape values."
            ),
            ValueError,
        )
        if fill_value is not None:
            fill_value = as_array(name, fill_value)
            check(
                np.can_cast(aval_of(fill_value).dtype, aval_of(values).dtype, "same_kind"),
                lambda: (
                    f"[{name}] fill_value must fit the dtype of values; got "
                    f"{aval_of(fill_value)} for {aval_of(values)}. Fix: fill_value=None."
                ),
                ValueError,
            )
        self.method = method
        self.bounds_error = bounds_error
        self.fill_value = fill_value
        self.grid = tuple(as_array(name, p) for p in points)
        self.values = values

    def __call__(self, xi: Any, method: str | None = None) -> Any:
        """The interpolated values at ``xi``.

        Args:
            xi: (..., axes of the grid), or a tuple of an array for each axis.
            method: None: that of the object.

        Returns:
            An array of shape (..., further axes of the values).

        Raises:
            ValueError: if the method is unknown, or the number of axes differs.
        """
        name = "RegularGridInterpolator"
        method = self.method if method is None else method
        check_choice(name, "method", method, _METHODS)
        rank = len(self.grid)
        points = _as_points(name, xi, rank)
        check(
            aval_of(points).shape[-1] == rank,
            lambda: (
                f"[{name}] points must have {rank} coordinates; got {aval_of(points)}. "
                "Fix: jnp.stack([x, y], -1)."
            ),
            ValueError,
        )
        shape = aval_of(points).shape[:-1]
        along = jnp.reshape(points, (prod(shape), rank)).T
        cells = [_cell(grid, along[k]) for k, grid in enumerate(self.grid)]
        combine = _linear if method == "linear" else _nearest
        out = combine(self.values, cells)
        if self.fill_value is not None:
            out_of_bounds = jnp.zeros(prod(shape), bool)
            for k, grid in enumerate(self.grid):
                out_of_bounds = out_of_bounds | (along[k] < grid[0]) | (along[k] > grid[-1])
            inner = (1,) * (aval_of(out).ndim - 1)
            out = jnp.where(out_of_bounds.reshape(-1, *inner), self.fill_value, out)
        return out.reshape(*shape, *aval_of(self.values).shape[rank:])


def _as_points(name: str, xi: Any, rank: int) -> Any:
    """Points with their coordinates in the last axis."""
    if isinstance(xi, tuple) and len(xi) == 1:
        xi = xi[0]
    if isinstance(xi, tuple):
        return jnp.stack(jnp.broadcast_arrays(*[jnp.asarray(x, float) for x in xi]), -1)
    points = as_array(name, xi)
    return jnp.reshape(points, (-1, rank)) if aval_of(points).ndim == 1 else points


def _cell(grid: Any, coordinates: Any) -> tuple[Any, Any]:
    """For each coordinate the index of the grid point below, and the fraction of the cell."""
    last = aval_of(grid).shape[0] - 2
    index = jnp.clip(jnp.searchsorted(grid, coordinates) - 1, 0, last)
    low = grid[index]
    return index, (coordinates - low) / (grid[index + 1] - low)


def _linear(values: Any, cells: list[tuple[Any, Any]]) -> Any:
    total: Any = 0.0
    inner = (1,) * (aval_of(values).ndim - len(cells))
    for corner in product((False, True), repeat=len(cells)):
        indices = tuple(index + int(up) for (index, _), up in zip(cells, corner, strict=True))
        weight: Any = 1.0
        for (_, after), up in zip(cells, corner, strict=True):
            weight = weight * (after if up else 1 - after)
        total = total + values[indices] * jnp.reshape(weight, (-1, *inner))
    return total


def _nearest(values: Any, cells: list[tuple[Any, Any]]) -> Any:
    return values[tuple(jnp.where(after <= 0.5, index, index + 1) for index, after in cells)]


def _flattened(x: RegularGridInterpolator) -> tuple[Any, Any]:
    return (x.grid, x.values, x.fill_value), (x.method, x.bounds_error)


def _unflattened(static: Any, children: Any) -> RegularGridInterpolator:
    """Without checks: transformations may use anything as children."""
    out = object.__new__(RegularGridInterpolator)
    out.grid, out.values, out.fill_value = children
    out.method, out.bounds_error = static
    return out


register_pytree_node(RegularGridInterpolator, _flattened, _unflattened)

publish(globals(), "scipy.interpolate", public_names(globals(), __name__))
