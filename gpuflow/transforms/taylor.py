"""Taylor mode: derivatives of all orders along a curve, in one pass over a function.

A value under this trace is a function of one parameter, of which its primal is the value at 0, and
its derivative is another such value. The jvp rule of an op, applied to such values, gives the
derivative of its outputs as one, so that no op needs rules for higher orders. See
docs/design/0044-taylor-series.md.

Tests: tests/experimental/test_jet.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.rules import Zero, zero_tangent
from gpuflow.core.trace import Trace, Tracer, current_trace, thread_state, with_trace
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.jvp import jvp_rule


class TaylorTracer(Tracer):
    """A value with its derivative, which a later pass sets."""

    __slots__ = ("derivative", "primal")

    def __init__(self, trace: TaylorTrace, primal: Any, derivative: Any = None) -> None:
        super().__init__(trace, aval_of(primal))
        self.primal, self.derivative = primal, derivative

    def concrete(self) -> Any:
        return self.primal.concrete() if isinstance(self.primal, Tracer) else self.primal


class _Equation:
    """An op that was applied to values of the trace."""

    __slots__ = ("operands", "outs", "params", "primitive")

    def __init__(
        self, primitive: Any, operands: Sequence[Any], params: dict[str, Any], outs: Sequence[Any]
    ) -> None:
        self.primitive, self.operands, self.params = primitive, operands, params
        self.outs = outs


class TaylorTrace(Trace):
    """Applies ops to primals, and records them, so that ``differentiate`` can apply their rules."""

    __slots__ = ("known", "pending")
    adds = "expanded"
    parent: Trace

    def __init__(self, parent: Trace) -> None:
        super().__init__(parent)
        self.pending: list[_Equation] = []
        # Rules recompute the op itself, and common subexpressions: equal applications share one
        # value, whose derivatives are computed once.
        self.known: dict[Any, _Equation] = {}

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if not any(self.owns(operand) for operand in operands) and primitive.programs.close is None:
            with current_trace(self.parent):
                return self.parent.process(primitive, operands, params)
        if primitive.programs.close is not None:
            with current_trace(self):
                operands, params = primitive.programs.close(operands, params)
        rule = primitive.lower
        if rule.jaxpr is not None and not rule.by_rule:
            program = rule.jaxpr([aval_of(operand) for operand in operands], params)
            with current_trace(self):
                outs = list(program(*operands))
            return outs if primitive.multiple_results else outs[0]
        # Equations with effects are never merged.
        key = None if primitive.effects(params) else _key(primitive, operands, params)
        equation = self.known.get(key) if key is not None else None
        if equation is None:
            equation = self._apply(primitive, operands, params)
            if key is not None:
                self.known[key] = equation
        return list(equation.outs) if primitive.multiple_results else equation.outs[0]

    def _apply(self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> _Equation:
        primals = tuple(x.primal if self.owns(x) else x for x in operands)
        with current_trace(self.parent):
            results = self.parent.process(primitive, primals, params)
        outs = [
            TaylorTracer(self, result) if dtypes.is_inexact(aval_of(result).dtype) else result
            for result in (results if primitive.multiple_results else [results])
        ]
        equation = _Equation(primitive, operands, params, outs)
        self.pending.append(equation)
        return equation

    def derivative(self, value: Any) -> Any:
        """The derivative of a value, ``Zero`` for constants."""
        return value.derivative if self.owns(value) else zero_tangent(value)

    def differentiate(self) -> None:
        """Give all values that have none yet their derivative, those before others that they need.

        Functions that are applied here are differentiated again the next time: each time adds one
        order.
        """
        pending, self.pending = self.pending, []
        for equation in pending:
            owned = [out for out in equation.outs if self.owns(out)]
            if not owned:
                continue
            tangents = [self.derivative(operand) for operand in equation.operands]
            if all(type(tangent) is Zero for tangent in tangents):
                for out in owned:
                    out.derivative = zero_tangent(out)
                continue
            with current_trace(self):
                found = _out_tangents(equation, tangents)
            for out, tangent in safe_zip(equation.outs, found):
                if self.owns(out):
                    out.derivative = tangent


def _out_tangents(equation: _Equation, tangents: Sequence[Any]) -> Sequence[Any]:
    primitive = equation.primitive
    if primitive.derivatives.again is not None:
        return [primitive.derivatives.again(equation.outs[0], equation.operands, tangents)]
    _, found = jvp_rule(primitive)(equation.operands, tangents, **equation.params)
    return found if primitive.multiple_results else [found]


def _key(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """Cache key of an application; None if its params cannot be compared."""
    named = tuple(
        (type(x), repr(x)) if type(x) in (bool, int, float, complex) else id(x) for x in operands
    )
    key = (primitive, named, tuple(sorted(params.items(), key=lambda item: item[0])))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def taylor_flat(
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    derivatives: Sequence[Sequence[Any]],
    order: int,
) -> tuple[list[Any], list[list[Any]]]:
    """Outputs of a flat function along a curve, and their derivatives.

    Args:
        function: of flat operands.
        primals: the curve's value at 0, an array for each operand.
        derivatives: for each operand the curve's derivatives at 0, from the first to ``order``;
            none for one that is constant.
        order: of the last requested derivative.
    """
    return with_trace(
        lambda: TaylorTrace(thread_state.trace),
        lambda trace: _expanded(trace, function, primals, derivatives, order),
    )


def _expanded(
    trace: TaylorTrace,
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    derivatives: Sequence[Sequence[Any]],
    order: int,
) -> tuple[list[Any], list[list[Any]]]:
    operands = [_curve(trace, [x, *terms]) for x, terms in safe_zip(primals, derivatives)]
    try:
        with current_trace(trace):
            outs = list(function(*operands))
        terms: list[list[Any]] = [[] for _ in outs]
        current = outs
        for _ in range(order):
            trace.differentiate()
            current = [
                value if type(value) is Zero else trace.derivative(value) for value in current
            ]
            for found, value in safe_zip(terms, current):
                found.append(_primal(trace, value))
    finally:
        trace.finished = True
        trace.pending, trace.known = [], {}
    return [_primal(trace, out) for out in outs], terms


def _curve(trace: TaylorTrace, terms: Sequence[Any]) -> Any:
    """The value with given derivatives; of the last one no derivative is asked for."""
    if len(terms) == 1:
        return terms[0]
    value = TaylorTracer(trace, terms[-1])
    for term in reversed(terms[:-1]):
        value = TaylorTracer(trace, term, value)
    return value


def _primal(trace: TaylorTrace, value: Any) -> Any:
    if type(value) is Zero:
        return instantiate(value)
    return value.primal if trace.owns(value) else value
