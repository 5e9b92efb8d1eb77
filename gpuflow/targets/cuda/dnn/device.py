"""cuDNN on one device: the library, looked for when it is first needed, its handle, and choices."""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from gpuflow.base.util import warn
from gpuflow.compiler.debugging import show
from gpuflow.targets.cuda.dnn import cudnn

Call = TypeVar("Call")
Chosen = TypeVar("Chosen")


class NotTaken(Exception):
    """The library does not support a call; the text is the reason."""


class CudnnDevice(ABC, Generic[Call, Chosen]):
    """cuDNN on one device, for one kind of calls.

    Args:
        load: gives the library, or raises OSError or AttributeError.
        on_device: while entered, the device is the current one.
    """

    def __init__(
        self, load: Callable[[], Any], on_device: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._load, self._on_device = load, on_device
        self._library: Any = None
        self._missing = ""  # why it cannot be loaded
        self._handle: int | None = None
        # One handle serves all streams, so to bind it and to run is one thing.
        self._lock = threading.RLock()
        self._chosen: dict[tuple[Call, bool], Chosen | None] = {}
        self._reasons: dict[tuple[Call, bool], str] = {}

    def choose(self, call: Call, deterministic: bool) -> Chosen | None:
        """The first one of the library's heuristic that may be taken; the library is asked once.

        Args:
            call: the operation.
            deterministic: results must have the same bits in every run.
        """
        key = (call, deterministic)
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._taken(key) if self._found() else None
            return self._chosen[key]

    def _taken(self, key: tuple[Call, bool]) -> Chosen | None:
        try:
            return self._choice(*key)
        except NotTaken as reason:
            text = self._reasons[key] = str(reason)
            show(1, "cudnn", lambda: f"not used: {text}")
            return None

    def why_not(self, call: Call, deterministic: bool) -> str:
        """Why ``choose`` gave None."""
        return self._missing or self._reasons.get((call, deterministic), "")

    def version(self) -> str:
        """The library's version, as "9.28.1"."""
        return ".".join(map(str, cudnn.version_of(self._opened())))

    @abstractmethod
    def _choice(self, call: Call, deterministic: bool) -> Chosen:
        """The choice of the library, which is installed.

        Raises:
            NotTaken: if it does not take the call.
        """

    def _found(self) -> bool:
        """Whether the library is there."""
        if self._library is None and not self._missing:
            try:
                self._library = self._load()
            except (OSError, AttributeError) as error:
                self._missing = str(error) or type(error).__name__
                if isinstance(error, cudnn.OtherVersion):
                    warn(str(error))
                show(1, "cudnn", lambda text=str(error): f"not used: {text}")
        return self._library is not None

    def _opened(self) -> Any:
        with self._lock:
            if not self._found():
                raise RuntimeError(
                    "[cudnn] the library with which a program was made must be there; it is not. "
                    "Fix: call the function again after clear_caches()."
                )
            return self._library

    def _handle_of(self, call: object) -> int | None:
        """The handle, of the device."""
        with self._lock, self._on_device():
            if self._handle is None:
                made = ctypes.c_void_p()
                place = ctypes.byref(made)
                cudnn.checked(self._library, call, "cudnnCreate", place)
                self._handle = made.value
            return self._handle
