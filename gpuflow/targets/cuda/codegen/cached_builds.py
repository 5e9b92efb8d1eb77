"""Build generated CUDA kernels through the kernel cache; loading needs neither Numba nor a GPU.

A key is a digest of the kernel's canonical text, of the compiler's own source, and of versions.

Tests: tests/targets/cuda/test_cuda_cache.py, tests/targets/test_kernel_keys.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuflow import kir
from gpuflow.base.caches import cache as cached
from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache, cache_key, source_digest
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

# Modules, and folders of modules, on which the code of a kernel depends; all are in its key.
_CODE_MODULES = (kir, parsing, kernel_walk, printer, llvm, schedules, printing, intrinsics, codegen)
# Packages whose versions are in every key, as another compiler may generate other code.
PACKAGES = ("numba", "llvmlite", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core")

# Fields of CudaObject that an entry stores with the code.
_STORED_FIELDS = ("ptx", "registers", "spill_bytes", "shared_bytes")

# The architecture for builds without a GPU: Hopper.
DEFAULT_COMPUTE_CAPABILITY = (9, 0)


@record
class CudaKernel:
    """A kernel built for one architecture.

    Attributes:
        source: text, parameters and launch configuration.
        built: PTX, cubin and resource usage.
    """

    source: CudaSource
    built: CudaObject


@cached
def cache_key_inputs(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """Inputs of the key other than a kernel's text and schedule; does not import the packages.

    Settings may name the package versions of another machine (``kernel_versions``), so that this
    one finds the kernels that were built there.
    """
    major, minor = compute_capability
    configured = dict(config.environment.kernel_versions)
    versions = tuple(configured.get(package) or version_of(package) for package in PACKAGES)
    settings = " ".join(config.environment.numba)
    return ("cuda", f"sm_{major}{minor}", source_digest(_CODE_MODULES), *versions, settings)


def compile_cuda(
    kernel: Kernel,
    cache: KernelCache,
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY,
    vectorize: bool = True,
) -> CudaKernel:
    """Return the built kernel: from memory, from the cache's folder, or compiled now.

    If a kernel spills registers, further schedules of ``schedules_to_try`` are built until one does
    not. ``built.spill_bytes`` is 0 unless all of them spill.

    Args:
        kernel: a kernel that ``kir.verify`` accepts.
        cache: built kernels in memory and on disk; thread-safe.
        compute_capability: architecture of the GPU that will run it; this machine needs no GPU.
        vectorize: as for ``print_cuda``. If the kernel allows no vectors, both values give the same
            kernel.

    Returns:
        The kernel; the same object for equal arguments.

    Raises:
        CudaPrintError: as ``print_cuda``.
        CudaBuildError: as ``build_cuda``.
        CudaToolchainError: if the kernel must be built and packages are missing.
    """
    build = generated_build(kernel, compute_capability, vectorize)
    return cache.load_once(
        build.key, lambda: _from_entry(kernel, cache.get(build.key, build.entry))
    )


@record
class GeneratedBuild:
    """The build of a generated kernel: picklable, so that another process can do it.

    Attributes:
        key: key of the kernel in the cache.
        kernel, vectorize, compute_capability: as for ``compile_cuda``.
    """

    key: str
    kernel: Kernel
    vectorize: bool
    compute_capability: tuple[int, int]

    def entry(self) -> CacheEntry:
        """Build the kernel and return its cache entry."""
        return _build(self.kernel, self.vectorize, self.compute_capability, self.key)


def generated_build(
    kernel: Kernel, compute_capability: tuple[int, int], vectorize: bool
) -> GeneratedBuild:
    """The build of a kernel; arguments are those of ``compile_cuda``."""
    vectorize = schedule_cuda(kernel, vectorize).vector_width > 1
    key = _key(kernel, compute_capability, vectorize)
    return GeneratedBuild(key, kernel, vectorize, compute_capability)


def cuda_source_path(
    kernel: Kernel,
    cache: KernelCache,
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY,
    vectorize: bool = True,
) -> Path | None:
    """The file of a built kernel's source; None if the cache has no files."""
    vectorize = schedule_cuda(kernel, vectorize).vector_width > 1
    return cache.path(_key(kernel, compute_capability, vectorize), "py")


def _key(kernel: Kernel, compute_capability: tuple[int, int], vectorize: bool) -> str:
    inputs = (*cache_key_inputs(compute_capability), "vectors" if vectorize else "scalars")
    return cache_key(kernel_text(kernel), inputs)


def cuda_kernels(
    steps: Iterable[Step],
    cache: KernelCache,
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY,
) -> list[CudaKernel]:
    """The built kernels of the kernel steps of a plan, in order.

    Args:
        steps: steps of a plan.
        cache, compute_capability: as for ``compile_cuda``.
    """
    kernels = [step.kernel for step in steps if isinstance(step, KernelStep)]
    return [compile_cuda(kernel, cache, compute_capability) for kernel in kernels]


def _build(
    kernel: Kernel, vectorize: bool, compute_capability: tuple[int, int], key: str
) -> CacheEntry:
    show(1, f"build {kernel.name}", lambda: f"cache miss {key}")
    show(3, f"kernel {kernel.name}", lambda: kernel_text(kernel))
    best: CudaKernel | None = None
    for launch in schedules_to_try(kernel, vectorize):
        source = print_scheduled(kernel, launch)
        show(4, f"source {kernel.name}", lambda source=source: source.text)
        built = build_cuda(
            source.text, source.entry, source.signature, compute_capability, launch.max_threads
        )
        if best is None or built.spill_bytes < best.built.spill_bytes:
            best = CudaKernel(source, built)
        if built.spill_bytes == 0:
            break
        show(1, f"spill {kernel.name}", lambda b=built: f"{b.spill_bytes} bytes of spills")
    assert best is not None
    return _to_entry(best)


def _to_entry(kernel: CudaKernel) -> CacheEntry:
    """The cache entry of a kernel; ``_from_entry`` restores it. Entries on disk have these keys."""
    source = kernel.source
    choices = {
        "signature": list(source.signature),
        "vectorize": source.launch.vector_width > 1,
        "small_tile": source.launch.is_small_block,
        "tile": source.launch.register_vectors,
    }
    return entry_of(kernel.built, source.text, choices)


def _from_entry(kernel: Kernel, entry: CacheEntry) -> CudaKernel:
    """Restore a kernel: its launch configuration follows from ``kernel`` and three choices."""
    choices: dict[str, Any] = entry.metadata
    launch = schedule_cuda(kernel, choices["vectorize"], choices["small_tile"], choices["tile"])
    source = CudaSource(entry.source, entry.entry, tuple(choices["signature"]), launch)
    return CudaKernel(source, object_of(entry))


def entry_of(built: CudaObject, text: str, metadata: Mapping[str, Any] | None = None) -> CacheEntry:
    """The cache entry of a built kernel; ``object_of`` is the inverse.

    Args:
        built: the kernel.
        text: its source text.
        metadata: further metadata of the entry, of types that JSON has.
    """
    fields = {name: getattr(built, name) for name in _STORED_FIELDS}
    metadata = {**fields, **(metadata or {})}
    return CacheEntry(built.cubin, "cubin", text, built.entry, metadata=metadata)


def object_of(entry: CacheEntry) -> CudaObject:
    """The built kernel of an entry of ``entry_of``."""
    fields = {name: entry.metadata[name] for name in _STORED_FIELDS}
    return CudaObject(cubin=entry.code, entry=entry.entry, **fields)
