"""``jax.interpreters.partial_eval``: run a function on known and unknown values.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.as_jax.internals.linear_util import WrappedFun
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.primitive import Primitive
from gpuflow.core.staging import StagedTracer as DynamicJaxprTracer
from gpuflow.core.staging import StagingTrace, hoist_consts, trace_to_jaxpr
from gpuflow.core.trace import current_trace, thread_state
from gpuflow.transforms.partial_eval import PartialTrace

# Unknown values of a partial evaluation are tracers of the residual program.
JaxprTracer = DynamicJaxprTracer
DynamicJaxprTrace = StagingTrace
TracingEqn = Eqn
Val = Any

DCERule = Callable[[list[bool], Eqn], tuple[list[bool], Eqn | None]]
# By primitive: the rule of ``dce_jaxpr`` for an equation of which some outputs are used.
dce_rules: dict[Primitive, DCERule] = {}


class PartialVal(tuple):
    """``(None, value)`` if it is known, ``(aval, None)`` if not."""

    __slots__ = ()

    @classmethod
    def known(cls, value: Any) -> PartialVal:
        """Make a known value."""
        return cls((None, value))

    @classmethod
    def unknown(cls, aval: ShapedArray) -> PartialVal:
        """Make an unknown value, of which only the type is known."""
        return cls((aval, None))

    def is_known(self) -> bool:
        """Return whether the value is known."""
        return self[0] is None


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[PartialVal], list[Any]]:
    """Evaluate equations with known inputs, and record the others.

    Args:
        fun: a function of flat arguments that returns a list.
        pvals: its arguments.
        instantiate: whether outputs (each, or all) count as unknown in any case.

    Returns:
        The jaxpr of unknown outputs, all outputs as PartialVals, and the jaxpr's constants.
    """
    recording = StagingTrace(thread_state.trace, "a partly evaluated function")
    trace = PartialTrace(thread_state.trace, recording)
    operands = [value if aval is None else recording.new_argument(aval) for aval, value in pvals]
    arguments = [value for value in operands if recording.owns(value)]
    try:
        with current_trace(trace):
            outs = list(fun.call_wrapped(*operands))
        requested = [instantiate] * len(outs) if isinstance(instantiate, bool) else instantiate
        flags = [recording.owns(out) or flag for out, flag in safe_zip(outs, requested)]
        unknown = [out for out, flag in safe_zip(outs, flags) if flag]
        jaxpr, consts = recording.finish(arguments, unknown)
    finally:
        trace.finished = recording.finished = True
    avals = iter(var.aval for var in jaxpr.outvars)
    results = [
        PartialVal.unknown(next(avals)) if flag else PartialVal.known(out)
        for out, flag in safe_zip(outs, flags)
    ]
    return jaxpr, results, consts


def trace_to_jaxpr_dynamic(
    fun: WrappedFun,
    in_avals: Sequence[ShapedArray],
    *,
    keep_inputs: Sequence[bool] | None = None,
    lower: bool = False,
    auto_dce: bool = False,
) -> tuple[Jaxpr, list[ShapedArray], list[Any]]:
    """Record a function of flat arguments.

    Args:
        fun: returns a sequence.
        in_avals: the types of its arguments.
        keep_inputs: which of them are passed to the function.
        lower: without effect. auto_dce: drop equations that no output uses.

    Returns:
        The jaxpr, the types of its outputs, and the values of its constants.
    """
    del lower
    retain = [True] * len(in_avals) if keep_inputs is None else keep_inputs

    def call(*operands: Any) -> Sequence[Any]:
        return fun.call_wrapped(*[x for x, flag in safe_zip(operands, retain) if flag])

    jaxpr, consts = trace_to_jaxpr(call, in_avals)
    if auto_dce:
        jaxpr, used, _ = dce_jaxpr_consts(jaxpr, True, True)
        consts = [value for value, flag in safe_zip(consts, used) if flag]
    return jaxpr, jaxpr.out_avals, consts


def dce_jaxpr(
    jaxpr: Jaxpr, used_outputs: bool | Sequence[bool], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[bool]]:
    """Drop equations that the used outputs do not depend on; ``dce_rules`` come first.

    Args:
        jaxpr: it.
        used_outputs: which outputs stay.
        instantiate: which inputs stay though nothing uses them.

    Returns:
        The jaxpr of the used outputs and inputs, and which inputs these are.
    """
    used = _flags(used_outputs, len(jaxpr.outvars))
    outs = tuple(atom for atom, flag in safe_zip(jaxpr.outvars, used) if flag)
    live = {atom for atom in outs if type(atom) is not Literal}
    retained: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        used_inputs, pruned = _dce_eqn(eqn, [var in live for var in eqn.outputs])
        if pruned is not None:
            retained.append(pruned)
        live.update(
            atom
            for atom, flag in safe_zip(eqn.inputs, used_inputs)
            if flag and type(atom) is not Literal
        )
    retain = _flags(instantiate, len(jaxpr.invars))
    flags = [var in live or flag for var, flag in safe_zip(jaxpr.invars, retain)]
    return _without(jaxpr, flags, outs, tuple(reversed(retained))), flags


def dce_jaxpr_consts(
    jaxpr: Jaxpr, used_outputs: bool | Sequence[bool], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[bool], list[bool]]:
    """``dce_jaxpr`` that drops constants, too: which are used comes before which inputs are."""
    count = len(jaxpr.constvars)
    retain = [False] * count + _flags(instantiate, len(jaxpr.invars))
    smaller, used = dce_jaxpr(hoist_consts(jaxpr), used_outputs, retain)
    consts = sum(used[:count])
    smaller = smaller.replace(
        constvars=smaller.invars[:consts],
        invars=smaller.invars[consts:],
        argument_names=smaller.argument_names[consts:],
    )
    return smaller, used[:count], used[count:]


def _flags(flags: bool | Sequence[bool], count: int) -> list[bool]:
    return [flags] * count if isinstance(flags, bool) else list(flags)


def _dce_eqn(eqn: Eqn, used: list[bool]) -> tuple[list[bool], Eqn | None]:
    """Flags of the inputs that an equation needs, and the equation without unused outputs."""
    rule = dce_rules.get(eqn.primitive)
    if rule is not None:
        return rule(used, eqn)
    if not any(used) and not is_observable(eqn.effects):
        return [False] * len(eqn.inputs), None
    pruned = (
        eqn if eqn.primitive.programs.prune is None else eqn.primitive.programs.prune(eqn, used)
    )
    return [atom in pruned.inputs for atom in eqn.inputs], pruned


def _without(
    jaxpr: Jaxpr, flags: Sequence[bool], outs: tuple[Any, ...], eqns: tuple[Eqn, ...]
) -> Jaxpr:
    invars: tuple[Var, ...] = tuple(var for var, flag in safe_zip(jaxpr.invars, flags) if flag)
    names = jaxpr.argument_names or ("",) * len(jaxpr.invars)
    effects = frozenset(effect for eqn in eqns for effect in eqn.effects)
    return jaxpr.replace(
        invars=invars,
        outvars=outs,
        eqns=eqns,
        effects=effects,
        argument_names=tuple(name for name, flag in safe_zip(names, flags) if flag),
    )
