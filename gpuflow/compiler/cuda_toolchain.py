"""The third-party packages behind a CUDA build, each behind one loader that only a build calls."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gpuflow.base.records import record


class CudaBuildError(RuntimeError):
    """Printed source did not become a loadable kernel; a fault of the compiler, not of the user."""


@record
class NumbaCuda:
    """The parts of numba-cuda that a build uses."""

    cuda: ModuleType
    types: ModuleType
    dispatcher: ModuleType
    libdevice: ModuleType
    intrinsic: Any
    llvm: ModuleType


def load_numba_cuda() -> NumbaCuda:
    """Import numba-cuda; about half a second, so only a build calls this.

    Raises:
        ImportError: numba-cuda is not installed.
    """
    try:
        import numba.cuda.dispatcher
        from llvmlite import ir
        from numba import cuda, types
        from numba.cuda import libdevice
        from numba.cuda.extending import intrinsic
    except ImportError as error:
        raise ImportError(
            f"[cuda build] numba-cuda must be installed; got {error}. "
            'Fix: pip install "gpuflow[cuda13]".'
        ) from error
    return NumbaCuda(cuda, types, numba.cuda.dispatcher, libdevice, intrinsic, ir)


def load_linker() -> ModuleType:
    """Import cuda.core, the Python binding of nvJitLink; only a build calls this.

    Raises:
        ImportError: cuda-core is not installed.
    """
    try:
        import cuda.core
    except ImportError as error:
        raise ImportError(
            f"[cuda build] cuda-core must be installed; got {error}. "
            'Fix: pip install "gpuflow[cuda13]".'
        ) from error
    return cuda.core
