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

Tests: tests/targets/cpu/test_cpu_vectors.py, tests/targets/cpu/test_short_vectors.py,
tests/targets/cpu/test_strided_vectors.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.affine_index import AffineIndex, affine_base, affine_factor
from gpuflow.targets.cpu.codegen.elements import element_address, element_bytes, load, store
from gpuflow.targets.cpu.codegen.expressions import Expressions
from gpuflow.targets.cpu.codegen.functions import POINTER, Callee
from gpuflow.targets.cpu.codegen.loops.nodes import (
    Assign,
    Call,
    CallStatement,
    Expression,
    Name,
    Statement,
)
from gpuflow.targets.cpu.codegen.opaque import opaque
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.codegen.reduction_variables import Accumulators, Reduction, add_incoming_to
from gpuflow.targets.cpu.codegen.scalar_functions import LONG_CHAIN_FUNCTIONS
from gpuflow.targets.cpu.codegen.straight_loops import (
    Gather,
    MemoryAccess,
    NotVectorizable,
    StackArrays,
    WorkShare,
    halved,
    longest_chain,
    varying_expressions,
    with_pairs,
)
from gpuflow.targets.cpu.codegen.strided_loads import first_elements_mask, load_strided
from gpuflow.targets.cpu.codegen.variables import assigned_names
from gpuflow.targets.cpu.codegen.vector_blocks import (
    MIN_CHAIN,
    PendingStore,
    call_vector_copy,
    check_single_vector,
    deinterleaved,
    disable_loop_passes,
    float_constant_count,
    hoist_invariants,
    interleave_vectors,
    interleaved,
    is_spilled,
    main_loop_unroll_factor,
    max_live_vectors,
    spill,
    store_by_halves,
    vector_width,
)
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, splat, step_vector

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# Splats that stay in registers while an iteration computes four vectors: with more live values than
# registers, LLVM orders the instructions of the four one after the other. Loops with more constants
# take 1.0 to 1.2 of the time with four (i0e, ndtri), and those whose four vectors need more
# registers than there are up to 1.5 with values in memory (gamma).
_MAX_SPLATS = 6
# Most iterations of a loop that becomes one vector.
_MAX_SINGLE_VECTOR = 16


class _RemainderLoop(NamedTuple):
    """The loop with a partial last vector, whose phi nodes lack values from before the loop.

    Attributes:
        block: its first block.
        first_element: phi node of the offset of its iteration, an int64.
        sums: phi nodes of the reduction variables' vectors.
        after: the block after the loop.
    """

    block: ir.Block
    first_element: ir.PhiInstr
    sums: Mapping[str, IRValue]
    after: ir.Block


class VectorLoop(Expressions):
    """Writes one straight loop, once. If that raises, the caller must remove the new blocks.

    Args:
        builder: position of the loop, at the end of a block without a terminator.
        accessors: accessors of the program, by name.
        outer_variable: returns the value of a name that is not assigned in the loop.
        counter: name of the induction variable.
        bounds: its first value, and its exclusive end, both int64.
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
        self, builder: ir.IRBuilder, accessors: Mapping[str, Callee],
        outer_variable: Callable[[str], IRValue], counter: str,
        bounds: tuple[LlvmValue, LlvmValue], trip_count: int | None, body: Sequence[Statement],
        share: WorkShare, arrays: StackArrays, is_short: bool, reductions: Mapping[str, Reduction],
    ) -> None:  # fmt: skip
        super().__init__(builder, accessors)
        self._outer_variable, self._counter, self._bounds = outer_variable, counter, bounds
        self._body, self._arrays, self._reductions = body, arrays, reductions
        self._share = share
        # By the ``id`` of expressions: those that vary between iterations, memory accesses, and
        # values of invariants, which are computed before the loop.
        self._varying, calls = varying_expressions(body, {counter, *reductions})
        varying = [call for call in calls if id(call) in self._varying]
        self._accesses = with_pairs(dict(self._find_accesses(calls)), varying)
        self._invariant_values: dict[int, tuple[IRValue, ...]] = {}
        self._initial_values = {name: outer_variable(name) for name in reductions}
        chain = longest_chain(body, self._varying, LONG_CHAIN_FUNCTIONS)
        self._is_chain = chain >= MIN_CHAIN[share]
        self._check_accesses()
        self._is_short = is_short
        target, accesses = cpu_target(), self._accesses.values()
        initial_values = self._initial_values.values()
        self._width = vector_width(target, accesses, initial_values, builder.function)
        self._needs_masks = self._is_single_vector = False
        if is_short and trip_count is not None and trip_count <= _MAX_SINGLE_VECTOR:
            if reductions:
                raise NotVectorizable("a reduction of one vector, for several rows per iteration")
            check_single_vector(target, accesses, trip_count)
            self._is_single_vector, self._width = True, trip_count
        else:
            if trip_count is not None and trip_count < 2 * self._width:
                raise NotVectorizable("a few iterations, which LLVM unrolls")
            self._needs_masks = trip_count is None or trip_count % self._width != 0
        if self._needs_masks and not self._can_mask_all():
            raise NotVectorizable("masks of bytes")
        # The guard enters the preheader if there are iterations; the preheader enters the loop.
        self._guard_block = builder.block
        self._preheader = builder.function.append_basic_block("vectors")
        # State of the loop that is being written, the remainder or the main loop. Offsets count
        # elements from the start of the loop.
        self._first_element: LlvmValue = None  # offset of the iteration
        self._vector_offset = 0  # offset of the current vector from that
        self._remaining: LlvmValue = None  # elements from the iteration on, an int64
        self._is_partial: LlvmValue = None  # whether these do not fill a vector
        self._active_count: IRValue  # min(remaining, width), an int32
        self._mask: LlvmValue | None = None  # active elements; None: all
        self._mask_of_pairs: LlvmValue | None = None  # the same for vectors of pairs
        self._values: dict[str, IRValue] = {}  # variables of the current vector
        self._pending_stores: list[PendingStore] = []  # masked ones of the current vector
        # The half of a pair of accesses that waits for, or was loaded with, the other half.
        self._half: IRValue | None = None
        # Values in the preheader: splats of invariants (vectors, or stack slots of spilled ones),
        # and addresses of first elements by ``MemoryAccess.location``.
        self._splats: dict[LlvmValue, LlvmValue] = {}
        self._addresses: dict[tuple[Expression, Expression, bool], LlvmValue] = {}
        self._accumulators = Accumulators(self, reductions)
        # Of the remainder loop: instructions, and whether registers suffice for four vectors.
        self._instruction_count, self._registers_hold_four = 0, False

    # --- analysis of the loop --------------------------------------------------------------

    def _find_accesses(self, calls: Sequence[Call]) -> Iterator[tuple[int, MemoryAccess]]:
        for node in calls:
            callee = self.callee(node.function)
            if callee is not None and callee.access is not None:
                pointer, index = node.arguments[:2]
                yield id(node), MemoryAccess(callee.access, pointer, index)

    def _can_mask_all(self) -> bool:
        """Whether the processor has masked accesses for all dtypes that the loop needs to mask."""
        masked = (access for access in self._accesses.values() if not self._may_overrun(access))
        sizes = (element_bytes(access.accessor.storage) for access in masked)
        return cpu_target().has_masks or all(size >= 4 for size in sizes)

    def _may_overrun(self, access: MemoryAccess) -> bool:
        """Whether an access may exceed the range: a stack array with spare elements."""
        return isinstance(access.pointer, Name) and access.pointer.name in self._arrays.elementwise

    def _check_accesses(self) -> None:
        accesses = self._accesses.values()
        stores = [access for access in accesses if access.accessor.is_store]
        if not stores and not self._reductions:
            raise NotVectorizable("nothing is stored")
        noalias = self._arrays.noalias
        if any(one.may_alias(other, noalias) for one in stores for other in accesses):
            raise NotVectorizable("accesses may alias")
        if max(Counter(assigned_names(self._body)).values(), default=1) > 1:
            raise NotVectorizable("a name has two values")

    # --- the loops -------------------------------------------------------------------------

    def write(self) -> dict[str, IRValue]:
        """Write the loop, and position the builder after it; returns the reduction variables."""
        builder = self.builder
        begin, end = self._bounds
        if self._is_single_vector:
            self._write_single_vector()
            return {}
        accumulators = self._accumulators
        accumulators.begin(self._initial_values, self._width)
        with builder.goto_block(self._preheader):
            count = builder.sub(end, begin)
        remainder = self._write_remainder_loop(count)
        remainder.first_element.add_incoming(_int64(0), self._preheader)
        add_incoming_to(remainder.sums, self._preheader, accumulators.initial_vectors)
        vectors = main_loop_unroll_factor(
            self._instruction_count,
            self._share,
            is_short=self._is_short,
            is_chain=self._is_chain,
            has_reductions=bool(self._reductions),
            registers_hold_four=self._registers_hold_four,
        )
        if vectors == 0:
            with builder.goto_block(self._preheader):
                builder.branch(remainder.block)
        else:
            self._write_main_loop(count, vectors, remainder)
        with builder.goto_block(self._guard_block):
            has_iterations = builder.icmp_signed("<", begin, end)
            builder.cbranch(has_iterations, self._preheader, remainder.after)
        accumulators.add_exit(self._guard_block, accumulators.initial_vectors)
        builder.position_at_end(remainder.after)
        return accumulators.results()

    def _write_single_vector(self) -> None:
        """Write the loop as one vector."""
        builder = self.builder
        single = builder.function.append_basic_block("once")
        builder.position_at_end(single)
        self._first_element = _int64(0)
        self._write_iteration(0)
        for block, following in ((self._guard_block, self._preheader), (self._preheader, single)):
            with builder.goto_block(block):
                builder.branch(following)

    def _write_remainder_loop(self, count: LlvmValue) -> _RemainderLoop:
        """Write the loop with a partial last vector, for ``count`` elements, an int64."""
        builder, width = self.builder, self._width
        function = builder.function
        remainder = function.append_basic_block("rest")
        builder.position_at_end(remainder)
        self._first_element = builder.phi(count.type, name="at")
        first_element, sums = self._first_element, self._accumulators.phis()
        self._accumulators.current = {**sums}
        if self._needs_masks:
            remaining = IRValue(builder, builder.sub(count, self._first_element), "int64")
            self._remaining, self._is_partial = remaining.value, (remaining < width).value
            active = builder.select(self._is_partial, remaining.value, _int64(width))
            active = builder.trunc(active, ir.IntType(32))
            self._active_count = count32 = IRValue(builder, active, "int32")
            self._mask = first_elements_mask(count32, width)
            if any(access.is_half for access in self._accesses.values()):
                self._mask_of_pairs = first_elements_mask(count32 + count32, 2 * width)
        self._instruction_count = -len(remainder.instructions)
        self._write_iteration(0)
        registers, _ = cpu_target().vector_registers
        constants = float_constant_count(remainder.instructions)
        alive = max_live_vectors(remainder.instructions, width)
        self._registers_hold_four = 4 * alive <= registers and constants <= _MAX_SPLATS
        self._instruction_count += len(builder.block.instructions)
        hoist_invariants(function.blocks[function.blocks.index(remainder) :], self._preheader)
        builder.position_at_end(builder.block)  # after the remaining instructions
        following = opaque(builder, builder.add(self._first_element, _int64(width)))
        self._first_element.add_incoming(following, builder.block)
        add_incoming_to(sums, builder.block, self._accumulators.current)
        self._accumulators.add_exit(builder.block, self._accumulators.current)
        more = builder.icmp_signed("<", following, count)
        after = function.append_basic_block("after")
        disable_loop_passes(builder.module, builder.cbranch(more, remainder, after))
        return _RemainderLoop(remainder, first_element, sums, after)

    def _write_main_loop(self, count: LlvmValue, vectors: int, remainder: _RemainderLoop) -> None:
        """Write the main loop over full vectors, several per iteration, before the remainder."""
        builder = self.builder
        step = self._width * vectors
        main_loop = builder.function.append_basic_block("bulk")
        builder.position_at_end(main_loop)
        self._first_element = builder.phi(count.type, name="at")
        self._mask = self._mask_of_pairs = None
        accumulators = self._accumulators
        phis, final = [accumulators.phis() for _ in range(vectors)], []
        if vectors == 4 and self._registers_hold_four:
            self._spill_splats()
        starts = [len(main_loop.instructions)]
        for vector in range(vectors):
            accumulators.current = {**phis[vector]}
            self._write_iteration(vector * self._width)
            final.append(accumulators.current)
            hoist_invariants([main_loop], self._preheader)
            builder.position_at_end(main_loop)
            starts.append(len(main_loop.instructions))
        interleave_vectors(main_loop, starts)
        following = opaque(builder, builder.add(self._first_element, _int64(step)))
        self._first_element.add_incoming(_int64(0), self._preheader)
        self._first_element.add_incoming(following, builder.block)
        for sums, incoming in zip(phis, final, strict=True):
            add_incoming_to(sums, self._preheader, accumulators.initial_vectors)
            add_incoming_to(sums, builder.block, incoming)
        with builder.goto_block(self._preheader):
            main_end = builder.and_(count, _int64(-step))
            is_long = builder.icmp_signed(">", main_end, _int64(0))
            builder.cbranch(is_long, main_loop, remainder.block)
        done = builder.function.append_basic_block("whole")
        more = builder.icmp_signed("<", following, main_end)
        disable_loop_passes(builder.module, builder.cbranch(more, main_loop, done))
        builder.position_at_end(done)
        combined = accumulators.combine_unrolled(final)
        builder.cbranch(builder.icmp_signed("<", main_end, count), remainder.block, remainder.after)
        accumulators.add_exit(done, combined)
        remainder.first_element.add_incoming(main_end, done)
        add_incoming_to(remainder.sums, done, combined)

    def _spill_splats(self) -> None:
        """Spill splats, to have registers for the values that four vectors need at a time."""
        with self.builder.goto_block(self._preheader):
            for single, vector in [*self._splats.items()][_MAX_SPLATS:]:
                if vector.type.element != ir.IntType(1):  # memory would pack these to bits
                    self._splats[single] = spill(self.builder, vector)

    def _write_iteration(self, vector_offset: int) -> None:
        """Write the loop's statements for one vector of elements."""
        self._values, self._vector_offset = {**self._accumulators.current}, vector_offset
        for node in self._body:
            match node:
                case Assign((name,), value) if name in self._reductions:
                    self._accumulators.update(name, self.value(value), self._mask)
                case Assign((name,), value):
                    self._values[name] = self.value(value)
                case Assign(targets, Call() as call):
                    self._values.update(zip(targets, self.call(call), strict=True))
                case CallStatement(call):
                    self.call(call)
                case _:
                    raise NotVectorizable("a statement that is not straight")
        self._flush_stores()

    # --- expressions -----------------------------------------------------------------------

    def value(self, node: Expression) -> IRValue:
        cached = self._invariant_values.get(id(node))
        if cached is None:
            if id(node) in self._varying:
                value = super().value(node)
                if not isinstance(value, AffineIndex):
                    return value
            else:
                with self.builder.goto_block(self._preheader):
                    value = super().value(node)
            cached = self._invariant_values[id(node)] = (value,)
        return cached[0]

    def call(self, node: Call) -> tuple[IRValue, ...]:
        if id(node) in self._varying:
            return self._write_call(node)
        if id(node) not in self._invariant_values:
            with self.builder.goto_block(self._preheader):
                self._invariant_values[id(node)] = self._write_call(node)
        return self._invariant_values[id(node)]

    def variable(self, name: str) -> IRValue:
        if name == self._counter:
            return AffineIndex(self.builder, self._bounds[0], "int64")
        return self._values.get(name) or self._outer_variable(name)

    def operand(self, node: Expression) -> IRValue:
        return self._expanded(self.value(node))

    def checked_operands(self, a: IRValue, b: IRValue) -> tuple[IRValue, IRValue]:
        a, b = super().checked_operands(self._expanded(a), self._expanded(b))
        return (a, b) if a.width == b.width else (self._as_vector(a), self._as_vector(b))

    def arithmetic(self, operator: str, a: IRValue, b: IRValue) -> IRValue:
        is_affine = isinstance(a, AffineIndex) != isinstance(b, AffineIndex)
        is_sum = operator == "+" or (operator == "-" and isinstance(a, AffineIndex))
        factor = affine_factor(operator, a, b)
        if is_affine and (is_sum or factor) and a.width == b.width and a.dtype == b.dtype:
            with self.builder.goto_block(self._preheader):
                plain = super().arithmetic(operator, affine_base(a), affine_base(b))
            affine = a if isinstance(a, AffineIndex) else b
            assert isinstance(affine, AffineIndex)
            return AffineIndex(self.builder, plain.value, "int64", affine.step * (factor or 1))
        return super().arithmetic(operator, a, b)

    def convert(self, value: IRValue, dtype: str) -> IRValue:
        return value if value.dtype == dtype else super().convert(self._expanded(value), dtype)

    def _write_call(self, node: Call) -> tuple[IRValue, ...]:
        """Emit a call at the builder's position: an access, or a function of vectors."""
        name = node.function
        callee = self.callee(name)
        if callee is None or not callee.parameters:
            raise NotVectorizable(name)
        access = self._accesses.get(id(node))
        if access is not None:
            if id(node) in self._varying:
                return self._write_access(access, callee, node.arguments)
            self._check_invariant_access(access)
        elif not callee.results:
            raise NotVectorizable(name)
        if id(node) not in self._varying:
            return super().call(node)
        if len(node.arguments) != len(callee.parameters):
            raise NotVectorizable(name)
        pairs = zip(node.arguments, callee.parameters, strict=True)
        values = [self.typed(*pair) for pair in pairs]
        if name.startswith("select_") and values[0].width == 1 and not values[0].is_constant:
            raise NotVectorizable("an invariant condition, which LLVM hoists")
        if self._is_chain and name.rpartition("_")[0] in LONG_CHAIN_FUNCTIONS:
            return (self._call_vector_copy(name, callee, values),)
        return self.emit_call(callee, [self._as_vector(value) for value in values])

    def _call_vector_copy(self, name: str, callee: Callee, values: Sequence[IRValue]) -> IRValue:
        """Emit a call of an out-of-line vectorized copy of a function."""
        constants = [str(value.value) if value.is_constant else "" for value in values]
        symbol = ".".join([name, str(self._width), *constants])
        vectors = [self._as_vector(value) for value in values]
        return call_vector_copy(self.builder, symbol, callee, vectors)

    def _expanded(self, x: IRValue) -> IRValue:
        """Expand an affine index to the vector of its values; other values are unchanged."""
        return self._element_indices(x) if isinstance(x, AffineIndex) else x

    def _as_vector(self, x: IRValue) -> IRValue:
        """Return a vector; a scalar is broadcast, before the loop if possible."""
        if x.width > 1:
            return x
        if x.dtype == POINTER:
            raise NotVectorizable("a vector of pointers")
        if isinstance(x.value, ir.Constant):
            return splat(x, self._width)
        if x.value not in self._splats:
            with self.builder.goto_block(self._preheader):
                self._splats[x.value] = splat(x, self._width).value
        value = self._splats[x.value]
        return x.like(self.builder.load(value) if is_spilled(value) else value)

    def _element_indices(self, affine: AffineIndex) -> IRValue:
        """The vector of an affine index's values in this iteration."""
        element = IRValue(self.builder, self._first_element, "int64")
        first = affine_base(affine) + element * affine.step
        offsets = first.like(step_vector("int64", self._vector_offset, self._width, affine.step))
        return splat(first, self._width) + offsets

    # --- memory ----------------------------------------------------------------------------

    def _check_invariant_access(self, access: MemoryAccess) -> None:
        """Check that the loop does not store to an element that it loads in every iteration."""
        noalias = self._arrays.noalias
        stores = (other for other in self._accesses.values() if other.accessor.is_store)
        if access.accessor.is_store or any(other.may_alias(access, noalias) for other in stores):
            raise NotVectorizable("a single element is written")

    def _write_access(
        self, access: MemoryAccess, callee: Callee, arguments: Sequence[Expression]
    ) -> tuple[IRValue, ...]:
        """Emit an access as a vector load or store; raises Gather if its index is not affine."""
        accessor = access.accessor
        pointer, index, *stored = arguments
        is_direct = id(pointer) not in self._varying and len(stored) == accessor.is_store
        affine = self.value(halved(index)[0] if access.is_half else index) if is_direct else None
        if not isinstance(affine, AffineIndex):
            raise Gather
        if affine.step != 1:
            if access.is_half:  # access each half by itself, with twice the stride of the pairs
                affine, access = self.value(index), replace(access, index=index, half=None)
            return (self._strided_load(access, pointer, affine),)
        if accessor.is_store and access.half == 0:  # it is stored with the other half
            self._half = self._as_vector(self.typed(stored[0], callee.parameters[2]))
            return ()
        if access.half == 1 and not accessor.is_store:  # it was loaded with the other half
            return (self._other_half(),)
        address = self._address(access, pointer, affine)
        may_overrun = self._may_overrun(access)
        if accessor.is_store:
            value = self._as_vector(self.typed(stored[0], callee.parameters[2]))
            if access.is_half:
                value = interleaved(self._other_half(), value)
            if may_overrun or self._mask is None:
                self._write_stores([PendingStore(address, value, access)], is_masked=False)
            else:
                self._pending_stores.append(PendingStore(address, value, access))
            return ()
        if not may_overrun:
            self._flush_aliases(access)
        mask, width = None if may_overrun else self._mask, self._width
        if access.is_half:
            mask, width = self._mask_of_pairs, 2 * width
        loaded = load(self.builder, address, accessor.storage, accessor.alias_scope, width, mask)
        if access.is_half:
            loaded, self._half = deinterleaved(loaded)
        return (loaded,)

    def _strided_load(self, access: MemoryAccess, pointer: Expression, affine: IRValue) -> IRValue:
        """Load a vector of elements with stride ``affine.step``."""
        if access.accessor.is_store or not isinstance(affine, AffineIndex):
            raise NotVectorizable("strided store")
        self._flush_aliases(access)
        active = None if self._mask is None else self._active_count
        address = self._address(access, pointer, affine)
        width = self._width
        return load_strided(self.builder, address, access.accessor, width, affine.step, active)

    def _other_half(self) -> IRValue:
        """The other half of the previous access; ``with_pairs`` paired them."""
        assert self._half is not None
        return self._half

    def _address(self, access: MemoryAccess, pointer: Expression, affine: AffineIndex) -> LlvmValue:
        """The address of a vector's first element; the loop-invariant part is computed once."""
        builder, size = self.builder, 2 if access.is_half else 1
        if access.location not in self._addresses:
            start = self.typed(pointer, POINTER).value
            with builder.goto_block(self._preheader):
                value = affine.value
                begin = builder.mul(value, _int64(size)) if access.is_half else value
                first = element_address(builder, start, begin, access.accessor.storage)
                self._addresses[access.location] = first
        size *= affine.step
        offset = self._first_element
        if size > 1:
            offset = builder.mul(offset, _int64(size))
        address = builder.gep(self._addresses[access.location], [offset])
        if self._vector_offset:
            address = builder.gep(address, [_int64(size * self._vector_offset)])
        return address

    def _flush_aliases(self, access: MemoryAccess) -> None:
        """Emit the pending stores if a load may read what they store."""
        if any(access.scopes_may_alias(store.access) for store in self._pending_stores):
            self._flush_stores()

    def _flush_stores(self) -> None:
        """Emit the pending stores."""
        stores, self._pending_stores = self._pending_stores, []
        if not stores:
            return
        builder = self.builder
        if cpu_target().has_masks:
            self._write_stores(stores, is_masked=True)
            return
        self._instruction_count += len(builder.block.instructions)
        names = "partial", "full", "stored"
        partial, full, stored = map(builder.function.append_basic_block, names)
        builder.cbranch(self._is_partial, partial, full)
        builder.position_at_end(full)
        self._write_stores(stores, is_masked=False)
        builder.branch(stored)
        builder.position_at_end(partial)
        if self._share is WorkShare.LITTLE:  # slower, and less code
            self._write_stores(stores, is_masked=True)
        else:
            store_by_halves(builder, stores, self._remaining, self._width)
        builder.branch(stored)
        builder.position_at_end(stored)

    def _write_stores(self, stores: Sequence[PendingStore], *, is_masked: bool) -> None:
        for address, value, access in stores:
            accessor, mask = access.accessor, None
            if is_masked:
                mask = self._mask_of_pairs if access.is_half else self._mask
            store(self.builder, address, value.value, accessor.storage, accessor.alias_scope, mask)


def _int64(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)
