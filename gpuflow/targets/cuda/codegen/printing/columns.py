"""Printer of column kernels: the threads along a block's y compute one column.

A thread may compute two neighboring columns of 16-bit floats, so that it loads 32 bits at once:

    x_lanes = load_vector_readonly(x, x_at_i0, 2)
    t3 = ...x_lanes[0]...               the first column: lane 0
    t3_lane_1 = ...x_lanes[1]...        the second one: lane 1, with values of its own

The statements of a point are printed once for each lane. Members synchronize once for both. A
column is reduced by the same threads in the same order as with one lane, so results have the same
bits.

Tests: tests/targets/cuda/test_gpu_columns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpuflow.kir.nodes import (
    Axis,
    Block,
    Const,
    Load,
    Mode,
    Reduce,
    Statement,
    Stride,
    Value,
)
from gpuflow.kir.rewrite import defined_values
from gpuflow.targets.cuda.codegen.printing import group_reductions
from gpuflow.targets.cuda.codegen.printing.groups import GroupPrinter
from gpuflow.targets.cuda.codegen.printing.point_printer import Nest
from gpuflow.targets.cuda.codegen.printing.scalar_text import widen
from gpuflow.targets.cuda.codegen.printing.vector_accesses import is_vector_access


class ColumnPrinter(GroupPrinter):
    """Prints a kernel of strategy "column"; a thread computes ``launch.vector_width`` columns."""

    lane = 0  # index of the thread's column for which statements are printed
    lane_values: frozenset[int] = frozenset()  # numbers of values that differ between lanes

    # Points

    def nest_body(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        """Print the statements of a point, for all of a thread's columns."""
        if self.launch.vector_width > 1 and len(nest) == 1 and not self.members_diverge:
            body = nest[0].body
            shared_by_lanes = {s.out for s in body.body if isinstance(s, Const)}
            values = defined_values(body.body) - shared_by_lanes
            self.lane_values = frozenset(value.number for value in values)
            super().nest_body(nest, print_body)
            self.lane_values = frozenset()
            return
        super().nest_body(nest, print_body)

    def statement(self, statement: Statement) -> None:
        if not self.lane_values or self.members_diverge or isinstance(statement, Const):
            super().statement(statement)
            return
        for lane in range(self.launch.vector_width):
            with self._in_lane(lane):
                super().statement(statement)

    def value(self, value: Value) -> str:
        name = super().value(value)
        if not self.lane or value.number not in self.lane_values:
            return name
        # The variable of a bound value has the suffix of its lane already.
        is_bound = value.number in self.values
        return name if is_bound else f"{name}_lane_{self.lane}"

    @contextmanager
    def _in_lane(self, lane: int) -> Iterator[None]:
        """Print statements for one lane: with its variables, and the offsets of its elements."""
        offsets = self.offsets
        self.lane = lane
        if lane:
            self.offsets = {name: self._lane_offset(name, at, lane) for name, at in offsets.items()}
        yield
        self.lane, self.offsets = 0, offsets

    def combine_function(self, s: Reduce) -> str:
        lane_values, self.lane_values = self.lane_values, frozenset()  # all lanes call it
        name = super().combine_function(s)
        self.lane_values = lane_values
        return name

    def _lane_offset(self, name: str, offset: str, lane: int) -> str:
        """The offset of an operand's element ``lane`` columns further, in elements."""
        operand, last = self.operands[name], self.kernel.axes[-1]
        if len(operand.strides) < len(self.kernel.axes) or operand.strides[-1] is Stride.ZERO:
            return offset
        step = str(lane)
        if operand.strides[-1] is Stride.ANY:
            step = self.index_product(self.names.stride(name, last.name), step)
        if operand.mode is Mode.INDEX:
            return f"{offset} + {step}"  # counts in 64 bits
        return self.index_sum(offset, step)

    # Reductions

    def begin_reduces(self, reduces: Sequence[Reduce]) -> None:
        if self.members_diverge:
            assert not reduces  # bodies of distributed loops have no reductions
            return
        for lane in range(self.launch.vector_width):
            with self._in_lane(lane):
                super().begin_reduces(reduces)

    def _combine_iteration(self, reduces: Sequence[Reduce], axes: Sequence[Axis]) -> None:
        if self.launch.vector_width == 1:
            super()._combine_iteration(reduces, axes)
            return
        body_statements = [s for reduce in reduces for s in reduce.body.body]
        loads = [s for s in body_statements if self._is_vector_load(s)]
        with self._at_indices(axes, Block(body=tuple(loads))):
            for name in dict.fromkeys(s.operand for s in loads if isinstance(s, Load)):
                call = f"load_vector_readonly({self.names.operand(name)}, {self.offsets[name]}"
                self.emit(f"{self._lanes_variable(name)} = {call}, {self.launch.vector_width})")
        other_statements = Block(body=tuple(s for s in body_statements if s not in loads))
        for lane in range(self.launch.vector_width):
            with self._in_lane(lane), self._at_indices(axes, other_statements):
                for s in reduces:
                    self.block(s.body)
                    self.combine(s, self.results(s), [self.value(v) for v in s.body.results])

    @contextmanager
    def _at_indices(self, axes: Sequence[Axis], accesses: Block) -> Iterator[None]:
        """Print the offsets of ``accesses`` at the current indices of ``axes``."""
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.at_point(axis, accesses))
            yield

    def _is_vector_load(self, s: Statement) -> bool:
        """Whether a vector load gives the value for all of a thread's columns."""
        return is_vector_access(s, self.kernel) and s.operand in self.launch.vector_operands

    def _lanes_variable(self, name: str) -> str:
        return f"{self.names.operand(name)}_lanes"

    def _load(self, s: Load) -> None:
        if self.members_diverge and self.launch.vector_width > 1 and self._is_vector_load(s):
            dtype = self.operands[s.operand].dtype
            stored = widen(f"{self._lanes_variable(s.operand)}[{self.lane}]", dtype)
            self.emit(f"{self.value(s.out)} = {stored}")
            return
        super()._load(s)

    def combine_members(self, s: Reduce, reduction: str) -> None:
        if self.launch.vector_width == 1:
            super().combine_members(s, reduction)
            return
        assert self.may_synchronize, self.kernel.name
        combine, dtypes = self.combine_function(s), [out.dtype for out in s.outs]
        text = group_reductions.column_reduction(combine, dtypes, self.launch.vector_width)
        self.add_helper(f"{reduction}_{combine}", text)
        shared = [self._shared_memory_array(number, dtype) for number, dtype in enumerate(dtypes)]
        outs: list[str] = []
        for lane in range(self.launch.vector_width):
            with self._in_lane(lane):
                outs += self.results(s)
        self.emit(f"{', '.join(outs)} = {reduction}_{combine}({', '.join([*outs, *shared])})")
