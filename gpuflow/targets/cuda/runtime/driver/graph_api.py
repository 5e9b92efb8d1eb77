"""CUDA graphs through the driver's C interface: made node by node, replayed, and changed.

A kernel of gpuflow is a node with known parameters. The launches of a library are unknown: they are
captured on a stream without other work, so that other threads may use the device meanwhile. CuPy's
graphs do not keep captured objects, and add no nodes. Not measured on a GPU.

Source: NVIDIA, CUDA Driver API: graph management; stream management (capture).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.runtime.driver.api import LibraryWork, LoadedKernel
from gpuflow.targets.cuda.runtime.driver.faults import StatusError

_int, _unsigned, _pointer = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads are not restricted
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuStreamBeginCapture_v2": (_pointer, _int),
    "cuStreamEndCapture": (_pointer, _pointer),
    "cuGraphCreate": (_pointer, _unsigned),
    "cuGraphAddKernelNode_v2": (_pointer, _pointer, _pointer, ctypes.c_size_t, _pointer),
    "cuGraphAddChildGraphNode": (_pointer, _pointer, _pointer, ctypes.c_size_t, _pointer),
    "cuGraphInstantiateWithFlags": (_pointer, _pointer, ctypes.c_ulonglong),
    "cuGraphLaunch": (_pointer, _pointer),
    "cuGraphExecKernelNodeSetParams_v2": (_pointer, _pointer, _pointer),
    "cuGraphExecDestroy": (_pointer,),
    "cuGraphDestroy": (_pointer,),
}


class NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", _pointer),
        ("gridDimX", _unsigned),
        ("gridDimY", _unsigned),
        ("gridDimZ", _unsigned),
        ("blockDimX", _unsigned),
        ("blockDimY", _unsigned),
        ("blockDimZ", _unsigned),
        ("sharedMemBytes", _unsigned),
        ("kernelParams", _pointer),
        ("extra", _pointer),
        ("kern", _pointer),
        ("ctx", _pointer),
    ]


def load_graph_calls(path: str = "libcuda.so.1") -> ctypes.CDLL:
    """CUDA's driver with the functions' signatures.

    Any call may wait for its GPU, so calls release the interpreter's lock
    (docs/design/0015-cuda-driver.md).

    Raises:
        OSError: if it is missing.
        AttributeError: if it is too old.
    """
    library = ctypes.CDLL(path)
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, _int
    return library


class BoundLaunch(partial):  # a call costs no more than one of a plain partial
    """A launch with the current parameters of an array of arguments.

    Attributes:
        node: the parameters of an equivalent graph node.
        references: the kernel, and the memory at addresses.
    """

    node: NodeParameters
    references: Any


def bound_launch(
    launch: Callable[..., Any],
    kernel: LoadedKernel,
    grid: Dim,
    block: Dim,
    slots: array[int],
    stream: int,
    shared_bytes: int = 0,
) -> BoundLaunch:
    """Bind a launch to its kernel and parameters.

    Args:
        launch: of CUDA's driver, with arguments as ``cuLaunchKernel``.
        kernel, grid, block: the kernel to launch, and its configuration.
        slots: the parameters.
        stream: that it runs on.
        shared_bytes: of dynamic shared memory, for each block.
    """
    start, count = slots.buffer_info()
    pointers = array("Q", [start + 8 * k for k in range(count)])
    pointers_address = pointers.buffer_info()[0]
    shape = (*_three(grid), *_three(block), shared_bytes)
    bound = BoundLaunch(launch, kernel.function, *shape, stream, pointers_address, 0)
    bound.node = NodeParameters(kernel.function, *shape, pointers_address, None, None, None)
    bound.references = kernel, slots, pointers
    return bound


class LaunchGraph:
    """Launches and calls of libraries, one after the other.

    Args:
        library: from ``load_graph_calls``.
        stream: that it runs on.
        side: a stream without other work, on which calls of libraries are captured.
        work: results of ``bound_launch``, and calls of libraries.
        lock: held during a replay: recorded calls of libraries use the workspace that other calls
            use, so a replay must not come between the launches of one.

    Raises:
        Exception: it cannot be recorded.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        stream: int,
        side: int,
        work: Sequence[BoundLaunch | LibraryWork],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._library, self._stream, self._lock = library, stream, lock
        self._graph, self._exec = ctypes.c_void_p(), ctypes.c_void_p()
        self._nodes: list[int | None] = []
        self._work = list(work)  # keeps kernels loaded that nodes launch
        _check("create", library.cuGraphCreate(ctypes.byref(self._graph), 0))
        last: int | None = None
        for one in work:
            last = self._added(one, side, last)
            self._nodes.append(last if isinstance(one, BoundLaunch) else None)
        status = library.cuGraphInstantiateWithFlags(ctypes.byref(self._exec), self._graph, 0)
        _check("instantiate", status)

    def _added(self, one: BoundLaunch | LibraryWork, side: int, last: int | None) -> int:
        """Add a node that runs after the last one."""
        node, before = ctypes.c_void_p(), (ctypes.c_void_p * 1)(last)
        head = (ctypes.byref(node), self._graph, before, int(last is not None))
        if isinstance(one, BoundLaunch):
            status = self._library.cuGraphAddKernelNode_v2(*head, ctypes.byref(one.node))
        else:
            subgraph = self._captured(one, side)
            status = self._library.cuGraphAddChildGraphNode(*head, subgraph)  # it copies the graph
            self._library.cuGraphDestroy(subgraph)
        _check("add a node", status)
        return node.value or 0

    def _captured(self, one: LibraryWork, side: int) -> ctypes.c_void_p:
        """A graph of a library's launches."""
        library, graph = self._library, ctypes.c_void_p()
        _check("begin capture", library.cuStreamBeginCapture_v2(side, _RELAXED))
        try:
            one.run(side)
        except BaseException:
            library.cuStreamEndCapture(side, ctypes.byref(graph))
            if graph:  # none, if the capture has become invalid
                library.cuGraphDestroy(graph)
            raise
        _check("end capture", library.cuStreamEndCapture(side, ctypes.byref(graph)))
        return graph

    def __call__(self) -> None:
        with self._lock:
            status = self._library.cuGraphLaunch(self._exec, self._stream)
        if status:
            _check("launch", status)

    def change(self, number: int, launch: Callable[[], Any]) -> bool:
        """Give the kernel of a call other parameters, for later replays."""
        node = self._nodes[number]
        if node is None or not isinstance(launch, BoundLaunch):
            return False
        parameters = ctypes.byref(launch.node)
        status = self._library.cuGraphExecKernelNodeSetParams_v2(self._exec, node, parameters)
        if status == 0:
            self._work[number] = launch
        return status == 0

    def __del__(self) -> None:
        try:
            if self._exec.value:
                self._library.cuGraphExecDestroy(self._exec)
            if self._graph.value:
                self._library.cuGraphDestroy(self._graph)
        except Exception:  # it was not made completely, or the process ends
            return


def _three(extents: Dim) -> tuple[int, int, int]:
    """Extents in all three dimensions."""
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _check(what: str, status: int) -> None:
    if status:
        raise StatusError(
            f"[cuda graph] {what} must succeed; got status {status} (CUresult). "
            "Fix: set GPUFLOW_CUDA_GRAPHS=0, and report it."
        )
