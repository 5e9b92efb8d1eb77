"""What `gpuflow doctor` says about GPUs: each piece by itself, with what to install."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.compiler.cuda_toolchain import INSTALL, pair_fault
from gpuflow.runtime.cuda_blas import find_cublas
from gpuflow.runtime.gpu_memory import in_units
from gpuflow.runtime.platforms import GPU_SIGNS, seems_to_have_gpu

OLDEST_DRIVER = (13, 0)
_EXTRA = 'pip install "gpuflow[cuda13]"'


@record
class Finding:
    """What one check found.

    Attributes:
        name: of the piece.
        text: its version, or what is wrong.
        fix: what to do; "": nothing.
        is_needed: whether GPU programs need it.
    """

    name: str
    text: str
    fix: str = ""
    is_needed: bool = True

    @property
    def line(self) -> str:
        """For the report; what is missing begins with MISSING where a GPU is to be used."""
        return f"{self.text}. Fix: {self.fix}" if self.fix else self.text


class Trouble(Exception):
    """A piece does not work: the text says what is wrong, ``fix`` what to do."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


def findings() -> list[Finding]:
    """All checks; one that fails says so and the others go on."""
    return [_found(*check) for check in CHECKS]


def wants_gpu() -> bool:
    """Whether GPU programs should work here: the user asked for them, or there is a GPU."""
    return config.environment.platform in ("cuda", "gpu") or seems_to_have_gpu()


def _found(name: str, check: Callable[[], str], fix: str, is_needed: bool) -> Finding:
    try:
        return Finding(name, check(), "", is_needed)
    except Trouble as trouble:
        return Finding(name, str(trouble), trouble.fix, is_needed)
    except Exception as error:
        first, _, own = str(error).strip().split("\n")[0].partition(". Fix: ")
        return Finding(name, f"{type(error).__name__}: {first}", own.rstrip(".") or fix, is_needed)


def load(module: str) -> Any:
    """A module of an optional package."""
    return importlib.import_module(module)


def version(package: str) -> str:
    """The version of an installed package."""
    return metadata.version(package)


def open_library(name: str) -> Any:
    """A library of the system."""
    return ctypes.CDLL(name)


def check_gpu() -> str:
    """What the system shows of a GPU."""
    if seems_to_have_gpu():
        return "seems to be there"
    raise Trouble(f"none of {', '.join(GPU_SIGNS)} is there", "none needed for the CPU")


def check_driver() -> str:
    """The newest CUDA that the driver runs."""
    found = ctypes.c_int()
    library = open_library("libcuda.so.1")
    if library.cuDriverGetVersion(ctypes.byref(found)):
        raise Trouble("does not answer", "reinstall NVIDIA's driver")
    major, minor = found.value // 1000, found.value % 1000 // 10
    if (major, minor) < OLDEST_DRIVER:
        raise Trouble(
            f"is too old: it runs CUDA up to {major}.{minor}",
            "install driver 580 or newer, which runs CUDA 13",
        )
    return f"runs CUDA up to {major}.{minor}"


def check_cupy() -> str:
    """CuPy and the CUDA runtime inside it."""
    cupy = load("cupy")
    return f"{cupy.__version__}"


def check_runtime() -> str:
    """The CUDA runtime that CuPy brings."""
    number = load("cupy").cuda.runtime.runtimeGetVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


def check_devices() -> str:
    """The GPUs that CUDA shows."""
    runtime = load("cupy").cuda.runtime
    names = []
    for number in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(number)
        capability = f"{properties['major']}.{properties['minor']}"
        names.append(f"{properties['name'].decode()} (compute capability {capability})")
        if properties["major"] < 8:
            raise Trouble(f"{names[-1]} is too old", "use a GPU of compute capability 8.0 or more")
    if not names:
        raise Trouble("CUDA shows no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES")
    return ", ".join(names)


def check_memory() -> str:
    """Memory of the first GPU."""
    free, total = load("cupy").cuda.runtime.memGetInfo()
    if free < 1 << 30:
        raise Trouble(
            f"{in_units(free)} free of {in_units(total)}",
            "end what uses the GPU; nvidia-smi shows it",
        )
    return f"{in_units(free)} free of {in_units(total)}"


def check_nvvm() -> str:
    """The compiler from LLVM to PTX."""
    return ".".join(map(str, load("cuda.bindings.nvvm").version()))


def check_nvjitlink() -> str:
    """The linker from PTX to machine code."""
    return ".".join(map(str, load("cuda.bindings.nvjitlink").version()))


def check_nvrtc() -> str:
    """The compiler of CUDA C, which CuPy's own kernels need."""
    status, major, minor = load("cuda.bindings.nvrtc").nvrtcVersion()
    if int(status):
        raise Trouble(f"does not answer: {status}", f"{_EXTRA}")
    return f"{major}.{minor}"


def check_cublas() -> str:
    """The library of matrix products."""
    return find_cublas()


def check_nccl() -> str:
    """The library of collectives."""
    loaded = load("cuda.pathfinder").load_nvidia_dynamic_lib("nccl")
    return loaded.abs_path or "found"


def check_numba_pair() -> str:
    """numba and numba-cuda, of versions that work together."""
    numba, numba_cuda = version("numba"), version("numba-cuda")
    if fault := pair_fault(numba, numba_cuda):
        raise Trouble(fault, INSTALL)
    return f"{numba} and {numba_cuda}"


CHECKS: tuple[tuple[str, Callable[[], str], str, bool], ...] = (
    ("GPU", check_gpu, "check nvidia-smi", False),
    ("CUDA driver", check_driver, "install NVIDIA's driver, 580 or newer", True),
    ("CuPy", check_cupy, _EXTRA, True),
    ("CUDA runtime", check_runtime, _EXTRA, True),
    ("GPUs", check_devices, "check the driver, nvidia-smi and CUDA_VISIBLE_DEVICES", True),
    ("GPU memory", check_memory, "check the driver", True),
    ("NVVM", check_nvvm, "pip install nvidia-nvvm", True),
    ("nvJitLink", check_nvjitlink, "pip install nvidia-nvjitlink", True),
    ("NVRTC", check_nvrtc, "pip install nvidia-cuda-nvrtc", False),
    ("cuBLAS", check_cublas, "pip install nvidia-cublas", True),
    ("NCCL", check_nccl, "pip install nvidia-nccl-cu13 (for several GPUs)", False),
    ("Numba pair", check_numba_pair, _EXTRA, True),
)
