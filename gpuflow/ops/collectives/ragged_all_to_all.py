"""ragged_all_to_all: send slices of different sizes to other indices of an axis.

Sizes are dynamic, but shapes are static. So every index of the axis gets the operands of all, and
gathers its rows from them:

    row m of the result  <-  the last slice i with offset[i] <= m < offset[i] + size[i]

If the axis is in one memory, the gathered operands are the mapped array itself, and only the
selected rows are copied. Between processes full operands are.

Tests: tests/ops/test_ragged_all_to_all.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.collectives.all_gather import all_gather
from gpuflow.ops.collectives.all_to_all import all_to_all
from gpuflow.ops.elementwise.arithmetic import add, div, mul, sub
from gpuflow.ops.elementwise.comparison import bitwise_and, ge, lt
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.indexing.rows import row_gather
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.reductions.reduce import reduce_max

OFFSETS_AND_SIZES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


@explained
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any = None,
) -> Any:
    """Send slices of rows to other indices of a named axis, and write the received ones.

    Slice k is sent to index ``k // (K / axis size)``: ``send_sizes[k]`` rows of ``operand``,
    starting at ``input_offsets[k]``, to the rows of the receiver's output starting at
    ``output_offsets[k]``. If slices overlap, the last one wins.

    Args:
        operand: the rows to send, [N, ...].
        output: initial value of the result, [M, ...] with the dtype of the operand.
        input_offsets, send_sizes, output_offsets: i[K], the slices to send.
        recv_sizes: i[K], the sizes of received slices:
            ``all_to_all(send_sizes, axis_name, 0, 0, tiled=True)``.
        axis_name: an axis name, or several names that form one row-major axis.
        axis_index_groups: groups of equal size; the collective runs within each group.

    Returns:
        An array like ``output``, differentiable with respect to ``operand`` and ``output``.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        TypeError: if the output has another dtype, or its rows another shape.
        ValueError: if offsets or sizes are not integer vectors of one length that is a multiple of
            the axis size.

    Cost: between processes, each process receives the operands of all, whatever the sizes are.

    Example:
        >>> def exchange(x):
        ...     sizes, to = jnp.array([1, 2]), jnp.full(2, 2 * lax.axis_index("i"))
        ...     offsets, arrive = jnp.array([0, 1]), lax.all_to_all(sizes, "i", 0, 0, tiled=True)
        ...     out = jnp.zeros(4, x.dtype)
        ...     return lax.ragged_all_to_all(x, out, offsets, sizes, to, arrive, axis_name="i")
        >>> gf.vmap(exchange, axis_name="i")(jnp.array([[1, 2, 3], [4, 5, 6]]))
        Array([[1, 0, 4, 0],
               [2, 3, 5, 6]], dtype=int32)
    """
    offsets_and_sizes = (input_offsets, send_sizes, output_offsets, recv_sizes)
    rows, out = aval_of(operand), aval_of(output)
    count = _checked(rows, out, [aval_of(slice_ids) for slice_ids in offsets_and_sizes])
    groups = axis_index_groups
    gathered = all_gather(operand, axis_name, axis_index_groups=groups)  # [size, N, ...]
    size = aval_of(gathered).shape[0]
    check(
        count % size == 0,
        lambda: (
            "[ragged_all_to_all] the number of slices must be a multiple of the size of the axis; "
            f"got {count} slices for {axis_name!r} of size {size}. Fix: slices of size 0."
        ),
        ValueError,
    )
    starts, targets = (
        all_to_all(_int32(x), axis_name, 0, 0, axis_index_groups=groups, tiled=True)
        for x in (input_offsets, output_offsets)
    )
    length, sent = out.shape[0], rows.shape[0]
    if out.size == 0 or sent == 0:
        return output
    positions = iota(np.int32, (length, count), 0)
    first = broadcast_in_dim(targets, (length, count), (1,))
    ends = broadcast_in_dim(add(targets, _int32(recv_sizes)), (length, count), (1,))
    in_range = bitwise_and(ge(positions, first), lt(positions, ends))
    slice_ids = where(in_range, iota(np.int32, (length, count), 1), np.int32(-1))
    last = reduce_max(slice_ids, (1,))  # of each row of the result, its slice
    begin = row_gather(sub(starts, targets), last, "clip")
    source = div(last, np.int32(count // size))
    row = add(begin, iota(np.int32, length))
    flat = reshape(gathered, (size * sent, *rows.shape[1:]))
    selected = row_gather(flat, add(mul(source, np.int32(sent)), row), "clip")
    arrived = broadcast_in_dim(ge(last, np.int32(0)), out.shape, (0,))
    return where(arrived, selected, output)


def _checked(rows: ShapedArray, out: ShapedArray, avals: list[ShapedArray]) -> int:
    """Check the operands, and return the number of slices."""
    check(
        rows.ndim > 0 and rows.dtype == out.dtype and rows.shape[1:] == out.shape[1:],
        lambda: (
            f"[ragged_all_to_all] output must have rows like those of operand; got {out} for "
            f"{rows}. Fix: jnp.zeros((n, *operand.shape[1:]), operand.dtype)."
        ),
    )
    for name, aval in zip(OFFSETS_AND_SIZES, avals, strict=True):
        check(
            dtypes.is_integer(aval.dtype),
            lambda name=name, aval=aval: (
                f"[ragged_all_to_all] {name} must be integers; got {aval}. "
                "Fix: x.astype(jnp.int32)."
            ),
            ValueError,
        )
        check(
            aval.ndim == 1 and aval.shape[0] > 0 and aval.shape == avals[0].shape,
            lambda name=name, aval=aval: (
                "[ragged_all_to_all] offsets and sizes must be vectors of one length, at least 1; "
                f"got {name} {aval} and {avals[0]}. Fix: one integer for each slice."
            ),
            ValueError,
        )
    return avals[0].shape[0]


def _int32(x: Any) -> Any:
    return convert_element_type(x, np.int32)
