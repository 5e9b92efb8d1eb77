"""`gpuflow doctor`: installed packages, detected hardware, missing requirements.

Tests: tests/cli/test_cli_commands.py, tests/cli/test_doctor_gpu.py.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from gpuflow.base.config import config, environment_names
from gpuflow.base.installation import pip_install
from gpuflow.base.private_files import folder_problem
from gpuflow.base.variables import unknown_variables
from gpuflow.cli.doctor_checks import is_on_bus
from gpuflow.cli.doctor_gpu import findings, wants_gpu
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.compiler.cache.size import stored_files
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Kernel, Mode, Operand
from gpuflow.targets.cuda.codegen.cached_builds import compile_cuda
from gpuflow.targets.cuda.codegen.toolchain import CudaBuildError, CudaToolchainError
from gpuflow.version import __version__

REQUIRED = ("numpy", "numba", "llvmlite", "optree", "ml_dtypes", "scipy", "opt_einsum")
OPTIONAL = {
    "rich": "demo",
    "scikit-learn": "demo",
    "matplotlib": "plot",
    "mpi4py": "mpi",
    "numba-cuda": "cuda13",
    "cupy-cuda13x": "cuda13",
    "cupy-cuda12x": "cuda12",
}


def add_parser(commands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = commands.add_parser("doctor", help="print versions, devices and the cache folder")
    parser.add_argument(
        "--cuda", action="store_true", help="also build a CUDA kernel; needs no GPU"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="also check all requirements of GPU programs"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report; return 1 if something that gpuflow needs is missing or wrong."""
    rows = [*versions(), *variables(), *machine(), *cache(config.environment.cache_folder)]
    rows += gpu(options.verbose)
    if options.cuda:
        rows += cuda_compiler()
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")
    return 1 if any(text.startswith(("MISSING", "WRONG")) for _, text in rows) else 0


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> Iterator[tuple[str, str]]:
    """Rows (name, version) of gpuflow, Python and the packages it can use."""
    yield "gpuflow", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for package in REQUIRED:
        yield package, installed_version(package) or f"MISSING: pip install {package}"
    for package, extra in OPTIONAL.items():
        missing = f"not installed (optional: {pip_install(extra)})"
        yield package, installed_version(package) or missing


def variables() -> Iterator[tuple[str, str]]:
    """Rows (name, text) about environment variables: bad values and unknown names."""
    for problem in config.problems:
        yield "variable", f"WRONG: {problem}"
    for problem in unknown_variables(environment_names()):
        yield "variable", problem


def machine() -> Iterator[tuple[str, str]]:
    """Rows (name, text) about processor, threads and math library."""
    environment = config.environment
    yield "processor", processor_name()
    yield "system", platform.platform()
    yield "platform asked for", environment.platform or "none (GPUFLOW_PLATFORM is not set)"
    yield "processor target", environment.cpu_target
    yield "threads", f"{environment.num_threads} of {os.cpu_count()} cores"
    yield "virtual devices", str(environment.cpu_devices)
    mathematics = "found" if can_load("libmvec.so.1") else "not found: math runs as scalar code"
    yield "libmvec", mathematics


def cache(folder: Path) -> Iterator[tuple[str, str]]:
    """Rows (name, text) about the folder of compiled kernels."""
    yield "cache folder", str(folder)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    problem = folder_problem(folder)
    if problem:
        yield "cache", f"refused: it {problem}; every process compiles its kernels again"
    elif not os.access(nearest, os.W_OK):
        yield "cache", "not writable: every process compiles its kernels again"
    elif not folder.exists():
        yield "cache", "empty"
    else:
        sizes = [status.st_size for _, status in stored_files(folder)]
        yield "cache", f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"


def gpu(verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Rows (name, text) about requirements of GPU programs; no MISSING without a GPU.

    Args:
        verbose: whether to go through all of it where there is no GPU and none was asked for.
    """
    is_gpu_expected = wants_gpu()
    if not is_gpu_expected and not verbose:
        what = "an NVIDIA GPU without a driver" if is_on_bus() else "none found"
        yield "GPU", f"{what}: programs run on the CPU (--verbose lists the requirements of GPUs)"
        return
    for finding in findings():
        is_missing = bool(finding.fix) and finding.is_needed and is_gpu_expected
        yield finding.name, f"MISSING: {finding.report}" if is_missing else finding.report


def cuda_compiler() -> Iterator[tuple[str, str]]:
    """A row about building CUDA kernels, from building one."""
    x, o = Operand("x", "float32", Mode.IN), Operand("o", "float32", Mode.OUT)
    builder = Builder({"x": x, "o": o}, [])
    value = builder.load("x")
    builder.store("o", builder.apply("add", value, value))
    kernel = Kernel("double", (), (x, o), builder.finish())
    start = time.perf_counter()
    try:
        built = compile_cuda(kernel, KernelCache(None)).built
    except (CudaToolchainError, CudaBuildError) as error:
        yield "CUDA compiler", f"MISSING: {error}"
    else:
        seconds, size = time.perf_counter() - start, len(built.cubin)
        yield "CUDA compiler", f"built a kernel for sm_90 in {seconds:.1f} s ({size} bytes)"


def processor_name() -> str:
    """The processor's marketing name if Linux reports it, else the architecture."""
    try:
        entries = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [entry.partition(":")[2].strip() for entry in entries if entry.startswith("model name")]
    return names[0] if names else platform.machine()


def can_load(library: str) -> bool:
    """Whether the dynamic linker finds `library`."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
