"""Iteration space of a group of equations: the axes that their dimensions share.

Each equation iterates over the dimensions of its output, or for a reduction over those of its
operand. Within a group, dimensions of a producer and its consumers are unified (union-find): they
are one axis. A value that is read from memory has no axes, only an index for each of its dimensions
in terms of the readers' axes. Decisions depend on ranks and structure, never on the values of sizes
other than 1: a group serves all sizes of a program key.

Tests: tests/compiler/test_regions.py, tests/compiler/test_fuse.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, NamedTuple

from gpuflow.base import dtypes
from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.compiler.passes.updates_in_place import InPlaceUpdates
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.lowering import Iteration
from gpuflow.core.views import View, contiguous
from gpuflow.kir.scalar import COMPONENT_DTYPES, COMPUTE_DTYPES, NARROW_DTYPES

DimKey = tuple[int, int]  # (position of an equation, iteration dimension)


class BufferView(NamedTuple):
    """Where a value is in memory.

    Attributes:
        buffer: the variable that owns the buffer.
        layout: the value's strides and offset in the buffer, in elements.
    """

    buffer: Var
    layout: View


class KernelKind(Enum):
    """The kind of a kernel, by the axes that it reduces. The values are in the text of kernels."""

    MAP = "map"  # reduces nothing
    ROW = "row"  # reduces the innermost axes; may read a row several times
    COLUMN = "column"  # reduces axes that are not the innermost ones, in one pass
    FULL = "full"  # reduces all axes to scalars, in one pass


def is_fusible(eqn: Eqn) -> bool:
    """Whether a generated kernel can hold ``eqn``."""
    if not eqn.outputs or eqn.effects:
        return False
    atoms = (*eqn.inputs, *eqn.outputs)
    return all(_is_supported(a.aval.dtype) for a in atoms) and eqn.primitive.lower.is_fusible(eqn)


def iteration_of(eqn: Eqn) -> Iteration | None:
    """The iteration dimensions of ``eqn``, or None if no generated kernel can hold it."""
    return eqn.primitive.lower.iteration(eqn) if is_fusible(eqn) else None


@cache
def _is_supported(dtype: Any) -> bool:
    """Whether kernels load and store a dtype: no float0, 2 or 4 bits, nor float8_e8m0fnu."""
    if dtype == dtypes.float0:
        return False
    return storage_dtype(dtype).name in (*COMPUTE_DTYPES, *NARROW_DTYPES, *COMPONENT_DTYPES)


@record
class FusionProgram:
    """A program with the analyses that fusion needs; equations are named by their positions.

    Attributes:
        jaxpr: the program after all passes.
        iterations: for each equation its iteration dimensions; None if it is an alias, or no
            generated kernel can hold it.
        producer: for each variable the equation that computes it; inputs have none.
        readers: for each variable the equations that read it, once for each operand, in program
            order.
        outputs: variables that are outputs of the program.
        views: the variables that are aliases of memory that another variable owns.
        updates: the equations that update operands in place.
        unrounded: values that kernels may hold with more precision than their dtype has.
    """

    jaxpr: Jaxpr
    iterations: tuple[Iteration | None, ...]
    producer: dict[Var, int]
    readers: dict[Var, list[int]]
    outputs: frozenset[Var]
    views: dict[Var, BufferView]
    updates: Mapping[int, InPlaceUpdates]
    unrounded: frozenset[Var] = frozenset()

    def escaping(
        self, positions: Sequence[int], unstored: frozenset[int] = frozenset()
    ) -> tuple[Var, ...]:
        """The outputs of a group that other equations read, or that the program returns.

        Args:
            positions: the equations of the group, in any order, which is that of the result.
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

    def storage(self, var: Var) -> BufferView:
        """The buffer of ``var``, which may be itself, and its layout there."""
        return self.views.get(var) or whole_buffer(var)


@record(frozen=False)
class IterationSpace:
    """The iteration space of a group: its axes, and the kind of its kernel.

    An axis is named by the representative of its keys: a DimKey that ``axis_of_key`` maps to
    itself. Lowering reads the space, and never changes it.

    Attributes:
        members: the equations, in program order.
        axis_of_key: the axis of each key (equation, iteration dimension).
        sizes: the size of each axis.
        unit_axes: axes of size 1 that need no loop.
        domains: for each equation the axes that it iterates over, without ``unit_axes``.
        kind: the kind of the kernel.
        loop_order: the axes of the loops, from the outermost.
        reduced: the axes that are reduced.
        dependent: equations that use the result of a reduction of the group.
        escaping: variables that are stored, because they are read outside the group.
        serial_axes: axes whose points must be visited in order, by one thread.
        unstored: equations whose readers recompute their outputs, see ``recompute.py``.
    """

    members: tuple[int, ...]
    axis_of_key: dict[DimKey, DimKey]
    sizes: dict[DimKey, int]
    unit_axes: frozenset[DimKey]
    domains: dict[int, frozenset[DimKey]]
    kind: KernelKind = KernelKind.MAP
    loop_order: tuple[DimKey, ...] = ()
    reduced: frozenset[DimKey] = frozenset()
    dependent: frozenset[int] = frozenset()
    escaping: tuple[Var, ...] = field(default=())
    serial_axes: frozenset[DimKey] = frozenset()
    unstored: frozenset[int] = frozenset()

    def axes_of_output(self, program: FusionProgram, position: int) -> list[DimKey]:
        """The axis of each output dimension of a member; unit axes are not in ``loop_order``."""
        iteration = program.iterations[position]
        assert iteration is not None
        return [self.axis_of_key[position, d] for d in iteration.out]


def whole_buffer(var: Var) -> BufferView:
    """A variable that owns its buffer, in row-major order."""
    return BufferView(var, contiguous(var.aval.shape))


class NotOneKernelError(Exception):
    """No single kernel can compute a group; the message is the reason, as "it ..."."""
