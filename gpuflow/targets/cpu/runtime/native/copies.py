"""Locations of buffers in a native program, and copies between them.

A slot of an argument block is an address that no call changes, or a register and an offset, which
an instruction of the program writes before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Protocol

import numpy as np

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import Operand, Plan
from gpuflow.core.aval import storage_dtype
from gpuflow.core.views import View
from gpuflow.runtime.memory import Arena, address
from gpuflow.targets.cpu.codegen.schedules.copies import copying_call
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location, fixed
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices, Runs


class Locations(Protocol):
    """Locations of the buffers of a program under construction."""

    memory: Arena
    plan: Plan

    @property
    def addresses(self) -> Mapping[int, int]:
        """The addresses of temporaries."""
        ...

    def of(self, buffer: int) -> Location:
        """The location of a buffer."""
        ...


def addresses_in(plan: Plan, memory: Arena) -> dict[int, int]:
    """The addresses of a plan's temporaries."""
    start = address(memory.memory)
    return {buffer: start + offset for buffer, offset in plan.offsets.items()}


def operand_location(operand: Operand, code: Code, locations: Locations) -> Location:
    """Location of the first element of a row-major operand."""
    if operand.buffer == NO_BUFFER:
        value = np.asarray(operand.value, storage_dtype(operand.aval.dtype))
        elements = np.array(np.broadcast_to(value, operand.aval.shape), order="C")
        code.keep(elements)
        return fixed(address(elements))
    location = locations.of(operand.buffer)
    if operand.view is None:
        return location
    register, offset = location
    return register, offset + operand.view.offset * storage_dtype(operand.aval.dtype).itemsize


def copy_view(
    view: View,
    itemsize: int,
    source: Location,
    target: Location,
    services: NativeServices,
    code: Code,
) -> None:
    """Copy the elements of a view, starting at ``source``, in row-major order."""
    size = prod(view.shape)
    if not size * itemsize:  # float0 holds nothing
        return
    if view.is_contiguous:
        name, arguments, extent = "gf_copy", [], size * itemsize
    else:
        axes = moving_axes(view)
        call = copying_call(axes, itemsize)
        if call is not None:
            _copy_in_kernel(call, source, target, services, code)
            return
        *outer, (row, stride) = axes
        arguments = [len(outer), row, stride * itemsize]
        arguments += [argument for n, step_ in outer for argument in (n, step_ * itemsize)]
        name, extent = _strided(itemsize), size // row
    block = code.block([0, 0, *arguments])
    code.fill(block, target)
    code.fill(block + 1, source)
    code.run(native_function(name), block, extent, services.chunk(extent, size), size)


def code_of_copy(view: View, itemsize: int) -> list[Runs]:
    """The code that ``copy_view`` runs, if it is not in the runtime of every program."""
    if not prod(view.shape) * itemsize or view.is_contiguous:
        return []
    call = copying_call(moving_axes(view), itemsize)
    return [Build(native_function, (_strided(itemsize),)) if call is None else call.kernel]


def _strided(itemsize: int) -> str:
    return f"gf_strided_{itemsize}"


def _copy_in_kernel(
    call: KernelCall, source: Location, target: Location, services: NativeServices, code: Code
) -> None:
    block = code.block(call.slots)
    code.fill(block, source)
    code.fill(block + 1, target)
    loaded = services.load(call.kernel)
    code.keep(loaded)
    chunk = services.chunk(call.extent, call.points)
    code.run(loaded.address, block, call.extent, chunk, call.points)


def moving_axes(view: View) -> list[tuple[int, int]]:
    """Sizes and strides of a view's dimensions; those of size 1 and collapsible ones are merged."""
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
    source: Location, target: Location, count: int, services: NativeServices, code: Code
) -> None:
    """Copy ``count`` bytes, unless both locations are the same."""
    if source == target:
        return
    block = code.block((0, 0))
    code.fill(block, target)
    code.fill(block + 1, source)
    code.run(native_function("gf_copy"), block, count, count, count)
