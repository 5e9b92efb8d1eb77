"""The only upward plugs: what lower layers call without importing it."""

from __future__ import annotations

from gpuflow.core.trace import Tracer, eval_trace
from gpuflow.numpy.methods import METHODS, PROPERTIES
from gpuflow.parallel import whole_programs
from gpuflow.runtime.array import Array
from gpuflow.runtime.eager import evaluate
from gpuflow.runtime.parted import programs
from gpuflow.runtime.platforms import register_platforms


def install() -> None:
    """Plug in platforms, evaluators, and the operators and methods of Array and Tracer."""
    register_platforms()
    eval_trace.process = evaluate
    programs.evaluate = whole_programs.evaluate
    programs.run = whole_programs.run
    programs.place = whole_programs.place
    for cls in (Array, Tracer):
        for name, function in METHODS.items():
            setattr(cls, name, function)
        for name, function in PROPERTIES.items():
            setattr(cls, name, property(function))
