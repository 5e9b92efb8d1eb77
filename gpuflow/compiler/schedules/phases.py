"""Split a row kernel into its phases: a kernel for each reduction, and one for the final loop.

    for each row:                       top = max(x)
        top = max(x)                    total = sum(exp(x - top))
        total = sum(exp(x - top))       for each element: ...
        for each element: ...

Results of reductions go through scratch memory. If there are few rows, a separate kernel for each
phase can use more threads than there are rows.

Tests: tests/targets/cpu/test_row_phases.py, tests/targets/cuda/test_gpu_splits.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuflow.base.records import record
from gpuflow.kir.nodes import (
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Statement,
    Store,
    Stride,
    Value,
)
from gpuflow.kir.walk import live_statements, results_of, statements, value_numbers_used

RESULT = "result"  # prefix of operands that hold results of reductions; in the text of kernels


@record
class Phases:
    """The kernels of the phases, in order of execution.

    Attributes:
        kernels: reductions, then a map if elements of rows are stored.
        row_axes: names of the original kernel's axes over rows: each point of them is one row. The
            kernels have them only if ``keeps_rows``.
        results: scratch operands that hold results of reductions, in any of the kernels. A kernel
            has those that it stores or loads.
    """

    kernels: tuple[Kernel, ...]
    row_axes: tuple[str, ...]
    results: tuple[Operand, ...]


def split_into_phases(kernel: Kernel, keeps_rows: bool) -> Phases | None:
    """The phases of a row kernel; None if it has a single loop or cannot be split.

    Args:
        kernel: a kernel of kind row.
        keeps_rows: whether each phase handles all rows. If not, it handles one row, and its
            reductions are full reductions. The caller then offsets the addresses of each row.
    """
    row_axes = tuple(axis.name for axis in kernel.axes if axis.role is Role.PARALLEL)
    inner_axes = tuple(axis.name for axis in kernel.axes if axis.role is not Role.PARALLEL)
    inout = [operand for operand in kernel.operands if operand.mode is Mode.INOUT]
    if any(not _varies_along(kernel, operand, inner_axes) for operand in inout):
        return None  # a later phase would read elements that an earlier one has overwritten
    row_body = tuple(_row_statements(kernel.body, row_axes))
    loops = [s for s in row_body if isinstance(s, For)]
    stages = _reduction_stages(row_body)
    is_supported = all(isinstance(s, Reduce) or s in loops for s in row_body if _is_nested(s))
    if not is_supported or len(loops) > 1 or len(stages) + len(loops) < 2:
        return None
    if any(s.axes != inner_axes for stage in stages for s in stage):
        return None
    strides = _result_strides(kernel, row_axes) if keeps_rows else ()
    results = {
        out: Operand(f"{RESULT}{out.number}", out.dtype, Mode.OUT, strides)
        for stage in stages
        for reduce in stage
        for out in reduce.outs
    }
    stores = [s for s in row_body if isinstance(s, Store)]
    builder = _Builder(kernel, row_axes if keeps_rows else (), inner_axes, tuple(results.values()))
    kernels, loaded = [], {}
    for index, stage in enumerate(stages):
        roots = [*stage, *(stores if index == len(stages) - 1 else [])]
        outputs = {out: results[out].name for reduce in stage for out in reduce.outs}
        kernels.append(builder.reduction(index, _body(row_body, loaded, roots, outputs)))
        loaded.update(outputs)
    if loops:
        kernels.append(builder.map(len(stages), _body(row_body, loaded, loops, {})))
    return Phases(tuple(kernels), row_axes, tuple(results.values()))


def _result_strides(kernel: Kernel, row_axes: Sequence[str]) -> tuple[Stride, ...]:
    return tuple(Stride.ANY if axis.name in row_axes else Stride.ZERO for axis in kernel.axes)


def _varies_along(kernel: Kernel, operand: Operand, axes: Sequence[str]) -> bool:
    pairs = zip(kernel.axes, operand.strides, strict=False)
    return any(axis.name in axes and stride is not Stride.ZERO for axis, stride in pairs)


def _row_statements(block: Block, row_axes: Sequence[str]) -> Iterator[Statement]:
    """The statements of one row, in order: the body without the loops over rows."""
    for statement in block.body:
        if isinstance(statement, For) and statement.axis in row_axes:
            yield from _row_statements(statement.body, row_axes)
        else:
            yield statement


def _is_nested(statement: Statement) -> bool:
    return len(list(statements(Block(body=(statement,))))) > 1


def _reduction_stages(row_body: Sequence[Statement]) -> list[list[Reduce]]:
    """Reductions in order, grouped: those of one stage are independent, and share a phase."""
    stages: list[list[Reduce]] = []
    dependent: set[int] = set()  # values that depend on the last stage
    for statement in row_body:
        is_dependent = bool(value_numbers_used(statement) & dependent)
        if isinstance(statement, Reduce):
            if is_dependent or not stages:
                stages.append([])
                dependent = set()
            stages[-1].append(statement)
            is_dependent = True
        if is_dependent:
            dependent |= {value.number for value in results_of(statement)}
    return stages


def _body(
    row_body: Sequence[Statement],
    loaded: dict[Value, str],
    roots: Sequence[Statement],
    outputs: dict[Value, str],
) -> Block:
    """The body of a phase: its roots and the statements that they depend on.

    Args:
        items: the statements of a row.
        loaded: results of earlier phases, with the operands from which it loads them.
        roots: the reductions, loops and stores of the phase.
        outputs: results of the phase, with the operands to which it stores them.
    """
    loads = [Load(out, name) for out, name in loaded.items()]
    selected = [s for s in row_body if not isinstance(s, Reduce | For | Store) or s in roots]
    stores = [Store(name, out) for out, name in outputs.items()]
    return Block(body=live_statements([*loads, *selected, *stores]))


@record
class _Builder:
    """Builder of the kernels of phases.

    Attributes:
        kernel: the kernel that is split.
        rows: names of the axes over rows that each phase has.
        along: names of the axes along a row.
        results: the scratch operands between phases.
    """

    kernel: Kernel
    row_axes: tuple[str, ...]
    inner_axes: tuple[str, ...]
    results: tuple[Operand, ...]

    def reduction(self, index: int, body: Block) -> Kernel:
        kind = "row" if self.row_axes else "full"
        return self._kernel(index, self._in_loops(body), Role.REDUCE, kind)

    def map(self, index: int, body: Block) -> Kernel:
        # By convention, a map has no statements outside its innermost loop.
        body = _innermost(body) if self.row_axes else body
        return self._kernel(index, self._in_loops(body), Role.PARALLEL, "map")

    def _in_loops(self, body: Block) -> Block:
        for axis in reversed(self.row_axes):
            body = Block(body=(For(axis, body),))
        return body

    def _kernel(self, index: int, body: Block, role: Role, kind: str) -> Kernel:
        kernel, axis_names = self.kernel, {*self.row_axes, *self.inner_axes}
        axes = tuple(
            replace(axis, role=role) if axis.name in self.inner_axes else axis
            for axis in kernel.axes
            if axis.name in axis_names
        )
        positions = [k for k, axis in enumerate(kernel.axes) if axis.name in axis_names]
        accesses = [s for s in statements(body) if isinstance(s, Load | Store)]
        read = {s.operand for s in accesses if isinstance(s, Load)}
        written = {s.operand for s in accesses if isinstance(s, Store)}
        modes = {(True, False): Mode.IN, (False, True): Mode.OUT, (True, True): Mode.INOUT}
        operands = []
        for operand in (*kernel.operands, *self.results):
            if operand.name not in read | written:
                continue
            padded = (*operand.strides, *[Stride.ZERO] * len(kernel.axes))
            mode = operand.mode
            if mode not in (Mode.INDEX, Mode.SCALAR):
                mode = modes[operand.name in read, operand.name in written]
            strides = tuple(padded[position] for position in positions)
            operands.append(replace(operand, mode=mode, strides=strides))
        return Kernel(
            f"{kernel.name}_phase{index}",
            axes,
            tuple(operands),
            body,
            index_bits=kernel.index_bits,
            kind=kind,
        )


def _innermost(body: Block) -> Block:
    """A loop nest with the statements before each loop sunk into the innermost loop."""
    *before, loop = body.body
    if not isinstance(loop, For):
        return body
    nested = replace(loop.body, body=(*before, *loop.body.body))
    return Block(body=(replace(loop, body=_innermost(nested)),))
