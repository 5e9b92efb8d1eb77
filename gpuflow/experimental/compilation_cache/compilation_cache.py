"""Where compiled programs are kept: always, in the folder that GPUFLOW_CACHE_DIR names."""

from __future__ import annotations

import os

from gpuflow.base.config import config


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Accepted for programs written for JAX.

    Kernels are kept in any case, from one process to the next; another folder for them is given by
    the environment variable GPUFLOW_CACHE_DIR before gpuflow is imported.

    Args:
        path: a folder; unused.

    Warns:
        UserWarning: once, that it means nothing here.

    Example:
        >>> import gpuflow as gf
        >>> gf.experimental.compilation_cache.set_cache_dir("/tmp/programs")  # doctest: +SKIP
    """
    config.update("jax_compilation_cache_dir", os.fspath(path))


def reset_cache() -> None:
    """Accepted for programs written for JAX: kernels on disk are not deleted.

    ``gpuflow.clear_caches`` forgets the programs of this process.

    Example:
        >>> import gpuflow as gf
        >>> gf.experimental.compilation_cache.reset_cache()
    """
