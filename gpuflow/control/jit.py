"""jit: trace once for each signature, then run a compiled plan.

``jit_p`` holds a jaxpr without constants: closed-over arrays are leading, hidden operands. Its
rules map jaxprs to jaxprs and bind ``jit_p`` again; only ``execute`` meets the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr
from gpuflow.core.key_use import follow_programs
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import Primitive, register
from gpuflow.core.rules import AxisData, UndefinedPrimal, Uniform, Zero, is_undefined
from gpuflow.core.staging import hoist_consts, trace_to_jaxpr
from gpuflow.ops.layout.axes import move_axis
from gpuflow.runtime.execute import executable_of
from gpuflow.transforms.batching import batch_jaxpr_dims
from gpuflow.transforms.checking import Categories, State, checked_jaxpr, split_state
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.linearize import linearize_jaxpr
from gpuflow.transforms.transpose import backward_pass


def close_over(
    jaxpr: Jaxpr, consts: Sequence[Any], name: str, **extra: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Hidden operands and params of a jit equation for a traced program."""
    return list(consts), {"jaxpr": ClosedJaxpr(hoist_consts(jaxpr)), "name": name, **extra}


def bind_program(jaxpr: ClosedJaxpr, name: str, operands: Sequence[Any]) -> list[Any]:
    """Bind a derived program; its constants become hidden operands."""
    consts, params = close_over(jaxpr.jaxpr, jaxpr.consts, name, donated=(), inline=False)
    return jit_p.bind(*consts, *operands, **params)


def _shape(*avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    del params
    for aval, wanted in safe_zip(avals, jaxpr.in_avals):
        if (aval.shape, aval.dtype) != (wanted.shape, wanted.dtype):
            raise TypeError(
                f"[jit] operands must match the traced types; got {aval} for {wanted}. "
                "Fix: the rule that bound this jit; programs cannot cause it."
            )
    return jaxpr.out_avals


def _execute(operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    return executable_of(params["jaxpr"], params["donated"])(operands)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, **params: Any
) -> tuple[list[Any], list[Any]]:
    del params
    nonzeros = tuple(type(tangent) is not Zero for tangent in tangents)
    derivative, out_nonzeros = jvp_jaxpr(jaxpr, nonzeros, False)
    nonzero_tangents = [tangent for tangent in tangents if type(tangent) is not Zero]
    results = bind_program(derivative, f"jvp({name})", [*primals, *nonzero_tangents])
    count = len(jaxpr.out_avals)
    remaining = iter(results[count:])
    out_tangents = [
        next(remaining) if nonzero else Zero(aval.tangent())
        for nonzero, aval in safe_zip(out_nonzeros, jaxpr.out_avals)
    ]
    return results[:count], out_tangents


def _linearize(
    nonzeros: tuple[bool, ...], *primals: Any, jaxpr: ClosedJaxpr, name: str, **params: Any
) -> tuple[Any, ...]:
    del params
    known, linear, out_nonzeros, count = linearize_jaxpr(jaxpr, nonzeros)
    results = bind_program(known, name, primals)
    split = len(results) - count

    def tangent_function(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        return bind_program(ClosedJaxpr(linear), f"linear({name})", [*residuals, *tangents])

    return results[:split], out_nonzeros, results[split:], tangent_function


def _transpose(
    cotangents: Sequence[Any], *operands: Any, jaxpr: ClosedJaxpr, name: str, **params: Any
) -> list[Any]:
    del params
    undefined = tuple(is_undefined(operand) for operand in operands)
    nonzeros = tuple(type(cotangent) is not Zero for cotangent in cotangents)
    backward, out_nonzeros = backward_jaxpr(jaxpr, undefined, nonzeros)
    known = [operand for operand in operands if not is_undefined(operand)]
    nonzero_cotangents = [cotangent for cotangent in cotangents if type(cotangent) is not Zero]
    operands_back = [*known, *nonzero_cotangents]
    in_cotangents = iter(bind_program(backward, f"transpose({name})", operands_back))
    nonzero = iter(out_nonzeros)
    results: list[Any] = []
    for operand in operands:
        if not is_undefined(operand):
            results.append(None)
        else:
            results.append(next(in_cotangents) if next(nonzero) else Zero(operand.aval.tangent()))
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
        kept = [result for result, flag in safe_zip(results, undefined) if flag]
        out_nonzeros.extend(type(result) is not Zero for result in kept)
        return [result for result in kept if type(result) is not Zero]

    ct_avals = [aval.tangent() for aval, flag in safe_zip(jaxpr.out_avals, nonzeros) if flag]
    result, consts = trace_to_jaxpr(backward, [*from_avals, *ct_avals])
    return ClosedJaxpr(result, tuple(consts)), tuple(out_nonzeros)


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    name: str,
    **params: Any,
) -> tuple[list[Any], list[int | Uniform | None]]:
    del params
    batched = tuple(dim is not None for dim in dims)
    mapped, out_dims = batch_jaxpr_dims(jaxpr, axis, batched)
    moved = [
        x if dim is None else move_axis(x, dim, 0) for x, dim in safe_zip(operands, dims)
    ]
    outs = bind_program(mapped, name, moved)
    return outs, list(out_dims)


def _checked(
    categories: Categories, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State | None]:
    jaxpr = params["jaxpr"]
    program, sites = checked_jaxpr(jaxpr, categories)
    outs = bind_program(program, params["name"], operands)
    return split_state(outs, len(jaxpr.out_avals), sites)


def _effects(params: dict[str, Any]) -> frozenset[Any]:
    return params["jaxpr"].effects


jit_p = register(
    Primitive(
        "jit",
        shape=_shape,
        execute=_execute,
        jvp=_jvp,
        linearize=_linearize,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda params: params["jaxpr"]),
        multiple_results=True,
        effects=_effects,
        checked=_checked,
        subjaxprs=lambda params: [params["jaxpr"]],
        keys=follow_programs,
    )
)


def operand_avals(operands: Sequence[Any]) -> tuple[ShapedArray, ...]:
    """The avals of operands, as a jit key."""
    return tuple([aval_of(operand) for operand in operands])
