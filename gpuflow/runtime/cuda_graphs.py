"""CUDA graphs through the driver's C interface: capture, replay, new parameters for a node.

CuPy's graphs let go of what was captured, which is needed to change a node. Not measured on a GPU.

Source: NVIDIA, CUDA Driver API: graph management; stream management (capture).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow.compiler.cuda_schedule import Dim

_int, _unsigned, _pointer = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads may do what they like
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuStreamBeginCapture_v2": (_pointer, _int),
    "cuStreamEndCapture": (_pointer, _pointer),
    "cuStreamGetCaptureInfo_v2": (_pointer, _pointer, _pointer, _pointer, _pointer, _pointer),
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


def load_graph_calls(path: str = "libcuda.so.1") -> Any:
    """CUDA's driver with the functions' signatures.

    Raises:
        OSError: it is not there.
        AttributeError: it is too old.
    """
    library = ctypes.PyDLL(path)
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, _int
    return library


class BoundLaunch(partial):  # a call costs no more than one of a plain partial
    """A launch with the parameters that an array of words holds when it is called.

    Attributes:
        node: what a node of a graph is told to do the same.
        kept: what lies behind addresses.
    """

    node: NodeParameters
    kept: Any


def bound_launch(
    launch: Callable[..., Any], function: int, grid: Dim, block: Dim, words: array[int],
    stream: int, shared_bytes: int = 0,
) -> BoundLaunch:  # fmt: skip
    """A launch.

    Args:
        launch: of CUDA's driver, with arguments as ``cuLaunchKernel``.
        function, grid, block: of the kernel.
        words: the parameters.
        stream: that it runs on.
        shared_bytes: of dynamic shared memory, for each block.
    """
    start, count = words.buffer_info()
    places = array("Q", [start + 8 * k for k in range(count)])
    place = places.buffer_info()[0]
    shape = (*_three(grid), *_three(block), shared_bytes)
    bound = BoundLaunch(launch, function, *shape, stream, place, 0)
    bound.node = NodeParameters(function, *shape, place, None, None, None)
    bound.kept = words, places
    return bound


class CapturedGraph:
    """Work of a stream, captured.

    Args:
        library: from ``load_graph_calls``.
        stream: that it runs on.
        work: what to capture.

    Raises:
        Exception: it cannot be captured.
    """

    def __init__(
        self, library: Any, stream: int, work: Sequence[Callable[[], Any]]
    ) -> None:
        self._library, self._stream = library, stream
        self._graph, self._exec = ctypes.c_void_p(), ctypes.c_void_p()
        self._nodes: list[int | None] = []
        _check("begin capture", library.cuStreamBeginCapture_v2(stream, _RELAXED))
        try:
            for one in work:
                one()
                is_kernel = isinstance(one, BoundLaunch)
                self._nodes.append(self._last_node() if is_kernel else None)
        finally:
            status = library.cuStreamEndCapture(stream, ctypes.byref(self._graph))
        _check("end capture", status)
        status = library.cuGraphInstantiateWithFlags(
            ctypes.byref(self._exec), self._graph, 0
        )
        _check("instantiate", status)

    def _last_node(self) -> int | None:
        """The node that the stream's next work would wait for; None if there are several."""
        status, identity, count = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_size_t()
        graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
        found = self._library.cuStreamGetCaptureInfo_v2(
            self._stream,
            *map(ctypes.byref, (status, identity, graph, nodes, count)),
        )
        return nodes[0] if found == 0 and count.value == 1 else None

    def __call__(self) -> None:
        status = self._library.cuGraphLaunch(self._exec, self._stream)
        if status:
            _check("launch", status)

    def change(self, number: int, launch: Callable[[], Any]) -> bool:
        """Give the kernel of a call other parameters, for later replays."""
        node = self._nodes[number]
        if node is None or not isinstance(launch, BoundLaunch):
            return False
        place = ctypes.byref(launch.node)
        return self._library.cuGraphExecKernelNodeSetParams_v2(self._exec, node, place) == 0

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
        raise RuntimeError(
            f"[cuda graph] {what} must succeed; got status {status} (CUresult). "
            "Fix: set GPUFLOW_CUDA_GRAPHS=0, and report it."
        )
