"""Helpers of ``vector_loops``: widths, hoisting, interleaving, calls, spills, partial stores.

Tests: tests/targets/cpu/test_cpu_vectors.py, tests/targets/cpu/test_builds.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.elements import element_bytes, store
from gpuflow.targets.cpu.codegen.functions import Callee
from gpuflow.targets.cpu.codegen.libm import NoVectorVariant
from gpuflow.targets.cpu.codegen.opaque import opaque
from gpuflow.targets.cpu.codegen.processor import CpuTarget
from gpuflow.targets.cpu.codegen.straight_loops import MemoryAccess, NotVectorizable, WorkShare
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, shuffle_mask, step_vector

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


# Unroll factor in vectors, and the most instructions per vector for it. Unrolling pays because the
# instructions of a series depend on each other: tanh, gelu, log and log1p of a million take 0.75 to
# 0.8 of the time with four; softplus, pow and mish 0.68 to 0.81 with two, as do rows of 20 and
# more, of which four vectors leave too long a remainder. lgamma, with about 190, spills registers;
# a separate loop for full vectors takes 0.88 of the time.
MAX_INSTRUCTIONS = {4: 70, 2: 180, 1: 400}
# By share, the length from which on the series of a dependence chain are calls, not inlined: fewer
# values are in registers then, so more vectors fit in an iteration. Chains of 6, 12 and 40
# functions take 0.6 to 0.8, 0.5 and 0.4 to 0.6 of the time, and less to build; with two vectors per
# iteration, those of 4 take 1.0 to 1.3. Independent functions take 1.03 to 1.3.
MIN_CHAIN = {WorkShare.ALL: 4, WorkShare.ROW: 6, WorkShare.LITTLE: 6}
# Like MAX_INSTRUCTIONS, for loops with such a chain.
MAX_CHAIN_INSTRUCTIONS = {4: 400, 2: 1000}
# Most instructions of a prologue or epilogue that gets no main loop.
_MAX_WITHOUT_MAIN_LOOP = 32


class PendingStore(NamedTuple):
    """A store that is emitted at the end of the iteration.

    Attributes:
        address: address of the first element.
        value: the vector, or vector of pairs.
        access: the access in the loop.
    """

    address: LlvmValue
    value: IRValue
    access: MemoryAccess


def vector_width(
    target: CpuTarget,
    accesses: Iterable[MemoryAccess],
    reductions: Iterable[IRValue],
    function: ir.Function,
) -> int:
    """The vector width of a loop: a register of the widest dtype.

    float64 next to float32 does not count, because few arrays have it: those of sums.

    Args:
        target: the processor.
        accesses: accesses of the loop; there must be some, or reductions.
        reductions: initial values of the reduction variables.
        function: the function with the loop.

    Raises:
        NotVectorizable: if the processor has no masked loads and stores.
    """
    if not target.is_x86 or "avx2" not in target.features:
        raise NotVectorizable("masks")
    sizes = {element_bytes(access.accessor.storage) for access in accesses}
    sizes.update(element_bytes(value.dtype) for value in reductions)
    is_wide = '"prefer-vector-width"="512"' in function.attributes
    register_bytes = 64 if target.has_masks and is_wide else 32
    return register_bytes // (4 if 4 in sizes else max(sizes))


def check_single_vector(
    target: CpuTarget, accesses: Iterable[MemoryAccess], trip_count: int
) -> None:
    """Check that a loop of this trip count becomes one vector, which LLVM splits into registers.

    Raises:
        NotVectorizable: if LLVM does better.
    """
    if target.has_masks or trip_count & (trip_count - 1) == 0:
        raise NotVectorizable("LLVM makes this vector too, for several rows per iteration")
    if any(access.is_half or element_bytes(access.accessor.storage) < 4 for access in accesses):
        raise NotVectorizable("vectors of bytes or pairs that do not fill registers")


def main_loop_unroll_factor(
    instruction_count: int,
    share: WorkShare,
    *,
    is_short: bool,
    is_chain: bool,
    has_reductions: bool,
    registers_hold_four: bool,
) -> int:
    """The unroll factor of a main loop, in vectors; 0: the loop should have no main loop.

    Args:
        instruction_count: instructions of one vector, those of the remainder loop.
        share: the loop's share of the function's work.
        is_short: whether its trip count is small.
        is_chain: whether it has a long dependence chain.
        has_reductions: whether it has reduction variables.
        registers_hold_four: whether the values of four vectors fit in registers.
    """
    limits = MAX_CHAIN_INSTRUCTIONS if is_chain else MAX_INSTRUCTIONS
    vectors = next((n for n, most in limits.items() if instruction_count <= most), 0)
    if is_short:
        return min(vectors, 1)
    if vectors and registers_hold_four:
        vectors = 4
    if has_reductions:  # unrolling shortens their dependence chain
        return vectors
    if share is not WorkShare.ALL:
        vectors = min(vectors, 2)
    is_cheap = instruction_count <= _MAX_WITHOUT_MAIN_LOOP and not is_chain
    return 0 if share is WorkShare.LITTLE and is_cheap else vectors


def hoist_invariants(blocks: Sequence[ir.Block], preheader: ir.Block) -> None:
    """Loop-invariant code motion: hoist invariant subexpressions of inlined functions.

    Args:
        blocks: blocks of the loop, in an order in which definitions precede uses.
        preheader: the block before the loop, which must not have a terminator yet.
    """
    loop_blocks = set(blocks)
    for block in blocks:
        remaining = []
        for instruction in block.instructions:
            parents = [getattr(operand, "parent", None) for operand in instruction.operands]
            if _is_pure(instruction) and loop_blocks.isdisjoint(parents):
                instruction.parent = preheader
                preheader.instructions.append(instruction)
            else:
                remaining.append(instruction)
        block.instructions[:] = remaining


def _is_pure(instruction: LlvmValue) -> bool:
    """Whether an instruction has no side effects, and depends only on its operands."""
    if isinstance(instruction, ir.CallInstr):
        name = getattr(instruction.callee, "name", "")
        return name.startswith("llvm.") and not name.startswith("llvm.masked.")
    effects = ir.PhiInstr | ir.LoadInstr | ir.StoreInstr | ir.Terminator
    return not isinstance(instruction, effects)


def interleave_vectors(block: ir.Block, starts: Sequence[int]) -> None:
    """Interleave the instructions of several independent vectors, one of each at a time.

    Instructions of one vector depend on each other. LLVM preserves their order, and the reorder
    window of a processor is shorter than a long series.

    Args:
        block: the loop's only block.
        starts: index of the first instruction of each vector, and the end of the last.
    """
    instructions = block.instructions
    vectors = [instructions[start:end] for start, end in itertools.pairwise(starts)]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*vectors))
    instructions[starts[0] :] = [instruction for instruction in in_turn if instruction is not None]


def call_vector_copy(
    builder: ir.IRBuilder, symbol: str, function: Callee, vectors: Sequence[IRValue]
) -> IRValue:
    """Emit a call of a vectorized copy of a function, which is added to the module once.

    Args:
        builder: position of the call.
        symbol: name of the copy, which must contain its types and constants.
        function: the function, which must have one result.
        vectors: its arguments; the copy is specialized to the constants among them.

    Raises:
        NoVectorVariant: if the function cannot be emitted for vectors.
    """
    # A cache as an attribute of the module; None: there is no vector variant.
    copies: dict[str, ir.Function | None] = vars(builder.module).setdefault("gpuflow_copies", {})
    if symbol not in copies:
        copies[symbol] = _define_copy(builder.function, symbol, function, vectors)
    copy = copies[symbol]
    if copy is None:
        raise NoVectorVariant(symbol)
    operands = [vector.value for vector in vectors if not vector.is_constant]
    return IRValue(builder, builder.call(copy, operands), *function.results)


def _define_copy(
    caller: ir.Function, symbol: str, function: Callee, vectors: Sequence[IRValue]
) -> ir.Function | None:
    """Define the copy for ``call_vector_copy``; None if it cannot be emitted for vectors."""
    module = caller.module
    (result,) = (vectors[0].type_of(dtype) for dtype in function.results)
    parameters = [vector.value.type for vector in vectors if not vector.is_constant]
    copy = ir.Function(module, ir.FunctionType(result, parameters), symbol)
    copy.linkage = "internal"
    for attribute in (*caller.attributes, "noinline"):
        set.add(copy.attributes, attribute)  # llvmlite's add() rejects unknown attributes
    builder = ir.IRBuilder(copy.append_basic_block("entry"))
    arguments = iter(copy.args)
    values = [vector.value if vector.is_constant else next(arguments) for vector in vectors]
    try:
        builder.ret(function.emit(builder, *values))
    except NoVectorVariant:
        del module.globals[symbol]
        return None
    return copy


def spill(builder: ir.IRBuilder, vector: LlvmValue) -> LlvmValue:
    """Store a vector in an opaque stack slot, which LLVM does not promote to a register.

    With more live values than registers, LLVM would undo ``interleave_vectors``, and order the
    instructions of several vectors one after the other.
    """
    with builder.goto_entry_block():
        slot = opaque(builder, builder.alloca(vector.type))
    builder.store(vector, slot)
    return slot


def is_spilled(value: LlvmValue) -> bool:
    """Whether a value is the stack slot that ``spill`` returns."""
    return isinstance(value.type, ir.PointerType)


def float_constant_count(instructions: Sequence[LlvmValue]) -> int:
    """Count distinct float vector constants of instructions, which occupy registers.

    Most integer constants are immediate operands.
    """
    return len(
        {
            operand
            for instruction in instructions
            for operand in instruction.operands
            if isinstance(operand, ir.Constant)
            and isinstance(operand.type, ir.VectorType)
            and not isinstance(operand.type.element, ir.IntType)
        }
    )


def max_live_vectors(instructions: Sequence[LlvmValue], width: int) -> int:
    """Register pressure: the largest number of simultaneously live vectors.

    Args:
        instructions: straight-line code.
        width: elements of a vector; a vector of pairs counts as two.
    """
    definitions = {
        instruction: k
        for k, instruction in enumerate(instructions)
        if isinstance(instruction.type, ir.VectorType)
    }
    last_uses = dict(definitions)
    for k, instruction in enumerate(instructions):
        last_uses.update((operand, k) for operand in instruction.operands if operand in definitions)
    sizes = {instruction: instruction.type.count // width for instruction in definitions}
    # One more after each definition, one less after the last use.
    count_changes = [(k, sizes[instruction]) for instruction, k in definitions.items()]
    count_changes = sorted(
        count_changes + [(k, -sizes[instruction]) for instruction, k in last_uses.items()]
    )
    return max(itertools.accumulate(change for _, change in count_changes), default=0)


def loop_metadata(module: ir.Module, hints: Sequence[Sequence[str | ir.Constant]]) -> ir.MDValue:
    """The ``llvm.loop`` metadata of a loop: a self-referencing node, and hints.

    Each hint is a list of metadata operands: its name, and its value if it has one.
    """
    nodes = [module.add_metadata([str(len(module.metadata))]), *map(module.add_metadata, hints)]
    node = module.add_metadata(nodes)
    node.operands = (node, *nodes[1:])
    return node


def disable_loop_passes(module: ir.Module, branch: LlvmValue) -> None:
    """Mark a loop's back edge so that LLVM neither vectorizes nor unrolls the loop."""
    one = ir.Constant(ir.IntType(32), 1)
    hints = [["llvm.loop.unroll.disable"], ["llvm.loop.isvectorized", one]]
    branch.set_metadata("llvm.loop", loop_metadata(module, hints))


def store_by_halves(
    builder: ir.IRBuilder, stores: Sequence[PendingStore], count: LlvmValue, width: int
) -> None:
    """Store the first elements of vectors by a binary decomposition of their number.

    For each set bit of the count, it stores that many elements, and continues with the second half
    of the vector. Otherwise it continues with the first half. On processors without AVX-512, masked
    stores take ten times as long.

    Args:
        builder: position of the stores; afterwards at their end.
        stores: the vectors.
        count: number of elements to store, an int64 less than ``width``.
        width: elements of the vectors, a power of two; vectors of pairs have twice as many.
    """
    function = builder.function
    while width > 1:
        width //= 2
        block = builder.block
        store_half, done = function.append_basic_block("part"), function.append_basic_block("parts")
        halves = [(half_of(value, 0), half_of(value, 1)) for _, value, _ in stores]
        size = ir.Constant(count.type, width)
        has_half = builder.icmp_signed("!=", builder.and_(count, size), ir.Constant(count.type, 0))
        builder.cbranch(has_half, store_half, done)
        builder.position_at_end(store_half)
        next_addresses = []
        for (address, _, access), (first, _) in zip(stores, halves, strict=True):
            accessor = access.accessor
            store(builder, address, first.value, accessor.storage, accessor.alias_scope)
            next_addresses.append(builder.gep(address, [ir.Constant(count.type, first.width)]))
        builder.branch(done)
        builder.position_at_end(done)
        if width > 1:
            remaining = []
            for (address, _, access), (first, second), next_address in zip(
                stores, halves, next_addresses, strict=True
            ):
                start = _phi(builder, (address, block), (next_address, store_half))
                value = _phi(builder, (first.value, block), (second.value, store_half))
                remaining.append(PendingStore(start, first.like(value), access))
            stores = remaining


def deinterleaved(pairs: IRValue) -> tuple[IRValue, IRValue]:
    """Deinterleave a vector of pairs to the vectors of first and of second elements."""
    builder, value = pairs.builder, pairs.value
    masks = [shuffle_mask(range(start, pairs.width, 2)) for start in (0, 1)]
    first, second = (pairs.like(builder.shuffle_vector(value, value, mask)) for mask in masks)
    return first, second


def interleaved(first: IRValue, second: IRValue) -> IRValue:
    """Interleave two vectors of equal width to a vector of pairs."""
    width = first.width
    mask = shuffle_mask(element for k in range(width) for element in (k, width + k))
    return first.like(first.builder.shuffle_vector(first.value, second.value, mask))


def half_of(x: IRValue, half_index: int) -> IRValue:
    """The first or second half (0 or 1) of a vector of even width; a scalar if that is 2."""
    width = x.width // 2
    if width == 1:
        index = ir.Constant(ir.IntType(32), half_index)
        return x.like(x.builder.extract_element(x.value, index))
    indices = step_vector("int32", half_index * width, width)
    return x.like(x.builder.shuffle_vector(x.value, x.value, indices))


def _phi(builder: ir.IRBuilder, *incoming: tuple[LlvmValue, ir.Block]) -> LlvmValue:
    """Emit a phi node for pairs of value and predecessor block."""
    phi = builder.phi(incoming[0][0].type)
    for value, block in incoming:
        phi.add_incoming(value, block)
    return phi
