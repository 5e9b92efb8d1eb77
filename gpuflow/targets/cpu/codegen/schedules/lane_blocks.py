"""Outer-loop vectorization: blocks of lanes run their inner loops together, with masks.

    for i:                          strip i by 64:
        %1 = while (x) %c do %b         for i: carry[i] = x; active[i] = %c(x)
        store o %1                      while any active:
                                            for i: carry[i] = select(active[i], %b(carry[i]), ..)
                                                   active[i] = active[i] and %c(carry[i])
                                        for i: store o carry[i]

LLVM vectorizes innermost loops only. This rewrite makes the loop over lanes (points) the innermost:
the body is split at loops, and each segment becomes a loop over the lanes of a block. Values that
another segment needs are stored in local arrays. Lanes that have stopped still compute, but a
select preserves their values. Branches without loops become selects, with masked loads and stores.

If a segment is the whole body of a loop, it is unrolled, so that carries stay in registers, and
fewer iterations check whether some lane is active. If the condition of a loop is uniform, like a
counter's, the loop needs no masks, and the block has one counter (``lane_counted_loops``).

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_tiles.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import (
    Apply,
    Block,
    Cast,
    Const,
    For,
    If,
    Kernel,
    Load,
    Local,
    Mode,
    Reduce,
    Role,
    Select,
    Statement,
    Store,
    Stride,
    Strip,
    Value,
    While,
    memoized,
)
from gpuflow.kir.rewrite import free_values
from gpuflow.kir.walk import next_value_number, results_of, statements, uses_of
from gpuflow.targets.cpu.codegen.schedules.lane_code import SegmentBuilder, has_loop, is_loop
from gpuflow.targets.cpu.codegen.schedules.lane_compaction import (
    Compaction,
    can_compact,
    lanes_per_block,
)
from gpuflow.targets.cpu.codegen.schedules.lane_counted_loops import (
    CountedLoop,
    write_counted,
    write_iterations,
)
from gpuflow.targets.cpu.codegen.schedules.lane_uniform import find_uniform_loops
from gpuflow.targets.cpu.codegen.schedules.lane_unrolling import operation_count, unroll_factor
from gpuflow.targets.cpu.codegen.schedules.short_rows import with_short_axis

LANES = 64  # lanes of a block without compaction; a power of two
MIN_LANES = 16  # fewer lanes run one at a time: a block takes as long as if it were full


def lanes_in_blocks(kernel: Kernel) -> Kernel:
    """Interchange the loops inside a map's points with the loop over the points.

    Args:
        kernel: any kernel; one without such loops is returned unchanged.
    """
    if not _applies(kernel) or kernel.axes[-1].is_short:
        return kernel
    blocks = _LaneBlockRewriter(kernel)
    body = blocks.nest(kernel.body)
    return replace(kernel, body=body, locals=(*kernel.locals, *blocks.locals))


def _applies(kernel: Kernel) -> bool:
    """Whether a kernel is a map with loops inside its points."""
    if kernel.kind != "map" or kernel.segmented or not kernel.axes:
        return False
    if any(isinstance(s, Reduce | Strip) for s in statements(kernel.body)):
        return False
    if any(axis.role is not Role.PARALLEL for axis in kernel.axes):
        return False
    return any(is_loop(s) for s in statements(kernel.body))


def _choose(call: KernelCall) -> bool | None:
    return extents_of(call)[call.kernel.axes[-1].name] < MIN_LANES or None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=memoized(call.kernel, with_short_axis)),)


FEW_LANES = Schedule("few lanes one by one", _applies, _choose, _rewrite)


class _LaneBlockRewriter:
    """Rewrites the innermost loop over points of a kernel.

    Attributes:
        locals: local arrays of the rewritten loops.
        axis: the axis of the lanes.
        arrays: the arrays of values that several segments use.
        cheap: values that each segment recomputes: constants, scalars and indices.
        uniform: uniform values of the original kernel, with their values in the rewritten one.
        operands: operands of the kernel, by name.
        in_memory: operands that are not scalars: a loop that accesses one must not be padded.
        broadcast: operands that do not vary along the lanes.
        uniform_loops: loops that all lanes of a block leave in the same iteration, by their
            ``id``, with the indices of their uniform carries.
        size: lanes of a block, a power of two.
        is_padded: whether loops over local arrays may run over all lanes of a shorter last block.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.locals: list[Local] = []
        self.axis = kernel.axes[-1].name
        self.arrays: dict[Value, Local] = {}
        self.cheap: dict[Value, Const | Load] = {}
        self.uniform: dict[Value, Value] = {}
        # The mask of valid lanes and the statements that compute it, for loops that need it.
        self._valid_mask: Local | None = None
        self._valid_mask_code: list[Statement] = []
        self._next_number = next_value_number(kernel.body)
        self.operands = {o.name: o for o in kernel.operands}
        self.in_memory = {o.name for o in kernel.operands if o.mode is not Mode.SCALAR}
        last, invariant = len(kernel.axes) - 1, ((), (Stride.ZERO,))
        self.broadcast = {o.name for o in kernel.operands if o.strides[last:] in invariant}
        self.uniform_loops = find_uniform_loops(self, kernel.body)
        self.uniform, self.cheap = {}, {}  # ``find_uniform_loops`` has filled them
        compacted = [
            s for s in statements(kernel.body)
            if isinstance(s, While) and not has_loop(s.body.body)
            and can_compact(s, self.broadcast) and id(s) not in self.uniform_loops
        ]  # fmt: skip
        size = lanes_per_block(compacted) if compacted else 0
        self.is_padded = size <= LANES
        self.size = LANES if self.is_padded else size

    def nest(self, block: Block) -> Block:
        """Rewrite the innermost loop over points, and return the nest around it."""
        body: list[Statement] = []
        for statement in block.body:
            self.uniform.update({value: value for value in results_of(statement)})
            if isinstance(statement, For) and statement.axis == self.axis:
                lanes: list[Statement] = []
                self.write_sequence(statement.body.body, (), None, lanes)
                masked = Block(body=(*self._valid_mask_code, *lanes))
                statement = Strip(self.axis, self.size, masked)
            elif isinstance(statement, For) and statement.axis is not None:
                statement = replace(statement, body=self.nest(statement.body))
            body.append(statement)
        return replace(block, body=tuple(body))

    def _valid_lane_mask(self) -> Local:
        """The mask of a block's lanes that exist: the last block may have fewer."""
        if self._valid_mask is None:
            self._valid_mask = self.array("bool")
            for padded in (True, False) if self.is_padded else (False,):
                code = SegmentBuilder(self)
                code.store(self._valid_mask, code.constant("bool", not padded))
                self._valid_mask_code.append(replace(code.loop(), padded=padded))
        return self._valid_mask

    # --- values ---

    def fresh(self, dtype: str) -> Value:
        """A value with a number that the kernel does not use yet."""
        self._next_number += 1
        return Value(self._next_number - 1, dtype)

    def array(self, dtype: str, rows: int = 1) -> Local:
        """A new array with an element for each lane of a block, or ``rows`` rows of them."""
        local = Local(f"l{len(self.locals)}_lanes", dtype, ((self.axis, self.size),), rows)
        self.locals.append(local)
        return local

    def array_of(self, value: Value) -> Local:
        """The array of a value that several segments use."""
        if value not in self.arrays:
            self.arrays[value] = self.array(value.dtype)
        return self.arrays[value]

    def recomputed_constant(self, dtype: str, number: bool | int) -> Value:
        """A constant that each segment recomputes."""
        value = self.fresh(dtype)
        self.cheap[value] = Const(value, number)
        return value

    def is_cheap(self, s: Statement) -> bool:
        """Whether each segment recomputes a statement."""
        if isinstance(s, Const):
            return True
        is_whole = isinstance(s, Load) and s.offset is None and s.where is None
        return is_whole and self.operands[s.operand].mode in (Mode.SCALAR, Mode.INDEX)

    def is_uniform(self, value: Value) -> bool:
        """Whether a value is uniform over the lanes of a block."""
        cheap = self.cheap.get(value)
        if cheap is None:
            return value in self.uniform
        return isinstance(cheap, Const) or cheap.operand in self.broadcast

    def _is_uniform_statement(self, s: Statement) -> bool:
        """Whether the results of a statement are uniform; memory must be read-only."""
        if isinstance(s, Load):
            if s.operand not in self.broadcast or self.operands[s.operand].mode is not Mode.IN:
                return False
        elif not isinstance(s, Apply | Cast | Select):
            return False
        return all(map(self.is_uniform, uses_of(s)))

    # --- loops that all lanes leave at once ---

    def note_uniform(self, s: Statement) -> bool:
        """Whether a statement is uniform; records constants, scalars and indices as cheap."""
        if self.is_cheap(s):
            assert isinstance(s, Const | Load)
            self.cheap[s.out] = s
            return False  # ``is_uniform`` decides by ``cheap``
        return self._is_uniform_statement(s)

    def _write_uniform_while(self, s: While, mask: Local | None, out: list[Statement]) -> None:
        """Write a loop that needs no new masks; uniform carries remain carries of the loop."""
        uniform = self.uniform_loops[id(s)]
        varying = [k for k in range(len(s.outs)) if k not in uniform]

        def pick(values: Sequence[Value], positions: Iterable[int]) -> tuple[Value, ...]:
            return tuple([values[k] for k in positions])

        arrays = self._store_initial_carries(
            pick(s.outs, varying), pick(s.body.params, varying), pick(s.init, varying), out
        )
        head = SegmentBuilder(self, out)
        init = tuple([head.value(value) for value in pick(s.init, uniform)])
        outs, current, tested = (tuple([self.fresh(v.dtype) for v in init]) for _ in range(3))
        test: list[Statement] = []
        condition = Block(pick(s.cond.params, uniform), s.cond.body, s.cond.results)
        goes_on = SegmentBuilder(self, test).inline(condition, tested)[0]
        body = Block(
            (*pick(s.body.params, uniform), *pick(s.body.params, varying)),
            s.body.body,
            pick(s.body.results, varying),
        )
        loop = CountedLoop(body, arrays, mask, lambda code, number: current, True)
        self.uniform.update(zip(body.params, current, strict=False))
        inner: list[Statement] = []
        segment, scalars = SegmentBuilder(self), SegmentBuilder(self, inner)
        if has_loop(body.body):
            self.write_sequence(body.body, body.results, mask, inner)
            write_iterations(segment, loop, None)
        else:
            for statement in body.body:
                if self.note_uniform(statement):
                    scalars.append((statement,))
                    self.uniform.update({v: scalars.value(v) for v in results_of(statement)})
            write_iterations(segment, loop, [current])
        inner.append(segment.loop())
        results = tuple([scalars.value(value) for value in pick(s.body.results, uniform)])
        body = Block(current, tuple(inner), results)
        out.append(While(outs, init, Block(tested, tuple(test), (goes_on,)), body))
        self.uniform.update(zip(pick(s.outs, uniform), outs, strict=True))

    # --- statements in order ---

    def write_sequence(
        self,
        items: Sequence[Statement],
        results: Sequence[Value],
        mask: Local | None,
        out: list[Statement],
    ) -> None:
        """Write statements for a block of lanes.

        Args:
            items: statements of one lane.
            results: values that later segments load from their arrays.
            mask: the lanes that run the statements; None: all.
            out: the list to append to.
        """
        straight: list[Statement] = []
        for position, statement in enumerate(items):
            if self.is_cheap(statement):
                assert isinstance(statement, Const | Load)
                self.cheap[statement.out] = statement
            elif self._is_uniform_statement(statement):
                code = SegmentBuilder(self, out)
                code.append((statement,))
                self.uniform.update({v: code.value(v) for v in results_of(statement)})
            elif has_loop((statement,)):
                self._write_segment(straight, {*free_values(items[position:]), *results}, mask, out)
                straight = []
                self._write_control(statement, mask, out)
            else:
                straight.append(statement)
        self._write_segment(straight, set(results), mask, out)

    def _write_segment(
        self,
        items: Sequence[Statement],
        later_uses: set[Value],
        mask: Local | None,
        out: list[Statement],
    ) -> None:
        """Write statements without loops as a loop over the lanes."""
        live = [value for s in items for value in results_of(s) if value in later_uses]
        if not live and not any(isinstance(s, Store) for s in statements(Block(body=tuple(items)))):
            return
        code = SegmentBuilder(self)
        code.append(items, None if mask is None else code.load(mask))
        for value in live:
            code.store(self.array_of(value), code.value(value))
        out.append(code.loop())

    def _write_control(self, s: Statement, mask: Local | None, out: list[Statement]) -> None:
        """Write a loop of one lane, or a branch that has one."""
        if isinstance(s, While) and id(s) in self.uniform_loops:
            self._write_uniform_while(s, mask, out)
        elif isinstance(s, While):
            self._write_while(s, mask, out)
        elif isinstance(s, If):
            self._write_branch(s, mask, out)
        else:
            assert isinstance(s, For)
            assert s.count is not None
            if self.is_uniform(s.count):
                arrays = self._store_initial_carries(s.outs, s.body.params[1:], s.init, out)
                write_counted(self, s, arrays, mask, out)
            else:
                self._write_while(self._as_while(s), mask, out)

    def _write_any(self, array: Local, out: list[Statement]) -> Value:
        """Append a reduction to ``out``: whether an element of an array is true."""
        result, false = self.fresh("bool"), self.fresh("bool")
        running, new, either, element = (self.fresh("bool") for _ in range(4))
        combine = Block((running, new), (Apply((either,), "or", (running, new)),), (either,))
        body = Block((), (Load(element, array.name),), (element,))
        out.append(Const(false, False))
        out.append(Reduce((result,), (self.axis,), (false,), combine, body, self.is_padded))
        return result

    # --- loops ---

    def _store_initial_carries(
        self,
        outs: Sequence[Value],
        params: Sequence[Value],
        init: Sequence[Value],
        out: list[Statement],
    ) -> list[Local]:
        """Allocate the arrays of carries, and store the initial values in them.

        A carry has one array, as a param of the body and as a result of the loop.
        """
        code = SegmentBuilder(self)
        arrays = [self.array_of(value) for value in outs]
        for array, param, value in zip(arrays, params, init, strict=True):
            self.arrays[param] = array
            code.store(array, code.value(value))
        if arrays:
            out.append(code.loop())
        return arrays

    def _write_while(self, loop: While, mask: Local | None, out: list[Statement]) -> None:
        """Write a loop that lanes leave in different iterations, by compaction or with masks."""
        is_straight = not has_loop(loop.body.body)
        if is_straight and not self.is_padded and can_compact(loop, self.broadcast):
            blocks = loop.body, loop.cond
            unroll, cost = unroll_factor(*blocks), operation_count(*blocks)
            arrays = Compaction(self, loop, mask, unroll, cost).write(out)
            self.arrays.update(zip(loop.outs, arrays, strict=True))
            return
        arrays = self._store_initial_carries(loop.outs, loop.body.params, loop.init, out)
        active, code = self.array("bool"), SegmentBuilder(self)
        carry = [code.load(array) for array in arrays]
        goes_on = code.inline(loop.cond, carry)[0]
        code.store(active, code.logical_and(code.load(mask or self._valid_lane_mask()), goes_on))
        out.append(code.loop())
        any_active = self._write_any(active, out)
        inner: list[Statement] = []
        if not is_straight:
            self.write_sequence(loop.body.body, loop.body.results, active, inner)
        code = SegmentBuilder(self)
        carry, goes_on = [code.load(array) for array in arrays], code.load(active)
        for _ in range(unroll_factor(loop.body, loop.cond) if is_straight else 1):
            if is_straight:
                new = code.inline(loop.body, carry, goes_on)
            else:
                new = [code.value(value) for value in loop.body.results]
            carry = [code.select(goes_on, a, b) for a, b in zip(new, carry, strict=True)]
            goes_on = code.logical_and(goes_on, code.inline(loop.cond, carry)[0])
        for array, value in zip(arrays, carry, strict=True):
            code.store(array, value)
        code.store(active, goes_on)
        inner.append(code.loop())
        still_active = self._write_any(active, inner)
        before, running, result = (self.fresh("bool") for _ in range(3))
        test = Block((before,), (), (before,))
        body = Block((running,), tuple(inner), (still_active,))
        out.append(While((result,), (any_active,), test, body))

    def _as_while(self, loop: For) -> While:
        """Rewrite a loop whose trip count differs between lanes as a While."""
        assert loop.count is not None
        zero, one = self.recomputed_constant("int64", 0), self.recomputed_constant("int64", 1)
        index, final_counter, more = self.fresh("int64"), self.fresh("int64"), self.fresh("bool")
        counter, *carry = loop.body.params
        tested = tuple(self.fresh(value.dtype) for value in carry)
        goes_on = Apply((more,), "lt", (index, loop.count))
        following = self.fresh("int64")
        step = Apply((following,), "add", (counter, one))
        body = Block(loop.body.params, (*loop.body.body, step), (following, *loop.body.results))
        test = Block((index, *tested), (goes_on,), (more,))
        return While((final_counter, *loop.outs), (zero, *loop.init), test, body)

    def _write_branch(self, s: If, mask: Local | None, out: list[Statement]) -> None:
        """Write a branch with loops: each side runs for the lanes that take it, if any do."""
        code, side_masks = SegmentBuilder(self), (self.array("bool"), self.array("bool"))
        predicate_value = code.value(s.predicate)
        takes_side = predicate_value, code.apply("not", predicate_value)
        for side_mask, takes in zip(side_masks, takes_side, strict=True):
            valid = code.load(mask or self._valid_lane_mask())
            code.store(side_mask, code.logical_and(valid, takes))
        arrays = [self.array_of(value) for value in s.outs]
        for array in arrays:
            code.store(array, code.zero(array.dtype))  # for lanes that are masked out
        out.append(code.loop())
        for side_mask, block in zip(side_masks, (s.then, s.orelse), strict=True):
            inner: list[Statement] = []
            self.write_sequence(block.body, block.results, side_mask, inner)
            segment = SegmentBuilder(self)
            guard = segment.load(side_mask)
            for array, value in zip(arrays, block.results, strict=True):
                new = segment.value(value)
                segment.store(array, segment.select(guard, new, segment.load(array)))
            if arrays:
                inner.append(segment.loop())
            is_any_lane = self._write_any(side_mask, out)
            out.append(If((), is_any_lane, Block(body=tuple(inner)), Block()))
