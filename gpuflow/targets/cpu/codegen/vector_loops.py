"""Loop vectorizer: straight loops of a loop program become loops over vectors.

A loop is straight if it has no branches, and only reductions are carried between iterations
(``reduction_variables``). Its stores must be contiguous elements or pairs, and its loads must have
a stride of at most four. LLVM could vectorize it too, but the clean-up takes more than half of its
time for a kernel, and it emits the loop three times. This module emits it once or twice:

- a main loop, for loops of few instructions: one to four full vectors per iteration;
- a remainder loop: a vector per iteration, of which the last one may be partial. If masked stores
  are slow on the processor, full vectors are stored without a mask.

Invariants are computed before the loop. Affine index expressions (``AffineIndex``) remain scalars:
an access with one is a contiguous vector, or every second to fourth element of contiguous vectors.

A short loop has a vector per iteration; if its trip count is static and small, it is one vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.affine_index import AffineIndex, factor_of, first_of
from gpuflow.targets.cpu.codegen.elements import element, load, size_of, store
from gpuflow.targets.cpu.codegen.expressions import Expressions
from gpuflow.targets.cpu.codegen.functions import POINTER, Named
from gpuflow.targets.cpu.codegen.loops.nodes import Assign, Call, Expression, Name, Run, Statement
from gpuflow.targets.cpu.codegen.opaque import opaque
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.codegen.reduction_variables import Accumulators, Reduction, add_incoming_to
from gpuflow.targets.cpu.codegen.scalar_functions import SERIES
from gpuflow.targets.cpu.codegen.straight_loops import (
    Arrays,
    Gather,
    NotVectorizable,
    Share,
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
    call_of,
    deinterleaved,
    disable_loop_passes,
    float_constants,
    hoist_invariants,
    interleave,
    is_spilled,
    max_live_vectors,
    paired,
    spilled,
    store_by_halves,
)
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, counted, splat

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# Unroll factor in vectors, and the most instructions per vector for it. Unrolling pays because the
# instructions of a series depend on each other: tanh, gelu, log and log1p of a million take 0.75 to
# 0.8 of the time with four; softplus, pow and mish 0.68 to 0.81 with two, as do rows of 20 and
# more, of which four vectors leave too long a remainder. lgamma, with about 190, spills registers;
# a separate loop for full vectors takes 0.88 of the time.
MOST = {4: 70, 2: 180, 1: 400}
# By share, the length from which on the series of a dependence chain are calls, not inlined: fewer
# values are in registers then, so more vectors fit in an iteration. Chains of 6, 12 and 40
# functions take 0.6 to 0.8, 0.5 and 0.4 to 0.6 of the time, and less to build; with two vectors per
# iteration, those of 4 take 1.0 to 1.3. Independent functions take 1.03 to 1.3.
CHAIN = {Share.ALL: 4, Share.ROW: 6, Share.LITTLE: 6}
MOST_OF_CHAINS = {4: 400, 2: 1000}
# Splats that stay in registers while an iteration computes four vectors: with more live values than
# registers, LLVM orders the instructions of the four one after the other. Loops with more constants
# take 1.0 to 1.2 of the time with four (i0e, ndtri), and those whose four vectors need more
# registers than there are up to 1.5 with values in memory (gamma).
_MOST_SPLATS = 6
# Most iterations of a loop that becomes one vector.
_LONGEST_SHORT = 16
# Most instructions of a prologue or epilogue that gets no main loop.
_CHEAP = 32


class VectorLoop(Expressions):
    """Writes one straight loop.

    Args:
        builder: position of the loop.
        names: accessors of the program.
        outer: returns the value of a name that is not assigned in the loop.
        counter: name of the induction variable.
        bounds: its first value, and its exclusive end.
        trip_count: the trip count if it is static, else None.
        body: statements of the loop.
        share: its share of the function's work.
        arrays: analysis of arrays on the stack.
        is_short: the trip count is small: one vector per iteration, or one vector in all if the
            trip count is static.
        reductions: its reduction variables.

    Raises:
        NotVectorizable: if it is not straight, or LLVM does better. ``write`` may raise it too.
    """

    def __init__(
        self, builder: ir.IRBuilder, names: Mapping[str, Named], outer: Callable[[str], IRValue],
        counter: str, bounds: tuple[Instruction, Instruction], trip_count: int | None,
        body: Sequence[Statement], share: Share, arrays: Arrays, is_short: bool,
        reductions: Mapping[str, Reduction],
    ) -> None:  # fmt: skip
        super().__init__(builder, names)
        self._outer, self._counter, self._bounds = outer, counter, bounds
        self._body, self._arrays, self._reductions = body, arrays, reductions
        self._share = share
        # By the ``id`` of expressions: those that vary between iterations, memory accesses, and
        # values of invariants, which are computed before the loop.
        self._varying, calls = expressions_of(body, {counter, *reductions})
        varying = [call for call in calls if id(call) in self._varying]
        self._uses = with_pairs(dict(self._accesses(calls)), varying)
        self._before_loop: dict[int, tuple[IRValue, ...]] = {}
        self._initial = {name: outer(name) for name in reductions}
        self._is_chain = longest_chain(body, self._varying, SERIES) >= CHAIN[share]
        self._check()
        self._is_short = is_short
        self._width, self._needs_masks = self._vector_width(), False
        self._is_single_vector = False
        if is_short and trip_count is not None and trip_count <= _LONGEST_SHORT:
            self._is_single_vector, self._width = True, self._short_width(trip_count)
        else:
            if trip_count is not None and trip_count < 2 * self._width:
                raise NotVectorizable("a few iterations, which LLVM unrolls")
            self._needs_masks = trip_count is None or trip_count % self._width != 0
        if self._needs_masks and not self._masks_all():
            raise NotVectorizable("masks of bytes")
        function = builder.function
        self._before = builder.block
        self._start = function.append_basic_block("vectors")
        # State of the loop that is being written: the iteration's first element, and its mask.
        self._at: Instruction = None
        self._mask: Instruction | None = None
        self._mask_of_pairs: Instruction | None = None
        self._remaining: Instruction = None
        self._active: IRValue
        self._is_partial: Instruction = None
        self._values: dict[str, IRValue] = {}
        # Splats of invariants: vectors, or stack slots of spilled vectors.
        self._splats: dict[Instruction, Instruction] = {}
        self._addresses: dict[tuple[Expression, Expression, bool], Instruction] = {}
        self._pending: list[Store] = []  # masked stores, deferred to the end of the iteration
        # The half of a pair of accesses that waits for, or was loaded with, the other half.
        self._half: IRValue | None = None
        self._shift = 0
        self._accumulators = Accumulators(self, reductions)
        # Of the remainder loop: instructions, and whether registers suffice for four vectors.
        self._size, self._registers_hold_four = 0, False

    # --- analysis of the loop --------------------------------------------------------------

    def _accesses(self, calls: Sequence[Call]) -> Iterator[tuple[int, Use]]:
        for node in calls:
            meaning = self.meaning(node.function)
            if meaning is not None and meaning.access is not None:
                pointer, index = node.arguments[:2]
                yield id(node), Use(meaning.access, pointer, index)

    def _vector_width(self) -> int:
        """The vector width: a register of the widest dtype. float64 next to float32 does not count,
        because few arrays have it: those of sums.
        """
        target = cpu_target()
        if not target.is_x86 or "avx2" not in target.features:
            raise NotVectorizable("masks")
        sizes = {size_of(use.access.storage) for use in self._uses.values()}
        sizes.update(size_of(value.dtype) for value in self._initial.values())
        wide = '"prefer-vector-width"="512"' in self.builder.function.attributes
        register = 64 if target.has_masks and wide else 32
        return register // (4 if 4 in sizes else max(sizes))

    def _short_width(self, trip_count: int) -> int:
        """The vector width of a loop that is one vector: LLVM splits it into registers."""
        if self._reductions:
            raise NotVectorizable("a reduction of one vector, for several rows per iteration")
        if cpu_target().has_masks or trip_count & (trip_count - 1) == 0:
            raise NotVectorizable("LLVM makes this vector too, for several rows per iteration")
        uses = self._uses.values()
        if any(use.is_half or size_of(use.access.storage) < 4 for use in uses):
            raise NotVectorizable("vectors of bytes or pairs that do not fill registers")
        return trip_count

    def _masks_all(self) -> bool:
        """Whether the processor has masked accesses for all dtypes that the loop needs to mask."""
        masked = (use for use in self._uses.values() if not self._may_exceed(use))
        return cpu_target().has_masks or all(size_of(use.access.storage) >= 4 for use in masked)

    def _may_exceed(self, use: Use) -> bool:
        """Whether an access may exceed the range: a stack array with spare elements."""
        return isinstance(use.pointer, Name) and use.pointer.name in self._arrays.elementwise

    def _check(self) -> None:
        uses = self._uses.values()
        stores = [use for use in uses if use.access.is_store]
        if not stores and not self._reductions:
            raise NotVectorizable("nothing is stored")
        for store_ in stores:
            if any(store_.may_alias(other, self._arrays.noalias) for other in uses):
                raise NotVectorizable("accesses may alias")
        if max(Counter(assigned(self._body)).values(), default=1) > 1:
            raise NotVectorizable("a name has two values")

    # --- the loops -------------------------------------------------------------------------

    def write(self) -> dict[str, IRValue]:
        """Write the loop, and position the builder after it; returns the reduction variables."""
        builder = self.builder
        begin, end = self._bounds
        if self._is_single_vector:
            self._single_vector()
            return {}
        accumulators = self._accumulators
        accumulators.begin(self._initial, self._width)
        with builder.goto_block(self._start):
            count = builder.sub(end, begin)
        remainder, at, sums, after = self._remainder_loop(count)
        at.add_incoming(_int64(0), self._start)
        add_incoming_to(sums, self._start, accumulators.firsts)
        vectors = self._vectors()
        if vectors == 0:
            with builder.goto_block(self._start):
                builder.branch(remainder)
        else:
            main_end, done, ended = self._main_loop(count, vectors, remainder, after)
            at.add_incoming(main_end, done)
            add_incoming_to(sums, done, ended)
        with builder.goto_block(self._before):
            builder.cbranch(builder.icmp_signed("<", begin, end), self._start, after)
        accumulators.add_exit(self._before, accumulators.firsts)
        builder.position_at_end(after)
        return accumulators.results()

    def _single_vector(self) -> None:
        """Write the loop as one vector."""
        builder = self.builder
        single = builder.function.append_basic_block("once")
        builder.position_at_end(single)
        self._at = _int64(0)
        self._iteration(0)
        for block, following in ((self._before, self._start), (self._start, single)):
            with builder.goto_block(block):
                builder.branch(following)

    def _vectors(self) -> int:
        """The unroll factor of the main loop, in vectors; 0: there is no main loop."""
        most = MOST_OF_CHAINS if self._is_chain else MOST
        vectors = next((n for n, size in most.items() if self._size <= size), 0)
        if self._is_short:
            return min(vectors, 1)
        if vectors and self._registers_hold_four:
            vectors = 4
        if self._reductions:  # unrolling shortens their dependence chain
            return vectors
        if self._share is not Share.ALL:
            vectors = min(vectors, 2)
        if self._share is Share.LITTLE and self._size <= _CHEAP and not self._is_chain:
            vectors = 0
        return vectors

    def _remainder_loop(
        self, count: Instruction
    ) -> tuple[ir.Block, ir.PhiInstr, Mapping[str, IRValue], ir.Block]:
        """Write the loop with a partial last vector; returns its block, counter and reduction
        variables, and the block after it.
        """
        builder, width = self.builder, self._width
        function = builder.function
        remainder = function.append_basic_block("rest")
        builder.position_at_end(remainder)
        self._at = builder.phi(count.type, name="at")
        at, sums = self._at, self._accumulators.phis()
        self._accumulators.now = {**sums}
        if self._needs_masks:
            remaining = IRValue(builder, builder.sub(count, self._at), "int64")
            self._remaining, self._is_partial = remaining.value, (remaining < width).value
            active = builder.select(self._is_partial, remaining.value, _int64(width))
            self._active = active = IRValue(builder, builder.trunc(active, ir.IntType(32)), "int32")
            self._mask = first_ones(active, width)
            if any(use.is_half for use in self._uses.values()):
                self._mask_of_pairs = first_ones(active + active, 2 * width)
        self._size = -len(remainder.instructions)
        self._iteration(0)
        registers, _ = cpu_target().vector_registers
        constants = float_constants(remainder.instructions)
        alive = max_live_vectors(remainder.instructions, width)
        self._registers_hold_four = 4 * alive <= registers and constants <= _MOST_SPLATS
        self._size += len(builder.block.instructions)
        hoist_invariants(function.blocks[function.blocks.index(remainder) :], self._start)
        builder.position_at_end(builder.block)  # after the remaining instructions
        following = opaque(builder, builder.add(self._at, _int64(width)))
        self._at.add_incoming(following, builder.block)
        add_incoming_to(sums, builder.block, self._accumulators.now)
        self._accumulators.add_exit(builder.block, self._accumulators.now)
        more = builder.icmp_signed("<", following, count)
        after = function.append_basic_block("after")
        disable_loop_passes(builder.module, builder.cbranch(more, remainder, after))
        return remainder, at, sums, after

    def _main_loop(
        self, count: Instruction, vectors: int, remainder: ir.Block, after: ir.Block
    ) -> tuple[Instruction, ir.Block, Mapping[str, IRValue]]:
        """Write the main loop over full vectors, several per iteration; returns the index at which
        it ends, its exit block, and its reduction variables.
        """
        builder = self.builder
        step = self._width * vectors
        main_loop = builder.function.append_basic_block("bulk")
        builder.position_at_end(main_loop)
        self._at = builder.phi(count.type, name="at")
        self._mask = self._mask_of_pairs = None
        accumulators = self._accumulators
        phis, final = [accumulators.phis() for _ in range(vectors)], []
        if vectors == 4 and self._registers_hold_four:
            self._spill_splats()
        starts = [len(main_loop.instructions)]
        for vector in range(vectors):
            accumulators.now = {**phis[vector]}
            self._iteration(vector * self._width)
            final.append(accumulators.now)
            hoist_invariants([main_loop], self._start)
            builder.position_at_end(main_loop)
            starts.append(len(main_loop.instructions))
        interleave(main_loop, starts)
        following = opaque(builder, builder.add(self._at, _int64(step)))
        self._at.add_incoming(_int64(0), self._start)
        self._at.add_incoming(following, builder.block)
        for sums, incoming in zip(phis, final, strict=True):
            add_incoming_to(sums, self._start, accumulators.firsts)
            add_incoming_to(sums, builder.block, incoming)
        with builder.goto_block(self._start):
            main_end = builder.and_(count, _int64(-step))
            builder.cbranch(builder.icmp_signed(">", main_end, _int64(0)), main_loop, remainder)
        done = builder.function.append_basic_block("whole")
        more = builder.icmp_signed("<", following, main_end)
        disable_loop_passes(builder.module, builder.cbranch(more, main_loop, done))
        builder.position_at_end(done)
        combined = accumulators.combined(final)
        builder.cbranch(builder.icmp_signed("<", main_end, count), remainder, after)
        accumulators.add_exit(done, combined)
        return main_end, done, combined

    def _spill_splats(self) -> None:
        """Spill splats, to have registers for the values that four vectors need at a time."""
        with self.builder.goto_block(self._start):
            for single, vector in [*self._splats.items()][_MOST_SPLATS:]:
                if vector.type.element != ir.IntType(1):  # memory would pack these to bits
                    self._splats[single] = spilled(self.builder, vector)

    def _iteration(self, shift: int) -> None:
        """Write the loop's statements for one vector of elements."""
        self._values, self._shift = {**self._accumulators.now}, shift
        for node in self._body:
            match node:
                case Assign((name,), value) if name in self._reductions:
                    self._accumulators.update(name, self.value(value), self._mask)
                case Assign((name,), value):
                    self._values[name] = self.value(value)
                case Assign(targets, Call() as call):
                    self._values.update(zip(targets, self.call(call), strict=True))
                case Run(call):
                    self.call(call)
                case _:
                    raise NotVectorizable("a statement that is not straight")
        self._flush()

    # --- expressions -----------------------------------------------------------------------

    def value(self, node: Expression) -> IRValue:
        cached = self._before_loop.get(id(node))
        if cached is None:
            if id(node) in self._varying:
                value = super().value(node)
                if not isinstance(value, AffineIndex):
                    return value
            else:
                with self.builder.goto_block(self._start):
                    value = super().value(node)
            cached = self._before_loop[id(node)] = (value,)
        return cached[0]

    def call(self, node: Call) -> tuple[IRValue, ...]:
        if id(node) in self._varying:
            return self._call(node)
        if id(node) not in self._before_loop:
            with self.builder.goto_block(self._start):
                self._before_loop[id(node)] = self._call(node)
        return self._before_loop[id(node)]

    def variable(self, name: str) -> IRValue:
        if name == self._counter:
            return AffineIndex(self.builder, self._bounds[0], "int64")
        return self._values.get(name) or self._outer(name)

    def operand(self, node: Expression) -> IRValue:
        return self._single(self.value(node))

    def same(self, a: IRValue, b: IRValue) -> tuple[IRValue, IRValue]:
        a, b = super().same(self._single(a), self._single(b))
        return (a, b) if a.width == b.width else (self._vector(a), self._vector(b))

    def arithmetic(self, operator: str, a: IRValue, b: IRValue) -> IRValue:
        is_affine = isinstance(a, AffineIndex) != isinstance(b, AffineIndex)
        is_sum = operator == "+" or (operator == "-" and isinstance(a, AffineIndex))
        factor = factor_of(operator, a, b)
        if is_affine and (is_sum or factor) and a.width == b.width and a.dtype == b.dtype:
            with self.builder.goto_block(self._start):
                plain = super().arithmetic(operator, first_of(a), first_of(b))
            affine = a if isinstance(a, AffineIndex) else b
            assert isinstance(affine, AffineIndex)
            return AffineIndex(self.builder, plain.value, "int64", affine.step * (factor or 1))
        return super().arithmetic(operator, a, b)

    def as_dtype(self, value: IRValue, dtype: str) -> IRValue:
        return value if value.dtype == dtype else super().as_dtype(self._single(value), dtype)

    def _call(self, node: Call) -> tuple[IRValue, ...]:
        name = node.function
        meaning = self.meaning(name)
        if meaning is None or not meaning.parameters:
            raise NotVectorizable(name)
        use = self._uses.get(id(node))
        if use is not None:
            if id(node) in self._varying:
                return self._access(use, meaning, node.arguments)
            self._check_single(use)
        elif not meaning.results:
            raise NotVectorizable(name)
        if id(node) not in self._varying:
            return super().call(node)
        if len(node.arguments) != len(meaning.parameters):
            raise NotVectorizable(name)
        pairs = zip(node.arguments, meaning.parameters, strict=True)
        values = [self.typed(*pair) for pair in pairs]
        if name.startswith("select_") and values[0].width == 1 and not values[0].is_constant:
            raise NotVectorizable("an invariant condition, which LLVM hoists")
        if self._is_chain and name.rpartition("_")[0] in SERIES:
            return (self._called(name, meaning, values),)
        return self.emitted(meaning, [self._vector(value) for value in values])

    def _called(self, name: str, meaning: Named, values: Sequence[IRValue]) -> IRValue:
        """Emit a call of an out-of-line vectorized copy of a function."""
        constants = [str(one.value) if one.is_constant else "" for one in values]
        symbol = ".".join([name, str(self._width), *constants])
        return call_of(self.builder, symbol, meaning, [self._vector(one) for one in values])

    def _single(self, x: IRValue) -> IRValue:
        """Expand an affine index to the vector of its values; other values are unchanged."""
        return self._element_indices(x) if isinstance(x, AffineIndex) else x

    def _vector(self, x: IRValue) -> IRValue:
        """Return a vector; a scalar is broadcast, before the loop if possible."""
        if x.width > 1:
            return x
        if x.dtype == POINTER:
            raise NotVectorizable("a vector of pointers")
        if isinstance(x.value, ir.Constant):
            return splat(x, self._width)
        if x.value not in self._splats:
            with self.builder.goto_block(self._start):
                self._splats[x.value] = splat(x, self._width).value
        value = self._splats[x.value]
        return x.like(self.builder.load(value) if is_spilled(value) else value)

    def _element_indices(self, affine: AffineIndex) -> IRValue:
        """The vector of an affine index's values in this iteration."""
        first = first_of(affine) + IRValue(self.builder, self._at, "int64") * affine.step
        offsets = first.like(counted("int64", self._shift, self._width, affine.step))
        return splat(first, self._width) + offsets

    # --- memory ----------------------------------------------------------------------------

    def _check_single(self, use: Use) -> None:
        """Check that the loop does not store to an element that it loads in every iteration."""
        noalias = self._arrays.noalias
        stores = (other for other in self._uses.values() if other.access.is_store)
        if use.access.is_store or any(other.may_alias(use, noalias) for other in stores):
            raise NotVectorizable("a single element is written")

    def _access(
        self, use: Use, meaning: Named, arguments: Sequence[Expression]
    ) -> tuple[IRValue, ...]:
        """Emit an access as a vector load or store; raises Gather if its index is not affine."""
        access = use.access
        pointer, index, *others = arguments
        is_direct = id(pointer) not in self._varying and len(others) == access.is_store
        affine = self.value(halved(index)[0] if use.is_half else index) if is_direct else None
        if not isinstance(affine, AffineIndex):
            raise Gather
        if affine.step != 1:
            if use.is_half:  # access each half by itself, with twice the stride of the pairs
                affine, use = self.value(index), replace(use, index=index, half=None)
            return (self._strided(use, pointer, affine),)
        if access.is_store and use.half == 0:  # it is stored with the other half
            self._half = self._vector(self.typed(others[0], meaning.parameters[2]))
            return ()
        if use.half == 1 and not access.is_store:  # it was loaded with the other half
            return (self._other_half(),)
        address = self._address(use, pointer, affine)
        may_exceed = self._may_exceed(use)
        if access.is_store:
            value = self._vector(self.typed(others[0], meaning.parameters[2]))
            if use.is_half:
                value = paired(self._other_half(), value)
            if may_exceed or self._mask is None:
                self._store([(address, value, use)], False)
            else:
                self._pending.append((address, value, use))
            return ()
        if not may_exceed and any(use.scopes_may_alias(other) for *_, other in self._pending):
            self._flush()
        mask, width = None if may_exceed else self._mask, self._width
        if use.is_half:
            mask, width = self._mask_of_pairs, 2 * width
        loaded = load(self.builder, address, access.storage, access.scopes, width, mask)
        if use.is_half:
            loaded, self._half = deinterleaved(loaded)
        return (loaded,)

    def _strided(self, use: Use, pointer: Expression, affine: IRValue) -> IRValue:
        """Load a vector of elements with stride ``affine.step``."""
        if use.access.is_store or not isinstance(affine, AffineIndex):
            raise NotVectorizable("strided store")
        if any(use.scopes_may_alias(other) for *_, other in self._pending):
            self._flush()
        active = None if self._mask is None else self._active
        address = self._address(use, pointer, affine)
        return load_strided(self.builder, address, use.access, self._width, affine.step, active)

    def _other_half(self) -> IRValue:
        """The other half of the previous access; ``with_pairs`` paired them."""
        assert self._half is not None
        return self._half

    def _address(self, use: Use, pointer: Expression, affine: AffineIndex) -> Instruction:
        """The address of a vector's first element; the loop-invariant part is computed once."""
        size = 2 if use.is_half else 1
        if use.location not in self._addresses:
            start = self.typed(pointer, POINTER).value
            with self.builder.goto_block(self._start):
                value = affine.value
                begin = self.builder.mul(value, _int64(size)) if use.is_half else value
                first = element(self.builder, start, begin, use.access.storage)
                self._addresses[use.location] = first
        size *= affine.step
        at = self.builder.mul(self._at, _int64(size)) if size > 1 else self._at
        first = self.builder.gep(self._addresses[use.location], [at])
        return self.builder.gep(first, [_int64(size * self._shift)]) if self._shift else first

    def _flush(self) -> None:
        """Emit the pending stores."""
        stores, self._pending = self._pending, []
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
            store_by_halves(builder, stores, self._remaining, self._width)
        builder.branch(stored)
        builder.position_at_end(stored)

    def _store(self, stores: Sequence[Store], is_masked: bool) -> None:
        for address, value, use in stores:
            access, mask = use.access, None
            if is_masked:
                mask = self._mask_of_pairs if use.is_half else self._mask
            store(self.builder, address, value.value, access.storage, access.scopes, mask)


def _int64(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)
