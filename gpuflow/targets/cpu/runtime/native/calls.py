"""Calls in native programs: kernel launches, and the interface of providers of library calls."""

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

VECTOR_POINTS = 64  # most points that an iteration of a vector loop takes; chunks are multiples


class NativeCall(NamedTuple):
    """A provider's implementation of a library call: the ``Choice`` of the CPU.

    Attributes:
        emit: writes the instructions of the call.
        workspace_bytes: memory that the call needs besides operands and outputs.
        runs: returns the code that the instructions run, so that it is built together with the
            other code of a program. Code that is missing here is built by ``emit``.
    """

    emit: Callable[[CallStep, NativeServices, Code, Locations], None]
    workspace_bytes: int = 0
    runs: Callable[[], Sequence[Runs]] = tuple


def launch(
    calls: Sequence[KernelCall], services: NativeServices, code: Code, locations: Locations
) -> None:
    """Emit one launch of a kernel for one or several calls with the same kernel.

    Several calls are segments of one launch, with a table of their argument blocks.
    """
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


# Assumed trip count of loops that are part of a kernel: with them, few elements justify threads.
_ITERATIONS = 100


def _is_in_order(kernel: Kernel) -> bool:
    """Whether one thread must visit all points, since the kernel has a SERIAL axis."""
    return any(axis.role is Role.SERIAL for axis in kernel.axes)


def _launch_segments(
    kernel: Kernel,
    function: int,
    calls: Sequence[KernelCall],
    blocks: Sequence[int],
    services: NativeServices,
    code: Code,
) -> None:
    """Emit a launch over the concatenated ranges of segments, which threads share.

    Without a PARALLEL axis a segment is a full reduction, which one thread computes.
    """
    is_whole = all(axis.role is not Role.PARALLEL for axis in kernel.axes)
    table, start = [function, int(is_whole), len(calls)], 0
    for call, block in zip(calls, blocks, strict=True):
        table += [start, block, call.extent]
        # A full reduction takes a range as long as its points, so that threads get similar work.
        start += max(call.points, 1) if is_whole else call.extent
        if kernel.kind == "map":
            # Each segment starts at a multiple of the vector width, as in a separate launch.
            start = -(-start // VECTOR_POINTS) * VECTOR_POINTS
    first = code.block(table)
    for k in range(len(calls)):
        code.refer(first + 4 + 3 * k)
    points = sum(call.points for call in calls)
    chunk, is_long = services.chunk(start, points), remembered(kernel, has_long_loops)
    code.run(native_function("gf_segments"), first, start, chunk, points, is_long)


def _argument_block(call: KernelCall, code: Code, locations: Locations) -> int:
    """Append a kernel's argument block; SET instructions write addresses that calls change."""
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
