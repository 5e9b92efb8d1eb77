"""Mapped axes of vmap and pmap: the axis of each leaf, the common size, and the output axes.

Tests: tests/control/test_custom_vjp.py, tests/parallel/test_pmap.py,
tests/parallel/test_shard_map.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.linear_call import linear_call
from gpuflow.core.aval import aval_of, is_value
from gpuflow.ops.elementwise.arithmetic import constant, mul
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import reduce_sum, squeeze
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.slicing import slice_in_dim


def check_axes(op: str, what: str, axes: Any, name: str) -> None:
    for axis in tree.leaves(axes):
        if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
            raise TypeError(
                f"[{op}] {what} must hold ints and None; got {axis!r} for {name}. Fix: use an axis "
                "number, or None for unmapped values."
            )
    if what == "in_axes" and not (axes is None or isinstance(axes, int | np.integer | tuple)):
        raise TypeError(
            f"[{op}] in_axes must be an int, None, or a tuple with an item for each argument; "
            f"got {axes!r} for {name}. Fix: in_axes=({axes!r},)."
        )


def check_names(op: str, axis_name: Any, axis_size: Any, name: str) -> None:
    try:
        hash(axis_name)
    except TypeError:
        raise TypeError(
            f"[{op}] axis_name must be hashable; got {axis_name!r} for {name}. Fix: use a string."
        ) from None
    if axis_size is None:
        return
    if not hasattr(axis_size, "__index__") or isinstance(axis_size, bool) or axis_size < 0:
        raise ValueError(
            f"[{op}] axis_size must be an int of at least 0; got {axis_size!r} for {name}. "
            "Fix: pass the size of the mapped axis."
        )


# For pytree nodes whose axes are not those of their leaves: from a node's axis to the leaves' axis.
AxisRule = Callable[[Any, int, str], int]
_rules: dict[type, AxisRule] = {}


def register_axes(cls: type, rule: AxisRule) -> None:
    """Register a pytree node whose axes differ from those of its leaves.

    Args:
        cls: a class of pytree nodes.
        rule: ``(node, axis, what) -> axis`` of the leaves, where ``what`` is "in_axes" or
            "out_axes". For "out_axes", the node is that of one batch element. It raises
            ValueError for an axis that cannot be mapped.
    """
    _rules[cls] = rule


def leaf_axes(op: str, what: str, axes: Any, value: Any) -> list[Any]:
    """The axis of each leaf: from the tree prefix ``axes``, and from rules of nodes."""
    if not _rules:
        return tree.broadcast_prefix(axes, value, f"{op} {what}")
    nodes = tree.leaves(value, _has_rule)
    result: list[Any] = []
    by_node = tree.broadcast_prefix(axes, value, f"{op} {what}", _has_rule)
    for node, axis in safe_zip(nodes, by_node):
        if type(node) not in _rules:
            result.append(axis)
            continue
        axis = None if axis is None else _rules[type(node)](node, axis, what)
        result.extend([axis] * len(tree.leaves(node)))
    return result


def _has_rule(node: Any) -> bool:
    return type(node) in _rules


def axes_of(
    op: str, in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> list[int | None]:
    """The mapped axis of each leaf of the arguments; 0 for keyword arguments."""
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ValueError(
            f"[{op}] in_axes must have one item for each argument of {name}; got {in_axes} for "
            f"{len(args)}. Fix: give {len(args)} items, or one int for all."
        )
    by_position = leaf_axes(op, "in_axes", in_axes, args)
    return [*by_position, *(leaf_axes(op, "in_axes", 0, kwargs) if kwargs else ())]


def positions_of(
    op: str, leaves: Sequence[Any], axes: Sequence[int | None], name: str
) -> list[int | None]:
    """Check mapped axes, and convert negative ones."""
    result: list[int | None] = []
    for leaf, axis in safe_zip(leaves, axes):
        if axis is None:
            result.append(None)
            continue
        if not is_value(leaf):
            raise TypeError(
                f"[{op}] mapped arguments of {name} must be arrays or numbers; got {brief(leaf)}. "
                f"Fix: {fix_for(leaf, 'use None for it in in_axes')}."
            )
        rank = aval_of(leaf).ndim
        if not -rank <= axis < rank:
            raise ValueError(
                f"[{op}] in_axes must name an axis of each mapped argument of {name}; got "
                f"{axis} for {aval_of(leaf)}. Fix: use None for it"
                f"{f', or an axis in [{-rank}, {rank})' if rank else ''}."
            )
        result.append(int(axis) % rank)
    return result


def mapped_size(
    op: str,
    leaves: Sequence[Any],
    axes: Sequence[int | None],
    axis_size: int | None,
    name: str,
    argument_names: Callable[[], list[str]],
) -> int:
    """The common size of the mapped axes.

    Raises:
        ValueError: if nothing is mapped, or sizes differ.
    """
    sizes = [
        (k, aval_of(leaf).shape[axis], axis)
        for k, (leaf, axis) in enumerate(safe_zip(leaves, axes))
        if axis is not None
    ]
    distinct = {size for _, size, _ in sizes}
    if axis_size is not None:
        distinct.add(int(axis_size))
    if not distinct:
        got = "in_axes of None only" if leaves else "no arguments"
        raise ValueError(
            f"[{op}] at least one argument of {name} must be mapped; got {got}. "
            "Fix: give an axis, or axis_size."
        )
    if len(distinct) > 1:
        names = argument_names()
        got = ", ".join(f"{size} along axis {axis} of {names[k]}" for k, size, axis in sizes)
        raise ValueError(
            f"[{op}] mapped axes of {name} must have one size; got {got}"
            f"{f', axis_size={axis_size}' if axis_size is not None else ''}. "
            "Fix: map axes of equal size, or use None for arguments shared by all."
        )
    return distinct.pop()


def output_name(structure: tree.TreeDef, leaf: int, name: str) -> str:
    path = tree.paths_in(structure)[leaf]
    return f"{name} at {path}" if path else name


def first_element(out: Any, dim: int) -> Any:
    return squeeze(slice_in_dim(out, 0, 1, axis=dim), (dim,))


def equal_element(out: Any, dim: int) -> Any:
    """The first of elements that the user declares equal; its cotangent is divided equally.

    User-defined rules, such as ``bwd``, see the cotangent of each element, so no element may get
    the whole cotangent.
    """
    aval = aval_of(out)
    if not dtypes.is_inexact(aval.dtype):
        return first_element(out, dim)
    size = aval.shape[dim]

    def shares(residuals: Any, cotangent: Any) -> Any:
        del residuals
        share = mul(cotangent, constant(cotangent, 1 / size))
        return batch_to_dim(share, None, dim, size)

    return linear_call(lambda residuals, x: first_element(x, dim), shares, (), out)


def summed(op: str, out: Any, dim: int) -> Any:
    """The sum over a mapped axis; bools and small integers are summed in a wider integer dtype.

    Raises:
        TypeError: if the array is of keys.
    """
    dtype = aval_of(out).dtype
    check(
        not dtypes.is_extended(dtype),
        lambda: (
            f"[{op}] outputs that are summed must be numbers; got {aval_of(out)}. Fix: out_axes=0."
        ),
    )
    if dtype.kind in "biu" and dtype.itemsize < 4:
        wide = dtypes.uint32 if dtype.kind == "u" else dtypes.default_int()
        out = convert_element_type(out, wide)
    return reduce_sum(out, (dim,))


def output_at(
    op: str, out: Any, dim: int | None, target: Any, size: int, name: Callable[[], str]
) -> Any:
    """Move the mapped axis of an output to ``target``, its entry of ``out_axes``."""
    if not is_value(out):
        raise TypeError(
            f"[{op}] outputs must be arrays or numbers; got {brief(out)} from {name()}. "
            f"Fix: {fix_for(out, 'return arrays, or None')}."
        )
    if target is None:
        if dim is not None:
            raise ValueError(
                f"[{op}] out_axes of None needs an output that is not mapped; got a mapped "
                f"{aval_of(out)} from {name()}. Fix: use an axis number in out_axes."
            )
        return out
    rank = aval_of(out).ndim + (dim is None)
    return batch_to_dim(out, dim, canonicalize_axis(target, rank, f"{op} out_axes"), size)
