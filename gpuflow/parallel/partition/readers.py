"""The readers of the values of a program, and the splits that they want.

Tests: tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.correspondence import corresponding
from gpuflow.compiler.splits import operand_axes
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.sharding import NamedSharding
from gpuflow.parallel.partition.resharding import MeshAxes, dim_axes_in, is_even
from gpuflow.runtime.memories import Memories


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
        """Whether all readers of a value exchange its rows along a dimension."""
        positions = self._positions.get(var, [len(self._program.eqns)])
        if positions[-1] == len(self._program.eqns):
            return False
        return all(
            _exchanges_rows(self._program.eqns[k], var, dim) for k in dict.fromkeys(positions)
        )


def _exchanges_rows(eqn: Eqn, var: Var, dim: int) -> bool:
    correspondence = corresponding(eqn)
    slides = () if correspondence is None else correspondence.slides
    numbers = [k for k, atom in enumerate(eqn.inputs) if atom is var]
    return all(any(dims[k] == dim for _, dims in slides) for k in numbers)


def wanted_axes(
    program: Jaxpr, out_axes: Sequence[MeshAxes], memories: Memories
) -> dict[Var, MeshAxes]:
    """The mesh axes with which values are read, from outputs and constraints backwards.

    A value that several equations read has those of the last one.
    """
    wanted: dict[Var, MeshAxes] = {}

    def want(atom: Any, dim_axes: MeshAxes) -> None:
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
            eqn.inputs, operand_axes(eqn, correspondence, split, memories.counts)
        ):
            want(atom, dim_axes)
    return wanted
