"""Results of ``jit`` and its ahead-of-time stages, under the names of jax.stages.

Tests: tests/control/test_stages.py, tests/test_surface_modules.py.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from gpuflow.base.names import publish
from gpuflow.control.stages import ArgInfo as ArgInfo
from gpuflow.control.stages import Compiled as Compiled
from gpuflow.control.stages import Lowered as Lowered
from gpuflow.control.stages import MemoryAnalysis as MemoryAnalysis
from gpuflow.control.stages import Stage as Stage
from gpuflow.control.stages import Traced as Traced

# Options of XLA have no meaning here; ``compile`` takes none.
CompilerOptions = dict[str, str | bool]


@runtime_checkable
class Wrapped(Protocol):
    """A function that can be traced, lowered and compiled for given arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        raise NotImplementedError("[Wrapped] is a protocol. Fix: gpuflow.jit(f).")

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the function for arguments of these types."""
        raise NotImplementedError("[Wrapped] is a protocol. Fix: gpuflow.jit(f).")

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Lower the function for arguments of these types."""
        raise NotImplementedError("[Wrapped] is a protocol. Fix: gpuflow.jit(f).")


publish(
    globals(),
    "stages",
    [
        "ArgInfo",
        "Compiled",
        "CompilerOptions",
        "Lowered",
        "MemoryAnalysis",
        "Stage",
        "Traced",
        "Wrapped",
    ],
)
