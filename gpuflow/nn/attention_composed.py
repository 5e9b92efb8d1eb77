"""Attention as products and one softmax, which fuse: the reference implementation.

Tests: tests/nn/test_nn_attention.py, tests/nn/test_nn_attention_fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.records import record
from gpuflow.nn.normalization import logsumexp, softmax
from gpuflow.numpy.promotion import convert
from gpuflow.ops.contractions.precision import CanonicalPrecision

# The axes of scores, here and below: B batch, K key heads, G query heads of one key head,
# T queries, S keys; H is the length of vectors, N = K * G the number of query heads.


@record
class Settings:
    """Arguments that are not arrays.

    Attributes:
        scale: the factor of scores.
        causal, window: the keys that a query attends to by its position.
        precision: precision of float32 products.
    """

    scale: Any
    causal: bool
    window: tuple[int, int] | None
    precision: CanonicalPrecision


def composed_attention(
    settings: Settings,
    query: Any,
    key: Any,
    value: Any,
    extras: Sequence[Any],
    with_sums: bool = False,
) -> tuple[Any, Any]:
    """Attention of checked operands with four axes.

    Args:
        settings: the settings of the call.
        query, key, value: as for ``nn.dot_product_attention``.
        extras: bias and mask, which broadcast to ``[B, N, T, S]``, and the lengths of queries and
            of keys; None for missing ones.
        with_sums: also return the logarithms of the sums that softmax divides by, ``[B, T, N]``.
    """
    bias, mask, *lengths = extras
    heads = (key.shape[2], query.shape[2] // key.shape[2])
    spaces = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    scores = _scores(query, key, heads, settings)
    if bias is not None:
        scores = jnp.add(scores, _by_head(bias, heads)).astype(scores.dtype)
    masks = _position_masks(spaces, settings.causal, settings.window)
    if mask is not None:
        masks.append(_by_head(mask, heads))
    masks += _length_masks(spaces, lengths)
    if masks:
        seen = masks[0]
        for other in masks[1:]:
            seen = jnp.logical_and(seen, other)
        scores = jnp.where(seen, scores, very_negative(scores.dtype))
    out = _mix(softmax(scores, axis=-1).astype(key.dtype), value, settings)
    if lengths[0] is not None:
        counts = jnp.less(jnp.arange(spaces[2])[None, :], lengths[0][:, None])
        out = jnp.where(counts[:, :, None, None, None], out, convert(0, out.dtype))
    out = jnp.reshape(out, query.shape)
    if not with_sums:
        return out, None
    sums = jnp.transpose(logsumexp(scores, axis=-1).astype(key.dtype), (0, 3, 1, 2))
    return out, jnp.reshape(sums, query.shape[:-1])


def _scores(query: Any, key: Any, heads: tuple[int, int], settings: Settings) -> Any:
    """Scaled products of queries and keys, ``[B, K, G, T, S]`` in at least float32."""
    batch, length, _, size = query.shape
    wide = jnp.promote_types(query.dtype, np.float32)
    grouped = jnp.reshape(query, (batch, length, *heads, size))
    scores = jnp.einsum(
        "btkgh,bskh->bkgts",
        grouped,
        key,
        precision=settings.precision,
        preferred_element_type=wide,
    )
    return jnp.multiply(scores, convert(settings.scale, wide))


def _mix(weights: Any, value: Any, settings: Settings) -> Any:
    """Weighted sum of values: ``[B, T, K, G, H]``."""
    return jnp.einsum("bkgts,bskh->btkgh", weights, value, precision=settings.precision)


def _position_masks(
    spaces: Sequence[int], is_causal: bool, window: tuple[int, int] | None
) -> list[Any]:
    """Causal and window masks of keys by position: ``[T, S]``."""
    masks = []
    queries = jnp.arange(spaces[2])[:, None]
    keys = jnp.arange(spaces[3])[None, :]
    if is_causal:
        masks.append(jnp.greater_equal(queries, keys))
    if window is not None:
        left, right = window
        masks.append(jnp.less_equal(queries, jnp.add(keys, left)))
        masks.append(jnp.greater_equal(queries, jnp.subtract(keys, right)))
    return masks


def _length_masks(spaces: Sequence[int], lengths: Sequence[Any]) -> list[Any]:
    """Masks of queries and keys within their sequence length; they broadcast to all five axes."""
    masks = []
    for length, axis in zip(lengths, (3, 4), strict=True):
        if length is not None:
            sizes = _one_but(axis, spaces[axis - 1])
            positions = lax.broadcasted_iota(np.dtype(np.int32), sizes, axis)
            masks.append(jnp.less(positions, jnp.reshape(length, (-1, 1, 1, 1, 1))))
    return masks


def _one_but(axis: int, size: int) -> tuple[int, ...]:
    return tuple(size if k == axis else 1 for k in range(5))


def very_negative(dtype: Any) -> Any:
    """Score of masked keys: finite, so that fully masked rows are finite too."""
    return np.asarray(-0.7 * float(np.finfo(np.float32).max), dtype)


def _by_head(x: Any, heads: tuple[int, int]) -> Any:
    """``[B, N, T, S]`` with N, which may be 1, split in ``heads``."""
    split = (1, 1) if x.shape[1] == 1 else heads
    return jnp.reshape(x, (x.shape[0], *split, *x.shape[2:]))
