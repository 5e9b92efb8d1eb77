"""Where buffers are for a native program, and copies between them.

A word of an argument block is an address that no call changes, or a register and an offset, which
an instruction of the program writes before it is needed.
"""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np

from gpuflow.compiler.lower import KernelCall
from gpuflow.compiler.orders import transposing_copy
from gpuflow.compiler.plan import Operand, Plan
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.core.views import View
from gpuflow.runtime.memory import Arena, address
from gpuflow.runtime.native_code import Code, Place, fixed
from gpuflow.runtime.native_services import NativeServices


class Places(Protocol):
    """Where a program's buffers are, while it is written."""

    memory: Arena
    plan: Plan

    def place(self, var: Var) -> Place:
        """The place of a buffer."""
        ...


def fill(block: np.ndarray, k: int, place: Place, offset: int, code: Code) -> None:
    register, base = place
    if register < 0:
        block[k] = base + offset
    else:
        code.set(address(block) + 8 * k, (register, base + offset))


def operand_place(operand: Operand, code: Code, places: Places) -> Place:
    """Where the elements of a row-major operand start."""
    if operand.buffer is None:
        value = np.asarray(operand.value, storage_dtype(operand.aval.dtype))
        made = np.array(np.broadcast_to(value, operand.aval.shape), order="C")
        code.keep(made)
        return fixed(address(made))
    assert operand.view is not None
    register, offset = places.place(operand.buffer)
    itemsize = storage_dtype(operand.aval.dtype).itemsize
    return register, offset + operand.view.offset * itemsize


def copy_view(
    view: View, itemsize: int, source: Place, target: Place, services: NativeServices, code: Code
) -> None:
    """Copy the elements of a view, whose first one lies at ``source``, in row-major order."""
    size = prod(view.shape)
    if view.is_contiguous:
        name, rest, extent = "gf_copy", [], size * itemsize
    else:
        axes = _moving_axes(view)
        tiled = transposing_copy(axes, itemsize)
        if tiled is not None:
            _copy_tiles(tiled, source, target, services, code)
            return
        *outer, (row, stride) = axes
        rest = [len(outer), row, stride * itemsize]
        rest += [word for n, step_ in outer for word in (n, step_ * itemsize)]
        name, extent = f"gf_strided_{itemsize}", size // row
    block = code.array([0, 0, *rest])
    for k, place in enumerate((target, source)):
        fill(block, k, place, 0, code)
    chunk = services.chunk(extent, size)
    code.run(services.function(name), address(block), extent, chunk, size)


def _copy_tiles(
    call: KernelCall, source: Place, target: Place, services: NativeServices, code: Code
) -> None:
    block = code.array([word.value for word in call.words])
    for k, place in enumerate((source, target)):
        fill(block, k, place, 0, code)
    loaded = services.load(call.kernel)
    code.keep(loaded)
    chunk = services.chunk(call.extent, call.points)
    code.run(loaded.address, address(block), call.extent, chunk, call.points)


def _moving_axes(view: View) -> list[tuple[int, int]]:
    """Sizes and strides of a view's dimensions; those of size 1 and collapsible ones are gone."""
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
    source: Place, target: Place, var: Var, services: NativeServices, code: Code
) -> None:
    if source == target:
        return
    block = code.array([0, 0])
    for k, place in enumerate((target, source)):
        fill(block, k, place, 0, code)
    count = total_bytes(var)
    code.run(services.function("gf_copy"), address(block), count, count, count)


def total_bytes(var: Var) -> int:
    return var.aval.size * storage_dtype(var.aval.dtype).itemsize
