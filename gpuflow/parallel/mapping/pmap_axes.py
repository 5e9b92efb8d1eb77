"""The mapped axis of pmap: its devices, memories and processes; donated arguments.

Tests: tests/parallel/test_pmap.py, tests/parallel/test_process_pmap.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from gpuflow.base import tree
from gpuflow.base.config import config, extend_axes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.communicator import Across, Within
from gpuflow.core.mesh import Mesh
from gpuflow.runtime.device import Device, devices, process
from gpuflow.runtime.memories import Memories, first_of_each, memories_of

NO_NAME = "<pmap>"  # mesh axis of results, if the user gave no name


@record
class PmapOptions:
    """The options of ``pmap``; see there.

    Attributes:
        axis_name, in_axes, out_axes, axis_size, backend: as in ``pmap``.
        static: positions of static arguments.
        donated: positions of donated arguments.
        devices: the devices; empty means the first devices of the platform.
    """

    axis_name: Any = None
    in_axes: Any = 0
    out_axes: Any = 0
    static: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    devices: tuple[Device, ...] = ()
    axis_size: int | None = None
    backend: str | None = None


def mesh_of(chosen: Sequence[Device], name: Any) -> Mesh:
    """The mesh of one axis over these devices."""
    grid = np.empty(len(chosen), object)
    grid[:] = chosen
    return Mesh(grid, (name,))


def neighbors_of(options: PmapOptions) -> Across | None:
    """The factor of the axis across processes, of which each maps its own slice, as in JAX.

    None if the pmap runs in this process only.
    """
    alone = process.count == 1 or options.axis_name is None
    if alone or (options.devices and all(device.is_local for device in options.devices)):
        return None
    # If an outer pmap spans the processes, the inner axis is within this process.
    if any(isinstance(name, Across) for name, _ in config.axis_env):
        return None
    all_devices = devices(options.backend)
    counts = [
        sum(device.process_index == k for device in all_devices) for k in range(process.count)
    ]
    check(
        len(set(counts)) == 1,
        lambda: (
            f"[pmap] all processes must have as many devices; got {counts}. "
            "Fix: start them with the same GPUFLOW_CPU_DEVICES."
        ),
        ValueError,
    )
    return Across(options.axis_name)


def local_axis_size(options: PmapOptions, name: str) -> int | None:
    """This process's share of ``axis_size``, which counts the devices of all processes."""
    if options.axis_size is None or neighbors_of(options) is None:
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


def is_inside() -> bool:
    """Whether the current trace is for a program of one of several memories."""
    return any(isinstance(name, Across) for name, _ in config.trace_context().axis_env)


def memories_between(chosen: Sequence[Device], options: PmapOptions) -> Memories | None:
    """The memories of this process's devices; None if there is only one.

    Raises:
        ValueError: if processes have different numbers of devices or memories.
    """
    name = NO_NAME if options.axis_name is None else options.axis_name
    memories = memories_of(mesh_of(chosen, name)) if chosen else None
    if memories is None or neighbors_of(options) is None:
        return memories
    all_devices = options.devices or devices(chosen[0].platform)
    team: list[Device] = []
    for rank in range(process.count):
        theirs = [device for device in all_devices if device.process_index == rank]
        team += first_of_each(theirs[: len(chosen)])
    check(
        len(team) == process.count * len(memories.devices),
        lambda: (
            f"[pmap] all processes must have as many devices and memories; got {team}. "
            "Fix: give all of them as many devices."
        ),
        ValueError,
    )
    return replace(memories, team=tuple(team))


def in_scope(across: Across, count: int) -> AbstractContextManager[None]:
    """Alias the user's axis name to two axes, row-major: memories, then devices within one."""
    return extend_axes((across, count), aliases={across.name: (across, Within(across.name))})


def donated_leaves(dynamic: Sequence[Any], options: PmapOptions) -> tuple[int, ...]:
    """The indices of the leaves of donated arguments."""
    positions = [k for k in range(len(dynamic) + len(options.static)) if k not in options.static]
    flags: list[bool] = []
    for position, arg in zip(positions, dynamic, strict=False):
        flags += [position in options.donated] * len(tree.leaves(arg))
    return tuple(k for k, flag in enumerate(flags) if flag)


def devices_for(size: int, options: PmapOptions, name: str) -> tuple[Device, ...]:
    """This process's devices along an axis of ``size`` elements.

    Raises:
        ValueError: if there are not enough, or not as many as the user gave.
    """
    requested = options.devices
    local = tuple(device for device in requested or devices(options.backend) if device.is_local)
    check(
        size == len(local) if requested else size <= len(local),
        lambda: (
            f"[pmap] the mapped axis of {name} must have "
            f"{'one element' if requested else 'at most one'} for each "
            f"{'given device' if requested else 'device'}; got size {size} for {len(local)} "
            f"devices. Fix: reshape to ({len(local)}, {size}//{len(local)}, ...), use vmap, or "
            f"start with GPUFLOW_CPU_DEVICES={size}."
        ),
        ValueError,
    )
    return local[:size]
