"""The process's kernel cache on the CPU."""

from __future__ import annotations

import os
from functools import cache

from gpuflow.base.config import config
from gpuflow.compiler.cache.folder import cache_folder
from gpuflow.compiler.cache.kernel_cache import CacheStats, KernelCache


@cache
def kernel_cache() -> KernelCache:
    """The process's kernel cache, in the configured folder."""
    return KernelCache(cache_folder(), config.environment.cache_limit)


def _forget_locks() -> None:
    if kernel_cache.cache_info().currsize:
        kernel_cache().forget_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def cache_stats() -> CacheStats:
    """Kernels built and loaded in this process, and the seconds that builds took."""
    return kernel_cache().stats
