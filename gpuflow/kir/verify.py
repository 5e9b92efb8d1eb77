"""The rules of kernels. ``verify`` raises KernelError at the first that is broken.

Tests: tests/kir/test_kir_verify.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gpuflow.kir import nodes
from gpuflow.kir.in_place import overwrite_hazards
from gpuflow.kir.nodes import Block, Kernel, Mode, Operand, Role, Stride, Value
from gpuflow.kir.rules import CHECKS, BlockContext, KernelError, VerifierState, require
from gpuflow.kir.scalar import COMPONENT_DTYPES, COMPUTE_DTYPES, compute_dtype, dtype_kind
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of

__all__ = ["KernelError", "verify", "verify_size_free"]


def verify(kernel: Kernel) -> None:
    """Check that ``kernel`` is well formed; its records must have fields of the declared types.

    Args:
        kernel: any kernel.

    Raises:
        KernelError: names the kernel, the statement and the rule that it breaks.
    """
    _verify_header(kernel)
    has_no_values = not kernel.body.params and not kernel.body.results
    require(has_no_values, kernel, kernel.body, "the body must have no params and no results")
    operands = {operand.name: operand for operand in kernel.operands}
    state = VerifierState(kernel, operands, locals={local.name: local for local in kernel.locals})
    _verify_block(kernel.body, state, BlockContext())
    for hazard in overwrite_hazards(kernel, may_read_again=True):
        require(False, kernel, hazard.access, hazard.rule)


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
    is_reciprocal = abs(inverse - round(inverse)) <= abs(inverse) * float(np.finfo(dtype).eps)
    return not is_reciprocal or abs(inverse) > 2**20


def _verify_header(kernel: Kernel) -> None:
    names = [axis.name for axis in kernel.axes]
    require(len(set(names)) == len(names), kernel, kernel, "axis names must differ")
    names = [operand.name for operand in kernel.operands]
    names += [local.name for local in kernel.locals]
    require(len(set(names)) == len(names), kernel, kernel, "operand names must differ")
    require(kernel.index_bits in (32, 64), kernel, kernel, "index_bits must be 32 or 64")
    one_axis = len(kernel.axes) == 1 or not kernel.segmented
    require(one_axis, kernel, kernel, "a segmented kernel must have exactly one axis")
    are_parallel = [axis.role is Role.PARALLEL for axis in kernel.axes]
    # A column kernel's axes are in the order of memory: its rows come before its columns.
    is_ordered = kernel.kind == "column" or are_parallel == sorted(are_parallel, reverse=True)
    require(is_ordered, kernel, kernel, "PARALLEL axes must come before all others")
    for axis in kernel.axes:
        is_positive = axis.exact is None or axis.exact > 0
        require(is_positive, kernel, axis, "an exact extent must be positive")
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
        has_no_strides = all(stride is Stride.ZERO for stride in operand.strides)
        require(has_no_strides, kernel, operand, "a SCALAR operand must have no strides")
        is_real = operand.dtype not in COMPONENT_DTYPES
        require(is_real, kernel, operand, "a SCALAR operand must be real")
        return
    rule = f"an operand must have one stride class for each of the {len(kernel.axes)} axes"
    require(len(operand.strides) == len(kernel.axes), kernel, operand, rule)
    outer_strides = operand.strides[
        : -1 if len(kernel.axes) < 2 or kernel.axes[-1].exact is None else -2
    ]
    rule = "UNIT must be on the innermost axis only, or on the one around an exact one"
    require(Stride.UNIT not in outer_strides, kernel, operand, rule)


def _verify_block(block: Block, state: VerifierState, context: BlockContext) -> None:
    """Check a block; its definitions are visible to it and to the blocks in it."""
    enclosing_visible = dict(state.dtype_of_visible)
    if context.in_combine:
        state.dtype_of_visible.clear()
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
    state.dtype_of_visible.clear()
    state.dtype_of_visible.update(enclosing_visible)


def _define(values: Iterable[Value], state: VerifierState, node: object) -> None:
    for value in values:
        rule = f"%{value.number} must be defined once"
        require(value.number not in state.defined_numbers, state.kernel, node, rule)
        rule = f"%{value.number} must have a compute dtype"
        require(value.dtype in COMPUTE_DTYPES, state.kernel, node, rule)
        state.defined_numbers.add(value.number)
        state.dtype_of_visible[value.number] = value.dtype


def _use(values: Iterable[Value], state: VerifierState, node: object) -> None:
    for value in values:
        rule = f"%{value.number} must be defined before its use, in this block or around it"
        require(value.number in state.dtype_of_visible, state.kernel, node, rule)
        rule = f"%{value.number} must be used with the dtype of its definition"
        require(state.dtype_of_visible[value.number] == value.dtype, state.kernel, node, rule)


def _owned_contexts(
    statement: nodes.Statement, state: VerifierState, context: BlockContext
) -> list[tuple[Block, BlockContext]]:
    """The blocks of a statement, each with its context."""
    inner = replace(context, parallel_only=False)
    match statement:
        case nodes.Reduce():
            body = replace(inner, open_axes=context.open_axes + statement.axes, in_reduction=True)
            return [(statement.body, body), (statement.combine, replace(inner, in_combine=True))]
        case nodes.While():
            return [(statement.cond, replace(inner, in_condition=True)), (statement.body, inner)]
        case nodes.For(axis=str() as axis):
            role = state.kernel.axes[state.axis_position(axis)].role
            vector = context.vector_axes + ((axis,) if role is Role.VECTOR else ())
            parallel = context.parallel_only and role is Role.PARALLEL
            body = replace(context, open_axes=(*context.open_axes, axis))
            body = replace(body, vector_axes=vector, parallel_only=parallel)
            return [(statement.body, body)]
        case nodes.Strip(axis, size):
            body = replace(context, strips=(*context.strips, (axis, size)))
            return [(statement.body, body)]
    return [(block, inner) for block in owned_blocks(statement)]
