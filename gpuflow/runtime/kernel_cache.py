"""The kernel cache of this process (CPU), created at first use.

Tests: tests/base/test_caches.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule

if TYPE_CHECKING:
    from gpuflow.compiler.cache import folder
    from gpuflow.compiler.cache import kernel_cache as disk
else:
    folder = LazyModule("gpuflow.compiler.cache.folder")
    disk = LazyModule("gpuflow.compiler.cache.kernel_cache")


@cache
def kernel_cache() -> disk.KernelCache:
    """The process's kernel cache, in the configured folder."""
    return disk.KernelCache(folder.cache_folder(), config.environment.cache_limit)


def _forget_locks() -> None:
    if kernel_cache.cache_info().currsize:
        kernel_cache().reset_locks_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def cache_stats() -> disk.CacheStats:
    """Return the counts of kernels compiled and loaded in this process, and the compile time.

    Returns:
        CacheStats; its ``caches`` lists the caches in memory with their bounds and sizes.

    Example:
        >>> sorted(vars(gf.cache_stats()))[:2]
        ['build_seconds', 'built']
    """
    return kernel_cache().stats
