"""The variables of a loop program that is compiled: values where they can be, else memory.

Most names of a printed kernel are assigned once, and all their reads come after that in the same
list of statements, or further inside: those are SSA values. A name that is assigned again, such as
a sum in a loop, has a stack slot, of which LLVM makes a register. So has one that is assigned in a
loop or a branch and read after it.
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
from gpuflow.targets.llvm.lanes import Instruction, Lane, llvm_type

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


class _Value(NamedTuple):
    """The value of a name that is assigned once, and its position."""

    lane: Lane
    statements: int  # the number of the list
    block: ir.Block


class Variables:
    """Variables and their values, while a function is compiled.

    Args:
        entry: the function's first block, which has no terminator yet: stack slots are allocated in
            it.
        once: the names that the function assigns once.
    """

    def __init__(self, entry: ir.Block, once: frozenset[str]) -> None:
        self._entry, self._once = entry, once
        self._values: dict[str, _Value] = {}
        self._places: dict[str, tuple[Instruction, str]] = {}
        self._open = [0]  # the lists of statements around the one at hand, by number
        self._lists = 0

    @contextmanager
    def statements(self) -> Iterator[None]:
        """While a list of statements inside of the one at hand is compiled."""
        self._lists += 1
        self._open.append(self._lists)
        yield
        self._open.pop()

    def assign(self, name: str, value: Lane) -> bool:
        """Assign a value to a name; False if its dtype differs."""
        builder = value.builder
        if name in self._once:
            assert builder.block is not None  # something is compiled
            self._values[name] = _Value(value, self._open[-1], builder.block)
            return True
        if name not in self._places:
            self._places[name] = self._place(name, value), value.dtype
        place, dtype = self._places[name]
        if dtype != value.dtype:
            return False
        builder.store(value.value, place)
        return True

    def get(self, name: str, builder: ir.IRBuilder) -> Lane | None:
        """The value of a variable; None if it has none yet."""
        known = self._values.get(name)
        if known is not None:
            if known.statements in self._open:
                return known.lane
            self._put_into_memory(name, known)
        if name not in self._places:
            return None
        place, dtype = self._places[name]
        return Lane(builder, builder.load(place), dtype)

    def _put_into_memory(self, name: str, known: _Value) -> None:
        """Give variables that are read after their list of statements a stack slot."""
        place = self._place(name, known.lane)
        builder = known.lane.builder
        with builder.goto_block(known.block):
            builder.store(known.lane.value, place)
        self._places[name] = place, known.lane.dtype
        del self._values[name]

    def _place(self, name: str, value: Lane) -> Instruction:
        is_pointer = value.dtype == POINTER
        kind = ir.IntType(8).as_pointer() if is_pointer else llvm_type(value.dtype)
        with value.builder.goto_block(self._entry):
            return value.builder.alloca(kind, name=name)


def assigned_once(body: Iterable[Statement]) -> frozenset[str]:
    """The names that statements assign once."""
    return frozenset(name for name, count in Counter(assigned(body)).items() if count == 1)


def local_names(body: Iterable[Statement]) -> frozenset[str]:
    """The variables that are read only after an assignment in the same list of statements, or
    further inside: no iteration of a loop reads a value from another one, or from a branch.
    """
    body = list(body)
    local = set(assigned(body))

    def visit(statements: Iterable[Statement], known: set[str]) -> None:
        for statement in statements:
            reads = {
                one.name
                for value in values_of(statement)
                for one in expressions_in(value)
                if isinstance(one, Name)
            }
            local.difference_update(reads - known)
            blocks = blocks_of(statement)
            if blocks:
                known.difference_update(assigned([statement]))
                for block in blocks:
                    visit(block, set(known))
            else:
                known.update(assigned([statement]))

    visit(body, set())
    return frozenset(local)


def assigned(body: Iterable[Statement]) -> Iterator[str]:
    """The names that statements assign, as often as they do; not the counters of loops."""
    for statement in statements_in(body):
        if isinstance(statement, Assign):
            yield from statement.targets
