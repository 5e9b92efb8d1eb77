"""The third-party packages of a CUDA build: one check of them, and one loader of each.

Only a build needs them: cached kernels run without any of these packages.
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

# numba and the numba-cuda that works with it; no package declares it (pyproject.toml pins them).
_PAIRS = {"0.68": "0.30", "0.63": "0.24", "0.62": "0.22"}
# Neither needs a GPU or a driver.
INSTALL = 'pip install "numba>=0.68.1,<0.69" "numba-cuda[cu13]>=0.30.4,<0.31"'
# The compiler from LLVM to PTX and the linker from PTX to machine code, by cuda.pathfinder's names.
_LIBRARIES = ("nvvm", "nvJitLink")


class CudaBuildError(RuntimeError):
    """Printed source did not become a loadable kernel; a fault of the compiler, not of the user."""


class CudaToolchainError(ImportError):
    """The packages that build CUDA kernels are missing, or do not work together."""


@record
class NumbaCuda:
    """The modules of numba-cuda that a build uses."""

    cuda: ModuleType
    types: ModuleType
    dispatcher: ModuleType
    libdevice: ModuleType
    intrinsic: Any
    llvm: ModuleType


def pair_fault(numba: str, numba_cuda: str) -> str:
    """The incompatibility of these versions of numba and numba-cuda; "" if they work together."""
    if numba_cuda == "none":
        return f"numba {numba} without numba-cuda"
    if _PAIRS.get(_series(numba)) != _series(numba_cuda):
        return f"numba {numba} with numba-cuda {numba_cuda}: not known to work together"
    return ""


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


@cache
def toolchain_fault() -> str:
    """Why no CUDA kernel can be built in this environment, as an error text; "" if one can.

    It compares versions: Numba contains an older ``numba.cuda``, which imports but does not compile
    our kernels. Needs no GPU and does not import Numba.
    """
    fault = pair_fault(version_of("numba"), version_of("numba-cuda"))
    if not fault and version_of("cuda-core") == "none":
        fault = "no cuda-core"
    fault = fault or _library_fault()
    return fault and _sentence(fault)


def _library_fault() -> str:
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


def _sentence(fault: str) -> str:
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
    """Import numba-cuda; about half a second, so only a build calls this.

    Raises:
        CudaToolchainError: the packages are missing, incompatible or do not load.
    """
    require_toolchain()
    try:
        with _names_of_older_numpy(), warnings.catch_warnings():
            # With NumPy 2.5 it uses deprecated names, which `python -W error` would not survive.
            warnings.simplefilter("ignore", DeprecationWarning)
            import numba.cuda.dispatcher
            from llvmlite import ir
            from numba import cuda, types
            from numba.cuda import libdevice
            from numba.cuda.extending import intrinsic
    # A package may lack a name that another imports; RuntimeError: the interpreter is ending.
    except (ImportError, AttributeError, RuntimeError) as error:
        raise CudaToolchainError(_sentence(str(error))) from error
    return NumbaCuda(cuda, types, numba.cuda.dispatcher, libdevice, intrinsic, ir)


@contextmanager
def _names_of_older_numpy() -> Iterator[None]:
    """Provide the name that numba-cuda 0.30 imports from NumPy and that NumPy 2.5 dropped.

    pip installs the two together, since neither declares the conflict.
    """
    if hasattr(np, "row_stack"):
        yield
        return
    # Its typing of a function that cannot be called.
    vars(np)["row_stack"] = lambda arrays: np.vstack(arrays)
    try:
        yield
        importlib.import_module("numba.cuda.np.arrayobj")  # else the first build would
    finally:
        del vars(np)["row_stack"]


def load_nvrtc() -> ModuleType:
    """Import the Python binding of NVRTC, the compiler of CUDA C; only a build calls this.

    Raises:
        CudaToolchainError: as ``load_numba_cuda``.
    """
    return _imported("cuda.bindings.nvrtc")


def load_linker() -> ModuleType:
    """Import cuda.core, the Python binding of nvJitLink; only a build calls this.

    Raises:
        CudaToolchainError: as ``load_numba_cuda``.
    """
    return _imported("cuda.core")


def _imported(name: str) -> ModuleType:
    require_toolchain()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CudaToolchainError(_sentence(str(error))) from error


@cache
def header_folders() -> list[str]:
    """Folders of CUDA's installed headers, such as cuda_fp16.h."""
    import cuda.pathfinder

    found = [cuda.pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    return [folder for folder in found if folder is not None]
