"""The rules of kernels. ``verify`` raises KernelError at the first that is broken."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gpuflow.kir import nodes
from gpuflow.kir.in_place import overwritten_early
from gpuflow.kir.nodes import Block, Kernel, Mode, Operand, Role, Stride, Value
from gpuflow.kir.rules import CHECKS, Context, KernelError, State, require
from gpuflow.kir.scalar import COMPONENT_DTYPES, COMPUTE_DTYPES, compute_dtype, dtype_kind
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of

__all__ = ["KernelError", "verify", "verify_size_free"]


def verify(kernel: Kernel) -> None:
    """Check that ``kernel`` is well formed.

    Args:
        kernel: any kernel.

    Raises:
        KernelError: names the kernel, the statement and the rule that it breaks.
    """
    _verify_header(kernel)
    bare = not kernel.body.params and not kernel.body.results
    require(bare, kernel, kernel.body, "the body must have no params and no results")
    operands = {operand.name: operand for operand in kernel.operands}
    state = State(kernel, operands, locals={local.name: local for local in kernel.locals})
    _verify_block(kernel.body, state, Context())
    for early in overwritten_early(kernel, may_read_again=True):
        require(False, kernel, early.access, early.rule)


def verify_size_free(kernel: Kernel) -> None:
    """Check that no size or user literal is in the kernel's constants.

    Allowed are booleans; 0, 1, -1, 2, 0.5, inf and nan; unsigned integers (bit masks and shift
    counts: sizes are signed); the bounds of a signed dtype; and other floats that are neither
    integers nor reciprocals of integers up to 2**20 (the coefficients of a lowering's polynomial).

    Args:
        kernel: a kernel that ``verify`` accepts.

    Raises:
        KernelError: names the constant.
    """
    for statement in statements(kernel.body):
        if isinstance(statement, nodes.Const):
            require(
                _is_size_free(statement.out.dtype, statement.value),
                kernel,
                statement,
                f"a constant must not hold a size or a literal; got {statement.value!r}. "
                "Fix: pass it as a SCALAR operand",
            )


def _is_size_free(dtype: str, value: bool | int | float) -> bool:
    kind = dtype_kind(dtype)
    if kind in ("bool", "uint") or value in (0, 1, -1, 2, 0.5):
        return True
    if kind == "int":
        bounds = np.iinfo(dtype)
        return value in (bounds.min, bounds.max)
    if not math.isfinite(value):
        return True
    if float(value).is_integer():
        return False
    # A float32 reciprocal is an integer only up to its rounding, which hides large ones.
    inverse = 1 / value
    whole = abs(inverse - round(inverse)) <= abs(inverse) * float(np.finfo(dtype).eps)
    return not whole or abs(inverse) > 2**20


def _verify_header(kernel: Kernel) -> None:
    names = [axis.name for axis in kernel.axes]
    require(len(set(names)) == len(names), kernel, kernel, "axis names must differ")
    names = [operand.name for operand in kernel.operands]
    names += [local.name for local in kernel.locals]
    require(len(set(names)) == len(names), kernel, kernel, "operand names must differ")
    require(kernel.index_bits in (32, 64), kernel, kernel, "index_bits must be 32 or 64")
    one_axis = len(kernel.axes) == 1 or not kernel.segmented
    require(one_axis, kernel, kernel, "a segmented kernel must have exactly one axis")
    parallel = [axis.role is Role.PARALLEL for axis in kernel.axes]
    # A column kernel's axes are in the order of memory: its rows come before its columns.
    ordered = kernel.kind == "column" or parallel == sorted(parallel, reverse=True)
    require(ordered, kernel, kernel, "PARALLEL axes must come before all others")
    for axis in kernel.axes:
        sized = axis.exact is None or axis.exact > 0
        require(sized, kernel, axis, "an exact extent must be positive")
    for operand in kernel.operands:
        _verify_operand(kernel, operand)


def _verify_operand(kernel: Kernel, operand: Operand) -> None:
    try:
        compute_dtype(operand.dtype)
    except ValueError:
        require(False, kernel, operand, "an operand's dtype must be a storage dtype")
    if operand.mode is Mode.INDEX:
        rule = "an INDEX operand must be int64"
        require(operand.dtype == "int64", kernel, operand, rule)
    if operand.mode is Mode.SCALAR:
        still = all(stride is Stride.ZERO for stride in operand.strides)
        require(still, kernel, operand, "a SCALAR operand must have no strides")
        is_real = operand.dtype not in COMPONENT_DTYPES
        require(is_real, kernel, operand, "a SCALAR operand must be real")
        return
    rule = f"an operand must have one stride class for each of the {len(kernel.axes)} axes"
    require(len(operand.strides) == len(kernel.axes), kernel, operand, rule)
    outer = operand.strides[: -1 if len(kernel.axes) < 2 or kernel.axes[-1].exact is None else -2]
    rule = "UNIT must be on the innermost axis only, or on the one around an exact one"
    require(Stride.UNIT not in outer, kernel, operand, rule)


def _verify_block(block: Block, state: State, context: Context) -> None:
    """Check a block; its definitions are visible to it and to the blocks in it."""
    enclosing = dict(state.visible)
    if context.closed:
        state.visible.clear()
    _define(block.params, state, block)
    for statement in block.body:
        rule = "a statement must be a node of kir.nodes"
        require(type(statement) in CHECKS, state.kernel, statement, rule)
        _use(uses_of(statement), state, statement)
        CHECKS[type(statement)](statement, state, context)
        for owned, inner in _owned_contexts(statement, state, context):
            _verify_block(owned, state, inner)
        _define(results_of(statement), state, statement)
    _use(block.results, state, block)
    state.visible.clear()
    state.visible.update(enclosing)


def _define(values: Iterable[Value], state: State, where: object) -> None:
    for value in values:
        rule = f"%{value.number} must be defined once"
        require(value.number not in state.defined, state.kernel, where, rule)
        rule = f"%{value.number} must have a compute dtype"
        require(value.dtype in COMPUTE_DTYPES, state.kernel, where, rule)
        state.defined.add(value.number)
        state.visible[value.number] = value.dtype


def _use(values: Iterable[Value], state: State, where: object) -> None:
    for value in values:
        rule = f"%{value.number} must be defined before its use, in this block or around it"
        require(value.number in state.visible, state.kernel, where, rule)
        rule = f"%{value.number} must be used with the dtype of its definition"
        require(state.visible[value.number] == value.dtype, state.kernel, where, rule)


def _owned_contexts(
    statement: nodes.Statement, state: State, context: Context
) -> list[tuple[Block, Context]]:
    """The blocks of a statement, each with its context."""
    inner = replace(context, parallel_only=False)
    match statement:
        case nodes.Reduce():
            body = replace(inner, axes=context.axes + statement.axes, reducing=True)
            return [(statement.body, body), (statement.combine, replace(inner, closed=True))]
        case nodes.While():
            return [(statement.cond, replace(inner, pure=True)), (statement.body, inner)]
        case nodes.For(axis=str() as axis):
            role = state.kernel.axes[state.axis_position(axis)].role
            vector = context.vector + ((axis,) if role is Role.VECTOR else ())
            parallel = context.parallel_only and role is Role.PARALLEL
            body = replace(
                context, axes=(*context.axes, axis), vector=vector, parallel_only=parallel
            )
            return [(statement.body, body)]
        case nodes.Strip(axis, size):
            body = replace(context, strips=(*context.strips, (axis, size)))
            return [(statement.body, body)]
    return [(block, inner) for block in owned_blocks(statement)]
