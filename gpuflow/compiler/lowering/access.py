"""Accesses: how the operands of a kernel lie in memory, before they have names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import Key, Program, Space, operands_in_memory
from gpuflow.core import views
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.core.lowering import Update
from gpuflow.kir.interpret import scalar_to_word
from gpuflow.kir.nodes import Mode, Operand


@record
class Access:
    """How an operand is addressed: a buffer, a first element, and a stride for each axis key."""

    buffer: Var | None
    offset: int
    strides: tuple[tuple[Key, int], ...]
    dtype: str
    mode: Mode

    def stride(self, key: Key) -> int:
        """The stride along an axis; 0 where the operand does not change."""
        return dict(self.strides).get(key, 0)


class Accesses:
    """The operands that a kernel asks for, in the order of first use."""

    def __init__(
        self,
        make: Callable[[str, Access], Operand],
        buffer_of: Mapping[Var, Var],
        read_in_place: frozenset[Var],
    ) -> None:
        self.make = make
        self.buffer_of, self.read_in_place = buffer_of, read_in_place
        self.names: dict[Any, str] = {}
        self.accesses: dict[str, Access] = {}
        self.scalars: dict[str, int] = {}
        self.table: dict[str, Operand] = {}

    def _enter(self, key: Any, name: str, access: Access) -> str:
        self.names[key] = name
        self.accesses[name] = access
        self.table[name] = self.make(name, access)
        return name

    def _placed(self, access: Access) -> Access:
        """The access with the buffer that an output takes, and the mode that follows."""
        buffer = access.buffer
        if buffer is None:
            return access
        if access.mode is Mode.OUT and buffer in self.buffer_of:
            buffer = self.buffer_of[buffer]
        mode = Mode.INOUT if buffer in self.read_in_place else access.mode
        return replace(access, buffer=buffer, mode=mode)

    def array(self, access: Access) -> str:
        """The operand name of an access."""
        access = self._placed(access)
        if access not in self.names:
            prefix = {Mode.IN: "x", Mode.OUT: "o", Mode.INOUT: "u", Mode.INDEX: "j"}[access.mode]
            number = sum(name.startswith(prefix) for name in self.accesses)
            self._enter(access, f"{prefix}{number}", access)
        return self.names[access]

    def scalar(self, dtype: str, value: Any, slot: Any) -> str:
        """The operand name of a number; ``slot`` tells equal numbers of different origin apart."""
        key = ("scalar", dtype, slot)
        if key not in self.names:
            name = f"s{len(self.scalars)}"
            self.scalars[name] = scalar_to_word(dtype, value)
            self._enter(key, name, Access(None, 0, (), dtype, Mode.SCALAR))
        return self.names[key]


def read_access(program: Program, space: Space, reader: int, operand: int) -> Access:
    """The access of an array operand that comes from memory."""
    eqn, iteration = program.jaxpr.eqns[reader], program.iterations[reader]
    atom = eqn.inputs[operand]
    assert iteration is not None and isinstance(atom, Var)
    buffer, view = program.place(atom)
    strides = []
    for dim, axis in iteration.reads[operand]:
        key = space.classes[reader, axis]
        if key not in space.units and not view.broadcast[dim]:
            strides.append((key, view.strides[dim]))
    dtype = storage_name(atom.aval.dtype)
    return Access(buffer, view.offset, tuple(sorted(strides)), dtype, Mode.IN)


def memory_reads(program: Program, space: Space) -> Iterator[tuple[int, Access]]:
    """Each array that an equation of the group reads from memory at its own index.

    Operands of which ops choose elements for themselves are left out.
    """
    inside = frozenset(space.members)
    for e in space.members:
        eqn = program.jaxpr.eqns[e]
        for k in range(operands_in_memory(eqn), len(eqn.inputs)):
            atom = eqn.inputs[k]
            if type(atom) is not Literal and program.producer.get(atom) not in inside:
                yield e, read_access(program, space, e, k)


def write_access(program: Program, space: Space, var: Var) -> Access:
    """The access of a stored output: its own buffer, row-major. Updates choose their elements."""
    position = program.producer[var]
    if isinstance(program.jaxpr.eqns[position].primitive.lower, Update):
        return Access(program.place(var)[0], 0, (), storage_name(var.aval.dtype), Mode.INOUT)
    keys = space.axes_of_output(program, position)
    strides = views.contiguous(var.aval.shape).strides
    pairs = [(k, s) for k, s in zip(keys, strides, strict=True) if k not in space.units]
    return Access(var, 0, tuple(sorted(pairs)), storage_name(var.aval.dtype), Mode.OUT)


def window_access(program: Program, space: Space, position: int) -> Access:
    """Where an element of an update's window lies in the array, from the window's place on."""
    eqn = program.jaxpr.eqns[position]
    keys = space.axes_of_output(program, position)[eqn.inputs[1].aval.ndim :]
    strides = views.contiguous(eqn.outputs[0].aval.shape).strides
    dims = eqn.primitive.lower.window(eqn.params)
    pairs = [(k, strides[d]) for k, d in zip(keys, dims, strict=True) if k not in space.units]
    return Access(None, 0, tuple(sorted(pairs)), "int64", Mode.INDEX)
