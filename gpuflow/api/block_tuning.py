"""Which parameters of a block kernel are the fastest: measured once, and kept with kernels."""

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
    name: str, function: Callable[..., Any], choices: Sequence[Parameters],
    avals: Sequence[ShapedArray], in_tree: Any,
) -> Parameters:  # fmt: skip
    """The choice with which ``function(choice, *args)`` takes the least time.

    Arguments are measured as ones. The result is cached with compiled kernels, by the programs of
    the choices and the device: another process does not measure again.

    Args:
        name: for messages.
        function: a jitted function, whose first argument is static.
        choices: the candidates.
        avals, in_tree: the leaves of ``args``, and their tree.
    """
    device, cache = default_device(), kernel_cache()
    with ensure_compile_time_eval():
        args = tree.unflatten(in_tree, [jnp.ones(a.shape, a.dtype) for a in avals])
        programs = [str(make_jaxpr(function, static_argnums=0)(c, *args)) for c in choices]

        def measure() -> disk.Entry:
            times = [_seconds(function, choice, args) for choice in choices]
            lines = [f"{1e3 * t:9.4f} ms  {dict(c)}" for t, c in safe_zip(times, choices)]
            show(1, f"tuned {name}", lambda: "\n".join(lines))
            best = times.index(min(times))
            return disk.Entry(b"", "tuned", "\n".join(lines), name, info={"best": best})

        parts = ("tuned", device.platform, str(device.device_kind))
        return choices[cache.get(disk.cache_key("\n".join(programs), parts), measure).info["best"]]


def _seconds(function: Callable[..., Any], choice: Parameters, args: Any) -> float:
    """The least of several calls, behind one that compiles."""
    times = []
    for _ in range(1 + _REPEATS):
        start = perf_counter()
        for leaf in tree.leaves(function(choice, *args)):
            leaf.block_until_ready()
        times.append(perf_counter() - start)
    return min(times[1:])
