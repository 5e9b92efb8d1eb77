"""Two-pass reductions: split a long reduction into chunks, then combine the partial results.

A launch is parallel over the first PARALLEL axis. A full reduction has none, and a reduction to few
columns has a short one. Such a kernel becomes two ordinary kernels:

    partial   the same kernel with an additional PARALLEL axis: item k reduces chunk k of the first
              reduced axis, and stores the partial result in scratch memory
    combine   reduces the partial results in order, and applies the epilogue

Targets decide which calls are split: ``codegen/schedules/split_reductions.py`` of each.

Tests: tests/compiler/test_split_reductions.py, tests/targets/cuda/test_gpu_splits.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuflow.base.records import record
from gpuflow.kir.nodes import (
    Axis,
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
    memoized,
)
from gpuflow.kir.walk import live_statements, results_of, statements, value_numbers_used

CHUNK_AXIS = "part"  # in the text of kernels


@record
class SplitKernels:
    """The two kernels of a reduction.

    Attributes:
        partial: the kernel that reduces each chunk.
        combine: the kernel that combines the partial results of the chunks, in order.
        split_axis: name of the reduced axis that is split into chunks, the outermost of them.
        retained: names of the axes that are not reduced, from the outermost.
        scratch: operands of both kernels that hold partial results, one for each reduced value.
    """

    partial: Kernel
    combine: Kernel
    split_axis: str
    retained: tuple[str, ...]
    scratch: tuple[Operand, ...]


@record
class _OnePass:
    """The innermost body of a one-pass reduction.

    Attributes:
        before: statements that depend on no reduction.
        reductions: the reductions, which are independent.
        after: stores, and statements that depend on reductions: the epilogue.
    """

    before: tuple[Statement, ...]
    reductions: tuple[Reduce, ...]
    after: tuple[Statement, ...]


def split_kernel(kernel: Kernel) -> SplitKernels | None:
    """The two kernels of a reduction; None if it is not one pass, or ``split_axis`` is exact."""
    return memoized(kernel, _split_kernel)


def _split_kernel(kernel: Kernel) -> SplitKernels | None:
    one_pass = _one_pass(_innermost(kernel.body))
    if one_pass is None:
        return None
    reduced = {axis for reduce in one_pass.reductions for axis in reduce.axes}
    split_axis = next(axis for axis in kernel.axes if axis.name in reduced)
    if split_axis.exact is not None:
        return None
    retained = tuple(axis for axis in kernel.axes if axis.name not in reduced)
    results = [out for reduce in one_pass.reductions for out in reduce.outs]
    scratch = tuple(
        Operand(f"{CHUNK_AXIS}{k}", out.dtype, Mode.OUT) for k, out in enumerate(results)
    )
    return SplitKernels(
        _partial_kernel(kernel, one_pass, scratch, retained),
        _combine_kernel(kernel, one_pass, scratch, retained),
        split_axis.name,
        tuple(axis.name for axis in retained),
        scratch,
    )


def is_one_pass(kernel: Kernel) -> bool:
    """Whether no loop over the reduced axes needs the result of another one."""
    return memoized(kernel, _is_one_pass)


def _is_one_pass(kernel: Kernel) -> bool:
    return _one_pass(_innermost(kernel.body)) is not None


def _innermost(block: Block) -> Block:
    """The body of the loops over retained axes."""
    last = block.body[-1] if block.body else None
    if isinstance(last, For) and last.axis is not None:
        return _innermost(last.body)
    return block


def _one_pass(block: Block) -> _OnePass | None:
    """The body in three sections; None if it has a loop, dependent reductions, or no reduction."""
    before: list[Statement] = []
    reductions: list[Reduce] = []
    after: list[Statement] = []
    dependent: set[int] = set()
    for statement in block.body:
        is_dependent = bool(value_numbers_used(statement) & dependent)
        if isinstance(statement, For) or (is_dependent and isinstance(statement, Reduce)):
            return None
        if isinstance(statement, Reduce):
            reductions.append(statement)
        elif is_dependent or isinstance(statement, Store):
            after.append(statement)
        else:
            before.append(statement)
            continue
        dependent |= {value.number for value in results_of(statement)}
    return _OnePass(tuple(before), tuple(reductions), tuple(after)) if reductions else None


def _partial_kernel(
    kernel: Kernel, one_pass: _OnePass, scratch: Sequence[Operand], retained: Sequence[Axis]
) -> Kernel:
    """The kernel of chunks: the original loops inside a loop over chunks."""
    results = [out for reduce in one_pass.reductions for out in reduce.outs]
    stores = [Store(operand.name, out) for operand, out in zip(scratch, results, strict=True)]
    body = _rebuilt(kernel.body, [*one_pass.before, *one_pass.reductions, *stores])
    body = Block(body=(For(CHUNK_AXIS, body),))
    # The extent of a retained axis is multiplied if rows are grouped (Cut.group).
    kernel_axes = [replace(axis, exact=None) if axis in retained else axis for axis in kernel.axes]
    axes = (Axis(CHUNK_AXIS, Role.PARALLEL), *kernel_axes)
    reduced_names = {axis.name for axis in kernel.axes} - {axis.name for axis in retained}
    split_position = next(k for k, axis in enumerate(kernel.axes) if axis.name in reduced_names)
    operands = []
    stored = {s.operand for s in statements(body) if isinstance(s, Store)}
    for operand in _used_operands(kernel.operands, body):
        strides = _padded_strides(operand, len(kernel.axes))
        first = Stride.ZERO if strides[split_position] is Stride.ZERO else Stride.ANY
        # An operand that is overwritten after the reductions is only read here.
        is_read = operand.mode is Mode.INOUT and operand.name not in stored
        mode = Mode.IN if is_read else operand.mode
        operands.append(replace(operand, mode=mode, strides=(first, *strides)))
    operands += _scratch_operands(scratch, axes, retained, Mode.OUT)
    kind = "column" if kernel.kind == "column" else "row"
    return Kernel(
        f"{kernel.name}_parts", axes, tuple(operands), body, index_bits=kernel.index_bits, kind=kind
    )


def _combine_kernel(
    kernel: Kernel, one_pass: _OnePass, scratch: Sequence[Operand], retained: Sequence[Axis]
) -> Kernel:
    """The kernel that reduces partial results, followed by the epilogue of the original."""
    next_id = 1 + max(value.number for s in statements(kernel.body) for value in _defined(s))
    scratch_operands = iter(scratch)
    reductions = []
    for reduce in one_pass.reductions:
        values = [Value(next_id + k, out.dtype) for k, out in enumerate(reduce.outs)]
        next_id += len(values)
        loads = tuple(Load(value, next(scratch_operands).name) for value in values)
        body = Block(body=loads, results=tuple(values))
        reductions.append(replace(reduce, axes=(CHUNK_AXIS,), body=body))
    body = _rebuilt(kernel.body, [*one_pass.before, *reductions, *one_pass.after])
    axes = (Axis(CHUNK_AXIS, Role.REDUCE), *(replace(axis, exact=None) for axis in retained))
    positions = [kernel.axes.index(axis) for axis in retained]
    operands = []
    for operand in _used_operands(kernel.operands, body):
        strides = _padded_strides(operand, len(kernel.axes))
        combine_strides = (Stride.ZERO, *(strides[position] for position in positions))
        operands.append(replace(operand, strides=combine_strides))
    operands += _scratch_operands(scratch, axes, retained, Mode.IN)
    kind = "column" if retained else "full"
    return Kernel(
        f"{kernel.name}_combine",
        axes,
        tuple(operands),
        body,
        index_bits=kernel.index_bits,
        kind=kind,
    )


def _defined(statement: Statement) -> tuple[Value, ...]:
    """The values that a statement defines, with the parameters of its blocks."""
    if isinstance(statement, Reduce):
        return (*statement.outs, *statement.combine.params, *statement.body.params)
    return results_of(statement)


def _rebuilt(block: Block, innermost: Sequence[Statement]) -> Block:
    """The loops over retained axes with another innermost body; drops dead statements."""
    last = block.body[-1]
    if isinstance(last, For) and last.axis is not None:
        loop = replace(last, body=_rebuilt(last.body, innermost))
        return Block(body=live_statements([*block.body[:-1], loop]))
    return Block(body=live_statements(innermost))


def _used_operands(operands: Iterable[Operand], body: Block) -> list[Operand]:
    names = {s.operand for s in statements(body) if isinstance(s, Load | Store)}
    return [operand for operand in operands if operand.name in names]


def _padded_strides(operand: Operand, count: int) -> tuple[Stride, ...]:
    return (*operand.strides, *[Stride.ZERO] * (count - len(operand.strides)))


def _scratch_operands(
    scratch: Sequence[Operand], axes: Sequence[Axis], retained: Sequence[Axis], mode: Mode
) -> list[Operand]:
    names = {CHUNK_AXIS, *(axis.name for axis in retained)}
    strides = [Stride.ANY if axis.name in names else Stride.ZERO for axis in axes]
    if axes[-1].name in names:
        strides[-1] = Stride.UNIT
    return [replace(operand, mode=mode, strides=tuple(strides)) for operand in scratch]
