"""Transformation rules shared by call primitives: those that hold one program.

Each rule derives a program and binds the same primitive again by ``bind(program, operands)``, which
converts the program's constants to leading operands.

Tests: tests/control/test_control_nesting.py, tests/control/test_refs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.rules import AxisData, UndefinedPrimal, Uniform, Zero, is_undefined
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.transforms.batching import batch_jaxpr_dims
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.transpose import backward_pass

Bind = Callable[[ClosedJaxpr, Sequence[Any]], list[Any]]


def result_types(op: str, avals: Sequence[ShapedArray], jaxpr: ClosedJaxpr) -> list[ShapedArray]:
    """The shape rule: operands must have the types for which the program was traced.

    Raises:
        TypeError: if they do not.
    """
    check_types(op, "operands", avals, jaxpr.in_avals)
    return jaxpr.out_avals


def check_types(
    op: str, what: str, avals: Sequence[ShapedArray], expected: Sequence[ShapedArray]
) -> None:
    """Check that shapes and dtypes are those that a program expects.

    Raises:
        TypeError: if they differ, for example in a forged program that was read from a file.
    """
    if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in expected]:
        raise TypeError(
            f"[{op}] {what} must match the traced types; got {', '.join(map(str, avals))} for "
            f"{', '.join(map(str, expected))}. Fix: the rule that bound this equation; programs "
            "cannot cause it."
        )


def jvp(
    bind: Bind, jaxpr: ClosedJaxpr, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The jvp rule: results and their tangents."""
    nonzeros = tuple(type(tangent) is not Zero for tangent in tangents)
    derivative, out_nonzeros = jvp_jaxpr(jaxpr, nonzeros, False)
    nonzero_tangents = [tangent for tangent in tangents if type(tangent) is not Zero]
    results = bind(derivative, [*primals, *nonzero_tangents])
    count = len(jaxpr.out_avals)
    out_tangents = iter(results[count:])
    return results[:count], [
        next(out_tangents) if nonzero else Zero(aval.tangent())
        for nonzero, aval in safe_zip(out_nonzeros, jaxpr.out_avals)
    ]


def transpose(
    bind: Bind, jaxpr: ClosedJaxpr, cotangents: Sequence[Any], operands: Sequence[Any]
) -> list[Any]:
    """The transpose rule: a cotangent for each undefined operand, None for each known one."""
    undefined = tuple(is_undefined(operand) for operand in operands)
    nonzeros = tuple(type(cotangent) is not Zero for cotangent in cotangents)
    backward, out_nonzeros = backward_jaxpr(jaxpr, undefined, nonzeros)
    known = [operand for operand in operands if not is_undefined(operand)]
    nonzero_cotangents = [cotangent for cotangent in cotangents if type(cotangent) is not Zero]
    in_cotangents = bind(backward, [*known, *nonzero_cotangents])
    return operand_cotangents(operands, in_cotangents, out_nonzeros)


def operand_cotangents(
    operands: Sequence[Any], in_cotangents: Iterable[Any], nonzeros: Iterable[bool]
) -> list[Any]:
    """The cotangents of undefined operands, with None for each known operand.

    Args:
        operands: the operands of the transposed equation.
        in_cotangents: the nonzero cotangents, in order.
        nonzeros: for each undefined operand, whether its cotangent is in ``in_cotangents``.
    """
    remaining, nonzero = iter(in_cotangents), iter(nonzeros)
    results: list[Any] = []
    for operand in operands:
        if not is_undefined(operand):
            results.append(None)
        else:
            results.append(next(remaining) if next(nonzero) else Zero(operand.aval.tangent()))
    return results


def backward_jaxpr(
    jaxpr: ClosedJaxpr, undefined: tuple[bool, ...], nonzeros: tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """``(*known operands, *nonzero cotangents) -> nonzero operand cotangents``."""
    return jaxpr.jaxpr.memo(
        ("transpose", undefined, nonzeros), lambda: _make_backward(jaxpr, undefined, nonzeros)
    )


def _make_backward(
    jaxpr: ClosedJaxpr, undefined: tuple[bool, ...], nonzeros: tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    from_avals = [aval for aval, flag in safe_zip(jaxpr.in_avals, undefined) if not flag]
    out_nonzeros: list[bool] = []

    def backward(*values: Any) -> list[Any]:
        known = iter(values[: len(from_avals)])
        nonzero_cotangents = iter(values[len(from_avals) :])
        operands = [
            UndefinedPrimal(aval) if flag else next(known)
            for aval, flag in safe_zip(jaxpr.in_avals, undefined)
        ]
        cotangents = [
            next(nonzero_cotangents) if flag else Zero(aval.tangent())
            for aval, flag in safe_zip(jaxpr.out_avals, nonzeros)
        ]
        results = backward_pass(jaxpr.jaxpr, jaxpr.consts, operands, cotangents)
        input_cotangents = [result for result, flag in safe_zip(results, undefined) if flag]
        out_nonzeros.extend(type(result) is not Zero for result in input_cotangents)
        return [result for result in input_cotangents if type(result) is not Zero]

    ct_avals = [aval.tangent() for aval, flag in safe_zip(jaxpr.out_avals, nonzeros) if flag]
    result, consts = trace_to_jaxpr(backward, [*from_avals, *ct_avals])
    return ClosedJaxpr(result, tuple(consts)), tuple(out_nonzeros)


def batch(
    bind: Bind,
    jaxpr: ClosedJaxpr,
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
) -> tuple[list[Any], list[int | Uniform | None]]:
    """The batch rule: results for mapped operands, and their batch axes."""
    mapped, out_dims = batch_jaxpr_dims(jaxpr, axis, tuple(dim is not None for dim in dims))
    batched = [x if dim is None else move_axis(x, dim, 0) for x, dim in safe_zip(operands, dims)]
    outs = bind(mapped, batched)
    return outs, list(out_dims)
