"""pmap: one program over the devices along an axis of its arguments.

Devices that share a driver are a batch (docs/design/0016-many-devices.md): the program is jitted
and mapped like one of vmap, collectives over the axis are its batch rules, and results say which
device has which element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any

import numpy as np

from gpuflow.base import tree
from gpuflow.base.config import config, extend_axes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import operand_avals
from gpuflow.control.jit_function import JitFunction, argument_names
from gpuflow.control.jit_options import JitOptions, name_of
from gpuflow.control.mapped_axes import (
    axes_of,
    check_axes,
    check_names,
    first_element,
    mapped_size,
    output_name,
    placed,
    positions_of,
)
from gpuflow.control.stages import Lowered
from gpuflow.core.communicator import Across, Within
from gpuflow.core.rules import AxisData
from gpuflow.core.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, devices, process
from gpuflow.runtime.sharded import whole_of, with_sharding
from gpuflow.transforms.batching import batch_flat

_NO_NAME = "<pmap>"  # what the mesh of results calls an axis without a name


@record
class PmapOptions:
    """What ``pmap`` was asked for; see there."""

    axis_name: Any = None
    in_axes: Any = 0
    out_axes: Any = 0
    static: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    devices: tuple[Device, ...] = ()
    axis_size: int | None = None


@record(frozen=False)
class _Mapped:
    """The program for arguments of one structure and type.

    Attributes:
        run: the jitted function of leaves.
        devices: one for each element of the axis.
        name: of the axis, for meshes.
        out_tree, targets: of the outputs, known once it was traced.
        shardings: of outputs, by where the axis is and their rank.
    """

    run: JitFunction
    devices: tuple[Device, ...]
    name: Any
    out_tree: Any = None
    targets: list[int | None] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
    shardings: dict[tuple[int | None, int], Sharding] = field(default_factory=dict)

    def sharding(self, target: int | None, rank: int) -> Sharding:
        """Where the parts of an output of ``rank`` dimensions are."""
        found = self.shardings.get((target, rank))
        if found is None:
            grid = np.empty(len(self.devices), object)
            grid[:] = self.devices
            before = 0 if target is None else target % rank
            spec = () if target is None else (*[None] * before, self.name)
            found = NamedSharding(Mesh(grid, (self.name,)), PartitionSpec(*spec))
            self.shardings[target, rank] = found
        return found


class PmapFunction:
    """A function that runs once for each device; see ``pmap``."""

    def __init__(self, function: Callable[..., Any], options: PmapOptions) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._mapped: dict[Any, _Mapped] = {}
        self.name = name_of(function)

    def __repr__(self) -> str:
        return f"<pmap of {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, mapped = self._prepared(args, kwargs)
        outs = mapped.run(*leaves)
        if mapped.unequal:
            outs = _checked(mapped, outs, self.name)
        placed_outs = [
            with_sharding(out, mapped.sharding(target, out.aval.ndim))
            if type(out) is Array
            else out
            for out, target in safe_zip(outs, mapped.targets)
        ]
        return tree.unflatten(mapped.out_tree, placed_outs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments or ShapeDtypeStructs, without running anything."""
        leaves, mapped = self._prepared(args, kwargs)
        return mapped.run.lower(*leaves)

    def clear_cache(self) -> None:
        """Forget all traced signatures."""
        self._mapped.clear()

    def _prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], _Mapped]:
        """The leaves of the arguments, and the program for their structure."""
        options = self._options
        statics = tuple((k, args[k]) for k in options.static if k < len(args))
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in options.static)
        leaves, in_tree = tree.flatten((dynamic, kwargs))
        leaves = [whole_of(leaf) for leaf in leaves]
        axes = positions_of("pmap", leaves, self._axes(args, dynamic, kwargs), self.name)
        size = mapped_size(
            "pmap", leaves, axes, _own_size(options, self.name), self.name,
            lambda: argument_names(self._function, dynamic, kwargs, options.static),
        )  # fmt: skip
        key = (in_tree, statics, tuple(axes), size, operand_avals(leaves), config.environment.check)
        try:
            found = self._mapped.get(key)
        except TypeError:
            raise ValueError(
                f"[pmap] static arguments of {self.name} must be hashable; got "
                f"{[value for _, value in statics]}. Fix: pass a tuple, or map the argument."
            ) from None
        if found is None:
            found = self._mapped[key] = self._map(dynamic, statics, in_tree, axes, size)
        return leaves, found

    def _axes(
        self, args: tuple[Any, ...], dynamic: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[int | None]:
        in_axes, static = self._options.in_axes, self._options.static
        if isinstance(in_axes, tuple) and static and len(in_axes) == len(args):
            in_axes = tuple(axis for k, axis in enumerate(in_axes) if k not in static)
        return axes_of("pmap", in_axes, dynamic, kwargs, self.name)

    def _map(
        self, dynamic: tuple[Any, ...], statics: Sequence[tuple[int, Any]], in_tree: Any,
        axes: Sequence[int | None], size: int,
    ) -> _Mapped:  # fmt: skip
        """The jitted function of leaves for one structure of arguments."""
        options, fixed = self._options, dict(statics)
        neighbors = _neighbors(options)
        axis = AxisData(options.axis_name if neighbors is None else Within(neighbors.name), size)
        name = _NO_NAME if options.axis_name is None else options.axis_name
        chosen = _devices_for(size, options.devices, self.name)

        def user(*values: Any) -> list[Any]:
            rest, kwargs = tree.unflatten(in_tree, values)
            others = iter(rest)
            count = len(rest) + len(fixed)
            full = [fixed[k] if k in fixed else next(others) for k in range(count)]
            result = self._function(*full, **kwargs)
            outs, made.out_tree = tree.flatten(result)
            made.targets = tree.broadcast_prefix(options.out_axes, result, "pmap out_axes")
            user.result = result
            return outs

        def flat(*values: Any) -> list[Any]:
            uniform: list[bool] = []
            with _in_scope(neighbors):
                outs, dims = batch_flat(user, axis, values, axes, uniform)
            made.unequal = []
            results, tests = [], []
            for k, (out, dim, target) in enumerate(safe_zip(outs, dims, made.targets)):
                if target is None and dim is not None:
                    if not uniform[k] and config.environment.check:
                        made.unequal.append(output_name(user.result, k, self.name))
                        tests.append(out)
                    out, dim = first_element(out, dim), None
                where = functools.partial(output_name, user.result, k, self.name)
                results.append(placed("pmap", out, dim, target, size, where))
            user.result = None  # tracers must not outlive their trace
            return [*results, *tests]

        donated = _donated_leaves(dynamic, options)
        made = _Mapped(JitFunction(flat, JitOptions(donate_argnums=donated)), chosen, name)
        return made


def _neighbors(options: PmapOptions) -> Across | None:
    """The part of the axis that lies between processes: each maps its own slice, as in JAX."""
    alone = process.count == 1 or options.axis_name is None
    if alone or (options.devices and all(device.is_local for device in options.devices)):
        return None
    # An outer pmap has taken the processes: then the inner axis is this process's.
    if any(isinstance(name, Across) for name, _ in config.axis_env):
        return None
    counts = [sum(device.process_index == k for device in devices()) for k in range(process.count)]
    check(
        len(set(counts)) == 1,
        lambda: (
            f"[pmap] all processes must have as many devices; got {counts}. "
            "Fix: start them with the same GPUFLOW_CPU_DEVICES."
        ),
        ValueError,
    )
    return Across(options.axis_name)


def _own_size(options: PmapOptions, name: str) -> int | None:
    """This process's part of ``axis_size``, which counts the devices of all processes."""
    if options.axis_size is None or _neighbors(options) is None:
        return options.axis_size
    check(
        options.axis_size % process.count == 0,
        lambda: (
            f"[pmap] axis_size must be a multiple of the number of processes; got "
            f"{options.axis_size} for {process.count} in {name}. Fix: leave axis_size out."
        ),
        ValueError,
    )
    return options.axis_size // process.count


def _in_scope(neighbors: Across | None) -> AbstractContextManager[None]:
    """The user's name stands for the processes, and then a process's devices, row-major."""
    if neighbors is None:
        return nullcontext()
    parts = (neighbors, Within(neighbors.name))
    return extend_axes((neighbors, process.count), aliases={neighbors.name: parts})


def _donated_leaves(dynamic: Sequence[Any], options: PmapOptions) -> tuple[int, ...]:
    """The numbers of the leaves of donated arguments."""
    positions = [k for k in range(len(dynamic) + len(options.static)) if k not in options.static]
    flags: list[bool] = []
    for position, arg in zip(positions, dynamic, strict=False):
        flags += [position in options.donated] * len(tree.leaves(arg))
    return tuple(k for k, flag in enumerate(flags) if flag)


def _devices_for(size: int, given: Sequence[Device], name: str) -> tuple[Device, ...]:
    """The devices of an axis.

    Raises:
        ValueError: there are not enough, or not as many as were given.
    """
    there = tuple(device for device in given or devices() if device.is_local)
    check(
        size == len(there) if given else size <= len(there),
        lambda: (
            f"[pmap] the mapped axis of {name} must have "
            f"{'one element for each given device' if given else 'at most one for each device'}; "
            f"got size {size} for {len(there)} devices. Fix: reshape to "
            f"({len(there)}, {size}//{len(there)}, ...), use vmap, or start with "
            f"GPUFLOW_CPU_DEVICES={size}."
        ),
        ValueError,
    )
    return there[:size]


def _checked(mapped: _Mapped, outs: Sequence[Any], name: str) -> list[Any]:
    """The outputs without those that were made to compare them: GPUFLOW_CHECK=1.

    Raises:
        ValueError: an output of out_axes=None differs between devices.
    """
    count = len(mapped.targets)
    for out, which in zip(outs[count:], mapped.unequal, strict=True):
        if isinstance(out, Tracer):
            continue
        rows = np.asarray(out)
        bits = [row.tobytes() for row in rows]
        check(
            len(set(bits)) <= 1,
            lambda which=which: (
                f"[pmap] out_axes of None needs an output that is equal on all devices; got "
                f"different values from {which}. Fix: reduce it with lax.pmean, or use out_axes=0."
            ),
            ValueError,
        )
    return list(outs[:count])


def pmap(
    fun: Callable[..., Any],
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
) -> PmapFunction:
    """Run ``fun`` on several devices, each with its element of a mapped axis.

    Args:
        fun: a function of arrays or trees.
        axis_name: a hashable name for collectives over the devices, such as ``lax.pmean``.
        in_axes: the mapped axis of each argument: an int, None (every device gets it whole), or a
            tree prefix of the arguments. Keyword arguments are mapped over axis 0.
        out_axes: where the mapped axis goes in the outputs, likewise; None for outputs that are
            equal on all devices: the first one's is taken (GPUFLOW_CHECK=1 compares them).
        static_broadcasted_argnums: hashable arguments that are part of the signature.
        devices: one for each element; by default this process's first ones.
        backend: the platform whose devices those are.
        axis_size: the size of the axis over all processes, needed only when no argument is mapped.
        donate_argnums: arguments whose memory the outputs may use.
        global_arg_shapes: no longer used; as in JAX.

    Returns:
        A function of the same arguments. Its results are Arrays whose ``sharding`` says which
        device has which element. It may be called under jit, grad, vmap and pmap.

    Raises:
        ValueError: sizes that differ, or more elements than devices.
        TypeError: axes that are no ints or None, names that are not hashable.
    """
    del global_arg_shapes
    check(
        callable(fun),
        lambda: f"[pmap] the first argument must be a function; got {fun!r}. Fix: pmap(f)(x).",
        TypeError,
    )
    name = name_of(fun)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    check_axes("pmap", "in_axes", in_axes, name)
    check_axes("pmap", "out_axes", out_axes, name)
    check_names("pmap", axis_name, axis_size, name)
    options = PmapOptions(
        axis_name, in_axes, out_axes, _numbers(static_broadcasted_argnums),
        _numbers(donate_argnums), tuple(devices or _of_backend(backend)), axis_size,
    )  # fmt: skip
    check(
        not set(options.static) & set(options.donated),
        lambda: f"[pmap] static arguments cannot be donated; got {options.static} and "
        f"{options.donated} for {name}. Fix: leave them out of donate_argnums.",
        ValueError,
    )
    return PmapFunction(fun, options)


def _numbers(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _of_backend(backend: str | None) -> tuple[Device, ...]:
    if backend is None:
        return ()
    return tuple(device for device in devices(backend) if device.is_local)
