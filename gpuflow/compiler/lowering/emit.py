"""Code generation for one kernel: the KernelIR body of a group of equations.

Loop-invariant values are hoisted: a value is emitted in the outermost loop in which all its inputs
are defined. In a row kernel, each reduction and the final loop that stores is a phase. A phase
recomputes the full-rank values that it needs.

The order of loads and stores matters for operands that are overwritten: see ``donation.py``.

Tests: tests/compiler/test_fuse.py, tests/compiler/test_stores_beside_sums.py,
tests/compiler/test_updates.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gpuflow.compiler.fusion.space import DimKey, IterationSpace, KernelKind
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
from gpuflow.compiler.lowering.loops import has_exact_size
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs, SizeQueries
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Eqn, Literal, Var
from gpuflow.core.lowering import Element
from gpuflow.kir.builder import Builder, ComplexPair
from gpuflow.kir.clone import BlockCloner
from gpuflow.kir.nodes import Block, Load, Mode, Operand, Store, Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, compute_dtype

Values = tuple[Value, ...]
_COMPONENTS_OF = {1: (None,), 2: (0, 1)}  # component ids of a real and of a complex element
_NAMED_OPS = 5  # ops in the name of a kernel


def is_constant_in_text(value: Any) -> bool:
    """Whether a literal of the program is part of the kernel's text.

    Only bools, zero, infinities and nan are. Other literals are arguments, because a value may
    follow from a size: 1 or 2 may be the size of a batch.
    """
    if isinstance(value, bool | np.bool_):
        return True
    if isinstance(value, complex | np.complexfloating):
        return False  # not even 0: the signs of its components may differ
    value_as_float = float(value)
    return value_as_float == 0.0 or not np.isfinite(value_as_float)


class Emitter:
    """Code generator for the body of one kernel; ``emit`` may be called once.

    Equal spaces, programs of one key and equal answers of ``queries`` must give equal bodies.

    Args:
        exprs: the size expressions of the program.
        space: the iteration space of the group.
        queries: records the queries of sizes that the kernel's text depends on.
        operands: collects the operands that the body requests.
        axes: names of the kernel's axes, from the outermost.
        axis_of: the kernel axis of each axis of the group.

    Attributes:
        members: positions of the equations of the group.
        reads: its reads from memory, see ``memory_reads``.
        reduced_axes, retained_axes: kernel axes that reductions iterate over, and the others.
    """

    def __init__(
        self,
        exprs: SizeExprs,
        space: IterationSpace,
        queries: SizeQueries,
        operands: Accesses,
        axes: Sequence[str],
        axis_of: dict[DimKey, str],
    ) -> None:
        self.exprs, self.program, self.queries = exprs, exprs.program, queries
        self.space, self.operands = space, operands
        self.axes, self.axis_of = tuple(axes), axis_of
        self.builder = Builder({}, axes)
        self.members = frozenset(space.members)
        self.reads = tuple(memory_reads(exprs, space))
        # Scopes of open loops, innermost last: emitted values by variable, and by name those of
        # operands that must be read before they are overwritten.
        self.scopes: list[dict[Var | str, Element]] = [{}]
        self.reduced_axes = tuple(
            dict.fromkeys(axis_of[key] for key in space.loop_order if key in space.reduced)
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

    def _axes_of(self, domain: frozenset[DimKey]) -> set[str]:
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
                self._emit_equation(e)
        for e, access in self.reads:
            # Operands that are invariant in the loops still to be opened.
            if e not in self.space.dependent and self._axes_of_access(access) <= opened:
                self._load(access)

    def _axes_of_access(self, access: Access) -> set[str]:
        """The kernel axes along which the offset of an access varies."""
        return {self.axis_of[key] for key, _ in access.strides}

    def _is_member(self, var: Var) -> bool:
        return self.program.producer.get(var) in self.members

    # --- rows and phases -------------------------------------------------------------------

    def _emit_rows(self) -> None:
        """Emit one point of the retained axes: reductions in order, then stores."""
        space = self.space
        row_outputs = [var for var in space.escaping if self._needs_row_loop(var)]
        outer_outputs = [var for var in space.escaping if var not in row_outputs]
        for e in space.members:
            eqn = self.program.jaxpr.eqns[e]
            # A reduction of dimensions of size 1 has no loop, and may be inside another's loop.
            if eqn.primitive.lower.is_reduction and self._reduced_axes_of(e):
                if self._lookup(eqn.outputs[0]) is None:
                    also_stored = [] if space.kind is KernelKind.ROW else row_outputs
                    self._emit_reductions(self._joint_reductions(e), also_stored)
                    row_outputs = [] if also_stored else row_outputs
            elif not space.domains[e] & space.reduced and self.reduced_axes:
                self._emit_equation(e)
        if outer_outputs:
            self._load_overwritten(in_rows=False)
        for var in outer_outputs:
            self._store(var)
        if row_outputs:
            with ExitStack() as loops:
                for axis in self.reduced_axes:
                    loops.enter_context(self.builder.for_axis(axis))
                self.scopes.append({})
                self._store_in_row(row_outputs)
                self.scopes.pop()

    def _needs_row_loop(self, var: Var) -> bool:
        """Whether a stored value varies along the reduced axes."""
        keys = self.space.axes_of_output(self.program, self.program.producer[var])
        return any(key in self.space.reduced for key in keys)

    def _joint_reductions(self, position: int) -> list[int]:
        """Reductions that share a loop: over the same axes, and independent."""
        axes = self._reduced_axes_of(position)
        lowering = self.program.jaxpr.eqns[position].primitive.lower
        if not axes or not lowering.shares_loop:
            return [position]
        depth_of = self._reduction_depths()
        later_reductions = [
            e
            for e in self.space.members
            if e >= position and self.program.jaxpr.eqns[e].primitive.lower.shares_loop
        ]
        key = (depth_of[position], axes)
        return [e for e in later_reductions if (depth_of[e], self._reduced_axes_of(e)) == key]

    def _reduction_depths(self) -> dict[int, int]:
        """For each member the length of the longest chain of reductions that it depends on."""
        depth_of: dict[int, int] = {}
        for e in self.space.members:
            depth_of[e] = 0
            for atom in self.program.jaxpr.eqns[e].inputs:
                source = None if type(atom) is Literal else self.program.producer.get(atom)
                if source in depth_of and source is not None:
                    lowering = self.program.jaxpr.eqns[source].primitive.lower
                    depth = depth_of[source] + lowering.is_reduction
                    depth_of[e] = max(depth_of[e], depth)
        return depth_of

    def _emit_reductions(self, positions: Sequence[int], also_stored: Sequence[Var] = ()) -> None:
        """Emit one loop for several reductions; it also stores ``also_stored`` at each point.

        The reductions must be independent, and over the same axes (``_joint_reductions``).
        """
        axes, builder = self._reduced_axes_of(positions[0]), self.builder
        eqns = [self.program.jaxpr.eqns[e] for e in positions]

        def values(position: int, eqn: Eqn) -> Sequence[Value]:
            return eqn.primitive.lower.values(KernelContext(self, position), eqn)

        if not axes:
            (eqn,) = eqns  # reductions without axes are emitted one by one
            result = eqn.primitive.lower.folded(builder, values(positions[0], eqn), eqn)
            self.scopes[-1][eqn.outputs[0]] = self._round(eqn.outputs[0], result)
            return
        starts = [eqn.primitive.lower.starts(builder, eqn) for eqn in eqns]
        accumulator_slices, accumulator_count = [], 0  # of each reduction; of the loop
        for start in starts:
            accumulator_slices.append(slice(accumulator_count, accumulator_count + len(start)))
            accumulator_count += len(start)

        def body() -> list[Value]:
            self.scopes.append({})
            new_values = [
                value for e, eqn in zip(positions, eqns, strict=True) for value in values(e, eqn)
            ]
            self._store_in_row(also_stored)
            self.scopes.pop()
            return new_values

        def combine(*running_and_new: Value) -> list[Value]:
            running, new = running_and_new[:accumulator_count], running_and_new[accumulator_count:]
            return [
                value
                for eqn, span in zip(eqns, accumulator_slices, strict=True)
                for value in eqn.primitive.lower.combined(builder, running[span], new[span], eqn)
            ]

        inits = [value for start in starts for value in start]
        results = builder.reduce(axes, inits, combine, body)
        for eqn, span in zip(eqns, accumulator_slices, strict=True):
            result = eqn.primitive.lower.folded(builder, results[span], eqn)
            self.scopes[-1][eqn.outputs[0]] = self._round(eqn.outputs[0], result)

    def _reduced_axes_of(self, position: int) -> tuple[str, ...]:
        keys = self._reduced_keys(position)
        return tuple(
            dict.fromkeys(self.axis_of[key] for key in self.space.loop_order if key in keys)
        )

    def _reduced_keys(self, position: int) -> set[DimKey]:
        iteration = self.program.iterations[position]
        assert iteration is not None
        return {self.space.axis_of_key[position, d] for d in iteration.reduced}

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
            self._emit_equation(position)
            return
        name = self.operands.array(access)
        array = self.operands.operand_of[name]
        self.builder.declare(array)
        values = _components(self._variable(var))
        for component, value in zip(_COMPONENTS_OF[len(values)], values, strict=True):
            stored = self.builder.unrounded(value, array.dtype)
            self.builder.store(name, stored, component=component)

    def _store_update(self, position: int, access: Access) -> None:
        """Store one element of an update's window, combined with the array's element if needed.

        Operands of an update: array, offset of the window, predicate, value.
        """
        eqn, builder = self.program.jaxpr.eqns[position], self.builder
        name = self.operands.array(access)
        builder.declare(self.operands.operand_of[name])
        offset = _real(self._operand(position, 1))
        within_window = window_access(self.exprs, self.space, position)
        if within_window.strides:
            offset = builder.apply("add", offset, _real(self._load(within_window)))
        predicate = eqn.inputs[2]
        is_always_true = type(predicate) is Literal and bool(predicate.value)
        where = None if is_always_true else _real(self._operand(position, 2))
        values = _components(self._operand(position, 3))
        combine = eqn.primitive.lower.combine(eqn.params)
        for component, value in zip(_COMPONENTS_OF[len(values)], values, strict=True):
            if combine is not None:
                value = builder.apply(combine, builder.load(name, offset, where, component), value)
            builder.store(name, value, offset, where, component)

    # --- values ----------------------------------------------------------------------------

    def _variable(self, var: Var) -> Element:
        element = self._lookup(var)
        if element is not None:
            return element
        for position in self._pending_equations(var):
            self._emit_equation(position)
        return self.scopes[-1][var]

    def _lookup(self, key: Var | str) -> Element | None:
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        return None

    def _pending_equations(self, var: Var) -> list[int]:
        """Equations to emit for ``var``, in program order.

        A loop instead of recursion, because chains of equations are longer than Python's stack.
        """
        missing: set[int] = set()
        stack = [var]
        while stack:
            var = stack.pop()
            position = self.program.producer[var]
            if position in missing or self._lookup(var) is not None:
                continue
            missing.add(position)
            eqn = self.program.jaxpr.eqns[position]
            if not eqn.primitive.lower.is_reduction:  # a reduction emits its operands in its loop
                stack += [x for x in eqn.inputs if type(x) is not Literal and self._is_member(x)]
        return sorted(missing)

    def _emit_equation(self, position: int) -> None:
        """Emit an equation's outputs into the current scope."""
        eqn = self.program.jaxpr.eqns[position]
        if self._lookup(eqn.outputs[0]) is not None:
            return
        lowering = eqn.primitive.lower
        if lowering.is_reduction:
            self._emit_reductions([position])
            return
        emitted = lowering.emit(KernelContext(self, position), eqn)
        results = (emitted,) if isinstance(emitted, Element) else emitted
        for var, value in zip(eqn.outputs, results, strict=True):
            self.scopes[-1][var] = value if lowering.rounds else self._round(var, value)

    def _round(self, var: Var, value: Element) -> Element:
        """Round a value to its dtype, so that results do not depend on which values are stored."""
        if isinstance(value, ComplexPair) or var in self.program.unrounded:
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
        operand = self.operands.operand_of[name]
        self.builder.declare(operand)
        if operand.mode is not Mode.INOUT:
            return self._element(operand, offset, where)
        element = self._lookup(name)
        if element is None:
            element = self.scopes[-1][name] = self._element(operand)
        return element

    def _element(
        self, operand: Operand, offset: Value | None = None, where: Value | None = None
    ) -> Element:
        if operand.dtype not in COMPONENT_DTYPES:
            return self.builder.load(operand.name, offset, where)
        components = [self.builder.load(operand.name, offset, where, k) for k in (0, 1)]
        return ComplexPair(*components)

    def _load_overwritten(self, in_rows: bool) -> None:
        """Load operands that will be overwritten: those that vary along rows, or the others."""
        for _, access in self.reads:
            varies = not self._axes_of_access(access) <= set(self.retained_axes)
            if access.buffer in self.operands.inout_strides and varies is in_rows:
                self._load(access)

    def index(self, strides: Sequence[tuple[DimKey, SizeExpr]]) -> Value:
        """The sum of the indices along axes times their strides, as int64."""
        access = index_access(self.exprs, self.space, strides)
        return _real(self._load(access)) if access.strides else self.builder.const("int64", 0)

    def literal(self, atom: Literal, position: int, operand: int) -> Element:
        """A literal: a constant in the text if ``is_constant_in_text`` allows it, else an argument.

        Equal literals may differ in another program of the key, so each has its own argument. Only
        copies of one equation share it.
        """
        storage = storage_name(atom.aval.dtype)
        value = np.asarray(atom.value).reshape(())[()]
        if storage not in COMPONENT_DTYPES and is_constant_in_text(value):
            kind = bool if storage == "bool" else (float if "float" in storage else int)
            return self.builder.const(compute_dtype(storage), kind(value))

        def scalar(dtype: str, value: Any, number: int | None = None) -> Value:
            symbol = self.exprs.literal(position, operand, dtype, value, number)
            return self.scalar(dtype, symbol, symbol.source)

        if storage not in COMPONENT_DTYPES:
            return scalar(storage, value)
        dtype = COMPONENT_DTYPES[storage]
        return ComplexPair(scalar(dtype, value.real, 0), scalar(dtype, value.imag, 1))

    def scalar(self, storage: str, value: SizeExpr, slot: Hashable) -> Value:
        """A scalar argument; one operand for each ``slot``."""
        name = self.operands.scalar(storage, value, slot)
        self.builder.declare(self.operands.operand_of[name])
        return self.builder.load(name)


def _real(value: Element) -> Value:
    """The value of an element that must be real, such as an offset or a predicate."""
    assert isinstance(value, Value)
    return value


def _components(value: Element) -> Values:
    """The value of a real element, or the components of a complex one."""
    return (value,) if isinstance(value, Value) else (value.real, value.imag)


class KernelContext:
    """The context that an op's ``emit`` rule gets in a kernel; see ``core.lowering.Context``."""

    def __init__(self, emitter: Emitter, position: int) -> None:
        self._emitter, self._position = emitter, position
        self._eqn, self._exprs = emitter.program.jaxpr.eqns[position], emitter.exprs
        self.builder = emitter.builder

    @cached_property
    def _keys(self) -> list[DimKey]:
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
        number = self._exprs.declared_numbers(self._position)[k]
        return self._emitter.scalar("int64", number, (self._position, "number", k))

    def bound(self, dim: int, k: int) -> Value:
        """``number(k)`` as a bound of indices along ``dim``: a constant if ``dim`` is short.

        A loop over a short dimension has a separate kernel text for each size, in which comparisons
        with constants cost nothing.
        """
        shape, queries = self._eqn.outputs[0].aval.shape, self._emitter.queries
        if not has_exact_size(self._exprs, shape, dim, queries):
            return self.number(k)
        value = queries.value_in_text(self._exprs.declared_numbers(self._position)[k])
        return self.builder.const("int64", value)

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
            if not repeats and self._keys[d] not in self._emitter.space.unit_axes
        ]
        return self._emitter._load(replace(access, strides=tuple(sorted(pairs))))

    def replay(self, program: LaneProgram) -> list[Element]:
        """Inline a lane program; returns its results, or True for outputs that it stores itself.

        Names in its block are a letter and an index: of an operand in loads, an output in stores.
        """
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
            builder.declare(operands.operand_of[name])
            return builder.load(name, offset, where, s.component)

        def store(s: Store, value: Value, offset: Value | None, where: Value | None) -> None:
            output = int(s.operand[1:])
            if eqn.outputs[output] not in emitter.space.escaping:
                return  # nothing reads this output, so it has no memory
            name = operands.array(writes[output])
            builder.declare(operands.operand_of[name])
            builder.store(name, value, offset, where, s.component)

        values = [argument(source) for source in program.sources]
        results = iter(BlockCloner(builder, load, store).block(program.block, values))
        elements: list[Element] = []
        for k, var in enumerate(eqn.outputs):
            if k in writes:
                elements.append(builder.const("bool", True))  # stored by the program itself
            elif storage_name(var.aval.dtype) in COMPONENT_DTYPES:
                elements.append(ComplexPair(next(results), next(results)))
            else:
                elements.append(next(results))
        return elements
