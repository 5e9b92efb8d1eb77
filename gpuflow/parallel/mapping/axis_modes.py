"""``auto_axes`` and ``explicit_axes``: run a function with other types of mesh axes.

Tests: tests/parallel/test_meshes.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.core.mesh import AbstractMesh, AxisType, Mesh
from gpuflow.parallel.placement import reshard

_P = ParamSpec("_P")
_T = TypeVar("_T")


@overload
def auto_axes(
    f: Callable[_P, _T], /, *, axes: Any = None, out_sharding: Any = None
) -> Callable[_P, _T]: ...
@overload
def auto_axes(
    *, axes: Any = None, out_sharding: Any = None
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
def auto_axes(
    f: Callable[..., Any] | None = None, /, *, axes: Any = None, out_sharding: Any = None
) -> Any:
    """Return a function in which shardings along mesh axes are chosen automatically.

    Args:
        f: the function; if it is omitted, a decorator is returned.
        axes: a mesh axis name, or several; all axes of the current mesh by default.
        out_sharding: shardings of the results: a tree prefix of PartitionSpecs.

    Returns:
        The function. Without a current mesh it is called directly.

    Raises:
        TypeError: if ``out_sharding`` is not given.
        KeyError: when the returned function is called, if the mesh does not have the axis.
    """
    if f is None:
        return functools.partial(auto_axes, axes=axes, out_sharding=out_sharding)
    _check_present("auto_axes", "out_sharding", out_sharding)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.mesh is None:
            return f(*args, **kwargs)
        with config.override("mesh", _with_types(config.mesh, axes, AxisType.Auto)):
            results = f(*args, **kwargs)
        return reshard(results, out_sharding)

    return call


@overload
def explicit_axes(
    f: Callable[_P, _T], /, *, axes: Any = None, in_sharding: Any = None
) -> Callable[_P, _T]: ...
@overload
def explicit_axes(
    *, axes: Any = None, in_sharding: Any = None
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
def explicit_axes(
    f: Callable[..., Any] | None = None, /, *, axes: Any = None, in_sharding: Any = None
) -> Any:
    """Return a function in which shardings along mesh axes are part of types.

    Args:
        f: the function; if it is omitted, a decorator is returned.
        axes: a mesh axis name, or several; all axes of the current mesh by default.
        in_sharding: shardings of the arguments: a tree prefix of PartitionSpecs.

    Returns:
        The function. Without a current mesh it is called directly.

    Raises:
        TypeError: if ``in_sharding`` is not given.
        KeyError: when the returned function is called, if the mesh does not have the axis.
    """
    if f is None:
        return functools.partial(explicit_axes, axes=axes, in_sharding=in_sharding)
    _check_present("explicit_axes", "in_sharding", in_sharding)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.mesh is None:
            return f(*args, **kwargs)
        with config.override("mesh", _with_types(config.mesh, axes, AxisType.Explicit)):
            return f(*reshard(args, in_sharding), **kwargs)

    return call


def _check_present(op: str, name: str, sharding: Any) -> None:
    check(
        sharding is not None,
        lambda: f"[{op}] {name} must be given; got none. Fix: {name}=P('x').",
    )


def _with_types(mesh: Mesh | AbstractMesh, axes: Any, kind: AxisType) -> Mesh | AbstractMesh:
    """The mesh with another type of some axes; manual axes of an enclosing shard_map stay manual.

    Raises:
        KeyError: if the mesh does not have an axis.
    """
    names: Sequence[Any] = mesh.axis_names if axes is None else axes
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if name not in mesh.axis_names:
            raise KeyError(
                f"[mesh] axes must be those of the mesh; got {name!r} for {mesh}. "
                f"Fix: names of {mesh.axis_names}."
            )
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return mesh.update(
        axis_types=[
            kind if name in chosen and current is not AxisType.Manual else current
            for name, current in pairs
        ]
    )
