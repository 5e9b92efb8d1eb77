"""Sums, maxima and minima over named axes: the public functions.

Under vmap over an axis of that name they become ordinary reductions; other axes are mapped through
them. The communicator of an axis reduces across memories. Data movement is in all_gather.py,
all_to_all.py and ppermute.py.

Tests: tests/ops/test_collectives.py, tests/ops/test_between_memories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import canonicalize_axes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.communication import communicates
from gpuflow.core.lowering import Library
from gpuflow.core.trace import Tracer
from gpuflow.ops.collectives.all_gather import COMBINED_AXES, in_one_axis
from gpuflow.ops.collectives.named_axes import (
    Groups,
    Names,
    as_groups,
    as_names,
    group_size,
    has_neighbors,
    reduces,
    sizes_of,
)
from gpuflow.ops.collectives.psum import (
    effects_of,
    psum_p,
    reduction_batch,
    reduction_call,
    reduction_impl,
)
from gpuflow.ops.collectives.varying import is_checked, varying_sum
from gpuflow.ops.define import check_kind, define
from gpuflow.ops.elementwise.arithmetic import div, mul
from gpuflow.ops.elementwise.comparison import eq
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.ops.reductions.reduce import reduce_max, reduce_min

_T = TypeVar("_T")


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

    def one(leaf: Any) -> Any:
        if dims:
            leaf = reduce(leaf, canonicalize_axes(dims, aval_of(leaf).ndim, op))
        return _bind(op, leaf, names, sizes, groups) if names else leaf

    return tree.tree_map(one, x)


_PYTHON_SCALARS = (int, float, complex)


def _bind(op: str, leaf: Any, names: Names, sizes: tuple[int, ...], groups: Groups | None) -> Any:
    if op == "psum" and dtypes.is_bool(aval_of(leaf).dtype):
        leaf = convert_element_type(leaf, dtypes.int32)
    params = {"axes": names, "axis_index_groups": groups}
    primitive = _PRIMITIVES[op]
    primitive.shape(aval_of(leaf), **params)
    is_even = groups is None or len({len(group) for group in groups}) == 1
    static_types = _PYTHON_SCALARS if has_neighbors(names) else object
    if op == "psum" and is_even and isinstance(leaf, static_types) and not isinstance(leaf, Tracer):
        # A constant is equal everywhere; across memories only a Python number is.
        count = group_size(prod(sizes), groups)
        return leaf * count if isinstance(leaf, _PYTHON_SCALARS) else mul(leaf, count)
    if groups is not None and len(names) > 1:
        assert primitive.batch is not None
        params["axes"] = (COMBINED_AXES,)
        return in_one_axis(primitive.batch, leaf, names, sizes, **params)
    if op == "psum":
        return _sum(leaf, names, groups)
    return primitive.bind(leaf, **params)


def _sum(x: Any, axes: Names, axis_index_groups: Groups | None) -> Any:
    """The sum; over axes of a shard_map with varying-axis types for cotangents."""
    checked = tuple(name for name in axes if is_checked((name,)))
    if not checked or axis_index_groups is not None:
        return psum_p.bind(x, axes=axes, axis_index_groups=axis_index_groups)
    unchecked = tuple(name for name in axes if name not in checked)
    inner = psum_p.bind(x, axes=unchecked, axis_index_groups=None) if unchecked else x
    return varying_sum(inner, checked)


# --- psum ----------------------------------------------------------------------------------


@explained
def psum(x: _T, axis_name: Any, *, axis_index_groups: Any = None) -> _T:
    """Sum over named axes.

    Args:
        x: array of numbers or bools (summed as int32), or a pytree of them.
        axis_name: an axis name, or several; ints among them are dimensions of ``x``.
        axis_index_groups: groups of indices; the sum runs within each group.

    Returns:
        The sum, the same for all elements. A constant is multiplied by the size, so ``psum(1,
        name)`` is the size as an int.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if the groups do not hold each index exactly once.

    Example:
        >>> gf.vmap(lambda x: x / lax.psum(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
        Array([0.25, 0.75], dtype=float32)
    """
    return _reduced("psum", reduce_sum, x, axis_name, axis_index_groups)


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


@explained
def pmax(x: _T, axis_name: Any, *, axis_index_groups: Any = None) -> _T:
    """Maximum over named axes; nan if a value is nan.

    Args:
        x: array of real numbers or bools, or a pytree of them.
        axis_name: an axis name, or several; ints among them are dimensions of ``x``.
        axis_index_groups: groups of indices; the reduction runs within each group.

    Returns:
        The maximum, the same for all elements.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if the groups do not hold each index exactly once.

    Example:
        >>> gf.vmap(lambda x: x - lax.pmax(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
        Array([-2.,  0.], dtype=float32)
    """
    return _reduced("pmax", reduce_max, x, axis_name, axis_index_groups)


@explained
def pmin(x: _T, axis_name: Any, *, axis_index_groups: Any = None) -> _T:
    """Minimum over named axes; nan if a value is nan.

    Args:
        x: array of real numbers or bools, or a pytree of them.
        axis_name: an axis name, or several; ints among them are dimensions of ``x``.
        axis_index_groups: groups of indices; the reduction runs within each group.

    Returns:
        The minimum, the same for all elements.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if the groups do not hold each index exactly once.

    Example:
        >>> gf.vmap(lambda x: x - lax.pmin(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
        Array([0., 2.], dtype=float32)
    """
    return _reduced("pmin", reduce_min, x, axis_name, axis_index_groups)


def _extremum(op: str, reduce: Callable[..., Any]) -> Any:
    return define(
        op,
        shape=_extremum_shape(op),
        impl=reduction_impl(op, op.removeprefix("p")),
        lower=Library(call=reduction_call(op, op.removeprefix("p"))),
        jvp=_extremum_jvp(op),
        batch=reduction_batch(op, reduce, lambda x, size: x),
        effects=effects_of,
        communication=communicates("all_reduce"),
        varies=reduces,
    )


pmax_p = _extremum("pmax", reduce_max)
pmin_p = _extremum("pmin", reduce_min)
_PRIMITIVES = {"psum": psum_p, "pmax": pmax_p, "pmin": pmin_p}

# --- pmean ---------------------------------------------------------------------------------


@explained
def pmean(x: _T, axis_name: Any, *, axis_index_groups: Any = None) -> _T:
    """Mean over named axes.

    Args:
        x: array of numbers, or a pytree of them; integers give floats.
        axis_name: an axis name, or several; ints among them are dimensions of ``x``.
        axis_index_groups: groups of indices; the reduction runs within each group.

    Returns:
        The mean, the same for all elements.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if the groups do not hold each index exactly once.

    Example:
        >>> gf.vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
        Array([-1.,  1.], dtype=float32)
    """
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    count = psum(1, axis_name, axis_index_groups=axis_index_groups)
    return tree.tree_map(lambda leaf: leaf / count, total)
