"""``pmap``: run one program on each device along a mapped axis of the arguments.

Devices that share a driver are a batch (docs/design/0016-many-devices.md). The function is jitted
and mapped as in vmap; batching rules implement collectives over the axis; results get shardings.
Over several memories this batched program runs in each memory, as a ``shard_map_p`` equation.

Tests: tests/parallel/test_pmap.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar

from gpuflow.base import tree
from gpuflow.base.arguments import as_argnums
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import operand_avals
from gpuflow.control.jit_function import JitFunction, argument_names
from gpuflow.control.jit_options import JitOptions, check_callable, name_of
from gpuflow.control.mapped_axes import (
    axes_of,
    check_axes,
    check_names,
    equal_element,
    leaf_axes,
    mapped_size,
    output_at,
    output_name,
    positions_of,
)
from gpuflow.control.stages import Lowered
from gpuflow.core.argument_kinds import explained
from gpuflow.core.communicator import Across, Within
from gpuflow.core.rules import AxisData
from gpuflow.core.sharding import NamedSharding, PartitionSpec
from gpuflow.core.trace import Tracer
from gpuflow.ops.effects.device_put import sharding_constraint
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.parallel.mapping.mapped_function import (
    MappedFunction,
    MappedOutputs,
    OutputLayout,
    has_no_tracers,
    in_one_memory,
    trace_outputs,
)
from gpuflow.parallel.mapping.pmap_axes import (
    NO_NAME,
    PmapOptions,
    devices_for,
    donated_leaves,
    in_scope,
    is_inside,
    local_axis_size,
    memories_between,
    mesh_of,
    neighbors_of,
)
from gpuflow.parallel.mapping.pmap_program import Mapped, without_tests
from gpuflow.parallel.mapping.shard_map_call import local_aval
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, process
from gpuflow.runtime.memories import Memories
from gpuflow.runtime.sharded import check_same_devices, whole_of, with_sharding
from gpuflow.transforms.batching import batch_flat

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PmapFunction(MappedFunction[PmapOptions, Mapped], Generic[_P, _T]):
    """A function that runs once for each device; see ``pmap``."""

    def __init__(self, function: Callable[_P, _T], options: PmapOptions) -> None:
        super().__init__("pmap", function, options)
        self._memories_by_size: dict[int, Memories | None] = {}

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        leaves, mapped = self._prepared(args, kwargs)
        if mapped.memories is None:
            outputs = mapped.run(*map(functools.partial(_constrained, mapped), leaves, mapped.axes))
        else:
            outputs = mapped.in_memories(leaves, operand_avals(leaves), self.name)
        layout = outputs.layout
        return tree.unflatten(layout.tree, _finished(mapped, layout, outputs.values))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments or ShapeDtypeStructs, without running anything."""
        leaves, mapped = self._prepared(args, kwargs)
        lowered = mapped.run.lower(*leaves)
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in self._options.static)
        count = lowered.out_tree.num_leaves
        layout = tree.unflatten(lowered.out_tree, [None] * count).layout
        finish = functools.partial(_finished, mapped, layout)
        in_tree = tree.structure((dynamic, kwargs))
        return lowered.of_trees(in_tree, layout.tree, self.name, finish)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Mapped]:
        """Check the arguments; return their leaves, and the program for their signature."""
        options = self._options
        check(
            config.mesh is None or not config.mesh.is_planned,
            lambda: (
                f"[explain] pmap maps over the devices that exist; got {self.name} in a plan over "
                f"{config.mesh}. Fix: shard_map, which takes the mesh of the plan."
            ),
            NotImplementedError,
        )
        check(
            all(k < len(args) for k in options.static),
            lambda: (
                f"[pmap] static_broadcasted_argnums must be positions of arguments; got "
                f"{options.static} for {len(args)} of {self.name}. Fix: pass them by position."
            ),
            ValueError,
        )
        statics = tuple((k, args[k]) for k in options.static if k < len(args))
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in options.static)
        leaves, in_tree = tree.flatten((dynamic, kwargs))
        axes = positions_of("pmap", leaves, self._axes(args, dynamic, kwargs), self.name)
        size = mapped_size(
            "pmap",
            leaves,
            axes,
            local_axis_size(options, self.name),
            self.name,
            lambda: argument_names(self._function, dynamic, kwargs, options.static),
        )
        check(
            size > 0,
            lambda: (
                f"[pmap] mapped axes must have elements; got size 0 for {self.name}. Fix: map "
                "over at least one device."
            ),
            ValueError,
        )
        device_mesh = mesh_of(devices_for(size, options, self.name), NO_NAME)
        check_same_devices("pmap", leaves, [NamedSharding(device_mesh, PartitionSpec())])
        memories = self._memories(size)
        settings = None
        if memories is None:
            leaves = [in_one_memory(leaf) for leaf in leaves]
        else:  # the program is traced here, not in jit, so the settings are part of the key
            settings = config.trace_context()
        avals, check_values = operand_avals(leaves), config.environment.check
        key = (in_tree, statics, tuple(axes), size, avals, check_values, settings)
        try:
            mapped = self._find(
                key,
                lambda: self._map(dynamic, statics, in_tree, axes, size, avals, memories),
                lambda program: has_no_tracers(program.consts),
            )
        except TypeError as error:
            if "hash" not in str(error) or not statics:
                raise
            raise ValueError(
                f"[pmap] static arguments of {self.name} must be hashable; got "
                f"{[value for _, value in statics]}. Fix: pass a tuple, or map the argument."
            ) from None
        return leaves, mapped

    def _memories(self, size: int) -> Memories | None:
        """The memories of the devices along the axis; None if there is only one."""
        chosen = devices_for(size, self._options, self.name)
        if is_inside():
            return None
        if size not in self._memories_by_size:
            self._memories_by_size[size] = memories_between(chosen, self._options)
        return self._memories_by_size[size]

    def _axes(
        self, args: tuple[Any, ...], dynamic: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[int | None]:
        in_axes, static = self._options.in_axes, self._options.static
        if isinstance(in_axes, tuple) and static and len(in_axes) == len(args):
            in_axes = tuple(axis for k, axis in enumerate(in_axes) if k not in static)
        return axes_of("pmap", in_axes, dynamic, kwargs, self.name)

    def _map(
        self,
        dynamic: tuple[Any, ...],
        statics: Sequence[tuple[int, Any]],
        in_tree: Any,
        axes: Sequence[int | None],
        size: int,
        avals: Sequence[Any],
        memories: Memories | None,
    ) -> Mapped:
        """Create the program for one signature."""
        options, fixed = self._options, dict(statics)
        neighbors, count = neighbors_of(options), process.count
        name = NO_NAME if options.axis_name is None else options.axis_name
        chosen = devices_for(size, options, self.name)
        if memories is not None:
            neighbors, count = Across(name, memories.key), len(memories.team)
            size //= memories.between[name]
        axis_name = options.axis_name if neighbors is None else Within(neighbors.name)
        axis = AxisData(axis_name, size, has_devices=True)

        def user(layouts: list[OutputLayout], *values: Any) -> list[Any]:
            dynamic_args, kwargs = tree.unflatten(in_tree, values)
            remaining = iter(dynamic_args)
            count = len(dynamic_args) + len(fixed)
            full = [fixed[k] if k in fixed else next(remaining) for k in range(count)]
            result = self._function(*full, **kwargs)
            outs, out_tree = tree.flatten(result)
            targets = leaf_axes("pmap", "out_axes", options.out_axes, result)
            layouts.append(OutputLayout(out_tree, tuple(targets)))
            return outs

        def flat(*values: Any) -> MappedOutputs:
            uniform: list[bool] = []
            layouts: list[OutputLayout] = []
            function = functools.partial(user, layouts)
            with nullcontext() if neighbors is None else in_scope(neighbors, count):
                outs, dims = batch_flat(function, axis, values, axes, uniform)
            (layout,) = layouts
            results, tests, unequal = [], [], []
            for k, (out, dim, target) in enumerate(safe_zip(outs, dims, layout.mapped)):
                if target is None and dim is not None:
                    if not uniform[k] and config.environment.check:
                        unequal.append(output_name(layout.tree, k, self.name))
                        tests.append(move_axis(out, dim, 0))
                    out, dim = equal_element(out, dim), None
                where = functools.partial(output_name, layout.tree, k, self.name)
                results.append(output_at("pmap", out, dim, target, size, where))
            return MappedOutputs([*results, *tests], replace(layout, unequal=tuple(unequal)))

        donated = donated_leaves(dynamic, options)
        jitted = JitFunction(flat, JitOptions(donate_argnums=donated))
        mapped = Mapped(jitted, chosen, name, memories, axes, donated)
        if memories is not None:
            pairs = safe_zip(avals, mapped.in_shardings(avals))
            local = [local_aval(aval, sharding, memories) for aval, sharding in pairs]
            traced = trace_outputs(flat, local, self.name)
            mapped.traced, mapped.consts, mapped.layout = traced
        return mapped


def _finished(mapped: Mapped, layout: OutputLayout, outs: Sequence[Any]) -> list[Any]:
    """Convert outputs of the program to leaves of the result: checks and shardings."""
    if layout.unequal:
        outs = without_tests(layout, outs)
    return list(map(functools.partial(_placed, mapped), outs, layout.mapped))


def _placed(mapped: Mapped, out: Any, target: int | None) -> Any:
    """Give an output its sharding; a tracer gets a sharding constraint."""
    whole = whole_of(out)
    if type(whole) is not Array and not isinstance(whole, Tracer):
        return out
    goal = mapped.sharding(target, whole.aval.ndim)
    return with_sharding(whole, goal) if type(whole) is Array else sharding_constraint(whole, goal)


def _constrained(mapped: Mapped, leaf: Any, axis: int | None) -> Any:
    """Constrain a traced argument to its sharding, so that its cotangent has it too."""
    if not isinstance(leaf, Tracer):
        return leaf
    return sharding_constraint(leaf, mapped.sharding(axis, leaf.aval.ndim))


@explained
def pmap(
    fun: Callable[_P, _T],
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Sequence[int] = (),
    devices: Sequence[Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Sequence[int] = (),
    global_arg_shapes: Any = None,
) -> PmapFunction[_P, _T]:
    """Run ``fun`` on several devices, one element of a mapped axis on each.

    Args:
        fun: a function of arrays or trees.
        axis_name: a hashable name for collectives over the devices, such as ``lax.pmean``.
        in_axes: the mapped axis of each argument: an int, None (replicated on all devices), or a
            tree prefix of the arguments. Keyword arguments are mapped over axis 0.
        out_axes: position of the mapped axis in the outputs, in the same form. None for outputs
            that are equal on all devices: the first one is used (GPUFLOW_CHECK=1 compares them).
        static_broadcasted_argnums: hashable arguments that are part of the signature.
        devices: one for each element; the first devices of this process by default.
        backend: the platform of the devices.
        axis_size: size of the axis over all processes, required only if no argument is mapped.
        donate_argnums: donated arguments; outputs may reuse their memory.
        global_arg_shapes: deprecated; no effect, as in JAX.

    Returns:
        A function of the same arguments. The ``sharding`` of its results assigns elements to
        devices. It may be called under jit, grad, vmap and pmap.

    Raises:
        ValueError: if sizes differ, or there are more elements than devices.
        TypeError: if axes are not ints or None, or names are not hashable.

    Example:
        >>> f = gf.pmap(lambda x: x / gf.lax.psum(x, "i"), "i")
        >>> f(jnp.array([[2.0, 4.0]]))
        Array([[1., 1.]], dtype=float32)
    """
    del global_arg_shapes
    check(
        devices is None or len(devices) > 0,
        lambda: "[pmap] devices must not be empty; got none. Fix: leave it out for all devices.",
        ValueError,
    )
    check_callable(fun, "pmap")
    name = name_of(fun)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    check_axes("pmap", "in_axes", in_axes, name)
    check_axes("pmap", "out_axes", out_axes, name)
    check_names("pmap", axis_name, axis_size, name)
    options = PmapOptions(
        axis_name,
        in_axes,
        out_axes,
        _argnums("static_broadcasted_argnums", static_broadcasted_argnums),
        _argnums("donate_argnums", donate_argnums),
        tuple(devices or ()),
        axis_size,
        backend,
    )
    check(
        not set(options.static) & set(options.donated),
        lambda: (
            f"[pmap] static arguments cannot be donated; got {options.static} and "
            f"{options.donated} for {name}. Fix: leave them out of donate_argnums."
        ),
        ValueError,
    )
    return PmapFunction(fun, options)


def _argnums(what: str, value: int | Sequence[int]) -> tuple[int, ...]:
    argnums = as_argnums("pmap", what, value)
    return (argnums,) if isinstance(argnums, int) else argnums
