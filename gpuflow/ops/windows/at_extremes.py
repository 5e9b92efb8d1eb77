"""Gather and scatter-add at the extremum of each window: derivatives of window extrema.

``select_and_gather_add`` reads the tangent at the extreme of each window; its transpose
``select_and_scatter_add`` adds the cotangent of each window there.

Tests: tests/ops/test_windows.py, tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Indexed, Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import Zero, is_undefined
from gpuflow.ops.contractions.convolution import Dims
from gpuflow.ops.define import check_kind, check_same_dtype, define, types_text
from gpuflow.ops.windows.bodies import gathered, sizes
from gpuflow.ops.windows.extremes import (
    batch_leading,
    extreme_indices,
    jvp_of_linear,
    selection_counts,
    window_extreme_p,
    window_spread_p,
)
from gpuflow.ops.windows.sliding import has_bounds, window_partitionable


def _transpose(
    adjoint: Callable[[], Primitive], ct: Any, first: Any, operand: Any, **params: Any
) -> list[Any]:
    if not is_undefined(first):
        return [None, None]
    if type(ct) is Zero:
        return [Zero(first.aval.tangent()), None]
    return [adjoint().bind(ct, operand, **params), None]


# --- select_and_gather_add -----------------------------------------------------------------


def _gather_shape(tangents: ShapedArray, operand: ShapedArray, **params: Any) -> ShapedArray:
    name = "select_and_gather_add"
    check_kind(name, operand, has_bounds, "a real number")
    check_same_dtype(name, [tangents, operand])
    check(
        tangents.shape == operand.shape,
        lambda: (
            f"[{name}] tangents and operand must have one shape; got "
            f"{types_text([tangents, operand])}. Fix: tangents for each element of the operand."
        ),
    )
    geometry = {"base_dilation": None, "window_dilation": None, **params}
    return ShapedArray(selection_counts(name, operand, **geometry), tangents.dtype)


def _gather_impl(xp: Any, tangents: Any, operand: Any, **params: Any) -> Any:
    indices = extreme_indices(xp, operand, **params)
    if not operand.size:
        return xp.zeros(indices.shape, tangents.dtype)
    read = tangents.reshape(-1)[indices]  # -1 reads the last element, which is not used
    return xp.where(indices >= 0, read, xp.zeros((), tangents.dtype))


select_and_gather_add_p = define(
    "select_and_gather_add",
    shape=_gather_shape,
    impl=_gather_impl,
    jvp=partial(jvp_of_linear, lambda: select_and_gather_add_p),
    transpose=partial(_transpose, lambda: select_and_scatter_add_p),
    batch=partial(batch_leading, lambda: select_and_gather_add_p),
    lower=Indexed(gathered, sizes, partitionable=window_partitionable),
)


@explained
def select_and_gather_add(
    tangents: Any,
    operand: Any,
    select_prim: Primitive,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Return the tangent at the extremum of each window.

    Args:
        tangents: array of the shape and dtype of ``operand``.
        operand: array of real numbers; the first extremum of each window is selected.
        select_prim: ``lax.ge_p`` for the maximum, ``lax.le_p`` for the minimum.
        window_dimensions, window_strides, padding, base_dilation, window_dilation: as in
            ``reduce_window``.

    Returns:
        One value for each position of the window; 0 for windows of padding only.

    Raises:
        TypeError, ValueError: if shapes, dtypes or windows are inconsistent.

    Example:
        >>> x, tangents = jnp.array([1.0, 3.0, 2.0]), jnp.array([10.0, 20.0, 30.0])
        >>> lax.select_and_gather_add(tangents, x, lax.ge_p, (2,), (1,), ((0, 0),))
        Array([20., 20.], dtype=float32)
    """
    return select_and_gather_add_p.bind(
        tangents,
        operand,
        select_prim=select_prim,
        base_dilation=_dims(base_dilation),
        window_dilation=_dims(window_dilation),
        **_params(window_dimensions, window_strides, padding),
    )


def _dims(sizes: Sequence[int] | None) -> Dims | None:
    return None if sizes is None else tuple(map(int, sizes))


def _params(
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
) -> dict[str, Any]:
    return {
        "window_dimensions": _dims(window_dimensions),
        "window_strides": _dims(window_strides),
        "padding": tuple((int(low), int(high)) for low, high in padding),
    }


# --- select_and_scatter_add ----------------------------------------------------------------


def _scatter_shape(source: ShapedArray, operand: ShapedArray, **params: Any) -> ShapedArray:
    name = "select_and_scatter_add"
    check_kind(name, operand, has_bounds, "a real number")
    check_same_dtype(name, [source, operand])
    geometry = {"base_dilation": None, "window_dilation": None, **params}
    counts = selection_counts(name, operand, **geometry)
    check(
        source.shape == counts,
        lambda: (
            f"[{name}] the source must have one element for each position of the window, {counts}; "
            f"got {types_text([source, operand])}. Fix: an array of the shape of reduce_window's "
            "result."
        ),
    )
    return ShapedArray(operand.shape, source.dtype)


def _scatter_impl(xp: Any, source: Any, operand: Any, **params: Any) -> Any:
    indices = extreme_indices(xp, operand, **params).reshape(-1)
    narrow = dtypes.is_floating(source.dtype) and source.dtype.itemsize <= 2
    wide = np.dtype(np.float32) if narrow else source.dtype
    total = xp.zeros(prod(operand.shape), wide)
    valid = indices >= 0
    xp.add.at(total, indices[valid], source.reshape(-1)[valid].astype(wide, copy=False))
    return total.astype(source.dtype, copy=False).reshape(operand.shape)


def _scatter_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any]:
    """First compute the extrema, then the sums: each element visits few windows."""
    del definition
    source, operand = eqn.inputs
    taps = build.apply(window_extreme_p, operand, **eqn.params)
    params = {name: value for name, value in eqn.params.items() if name != "select_prim"}
    return [build.apply(window_spread_p, source, taps, shape=operand.aval.shape, **params)]


select_and_scatter_add_p = define(
    "select_and_scatter_add",
    shape=_scatter_shape,
    impl=_scatter_impl,
    simplify=_scatter_simplify,
    jvp=partial(jvp_of_linear, lambda: select_and_scatter_add_p),
    transpose=partial(_transpose, lambda: select_and_gather_add_p),
    batch=partial(batch_leading, lambda: select_and_scatter_add_p),
    lower=Library(partitionable=window_partitionable),
    tolerance=16,
)


@explained
def select_and_scatter_add(
    source: Any,
    operand: Any,
    select_prim: Primitive,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
) -> Any:
    """Sum, for each element, the source values of all windows with this extremum.

    Args:
        source: one value for each position of the window, of the dtype of ``operand``.
        operand, select_prim: as in ``select_and_gather_add``; this function is its transpose.
        window_dimensions, window_strides, padding: as in ``reduce_window``.

    Returns:
        An array of the shape of ``operand``.

    Raises:
        TypeError, ValueError: if shapes, dtypes or windows are inconsistent.

    Example:
        >>> x, source = jnp.array([1.0, 3.0, 2.0]), jnp.array([10.0, 20.0])
        >>> lax.select_and_scatter_add(source, x, lax.ge_p, (2,), (1,), ((0, 0),))
        Array([ 0., 30.,  0.], dtype=float32)
    """
    params = _params(window_dimensions, window_strides, padding)
    return select_and_scatter_add_p.bind(source, operand, select_prim=select_prim, **params)
