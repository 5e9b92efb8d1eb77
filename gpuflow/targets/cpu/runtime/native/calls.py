"""Calls of native programs: kernel launches, and instructions of providers for library calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.kir.nodes import Kernel, Role, remembered
from gpuflow.kir.walk import has_long_loops
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import NativeServices, Runs

VECTOR_POINTS = 64  # as many as a vector loop takes at a time; chunks are multiples of it


class NativeCall(NamedTuple):
    """A provider's implementation of a library call.

    Attributes:
        emit: writes its instructions.
        workspace_bytes: memory that it needs besides operands and outputs.
        runs: the code that the instructions run, if it can be determined early; it is then built
            with other code of a program, not when they are written.
    """

    emit: Callable[[CallStep, NativeServices, Code, Locations], None]
    workspace_bytes: int = 0
    runs: Callable[[], Sequence[Runs]] = tuple


def launch(
    calls: Sequence[KernelCall], services: NativeServices, code: Code, locations: Locations
) -> None:
    """Adds one launch of a kernel; several calls go through a table of their argument blocks."""
    kernel = calls[0].kernel
    loaded = services.load(kernel)
    code.keep(loaded)
    if len(calls) > 1:
        blocks = [_argument_block(call, code, locations) for call in calls]
        _launch_segments(kernel, loaded.address, calls, blocks, services, code)
        return
    (call,) = calls
    in_order = remembered(kernel, _is_in_order)
    iterations = _ITERATIONS if remembered(kernel, has_long_loops) else 1
    chunk = max(call.extent, 1)
    if not in_order:
        chunk = services.chunk(call.extent, call.points, iterations)
    block = _argument_block(call, code, locations)
    code.run(loaded.address, block, call.extent, chunk, call.points, iterations > 1)


# Assumed trip count of a loop in a kernel: threads pay off even for few elements.
_ITERATIONS = 100


def _is_in_order(kernel: Kernel) -> bool:
    return any(axis.role is Role.SERIAL for axis in kernel.axes)


def _launch_segments(
    kernel: Kernel,
    function: int,
    calls: Sequence[KernelCall],
    blocks: Sequence[int],
    services: NativeServices,
    code: Code,
) -> None:
    """Segments follow one another: threads take ranges of points, or whole reductions."""
    is_whole = all(axis.role is not Role.PARALLEL for axis in kernel.axes)
    table, start = [function, int(is_whole), len(calls)], 0
    for call, block in zip(calls, blocks, strict=True):
        table += [start, block, call.extent]
        # A whole reduction counts its points, so that threads get similar amounts of work.
        start += max(call.points, 1) if is_whole else call.extent
        if kernel.kind == "map":
            # Chunks begin at whole vectors of a segment, as in a separate launch.
            start = -(-start // VECTOR_POINTS) * VECTOR_POINTS
    first = code.block(table)
    for k in range(len(calls)):
        code.refer(first + 4 + 3 * k)
    points = sum(call.points for call in calls)
    chunk, is_long = services.chunk(start, points), remembered(kernel, has_long_loops)
    code.run(native_function("gf_segments"), first, start, chunk, points, is_long)


def _argument_block(call: KernelCall, code: Code, locations: Locations) -> int:
    """Allocate a call's argument block; instructions fill in slots that each call changes."""
    block = code.block(call.slots)
    addresses, data = locations.addresses, code.data
    for k, buffer in enumerate(call.buffers, block):
        if buffer == NO_BUFFER:
            continue
        at = addresses.get(buffer)
        if at is None:
            code.fill(k, locations.of(buffer), data[k])
        else:
            data[k] += at
    return block
