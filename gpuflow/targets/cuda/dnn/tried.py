"""A library whose calls are used once small ones of their kind were found to agree with NumPy.

Each kind of call is tried once per process, by the subclass, which defines the kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from gpuflow.base.util import warn
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.driver.api import GpuApi

Call = TypeVar("Call")
Chosen = TypeVar("Chosen")
Kind = TypeVar("Kind", bound=Hashable)


class Tried(ABC, Generic[Call, Chosen, Kind]):
    """The calls of a library that were found to be right.

    Args:
        library: of the device.
        device: copies to and from the device.
    """

    def __init__(self, library: Any, device: GpuApi) -> None:
        self._library, self._device = library, device
        self._stream: int | None = None
        self._is_right: dict[Kind, bool] = {}

    def choose(self, call: Call, deterministic: bool) -> Chosen | None:
        """The library's choice, if it is correct for small calls of this kind."""
        chosen: Chosen | None = self._library.choose(call, deterministic)
        if chosen is None:
            return None
        kind = self._kind(call)
        if kind not in self._is_right:
            self._is_right[kind] = self._tried(kind, deterministic)
        return chosen if self._is_right[kind] else None

    def why_not(self, call: Call, deterministic: bool) -> str:
        """Why ``choose`` gave None."""
        if self._library.choose(call, deterministic) is None:
            reason: str = self._library.why_not(call, deterministic)
            return reason
        return "it was wrong about a small call of this kind, which was compared with NumPy"

    def version(self) -> str:
        """The library's version."""
        version: str = self._library.version()
        return version

    def bind(self, chosen: Chosen, stream: int) -> Callable[..., None]:
        """A call of the library."""
        bound: Callable[..., None] = self._library.bind(chosen, stream)
        return bound

    @abstractmethod
    def _kind(self, call: Call) -> Kind:
        """Key of a trial: calls of equal kinds are correct or incorrect together."""

    @abstractmethod
    def _tried(self, kind: Kind, deterministic: bool) -> bool:
        """Whether the library agrees with NumPy; warns if it does not."""

    def _run(
        self, chosen: Any, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> None:
        """Run a call on the device, and write its outputs to ``results``.

        These are copied too, so that elements that the library does not write are unchanged.
        """
        device = self._device
        device.activate()
        if self._stream is None:
            self._stream = device.stream()
        stream, pool, arrays = self._stream, device.pool(), [*operands, *results]
        counts = [*[array.nbytes for array in arrays], max(chosen.workspace_bytes, 1)]
        memory = [pool.malloc(count) for count in counts]
        places = [piece.ptr for piece in memory]
        for place, array in zip(places, arrays, strict=False):
            device.copy_in(place, address(array), array.nbytes, stream)
        self._library.bind(chosen, stream)(*places)
        for place, array in zip(places[len(operands) : -1], results, strict=True):
            device.copy_out(address(array), place, array.nbytes, stream)
        device.synchronize(stream)


def warn_of(call: object) -> None:
    """Say that a library is wrong about a small call."""
    warn(
        f"[cudnn] its result must equal NumPy's for a small {call}; it differs, so gpuflow's "
        "kernels compute such calls. Fix: install a cuDNN for this driver, or set GPUFLOW_CUDNN=0."
    )


def is_near(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    """Whether a result agrees with NumPy; NaN does not."""
    return bool(np.all(np.abs(got.astype(np.float64) - want) <= tolerance * (1 + abs(want))))
