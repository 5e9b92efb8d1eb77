"""Loops of a block of lanes with a uniform trip count: one counter, and no new masks.

    for i: for k < n: %b                unrolled by u:
                                            for k < n // u: for i: %b, u times
                                            for k < n % u:  for i: %b

``n`` is uniform over the lanes, so that all of them leave the loop in the same iteration. Carries
are in local arrays. If the body has loops, it is written as a sequence and not unrolled.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_tiles.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gpuflow.kir.nodes import Block, For, Local, Operand, Statement, Store, Value
from gpuflow.targets.cpu.codegen.schedules.lane_code import Lanes, SegmentBuilder, has_loop
from gpuflow.targets.cpu.codegen.schedules.lane_tiles import Tiles
from gpuflow.targets.cpu.codegen.schedules.lane_unrolling import unroll_factor


class SequenceWriter(Lanes, Protocol):
    """A block of lanes that writes statements with loops; ``lane_blocks`` implements it.

    Attributes:
        operands: operands of the kernel, by name.
    """

    operands: dict[str, Operand]

    def write_sequence(
        self,
        items: Sequence[Statement],
        results: Sequence[Value],
        mask: Local | None,
        out: list[Statement],
    ) -> None:
        """Write statements, which may have loops, for a block of lanes."""
        ...


class CountedLoop(NamedTuple):
    """A loop with a uniform trip count for all lanes of a block.

    Attributes:
        body: its params are the uniform values of an iteration, and then the carries.
        arrays: the local arrays of the carries.
        mask: the lanes that run it; None: all.
        uniform_arguments: writes the uniform values, given the index of an iteration.
        is_long: as in ``For``.
    """

    body: Block
    arrays: Sequence[Local]
    mask: Local | None
    uniform_arguments: Callable[[SegmentBuilder, Value], Sequence[Value]]
    is_long: bool


def write_counted(
    lanes: SequenceWriter,
    s: For,
    arrays: Sequence[Local],
    mask: Local | None,
    out: list[Statement],
) -> None:
    """Write a loop with a uniform trip count, with tiles if they pay (``lane_tiles``).

    Args:
        lanes: the block of lanes.
        s: the loop; it has a ``count``, which is uniform.
        arrays: the arrays of its carries, which have the initial values.
        mask: the lanes that run it; None: all.
        out: receives the statements.
    """
    assert s.count is not None
    code = SegmentBuilder(lanes, out)
    count = code.value(s.count)
    tiles = Tiles(lanes, s, lanes.operands) if mask is None and lanes.is_padded else None
    if tiles is None or not tiles.iterations:
        loop = CountedLoop(s.body, arrays, mask, lambda code, iteration: (iteration,), s.is_long)
        _write_counted_loop(lanes, loop, count, out)
        return
    inner: list[Statement] = []
    index, head = lanes.fresh("int64"), SegmentBuilder(lanes, inner)
    first = head.apply("mul", index, head.constant("int64", tiles.iterations))
    remaining = head.apply("sub", count, first)
    remaining = head.apply("min", remaining, head.constant("int64", tiles.iterations))
    tiles.copy_in(first, remaining, inner)
    loop = CountedLoop(
        tiles.body,
        arrays,
        None,
        lambda code, row: (code.apply("add", first, row), tiles.row_offset(code, row)),
        False,
    )
    _write_counted_loop(lanes, loop, remaining, inner)
    tiles.copy_out(first, remaining, inner)
    round_up = code.apply("add", count, code.constant("int64", tiles.iterations - 1))
    bits = code.constant("int64", tiles.iterations.bit_length() - 1)
    tile_count = code.apply("shift_right_arithmetic", round_up, bits)
    out.append(For(None, Block((index,), tuple(inner)), tile_count, is_long=s.is_long))


def _write_counted_loop(
    lanes: SequenceWriter, loop: CountedLoop, count: Value, out: list[Statement]
) -> None:
    """Write a loop of ``count`` iterations, a uniform int64, unrolled if its body is short."""
    if has_loop(loop.body.body):
        inner: list[Statement] = []
        index = lanes.fresh("int64")
        uniform = loop.uniform_arguments(SegmentBuilder(lanes, inner), index)
        lanes.uniform.update(zip(loop.body.params, uniform, strict=False))
        lanes.write_sequence(loop.body.body, loop.body.results, loop.mask, inner)
        segment = SegmentBuilder(lanes)
        write_iterations(segment, loop, None)
        inner.append(segment.loop())
        out.append(For(None, Block((index,), tuple(inner)), count, is_long=loop.is_long))
        return
    unroll, code, trip_count = unroll_factor(loop.body), SegmentBuilder(lanes, out), count
    if _stores_to_tiles_and_memory(lanes, loop.body):
        unroll = 1
    if unroll > 1:
        bits = code.constant("int64", unroll.bit_length() - 1)
        trip_count = code.apply("shift_right_arithmetic", count, bits)
        done = code.apply("shift_left", trip_count, bits)
    _write_unrolled(lanes, loop, trip_count, unroll, None, out)
    if unroll > 1:
        remaining = code.apply("sub", count, done)
        _write_unrolled(lanes, loop, remaining, 1, done, out)


def _stores_to_tiles_and_memory(lanes: SequenceWriter, body: Block) -> bool:
    """Whether a loop stores to tiles and to memory.

    LLVM would check before the loop whether the accesses of all iterations are disjoint. They
    are not, so it would run scalar code.
    """
    stored = {s.operand for s in body.body if isinstance(s, Store)}
    return bool(stored & lanes.in_memory) and bool(stored - lanes.in_memory)


def _write_unrolled(
    lanes: SequenceWriter,
    loop: CountedLoop,
    count: Value,
    unroll: int,
    first: Value | None,
    out: list[Statement],
) -> None:
    """Write ``count`` unrolled iterations; the original ones are counted from ``first``."""
    inner: list[Statement] = []
    index = lanes.fresh("int64")
    head, segment = SegmentBuilder(lanes, inner), SegmentBuilder(lanes)
    base = index if unroll == 1 else head.apply("mul", index, head.constant("int64", unroll))
    if first is not None:
        base = head.apply("add", first, base)
    arguments = [loop.uniform_arguments(head, base)]
    for k in range(1, unroll):
        iteration = head.apply("add", base, head.constant("int64", k))
        arguments.append(loop.uniform_arguments(head, iteration))
    write_iterations(segment, loop, arguments)
    inner.append(segment.loop())
    out.append(For(None, Block((index,), tuple(inner)), count, is_long=loop.is_long))


def write_iterations(
    code: SegmentBuilder, loop: CountedLoop, arguments: Sequence[Sequence[Value]] | None
) -> None:
    """Write one or more iterations of the body, and store the carries.

    ``arguments`` are the uniform arguments of each iteration. None: the body is already
    written, and only its results are stored.
    """
    arrays, body = loop.arrays, loop.body
    guard = None if loop.mask is None else code.load(loop.mask)
    carry = [code.load(array) for array in arrays]
    for uniform_arguments in arguments or (None,):
        if uniform_arguments is None:
            new = [code.value(value) for value in body.results]
        else:
            new = code.inline(body, [*uniform_arguments, *carry], guard)
        if guard is not None:
            new = [code.select(guard, a, b) for a, b in zip(new, carry, strict=True)]
        carry = new
    for array, value in zip(arrays, carry, strict=True):
        code.store(array, value)
