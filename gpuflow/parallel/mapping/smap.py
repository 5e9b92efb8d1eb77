"""``smap``: shard_map over one axis of the mesh, with array axes instead of specs.

Tests: tests/parallel/test_smap.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.core.sharding import PartitionSpec
from gpuflow.parallel.mapping.shard_map_api import shard_map

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MISSING: Any = object()


@overload
def smap(
    f: Callable[_P, _T], /, *, in_axes: Any, out_axes: Any, axis_name: Any
) -> Callable[_P, _T]: ...
@overload
def smap(
    *, in_axes: Any, out_axes: Any, axis_name: Any
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
def smap(
    f: Callable[..., Any] | None = None,
    /,
    *,
    in_axes: Any = _MISSING,
    out_axes: Any,
    axis_name: Any,
) -> Any:
    """Map a function over shards of arrays along one axis of the current mesh.

    Args:
        f: a function of blocks (arrays or pytrees); if it is omitted, a decorator is returned.
        in_axes: the array axis along which arguments are sharded: an int, None (replicated), or a
            tuple with an entry, or a tree of entries, for each argument.
        out_axes: the array axis along which blocks of outputs are concatenated, in the same form.
        axis_name: the axis of the mesh. A nested ``smap`` in ``f`` may shard along another axis.

    Returns:
        A function of whole arrays.

    Raises:
        TypeError: if axes are not ints or None, or several names are given.
        ValueError: if an axis is negative; when the returned function is called, if there is no
            mesh, or as for ``shard_map``.

    Example:
        >>> f = gf.smap(lambda x: lax.psum(x, "i"), in_axes=0, out_axes=None, axis_name="i")
        >>> with gf.set_mesh(gf.make_mesh((1,), ("i",))):
        ...     print(f(jnp.arange(3.0)))
        [0. 1. 2.]
    """
    check(
        not isinstance(axis_name, list | tuple),
        lambda: f"[smap] axis_name must be one name; got {axis_name!r}. Fix: nest smap, one each.",
    )
    check(
        in_axes is not _MISSING,
        lambda: (
            "[smap] in_axes must be given, because types do not determine how arrays are "
            "sharded; got none. Fix: in_axes=0."
        ),
    )
    check(
        in_axes is None or isinstance(in_axes, int | tuple),
        lambda: f"[smap] in_axes must be an int, None or a tuple; got {in_axes!r}. Fix: in_axes=0.",
    )
    in_specs, out_specs = (
        _specs(what, axes, axis_name) for what, axes in (("in", in_axes), ("out", out_axes))
    )
    if f is None:
        return functools.partial(smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)
    functions: dict[Any, Any] = {}

    @functools.wraps(f)
    def mapped(*args: Any) -> Any:
        mesh = config.mesh
        if mesh not in functions:
            functions[mesh] = shard_map(
                f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={axis_name}
            )
        return functions[mesh](*args)

    return mapped


def _specs(what: str, axes: Any, name: Any) -> Any:
    """Convert a tree of array axes to PartitionSpecs over the mesh axis ``name``."""

    def spec(axis: Any) -> PartitionSpec:
        if axis is None:
            return PartitionSpec()
        check(
            isinstance(axis, int) and not isinstance(axis, bool),
            lambda: f"[smap] {what}_axes must hold ints and None; got {axis!r}. Fix: an axis.",
        )
        check(
            axis >= 0,
            lambda: (
                f"[smap] {what}_axes must count from the front; got {axis}. "
                "Fix: ndim - 1 for the last axis."
            ),
            ValueError,
        )
        return PartitionSpec(*[None] * axis, name)

    return tree.tree_map(spec, axes, is_leaf=lambda leaf: leaf is None)
