"""Code generation from KernelIR to loop programs for the CPU: loops over raw pointers.

The function is ``kernel_<name>(words, lo, hi)``. ``words`` is the address of the argument block
that ``kir.nodes.arguments`` describes; ``lo..hi`` is the range of the first PARALLEL axis to run.

Float sums over long axes are added in blocks, by an addition that LLVM may reassociate into vector
lanes. The sums of blocks are added in float64, in order. If a loop is not vectorized, blocks are
shorter, because rounding errors grow with the length of a scalar sum. All other arithmetic is IEEE
with contraction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce as fold
from math import prod

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
from gpuflow.kir.walk import owned_blocks, statements, unused_number
from gpuflow.targets.cpu.codegen.loops.nodes import (
    ZERO,
    Accessor,
    Convert,
    Expression,
    Name,
    Number,
    Program,
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

# Smallest exact extent of a loop that is vectorized; shorter loops are unrolled. A reduction of a
# few elements costs more in a vector than in scalar code.
_SHORTEST_VECTORS = {"map": 3, "row": 8}

# Of these, only division of floats has vector instructions.
_QUOTIENTS = ("div", "rem")

# The integer dtypes to which maxima and minima map floats, with the same order.
ORDERED = {"float32": "int32", "float64": "int64"}


def is_ordered(fn: str, out: Value) -> bool:
    """Whether a reduction runs on integers with the order of floats (``order_<fn>``)."""
    return fn in ("max", "min") and out.dtype in ORDERED


def ordered_step(fn: str, dtype: str, running: str, value: Expression) -> Expression:
    """Combine the running integer of such a reduction with a float."""
    return call(f"{fn}_{ORDERED[dtype]}", Name(running), call(f"order_{fn}_{dtype}", value))


def _conditional_loads(block: Block, under: bool = False) -> set[str]:
    """The operands that a block loads under a condition."""
    operands: set[str] = set()
    for statement in block.body:
        if isinstance(statement, Load) and (under or statement.where is not None):
            operands.add(statement.operand)
        for owned in owned_blocks(statement):
            operands |= _conditional_loads(owned, under or isinstance(statement, If))
    return operands


class CpuPrinter(ProgramBuilder):
    """Generates the loop program of one kernel.

    Attributes:
        unused_numbers: numbers for new values.
        counts_from_zero: whether the code is for index operands with base 0, see ``entry``.
    """

    def __init__(self, kernel: Kernel) -> None:
        assert not kernel.segmented, "gf_segments runs the kernel itself, once for each segment"
        super().__init__(kernel)
        memory = [o for o in kernel.operands if o.mode not in (Mode.INDEX, Mode.SCALAR)]
        written = [o.name for o in memory if o.mode is not Mode.IN]
        # Alias scopes. Read-only operands may overlap each other, so they share scope 0.
        self._scopes = {o.name: 0 for o in memory}
        self._scopes.update({name: scope for scope, name in enumerate(written, 1)})
        self._scope_count = 1 + len(written)
        self._guarded = _conditional_loads(kernel.body)
        self._boundary_ids = itertools.count()
        self.unused_numbers = itertools.count(unused_number(kernel.body))
        # The bounds of the strips of each axis, innermost last.
        self._strips: dict[str, list[tuple[Name, Name]]] = {}
        self._sizes: dict[str, list[int]] = {}
        self.counts_from_zero = True

    def program(self) -> Program:
        """Generate the kernel's loop program."""
        comment = [_COMMENT, *kernel_text(self.kernel).rstrip().splitlines()]
        self.entry()
        # Without the prefix, a kernel could have the name of an intrinsic.
        name = f"kernel_{self.kernel.name}"
        return Program(name, tuple(self._accessors()), self.statements, tuple(comment))

    def _accessors(self) -> Iterator[Accessor]:
        for operand in self.kernel.operands:
            if operand.name not in self._scopes:
                continue
            element = COMPONENT_DTYPES.get(operand.dtype, operand.dtype), self._scopes[operand.name]
            if operand.mode is not Mode.OUT:
                yield Accessor(f"load_{operand.name}", "reader", *element, self._scope_count)
            if operand.name in self._guarded:
                name = f"load_{operand.name}_where"
                yield Accessor(name, "guarded_reader", *element, self._scope_count)
            if operand.mode is not Mode.IN:
                yield Accessor(f"store_{operand.name}", "writer", *element, self._scope_count)

    # The function

    def unpack(self) -> None:
        """Load every argument from its slot to its variable."""
        for slot, argument in enumerate(arguments(self.kernel)):
            kind = "int64"
            if argument.kind == "pointer":
                kind = "pointer"
            elif argument.kind == "scalar":
                kind = self.operands[argument.operand].dtype
            self.set(self._argument_name(argument), call(f"word_{kind}", Name("words"), slot))

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
        interrupts.begin(self)
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
            self.counts_from_zero = False
            self.block(self.kernel.body)

    # Loops

    def span(self, axis: Axis) -> Span:
        """The range of a loop over an axis here: of the strip, of the launch, or all points."""
        if self._strips.get(axis.name):
            return self._strips[axis.name][-1]
        if axis.name != self.split_axis:
            return ZERO, self.extent(axis)
        return Name("lo"), Name("hi")

    def _points(self, axis: Axis, padded: bool) -> Span:
        """The range of a loop; a padded one covers a full strip, so its trip count is static."""
        start, end = self.span(axis)
        return (start, start + self._sizes[axis.name][-1]) if padded else (start, end)

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
            selected_loads.print_load(self, statement)
        else:
            super().statement(statement)

    def loop(self, s: For) -> None:
        if s.axis is None:
            super().loop(s)
            return
        axis = self.axes[s.axis]
        self._over_subranges(axis, self._points(axis, s.padded), s.body, lambda: None)

    def count_loop(self, s: For, counter: str, count: Expression) -> None:
        if s.is_long:
            interrupts.count_loop(self, s, counter, count)
            return
        with self.loop_over(counter, (ZERO, count)):
            self.iteration(s)

    def after_iteration(self, s: While) -> None:
        interrupts.after_iteration(self, s)

    @property
    def _is_cut(self) -> bool:
        """Whether the code is inside a Strip, whose schedule determines the loops."""
        return any(self._strips.values())

    def strip(self, s: Strip) -> None:
        axis = self.axes[s.axis]
        outer = self._strips.setdefault(s.axis, [])
        span = self.span(axis)
        name = f"{s.axis}_{len(outer)}" if outer else s.axis
        start, end = bounds = Name(f"{name}_start"), Name(f"{name}_end")
        with self.blocks_of(name, span, s.size.bit_length() - 1):
            self.set(end.name, call("min_int64", start + s.size, span[1]))
            sizes = self._sizes.setdefault(s.axis, [])
            outer.append(bounds)
            sizes.append(s.size)
            self.block(s.body)
            sizes.pop()
            outer.pop()

    @contextmanager
    def blocks_of(self, name: str, span: Span, bits: int) -> Iterator[None]:
        """Emit a loop over blocks of 2**bits points; ``<name>_start`` is a block's first point."""
        first, end = span
        count = end if first == ZERO else end - first
        blocks = (count + ((1 << bits) - 1)) >> bits
        with self.loop_over(f"{name}_block", (ZERO, blocks)):
            offset = Name(f"{name}_block") << bits
            self.set(f"{name}_start", offset if first == ZERO else first + offset)
            yield

    def copy(self, s: Copy) -> None:
        copies.copy(self, s, lambda: super(CpuPrinter, self).copy(s))

    def strip_bounds(self, axis: str) -> tuple[Name, Name]:
        """The bounds of the innermost strip of an axis."""
        return self._strips[axis][-1]

    def _over_subranges(
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
        self._over_subranges(axis, self.span(axis), body, after)

    def _over_points(self, s: Reduce, after: Callable[[], None]) -> None:
        """Emit the body of a Reduce and then ``after()`` in loops over its points."""
        if not s.padded:
            self.over_axes(s.axes, s.body, after)
            return
        (name,) = s.axes
        axis = self.axes[name]
        self._over_subranges(axis, self._points(axis, True), s.body, after)

    def boundary_name(self, axis: Axis) -> str:
        """A new name for a boundary at which loops over an axis are split."""
        return f"{axis.name}_border_{next(self._boundary_ids)}"

    def _is_short(self, axis: Axis) -> bool:
        """Whether a loop over an axis should have one vector per iteration."""
        if axis is not self.kernel.axes[-1] or axis.exact is None or self._is_cut:
            return axis.is_short
        fewest = _SHORTEST_VECTORS.get(self.kernel.kind)
        return fewest is not None and axis.exact >= fewest

    # Reductions

    def reduce(self, s: Reduce) -> None:
        functions = combine_functions(s)
        if functions is None:
            if argmax_rows.can_search(self.kernel, s):
                argmax_rows.search(self, s)
            else:
                self.serial_reduce(s)
            return
        running = self.open_running(s, functions)
        if any(fn in ("add", "mul") and o.dtype in FLOATS for fn, o in self.pairs(s, functions)):
            self._blocked_reduce(s, functions)
        else:
            self._over_points(s, lambda: self._accumulate(s, functions))
        self.close_running(running)

    def pairs(self, s: Reduce, functions: Sequence[str]) -> list[tuple[str, Value]]:
        """Pairs of combining function and result, for each value of a Reduce."""
        return list(zip(functions, s.outs, strict=True))

    def open_running(self, s: Reduce, functions: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Assign the initial values of a Reduce; maxima and minima of floats run as integers.

        Returns:
            By the variable of each such result: the variable of the running integer, and
            ``<fn>_<dtype>``.
        """
        self.carry(s.outs, s.init)
        ordered = {}
        for fn, out in self.pairs(s, functions):
            if is_ordered(fn, out):
                target = self.target(out)
                name, kind = f"{target}_order", f"{fn}_{out.dtype}"
                ordered[target] = (name, kind)
                self.set(name, call(f"order_{kind}", Name(target)))
        return ordered

    def close_running(self, ordered: dict[str, tuple[str, str]]) -> None:
        """Convert running integers back to floats."""
        for out, (name, kind) in ordered.items():
            self.set(out, call(f"unorder_{kind}", Name(name)))

    def _blocked_reduce(self, s: Reduce, functions: tuple[str, ...]) -> None:
        """Emit a Reduce whose float sums are added in blocks along the last axis."""
        sums = {self.target(out): out.dtype for out in self.float_sums(s, functions)}
        totals = {running: Name(f"{running}_total") for running in sums}
        for running, total in totals.items():
            self.set(total.name, Convert("float64", Name(running)))

        def open_block() -> None:
            for running, dtype in sums.items():
                self.set(running, Number(0.0, dtype))

        def close_block() -> None:
            for running, total in totals.items():
                self.set(total.name, total + Convert("float64", Name(running)))

        self._blocks(s, s.axes, open_block, close_block, lambda: self._accumulate(s, functions))
        for running, dtype in sums.items():
            self.set(running, Convert(dtype, totals[running]))

    def float_sums(self, s: Reduce, functions: Sequence[str]) -> list[Value]:
        """The results of a Reduce that are float sums."""
        pairs = zip(s.outs, functions, strict=True)
        return [out for out, fn in pairs if fn == "add" and out.dtype in FLOATS]

    def _blocks(
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
                self._blocks(s, axes[1:], open_block, close_block, accumulate)
            return
        bits = SUM_BLOCK_BITS if self._takes_lanes(axis, s.body) else SERIAL_BLOCK_BITS
        if axis.is_short or (axis.exact is not None and axis.exact <= 1 << bits):
            open_block()
            self._over_subranges(axis, self.span(axis), s.body, accumulate)
            close_block()
            return
        for body, chunk in boundaries.subranges(self, axis, self.span(axis), s.body):
            bits = SUM_BLOCK_BITS if self._takes_lanes(axis, body) else SERIAL_BLOCK_BITS
            with self.block_loop(axis, chunk, bits) as span:
                open_block()
                with self.loop_over(axis.name, span), self.at_point(axis, body):
                    self.block(body)
                    accumulate()
                close_block()

    def _takes_lanes(self, axis: Axis, body: Block) -> bool:
        """Whether LLVM can vectorize a loop over an axis."""
        position = self.kernel.axes.index(axis)
        for statement in statements(body):
            match statement:
                case Load(_, name, offset) | Store(name, _, offset) if name in self._scopes:
                    if offset is not None or self.operands[name].strides[position] is Stride.ANY:
                        return False
                case Apply(outs, fn) if fn in _QUOTIENTS:
                    if fn == "rem" or outs[0].dtype not in FLOATS:
                        return False
                case Reduce() | For() | While():
                    return False
        return True

    @contextmanager
    def block_loop(self, axis: Axis, span: Span, bits: int) -> Iterator[Span]:
        """Emit a loop over blocks of 2**bits points; yields the range of the loop over a block."""
        with self.blocks_of(axis.name, span, bits):
            first = Name(f"{axis.name}_start")
            yield first, call("min_int64", first + (1 << bits), span[1])

    def _accumulate(self, s: Reduce, functions: tuple[str, ...]) -> None:
        for out, new, fn in zip(s.outs, s.body.results, functions, strict=True):
            running, value = self.target(out), self.value(new)
            if fn in ("add", "mul") and out.dtype in FLOATS:
                self.set(running, call(f"accumulate_{fn}_{out.dtype}", Name(running), value))
            elif is_ordered(fn, out):
                name = f"{running}_order"
                self.set(name, ordered_step(fn, out.dtype, name, value))
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
        if operand.name not in self._guarded:
            return None
        function = f"load_{operand.name}_where"
        return call(function, self.pointer(operand.name), offset, where, Name("words"))

    def load_local(self, local: Local, offset: Value | None) -> Expression:
        return call(f"load_{local.dtype}", Name(local.name), self._local_index(local, offset))

    def store_local(self, local: Local, offset: Value | None, value: Expression) -> None:
        index = self._local_index(local, offset)
        self.run(f"store_{local.dtype}", Name(local.name), index, value)

    def _local_index(self, local: Local, offset: Value | None) -> Expression:
        """The index in a local array of the current point, or of an explicit offset."""
        if offset is not None and local.rows == 1:
            return self.value(offset)
        terms: list[Expression] = []
        pitch, cut = 1, local.cut_axes(self.kernel)
        for axis, size in reversed(local.axes):
            index: Expression = Name(axis)
            if axis in cut:
                index = index - self._strips[axis][-1][0]
            terms.insert(0, index if pitch == 1 else index * pitch)
            pitch *= size
        if offset is not None:
            terms.insert(0, self.value(offset))
        return fold(Expression.__add__, terms)
