"""JAX's settings of the compilation cache, which is always in GPUFLOW_CACHE_DIR.

Tests: tests/experimental/test_older_names.py.
"""

from __future__ import annotations

import os

from gpuflow.base.config import config


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Accepted for programs written for JAX.

    Kernels are always cached between processes; set the environment variable GPUFLOW_CACHE_DIR
    before importing gpuflow to use another folder.

    Args:
        path: a folder; unused.

    Warns:
        UserWarning: once: the call has no effect.

    Example:
        >>> import gpuflow as gf
        >>> gf.experimental.compilation_cache.set_cache_dir("/tmp/programs")  # doctest: +SKIP
    """
    config.update("jax_compilation_cache_dir", os.fspath(path))


def reset_cache() -> None:
    """Accepted for programs written for JAX: kernels on disk are not deleted.

    ``gpuflow.clear_caches`` clears the programs of this process.

    Example:
        >>> import gpuflow as gf
        >>> gf.experimental.compilation_cache.reset_cache()
    """
