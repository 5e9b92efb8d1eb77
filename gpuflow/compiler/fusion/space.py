"""Iteration space of a group of equations: its unified dimensions.

Each equation iterates over its own dimensions: the output's, or for a reduction the operand's. In a
group the dimensions of a producer and of its consumers are unified (union-find). A value read from
memory has no axes, only an index for each of its dimensions in terms of the equations' axes. Sizes
are never compared, only ranks and structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.compiler.passes.updates_in_place import InMemory
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.lowering import Iteration
from gpuflow.core.views import View, contiguous
from gpuflow.kir.scalar import COMPONENT_DTYPES, COMPUTE_DTYPES, NARROW_DTYPES

Key = tuple[int, int]  # (equation, iteration dimension)


class Kind(Enum):
    """The form of a kernel: its capabilities."""

    MAP = "map"
    ROW = "row"
    COLUMN = "column"
    FULL = "full"


def is_fusible(eqn: Eqn) -> bool:
    """Whether a generated kernel can hold ``eqn``."""
    if not eqn.outputs or eqn.effects:
        return False
    atoms = (*eqn.inputs, *eqn.outputs)
    return all(_is_supported(a.aval.dtype) for a in atoms) and eqn.primitive.lower.is_fusible(eqn)


def iteration_of(eqn: Eqn) -> Iteration | None:
    """The iteration of ``eqn``, or None if no generated kernel can hold it."""
    return eqn.primitive.lower.iteration(eqn) if is_fusible(eqn) else None


@cache
def _is_supported(dtype: Any) -> bool:
    """Whether kernels store it: not dtypes of 2 or 4 bits, and not float8_e8m0fnu."""
    if dtype == dtypes.float0:
        return False
    return storage_dtype(dtype).name in (*COMPUTE_DTYPES, *NARROW_DTYPES, *COMPONENT_DTYPES)


@record
class Program:
    """A program described for fusion, by positions of equations."""

    jaxpr: Jaxpr
    iterations: tuple[Iteration | None, ...]
    producer: dict[Var, int]
    readers: dict[Var, list[int]]
    outputs: frozenset[Var]
    views: dict[Var, tuple[Var, View]]  # aliases: variable -> (buffer variable, view)
    updates: Mapping[int, InMemory]  # in place
    unrounded: frozenset[Var] = frozenset()  # values that kernels may hold with excess precision

    def escaping(
        self, positions: Sequence[int], unstored: frozenset[int] = frozenset()
    ) -> tuple[Var, ...]:
        """The outputs of a group of equations that are read outside of it.

        Args:
            positions: the group.
            unstored: equations whose outputs are recomputed by their readers.
        """
        members = frozenset(positions)
        return tuple(
            var
            for e in positions
            if e not in unstored
            for var in self.jaxpr.eqns[e].outputs
            if var in self.outputs or any(r not in members for r in self.readers.get(var, ()))
        )

    def updated(self) -> list[Var]:
        """The variables that share memory with the operand that they update."""
        eqns = self.jaxpr.eqns
        return [eqns[e].outputs[out] for e, done in self.updates.items() for _, out in done.pairs]

    def storage(self, var: Var) -> tuple[Var, View]:
        """The buffer of ``var``, and its layout."""
        return self.views.get(var) or (var, contiguous(var.aval.shape))


@record(frozen=False)
class Space:
    """The unified axes of a group."""

    members: tuple[int, ...]
    classes: dict[Key, Key]
    sizes: dict[Key, int]
    units: frozenset[Key]
    domains: dict[int, frozenset[Key]]
    kind: Kind = Kind.MAP
    order: tuple[Key, ...] = ()
    reduced: frozenset[Key] = frozenset()
    dependent: frozenset[int] = frozenset()  # equations that use a reduction of the group
    escaping: tuple[Var, ...] = field(default=())
    serial: frozenset[Key] = frozenset()  # axes that are visited in order
    unstored: frozenset[int] = frozenset()  # equations whose outputs are internal, see recompute.py

    def axes_of_output(self, program: Program, position: int) -> list[Key]:
        """For each output dimension of an equation its axis (a unit axis is not in ``order``)."""
        iteration = program.iterations[position]
        assert iteration is not None
        return [self.classes[position, d] for d in iteration.out]


class NotOneKernelError(Exception):
    """No single kernel can compute a group; the message is the reason, as "it ..."."""
