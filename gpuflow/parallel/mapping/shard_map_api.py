"""The public function ``shard_map``: each call resolves the mesh and the specs.

The mesh may come from the context or from arguments, and specs from explicit axes. ``shard_map``
(the module) then runs the function for this mesh and these specs.

Tests: tests/parallel/test_shard_map_forms.py, tests/parallel/test_shard_map.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_options import name_of
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.mesh import AbstractMesh, AxisType, Mesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec, names_of
from gpuflow.core.trace import Tracer
from gpuflow.parallel.mapping.shard_map import ShardMapFunction
from gpuflow.parallel.mapping.shard_map_options import ShardMapOptions
from gpuflow.parallel.meshes import make_mesh
from gpuflow.runtime.array import Array

_P = ParamSpec("_P")
_T = TypeVar("_T")

INFERRED: Any = type("Inferred", (), {"__repr__": lambda self: "inferred"})()


class ShardMapped:
    """A function of whole arrays; see ``shard_map``.

    Args:
        function: the user's function of blocks.
        mesh: a Mesh, an AbstractMesh, or None for the mesh of the context.
        in_specs, out_specs, axis_names, check_vma: see ``shard_map``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: Mesh | AbstractMesh | None,
        in_specs: Any,
        out_specs: Any,
        axis_names: frozenset[Any],
        check_vma: bool,
    ) -> None:
        wrapper: Any = self
        functools.update_wrapper(wrapper, function)
        self._function, self._mesh, self._in_specs = function, mesh, in_specs
        self._out_specs, self._axis_names, self._check_vma = out_specs, axis_names, check_vma
        self._functions: dict[Any, ShardMapFunction] = {}
        if isinstance(mesh, Mesh) and in_specs is not INFERRED:
            self._function_for(mesh, in_specs, ())  # raises errors at the call of shard_map

    def __repr__(self) -> str:
        return f"<shard_map of {name_of(self._function)}>"

    def clear_cache(self) -> None:
        """Forget all traced signatures."""
        self._functions.clear()

    def __call__(self, *args: Any) -> Any:
        leaves = tree.leaves(args)
        mesh = self._concrete_mesh(leaves)
        if self._in_specs is INFERRED:
            specs = tuple(_spec_of(leaf, mesh, self._axes(mesh)) for leaf in leaves)
            return self._function_for(mesh, INFERRED, (tree.structure(args), specs), args)(*leaves)
        statics = [] if all(map(is_value, leaves)) else self._statics(args, leaves)
        if not statics:
            _check_agreement(leaves, self._in_specs, args, mesh)
            return self._function_for(mesh, self._in_specs, ())(*args)
        static_indices = {k for k, _, _ in statics}
        dynamic_leaves = [leaf for k, leaf in enumerate(leaves) if k not in static_indices]
        return self._function_for(mesh, self._in_specs, (tree.structure(args), *statics), args)(
            *dynamic_leaves
        )

    def _statics(self, args: tuple[Any, ...], leaves: Sequence[Any]) -> list[Any]:
        """Static arguments: those that are not arrays and have the spec None."""
        specs = tree.broadcast_prefix(self._in_specs, args, "shard_map in_specs")
        statics = [
            (k, type(leaf), leaf)
            for k, (leaf, spec) in enumerate(safe_zip(leaves, specs))
            if spec is None and not is_value(leaf)
        ]
        try:
            hash(tuple(statics))
        except TypeError:
            raise ValueError(
                "[shard_map] arguments that are not arrays must be hashable; got "
                f"{[leaf for _, _, leaf in statics]}. Fix: pass a tuple, or close over it."
            ) from None
        return statics

    def _concrete_mesh(self, leaves: Sequence[Any]) -> Mesh:
        """The mesh of the call.

        For an AbstractMesh, the devices are those of the current mesh or of an argument's sharding;
        for traced arguments the first devices.

        Raises:
            ValueError: if there is no mesh.
        """
        mesh = config.mesh if self._mesh is None else self._mesh
        check(
            isinstance(mesh, Mesh | AbstractMesh) and not mesh.empty,
            lambda: (
                f"[shard_map] the mesh must be a Mesh; got {mesh!r}. "
                "Fix: mesh=make_mesh((8,), ('x',)), or jax.set_mesh(mesh)."
            ),
            ValueError,
        )
        assert mesh is not None
        if isinstance(config.mesh, Mesh) and config.mesh.stands_for(mesh):
            return config.mesh
        if isinstance(mesh, Mesh):
            return mesh
        for leaf in leaves:
            sharding = leaf.sharding if isinstance(leaf, Array) and not _is_traced(leaf) else None
            if isinstance(sharding, NamedSharding) and _is_like(sharding.mesh, mesh):
                return sharding.mesh
        check(
            any(map(_is_traced, leaves)),
            lambda: (
                "[shard_map] with an AbstractMesh, arguments must be sharded over a matching "
                f"mesh; got {', '.join(str(aval_of(leaf)) for leaf in leaves)} for {mesh}. Fix: "
                "device_put(x, NamedSharding(mesh, spec)), or jax.set_mesh(mesh)."
            ),
            ValueError,
        )
        return make_mesh(mesh.axis_sizes, mesh.axis_names, mesh.axis_types)

    def _axes(self, mesh: Mesh) -> tuple[Any, ...]:
        """The manual axes of the function, in the mesh's order.

        Raises:
            ValueError: if the mesh lacks an axis, or an axis is manual in an enclosing shard_map.
        """
        unknown = [name for name in self._axis_names if name not in mesh.axis_names]
        check(
            not unknown,
            lambda: (
                f"[shard_map] axis_names must be axes of the mesh; got {unknown} for {mesh}. "
                f"Fix: use names of {mesh.axis_names}."
            ),
            ValueError,
        )
        axes = tuple(n for n in mesh.axis_names if not self._axis_names or n in self._axis_names)
        outer = config.mesh
        occupied = (
            ()
            if outer is None
            else tuple(
                name
                for name, kind in zip(outer.axis_names, outer.axis_types, strict=True)
                if kind is AxisType.Manual and name in axes
            )
        )
        check(
            not occupied,
            lambda: (
                f"[shard_map] axes must not be those of an enclosing shard_map; got {occupied} of "
                f"{outer}. Fix: axis_names= of the others."
            ),
            ValueError,
        )
        return axes

    def _function_for(
        self, mesh: Mesh, in_specs: Any, more: tuple[Any, ...], args: tuple[Any, ...] = ()
    ) -> ShardMapFunction:
        """The cached ShardMapFunction for a mesh.

        Args:
            mesh: the mesh.
            in_specs: the specs, or ``INFERRED``.
            more: the treedef of the arguments, then the inferred specs or the static arguments; ()
                if all arguments are arrays with given specs.
            args: the arguments.
        """
        key = mesh, more, config.mesh
        mapped = self._functions.get(key)
        if mapped is None:
            function, specs = self._function, in_specs
            if in_specs is INFERRED:
                function, specs = _with_static_leaves(function, more[0], {}), more[1]
            elif more:
                static_leaves = {k: leaf for k, _, leaf in more[1:]}
                function = _with_static_leaves(function, more[0], static_leaves)
                specs = tree.broadcast_prefix(in_specs, args, "shard_map in_specs")
                specs = tuple(spec for k, spec in enumerate(specs) if k not in static_leaves)
            specs = tuple(specs) if type(specs) is list else specs
            axes = self._axes(mesh)
            options = ShardMapOptions(mesh, specs, self._out_specs, self._check_vma, axes)
            mapped = self._functions[key] = ShardMapFunction("shard_map", function, options)
        return mapped


def _with_static_leaves(
    function: Callable[..., Any], treedef: Any, static_leaves: dict[int, Any]
) -> Callable[..., Any]:
    """The function as one of the leaves of its arguments, with static leaves inserted."""

    @functools.wraps(function)
    def call(*rest: Any) -> Any:
        others = iter(rest)
        numbers = range(treedef.num_leaves)
        leaves = [static_leaves[k] if k in static_leaves else next(others) for k in numbers]
        return function(*tree.unflatten(treedef, leaves))

    return call


def _is_traced(value: Any) -> bool:
    return isinstance(value, Tracer)


def _is_like(mesh: Mesh, abstract: AbstractMesh) -> bool:
    return (mesh.axis_names, mesh.axis_sizes) == (abstract.axis_names, abstract.axis_sizes)


def _explicit_spec(leaf: Any, mesh: Mesh) -> PartitionSpec | None:
    """The spec that is part of an array's type, on a mesh with explicit axes; else None."""
    if not isinstance(leaf, Array) or _is_traced(leaf):
        return None
    sharding = leaf.sharding
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding.spec if sharding.mesh.axis_names == mesh.axis_names else None


def _spec_of(leaf: Any, mesh: Mesh, axes: Sequence[Any]) -> PartitionSpec:
    """Infer the spec of an argument from its sharding.

    Raises:
        TypeError: if axes of the mesh are not explicit, or the argument is traced.
    """
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    check(
        all(kinds[name] is AxisType.Explicit for name in axes) and not _is_traced(leaf),
        lambda: (
            f"[shard_map] in_specs must be given unless arguments are concrete and the axes of "
            f"the mesh explicit; got none for {mesh}. Fix: in_specs=P(...)."
        ),
    )
    spec = _explicit_spec(leaf, mesh) or PartitionSpec()
    filtered = [tuple(name for name in names_of(entry) if name in axes) for entry in spec]
    return PartitionSpec(*[names or None for names in filtered])


def _check_agreement(leaves: Sequence[Any], in_specs: Any, args: Any, mesh: Mesh) -> None:
    """Check that in_specs match the types of arrays on explicit axes.

    Raises:
        ValueError: if they do not.
    """
    if AxisType.Explicit not in mesh.axis_types:
        return
    for leaf, spec in safe_zip(leaves, tree.broadcast_prefix(in_specs, args, "shard_map in_specs")):
        typed_spec = _explicit_spec(leaf, mesh)
        if typed_spec is None or not isinstance(spec, PartitionSpec):
            continue
        rank = aval_of(leaf).ndim
        first, second = ([names_of(entry) for entry in s] for s in (typed_spec, spec))
        pad = [()] * rank
        check(
            (first + pad)[:rank] == (second + pad)[:rank],
            lambda typed_spec=typed_spec, spec=spec, leaf=leaf: (
                "[shard_map] in_specs must match the types of arguments on explicit axes; got "
                f"{spec} for {aval_of(leaf)} with {typed_spec}. Fix: leave out in_specs, or "
                "jax.reshard the argument."
            ),
            ValueError,
        )


@overload
def shard_map(
    f: Callable[_P, _T],
    *,
    out_specs: Any,
    in_specs: Any = INFERRED,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: Collection[Any] = frozenset(),
    check_vma: bool = True,
) -> Callable[_P, _T]: ...
@overload
def shard_map(
    *,
    out_specs: Any,
    in_specs: Any = INFERRED,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: Collection[Any] = frozenset(),
    check_vma: bool = True,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
@explained
def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    out_specs: Any,
    in_specs: Any = INFERRED,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: Collection[Any] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Map a function over shards of arrays, one on each device of a mesh.

    Args:
        f: a function of blocks (arrays or pytrees); if it is omitted, a decorator is returned.
        out_specs: how to assemble the outputs from blocks: a tree prefix of PartitionSpecs.
        in_specs: how to shard each argument, in the same form. Dimensions and axes that are not
            named are not sharded: each device gets all. A non-array argument with the spec None is
            passed unchanged. By default arguments are sharded as they are on a mesh of explicit
            axes.
        mesh: the mesh, or an AbstractMesh, if the context or the arguments provide the devices; by
            default the mesh of ``set_mesh`` at the time of the call.
        axis_names: the axes that are manual in ``f``; all by default.
        check_vma: whether to check that outputs are equal along axes that ``out_specs`` does not
            name, and to track which values vary, for derivatives.

    Returns:
        A function of whole arrays. Collectives in ``f`` use axes of the mesh.

    Raises:
        ValueError: if the mesh does not divide a size, an axis is unknown, or an unsplit output may
            vary.
        TypeError: if a spec is not a PartitionSpec.

    Example:
        >>> mesh, P = gf.make_mesh((1,), ("i",)), gf.P
        >>> total = lambda x: lax.psum(x.sum(), "i")
        >>> f = gf.shard_map(total, mesh=mesh, in_specs=P("i"), out_specs=P())
        >>> f(jnp.arange(4.0))
        Array(6., dtype=float32)
    """
    if f is None:
        return functools.partial(
            shard_map,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axis_names,
            check_vma=check_vma,
        )
    check(
        callable(f),
        lambda: (
            f"[shard_map] the first argument must be a function; got {f!r}. "
            "Fix: shard_map(f, mesh=mesh, in_specs=..., out_specs=...)."
        ),
        TypeError,
    )
    check(
        isinstance(axis_names, set | frozenset),
        lambda: f"[shard_map] axis_names must be a set; got {axis_names!r}. Fix: {{'x'}}.",
    )
    check(
        mesh is None or isinstance(mesh, Mesh | AbstractMesh),
        lambda: (
            f"[shard_map] the mesh must be a Mesh; got {mesh!r}. Fix: mesh=make_mesh((8,), ('x',))."
        ),
        ValueError,
    )
    return ShardMapped(f, mesh, in_specs, out_specs, frozenset(axis_names), check_vma)
