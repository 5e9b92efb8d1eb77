"""Collectives that reduce over named axes.

Under vmap over an axis of that name they become ordinary reductions; other axes are mapped through
them. Parts of an axis between memories are left to its communicator. Moving data is in
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
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData
from gpuflow.core.trace import Tracer
from gpuflow.ops.axes import move_axis, reduce_sum, squeeze
from gpuflow.ops.comparison import eq
from gpuflow.ops.convert import convert_element_type
from gpuflow.ops.define import check_kind, define, linear_jvp, unary_transpose
from gpuflow.ops.elementwise import constant, div, mul
from gpuflow.ops.gathering import TOGETHER, in_one_axis
from gpuflow.ops.joining import concatenate
from gpuflow.ops.merging import in_buckets
from gpuflow.ops.named_axes import (
    Groups,
    Names,
    as_groups,
    as_names,
    communicator_for,
    group_size,
    has_neighbors,
    into_groups,
    is_over,
    is_summable,
    mapped_in_front,
    out_of_groups,
    repeat_in_front,
    sizes_of,
    take_rows,
    uses_of,
)
from gpuflow.ops.reductions import reduce_max, reduce_min
from gpuflow.ops.varying import is_checked, varying_sum

# --- what psum, pmax and pmin share --------------------------------------------------------


def _effects(params: dict[str, Any]) -> frozenset[Any]:
    return uses_of(params["axes"])


def _reduction_impl(op: str, operation: str) -> Callable[..., Any]:
    def impl(xp: Any, x: Any, *, axes: Names, axis_index_groups: Groups | None) -> Any:
        del xp
        return communicator_for(op, axes, axis_index_groups).all_reduce(x, operation)

    return impl


def _reduction_call(op: str, operation: str) -> Callable[..., None]:
    """The same in a plan: the result goes where it is wanted, without a copy."""

    def call(
        xp: Any, outs: Sequence[Any], x: Any, *, axes: Names, axis_index_groups: Groups | None
    ) -> None:
        del xp
        communicator_for(op, axes, axis_index_groups).all_reduce(x, operation, outs[0])

    return call


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
        if axis_index_groups is not None:
            return _reduce_in_groups(reduce, x, dim, axis.size, axis_index_groups), 0
        if dim is None:
            total = of_equal(x, axis.size)
        else:  # one device per process has nothing to add, and nothing to copy
            total = squeeze(x, (dim,)) if axis.size == 1 else reduce(x, (dim,))
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
    sizes = sizes_of(op, names)
    groups = as_groups(op, groups, prod(sizes))
    if op == "psum" and has_neighbors(names) and groups is None and not dims:
        return _sum_together(x, names, sizes)

    def one(leaf: Any) -> Any:
        if dims:
            leaf = reduce(leaf, canonicalize_axes(dims, aval_of(leaf).ndim, op))
        return _bind(op, leaf, names, sizes, groups) if names else leaf

    return tree.tree_map(one, x)


def _sum_together(x: Any, names: Names, sizes: tuple[int, ...]) -> Any:
    """The sum of a tree between memories: first within each, and then small leaves in one call."""
    flags = [has_neighbors((name,)) for name in names]

    def chosen(values: tuple[Any, ...], wanted: bool) -> tuple[Any, ...]:
        return tuple(value for value, flag in zip(values, flags, strict=True) if flag == wanted)

    def summed(leaf: Any, wanted: bool) -> Any:
        return _bind("psum", leaf, chosen(names, wanted), chosen(sizes, wanted), None)

    leaves, structure = tree.flatten(x)
    results = [
        _bind("psum", leaf, names, sizes, None) if isinstance(leaf, _NUMBERS) else None
        for leaf in leaves
    ]
    arrays = [k for k, result in enumerate(results) if result is None]
    within = [leaves[k] if all(flags) else summed(leaves[k], False) for k in arrays]
    totals = in_buckets(within, lambda leaf: summed(leaf, True))
    for k, total in zip(arrays, totals, strict=True):
        results[k] = total
    return tree.unflatten(structure, results)


_NUMBERS = (int, float, complex)


def _bind(
    op: str, leaf: Any, names: Names, sizes: tuple[int, ...], groups: Groups | None
) -> Any:
    if op == "psum" and dtypes.is_bool(aval_of(leaf).dtype):
        leaf = convert_element_type(leaf, dtypes.int32)
    params = {"axes": names, "axis_index_groups": groups}
    primitive = _PRIMITIVES[op]
    primitive.shape(aval_of(leaf), **params)
    is_even = groups is None or len({len(group) for group in groups}) == 1
    known = _NUMBERS if has_neighbors(names) else object
    if op == "psum" and is_even and isinstance(leaf, known) and not isinstance(leaf, Tracer):
        # A constant is known to be equal everywhere; between memories only a number is.
        count = group_size(prod(sizes), groups)
        return leaf * count if isinstance(leaf, _NUMBERS) else mul(leaf, count)
    if groups is not None and len(names) > 1:
        assert primitive.batch is not None
        params["axes"] = (TOGETHER,)
        return in_one_axis(primitive.batch, leaf, names, sizes, **params)
    if op == "psum":
        return _sum(leaf, names, groups)
    return primitive.bind(leaf, **params)


def _sum(x: Any, axes: Names, axis_index_groups: Groups | None) -> Any:
    """The sum; over axes of a shard_map with cotangents that know what varies."""
    checked = tuple(name for name in axes if is_checked((name,)))
    if not checked or axis_index_groups is not None:
        return psum_p.bind(x, axes=axes, axis_index_groups=axis_index_groups)
    rest = tuple(name for name in axes if name not in checked)
    inner = psum_p.bind(x, axes=rest, axis_index_groups=None) if rest else x
    return varying_sum(inner, checked)


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
    impl=_reduction_impl("psum", "sum"),
    lower=Library(call=_reduction_call("psum", "sum")),
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
        return out, _sum(mul(t, weights), **params)

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
        impl=_reduction_impl(op, op.removeprefix("p")),
        lower=Library(call=_reduction_call(op, op.removeprefix("p"))),
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
