"""Compiles the loop program of a CPU kernel to an LLVM module, in one walk.

Innermost loops are written as loops over vectors if possible (``vector_loops``). The others are
written as scalar loops with metadata for LLVM's vectorizer.

Tests: tests/targets/cpu/test_cpu_text.py, tests/targets/cpu/test_random_loops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen import functions
from gpuflow.targets.cpu.codegen.elements import element_bytes
from gpuflow.targets.cpu.codegen.expressions import Expressions
from gpuflow.targets.cpu.codegen.functions import POINTER, Callee
from gpuflow.targets.cpu.codegen.libm import NoVectorVariant
from gpuflow.targets.cpu.codegen.loops.nodes import (
    PARAMETERS,
    Accessor,
    Assign,
    Branch,
    Break,
    Call,
    CallStatement,
    InfiniteLoop,
    InvalidProgram,
    Loop,
    Program,
    Return,
    Statement,
    names_called,
)
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.opaque import opaque, opaque_constant
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.codegen.reduction_variables import reductions_of
from gpuflow.targets.cpu.codegen.scalar_functions import LONG_CHAIN_FUNCTIONS
from gpuflow.targets.cpu.codegen.straight_loops import (
    Gather,
    NotVectorizable,
    StackArrays,
    WorkShare,
    depth_of,
    is_innermost,
    trip_count_of,
)
from gpuflow.targets.cpu.codegen.variables import (
    Variables,
    assigned_names,
    local_names,
    names_assigned_once,
)
from gpuflow.targets.cpu.codegen.vector_blocks import MAX_INSTRUCTIONS, loop_metadata
from gpuflow.targets.cpu.codegen.vector_loops import VectorLoop
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


@record
class KernelModule:
    """The LLVM module of a kernel.

    Attributes:
        module: the module.
        is_fully_vectorized: whether it has loops, and all innermost ones are vectorized, so that
            LLVM need not transform loops.
    """

    module: ir.Module
    is_fully_vectorized: bool

    def __str__(self) -> str:
        return str(self.module)


@cache
def _fill_escape_table() -> None:
    """Fill llvmlite's table of escaped characters, before several threads use it.

    llvmlite fills it lazily, entry by entry. A thread that reads it half full gets a KeyError. No
    entry is ever removed.
    """
    all_bytes = ir.MetaDataString(ir.Module(), bytes(range(256)))
    while True:
        with suppress(KeyError):
            all_bytes.get_reference()
            return


def compile_module(source: LoopSource) -> KernelModule:
    """Compile a loop program to an LLVM module with one function ``void entry(ptr, i64, i64)``.

    Raises:
        InvalidProgram: if the program has an unknown call, or is ill-typed.
    """
    _fill_escape_table()
    program = source.program
    module = ir.Module(program.entry)
    accessors = {accessor.name: _accessor(accessor) for accessor in program.accessors}
    function = _Function(module, program, accessors)
    function.compile()
    return KernelModule(module, function.vectorized_count > 0 and function.scalar_count == 0)


def _accessor(accessor: Accessor) -> Callee:
    constructors = {
        "reader": functions.reader,
        "guarded_reader": functions.guarded_reader,
        "writer": functions.writer,
    }
    return constructors[accessor.kind](accessor.storage, accessor.scope, accessor.scope_count)


# Statements from which on LLVM emits a loop once, with masks; see ``_masked_loop_metadata``. For
# chains of 25, 50 and 100 operations (about 45, 70 and 140 statements), that takes 0.9, 0.7 and
# 0.55 of the time to compile, and 1.2, 1.0 and 1.0 of the time to run. Shorter loops run faster
# without it, on several vectors at once.
LONG_BODY = 64
# With fewer instructions in a loop, LLVM's own interleave count is good.
_MIN_INSTRUCTIONS = 32
# Bytes of a vector register of AVX-512.
_REGISTER_BYTES = 64
# Lanes of a vector that a series of instructions computes at once: float32 in a register of AVX2.
_SERIES_LANES = 8


class _Function(Expressions):
    """Compiles one function. Each variable must have one type.

    Args:
        module: the module to add it to.
        program: the loop program.
        accessors: accessors of the program, by name.

    Attributes:
        entry: block of the allocas; its terminator is added last.
        readonly_values: values of the parameters, and of the counters of enclosing loops.
        assigned_once: names that the function assigns once.
        local_names: names that are neither loop-carried nor read after their loop or branch.
        variables: values of the other names.
        exit_blocks: exit blocks of the enclosing loops, innermost last.
        inner_loop_depths: for each enclosing loop, the nesting depth of the loops in it.
        vectorized_count: number of innermost loops that are written as loops over vectors.
        scalar_count: number of innermost loops that are not.
        stack_arrays: analysis of arrays on the stack.
    """

    def __init__(self, module: ir.Module, program: Program, accessors: dict[str, Callee]) -> None:
        signature = ir.FunctionType(ir.VoidType(), [_byte_pointer(), _int64(), _int64()])
        function = ir.Function(module, signature, program.entry)
        function.attributes.add("nounwind")
        self.body = program.body
        self.entry = function.append_basic_block("entry")
        super().__init__(ir.IRBuilder(function.append_basic_block("start")), accessors)
        self.readonly_values: dict[str, IRValue] = {}
        for name, value in zip(PARAMETERS, function.args, strict=True):
            dtype = POINTER if value.type == _byte_pointer() else "int64"
            self.readonly_values[name] = IRValue(self.builder, value, dtype)
        self.assigned_once, self.local_names = (
            names_assigned_once(self.body),
            local_names(self.body),
        )
        self.variables = Variables(self.entry, self.assigned_once)
        self.exit_blocks: list[ir.Block] = []
        self.inner_loop_depths: list[int] = []
        self.vectorized_count = self.scalar_count = 0
        self.stack_arrays = StackArrays(program, self.assigned_once)

    def compile(self) -> None:
        """Compile the whole function; call it once."""
        start = self.builder.block
        self.block(self.body)
        self.builder.ret_void()
        with self.builder.goto_block(self.entry):
            self.builder.branch(start)

    # --- statements ------------------------------------------------------------------------

    def block(self, body: Sequence[Statement]) -> None:
        with self.variables.statements():
            for node in body:
                self.statement(node)

    def inner_block(self, body: Sequence[Statement], after: ir.Block) -> None:
        """Compile the body of a loop whose exit block is ``after``."""
        self.exit_blocks.append(after)
        self.inner_loop_depths.append(depth_of(body))
        self.block(body)
        self.inner_loop_depths.pop()
        self.exit_blocks.pop()

    def statement(self, node: Statement) -> None:
        match node:
            case Assign((name,), value):
                self.assign(name, self.value(value))
            case Assign(targets, Call() as call):
                for target, result in zip(targets, self.call(call), strict=True):
                    self.assign(target, result)
            case CallStatement(call):
                self.call(call)
            case Loop():
                self.loop(node)
            case InfiniteLoop(body):
                self.forever(body)
            case Branch():
                self.branch(node)
            case Break():
                self.builder.branch(self.exit_blocks[-1])
            case Return():
                self.builder.ret_void()
            case _:
                raise InvalidProgram(str(node))

    def assign(self, name: str, value: IRValue) -> None:
        if name in self.readonly_values:
            raise InvalidProgram(f"{name} is assigned")
        if not self.variables.assign(name, value):
            raise InvalidProgram(f"{name} is {value.dtype}, and something else before")

    def loop(self, loop: Loop) -> None:
        """Compile a loop: over vectors if possible, else as a scalar loop with metadata."""
        begin, end = (self.typed(value, "int64").value for value in (loop.first, loop.end))
        has_gather = False
        if is_innermost(loop.body):
            try:
                if self.vectorize(loop, (begin, end)):
                    self.vectorized_count += 1
                    return
            except Gather:
                has_gather = True
        self.scalar_loop(loop, begin, end, has_gather)

    def scalar_loop(self, loop: Loop, begin: LlvmValue, end: LlvmValue, has_gather: bool) -> None:
        """Compile a loop that processes one element per iteration, with metadata for LLVM.

        Args:
            loop: the loop.
            begin, end: its emitted bounds.
            has_gather: whether it is innermost, and loads at an index that is not affine.
        """
        name, body = loop.counter, loop.body
        builder, function = self.builder, self.builder.function
        outer_scalar_count = self.scalar_count
        self.scalar_count += is_innermost(body)
        trip_count = None
        if loop.is_short and isinstance(end, ir.Constant):
            trip_count = end.constant
        is_opaque = trip_count is not None and _has_scalar_remainder(trip_count, body)
        if is_opaque:
            end = opaque_constant(builder, _int64(), trip_count)
        before = builder.block
        head = function.append_basic_block("head")
        loop_body = function.append_basic_block("body")
        after = function.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        counter = builder.phi(_int64(), name=name)
        counter.add_incoming(begin, before)
        builder.cbranch(builder.icmp_signed("<", counter, end), loop_body, after)
        builder.position_at_end(loop_body)
        shadowed = self.readonly_values.get(name)
        self.readonly_values[name] = IRValue(builder, counter, "int64")
        is_straight = self.is_straight(body)
        self.inner_block(body, after)
        next_counter = builder.add(counter, ir.Constant(_int64(), 1), flags=("nsw",))
        if self.scalar_count == outer_scalar_count:  # LLVM shall leave the vectorized loops alone
            next_counter = opaque(builder, next_counter)
        counter.add_incoming(next_counter, builder.block)
        back_edge = builder.branch(head)
        if loop.is_short:
            metadata = _one_vector_at_a_time(builder.module, trip_count, is_opaque)
            back_edge.set_metadata("llvm.loop", metadata)
        elif is_straight:
            body_blocks = function.blocks[function.blocks.index(loop_body) :]
            metadata = self.straight_metadata(body, body_blocks, has_gather)
            if metadata is not None:
                back_edge.set_metadata("llvm.loop", metadata)
        builder.position_at_end(after)
        del self.readonly_values[name]
        if shadowed is not None:
            self.readonly_values[name] = shadowed

    def vectorize(self, loop: Loop, bounds: tuple[LlvmValue, LlvmValue]) -> bool:
        """Write a loop as a loop over vectors, or as one vector; False if that is not possible.

        Then the function is as before, and the builder is where it was.

        Raises:
            Gather: if it is not possible because an index is not affine.
        """
        body = loop.body
        reductions = reductions_of(body, set(assigned_names(body)) - self.local_names)
        if reductions is None:
            return False
        share = WorkShare.ALL
        if self.inner_loop_depths:
            share = WorkShare.ROW if self.inner_loop_depths[-1] == 1 else WorkShare.LITTLE
        builder = self.builder
        before, blocks = builder.block, builder.function.blocks
        block_count = len(blocks)
        try:
            results = VectorLoop(
                builder,
                self.accessors,
                self.variable,
                loop.counter,
                bounds,
                trip_count_of(loop),
                body,
                share,
                self.stack_arrays,
                loop.is_short,
                reductions,
            ).write()
        except (NotVectorizable, NoVectorVariant) as reason:
            del blocks[block_count:]
            builder.position_at_end(before)
            if isinstance(reason, Gather):
                raise
            return False
        for name, value in results.items():
            self.assign(name, value)
        return True

    def is_straight(self, body: Sequence[Statement]) -> bool:
        """Whether a loop has no branches, no inner loops and no loop-carried variables."""
        return reductions_of(body, set(assigned_names(body)) - self.local_names) == {}

    def straight_metadata(
        self, body: Sequence[Statement], body_blocks: Sequence[ir.Block], has_gather: bool
    ) -> ir.MDValue | None:
        """The metadata of a straight loop that LLVM shall vectorize; None if it needs none."""
        module = self.builder.module
        instructions = [one for block in body_blocks for one in block.instructions]
        has_call = any(isinstance(one, ir.CallInstr) and _is_call(one) for one in instructions)
        if cpu_target().has_masks:
            if len(body) < LONG_BODY:
                return None
            width = self._lanes_per_register(body) if has_gather or has_call else 0
            return _masked_loop_metadata(module, width)
        if not _MIN_INSTRUCTIONS <= len(instructions) <= MAX_INSTRUCTIONS[2]:
            return None
        needs_fewer = self.exit_blocks or has_call or len(instructions) > MAX_INSTRUCTIONS[4]
        count = ir.Constant(ir.IntType(32), 2 if needs_fewer else 4)
        return loop_metadata(module, [["llvm.loop.interleave.count", count]])

    def _lanes_per_register(self, body: Sequence[Statement]) -> int:
        """The number of lanes of a vector register, for the widest dtype that a loop accesses."""
        callees = map(self.callee, names_called(body))
        storages = {one.access.storage for one in callees if one is not None and one.access}
        return _REGISTER_BYTES // max(map(element_bytes, storages), default=4)

    def variable(self, name: str) -> IRValue:
        value = self.readonly_values.get(name) or self.variables.get(name, self.builder)
        if value is None:
            raise InvalidProgram(name)
        return value

    def forever(self, body: Sequence[Statement]) -> None:
        outer_vectorized_count = self.vectorized_count
        builder, function = self.builder, self.builder.function
        loop_body = function.append_basic_block("again")
        after = function.append_basic_block("done")
        builder.branch(loop_body)
        builder.position_at_end(loop_body)
        self.inner_block(body, after)
        # Without a vectorized loop in it, it counts as a scalar one.
        self.scalar_count += self.vectorized_count == outer_vectorized_count
        builder.branch(loop_body)
        builder.position_at_end(after)

    def branch(self, node: Branch) -> None:
        builder, function = self.builder, self.builder.function
        predicate = self.typed(node.test, "bool")
        then = function.append_basic_block("then")
        otherwise = function.append_basic_block("else")
        after = function.append_basic_block("endif")
        builder.cbranch(predicate.value, then, otherwise)
        for block, body in ((then, node.then), (otherwise, node.otherwise)):
            builder.position_at_end(block)
            self.block(body)
            if not builder.block.is_terminated:
                builder.branch(after)
        builder.position_at_end(after)


def _one_vector_at_a_time(module: ir.Module, trip_count: int | None, is_opaque: bool) -> ir.MDValue:
    """The metadata of a short loop: LLVM shall not interleave several vectors.

    A loop with a static trip count is not unrolled either: LLVM would unroll it completely before
    it vectorizes loops. If its trip count is opaque, the metadata sets the vector width.
    """
    hints = [["llvm.loop.interleave.count", ir.Constant(ir.IntType(32), 1)]]
    if trip_count is not None:
        hints.append(["llvm.loop.unroll.disable"])
        if is_opaque and trip_count < _SERIES_LANES:
            width = 1 << (trip_count.bit_length() - 1)
            hints.append(["llvm.loop.vectorize.width", ir.Constant(ir.IntType(32), width)])
    return loop_metadata(module, hints)


def _has_scalar_remainder(trip_count: int, body: Sequence[Statement]) -> bool:
    """Whether a loop of static trip count has a remainder that should be scalar code.

    For small static trip counts, LLVM emits masked vectors. Without AVX-512, masked stores take as
    long as the rest of the loop, so only expensive elements are worth them.
    """
    if cpu_target().has_masks or trip_count in (1, 2, 4, 8) or trip_count >= 2 * _SERIES_LANES:
        return False
    called = {name.rpartition("_")[0] for name in names_called(body)}
    is_slow = not called.isdisjoint(LONG_CHAIN_FUNCTIONS)
    return not is_slow or _SERIES_LANES < trip_count <= _SERIES_LANES + _SERIES_LANES // 2


def _is_call(call: ir.CallInstr) -> bool:
    """Whether a call is one of a function, and not of an LLVM intrinsic."""
    return not getattr(call.callee, "name", "llvm.").startswith("llvm.")


def _masked_loop_metadata(module: ir.Module, width: int) -> ir.MDValue:
    """The metadata of a long loop: its remainder is a vector with a mask (tail folding).

    Without it, LLVM emits the loop three times: for vectors, for short vectors of the remainder,
    and for single elements.

    LLVM also overestimates the cost of scalarized operations (table lookups, calls), and would not
    vectorize such a loop. A ``width`` forces it: interp of a million elements takes 0.5 of the
    time, wofz 0.1. ``vectorize.enable`` would force it too, but print a warning for each loop that
    LLVM cannot vectorize.

    Args:
        module: the module.
        width: the vector width; 0: LLVM decides.
    """
    hints = [["llvm.loop.vectorize.predicate.enable", ir.Constant(ir.IntType(1), 1)]]
    if width > 0:
        hints.append(["llvm.loop.vectorize.width", ir.Constant(ir.IntType(32), width)])
    return loop_metadata(module, hints)


def _byte_pointer() -> ir.Type:
    return ir.IntType(8).as_pointer()


def _int64() -> ir.IntType:
    return ir.IntType(64)
