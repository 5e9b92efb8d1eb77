"""The driver interface: how a device stores arrays and runs plans.

An Array holds *data*: the driver's representation of an array, which is a NumPy array on the CPU
and a DeviceArray on a GPU. Only drivers and their programs may access its contents.

Tests: tests/runtime/test_devices.py, tests/targets/cuda/test_cuda_driver.py.
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

# ``(data) -> function``: starts an asynchronous read of a bool, after the work queued so far. The
# returned function waits for the value. At most two reads may be pending.
FlagReader = Callable[[Any], Callable[[], bool]]


class Program(Protocol):
    """A plan that a device can run."""

    def run(self, arrays: list[Any], device: Any) -> list[Any]:
        """Run the plan on the data of all inputs, and return its outputs as Arrays on ``device``.

        It may return before the values are computed.
        """
        ...

    def driver_text(self) -> str:
        """The source of the generated driver function, for debugging."""
        ...

    def build(self) -> None:
        """Build all kernels that a call may use."""
        ...

    def code_bytes(self) -> int:
        """Total size of the machine code of all kernels in bytes; builds them."""
        ...

    def sources_of(self, step: KernelStep) -> list[Path]:
        """Files with the generated source of a step's kernels; builds them."""
        ...


class Driver(Protocol):
    """The driver of one device, or of several devices that share one memory.

    Attributes:
        xp: the array module that is passed to ``impl`` of ops: NumPy. If the driver compiles every
            op, it only needs ``copyto`` and ``empty``.
        strided: ``(shape, dtype, data, offset, strides) -> data``, a view of the memory of data;
            offset and strides are in bytes.
    """

    xp: Any
    strided: Callable[..., Any]

    @property
    def evaluate(self) -> Callable[..., Any] | None:
        """``(primitive, avals, params, arrays, device) -> Arrays``: run one op.

        None if ops run by their ``impl``.
        """
        ...

    @property
    def target(self) -> Target:
        """The compilation target."""
        ...

    def program_of_op(
        self, primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
    ) -> Program | None:
        """Return the program that runs an op outside of jit; None if its ``impl`` runs."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Uninitialized data."""
        ...

    def from_host(self, array: np.ndarray) -> Any:
        """Data with the values of a NumPy array; the data may be that array.

        The caller must not write to the array afterwards.
        """
        ...

    def to_host(self, data: Any) -> np.ndarray:
        """Wait for the values and return them; the result may be data itself, so do not write."""
        ...

    def from_driver(self, data: Any, source: Driver) -> Any:
        """Copy data of another driver; the values may still be being computed."""
        ...

    def copy(self, data: Any) -> Any:
        """New data with the same values."""
        ...

    def flag_reader(self) -> FlagReader:
        """A new FlagReader."""
        ...

    def wait(self, data: Any) -> None:
        """Wait until the values are computed."""
        ...

    def result(self, value: Any, aval: ShapedArray, operands: Sequence[Any]) -> Any:
        """Convert the result of ``impl`` to row-major data in the storage dtype.

        The data must not share memory with ``operands``.
        """
        ...

    def made_at(self, data: Any) -> SourceLocation | None:
        """The user's source location that created data, if it was recorded."""
        ...

    def is_shared(self, arrays: list[Any], k: int) -> bool:
        """Whether anything except one Array refers to the memory of operand k; see ``holders``."""
        ...

    def memory_stats(self) -> dict[str, int]:
        """The result of ``Device.memory_stats``."""
        ...

    def program(self, plan: Plan, out_avals: Sequence[ShapedArray]) -> Program:
        """A runnable program of a plan."""
        ...
