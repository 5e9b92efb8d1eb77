"""Checks of `gpuflow doctor`, one for each component that GPU programs need.

A check returns a text, or raises: ``Trouble`` if there is a known fix.

Tests: tests/cli/test_doctor_gpu.py, tests/cli/test_cli_commands.py.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuflow.base.config import config
from gpuflow.cli.doctor_needs import (
    DRIVERS,
    NEEDED,
    driver_command,
    extra,
    fits,
)
from gpuflow.compiler.cache.versions import version_of
from gpuflow.targets.cuda.codegen.toolchain import pair_fault
from gpuflow.targets.cuda.library.blas.gemm import find_cublas
from gpuflow.targets.cuda.library.dnn.frontend import MAJOR_VERSION as CUDNN
from gpuflow.targets.cuda.library.dnn.frontend import find_cudnn
from gpuflow.targets.cuda.library.dnn.frontend import version_of as cudnn_version
from gpuflow.targets.cuda.runtime.driver.device_memory import in_units
from gpuflow.targets.platforms import GPU_SIGNS, seems_to_have_gpu

TRIAL_SECONDS = 40.0
_CUPYS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI's numbers of a vendor and of a class of devices
# Meaning and fix of CUDA's errors, from the CUDA Runtime's documentation on cudaError.
_ERRORS = {
    "cudaErrorNoDevice": ("CUDA shows no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"),
    "cudaErrorSystemNotReady": (
        "the machine is not ready for CUDA",
        "start nvidia-fabricmanager, as root",
    ),
    "cudaErrorSystemDriverMismatch": (
        "the driver's library does not fit its kernel module",
        "restart the machine",
    ),
    "cudaErrorCompatNotSupportedOnDevice": (
        "a libcuda for forward compatibility is installed, which this GPU does not support",
        "remove cuda-compat from LD_LIBRARY_PATH",
    ),
    "cudaErrorDevicesUnavailable": (
        "another process uses the GPU exclusively",
        "end it, or nvidia-smi -c 0",
    ),
}


class Trouble(Exception):
    """A component does not work: the text is the problem, ``fix`` the solution."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.fix = fix


def load(module: str) -> Any:
    """A module of an optional package."""
    return importlib.import_module(module)


def is_importable(module: str) -> bool:
    """Whether a package is installed; it may not work."""
    return importlib.util.find_spec(module) is not None


def open_library(name: str) -> Any:
    """A library of the system."""
    return ctypes.CDLL(name)


def first_nonempty(text: str) -> str:
    """Return the first line that is not empty."""
    rows = [row.strip() for row in text.split("\n")]
    return next((row for row in rows if row), "no reason was given")


def is_on_bus() -> bool:
    """Whether there is a GPU of NVIDIA, with or without a driver."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
            if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY):
                return True
    return False


# --- versions ---


def driver_cuda() -> tuple[int, int]:
    """The newest CUDA that the driver runs.

    Raises:
        OSError: there is no driver.
        Trouble: it does not answer.
    """
    version = ctypes.c_int()
    if open_library("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
        raise Trouble("does not answer", "reinstall NVIDIA's driver")
    return version.value // 1000, version.value % 1000 // 10


def cuda_major() -> int:
    """The major version of CUDA to install for: CuPy's, else the driver's, else the newest."""
    installed = _cupys()
    if installed:
        return 12 if installed[0] == "cupy-cuda12x" else 13
    with suppress(OSError, Trouble):
        return 12 if driver_cuda()[0] == 12 else 13
    return 13


def _cupys() -> list[str]:
    return [package for package in _CUPYS if version_of(package) != "none"]


def _version_text(package: str) -> str:
    """The installed version of a package, and the versions that are needed.

    Raises:
        Trouble: it is not installed, or does not fit.
    """
    version, needed = version_of(package), NEEDED[package]
    if version == "none":
        raise Trouble(f"{package} is not installed; needed: {needed}")
    if not fits(version, needed):
        raise Trouble(f"{package} {version} does not fit; needed: {needed}")
    return f"{version} (needed: {needed})"


def _refuse_newer(cuda: tuple[int, int]) -> None:
    """Refuse a CUDA that the driver does not run; the minor versions of one major fit all.

    Source: NVIDIA, CUDA compatibility, minor version compatibility.
    """
    try:
        runs = driver_cuda()
    except (OSError, Trouble):
        return  # the driver has a separate line
    if runs[0] < cuda[0]:
        raise Trouble(
            f"{cuda[0]}.{cuda[1]} does not fit the driver, which runs CUDA up to "
            f"{runs[0]}.{runs[1]}; needed: {runs[0]}",
            f"{driver_command(13)}, or {extra(12)} in a separate environment",
        )


def _dotted(number: int, unit: int) -> str:
    """Format a version that a library returns as an integer: ``unit`` for each major version."""
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


# --- components ---


def check_gpu() -> str:
    """Return the GPUs that the system reports."""
    if seems_to_have_gpu():
        return "found"
    if is_on_bus():
        raise Trouble(
            "NVIDIA's GPU is on the PCI bus, but has no driver", driver_command(cuda_major())
        )
    raise Trouble(
        f"none: found none of {', '.join(GPU_SIGNS)}",
        "none needed for the CPU; a container must be started with its GPUs (--gpus all)",
    )


def check_driver() -> str:
    """The newest CUDA that the driver runs."""
    try:
        major, minor = driver_cuda()
    except OSError:
        if seems_to_have_gpu() or is_on_bus():
            fix = f"{driver_command(cuda_major())}; a container must be started with --gpus all"
            raise Trouble("libcuda.so.1 is not found", fix) from None
        raise Trouble(
            "none, and no GPU",
            "use a machine with an NVIDIA GPU, or GPUFLOW_PLATFORM=cpu",
        ) from None
    needed = cuda_major()
    if major < needed:
        other = f", or {extra(12)} in a separate environment" if major == 12 else ""
        raise Trouble(
            f"is too old: it runs CUDA up to {major}.{minor}; needed: {needed}.0",
            driver_command(needed) + other,
        )
    return f"runs CUDA up to {major}.{minor} (needed: {needed}.0, of driver {DRIVERS[needed]})"


def check_cupy() -> str:
    """CuPy: one of its packages only, which can be imported."""
    installed = _cupys()
    if len(installed) > 1:
        raise Trouble(
            f"{' and '.join(installed)} are installed, which overwrite each other; needed: one of "
            "them",
            f"pip uninstall -y {' '.join(installed)} && {extra(cuda_major())}",
        )
    if not installed and not is_importable("cupy"):
        needed = f"cupy-cuda{cuda_major()}x"
        raise Trouble(f"is not installed; needed: {needed}{NEEDED[needed]}")
    versions = ""
    if installed[:1] != ["cupy"]:
        versions = f"{installed[0]} {_version_text(installed[0])}"
    version = load("cupy").__version__
    return versions or f"{version} (needed: {NEEDED['cupy-cuda13x']})"


def check_runtime() -> str:
    """The CUDA runtime that CuPy brings, which the driver must run."""
    number = load("cupy").cuda.runtime.runtimeGetVersion()
    cuda = number // 1000, number % 1000 // 10
    _refuse_newer(cuda)
    return f"{cuda[0]}.{cuda[1]}"


def check_devices() -> str:
    """The GPUs that CUDA shows."""
    runtime = load("cupy").cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except Exception as error:
        for name, (meaning, fix) in _ERRORS.items():
            if name in str(error):
                raise Trouble(meaning, fix) from error
        raise
    names = []
    for number in range(count):
        properties = runtime.getDeviceProperties(number)
        capability = f"{properties['major']}.{properties['minor']}"
        names.append(f"{properties['name'].decode()} (compute capability {capability})")
        if properties["major"] < 8:
            raise Trouble(f"{names[-1]} is too old; needed: 8.0", "use a newer GPU")
    if not names:
        raise Trouble(*_ERRORS["cudaErrorNoDevice"])
    return ", ".join(names)


def check_memory() -> str:
    """Memory of the first GPU."""
    free, total = load("cupy").cuda.runtime.memGetInfo()
    if free < 1 << 30:
        raise Trouble(
            f"{in_units(free)} free of {in_units(total)}",
            "end other programs that use the GPU; nvidia-smi lists them",
        )
    return f"{in_units(free)} free of {in_units(total)}"


def check_numba_cuda() -> str:
    """The printer of PTX."""
    return _version_text("numba-cuda")


def check_numba_pair() -> str:
    """numba and numba-cuda, of versions that work together."""
    numba, numba_cuda = version_of("numba"), version_of("numba-cuda")
    if fault := pair_fault(numba, numba_cuda):
        raise Trouble(f"{fault}; needed: numba {NEEDED['numba']}")
    return f"{numba} and {numba_cuda}"


def check_cuda_core() -> str:
    """The binding of the linker."""
    version = version_of("cuda-core")
    if version == "none":
        raise Trouble("is not installed")
    return version


def check_nvvm() -> str:
    """The compiler from LLVM to PTX."""
    return ".".join(map(str, load("cuda.bindings.nvvm").version()))


def check_nvjitlink() -> str:
    """The linker from PTX to machine code, which the driver must load."""
    cuda = load("cuda.bindings.nvjitlink").version()
    _refuse_newer(tuple(cuda[:2]))
    return ".".join(map(str, cuda))


def check_nvrtc() -> str:
    """The compiler of CUDA C, which CuPy's own kernels need."""
    status, major, minor = load("cuda.bindings.nvrtc").nvrtcVersion()
    if int(status):
        raise Trouble(f"does not answer: {status}")
    return f"{major}.{minor}"


def check_cublas() -> str:
    """The library of matrix products."""
    try:
        path = find_cublas()
    except OSError:
        raise Trouble("is not found, so products of matrices run on the host") from None
    library, numbers = open_library(path), []
    for component in range(3):  # libraryPropertyType: major, minor, patch
        number = ctypes.c_int()
        library.cublasGetProperty(component, ctypes.byref(number))
        numbers.append(str(number.value))
    return f"{'.'.join(numbers)} (needed: {cuda_major()}), {path}"


def check_cudnn() -> str:
    """The library of convolutions and attention, which is optional."""
    ours = "convolutions and attention use gpuflow's kernels"
    try:
        path = find_cudnn()
        library = open_library(path)
    except OSError:
        raise Trouble(f"is not found: {ours}") from None
    version = cudnn_version(library)
    version_and_path = f"{'.'.join(map(str, version))} (needed: {CUDNN}), {path}"
    if version[0] != CUDNN:
        raise Trouble(f"{version_and_path}: {ours}")
    if not is_importable("cudnn"):
        raise Trouble(f"{version_and_path}, without nvidia-cudnn-frontend: {ours}")
    if config.environment.cudnn:
        return version_and_path
    return f"{version_and_path}; GPUFLOW_CUDNN=0: {ours}"


def check_cufft() -> str:
    """The library of Fourier transforms, by way of CuPy."""
    try:
        return _dotted(load("cupy").cuda.cufft.getVersion(), 1000)
    except ImportError as error:
        raise Trouble(f"FFTs run on the host: {first_nonempty(str(error))}") from error


def check_cusolver() -> str:
    """The library of factorizations, by way of CuPy."""
    try:
        return ".".join(map(str, load("cupy").cuda.cusolver._getVersion()))
    except ImportError as error:
        text = f"factorizations of large matrices run on the host: {first_nonempty(str(error))}"
        raise Trouble(text) from error


def check_nccl() -> str:
    """The library of collectives, by way of CuPy."""
    nccl, needed = load("cupy.cuda.nccl"), NEEDED[f"nvidia-nccl-cu{cuda_major()}"]
    if not nccl.available:
        raise Trouble(f"is not found; needed for several GPUs: {needed}")
    version = _dotted(nccl.get_version(), 10000)
    if not fits(version, needed):
        raise Trouble(f"{version} is too old; needed: {needed}")
    return f"{version} (needed: {needed})"


# --- trials ---


def trial_command(name: str) -> list[str]:
    """Command that runs one trial of ``doctor_trials.TRIALS`` and prints its line."""
    return [sys.executable, "-m", "gpuflow.cli.doctor_trials", name]


def check_trial(name: str) -> str:
    """Return the result of a trial in a separate process: a crash or a hang is one line too.

    Raises:
        Trouble: it failed, crashed or did not end.
    """
    try:
        done = subprocess.run(
            trial_command(name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"did not end within {TRIAL_SECONDS:g} s") from None
    if done.returncode < 0:
        raise Trouble(f"crashed ({signal.Signals(-done.returncode).name})")
    result = (done.stdout.strip() or done.stderr.strip() or "printed nothing").split("\n")[-1]
    if done.returncode:
        raise Trouble(result)
    return result
