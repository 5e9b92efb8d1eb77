"""Code generation for one kernel: the KernelIR body of a group of equations.

Loop-invariant values are hoisted: a value is emitted in the outermost loop in which all its inputs
are defined. In a row kernel, each reduction and the final loop that stores is a phase. A phase
recomputes the full-rank values that it needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gpuflow.compiler.fusion.space import Key, Kind, Space
from gpuflow.compiler.lanes.program import LaneProgram
from gpuflow.compiler.lowering.access import (
    Access,
    Accesses,
    index_access,
    lane_reads,
    lane_writes,
    memory_reads,
    read_access,
    window_access,
    write_access,
)
from gpuflow.compiler.lowering.loops import is_written_short
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs, SizeQueries
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Eqn, Literal, Var
from gpuflow.core.lowering import Element
from gpuflow.kir.builder import Builder, Pair
from gpuflow.kir.clone import Replay
from gpuflow.kir.nodes import Block, Load, Mode, Operand, Store, Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, compute_dtype

Values = tuple[Value, ...]
_COMPONENTS_OF = {1: (None,), 2: (0, 1)}  # component ids of a real and of a complex element
_NAMED_OPS = 5  # ops in the name of a kernel


def is_written_in(value: Any) -> bool:
    """Whether a literal of the program is part of the kernel's text.

    Only bools, zero, infinities and nan are. Other literals are arguments, because a value may
    follow from a size: 1 or 2 may be the size of a batch.
    """
    if isinstance(value, bool | np.bool_):
        return True
    if isinstance(value, complex | np.complexfloating):
        return False  # not even 0: the signs of its components may differ
    number = float(value)
    return number == 0.0 or not np.isfinite(number)


class Emitter:
    """Code generator for the body of one kernel.

    Args:
        exprs: the size expressions of the program.
        space: the iteration space of the group.
        queries: records the queries of sizes that the kernel's text depends on.
        operands: collects the operands that the body requests.
        axes: names of the kernel's axes, from the outermost.
        axis_of: the kernel axis of each axis of the group.
    """

    def __init__(
        self,
        exprs: SizeExprs,
        space: Space,
        queries: SizeQueries,
        operands: Accesses,
        axes: Sequence[str],
        axis_of: dict[Key, str],
    ) -> None:
        self.exprs, self.program, self.queries = exprs, exprs.program, queries
        self.space, self.operands = space, operands
        self.axes, self.axis_of = tuple(axes), axis_of
        self.builder = Builder({}, axes)
        self.members = frozenset(space.members)
        self.reads = tuple(memory_reads(exprs, space))
        # Scopes of open loops, innermost last: emitted values by variable, and by name those of
        # operands that must be read before they are overwritten.
        self.memo: list[dict[Var | str, Element]] = [{}]
        self.reduced_axes = tuple(
            dict.fromkeys(axis_of[key] for key in space.order if key in space.reduced)
        )
        self.retained_axes = tuple(axis for axis in axes if axis not in self.reduced_axes)

    def name(self) -> str:
        """A readable kernel name: the kind and the first few ops."""
        ops = [
            self.program.jaxpr.eqns[e].primitive.name
            for e in self.space.members
            if self.program.jaxpr.eqns[e].primitive.lower.view is None
        ]
        names = list(dict.fromkeys(ops))
        tail = "_etc" if len(names) > _NAMED_OPS else ""
        return "_".join([self.space.kind.value, *(names[:_NAMED_OPS] or ["copy"])]) + tail

    def emit(self) -> Block:
        """Emit the body; call it once."""
        with ExitStack() as loops:
            opened: set[str] = set()
            self._emit_invariants(opened)
            for axis in self.retained_axes:
                loops.enter_context(self.builder.for_axis(axis))
                opened.add(axis)
                self._emit_invariants(opened)
            self._emit_rows()
        return self.builder.finish()

    def _axes_of(self, domain: frozenset[Key]) -> set[str]:
        return {self.axis_of[key] for key in domain}

    def _emit_invariants(self, opened: set[str]) -> None:
        """Emit values that depend on no loop but the open ones; not reductions and dependents."""
        if opened == set(self.retained_axes) and not self.reduced_axes:
            return  # the innermost loop of a map: values are emitted as stores need them
        for e in self.space.members:
            eqn = self.program.jaxpr.eqns[e]
            if e in self.space.dependent or eqn.primitive.lower.is_reduction:
                continue
            if self._axes_of(self.space.domains[e]) <= opened:
                self._values(e)
        for e, access in self.reads:
            # Operands that are invariant in the loops still to be opened.
            if e not in self.space.dependent and self._varies_in(access) <= opened:
                self._load(access)

    def _varies_in(self, access: Access) -> set[str]:
        """The kernel axes along which an access moves."""
        return {self.axis_of[key] for key, _ in access.strides}

    def _is_member(self, var: Var) -> bool:
        return self.program.producer.get(var) in self.members

    # --- rows and phases -------------------------------------------------------------------

    def _emit_rows(self) -> None:
        """Emit one point of the retained axes: reductions in order, then stores."""
        space = self.space
        full = [var for var in space.escaping if self._needs_row_loop(var)]
        outer = [var for var in space.escaping if var not in full]
        for e in space.members:
            eqn = self.program.jaxpr.eqns[e]
            # A reduction of dimensions of size 1 has no loop, and may be inside another's loop.
            if eqn.primitive.lower.is_reduction and self._reduced_axes_of(e):
                if self._emitted(eqn.outputs[0]) is None:
                    also_stored = [] if space.kind is Kind.ROW else full
                    self._emit_reductions(self._joint_reductions(e), also_stored)
                    full = [] if also_stored else full
            elif not space.domains[e] & space.reduced and self.reduced_axes:
                self._values(e)
        if outer:
            self._load_overwritten(in_rows=False)
        for var in outer:
            self._store(var)
        if full:
            with ExitStack() as loops:
                for axis in self.reduced_axes:
                    loops.enter_context(self.builder.for_axis(axis))
                self.memo.append({})
                self._store_in_row(full)
                self.memo.pop()

    def _needs_row_loop(self, var: Var) -> bool:
        """Whether a stored value varies along the reduced axes."""
        keys = self.space.axes_of_output(self.program, self.program.producer[var])
        return any(key in self.space.reduced for key in keys)

    def _joint_reductions(self, position: int) -> list[int]:
        """Reductions that share a loop: over the same axes, and independent."""
        names = self._reduced_axes_of(position)
        rule = self.program.jaxpr.eqns[position].primitive.lower
        if not names or not rule.shares_loop:
            return [position]
        stages = self._stages()
        later = [
            e
            for e in self.space.members
            if e >= position and self.program.jaxpr.eqns[e].primitive.lower.shares_loop
        ]
        key = (stages[position], names)
        return [e for e in later if (stages[e], self._reduced_axes_of(e)) == key]

    def _stages(self) -> dict[int, int]:
        """For each member the longest chain of reductions that it depends on."""
        stages: dict[int, int] = {}
        for e in self.space.members:
            stages[e] = 0
            for atom in self.program.jaxpr.eqns[e].inputs:
                source = None if type(atom) is Literal else self.program.producer.get(atom)
                if source in stages and source is not None:
                    rule = self.program.jaxpr.eqns[source].primitive.lower
                    stages[e] = max(stages[e], stages[source] + rule.is_reduction)
        return stages

    def _emit_reductions(self, positions: Sequence[int], also_stored: Sequence[Var] = ()) -> None:
        """Emit one loop for several reductions; it also stores ``also_stored`` at each point."""
        axes, builder = self._reduced_axes_of(positions[0]), self.builder
        eqns = [self.program.jaxpr.eqns[e] for e in positions]

        def values(position: int, eqn: Eqn) -> Sequence[Value]:
            return eqn.primitive.lower.values(Point(self, position), eqn)

        if not axes:
            (eqn,) = eqns
            result = eqn.primitive.lower.folded(builder, values(positions[0], eqn), eqn)
            self.memo[-1][eqn.outputs[0]] = result
            return
        starts = [eqn.primitive.lower.starts(builder, eqn) for eqn in eqns]
        ranges, first = [], 0  # the slice of each reduction in the accumulators of the loop
        for start in starts:
            ranges.append(slice(first, first + len(start)))
            first += len(start)

        def body() -> list[Value]:
            self.memo.append({})
            every = [
                value for e, eqn in zip(positions, eqns, strict=True) for value in values(e, eqn)
            ]
            self._store_in_row(also_stored)
            self.memo.pop()
            return every

        def combine(*sides: Value) -> list[Value]:
            running, new = sides[:first], sides[first:]
            return [
                value
                for eqn, span in zip(eqns, ranges, strict=True)
                for value in eqn.primitive.lower.combined(builder, running[span], new[span], eqn)
            ]

        inits = [value for start in starts for value in start]
        results = builder.reduce(axes, inits, combine, body)
        for eqn, span in zip(eqns, ranges, strict=True):
            result = eqn.primitive.lower.folded(builder, results[span], eqn)
            self.memo[-1][eqn.outputs[0]] = self._rounded(eqn.outputs[0], result)

    def _reduced_axes_of(self, position: int) -> tuple[str, ...]:
        keys = self._reduced_keys(position)
        return tuple(dict.fromkeys(self.axis_of[key] for key in self.space.order if key in keys))

    def _reduced_keys(self, position: int) -> set[Key]:
        iteration = self.program.iterations[position]
        assert iteration is not None
        return {self.space.classes[position, d] for d in iteration.reduced}

    def _store_in_row(self, stored: Sequence[Var]) -> None:
        """Store the values of one point of a row, after reading operands that this overwrites."""
        if len(stored) > 1:
            self._load_overwritten(in_rows=True)
        for var in stored:
            self._store(var)

    def _store(self, var: Var) -> None:
        position = self.program.producer[var]
        access = write_access(self.exprs, self.space, var)
        eqn = self.program.jaxpr.eqns[position]
        if eqn.primitive.lower.is_update:
            self._store_update(position, access)
            return
        if eqn.primitive.lower.stores(eqn, var):
            self._values(position)
            return
        name = self.operands.array(access)
        array = self.operands.table[name]
        self.builder.declare(array)
        values = _components(self._variable(var))
        for component, value in zip(_COMPONENTS_OF[len(values)], values, strict=True):
            stored = self.builder.unrounded(value, array.dtype)
            self.builder.store(name, stored, component=component)

    def _store_update(self, position: int, access: Access) -> None:
        """Store one element of an update's window, combined with the array's element if needed."""
        eqn, builder = self.program.jaxpr.eqns[position], self.builder
        name = self.operands.array(access)
        builder.declare(self.operands.table[name])
        offset = _real(self._operand(position, 1))
        within = window_access(self.exprs, self.space, position)
        if within.strides:
            offset = builder.apply("add", offset, _real(self._load(within)))
        predicate = eqn.inputs[2]
        is_certain = type(predicate) is Literal and bool(predicate.value)
        where = None if is_certain else _real(self._operand(position, 2))
        values = _components(self._operand(position, 3))
        combine = eqn.primitive.lower.combine(eqn.params)
        for component, value in zip(_COMPONENTS_OF[len(values)], values, strict=True):
            if combine is not None:
                value = builder.apply(combine, builder.load(name, offset, where, component), value)
            builder.store(name, value, offset, where, component)

    # --- values ----------------------------------------------------------------------------

    def _variable(self, var: Var) -> Element:
        element = self._emitted(var)
        if element is not None:
            return element
        for position in self._unemitted(var):
            self._values(position)
        return self.memo[-1][var]

    def _emitted(self, key: Var | str) -> Element | None:
        for scope in reversed(self.memo):
            if key in scope:
                return scope[key]
        return None

    def _unemitted(self, var: Var) -> list[int]:
        """Equations to emit for ``var``, in program order; iterative, because chains are long."""
        missing: set[int] = set()
        stack = [var]
        while stack:
            var = stack.pop()
            position = self.program.producer[var]
            if position in missing or self._emitted(var) is not None:
                continue
            missing.add(position)
            eqn = self.program.jaxpr.eqns[position]
            if not eqn.primitive.lower.is_reduction:  # a reduction emits its operands in its loop
                stack += [x for x in eqn.inputs if type(x) is not Literal and self._is_member(x)]
        return sorted(missing)

    def _values(self, position: int) -> None:
        """Emit an equation's outputs into the current scope."""
        eqn = self.program.jaxpr.eqns[position]
        if self._emitted(eqn.outputs[0]) is not None:
            return
        rule = eqn.primitive.lower
        if rule.is_reduction:
            self._emit_reductions([position])
            return
        emitted = rule.emit(Point(self, position), eqn)
        results = (emitted,) if isinstance(emitted, Element) else emitted
        for var, value in zip(eqn.outputs, results, strict=True):
            self.memo[-1][var] = value if rule.rounds else self._rounded(var, value)

    def _rounded(self, var: Var, value: Element) -> Element:
        """Round a value to its dtype, so that results do not depend on which values are stored."""
        if isinstance(value, Pair) or var in self.program.unrounded:
            return value
        return self.builder.round(value, storage_name(var.aval.dtype))

    def _operand(self, position: int, operand: int) -> Element:
        """An operand's element at the current point: a literal, a value of the group, or a load."""
        atom = self.program.jaxpr.eqns[position].inputs[operand]
        if type(atom) is Literal:
            return self.literal(atom, position, operand)
        if self._is_member(atom):
            return self._variable(atom)
        return self._load(read_access(self.exprs, self.space, position, operand))

    def _load(
        self, access: Access, offset: Value | None = None, where: Value | None = None
    ) -> Element:
        name = self.operands.array(access)
        operand = self.operands.table[name]
        self.builder.declare(operand)
        if operand.mode is not Mode.INOUT:
            return self._element(operand, offset, where)
        element = self._emitted(name)
        if element is None:
            element = self.memo[-1][name] = self._element(operand)
        return element

    def _element(
        self, operand: Operand, offset: Value | None = None, where: Value | None = None
    ) -> Element:
        if operand.dtype not in COMPONENT_DTYPES:
            return self.builder.load(operand.name, offset, where)
        components = [self.builder.load(operand.name, offset, where, k) for k in (0, 1)]
        return Pair(*components)

    def _load_overwritten(self, in_rows: bool) -> None:
        """Load operands that will be overwritten: those that vary along rows, or the others."""
        for _, access in self.reads:
            varies = not self._varies_in(access) <= set(self.retained_axes)
            if access.buffer in self.operands.inout_strides and varies is in_rows:
                self._load(access)

    def index(self, strides: Sequence[tuple[Key, SizeExpr]]) -> Value:
        """The sum of the indices along axes times their strides, as int64."""
        access = index_access(self.exprs, self.space, strides)
        return _real(self._load(access)) if access.strides else self.builder.const("int64", 0)

    def literal(self, atom: Literal, position: int, operand: int) -> Element:
        """A literal: a constant in the text if ``is_written_in`` allows it, else an argument.

        Equal literals may differ in another program of the key, so each has its own argument. Only
        copies of one equation share it.
        """
        storage = storage_name(atom.aval.dtype)
        value = np.asarray(atom.value).reshape(())[()]
        if storage not in COMPONENT_DTYPES and is_written_in(value):
            kind = bool if storage == "bool" else (float if "float" in storage else int)
            return self.builder.const(compute_dtype(storage), kind(value))

        def scalar(dtype: str, value: Any, number: int | None = None) -> Value:
            symbol = self.exprs.literal(position, operand, dtype, value, number)
            return self.scalar(dtype, symbol, symbol.source)

        if storage not in COMPONENT_DTYPES:
            return scalar(storage, value)
        dtype = COMPONENT_DTYPES[storage]
        return Pair(scalar(dtype, value.real, 0), scalar(dtype, value.imag, 1))

    def scalar(self, storage: str, value: SizeExpr, slot: Hashable) -> Value:
        """A scalar argument; one operand for each ``slot``."""
        name = self.operands.scalar(storage, value, slot)
        self.builder.declare(self.operands.table[name])
        return self.builder.load(name)


def _real(value: Element) -> Value:
    """The value of an element that must be real, such as an offset or a predicate."""
    assert isinstance(value, Value)
    return value


def _components(value: Element) -> Values:
    """The value of a real element, or the components of a complex one."""
    return (value,) if isinstance(value, Value) else (value.real, value.imag)


class Point:
    """The context that an op's ``emit`` rule gets in a kernel; see ``core.lowering.Context``."""

    def __init__(self, emitter: Emitter, position: int) -> None:
        self._emitter, self._position = emitter, position
        self._eqn, self._exprs = emitter.program.jaxpr.eqns[position], emitter.exprs
        self.builder = emitter.builder

    @cached_property
    def _keys(self) -> list[Key]:
        return self._emitter.space.axes_of_output(self._emitter.program, self._position)

    def operand(self, number: int) -> Element:
        """An operand's element at the point."""
        return self._emitter._operand(self._position, number)

    def reduced_index(self) -> Value:
        """The index along the axis that the equation reduces."""
        keys = self._emitter._reduced_keys(self._position)
        return self._emitter.index([(key, self._exprs.one) for key in keys])

    def index(self, dim: int) -> Value:
        """The output index along ``dim``."""
        return self._emitter.index([(self._keys[dim], self._exprs.one)])

    def linear_index(self, first_dim: int = 0) -> Value:
        """The row-major index over output dimensions ``first_dim`` and later."""
        shape = self._eqn.outputs[0].aval.shape[first_dim:]
        strides = self._exprs.strides(shape)
        return self._emitter.index(list(zip(self._keys[first_dim:], strides, strict=True)))

    def number(self, k: int) -> Value:
        """The k-th size expression that the op declares (``numbers``), as an argument."""
        number = self._exprs.declared(self._position)[k]
        return self._emitter.scalar("int64", number, (self._position, "number", k))

    def bound(self, dim: int, k: int) -> Value:
        """``number(k)`` as a bound of indices along ``dim``: a constant if ``dim`` is short.

        A loop over a short dimension has a separate kernel text for each size, in which comparisons
        with constants cost nothing.
        """
        shape, queries = self._eqn.outputs[0].aval.shape, self._emitter.queries
        if not is_written_short(self._exprs, shape, dim, queries):
            return self.number(k)
        number = queries.write(self._exprs.declared(self._position)[k])
        return self.builder.const("int64", number)

    def _stride(self, operand: int, dim: int, stride: SizeExpr) -> Value:
        """An operand's stride; all loads of the operand share the argument."""
        slot = (self._position, "stride", operand, dim)
        return self._emitter.scalar("int64", stride, slot)

    def load(self, operand: int, indices: Sequence[Value], where: Value | None = None) -> Element:
        """The operand's element at ``indices``, one for each of its dimensions."""
        atom = self._eqn.inputs[operand]
        if type(atom) is Literal:
            return self._emitter.literal(atom, self._position, operand)
        access = read_access(self._exprs, self._emitter.space, self._position, operand)
        strides = self._exprs.layout(atom).strides
        offset: Value | None = None
        for d, (index, stride) in enumerate(zip(indices, strides, strict=True)):
            term = index
            if stride != self._exprs.one:
                term = self.builder.apply("mul", index, self._stride(operand, d, stride))
            offset = term if offset is None else self.builder.apply("add", offset, term)
        return self._emitter._load(access, offset, where)

    def element(self, operand: int, dims: Sequence[int]) -> Element:
        """The operand's element at the output's index; its dimension k is output ``dims[k]``."""
        if operand >= self._eqn.primitive.lower.operands_in_memory(self._eqn):
            return self._emitter._operand(self._position, operand)
        atom = self._eqn.inputs[operand]
        if type(atom) is Literal:
            return self._emitter.literal(atom, self._position, operand)
        access = read_access(self._exprs, self._emitter.space, self._position, operand)
        layout = self._exprs.layout(atom)
        pairs = [
            (self._keys[d], stride)
            for d, stride, repeats in zip(dims, layout.strides, layout.broadcast, strict=True)
            if not repeats and self._keys[d] not in self._emitter.space.units
        ]
        return self._emitter._load(replace(access, strides=tuple(sorted(pairs))))

    def replay(self, program: LaneProgram) -> list[Element]:
        """Inline a lane program; returns its results, or True for outputs that it stores itself."""
        emitter, eqn, position = self._emitter, self._eqn, self._position
        exprs, builder, operands = self._exprs, self.builder, emitter.operands
        reads = lane_reads(exprs, emitter.space, position)
        writes = lane_writes(exprs, emitter.space, position)

        def argument(source: tuple[Any, ...]) -> Value:
            kind, *details = source
            if kind == "element":
                return _real(self.operand(details[0]))
            if kind == "part":
                return _components(self.operand(details[0]))[details[1]]
            if kind == "index":
                return self.index(details[0])
            if kind == "number":
                return self.number(details[0])
            index, dim = details
            if kind == "stride":
                stride = exprs.layout(eqn.inputs[index]).strides[dim]
            else:
                stride = exprs.strides(eqn.outputs[index].aval.shape)[dim]
            return emitter.scalar("int64", stride, (position, kind, index, dim))

        def load(s: Load, offset: Value | None, where: Value | None) -> Value:
            name = operands.array(reads[int(s.operand[1:])])
            builder.declare(operands.table[name])
            return builder.load(name, offset, where, s.component)

        def store(s: Store, value: Value, offset: Value | None, where: Value | None) -> None:
            number = int(s.operand[1:])
            if eqn.outputs[number] not in emitter.space.escaping:
                return  # nothing reads this output, so it has no memory
            name = operands.array(writes[number])
            builder.declare(operands.table[name])
            builder.store(name, value, offset, where, s.component)

        values = [argument(source) for source in program.sources]
        results = iter(Replay(builder, load, store).block(program.block, values))
        elements: list[Element] = []
        for k, var in enumerate(eqn.outputs):
            if k in writes:
                elements.append(builder.const("bool", True))  # stored by the program itself
            elif storage_name(var.aval.dtype) in COMPONENT_DTYPES:
                elements.append(Pair(next(results), next(results)))
            else:
                elements.append(next(results))
        return elements
