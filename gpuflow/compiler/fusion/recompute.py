"""Rematerialization: recompute values that are cheaper to compute than to store and load.

The gradient of an activation reads half a dozen arrays that the forward pass would have to store.
All of them follow from two arrays by a few additions and products. So after fusion, each value that
leaves its group is examined. If the kernels of all readers can compute it from stored values by a
few cheap operations, they do so, and the value is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base.records import record
from gpuflow.compiler.fusion.kinds import Form, form_of
from gpuflow.compiler.fusion.regions import MergedRegion, Region, region_of
from gpuflow.compiler.fusion.space import NotOneKernelError, Program
from gpuflow.core.jaxpr import Literal, Var

Kernel = tuple[Region, Form]

MOST_OPERATIONS = 4  # total price of the equations that recompute a value


def compute_again(program: Program, kernels: Sequence[Kernel | None]) -> list[Kernel | None]:
    """Let readers recompute cheap values, which are then no longer stored.

    Args:
        program: the program.
        kernels: its groups in order; None for a group that is a call. Their regions are changed.

    Returns:
        The same groups. A group that stores nothing is no longer needed.
    """
    rematerializer = _Rematerializer(program, list(kernels))
    for group, kernel in enumerate(kernels):
        if kernel is not None and not kernel[0].outline.updates:
            rematerializer.visit(group)
    return rematerializer.kernels


@record(frozen=False)
class _Rematerializer:
    """The groups so far.

    Attributes:
        program: the program.
        kernels: the kernel of each group; None for a call.
        group_of: the original group of each equation.
        changing: buffers that equations update in place.
    """

    program: Program
    kernels: list[Kernel | None]

    def __post_init__(self) -> None:
        self.group_of = {
            e: group
            for group, kernel in enumerate(self.kernels)
            for e in (kernel[0].members if kernel is not None else ())
        }
        # A reader that recomputes from such a buffer could see it after the update.
        self.changing = {self.program.storage(var)[0] for var in self.program.updated()}

    def visit(self, group: int) -> None:
        """Let the readers of a group's values recompute them, if that is cheap."""
        region, _ = self._kernel(group)
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

    def _kernel(self, group: int) -> Kernel:
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
        """The other groups that read a value."""
        groups = {self.group_of[reader] for reader in self.program.readers.get(var, ())}
        return sorted(groups - {group})

    def _try_recompute(self, var: Var, group: int, in_memory: set[Var]) -> bool:
        """Let all readers recompute ``var``; return whether they can and do."""
        chain = self._chain(var, in_memory)
        if chain is None or self._reads_what_changes(chain):
            return False
        merges: list[tuple[int, MergedRegion, Form]] = []
        try:
            for reader in self._readers(var, group):
                region, form = self._kernel(reader)
                if self._new_arrays(chain, var, region) > 1:
                    return False
                # The region may have some of them from an earlier recomputation.
                copied = [e for e in chain if e not in region.members]
                if not copied:
                    continue
                merged = MergedRegion(self.program, region, region_of(self.program, copied, copied))
                new_form = form_of(merged)
                if new_form.kind is not form.kind:
                    return False
                merges.append((reader, merged, new_form))
            region, form = self._kernel(group)
            region = region.without(var)
            new_form = form_of(region)
        except NotOneKernelError:
            return False
        if new_form.kind is not form.kind:
            return False
        self.kernels[group] = region, new_form
        for reader, merged, new_form in merges:
            self.kernels[reader] = merged.commit(), new_form
        return True

    def _chain(self, var: Var, in_memory: set[Var]) -> list[int] | None:
        """The equations that compute ``var`` from stored values; None if they are too costly."""
        chain: set[int] = set()
        cost = 0
        stack = [var]
        while stack:
            source = stack.pop()
            if source in in_memory or source in self.program.views:
                continue
            position = self.program.producer.get(source)
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
            if cost > MOST_OPERATIONS:
                return None
            stack += [atom for atom in eqn.inputs if type(atom) is not Literal]
        return sorted(chain)

    def _reads_what_changes(self, chain: Sequence[int]) -> bool:
        storage = self.program.storage
        return any(storage(atom)[0] in self.changing for atom in self._arrays_read(chain))

    def _new_arrays(self, chain: Sequence[int], var: Var, reader: Region) -> int:
        """The count of arrays of ``var``'s rank or more that a reader would read in addition."""
        storage = self.program.storage
        read = {storage(atom)[0] for atom in reader.reads}
        needed = {storage(atom)[0] for atom in self._arrays_read(chain)}
        return sum(buffer.aval.ndim >= var.aval.ndim for buffer in needed - read)

    def _arrays_read(self, members: Sequence[int]) -> set[Var]:
        """External operands of equations."""
        own = set(members)
        return {
            atom
            for e in members
            for atom in self.program.jaxpr.eqns[e].inputs
            if type(atom) is not Literal and self.program.producer.get(atom) not in own
        }
