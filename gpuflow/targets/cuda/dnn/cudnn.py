"""cuDNN on one device: the library, looked for when it is first needed, its handle, and plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.compiler.debugging import show
from gpuflow.targets.cuda.dnn.calls import Call, Chosen
from gpuflow.targets.cuda.dnn.frontend import CudnnError, OtherVersion, make_plan
from gpuflow.targets.cuda.dnn.graphs import graph_of
from gpuflow.targets.cuda.driver.faults import is_fault

_ALIGNED = 16  # bytes: loads of 128 bits
_Key = tuple[Call, bool]


@record
class _Planned:
    """A graph of the frontend with a plan.

    Attributes:
        graph: of the frontend.
        workspace_bytes: memory that it needs besides.
    """

    graph: Any
    workspace_bytes: int


class Cudnn:
    """cuDNN on one device.

    Args:
        load: gives the frontend, or raises OSError.
        on_device: while entered, the device is the current one.
    """

    def __init__(
        self, load: Callable[[], Any], on_device: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._load, self._on_device = load, on_device
        self._frontend: Any = None
        self._missing = ""  # why it cannot be loaded
        self._handle: Any = None
        # One handle serves all streams, so to bind it and to run is one thing.
        self._lock = threading.RLock()
        self._chosen: dict[_Key, Chosen | None] = {}
        self._reasons: dict[_Key, str] = {}
        self._unbound: dict[_Key, _Planned] = {}

    def choose(self, call: Call, deterministic: bool) -> Chosen | None:
        """The library's plan for a call; None: there is none. It is made once.

        Args:
            call: the operation.
            deterministic: results must have the same bits in every run.
        """
        key = (call, deterministic)
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._choice(key) if self._found() else None
            return self._chosen[key]

    def why_not(self, call: Call, deterministic: bool) -> str:
        """Why ``choose`` gave None."""
        return self._missing or self._reasons.get((call, deterministic), "")

    def version(self) -> str:
        """The library's version, as "9.28.1"."""
        number = self._opened().backend_version()
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"

    def bind(self, chosen: Chosen, stream: int) -> Callable[..., None]:
        """A function of the addresses of a call's arrays and of its workspace.

        A further argument is the stream that is recorded, in place of the one that it was made for.

        Raises:
            Exception: if cuDNN has no plan on this device.
            RuntimeError: if the plan needs more memory than on the device that it was chosen on.
        """
        call, library, lock = chosen.call, self._opened(), self._lock
        with lock:
            planned = self._unbound.pop((call, chosen.deterministic), None)
            planned = planned or self._plan(call, chosen.deterministic)
        if planned.workspace_bytes > chosen.workspace_bytes:
            raise RuntimeError(
                f"[cudnn] the plan of a {call} must need at most {chosen.workspace_bytes} bytes, "
                f"as on the device that it was chosen on; got {planned.workspace_bytes}. "
                "Fix: set GPUFLOW_CUDNN=0."
            )
        graph, handle, count = planned.graph, self._handle, len(call.arrays)

        def run(*places: int) -> None:
            arrays, workspace = places[:count], places[count]
            recorded = places[count + 1] if len(places) > count + 1 else stream
            if any(place % _ALIGNED for place in arrays):
                raise ValueError(
                    f"[{call.op}] arrays must begin at multiples of {_ALIGNED} bytes for cuDNN; "
                    f"got {', '.join(map(hex, arrays))} for a {call}. Fix: copy arrays of other "
                    "libraries (jnp.array), or set GPUFLOW_CUDNN=0."
                )
            try:
                with lock:
                    library.set_stream(handle=handle, stream=recorded)
                    graph.execute(dict(enumerate(arrays, 1)), workspace, handle=handle)
            except Exception as error:  # the frontend has several classes
                raise CudnnError(call, error) from error

        return run

    def _choice(self, key: _Key) -> Chosen | None:
        try:
            planned = self._unbound[key] = self._plan(*key)
        except Exception as error:  # the frontend has several classes
            if is_fault(error):
                raise
            text = self._reasons[key] = str(error)
            show(1, "cudnn", lambda: f"not used: {text}")
            return None
        return Chosen(*key, planned.workspace_bytes)

    def _plan(self, call: Call, deterministic: bool) -> _Planned:
        library = self._opened()
        with self._on_device():
            if self._handle is None:
                self._handle = library.create_handle()
            graph = graph_of(library, call, deterministic, handle=self._handle)
            return _Planned(graph, make_plan(library, graph, call, deterministic))

    def _found(self) -> bool:
        """Whether the library is there."""
        if self._frontend is None and not self._missing:
            try:
                self._frontend = self._load()
            except OSError as error:
                self._missing = str(error) or type(error).__name__
                if isinstance(error, OtherVersion):
                    warn(str(error))
                show(1, "cudnn", lambda text=str(error): f"not used: {text}")
        return self._frontend is not None

    def _opened(self) -> Any:
        with self._lock:
            if not self._found():
                raise RuntimeError(
                    "[cudnn] the library with which a program was made must be there; it is not. "
                    "Fix: call the function again after clear_caches()."
                )
            return self._frontend
