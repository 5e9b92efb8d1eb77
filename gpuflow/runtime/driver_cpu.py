"""The CPU platform: NumPy memory, Numba kernels, everything inline and in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.compiler.cache import CacheStats, KernelCache
from gpuflow.compiler.cpu import compile_cpu
from gpuflow.compiler.cpu_build import LoadedKernel
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.kir.nodes import Kernel
from gpuflow.runtime.cpu_pool import pool
from gpuflow.runtime.memory import allocate

# A launch with fewer points than this runs on the calling thread: waking a worker costs more.
SMALLEST_PARALLEL = 1 << 17
CHUNKS_PER_THREAD = 4


@cache
def kernel_cache() -> KernelCache:
    """The process's kernel cache, in the configured folder."""
    return KernelCache(config.environment.cache_folder)


def _forget_locks() -> None:
    if kernel_cache.cache_info().currsize:
        kernel_cache().forget_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def cache_stats() -> CacheStats:
    """Kernels built and loaded in this process, and the seconds that builds took."""
    return kernel_cache().stats


class CpuDriver:
    """The driver of a CPU device. Launches finish before they return, so streams are trivial."""

    def allocate(self, aval: ShapedArray) -> np.ndarray:
        dtype = storage_dtype(aval.dtype)
        return allocate(aval.shape, dtype, aval.size * dtype.itemsize)

    def copy_to_device(self, value: Any, aval: ShapedArray) -> np.ndarray:
        array = self.allocate(aval)
        np.copyto(array, value)
        return array

    def copy_to_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def load(self, kernel: Kernel) -> LoadedKernel:
        return compile_cpu(kernel, kernel_cache(), config.environment.check)

    def launcher(
        self, loaded: LoadedKernel, words: int, extent: int, points: int
    ) -> Callable[[], None]:
        if points < SMALLEST_PARALLEL:
            return partial(loaded.call, words, 0, extent)
        return partial(pool.run, loaded.call, words, extent, self.chunk(extent))

    def chunk(self, extent: int) -> int:
        """Indices of the split axis that one thread takes at a time."""
        parts = pool.threads * CHUNKS_PER_THREAD
        chunk = -(-extent // parts)
        return chunk if chunk < 1024 else -(-chunk // 1024) * 1024

    def gemm(self, out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        np.matmul(a, b, out=out)

    def new_stream(self) -> None:
        return None

    def record_event(self, stream: None) -> None:
        return None

    def wait_event(self, stream: None, event: None) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def collective(self, name: str, arrays: Any, group: Any) -> Any:
        raise NotImplementedError(
            f"[{name}] collectives need several devices; got one CPU device. "
            "Fix: use vmap with axis_name on one device."
        )


@cache
def cpu_driver() -> CpuDriver:
    """The driver of the CPU platform."""
    return CpuDriver()
