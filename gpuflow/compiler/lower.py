"""Lowering: one group of equations becomes one kernel and the recipe for its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from gpuflow.compiler.access import Access, Accesses
from gpuflow.compiler.donation import InPlace
from gpuflow.compiler.emit import Emitter
from gpuflow.compiler.schedule import Axes, schedule
from gpuflow.compiler.space import Key, Program, Space
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.kir.nodes import Kernel, Mode, Operand, Role, Stride, arguments, remembered


class Word(NamedTuple):
    """One word of an argument block: the address of a buffer's element, or a number."""

    buffer: Var | None
    value: int  # bytes from the buffer's start, or the number itself


@dataclass(frozen=True)
class KernelCall:
    """A kernel with its arguments.

    Attributes:
        kernel: what to run.
        words: its argument block.
        extent: of the axis that a launch splits; 1 if there is none.
        points: how many points all axes have together.
        reads, writes: the buffers; an output in place counts under its own name.
        overwrites: buffers with older values: donated inputs whose memory outputs take, and
            arrays that are updated.
    """

    kernel: Kernel
    words: tuple[Word, ...]
    extent: int
    points: int
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]
    overwrites: tuple[Var, ...] = ()


Lowered = tuple[KernelCall, Accesses, Axes]


def lower_group(program: Program, space: Space, in_place: InPlace) -> KernelCall:
    """The kernel of a group, and its arguments for the program's sizes."""
    return lower_with_accesses(program, space, in_place)[0]


def lower_with_accesses(
    program: Program, space: Space, in_place: InPlace
) -> Lowered:
    """The same, with the kernel's operands and the keys of its axes."""
    axes, kernel_axes = schedule(program, space)
    axis_of = {key: axis.name for keys, axis in zip(axes, kernel_axes, strict=True) for key in keys}
    operands = Accesses(
        lambda name, access: _operand(name, access, axes), in_place.buffer_of, in_place.read
    )
    emitter = Emitter(
        program,
        space,
        operands,
        tuple(axis.name for axis in kernel_axes),
        axis_of,
    )
    body = emitter.emit()
    kernel = Kernel(
        emitter.name(),
        kernel_axes,
        tuple(operands.table.values()),
        body,
        kind=space.kind.value,
    )
    call = replace(
        _call(kernel, operands, axes, space),
        writes=tuple(program.place(var)[0] for var in space.escaping),
        overwrites=(*in_place.buffer_of.values(), *_updated(program, space)),
    )
    return call, operands, axes


def _updated(program: Program, space: Space) -> list[Var]:
    return [program.place(var)[0] for var in space.escaping if var in program.views]


def _operand(name: str, access: Access, axes: Sequence[tuple[Key, ...]]) -> Operand:
    if access.mode is Mode.SCALAR:
        return Operand(name, access.dtype, access.mode, (Stride.ZERO,) * len(axes))
    table = dict(access.strides)
    classes = []
    for number, keys in enumerate(axes):
        if keys[-1] not in table:
            classes.append(Stride.ZERO)
        elif number == len(axes) - 1 and table[keys[-1]] == 1:
            classes.append(Stride.UNIT)
        else:
            classes.append(Stride.ANY)
    return Operand(name, access.dtype, access.mode, tuple(classes))


def _call(
    kernel: Kernel, operands: Accesses, axes: Sequence[tuple[Key, ...]], space: Space
) -> KernelCall:
    keys_of = {axis.name: keys for axis, keys in zip(kernel.axes, axes, strict=True)}
    words = []
    for argument in arguments(kernel):
        access = operands.accesses.get(argument.operand)
        if argument.kind == "extent":
            size = prod(space.sizes[key] for key in keys_of[argument.axis])
            words.append(Word(None, size))
        elif argument.kind == "scalar":
            words.append(Word(None, operands.scalars[argument.operand]))
        elif argument.kind == "stride":
            assert access is not None
            words.append(Word(None, access.stride(keys_of[argument.axis][-1])))
        elif argument.kind == "base":
            assert access is not None
            words.append(Word(None, access.offset))
        else:
            assert access is not None and access.buffer is not None
            itemsize = storage_dtype(access.buffer.aval.dtype).itemsize
            words.append(Word(access.buffer, access.offset * itemsize))
    reads = _reads(kernel, operands)
    parallel = [keys_of[a.name] for a in kernel.axes if a.role is Role.PARALLEL]
    extent = prod(space.sizes[key] for key in parallel[0]) if parallel else 1
    points = prod(space.sizes[key] for key in space.order)
    return KernelCall(kernel, tuple(words), extent, points, reads, ())


def _reads(kernel: Kernel, operands: Accesses) -> tuple[Var, ...]:
    buffers = [
        operands.accesses[operand.name].buffer
        for operand in kernel.operands
        if operand.mode in (Mode.IN, Mode.INOUT)
    ]
    return tuple(dict.fromkeys(buffer for buffer in buffers if buffer is not None))


def segmented(kernel: Kernel) -> Kernel:
    """The variant of a one-axis kernel that runs over a table of argument blocks."""
    name = f"{kernel.name}_segments"
    return remembered(kernel, "segments", lambda: replace(kernel, segmented=True, name=name))


def can_be_segmented(kernel: Kernel) -> bool:
    """Whether equal calls of the kernel can be one call: it maps over one axis, or reduces it."""
    (axis,) = kernel.axes if len(kernel.axes) == 1 else (None,)
    role = {"map": Role.PARALLEL, "full": Role.REDUCE}.get(kernel.kind)
    return axis is not None and axis.exact is None and axis.role is role
