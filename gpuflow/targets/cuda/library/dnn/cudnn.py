"""cuDNN on one device: loads the library at first use, and caches handles and plans."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

from gpuflow.base.installation import pip_install
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.compiler.debugging import show
from gpuflow.targets.cuda.library.dnn.calls import Call, PlannedCall
from gpuflow.targets.cuda.library.dnn.frontend import (
    CudnnError,
    OtherVersion,
    make_plan,
    version_text,
)
from gpuflow.targets.cuda.library.dnn.graphs import graph_of
from gpuflow.targets.cuda.runtime.driver.faults import is_fault

_ALIGNED = 16  # bytes that addresses must be multiples of: loads of 128 bits
_MOST_RECENT = 32  # recent plans that stay cached without a user
_Key = tuple[Call, bool]  # the call, and whether its results must be deterministic


@record(eq=False)
class _Planned:
    """A graph with an execution plan.

    Attributes:
        graph: the frontend's graph.
        workspace_bytes: size of the workspace that its execution needs.
    """

    graph: Any
    workspace_bytes: int


class Cudnn:
    """cuDNN on one device: a ``DeepLibrary``; thread-safe.

    Functions of equal calls share a plan. A plan is cached while such a function exists, or while
    it is among the ``_MOST_RECENT`` used ones.

    Args:
        load: returns the frontend, or raises OSError.
        on_device: a context manager that makes the device the current one.
    """

    def __init__(
        self, load: Callable[[], Any], on_device: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._load, self._on_device = load, on_device
        self._frontend: Any = None
        self._missing = ""  # why it cannot be loaded
        # A handle serves one thread at a time. Planning takes long, so it has a separate handle.
        self._planning_handle: int | None = None
        self._running_handle: int | None = None
        self._planning, self._running = threading.RLock(), threading.Lock()
        self._planned_calls: dict[_Key, PlannedCall | None] = {}
        self._reasons: dict[_Key, str] = {}
        self._plans: WeakValueDictionary[_Key, _Planned] = WeakValueDictionary()
        self._recent: deque[_Planned] = deque(maxlen=_MOST_RECENT)

    def choose(self, call: Call, deterministic: bool) -> PlannedCall | None:
        """As ``DeepLibrary.choose``; the result is cached, also None."""
        key = (call, deterministic)
        with self._planning:
            if key not in self._planned_calls:
                self._planned_calls[key] = self._planned_call(key) if self._is_loaded() else None
            return self._planned_calls[key]

    def why_not(self, call: Call, deterministic: bool) -> str:
        """Explain why ``choose`` returned None."""
        return self._missing or self._reasons.get((call, deterministic), "")

    def version(self) -> str:
        """The library's version, as "9.28.1"."""
        return version_text(self._loaded())

    def bind(self, chosen: PlannedCall, stream: int) -> Callable[..., None]:
        """As ``DeepLibrary.bind``.

        The returned function raises ValueError if an array is not aligned to 16 bytes.

        Raises:
            CudnnError: if cuDNN has no plan on this device.
            RuntimeError: if the plan needs a larger workspace than on the device of ``choose``.
        """
        call, library = chosen.call, self._loaded()
        try:
            planned, handle = self._plan((call, chosen.deterministic)), self._handle()
        except Exception as error:  # the frontend raises several classes
            if is_fault(error):
                raise
            raise CudnnError(call, error) from error
        if planned.workspace_bytes > chosen.workspace_bytes:
            raise RuntimeError(
                f"[cudnn] the plan of a {call} must need at most {chosen.workspace_bytes} bytes, "
                f"as on the device that it was chosen on; got {planned.workspace_bytes}. "
                "Fix: set GPUFLOW_CUDNN=0."
            )
        count, lock = len(call.arrays), self._running

        def run(*addresses: int) -> None:
            arrays, workspace = addresses[:count], addresses[count]
            recorded = addresses[count + 1] if len(addresses) > count + 1 else stream
            if any(address % _ALIGNED for address in arrays):
                raise ValueError(
                    f"[{call.op}] arrays must begin at multiples of {_ALIGNED} bytes for cuDNN; "
                    f"got {', '.join(map(hex, arrays))} for a {call}. Fix: copy arrays of other "
                    "libraries (jnp.array), or set GPUFLOW_CUDNN=0."
                )
            try:
                with lock:
                    library.set_stream(handle=handle, stream=recorded)
                    planned.graph.execute(dict(enumerate(arrays, 1)), workspace, handle=handle)
            except Exception as error:  # the frontend raises several classes
                raise CudnnError(call, error) from error

        return run

    def _planned_call(self, key: _Key) -> PlannedCall | None:
        try:
            planned = self._plan(key)
        except Exception as error:  # the frontend raises several classes
            if is_fault(error):
                raise
            if isinstance(error, TypeError | AttributeError):
                warn(
                    f"[cudnn] nvidia-cudnn-frontend must be of a version from 1.18 to 1.28; got "
                    f"{type(error).__name__}: {error}. gpuflow's kernels are used. "
                    f"Fix: {pip_install('cudnn')}."
                )
            text = self._reasons[key] = str(error)
            show(1, "cudnn", lambda: f"not used: {text}")
            return None
        return PlannedCall(*key, planned.workspace_bytes)

    def _plan(self, key: _Key) -> _Planned:
        library = self._loaded()
        with self._planning:
            planned = self._plans.get(key)
            if planned is None:
                with self._on_device():
                    if self._planning_handle is None:
                        self._planning_handle = library.create_handle()
                    graph = graph_of(library, *key, handle=self._planning_handle)
                    planned = _Planned(graph, make_plan(library, graph, *key))
                self._plans[key] = planned
            self._recent.append(planned)
            return planned

    def _handle(self) -> int:
        """The handle for executions, which the lock ``_running`` protects."""
        with self._running:
            if self._running_handle is None:
                with self._on_device():
                    self._running_handle = self._loaded().create_handle()
            return self._running_handle

    def _is_loaded(self) -> bool:
        """Whether the library could be loaded, which the first call tries."""
        if self._frontend is None and not self._missing:
            try:
                self._frontend = self._load()
            except OSError as error:
                self._missing = str(error) or type(error).__name__
                if isinstance(error, OtherVersion):
                    warn(str(error))
                show(1, "cudnn", lambda text=str(error): f"not used: {text}")
        return self._frontend is not None

    def _loaded(self) -> Any:
        with self._planning:
            if not self._is_loaded():
                raise RuntimeError(
                    "[cudnn] the library with which a program was made must be installed; got "
                    f"{self._missing}. Fix: call the function again after clear_caches()."
                )
            return self._frontend
