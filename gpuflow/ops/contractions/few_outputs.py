"""Convolutions with few outputs: the product first, then sums of shifted slices.

A convolution as a matrix product copies each element of the input once for each tap, which is
expensive for three outputs of many channels: the last layer of an image generator, and the gradient
of a first layer with respect to the image. Summing over taps after the product avoids it:

    z[n, k, m, p] = sum over c of  rhs[n, c, k] lhs[m, c, p]            one product, no copy
    out[m, n, s]  = sum over k of  z[n, k, m, s + k dilation - pad]     a kernel over few elements

Input dilation (a transposed convolution) skips products: positions of the result that are equal
modulo the dilation, a phase, use the same taps, without dilation.

Tests: tests/ops/test_few_outputs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.contractions.dot_general import dot_general
from gpuflow.ops.elementwise.arithmetic import add
from gpuflow.ops.layout.axes import broadcast_in_dim, insert_axis, reshape, squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import pad, slice_, slice_in_dim
from gpuflow.ops.layout.transpose import transpose

MAX_OUTPUTS = 8
_LEAST_DEPTH = 4  # for each output
_MAX_TAPS = 49  # each is a statement of the kernel
_MAX_MEMORY = 4  # size of the product over that of the input
_MIN_POSITIONS = 256  # below, a call costs as much as its work


def has_few_outputs(lhs: ShapedArray, rhs: ShapedArray, params: dict[str, Any]) -> bool:
    """Whether a convolution is faster as a product and sums."""
    left, right, _ = params["dimension_numbers"]
    roles = (right.free, right.depth, right.space, right.batch)
    outputs, depth, taps, groups = (prod(rhs.shape[d] for d in dims) for dims in roles)
    positions = prod(lhs.shape[d] for d in (*left.free, *left.space))
    return (
        groups == 1
        and all(stride == 1 for stride in params["window_strides"])
        and 0 < outputs <= MAX_OUTPUTS
        and depth >= _LEAST_DEPTH * outputs
        and 1 < taps <= _MAX_TAPS
        and taps * outputs <= _MAX_MEMORY * depth
        and positions >= _MIN_POSITIONS
        and prod(params["lhs_dilation"]) <= taps
    )


def convolved_by_taps(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any,
    padding: Any,
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    precision: Any,
    sizes: Sequence[int],
) -> list[Any]:
    """The convolution.

    Args:
        lhs, rhs: the operands.
        dimension_numbers, padding, lhs_dilation, rhs_dilation, precision: as of ``conv_p``; strides
            are 1.
        sizes: spatial sizes of the result.
    """
    left, right, out = dimension_numbers
    contracting, batch = (right.depth, left.depth), (right.batch, left.batch)
    z = dot_general(rhs, lhs, (contracting, batch), precision)
    # Its dimensions: batch, then the remaining ones of rhs and of lhs, in order.
    names = [("batch", k) for k in range(len(right.batch))]
    names += [("rhs", d) for d in range(aval_of(rhs).ndim) if d in (*right.free, *right.space)]
    names += [("lhs", d) for d in range(aval_of(lhs).ndim) if d in (*left.free, *left.space)]
    taps = [names.index(("rhs", d)) for d in right.space]
    space = [names.index(("lhs", d)) for d in left.space]
    free = [names.index(("lhs", d)) for d in left.free]
    others = [*range(len(right.batch)), *free, *(names.index(("rhs", d)) for d in right.free)]
    z = transpose(z, [*taps, *others, *space])
    counts, inner = aval_of(z).shape[: len(taps)], aval_of(z).shape[len(taps) :]
    first = len(others)
    extents, zero = inner[first:], aval_of(z).dtype.type(0)
    rounds = [-(-size // step) for size, step in zip(sizes, lhs_dilation, strict=True)]

    def phase(shift: Sequence[int]) -> Any:
        """The elements of the result at positions equal to ``shift`` modulo the dilation."""
        terms = []
        for tap in product(*map(range, counts)):
            at = [
                r + k * dilation - low
                for r, k, dilation, (low, _) in zip(shift, tap, rhs_dilation, padding, strict=True)
            ]
            if any(p % step for p, step in zip(at, lhs_dilation, strict=True)):
                continue
            starts = [p // step for p, step in zip(at, lhs_dilation, strict=True)]
            ends = [q + s - n for q, s, n in zip(rounds, starts, extents, strict=True)]
            one = slice_(z, (*tap, *[0] * len(inner)), (*[k + 1 for k in tap], *inner))
            pads = [(0, 0, 0)] * first + [(-s, e, 0) for s, e in zip(starts, ends, strict=True)]
            terms.append(pad(squeeze(one, range(len(tap))), zero, pads))
        shape = (*inner[:first], *rounds)
        return reduce(add, terms) if terms else broadcast_in_dim(zero, shape, ())

    def interleaved(shift: tuple[int, ...]) -> Any:
        """All phases of the dimensions after the first ``len(shift)``, interleaved."""
        d = len(shift)
        if d == len(sizes):
            return phase(shift)
        phases = [interleaved((*shift, r)) for r in range(lhs_dilation[d])]
        if len(phases) == 1:
            return phases[0]
        stacked = concatenate([insert_axis(x, first + d + 1) for x in phases], first + d + 1)
        shape = list(aval_of(phases[0]).shape)
        shape[first + d] *= len(phases)
        return slice_in_dim(reshape(stacked, shape), 0, sizes[d], 1, first + d)

    y = interleaved(())
    order = [*out.batch, *out.free, *out.depth, *out.space]
    return [transpose(y, [order.index(d) for d in range(len(order))])]
