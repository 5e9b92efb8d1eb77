"""Call of a user's kernel: its launch on GPUs, and a user's function on the CPU.

Its derivatives and batching wrap it; see gpuflow/api/raw_kernel.py.

Tests: tests/test_raw_kernels.py, tests/targets/cuda/test_user_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.blocks import UserKernel
from gpuflow.core.lowering import Library
from gpuflow.ops.define import define


def _shape(
    *avals: ShapedArray, result_avals: tuple[ShapedArray, ...], **params: Any
) -> list[ShapedArray]:
    del avals, params
    return list(result_avals)


def _impl(
    xp: Any,
    *arrays: Any,
    kernel: UserKernel,
    on_cpu: Callable[..., Any] | None,
    result_avals: tuple[ShapedArray, ...],
) -> list[Any]:
    outs = [xp.empty(aval.shape, storage_dtype(aval.dtype)) for aval in result_avals]
    for out, operand in zip(outs, kernel.begins, strict=True):
        if operand is not None:
            out[...] = arrays[operand]
    _call(xp, outs, *arrays, kernel=kernel, on_cpu=on_cpu, result_avals=result_avals)
    return outs


def _call(
    xp: Any,
    outs: Sequence[Any],
    *arrays: Any,
    kernel: UserKernel,
    on_cpu: Callable[..., Any] | None,
    result_avals: tuple[ShapedArray, ...],
) -> None:
    """Call the user's CPU function with the kernel's arguments."""
    del result_avals
    assert xp is np, kernel.name  # GPUs have a provider for it
    check(
        on_cpu is not None,
        lambda: (
            f"[raw_kernel] {kernel.name} must have a function for the CPU to run there; got none. "
            "Fix: raw_kernel(..., cpu=numba.njit(f)), or defreference."
        ),
        NotImplementedError,
    )
    assert on_cpu is not None
    arguments = [*map(_read_only, arrays), *outs]
    on_cpu(*[arguments[p] if type(p) is int else p for p in kernel.parameters])


def _read_only(array: np.ndarray) -> np.ndarray:
    """A read-only row-major view of an operand."""
    view = np.ascontiguousarray(array).reshape(array.shape).view()
    view.flags.writeable = False
    return view


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, kernel: UserKernel, **params: Any
) -> Any:
    del primals, tangents, params
    raise TypeError(
        f"[raw_kernel] {kernel.name} must have a rule to be differentiated; got none. "
        f"Fix: @{kernel.name}.defjvp, .defvjp, or .defreference with a function that has "
        "derivatives."
    )


def _what(
    in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], params: dict[str, Any]
) -> UserKernel:
    del in_avals, out_avals
    return params["kernel"]


def _updates(params: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    begins = params["kernel"].begins
    return tuple([(operand, out) for out, operand in enumerate(begins) if operand is not None])


raw_kernel_p = define(
    "raw_kernel",
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    lower=Library(call=_call, what=_what, updates=_updates, row_major=True),
    multiple_results=True,
)
