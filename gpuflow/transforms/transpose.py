"""Transposition of linear programs: from output cotangents to input cotangents.

Tests: tests/transforms/test_transpose.py, tests/control/test_linear_transpose.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.rules import UndefinedPrimal, UnknownOperandError, Zero, is_undefined
from gpuflow.core.trace import thread_state
from gpuflow.ops.zeros import add_tangents


def backward_pass(
    jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Cotangents of the operands that are ``UndefinedPrimal``; None for known ones.

    Equations that do not depend on an unknown are evaluated; the others are transposed in reverse
    order. Cotangents may be ``Zero``.
    """
    known: dict[Var, Any] = dict(safe_zip(jaxpr.constvars, consts))
    for var, value in safe_zip(jaxpr.invars, operands):
        if not is_undefined(value):
            known[var] = value
    pending: dict[Var, Any] = {}
    around = thread_state.source
    try:
        linear_eqns = _evaluate_known(jaxpr, known)
        for atom, cotangent in safe_zip(jaxpr.outvars, cotangents):
            _accumulate(pending, known, atom, cotangent)
        for eqn in reversed(linear_eqns):
            thread_state.source = eqn.source or around
            _transpose_eqn(eqn, known, pending)
    finally:
        thread_state.source = around
    return [
        pending.get(var, Zero(var.aval.tangent())) if is_undefined(value) else None
        for var, value in safe_zip(jaxpr.invars, operands)
    ]


def _evaluate_known(jaxpr: Jaxpr, known: dict[Var, Any]) -> list[Eqn]:
    linear_eqns = []
    for eqn in jaxpr.eqns:
        if all(type(atom) is Literal or atom in known for atom in eqn.inputs):
            values = [_read(known, atom) for atom in eqn.inputs]
            thread_state.source = eqn.source
            outs = eqn.primitive.bind(*values, **eqn.params)
            outs = outs if eqn.primitive.multiple_results else [outs]
            known.update(safe_zip(eqn.outputs, outs))
        else:
            linear_eqns.append(eqn)
    return linear_eqns


def _read(known: dict[Var, Any], atom: Any) -> Any:
    return atom.operand if type(atom) is Literal else known[atom]


def _accumulate(pending: dict[Var, Any], known: dict[Var, Any], atom: Any, value: Any) -> None:
    if value is None or type(value) is Zero or type(atom) is Literal or atom in known:
        return
    pending[atom] = add_tangents(pending[atom], value) if atom in pending else value


def _transpose_eqn(eqn: Eqn, known: dict[Var, Any], pending: dict[Var, Any]) -> None:
    cotangents = [pending.pop(var, Zero(var.aval.tangent())) for var in eqn.outputs]
    if all(type(cotangent) is Zero for cotangent in cotangents):
        return
    if eqn.primitive.derivatives.transpose is None:
        raise NotImplementedError(
            f"[{eqn.primitive.name}] reverse-mode differentiation needs a transpose rule; got a "
            f"primitive without one{f', used at {eqn.source}' if eqn.source else ''}. "
            "Fix: use jvp or jacfwd, or wrap the call in custom_vjp."
        )
    operands = [
        _read(known, atom) if type(atom) is Literal or atom in known else UndefinedPrimal(atom.aval)
        for atom in eqn.inputs
    ]
    out_cotangents = cotangents if eqn.primitive.multiple_results else cotangents[0]
    try:
        results = eqn.primitive.derivatives.transpose(out_cotangents, *operands, **eqn.params)
    except UnknownOperandError as error:
        raise _not_linear(eqn, operands) from error
    for atom, operand, result in safe_zip(eqn.inputs, operands, results):
        if is_undefined(operand):
            if result is None and operand.aval.tangent().dtype != dtypes.float0:
                raise _not_linear(eqn, operands)
            _check_cotangent(eqn, operand, result)
            _accumulate(pending, known, atom, result)


def _not_linear(eqn: Eqn, operands: Sequence[Any]) -> TypeError:
    location = f", used at {eqn.source}" if eqn.source else ""
    types = ", ".join(
        f"{'unknown ' if is_undefined(x) else ''}{atom.aval}"
        for x, atom in safe_zip(operands, eqn.inputs)
    )
    return TypeError(
        f"[{eqn.primitive.name}] transposition needs an op that is linear in its unknown operands "
        f"together; got {types}{location}. Fix: transpose a linear function, or use grad, vjp or "
        "jacrev."
    )


def _check_cotangent(eqn: Eqn, operand: UndefinedPrimal, cotangent: Any) -> None:
    if cotangent is None or type(cotangent) is Zero:
        return
    got = aval_of(cotangent)
    want = operand.aval.tangent()
    if want.dtype != dtypes.float0 and (got.shape, got.dtype) != (want.shape, want.dtype):
        raise TypeError(
            f"[{eqn.primitive.name}] a cotangent must match its operand {want}; got {got}: "
            "the transpose rule is wrong."
        )
