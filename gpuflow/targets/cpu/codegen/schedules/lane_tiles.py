"""Tiles of strided accesses: a few iterations of a batched loop are copied at a time.

    for k:                                  for each 128 iterations from k on:
        for i:                                  copy a x: a[t, i] = x[i, k + t] for all i and t
            y[i, k] = f(x[i, k])                for t < 128: for i: b[t, i] = f(a[t, i])
                                                copy y b: y[i, k + t] = b[t, i] for all i and t

If lanes have a large stride in an operand, each of them touches a cache line in every iteration,
and accesses are not vectorized. With tiles, a line is read or written once for all iterations whose
elements it has, and the iterations access contiguous lanes.

The offset of an element must depend on the iteration only, by any formula. Blocks with compaction
(``lane_compaction``) have no tiles, because they have too many lanes. Neither have loops that only
some lanes of a block run.

Tests: tests/compiler/test_lane_tiles.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuflow.kir.nodes import (
    Apply,
    Block,
    Cast,
    Const,
    Copy,
    For,
    Load,
    Local,
    Mode,
    Operand,
    Select,
    Statement,
    Store,
    Stride,
    Value,
)
from gpuflow.kir.scalar import COMPONENT_DTYPES, storage_bytes
from gpuflow.kir.walk import results_of, uses_of
from gpuflow.targets.cpu.codegen.schedules.lane_code import Lanes, SegmentBuilder

# Iterations of a tile: a power of two, like the lanes of a block. More are faster, since contiguous
# accesses are longer: sums of 4 million elements took 3.7, 3.4, 3.0 and 2.7 ms with 64, 128, 256
# and 512 iterations. But tiles are on the stack, which is small.
MAX_ITERATIONS = 256
MIN_ITERATIONS = 8  # with less room for iterations than that, a loop has no tiles
MAX_BYTES = 128 << 10  # bytes of all tiles of a loop


class Tiles:
    """The tiles of one loop.

    Args:
        lanes: the block of lanes.
        loop: the loop, which all lanes must run. It must have a ``count``, and no loops in it.
        operands: operands of the kernel, by name.

    Attributes:
        iterations: iterations of a tile; 0: the loop has no tiles.
        body: the body of the loop, which accesses tiles instead of memory. Its params are the
            counter, the offset of the iteration's row in the tiles, and the carries.
    """

    def __init__(self, lanes: Lanes, loop: For, operands: dict[str, Operand]) -> None:
        self._lanes, self._counter = lanes, loop.body.params[0]
        uniform_statements, counter_dependent = self._find_uniform(loop.body.body, operands)
        accesses = [
            s
            for s in loop.body.body
            if isinstance(s, Load | Store)
            and _has_large_stride(s, operands)
            and s.offset in counter_dependent
        ]
        dtypes = [_element_dtype(operands[access.operand]) for access in accesses]
        self.iterations = _iterations_per_tile(lanes.size, dtypes)
        self._tiles: dict[Load | Store, Local] = {}
        self.body = loop.body
        if not self.iterations:
            return
        arrays = [lanes.array(dtype, self.iterations) for dtype in dtypes]
        self._tiles = dict(zip(accesses, arrays, strict=True))
        self._uniform_statements = uniform_statements
        row_offset = lanes.fresh("int64")
        self.body = replace(
            loop.body,
            params=(self._counter, row_offset, *loop.body.params[1:]),
            body=tuple([self._in_tile(s, row_offset) for s in loop.body.body]),
        )

    def _find_uniform(
        self, items: Sequence[Statement], operands: dict[str, Operand]
    ) -> tuple[list[Statement], set[Value]]:
        """The uniform statements, and those of their values that depend on the counter.

        Both are in program order, and the second set has the counter too.
        """
        uniform_statements: list[Statement] = []
        invariant: set[Value] = set()
        counter_dependent = {self._counter}
        for s in items:
            uses = uses_of(s)
            is_pure = isinstance(s, Const | Apply | Cast | Select) or _is_scalar_load(s, operands)
            known_uniform = invariant | counter_dependent
            if is_pure and all(v in known_uniform or self._lanes.is_uniform(v) for v in uses):
                uniform_statements.append(s)
                is_invariant = counter_dependent.isdisjoint(uses)
                (invariant if is_invariant else counter_dependent).update(results_of(s))
        return uniform_statements, counter_dependent

    def _in_tile(self, s: Statement, row_offset: Value) -> Statement:
        """An access of memory with a tile as an access of its tile; other statements unchanged."""
        if isinstance(s, Load | Store) and s in self._tiles:
            return replace(s, operand=self._tiles[s].name, offset=row_offset, component=None)
        return s

    def row_offset(self, code: SegmentBuilder, iteration: Value) -> Value:
        """The offset of an iteration's row in the tiles; ``iteration`` is its index in the tile."""
        return code.apply("mul", iteration, code.constant("int64", self._lanes.size))

    def copy_in(self, first: Value, count: Value, out: list[Statement]) -> None:
        """Copy the elements of ``count`` iterations, from ``first`` on, to the tiles.

        Both are uniform int64 values, and ``count`` is at most ``iterations``.
        """
        self._write_copies(Load, first, count, out)

    def copy_out(self, first: Value, count: Value, out: list[Statement]) -> None:
        """Copy the elements of ``count`` iterations from the tiles to memory; see ``copy_in``."""
        self._write_copies(Store, first, count, out)

    def _write_copies(
        self, kind: type[Load] | type[Store], first: Value, count: Value, out: list[Statement]
    ) -> None:
        for access, tile in self._tiles.items():
            if not isinstance(access, kind):
                continue
            row, inner = self._lanes.fresh("int64"), list[Statement]()
            code = SegmentBuilder(self._lanes, inner)
            code.bind((self._counter,), (code.apply("add", first, row),))
            code.append(_backward_slice(self._uniform_statements, access.offset))
            assert access.offset is not None
            offsets = Block((row,), tuple(inner), (code.value(access.offset),))
            target, source = tile.name, access.operand
            if kind is Store:
                target, source = source, target
            out.append(Copy(target, source, count, offsets, access.component))


def _iterations_per_tile(lanes: int, dtypes: Sequence[str]) -> int:
    """The number of iterations that fit in the tiles; 0: too few fit, or there are no tiles."""
    row_bytes = lanes * sum(map(storage_bytes, dtypes))
    iterations = MAX_ITERATIONS if row_bytes else 0
    while iterations * row_bytes > MAX_BYTES:
        iterations //= 2
    return iterations if iterations >= MIN_ITERATIONS else 0


def _element_dtype(operand: Operand) -> str:
    """The storage dtype of an element; that of a component of complex numbers."""
    return COMPONENT_DTYPES.get(operand.dtype, operand.dtype)


def _backward_slice(items: Sequence[Statement], value: Value | None) -> list[Statement]:
    """The statements that a value depends on, in program order."""
    required, needed = {value}, []
    for s in reversed(items):
        if not required.isdisjoint(results_of(s)):
            needed.append(s)
            required.update(uses_of(s))
    return needed[::-1]


def _is_scalar_load(s: Statement, operands: dict[str, Operand]) -> bool:
    return isinstance(s, Load) and operands[s.operand].mode is Mode.SCALAR


def _has_large_stride(s: Load | Store, operands: dict[str, Operand]) -> bool:
    """Whether lanes access memory with a dynamic stride, unconditionally."""
    if s.where is not None or s.offset is None:
        return False
    operand = operands.get(s.operand)
    mode = Mode.IN if isinstance(s, Load) else Mode.OUT
    return operand is not None and operand.mode is mode and operand.strides[-1] is Stride.ANY
