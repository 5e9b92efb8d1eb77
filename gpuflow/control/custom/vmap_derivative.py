"""Batching rules for derivatives of a custom_vmap function: derivatives of its batching rule.

A flat rule is ``(axis size, mapped flags, *operands) -> (outs, mapped flags)``, with batch axis 0.
A primal is mapped if and only if its tangent or cotangent is: the derivative of one call of the
rule then has both.

Tests: tests/control/test_custom_vmap.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, evaluate
from gpuflow.core.rules import UndefinedPrimal, Zero
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.jvp import jvp_flat
from gpuflow.transforms.linearize import linearize_flat, linearize_jaxpr
from gpuflow.transforms.transpose import backward_pass

FlatRule = Callable[..., tuple[list[Any], list[bool]]]


def tangent_program(
    call: ClosedJaxpr, nonzeros: tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """``(*operands, *nonzero tangents) -> nonzero out tangents``, and which outputs have tangents.

    The program recomputes the primals: it stores no residuals.
    """

    def make() -> tuple[ClosedJaxpr, tuple[bool, ...]]:
        known, linear, out_nonzeros, count = linearize_jaxpr(call, nonzeros)

        def run(*values: Any) -> list[Any]:
            primals, tangents = values[: len(nonzeros)], values[len(nonzeros) :]
            results = known(*primals)
            return evaluate(linear, (), [*results[len(results) - count :], *tangents])

        tangents = [aval.tangent() for aval, flag in safe_zip(call.in_avals, nonzeros) if flag]
        jaxpr, consts = trace_to_jaxpr(run, [*call.in_avals, *tangents])
        return ClosedJaxpr(jaxpr, tuple(consts)), out_nonzeros

    return call.jaxpr.memo(("custom_vmap tangents", nonzeros), make)


class _TangentRule:
    """Common code of both forward derivatives: primals are mapped together with their tangents.

    Args:
        rule: the batching rule of the function.
        nonzeros: for each operand whether it has a tangent.
        out_nonzeros: for each output whether it has a tangent.
    """

    def __init__(
        self, rule: FlatRule, nonzeros: tuple[bool, ...], out_nonzeros: tuple[bool, ...]
    ) -> None:
        self.rule, self.nonzeros, self.out_nonzeros = rule, nonzeros, out_nonzeros

    def _prepare(
        self, size: int, flags: Sequence[bool], operands: Sequence[Any]
    ) -> tuple[Callable[..., list[Any]], list[bool], list[Any], list[Any]]:
        """Bind the size and flags of a call.

        Returns:
            The rule as a function of primals; its output flags, filled in when it is called;
            primals; and tangents.
        """
        count = len(self.nonzeros)
        nonzero_positions = [k for k, flag in enumerate(self.nonzeros) if flag]
        mapped = list(flags[:count])
        for k, flag in safe_zip(nonzero_positions, flags[count:]):
            mapped[k] = mapped[k] or flag
        full_flags = [*mapped, *[mapped[k] for k in nonzero_positions]]
        full = [
            batch_to_dim(x, None, 0, size) if want and not flag else x
            for x, flag, want in safe_zip(operands, flags, full_flags)
        ]
        out_flags: list[bool] = []

        def call(*values: Any) -> list[Any]:
            outs, out_flags[:] = self.rule(size, tuple(mapped), *values)
            return outs

        return call, out_flags, full[:count], full[count:]


class DerivativeRule(_TangentRule):
    """Rule of the jvp: ``(*primals, *nonzero tangents) -> (*outs, *nonzero out tangents)``."""

    def __call__(
        self, size: int, flags: Sequence[bool], *operands: Any
    ) -> tuple[list[Any], list[bool]]:
        call, out_flags, primals, nonzero_tangents = self._prepare(size, flags, operands)
        remaining = iter(nonzero_tangents)
        tangents = [
            next(remaining) if flag else Zero(aval_of(x).tangent())
            for x, flag in safe_zip(primals, self.nonzeros)
        ]
        outs, out_tangents = jvp_flat(call, primals, tangents)
        nonzero_outs = [k for k, flag in enumerate(self.out_nonzeros) if flag]
        nonzero_out_tangents = [instantiate(out_tangents[k]) for k in nonzero_outs]
        return [*outs, *nonzero_out_tangents], [*out_flags, *[out_flags[k] for k in nonzero_outs]]


class TangentRule(_TangentRule):
    """Rule of the linear map: ``(*primals, *nonzero tangents) -> nonzero out tangents``."""

    def __call__(
        self, size: int, flags: Sequence[bool], *operands: Any
    ) -> tuple[list[Any], list[bool]]:
        call, out_flags, primals, tangents = self._prepare(size, flags, operands)
        _, linear, residuals, _ = linearize_flat(call, primals, self.nonzeros)
        out_tangents = evaluate(linear, residuals, tangents)
        nonzero_outs = [k for k, flag in enumerate(self.out_nonzeros) if flag]
        return [out_tangents[k] for k in nonzero_outs], [out_flags[k] for k in nonzero_outs]


class CotangentRule:
    """Rule of the transpose: ``(*known operands, *nonzero cotangents) -> operand cotangents``.

    Args:
        rule: the batching rule of the function.
        undefined: for each operand of the function, whether it is transposed.
        nonzeros: for each output whether it has a cotangent.
        out_nonzeros: for each undefined operand whether its cotangent is nonzero, thus a result.
        call: the program of the function, for the types of outputs and operands.
    """

    def __init__(
        self,
        rule: FlatRule,
        undefined: tuple[bool, ...],
        nonzeros: tuple[bool, ...],
        out_nonzeros: tuple[bool, ...],
        call: ClosedJaxpr,
    ) -> None:
        self.rule, self.undefined, self.nonzeros = rule, undefined, nonzeros
        self.out_nonzeros, self.call = out_nonzeros, call

    def __call__(
        self, size: int, flags: Sequence[bool], *operands: Any
    ) -> tuple[list[Any], list[bool]]:
        count = len(self.undefined) - sum(self.undefined)
        known = iter(safe_zip(operands[:count], flags[:count]))
        in_avals = self.call.in_avals[len(self.call.in_avals) - len(self.undefined) :]
        inputs: list[Any] = []
        in_flags: list[bool] = []
        for aval, is_unknown in safe_zip(in_avals, self.undefined):
            lanes = UndefinedPrimal(aval.update(shape=(size, *aval.shape)))
            value, flag = (lanes, True) if is_unknown else next(known)
            inputs.append(value)
            in_flags.append(flag)

        def call(*values: Any) -> list[Any]:
            outs, out_flags = self.rule(size, tuple(in_flags), *values)
            return [
                batch_to_dim(out, 0 if flag else None, 0, size)
                for out, flag in safe_zip(outs, out_flags)
            ]

        avals = [
            x.aval if is_unknown else aval_of(x)
            for x, is_unknown in safe_zip(inputs, self.undefined)
        ]
        jaxpr, consts = trace_to_jaxpr(call, avals)
        results = backward_pass(jaxpr, consts, inputs, self._cotangents(size, operands, flags))
        in_cotangents = [x for x, is_unknown in safe_zip(results, self.undefined) if is_unknown]
        pairs = safe_zip(in_cotangents, self.out_nonzeros)
        nonzero_cotangents = [instantiate(x) for x, flag in pairs if flag]
        return nonzero_cotangents, [True] * len(nonzero_cotangents)

    def _cotangents(self, size: int, operands: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
        """Cotangents of all outputs, all mapped."""
        count = len(self.undefined) - sum(self.undefined)
        remaining = iter(safe_zip(operands[count:], flags[count:]))
        cotangents: list[Any] = []
        for aval, nonzero in safe_zip(self.call.out_avals, self.nonzeros):
            if nonzero:
                value, flag = next(remaining)
                cotangents.append(batch_to_dim(value, 0 if flag else None, 0, size))
            else:
                tangent = aval.tangent()
                cotangents.append(Zero(tangent.update(shape=(size, *tangent.shape))))
        return cotangents
