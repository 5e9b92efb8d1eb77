"""The only upward plugs: what lower layers call without importing it."""

from __future__ import annotations

from gpuflow.core.trace import Tracer, eval_trace
from gpuflow.numpy.methods import METHODS, PROPERTIES
from gpuflow.runtime.array import Array
from gpuflow.runtime.eager import evaluate
from gpuflow.runtime.platforms import register_platforms


def install() -> None:
    """Plug in platforms, the eager evaluator, and the operators and methods of Array and Tracer."""
    register_platforms()
    eval_trace.process = evaluate
    for cls in (Array, Tracer):
        for name, function in METHODS.items():
            setattr(cls, name, function)
        for name, function in PROPERTIES.items():
            setattr(cls, name, property(function))
