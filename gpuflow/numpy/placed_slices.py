"""``ds``: a slice of static size whose start may be traced.

An index with such slices is the index of a window: ``x[ds(i, 4), j]`` is ``w[:, j]`` with
``w = dynamic_slice(x, ...)``; an update modifies the window and writes it back.

Tests: tests/numpy/test_placed_slices.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value


@record(eq=False)
class Slice:
    """``start : start + size * stride : stride``; see ``ds``."""

    start: Any
    size: int
    stride: int = 1

    @property
    def span(self) -> int:
        """Distance from the first to the last element, plus one."""
        return (self.size - 1) * self.stride + 1 if self.size else 0

    @property
    def inside(self) -> slice:
        """The slice relative to its window."""
        return slice(0, self.span, self.stride)


@explained
def ds(start: Any, size: Any = None, stride: int | None = None) -> Slice | slice:
    """Return a slice for indexing, ``start : start + size`` with every ``stride``-th element.

    Args:
        start: an int, or an integer scalar that may be traced. It is clamped so that the slice is
            in bounds; negative ones count from the end. ``ds(None)`` is ``:``.
        size: number of elements, an int; ``ds(n)`` is ``:n``.
        stride: an int, at least 1.

    Returns:
        An object for indexing arrays, ``x.at`` and refs.

    Raises:
        TypeError: if the start is not an integer scalar, or the size is not an int.
        ValueError: if the size is negative, or the stride is not an int or below 1.

    Example:
        >>> x = jnp.arange(6)
        >>> x[gf.ds(2, 3)]
        Array([2, 3, 4], dtype=int32)
        >>> gf.jit(lambda x, start: x[gf.ds(start, 2, 2)])(x, 1)
        Array([1, 3], dtype=int32)
    """
    if start is None:
        return slice(None)
    if size is None:
        start, size = 0, start
    count, step = as_integer("ds", "size", size), 1 if stride is None else stride
    check(
        isinstance(step, int) and step >= 1 and count >= 0,
        lambda: (
            f"[ds] the stride must be an int of at least 1, and the size not negative; got stride "
            f"{stride!r} and size {count}. Fix: ds(start, 4, 2)."
        ),
        ValueError,
    )
    check(
        is_value(start) and aval_of(start).shape == () and dtypes.is_integer(aval_of(start).dtype),
        lambda: f"[ds] the start must be an integer scalar; got {start!r}. Fix: x.astype(int).",
    )
    return Slice(start, count, step)


def has_slices(index: Any) -> bool:
    """Whether there is a ``ds`` in an index."""
    if isinstance(index, tuple):
        return any(isinstance(entry, Slice) for entry in index)
    return isinstance(index, Slice)


def in_window(index: Any) -> Any:
    """The index relative to its window."""
    if isinstance(index, tuple):
        return tuple(entry.inside if isinstance(entry, Slice) else entry for entry in index)
    return index.inside if isinstance(index, Slice) else index


def window_of(index: Any, shape: tuple[int, ...], used: Any) -> tuple[list[Any], list[int]]:
    """Starts and sizes of the window of an index.

    Args:
        index: an index with slices of ``ds``.
        shape: shape of the array.
        used: number of axes that an entry indexes.
    """
    entries = index if isinstance(index, tuple) else (index,)
    starts: list[Any] = [0] * len(shape)
    sizes = list(shape)
    counts = [used(entry) for entry in entries]
    axis = 0
    for entry, count in zip(entries, counts, strict=True):
        if isinstance(entry, Slice) and axis < len(shape):
            check(
                entry.span <= shape[axis],
                lambda entry=entry, axis=axis: (
                    f"[index] a slice must fit into its axis; got one over {entry.span} elements "
                    f"for axis {axis} of shape {shape}. Fix: a smaller size."
                ),
                ValueError,
            )
            starts[axis], sizes[axis] = entry.start, entry.span
        axis += len(shape) - sum(counts) if entry is Ellipsis else count
    return starts, sizes
