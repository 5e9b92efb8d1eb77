"""Dimension numbers of gathers and scatters, and the flat indices of their windows.

An index vector (the last dimension of the indices) defines where a window of the array starts, in
the dimensions ``start_index_map``; other dimensions start at 0. Batching dimensions of the array
and of the indices correspond.

Source: the definition of Gather and Scatter in the XLA operation semantics.

Tests: tests/ops/test_gather_scatter.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray

Dims = tuple[int, ...]


class GatherScatterMode(enum.Enum):
    """Handling of out-of-bounds indices: clamp, drop or fill, or a promise that there are none.

    If the promise is broken, a gather reads the nearest window and a scatter drops the update, as
    in JAX.
    """

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(value: Any) -> GatherScatterMode:
        """The mode for a name or None.

        Raises:
            ValueError: if the name is unknown.
        """
        if isinstance(value, GatherScatterMode):
            return value
        if value is None:
            return GatherScatterMode.FILL_OR_DROP
        check_choice("gather", "mode", value, ("clip", "fill", "drop", "promise_in_bounds"))
        if value in ("fill", "drop"):
            return GatherScatterMode.FILL_OR_DROP
        return GatherScatterMode(value)


class GatherDimensionNumbers(NamedTuple):
    """Dimension numbers of a gather.

    Attributes:
        offset_dims: dimensions of the result that index into a window, increasing.
        collapsed_slice_dims: dimensions of the operand in which windows have size 1 and that are
            removed.
        start_index_map: for each component of an index vector, the operand dimension that it
            indexes.
        operand_batching_dims, start_indices_batching_dims: corresponding batch dimensions.
    """

    offset_dims: Dims
    collapsed_slice_dims: Dims
    start_index_map: Dims
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()


class ScatterDimensionNumbers(NamedTuple):
    """Dimension numbers of a scatter.

    Attributes:
        update_window_dims: dimensions of the updates that index into a window, increasing.
        inserted_window_dims: dimensions of the operand in which windows have size 1 and that
            updates lack.
        scatter_dims_to_operand_dims: for each component of an index vector, the operand dimension
            that it indexes.
        operand_batching_dims, scatter_indices_batching_dims: corresponding batch dimensions.
    """

    update_window_dims: Dims
    inserted_window_dims: Dims
    scatter_dims_to_operand_dims: Dims
    operand_batching_dims: Dims = ()
    scatter_indices_batching_dims: Dims = ()


@record
class Windows:
    """Common data of gather and scatter.

    Attributes:
        shape: shape of the array.
        sizes: of a window in each dimension of the array.
        mapped: for each component of an index vector, the dimension it indexes.
        batching: pairs of a dimension of the array and its dimension of the indices.
        dropped: dimensions that windows do not have.
    """

    shape: Dims
    sizes: Dims
    mapped: Dims
    batching: tuple[tuple[int, int], ...]
    dropped: Dims

    @property
    def window_dims(self) -> Dims:
        """Dimensions of the array that windows have."""
        return tuple(d for d in range(len(self.shape)) if d not in self.dropped)

    def room(self, dim: int) -> int:
        """Number of positions along ``dim`` at which a window may start."""
        return self.shape[dim] - self.sizes[dim] + 1


def scatter_windows(shape: Dims, numbers: ScatterDimensionNumbers, updates: Dims) -> Windows:
    """The windows of a scatter into an array."""
    batching = tuple(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window_sizes = iter(updates[d] for d in numbers.update_window_dims)
    sizes = tuple(min(n, 1) if d in dropped else next(window_sizes, 1) for d, n in enumerate(shape))
    return Windows(shape, sizes, numbers.scatter_dims_to_operand_dims, batching, dropped)


def scatter_dims(rank: int, numbers: ScatterDimensionNumbers) -> Dims:
    """The dimensions of updates that are those of the indices."""
    return tuple(d for d in range(rank) if d not in numbers.update_window_dims)


def check_index_aval(op: str, indices: ShapedArray, numbers: Sequence[int]) -> None:
    """Raise unless indices are integers whose last dimension holds vectors for ``numbers``."""
    is_index = not dtypes.is_extended(indices.dtype) and dtypes.is_integer(indices.dtype)
    check(
        is_index,
        lambda: f"[{op}] indices must be integers; got {indices}. Fix: x.astype(jnp.int32).",
    )
    check(
        indices.ndim > 0 and indices.shape[-1] == len(numbers),
        lambda: (
            f"[{op}] the last dimension of the indices must hold one number for each of the "
            f"dimensions {tuple(numbers)}; got {indices}. Fix: indices[..., None] for one."
        ),
    )


def check_windows(op: str, windows: Windows, indices: ShapedArray) -> None:
    """Raise unless dimensions exist and differ, sizes fit and batching sizes agree."""
    rank = len(windows.shape)
    batching = [d for d, _ in windows.batching]
    for name, dims in (
        ("indexed", windows.mapped),
        ("collapsed or inserted", windows.dropped),
        ("batching", batching),
    ):
        check(
            len(set(dims)) == len(dims) and all(0 <= d < rank for d in dims),
            lambda name=name, dims=dims: (
                f"[{op}] {name} dimensions must differ and be in [0, {rank}); got {tuple(dims)}. "
                "Fix: the dimension numbers."
            ),
        )
    check(
        not set(batching) & set(windows.mapped),
        lambda: (
            f"[{op}] a batching dimension must not be indexed; got {batching} and "
            f"{windows.mapped}. Fix: the dimension numbers."
        ),
    )
    for d, (size, extent) in enumerate(zip(windows.sizes, windows.shape, strict=True)):
        check(
            0 <= size <= extent and (d not in windows.dropped or size <= 1),
            lambda d=d, size=size, extent=extent: (
                f"[{op}] a window must fit into the array, and have size 1 where it is collapsed; "
                f"got size {size} of {extent} in dimension {d}. Fix: the window sizes."
            ),
        )
    for d, other in windows.batching:
        check(
            other < indices.ndim - 1 and indices.shape[other] == windows.shape[d],
            lambda d=d, other=other: (
                f"[{op}] batching dimensions must have one size; got dimension {d} of shape "
                f"{windows.shape} and {other} of the indices {indices}. Fix: broadcast one."
            ),
        )


def flat_row_indices(
    xp: Any, windows: Windows, indices: Any, checked: bool
) -> tuple[Any, Any, int]:
    """Row indices of all windows in the flat array.

    A row is the run of trailing dimensions that windows cover in full.

    Args:
        checked: whether to distinguish out-of-bounds index vectors.

    Returns:
        Row indices, of shape ``batch + window sizes without the row's``; a mask of the index
        vectors in bounds, of shape ``batch``, or None if all count; and the size of a row.
    """
    shape, sizes = windows.shape, windows.sizes
    rank = len(shape)
    fixed = {*windows.mapped, *[d for d, _ in windows.batching]}
    last = rank
    while last > 0 and last - 1 not in fixed and sizes[last - 1] == shape[last - 1]:
        last -= 1
    batch = indices.shape[:-1]
    in_bounds = None
    rows = xp.zeros(batch + (1,) * last, np.int64)
    stride = 1
    batching = dict(windows.batching)
    for d in reversed(range(last)):
        if d in windows.mapped:
            start = indices[..., windows.mapped.index(d)]
            top = max(windows.room(d) - 1, 0)
            if checked:
                valid = (start >= 0) & (start <= windows.room(d) - 1)
                in_bounds = valid if in_bounds is None else in_bounds & valid
            if start.dtype.kind == "u":
                start = xp.minimum(start, np.uint64(top)).astype(np.int64)
            else:
                start = xp.clip(start.astype(np.int64), 0, top)
            rows = rows + (start * stride).reshape(batch + (1,) * last)
        elif d in batching:
            axis = batching[d]
            aligned = [-1 if k == axis else 1 for k in range(len(batch) + last)]
            rows = rows + (xp.arange(shape[d]) * stride).reshape(aligned)
        if sizes[d] != 1:
            aligned = [-1 if k == len(batch) + d else 1 for k in range(len(batch) + last)]
            rows = rows + (xp.arange(sizes[d]) * stride).reshape(aligned)
        stride *= shape[d]
    full = xp.broadcast_to(rows, batch + sizes[:last])
    return full, in_bounds, prod(shape[last:])
