"""Fused attention and its gradients, with handwritten kernels on GPUs.

They are two ops without derivatives: ``nn.dot_product_attention`` defines the derivatives. Other
platforms run the equivalent composition of products and a softmax.

Tests: tests/nn/test_nn_attention_fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Attention
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData
from gpuflow.ops.contractions.precision import CanonicalPrecision, may_round
from gpuflow.ops.define import check_same_dtype, define
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape
from gpuflow.ops.layout.batch_dims import batch_to_dim

# Whether bias, mask, query_lengths and key_lengths are operands.
Present = tuple[bool, bool, bool, bool]

# The smallest and the largest length of vectors that the kernels support.
STEP, MAX_LENGTH = 16, 128
KINDS = ("float32", "bfloat16", "float16")

_MASKED = -0.7 * float(np.finfo(np.float32).max)
_MASKED_LOG_SUM = -1e30
_FLOAT32 = np.dtype(np.float32)


def may_fuse(query: ShapedArray, key: ShapedArray, bias: ShapedArray | None) -> bool:
    """Whether the kernels support attention of such operands."""
    size = query.shape[3]
    return (
        query.dtype.name in KINDS
        and (bias is None or bias.dtype.name in KINDS)
        and size % STEP == 0
        and STEP <= size <= MAX_LENGTH
        and 0 not in (*query.shape, *key.shape)
    )


def _extras(operands: Sequence[Any], present: Present) -> list[Any]:
    """bias, mask, query_lengths and key_lengths; None for missing ones."""
    remaining = iter(operands)
    return [next(remaining) if is_present else None for is_present in present]


# --- implementation --------------------------------------------------------------------------


def _scores(xp: Any, query: Any, key: Any, scale: float, causal: bool, window: Any, extras: Any):
    """Scores ``[B, N, T, S]``, and the mask of keys that each query sees."""
    bias, mask, query_lengths, key_lengths = extras
    scores = xp.einsum("btnd,bsnd->bnts", query, key) * xp.float32(scale)
    if bias is not None:
        scores = scores + bias.astype(xp.float32)
    t, s = xp.arange(query.shape[1])[:, None], xp.arange(key.shape[1])[None, :]
    seen = xp.ones(scores.shape, bool)
    if causal:
        seen &= t >= s
    if window is not None:
        seen &= (t <= s + window[0]) & (t >= s - window[1])
    if mask is not None:
        seen &= mask
    if query_lengths is not None:
        seen &= (t < query_lengths[:, None, None])[:, None]
    if key_lengths is not None:
        seen &= (s < key_lengths[:, None, None])[:, None]
    return xp.where(seen, scores, xp.float32(_MASKED)), seen


def _weights(xp: Any, scores: Any, query_lengths: Any) -> tuple[Any, Any]:
    """Softmax, with 0 for queries beyond their length; and the logarithms of its sums."""
    most = scores.max(-1, keepdims=True)
    weights = xp.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    unseen = most <= xp.float32(_MASKED)
    sums = xp.where(unseen, xp.float32(_MASKED_LOG_SUM) * total, most + xp.log(total))[..., 0]
    weights = weights / total
    if query_lengths is not None:
        counts = xp.arange(scores.shape[2])[None, :] < query_lengths[:, None]
        weights = xp.where(counts[:, None, :, None], weights, xp.float32(0))
    return weights, sums


def _for_each_head(xp: Any, x: Any, heads: int) -> Any:
    return xp.repeat(x.astype(xp.float32), heads // x.shape[2], axis=2)


def _attention_impl(
    xp: Any,
    query: Any,
    key: Any,
    value: Any,
    *operands: Any,
    scale: float,
    causal: bool,
    window: tuple[int, int] | None,
    precision: Any,
    present: Present,
) -> list[Any]:
    del precision
    extras, heads = _extras(operands, present), query.shape[2]
    wide_key, wide_value = (_for_each_head(xp, x, heads) for x in (key, value))
    scores, _ = _scores(xp, query.astype(xp.float32), wide_key, scale, causal, window, extras)
    weights, sums = _weights(xp, scores, extras[2])
    out = xp.einsum("bnts,bsnd->btnd", weights, wide_value)
    return [out.astype(query.dtype), sums]


def _gradients_impl(
    xp: Any,
    query: Any,
    key: Any,
    value: Any,
    dout: Any,
    sums: Any,
    dots: Any,
    out: Any,
    *operands: Any,
    scale: float,
    causal: bool,
    window: tuple[int, int] | None,
    precision: Any,
    present: Present,
) -> list[Any]:
    """Like the kernels, except that ``sums`` are recomputed from the scores."""
    del sums, out, precision
    extras, heads = _extras(operands, present), query.shape[2]
    wide_key, wide_value = (_for_each_head(xp, x, heads) for x in (key, value))
    wide_query, dout = query.astype(xp.float32), dout.astype(xp.float32)
    scores, seen = _scores(xp, wide_query, wide_key, scale, causal, window, extras)
    weights, _ = _weights(xp, scores, extras[2])
    slopes = weights * (xp.einsum("btnd,bsnd->bnts", dout, wide_value) - dots[..., None])
    slopes = xp.where(seen, slopes, xp.float32(0)) * xp.float32(scale)
    dquery = xp.einsum("bnts,bsnd->btnd", slopes, wide_key)
    dkey = xp.einsum("bnts,btnd->bsnd", slopes, wide_query)
    dvalue = xp.einsum("bnts,btnd->bsnd", weights, dout)
    grouped = (*key.shape[:3], heads // key.shape[2], key.shape[3])
    dkey, dvalue = (x.reshape(grouped).sum(3) for x in (dkey, dvalue))
    return [x.astype(query.dtype) for x in (dquery, dkey, dvalue)]


# --- rules -----------------------------------------------------------------------------------


def _sums_shape(query: ShapedArray) -> tuple[int, ...]:
    batch, queries, heads, _ = query.shape
    return (batch, heads, queries)


def _attention_shape(
    query: ShapedArray, key: ShapedArray, value: ShapedArray, *operands: ShapedArray, **params: Any
) -> list[ShapedArray]:
    del operands, params
    check_same_dtype("attention", (query, key, value))
    return [ShapedArray(query.shape, query.dtype), ShapedArray(_sums_shape(query), _FLOAT32)]


def _gradients_shape(
    query: ShapedArray,
    key: ShapedArray,
    value: ShapedArray,
    dout: ShapedArray,
    sums: ShapedArray,
    dots: ShapedArray,
    out: ShapedArray,
    *operands: ShapedArray,
    **params: Any,
) -> list[ShapedArray]:
    del sums, dots, operands, params
    check_same_dtype("attention_gradients", (query, key, value, dout, out))
    check(
        out.shape == query.shape,
        lambda: (
            "[attention_gradients] the result must have the shape of query; got "
            f"{out} for {query}. "
            "Fix: export the program again, if it is of an older version."
        ),
    )
    return [ShapedArray(x.shape, x.dtype) for x in (query, key, value)]


def _attention(
    ins: Sequence[ShapedArray], outs: Sequence[ShapedArray], params: dict[str, Any]
) -> Attention | None:
    gradient = len(outs) == 3
    query, key = ins[:2]
    bias, mask, query_lengths, key_lengths = _extras(ins[7 if gradient else 3 :], params["present"])
    if not may_fuse(query, key, bias):
        return None
    batch, queries, heads, size = query.shape
    return Attention(
        batch,
        queries,
        key.shape[1],
        heads,
        key.shape[2],
        size,
        params["scale"],
        params["causal"],
        params["window"],
        bias and bias.shape,
        mask and mask.shape,
        query_lengths is not None,
        key_lengths is not None,
        gradient,
        may_round(params["precision"]),
    )


def _partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: dict[str, Any]) -> Any:
    """The batch dimension, and the heads unless several share a key."""
    gradient = any(x.ndim == 3 for x in ins)  # the sums, of shape (batch, heads, queries)
    extras = _extras(ins[7 if gradient else 3 :], params["present"])
    pairs = [(0, 0), (2, 2)] if ins[1].shape[2] == out.shape[2] else [(0, 0)]
    sums = [(d, axis) for d, axis in ((0, 0), (1, 2)) if (axis, axis) in pairs]
    links = [pairs, pairs, pairs, *([pairs, sums, sums, pairs] if gradient else [])]
    for extra in extras:
        if extra is not None:
            dims = sums if extra.ndim == 4 else [(0, 0)]
            links.append([(d, k) for d, k in dims if extra.shape[d] == out.shape[k]])
    return [*links, *([pairs, pairs] if gradient else [sums])]


def _flops(ins: Sequence[ShapedArray], outs: Sequence[ShapedArray], params: dict[str, Any]) -> int:
    """Flops of the products: two, or five for gradients; half of them if causal."""
    batch, queries, heads, size = ins[0].shape
    products = 5 if len(outs) == 3 else 2
    flops = 2 * products * batch * heads * queries * ins[1].shape[1] * size
    return flops // 2 if params["causal"] else flops


def _batch(
    primitive: Any,
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[list[Any], list[int]]:
    """Merge the mapped axis with the batch."""
    size = axis.size
    batch = next(
        aval_of(x).shape[0 if dim is None else int(dim == 0)]
        for x, dim in zip(operands, dims, strict=True)
    )
    merged = []
    for x, dim in zip(operands, dims, strict=True):
        batched = batch_to_dim(x, dim, 0, size)
        shape = aval_of(batched).shape
        if shape[1] != batch:  # a bias or mask, for all of the batch
            shape = (size, batch, *shape[2:])
            batched = broadcast_in_dim(batched, shape, tuple(range(len(shape))))
        merged.append(reshape(batched, (size * batch, *shape[2:])))
    outs = primitive.bind(*merged, **params)
    split = [reshape(out, (size, batch, *aval_of(out).shape[1:])) for out in outs]
    return split, [0] * len(split)


attention_p = define(
    "attention",
    shape=_attention_shape,
    impl=_attention_impl,
    batch=lambda *arguments, **params: _batch(attention_p, *arguments, **params),
    lower=Library(flops=_flops, what=_attention, partitionable=_partitionable),
    multiple_results=True,
)

attention_gradients_p = define(
    "attention_gradients",
    shape=_gradients_shape,
    impl=_gradients_impl,
    batch=lambda *arguments, **params: _batch(attention_gradients_p, *arguments, **params),
    lower=Library(flops=_flops, what=_attention, partitionable=_partitionable),
    multiple_results=True,
)


def attention(
    query: Any,
    key: Any,
    value: Any,
    extras: Sequence[Any],
    *,
    scale: float,
    causal: bool,
    window: tuple[int, int] | None,
    precision: CanonicalPrecision,
) -> tuple[Any, Any]:
    """Attention without a matrix of scores.

    Args:
        query, key, value: ``[B, T, N, H]`` and ``[B, S, K, H]`` of one float dtype.
        extras: bias and mask that broadcast to ``[B, N, T, S]``, and i32[B] query_lengths and
            key_lengths; each may be None.
        scale, causal, window: as for ``nn.dot_product_attention``.
        precision: of the products of float32.

    Returns:
        The result, like query, and f32[B, N, T] the logarithms of the sums that softmax divides by;
        for queries without visible keys -1e30 times the number of keys.
    """
    present = tuple([x is not None for x in extras])
    present_extras = [x for x in extras if x is not None]
    out, sums = attention_p.bind(
        query,
        key,
        value,
        *present_extras,
        scale=scale,
        causal=causal,
        window=window,
        precision=precision,
        present=present,
    )
    return out, sums


def attention_gradients(
    operands: Sequence[Any],
    extras: Sequence[Any],
    *,
    scale: float,
    causal: bool,
    window: tuple[int, int] | None,
    precision: CanonicalPrecision,
) -> tuple[Any, Any, Any]:
    """The gradients of ``attention`` by query, key and value.

    Args:
        operands: query, key, value, the gradient by the result, the sums, f32[B, N, T] the dot
            products of that gradient and the result, and the result.
        extras, scale, causal, window, precision: as for ``attention``.
    """
    present = tuple([x is not None for x in extras])
    present_extras = [x for x in extras if x is not None]
    dquery, dkey, dvalue = attention_gradients_p.bind(
        *operands,
        *present_extras,
        scale=scale,
        causal=causal,
        window=window,
        precision=precision,
        present=present,
    )
    return dquery, dkey, dvalue
