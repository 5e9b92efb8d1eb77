"""Decode a parsed entry to blocks of steps: calls are inlined, registers become slots.

Tests: tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ptxsim.faults import unreadable
from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import TABLE, WHOLE_WARP, guarded, watched
from ptxsim.program import (
    Barrier,
    BasicBlock,
    Program,
    WarpSync,
    conditional,
    indexed,
)
from ptxsim.site import Scope, Site
from ptxsim.slots import Slots
from ptxsim.syntax import Function, Instruction, Label, Module, Variable
from ptxsim.types import BOOL, U32
from ptxsim.undefined import Effect


def decode(module: Module, name: str) -> Program:
    """Decode an entry.

    Raises:
        PtxError: if an instruction is unknown, or the text is incomplete.
    """
    decoder = Decoder(module, name)
    program = decoder.decode()
    maybe_unset = decoder.read_before_set()
    # Most kernels have none. Slots have the same numbers when it is decoded once more.
    return Decoder(module, name, maybe_unset).decode() if maybe_unset else program


class Decoder(Slots):
    """State of a kernel while it is decoded."""

    def __init__(
        self, module: Module, name: str, maybe_unset: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(module, name)
        self.program.maybe_unset = maybe_unset
        self.block = BasicBlock(0)
        self.labels: dict[str, int] = {}
        self.pending: list[tuple[BasicBlock, Callable[[], None]]] = []
        self.instances = 0

    def decode(self) -> Program:
        """Decode everything."""
        self._body(Scope(self.entry, 0))
        self._close(lambda block: self._goes(block, [len(self.program.blocks)]))
        for block, finish in self.pending:
            self.block = block
            finish()
        self.program.solve_liveness()
        return self.program

    # --- code ---

    def _body(self, scope: Scope) -> None:
        for item in scope.function.body:
            if isinstance(item, Label):
                self._label(scope.label(item.name))
            elif item.opcode in _CONTROL:
                _CONTROL[item.opcode](self, scope, item)
            else:
                self._plain(scope, item)

    def _label(self, name: str) -> None:
        self._fall()
        if name in self.labels:
            raise unreadable(
                f"a label must be defined once; got {name.partition(':')[2]} twice",
                f"function {self.entry.name}",
                "rename one",
            )
        self.labels[name] = self.block.number

    def _fall(self) -> None:
        """Start a new block that follows the present one."""
        if self.block.length or self.block.gate:
            self._close(lambda block: self._goes(block, [block.number + 1]))

    def _close(self, finish: Callable[[BasicBlock], None]) -> None:
        """End the present block; ``finish`` runs when all labels are known."""
        block = self.block
        self.program.blocks.append(block)
        self.pending.append((block, lambda: finish(block)))
        self.block = BasicBlock(len(self.program.blocks))

    @staticmethod
    def _goes(block: BasicBlock, targets: Sequence[int]) -> None:
        block.targets = targets
        block.following = targets[0]

    def _plain(self, scope: Scope, item: Instruction) -> None:
        """An instruction of the table."""
        site = Site(self, scope, item)
        entry = TABLE.get(item.opcode)
        if entry is None:
            site.refuse("must be one that the interpreter knows; it is unknown")
        if entry.member is not None:
            self._fall()
            self.block.gate = WarpSync(self._member(site, entry.member))
            self.block.note(site.reads, (), False)
        self._steps(site, entry.build(site), collective=entry.member is not None)

    @staticmethod
    def _member(site: Site, operand: int) -> int:
        if operand == WHOLE_WARP:
            return site.constant(0xFFFFFFFF, U32)
        return site.source(operand, U32)

    def _steps(self, site: Site, step: Step, collective: bool = False) -> None:
        """Add the steps of an instruction, under its guard, for single lanes or warps."""
        steps, item = [*site.before, step, *site.after], site.instruction
        reads, writes = tuple(site.reads), tuple(site.writes)
        uses = site.accesses or collective or not writes
        guard = self._predicate(site) if item.guard else None
        effect = Effect(reads, writes, uses, site.chooses, guard, item.negated)
        if not self._comes_from_memory(item):
            self.program.flows.append((reads, writes))
        steps = watched(steps, reads, writes, self.program.maybe_unset)
        if guard is not None:
            steps = [guarded(steps, guard, item.negated, (*reads, *writes), writes)]
            steps = watched(steps, [guard], (), self.program.maybe_unset)
            reads = (*reads, guard)
        self.block.note(reads, writes, guard is not None)
        self.block.steps += steps
        self.block.effects += [effect, *[None] * (len(steps) - 1)]
        self.block.may_make_undefined |= site.may_be_undefined
        self.block.instructions += [item] * len(steps)
        self.block.length += 1

    @staticmethod
    def _comes_from_memory(item: Instruction) -> bool:
        """Whether results are loaded values or predicates, which are never derived addresses."""
        loads = item.opcode in ("ld", "ldu", "atom") and not item.has("param")
        return loads or item.opcode == "setp"

    def read_before_set(self) -> frozenset[int]:
        """The registers that some path through the kernel reads before it sets them."""
        live = self.program.live_at(0)
        registers = {s for key, s in self._slots.items() if _is_register(key)}
        return frozenset(slot for slot in registers if live >> slot & 1)

    def _predicate(self, site: Site) -> int:
        name = site.instruction.guard
        if site.scope.function.register_type(name) != "pred":
            site.refuse(f"must be guarded by a predicate; got {name}")
        return self.register(site.scope, name, BOOL)

    # --- control ---

    def _leave(self, scope: Scope, item: Instruction, label: str | None) -> None:
        """Branch to a label, or to the end for None, where the guard holds."""
        site = Site(self, scope, item)
        self.block.length += 1
        predicate = self._predicate(site) if item.guard else None
        if predicate is not None:
            checks = watched([], [predicate], (), self.program.maybe_unset)
            self.block.steps += checks
            self.block.effects += [None] * len(checks)
            self.block.instructions += [item] * len(checks)
            self.block.control_reads = (predicate,)
            self.block.note([predicate], (), False)

        def finish(block: BasicBlock) -> None:
            target = len(self.program.blocks)
            if label is not None:
                if label not in self.labels:
                    site.refuse(f"must branch to a label; {label.partition(':')[2]} is none")
                target = self.labels[label]
            if predicate is None:
                self._goes(block, [target])
            else:
                block.targets = [target, block.number + 1]
                block.leave = conditional(predicate, item.negated, *block.targets)

        self._close(finish)

    def _branch(self, scope: Scope, item: Instruction) -> None:
        self._leave(scope, item, scope.label(item.operands[-1]))

    def _return(self, scope: Scope, item: Instruction) -> None:
        self._leave(scope, item, scope.after or None)

    def _exit(self, scope: Scope, item: Instruction) -> None:
        self._leave(scope, item, None)

    def _indexed(self, scope: Scope, item: Instruction) -> None:
        site = Site(self, scope, item)
        table = scope.function.branch_tables.get(item.operands[1])
        if table is None or item.guard:
            site.refuse("must have a table of targets and no guard")
        index = site.source(0, U32)
        self.block.control_reads = tuple(site.reads)
        self.block.note(site.reads, (), False)
        self.block.length += 1

        def finish(block: BasicBlock) -> None:
            block.targets = [self.labels[scope.label(name)] for name in table]
            block.leave = indexed(index, block.targets)

        self._close(finish)

    def _call(self, scope: Scope, item: Instruction) -> None:
        """Inline the called function; a return branches to its end."""
        site = Site(self, scope, item)
        operands = list(item.operands)
        results = operands.pop(0).strip("()") if operands[0].startswith("(") else ""
        called = self.module.functions.get(operands[0])
        passed = operands[1].strip("()") if len(operands) > 1 else ""
        if called is None or item.guard or len(operands) > 2:
            site.refuse("must call a function that is defined in the module, without a guard")
        callers = (*scope.callers, scope.function.name)
        if called.name in callers:
            site.refuse("must not call a function that it is part of: recursion")
        self.instances += 1
        actual = _pairs(called, results, passed)
        if actual is None:
            site.refuse(f"must pass what {called.name} takes")
        actual = {formal: scope.parameter(name) for formal, name in actual.items()}
        after = f"{self.instances}:return"
        self.block.length += 1
        self._body(Scope(called, self.instances, actual, after, callers))
        self._label(after)

    def _trap(self, scope: Scope, item: Instruction) -> None:
        def step(frame: Frame) -> None:
            frame.fail("a kernel must not trap", "find out which condition of the kernel failed")

        self._steps(Site(self, scope, item), step)

    def _barrier(self, scope: Scope, item: Instruction) -> None:
        if item.has("warp"):
            self._plain(scope, item)
            return
        site = Site(self, scope, item)
        if item.guard or item.has("cluster"):
            site.refuse("must be a barrier of the block, without a guard")
        self._fall()
        self.block.gate = _barrier_of(site)
        self.block.note(site.reads, site.writes, bool(site.writes))
        self.block.control_reads = tuple(site.reads)
        self.block.instructions = [item]
        self.block.length = 1
        self._close(lambda block: self._goes(block, [block.number + 1]))


def _is_register(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] == "register"


def _pairs(called: Function, results: str, passed: str) -> dict[str, str] | None:
    """The names that a caller passes, by the callee's names."""
    actual = [name for name in (*results.split(","), *passed.split(",")) if name]
    formal: list[Variable] = [*called.results, *called.parameters]
    if len(actual) != len(formal):
        return None
    return {variable.name: name for variable, name in zip(formal, actual, strict=True)}


def _barrier_of(site: Site) -> Barrier:
    """``bar.sync 0``, ``barrier.sync.aligned 1, 64``, ``bar.arrive 1, 64``, ``bar.red.or.pred``."""
    if site.before:
        site.refuse("must have plain operands")
    aligned = site.instruction.opcode == "bar" or site.has("aligned")
    if not site.has("red"):
        expected = site.source(1, U32) if site.count() > 1 else None
        return Barrier(site.source(0, U32), expected, not site.has("arrive"), aligned)
    how = site.one_of(("popc", "and", "or"))
    dtype = U32 if how == "popc" else BOOL
    negated = site.text(-1).startswith("!")
    predicate = site.source_of(site.text(-1).lstrip("!"), BOOL)
    target, number = site.target(0, dtype), site.source(1, U32)
    expected = site.source(2, U32) if site.count() > 3 else None
    return Barrier(number, expected, True, aligned, how, predicate, negated, target)


_CONTROL: dict[str, Callable[[Decoder, Scope, Instruction], None]] = {
    "bra": Decoder._branch,
    "brx": Decoder._indexed,
    "ret": Decoder._return,
    "exit": Decoder._exit,
    "call": Decoder._call,
    "trap": Decoder._trap,
    "bar": Decoder._barrier,
    "barrier": Decoder._barrier,
}

CONTROL_OPCODES = frozenset(_CONTROL)
