"""Rematerialization: recompute values that are cheaper to compute than to store and load.

The gradient of an activation reads half a dozen arrays that the forward pass would have to store.
All of them follow from two arrays by a few additions and products. So after fusion, each value that
leaves its group is examined. If the kernels of all readers can compute it from stored values by a
few cheap operations, they do so, and the value is not stored.

Tests: tests/compiler/test_recompute.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.fusion.legality import LoopStructure, loop_structure_of
from gpuflow.compiler.fusion.regions import MergedRegion, Region, region_of
from gpuflow.compiler.fusion.space import FusionProgram, NotOneKernelError
from gpuflow.core.jaxpr import Literal, Var

# Most total price of the equations that recompute a value; an op's price is ``lower.price``.
MAX_RECOMPUTE_PRICE = 4


class FusedKernel(NamedTuple):
    """A group that one kernel computes, with the loops that ``loop_structure_of`` found for it."""

    region: Region
    loops: LoopStructure


def rematerialize(
    program: FusionProgram, kernels: Sequence[FusedKernel | None]
) -> list[FusedKernel | None]:
    """Let readers recompute cheap values, which are then no longer stored.

    Args:
        program: the program.
        kernels: its groups in execution order; None for a group that is a call. Their regions are
            changed, and must not be used afterwards.

    Returns:
        The same groups, with the same kinds. A group that stores nothing is no longer needed: its
        ``region.escaping`` is empty.
    """
    rematerializer = _Rematerializer(program, list(kernels))
    for group, kernel in enumerate(kernels):
        if kernel is not None and not kernel.region.outline.updates:
            rematerializer.visit(group)
    return rematerializer.kernels


@record(frozen=False)
class _Rematerializer:
    """The groups so far.

    Groups are visited in execution order. A reader that recomputes a value also reads the operands
    of its chain, which ``program.readers`` does not list for it. Each of these operands stays
    stored, because it belongs to the visited group or to one that was visited before.

    Attributes:
        program: the program.
        kernels: the kernel of each group; None for a call.
        group_of: the original group of each equation.
        updated_buffers: variables that own buffers which equations update in place.
    """

    program: FusionProgram
    kernels: list[FusedKernel | None]

    def __post_init__(self) -> None:
        self.group_of = {
            e: group
            for group, kernel in enumerate(self.kernels)
            for e in (kernel.region.members if kernel is not None else ())
        }
        # A reader that recomputes from such a buffer could see it after the update.
        self.updated_buffers = {self.program.storage(var)[0] for var in self.program.updated()}

    def visit(self, group: int) -> None:
        """Let the readers of a group's values recompute them, if that is cheap."""
        region = self._kernel(group).region
        in_memory = set(region.reads)
        candidates = []
        for var in self.program.escaping(sorted(region.members), region.unstored):
            if self._must_be_stored(var, group):
                in_memory.add(var)
            else:
                candidates.append(var)
        for var in candidates:
            if not self._try_recompute(var, group, in_memory):
                in_memory.add(var)

    def _kernel(self, group: int) -> FusedKernel:
        kernel = self.kernels[group]
        assert kernel is not None
        return kernel

    def _must_be_stored(self, var: Var, group: int) -> bool:
        """Whether a value is needed in memory: by a caller, a library, or a kernel that gathers."""
        if var in self.program.outputs:
            return True
        for reader in self.program.readers.get(var, ()):
            if reader not in self.group_of:
                return True
            eqn = self.program.jaxpr.eqns[reader]
            if var in eqn.inputs[: eqn.primitive.lower.operands_in_memory(eqn)]:
                return True
        return not self._readers(var, group)

    def _readers(self, var: Var, group: int) -> list[int]:
        """The other groups that read a value of ``group``; all of them come after it."""
        groups = {self.group_of[reader] for reader in self.program.readers.get(var, ())} - {group}
        assert all(reader > group for reader in groups), "groups are in execution order"
        return sorted(groups)

    def _try_recompute(self, var: Var, group: int, in_memory: set[Var]) -> bool:
        """Let all readers recompute ``var``; return whether they can and do.

        Regions change only after all merges have been found to be possible.
        """
        chain = self._recompute_chain(var, in_memory)
        if chain is None or self._reads_updated_buffer(chain):
            return False
        merges: list[tuple[int, MergedRegion, LoopStructure]] = []
        try:
            for reader in self._readers(var, group):
                region, loops = self._kernel(reader)
                if self._count_new_arrays(chain, var, region) > 1:
                    return False
                # The region may have some of them from an earlier recomputation.
                copied = [e for e in chain if e not in region.members]
                if not copied:
                    continue
                merged = MergedRegion(self.program, region, region_of(self.program, copied, copied))
                new_loops = loop_structure_of(merged)
                if new_loops.kind is not loops.kind:
                    return False
                merges.append((reader, merged, new_loops))
            region, loops = self._kernel(group)
            region = region.without(var)
            new_loops = loop_structure_of(region)
        except NotOneKernelError:
            return False
        if new_loops.kind is not loops.kind:
            return False
        self.kernels[group] = FusedKernel(region, new_loops)
        for reader, merged, new_loops in merges:
            self.kernels[reader] = FusedKernel(merged.commit(), new_loops)
        return True

    def _recompute_chain(self, var: Var, in_memory: set[Var]) -> list[int] | None:
        """The equations that compute ``var`` from stored values, in program order.

        None if their price is above MAX_RECOMPUTE_PRICE, or one of them must not be recomputed.
        """
        chain: set[int] = set()
        cost = 0
        pending = [var]
        while pending:
            value = pending.pop()
            if value in in_memory or value in self.program.views:
                continue
            position = self.program.producer.get(value)
            if position is None:
                return None  # an input that the group did not read itself
            if position in chain:
                continue
            eqn = self.program.jaxpr.eqns[position]
            price = eqn.primitive.lower.price
            if price is None or len(eqn.outputs) != 1 or self.program.iterations[position] is None:
                return None
            chain.add(position)
            cost += price
            if cost > MAX_RECOMPUTE_PRICE:
                return None
            pending += [atom for atom in eqn.inputs if type(atom) is not Literal]
        return sorted(chain)

    def _reads_updated_buffer(self, chain: Sequence[int]) -> bool:
        storage = self.program.storage
        return any(
            storage(atom)[0] in self.updated_buffers for atom in self._external_operands(chain)
        )

    def _count_new_arrays(self, chain: Sequence[int], value: Var, reader: Region) -> int:
        """The count of arrays of ``value``'s rank or more that a reader would read in addition."""
        storage = self.program.storage
        read_buffers = {storage(atom)[0] for atom in reader.reads}
        needed_buffers = {storage(atom)[0] for atom in self._external_operands(chain)}
        return sum(buffer.aval.ndim >= value.aval.ndim for buffer in needed_buffers - read_buffers)

    def _external_operands(self, members: Sequence[int]) -> set[Var]:
        """External operands of equations."""
        own = set(members)
        return {
            atom
            for e in members
            for atom in self.program.jaxpr.eqns[e].inputs
            if type(atom) is not Literal and self.program.producer.get(atom) not in own
        }
