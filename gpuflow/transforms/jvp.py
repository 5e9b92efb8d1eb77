"""Forward-mode differentiation: one pass that carries a tangent with every value.

Tests: tests/transforms/test_jvp.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.rules import Zero, zero_tangent
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.core.trace import Trace, Tracer, current_trace, thread_state, with_trace
from gpuflow.ops.zeros import instantiate


class DualTracer(Tracer):
    """A primal with its tangent, of any trace that carries tangents."""

    __slots__ = ("primal", "tangent")

    def __init__(self, trace: TangentTrace, primal: Any, tangent: Any) -> None:
        self._trace = trace
        self.primal = primal
        self.tangent = tangent
        self.aval = aval_of(primal)

    def concrete(self) -> Any:
        return self.primal.concrete() if isinstance(self.primal, Tracer) else self.primal

    def describe(self) -> str:
        return self.primal.describe() if isinstance(self.primal, Tracer) else ""


class JVPTracer(DualTracer):
    """A primal with its tangent, both values of the parent trace."""

    __slots__ = ()


class TangentTrace(Trace):
    """A trace whose tracers carry tangents; tracers of ``tracer_class`` are its own."""

    __slots__ = ()
    adds = "differentiated"
    parent: Trace
    tracer_class: type[DualTracer] = DualTracer

    def split(self, value: Any) -> tuple[Any, Any]:
        """The primal and tangent of ``value``; foreign values are constants."""
        if type(value) is self.tracer_class and value._trace is self:
            return value.primal, value.tangent
        return value, zero_tangent(value)

    def join(self, primal: Any, tangent: Any) -> Any:
        """A tracer, or the primal alone when its tangent is zero."""
        return primal if type(tangent) is Zero else self.tracer_class(self, primal, tangent)


class JVPTrace(TangentTrace):
    """Applies jvp rules; they run under the parent."""

    __slots__ = ()
    tracer_class = JVPTracer

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        pairs = [self.split(value) for value in operands]
        primals = [primal for primal, _ in pairs]
        tangents = [tangent for _, tangent in pairs]
        with current_trace(self.parent):
            if all(type(tangent) is Zero for tangent in tangents):
                return self.parent.process(primitive, tuple(primals), params)
            outs, out_tangents = jvp_rule(primitive)(primals, tangents, **params)
        if not primitive.multiple_results:
            return self.join(outs, out_tangents)
        return [self.join(out, tangent) for out, tangent in safe_zip(outs, out_tangents)]


def jvp_rule(primitive: Any) -> Callable[..., Any]:
    """The jvp rule of ``primitive``.

    Raises:
        NotImplementedError: it has none.
    """
    if primitive.derivatives.jvp is None:
        raise NotImplementedError(
            f"[{primitive.name}] differentiation needs a rule; got a primitive without jvp. "
            "Fix: wrap the call in custom_jvp, custom_vjp or lax.stop_gradient."
        )
    return primitive.derivatives.jvp


def jvp_flat(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Outputs and output tangents of a flat function; tangents may be ``Zero``."""
    return with_trace(
        lambda: JVPTrace(thread_state.trace),
        lambda trace: _pushed(trace, function, primals, tangents),
    )


def _pushed(
    trace: JVPTrace,
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    operands = [trace.join(primal, tangent) for primal, tangent in safe_zip(primals, tangents)]
    try:
        with current_trace(trace):
            outs = function(*operands)
        pairs = [trace.split(out) for out in outs]
    finally:
        trace.finished = True
    return [primal for primal, _ in pairs], [tangent for _, tangent in pairs]


def jvp_jaxpr(
    jaxpr: ClosedJaxpr, nonzeros: tuple[bool, ...], instantiate_outs: bool | tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The jaxpr of the derivative: primals and the nonzero tangents in, the same out.

    Returns:
        A jaxpr ``(*primals, *nonzero tangents) -> (*outs, *nonzero out tangents)``, and which
        outputs have a nonzero tangent. With ``instantiate_outs`` zeros are made for those outputs.
    """
    key = ("jvp", nonzeros, instantiate_outs)
    return jaxpr.jaxpr.memo(key, lambda: _make_jvp_jaxpr(jaxpr, nonzeros, instantiate_outs))


def _make_jvp_jaxpr(
    jaxpr: ClosedJaxpr, nonzeros: tuple[bool, ...], instantiate_outs: bool | tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    count = len(jaxpr.in_avals)
    if isinstance(instantiate_outs, bool):
        instantiate_outs = (instantiate_outs,) * len(jaxpr.out_avals)
    out_nonzeros: list[bool] = []

    def derivative(*operands: Any) -> list[Any]:
        nonzero_tangents = iter(operands[count:])
        tangents = [
            next(nonzero_tangents) if nonzero else Zero(aval.tangent())
            for nonzero, aval in safe_zip(nonzeros, jaxpr.in_avals)
        ]
        outs, out_tangents = jvp_flat(jaxpr, operands[:count], tangents)
        instantiated = []
        for tangent, force in safe_zip(out_tangents, instantiate_outs):
            is_float = tangent_aval(tangent).dtype != dtypes.float0
            nonzero = is_float and (force or type(tangent) is not Zero)
            out_nonzeros.append(nonzero)
            if nonzero:
                instantiated.append(instantiate(tangent))
        return [*outs, *instantiated]

    tangent_avals = [
        aval.tangent() for aval, nonzero in safe_zip(jaxpr.in_avals, nonzeros) if nonzero
    ]
    result, consts = trace_to_jaxpr(derivative, [*jaxpr.in_avals, *tangent_avals])
    return ClosedJaxpr(result, tuple(consts)), tuple(out_nonzeros)


def tangent_aval(tangent: Any) -> ShapedArray:
    """The aval of a tangent, symbolic zeros included."""
    return tangent.aval if type(tangent) is Zero else aval_of(tangent)
