"""Find and load cuDNN and NVIDIA's frontend for it, the package ``cudnn``; plan its graphs.

Only documented names are used, which versions 1.18 to 1.28 share. Later versions require compilers
that gpuflow does not need. Not measured on a GPU.

Source: NVIDIA, cudnn-frontend: docs/operations, python/pygraph.

Tests: tests/targets/cuda/test_cudnn_frontend.py.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import numpy as np

from gpuflow.base.dtypes import bfloat16
from gpuflow.base.installation import pip_install
from gpuflow.targets.cuda.library.blas.gemm import find_cublas
from gpuflow.targets.cuda.library.dnn.calls import CudnnCall
from gpuflow.targets.cuda.runtime.driver.faults import StatusError

MAJOR_VERSION = 9  # of cuDNN
_FILE = f"libcudnn.so.{MAJOR_VERSION}"
# Names of dtypes in the frontend's ``data_type``; other dtypes are not supported.
DATA_TYPE_NAMES = {
    np.dtype(np.float32): "FLOAT",
    np.dtype(np.float64): "DOUBLE",
    np.dtype(np.float16): "HALF",
    bfloat16: "BFLOAT16",
}
MAX_WORKSPACE = 1 << 28  # bytes; a guess: nothing was measured


class OtherVersion(OSError):
    """A library was found, but it is not cuDNN 9."""


class CudnnError(StatusError):
    """A call of cuDNN failed."""

    def __init__(self, call: object, error: Exception) -> None:
        super().__init__(
            f"[cudnn] {call} must run; got {error}. Fix: set GPUFLOW_CUDNN=0, which leaves it to "
            "gpuflow's own kernels, and report it; gpuflow doctor checks the library."
        )


def find_cudnn() -> str:
    """The path of cuDNN, or a name by which ctypes loads it.

    Raises:
        OSError: if it is not installed.
    """
    with suppress(OSError):
        find_cublas("cublasLt")  # loads it, as cuDNN looks for it by name
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        with suppress(Exception):  # it raises many classes; the system may still have the library
            path = pathfinder.load_nvidia_dynamic_lib("cudnn").abs_path
            if path:
                return path
    with suppress(OSError):
        ctypes.CDLL(_FILE)
        return _FILE
    raise OSError(
        f"[cudnn] {_FILE} must be installed; it was not found. Fix: "
        f"{pip_install('cudnn')}, or nvidia-cudnn-cu12 where CUDA or CuPy is of version 12."
    )


def version_of(library: Any) -> tuple[int, int, int]:
    """Major, minor and patch version of a cuDNN that ctypes has loaded."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    # Up to 8 the number was major * 1000 + minor * 100 + patch.
    unit = 10000 if number >= 10000 else 1000
    return number // unit, number % unit // 100, number % 100


def load_frontend() -> Any:
    """Import the package ``cudnn``, after checks of the library that it will use.

    Raises:
        OtherVersion: if the library is not cuDNN 9, or the package has loaded another one.
        OSError: if the library or the package is missing or fails to load.
    """
    path = find_cudnn()
    version = version_of(ctypes.CDLL(path))
    if version[0] != MAJOR_VERSION:
        raise OtherVersion(
            f"[cudnn] {path} must be cuDNN {MAJOR_VERSION}; got {'.'.join(map(str, version))}. "
            f"Fix: {pip_install('cudnn')}, or set GPUFLOW_CUDNN=0."
        )
    try:
        import cudnn

        loaded = version_text(cudnn)
    except Exception as error:  # an incompatible library raises other classes
        raise OSError(
            f"[cudnn] nvidia-cudnn-frontend must be importable; got {type(error).__name__}: "
            f"{error}. Fix: {pip_install('cudnn')}."
        ) from error
    if loaded != ".".join(map(str, version)):
        raise OtherVersion(
            f"[cudnn] there must be one cuDNN; got {path} of version "
            f"{'.'.join(map(str, version))}, and nvidia-cudnn-frontend has loaded {loaded}. "
            "Fix: remove one from LD_LIBRARY_PATH, or set GPUFLOW_CUDNN=0."
        )
    return cudnn


def version_text(library: Any) -> str:
    """The version of cuDNN that the frontend has loaded, such as "9.28.1"."""
    number = library.backend_version()
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def build_execution_plan(frontend: Any, graph: Any, call: CudnnCall, deterministic: bool) -> int:
    """Build the plan that the library's heuristic prefers; returns its workspace in bytes.

    Args:
        frontend: from ``load_frontend``.
        graph: the graph of ``call``, which receives the plan.
        call: the call.
        deterministic: whether results must have the same bits in every run.

    Raises:
        Exception: if the library has no plan; the frontend raises several classes.
    """
    notes = frontend.numerical_note
    # Excluded: algorithms that narrow operands or sums below the dtype.
    excluded_notes = [notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
    if deterministic:
        excluded_notes.append(notes.NONDETERMINISTIC)
    if call.is_exact:
        excluded_notes.append(notes.TENSOR_CORE)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([frontend.heur_mode.A, frontend.heur_mode.FALLBACK])
    graph.deselect_numeric_notes(excluded_notes)
    graph.deselect_workspace_greater_than(MAX_WORKSPACE)
    graph.check_support()
    graph.build_plans()
    count: int = graph.get_workspace_size()
    return count
