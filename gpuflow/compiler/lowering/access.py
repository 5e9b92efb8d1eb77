"""Affine accesses of a kernel's operands: buffer, offset and strides as size expressions.

The functions give the access of each read and write. ``Accesses`` assigns operand names to them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import Key, Space
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.kir.nodes import Mode, Operand

Pairs = Iterable[tuple[Key, SizeExpr]]  # (axis, stride)
Strides = tuple[tuple[Key, SizeExpr], ...]  # the same, sorted by axis


@record
class Access:
    """An affine access: offset plus the sum of index times stride over the axes, in elements.

    Two accesses compare equal only if they are equal for all sizes of the program key.

    Attributes:
        buffer: the variable that owns the memory; None for scalars and indices.
        offset: offset of the first element; for a scalar, its value.
        strides: pairs (axis, stride), sorted by axis; the access is invariant along other axes.
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

    Args:
        make: the KernelIR operand of a name and an access.
        buffer_of: outputs that reuse other memory, see ``InPlace.buffer_of``.
        inout_strides: buffers that are read and overwritten, see ``InPlace.read``.

    Attributes:
        names: the operand name of each access or scalar.
        accesses: the access of each operand.
        table: the KernelIR operand of each name.
    """

    def __init__(
        self,
        make: Callable[[str, Access], Operand],
        buffer_of: Mapping[Var, Var],
        inout_strides: Mapping[Var, Strides],
    ) -> None:
        self.make = make
        self.buffer_of, self.inout_strides = buffer_of, inout_strides
        self.names: dict[Hashable, str] = {}
        self.accesses: dict[str, Access] = {}
        self.table: dict[str, Operand] = {}

    def _enter(self, key: Hashable, name: str, access: Access) -> str:
        self.names[key] = name
        self.accesses[name] = access
        self.table[name] = self.make(name, access)
        return name

    def _resolved(self, access: Access) -> Access:
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
        return f"{prefix}{sum(name.startswith(prefix) for name in self.accesses)}"

    def array(self, access: Access) -> str:
        """The operand name of an access, which is added if it is new."""
        access = self._resolved(access)
        if access not in self.names:
            prefix = {Mode.IN: "x", Mode.OUT: "o", Mode.INOUT: "u", Mode.INDEX: "j"}[access.mode]
            self._enter(access, self._new_name(prefix), access)
        return self.names[access]

    def scalar(self, dtype: str, value: SizeExpr, slot: Hashable) -> str:
        """The operand name of a scalar argument; ``slot`` distinguishes equal expressions."""
        key = ("scalar", dtype, slot)
        if key not in self.names:
            self._enter(key, self._new_name("s"), Access(None, value, (), dtype, Mode.SCALAR))
        return self.names[key]


def read_access(exprs: SizeExprs, space: Space, reader: int, operand: int) -> Access:
    """The access of an array operand in memory, at the index of its reader."""
    program = exprs.program
    eqn, iteration = program.jaxpr.eqns[reader], program.iterations[reader]
    atom = eqn.inputs[operand]
    assert iteration is not None and isinstance(atom, Var)
    layout = exprs.layout(atom)
    strides = []
    for dim, axis in iteration.reads[operand]:
        key = space.classes[reader, axis]
        if key not in space.units and not layout.broadcast[dim]:
            strides.append((key, layout.strides[dim]))
    dtype = storage_name(atom.aval.dtype)
    return Access(layout.buffer, layout.offset, tuple(sorted(strides)), dtype, Mode.IN)


def memory_reads(exprs: SizeExprs, space: Space) -> Iterator[tuple[int, Access]]:
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


def write_access(exprs: SizeExprs, space: Space, var: Var) -> Access:
    """The access of a stored output: row-major in its buffer. Updates compute their offsets."""
    program, dtype = exprs.program, storage_name(var.aval.dtype)
    position = program.producer[var]
    eqn = program.jaxpr.eqns[position]
    if eqn.primitive.lower.is_update:
        return Access(program.storage(var)[0], exprs.zero, (), dtype, Mode.INOUT)
    if eqn.primitive.lower.stores(eqn, var):
        number = eqn.outputs.index(var)
        return lane_writes(exprs, space, position)[number]
    keys = space.axes_of_output(program, position)
    pairs = zip(keys, exprs.strides(var.aval.shape), strict=True)
    return Access(var, exprs.zero, _without_units(space, pairs), dtype, Mode.OUT)


def lane_reads(exprs: SizeExprs, space: Space, position: int) -> list[Access]:
    """The reads of a lane program, along lanes only; the program computes other offsets."""
    eqn = exprs.program.jaxpr.eqns[position]
    keys = space.axes_of_output(exprs.program, position)
    accesses = []
    for k, kinds in enumerate(eqn.primitive.lower.program(eqn.params).reads):
        access = read_access(exprs, space, position, k)
        layout = exprs.layout(eqn.inputs[k])
        pairs = [
            (keys[kind], layout.strides[d])
            for d, kind in enumerate(kinds)
            if kind >= 0 and not layout.broadcast[d]
        ]
        accesses.append(replace(access, strides=_without_units(space, pairs)))
    return accesses


def lane_writes(exprs: SizeExprs, space: Space, position: int) -> dict[int, Access]:
    """The writes of a lane program along lanes, for the outputs that it stores, by index."""
    eqn = exprs.program.jaxpr.eqns[position]
    keys = space.axes_of_output(exprs.program, position)
    accesses = {}
    for k, kinds in enumerate(eqn.primitive.lower.program(eqn.params).writes):
        if kinds is None:
            continue
        var = eqn.outputs[k]
        strides = exprs.strides(var.aval.shape)
        pairs = [(keys[kind], strides[d]) for d, kind in enumerate(kinds) if kind >= 0]
        dtype = storage_name(var.aval.dtype)
        accesses[k] = Access(var, exprs.zero, _without_units(space, pairs), dtype, Mode.OUT)
    return accesses


def window_access(exprs: SizeExprs, space: Space, position: int) -> Access:
    """The offset of a window element in an update's array, relative to the window's start."""
    eqn = exprs.program.jaxpr.eqns[position]
    keys = space.axes_of_output(exprs.program, position)[eqn.inputs[1].aval.ndim :]
    strides = exprs.strides(eqn.outputs[0].aval.shape)
    dims = eqn.primitive.lower.window(eqn.params)
    pairs = ((key, strides[d]) for key, d in zip(keys, dims, strict=True))
    return index_access(exprs, space, pairs)


def index_access(exprs: SizeExprs, space: Space, pairs: Pairs) -> Access:
    """The sum of indices along axes times strides, as a value that is not in memory."""
    return Access(None, exprs.zero, _without_units(space, pairs), "int64", Mode.INDEX)


def _without_units(space: Space, pairs: Pairs) -> Strides:
    """The pairs whose axes have loops, sorted by axis."""
    return tuple(sorted([pair for pair in pairs if pair[0] not in space.units]))
