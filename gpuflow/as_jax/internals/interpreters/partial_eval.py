"""``jax.interpreters.partial_eval``: run a function on known and unknown values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.as_jax.internals.extend.linear_util import WrappedFun
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Jaxpr
from gpuflow.core.staging import StagingTrace
from gpuflow.core.trace import current_trace, thread_state
from gpuflow.transforms.partial_eval import PartialTrace


class PartialVal(tuple):
    """``(None, value)`` if it is known, ``(aval, None)`` if not."""

    __slots__ = ()

    @classmethod
    def known(cls, value: Any) -> PartialVal:
        """Of a value that is there."""
        return cls((None, value))

    @classmethod
    def unknown(cls, aval: ShapedArray) -> PartialVal:
        """Of a value of which only the type is known."""
        return cls((aval, None))

    def is_known(self) -> bool:
        """Whether the value is there."""
        return self[0] is None


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[PartialVal], list[Any]]:
    """Evaluate what known values suffice for, and record the rest.

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
        wanted = [instantiate] * len(outs) if isinstance(instantiate, bool) else instantiate
        flags = [recording.owns(out) or flag for out, flag in safe_zip(outs, wanted)]
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
