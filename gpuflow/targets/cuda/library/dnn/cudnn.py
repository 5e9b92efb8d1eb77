"""cuDNN on one device: loads the library at first use, and caches handles and plans.

Tests: tests/targets/cuda/test_cudnn.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from gpuflow.base.installation import pip_install
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.compiler.debugging import show
from gpuflow.targets.cuda.library.dnn.calls import CudnnCall, PlannedCall
from gpuflow.targets.cuda.library.dnn.frontend import (
    CudnnError,
    OtherVersion,
    build_execution_plan,
    version_text,
)
from gpuflow.targets.cuda.library.dnn.graphs import graph_of
from gpuflow.targets.cuda.runtime.driver.faults import is_fault

_ALIGNMENT_BYTES = 16  # addresses must be multiples of it: loads of 128 bits
_MAX_RECENT = 32  # recent plans that stay cached although no function uses them


class _Key(NamedTuple):
    """A call, and whether its results must have the same bits in every run."""

    call: CudnnCall
    deterministic: bool


@record(eq=False)
class _ExecutionPlan:
    """A graph with an execution plan.

    Attributes:
        graph: the frontend's graph.
        workspace_bytes: size of the workspace that its execution needs.
    """

    graph: Any
    workspace_bytes: int


class Cudnn:
    """cuDNN on one device: a ``DnnLibrary``; thread-safe.

    Functions of equal calls share a plan. A plan is cached while such a function exists, or while
    it is among the ``_MAX_RECENT`` used ones.

    Args:
        load: returns the frontend, or raises OSError.
        on_device: a context manager that makes the device the current one.
    """

    def __init__(
        self, load: Callable[[], Any], on_device: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._load, self._on_device = load, on_device
        self._frontend: Any = None
        self._load_error = ""  # why the frontend cannot be loaded
        # A handle serves one thread at a time, so each has a lock. Planning takes long, so it has a
        # separate handle.
        self._planning_handle: int | None = None
        self._running_handle: int | None = None
        self._planning_lock, self._running_lock = threading.RLock(), threading.Lock()
        self._planned_calls: dict[_Key, PlannedCall | None] = {}
        self._refusal_reasons: dict[_Key, str] = {}
        self._execution_plans: WeakValueDictionary[_Key, _ExecutionPlan] = WeakValueDictionary()
        self._recent_plans: deque[_ExecutionPlan] = deque(maxlen=_MAX_RECENT)

    def plan_call(self, call: CudnnCall, deterministic: bool) -> PlannedCall | None:
        """As ``DnnLibrary.plan_call``; the result is cached, also None."""
        key = _Key(call, deterministic)
        with self._planning_lock:
            if key not in self._planned_calls:
                self._planned_calls[key] = self._plan_uncached(key) if self._is_loaded() else None
            return self._planned_calls[key]

    def why_not(self, call: CudnnCall, deterministic: bool) -> str:
        """Explain why ``plan_call`` returned None."""
        return self._load_error or self._refusal_reasons.get(_Key(call, deterministic), "")

    def version(self) -> str:
        """The library's version, as "9.28.1"."""
        return version_text(self._loaded())

    def bind(self, planned_call: PlannedCall, stream: int) -> Callable[..., None]:
        """As ``DnnLibrary.bind``.

        The returned function is thread-safe. It raises ValueError if an array is not aligned to 16
        bytes.

        Raises:
            CudnnError: if cuDNN has no plan on this device.
            RuntimeError: if the plan needs a larger workspace than on the device of ``plan_call``.
        """
        call, library = planned_call.call, self._loaded()
        try:
            execution_plan = self._execution_plan(_Key(call, planned_call.deterministic))
            handle = self._handle()
        except Exception as error:  # the frontend raises several classes
            if is_fault(error):
                raise
            raise CudnnError(call, error) from error
        if execution_plan.workspace_bytes > planned_call.workspace_bytes:
            raise RuntimeError(
                f"[cudnn] the plan of a {call} must need at most {planned_call.workspace_bytes} "
                "bytes, as on the device that it was chosen on; got "
                f"{execution_plan.workspace_bytes}. Fix: set GPUFLOW_CUDNN=0."
            )
        array_count, lock = len(call.arrays), self._running_lock

        def run(*addresses: int) -> None:
            arrays, workspace = addresses[:array_count], addresses[array_count]
            has_stream = len(addresses) > array_count + 1
            call_stream = addresses[array_count + 1] if has_stream else stream
            if any(address % _ALIGNMENT_BYTES for address in arrays):
                raise ValueError(
                    f"[{call.op}] arrays must begin at multiples of {_ALIGNMENT_BYTES} bytes for "
                    f"cuDNN; got {', '.join(map(hex, arrays))} for a {call}. Fix: copy arrays of "
                    "other libraries (jnp.array), or set GPUFLOW_CUDNN=0."
                )
            pointers = dict(enumerate(arrays, 1))
            try:
                with lock:
                    library.set_stream(handle=handle, stream=call_stream)
                    # The closure holds the plan, not only its graph: so it remains cached.
                    execution_plan.graph.execute(pointers, workspace, handle=handle)
            except Exception as error:  # the frontend raises several classes
                raise CudnnError(call, error) from error

        return run

    def _plan_uncached(self, key: _Key) -> PlannedCall | None:
        """Plan a call; None if cuDNN does not support it, with a reason in ``_refusal_reasons``."""
        try:
            execution_plan = self._execution_plan(key)
        except Exception as error:  # the frontend raises several classes
            if is_fault(error):
                raise
            if isinstance(error, TypeError | AttributeError):
                warn(
                    f"[cudnn] nvidia-cudnn-frontend must be of a version from 1.18 to 1.28; got "
                    f"{type(error).__name__}: {error}. gpuflow's kernels are used. "
                    f"Fix: {pip_install('cudnn')}."
                )
            reason = self._refusal_reasons[key] = str(error)
            show(1, "cudnn", lambda: f"not used: {reason}")
            return None
        return PlannedCall(*key, execution_plan.workspace_bytes)

    def _execution_plan(self, key: _Key) -> _ExecutionPlan:
        """The plan of a call on this device, from the cache or made now."""
        library = self._loaded()
        with self._planning_lock:
            execution_plan = self._execution_plans.get(key)
            if execution_plan is None:
                with self._on_device():
                    if self._planning_handle is None:
                        self._planning_handle = library.create_handle()
                    graph = graph_of(library, *key, handle=self._planning_handle)
                    execution_plan = _ExecutionPlan(
                        graph, build_execution_plan(library, graph, *key)
                    )
                self._execution_plans[key] = execution_plan
            self._recent_plans.append(execution_plan)
            return execution_plan

    def _handle(self) -> int:
        """The handle for executions; calls with it must hold ``_running_lock``."""
        with self._running_lock:
            if self._running_handle is None:
                with self._on_device():
                    self._running_handle = self._loaded().create_handle()
            return self._running_handle

    def _is_loaded(self) -> bool:
        """Whether the library could be loaded, which the first call tries."""
        if self._frontend is None and not self._load_error:
            try:
                self._frontend = self._load()
            except OSError as error:
                self._load_error = str(error) or type(error).__name__
                if isinstance(error, OtherVersion):
                    warn(str(error))
                show(1, "cudnn", lambda text=str(error): f"not used: {text}")
        return self._frontend is not None

    def _loaded(self) -> Any:
        """The frontend.

        Raises:
            RuntimeError: if it cannot be loaded.
        """
        with self._planning_lock:
            if not self._is_loaded():
                raise RuntimeError(
                    "[cudnn] the library with which a program was made must be installed; got "
                    f"{self._load_error}. Fix: call the function again after clear_caches()."
                )
            return self._frontend
