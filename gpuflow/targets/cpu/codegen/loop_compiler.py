"""Compiles the loop program of a CPU kernel to an LLVM module, in one walk.

Innermost loops are written as loops over vectors if possible (``vector_loops``). The others are
written as scalar loops with metadata for LLVM's vectorizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen import functions
from gpuflow.targets.cpu.codegen.elements import size_of
from gpuflow.targets.cpu.codegen.expressions import Expressions
from gpuflow.targets.cpu.codegen.functions import POINTER, Named
from gpuflow.targets.cpu.codegen.libm import NoVectors
from gpuflow.targets.cpu.codegen.loops.nodes import (
    PARAMETERS,
    Accessor,
    Assign,
    Branch,
    Break,
    Call,
    Forever,
    Loop,
    Program,
    Return,
    Run,
    Statement,
    Unsupported,
    names_called,
)
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.opaque import opaque, opaque_constant
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.codegen.reduction_variables import reductions_of
from gpuflow.targets.cpu.codegen.scalar_functions import SERIES
from gpuflow.targets.cpu.codegen.straight_loops import (
    Arrays,
    Gather,
    NotVectorizable,
    Share,
    depth_of,
    is_innermost,
    trip_count_of,
)
from gpuflow.targets.cpu.codegen.variables import (
    Variables,
    assigned,
    assigned_once,
    local_names,
)
from gpuflow.targets.cpu.codegen.vector_blocks import loop_metadata
from gpuflow.targets.cpu.codegen.vector_loops import MOST, VectorLoop
from gpuflow.targets.llvm.ir_values import Instruction, IRValue

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


@record
class Written:
    """The LLVM module of a kernel.

    Attributes:
        module: the module.
        is_final: all its innermost loops are vectorized, so LLVM need not transform loops.
    """

    module: ir.Module
    is_final: bool

    def __str__(self) -> str:
        return str(self.module)


@cache
def _fill_escapes() -> None:
    """Fill llvmlite's table of escaped characters, before several threads use it.

    llvmlite fills it lazily, entry by entry. A thread that reads it half full gets a KeyError. No
    entry is ever removed.
    """
    everything = ir.MetaDataString(ir.Module(), bytes(range(256)))
    while True:
        with suppress(KeyError):
            everything.get_reference()
            return


def module_of(source: LoopSource) -> Written:
    """Compile a loop program to an LLVM module with one function ``void entry(ptr, i64, i64)``.

    Raises:
        Unsupported: if the program has an unknown call, or is ill-typed.
    """
    _fill_escapes()
    program = source.program
    module = ir.Module(program.entry)
    names = {accessor.name: _accessor(accessor) for accessor in program.accessors}
    function = _Function(module, program, names)
    function.compile()
    return Written(module, function.vectors > 0 and function.scalars == 0)


def _accessor(accessor: Accessor) -> Named:
    constructors = {
        "reader": functions.reader,
        "guarded_reader": functions.guarded_reader,
        "writer": functions.writer,
    }
    return constructors[accessor.kind](accessor.storage, accessor.scope, accessor.scopes)


# Statements from which on LLVM emits a loop once, with masks; see ``_masked_loop_metadata``. For
# chains of 25, 50 and 100 operations (about 45, 70 and 140 statements), that takes 0.9, 0.7 and
# 0.55 of the time to compile, and 1.2, 1.0 and 1.0 of the time to run. Shorter loops run faster
# without it, on several vectors at once.
LONG_BODY = 64
# Instructions of a loop for which LLVM's own interleave count is good, if it has fewer.
_FEWEST = 32
# Bytes of a vector register of AVX-512.
_REGISTER = 64
# Lanes of a vector that a series of instructions computes at once.
_LANES = 8


class _Function(Expressions):
    """Compiles one function. Each variable must have one type.

    Args:
        module: the module to add it to.
        program: the loop program.
        names: accessors of the program.

    Attributes:
        fixed: values of the parameters, and of the counters of enclosing loops.
        once, local: names that are assigned once, and names that are not loop-carried.
        exits: exit blocks of the enclosing loops, innermost last.
        depths: for each enclosing loop, the depth of the loops in it.
        vectors, scalars: number of innermost loops that are written as loops over vectors, and
            number of those that are not.
        arrays: analysis of arrays on the stack.
    """

    def __init__(self, module: ir.Module, program: Program, names: dict[str, Named]) -> None:
        signature = ir.FunctionType(ir.VoidType(), [_byte_pointer(), _int64(), _int64()])
        function = ir.Function(module, signature, program.entry)
        function.attributes.add("nounwind")
        self.body = program.body
        self.entry = function.append_basic_block("entry")
        super().__init__(ir.IRBuilder(function.append_basic_block("start")), names)
        self.fixed: dict[str, IRValue] = {}
        for name, value in zip(PARAMETERS, function.args, strict=True):
            dtype = POINTER if value.type == _byte_pointer() else "int64"
            self.fixed[name] = IRValue(self.builder, value, dtype)
        self.once, self.local = assigned_once(self.body), local_names(self.body)
        self.variables = Variables(self.entry, self.once)
        self.exits: list[ir.Block] = []
        self.depths: list[int] = []
        self.vectors = self.scalars = 0
        self.arrays = Arrays(program, self.once)

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
        self.exits.append(after)
        self.depths.append(depth_of(body))
        self.block(body)
        self.depths.pop()
        self.exits.pop()

    def statement(self, node: Statement) -> None:
        match node:
            case Assign((name,), value):
                self.assign(name, self.value(value))
            case Assign(targets, Call() as call):
                for target, result in zip(targets, self.call(call), strict=True):
                    self.assign(target, result)
            case Run(call):
                self.call(call)
            case Loop():
                self.loop(node)
            case Forever(body):
                self.forever(body)
            case Branch():
                self.branch(node)
            case Break():
                self.builder.branch(self.exits[-1])
            case Return():
                self.builder.ret_void()
            case _:
                raise Unsupported(str(node))

    def assign(self, name: str, value: IRValue) -> None:
        if name in self.fixed:
            raise Unsupported(f"{name} is assigned")
        if not self.variables.assign(name, value):
            raise Unsupported(f"{name} is {value.dtype}, and something else before")

    def loop(self, loop: Loop) -> None:
        """Compile a loop: over vectors if possible, else as a scalar loop with metadata."""
        name, body = loop.counter, loop.body
        begin, end = (self.typed(value, "int64").value for value in (loop.first, loop.end))
        builder, function = self.builder, self.builder.function
        scalars, gathers = self.scalars, False
        if is_innermost(body):
            try:
                if self.write_vectors(loop, (begin, end)):
                    self.vectors += 1
                    return
            except Gather:
                gathers = True
            self.scalars += 1
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
        outer = self.fixed.get(name)
        self.fixed[name] = IRValue(builder, counter, "int64")
        is_straight = self.is_straight(body)
        self.inner_block(body, after)
        following = builder.add(counter, ir.Constant(_int64(), 1), flags=("nsw",))
        if self.scalars == scalars:
            following = opaque(builder, following)
        counter.add_incoming(following, builder.block)
        back = builder.branch(head)
        if loop.is_short:
            metadata = _one_vector_at_a_time(builder.module, trip_count, is_opaque)
            back.set_metadata("llvm.loop", metadata)
        elif is_straight:
            written = function.blocks[function.blocks.index(loop_body) :]
            metadata = self.straight_loop_metadata(body, written, gathers)
            if metadata is not None:
                back.set_metadata("llvm.loop", metadata)
        builder.position_at_end(after)
        del self.fixed[name]
        if outer is not None:
            self.fixed[name] = outer

    def write_vectors(self, loop: Loop, bounds: tuple[Instruction, Instruction]) -> bool:
        """Write a loop as a loop over vectors, or as one vector; False if that is not possible.

        Raises:
            Gather: if it is not possible because an index is not affine.
        """
        body = loop.body
        reductions = reductions_of(body, set(assigned(body)) - self.local)
        if reductions is None:
            return False
        share = Share.ALL
        if self.depths:
            share = Share.ROW if self.depths[-1] == 1 else Share.LITTLE
        builder = self.builder
        before, blocks = builder.block, builder.function.blocks
        written = len(blocks)
        try:
            results = VectorLoop(
                builder,
                self.names,
                self.variable,
                loop.counter,
                bounds,
                trip_count_of(loop),
                body,
                share,
                self.arrays,
                loop.is_short,
                reductions,
            ).write()
        except (NotVectorizable, NoVectors) as reason:
            del blocks[written:]
            builder.position_at_end(before)
            if isinstance(reason, Gather):
                raise
            return False
        for name, value in results.items():
            self.assign(name, value)
        return True

    def is_straight(self, body: Sequence[Statement]) -> bool:
        """Whether a loop has no branches, no inner loops and no loop-carried variables."""
        return reductions_of(body, set(assigned(body)) - self.local) == {}

    def straight_loop_metadata(
        self, body: Sequence[Statement], written: Sequence[ir.Block], gathers: bool
    ) -> ir.MDValue | None:
        """The metadata of a straight loop that LLVM shall vectorize; None if it needs none."""
        module = self.builder.module
        instructions = [one for block in written for one in block.instructions]
        calls = any(isinstance(one, ir.CallInstr) and _is_called(one) for one in instructions)
        if cpu_target().has_masks:
            if len(body) < LONG_BODY:
                return None
            width = self._register_width(body) if gathers or calls else 0
            return _masked_loop_metadata(module, width)
        if not _FEWEST <= len(instructions) <= MOST[2]:
            return None
        is_two = self.exits or calls or len(instructions) > MOST[4]
        count = ir.Constant(ir.IntType(32), 2 if is_two else 4)
        return loop_metadata(module, [["llvm.loop.interleave.count", count]])

    def _register_width(self, body: Sequence[Statement]) -> int:
        """The number of lanes of a vector register, for the widest dtype that a loop accesses."""
        meanings = map(self.meaning, names_called(body))
        storages = {one.access.storage for one in meanings if one is not None and one.access}
        return _REGISTER // max(map(size_of, storages), default=4)

    def variable(self, name: str) -> IRValue:
        value = self.fixed.get(name) or self.variables.get(name, self.builder)
        if value is None:
            raise Unsupported(name)
        return value

    def forever(self, body: Sequence[Statement]) -> None:
        vectors = self.vectors
        builder, function = self.builder, self.builder.function
        loop_body = function.append_basic_block("again")
        after = function.append_basic_block("done")
        builder.branch(loop_body)
        builder.position_at_end(loop_body)
        self.inner_block(body, after)
        self.scalars += self.vectors == vectors  # no vectorized loop is in it
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
        if is_opaque and trip_count < _LANES:
            width = 1 << (trip_count.bit_length() - 1)
            hints.append(["llvm.loop.vectorize.width", ir.Constant(ir.IntType(32), width)])
    return loop_metadata(module, hints)


def _has_scalar_remainder(trip_count: int, body: Sequence[Statement]) -> bool:
    """Whether a loop of static trip count has a remainder that should be scalar code.

    For small static trip counts, LLVM emits masked vectors. Without AVX-512, masked stores take as
    long as the rest of the loop, so only expensive elements are worth them.
    """
    if cpu_target().has_masks or trip_count in (1, 2, 4, 8) or trip_count >= 2 * _LANES:
        return False
    called = {name.rpartition("_")[0] for name in names_called(body)}
    is_slow = not called.isdisjoint(SERIES)
    return not is_slow or _LANES < trip_count <= _LANES + _LANES // 2


def _is_called(call: ir.CallInstr) -> bool:
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
