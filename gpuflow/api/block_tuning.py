"""Autotuning of block kernels: measure the candidates once, and cache the fastest.

Tests: tests/test_block_kernels.py, tests/targets/cuda/test_block_kernels_on_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gpuflow.numpy as jnp
from gpuflow.api.programs import ensure_compile_time_eval, make_jaxpr
from gpuflow.base import tree
from gpuflow.base.lazy import LazyModule
from gpuflow.base.util import safe_zip
from gpuflow.compiler.debugging import show
from gpuflow.core.aval import ShapedArray
from gpuflow.runtime.device import default_device
from gpuflow.runtime.kernel_cache import kernel_cache

if TYPE_CHECKING:
    from gpuflow.compiler.cache import kernel_cache as disk
else:
    disk = LazyModule("gpuflow.compiler.cache.kernel_cache")

_REPEATS = 5
Parameters = tuple[tuple[str, Any], ...]


def fastest(
    name: str,
    function: Callable[..., Any],
    candidates: Sequence[Parameters],
    avals: Sequence[ShapedArray],
    in_tree: Any,
) -> Parameters:
    """The candidate with which ``function(candidate, *args)`` takes the least time.

    Arguments are measured as ones. The result is cached with compiled kernels, by the programs of
    the candidates and the device: another process does not measure again.

    Args:
        name: for messages.
        function: a jitted function, whose first argument is static.
        candidates: parameters to measure.
        avals, in_tree: the leaves of ``args``, and their tree.
    """
    device, cache = default_device(), kernel_cache()
    with ensure_compile_time_eval():
        args = tree.unflatten(in_tree, [jnp.ones(a.shape, a.dtype) for a in avals])
        programs = [str(make_jaxpr(function, static_argnums=0)(c, *args)) for c in candidates]

        def measure() -> disk.CacheEntry:
            times = [_seconds(function, candidate, args) for candidate in candidates]
            rows = [f"{1e3 * t:9.4f} ms  {dict(c)}" for t, c in safe_zip(times, candidates)]
            show(1, f"tuned {name}", lambda: "\n".join(rows))
            best = times.index(min(times))
            return disk.CacheEntry(b"", "tuned", "\n".join(rows), name, metadata={"best": best})

        identity = ("tuned", device.platform, str(device.device_kind))
        key = disk.cache_key("\n".join(programs), identity)
        return candidates[cache.get(key, measure).metadata["best"]]


def _seconds(function: Callable[..., Any], candidate: Parameters, args: Any) -> float:
    """The least time of several calls, after one that compiles."""
    times = []
    for _ in range(1 + _REPEATS):
        start = perf_counter()
        for leaf in tree.leaves(function(candidate, *args)):
            leaf.block_until_ready()
        times.append(perf_counter() - start)
    return min(times[1:])
