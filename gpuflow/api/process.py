"""Information about this process: live arrays, versions, processes.

Tests: tests/test_surface_modules.py.
"""

from __future__ import annotations

import gc
import platform as host_platform
import sys
from typing import TypeVar

import ml_dtypes
import numpy as np
import optree

from gpuflow.api.devices import process_count, process_index
from gpuflow.base import tree
from gpuflow.base.arguments import as_truth
from gpuflow.base.config import config
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import default_backend, devices, process
from gpuflow.version import __version__

_T = TypeVar("_T")


def live_arrays(platform: str | None = None) -> list[Array]:
    """Return the arrays of this process that are not deleted.

    Args:
        platform: the platform of the arrays; the default platform by default.

    Returns:
        A list of Arrays.

    Cost: a search through all objects of the process.

    Example:
        >>> x = jnp.ones(3)
        >>> any(y is x for y in gf.live_arrays())
        True
    """
    requested = platform or default_backend()
    return [
        x
        for x in gc.get_objects()
        if type(x) is Array and not x.is_deleted() and x.device.platform == requested
    ]


def copy_to_host_async(x: _T) -> _T:
    """Start to copy the leaves of ``x`` to the host, if they support it, and return ``x``.

    Args:
        x: a pytree of arrays, scalars and other objects.

    Returns:
        ``x`` itself.

    Example:
        >>> x = gf.copy_to_host_async(jnp.arange(3))
        >>> np.asarray(x)
        array([0, 1, 2], dtype=int32)
    """
    for leaf in tree.leaves(x):
        start = getattr(leaf, "copy_to_host_async", None)
        if start is not None:
            start()
    return x


def process_indices(backend: str | None = None) -> list[int]:
    """Return the indices of all processes in the group.

    Args:
        backend: accepted as in JAX; no effect.

    Returns:
        A list of ints, from 0.

    Example:
        >>> gf.process_indices()
        [0]
    """
    del backend
    return list(range(process.count))


def host_count(backend: str | None = None) -> int:
    """Return ``process_count()``; an older name.

    Args:
        backend: accepted as in JAX; no effect.

    Returns:
        int.

    Example:
        >>> gf.host_count()
        1
    """
    return process_count(backend)


def host_id(backend: str | None = None) -> int:
    """Return ``process_index()``; an older name.

    Args:
        backend: accepted as in JAX; no effect.

    Returns:
        int.

    Example:
        >>> gf.host_id()
        0
    """
    return process_index(backend)


def host_ids(backend: str | None = None) -> list[int]:
    """Return ``process_indices()``; an older name.

    Args:
        backend: accepted as in JAX; no effect.

    Returns:
        A list of ints.

    Example:
        >>> gf.host_ids()
        [0]
    """
    return process_indices(backend)


def print_environment_info(return_string: bool = False) -> str | None:
    """Print versions and devices, for bug reports.

    Args:
        return_string: whether to return the text instead of printing it.

    Returns:
        The text, or None where it is printed.

    Example:
        >>> gf.print_environment_info(return_string=True).split()[0]
        'gpuflow:'
    """
    environment = config.environment
    text = "\n".join(
        [
            f"gpuflow:   {__version__}",
            f"numpy:     {np.__version__}",
            f"ml_dtypes: {ml_dtypes.__version__}",
            f"optree:    {optree.__version__}",
            f"python:    {sys.version.split()[0]}",
            f"machine:   {host_platform.platform()}",
            f"devices:   {', '.join(map(str, devices()))} (process {process.index} of "
            f"{process.count}; {environment.num_threads} threads, {environment.cpu_target} code)",
        ]
    )
    if as_truth("print_environment_info", "return_string", return_string):
        return text
    print(text)
    return None
