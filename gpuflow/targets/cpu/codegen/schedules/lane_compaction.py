"""Lane compaction of divergent loops: active lanes move to the front of a block.

    while %c(x): x = %b(x)        while some lane is active:
                                      if much work was wasted: move active lanes to the front
                                      for i of the first n: x[i] = select(active[i], %b(x[i]), x[i])

In a vector, a lane that has stopped takes as long as one that is active. Here a block has many
lanes, of which the first ``n`` may be active. Once stopped lanes have wasted about as much time as
a move takes, the active ones move to the front of their arrays, with the operands that the loop
reads for each lane. Results of stopped lanes go to their original positions. Each lane computes the
same operations in the same order as without compaction.

Tests: tests/compiler/test_lanes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuflow.kir.nodes import (
    Apply,
    Block,
    Const,
    If,
    Load,
    Local,
    Reduce,
    Statement,
    Store,
    Value,
    While,
)
from gpuflow.kir.rewrite import free_values
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.schedules.lane_code import Lanes, SegmentBuilder

MAX_LANES = 1024  # lanes of a block; a power of two, and a multiple of a vector's
# Bytes of a block's arrays, which should stay in L2. Smaller blocks, which fit L1, would cost more:
# the last active lanes of a block do not fill vectors.
MAX_BYTES = 128 << 10
LOG2_VECTOR_LANES = 4  # 16 lanes are computed at once: a vector or two
# Cost of moving one element, which is scalar code, in vectorized operations.
ELEMENT_MOVE_COST = 32

# Writes the body of a loop over lanes, given its builder, a lane's index and the carries; returns
# the next carries.
LaneBody = Callable[[SegmentBuilder, Value, Sequence[Value]], Sequence[Value]]


def can_compact(s: Statement, broadcast: set[str]) -> bool:
    """Whether a loop's lanes can be compacted: it must not store, or load per-lane memory.

    Args:
        s: a statement.
        broadcast: names of operands that do not vary along the lanes.
    """
    if not isinstance(s, While) or _stores(s):
        return False
    inner = statements(Block(body=(*s.cond.body, *s.body.body)))
    return all(not isinstance(i, Load) or i.operand in broadcast for i in inner)


def _stores(s: While) -> bool:
    return any(isinstance(i, Store) for i in statements(s.body))


def lanes_per_block(loops: Sequence[While]) -> int:
    """The number of lanes of a block whose arrays fit in the cache: a power of two.

    Args:
        loops: the loops that will be compacted. Each has arrays of results, of carries, and of
            values that it reads.
    """
    size = MAX_LANES
    for s in loops:
        values = [*s.outs, *s.outs, *free_values((s,))]
        lane_bytes = sum(8 if v.dtype in ("int64", "uint64", "float64") else 4 for v in values)
        while size * lane_bytes > MAX_BYTES:
            size //= 2
    return size


class Compaction:
    """Writes one loop with compaction.

    Args:
        lanes: the block of lanes; its size must be a multiple of 2**LOG2_VECTOR_LANES.
        loop: the loop, which must not contain loops; ``can_compact`` must hold.
        mask: the lanes that run it; None: all.
        unroll: unroll factor.
        iteration_cost: approximate number of operations of an iteration.

    Attributes:
        result_arrays: results by original lane.
        carry_arrays: carries of the lanes in their current order, the active ones first.
        external_values: values of the enclosing code that the loop reads and that differ between
            lanes.
        external_arrays: these values, in the current order.
        active: whether each lane still runs the loop, in the current order.
        original_lane: index of each lane in the original order.
    """

    def __init__(
        self, lanes: Lanes, loop: While, mask: Local | None, unroll: int, iteration_cost: int
    ) -> None:
        self.lanes, self.loop, self.mask = lanes, loop, mask
        self.unroll, self.iteration_cost = unroll, iteration_cost
        self.result_arrays = [lanes.array(value.dtype) for value in loop.outs]
        self.carry_arrays = [lanes.array(value.dtype) for value in loop.outs]
        self.external_values = self._varying_external_values()
        self.external_arrays = [lanes.array(value.dtype) for value in self.external_values]
        self.active, self.original_lane = lanes.array("bool"), lanes.array("int64")

    def _varying_external_values(self) -> list[Value]:
        cond, body = self.loop.cond, self.loop.body
        params = {*cond.params, *body.params}
        external = dict.fromkeys(
            (*free_values((*cond.body, *body.body)), *cond.results, *body.results)
        )
        return [value for value in external if value not in params and self._varies(value)]

    def _varies(self, value: Value) -> bool:
        """Whether an external value differs between lanes."""
        cheap = self.lanes.cheap.get(value)
        if cheap is not None:
            return isinstance(cheap, Load) and cheap.operand not in self.lanes.broadcast
        return value in self.lanes.arrays

    def write(self, out: list[Statement]) -> list[Local]:
        """Append the loop to ``out``; returns the arrays of its results. Call it once."""
        code = SegmentBuilder(self.lanes, out)
        count = self._count_of_lanes(out)
        self._store_initial(code, count, out)
        zero = code.constant("int64", 0)
        active_count = code.cast(self._count_active(code, count), "int64")
        remaining, *_ = self._write_loop((count, active_count, zero), out)
        # Lanes in front have not stored their results yet. If no lane has moved, those are all.
        in_order, compacted = [], []
        self._for_each_lane(SegmentBuilder(self.lanes, in_order), remaining, (), self._copy_out)
        SegmentBuilder(self.lanes, compacted).counted_loop(remaining, (), self._scatter)
        all_in_order = code.apply("eq", remaining, count, dtype="bool")
        out.append(If((), all_in_order, Block(body=tuple(in_order)), Block(body=tuple(compacted))))
        return self.result_arrays

    # --- loops over lanes ---

    def _for_each_lane(
        self, code: SegmentBuilder, count: Value, init: Sequence[Value], body: LaneBody
    ) -> tuple[Value, ...]:
        """Write a loop over ``count`` lanes, rounded up to full vectors."""

        def vector(code: SegmentBuilder, index: Value, carry: Sequence[Value]) -> Sequence[Value]:
            first = self._shifted(code, "shift_left", index)

            def lane(code: SegmentBuilder, k: Value, carry: Sequence[Value]) -> Sequence[Value]:
                return body(code, code.apply("add", first, k), carry)

            return code.counted_loop(code.constant("int64", 1 << LOG2_VECTOR_LANES), carry, lane)

        return code.counted_loop(self._vector_count(code, count), init, vector)

    def _vector_count(self, code: SegmentBuilder, count: Value) -> Value:
        """The number of vectors that ``count`` lanes need."""
        round_up = code.constant("int64", (1 << LOG2_VECTOR_LANES) - 1)
        return self._shifted(code, "shift_right_arithmetic", code.apply("add", count, round_up))

    @staticmethod
    def _shifted(code: SegmentBuilder, fn: str, value: Value) -> Value:
        """Multiply (``shift_left``) or divide an int64 by the number of lanes of a vector."""
        return code.apply(fn, value, code.constant("int64", LOG2_VECTOR_LANES))

    def _count_of_lanes(self, out: list[Statement]) -> Value:
        """The number of lanes of the current block: the last block may have fewer."""
        fresh = self.lanes.fresh
        result, zero, one = fresh("int64"), fresh("int64"), fresh("int64")
        running, new, total = fresh("int64"), fresh("int64"), fresh("int64")
        combine = Block((running, new), (Apply((total,), "add", (running, new)),), (total,))
        body = Block((), (Const(one, 1),), (one,))
        out.append(Const(zero, 0))
        out.append(Reduce((result,), (self.lanes.axis,), (zero,), combine, body))
        return result

    def _store_initial(self, code: SegmentBuilder, count: Value, out: list[Statement]) -> None:
        """Fill the arrays: initial carries, external values, and the lanes that start the loop."""

        def fill(code: SegmentBuilder, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
            for array in (*self.carry_arrays, *self.external_arrays, self.active):
                code.store(array, code.zero(array.dtype), lane)
            code.store(self.original_lane, lane, lane)
            return ()

        self._for_each_lane(code, count, (), fill)
        segment = SegmentBuilder(self.lanes)
        carry = [segment.value(value) for value in self.loop.init]
        pairs = [*zip(self.carry_arrays, carry, strict=True)]
        external = zip(self.external_arrays, self.external_values, strict=True)
        pairs += [(array, segment.value(value)) for array, value in external]
        for array, value in pairs:
            segment.store(array, value)
        goes_on = segment.inline(self.loop.cond, carry)[0]
        if self.mask is not None:
            goes_on = segment.logical_and(segment.load(self.mask), goes_on)
        segment.store(self.active, goes_on)
        out.append(segment.loop())

    def _count_active(self, code: SegmentBuilder, count: Value) -> Value:
        """The number of active lanes of the first ``count``, an int32."""

        def count_lane(
            code: SegmentBuilder, lane: Value, carry: Sequence[Value]
        ) -> Sequence[Value]:
            return (code.apply("add", carry[0], code.cast(code.load(self.active, lane), "int32")),)

        return self._for_each_lane(code, count, (code.constant("int32", 0),), count_lane)[0]

    # --- the loop ---

    def _write_loop(self, init: Sequence[Value], out: list[Statement]) -> tuple[Value, ...]:
        """Write the loop; its results are (remaining lanes, active lanes, wasted iterations)."""
        fresh = self.lanes.fresh
        remaining, active_count, wasted = (fresh("int64") for _ in init)
        outs, tested = (tuple(fresh("int64") for _ in init) for _ in range(2))
        test: list[Statement] = []
        test_code = SegmentBuilder(self.lanes, test)
        goes_on = test_code.apply("gt", tested[1], test_code.constant("int64", 0), dtype="bool")
        inner: list[Statement] = []
        code = SegmentBuilder(self.lanes, inner)
        # A move copies, for each lane: its original index and whether it is active, each carry to
        # the front and to the results, and each external value.
        moved_elements = 2 + 2 * len(self.carry_arrays) + len(self.external_arrays)
        batch_cost, lane_cost = (
            self.iteration_cost * self.unroll,
            ELEMENT_MOVE_COST * moved_elements,
        )
        wasted_work = code.apply("mul", wasted, code.constant("int64", batch_cost))
        move_cost = code.apply("mul", remaining, code.constant("int64", lane_cost))
        is_move = code.apply("ge", wasted_work, move_cost, dtype="bool")
        then: list[Statement] = []
        zero = self._compact(SegmentBuilder(self.lanes, then), remaining, active_count)
        remaining_now, wasted_then = fresh("int64"), fresh("int64")
        sides = Block((), tuple(then), (active_count, zero)), Block((), (), (remaining, wasted))
        inner.append(If((remaining_now, wasted_then), is_move, *sides))
        none_active = code.constant("int64", 0)
        init_counts = none_active, wasted_then
        active_now, wasted_now = self._iterate_vectors(code, remaining_now, init_counts)
        body = Block(
            (remaining, active_count, wasted), tuple(inner), (remaining_now, active_now, wasted_now)
        )
        out.append(While(outs, tuple(init), Block(tested, tuple(test), (goes_on,)), body))
        return outs

    def _iterate_vectors(
        self, code: SegmentBuilder, remaining: Value, init: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Run ``unroll`` iterations of each vector with an active lane.

        Args:
            code: builder of the loop's body.
            remaining: number of lanes that may be active; the others follow.
            init: initial counts (active lanes, wasted iterations), two int64.

        Returns:
            The next counts. Each vector that has run adds its active lanes, and the others.
        """
        size = 1 << LOG2_VECTOR_LANES

        def vector(code: SegmentBuilder, index: Value, carry: Sequence[Value]) -> Sequence[Value]:
            first = self._shifted(code, "shift_left", index)

            def any_active(
                code: SegmentBuilder, k: Value, carry: Sequence[Value]
            ) -> Sequence[Value]:
                goes_on = code.load(self.active, code.apply("add", first, k))
                return (code.apply("or", carry[0], goes_on),)

            def lane(code: SegmentBuilder, k: Value, carry: Sequence[Value]) -> Sequence[Value]:
                return self._iterate_lane(code, code.apply("add", first, k), carry)

            vector_size = code.constant("int64", size)
            (is_any_active,) = code.counted_loop(
                vector_size, (code.constant("bool", False),), any_active
            )
            then: list[Statement] = []
            then_code = SegmentBuilder(self.lanes, then)
            (count,) = then_code.counted_loop(vector_size, (then_code.constant("int32", 0),), lane)
            wide = then_code.cast(count, "int64")
            active_count = then_code.apply("add", carry[0], wide)
            wasted = then_code.apply("add", carry[1], then_code.apply("sub", vector_size, wide))
            outs = tuple(self.lanes.fresh("int64") for _ in carry)
            sides = Block((), tuple(then), (active_count, wasted)), Block((), (), tuple(carry))
            code.branch(outs, is_any_active, *sides)
            return outs

        return code.counted_loop(self._vector_count(code, remaining), init, vector)

    def _iterate_lane(
        self, code: SegmentBuilder, lane: Value, carry: Sequence[Value]
    ) -> Sequence[Value]:
        """Run ``unroll`` iterations of a lane; adds 1 to the carry if it is active afterwards."""
        loop = self.loop
        code.bind(self.external_values, [code.load(array, lane) for array in self.external_arrays])
        values = [code.load(array, lane) for array in self.carry_arrays]
        goes_on = code.load(self.active, lane)
        for _ in range(self.unroll):
            new = code.inline(loop.body, values, goes_on)
            values = [code.select(goes_on, a, b) for a, b in zip(new, values, strict=True)]
            goes_on = code.logical_and(goes_on, code.inline(loop.cond, values, goes_on)[0])
        for array, value in zip(self.carry_arrays, values, strict=True):
            code.store(array, value, lane)
        code.store(self.active, goes_on, lane)
        return (code.apply("add", carry[0], code.cast(goes_on, "int32")),)

    def _compact(self, code: SegmentBuilder, remaining: Value, active_count: Value) -> Value:
        """Store all carries as results at their original positions; move active lanes to the front.

        Returns a zero, the new count of wasted iterations.
        """

        def move_lane(code: SegmentBuilder, lane: Value, carry: Sequence[Value]) -> Sequence[Value]:
            (front,) = carry  # the next free index; at most ``lane``, so reads precede overwrites
            original = code.load(self.original_lane, lane)
            code.store(self.original_lane, original, front)
            for array, result in zip(self.carry_arrays, self.result_arrays, strict=True):
                value = code.load(array, lane)
                code.store(result, value, original)
                code.store(array, value, front)
            for array in self.external_arrays:
                code.store(array, code.load(array, lane), front)
            goes_on = code.cast(code.load(self.active, lane), "int64")
            return (code.apply("add", front, goes_on),)

        def activate(code: SegmentBuilder, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
            code.store(self.active, code.apply("lt", lane, active_count, dtype="bool"), lane)
            return ()

        zero = code.constant("int64", 0)
        code.counted_loop(remaining, (zero,), move_lane)
        self._for_each_lane(code, active_count, (), activate)
        return zero

    def _copy_out(self, code: SegmentBuilder, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
        """Store a lane's carries as results, if lanes are in their original order."""
        for array, result in zip(self.carry_arrays, self.result_arrays, strict=True):
            code.store(result, code.load(array, lane), lane)
        return ()

    def _scatter(self, code: SegmentBuilder, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
        """Store a lane's carries as results of its original lane."""
        original = code.load(self.original_lane, lane)
        for array, result in zip(self.carry_arrays, self.result_arrays, strict=True):
            code.store(result, code.load(array, lane), original)
        return ()
