"""Collectives that reduce over named axes.

Under vmap over an axis of that name they become ordinary reductions. Outside of any axis of that
name they cannot run; other axes are mapped through them. Moving data is in
gathering.py, exchanges.py and permutations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import AxisUse
from gpuflow.core.rules import AxisData
from gpuflow.core.trace import Tracer
from gpuflow.ops.axes import move_axis, reduce_sum
from gpuflow.ops.comparison import eq
from gpuflow.ops.convert import convert_element_type
from gpuflow.ops.define import check_kind, define, linear_jvp, unary_transpose
from gpuflow.ops.elementwise import constant, div, mul
from gpuflow.ops.joining import concatenate
from gpuflow.ops.named_axes import (
    Groups,
    Names,
    as_groups,
    as_names,
    group_size,
    into_groups,
    is_over,
    is_summable,
    mapped_in_front,
    one_name_only,
    out_of_groups,
    repeat_in_front,
    sizes_of,
    take_rows,
    unbound,
)
from gpuflow.ops.reductions import reduce_max, reduce_min

# --- what psum, pmax and pmin share --------------------------------------------------------


def _effects(params: dict[str, Any]) -> frozenset[Any]:
    return frozenset(AxisUse(name) for name in params["axes"])


def _unbound_impl(op: str) -> Callable[..., Any]:
    def impl(xp: Any, x: Any, *, axes: Names, axis_index_groups: Groups | None) -> Any:
        del xp, x, axis_index_groups
        raise unbound(op, axes[0])

    return impl


def _reduce_in_groups(
    reduce: Callable[..., Any], x: Any, dim: int | None, size: int, groups: Groups
) -> Any:
    """Each element of the mapped axis gets the total of its group; the axis is in front."""
    rows = mapped_in_front(x, dim, size)
    if len({len(group) for group in groups}) == 1:
        totals = reduce(into_groups(rows, groups), (1,))
        repeated = move_axis(repeat_in_front(totals, len(groups[0])), 0, 1)
        return out_of_groups(repeated, groups)
    parts = [
        repeat_in_front(reduce(take_rows(rows, group), (0,)), len(group)) for group in groups
    ]
    order = np.argsort([index for group in groups for index in group])
    return take_rows(concatenate(parts, 0), order)


def _reduction_batch(
    op: str, reduce: Callable[..., Any], of_equal: Callable[..., Any]
) -> Callable[..., tuple[Any, int | None]]:
    """The batch rule: over another axis nothing changes, over its own it is a reduction."""

    def batch(
        axis: AxisData,
        operands: Sequence[Any],
        dims: Sequence[int | None],
        *,
        axes: Names,
        axis_index_groups: Groups | None,
    ) -> tuple[Any, int | None]:
        (x,), (dim,) = operands, dims
        again = _PRIMITIVES[op].bind
        if not is_over(axis, axes):
            return again(x, axes=axes, axis_index_groups=axis_index_groups), dim
        one_name_only(op, axes, axis_index_groups)
        if axis_index_groups is not None:
            return _reduce_in_groups(reduce, x, dim, axis.size, axis_index_groups), 0
        total = of_equal(x, axis.size) if dim is None else reduce(x, (dim,))
        rest = tuple(name for name in axes if name != axis.name)
        return (again(total, axes=rest, axis_index_groups=None) if rest else total), None

    return batch


def _reduced(op: str, reduce: Callable[..., Any], x: Any, axis_name: Any, groups: Any) -> Any:
    """Bind ``op`` on a tree; ints among the names are dimensions of the leaves."""
    axes = as_names(axis_name)
    names = tuple(axis for axis in axes if not isinstance(axis, int))
    dims = tuple(axis for axis in axes if isinstance(axis, int))
    check(
        not dims or groups is None,
        lambda: (
            f"[{op}] axis_index_groups need named axes only; got {axes}. "
            "Fix: reduce the dimensions with jnp first."
        ),
        ValueError,
    )
    size = prod(sizes_of(op, names))
    groups = as_groups(op, groups, size)

    def one(leaf: Any) -> Any:
        if dims:
            leaf = reduce(leaf, canonicalize_axes(dims, aval_of(leaf).ndim, op))
        return _bind(op, leaf, names, size, groups) if names else leaf

    return tree.tree_map(one, x)


def _bind(op: str, leaf: Any, names: Names, size: int, groups: Groups | None) -> Any:
    if op == "psum" and dtypes.is_bool(aval_of(leaf).dtype):
        leaf = convert_element_type(leaf, dtypes.int32)
    params = {"axes": names, "axis_index_groups": groups}
    primitive = _PRIMITIVES[op]
    primitive.shape(aval_of(leaf), **params)
    is_even = groups is None or len({len(group) for group in groups}) == 1
    if op == "psum" and is_even and not isinstance(leaf, Tracer):
        # A constant is known to be equal everywhere.
        count = group_size(size, groups)
        return leaf * count if isinstance(leaf, int | float | complex) else mul(leaf, count)
    return primitive.bind(leaf, **params)


# --- psum ----------------------------------------------------------------------------------


def _psum_shape(x: ShapedArray, *, axes: Names, axis_index_groups: Any) -> ShapedArray:
    del axes, axis_index_groups
    check_kind("psum", x, is_summable, "a number (not bool)")
    return ShapedArray(x.shape, x.dtype)


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Sum over named axes.

    Args:
        x: array of numbers or bools (added as int32), or a tree of them.
        axis_name: a name, or several; ints among them are dimensions of ``x``.
        axis_index_groups: groups of indices that are summed on their own.

    Returns:
        The total, the same for all elements. A constant is multiplied by the size, so
        ``psum(1, name)`` is the size as an int.

    Raises:
        NameError: an axis name that no enclosing transformation binds.
        ValueError: groups that do not hold each index once.
    """
    return _reduced("psum", reduce_sum, x, axis_name, axis_index_groups)


def _psum_transpose(cotangent: Any, x: ShapedArray, **params: Any) -> Any:
    # Each element's total reaches every element, so their cotangents are added up again.
    del x
    return psum_p.bind(cotangent, **params)


psum_p = define(
    "psum",
    shape=_psum_shape,
    impl=_unbound_impl("psum"),
    jvp=linear_jvp(lambda x, **params: psum_p.bind(x, **params)),
    transpose=unary_transpose(_psum_transpose),
    batch=_reduction_batch("psum", reduce_sum, lambda x, size: mul(x, constant(x, size))),
    effects=_effects,
)

# --- pmax and pmin -------------------------------------------------------------------------


def _extremum_shape(op: str) -> Callable[..., ShapedArray]:
    def shape(x: ShapedArray, *, axes: Names, axis_index_groups: Any) -> ShapedArray:
        del axes, axis_index_groups
        check_kind(op, x, lambda dtype: not dtypes.is_extended(dtype), "a number or bool")
        return ShapedArray(x.shape, x.dtype)

    return shape


def _extremum_jvp(op: str) -> Callable[..., Any]:
    """The mean of the tangents at the positions of the extremum."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = _PRIMITIVES[op].bind(x, **params)
        mask = convert_element_type(eq(x, out), aval_of(x).dtype)
        weights = div(mask, psum_p.bind(mask, **params))
        return out, psum_p.bind(mul(t, weights), **params)

    return jvp


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Maximum over named axes; arguments and errors are those of ``psum``."""
    return _reduced("pmax", reduce_max, x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Minimum over named axes; arguments and errors are those of ``psum``."""
    return _reduced("pmin", reduce_min, x, axis_name, axis_index_groups)


def _extremum(op: str, reduce: Callable[..., Any]) -> Any:
    return define(
        op,
        shape=_extremum_shape(op),
        impl=_unbound_impl(op),
        jvp=_extremum_jvp(op),
        batch=_reduction_batch(op, reduce, lambda x, size: x),
        effects=_effects,
    )


pmax_p = _extremum("pmax", reduce_max)
pmin_p = _extremum("pmin", reduce_min)
_PRIMITIVES = {"psum": psum_p, "pmax": pmax_p, "pmin": pmin_p}

# --- pmean ---------------------------------------------------------------------------------


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Mean over named axes; arguments and errors are those of ``psum``. Integers give floats."""
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    count = psum(1, axis_name, axis_index_groups=axis_index_groups)
    return tree.tree_map(lambda leaf: leaf / count, total)
