"""Affine accesses of a kernel's operands: buffer, offset and strides as size expressions.

The functions give the access of each read and write. ``Accesses`` assigns operand names to them.
``lower.py`` calls them while it lowers one group; nothing here is shared between threads.

Tests: tests/compiler/test_fuse.py, tests/compiler/test_new_sizes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import DimKey, IterationSpace
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.kir.nodes import Mode, Operand

AxisStrides = Iterable[tuple[DimKey, SizeExpr]]  # (axis, stride)
Strides = tuple[tuple[DimKey, SizeExpr], ...]  # the same, sorted by axis


@record
class Access:
    """An affine access: offset plus the sum of index times stride over the axes, in elements.

    Two accesses compare equal only if they are equal for all sizes of the program key.

    Attributes:
        buffer: the variable that owns the memory; None for scalars and indices.
        offset: offset of the first element; for a scalar, its value.
        strides: pairs (axis, stride), sorted by axis. The access is invariant along other axes,
            and has no stride along axes of size 1 that need no loop (``unit_axes``).
        dtype: storage dtype.
        mode: direction of the access, or SCALAR, or INDEX for an index that is not in memory.
    """

    buffer: Var | None
    offset: SizeExpr
    strides: Strides
    dtype: str
    mode: Mode


class Accesses:
    """The operands that a kernel requests, named in the order of first use.

    One instance serves one kernel. The order of requests decides the names, and so the kernel's
    text: equal groups must request equal operands in the same order.

    Args:
        make_operand: the KernelIR operand of a name and an access.
        buffer_of: outputs that reuse other memory, see ``InPlace.buffer_of``.
        inout_strides: buffers that are read and overwritten, see ``InPlace.read_strides``.

    Attributes:
        name_of: the operand name of each access or scalar.
        access_of: the access of each operand, by name.
        operand_of: the KernelIR operand of each name.
    """

    def __init__(
        self,
        make_operand: Callable[[str, Access], Operand],
        buffer_of: Mapping[Var, Var],
        inout_strides: Mapping[Var, Strides],
    ) -> None:
        self.make_operand = make_operand
        self.buffer_of, self.inout_strides = buffer_of, inout_strides
        self.name_of: dict[Hashable, str] = {}
        self.access_of: dict[str, Access] = {}
        self.operand_of: dict[str, Operand] = {}

    def _add(self, key: Hashable, name: str, access: Access) -> str:
        self.name_of[key] = name
        self.access_of[name] = access
        self.operand_of[name] = self.make_operand(name, access)
        return name

    def _in_its_buffer(self, access: Access) -> Access:
        """The access with the buffer that an output reuses; INOUT if that is also read."""
        buffer = access.buffer
        if buffer is None:
            return access
        if access.mode is Mode.OUT and buffer in self.buffer_of:
            buffer = self.buffer_of[buffer]
        strides = self.inout_strides.get(buffer)
        if strides is None:
            return replace(access, buffer=buffer)
        return replace(access, buffer=buffer, strides=strides, mode=Mode.INOUT)

    def _new_name(self, prefix: str) -> str:
        return f"{prefix}{sum(name.startswith(prefix) for name in self.access_of)}"

    def array(self, access: Access) -> str:
        """The operand name of an access, which is added if it is new."""
        access = self._in_its_buffer(access)
        if access not in self.name_of:
            prefix = {Mode.IN: "x", Mode.OUT: "o", Mode.INOUT: "u", Mode.INDEX: "j"}[access.mode]
            self._add(access, self._new_name(prefix), access)
        return self.name_of[access]

    def scalar(self, dtype: str, value: SizeExpr, slot: Hashable) -> str:
        """The operand name of a scalar argument; ``slot`` distinguishes equal expressions."""
        key = ("scalar", dtype, slot)
        if key not in self.name_of:
            self._add(key, self._new_name("s"), Access(None, value, (), dtype, Mode.SCALAR))
        return self.name_of[key]


def read_access(exprs: SizeExprs, space: IterationSpace, reader: int, operand: int) -> Access:
    """The access of an array operand in memory, at the index of its reader.

    Args:
        exprs: the size expressions of the program.
        space: the iteration space of the group.
        reader: position of the equation that reads; it must iterate (``FusionProgram.iterations``).
        operand: index of its operand, which must be a variable and not a literal.
    """
    program = exprs.program
    eqn, iteration = program.jaxpr.eqns[reader], program.iterations[reader]
    atom = eqn.inputs[operand]
    assert iteration is not None and isinstance(atom, Var)
    layout = exprs.layout(atom)
    strides = []
    for dim, axis in iteration.reads[operand]:
        key = space.axis_of_key[reader, axis]
        if key not in space.unit_axes and not layout.broadcast[dim]:
            strides.append((key, layout.strides[dim]))
    dtype = storage_name(atom.aval.dtype)
    return Access(layout.buffer, layout.offset, tuple(sorted(strides)), dtype, Mode.IN)


def memory_reads(exprs: SizeExprs, space: IterationSpace) -> Iterator[tuple[int, Access]]:
    """The affine reads of a group from memory, each with the equation that reads.

    Operands that ops gather from are skipped, because their indices are computed.
    """
    program, members = exprs.program, frozenset(space.members)
    for e in space.members:
        eqn = program.jaxpr.eqns[e]
        for k in range(eqn.primitive.lower.operands_in_memory(eqn), len(eqn.inputs)):
            atom = eqn.inputs[k]
            if type(atom) is not Literal and program.producer.get(atom) not in members:
                yield e, read_access(exprs, space, e, k)


def write_access(exprs: SizeExprs, space: IterationSpace, var: Var) -> Access:
    """The access of a stored output: row-major in its buffer. Updates compute their offsets."""
    program, dtype = exprs.program, storage_name(var.aval.dtype)
    position = program.producer[var]
    eqn = program.jaxpr.eqns[position]
    if eqn.primitive.lower.is_update:
        return Access(program.storage(var).buffer, exprs.zero, (), dtype, Mode.INOUT)
    if eqn.primitive.lower.stores(eqn, var):
        output_index = eqn.outputs.index(var)
        return lane_writes(exprs, space, position)[output_index]
    keys = space.axes_of_output(program, position)
    pairs = zip(keys, exprs.strides(var.aval.shape), strict=True)
    return Access(var, exprs.zero, _without_units(space, pairs), dtype, Mode.OUT)


def lane_reads(exprs: SizeExprs, space: IterationSpace, position: int) -> list[Access]:
    """The reads of a lane program, along lanes only; the program computes other offsets.

    The equation at ``position`` must be a lane program (``is_lane_program``). The result has one
    access for each of its leading operands, in order (``LaneProgram.reads``).
    """
    eqn = exprs.program.jaxpr.eqns[position]
    keys = space.axes_of_output(exprs.program, position)
    accesses = []
    for k, batch_dims in enumerate(eqn.primitive.lower.program(eqn.params).reads):
        access = read_access(exprs, space, position, k)
        layout = exprs.layout(eqn.inputs[k])
        pairs = [
            (keys[batch_dim], layout.strides[d])
            for d, batch_dim in enumerate(batch_dims)
            if batch_dim >= 0 and not layout.broadcast[d]
        ]
        accesses.append(replace(access, strides=_without_units(space, pairs)))
    return accesses


def lane_writes(exprs: SizeExprs, space: IterationSpace, position: int) -> dict[int, Access]:
    """The writes of a lane program along lanes, for the outputs that it stores, by index."""
    eqn = exprs.program.jaxpr.eqns[position]
    keys = space.axes_of_output(exprs.program, position)
    accesses = {}
    for k, batch_dims in enumerate(eqn.primitive.lower.program(eqn.params).writes):
        if batch_dims is None:
            continue
        var = eqn.outputs[k]
        strides = exprs.strides(var.aval.shape)
        pairs = [
            (keys[batch_dim], strides[d])
            for d, batch_dim in enumerate(batch_dims)
            if batch_dim >= 0
        ]
        dtype = storage_name(var.aval.dtype)
        accesses[k] = Access(var, exprs.zero, _without_units(space, pairs), dtype, Mode.OUT)
    return accesses


def window_access(exprs: SizeExprs, space: IterationSpace, position: int) -> Access:
    """The offset of a window element in an update's array, relative to the window's start.

    The equation at ``position`` must be an update (``is_update``).
    """
    eqn = exprs.program.jaxpr.eqns[position]
    keys = space.axes_of_output(exprs.program, position)[eqn.inputs[1].aval.ndim :]
    strides = exprs.strides(eqn.outputs[0].aval.shape)
    dims = eqn.primitive.lower.window(eqn.params)
    pairs = ((key, strides[d]) for key, d in zip(keys, dims, strict=True))
    return index_access(exprs, space, pairs)


def index_access(exprs: SizeExprs, space: IterationSpace, pairs: AxisStrides) -> Access:
    """The sum of indices along axes times strides, as a value that is not in memory."""
    return Access(None, exprs.zero, _without_units(space, pairs), "int64", Mode.INDEX)


def _without_units(space: IterationSpace, pairs: AxisStrides) -> Strides:
    """The pairs whose axes have loops, sorted by axis."""
    return tuple(sorted([pair for pair in pairs if pair[0] not in space.unit_axes]))
