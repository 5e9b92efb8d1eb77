"""How an op is split over the axes of a mesh: the choice that sends few bytes.

Tests: tests/parallel/test_partitioner.py, tests/parallel/test_shardings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from math import prod
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.correspondence import Correspondence
from gpuflow.compiler.row_exchange import plan_exchange, rows_of
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn

# For each dimension of an array, the mesh axes that it is split over.
MeshAxes = tuple[tuple[Any, ...], ...]
# From the name of a mesh axis to the number of chunks along it; those that split nothing left out.
Counts = Mapping[Any, int]

# From the function of a reduction to the collective that combines the results of shards.
_COLLECTIVES = {"add": "sum", "max": "max", "min": "min"}
_COLLECTIVES_OF_BOOLS = {"add": "max", "or": "max", "max": "max", "and": "min", "min": "min"}


@record
class Factor:
    """Dimensions of operands and results that are split alike.

    Attributes:
        operands: the dimension of each operand; None if it has none, or repeats one element.
        out: the dimension of the result; None: the op reduces along it.
        sizes: the sizes that a split must divide.
        rows_sent: of dimensions along which devices exchange rows: ``number of chunks -> bytes that
            a device sends``, None if this is not possible. They need not divide, and one mesh axis
            splits them. Default: nothing is sent.
        is_chunk: whether the first operand is read in chunks; see ``Placement.chunk``.
    """

    operands: tuple[int | None, ...]
    out: int | None
    sizes: tuple[int, ...]
    rows_sent: Callable[[int], float | None] | None = None
    is_chunk: bool = False


def chunk_size(size: int, count: int) -> int:
    """The size of the chunks of a dimension; the last ones may exceed it."""
    return -(-size // count)


def collective_of(eqn: Eqn) -> str | None:
    """The collective that combines results along reduced axes: sum, max or min; None: none."""
    is_bool = dtypes.is_bool(eqn.outputs[0].aval.dtype)
    collectives = _COLLECTIVES_OF_BOOLS if is_bool else _COLLECTIVES
    return collectives.get(eqn.primitive.lower.combine_shards)


def factors_of_product(eqn: Eqn, product: Product) -> list[Factor]:
    """The factors of a product; the dimensions of its result are the stack's, rows and columns."""
    (batch, rows, depth), (right_batch, right_depth, columns) = product.left, product.right
    left, right = (atom.aval.shape for atom in eqn.inputs[:2])
    count = len(batch)
    pairs: list[tuple[int | None, int | None, int | None]] = [
        *((a, b, k) for k, (a, b) in enumerate(safe_zip(batch, right_batch))),
        *((a, None, count + k) for k, a in enumerate(rows)),
        *((None, b, count + len(rows) + k) for k, b in enumerate(columns)),
        *((a, b, None) for a, b in safe_zip(depth, right_depth)),
    ]
    return [
        Factor((a, b), out, (left[a] if a is not None else right[b],))  # type: ignore[index]
        for a, b, out in pairs
    ]


def factors_of(
    eqn: Eqn, correspondence: Correspondence, keeps_few_rows: Callable[[int], bool]
) -> list[Factor]:
    """The factors of an op whose dimensions correspond: one for each axis, and then chunks.

    Args:
        eqn, correspondence: the equation.
        keeps_few_rows: whether the result may have fewer rows than devices along an axis, because
            its readers exchange rows too, as in a roll.
    """
    out, is_combined = correspondence.outs[0], collective_of(eqn) is not None
    slides = dict(correspondence.slides)
    factors = []
    for axis, size in enumerate(correspondence.sizes):
        dims: list[int | None] = []
        sizes, rows_sent = {size}, None
        for atom, links in safe_zip(eqn.inputs, correspondence.reads):
            dim = next((d for d, a in links if a == axis and atom.aval.shape[d] > 1), None)
            dims.append(dim)
            if dim is not None:
                sizes.add(atom.aval.shape[dim])
        if axis in correspondence.reduced and not is_combined:
            dims = [None] * len(dims)
        if axis in slides:
            dims = list(slides[axis])
            rows_sent = _rows_sent(eqn, correspondence, axis, dims, keeps_few_rows)
        position = out.index(axis) if axis in out else None
        factors.append(Factor(tuple(dims), position, tuple(sizes), rows_sent))
    return [*factors, *_chunks(eqn, correspondence)]


def _chunks(eqn: Eqn, correspondence: Correspondence) -> list[Factor]:
    """Factors of dimensions whose chunks give terms of the result."""
    rule, dtype = eqn.primitive.placement.chunk, eqn.outputs[0].aval.dtype
    if rule is None or dtypes.is_bool(dtype) or dtypes.is_extended(dtype):
        return []
    linked = {dim for dim, _ in correspondence.reads[0]}
    others = (None,) * (len(eqn.inputs) - 1)
    return [
        Factor((dim, *others), None, (size,), is_chunk=True)
        for dim, size in enumerate(eqn.inputs[0].aval.shape)
        if dim not in linked and rule(dim, eqn.params) is not None
    ]


def _rows_sent(
    eqn: Eqn,
    correspondence: Correspondence,
    axis: int,
    dims: Sequence[int | None],
    keeps_few_rows: Callable[[int], bool],
) -> Callable[[int], float | None]:
    """``Factor.rows_sent`` of an axis with a halo."""
    halo, size = correspondence.halo, eqn.outputs[0].aval.shape[axis]
    assert halo is not None

    def rows_sent(count: int) -> float | None:
        chunk = chunk_size(size, count)
        if halo.rows(axis, 0, chunk) is None or (size < count and not keeps_few_rows(axis)):
            return None
        total = 0.0
        for k, dim in enumerate(dims):
            aval = eqn.inputs[k].aval
            if dim is not None and aval.size:
                exchange = plan_exchange(*rows_of(halo, k, axis, chunk, count), aval.shape[dim])
                total += exchange.sent * aval.nbytes / aval.shape[dim]
        return total

    return rows_sent


def choose(
    factors: Sequence[Factor],
    have: Sequence[MeshAxes],
    sizes: Sequence[int] | None,
    counts: Counts,
    moves: bool = False,
) -> list[tuple[Any, ...]]:
    """Split the factors of an op over the mesh axes of its operands, so that few bytes are sent.

    An axis stays where one of the operands has it, if the others can follow: those that split
    another dimension over it exchange, or are gathered if they lack the factor. Terms of a sum have
    to be added up. Of equal choices the first dimension of the result is split, which is mostly the
    one of a batch. If the op cannot be split where operands are, they exchange for the first
    dimension of the result that all of them have.

    Args:
        factors: of the op.
        have: the mesh axes of its operands.
        sizes: bytes of its operands and of its result; None: the first dimension of the result
            wins, whatever is sent.
        counts: of the mesh axes.
        moves: whether operands that disagree may both move to the first dimension of the result.

    Returns:
        The mesh axes of each factor.
    """
    choice = _Choice(factors, have, sizes, counts)
    others = [name for name in counts if not choice.split_over(name, moves)]
    for name in others:
        choice.split_another_over(name)
    return [_in_order(names, f, have) for f, names in safe_zip(factors, choice.split)]


# From the operands that an axis splits, to the factors that their dimension belongs to: none if the
# op cannot be split along it, two if it can exchange rows or read chunks.
_Current = Mapping[int, Sequence[int]]


class _Choice:
    """The mesh axes of each factor of an op so far; Args as in ``choose``."""

    def __init__(
        self,
        factors: Sequence[Factor],
        have: Sequence[MeshAxes],
        sizes: Sequence[int] | None,
        counts: Counts,
    ) -> None:
        self.factors = factors
        self.split: list[list[Any]] = [[] for _ in factors]
        self._have, self._sizes, self._counts = have, sizes, counts
        self._gathered: list[set[Any]] = [set() for _ in have]
        outs = [factor.out for factor in factors if factor.out is not None]
        self._first = min(outs, default=None)

    def split_over(self, name: Any, moves: bool) -> bool:
        """Choose the factor that one more axis splits; False: none of those that operands split."""
        current = self._current(name)
        candidates = {number for numbers in current.values() for number in numbers}
        if moves and len(candidates) > 1:
            firsts = {k for k, f in enumerate(self.factors) if f.out is not None}
            candidates |= {k for k in firsts if self.factors[k].out == self._first}
        fitting: list[int | None] = [k for k in self._sorted(candidates) if self._fits(k, name)]
        if not fitting:
            return False
        if all(k is not None and self.factors[k].is_chunk for k in fitting):
            fitting.append(None)
        if len(fitting) > 1 and self._sizes is not None:
            costs = [self._bytes_sent(k, current, name) for k in fitting]
            fitting = [fitting[costs.index(min(costs))]]
        self._split(fitting[0], current, name)
        return True

    def split_another_over(self, name: Any) -> None:
        """Choose a factor that all operands with an axis may split instead of theirs."""
        current = self._current(name)
        found = {
            k
            for k, factor in enumerate(self.factors)
            if current
            and factor.out is not None
            and factor.rows_sent is None
            and all(factor.operands[user] is not None for user in current)
            and self._fits(k, name)
        }
        self._split(next(iter(self._sorted(found)), None), current, name)

    def _split(self, chosen: int | None, current: _Current, name: Any) -> None:
        if chosen is not None:
            self.split[chosen].append(name)
        for k, numbers in current.items():
            if chosen not in numbers and self._is_gathered(k, chosen):
                self._gathered[k].add(name)

    def _current(self, name: Any) -> _Current:
        """The factors that operands split over an axis."""
        return {
            k: [
                number
                for number, factor in enumerate(self.factors)
                if (dim := factor.operands[k]) is not None and name in mesh_axes[dim]
            ]
            for k, mesh_axes in enumerate(self._have)
            if any(name in names for names in mesh_axes)
        }

    def _sorted(self, numbers: set[int]) -> list[int]:
        factors = self.factors
        return sorted(numbers, key=lambda k: (factors[k].out is None, factors[k].out or 0))

    def _fits(self, k: int, name: Any) -> bool:
        """Whether one more axis may split a factor: evenly, or as an operand is split already."""
        factor, names = self.factors[k], (*self.split[k], name)
        count = prod(self._counts[name] for name in names)
        rows = [n for n, f in enumerate(self.factors) if self.split[n] and f.rows_sent is not None]
        chunks = [n for n, f in enumerate(self.factors) if self.split[n] and f.is_chunk]
        if factor.rows_sent is not None:
            return len(names) == 1 and not chunks and factor.rows_sent(count) is not None
        if factor.is_chunk and (rows or chunks not in ([], [k])):
            return False
        if all(size % count == 0 for size in factor.sizes):
            return True
        is_split = any(
            dim is not None and mesh_axes[dim] == names
            for dim, mesh_axes in safe_zip(factor.operands, self._have)
        )
        return is_split and len(factor.sizes) == 1 and not factor.is_chunk

    def _bytes_sent(self, chosen: int | None, current: _Current, name: Any) -> float:
        """The bytes that a device sends if an axis splits a factor; None: it splits none."""
        assert self._sizes is not None
        count, sent = self._counts[name], 0.0
        factor = None if chosen is None else self.factors[chosen]
        if factor is not None and factor.rows_sent is not None:
            sent += factor.rows_sent(count) or 0.0
        for k, numbers in current.items():
            if chosen in numbers:
                continue
            split = {n for names in self._have[k] for n in names} - self._gathered[k]
            shard = self._sizes[k] / prod(self._counts.get(n, 1) for n in split)
            sent += shard * (count - 1) * (1 if self._is_gathered(k, chosen) else 1 / count)
        if factor is not None and factor.out is None:
            pairs = safe_zip(self.factors, self.split)
            chunks = prod(self._counts[n] for f, ns in pairs if f.out is not None for n in ns)
            # Where another operand is split, each device gets its shard of the sum only.
            is_scattered = factor.is_chunk and len(current) > 1
            sent += self._sizes[-1] / chunks * (1 if is_scattered else 2) * (count - 1) / count
        return sent

    def _is_gathered(self, k: int, chosen: int | None) -> bool:
        """Whether operand ``k`` has no dimension of a factor; None: of none."""
        return chosen is None or self.factors[chosen].operands[k] is None


def _in_order(names: Sequence[Any], factor: Factor, have: Sequence[MeshAxes]) -> tuple[Any, ...]:
    """Axes in the order in which an operand has them, so that it need not move."""
    for dim, mesh_axes in safe_zip(factor.operands, have):
        if dim is not None and {*mesh_axes[dim]} == {*names}:
            return mesh_axes[dim]
    return tuple(names)


def operand_axes(
    eqn: Eqn,
    correspondence: Correspondence,
    split: Mapping[int, tuple[Any, ...]],
    counts: Counts,
) -> list[MeshAxes]:
    """The mesh axes of each operand, from those of the axes of an equation's iteration."""
    result = []
    for atom, links in safe_zip(eqn.inputs, correspondence.reads):
        dims: list[tuple[Any, ...]] = [()] * atom.aval.ndim
        for dim, axis in links:
            names = split.get(axis, ())
            count = prod(counts.get(name, 1) for name in names)
            if correspondence.can_split(atom.aval.shape[dim], axis, count):
                dims[dim] = names
        result.append(tuple(dims))
    return result


def without_axes(mesh_axes: MeshAxes, names: Sequence[Any]) -> MeshAxes:
    """Mesh axes up to the first one of some."""
    return tuple(tuple(takewhile(lambda name: name not in names, axes)) for axes in mesh_axes)
