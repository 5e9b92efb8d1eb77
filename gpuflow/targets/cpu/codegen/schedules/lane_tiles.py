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
from gpuflow.targets.cpu.codegen.schedules.lane_code import Code, Lanes

# Iterations of a tile: a power of two, like the lanes of a block. More are faster, since contiguous
# accesses are longer: sums of 4 million elements took 3.7, 3.4, 3.0 and 2.7 ms with 64, 128, 256
# and 512 iterations. But tiles are on the stack, which is small.
MOST_ITERATIONS = 256
FEWEST_ITERATIONS = 8
MOST_BYTES = 128 << 10  # of all tiles of a loop


class Tiles:
    """The tiles of one loop.

    Args:
        lanes: the block of lanes.
        s: the loop, which all lanes must run.
        operands: operands of the kernel, by name.

    Attributes:
        iterations: iterations of a tile; 0: the loop has no tiles.
        body: the body of the loop, which accesses tiles instead of memory. Its params are the
            counter, the offset of the iteration's row in the tiles, and the carries.
    """

    def __init__(self, lanes: Lanes, s: For, operands: dict[str, Operand]) -> None:
        self._lanes, self._counter = lanes, s.body.params[0]
        steps, varying = self._uniform_steps(s.body.body, operands)
        accesses = [i for i in s.body.body if isinstance(i, Load | Store)]
        accesses = [i for i in accesses if _has_large_stride(i, operands) and i.offset in varying]
        dtypes = [_element(operands[access.operand]) for access in accesses]
        self.iterations = _iterations_per_tile(lanes.size, dtypes)
        self._tiles: dict[Load | Store, Local] = {}
        self.body = s.body
        if not self.iterations:
            return
        arrays = [lanes.array(dtype, self.iterations) for dtype in dtypes]
        self._tiles = dict(zip(accesses, arrays, strict=True))
        self._steps = steps
        row = lanes.fresh("int64")
        self.body = replace(
            s.body,
            params=(self._counter, row, *s.body.params[1:]),
            body=tuple([self._in_tile(i, row) for i in s.body.body]),
        )

    def _uniform_steps(
        self, items: Sequence[Statement], operands: dict[str, Operand]
    ) -> tuple[list[Statement], set[Value]]:
        """The uniform statements, and those of their values that depend on the counter."""
        steps: list[Statement] = []
        fixed: set[Value] = set()
        changing = {self._counter}
        for s in items:
            uses = uses_of(s)
            is_step = isinstance(s, Const | Apply | Cast | Select) or _is_scalar(s, operands)
            step_values = fixed | changing
            if is_step and all(v in step_values or self._lanes.is_uniform(v) for v in uses):
                steps.append(s)
                (fixed if changing.isdisjoint(uses) else changing).update(results_of(s))
        return steps, changing

    def _in_tile(self, s: Statement, row: Value) -> Statement:
        if isinstance(s, Load | Store) and s in self._tiles:
            return replace(s, operand=self._tiles[s].name, offset=row, component=None)
        return s

    def rows(self, code: Code, iteration: Value) -> Value:
        """The offset of an iteration's row in the tiles."""
        return code.apply("mul", iteration, code.number("int64", self._lanes.size))

    def fill(self, first: Value, count: Value, out: list[Statement]) -> None:
        """Copy the elements of ``count`` iterations, from ``first`` on, to the tiles."""
        self._move(Load, first, count, out)

    def empty(self, first: Value, count: Value, out: list[Statement]) -> None:
        """Copy the elements of ``count`` iterations, from ``first`` on, to memory."""
        self._move(Store, first, count, out)

    def _move(
        self, kind: type[Load] | type[Store], first: Value, count: Value, out: list[Statement]
    ) -> None:
        for access, tile in self._tiles.items():
            if not isinstance(access, kind):
                continue
            row, inner = self._lanes.fresh("int64"), list[Statement]()
            code = Code(self._lanes, inner)
            code.call((self._counter,), (code.apply("add", first, row),))
            code.run(_needed(self._steps, access.offset))
            assert access.offset is not None
            offsets = Block((row,), tuple(inner), (code.value(access.offset),))
            ends = tile.name, access.operand
            target, source = ends if kind is Load else ends[::-1]
            out.append(Copy(target, source, count, offsets, access.component))


def _iterations_per_tile(lanes: int, dtypes: Sequence[str]) -> int:
    """The number of iterations that fit in the tiles; 0: too few fit, or there are no tiles."""
    row_bytes = lanes * sum(map(storage_bytes, dtypes))
    iterations = MOST_ITERATIONS if row_bytes else 0
    while iterations * row_bytes > MOST_BYTES:
        iterations //= 2
    return iterations if iterations >= FEWEST_ITERATIONS else 0


def _element(operand: Operand) -> str:
    """The storage dtype of an access."""
    return COMPONENT_DTYPES.get(operand.dtype, operand.dtype)


def _needed(steps: Sequence[Statement], value: Value | None) -> list[Statement]:
    """The steps that a value depends on."""
    required, needed = {value}, []
    for s in reversed(steps):
        if not required.isdisjoint(results_of(s)):
            needed.append(s)
            required.update(uses_of(s))
    return needed[::-1]


def _is_scalar(s: Statement, operands: dict[str, Operand]) -> bool:
    return isinstance(s, Load) and operands[s.operand].mode is Mode.SCALAR


def _has_large_stride(s: Load | Store, operands: dict[str, Operand]) -> bool:
    """Whether lanes access memory with a dynamic stride, unconditionally."""
    if s.where is not None or s.offset is None:
        return False
    operand = operands.get(s.operand)
    mode = Mode.IN if isinstance(s, Load) else Mode.OUT
    return operand is not None and operand.mode is mode and operand.strides[-1] is Stride.ANY
