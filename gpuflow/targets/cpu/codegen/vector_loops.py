"""Straight loops of a loop program, written as loops over vectors.

A loop is straight if it is a list of assignments and stores that carry only reductions between
iterations (``carried``), and all its stores are contiguous elements, or pairs of elements, and its
loads have a stride of at most four. LLVM would vectorize it, and then has to clean up, which takes
more than half of the time that it takes for a kernel; and it writes the loop three times. This
module writes it once or twice:

- ``bulk``, for loops of few instructions: one to four whole vectors per iteration;
- ``rest``, a vector per iteration, of which the last one may not be full. If a processor's masks
  make stores slow, full vectors are stored without.

Invariants are computed before the loop. Affine index expressions (``Line``) remain scalars: with
one of them an access is one of a whole vector, or of some whole vectors of which every second to
fourth element is taken.

A short loop takes a vector per iteration; one of a few iterations, as of rows of three, is one
vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.carried import Carried, Carry, add_incoming_to
from gpuflow.targets.cpu.codegen.elements import element, load, size_of, store
from gpuflow.targets.cpu.codegen.expressions import Expressions
from gpuflow.targets.cpu.codegen.functions import POINTER, Named
from gpuflow.targets.cpu.codegen.hidden import opaque
from gpuflow.targets.cpu.codegen.lines import Line, factor_of, first_of
from gpuflow.targets.cpu.codegen.loops.nodes import Assign, Call, Expression, Name, Run, Statement
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.codegen.scalar_functions import SERIES
from gpuflow.targets.cpu.codegen.straight_loops import (
    Arrays,
    Share,
    Unfit,
    Use,
    expressions_of,
    halved,
    longest_chain,
    with_pairs,
)
from gpuflow.targets.cpu.codegen.strided_loads import first_ones, load_strided
from gpuflow.targets.cpu.codegen.variables import assigned
from gpuflow.targets.cpu.codegen.vector_blocks import (
    Store,
    apart,
    call_of,
    float_constants,
    in_memory,
    interleave,
    is_place,
    leave_as_it_is,
    most_alive,
    paired,
    store_parts,
    take_out,
)
from gpuflow.targets.llvm.lanes import Instruction, Lane, counted, spread

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# How many vectors a turn takes of loops of so many instructions: those of a series wait for each
# other. tanh, gelu, log and log1p of a million take 0.75 to 0.8 of the time on four, softplus, pow
# and mish 0.68 to 0.81 on two, as do rows of 20 and more, of which four vectors leave too much
# over. Of lgamma, with some 190, registers go to memory and back; a loop of its own for whole
# vectors takes 0.88 of the time.
MOST = {4: 70, 2: 180, 1: 400}
# Of a loop in which that many series wait for each other, one after the other, each is a function
# that is called, by its share: what is on its way in registers then does not matter, and more
# vectors fit a turn. Chains of 6, 12 and 40 functions take 0.6 to 0.8, 0.5 and 0.4 to 0.6 of the
# time, and less to build; with two vectors a turn, those of 4 take 1.0 to 1.3. Functions that do
# not wait for each other take 1.03 to 1.3.
CHAIN = {Share.ALL: 4, Share.ROW: 6, Share.LITTLE: 6}
MOST_OF_CHAINS = {4: 400, 2: 1000}
# How many vectors that repeat one value stay in registers while four vectors are worked on: more
# values than registers, and LLVM puts the instructions of the four one behind the other. Loops with
# more constants than that take 1.0 to 1.2 of the time with four (i0e, ndtri), and those whose four
# vectors need more registers than there are up to 1.5 with values in memory (gamma).
_NEAR = 6
# Turns of a loop that is one vector.
_LONGEST_SHORT = 16
# Instructions of a loop that is not worth a second one, if it is there for others.
_CHEAP = 32


class VectorLoop(Expressions):
    """Writes one straight loop.

    Args:
        builder: where the loop begins.
        names: the accessors of the program.
        outer: values of names that are not assigned in the loop.
        counter: the name that counts elements.
        bounds: its first value, and its exclusive end.
        turns: the trip count, if it is known.
        body: the loop's statements.
        share: of the work that its function does.
        arrays: those on the stack.
        is_short: its trip count is small, and it takes one vector at a time; all in one if it is
            known.
        carries: its reduction variables.

    Raises:
        Unfit: the loop is not straight.
    """

    def __init__(
        self, builder: ir.IRBuilder, names: Mapping[str, Named], outer: Callable[[str], Lane],
        counter: str, bounds: tuple[Instruction, Instruction], turns: int | None,
        body: Sequence[Statement], share: Share, arrays: Arrays, is_short: bool,
        carries: Mapping[str, Carry],
    ) -> None:  # fmt: skip
        super().__init__(builder, names)
        self._outer, self._counter, self._bounds = outer, counter, bounds
        self._body, self._arrays, self._carries = body, arrays, carries
        self._share = share
        # Of expressions, by their nodes' identities: those that differ from element to element, the
        # accesses, and what is written before the loop.
        self._varying, calls = expressions_of(body, {counter, *carries})
        moving = [call for call in calls if id(call) in self._varying]
        self._uses = with_pairs(dict(self._accesses(calls)), moving)
        self._before_loop: dict[int, tuple[Lane, ...]] = {}
        self._begun = {name: outer(name) for name in carries}
        self._is_chain = longest_chain(body, self._varying, SERIES) >= CHAIN[share]
        self._check()
        self._is_short = is_short
        self._width, self._needs_masks = self._vector_width(), False
        self._is_once = False
        if is_short and turns is not None and turns <= _LONGEST_SHORT:
            self._is_once, self._width = True, self._short_width(turns)
        else:
            if turns is not None and turns < 2 * self._width:
                raise Unfit("a few turns, which LLVM writes out")
            self._needs_masks = turns is None or turns % self._width != 0
        if self._needs_masks and not self._masks_all():
            raise Unfit("masks of bytes")
        function = builder.function
        self._before = builder.block
        self._start = function.append_basic_block("vectors")
        # Of the loop that is being written: where its turn begins, and which elements are there.
        self._at: Instruction = None
        self._mask: Instruction | None = None
        self._mask_of_pairs: Instruction | None = None
        self._left: Instruction = None
        self._there: Lane
        self._is_partial: Instruction = None
        self._known: dict[str, Lane] = {}
        # What is the same for all elements, as vectors or the places of such.
        self._spread: dict[Instruction, Instruction] = {}
        self._lines: dict[tuple[Expression, Expression, bool], Instruction] = {}
        self._waiting: list[Store] = []  # for the turn's end
        # One of a pair, which has been loaded with the other one, or is stored with it.
        self._half: Lane | None = None
        self._shift = 0
        self._carried = Carried(self, carries)
        # Of ``rest``: its instructions, and whether what four vectors need fits in the registers.
        self._size, self._fits_four = 0, False

    # --- what the loop is ------------------------------------------------------------------

    def _accesses(self, calls: Sequence[Call]) -> Iterator[tuple[int, Use]]:
        for node in calls:
            meaning = self.meaning(node.function)
            if meaning is not None and meaning.access is not None:
                pointer, index = node.arguments[:2]
                yield id(node), Use(meaning.access, pointer, index)

    def _vector_width(self) -> int:
        """The elements of a vector: a register of the widest dtype, except float64 next to shorter
        ones. Those are few, and arrays of sums.
        """
        target = cpu_target()
        if not target.is_x86 or "avx2" not in target.features:
            raise Unfit("masks")
        sizes = {size_of(use.access.storage) for use in self._uses.values()}
        sizes.update(size_of(value.dtype) for value in self._begun.values())
        wide = '"prefer-vector-width"="512"' in self.builder.function.attributes
        register = 64 if target.has_masks and wide else 32
        return register // (4 if 4 in sizes else max(sizes))

    def _short_width(self, turns: int) -> int:
        """The elements of a loop that is one vector: LLVM splits it into registers."""
        if self._carries:
            raise Unfit("a sum of one vector, for several rows a turn")
        if cpu_target().has_masks or turns & (turns - 1) == 0:
            raise Unfit("a vector that LLVM finds as well, for several rows a turn")
        uses = self._uses.values()
        if any(use.is_half or size_of(use.access.storage) < 4 for use in uses):
            raise Unfit("vectors of bytes or pairs that are no whole registers")
        return turns

    def _masks_all(self) -> bool:
        """Whether the processor has masks for all that the loop accesses."""
        masked = (use for use in self._uses.values() if not self._may_exceed(use))
        return cpu_target().has_masks or all(size_of(use.access.storage) >= 4 for use in masked)

    def _may_exceed(self, use: Use) -> bool:
        """Whether it accesses a stack array past whose end vectors may write."""
        return isinstance(use.pointer, Name) and use.pointer.name in self._arrays.lines

    def _check(self) -> None:
        uses = self._uses.values()
        stores = [use for use in uses if use.access.is_store]
        if not stores and not self._carries:
            raise Unfit("nothing is stored")
        for store_ in stores:
            if any(store_.meets(other, self._arrays.apart) for other in uses):
                raise Unfit("accesses meet")
        if max(Counter(assigned(self._body)).values(), default=1) > 1:
            raise Unfit("a name has two values")

    # --- the loops -------------------------------------------------------------------------

    def write(self) -> dict[str, Lane]:
        """Write the loop, and continue after it, with the final reduction variables."""
        builder = self.builder
        begin, end = self._bounds
        if self._is_once:
            self._once()
            return {}
        carried = self._carried
        carried.begin(self._begun, self._width)
        with builder.goto_block(self._start):
            count = builder.sub(end, begin)
        rest, at, sums, after = self._rest(count)
        at.add_incoming(_word(0), self._start)
        add_incoming_to(sums, self._start, carried.firsts)
        vectors = self._vectors()
        if vectors == 0:
            with builder.goto_block(self._start):
                builder.branch(rest)
        else:
            whole, done, ended = self._bulk(count, vectors, rest, after)
            at.add_incoming(whole, done)
            add_incoming_to(sums, done, ended)
        with builder.goto_block(self._before):
            builder.cbranch(builder.icmp_signed("<", begin, end), self._start, after)
        carried.add_exit(self._before, carried.firsts)
        builder.position_at_end(after)
        return carried.results()

    def _once(self) -> None:
        """The loop as one vector."""
        builder = self.builder
        turn = builder.function.append_basic_block("once")
        builder.position_at_end(turn)
        self._at = _word(0)
        self._turn(0)
        for block, following in ((self._before, self._start), (self._start, turn)):
            with builder.goto_block(block):
                builder.branch(following)

    def _vectors(self) -> int:
        """How many vectors a turn of ``bulk`` takes; 0: none are worth a loop of their own."""
        most = MOST_OF_CHAINS if self._is_chain else MOST
        vectors = next((n for n, size in most.items() if self._size <= size), 0)
        if self._is_short:
            return min(vectors, 1)
        if vectors and self._fits_four:
            vectors = 4
        if self._carries:  # sums wait for each other
            return vectors
        if self._share is not Share.ALL:
            vectors = min(vectors, 2)
        if self._share is Share.LITTLE and self._size <= _CHEAP and not self._is_chain:
            vectors = 0
        return vectors

    def _rest(
        self, count: Instruction
    ) -> tuple[ir.Block, ir.PhiInstr, Mapping[str, Lane], ir.Block]:
        """The loop with a partial last vector, its counter and reduction variables, and the code
        after it.
        """
        builder, width = self.builder, self._width
        function = builder.function
        rest = function.append_basic_block("rest")
        builder.position_at_end(rest)
        self._at = builder.phi(count.type, name="at")
        at, sums = self._at, self._carried.phis()
        self._carried.now = {**sums}
        if self._needs_masks:
            left = Lane(builder, builder.sub(count, self._at), "int64")
            self._left, self._is_partial = left.value, (left < width).value
            there = builder.select(self._is_partial, left.value, _word(width))
            self._there = there = Lane(builder, builder.trunc(there, ir.IntType(32)), "int32")
            self._mask = first_ones(there, width)
            if any(use.is_half for use in self._uses.values()):
                self._mask_of_pairs = first_ones(there + there, 2 * width)
        self._size = -len(rest.instructions)
        self._turn(0)
        registers, _ = cpu_target().vector_registers
        constants = float_constants(rest.instructions)
        alive = most_alive(rest.instructions, width)
        self._fits_four = 4 * alive <= registers and constants <= _NEAR
        self._size += len(builder.block.instructions)
        take_out(function.blocks[function.blocks.index(rest) :], self._start)
        builder.position_at_end(builder.block)  # behind what is left
        following = opaque(builder, builder.add(self._at, _word(width)))
        self._at.add_incoming(following, builder.block)
        add_incoming_to(sums, builder.block, self._carried.now)
        self._carried.add_exit(builder.block, self._carried.now)
        more = builder.icmp_signed("<", following, count)
        after = function.append_basic_block("after")
        leave_as_it_is(builder.module, builder.cbranch(more, rest, after))
        return rest, at, sums, after

    def _bulk(
        self, count: Instruction, vectors: int, rest: ir.Block, after: ir.Block
    ) -> tuple[Instruction, ir.Block, Mapping[str, Lane]]:
        """The main loop over whole vectors, several per iteration: its end, the block after it, and
        its reduction variables.
        """
        builder = self.builder
        step = self._width * vectors
        bulk = builder.function.append_basic_block("bulk")
        builder.position_at_end(bulk)
        self._at = builder.phi(count.type, name="at")
        self._mask = self._mask_of_pairs = None
        carried = self._carried
        begun, ended = [carried.phis() for _ in range(vectors)], []
        if vectors == 4 and self._fits_four:
            self._put_into_memory()
        marks = [len(bulk.instructions)]
        for vector in range(vectors):
            carried.now = {**begun[vector]}
            self._turn(vector * self._width)
            ended.append(carried.now)
            take_out([bulk], self._start)
            builder.position_at_end(bulk)
            marks.append(len(bulk.instructions))
        interleave(bulk, marks)
        following = opaque(builder, builder.add(self._at, _word(step)))
        self._at.add_incoming(_word(0), self._start)
        self._at.add_incoming(following, builder.block)
        for sums, next_ones in zip(begun, ended, strict=True):
            add_incoming_to(sums, self._start, carried.firsts)
            add_incoming_to(sums, builder.block, next_ones)
        with builder.goto_block(self._start):
            whole = builder.and_(count, _word(-step))
            builder.cbranch(builder.icmp_signed(">", whole, _word(0)), bulk, rest)
        done = builder.function.append_basic_block("whole")
        more = builder.icmp_signed("<", following, whole)
        leave_as_it_is(builder.module, builder.cbranch(more, bulk, done))
        builder.position_at_end(done)
        together = carried.together(ended)
        builder.cbranch(builder.icmp_signed("<", whole, count), rest, after)
        carried.add_exit(done, together)
        return whole, done, together

    def _put_into_memory(self) -> None:
        """Reserve registers for the values that four vectors need at the same time."""
        with self.builder.goto_block(self._start):
            for single, vector in [*self._spread.items()][_NEAR:]:
                if vector.type.element != ir.IntType(1):  # of which memory holds bits
                    self._spread[single] = in_memory(self.builder, vector)

    def _turn(self, shift: int) -> None:
        """The loop's statements, for a vector of elements."""
        self._known, self._shift = {**self._carried.now}, shift
        for node in self._body:
            match node:
                case Assign((name,), value) if name in self._carries:
                    self._carried.carry(name, self.value(value), self._mask)
                case Assign((name,), value):
                    self._known[name] = self.value(value)
                case Assign(targets, Call() as call):
                    self._known.update(zip(targets, self.call(call), strict=True))
                case Run(call):
                    self.call(call)
                case _:
                    raise Unfit("a statement")
        self._flush()

    # --- expressions -----------------------------------------------------------------------

    def value(self, node: Expression) -> Lane:
        known = self._before_loop.get(id(node))
        if known is None:
            if id(node) in self._varying:
                value = super().value(node)
                if not isinstance(value, Line):
                    return value
            else:
                with self.builder.goto_block(self._start):
                    value = super().value(node)
            known = self._before_loop[id(node)] = (value,)
        return known[0]

    def call(self, node: Call) -> tuple[Lane, ...]:
        if id(node) in self._varying:
            return self._call(node)
        if id(node) not in self._before_loop:
            with self.builder.goto_block(self._start):
                self._before_loop[id(node)] = self._call(node)
        return self._before_loop[id(node)]

    def variable(self, name: str) -> Lane:
        if name == self._counter:
            return Line(self.builder, self._bounds[0], "int64")
        return self._known.get(name) or self._outer(name)

    def operand(self, node: Expression) -> Lane:
        return self._single(self.value(node))

    def same(self, a: Lane, b: Lane) -> tuple[Lane, Lane]:
        a, b = super().same(self._single(a), self._single(b))
        return (a, b) if a.width == b.width else (self._vector(a), self._vector(b))

    def arithmetic(self, operator: str, a: Lane, b: Lane) -> Lane:
        is_line = isinstance(a, Line) != isinstance(b, Line)
        is_sum = operator == "+" or (operator == "-" and isinstance(a, Line))
        factor = factor_of(operator, a, b)
        if is_line and (is_sum or factor) and a.width == b.width and a.dtype == b.dtype:
            with self.builder.goto_block(self._start):
                plain = super().arithmetic(operator, first_of(a), first_of(b))
            line = a if isinstance(a, Line) else b
            assert isinstance(line, Line)
            return Line(self.builder, plain.value, "int64", line.step * (factor or 1))
        return super().arithmetic(operator, a, b)

    def as_dtype(self, value: Lane, dtype: str) -> Lane:
        return value if value.dtype == dtype else super().as_dtype(self._single(value), dtype)

    def _call(self, node: Call) -> tuple[Lane, ...]:
        name = node.function
        meaning = self.meaning(name)
        if meaning is None or not meaning.parameters:
            raise Unfit(name)
        use = self._uses.get(id(node))
        if use is not None:
            if id(node) in self._varying:
                return self._access(use, meaning, node.arguments)
            self._check_single(use)
        elif not meaning.results:
            raise Unfit(name)
        if id(node) not in self._varying:
            return super().call(node)
        if len(node.arguments) != len(meaning.parameters):
            raise Unfit(name)
        pairs = zip(node.arguments, meaning.parameters, strict=True)
        values = [self.typed(*pair) for pair in pairs]
        if name.startswith("select_") and values[0].width == 1 and not values[0].is_constant:
            raise Unfit("a decision for all elements, which LLVM takes out of the loop")
        if self._is_chain and name.rpartition("_")[0] in SERIES:
            return (self._called(name, meaning, values),)
        return self.emitted(meaning, [self._vector(value) for value in values])

    def _called(self, name: str, meaning: Named, values: Sequence[Lane]) -> Lane:
        """A function of vectors, as one that is called."""
        known = [str(one.value) if one.is_constant else "" for one in values]
        symbol = ".".join([name, str(self._width), *known])
        return call_of(self.builder, symbol, meaning, [self._vector(one) for one in values])

    def _single(self, x: Lane) -> Lane:
        """A value that is no Line."""
        return self._numbered(x) if isinstance(x, Line) else x

    def _vector(self, x: Lane) -> Lane:
        """A value as a vector."""
        if x.width > 1:
            return x
        if x.dtype == POINTER:
            raise Unfit("a vector of pointers")
        if isinstance(x.value, ir.Constant):
            return spread(x, self._width)
        if x.value not in self._spread:
            with self.builder.goto_block(self._start):
                self._spread[x.value] = spread(x, self._width).value
        value = self._spread[x.value]
        return x.like(self.builder.load(value) if is_place(value) else value)

    def _numbered(self, line: Line) -> Lane:
        """The numbers of a vector's elements on a line."""
        first = first_of(line) + Lane(self.builder, self._at, "int64") * line.step
        numbers = first.like(counted("int64", self._shift, self._width, line.step))
        return spread(first, self._width) + numbers

    # --- memory ----------------------------------------------------------------------------

    def _check_single(self, use: Use) -> None:
        """An element that is the same in all turns: nobody may write it."""
        stores = (other for other in self._uses.values() if other.access.is_store)
        if use.access.is_store or any(other.meets(use, self._arrays.apart) for other in stores):
            raise Unfit("a single element is written")

    def _access(
        self, use: Use, meaning: Named, arguments: Sequence[Expression]
    ) -> tuple[Lane, ...]:
        access = use.access
        pointer, index, *others = arguments
        if id(pointer) in self._varying or len(others) != access.is_store:
            raise Unfit("a gather")
        line = self.value(halved(index)[0] if use.is_half else index)
        if not isinstance(line, Line):
            raise Unfit("a gather")
        if line.step != 1:
            if use.is_half:  # each half is as many elements apart as pairs are, twice
                line, use = self.value(index), replace(use, index=index, half=None)
            return (self._strided(use, pointer, line),)
        if access.is_store and use.half == 0:  # it goes with the other half
            self._half = self._vector(self.typed(others[0], meaning.parameters[2]))
            return ()
        if use.half == 1 and not access.is_store:  # it has come with the other half
            return (self._other_half(),)
        place = self._place(use, pointer, line)
        may_exceed = self._may_exceed(use)
        if access.is_store:
            value = self._vector(self.typed(others[0], meaning.parameters[2]))
            if use.is_half:
                value = paired(self._other_half(), value)
            if may_exceed or self._mask is None:
                self._store([(place, value, use)], False)
            else:
                self._waiting.append((place, value, use))
            return ()
        if not may_exceed and any(use.may_touch(other) for *_, other in self._waiting):
            self._flush()
        mask, width = None if may_exceed else self._mask, self._width
        if use.is_half:
            mask, width = self._mask_of_pairs, 2 * width
        loaded = load(self.builder, place, access.storage, access.scopes, width, mask)
        if use.is_half:
            loaded, self._half = apart(loaded)
        return (loaded,)

    def _strided(self, use: Use, pointer: Expression, line: Lane) -> Lane:
        """Elements of which each lies ``line.step`` behind the one before."""
        if use.access.is_store or not isinstance(line, Line):
            raise Unfit("elements apart")
        if any(use.may_touch(other) for *_, other in self._waiting):
            self._flush()
        place, there = self._place(use, pointer, line), None if self._mask is None else self._there
        return load_strided(self.builder, place, use.access, self._width, line.step, there)

    def _other_half(self) -> Lane:
        """The other half of the previous access: ``with_pairs`` found that they are a pair."""
        assert self._half is not None
        return self._half

    def _place(self, use: Use, pointer: Expression, line: Line) -> Instruction:
        """The address of a vector's first element."""
        size = 2 if use.is_half else 1
        if use.place not in self._lines:
            start = self.typed(pointer, POINTER).value
            with self.builder.goto_block(self._start):
                begin = self.builder.mul(line.value, _word(size)) if use.is_half else line.value
                self._lines[use.place] = element(self.builder, start, begin, use.access.storage)
        size *= line.step
        at = self.builder.mul(self._at, _word(size)) if size > 1 else self._at
        first = self.builder.gep(self._lines[use.place], [at])
        return self.builder.gep(first, [_word(size * self._shift)]) if self._shift else first

    def _flush(self) -> None:
        """Store pending values."""
        stores, self._waiting = self._waiting, []
        if not stores:
            return
        builder = self.builder
        if cpu_target().has_masks:
            self._store(stores, True)
            return
        self._size += len(builder.block.instructions)
        function = builder.function
        partial, full, stored = (
            function.append_basic_block(name) for name in ("partial", "full", "stored")
        )
        builder.cbranch(self._is_partial, partial, full)
        builder.position_at_end(full)
        self._store(stores, False)
        builder.branch(stored)
        builder.position_at_end(partial)
        if self._share is Share.LITTLE:  # slower, and less code
            self._store(stores, True)
        else:
            store_parts(builder, stores, self._left, self._width)
        builder.branch(stored)
        builder.position_at_end(stored)

    def _store(self, stores: Sequence[Store], is_masked: bool) -> None:
        for place, value, use in stores:
            access, mask = use.access, None
            if is_masked:
                mask = self._mask_of_pairs if use.is_half else self._mask
            store(self.builder, place, value.value, access.storage, access.scopes, mask)


def _word(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)
