"""Built CUDA kernels through the kernel cache: cached ones need neither Numba nor a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuflow import kir
from gpuflow.base.caches import cache as cached
from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import Entry, KernelCache, cache_key, source_digest
from gpuflow.compiler.cache.versions import version_of
from gpuflow.compiler.debugging import show
from gpuflow.compiler.planning.plan import KernelStep, Step
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.text import kernel_text
from gpuflow.targets import kernel_walk, llvm, parsing, printer
from gpuflow.targets.cuda import codegen
from gpuflow.targets.cuda.codegen import intrinsics, printing, schedules
from gpuflow.targets.cuda.codegen.build import CudaObject, build_cuda
from gpuflow.targets.cuda.codegen.printing.printers import CudaSource, print_scheduled
from gpuflow.targets.cuda.codegen.schedules.launch_config import schedule_cuda, schedules_to_try

# The modules and folders of modules that decide what a kernel's text becomes.
_EMITTERS = (kir, parsing, kernel_walk, printer, llvm, schedules, printing, intrinsics, codegen)
# Their versions are in every key: another compiler may make other code of the same text.
PACKAGES = ("numba", "llvmlite", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core")

# Stored with the code of a built kernel.
_USAGE = ("ptx", "registers", "spill_bytes", "shared_bytes")

# The default architecture of a build without a GPU: Hopper.
DEFAULT_COMPUTE_CAPABILITY = (9, 0)


@record
class CudaKernel:
    """A kernel built for one architecture.

    Attributes:
        source: its text, its parameters and its launch.
        built: its PTX and cubin, and their resource use.
    """

    source: CudaSource
    built: CudaObject


@cached
def cache_key_inputs(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """Inputs of a CUDA kernel's code other than its text and schedule; imports nothing.

    Kernels that were built on another machine are found by the versions of that machine.
    """
    major, minor = compute_capability
    foreign = dict(config.environment.kernel_versions)
    versions = tuple(foreign.get(package) or version_of(package) for package in PACKAGES)
    settings = " ".join(config.environment.numba)
    return ("cuda", f"sm_{major}{minor}", source_digest(_EMITTERS), *versions, settings)


def compile_cuda(
    kernel: Kernel,
    cache: KernelCache,
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY,
    vectorize: bool = True,
) -> CudaKernel:
    """The built kernel: from this process, from the cache's folder, or made now.

    A kernel that spills registers is built once more with each schedule that leaves a thread more
    of them, until one does not spill; ``built.spill_bytes`` is 0 unless all of them do.

    Args:
        kernel: a kernel that ``kir.verify`` accepts.
        cache: built kernels in memory and on disk; thread-safe.
        compute_capability: of the GPU that will run it; none is needed here.
        vectorize: as for ``print_cuda``. Where the text does not allow 128-bit accesses, the same
            kernel is given for both values.

    Returns:
        The kernel, the same object for equal arguments.

    Raises:
        CudaPrintError: as ``print_cuda``.
        CudaBuildError: as ``build_cuda``.
        CudaToolchainError: the kernel must be built and its packages are missing.
    """
    build = generated_build(kernel, compute_capability, vectorize)
    return cache.once(build.key, lambda: _from_entry(kernel, cache.get(build.key, build.entry)))


@record
class GeneratedBuild:
    """The build of a generated kernel, which any process may do.

    Attributes:
        key: of the kernel in the cache.
        kernel, vectorize, compute_capability: as for ``compile_cuda``.
    """

    key: str
    kernel: Kernel
    vectorize: bool
    compute_capability: tuple[int, int]

    def entry(self) -> Entry:
        """Build it."""
        return _build(self.kernel, self.vectorize, self.compute_capability, self.key)


def generated_build(
    kernel: Kernel, compute_capability: tuple[int, int], vectorize: bool
) -> GeneratedBuild:
    """The build of a kernel; arguments are those of ``compile_cuda``."""
    vectorize = schedule_cuda(kernel, vectorize).width > 1
    key = _key(kernel, compute_capability, vectorize)
    return GeneratedBuild(key, kernel, vectorize, compute_capability)


def cuda_source_path(
    kernel: Kernel,
    cache: KernelCache,
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY,
    vectorize: bool = True,
) -> Path | None:
    """The file of a built kernel's source; None if the cache has no files."""
    vectorize = schedule_cuda(kernel, vectorize).width > 1
    return cache.path(_key(kernel, compute_capability, vectorize), "py")


def _key(kernel: Kernel, compute_capability: tuple[int, int], vectorize: bool) -> str:
    inputs = (*cache_key_inputs(compute_capability), "vectors" if vectorize else "scalars")
    return cache_key(kernel_text(kernel), inputs)


def cuda_kernels(
    steps: Iterable[Step],
    cache: KernelCache,
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY,
) -> list[CudaKernel]:
    """The built kernels of a plan's steps, in order; other steps have none.

    Args:
        steps: of a plan.
        cache, compute_capability: as for ``compile_cuda``.
    """
    kernels = [step.kernel for step in steps if isinstance(step, KernelStep)]
    return [compile_cuda(kernel, cache, compute_capability) for kernel in kernels]


def _build(kernel: Kernel, vectorize: bool, compute_capability: tuple[int, int], key: str) -> Entry:
    show(1, f"build {kernel.name}", lambda: f"cache miss {key}")
    show(3, f"kernel {kernel.name}", lambda: kernel_text(kernel))
    best: CudaKernel | None = None
    for launch in schedules_to_try(kernel, vectorize):
        source = print_scheduled(kernel, launch)
        show(4, f"source {kernel.name}", lambda source=source: source.text)
        built = build_cuda(
            source.text, source.entry, source.signature, compute_capability, launch.bounds
        )
        if best is None or built.spill_bytes < best.built.spill_bytes:
            best = CudaKernel(source, built)
        if built.spill_bytes == 0:
            break
        show(1, f"spill {kernel.name}", lambda b=built: f"{b.spill_bytes} bytes of spills")
    assert best is not None
    return _to_entry(best)


def _to_entry(kernel: CudaKernel) -> Entry:
    source = kernel.source
    choices = {
        "signature": list(source.signature),
        "vectorize": source.launch.width > 1,
        "small_tile": source.launch.small_tile,
        "tile": source.launch.tile,
    }
    return entry_of(kernel.built, source.text, choices)


def _from_entry(kernel: Kernel, entry: Entry) -> CudaKernel:
    """The launch follows from the kernel and three stored choices."""
    info: dict[str, Any] = entry.info
    launch = schedule_cuda(kernel, info["vectorize"], info["small_tile"], info["tile"])
    source = CudaSource(entry.source, entry.entry, tuple(info["signature"]), launch)
    return CudaKernel(source, object_of(entry))


def entry_of(built: CudaObject, text: str, info: Mapping[str, Any] | None = None) -> Entry:
    """The cache entry of a built kernel: ``object_of`` restores the kernel from it.

    Args:
        built: the kernel.
        text: the source text.
        info: further data to store, in ``info`` of the entry.
    """
    usage = {name: getattr(built, name) for name in _USAGE}
    return Entry(built.cubin, "cubin", text, built.entry, info={**usage, **(info or {})})


def object_of(entry: Entry) -> CudaObject:
    """The built kernel of an entry that ``entry_of`` made."""
    usage = {name: entry.info[name] for name in _USAGE}
    return CudaObject(cubin=entry.code, entry=entry.entry, **usage)
