"""CUDA graphs through the driver's C interface: built node by node, replayed, and updated.

A kernel of gpuflow is a node with known parameters. The launches of a library are unknown. They are
captured on a stream without other work, so that other threads may use the device meanwhile. CuPy's
graphs neither keep captured objects alive nor add nodes. Not measured on a GPU.

Source: NVIDIA, CUDA Driver API: graph management; stream management (capture).

Tests: tests/targets/cuda/test_gpu_graphs.py, tests/targets/cuda/test_on_cupy.py.
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
    """Load CUDA's driver library and declare the signatures of its functions.

    Any call may wait for the GPU, so calls release the interpreter's lock
    (docs/design/0015-cuda-driver.md).

    Raises:
        OSError: if the library is missing.
        AttributeError: if it is too old.
    """
    library = ctypes.CDLL(path)
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, _int
    return library


class KernelLaunch(partial):  # a call is as fast as one of a partial
    """A launch of CUDA's driver, which reads its parameters from argument slots at each call.

    Attributes:
        node: parameters of an equivalent graph node.
        references: objects that must live as long: the kernel, the slots, pointers to these.
    """

    node: NodeParameters
    references: Any


def bind_driver_launch(
    launch: Callable[..., Any],
    kernel: LoadedKernel,
    grid: Dim,
    block: Dim,
    slots: array[int],
    stream: int,
    shared_bytes: int = 0,
) -> KernelLaunch:
    """Bind a launch to its kernel and argument slots.

    Args:
        launch: ``cuLaunchKernel``, or a function with its arguments.
        kernel, grid, block: the kernel, and the launch configuration in up to three dimensions.
        slots: one 8-byte slot per parameter; must keep its size.
        stream: stream of the launch.
        shared_bytes: dynamic shared memory of a block.
    """
    start, count = slots.buffer_info()
    pointers = array("Q", [start + 8 * k for k in range(count)])
    pointers_address = pointers.buffer_info()[0]
    shape = (*_xyz(grid), *_xyz(block), shared_bytes)
    kernel_launch = KernelLaunch(launch, kernel.function, *shape, stream, pointers_address, 0)
    node = NodeParameters(kernel.function, *shape, pointers_address, None, None, None)
    kernel_launch.node, kernel_launch.references = node, (kernel, slots, pointers)
    return kernel_launch


class LaunchGraph:
    """A CUDA graph of launches and library calls in sequence; each call of it is a replay.

    Args:
        library: from ``load_graph_calls``.
        stream: stream of replays.
        capture_stream: a stream without other work, on which calls of libraries are captured.
        work: results of ``bind_driver_launch``, and calls of libraries, in order.
        lock: held during each replay. Recorded library calls share the workspace with others, so a
            replay must not come between the launches of another call.

    Raises:
        Exception: if the work cannot be recorded.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        stream: int,
        capture_stream: int,
        work: Sequence[KernelLaunch | LibraryWork],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._library, self._stream, self._lock = library, stream, lock
        self._graph, self._exec = ctypes.c_void_p(), ctypes.c_void_p()
        self._nodes: list[int | None] = []  # of kernels by index of ``work``; None for libraries
        self._work = list(work)  # keeps the kernels of nodes loaded
        _check("create", library.cuGraphCreate(ctypes.byref(self._graph), 0))
        last_node: int | None = None
        for item in work:
            last_node = self._add_node(item, capture_stream, last_node)
            self._nodes.append(last_node if isinstance(item, KernelLaunch) else None)
        status = library.cuGraphInstantiateWithFlags(ctypes.byref(self._exec), self._graph, 0)
        _check("instantiate", status)

    def _add_node(
        self, item: KernelLaunch | LibraryWork, capture_stream: int, last_node: int | None
    ) -> int:
        """Add a node for ``item``, which depends on ``last_node``; returns the node."""
        node, dependencies = ctypes.c_void_p(), (ctypes.c_void_p * 1)(last_node)
        leading = (ctypes.byref(node), self._graph, dependencies, int(last_node is not None))
        if isinstance(item, KernelLaunch):
            status = self._library.cuGraphAddKernelNode_v2(*leading, ctypes.byref(item.node))
        else:
            subgraph = self._capture(item, capture_stream)
            status = self._library.cuGraphAddChildGraphNode(*leading, subgraph)  # copies subgraph
            self._library.cuGraphDestroy(subgraph)
        _check("add a node", status)
        return node.value or 0

    def _capture(self, item: LibraryWork, capture_stream: int) -> ctypes.c_void_p:
        """Capture a library's launches; the caller must destroy the graph."""
        library, graph = self._library, ctypes.c_void_p()
        _check("begin capture", library.cuStreamBeginCapture_v2(capture_stream, _RELAXED))
        try:
            item.run(capture_stream)
        except BaseException:
            library.cuStreamEndCapture(capture_stream, ctypes.byref(graph))
            if graph:  # null if the capture is invalid
                library.cuGraphDestroy(graph)
            raise
        _check("end capture", library.cuStreamEndCapture(capture_stream, ctypes.byref(graph)))
        return graph

    def __call__(self) -> None:
        with self._lock:
            status = self._library.cuGraphLaunch(self._exec, self._stream)
        if status:
            _check("launch", status)

    def change_launch(self, index: int, launch: Callable[[], Any]) -> bool:
        """As ``RecordedWork.change_launch``: False for calls of libraries, or if CUDA refuses."""
        node = self._nodes[index]
        if node is None or not isinstance(launch, KernelLaunch):
            return False
        parameters = ctypes.byref(launch.node)
        status = self._library.cuGraphExecKernelNodeSetParams_v2(self._exec, node, parameters)
        if status == 0:
            self._work[index] = launch
        return status == 0

    def __del__(self) -> None:
        try:
            if self._exec.value:
                self._library.cuGraphExecDestroy(self._exec)
            if self._graph.value:
                self._library.cuGraphDestroy(self._graph)
        except Exception:  # the constructor failed, or the interpreter is shutting down
            return


def _xyz(extents: Dim) -> tuple[int, int, int]:
    """Extents in x, y and z; missing ones are 1."""
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _check(operation: str, status: int) -> None:
    if status:
        raise StatusError(
            f"[cuda graph] {operation} must succeed; got status {status} (CUresult). "
            "Fix: set GPUFLOW_CUDA_GRAPHS=0, and report it."
        )
