"""Halos: the rows of operands from which a block of an op's result is computed.

A block is a range of one or more dimensions of the result, all elements of the others. The
partitioner of ``jit`` over a mesh sends each memory the rows that its block needs and that other
memories hold, as stencil codes do.

Tests: tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuflow.base.records import record

# Rows of an operand: its dimension, the first row and their number. None: all rows.
Rows = tuple[int, int, int] | None


@record(eq=False)
class Halo:
    """How an op computes blocks of its result.

    Attributes:
        rows: ``(dim, start, size) -> Rows of each operand``, for the block of ``size`` elements
            from ``start`` on along output dimension ``dim``. The first row is an affine function of
            ``start``, at multiples of ``size``; rows may exceed the operand. None: the op computes
            no blocks along ``dim``.
        apply: ``(bind, starts, shape, *operands) -> block``. ``bind`` applies the op; ``starts``
            has the int32 start along each dimension of the block; ``shape`` is the block's;
            operands have their rows only.
        fill: ``(number, operands) -> scalar`` for rows of operand ``number`` that exceed it.
            Default: zero.
    """

    rows: Callable[[int, int, int], Sequence[Rows] | None]
    apply: Callable[..., Any]
    fill: Callable[[int, Sequence[Any]], Any] | None = None


@record
class Sliding:
    """A window that slides along one dimension of an operand.

    Attributes:
        stride: elements between windows.
        low: elements of padding before the first element.
        base: dilation of the operand: elements between its elements.
        span: elements that a window covers, dilation included.
    """

    stride: int
    low: int
    base: int
    span: int

    def rows(self, start: int, size: int) -> tuple[int, int] | None:
        """The first row, and the number of rows, that windows from ``start`` on read.

        None if windows are at other positions relative to the rows in every block, or read none.
        """
        begin = start * self.stride - self.low
        if self.base > 1 and size * self.stride % self.base:
            return None
        first = -(-begin // self.base)
        last = (begin + (size - 1) * self.stride + self.span - 1) // self.base
        return (first, last - first + 1) if last >= first else None

    def padding(self, size: int) -> tuple[int, int]:
        """The padding with which the rows of a block give ``size`` windows."""
        rows = self.rows(0, size)
        assert rows is not None, "the block has rows"
        first, count = rows
        before = first * self.base + self.low
        covered = (size - 1) * self.stride + self.span
        return before, covered - before - (count - 1) * self.base - 1


def sliding_halo(
    windows: Mapping[int, Sliding],
    rows_of: Callable[[int, tuple[int, int]], Sequence[Rows]],
    apply: Callable[..., Any],
    fill: Callable[[int, Sequence[Any]], Any] | None = None,
) -> Halo:
    """The halo of an op whose windows slide over padded operands.

    Args:
        windows: from output dimensions to the window that slides along each.
        rows_of: ``(dim, (first, count)) -> Rows of each operand`` that are read along ``dim``.
        apply: ``(bind, pads, *operands) -> block``; ``pads`` has (low, high) of the op on a block,
            for the dimensions of the block.
        fill: see ``Halo``.
    """

    def rows(dim: int, start: int, size: int) -> Sequence[Rows] | None:
        found = windows[dim].rows(start, size) if dim in windows else None
        return None if found is None else rows_of(dim, found)

    def apply_to_rows(bind: Any, starts: Any, shape: Any, *operands: Any) -> Any:
        pads = {dim: windows[dim].padding(shape[dim]) for dim in starts}
        return apply(bind, pads, *operands)

    return Halo(rows, apply_to_rows, fill)
