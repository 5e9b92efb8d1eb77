"""Partial evaluation: computations on unknown values are recorded, others are evaluated.

Linearization runs jvp rules this way, with tangents as the unknowns. An op with known and unknown
operands is recorded as a whole, unless it holds programs: those are split.

Tests: tests/control/test_partial_eval.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr
from gpuflow.core.staging import StagingTrace, hoist_consts, trace_to_jaxpr
from gpuflow.core.trace import Trace, current_trace, thread_state


class PartialTrace(Trace):
    """Records computations on recorded values; evaluates others under the parent."""

    __slots__ = ("recording",)
    adds = "differentiated"
    parent: Trace

    def __init__(self, parent: Trace, recording: StagingTrace) -> None:
        super().__init__(parent)
        self.recording = recording

    def owns(self, value: Any) -> bool:
        """Whether ``value`` is recorded, which its known values are not."""
        return self.recording.owns(value)

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        recording = self.recording
        if not any(recording.owns(value) for value in operands):
            with current_trace(self.parent):
                return self.parent.process(primitive, operands, params)
        if primitive.derivatives.partial_eval is not None:
            return self._by_rule(primitive, operands, params)
        if primitive.lower.jaxpr is not None and not primitive.lower.whole:
            # A user's rule called a jitted function on both primals and tangents: only operations
            # that depend on tangents may be recorded.
            with current_trace(self):
                avals = [aval_of(value) for value in operands]
                return list(primitive.lower.jaxpr(avals, params)(*operands))
        with current_trace(recording):
            return recording.process(primitive, operands, params)

    def _by_rule(
        self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]
    ) -> list[Any]:
        unknowns = tuple(self.recording.owns(value) for value in operands)
        known = [None if flag else value for value, flag in safe_zip(operands, unknowns)]
        with current_trace(self.parent):
            outs, out_unknowns, residuals, unknown_function = primitive.derivatives.partial_eval(
                unknowns, *known, **params
            )
        unknown_operands = [value for value, flag in safe_zip(operands, unknowns) if flag]
        with current_trace(self.recording):
            recorded = iter(unknown_function(residuals, *unknown_operands))
        computed = iter(outs)
        return [next(recorded if flag else computed) for flag in out_unknowns]


class PartialJaxpr(NamedTuple):
    """A jaxpr, split into a program of known values and one of unknown values.

    Attributes:
        known: ``(*known inputs) -> (*known outs, *residuals)``.
        unknown: ``(*residuals, *unknown inputs) -> unknown outs``; no constvars.
        out_unknowns: for each output whether ``unknown`` computes it.
        residual_count: count of residuals.
    """

    known: ClosedJaxpr
    unknown: Jaxpr
    out_unknowns: tuple[bool, ...]
    residual_count: int


def partial_jaxpr(
    jaxpr: ClosedJaxpr, unknowns: tuple[bool, ...], unknown_outs: tuple[bool, ...] | None = None
) -> PartialJaxpr:
    """Split a program into the evaluation of known values and a program of the unknown ones.

    The result is cached in the jaxpr.

    Args:
        jaxpr: the program.
        unknowns: for each input whether it is unknown.
        unknown_outs: for each output whether it counts as unknown in any case; None: none does.
    """
    key = ("partial", unknowns, unknown_outs)
    return jaxpr.jaxpr.memo(key, lambda: _make_partial(jaxpr, unknowns, unknown_outs))


def _make_partial(
    jaxpr: ClosedJaxpr, unknowns: tuple[bool, ...], unknown_outs: tuple[bool, ...] | None
) -> PartialJaxpr:
    forced = unknown_outs or (False,) * len(jaxpr.out_avals)
    captured: list[Any] = []

    def evaluation(*values: Any) -> Sequence[Any]:
        outs, unknown, residuals, flags = _partial_flat(jaxpr, unknowns, values, forced)
        captured.extend((unknown, flags, len(residuals)))
        return [*outs, *residuals]

    avals = [aval for aval, flag in safe_zip(jaxpr.in_avals, unknowns) if not flag]
    known, consts = trace_to_jaxpr(evaluation, avals)
    unknown, flags, count = captured
    return PartialJaxpr(ClosedJaxpr(known, tuple(consts)), hoist_consts(unknown), flags, count)


def _partial_flat(
    jaxpr: ClosedJaxpr, unknowns: Sequence[bool], values: Sequence[Any], forced: Sequence[bool]
) -> tuple[list[Any], Jaxpr, list[Any], tuple[bool, ...]]:
    recording = StagingTrace(thread_state.trace, "a partly evaluated function")
    trace = PartialTrace(thread_state.trace, recording)
    remaining = iter(values)
    arguments, operands = [], []
    for aval, flag in safe_zip(jaxpr.in_avals, unknowns):
        operands.append(recording.new_argument(aval) if flag else next(remaining))
        if flag:
            arguments.append(operands[-1])
    try:
        with current_trace(trace):
            outs = jaxpr(*operands)
        flags = tuple(recording.owns(out) or flag for out, flag in safe_zip(outs, forced))
        unknown_results = [out for out, flag in safe_zip(outs, flags) if flag]
        unknown, residuals = recording.finish(arguments, unknown_results)
    finally:
        trace.finished = recording.finished = True
    return [out for out, flag in safe_zip(outs, flags) if not flag], unknown, residuals, flags
