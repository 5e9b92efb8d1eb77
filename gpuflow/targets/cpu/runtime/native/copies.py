"""Locations of buffers in a native program, and copies between them.

An address in an argument block is either the same in all calls, or a register plus an offset. The
latter is written by a SET instruction before the block is used.

Tests: tests/targets/cpu/test_cpu_orders.py, tests/targets/cpu/test_native_lu.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Protocol

import numpy as np

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import Plan, StepOperand
from gpuflow.core.aval import storage_dtype
from gpuflow.core.views import View
from gpuflow.runtime.memory import Arena, address
from gpuflow.targets.cpu.codegen.schedules.copies import copy_kernel_call
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location, fixed
from gpuflow.targets.cpu.runtime.native.services import Build, Buildable, NativeServices


class Locations(Protocol):
    """Locations of the buffers of a native program under construction.

    Attributes:
        memory: the arena of temporaries.
        plan: the plan.
    """

    memory: Arena
    plan: Plan

    @property
    def addresses(self) -> Mapping[int, int]:
        """The addresses of temporaries, by buffer."""
        ...

    def of(self, buffer: int) -> Location:
        """The location of a buffer."""
        ...


def temporary_addresses(plan: Plan, memory: Arena) -> dict[int, int]:
    """The addresses of a plan's temporaries in an arena, by buffer.

    They are valid until the arena is reallocated, so it must have reserved ``plan.arena_bytes``.
    """
    start = address(memory.memory)
    return {buffer: start + offset for buffer, offset in plan.offsets.items()}


def operand_location(operand: StepOperand, code: Code, locations: Locations) -> Location:
    """The location of an operand's first element. A literal is stored row-major in the program."""
    if operand.buffer == NO_BUFFER:
        value = np.asarray(operand.value, storage_dtype(operand.aval.dtype))
        elements = np.array(np.broadcast_to(value, operand.aval.shape), order="C")
        code.keep_alive(elements)
        return fixed(address(elements))
    location = locations.of(operand.buffer)
    if operand.view is None:
        return location
    itemsize = storage_dtype(operand.aval.dtype).itemsize
    return location.shifted(operand.view.offset * itemsize)


def copy_view(
    view: View,
    itemsize: int,
    source: Location,
    target: Location,
    services: NativeServices,
    code: Code,
) -> None:
    """Emit a row-major copy of a view.

    Args:
        view: shape and strides; its offset is ignored.
        itemsize: bytes of an element: 1, 2, 4, 8 or 16; or 0, then nothing is emitted.
        source: location of the view's first element.
        target: location of the copy. It must not overlap the source, unless the view is contiguous.
        services: services of the program.
        code: the program.
    """
    size = prod(view.shape)
    if not size * itemsize:  # float0 has no bytes
        return
    if view.is_contiguous:
        name, arguments, extent = "gf_copy", [], size * itemsize
    else:
        axes = collapsed_view_axes(view)
        call = copy_kernel_call(axes, itemsize)
        if call is not None:
            _copy_in_kernel(call, source, target, services, code)
            return
        *outer, (row, stride) = axes
        arguments = [len(outer), row, stride * itemsize]
        for outer_size, outer_stride in outer:
            arguments += [outer_size, outer_stride * itemsize]
        name, extent = _strided_copy_symbol(itemsize), size // row
    block = code.add_argument_block([0, 0, *arguments])
    code.set_address(block, target)
    code.set_address(block + 1, source)
    code.run(native_function(name), block, extent, services.chunk(extent, size), size)


def code_for_copy(view: View, itemsize: int) -> list[Buildable]:
    """The code that ``copy_view`` runs, except functions of the core module, which always exist."""
    if not prod(view.shape) * itemsize or view.is_contiguous:
        return []
    call = copy_kernel_call(collapsed_view_axes(view), itemsize)
    return [
        Build(native_function, (_strided_copy_symbol(itemsize),)) if call is None else call.kernel
    ]


def _strided_copy_symbol(itemsize: int) -> str:
    return f"gf_strided_{itemsize}"


def _copy_in_kernel(
    call: KernelCall, source: Location, target: Location, services: NativeServices, code: Code
) -> None:
    block = code.add_argument_block(call.slots)
    code.set_address(block, source)
    code.set_address(block + 1, target)
    loaded = services.load(call.kernel)
    code.keep_alive(loaded)
    chunk = services.chunk(call.extent, call.points)
    code.run(loaded.address, block, call.extent, chunk, call.points)


def collapsed_view_axes(view: View) -> list[tuple[int, int]]:
    """Sizes and strides of a view's axes: dimensions of size 1 dropped, others collapsed.

    Strides are in elements, and 0 along broadcast dimensions. There is at least one axis. The view
    must not be empty.
    """
    axes: list[tuple[int, int]] = []
    repeats = view.broadcast or (False,) * len(view.shape)
    for size, stride, repeat in zip(view.shape, view.strides, repeats, strict=True):
        stride = 0 if repeat else stride
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes or [(1, 1)]


def copy_bytes(
    source: Location, target: Location, byte_count: int, services: NativeServices, code: Code
) -> None:
    """Emit a copy of ``byte_count`` bytes by one thread, unless both locations are the same."""
    if source == target:
        return
    block = code.add_argument_block((0, 0))
    code.set_address(block, target)
    code.set_address(block + 1, source)
    code.run(native_function("gf_copy"), block, byte_count, byte_count, byte_count)
