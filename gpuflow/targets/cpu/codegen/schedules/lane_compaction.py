"""Lane compaction of divergent loops: active lanes move to the front of a block.

    while %c(x): x = %b(x)        while some lane is active:
                                      if much work was wasted: move active lanes to the front
                                      for i of the first n: x[i] = select(active[i], %b(x[i]), x[i])

In a vector, a lane that has stopped takes as long as one that is active. Here a block has many
lanes, of which the first ``n`` may be active. Once stopped lanes have wasted about as much time as
a move takes, the active ones move to the front of their arrays, with the operands that the loop
reads for each lane. Results of stopped lanes go to their original positions. Each lane computes the
same operations in the same order as without compaction.
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
from gpuflow.kir.rewrite import taken
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.schedules.lane_code import Code, Lanes

MOST_LANES = 1024  # lanes of a block
# Bytes of a block's arrays, which should stay in L2. Smaller blocks, which fit L1, would cost more:
# the last active lanes of a block do not fill vectors.
MOST_BYTES = 128 << 10
VECTOR_BITS = 4  # 16 lanes are computed at once: a vector or two
# Cost of moving one element, which is scalar code, in vectorized operations.
WORK_OF_A_MOVE = 32

LaneBody = Callable[[Code, Value, Sequence[Value]], Sequence[Value]]


def can_compact(s: Statement, broadcast: set[str]) -> bool:
    """Whether a loop's lanes can be compacted: it must not store, or load per-lane memory.

    Args:
        s: a loop.
        broadcast: operands that do not vary along the lanes.
    """
    if not isinstance(s, While) or _stores(s):
        return False
    accesses = statements(Block(body=(*s.cond.body, *s.body.body)))
    return all(not isinstance(i, Load) or i.operand in broadcast for i in accesses)


def _stores(s: While) -> bool:
    return any(isinstance(i, Store) for i in statements(s.body))


def lanes_per_block(loops: Sequence[While]) -> int:
    """The number of lanes of a block whose arrays fit in the cache: a power of two."""
    size = MOST_LANES
    for s in loops:
        arrays = [*s.outs, *s.outs, *taken((s,))]
        lane = sum(8 if value.dtype in ("int64", "uint64", "float64") else 4 for value in arrays)
        while size * lane > MOST_BYTES:
            size //= 2
    return size


class Compaction:
    """Writes one loop with compaction.

    Args:
        lanes: the block of lanes.
        s: the loop, which must not contain loops.
        mask: the lanes that run it; None: all.
        unroll: unroll factor.
        work: approximate number of operations of an iteration.
    """

    def __init__(self, lanes: Lanes, s: While, mask: Local | None, unroll: int, work: int) -> None:
        self.lanes, self.s, self.mask = lanes, s, mask
        self.unroll, self.work = unroll, work
        self.results = [lanes.array(value.dtype) for value in s.outs]
        self.carries = [lanes.array(value.dtype) for value in s.outs]
        self.read = self._read()
        self.copies = [lanes.array(value.dtype) for value in self.read]
        self.active, self.position = lanes.array("bool"), lanes.array("int64")

    def _read(self) -> list[Value]:
        """Values of the enclosing code that the loop reads and that differ between lanes."""
        of, cond, body = self.lanes, self.s.cond, self.s.body
        params = {*cond.params, *body.params}
        external = dict.fromkeys((*taken((*cond.body, *body.body)), *cond.results, *body.results))
        return [v for v in external if v not in params and self._varies(v, of)]

    @staticmethod
    def _varies(value: Value, of: Lanes) -> bool:
        cheap = of.cheap.get(value)
        if cheap is not None:
            return isinstance(cheap, Load) and cheap.operand not in of.broadcast
        return value in of.arrays

    def write(self, out: list[Statement]) -> list[Local]:
        """Append the loop to ``out``; returns the arrays of its results."""
        code = Code(self.lanes, out)
        count = self._count_of_lanes(out)
        self._begin(code, count, out)
        zero = code.number("int64", 0)
        active_count = code.cast(self._counted(code, count), "int64")
        last, *_ = self._loop((count, active_count, zero), out)
        in_order, compacted = [], []
        self._vectors(Code(self.lanes, in_order), last, (), self._copy_out)
        Code(self.lanes, compacted).times(last, (), self._scatter)
        all_in_order = code.apply("eq", last, count, dtype="bool")
        out.append(If((), all_in_order, Block(body=tuple(in_order)), Block(body=tuple(compacted))))
        return self.results

    # --- loops over lanes ---

    def _vectors(
        self, code: Code, count: Value, init: Sequence[Value], body: LaneBody
    ) -> tuple[Value, ...]:
        """Write a loop over ``count`` lanes, rounded up to full vectors."""

        def block(code: Code, index: Value, carry: Sequence[Value]) -> Sequence[Value]:
            first = self._shifted(code, "shift_left", index)

            def lane(code: Code, k: Value, carry: Sequence[Value]) -> Sequence[Value]:
                return body(code, code.apply("add", first, k), carry)

            return code.times(code.number("int64", 1 << VECTOR_BITS), carry, lane)

        return code.times(self._blocks(code, count), init, block)

    def _blocks(self, code: Code, count: Value) -> Value:
        number = code.number("int64", (1 << VECTOR_BITS) - 1)
        return self._shifted(code, "shift_right_arithmetic", code.apply("add", count, number))

    @staticmethod
    def _shifted(code: Code, fn: str, value: Value) -> Value:
        return code.apply(fn, value, code.number("int64", VECTOR_BITS))

    def _count_of_lanes(self, out: list[Statement]) -> Value:
        """The number of lanes of the current block: the last block may have fewer."""
        fresh = self.lanes.fresh
        result, start, one = fresh("int64"), fresh("int64"), fresh("int64")
        running, new, both = fresh("int64"), fresh("int64"), fresh("int64")
        combine = Block((running, new), (Apply((both,), "add", (running, new)),), (both,))
        body = Block((), (Const(one, 1),), (one,))
        out.append(Const(start, 0))
        out.append(Reduce((result,), (self.lanes.axis,), (start,), combine, body))
        return result

    def _begin(self, code: Code, count: Value, out: list[Statement]) -> None:
        def fill(code: Code, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
            for array in (*self.carries, *self.copies, self.active):
                code.store(array, code.zero(array.dtype), lane)
            code.store(self.position, lane, lane)
            return ()

        self._vectors(code, count, (), fill)
        segment = Code(self.lanes)
        carry = [segment.value(value) for value in self.s.init]
        pairs = [*zip(self.carries, carry, strict=True)]
        pairs += [(a, segment.value(v)) for a, v in zip(self.copies, self.read, strict=True)]
        for array, value in pairs:
            segment.store(array, value)
        goes_on = segment.block(self.s.cond, carry)[0]
        if self.mask is not None:
            goes_on = segment.both(segment.load(self.mask), goes_on)
        segment.store(self.active, goes_on)
        out.append(segment.loop())

    def _counted(self, code: Code, count: Value) -> Value:
        def count_lane(code: Code, lane: Value, carry: Sequence[Value]) -> Sequence[Value]:
            return (code.apply("add", carry[0], code.cast(code.load(self.active, lane), "int32")),)

        return self._vectors(code, count, (code.number("int32", 0),), count_lane)[0]

    # --- the loop ---

    def _loop(self, init: Sequence[Value], out: list[Statement]) -> tuple[Value, ...]:
        """Write the loop; its results are (remaining lanes, active lanes, wasted iterations)."""
        fresh = self.lanes.fresh
        remaining, active_count, wasted = (fresh("int64") for _ in init)
        outs, tested = (tuple(fresh("int64") for _ in init) for _ in range(2))
        test: list[Statement] = []
        test_code = Code(self.lanes, test)
        goes_on = test_code.apply("gt", tested[1], test_code.number("int64", 0), dtype="bool")
        inner: list[Statement] = []
        code = Code(self.lanes, inner)
        element_cost = WORK_OF_A_MOVE * (2 + 2 * len(self.carries) + len(self.copies))
        wasted_work = code.apply("mul", wasted, code.number("int64", self.work * self.unroll))
        move_cost = code.apply("mul", remaining, code.number("int64", element_cost))
        is_move = code.apply("ge", wasted_work, move_cost, dtype="bool")
        then: list[Statement] = []
        zero = self._move(Code(self.lanes, then), remaining, active_count)
        remaining_now, wasted_then = fresh("int64"), fresh("int64")
        both = Block((), tuple(then), (active_count, zero)), Block((), (), (remaining, wasted))
        inner.append(If((remaining_now, wasted_then), is_move, *both))
        none = code.number("int64", 0)
        active_now, wasted_now = self._batch(code, remaining_now, (none, wasted_then))
        body = Block(
            (remaining, active_count, wasted), tuple(inner), (remaining_now, active_now, wasted_now)
        )
        out.append(While(outs, tuple(init), Block(tested, tuple(test), (goes_on,)), body))
        return outs

    def _batch(self, code: Code, remaining: Value, init: Sequence[Value]) -> tuple[Value, ...]:
        """Run some iterations of each vector with an active lane; count active and wasted lanes."""
        size = 1 << VECTOR_BITS

        def block(code: Code, index: Value, carry: Sequence[Value]) -> Sequence[Value]:
            first = self._shifted(code, "shift_left", index)

            def any_active(code: Code, k: Value, carry: Sequence[Value]) -> Sequence[Value]:
                goes_on = code.load(self.active, code.apply("add", first, k))
                return (code.apply("or", carry[0], goes_on),)

            def lane(code: Code, k: Value, carry: Sequence[Value]) -> Sequence[Value]:
                return self._iterations(code, code.apply("add", first, k), carry)

            one = code.number("int64", size)
            (any_,) = code.times(one, (code.number("bool", False),), any_active)
            then: list[Statement] = []
            taken_code = Code(self.lanes, then)
            (count,) = taken_code.times(one, (taken_code.number("int32", 0),), lane)
            wide = taken_code.cast(count, "int64")
            active_count = taken_code.apply("add", carry[0], wide)
            wasted = taken_code.apply("add", carry[1], taken_code.apply("sub", one, wide))
            outs = tuple(self.lanes.fresh("int64") for _ in carry)
            sides = Block((), tuple(then), (active_count, wasted)), Block((), (), tuple(carry))
            code.branch(outs, any_, *sides)
            return outs

        return code.times(self._blocks(code, remaining), init, block)

    def _iterations(self, code: Code, lane: Value, carry: Sequence[Value]) -> Sequence[Value]:
        """Run some iterations of a lane; adds 1 to the carry if it is active afterwards."""
        s = self.s
        code.call(self.read, [code.load(array, lane) for array in self.copies])
        values = [code.load(array, lane) for array in self.carries]
        goes_on = code.load(self.active, lane)
        for _ in range(self.unroll):
            new = code.block(s.body, values, goes_on)
            values = [code.select(goes_on, a, b) for a, b in zip(new, values, strict=True)]
            goes_on = code.both(goes_on, code.block(s.cond, values, goes_on)[0])
        for array, value in zip(self.carries, values, strict=True):
            code.store(array, value, lane)
        code.store(self.active, goes_on, lane)
        return (code.apply("add", carry[0], code.cast(goes_on, "int32")),)

    def _move(self, code: Code, remaining: Value, active_count: Value) -> Value:
        """Store all carries as results at their original positions; move active lanes to the front.

        Returns a zero, the new count of wasted iterations.
        """

        def move_lane(code: Code, lane: Value, carry: Sequence[Value]) -> Sequence[Value]:
            (front,) = carry
            position = code.load(self.position, lane)
            code.store(self.position, position, front)
            for array, result in zip(self.carries, self.results, strict=True):
                value = code.load(array, lane)
                code.store(result, value, position)
                code.store(array, value, front)
            for array in self.copies:
                code.store(array, code.load(array, lane), front)
            goes_on = code.cast(code.load(self.active, lane), "int64")
            return (code.apply("add", front, goes_on),)

        def activate(code: Code, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
            code.store(self.active, code.apply("lt", lane, active_count, dtype="bool"), lane)
            return ()

        zero = code.number("int64", 0)
        code.times(remaining, (zero,), move_lane)
        self._vectors(code, active_count, (), activate)
        return zero

    def _copy_out(self, code: Code, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
        for array, result in zip(self.carries, self.results, strict=True):
            code.store(result, code.load(array, lane), lane)
        return ()

    def _scatter(self, code: Code, lane: Value, _: Sequence[Value]) -> Sequence[Value]:
        position = code.load(self.position, lane)
        for array, result in zip(self.carries, self.results, strict=True):
            code.store(result, code.load(array, lane), position)
        return ()
