"""Helpers of ``vector_loops``: invariant hoisting, interleaving, calls, spills, partial stores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.elements import store
from gpuflow.targets.cpu.codegen.functions import Named
from gpuflow.targets.cpu.codegen.libm import NoVectors
from gpuflow.targets.cpu.codegen.opaque import opaque
from gpuflow.targets.cpu.codegen.straight_loops import Use
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, counted, shuffle_mask

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# An address, the vector to store, and the access.
Store = tuple[Instruction, IRValue, Use]


def hoist_invariants(blocks: Sequence[ir.Block], start: ir.Block) -> None:
    """Loop-invariant code motion: hoist invariant subexpressions of inlined functions.

    Args:
        blocks: blocks of the loop.
        start: the preheader, which must not have a terminator yet.
    """
    loop_blocks = set(blocks)
    for block in blocks:
        remaining = []
        for one in block.instructions:
            parents = [getattr(operand, "parent", None) for operand in one.operands]
            if _is_pure(one) and loop_blocks.isdisjoint(parents):
                one.parent = start
                start.instructions.append(one)
            else:
                remaining.append(one)
        block.instructions[:] = remaining


def _is_pure(instruction: Instruction) -> bool:
    """Whether an instruction has no side effects, and depends only on its operands."""
    if isinstance(instruction, ir.CallInstr):
        name = getattr(instruction.callee, "name", "")
        return name.startswith("llvm.") and not name.startswith("llvm.masked.")
    effects = ir.PhiInstr | ir.LoadInstr | ir.StoreInstr | ir.Terminator
    return not isinstance(instruction, effects)


def interleave(block: ir.Block, starts: Sequence[int]) -> None:
    """Interleave the instructions of several independent vectors, one of each at a time.

    Instructions of one vector depend on each other. LLVM preserves their order, and the reorder
    window of a processor is shorter than a long series.

    Args:
        block: the loop's only block.
        starts: index of the first instruction of each vector, and the end of the last.
    """
    written = block.instructions
    vectors = [written[start:end] for start, end in itertools.pairwise(starts)]
    interleaved = itertools.chain.from_iterable(itertools.zip_longest(*vectors))
    written[starts[0] :] = [one for one in interleaved if one is not None]


def call_of(
    builder: ir.IRBuilder, symbol: str, function: Named, vectors: Sequence[IRValue]
) -> IRValue:
    """Emit a call of a vectorized copy of a function, which is added to the module once.

    Args:
        builder: position of the call.
        symbol: name of the copy, which must contain its types and constants.
        function: the function, which must have one result.
        vectors: its arguments; the copy is specialized to the constants among them.

    Raises:
        NoVectors: if the function cannot be emitted for vectors.
    """
    # A cache as an attribute of the module; None: there is no vector variant.
    copies: dict[str, ir.Function | None] = vars(builder.module).setdefault("gpuflow_copies", {})
    if symbol not in copies:
        copies[symbol] = _define_copy(builder.function, symbol, function, vectors)
    copy = copies[symbol]
    if copy is None:
        raise NoVectors(symbol)
    operands = [one.value for one in vectors if not one.is_constant]
    return IRValue(builder, builder.call(copy, operands), *function.results)


def _define_copy(
    caller: ir.Function, symbol: str, function: Named, vectors: Sequence[IRValue]
) -> ir.Function | None:
    """Define the copy for ``call_of``; None if the function cannot be emitted for vectors."""
    module = caller.module
    (result,) = (vectors[0].type_of(dtype) for dtype in function.results)
    parameters = [one.value.type for one in vectors if not one.is_constant]
    copy = ir.Function(module, ir.FunctionType(result, parameters), symbol)
    copy.linkage = "internal"
    for attribute in (*caller.attributes, "noinline"):
        set.add(copy.attributes, attribute)  # llvmlite's add() rejects unknown attributes
    builder = ir.IRBuilder(copy.append_basic_block("entry"))
    arguments = iter(copy.args)
    values = [one.value if one.is_constant else next(arguments) for one in vectors]
    try:
        builder.ret(function.emit(builder, *values))
    except NoVectors:
        del module.globals[symbol]
        return None
    return copy


def spilled(builder: ir.IRBuilder, vector: Instruction) -> Instruction:
    """Spill a vector to an opaque stack slot, which LLVM does not promote to a register.

    With more live values than registers, LLVM would undo ``interleave``, and order the instructions
    of several vectors one after the other.
    """
    with builder.goto_entry_block():
        slot = opaque(builder, builder.alloca(vector.type))
    builder.store(vector, slot)
    return slot


def is_spilled(value: Instruction) -> bool:
    """Whether a value is the slot of a ``spilled`` vector."""
    return isinstance(value.type, ir.PointerType)


def float_constants(instructions: Sequence[Instruction]) -> int:
    """Count distinct float vector constants of instructions, which occupy registers.

    Most integer constants are immediate operands.
    """
    return len(
        {
            operand
            for one in instructions
            for operand in one.operands
            if isinstance(operand, ir.Constant)
            and isinstance(operand.type, ir.VectorType)
            and not isinstance(operand.type.element, ir.IntType)
        }
    )


def max_live_vectors(instructions: Sequence[Instruction], width: int) -> int:
    """Register pressure: the largest number of simultaneously live vectors.

    Args:
        instructions: straight-line code.
        width: elements of a vector; a vector of pairs counts as two.
    """
    definitions = {
        one: k for k, one in enumerate(instructions) if isinstance(one.type, ir.VectorType)
    }
    last_uses = dict(definitions)
    for k, one in enumerate(instructions):
        last_uses.update((operand, k) for operand in one.operands if operand in definitions)
    sizes = {one: one.type.count // width for one in definitions}
    # One more after each definition, one less after the last use.
    changes = [(k, sizes[one]) for one, k in definitions.items()]
    changes = sorted(changes + [(k, -sizes[one]) for one, k in last_uses.items()])
    return max(itertools.accumulate(change for _, change in changes), default=0)


def loop_metadata(module: ir.Module, hints: Sequence[Sequence[str | ir.Constant]]) -> ir.MDValue:
    """The ``llvm.loop`` metadata of a loop: a self-referencing node, and hints."""
    nodes = [module.add_metadata([str(len(module.metadata))]), *map(module.add_metadata, hints)]
    node = module.add_metadata(nodes)
    node.operands = (node, *nodes[1:])
    return node


def disable_loop_passes(module: ir.Module, branch: Instruction) -> None:
    """Mark a loop's back edge so that LLVM neither vectorizes nor unrolls the loop."""
    one = ir.Constant(ir.IntType(32), 1)
    hints = [["llvm.loop.unroll.disable"], ["llvm.loop.isvectorized", one]]
    branch.set_metadata("llvm.loop", loop_metadata(module, hints))


def store_by_halves(
    builder: ir.IRBuilder, stores: Sequence[Store], count: Instruction, width: int
) -> None:
    """Store the first elements of vectors by a binary decomposition of their number.

    For each set bit of the count, it stores that many elements. On processors without AVX-512,
    masked stores take ten times as long.

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
        chunk, done = function.append_basic_block("part"), function.append_basic_block("parts")
        halves = [(half(value, 0), half(value, 1)) for _, value, _ in stores]
        size = ir.Constant(count.type, width)
        has_chunk = builder.icmp_signed("!=", builder.and_(count, size), ir.Constant(count.type, 0))
        builder.cbranch(has_chunk, chunk, done)
        builder.position_at_end(chunk)
        next_addresses = []
        for (address, _, use), (first, _) in zip(stores, halves, strict=True):
            store(builder, address, first.value, use.access.storage, use.access.scopes)
            next_addresses.append(builder.gep(address, [ir.Constant(count.type, first.width)]))
        builder.branch(done)
        builder.position_at_end(done)
        if width > 1:
            stores = [
                (
                    _phi(builder, (address, block), (after, chunk)),
                    first.like(_phi(builder, (first.value, block), (second.value, chunk))),
                    use,
                )
                for (address, _, use), (first, second), after in zip(
                    stores, halves, next_addresses, strict=True
                )
            ]


def deinterleaved(pairs: IRValue) -> tuple[IRValue, IRValue]:
    """Deinterleave a vector of pairs to the vectors of first and of second elements."""
    builder, value = pairs.builder, pairs.value
    every = [shuffle_mask(range(start, pairs.width, 2)) for start in (0, 1)]
    first, second = (pairs.like(builder.shuffle_vector(value, value, one)) for one in every)
    return first, second


def paired(first: IRValue, second: IRValue) -> IRValue:
    """Interleave two vectors to a vector of pairs."""
    width = first.width
    mask = shuffle_mask(one for k in range(width) for one in (k, width + k))
    return first.like(first.builder.shuffle_vector(first.value, second.value, mask))


def half(x: IRValue, which: int) -> IRValue:
    """The first or second half (0 or 1) of a vector; a scalar if the vector has two elements."""
    width = x.width // 2
    if width == 1:
        index = ir.Constant(ir.IntType(32), which)
        return x.like(x.builder.extract_element(x.value, index))
    indices = counted("int32", which * width, width)
    return x.like(x.builder.shuffle_vector(x.value, x.value, indices))


def _phi(builder: ir.IRBuilder, *incoming: tuple[Instruction, ir.Block]) -> Instruction:
    """Emit a phi node for pairs of value and predecessor block."""
    phi = builder.phi(incoming[0][0].type)
    for value, block in incoming:
        phi.add_incoming(value, block)
    return phi
