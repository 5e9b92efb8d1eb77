"""What the rows of the GPU acceptance need of each framework: arrays, jit, and clocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from gpu_rows import (
    ATOMIC,
    COMPILED,
    CUPY,
    JAX,
    NO_BLOCKS,
    NO_CUDNN,
    NO_EPILOGUES,
    NO_GRAPHS,
    NO_KERNELS,
    OFF,
    TORCH,
    Row,
)

OURS = "gpuflow"
SETTINGS = {
    NO_EPILOGUES: {"GPUFLOW_CUDA_EPILOGUES": "0"},
    NO_GRAPHS: {"GPUFLOW_CUDA_GRAPHS": "0"},
    NO_CUDNN: {"GPUFLOW_CUDNN": "0"},
    NO_BLOCKS: {"GPUFLOW_BLOCK_PROGRAMS": "0"},
    ATOMIC: {"GPUFLOW_ATOMIC_SUMS": "1"},
}


@dataclass(frozen=True)
class Framework:
    """A framework on a device.

    Attributes:
        version: for the report.
        function: what a row computes, ready to be called, after it has set for the process how
            float32 is multiplied, as the row says; None: the row is not for it.
        array: a NumPy array on the device.
        numpy: an array of the framework in NumPy.
        wait: returns when all work is done.
        leaves: the arrays of a result.
        clock: marks a place in the device's work; ``None``: there are no events.
        between: seconds from one mark to another, both done.
        kernels: how many launches a jitted function is, for these arrays; None: not known.
        in_force: while entered, what has no device is on the framework's.
        free: gives back what is kept for speed only, where others could need it.
        built: how many kernels were built so far, none where all were brought.
    """

    version: str
    function: Callable[[Row], Any]
    array: Callable[[np.ndarray], Any]
    numpy: Callable[[Any], np.ndarray]
    wait: Callable[[Any], None]
    leaves: Callable[[Any], list[Any]]
    clock: Callable[[], Any] | None = None
    between: Callable[[Any, Any], float] | None = None
    kernels: Callable[[Any, list[Any]], int] | None = None
    in_force: Callable[[], AbstractContextManager[Any]] = nullcontext
    free: Callable[[], Any] = lambda: None
    built: Callable[[], int] = lambda: 0


def load(name: str, platform: str) -> Framework:
    """A framework by its name in the report."""
    if name in (OURS, *OFF):
        return _load_gpuflow(platform, name)
    if name in (TORCH, COMPILED):
        return _load_torch(platform, name == COMPILED)
    return {JAX: _load_jax, CUPY: _load_cupy}[name](platform)


def _load_gpuflow(platform: str, name: str) -> Framework:
    """gpuflow on a platform, with something turned off, or on."""
    gpuflow = _import_gpuflow(name)
    from gpuflow.runtime.kernel_cache import cache_stats

    (device, *_) = gpuflow.devices(platform)
    gpuflow.config.update("default_device", device)
    clock = between = None
    if platform == "cuda":
        import cupy

        stream = device.driver.api.library(device.driver.compute)

        def clock() -> Any:
            mark = cupy.cuda.Event()
            mark.record(stream)
            return mark

        def between(first: Any, last: Any) -> float:
            return cupy.cuda.get_elapsed_time(first, last) / 1e3

    def kernels(jitted: Any, arrays: list[Any]) -> int:
        steps = jitted.lower(*arrays).compile().steps
        return sum(step.kind != "copy" for step in steps)

    return Framework(
        gpuflow.__version__,
        _our_function(gpuflow, name),
        lambda x: gpuflow.device_put(x, device),
        np.asarray,
        lambda out: gpuflow.block_until_ready(out),
        gpuflow.tree.leaves,
        clock,
        between,
        kernels,
        built=lambda: cache_stats().built,
    )


def _import_gpuflow(name: str) -> Any:
    """gpuflow, with something turned off, or on."""
    os.environ.update(SETTINGS.get(name, {}))
    import gpuflow

    if name == NO_KERNELS:
        _turn_kernels_off()
    return gpuflow


def _our_function(gpuflow: Any, name: str) -> Callable[[Row], Any]:
    """What makes gpuflow's function of a row, or None where the setting is not for it."""

    def function(row: Row) -> Any:
        if name != OURS and name not in row.without:
            return None
        gpuflow.config.update("jax_default_matmul_precision", _precision(row))
        made = row.make(gpuflow)
        return made if row.is_eager else gpuflow.jit(made)

    return function


def _precision(row: Row) -> str:
    """The setting of JAX and gpuflow with which all frameworks multiply alike."""
    return "tensorfloat32" if row.rounds else "highest"


def load_planned(
    name: str, compute_capability: tuple[int, int], has_cudnn: bool = False
) -> Framework:
    """gpuflow on a GPU that only plans."""
    gpuflow = _import_gpuflow(name)
    import gpu_planned

    device = gpu_planned.planned_device(compute_capability, has_cudnn)
    return Framework(
        gpuflow.__version__,
        _our_function(gpuflow, name),
        lambda x: gpu_planned.planned_array(device, x.shape, x.dtype),
        np.asarray,
        gpuflow.block_until_ready,
        gpuflow.tree.leaves,
        in_force=lambda: gpuflow.default_device(device),
    )


def _turn_kernels_off() -> None:
    """Leave everything to generated kernels and libraries; there is no such setting for users."""
    from gpuflow.compiler import pipeline
    from gpuflow.core.blocks import Product
    from gpuflow.nn import attention
    from gpuflow.targets.cuda.library import target

    attention.may_fuse = lambda *operands: False
    pipeline.GPU_PASSES = pipeline.PASSES
    target.PROVIDERS = {Product: target.PROVIDERS[Product]}


def _load_jax(platform: str) -> Framework:
    """JAX, on whatever it finds."""
    del platform
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others need memory as well
    import jax

    def function(row: Row) -> Any:
        jax.config.update("jax_default_matmul_precision", _precision(row))
        made = row.make(jax)
        return made if row.is_eager else jax.jit(made)

    return Framework(
        f"{jax.__version__} on {jax.devices()[0].device_kind}",
        function,
        jax.device_put,
        np.asarray,
        jax.block_until_ready,
        jax.tree_util.tree_leaves,
    )


def _load_torch(platform: str, is_compiled: bool) -> Framework:
    """torch, op by op or compiled."""
    import torch

    device = "cuda" if platform == "cuda" else "cpu"
    torch.backends.cudnn.benchmark = True

    def function(row: Row) -> Any:
        if row.torch is None or (is_compiled and COMPILED not in row.goal.rivals):
            return None
        torch.backends.cuda.matmul.allow_tf32 = row.rounds
        torch.backends.cudnn.allow_tf32 = row.rounds
        if is_compiled:
            torch.compiler.reset()
            return row.torch(torch, lambda made: torch.compile(made, dynamic=False))
        return row.torch(torch, lambda made: made)

    def array(x: np.ndarray) -> Any:
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.astype(np.float32)).to(device, torch.bfloat16)
        return torch.from_numpy(x).to(device)

    def wait(out: Any) -> None:
        del out
        if device == "cuda":
            torch.cuda.synchronize()

    def clock() -> Any:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def in_numpy(x: Any) -> np.ndarray:
        x = x.detach().cpu()
        return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return Framework(
        f"{torch.__version__} on {name}",
        function,
        array,
        in_numpy,
        wait,
        _flat,
        clock if device == "cuda" else None,
        (lambda first, last: first.elapsed_time(last) / 1e3) if device == "cuda" else None,
        free=torch.cuda.empty_cache if device == "cuda" else lambda: None,
    )


def _load_cupy(platform: str) -> Framework:
    """CuPy, op by op."""
    del platform
    import cupy

    def clock() -> Any:
        mark = cupy.cuda.Event()
        mark.record()
        return mark

    return Framework(
        cupy.__version__,
        lambda row: row.cupy(cupy) if row.cupy else None,
        cupy.asarray,
        cupy.asnumpy,
        lambda out: cupy.cuda.Device().synchronize(),
        _flat,
        clock,
        lambda first, last: cupy.cuda.get_elapsed_time(first, last) / 1e3,
        free=lambda: cupy.get_default_memory_pool().free_all_blocks(),
    )


def _flat(out: Any) -> list[Any]:
    """The arrays of nested lists and tuples."""
    if not isinstance(out, (tuple, list)):
        return [out]
    return [x for part in out for x in _flat(part)]
