"""Split a row kernel into its phases: a kernel for each reduction, and one for the final loop.

    for each row:                       top = max(x)
        top = max(x)                    total = sum(exp(x - top))
        total = sum(exp(x - top))       for each element: ...
        for each element: ...

Results of reductions go through scratch memory. If there are few rows, a separate kernel for each
phase can use more threads than there are rows.
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
from gpuflow.kir.walk import all_uses, needed, results_of, statements

RESULT = "result"  # prefix of operands that hold results of reductions; in the text of kernels


@record
class Phases:
    """The kernels of the phases, in order of execution.

    Attributes:
        kernels: reductions, then a map if elements of rows are stored.
        rows: names of the axes over rows: each point is one row.
        results: scratch operands that hold results of reductions, in any of the kernels.
    """

    kernels: tuple[Kernel, ...]
    rows: tuple[str, ...]
    results: tuple[Operand, ...]


def phases_of(kernel: Kernel, rows_stay: bool) -> Phases | None:
    """The phases of a row kernel; None if it has a single loop or cannot be split.

    Args:
        kernel: a kernel of kind row.
        rows_stay: whether each phase handles all rows. If not, it handles one row, and its
            reductions are full reductions.
    """
    rows = tuple(axis.name for axis in kernel.axes if axis.role is Role.PARALLEL)
    along = tuple(axis.name for axis in kernel.axes if axis.role is not Role.PARALLEL)
    if any(o.mode is Mode.INOUT and not _varies(kernel, o, along) for o in kernel.operands):
        return None  # a later phase would read elements that an earlier one has overwritten
    items = tuple(_flat(kernel.body, rows))
    loops = [s for s in items if isinstance(s, For)]
    stages = _stages(items)
    is_supported = all(isinstance(s, Reduce) or s in loops for s in items if _has_blocks(s))
    if not is_supported or len(loops) > 1 or len(stages) + len(loops) < 2:
        return None
    if any(s.axes != along for stage in stages for s in stage):
        return None
    strides = _result_strides(kernel, rows) if rows_stay else ()
    results = {
        out: Operand(f"{RESULT}{out.number}", out.dtype, Mode.OUT, strides)
        for stage in stages
        for reduce in stage
        for out in reduce.outs
    }
    stores = [s for s in items if isinstance(s, Store)]
    builder = _Builder(kernel, rows if rows_stay else (), along, tuple(results.values()))
    kernels, loaded = [], {}
    for index, stage in enumerate(stages):
        roots = [*stage, *(stores if index == len(stages) - 1 else [])]
        outputs = {out: results[out].name for reduce in stage for out in reduce.outs}
        kernels.append(builder.reduction(index, _body(items, loaded, roots, outputs)))
        loaded.update(outputs)
    if loops:
        kernels.append(builder.map(len(stages), _body(items, loaded, loops, {})))
    return Phases(tuple(kernels), rows, tuple(results.values()))


def _result_strides(kernel: Kernel, rows: Sequence[str]) -> tuple[Stride, ...]:
    return tuple(Stride.ANY if axis.name in rows else Stride.ZERO for axis in kernel.axes)


def _varies(kernel: Kernel, operand: Operand, axes: Sequence[str]) -> bool:
    pairs = zip(kernel.axes, operand.strides, strict=False)
    return any(axis.name in axes and stride is not Stride.ZERO for axis, stride in pairs)


def _flat(block: Block, rows: Sequence[str]) -> Iterator[Statement]:
    """The statements of one row: the body without the loops over rows."""
    for statement in block.body:
        if isinstance(statement, For) and statement.axis in rows:
            yield from _flat(statement.body, rows)
        else:
            yield statement


def _has_blocks(statement: Statement) -> bool:
    return len(list(statements(Block(body=(statement,))))) > 1


def _stages(items: Sequence[Statement]) -> list[list[Reduce]]:
    """Reductions in order, grouped: those of one stage are independent, and share a phase."""
    stages: list[list[Reduce]] = []
    dependent: set[int] = set()  # values that depend on the last stage
    for statement in items:
        is_dependent = bool(all_uses(statement) & dependent)
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
    items: Sequence[Statement],
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
    selected = [s for s in items if not isinstance(s, Reduce | For | Store) or s in roots]
    stores = [Store(name, out) for out, name in outputs.items()]
    return Block(body=needed([*loads, *selected, *stores]))


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
    rows: tuple[str, ...]
    along: tuple[str, ...]
    results: tuple[Operand, ...]

    def reduction(self, index: int, body: Block) -> Kernel:
        kind = "row" if self.rows else "full"
        return self._kernel(index, self._in_loops(body), Role.REDUCE, kind)

    def map(self, index: int, body: Block) -> Kernel:
        # By convention, a map has no statements outside its innermost loop.
        body = _innermost(body) if self.rows else body
        return self._kernel(index, self._in_loops(body), Role.PARALLEL, "map")

    def _in_loops(self, body: Block) -> Block:
        for axis in reversed(self.rows):
            body = Block(body=(For(axis, body),))
        return body

    def _kernel(self, index: int, body: Block, role: Role, kind: str) -> Kernel:
        kernel, axis_names = self.kernel, {*self.rows, *self.along}
        axes = tuple(
            replace(axis, role=role) if axis.name in self.along else axis
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
