"""Choices of the partitioner: how products are split, and how values are wanted by readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from math import prod
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import Correspondence, corresponding
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.sharding import NamedSharding
from gpuflow.parallel.partition.resharding import DimAxes, dim_axes_in, is_even
from gpuflow.runtime.memories import Memories


@record
class Factor:
    """Dimensions of operands and results that are split alike.

    Attributes:
        operands: the dimension of each operand; None if it has none, or repeats one element.
        out: the dimension of the result; None: the op reduces along it.
        counts: the sizes that a split must divide.
        sent: of dimensions along which memories exchange rows: ``number of chunks -> bytes that a
            memory sends``, None if this is not possible. They need not divide, and one mesh axis
            splits them. Default: nothing is sent.
    """

    operands: tuple[int | None, ...]
    out: int | None
    counts: tuple[int, ...]
    sent: Callable[[int], float | None] | None = None


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


def factors_of(eqn: Eqn, correspondence: Correspondence) -> list[Factor]:
    """The factors of an op whose dimensions correspond."""
    sizes, out = correspondence.sizes, correspondence.outs[0]
    factors = []
    for axis, size in enumerate(sizes):
        dims: list[int | None] = []
        counts = {size}
        for atom, links in safe_zip(eqn.inputs, correspondence.reads):
            dim = next((d for d, a in links if a == axis and atom.aval.shape[d] > 1), None)
            dims.append(dim)
            if dim is not None:
                counts.add(atom.aval.shape[dim])
        position = out.index(axis) if axis in out else None
        factors.append(Factor(tuple(dims), position, tuple(counts)))
    return factors


def choose(
    factors: Sequence[Factor],
    have: Sequence[DimAxes],
    sizes: Sequence[int],
    memories: Memories,
    moves: bool = False,
) -> list[tuple[Any, ...]]:
    """Split the factors of an op over the mesh axes of its operands, so that few bytes are sent.

    An axis stays where one of the operands has it, if the others can follow: those that split
    another dimension over it exchange, or are gathered if they lack the factor. Terms of a sum have
    to be added up. Of equal choices the first dimension of the result is split, which is mostly the
    one of a batch. If the op cannot be split where operands are, they exchange too, for the first
    dimension of the result that all of them have.

    Args:
        factors: of the op.
        have: the mesh axes of its operands.
        sizes: bytes of its operands and of its result.
        memories: over which they are split.
        moves: whether operands that disagree may both move to the first dimension of the result.

    Returns:
        The mesh axes of each factor.
    """
    split: list[list[Any]] = [[] for _ in factors]
    first = min((f.out for f in factors if f.out is not None), default=None)
    for name in memories.names:
        current = [_factor_of(factors, k, dim_axes, name) for k, dim_axes in enumerate(have)]
        candidates = {number for number in current if number is not None}
        if moves and len(candidates) > 1:
            candidates |= {k for k, f in enumerate(factors) if f.out is not None and f.out == first}
        fitting = [
            k
            for k in sorted(candidates, key=lambda k: _order(factors[k]))
            if _fits(factors[k], (*split[k], name), have, memories)
        ]
        if not fitting:
            fitting = _another(factors, split, name, have, memories)
        if len(fitting) > 1:
            costs = [
                _sent(factors, k, current, have, split, sizes, name, memories) for k in fitting
            ]
            fitting = [fitting[costs.index(min(costs))]]
        if fitting:
            split[fitting[0]].append(name)
    return [_in_order(names, f, have) for f, names in safe_zip(factors, split)]


def _factor_of(factors: Sequence[Factor], k: int, dim_axes: DimAxes, name: Any) -> int | None:
    """The factor that operand ``k`` splits over an axis."""
    for number, factor in enumerate(factors):
        dim = factor.operands[k]
        if dim is not None and name in dim_axes[dim]:
            return number
    return None


def _order(factor: Factor) -> tuple[bool, int]:
    return factor.out is None, factor.out or 0


def _fits(
    factor: Factor, names: Sequence[Any], have: Sequence[DimAxes], memories: Memories
) -> bool:
    """Whether mesh axes may split a factor: evenly, or as an operand is split already."""
    count = prod(memories.between[name] for name in names)
    if factor.sent is not None:
        return len(names) == 1 and factor.sent(count) is not None
    if all(size % count == 0 for size in factor.counts):
        return True
    is_split = any(
        dim is not None and dim_axes[dim] == tuple(names)
        for dim, dim_axes in safe_zip(factor.operands, have)
    )
    return is_split and len(factor.counts) == 1


def _another(
    factors: Sequence[Factor],
    split: Sequence[Sequence[Any]],
    name: Any,
    have: Sequence[DimAxes],
    memories: Memories,
) -> list[int]:
    """A factor that the operands with a mesh axis may split instead; at most one."""
    users = [k for k, dim_axes in enumerate(have) if any(name in names for names in dim_axes)]
    fitting = [
        k
        for k, factor in enumerate(factors)
        if users
        and factor.out is not None
        and factor.sent is None
        and all(factor.operands[user] is not None for user in users)
        and _fits(factor, (*split[k], name), have, memories)
    ]
    return sorted(fitting, key=lambda k: _order(factors[k]))[:1]


def _sent(
    factors: Sequence[Factor],
    chosen: int,
    current: Sequence[int | None],
    have: Sequence[DimAxes],
    split: Sequence[Sequence[Any]],
    sizes: Sequence[int],
    name: Any,
    memories: Memories,
) -> float:
    """The bytes that a memory sends if an axis splits a factor."""
    count, factor = memories.between[name], factors[chosen]
    sent = 0.0 if factor.sent is None else factor.sent(count) or 0.0
    for k, number in enumerate(current):
        if number in (None, chosen):
            continue
        shard = sizes[k] / prod(memories.between[n] for names in have[k] for n in names)
        sent += shard * (count - 1) * (1 if factor.operands[k] is None else 1 / count)
    if factor.out is None:
        pairs = safe_zip(factors, split)
        shards = prod(memories.between[n] for f, ns in pairs if f.out is not None for n in ns)
        sent += sizes[-1] / shards * 2 * (count - 1) / count
    return sent


def _in_order(names: Sequence[Any], factor: Factor, have: Sequence[DimAxes]) -> tuple[Any, ...]:
    """Axes in the order in which an operand has them, so that it need not move."""
    for dim, dim_axes in safe_zip(factor.operands, have):
        if dim is not None and {*dim_axes[dim]} == {*names}:
            return dim_axes[dim]
    return tuple(names)


def operand_axes(
    eqn: Eqn,
    correspondence: Correspondence,
    split: Mapping[int, tuple[Any, ...]],
    memories: Memories,
) -> list[DimAxes]:
    """The mesh axes of each operand, from those of the axes of an equation's iteration."""
    result = []
    for atom, links in safe_zip(eqn.inputs, correspondence.reads):
        dims: list[tuple[Any, ...]] = [()] * atom.aval.ndim
        for dim, axis in links:
            names = split.get(axis, ())
            count = prod(memories.between[name] for name in names)
            if correspondence.can_split(atom.aval.shape[dim], axis, count):
                dims[dim] = names
        result.append(tuple(dims))
    return result


def without_axes(dim_axes: DimAxes, names: Sequence[Any]) -> DimAxes:
    """Mesh axes up to the first one of some."""
    return tuple(tuple(takewhile(lambda name: name not in names, axes)) for axes in dim_axes)


# --- readers -------------------------------------------------------------------------------


class Readers:
    """The equations that read each value of a program.

    Args:
        program: of whole arrays.
    """

    def __init__(self, program: Jaxpr) -> None:
        self._program = program
        self._positions: dict[Var, list[int]] = {}
        for position, eqn in enumerate(program.eqns):
            for atom in eqn.inputs:
                if type(atom) is Var:
                    self._positions.setdefault(atom, []).append(position)
        for atom in program.outvars:
            if type(atom) is Var:
                self._positions.setdefault(atom, []).append(len(program.eqns))

    def count(self, var: Any) -> int:
        """How often a value is read; outputs are read once more."""
        return len(self._positions.get(var, ()))

    def first(self, var: Any) -> int:
        """The position of the first equation that reads a value."""
        return self._positions.get(var, [len(self._program.eqns)])[0]

    def exchange_rows(self, var: Any, dim: int) -> bool:
        """Whether all readers of a value need a range of its rows along a dimension."""
        positions = self._positions.get(var, [len(self._program.eqns)])
        if positions[-1] == len(self._program.eqns):
            return False
        for eqn in {id(e): e for e in map(self._program.eqns.__getitem__, positions)}.values():
            correspondence = corresponding(eqn)
            slides = () if correspondence is None else correspondence.slides
            numbers = [k for k, atom in enumerate(eqn.inputs) if atom is var]
            if not all(any(dims[k] == dim for _, dims in slides) for k in numbers):
                return False
        return True


def wanted_axes(
    program: Jaxpr, out_axes: Sequence[DimAxes], memories: Memories
) -> dict[Var, DimAxes]:
    """The mesh axes with which values are read, from outputs and constraints backwards.

    A value that several equations read has those of the last one.
    """
    wanted: dict[Var, DimAxes] = {}

    def want(atom: Any, dim_axes: DimAxes) -> None:
        if type(atom) is not Var:
            return
        even = tuple(
            names if is_even(size, names, memories) else ()
            for size, names in safe_zip(atom.aval.shape, dim_axes)
        )
        if any(even):
            wanted.setdefault(atom, even)

    for atom, dim_axes in safe_zip(program.outvars, out_axes):
        want(atom, dim_axes)
    for eqn in reversed(program.eqns):
        if eqn.primitive.placement.sharding is not None:
            sharding = eqn.primitive.placement.sharding(eqn.params)
            if isinstance(sharding, NamedSharding) and sharding.mesh == memories.mesh:
                want(eqn.inputs[0], dim_axes_in(sharding, eqn.inputs[0].aval.ndim, memories))
            continue
        goals = [(k, wanted[var]) for k, var in enumerate(eqn.outputs) if var in wanted]
        correspondence = corresponding(eqn) if goals else None
        if correspondence is None:
            continue
        split: dict[int, tuple[Any, ...]] = {}
        for k, dim_axes in goals:
            for axis, names in safe_zip(correspondence.outs[k], dim_axes):
                if axis is not None and names:
                    split.setdefault(axis, names)
        for atom, dim_axes in safe_zip(
            eqn.inputs, operand_axes(eqn, correspondence, split, memories)
        ):
            want(atom, dim_axes)
    return wanted
