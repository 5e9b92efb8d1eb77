"""The only upward dependencies: functions that lower layers call without importing them.

Tests: tests/runtime/test_array.py, tests/numpy/test_numpy_names.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuflow import ref
from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule
from gpuflow.compiler.fusion import select_updates
from gpuflow.core.refs import Ref
from gpuflow.core.trace import Tracer, eval_trace
from gpuflow.numpy.methods import METHODS, PROPERTIES
from gpuflow.ops.indexing import static_updates
from gpuflow.parallel.partition import whole_programs
from gpuflow.runtime.array import Array
from gpuflow.runtime.distributed import programs
from gpuflow.runtime.eager import evaluate
from gpuflow.targets.platforms import register_platforms

if TYPE_CHECKING:
    from gpuflow.profiler import publishing
else:
    publishing = LazyModule("gpuflow.profiler.publishing")


def install() -> None:
    """Plug in platforms, evaluators, rules, and the methods of Array, Tracer and Ref."""
    register_platforms()
    eval_trace.plug_in(evaluate)
    select_updates.rules.match_select = static_updates.as_choice
    select_updates.rules.emit_update = static_updates.as_update
    programs.evaluate = whole_programs.evaluate
    programs.run = whole_programs.run
    programs.reshard = whole_programs.reshard
    programs.local = whole_programs.local_program_over
    _put_on(Array, METHODS, PROPERTIES)
    _put_on(Tracer, METHODS, PROPERTIES)
    _put_on(Ref, ref.METHODS, ref.PROPERTIES)
    if config.environment.smi:
        publishing.start()


def _put_on(cls: type, methods: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    for name, function in methods.items():
        setattr(cls, name, function)
    for name, function in properties.items():
        setattr(cls, name, property(function))
