"""Calls of cuDNN as data, convolutions and attention, and the interface of a library of them.

Tests: tests/targets/cuda/test_cudnn.py, tests/targets/cuda/test_cudnn_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides

Dims = tuple[int, ...]

# Kinds of a convolution: the result is y, the gradient with respect to x, or that to w.
FORWARD, DATA, FILTER = "forward", "data", "filter"


@record
class ConvolutionCall:
    """``y[n, k, o] = sum of x[n, c, o stride + t dilation - low] w[k, c, t]``, or a gradient.

    Arrays are packed: row-major in this order, or with channels last.

    Attributes:
        kind: FORWARD (y of x and w), DATA (x of y and w) or FILTER (w of x and y).
        x: sizes of batch, channels and space of the input.
        w: sizes of outputs, channels of one group, and taps.
        y: sizes of batch, channels and space of the output.
        channels_last: whether x, w and y are packed with channels last.
        padding: (low, high) zeros around x, per spatial dimension.
        strides, dilation: stride and dilation per spatial dimension.
        groups: number of channel groups.
        dtype: dtype of x, w and y.
        reduced: whether float32 operands may be rounded to TF32.
    """

    kind: str
    x: Dims
    w: Dims
    y: Dims
    channels_last: bool
    padding: tuple[tuple[int, int], ...]
    strides: Dims
    dilation: Dims
    groups: int
    dtype: np.dtype
    reduced: bool

    @property
    def is_exact(self) -> bool:
        """Whether products of float32 must not be rounded to TF32."""
        return self.dtype == np.float32 and not self.reduced

    @property
    def op(self) -> str:
        """The op that it makes, for errors."""
        return "conv_general_dilated"

    @property
    def arrays(self) -> tuple[Dims, ...]:
        """Sizes of both operands and of the output, in the order of a call's addresses."""
        names = {FORWARD: "xwy", DATA: "ywx", FILTER: "xyw"}[self.kind]
        return tuple([getattr(self, name) for name in names])

    def __str__(self) -> str:
        operands = ", ".join(
            f"{name} {self.dtype.name}{list(dims)}"
            for name, dims in (("x", self.x), ("w", self.w), ("y", self.y))
        )
        return (
            f"{self.kind} convolution of {operands}, packed with channels "
            f"{'last' if self.channels_last else 'first'}, strides {list(self.strides)}, padding "
            f"{list(self.padding)}, dilation {list(self.dilation)}, groups {self.groups}"
        )


@record
class AttentionCall:
    """``softmax(query @ key.T * scale) @ value`` for each head, or its gradients.

                  operands                                              outputs
        forward   query, key, value                                     result, sums
        gradient  query, key, value, result, its cotangent, sums        dquery, dkey, dvalue

    Arrays are row-major: query and result ``[batch, queries, heads, size]``, key and value
    ``[batch, keys, key_heads, size]``. Sums are the logsumexp of scaled scores, of shape
    ``f32[batch, heads, queries]``.

    Attributes:
        batch, queries, keys, heads, key_heads, size: sizes of the arrays.
        scale: factor of the products of queries and keys.
        causal: whether query ``t`` attends only to keys up to ``t``.
        dtype: dtype of all arrays but the sums.
        gradient: whether the call computes the gradients.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    size: int
    scale: float
    causal: bool
    dtype: np.dtype
    gradient: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether products of float32 must not be rounded to TF32."""
        return False

    @property
    def op(self) -> str:
        """The op that it makes, for errors."""
        return "dot_product_attention"

    @property
    def arrays(self) -> tuple[Dims, ...]:
        """(batch, heads, length, size) of operands, then outputs: the order of addresses."""
        rows = (self.batch, self.heads, self.queries, self.size)
        columns = (self.batch, self.key_heads, self.keys, self.size)
        sums = (self.batch, self.heads, self.queries, 1)
        operands = (rows, columns, columns)
        if self.gradient:
            return (*operands, rows, rows, sums, *operands)
        return (*operands, rows, sums)

    def __str__(self) -> str:
        mask = "causal " if self.causal else ""
        return (
            f"{'gradients of ' if self.gradient else ''}{mask}attention of {self.dtype.name} query "
            f"{[self.batch, self.queries, self.heads, self.size]} and key "
            f"{[self.batch, self.keys, self.key_heads, self.size]}"
        )


CudnnCall = ConvolutionCall | AttentionCall


@record
class PlannedCall:
    """A call for which the library has a plan.

    Attributes:
        call: the call.
        deterministic: whether the plan was requested to give the same bits in every run.
        workspace_bytes: size of the workspace that ``bind``'s function needs, on the device where
            the plan was made.
    """

    call: CudnnCall
    deterministic: bool
    workspace_bytes: int


def packed_strides(dims: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    """Strides in elements of a packed array; dims and strides are batch, channels, space."""
    if not channels_last:
        return row_major_strides(tuple(dims))
    batch, channels, *space = dims
    first, *inner, last = row_major_strides((batch, *space, channels))
    return (first, last, *inner)


class DnnLibrary(Protocol):
    """A library of convolutions and attention on one device."""

    def plan_call(self, call: CudnnCall, deterministic: bool) -> PlannedCall | None:
        """The library's plan; None if it does not support the call, or is missing.

        Args:
            call: the call.
            deterministic: whether results must have the same bits in every run.
        """
        ...

    def why_not(self, call: CudnnCall, deterministic: bool) -> str:
        """Explain why ``plan_call`` returned None for a call; for ``gpuflow.explain``."""
        ...

    def version(self) -> str:
        """The version of the library; only after ``plan_call`` returned a plan."""
        ...

    def bind(self, planned_call: PlannedCall, stream: int) -> Callable[..., None]:
        """Return a function of the addresses of operands, outputs and workspace.

        Addresses are in the order of ``call.arrays``, with the workspace last. An optional further
        argument is a stream that records, instead of ``stream``. Calls allocate no device memory,
        and return while the work may still run.
        """
        ...
