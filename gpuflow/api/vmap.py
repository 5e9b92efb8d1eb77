"""vmap as users call it: axes in and out over trees, sizes, names.

Tests: tests/transforms/test_vmap.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gpuflow.api.derivatives import _named
from gpuflow.base import tree
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_function import argument_names
from gpuflow.control.jit_options import check_callable
from gpuflow.control.mapped_axes import (
    axes_of,
    check_axes,
    check_names,
    first_element,
    leaf_axes,
    mapped_size,
    output_at,
    output_name,
    positions_of,
    summed,
)
from gpuflow.core.argument_kinds import explained
from gpuflow.core.ref_programs import values_of_mapped
from gpuflow.core.refs import Ref, borrowed, read, refuse_refs, write
from gpuflow.core.rules import AxisData
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.transforms.batching import batch_flat

_P = ParamSpec("_P")
_T = TypeVar("_T")


@explained
def vmap(
    fun: Callable[_P, _T],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
) -> Callable[_P, _T]:
    """Vectorize ``fun``: map it over an axis of its arguments.

    Args:
        fun: a function of arrays or trees.
        in_axes: the mapped axis of each argument: an int, None (not mapped), or a tree prefix of
            the arguments. Keyword arguments are mapped over axis 0.
        out_axes: position of the mapped axis in the outputs, in the same form; None for outputs
            that are equal for all elements.
        axis_name: a hashable name for collectives over the axis, such as ``lax.psum``.
        axis_size: size of the axis, needed only if no argument is mapped.
        spmd_axis_name: the mesh axis, or axes, over which the mapped axis is sharded.
        sum_match: whether outputs that differ between elements and have None in ``out_axes`` are
            summed over them; otherwise they are an error.

    Returns:
        The mapped function.

    Raises:
        TypeError: immediately, if axes are not ints or None, or names are not hashable.
        ValueError: when the returned function is called, if axes or sizes do not match.

    Example:
        >>> dot = lambda a, b: (a * b).sum()
        >>> gf.vmap(dot, in_axes=(0, None))(jnp.arange(6.0).reshape(2, 3), jnp.ones(3))
        Array([ 3., 12.], dtype=float32)
    """
    check_callable(fun, "vmap")
    name = getattr(fun, "__name__", "the function")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    check_axes("vmap", "in_axes", in_axes, name)
    check_axes("vmap", "out_axes", out_axes, name)
    check_names("vmap", axis_name, axis_size, name)
    mesh_names = spmd_axis_name
    if mesh_names is not None and not isinstance(mesh_names, tuple):
        mesh_names = (mesh_names,)

    def vmap_f(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        axes = axes_of("vmap", in_axes, args, kwargs, name)
        refs = {k: x for k, x in enumerate(leaves) if type(x) is Ref and axes[k] is not None}
        if refs:
            leaves = values_of_mapped(leaves, refs)
        axes = positions_of("vmap", leaves, axes, name)
        size = mapped_size(
            "vmap", leaves, axes, axis_size, name, lambda: argument_names(fun, args, kwargs)
        )
        out_trees: list[tree.TreeDef] = []
        out_axes_of_leaves: list[list[Any]] = []

        def flat(*values: Any) -> list[Any]:
            inner = {k: borrowed(values[k]) for k in refs}
            leaves = [inner.get(k, value) for k, value in enumerate(values)] if refs else values
            call_args, call_kwargs = tree.unflatten(in_tree, leaves)
            element = fun(*call_args, **call_kwargs)  # type: ignore[call-arg]
            outs, out_tree = tree.flatten(element)
            refuse_refs("vmap", outs, f"results of {name}")
            out_trees.append(out_tree)
            out_axes_of_leaves.append(leaf_axes("vmap", "out_axes", out_axes, element))
            return [*outs, *map(read, inner.values())]

        uniform: list[bool] = []
        axis = AxisData(axis_name, size, mesh_names)
        outs, dims = batch_flat(flat, axis, leaves, axes, uniform)
        out_tree, targets = out_trees[-1], out_axes_of_leaves[-1]
        for k, ref in reversed(refs.items()):
            at = axes[k]
            assert at is not None  # refs that are not mapped are not among these
            write(ref, batch_to_dim(outs.pop(), dims.pop(), at, size))
        for k, target in enumerate(targets):
            dim = dims[k]
            if target is None and dim is not None and uniform[k] and size > 0:
                outs[k], dims[k] = first_element(outs[k], dim), None
            elif target is None and dim is not None and sum_match:
                outs[k], dims[k] = summed("vmap", outs[k], dim), None
        results = [
            output_at("vmap", out, dim, target, size, lambda k=k: output_name(out_tree, k, name))
            for k, (out, dim, target) in enumerate(safe_zip(outs, dims, targets))
        ]
        return tree.unflatten(out_tree, results)

    return _named(vmap_f, fun, "vmap")
