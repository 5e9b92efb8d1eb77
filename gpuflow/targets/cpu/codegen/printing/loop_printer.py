"""Code generation from KernelIR to loop programs for the CPU: loops over raw pointers.

The function is ``kernel_<name>(words, lo, hi)``. ``words`` is the address of the argument block
that ``kir.nodes.arguments`` describes; ``lo..hi`` is the range of the first PARALLEL axis to run.

Float sums over long axes are added in blocks, by an addition that LLVM may reassociate into vector
lanes. The sums of blocks are added in float64, in order. If a loop is not vectorized, blocks are
shorter, because rounding errors grow with the length of a scalar sum. All other arithmetic is IEEE
with contraction.

Tests: tests/targets/cpu/test_cpu_kernels.py, tests/targets/cpu/test_cpu_orders.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce as fold
from math import prod
from typing import NamedTuple

from gpuflow.kir.nodes import (
    Apply,
    Argument,
    Axis,
    Block,
    Copy,
    For,
    If,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Reduce,
    Statement,
    Store,
    Stride,
    Strip,
    Value,
    While,
    arguments,
)
from gpuflow.kir.scalar import COMPONENT_DTYPES
from gpuflow.kir.text import kernel_text
from gpuflow.kir.walk import next_value_number, owned_blocks, statements
from gpuflow.targets.cpu.codegen.loops.nodes import (
    ZERO,
    Accessor,
    Convert,
    Expression,
    Name,
    Program,
    TypedLiteral,
    call,
)
from gpuflow.targets.cpu.codegen.printing import (
    argmax_rows,
    boundaries,
    copies,
    interrupts,
    selected_loads,
)
from gpuflow.targets.cpu.codegen.printing.program_builder import ProgramBuilder, Span
from gpuflow.targets.kernel_walk import FLOATS, combine_functions

SUM_BLOCK_BITS = 12  # log2 of the points of a block of a float sum
SERIAL_BLOCK_BITS = 7  # the same for loops that LLVM cannot vectorize

_COMMENT = "A gpuflow kernel for the CPU; targets/cpu/codegen/functions.py defines the names."

# By the kernel's kind: smallest exact extent of a loop that is vectorized; shorter loops are
# unrolled. A reduction of a few elements costs more in a vector than in scalar code.
_MIN_VECTORS = {"map": 3, "row": 8}

# Of these functions, only the division of floats has vector instructions.
_DIVISIONS = ("div", "rem")

# The integer dtypes to which maxima and minima map floats, with the same order.
ORDERED_DTYPES = {"float32": "int32", "float64": "int64"}


def is_ordered(fn: str, out: Value) -> bool:
    """Whether a reduction runs on integers with the order of floats (``order_<fn>``)."""
    return fn in ("max", "min") and out.dtype in ORDERED_DTYPES


def combine_ordered(fn: str, dtype: str, running: str, value: Expression) -> Expression:
    """Combine the running integer of a reduction for which ``is_ordered`` holds with a float."""
    return call(f"{fn}_{ORDERED_DTYPES[dtype]}", Name(running), call(f"order_{fn}_{dtype}", value))


def _conditionally_loaded(block: Block, is_conditional: bool = False) -> set[str]:
    """Names of the operands that a block loads conditionally; all if ``is_conditional``."""
    operands: set[str] = set()
    for statement in block.body:
        if isinstance(statement, Load) and (is_conditional or statement.where is not None):
            operands.add(statement.operand)
        for owned in owned_blocks(statement):
            operands |= _conditionally_loaded(owned, is_conditional or isinstance(statement, If))
    return operands


class _OrderedResult(NamedTuple):
    """A float result of a Reduce that runs as an integer.

    Attributes:
        target: variable of the result.
        integer: variable of the running integer.
        function: ``<fn>_<dtype>``, the suffix of ``order_`` and ``unorder_``.
    """

    target: str
    integer: str
    function: str


class CpuPrinter(ProgramBuilder):
    """Generates the loop program of one kernel. ``program`` may be called once.

    The kernel must have been verified and rewritten for the CPU (``schedules.pipeline``).

    Attributes:
        new_value_numbers: numbers that no value of the kernel has.
        has_zero_bases: whether the code is for index operands with base 0, see ``entry``.
    """

    def __init__(self, kernel: Kernel) -> None:
        assert not kernel.segmented, "gf_segments runs the kernel itself, once for each segment"
        super().__init__(kernel)
        memory_operands = [o for o in kernel.operands if o.mode not in (Mode.INDEX, Mode.SCALAR)]
        written_names = [o.name for o in memory_operands if o.mode is not Mode.IN]
        # Alias scopes. Read-only operands may overlap each other, so they share scope 0.
        self._scope_of_operand = {o.name: 0 for o in memory_operands}
        self._scope_of_operand.update({name: scope for scope, name in enumerate(written_names, 1)})
        self._scope_count = 1 + len(written_names)
        self._guarded_operands = _conditionally_loaded(kernel.body)
        self._boundary_ids = itertools.count()
        self.new_value_numbers = itertools.count(next_value_number(kernel.body))
        # By axis, of the enclosing strips, innermost last: range, and size if it is full.
        self._strip_spans: dict[str, list[Span]] = {}
        self._strip_sizes: dict[str, list[int]] = {}
        self.has_zero_bases = True

    def program(self) -> Program:
        """Generate the kernel's loop program."""
        comment = [_COMMENT, *kernel_text(self.kernel).rstrip().splitlines()]
        self.entry()
        # Without the prefix, a kernel could have the name of an intrinsic.
        name = f"kernel_{self.kernel.name}"
        return Program(name, tuple(self._accessors()), self.statements, tuple(comment))

    def _accessors(self) -> Iterator[Accessor]:
        for operand in self.kernel.operands:
            if operand.name not in self._scope_of_operand:
                continue
            storage_and_scope = (
                COMPONENT_DTYPES.get(operand.dtype, operand.dtype),
                self._scope_of_operand[operand.name],
            )
            if operand.mode is not Mode.OUT:
                yield Accessor(
                    f"load_{operand.name}", "reader", *storage_and_scope, self._scope_count
                )
            if operand.name in self._guarded_operands:
                name = f"load_{operand.name}_where"
                yield Accessor(name, "guarded_reader", *storage_and_scope, self._scope_count)
            if operand.mode is not Mode.IN:
                yield Accessor(
                    f"store_{operand.name}", "writer", *storage_and_scope, self._scope_count
                )

    # The function

    def unpack(self) -> None:
        """Load every argument from its slot to its variable."""
        for slot, argument in enumerate(arguments(self.kernel)):
            slot_type = "int64"
            if argument.kind == "pointer":
                slot_type = "pointer"
            elif argument.kind == "scalar":
                slot_type = self.operands[argument.operand].dtype
            self.set(self._argument_name(argument), call(f"word_{slot_type}", Name("words"), slot))

    def _argument_name(self, argument: Argument) -> str:
        if argument.kind == "extent":
            return self.names.extent(self.axes[argument.axis])
        if argument.kind == "stride":
            return self.names.stride(argument.operand, argument.axis)
        return self.names.operand(argument.operand)

    def entry(self) -> None:
        """Emit the function's statements.

        If conditions depend on the index along a short row, there are two versions: one for index
        operands that count from 0, whose boundaries are constants, and one for all others.
        """
        self.run("use_wide_registers")
        self.unpack()
        interrupts.emit_counter(self)
        for local in self.kernel.locals:
            size = local.rows * prod(size for _, size in local.axes)
            self.set(local.name, call(f"local_{local.dtype}", size))
        counters = boundaries.short_counters(self.kernel)
        if not counters:
            self.block(self.kernel.body)
            return
        bases = {name: self.offsets[name] for name in counters}
        with self.when(fold(Expression.__and__, [base.equals(0) for base in bases.values()])):
            self.offsets.update(dict.fromkeys(bases, ZERO))
            self.block(self.kernel.body)
        with self.otherwise():
            self.offsets.update(bases)
            self.has_zero_bases = False
            self.block(self.kernel.body)

    # Loops

    def span(self, axis: Axis) -> Span:
        """The range of a loop over an axis here: of the strip, of the launch, or all points."""
        if self._strip_spans.get(axis.name):
            return self._strip_spans[axis.name][-1]
        if axis.name != self.distributed_axis:
            return Span(ZERO, self.extent(axis))
        return Span(Name("lo"), Name("hi"))

    def _padded_span(self, axis: Axis, is_padded: bool) -> Span:
        """The range of a loop; a padded one covers a full strip, so its trip count is static."""
        span = self.span(axis)
        if not is_padded:
            return span
        return Span(span.first, span.first + self._strip_sizes[axis.name][-1])

    @contextmanager
    def axis_loop(self, axis_name: str, body: Block) -> Iterator[None]:
        axis = self.axes[axis_name]
        with self._loop(axis, self.span(axis)), self.at_point(axis, body):
            yield

    def _loop(self, axis: Axis, span: Span) -> AbstractContextManager[None]:
        """Emit a loop over a range of an axis."""
        return self.loop_over(axis.name, span, self._is_short(axis))

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, selected_loads.SelectedLoad):
            selected_loads.emit_load(self, statement)
        else:
            super().statement(statement)

    def loop(self, s: For) -> None:
        if s.axis is None:
            super().loop(s)
            return
        axis = self.axes[s.axis]
        self._emit_subranges(axis, self._padded_span(axis, s.padded), s.body, lambda: None)

    def count_loop(self, s: For, counter: str, count: Expression) -> None:
        if s.is_long:
            interrupts.emit_long_loop(self, s, counter, count)
            return
        with self.loop_over(counter, Span(ZERO, count)):
            self.iteration(s)

    def after_iteration(self, s: While) -> None:
        interrupts.poll_after_iteration(self, s)

    @property
    def _is_in_strip(self) -> bool:
        """Whether the code is inside a Strip, whose schedule determines the loops."""
        return any(self._strip_spans.values())

    def strip(self, s: Strip) -> None:
        axis = self.axes[s.axis]
        strip_spans = self._strip_spans.setdefault(s.axis, [])
        span = self.span(axis)
        name = f"{s.axis}_{len(strip_spans)}" if strip_spans else s.axis
        start, end = Name(f"{name}_start"), Name(f"{name}_end")
        with self.blocks_of(name, span, s.size.bit_length() - 1):
            self.set(end.name, call("min_int64", start + s.size, span.end))
            strip_sizes = self._strip_sizes.setdefault(s.axis, [])
            strip_spans.append(Span(start, end))
            strip_sizes.append(s.size)
            self.block(s.body)
            strip_sizes.pop()
            strip_spans.pop()

    @contextmanager
    def blocks_of(self, name: str, span: Span, bits: int) -> Iterator[None]:
        """Emit a loop over blocks of 2**bits points; ``<name>_start`` is a block's first point.

        ``<name>_block`` is the index of the block.
        """
        first, end = span
        count = end if first == ZERO else end - first
        blocks = (count + ((1 << bits) - 1)) >> bits
        with self.loop_over(f"{name}_block", Span(ZERO, blocks)):
            offset = Name(f"{name}_block") << bits
            self.set(f"{name}_start", offset if first == ZERO else first + offset)
            yield

    def copy(self, s: Copy) -> None:
        copies.emit_copy(self, s, lambda: super(CpuPrinter, self).copy(s))

    def innermost_strip(self, axis: str) -> Span:
        """The range of the innermost strip of an axis, which must enclose the position."""
        return self._strip_spans[axis][-1]

    def _emit_subranges(
        self, axis: Axis, span: Span, body: Block, after: Callable[[], None]
    ) -> None:
        """Emit ``body`` and then ``after()`` in loops over the subranges of a range.

        ``boundaries`` splits the range at the indices at which conditions change.
        """
        for block, subrange in boundaries.subranges(self, axis, span, body):
            with self._loop(axis, subrange), self.at_point(axis, block):
                self.block(block)
                after()

    def over_axes(self, axes: Sequence[str], body: Block, after: Callable[[], None]) -> None:
        if len(axes) != 1:
            super().over_axes(axes, body, after)
            return
        axis = self.axes[axes[0]]
        self._emit_subranges(axis, self.span(axis), body, after)

    def _over_reduction_points(self, s: Reduce, after: Callable[[], None]) -> None:
        """Emit the body of a Reduce and then ``after()`` in loops over its points."""
        if not s.padded:
            self.over_axes(s.axes, s.body, after)
            return
        (name,) = s.axes
        axis = self.axes[name]
        self._emit_subranges(axis, self._padded_span(axis, True), s.body, after)

    def boundary_name(self, axis: Axis) -> str:
        """A new name for a boundary at which loops over an axis are split."""
        return f"{axis.name}_border_{next(self._boundary_ids)}"

    def _is_short(self, axis: Axis) -> bool:
        """Whether a loop over an axis should have one vector per iteration."""
        if axis is not self.kernel.axes[-1] or axis.exact is None or self._is_in_strip:
            return axis.is_short
        fewest = _MIN_VECTORS.get(self.kernel.kind)
        return fewest is not None and axis.exact >= fewest

    # Reductions

    def reduce(self, s: Reduce) -> None:
        functions = combine_functions(s)
        if functions is None:
            if argmax_rows.is_row_argmax(self.kernel, s):
                argmax_rows.emit_argmax(self, s)
            else:
                self.sequential_reduce(s)
            return
        accumulators = self.begin_accumulators(s, functions)
        pairs = self.functions_and_results(s, functions)
        if any(fn in ("add", "mul") and out.dtype in FLOATS for fn, out in pairs):
            self._blocked_reduce(s, functions)
        else:
            self._over_reduction_points(s, lambda: self._accumulate(s, functions))
        self.finish_accumulators(accumulators)

    def functions_and_results(self, s: Reduce, functions: Sequence[str]) -> list[tuple[str, Value]]:
        """Pairs of combining function and result, for each value of a Reduce."""
        return list(zip(functions, s.outs, strict=True))

    def begin_accumulators(self, s: Reduce, functions: Sequence[str]) -> list[_OrderedResult]:
        """Assign the initial values of a Reduce; maxima and minima of floats run as integers.

        Returns:
            The results that run as integers, for ``finish_accumulators``.
        """
        self.carry(s.outs, s.init)
        results = []
        for fn, out in self.functions_and_results(s, functions):
            if is_ordered(fn, out):
                target = self.target(out)
                result = _OrderedResult(target, f"{target}_order", f"{fn}_{out.dtype}")
                results.append(result)
                self.set(result.integer, call(f"order_{result.function}", Name(target)))
        return results

    def finish_accumulators(self, results: Sequence[_OrderedResult]) -> None:
        """Convert running integers back to floats."""
        for result in results:
            self.set(result.target, call(f"unorder_{result.function}", Name(result.integer)))

    def _blocked_reduce(self, s: Reduce, functions: tuple[str, ...]) -> None:
        """Emit a Reduce whose float sums are added in blocks along the last axis."""
        sums = {self.target(out): out.dtype for out in self.float_sums(s, functions)}
        totals = {running: Name(f"{running}_total") for running in sums}
        for running, total in totals.items():
            self.set(total.name, Convert("float64", Name(running)))

        def open_block() -> None:
            for running, dtype in sums.items():
                self.set(running, TypedLiteral(0.0, dtype))

        def close_block() -> None:
            for running, total in totals.items():
                self.set(total.name, total + Convert("float64", Name(running)))

        self._emit_blocks(
            s, s.axes, open_block, close_block, lambda: self._accumulate(s, functions)
        )
        for running, dtype in sums.items():
            self.set(running, Convert(dtype, totals[running]))

    def float_sums(self, s: Reduce, functions: Sequence[str]) -> list[Value]:
        """The results of a Reduce that are float sums, and so are added in blocks."""
        pairs = zip(s.outs, functions, strict=True)
        return [out for out, fn in pairs if fn == "add" and out.dtype in FLOATS]

    def _emit_blocks(
        self,
        s: Reduce,
        axes: tuple[str, ...],
        open_block: Callable[[], None],
        close_block: Callable[[], None],
        accumulate: Callable[[], None],
    ) -> None:
        """Emit loops over ``axes``; the last one is cut into blocks.

        Args:
            s: the Reduce.
            axes: the axes that are left.
            open_block, close_block: emit the code before and after a block.
            accumulate: emits the combination of a point.
        """
        axis = self.axes[axes[0]]
        if len(axes) > 1:
            with self.axis_loop(axis.name, s.body):
                self._emit_blocks(s, axes[1:], open_block, close_block, accumulate)
            return
        bits = SUM_BLOCK_BITS if self._is_vectorizable(axis, s.body) else SERIAL_BLOCK_BITS
        if axis.is_short or (axis.exact is not None and axis.exact <= 1 << bits):
            open_block()
            self._emit_subranges(axis, self.span(axis), s.body, accumulate)
            close_block()
            return
        for body, chunk in boundaries.subranges(self, axis, self.span(axis), s.body):
            bits = SUM_BLOCK_BITS if self._is_vectorizable(axis, body) else SERIAL_BLOCK_BITS
            with self.block_loop(axis, chunk, bits) as span:
                open_block()
                with self.loop_over(axis.name, span), self.at_point(axis, body):
                    self.block(body)
                    accumulate()
                close_block()

    def _is_vectorizable(self, axis: Axis, body: Block) -> bool:
        """Whether LLVM can vectorize a loop over an axis."""
        axis_index = self.kernel.axes.index(axis)
        for statement in statements(body):
            match statement:
                case Load(_, name, offset) | Store(name, _, offset) if (
                    name in self._scope_of_operand
                ):
                    if offset is not None or self.operands[name].strides[axis_index] is Stride.ANY:
                        return False
                case Apply(outs, fn) if fn in _DIVISIONS:
                    if fn == "rem" or outs[0].dtype not in FLOATS:
                        return False
                case Reduce() | For() | While():
                    return False
        return True

    @contextmanager
    def block_loop(self, axis: Axis, span: Span, bits: int) -> Iterator[Span]:
        """Emit a loop over blocks of 2**bits points; yields the range of the loop over a block.

        Only the last block may be shorter.
        """
        with self.blocks_of(axis.name, span, bits):
            first = Name(f"{axis.name}_start")
            yield Span(first, call("min_int64", first + (1 << bits), span.end))

    def _accumulate(self, s: Reduce, functions: tuple[str, ...]) -> None:
        """Emit the combination of the current point's values with the running ones."""
        for out, new, fn in zip(s.outs, s.body.results, functions, strict=True):
            running, value = self.target(out), self.value(new)
            if fn in ("add", "mul") and out.dtype in FLOATS:
                self.set(running, call(f"accumulate_{fn}_{out.dtype}", Name(running), value))
            elif is_ordered(fn, out):
                name = f"{running}_order"
                self.set(name, combine_ordered(fn, out.dtype, name, value))
            else:
                self.set(running, self.call(fn, [Name(running), value], out.dtype))

    # Memory

    def load(self, operand: Operand, offset: Expression) -> Expression:
        return call(f"load_{operand.name}", self.pointer(operand.name), offset)

    def store(self, operand: Operand, offset: Expression, value: Expression) -> None:
        self.run(f"store_{operand.name}", self.pointer(operand.name), offset, value)

    def load_where(
        self, operand: Operand, offset: Expression, where: Expression, dtype: str
    ) -> Expression | None:
        """A guarded load: if the condition is false, it reads the argument block instead."""
        if operand.name not in self._guarded_operands:
            return None
        function = f"load_{operand.name}_where"
        return call(function, self.pointer(operand.name), offset, where, Name("words"))

    def load_local(self, local: Local, offset: Value | None) -> Expression:
        return call(f"load_{local.dtype}", Name(local.name), self._local_array_index(local, offset))

    def store_local(self, local: Local, offset: Value | None, value: Expression) -> None:
        index = self._local_array_index(local, offset)
        self.run(f"store_{local.dtype}", Name(local.name), index, value)

    def _local_array_index(self, local: Local, offset: Value | None) -> Expression:
        """The index in a local array of the current point, or of an explicit offset."""
        if offset is not None and local.rows == 1:
            return self.value(offset)
        terms: list[Expression] = []
        row_stride, strip_axes = 1, local.cut_axes(self.kernel)
        for axis, size in reversed(local.axes):
            index: Expression = Name(axis)
            if axis in strip_axes:
                index = index - self._strip_spans[axis][-1].first
            terms.insert(0, index if row_stride == 1 else index * row_stride)
            row_stride *= size
        if offset is not None:
            terms.insert(0, self.value(offset))
        return fold(Expression.__add__, terms)
