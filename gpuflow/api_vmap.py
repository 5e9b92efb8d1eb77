"""vmap as users call it: axes in and out over trees, sizes, names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.api_ad import _named, check_callable
from gpuflow.base import tree
from gpuflow.base.util import canonicalize_axis, safe_zip
from gpuflow.control.jit_function import argument_names
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.rules import AxisData
from gpuflow.ops.axes import squeeze
from gpuflow.ops.layout import slice_in_dim
from gpuflow.ops.moving import batch_to_dim
from gpuflow.transforms.batching import batch_flat


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[..., Any]:
    """Map ``fun`` over an axis of its arguments.

    Args:
        fun: a function of arrays or trees.
        in_axes: the mapped axis of each argument: an int, None (not mapped), or a tree prefix of
            the arguments. Keyword arguments are mapped over axis 0.
        out_axes: where the mapped axis goes in the outputs, likewise; None for outputs that are the
            same for all elements.
        axis_name: a hashable name for collectives over the axis, such as ``lax.psum``.
        axis_size: its size, needed only when no argument is mapped.
        spmd_axis_name: the mesh axis, or axes, over which the mapped axis is spread.

    Returns:
        The mapped function.

    Raises:
        TypeError: at once, for axes that are no ints or None, and names that are not hashable.
        ValueError: from the call, for axes or sizes that do not fit.
    """
    check_callable(fun, "vmap")
    name = getattr(fun, "__name__", "the function")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    _check_axes("in_axes", in_axes, name)
    _check_axes("out_axes", out_axes, name)
    _check_names(axis_name, axis_size, name)
    mesh_names = spmd_axis_name
    if mesh_names is not None and not isinstance(mesh_names, tuple):
        mesh_names = (mesh_names,)

    def vmap_f(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        axes = _positions(leaves, _axes_of(in_axes, args, kwargs, name), name)
        size = _mapped_size(
            leaves, axes, axis_size, name, lambda: argument_names(fun, args, kwargs)
        )
        out_trees: list[tree.TreeDef] = []

        def flat(*values: Any) -> list[Any]:
            call_args, call_kwargs = tree.unflatten(in_tree, values)
            outs, out_tree = tree.flatten(fun(*call_args, **call_kwargs))
            out_trees.append(out_tree)
            return outs

        uniform: list[bool] = []
        axis = AxisData(axis_name, size, mesh_names)
        outs, dims = batch_flat(flat, axis, leaves, axes, uniform)
        out_tree = out_trees[-1]
        result = tree.unflatten(out_tree, outs)
        targets = tree.broadcast_prefix(out_axes, result, "vmap out_axes")
        for k, target in enumerate(targets):
            dim = dims[k]
            if target is None and dim is not None and uniform[k] and size > 0:
                outs[k], dims[k] = _first_element(outs[k], dim), None
        placed = [
            _place(out, dim, target, size, lambda k=k: _output_name(result, k, name))
            for k, (out, dim, target) in enumerate(safe_zip(outs, dims, targets))
        ]
        return tree.unflatten(out_tree, placed)

    return _named(vmap_f, fun, "vmap")


def _check_axes(what: str, axes: Any, name: str) -> None:
    for axis in tree.leaves(axes):
        if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
            raise TypeError(
                f"[vmap] {what} must hold ints and None; got {axis!r} for {name}. "
                "Fix: use an axis number, or None for what is not mapped."
            )
    if what == "in_axes" and not (axes is None or isinstance(axes, int | np.integer | tuple)):
        raise TypeError(
            f"[vmap] in_axes must be an int, None, or a tuple with an item for each argument; "
            f"got {axes!r} for {name}. Fix: in_axes=({axes!r},)."
        )


def _check_names(axis_name: Any, axis_size: Any, name: str) -> None:
    try:
        hash(axis_name)
    except TypeError:
        raise TypeError(
            f"[vmap] axis_name must be hashable; got {axis_name!r} for {name}. Fix: use a string."
        ) from None
    if axis_size is None:
        return
    if not hasattr(axis_size, "__index__") or isinstance(axis_size, bool) or axis_size < 0:
        raise ValueError(
            f"[vmap] axis_size must be an int of at least 0; got {axis_size!r} for {name}. "
            "Fix: pass the size of the mapped axis."
        )


def _axes_of(
    in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> list[int | None]:
    """The axis of each leaf of the arguments; those of keyword arguments are 0."""
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ValueError(
            f"[vmap] in_axes must have one item for each argument of {name}; got {in_axes} for "
            f"{len(args)}. Fix: give {len(args)} items, or one int for all."
        )
    by_position = tree.broadcast_prefix(in_axes, args, "vmap in_axes")
    return [*by_position, *[0] * len(tree.leaves(kwargs))]


def _positions(
    leaves: Sequence[Any], axes: Sequence[int | None], name: str
) -> list[int | None]:
    """The axes counted from the front."""
    result: list[int | None] = []
    for leaf, axis in safe_zip(leaves, axes):
        if axis is None:
            result.append(None)
            continue
        if not is_value(leaf):
            raise TypeError(
                f"[vmap] mapped arguments of {name} must be arrays or numbers; got {leaf!r} of "
                f"type {type(leaf).__name__}. Fix: use None for it in in_axes."
            )
        rank = aval_of(leaf).ndim
        if not -rank <= axis < rank:
            raise ValueError(
                f"[vmap] in_axes must name an axis of each mapped argument of {name}; got "
                f"{axis} for {aval_of(leaf)}. Fix: use None for it"
                f"{f', or an axis in [{-rank}, {rank})' if rank else ''}."
            )
        result.append(int(axis) % rank)
    return result


def _mapped_size(
    leaves: Sequence[Any], axes: Sequence[int | None], given: int | None, name: str,
    argument_names: Callable[[], list[str]],
) -> int:
    sizes = [
        (k, aval_of(leaf).shape[axis], axis)
        for k, (leaf, axis) in enumerate(safe_zip(leaves, axes))
        if axis is not None
    ]
    distinct = {size for _, size, _ in sizes} | ({int(given)} if given is not None else set())
    if not distinct:
        found = "in_axes of None only" if leaves else "no arguments"
        raise ValueError(
            f"[vmap] at least one argument of {name} must be mapped; got {found}. "
            "Fix: give an axis, or axis_size."
        )
    if len(distinct) > 1:
        names = argument_names()
        found = ", ".join(f"{size} along axis {axis} of {names[k]}" for k, size, axis in sizes)
        raise ValueError(
            f"[vmap] mapped axes of {name} must have one size; got {found}"
            f"{f', axis_size={given}' if given is not None else ''}. "
            "Fix: map axes of equal size, or use None for arguments shared by all."
        )
    return distinct.pop()


def _output_name(result: Any, number: int, name: str) -> str:
    path = tree.paths(result)[number]
    return f"{name} at {path}" if path else name


def _first_element(out: Any, dim: int) -> Any:
    return squeeze(slice_in_dim(out, 0, 1, axis=dim), (dim,))


def _place(
    out: Any, dim: int | None, target: Any, size: int, name: Callable[[], str]
) -> Any:
    """An output with its mapped axis where it is wanted."""
    if not is_value(out):
        raise TypeError(
            f"[vmap] outputs must be arrays or numbers; got {out!r} of type {type(out).__name__} "
            f"from {name()}. Fix: return arrays, or None."
        )
    if target is None:
        if dim is not None:
            raise ValueError(
                f"[vmap] out_axes of None needs an output that is not mapped; got a mapped "
                f"{aval_of(out)} from {name()}. Fix: use an axis number in out_axes."
            )
        return out
    rank = aval_of(out).ndim + (dim is None)
    return batch_to_dim(out, dim, canonicalize_axis(target, rank, "vmap out_axes"), size)
