"""debug_callback: a call of Python on the host, for its effect alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import DEBUG, ORDERED_DEBUG, Effect
from gpuflow.core.lowering import HostCall
from gpuflow.core.rules import AxisData
from gpuflow.ops.axes import squeeze
from gpuflow.ops.define import define
from gpuflow.ops.layout import slice_


def _callback_shape(*avals: ShapedArray, callback: Any, effect: Effect) -> list[ShapedArray]:
    del avals, callback, effect
    return []


def _on_host(xp: Any, array: Any) -> np.ndarray:
    """A read-only copy: a callback may keep what it gets, and memory of programs is reused."""
    host = np.array(array) if xp is np else xp.asnumpy(array)
    host.flags.writeable = False
    return host


def _callback_impl(xp: Any, *arrays: Any, callback: Callable[..., Any], effect: Effect) -> list:
    del effect
    callback(*[_on_host(xp, array) for array in arrays])
    return []


def _callback_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    del tangents
    return debug_callback_p.bind(*primals, **params), []


def _callback_transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[None]:
    del cotangents, params
    return [None] * len(operands)


def _callback_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[Any]]:
    """One call for each element of the mapped axis, in order."""
    for number in range(axis.size):
        element = [_element(x, dim, number) for x, dim in zip(operands, dims)]
        debug_callback_p.bind(*element, **params)
    return [], []


def _element(x: Any, dim: int | None, number: int) -> Any:
    if dim is None:
        return x
    shape = aval_of(x).shape
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = number, number + 1
    return squeeze(slice_(x, starts, limits), (dim,))


def debug_callback(callback: Callable[..., Any], *operands: Any, ordered: bool = False) -> None:
    """Call ``callback(*arrays)`` on the host when the program runs; it returns nothing.

    Under vmap it is called once for each element, in order; derivatives ignore it.

    Args:
        callback: a Python function; it gets read-only NumPy arrays.
        operands: arrays of any dtype.
        ordered: whether calls happen in program order.
    """
    effect = ORDERED_DEBUG if ordered else DEBUG
    debug_callback_p.bind(*operands, callback=callback, effect=effect)


debug_callback_p = define(
    "debug_callback",
    multiple_results=True,
    shape=_callback_shape,
    impl=_callback_impl,
    jvp=_callback_jvp,
    transpose=_callback_transpose,
    batch=_callback_batch,
    effects=lambda params: frozenset({params["effect"]}),
    lower=HostCall(),
)
