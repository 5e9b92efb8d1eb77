"""The driver interface: operations of a device on arrays and programs.

An Array holds *data*: the driver's representation of an array in memory, a NumPy array on the CPU.
Only drivers and their programs access its contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpuflow.base.util import SourceLocation
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray
from gpuflow.core.primitive import Primitive

if TYPE_CHECKING:
    from gpuflow.compiler.planning.plan import KernelStep, Plan

# ``(data) -> function``: starts to read a bool after the work queued so far. The function waits
# for it. The previous read may still be pending, but not the one before it.
FlagReader = Callable[[Any], Callable[[], bool]]


class Program(Protocol):
    """A plan that a device can run."""

    def run(self, arrays: list[Any], device: Any) -> list[Any]:
        """The outputs as Arrays on ``device``, for the data of all inputs; it may return early."""
        ...

    def driver_text(self) -> str:
        """The text of the launching code, for debugging."""
        ...

    def build(self) -> None:
        """Build all kernels that a call may use."""
        ...

    def code_bytes(self) -> int:
        """Bytes of the machine code of all kernels, which are built."""
        ...

    def sources_of(self, step: KernelStep) -> list[Path]:
        """Files of the generated source of a step's kernels, which are built."""
        ...


class Driver(Protocol):
    """One device, or several that share everything.

    Attributes:
        xp: the array module that ops' ``impl`` gets: NumPy. Of a driver that compiles every op it
            has ``copyto`` and ``empty`` only.
        strided: ``(shape, dtype, data, offset, strides)``, in bytes: a view of data's memory.
    """

    xp: Any
    strided: Callable[..., Any]

    @property
    def evaluate(self) -> Callable[..., Any] | None:
        """``(primitive, avals, params, arrays, device) -> Arrays``, the outputs of one op; or None.

        None: ops are evaluated by their ``impl``.
        """
        ...

    @property
    def target(self) -> Target:
        """The compilation target."""
        ...

    def program_of_op(
        self, primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
    ) -> Program | None:
        """Return the implementation of an op outside of jit; None: its ``impl``."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Uninitialized data."""
        ...

    def from_host(self, array: np.ndarray) -> Any:
        """Data with the values of a NumPy array that no other code writes to."""
        ...

    def to_host(self, data: Any) -> np.ndarray:
        """The values, when they are computed; a view if they are a NumPy array."""
        ...

    def from_driver(self, data: Any, source: Driver) -> Any:
        """Data with the values that another driver's data have, or will have."""
        ...

    def copy(self, data: Any) -> Any:
        """New data with the same values."""
        ...

    def flag_reader(self) -> FlagReader:
        """A new function that begins to read a bool scalar."""
        ...

    def wait(self, data: Any) -> None:
        """Return when the values are computed."""
        ...

    def result(self, value: Any, aval: ShapedArray, operands: Sequence[Any]) -> Any:
        """Convert the result of ``impl`` to new row-major data in the storage dtype."""
        ...

    def made_at(self, data: Any) -> SourceLocation | None:
        """The user's location that made data, if it was recorded."""
        ...

    def is_shared(self, arrays: list[Any], k: int) -> bool:
        """Whether anything except one Array refers to operand k's memory."""
        ...

    def memory_stats(self) -> dict[str, int]:
        """Result of ``Device.memory_stats``."""
        ...

    def program(self, plan: Plan, out_avals: Sequence[ShapedArray]) -> Program:
        """The plan, ready to run."""
        ...
