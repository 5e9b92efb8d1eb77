"""Linearization: one evaluation that also records the linear map between tangents.

Primals are computed under the parent trace; operations on tangents are recorded into a jaxpr with
the residuals as constants. By default an op is linearized by running its jvp rule under a
``PartialTrace``, which records operations on recorded tangents and sends all others to the parent:
that is partial evaluation without a second set of tracers.

Tests: tests/transforms/test_linearize.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr
from gpuflow.core.rules import Zero, zero_tangent
from gpuflow.core.staging import StagedTracer, StagingTrace, trace_to_jaxpr
from gpuflow.core.trace import Trace, current_trace, thread_state, with_trace
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.jvp import DualTracer, TangentTrace, jvp_rule
from gpuflow.transforms.partial_eval import PartialTrace


class LinearizeTracer(DualTracer):
    """A primal of the parent trace with a recorded tangent."""

    __slots__ = ()


class LinearizeTrace(TangentTrace):
    """Evaluates primals under the parent and records tangents."""

    __slots__ = ("partial", "recording")
    tracer_class = LinearizeTracer

    def __init__(self, parent: Trace, recording: StagingTrace) -> None:
        super().__init__(parent)
        self.recording = recording
        self.partial = PartialTrace(parent, recording)

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        pairs = [self.split(value) for value in operands]
        primals = [primal for primal, _ in pairs]
        tangents = [tangent for _, tangent in pairs]
        if all(type(tangent) is Zero for tangent in tangents):
            with current_trace(self.parent):
                return self.parent.process(primitive, tuple(primals), params)
        if primitive.derivatives.linearize is not None:
            outs, out_tangents = self._by_rule(primitive, primals, tangents, params)
        else:
            with current_trace(self.partial):
                outs, out_tangents = jvp_rule(primitive)(primals, tangents, **params)
            self._check_known(primitive, outs if primitive.multiple_results else [outs])
        if not primitive.multiple_results:
            return self.join(outs, out_tangents)
        return [self.join(out, tangent) for out, tangent in safe_zip(outs, out_tangents)]

    def _check_known(self, primitive: Any, outs: Sequence[Any]) -> None:
        for out in outs:
            if self.recording.owns(out):
                raise ValueError(
                    f"[{primitive.name}] a jvp rule must compute its outputs from primals alone, "
                    f"for reverse mode and linearize; got an output {aval_of(out)} that was "
                    "computed together with tangents. Fix: compute it separately, with ops of the "
                    "primals."
                )

    def _by_rule(
        self, primitive: Any, primals: list[Any], tangents: list[Any], params: dict[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        nonzeros = tuple(type(tangent) is not Zero for tangent in tangents)
        with current_trace(self.parent):
            outs, out_nonzeros, residuals, tangent_function = primitive.derivatives.linearize(
                nonzeros, *primals, **params
            )
        nonzero_tangents = [tangent for tangent in tangents if type(tangent) is not Zero]
        with current_trace(self.recording):
            recorded = iter(tangent_function(residuals, *nonzero_tangents))
        out_tangents = [
            next(recorded) if nonzero else zero_tangent(out)
            for out, nonzero in safe_zip(outs, out_nonzeros)
        ]
        return outs, out_tangents


class Linearized(NamedTuple):
    """A flat function at some primals.

    Attributes:
        outs: its outputs, values of the trace in which ``linearize_flat`` was called.
        jaxpr: the linear map from the nonzero input tangents to the nonzero output tangents.
        residuals: values of the constvars of ``jaxpr``.
        out_nonzeros: for each output whether it has a tangent in ``jaxpr``; the others are zero.
    """

    outs: list[Any]
    jaxpr: Jaxpr
    residuals: list[Any]
    out_nonzeros: list[bool]


class LinearizedJaxpr(NamedTuple):
    """A jaxpr, split into its evaluation and its linear map.

    Attributes:
        evaluation: ``(*primals) -> (*outs, *residuals)``.
        linear: ``(*residuals, *nonzero tangents) -> nonzero out tangents``; no constvars.
        out_nonzeros: for each output whether it has a tangent in ``linear``; the others are zero.
        residual_count: count of residuals.
    """

    evaluation: ClosedJaxpr
    linear: Jaxpr
    out_nonzeros: tuple[bool, ...]
    residual_count: int


def linearize_flat(
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    nonzeros: Sequence[bool] | None = None,
    instantiate_outs: bool | Sequence[bool] = True,
) -> Linearized:
    """Linearize a flat function at ``primals``.

    Args:
        function: a function of arrays that returns a sequence of arrays; it is called once.
        primals: its operands.
        nonzeros: for each operand whether it has a tangent; None: all have one, so that all must
            have dtypes with tangents.
        instantiate_outs: for each output, or for all, whether a zero tangent becomes an array.
    """
    parent = thread_state.trace
    nonzeros = [True] * len(primals) if nonzeros is None else list(nonzeros)
    return with_trace(
        lambda: LinearizeTrace(parent, StagingTrace(parent, "a linearized function")),
        lambda trace: _linearized(trace, function, primals, nonzeros, instantiate_outs),
    )


def _linearized(
    trace: LinearizeTrace,
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    nonzeros: Sequence[bool],
    instantiate_outs: bool | Sequence[bool],
) -> Linearized:
    recording = trace.recording
    arguments: list[StagedTracer] = []
    operands = []
    for primal, nonzero in safe_zip(primals, nonzeros):
        if nonzero:
            arguments.append(recording.new_argument(aval_of(primal).tangent()))
            operands.append(LinearizeTracer(trace, primal, arguments[-1]))
        else:
            operands.append(primal)
    try:
        with current_trace(trace):
            outs = function(*operands)
        pairs = [trace.split(out) for out in outs]
        tangents = [tangent for _, tangent in pairs]
        if isinstance(instantiate_outs, bool):
            instantiate_outs = [instantiate_outs] * len(tangents)
        # Zeros are made under the parent: they are constants of the linear map.
        tangents = [
            instantiate(tangent) if force else tangent
            for tangent, force in safe_zip(tangents, instantiate_outs)
        ]
        out_nonzeros = [type(tangent) is not Zero for tangent in tangents]
        nonzero_tangents = [tangent for tangent in tangents if type(tangent) is not Zero]
        jaxpr, residuals = recording.finish(arguments, nonzero_tangents)
    finally:
        trace.finished = recording.finished = trace.partial.finished = True
    return Linearized([primal for primal, _ in pairs], jaxpr, residuals, out_nonzeros)


def linearize_jaxpr(
    jaxpr: ClosedJaxpr,
    nonzeros: tuple[bool, ...],
    instantiate_outs: bool | tuple[bool, ...] = False,
) -> LinearizedJaxpr:
    """Split a jaxpr into the evaluation and the linear map; cached in the jaxpr.

    Args:
        jaxpr: the program.
        nonzeros: for each input whether it has a tangent.
        instantiate_outs: for each output, or for all, whether it has a tangent in any case.
    """
    key = ("linearize", nonzeros, instantiate_outs)
    return jaxpr.jaxpr.memo(key, lambda: _make_linearized(jaxpr, nonzeros, instantiate_outs))


def _make_linearized(
    jaxpr: ClosedJaxpr, nonzeros: tuple[bool, ...], instantiate_outs: bool | tuple[bool, ...]
) -> LinearizedJaxpr:
    captured: list[Any] = []

    def evaluation(*primals: Any) -> list[Any]:
        outs, linear, residuals, out_nonzeros = linearize_flat(
            jaxpr, primals, nonzeros, instantiate_outs
        )
        captured.extend((linear, tuple(out_nonzeros), len(residuals)))
        return [*outs, *residuals]

    known, consts = trace_to_jaxpr(evaluation, jaxpr.in_avals)
    linear, out_nonzeros, count = captured
    linear = linear.replace(
        constvars=(),
        invars=(*linear.constvars, *linear.invars),
        argument_names=("",) * (len(linear.constvars) + len(linear.invars)),
    )
    return LinearizedJaxpr(ClosedJaxpr(known, tuple(consts)), linear, out_nonzeros, count)
