"""Iteration space of a group of equations: unified dimensions, and the computation.

Each equation iterates over its own dimensions: the output's, or for a reduction the operand's. In a
group the dimensions of a producer and of its consumers are unified (union-find). A value read from
memory has no axes, only an index for each of its dimensions in terms of the equations' axes. Sizes
are never compared, only ranks and structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import cache
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.compiler.passes.updates_in_place import InMemory
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.lowering import (
    Elementwise,
    Indexed,
    Laned,
    Layout,
    Reduction,
    TupleReduction,
    Update,
)
from gpuflow.core.views import View, contiguous
from gpuflow.kir.scalar import COMPUTE_DTYPES, NARROW_DTYPES, PARTS

Key = tuple[int, int]  # (equation, iteration dimension)


class Kind(Enum):
    """The form of a kernel: its capabilities."""

    MAP = "map"
    ROW = "row"
    COLUMN = "column"
    FULL = "full"


@record
class Iteration:
    """How one equation iterates.

    Attributes:
        sizes: of its iteration dimensions.
        out: for each output dimension its iteration dimension.
        reads: for each operand, pairs (operand dimension, iteration dimension).
        reduced: iteration dimensions that the equation reduces.
    """

    sizes: tuple[int, ...]
    out: tuple[int, ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    reduced: tuple[int, ...] = ()


_FUSIBLE = (Elementwise, Reduction, TupleReduction, Layout, Indexed, Update, Laned)


def is_fusible(eqn: Eqn) -> bool:
    """Whether a generated kernel can hold ``eqn``."""
    rule = eqn.primitive.lower
    if not isinstance(rule, _FUSIBLE):
        return False
    atoms = (*eqn.inputs, *eqn.outputs)
    if not eqn.outputs or eqn.effects or not all(_is_supported(a.aval.dtype) for a in atoms):
        return False
    if isinstance(rule, Laned):
        return True
    if has_complex(eqn) and not _takes_pairs(eqn):
        return False
    if isinstance(rule, Elementwise) and rule.holds is not None:
        return rule.holds(*[atom.aval for atom in atoms])
    if isinstance(rule, Layout):
        return rule.links(eqn.inputs[0].aval, eqn.outputs[0].aval, **eqn.params) is not None
    return True


def has_complex(eqn: Eqn) -> bool:
    """Whether an operand or a result of an equation is complex."""
    return any(dtypes.is_complex(atom.aval.dtype) for atom in (*eqn.inputs, *eqn.outputs))


def _takes_pairs(eqn: Eqn) -> bool:
    """Whether an op's rule has a form for complex numbers."""
    rule = eqn.primitive.lower
    if isinstance(rule, Elementwise):
        return rule.pair is not None
    if isinstance(rule, Indexed):
        return rule.moves
    if isinstance(rule, Update):
        return rule.combine(eqn.params) in (None, "add")
    return isinstance(rule, Layout) or (isinstance(rule, Reduction) and rule.by_parts)


def iteration_of(eqn: Eqn) -> Iteration | None:
    """How ``eqn`` iterates, or None if no generated kernel can hold it."""
    if not is_fusible(eqn):
        return None
    out = eqn.outputs[0].aval
    every = tuple(range(out.ndim))
    rule = eqn.primitive.lower
    if isinstance(rule, Elementwise):
        reads = tuple(_elementwise_links(atom.aval, out) for atom in eqn.inputs)
        return Iteration(out.shape, every, reads)
    if isinstance(rule, Reduction | TupleReduction):
        operand = eqn.inputs[0].aval
        axes = tuple(eqn.params["axes"])
        kept = tuple(d for d in range(operand.ndim) if d not in axes)
        identity = tuple((d, d) for d in range(operand.ndim))
        return Iteration(operand.shape, kept, (identity,), axes)
    if isinstance(rule, Layout):
        links = rule.links(eqn.inputs[0].aval, out, **eqn.params)
        assert links is not None  # or it would not be fusible
        return Iteration(out.shape, every, (tuple(links),))
    if isinstance(rule, Update):
        # It goes through the windows, not through the array that it changes.
        windows = eqn.inputs[3].aval
        dims = tuple(range(windows.ndim))
        identity = tuple((d, d) for d in dims)
        reads = ((), *[identity[: eqn.inputs[k].aval.ndim] for k in (1, 2)], identity)
        return Iteration(windows.shape, dims, reads)
    sizes = rule.sizes(eqn.params) if isinstance(rule, Laned) else out.shape
    every = tuple(range(len(sizes)))
    chosen = operands_in_memory(eqn)
    reads = tuple(
        () if k < chosen else tuple((d, d) for d in range(atom.aval.ndim))
        for k, atom in enumerate(eqn.inputs)
    )
    return Iteration(sizes, every, reads)


def operands_in_memory(eqn: Eqn) -> int:
    """How many leading operands an equation needs in memory, whoever computes them."""
    rule = eqn.primitive.lower
    if isinstance(rule, Indexed):
        return len(eqn.inputs) if rule.in_memory is None else rule.in_memory
    if isinstance(rule, Laned):
        return len(rule.program(eqn.params).reads)
    return 1 if isinstance(rule, Update) else 0


def _elementwise_links(operand: ShapedArray, out: ShapedArray) -> tuple[tuple[int, int], ...]:
    if operand.ndim != out.ndim:
        return ()
    pairs = enumerate(zip(operand.shape, out.shape, strict=True))
    return tuple((d, d) for d, (size, full) in pairs if size == full)


@cache
def _is_supported(dtype: Any) -> bool:
    """Whether kernels store it: not dtypes of 2 or 4 bits, and not float8_e8m0fnu."""
    if dtype == dtypes.float0:
        return False
    return storage_dtype(dtype).name in (*COMPUTE_DTYPES, *NARROW_DTYPES, *PARTS)


@record
class Program:
    """A program as the grouping sees it: positions instead of variables."""

    jaxpr: Jaxpr
    iterations: tuple[Iteration | None, ...]
    producer: dict[Var, int]
    readers: dict[Var, list[int]]
    outputs: frozenset[Var]
    views: dict[Var, tuple[Var, View]]  # aliases: variable -> (buffer variable, view)
    updates: Mapping[int, InMemory]  # in place
    unrounded: frozenset[Var] = frozenset()  # what kernels may hold with excess precision

    def escaping(
        self, positions: Sequence[int], unstored: frozenset[int] = frozenset()
    ) -> tuple[Var, ...]:
        """The outputs of a group of equations that are read outside of it.

        Args:
            positions: the group.
            unstored: equations whose outputs whoever reads them computes for itself.
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

    def place(self, var: Var) -> tuple[Var, View]:
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
    unstored: frozenset[int] = frozenset()  # equations whose outputs stay inside, see recompute.py

    def axes_of_output(self, program: Program, position: int) -> list[Key]:
        """For each output dimension of an equation its axis (a unit axis is not in ``order``)."""
        iteration = program.iterations[position]
        assert iteration is not None
        return [self.classes[position, d] for d in iteration.out]


class NotOneKernelError(Exception):
    """No single kernel can compute a group; the message is the reason, as "it ..."."""


def is_stored_inside(eqn: Eqn, var: Var) -> bool:
    """Whether an equation itself stores an output, so that no other reads it in its kernel."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Laned):
        return False
    return rule.program(eqn.params).writes[eqn.outputs.index(var)] is not None


def is_update(program: Program, position: int) -> bool:
    """Whether an equation changes an array in place."""
    return isinstance(program.jaxpr.eqns[position].primitive.lower, Update)
