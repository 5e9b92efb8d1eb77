"""Calls in native programs: kernel launches, and the interface of providers of library calls.

Tests: tests/compiler/test_segments.py, tests/targets/cpu/test_cpu_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.kir.nodes import Kernel, Role, memoized
from gpuflow.kir.walk import has_long_loops
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import Buildable, NativeServices

VECTOR_POINTS = 64  # most points that an iteration of a vector loop takes; chunks are multiples
_SEGMENT_HEADER_SLOTS, _SEGMENT_SLOTS = 3, 3  # of the table of gf_segments, see segments.ll


class NativeCall(NamedTuple):
    """A provider's implementation of a library call: the ``CallImplementation`` of the CPU.

    Attributes:
        emit: writes the instructions of the call, for the operands that the provider was asked
            about: views, literals or temporaries. Outputs are row-major.
        workspace_bytes: memory that the call needs besides operands and outputs. It is aligned to
            64 bytes; its contents are undefined before the call, and lost after it.
        required_code: returns the code that the instructions run, so that it is built together
            with the other code of a program. Code that is missing here is built by ``emit``.
    """

    emit: Callable[[CallStep, NativeServices, Code, Locations], None]
    workspace_bytes: int = 0
    required_code: Callable[[], Sequence[Buildable]] = tuple


def launch(
    calls: Sequence[KernelCall], services: NativeServices, code: Code, locations: Locations
) -> None:
    """Emit one launch of a kernel for one or several calls with the same kernel.

    Several calls are segments of one launch, with a table of their argument blocks. They must not
    depend on each other, since threads run them in any order.
    """
    kernel = calls[0].kernel
    loaded = services.load(kernel)
    code.keep_alive(loaded)
    if len(calls) > 1:
        blocks = [_bind_argument_block(call, code, locations) for call in calls]
        _launch_segments(loaded.address, calls, blocks, services, code)
        return
    (call,) = calls
    is_serial = memoized(kernel, _has_serial_axis)
    iterations = _LONG_LOOP_ITERATIONS if memoized(kernel, has_long_loops) else 1
    chunk = max(call.extent, 1)
    if not is_serial:
        chunk = services.chunk(call.extent, call.points, iterations)
    block = _bind_argument_block(call, code, locations)
    code.run(loaded.address, block, call.extent, chunk, call.points, iterations > 1)


# Assumed trip count of loops that are part of a kernel: with them, few elements justify threads.
_LONG_LOOP_ITERATIONS = 100


def _has_serial_axis(kernel: Kernel) -> bool:
    """Whether one thread must visit all points, since the kernel has a SERIAL axis."""
    return any(axis.role is Role.SERIAL for axis in kernel.axes)


def _launch_segments(
    function: int,
    calls: Sequence[KernelCall],
    blocks: Sequence[int],
    services: NativeServices,
    code: Code,
) -> None:
    """Emit a launch over the concatenated ranges of segments, which threads share.

    Without a PARALLEL axis a segment is a full reduction, which one thread computes.
    """
    kernel = calls[0].kernel
    is_full_reduction = all(axis.role is not Role.PARALLEL for axis in kernel.axes)
    table, start = [function, int(is_full_reduction), len(calls)], 0
    for call, block in zip(calls, blocks, strict=True):
        table += [start, block, call.extent]
        # A full reduction takes a range as long as its points, so that threads get similar work.
        start += max(call.points, 1) if is_full_reduction else call.extent
        if kernel.kind == "map":
            # Each segment starts at a multiple of the vector width, as in a separate launch.
            start = -(-start // VECTOR_POINTS) * VECTOR_POINTS
    table_block = code.add_argument_block(table)
    for k in range(len(calls)):  # the argument block of a segment is the second slot of its row
        row = table_block + _SEGMENT_HEADER_SLOTS + _SEGMENT_SLOTS * k
        code.relocate_slot(row + 1)
    points = sum(call.points for call in calls)
    chunk, is_long = services.chunk(start, points), memoized(kernel, has_long_loops)
    code.run(native_function("gf_segments"), table_block, start, chunk, points, is_long)


def _bind_argument_block(call: KernelCall, code: Code, locations: Locations) -> int:
    """Append a kernel's argument block; SET instructions write addresses that calls change."""
    block = code.add_argument_block(call.slots)
    addresses, data = locations.addresses, code.data
    for slot, buffer in enumerate(call.buffers, block):
        if buffer == NO_BUFFER:
            continue
        # A slot of an address has the byte offset in its buffer so far.
        at = addresses.get(buffer)
        if at is None:
            code.set_address(slot, locations.of(buffer), data[slot])
        else:
            data[slot] += at
    return block
