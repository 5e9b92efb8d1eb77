"""Attention of queries to keys: a composition of products and one softmax, which fuses."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.nn.normalization import logsumexp, softmax
from gpuflow.numpy.promotion import convert

# The axes of scores, here and below: B batch, K key heads, G query heads of one key head,
# T queries, S keys; H is the length of vectors, N = K * G the number of query heads.

_IMPLEMENTATIONS = (None, "xla", "cudnn")


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """``softmax(query @ key.T * scale + bias) @ value`` for each head.

    Args:
        query: ``[B, T, N, H]`` or ``[T, N, H]``.
        key, value: ``[B, S, K, H]`` or ``[S, K, H]``; each of the K heads serves N / K of the
            query's.
        bias: added to the scores; broadcasts to ``[B, N, T, S]``.
        mask: bools; keys at False take no part. Broadcasts to ``[B, N, T, S]``.
        scale: by default ``1 / sqrt(H)``.
        is_causal: query ``t`` sees keys up to ``t`` only.
        query_seq_lengths, key_value_seq_lengths: i32[B], how many queries and keys count; the
            results of the other queries are 0.
        local_window_size: how many keys to the left and to the right of its own place a query
            sees; one number stands for both.
        implementation: None or ``"xla"``: this composition; ``"cudnn"`` needs a GPU.
        return_residual: also return the logarithms of the sums that softmax divides by.

    Returns:
        An array like ``query``; with ``return_residual`` a pair of it and ``[B, T, N]``, through
        which no gradient flows. Queries that see no key get the mean of all values.

    Raises:
        ValueError: shapes or dtypes that do not fit, or an unknown implementation.
        NotImplementedError: cuDNN.
    """
    _check_implementation(implementation)
    shape = aval_of(jnp.asarray(query)).shape
    query, key, value = (_four_axes(x) for x in (query, key, value))
    lengths = [None if x is None else jnp.asarray(x) for x in (query_seq_lengths,
                                                               key_value_seq_lengths)]
    _check_operands(query, key, value, lengths)
    heads = (key.shape[2], query.shape[2] // key.shape[2])
    spaces = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    scores = _scores(query, key, heads, scale)
    if bias is not None:
        bias = _by_head("bias", _four_axes(bias), spaces, heads)
        scores = jnp.add(scores, bias).astype(scores.dtype)
    masks = _position_masks(spaces, is_causal, local_window_size)
    if mask is not None:
        masks.append(_by_head("mask", _check_bool(_four_axes(mask)), spaces, heads))
    masks += _length_masks(spaces, lengths)
    if masks:
        seen = masks[0]
        for other in masks[1:]:
            seen = jnp.logical_and(seen, other)
        scores = jnp.where(seen, scores, _very_negative(scores.dtype))
    out = _mix(softmax(scores, axis=-1).astype(key.dtype), value)
    if lengths[0] is not None:
        counts = jnp.less(jnp.arange(spaces[2])[None, :], lengths[0][:, None])
        out = jnp.where(counts[:, :, None, None, None], out, convert(0, out.dtype))
    out = jnp.reshape(out, shape)
    if not return_residual:
        return out
    sums = jnp.transpose(logsumexp(scores, axis=-1).astype(key.dtype), (0, 3, 1, 2))
    return out, lax.stop_gradient(jnp.reshape(sums, shape[:-1]))


def _scores(query: Any, key: Any, heads: tuple[int, int], scale: float | None) -> Any:
    """Scaled products of queries and keys, ``[B, K, G, T, S]`` in at least float32."""
    batch, length, _, size = query.shape
    wide = jnp.promote_types(query.dtype, np.float32)
    grouped = jnp.reshape(query, (batch, length, *heads, size))
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, key, preferred_element_type=wide)
    return jnp.multiply(scores, convert(size**-0.5 if scale is None else scale, wide))


def _mix(weights: Any, value: Any) -> Any:
    """The values, weighted: ``[B, T, K, G, H]``."""
    return jnp.einsum("bkgts,bskh->btkgh", weights, value)


def _position_masks(
    spaces: Sequence[int], is_causal: bool, window: int | tuple[int, int] | None
) -> list[Any]:
    """Which keys a query may see because of where both stand: masks ``[T, S]``."""
    masks = []
    queries = jnp.arange(spaces[2])[:, None]
    keys = jnp.arange(spaces[3])[None, :]
    if is_causal:
        masks.append(jnp.greater_equal(queries, keys))
    if window is not None:
        left, right = _window(window)
        masks.append(jnp.less_equal(queries, jnp.add(keys, left)))
        masks.append(jnp.greater_equal(queries, jnp.subtract(keys, right)))
    return masks


def _window(window: Any) -> tuple[int, int]:
    """How many keys to the left and to the right of its place a query sees."""
    pair = (window, window) if hasattr(window, "__index__") else tuple(window)
    check(
        len(pair) == 2 and all(hasattr(size, "__index__") for size in pair),
        lambda: (
            "[dot_product_attention] local_window_size must be an int or two; got "
            f"{window!r}. Fix: local_window_size=(left, right)."
        ),
        ValueError,
    )
    return as_index(pair[0]), as_index(pair[1])


def _length_masks(spaces: Sequence[int], lengths: Sequence[Any]) -> list[Any]:
    """Which queries and keys lie within their sequence: masks that broadcast to all five axes."""
    masks = []
    for length, axis in zip(lengths, (3, 4), strict=True):
        if length is not None:
            sizes = _one_but(axis, spaces[axis - 1])
            places = lax.broadcasted_iota(np.dtype(np.int32), sizes, axis)
            masks.append(jnp.less(places, jnp.reshape(length, (-1, 1, 1, 1, 1))))
    return masks


def _one_but(axis: int, size: int) -> tuple[int, ...]:
    return tuple(size if k == axis else 1 for k in range(5))


def _very_negative(dtype: Any) -> Any:
    """What scores of keys become that are not seen: finite, so that rows without any stay so."""
    return np.asarray(-0.7 * float(np.finfo(np.float32).max), dtype)


def _four_axes(x: Any) -> Any:
    x = jnp.asarray(x)
    return jnp.expand_dims(x, tuple(range(4 - x.ndim))) if x.ndim < 4 else x


def _by_head(name: str, x: Any, spaces: Sequence[int], heads: tuple[int, int]) -> Any:
    """``[B, N, T, S]``, where sizes of 1 may stand for others, with N split in ``heads``."""
    check(
        x.ndim == 4
        and all(size in (1, whole) for size, whole in zip(x.shape, spaces, strict=True)),
        lambda: (
            f"[dot_product_attention] {name} must broadcast to [batch, heads, queries, keys] = "
            f"{tuple(spaces)}; got {aval_of(x)}. Fix: x[:, None] inserts the axis of heads."
        ),
        ValueError,
    )
    split = (1, 1) if x.shape[1] == 1 else heads
    return jnp.reshape(x, (x.shape[0], *split, *x.shape[2:]))


# --- checks --------------------------------------------------------------------------------


def _check_bool(mask: Any) -> Any:
    check(
        dtypes.is_bool(mask.dtype),
        lambda: (
            f"[dot_product_attention] mask must be bool; got {aval_of(mask)}. "
            "Fix: mask.astype(bool), or bias= for numbers that are added."
        ),
        ValueError,
    )
    return mask


def _check_implementation(implementation: str | None) -> None:
    check(
        implementation in _IMPLEMENTATIONS,
        lambda: (
            f"[dot_product_attention] implementation must be one of {_IMPLEMENTATIONS}; "
            f"got {implementation!r}. Fix: implementation=None."
        ),
        ValueError,
    )
    check(
        implementation != "cudnn",
        lambda: (
            "[dot_product_attention] implementation='cudnn' must run on a GPU with cuDNN, which "
            "gpuflow does not call; got this platform. Fix: implementation=None."
        ),
        NotImplementedError,
    )


def _check_operands(query: Any, key: Any, value: Any, lengths: Sequence[Any]) -> None:
    def complain(condition: bool, what: str, got: Any, fix: str) -> None:
        check(
            condition,
            lambda: f"[dot_product_attention] {what}; got {got}. Fix: {fix}.",
            ValueError,
        )

    for name, x in (("query", query), ("key", key), ("value", value)):
        complain(
            x.ndim == 4, f"{name} must have 3 or 4 axes", aval_of(x),
            "arrays of [batch, length, heads, size]",
        )  # fmt: skip
    avals = f"query {aval_of(query)}, key {aval_of(key)}, value {aval_of(value)}"
    complain(
        key.shape == value.shape and query.shape[::3] == key.shape[::3],
        "key and value must have one shape, and query their batch and last size", avals,
        "arrays of [batch, length, heads, size]",
    )  # fmt: skip
    complain(
        query.dtype == key.dtype == value.dtype and dtypes.is_floating(key.dtype),
        "query, key and value must have one float dtype", avals, "x.astype(query.dtype)",
    )  # fmt: skip
    complain(
        key.shape[2] > 0 and query.shape[2] % key.shape[2] == 0,
        "the heads of query must be a multiple of those of key", avals,
        "jnp.repeat(key, 2, axis=-2)",
    )  # fmt: skip
    for name, length in zip(("query", "key_value"), lengths, strict=True):
        complain(
            length is None or (length.shape, length.dtype) == (key.shape[:1], np.int32),
            f"{name}_seq_lengths must be int32 of shape {key.shape[:1]}",
            None if length is None else aval_of(length), "jnp.asarray(lengths, jnp.int32)",
        )  # fmt: skip
