"""Outer-loop vectorization: blocks of lanes run their inner loops together, with masks.

    for i:                              strip i by 64:
        %1 = while (x) %c do %b             for i: carry[i] = x; going[i] = %c(x)
        store o %1                          while any going:
                                                for i: carry[i] = select(going[i], %b(carry[i]), ..)
                                                       going[i] = going[i] and %c(carry[i])
                                            for i: store o carry[i]

LLVM vectorizes innermost loops only. This rewrite makes the loop over lanes (points) the innermost:
the body is split at loops, and each segment becomes a loop over the lanes of a block. Values that
another segment needs are stored in local arrays. Lanes that have stopped still compute, but a
select preserves their values. Branches without loops become selects, with masked loads and stores.

If a segment is the whole body of a loop, it is unrolled, so that carries stay in registers, and
fewer iterations check whether some lane is active. If the condition of a loop is uniform, like a
counter's, the loop needs no masks, and the block has one counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuflow.compiler.lowering.call_layout import sizes_of
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
    remembered,
)
from gpuflow.kir.rewrite import taken
from gpuflow.kir.scalar import EXPENSIVE, TRANSCENDENTAL
from gpuflow.kir.walk import results_of, statements, unused_number, uses_of
from gpuflow.targets.cpu.codegen.schedules.lane_code import Code
from gpuflow.targets.cpu.codegen.schedules.lane_compaction import (
    Compaction,
    can_compact,
    lanes_per_block,
)
from gpuflow.targets.cpu.codegen.schedules.lane_tiles import Tiles
from gpuflow.targets.cpu.codegen.schedules.lane_uniform import find_uniform_loops
from gpuflow.targets.cpu.codegen.schedules.short_rows import with_short_axis

LANES = 64  # lanes of a block
FEWEST_LANES = 16  # fewer lanes run one at a time: a block takes as long as if it were full
_FEW_STATEMENTS = ((12, 8), (24, 4), (48, 2))  # most statements of a body for an unroll factor
# Weights of statements that are long dependence chains.
_DIVISION, _SERIES = 12, 48


def lanes_in_blocks(kernel: Kernel) -> Kernel:
    """Interchange the loops inside a map's points with the loop over the points.

    Args:
        kernel: any kernel; one without such loops is returned unchanged.
    """
    if not _applies(kernel) or kernel.axes[-1].is_short:
        return kernel
    blocks = _Blocks(kernel)
    body = blocks.nest(kernel.body)
    return replace(kernel, body=body, locals=(*kernel.locals, *blocks.locals))


def _applies(kernel: Kernel) -> bool:
    if kernel.kind != "map" or kernel.segmented or not kernel.axes:
        return False
    if any(isinstance(s, Reduce | Strip) for s in statements(kernel.body)):
        return False
    if any(axis.role is not Role.PARALLEL for axis in kernel.axes):
        return False
    return any(_is_loop(s) for s in statements(kernel.body))


def _choose(call: KernelCall) -> bool | None:
    return sizes_of(call)[call.kernel.axes[-1].name] < FEWEST_LANES or None


def _few(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=remembered(call.kernel, with_short_axis)),)


FEW_LANES = Schedule("few lanes one by one", _applies, _choose, _few)


def _is_loop(statement: Statement) -> bool:
    return isinstance(statement, While) or (isinstance(statement, For) and statement.axis is None)


def _has_loop(items: Iterable[Statement]) -> bool:
    return any(_is_loop(s) for s in statements(Block(body=tuple(items))))


def _work(*blocks: Block) -> int:
    """Estimate the operations of one lane, in cheap statements."""
    items = [statement for block in blocks for statement in statements(block)]
    return sum(map(_count, items))


def _count(s: Statement) -> int:
    if not isinstance(s, Apply) or s.fn not in EXPENSIVE:
        return 1
    return _SERIES if s.fn in TRANSCENDENTAL else _DIVISION


def _is_lookup(block: Block) -> bool:
    """Whether an iteration reads memory at an offset that depends on a carry."""
    dependent = set(block.params[1:])  # the first param may be the counter
    for s in statements(block):
        if isinstance(s, Load) and s.offset in dependent:
            return True
        if not dependent.isdisjoint(uses_of(s)):
            dependent.update(results_of(s))
    return False


class _Counted(NamedTuple):
    """A loop with a uniform trip count for all lanes of a block.

    Attributes:
        body: its params are the uniform values of an iteration, and then the carries.
        arrays: the local arrays of the carries.
        mask: the lanes that run it; None: all.
        arguments: writes the uniform values, given the index of an iteration.
        is_long: as in ``For``.
    """

    body: Block
    arrays: Sequence[Local]
    mask: Local | None
    arguments: Callable[[Code, Value], Sequence[Value]]
    is_long: bool


class _Blocks:
    """Rewrites the innermost loop over points of a kernel.

    Attributes:
        locals: local arrays of the rewritten loops.
        axis: the axis of the lanes.
        arrays: the arrays of values that several segments use.
        cheap: values that each segment recomputes: constants, scalars and indices.
        uniform: uniform values of the original kernel, with their values in the rewritten one.
        in_memory: operands that are not scalars: a loop that accesses one must not be padded.
        broadcast: operands that do not vary along the lanes.
        uniform_loops: loops that all lanes of a block leave in the same iteration, by their
            ``id``, with the indices of their uniform carries.
        size: lanes of a block.
        is_padded: whether loops over local arrays may run over all lanes of a shorter last block.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.locals: list[Local] = []
        self.axis = kernel.axes[-1].name
        self.arrays: dict[Value, Local] = {}
        self.cheap: dict[Value, Const | Load] = {}
        self.uniform: dict[Value, Value] = {}
        # The mask of valid lanes and the statements that compute it, for loops that need it.
        self._mask: Local | None = None
        self._mask_code: list[Statement] = []
        self._free = unused_number(kernel.body)
        self._operands = {o.name: o for o in kernel.operands}
        self.in_memory = {o.name for o in kernel.operands if o.mode is not Mode.SCALAR}
        last, fixed = len(kernel.axes) - 1, ((), (Stride.ZERO,))
        self.broadcast = {o.name for o in kernel.operands if o.strides[last:] in fixed}
        self.uniform_loops = find_uniform_loops(self, kernel.body)
        self.uniform, self.cheap = {}, {}
        loops = [
            s for s in statements(kernel.body)
            if isinstance(s, While) and not _has_loop(s.body.body)
            and can_compact(s, self.broadcast) and id(s) not in self.uniform_loops
        ]  # fmt: skip
        size = lanes_per_block(loops) if loops else 0
        self.is_padded = size <= LANES
        self.size = LANES if self.is_padded else size

    def nest(self, block: Block) -> Block:
        """Rewrite the innermost loop over points, and return the nest around it."""
        body: list[Statement] = []
        for statement in block.body:
            self.uniform.update({value: value for value in results_of(statement)})
            if isinstance(statement, For) and statement.axis == self.axis:
                lanes: list[Statement] = []
                self.sequence(statement.body.body, (), None, lanes)
                masked = Block(body=(*self._mask_code, *lanes))
                statement = Strip(self.axis, self.size, masked)
            elif isinstance(statement, For) and statement.axis is not None:
                statement = replace(statement, body=self.nest(statement.body))
            body.append(statement)
        return replace(block, body=tuple(body))

    def _valid_lanes(self) -> Local:
        """The mask of a block's lanes that exist: the last block may have fewer."""
        if self._mask is None:
            self._mask = self.array("bool")
            for padded in (True, False) if self.is_padded else (False,):
                code = Code(self)
                code.store(self._mask, code.number("bool", not padded))
                self._mask_code.append(replace(code.loop(), padded=padded))
        return self._mask

    # --- values ---

    def fresh(self, dtype: str) -> Value:
        """A new value."""
        self._free += 1
        return Value(self._free - 1, dtype)

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

    def constant(self, dtype: str, number: bool | int) -> Value:
        """A constant that each segment recomputes."""
        value = self.fresh(dtype)
        self.cheap[value] = Const(value, number)
        return value

    def is_cheap(self, s: Statement) -> bool:
        """Whether each segment recomputes a statement."""
        if isinstance(s, Const):
            return True
        plain = isinstance(s, Load) and s.offset is None and s.where is None
        return plain and self._operands[s.operand].mode in (Mode.SCALAR, Mode.INDEX)

    def is_uniform(self, value: Value) -> bool:
        """Whether a value is uniform over the lanes of a block."""
        cheap = self.cheap.get(value)
        if cheap is None:
            return value in self.uniform
        return isinstance(cheap, Const) or cheap.operand in self.broadcast

    def _is_uniform_statement(self, s: Statement) -> bool:
        """Whether the results of a statement are uniform; memory must be read-only."""
        if isinstance(s, Load):
            if s.operand not in self.broadcast or self._operands[s.operand].mode is not Mode.IN:
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

    def _uniform_while(self, s: While, mask: Local | None, out: list[Statement]) -> None:
        """Write a loop that needs no new masks; uniform carries remain carries of the loop."""
        uniform = self.uniform_loops[id(s)]
        others = [k for k in range(len(s.outs)) if k not in uniform]

        def of(values: Sequence[Value], positions: Iterable[int]) -> tuple[Value, ...]:
            return tuple([values[k] for k in positions])

        arrays = self._begin(of(s.outs, others), of(s.body.params, others), of(s.init, others), out)
        head = Code(self, out)
        init = tuple([head.value(value) for value in of(s.init, uniform)])
        outs, current, tested = (tuple([self.fresh(v.dtype) for v in init]) for _ in range(3))
        test: list[Statement] = []
        condition = Block(of(s.cond.params, uniform), s.cond.body, s.cond.results)
        goes_on = Code(self, test).block(condition, tested)[0]
        body = Block(
            (*of(s.body.params, uniform), *of(s.body.params, others)),
            s.body.body,
            of(s.body.results, others),
        )
        loop = _Counted(body, arrays, mask, lambda code, number: current, True)
        self.uniform.update(zip(body.params, current, strict=False))
        inner: list[Statement] = []
        segment, scalars = Code(self), Code(self, inner)
        if _has_loop(body.body):
            self.sequence(body.body, body.results, mask, inner)
            self._iterations(segment, loop, None)
        else:
            for statement in body.body:
                if self.note_uniform(statement):
                    scalars.run((statement,))
                    self.uniform.update({v: scalars.value(v) for v in results_of(statement)})
            self._iterations(segment, loop, [current])
        inner.append(segment.loop())
        results = tuple([scalars.value(value) for value in of(s.body.results, uniform)])
        body = Block(current, tuple(inner), results)
        out.append(While(outs, init, Block(tested, tuple(test), (goes_on,)), body))
        self.uniform.update(zip(of(s.outs, uniform), outs, strict=True))

    # --- statements in order ---

    def sequence(
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
                code = Code(self, out)
                code.run((statement,))
                self.uniform.update({v: code.value(v) for v in results_of(statement)})
            elif _has_loop((statement,)):
                self._segment(straight, {*taken(items[position:]), *results}, mask, out)
                straight = []
                self._control(statement, mask, out)
            else:
                straight.append(statement)
        self._segment(straight, set(results), mask, out)

    def _segment(
        self,
        items: Sequence[Statement],
        later: set[Value],
        mask: Local | None,
        out: list[Statement],
    ) -> None:
        """Write statements without loops as a loop over the lanes."""
        live = [value for s in items for value in results_of(s) if value in later]
        if not live and not any(isinstance(s, Store) for s in statements(Block(body=tuple(items)))):
            return
        code = Code(self)
        code.run(items, None if mask is None else code.load(mask))
        for value in live:
            code.store(self.array_of(value), code.value(value))
        out.append(code.loop())

    def _control(self, s: Statement, mask: Local | None, out: list[Statement]) -> None:
        if isinstance(s, While) and id(s) in self.uniform_loops:
            self._uniform_while(s, mask, out)
        elif isinstance(s, While):
            self._while(s, mask, out)
        elif isinstance(s, If):
            self._branch(s, mask, out)
        else:
            assert isinstance(s, For)
            assert s.count is not None
            if self.is_uniform(s.count):
                self._count(s, mask, out)
            else:
                self._while(self._as_while(s), mask, out)

    def _any(self, array: Local, out: list[Statement]) -> Value:
        """Append a reduction to ``out``: whether an element of an array is true."""
        result, start = self.fresh("bool"), self.fresh("bool")
        running, new, both, element = (self.fresh("bool") for _ in range(4))
        combine = Block((running, new), (Apply((both,), "or", (running, new)),), (both,))
        body = Block((), (Load(element, array.name),), (element,))
        out.append(Const(start, False))
        out.append(Reduce((result,), (self.axis,), (start,), combine, body, self.is_padded))
        return result

    # --- loops ---

    def _begin(
        self,
        outs: Sequence[Value],
        params: Sequence[Value],
        init: Sequence[Value],
        out: list[Statement],
    ) -> list[Local]:
        """Allocate the arrays of carries, and store the initial values in them."""
        code = Code(self)
        arrays = [self.array_of(value) for value in outs]
        for array, param, value in zip(arrays, params, init, strict=True):
            self.arrays[param] = array
            code.store(array, code.value(value))
        if arrays:
            out.append(code.loop())
        return arrays

    def _while(self, s: While, mask: Local | None, out: list[Statement]) -> None:
        is_straight = not _has_loop(s.body.body)
        if is_straight and not self.is_padded and can_compact(s, self.broadcast):
            unroll, work = self._unroll_factor(s.body, s.cond), _work(s.body, s.cond)
            arrays = Compaction(self, s, mask, unroll, work).write(out)
            self.arrays.update(zip(s.outs, arrays, strict=True))
            return
        arrays = self._begin(s.outs, s.body.params, s.init, out)
        going, code = self.array("bool"), Code(self)
        carry = [code.load(array) for array in arrays]
        goes_on = code.block(s.cond, carry)[0]
        code.store(going, code.both(code.load(mask or self._valid_lanes()), goes_on))
        out.append(code.loop())
        first = self._any(going, out)
        inner: list[Statement] = []
        if not is_straight:
            self.sequence(s.body.body, s.body.results, going, inner)
        code = Code(self)
        carry, goes_on = [code.load(array) for array in arrays], code.load(going)
        for _ in range(self._unroll_factor(s.body, s.cond) if is_straight else 1):
            if is_straight:
                new = code.block(s.body, carry, goes_on)
            else:
                new = [code.value(value) for value in s.body.results]
            carry = [code.select(goes_on, a, b) for a, b in zip(new, carry, strict=True)]
            goes_on = code.both(goes_on, code.block(s.cond, carry)[0])
        for array, value in zip(arrays, carry, strict=True):
            code.store(array, value)
        code.store(going, goes_on)
        inner.append(code.loop())
        again = self._any(going, inner)
        before, running, result = (self.fresh("bool") for _ in range(3))
        test = Block((before,), (), (before,))
        out.append(While((result,), (first,), test, Block((running,), tuple(inner), (again,))))

    @staticmethod
    def _unroll_factor(*blocks: Block) -> int:
        """The unroll factor of a loop without loops.

        Iterations depend on each other, but lanes do not: a long iteration keeps a processor busy
        without unrolling. So does one that loads at an offset from the previous iteration.
        """
        if any(_is_lookup(block) for block in blocks):
            return 1
        count = _work(*blocks)
        return next((factor for most, factor in _FEW_STATEMENTS if count <= most), 1)

    def _as_while(self, s: For) -> While:
        """Rewrite a loop whose trip count differs between lanes as a While."""
        assert s.count is not None
        zero, one = self.constant("int64", 0), self.constant("int64", 1)
        index, last, more = self.fresh("int64"), self.fresh("int64"), self.fresh("bool")
        counter, *carry = s.body.params
        tested = tuple(self.fresh(value.dtype) for value in carry)
        goes_on = Apply((more,), "lt", (index, s.count))
        following = self.fresh("int64")
        step = Apply((following,), "add", (counter, one))
        body = Block(s.body.params, (*s.body.body, step), (following, *s.body.results))
        test = Block((index, *tested), (goes_on,), (more,))
        return While((last, *s.outs), (zero, *s.init), test, body)

    def _count(self, s: For, mask: Local | None, out: list[Statement]) -> None:
        assert s.count is not None
        arrays = self._begin(s.outs, s.body.params[1:], s.init, out)
        code = Code(self, out)
        count = code.value(s.count)
        tiles = Tiles(self, s, self._operands) if mask is None and self.is_padded else None
        if tiles is None or not tiles.iterations:
            loop = _Counted(s.body, arrays, mask, lambda code, iteration: (iteration,), s.is_long)
            self._counted_loop(loop, count, out)
            return
        inner: list[Statement] = []
        index, head = self.fresh("int64"), Code(self, inner)
        first = head.apply("mul", index, head.number("int64", tiles.iterations))
        remaining = head.apply("sub", count, first)
        remaining = head.apply("min", remaining, head.number("int64", tiles.iterations))
        tiles.fill(first, remaining, inner)
        loop = _Counted(
            tiles.body,
            arrays,
            None,
            lambda code, row: (code.apply("add", first, row), tiles.rows(code, row)),
            False,
        )
        self._counted_loop(loop, remaining, inner)
        tiles.empty(first, remaining, inner)
        more = code.apply("add", count, code.number("int64", tiles.iterations - 1))
        bits = code.number("int64", tiles.iterations.bit_length() - 1)
        tile_count = code.apply("shift_right_arithmetic", more, bits)
        out.append(For(None, Block((index,), tuple(inner)), tile_count, is_long=s.is_long))

    def _counted_loop(self, loop: _Counted, count: Value, out: list[Statement]) -> None:
        """Write a loop of ``count`` iterations, unrolled if its body is short."""
        if _has_loop(loop.body.body):
            inner: list[Statement] = []
            index = self.fresh("int64")
            uniform = loop.arguments(Code(self, inner), index)
            self.uniform.update(zip(loop.body.params, uniform, strict=False))
            self.sequence(loop.body.body, loop.body.results, loop.mask, inner)
            segment = Code(self)
            self._iterations(segment, loop, None)
            inner.append(segment.loop())
            out.append(For(None, Block((index,), tuple(inner)), count, is_long=loop.is_long))
            return
        unroll, code, trip_count = self._unroll_factor(loop.body), Code(self, out), count
        if self._stores_both(loop.body):
            unroll = 1
        if unroll > 1:
            bits = code.number("int64", unroll.bit_length() - 1)
            trip_count = code.apply("shift_right_arithmetic", count, bits)
            done = code.apply("shift_left", trip_count, bits)
        self._unrolled_loop(loop, trip_count, unroll, None, out)
        if unroll > 1:
            remaining = code.apply("sub", count, done)
            self._unrolled_loop(loop, remaining, 1, done, out)

    def _stores_both(self, body: Block) -> bool:
        """Whether a loop stores to tiles and to memory.

        LLVM would check before the loop whether the accesses of all iterations are disjoint. They
        are not, so it would run scalar code.
        """
        stored = {s.operand for s in body.body if isinstance(s, Store)}
        return bool(stored & self.in_memory) and bool(stored - self.in_memory)

    def _unrolled_loop(
        self, loop: _Counted, count: Value, unroll: int, first: Value | None, out: list[Statement]
    ) -> None:
        """Write ``count`` unrolled iterations; the original ones are counted from ``first``."""
        inner: list[Statement] = []
        index, head, segment = self.fresh("int64"), Code(self, inner), Code(self)
        base = index if unroll == 1 else head.apply("mul", index, head.number("int64", unroll))
        if first is not None:
            base = head.apply("add", first, base)
        each = [loop.arguments(head, base)]
        for k in range(1, unroll):
            iteration = head.apply("add", base, head.number("int64", k))
            each.append(loop.arguments(head, iteration))
        self._iterations(segment, loop, each)
        inner.append(segment.loop())
        out.append(For(None, Block((index,), tuple(inner)), count, is_long=loop.is_long))

    def _iterations(
        self, code: Code, loop: _Counted, uniforms: Sequence[Sequence[Value]] | None
    ) -> None:
        """Write one or more iterations of the body, and store the carries.

        ``uniforms`` None: the body is already written, and only its results are stored.
        """
        arrays, body = loop.arrays, loop.body
        guard = None if loop.mask is None else code.load(loop.mask)
        carry = [code.load(array) for array in arrays]
        for uniform in uniforms or (None,):
            if uniform is None:
                new = [code.value(value) for value in body.results]
            else:
                new = code.block(body, [*uniform, *carry], guard)
            if guard is not None:
                new = [code.select(guard, a, b) for a, b in zip(new, carry, strict=True)]
            carry = new
        for array, value in zip(arrays, carry, strict=True):
            code.store(array, value)

    def _branch(self, s: If, mask: Local | None, out: list[Statement]) -> None:
        """Write a branch with loops: each side runs for the lanes that take it, if any do."""
        code, sides = Code(self), (self.array("bool"), self.array("bool"))
        taken_ = code.value(s.predicate)
        predicate = self.array("bool")
        code.store(predicate, taken_)
        for side, value in zip(sides, (taken_, code.apply("not", taken_)), strict=True):
            code.store(side, code.both(code.load(mask or self._valid_lanes()), value))
        arrays = [self.array_of(value) for value in s.outs]
        for array in arrays:
            code.store(array, code.zero(array.dtype))  # for lanes that are masked out
        out.append(code.loop())
        for side, block in zip(sides, (s.then, s.orelse), strict=True):
            inner: list[Statement] = []
            self.sequence(block.body, block.results, side, inner)
            segment = Code(self)
            guard = segment.load(side)
            for array, value in zip(arrays, block.results, strict=True):
                new = segment.value(value)
                segment.store(array, segment.select(guard, new, segment.load(array)))
            if arrays:
                inner.append(segment.loop())
            some = self._any(side, out)
            out.append(If((), some, Block(body=tuple(inner)), Block()))
