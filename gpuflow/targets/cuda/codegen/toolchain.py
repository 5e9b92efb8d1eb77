"""Check and import the third-party packages that compile CUDA kernels.

Only builds need them: cached kernels run without any of these packages.

Tests: tests/targets/cuda/test_cuda_toolchain.py.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.compiler.cache.versions import version_of

# Series of numba: the series of numba-cuda that works with it. The packages do not declare it;
# pyproject.toml pins them.
_COMPATIBLE_SERIES = {"0.68": "0.30", "0.63": "0.24", "0.62": "0.22"}
# The installation needs neither a GPU nor a driver.
INSTALL = 'pip install "numba>=0.68.1,<0.69" "numba-cuda[cu13]>=0.30.4,<0.31"'
# The compiler from LLVM to PTX and the linker from PTX to machine code, by cuda.pathfinder's names.
_LIBRARIES = ("nvvm", "nvJitLink")


class CudaBuildError(RuntimeError):
    """Printed source cannot be compiled to a kernel; a bug of the compiler, not of the user."""


class CudaToolchainError(ImportError):
    """Packages that compile CUDA kernels are missing or incompatible."""


@record
class NumbaCuda:
    """The modules of numba-cuda and llvmlite that a build uses.

    Attributes:
        cuda: ``numba.cuda``.
        types: ``numba.types``.
        dispatcher: ``numba.cuda.dispatcher``.
        libdevice: ``numba.cuda.libdevice``.
        intrinsic: the decorator of ``numba.cuda.extending``.
        llvm: ``llvmlite.ir``.
    """

    cuda: ModuleType
    types: ModuleType
    dispatcher: ModuleType
    libdevice: ModuleType
    intrinsic: Any
    llvm: ModuleType


def pair_fault(numba: str, numba_cuda: str) -> str:
    """Why these versions of numba and numba-cuda are incompatible; "" if they are compatible.

    ``numba_cuda`` is "none" if it is not installed.
    """
    if numba_cuda == "none":
        return f"numba {numba} without numba-cuda"
    if _COMPATIBLE_SERIES.get(_series(numba)) != _series(numba_cuda):
        return f"numba {numba} with numba-cuda {numba_cuda}: not known to work together"
    return ""


def _series(version: str) -> str:
    """Major and minor number of a version: "0.68" of "0.68.1"."""
    return ".".join(version.split(".")[:2])


@cache
def toolchain_fault() -> str:
    """Why this environment cannot build CUDA kernels, as an error text; "" if it can.

    It compares versions, because Numba contains an older ``numba.cuda``, which imports but does not
    compile our kernels. Needs no GPU and does not import Numba.
    """
    fault = pair_fault(version_of("numba"), version_of("numba-cuda"))
    if not fault and version_of("cuda-core") == "none":
        fault = "no cuda-core"
    fault = fault or _library_fault()
    return fault and _fault_message(fault)


def _library_fault() -> str:
    """Why NVVM or nvJitLink cannot be loaded; "" if they can."""
    try:
        import cuda.pathfinder
    except ImportError as error:
        return str(error)
    for name in _LIBRARIES:
        try:
            cuda.pathfinder.load_nvidia_dynamic_lib(name)
        except (RuntimeError, OSError) as error:
            return f"no {name}: {str(error).strip().partition(chr(10))[0]}"
    return ""


def _fault_message(fault: str) -> str:
    return (
        "[cuda build] building CUDA kernels needs numba-cuda, of the version that fits numba, and "
        f"its libraries; got {fault}. Fix: {INSTALL}."
    )


def require_toolchain() -> None:
    """Raise unless the packages of a build are installed.

    Raises:
        CudaToolchainError: with ``toolchain_fault()`` as its text.
    """
    if fault := toolchain_fault():
        raise CudaToolchainError(fault)


def load_numba_cuda() -> NumbaCuda:
    """Import numba-cuda; takes about half a second, so only builds call this.

    Raises:
        CudaToolchainError: if packages are missing, incompatible or fail to import.
    """
    require_toolchain()
    try:
        with _names_of_older_numpy(), warnings.catch_warnings():
            # It uses names that NumPy 2.5 deprecates, which `python -W error` would raise.
            warnings.simplefilter("ignore", DeprecationWarning)
            import numba.cuda.dispatcher
            from llvmlite import ir
            from numba import cuda, types
            from numba.cuda import libdevice
            from numba.cuda.extending import intrinsic
    # AttributeError: a package lacks a name that another imports. RuntimeError: the interpreter is
    # shutting down.
    except (ImportError, AttributeError, RuntimeError) as error:
        raise CudaToolchainError(_fault_message(str(error))) from error
    return NumbaCuda(cuda, types, numba.cuda.dispatcher, libdevice, intrinsic, ir)


@contextmanager
def _names_of_older_numpy() -> Iterator[None]:
    """Provide the name that numba-cuda 0.30 imports from NumPy and that NumPy 2.5 dropped.

    pip installs the two together, since neither declares the conflict. Meanwhile NumPy's module is
    patched for all threads.
    """
    if hasattr(np, "row_stack"):
        yield
        return
    # numba-cuda only registers a typing for it, and never calls it.
    vars(np)["row_stack"] = lambda arrays: np.vstack(arrays)
    try:
        yield
        importlib.import_module("numba.cuda.np.arrayobj")  # the module that needs it
    finally:
        del vars(np)["row_stack"]


def load_nvrtc() -> ModuleType:
    """Import the Python bindings of NVRTC, the compiler of CUDA C; only builds call this.

    Raises:
        CudaToolchainError: as ``load_numba_cuda``.
    """
    return _import_module("cuda.bindings.nvrtc")


def load_linker() -> ModuleType:
    """Import cuda.core, the Python bindings of nvJitLink; only builds call this.

    Raises:
        CudaToolchainError: as ``load_numba_cuda``.
    """
    return _import_module("cuda.core")


def _import_module(name: str) -> ModuleType:
    """Import a module of a build's packages; raises CudaToolchainError."""
    require_toolchain()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CudaToolchainError(_fault_message(str(error))) from error


@cache
def header_folders() -> list[str]:
    """Include folders of CUDA's installed headers, such as cuda_fp16.h."""
    import cuda.pathfinder

    find = cuda.pathfinder.find_nvidia_header_directory
    folders = [find(name) for name in ("cudart", "cccl")]
    return [folder for folder in folders if folder is not None]
