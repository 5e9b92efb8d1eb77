"""Sharding rules of equations: dimensions of operands and results that are split alike.

Tests: tests/parallel/test_shardings.py, tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gpuflow.base.dtypes import is_extended
from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import iteration_of
from gpuflow.core.blocks import Convolution, Decomposition, Scan, Sort
from gpuflow.core.halo import Halo
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import block_of


@record
class Correspondence:
    """Sharding rule of an equation: dimensions with the same axis are split alike.

    Axes are those of the equation's iteration, not of a mesh, and are named by index.

    Attributes:
        sizes: size of each axis: of the dimension of the results that has it, else of an operand.
        outs: for each result the axis of each dimension; None for a dimension without one.
        reads: for each operand pairs (dimension, axis); other dimensions correspond to no axis.
        reduced: axes along which partial results of shards must be combined.
        halo: the rows of operands that blocks of the result need; None if the op has none.
        slides: for axes without a corresponding dimension, along which the result can be computed
            in blocks with a halo: the axis, and the dimension of rows of each operand.
        restored: (dimension of operands, axis) along which the op needs all elements, and its
            results are split again afterwards, as rows that are sorted.
    """

    sizes: tuple[int, ...]
    outs: tuple[tuple[int | None, ...], ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    reduced: tuple[int, ...] = ()
    halo: Halo | None = None
    slides: tuple[tuple[int, tuple[int | None, ...]], ...] = ()
    restored: tuple[tuple[int, int], ...] = ()

    def can_split(self, size: int, axis: int, count: int) -> bool:
        """Whether a dimension of an operand is split like an axis, into a number of chunks.

        Their sizes differ where a dimension is broadcast, or regrouped by a reshape.
        """
        whole = self.sizes[axis]
        return size == whole or (size % count == 0 and whole % count == 0)


def corresponding(eqn: Eqn) -> Correspondence | None:
    """The sharding rule of an equation, from its lowering; None if it has none."""
    if not eqn.outputs:
        return None
    correspondence = _corresponding(eqn)
    make_halo = eqn.primitive.placement.halo
    if correspondence is None or make_halo is None:
        return correspondence
    out = eqn.outputs[0].aval
    halo = make_halo([atom.aval for atom in eqn.inputs], out, eqn.params)
    if halo is None or not out.size or is_extended(out.dtype):
        return correspondence
    linked = {axis for links in correspondence.reads for _, axis in links}
    slides = []
    for axis in range(out.ndim):
        rows = None if axis in linked else halo.rows(axis, 0, out.shape[axis])
        if rows is not None:
            slides.append((axis, tuple(None if row is None else row[0] for row in rows)))
    return replace(correspondence, halo=halo, slides=tuple(slides))


def _corresponding(eqn: Eqn) -> Correspondence | None:
    rule = eqn.primitive.lower
    out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
    if rule.partitionable is not None:
        links = rule.partitionable(avals, out, eqn.params)
        return None if links is None else _linked(eqn, links)
    if not (rule.is_indexed or rule.is_library):
        iteration = iteration_of(eqn)
        if iteration is None or any(len(iteration.out) != var.aval.ndim for var in eqn.outputs):
            return None
        outs = (iteration.out,) * len(eqn.outputs)
        return Correspondence(iteration.sizes, outs, iteration.reads, iteration.reduced)
    block = block_of(eqn)
    corresponds = _along_stack if isinstance(block, Decomposition) else _BLOCKS.get(type(block))
    return None if corresponds is None else corresponds(eqn, block)


def _linked(eqn: Eqn, links: Sequence[Sequence[tuple[int, int]]]) -> Correspondence:
    """The correspondence given by links, pairs (dimension, axis).

    Args:
        eqn: the equation. Axes are the dimensions of its first result, followed by reduced axes.
        links: those of each operand, then of each result after the first one.
    """
    first, *others = [var.aval.ndim for var in eqn.outputs]
    count = len(eqn.inputs)
    sizes = dict(enumerate(eqn.outputs[0].aval.shape))
    for atom, operand_links in zip(eqn.inputs, links[:count], strict=True):
        for dim, axis in operand_links:
            sizes.setdefault(axis, atom.aval.shape[dim])
    order = sorted(sizes)
    assert order == list(range(len(order))), "links leave no dimension out"
    outs: list[tuple[int | None, ...]] = [tuple(range(first))]
    for rank, output_links in zip(others, links[count:], strict=True):
        axes = dict(output_links)
        outs.append(tuple(axes.get(dim) for dim in range(rank)))
    return Correspondence(
        tuple(sizes[axis] for axis in order),
        tuple(outs),
        tuple(map(tuple, links[:count])),
        tuple(order[first:]),
    )


def _along_rows(eqn: Eqn, rows: Scan | Sort) -> Correspondence | None:
    """Sharding rule of an op along rows, such as a sort: all other dimensions correspond."""
    first = eqn.inputs[0].aval
    if not first.size:
        return None  # sizes do not identify the dimension
    dims = range(first.ndim)
    row_dims = [
        d for d in dims if (prod(first.shape[:d]), first.shape[d]) == (rows.outer, rows.length)
    ]
    if not row_dims or any(atom.aval.shape != first.shape for atom in eqn.inputs):
        return None
    row_dim = row_dims[-1]
    links = tuple((d, d) for d in dims if d != row_dim)
    outs = (tuple(dims),) * len(eqn.outputs)
    sizes, reads = eqn.outputs[0].aval.shape, (links,) * len(eqn.inputs)
    return Correspondence(sizes, outs, reads, restored=((row_dim, row_dim),))


def _along_convolution(eqn: Eqn, block: Convolution) -> Correspondence:
    """Sharding rule of a convolution; along spatial dimensions it has a halo."""
    batch, left_free, right_free, _ = block.out
    left, right = block.left, block.right
    rank = eqn.outputs[0].aval.ndim
    contracted = range(rank, rank + len(left[2]))
    left_links = [*zip(left[0], batch), *zip(left[1], left_free), *zip(left[2], contracted)]
    right_links = [*zip(right[0], batch), *zip(right[1], right_free), *zip(right[2], contracted)]
    return _linked(eqn, [left_links, right_links])


def _along_stack(eqn: Eqn, block: Decomposition) -> Correspondence | None:
    """Sharding rule of a decomposition: the dimensions of the stack of matrices."""
    del block
    rank = eqn.inputs[0].aval.ndim - 2
    if any(atom.aval.shape[:rank] != eqn.inputs[0].aval.shape[:rank] for atom in eqn.inputs):
        return None
    stack = [(dim, dim) for dim in range(rank)]
    return _linked(eqn, [stack] * (len(eqn.inputs) + len(eqn.outputs) - 1))


# Library calls whose block defines the sharding rule.
_BLOCKS: dict[type[Any], Callable[[Eqn, Any], Correspondence | None]] = {
    Scan: _along_rows,
    Sort: _along_rows,
    Convolution: _along_convolution,
}
