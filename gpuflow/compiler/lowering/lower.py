"""Lowering: one group of equations becomes one kernel and the recipe for its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import Key, Program, Space
from gpuflow.compiler.lowering.access import Access, Accesses
from gpuflow.compiler.lowering.donation import InPlace
from gpuflow.compiler.lowering.emit import Emitter
from gpuflow.compiler.lowering.loops import extent, schedule
from gpuflow.compiler.lowering.symbols import Facts, Number, Numbers
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.kir.nodes import Kernel, Mode, Operand, Role, Stride, arguments, remembered

NO_BUFFER = -1  # of operands without memory


class KernelCall(NamedTuple):
    """A kernel with its arguments.

    Attributes:
        kernel: the kernel to run.
        slots: its argument block: values, and for an address the byte offset from its buffer's
            start.
        buffers: the id of each operand's buffer, or NO_BUFFER; their argument slots come first.
        extent: of the axis that a launch splits; 1 if there is none.
        points: count of points of all axes.
    """

    kernel: Kernel
    slots: tuple[int, ...]
    buffers: tuple[int, ...]
    extent: int
    points: int


@record(eq=False)
class Use:
    """The use of buffers by a group's kernel, for any sizes; compared by identity.

    Attributes:
        kernel: the kernel.
        reads, writes: the buffers; an output in place has its own id.
        overwrites: buffers with older values: donated inputs whose memory outputs take, and
            arrays that are updated.
        in_place: pairs of an output and the donated input whose memory it takes.
    """

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()


@record
class Lowered:
    """The kernel of a group, its arguments and its buffers, which are still variables.

    Attributes:
        operands: of the kernel.
        facts: conditions under which other sizes have the same kernel.
    """

    kernel: Kernel
    slots: tuple[Number, ...]
    buffers: tuple[Var | None, ...]
    extent: Number
    points: Number
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]
    overwrites: tuple[Var, ...]
    in_place: tuple[tuple[Var, Var], ...]
    operands: Accesses
    facts: Facts

    def numbered(self, number_of: Mapping[Var, int]) -> tuple[Use, KernelCall]:
        """The use and the arguments of the kernel, with buffers by their ids."""

        def numbers(variables: Iterable[Var]) -> tuple[int, ...]:
            return tuple([number_of[var] for var in variables])

        use = Use(
            self.kernel, numbers(self.reads), numbers(self.writes), numbers(self.overwrites),
            tuple([(number_of[out], number_of[var]) for out, var in self.in_place]),
        )  # fmt: skip
        buffers = tuple([NO_BUFFER if var is None else number_of[var] for var in self.buffers])
        slots = tuple([slot.value for slot in self.slots])
        extent, points = self.extent.value, self.points.value
        return use, KernelCall(self.kernel, slots, buffers, extent, points)


def lower_group(
    numbers: Numbers, space: Space, in_place: InPlace, facts: Facts
) -> Lowered:
    """The kernel of a group, and its arguments.

    Args:
        numbers: of the program.
        space: of the group.
        in_place: the donated inputs that it overwrites.
        facts: receives the facts that the kernel depends on.
    """
    program = numbers.program
    axes, kernel_axes = schedule(numbers, space, facts)
    axis_of = {key: axis.name for keys, axis in zip(axes, kernel_axes, strict=True) for key in keys}
    operands = Accesses(
        lambda name, access: _operand(name, access, axes, numbers.one),
        in_place.buffer_of, in_place.read,
    )  # fmt: skip
    emitter = Emitter(
        numbers,
        space,
        facts,
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
    keys_of = {axis.name: keys for axis, keys in zip(kernel.axes, axes, strict=True)}
    parallel = [keys_of[axis.name] for axis in kernel.axes if axis.role is Role.PARALLEL]
    return Lowered(
        kernel,
        tuple(_slots(kernel, operands, keys_of, numbers, space)),
        tuple(operands.accesses[operand.name].buffer for operand in kernel.operands),
        extent(numbers, space, parallel[0] if parallel else ()),
        extent(numbers, space, space.order),
        _reads(kernel, operands),
        tuple(program.storage(var)[0] for var in space.escaping),
        (*in_place.buffer_of.values(), *_updated(program, space)),
        tuple(in_place.buffer_of.items()),
        operands,
        facts,
    )


def _updated(program: Program, space: Space) -> list[Var]:
    return [program.storage(var)[0] for var in space.escaping if var in program.views]


def _operand(
    name: str, access: Access, axes: Sequence[tuple[Key, ...]], one: Number
) -> Operand:
    if access.mode is Mode.SCALAR:
        return Operand(name, access.dtype, access.mode, (Stride.ZERO,) * len(axes))
    table = dict(access.strides)
    classes = []
    for position, keys in enumerate(axes):
        if keys[-1] not in table:
            classes.append(Stride.ZERO)
        elif position == len(axes) - 1 and table[keys[-1]] == one:
            classes.append(Stride.UNIT)
        else:
            classes.append(Stride.ANY)
    return Operand(name, access.dtype, access.mode, tuple(classes))


def _slots(
    kernel: Kernel, operands: Accesses, keys_of: Mapping[str, tuple[Key, ...]], numbers: Numbers,
    space: Space,
) -> Iterator[Number]:  # fmt: skip
    for argument in arguments(kernel):
        if argument.kind == "extent":
            yield extent(numbers, space, keys_of[argument.axis])
            continue
        access = operands.accesses[argument.operand]
        if argument.kind == "stride":
            yield dict(access.strides)[keys_of[argument.axis][-1]]
        elif argument.kind in ("base", "scalar"):
            yield access.offset
        else:
            assert access.buffer is not None
            itemsize = storage_dtype(access.buffer.aval.dtype).itemsize
            yield numbers.bytes(access.offset, itemsize)


def _reads(kernel: Kernel, operands: Accesses) -> tuple[Var, ...]:
    buffers = [
        operands.accesses[operand.name].buffer
        for operand in kernel.operands
        if operand.mode in (Mode.IN, Mode.INOUT)
    ]
    return tuple(dict.fromkeys(buffer for buffer in buffers if buffer is not None))


def segmented(kernel: Kernel) -> Kernel:
    """The variant of a one-axis kernel that runs over a table of argument blocks."""
    return remembered(kernel, _segmented)


def _segmented(kernel: Kernel) -> Kernel:
    return replace(kernel, segmented=True, name=f"{kernel.name}_segments")


def can_be_segmented(kernel: Kernel) -> bool:
    """Whether equal calls of the kernel can be one call: it maps over one axis, or reduces it."""
    (axis,) = kernel.axes if len(kernel.axes) == 1 else (None,)
    role = {"map": Role.PARALLEL, "full": Role.REDUCE}.get(kernel.kind)
    return axis is not None and axis.exact is None and axis.role is role
