"""Functions of samples: the mode, ranks, and the standard error of the mean.

Tests: tests/scipy_surface/test_stats_samples.py.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any, NamedTuple

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.api.vmap import vmap
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import check_arraylike, promote_args_inexact

_POLICIES = ("propagate", "omit", "raise")
_METHODS = ("average", "min", "max", "dense", "ordinal")


class ModeResult(NamedTuple):
    """The most frequent values and how often each occurs."""

    mode: Any
    count: Any


def _check_policy(name: str, policy: str) -> None:
    check(
        policy in _POLICIES,
        lambda: (
            f"[{name}] nan_policy must be one of {_POLICIES}; got {policy!r}. "
            "Fix: nan_policy='propagate'."
        ),
        ValueError,
    )
    check(
        policy == "propagate",
        lambda: (
            f"[{name}] nan_policy must be 'propagate', {policy!r} is not implemented, as the "
            "values are not known under jit. Fix: leave out or look for nan before."
        ),
        NotImplementedError,
    )


def _axis_of(name: str, axis: Any, ndim: int) -> int:
    return canonicalize_axes(index(axis), ndim, name)[0]


def _mode_of_vector(x: Any) -> tuple[Any, Any]:
    ordered = jnp.sort(x)
    first, last = (jnp.searchsorted(ordered, ordered, side=side) for side in ("left", "right"))
    counts = last - first
    # The first of the largest counts belongs to the least value.
    return ordered[jnp.argmax(counts)], jnp.max(counts)


@composite
def mode(
    a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False
) -> ModeResult:
    """Return the most frequent value along an axis; the smallest of several.

    Args:
        a: real array.
        axis: the axis; None flattens the array.
        nan_policy: "propagate": nan is treated like other values.
        keepdims: whether the axis stays, with size 1.

    Returns:
        A tuple of ``mode``, the values in the dtype of ``a``, and ``count``, default integers; for
        no elements nan and 0, as floats.

    Raises:
        NotImplementedError: if the policy is not supported.
        ValueError: if the policy is unknown.

    Example:
        >>> result = gf.scipy.stats.mode(jnp.array([3, 1, 3, 1, 5]))
        >>> result.mode, result.count
        (Array(1, dtype=int32), Array(2, dtype=int32))
    """
    (a,) = check_arraylike("mode", a)
    _check_policy("mode", nan_policy)
    x = jnp.atleast_1d(a)
    shape = x.shape
    if axis is None:
        out_shape = (1,) * len(shape) if keepdims else ()
        x = x.reshape(-1)
    else:
        position = _axis_of("mode", axis, len(shape))
        retained = (1,) if keepdims else ()
        out_shape = shape[:position] + retained + shape[position + 1 :]
        x = jnp.moveaxis(x, position, -1)
    if x.size == 0:
        float_ = dtypes.default_float()
        return ModeResult(jnp.full(out_shape, np.nan, float_), jnp.zeros(out_shape, float_))
    x = x.reshape(-1, x.shape[-1])
    values, counts = vmap(_mode_of_vector)(x)
    counts = counts.astype(dtypes.default_int())
    return ModeResult(values.reshape(out_shape), counts.reshape(out_shape))


def _ranks_of_vector(x: Any, method: str) -> Any:
    order = jnp.argsort(x, stable=True)
    ordered = x[order]
    if method == "ordinal":
        return jnp.argsort(order) + 1
    low = jnp.searchsorted(ordered, x, side="left")
    if method == "min":
        return low + 1
    if method == "dense":
        starts = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
        return jnp.cumsum(starts)[low]
    high = jnp.searchsorted(ordered, x, side="right")
    if method == "max":
        return high
    return 0.5 * (low + 1 + high).astype(dtypes.default_float())


@composite
def rankdata(
    a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate"
) -> Array:
    """Return the ranks of elements, starting at 1.

    Args:
        a: real array.
        method: rank of equal elements: the "average", "min" or "max" of their ranks, "dense" ranks
            without gaps, or "ordinal" ranks in the order of occurrence.
        axis: the axis along which to rank; None flattens the array.
        nan_policy: "propagate": nan makes all ranks of its slice nan.

    Returns:
        Array of the default float dtype.

    Raises:
        NotImplementedError: if the policy is not supported.
        ValueError: if the policy or method is unknown.

    Example:
        >>> gf.scipy.stats.rankdata(jnp.array([30, 10, 30, 20]))
        Array([3.5, 1. , 3.5, 2. ], dtype=float32)
    """
    (a,) = check_arraylike("rankdata", a)
    _check_policy("rankdata", nan_policy)
    check(
        method in _METHODS,
        lambda: (
            f"[rankdata] method must be known; got unknown method {method!r}. "
            f"Fix: one of {', '.join(_METHODS)}."
        ),
        ValueError,
    )
    x = jnp.ravel(a) if axis is None else jnp.asarray(a)
    position = _axis_of("rankdata", -1 if axis is None else axis, x.ndim)
    operand = jnp.moveaxis(x, position, -1)
    if operand.size == 0:
        return jnp.zeros(x.shape, dtypes.default_float())
    rows = operand.reshape(-1, operand.shape[-1])
    ranks = vmap(lambda row: _ranks_of_vector(row, method))(rows).astype(dtypes.default_float())
    if dtypes.is_inexact(aval_of(x).dtype):
        ranks = jnp.where(jnp.any(jnp.isnan(rows), -1, keepdims=True), jnp.nan, ranks)
    return jnp.moveaxis(ranks.reshape(operand.shape), -1, position)


@composite
def sem(
    a: ArrayLike,
    axis: int | None = 0,
    ddof: int = 1,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> Array:
    """Return the standard error of the mean, in the dtype of ``a`` (also complex).

    Args:
        a: array; integers are converted to floats.
        axis: the axis; None flattens the array.
        ddof: delta degrees of freedom of the variance.
        nan_policy: "propagate", or "omit" to ignore nan.
        keepdims: whether the axis stays, with size 1.

    Returns:
        An array without the axis.

    Raises:
        ValueError: if the policy is unknown.

    Example:
        >>> gf.scipy.stats.sem(jnp.array([2.0, 4.0, 6.0, 8.0]), ddof=0).round(3)
        Array(1.118, dtype=float32)
    """
    (x,) = promote_args_inexact("sem", a)
    x = jnp.asarray(x)
    check(
        nan_policy in ("propagate", "omit"),
        lambda: (
            f"[sem] nan_policy must be 'propagate' or 'omit'; got {nan_policy!r}. "
            "Fix: nan_policy='propagate'."
        ),
        ValueError,
    )
    if nan_policy == "propagate":
        size = x.size if axis is None else x.shape[_axis_of("sem", axis, x.ndim)]
        out = jnp.std(x, axis, ddof=ddof, keepdims=keepdims) / math.sqrt(size)
        return out.astype(x.dtype)
    count = jnp.sum(~jnp.isnan(x), axis, keepdims=keepdims)
    deviation = jnp.nanstd(x, axis, ddof=ddof, keepdims=keepdims)
    return (deviation / jnp.sqrt(count.astype(deviation.dtype))).astype(x.dtype)
