"""Attention of queries to keys: argument checks and selection of the implementation.

Tests: tests/nn/test_nn_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any, Literal, overload

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.nn.attention_composed import Settings, composed_attention
from gpuflow.nn.attention_fused import fused_attention, may_fuse
from gpuflow.ops.contractions.precision import canonical_precision

_IMPLEMENTATIONS = (None, "xla", "cudnn")


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[False] = False,
) -> Array: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any: ...
@composite
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """Compute ``softmax(query @ key.T * scale + bias) @ value`` for each head.

    Args:
        query: ``[B, T, N, H]`` or ``[T, N, H]``.
        key, value: ``[B, S, K, H]`` or ``[S, K, H]``; each of the K heads serves N / K heads of the
            query.
        bias: added to the scores; broadcasts to ``[B, N, T, S]``.
        mask: bools; keys with False are ignored. Broadcasts to ``[B, N, T, S]``.
        scale: scale of the scores; ``1 / sqrt(H)`` by default.
        is_causal: whether query ``t`` only attends to keys up to ``t``.
        query_seq_lengths, key_value_seq_lengths: i32[B], numbers of valid queries and keys; the
            results of other queries are 0.
        local_window_size: numbers of keys to the left and right of its position to which a query
            attends; one int is used for both.
        implementation: None or ``"xla"`` for this composition; ``"cudnn"`` is not supported.
        return_residual: whether to return the logarithms of softmax's normalizers too.

    Returns:
        An array like ``query``; with ``return_residual`` a pair with ``[B, T, N]``, which is not
        differentiable. Queries without keys give the mean of all values.

    Raises:
        ValueError: if shapes or dtypes do not match, or the implementation is unknown.
        NotImplementedError: if ``implementation`` is ``"cudnn"``.

    Example:
        >>> query = jnp.ones((1, 2, 1, 4))
        >>> key, value = jnp.ones((1, 3, 1, 4)), jnp.arange(12.0).reshape(1, 3, 1, 4)
        >>> gf.nn.dot_product_attention(query, key, value)[0, :, 0].round(3)
        Array([[4., 5., 6., 7.],
               [4., 5., 6., 7.]], dtype=float32)
    """
    _check_implementation(implementation)
    shape = aval_of(jnp.asarray(query)).shape
    query, key, value = (_four_axes(x) for x in (query, key, value))
    lengths = [
        None if x is None else jnp.asarray(x) for x in (query_seq_lengths, key_value_seq_lengths)
    ]
    _check_operands(query, key, value, lengths)
    spaces = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    if bias is not None:
        bias = _check_scores_like("bias", _four_axes(bias), spaces)
    if mask is not None:
        mask = _check_scores_like("mask", _check_bool(_four_axes(mask)), spaces)
    window = None if local_window_size is None else _window(local_window_size)
    scale = query.shape[3] ** -0.5 if scale is None else scale
    settings = Settings(scale, is_causal, window, canonical_precision(None))
    extras = (bias, mask, *lengths)
    attend = fused_attention if may_fuse(settings, query, key, bias) else composed_attention
    out, sums = attend(settings, query, key, value, extras, return_residual)
    out = jnp.reshape(out, shape)
    if not return_residual:
        return out
    return out, lax.stop_gradient(jnp.reshape(sums, shape[:-1]))


def _window(window: Any) -> tuple[int, int]:
    """Window of a query: the number of keys to its left and right."""
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


def _four_axes(x: Any) -> Array:
    x = jnp.asarray(x)
    return jnp.expand_dims(x, tuple(range(4 - x.ndim))) if x.ndim < 4 else x


def _check_scores_like(name: str, x: Any, spaces: Sequence[int]) -> Any:
    """Check that the sizes of ``x`` are those of ``[B, N, T, S]``, or 1."""
    check(
        x.ndim == 4
        and all(size in (1, whole) for size, whole in zip(x.shape, spaces, strict=True)),
        lambda: (
            f"[dot_product_attention] {name} must broadcast to [batch, heads, queries, keys] = "
            f"{tuple(spaces)}; got {aval_of(x)}. Fix: x[:, None] inserts the axis of heads."
        ),
        ValueError,
    )
    return x


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
            "[dot_product_attention] implementation must be 'xla' or None; got 'cudnn', which "
            "gpuflow selects by itself on GPUs. Fix: implementation=None."
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
            x.ndim == 4,
            f"{name} must have 3 or 4 axes",
            aval_of(x),
            "arrays of [batch, length, heads, size]",
        )
    avals = f"query {aval_of(query)}, key {aval_of(key)}, value {aval_of(value)}"
    complain(
        key.shape == value.shape and query.shape[::3] == key.shape[::3],
        "key and value must have one shape, and query their batch and last size",
        avals,
        "arrays of [batch, length, heads, size]",
    )
    complain(
        query.dtype == key.dtype == value.dtype and dtypes.is_floating(key.dtype),
        "query, key and value must have one float dtype",
        avals,
        "x.astype(query.dtype)",
    )
    complain(
        key.shape[2] > 0 and query.shape[2] % key.shape[2] == 0,
        "the heads of query must be a multiple of those of key",
        avals,
        "jnp.repeat(key, 2, axis=-2)",
    )
    for name, length in zip(("query", "key_value"), lengths, strict=True):
        complain(
            length is None or (length.shape, length.dtype) == (key.shape[:1], np.int32),
            f"{name}_seq_lengths must be int32 of shape {key.shape[:1]}",
            None if length is None else aval_of(length),
            "jnp.asarray(lengths, jnp.int32)",
        )
