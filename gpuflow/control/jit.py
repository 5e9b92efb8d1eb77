"""``jit_p``, the primitive of a call of a jitted function, and its rules.

``jit_p`` holds a jaxpr without constants: captured arrays are leading operands, called hidden
because the user does not pass them. The rules map jaxprs to jaxprs and bind ``jit_p`` again; only
``execute`` calls the compiler. ``jit_function`` has the object that users call.

Tests: tests/control/test_jit.py, tests/control/test_jit_options.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.control import program_rules
from gpuflow.control.programs import run_program
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr
from gpuflow.core.key_use import follow_programs
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Uniform
from gpuflow.core.staging import hoist_consts
from gpuflow.transforms.checking import Categories, State, checked_jaxpr, split_state
from gpuflow.transforms.linearize import linearize_jaxpr


def close_over(
    jaxpr: Jaxpr, consts: Sequence[Any], name: str, **extra: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Hidden operands and params of a jit equation for a traced program."""
    return list(consts), {"jaxpr": ClosedJaxpr(hoist_consts(jaxpr)), "name": name, **extra}


def bind_program(jaxpr: ClosedJaxpr, name: str, operands: Sequence[Any]) -> list[Any]:
    """Bind a derived program as one equation; its constants become hidden operands."""
    consts, params = close_over(jaxpr.jaxpr, jaxpr.consts, name, donated=(), inline=False)
    return jit_p.bind(*consts, *operands, **params)


def _binding(name: str) -> program_rules.Bind:
    return lambda program, operands: bind_program(program, name, operands)


def _shape(*avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    del params
    return program_rules.result_types("jit", avals, jaxpr)


def _execute(operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    return run_program(params["jaxpr"], params["donated"], operands)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, **params: Any
) -> tuple[list[Any], list[Any]]:
    del params
    return program_rules.jvp(_binding(f"jvp({name})"), jaxpr, primals, tangents)


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
    return program_rules.transpose(_binding(f"transpose({name})"), jaxpr, cotangents, operands)


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
    return program_rules.batch(_binding(name), jaxpr, axis, operands, dims)


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
    make_primitive(
        "jit",
        shape=_shape,
        execute=_execute,
        jvp=_jvp,
        linearize=_linearize,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda _, params: params["jaxpr"]),
        multiple_results=True,
        effects=_effects,
        checked=_checked,
        subjaxprs=lambda params: [params["jaxpr"]],
        keys=follow_programs,
    )
)


def operand_avals(operands: Sequence[Any]) -> tuple[ShapedArray, ...]:
    """The avals of operands, a component of the key of a signature."""
    return tuple([aval_of(operand) for operand in operands])
