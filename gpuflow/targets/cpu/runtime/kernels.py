"""Compiles KernelIR kernels for the CPU: print, build or read from the cache, load.

Tests: tests/targets/cpu/test_cpu_cache.py, tests/targets/test_kernel_keys.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gpuflow import kir
from gpuflow.base.caches import cache as cached
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache, cache_key, source_digest
from gpuflow.compiler.cache.versions import version_of
from gpuflow.compiler.debugging import show
from gpuflow.compiler.schedules import schedule
from gpuflow.compiler.schedules.schedule import apply_rewrites
from gpuflow.kir.nodes import Kernel, memoized
from gpuflow.kir.text import kernel_text
from gpuflow.kir.verify import verify
from gpuflow.targets import kernel_walk, llvm, parsing
from gpuflow.targets.cpu import codegen
from gpuflow.targets.cpu.codegen import functions, image, loops, printing, schedules
from gpuflow.targets.cpu.codegen.build import (
    KernelBinary,
    LoadedKernel,
    build_cpu,
    load_cpu,
    target_identity,
)
from gpuflow.targets.cpu.codegen.loops.text import LoopSource, source_of
from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter
from gpuflow.targets.cpu.codegen.schedules.pipeline import CPU_REWRITES
from gpuflow.targets.cpu.runtime.native.pool import pool

# The modules and folders that determine a kernel's code: their sources are part of its cache key. A
# module that is missing here would let a process load kernels of an older version of it;
# test_kernel_keys finds such modules.
_THIS_MODULE = sys.modules[__name__]
_CODE_MODULES = (
    _THIS_MODULE,
    kir,
    schedule,
    kernel_walk,
    parsing,
    llvm,
    schedules,
    printing,
    loops,
    codegen,
    image,
)


def print_cpu(kernel: Kernel) -> LoopSource:
    """Return the loop program of a kernel, and its text.

    Args:
        kernel: A verified kernel.

    Returns:
        The program; its function is ``entry``.
    """
    return source_of(CpuPrinter(apply_rewrites(kernel, CPU_REWRITES)).program())


@cached
def cache_key_inputs() -> tuple[str, ...]:
    """Inputs of a kernel's cache key besides its text: compiler, its version, processor."""
    return ("cpu", source_digest(_CODE_MODULES), version_of("llvmlite"), target_identity())


def compile_cpu(kernel: Kernel, cache: KernelCache, check: bool = False) -> LoadedKernel:
    """Return the loaded kernel: from this process, from the cache on disk, or built.

    Args:
        kernel: A kernel that ``kir.verify`` accepts.
        cache: Holds loaded kernels in memory and built ones on disk; any thread may use it.
        check: Verify the kernel first, before and after the rewrites of this target.

    Returns:
        The loaded kernel, the same object for equal kernels and one cache.

    Raises:
        KernelError: ``check`` is set and the kernel breaks a rule.
    """
    if check:
        verify(kernel)
        verify(apply_rewrites(kernel, CPU_REWRITES))
    key = _kernel_key(kernel)

    def source() -> LoopSource:
        show(3, f"kernel {kernel.name}", lambda: kernel_text(kernel))
        return print_cpu(kernel)

    return cache.load_once(key, lambda: _load(kernel.name, source, key, cache))


def compile_text(source: LoopSource, cache: KernelCache) -> LoadedKernel:
    """Return the loaded kernel of a loop program that was written without KernelIR.

    Args:
        source: the program; its text is the cache key, so it must contain all constants.
        cache: as for ``compile_cpu``.
    """
    key = cache_key(source.text, cache_key_inputs())
    return cache.load_once(key, lambda: _load(source.entry, lambda: source, key, cache))


def load_stored(kernel: Kernel, cache: KernelCache, check: bool = False) -> bool:
    """Load the kernel unless it must be built; returns whether it is loaded.

    The arguments are those of ``compile_cpu``.
    """
    key = _kernel_key(kernel)
    if not cache.is_loaded(key) and cache.is_stored(key):
        compile_cpu(kernel, cache, check)
    return cache.is_loaded(key)


def source_path(kernel: Kernel, cache: KernelCache) -> Path | None:
    """Return the file of a built kernel's source; None if the cache is not on disk."""
    return cache.path(_kernel_key(kernel), "py")


def _kernel_key(kernel: Kernel) -> str:
    key_inputs = cache_key_inputs()
    return memoized(kernel, _hash_kernel, key_inputs)


def _hash_kernel(kernel: Kernel, key_inputs: tuple[str, ...]) -> str:
    return cache_key(kernel_text(kernel), key_inputs)


def _load(
    name: str, print_source: Callable[[], LoopSource], key: str, cache: KernelCache
) -> LoadedKernel:
    def build_entry() -> CacheEntry:
        show(1, f"build {name}", lambda: f"cache miss {key}")
        source = print_source()
        show(4, f"source {name}", lambda: f"{cache.path(key, 'py')}\n{source.text}")
        built = build_cpu(source)
        return CacheEntry(built.code, built.suffix, source.text, built.entry, built.imports)

    def load(entry: CacheEntry) -> LoadedKernel:
        return load_cpu(KernelBinary(entry.code, entry.entry, entry.imports), runtime_function)

    entry = cache.get(key, build_entry)
    try:
        return load(entry)
    except RuntimeError as error:
        # The stored object does not link on this machine: build it again, once.
        return load(cache.rebuild(key, build_entry, error))


def runtime_function(name: str) -> int | None:
    """Resolve a kernel's import from the native runtime; None if kernels may not call it."""
    return pool().runtime.addresses[name] if name == functions.INTERRUPT_FUNCTION else None
