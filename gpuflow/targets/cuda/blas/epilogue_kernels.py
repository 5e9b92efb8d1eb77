"""Detection of kernels that are epilogues of a GEMM, by their results.

Names are not used: a kernel's functions must be few and of certain kinds, and it must give the
values of the epilogue on a grid of numbers, in the interpreter that defines the meaning of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.lowering.call_layout import distances_of, sizes_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.kir import nodes
from gpuflow.kir.interpret import run, scalar_from_word
from gpuflow.kir.nodes import Block, Kernel, Mode, Statement
from gpuflow.kir.walk import is_whole, statements
from gpuflow.targets.cuda.blas.activations import EXACT, SMOOTH, derivative_of, value_of

_GRID = np.arange(-64, 65) / 8.0
# A kernel that is limited somewhere is like gelu on the grid only.
_FAR = np.concatenate([_GRID, np.outer([-1.0, 1.0], 2.0 ** np.arange(4, 101, 4)).ravel()])
_BIASES = np.array([0.5, -1.25, 0.0, 2.0])
_TOLERANCE = 1e-5  # of float32: a few units in the last place of sums

Values = Mapping[int, np.ndarray]


@record
class MatrixKernel:
    """A kernel over the elements of matrices of one shape and dtype; buffers by number.

    Attributes:
        call: its only call.
        dtype: of all that it reads and writes.
        matrices, rows: its operands: with all elements, and with one for each column.
        writes, written_rows: the same for its outputs.
    """

    call: KernelCall
    dtype: np.dtype
    matrices: tuple[int, ...]
    rows: tuple[int, ...]
    writes: tuple[int, ...]
    written_rows: tuple[int, ...]


def matrix_kernel(call: KernelCall, m: int, n: int, dtype: np.dtype) -> MatrixKernel | None:
    """A call as a kernel over matrices of m rows and n columns; None where it is another kind."""
    kernel = call.kernel
    axes = [axis.name for axis in kernel.axes]
    sizes, distances = sizes_of(call), distances_of(kernel)
    if [sizes[axis] for axis in axes] not in ([m, n], [m * n]):
        return None
    whole, along = ([n, 1], [0, 1]) if len(axes) == 2 else ([1], None)
    buffers_by_form: dict[tuple[Mode, bool], list[int]] = {}
    for place, operand in enumerate(kernel.operands):
        if operand.mode is Mode.SCALAR:
            continue
        buffer = call.buffers[place]
        strides = [distances[operand.name, axis].within(call.words) for axis in axes]
        lies_whole = buffer != NO_BUFFER and call.words[place] == 0
        is_known = operand.mode in (Mode.IN, Mode.OUT) and strides in (whole, along)
        if operand.dtype != dtype.name or not lies_whole or not is_known:
            return None
        buffers_by_form.setdefault((operand.mode, strides == whole), []).append(buffer)
    groups = [
        tuple(buffers_by_form.get((mode, is_matrix), ()))
        for mode in (Mode.IN, Mode.OUT)
        for is_matrix in (True, False)
    ]
    buffers = [buffer for group in groups for buffer in group]
    several = len(set(buffers)) < len(buffers) or len(groups[1]) > 1 or len(groups[3]) > 1
    return None if several else MatrixKernel(call, dtype, *groups)


def forward_values(
    reader: MatrixKernel, product: int, activation: str, out: int,
    back: MatrixKernel | None = None,
) -> Values | None:
    """The values of a kernel on the grid, if ``out`` is the activation of product and bias.

    Args:
        reader: reads the product alone, besides a bias.
        product: the buffer of the product.
        activation: "", "relu" or "gelu".
        out: one of the buffers that it writes.
        back: the kernel that may be its way back, by which the grid is selected too.

    Returns:
        All that it writes, by buffer; None where ``out`` is something else.
    """
    if reader.matrices != (product,) or not _is_of_kind(reader, activation):
        return None
    readers = (reader,) if back is None else (reader, back)
    z, inputs = _samples(reader, product, _grid(activation, readers), _columns(reader))
    values = _run(reader, inputs)
    is_same = _is_close(values[out], value_of(activation, z, reader.dtype))
    return values if is_same else None


def is_way_back(
    reader: MatrixKernel, product: int, source: int, activation: str, forward: MatrixKernel,
    values: Values,
) -> bool:
    """Whether a kernel multiplies ``source`` by the activation's derivative, and adds rows up.

    Args:
        reader: reads ``product``, ``source`` and the outputs of a forward kernel.
        product, source: buffers.
        activation: "relu" or "gelu".
        forward: the kernel that computes the activation.
        values: its outputs on the grid.
    """
    if not _is_of_kind(reader, activation):
        return False
    # A kernel over all elements in one axis takes rows of any length.
    columns = _columns(forward if len(reader.call.kernel.axes) == 1 else reader)
    z, inputs = _samples(reader, product, _grid(activation, (forward, reader)), columns)
    if any(array.shape != z.shape for array in values.values()):
        return False
    gradient = np.random.default_rng(0).integers(-16, 17, z.shape) / 8.0
    kept = {buffer: array for buffer, array in values.items() if buffer in reader.matrices}
    outs = _run(reader, {**inputs, **kept, source: gradient})
    want = derivative_of(activation, z, reader.dtype) * gradient
    return _is_close(outs[reader.writes[0]], want) and all(
        _is_close(outs[buffer], want.sum(0), np.abs(want).sum(0))
        for buffer in reader.written_rows
    )


def _is_of_kind(reader: MatrixKernel, activation: str) -> bool:
    """Whether a kernel's functions are such that it is known by its values on the grid."""
    kernel = reader.call.kernel
    allowed = EXACT.get(activation, SMOOTH) | {_rounding(reader)}
    has_scalars = any(operand.mode is Mode.SCALAR for operand in kernel.operands)
    return (activation == "gelu" or not has_scalars) and all(
        _is_allowed(statement, allowed, activation) for statement in statements(kernel.body)
    )


def _is_allowed(statement: Statement, allowed: frozenset[str], activation: str) -> bool:
    match statement:
        case nodes.Apply():
            return statement.fn in allowed
        case nodes.Select():
            return activation == "relu"
        case nodes.Const():
            return activation != "relu" or statement.value == 0
        case nodes.Load() | nodes.Store():
            return is_whole(statement)
        case nodes.Reduce():
            combine = statement.combine.body
            return [s.fn for s in combine if isinstance(s, nodes.Apply)] == ["add"]
    return isinstance(statement, nodes.For)


def _rounding(reader: MatrixKernel) -> str:
    """The function that rounds to the dtype that a kernel reads and writes.

    A GEMM rounds once, at the end: the same, except for the kernel's earlier roundings.
    """
    return f"round_{reader.dtype.name}"


def _grid(activation: str, readers: tuple[MatrixKernel, ...]) -> np.ndarray:
    applied = {
        statement.fn
        for reader in readers
        for statement in statements(reader.call.kernel.body)
        if isinstance(statement, nodes.Apply)
    }
    return _FAR if activation == "gelu" and applied & {"max", "min"} else _GRID


def _columns(reader: MatrixKernel) -> int:
    """The length of the rows on which a kernel is tried."""
    axes = reader.call.kernel.axes
    return 1 if len(axes) == 1 else axes[-1].exact or len(_BIASES)


def _samples(
    reader: MatrixKernel, product: int, grid: np.ndarray, columns: int
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Numbers before the activation, and the operands that make them."""
    biases = np.resize(_BIASES, columns) if reader.rows else np.zeros(columns)
    z = np.repeat(grid[:, None], columns, 1)
    return z, {product: z - biases, **dict.fromkeys(reader.rows, biases)}


def _run(reader: MatrixKernel, inputs: Values) -> dict[int, np.ndarray]:
    """The kernel's outputs for operands by buffer, in float32 throughout."""
    call = reader.call
    kernel = _in_float32(call.kernel, _rounding(reader))
    rows, columns = next(a.shape for a in inputs.values() if a.ndim == 2)
    arrays: dict[str, Any] = {}
    outs: dict[int, np.ndarray] = {}
    for place, operand in enumerate(kernel.operands):
        buffer = call.buffers[place]
        if operand.mode is Mode.SCALAR:
            arrays[operand.name] = scalar_from_word(operand.dtype, call.words[place])
        elif operand.mode is Mode.OUT:
            shape = (columns,) if buffer in reader.written_rows else (rows, columns)
            arrays[operand.name] = outs[buffer] = np.zeros(shape, np.float32)
        else:
            arrays[operand.name] = np.ascontiguousarray(inputs[buffer], np.float32)
    names = [axis.name for axis in kernel.axes]
    sizes = (rows, columns) if len(names) == 2 else (rows * columns,)
    strides = {(operand.name, names[0]): columns for operand in kernel.operands}
    run(kernel, arrays, dict(zip(names, sizes, strict=True)), strides)
    return {buffer: array.astype(np.float64) for buffer, array in outs.items()}


def _in_float32(kernel: Kernel, rounding: str) -> Kernel:
    """The kernel on float32 in memory, without roundings on the way."""
    operands = tuple(
        [o if o.mode is Mode.SCALAR else replace(o, dtype="float32") for o in kernel.operands]
    )
    return replace(kernel, operands=operands, body=_unrounded(kernel.body, rounding))


def _unrounded(block: Block, rounding: str) -> Block:
    body: list[Statement] = []
    for statement in block.body:
        if isinstance(statement, nodes.Apply) and statement.fn == rounding:
            body.append(nodes.Cast(statement.outs[0], statement.args[0]))
        elif isinstance(statement, nodes.For | nodes.Reduce):
            body.append(replace(statement, body=_unrounded(statement.body, rounding)))
        else:
            body.append(statement)
    return replace(block, body=tuple(body))


def _is_close(got: np.ndarray, want: np.ndarray, scale: np.ndarray | None = None) -> bool:
    scale = np.abs(want) if scale is None else scale
    return bool(np.all(np.abs(got - want) <= _TOLERANCE * (1 + scale)))
