"""Blocks of LLVM instructions that are a loop over vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.elements import store
from gpuflow.targets.cpu.codegen.functions import Named
from gpuflow.targets.cpu.codegen.hidden import opaque
from gpuflow.targets.cpu.codegen.libm import NoVectors
from gpuflow.targets.cpu.codegen.straight_loops import Use
from gpuflow.targets.llvm.lanes import Instruction, Lane, counted, shuffle_mask

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# An address, the vector to store there, and what asked for it.
Store = tuple[Instruction, Lane, Use]


def take_out(blocks: Sequence[ir.Block], start: ir.Block) -> None:
    """Hoist invariants out of a loop: subexpressions of functions.

    Args:
        blocks: the loop's.
        start: the block before the loop, which has no end yet.
    """
    inside = set(blocks)
    for block in blocks:
        kept = []
        for one in block.instructions:
            parents = [getattr(operand, "parent", None) for operand in one.operands]
            if _is_pure(one) and inside.isdisjoint(parents):
                one.parent = start
                start.instructions.append(one)
            else:
                kept.append(one)
        block.instructions[:] = kept


def _is_pure(instruction: Instruction) -> bool:
    """Whether it gives a value that depends on its operands alone."""
    if isinstance(instruction, ir.CallInstr):
        name = getattr(instruction.callee, "name", "")
        return name.startswith("llvm.") and not name.startswith("llvm.masked.")
    effects = ir.PhiInstr | ir.LoadInstr | ir.StoreInstr | ir.Terminator
    return not isinstance(instruction, effects)


def interleave(block: ir.Block, marks: Sequence[int]) -> None:
    """Interleave the instructions of several vectors: those of one depend on each other.

    LLVM leaves them in their order, and a processor does not look as far ahead as a long series is.

    Args:
        marks: where in the block each vector's instructions begin, and where those of the last end.
    """
    written = block.instructions
    turns = [written[start:end] for start, end in itertools.pairwise(marks)]
    together = itertools.chain.from_iterable(itertools.zip_longest(*turns))
    written[marks[0] :] = [one for one in together if one is not None]


def call_of(builder: ir.IRBuilder, symbol: str, function: Named, vectors: Sequence[Lane]) -> Lane:
    """Emit a call of a vectorized copy of a function, added to the module on demand.

    Args:
        symbol: the copy's name, which contains its types and constants.
        function: one with one result.
        vectors: its arguments; constants among them are a part of the copy.

    Raises:
        NoVectors: the function has no instructions for vectors.
    """
    # The copies of a module are kept with it; None: there can be none.
    copies: dict[str, ir.Function | None] = vars(builder.module).setdefault("gpuflow_copies", {})
    if symbol not in copies:
        copies[symbol] = _copy(builder.function, symbol, function, vectors)
    copy = copies[symbol]
    if copy is None:
        raise NoVectors(symbol)
    given = [one.value for one in vectors if not one.is_constant]
    return Lane(builder, builder.call(copy, given), *function.results)


def _copy(
    caller: ir.Function, symbol: str, function: Named, vectors: Sequence[Lane]
) -> ir.Function | None:
    """The copy of ``call_of``."""
    module = caller.module
    (result,) = (vectors[0].type_of(dtype) for dtype in function.results)
    given = [one.value.type for one in vectors if not one.is_constant]
    copy = ir.Function(module, ir.FunctionType(result, given), symbol)
    copy.linkage = "internal"
    for attribute in (*caller.attributes, "noinline"):
        set.add(copy.attributes, attribute)  # llvmlite refuses some that it does not know
    builder = ir.IRBuilder(copy.append_basic_block("entry"))
    arguments = iter(copy.args)
    values = [one.value if one.is_constant else next(arguments) for one in vectors]
    try:
        builder.ret(function.emit(builder, *values))
    except NoVectors:
        del module.globals[symbol]
        return None
    return copy


def in_memory(builder: ir.IRBuilder, vector: Instruction) -> Instruction:
    """The stack slot of a vector, of which LLVM makes no register.

    With more of them than registers, it would order the instructions of several vectors one after
    the other, so that fewer values are alive.
    """
    with builder.goto_entry_block():
        place = opaque(builder, builder.alloca(vector.type))
    builder.store(vector, place)
    return place


def is_place(value: Instruction) -> bool:
    """Whether ``in_memory`` gave it."""
    return isinstance(value.type, ir.PointerType)


def float_constants(instructions: Sequence[Instruction]) -> int:
    """How many vectors of float constants some instructions take: most of integers are in them."""
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


def most_alive(instructions: Sequence[Instruction], width: int) -> int:
    """How many vectors are needed at the same time, at most, of those that instructions give.

    Args:
        width: the elements of one; those of pairs count as two.
    """
    made = {one: k for k, one in enumerate(instructions) if isinstance(one.type, ir.VectorType)}
    last = dict(made)
    for k, one in enumerate(instructions):
        last.update((operand, k) for operand in one.operands if operand in made)
    sizes = {one: one.type.count // width for one in made}
    # More where a vector is made, less behind its last use.
    changes = [(k, sizes[one]) for one, k in made.items()]
    changes = sorted(changes + [(k, -sizes[one]) for one, k in last.items()])
    return max(itertools.accumulate(change for _, change in changes), default=0)


def mark_of(module: ir.Module, hints: Sequence[Sequence[str | ir.Constant]]) -> ir.MDValue:
    """The metadata of a loop: a self-referencing node, and hints for LLVM."""
    parts = [module.add_metadata([str(len(module.metadata))]), *map(module.add_metadata, hints)]
    mark = module.add_metadata(parts)
    mark.operands = (mark, *parts[1:])
    return mark


def leave_as_it_is(module: ir.Module, branch: Instruction) -> None:
    """Mark the end of a loop's iteration: LLVM neither vectorizes the loop nor unrolls it."""
    one = ir.Constant(ir.IntType(32), 1)
    hints = [["llvm.loop.unroll.disable"], ["llvm.loop.isvectorized", one]]
    branch.set_metadata("llvm.loop", mark_of(module, hints))


def store_parts(
    builder: ir.IRBuilder, stores: Sequence[Store], left: Instruction, width: int
) -> None:
    """Store the first elements of vectors, by halves: masked stores take ten times as long.

    Args:
        left: how many elements, as an int64 below ``width``.
        width: of the vectors, a power of two; vectors of pairs have twice as many.
    """
    function = builder.function
    while width > 1:
        width //= 2
        here = builder.block
        part, done = function.append_basic_block("part"), function.append_basic_block("parts")
        halves = [(half(value, 0), half(value, 1)) for _, value, _ in stores]
        size = ir.Constant(left.type, width)
        is_there = builder.icmp_signed("!=", builder.and_(left, size), ir.Constant(left.type, 0))
        builder.cbranch(is_there, part, done)
        builder.position_at_end(part)
        behind = []
        for (place, _, use), (first, _) in zip(stores, halves, strict=True):
            store(builder, place, first.value, use.access.storage, use.access.scopes)
            behind.append(builder.gep(place, [ir.Constant(left.type, first.width)]))
        builder.branch(done)
        builder.position_at_end(done)
        if width > 1:
            stores = [
                (
                    _joined(builder, (place, here), (after, part)),
                    first.like(_joined(builder, (first.value, here), (second.value, part))),
                    use,
                )
                for (place, _, use), (first, second), after in zip(
                    stores, halves, behind, strict=True
                )
            ]


def apart(pairs: Lane) -> tuple[Lane, Lane]:
    """The first ones of the pairs in a vector, and the second ones."""
    builder, value = pairs.builder, pairs.value
    every = [shuffle_mask(range(start, pairs.width, 2)) for start in (0, 1)]
    first, second = (pairs.like(builder.shuffle_vector(value, value, one)) for one in every)
    return first, second


def paired(first: Lane, second: Lane) -> Lane:
    """The vector of the pairs that two vectors make."""
    width = first.width
    turns = shuffle_mask(one for k in range(width) for one in (k, width + k))
    return first.like(first.builder.shuffle_vector(first.value, second.value, turns))


def half(x: Lane, which: int) -> Lane:
    """The first or the second half of a vector; a single value of two."""
    width = x.width // 2
    if width == 1:
        place = ir.Constant(ir.IntType(32), which)
        return x.like(x.builder.extract_element(x.value, place))
    places = counted("int32", which * width, width)
    return x.like(x.builder.shuffle_vector(x.value, x.value, places))


def _joined(builder: ir.IRBuilder, *ways: tuple[Instruction, ir.Block]) -> Instruction:
    """One of several values, by the block that was left last."""
    chosen = builder.phi(ways[0][0].type)
    for value, block in ways:
        chosen.add_incoming(value, block)
    return chosen
