"""Variables of a loop program under compilation: SSA values if possible, else stack slots.

A name is an SSA value if it is assigned once, and all reads follow in the same list of statements
or in nested ones. Most names are. A name that is assigned again, such as a sum in a loop, gets a
stack slot, which LLVM promotes to a register (mem2reg). So does a name that is assigned in a loop
or branch and read after it.

Tests: tests/targets/cpu/test_loop_programs.py, tests/targets/cpu/test_random_loops.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.functions import POINTER
from gpuflow.targets.cpu.codegen.loops.nodes import (
    Assign,
    Name,
    Statement,
    blocks_of,
    expressions_in,
    statements_in,
    values_of,
)
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, llvm_type

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


class _Assignment(NamedTuple):
    """The value of a name that is assigned once.

    Attributes:
        value: the SSA value.
        statements: id of the list of statements with the assignment.
        block: LLVM block of the assignment.
    """

    value: IRValue
    statements: int
    block: ir.Block


class Variables:
    """Values of the variables of a function that is being compiled.

    Args:
        entry: the function's first block, for allocas. It must not have a terminator yet.
        names_assigned_once: names that the function assigns once.
    """

    def __init__(self, entry: ir.Block, names_assigned_once: frozenset[str]) -> None:
        self._entry, self._names_assigned_once = entry, names_assigned_once
        self._assignments: dict[str, _Assignment] = {}
        self._slots: dict[str, tuple[LlvmValue, str]] = {}  # the stack slot and the dtype
        self._open_lists = [0]  # the ids of the enclosing lists of statements
        self._last_list_id = 0

    @contextmanager
    def statements(self) -> Iterator[None]:
        """Enter a nested list of statements, for as long as the context is open."""
        self._last_list_id += 1
        self._open_lists.append(self._last_list_id)
        yield
        self._open_lists.pop()

    def assign(self, name: str, value: IRValue) -> bool:
        """Assign a value to a name; returns False if its dtype differs from earlier values."""
        builder = value.builder
        if name in self._names_assigned_once:
            assert builder.block is not None  # something is compiled
            self._assignments[name] = _Assignment(value, self._open_lists[-1], builder.block)
            return True
        if name not in self._slots:
            self._slots[name] = self._allocate_slot(name, value), value.dtype
        slot, dtype = self._slots[name]
        if dtype != value.dtype:
            return False
        builder.store(value.value, slot)
        return True

    def get(self, name: str, builder: ir.IRBuilder) -> IRValue | None:
        """Emit a read of a variable at the position of ``builder``; None if it has no value yet."""
        assignment = self._assignments.get(name)
        if assignment is not None:
            if assignment.statements in self._open_lists:
                return assignment.value
            self._spill(name, assignment)
        if name not in self._slots:
            return None
        slot, dtype = self._slots[name]
        return IRValue(builder, builder.load(slot), dtype)

    def _spill(self, name: str, value: _Assignment) -> None:
        """Move an SSA value that is read outside of its list of statements to a stack slot."""
        slot = self._allocate_slot(name, value.value)
        builder = value.value.builder
        with builder.goto_block(value.block):
            builder.store(value.value.value, slot)
        self._slots[name] = slot, value.value.dtype
        del self._assignments[name]

    def _allocate_slot(self, name: str, value: IRValue) -> LlvmValue:
        is_pointer = value.dtype == POINTER
        kind = ir.IntType(8).as_pointer() if is_pointer else llvm_type(value.dtype)
        with value.builder.goto_block(self._entry):
            return value.builder.alloca(kind, name=name)


def names_assigned_once(body: Iterable[Statement]) -> frozenset[str]:
    """The names that statements, with nested ones, assign once."""
    return frozenset(name for name, count in Counter(assigned_names(body)).items() if count == 1)


def local_names(body: Iterable[Statement]) -> frozenset[str]:
    """Variables whose reads all follow an assignment in the same or an enclosing list.

    They are not loop-carried, and are not read after the loop or branch that assigns them.
    """
    body = list(body)
    local = set(assigned_names(body))

    def visit_list(statements: Iterable[Statement], defined: set[str]) -> None:
        for statement in statements:
            reads = {
                node.name
                for value in values_of(statement)
                for node in expressions_in(value)
                if isinstance(node, Name)
            }
            local.difference_update(reads - defined)
            blocks = blocks_of(statement)
            if blocks:
                defined.difference_update(assigned_names([statement]))
                for block in blocks:
                    visit_list(block, set(defined))
            else:
                defined.update(assigned_names([statement]))

    visit_list(body, set())
    return frozenset(local)


def assigned_names(body: Iterable[Statement]) -> Iterator[str]:
    """Yield the names that statements assign, with repetitions; not the counters of loops."""
    for statement in statements_in(body):
        if isinstance(statement, Assign):
            yield from statement.targets
