"""Fusion legality: whether one kernel can compute a region, of which kind, over which axes.

``loop_structure_of`` decides while regions grow; ``space_of_region`` gives the result that lowering
reads.

Tests: tests/compiler/test_regions.py, tests/compiler/test_fusion_note.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuflow.base.records import record
from gpuflow.compiler.fusion.regions import Axes, AxisUnions, MergedRegion, Region, region_of
from gpuflow.compiler.fusion.space import (
    DimKey,
    FusionProgram,
    IterationSpace,
    KernelKind,
    NotOneKernelError,
)
from gpuflow.core.jaxpr import Literal

# Most arrays of a kernel, and of one without axes: that has no strides and extents as arguments, so
# that more arrays fit into the 512 argument slots of CUDA.
MAX_OPERANDS = 96
MAX_SCALAR_OPERANDS = 400


@record
class LoopStructure:
    """The loops and kind of one kernel that computes a region.

    Attributes:
        kind: the kind of the kernel.
        domain: the axes of its loops; empty for a kernel of scalars.
        reduced: the axes that it reduces; all reductions reduce the same ones.
        largest_eqn: the first equation that iterates over all of ``domain``.
        lead_reduction: the first reduction; None without reductions. Its dimensions give the order
            of the loops.
        axis_unions: the region's axes, after axes along which one array is read have been united.
        used_unit_axes: axes of size 1 that memory or an index refers to, so that they get a loop.
    """

    kind: KernelKind
    domain: Axes
    reduced: Axes
    largest_eqn: int
    lead_reduction: int | None
    axis_unions: AxisUnions
    used_unit_axes: frozenset[DimKey]


def loop_structure_of(region: Region | MergedRegion) -> LoopStructure:
    """The loops of one kernel for a region; the region is not changed.

    Raises:
        NotOneKernelError: if no single kernel can compute it; the message is the reason.
    """
    rules = _FusionRules(region)
    loops = rules.loop_structure()
    recomputed = rules.recomputed_eqn(loops)
    if recomputed is not None:
        name = region.program.jaxpr.eqns[recomputed].primitive.name
        raise NotOneKernelError(f"it would compute {name} again for each element of another axis")
    return loops


class _FusionRules:
    """The rules of ``loop_structure_of``, after axes of shared reads have been united."""

    def __init__(self, region: Region | MergedRegion) -> None:
        self.region, self.program, self.outline = region, region.program, region.outline
        self.axis_unions = region.axis_unions
        if self.outline.multi_axis_reads:
            self._unite_axes_of_shared_reads()
        self.used_unit_axes = frozenset(map(self.axis_unions.find, self.outline.used_unit_axes))

    def _unite_axes_of_shared_reads(self) -> None:
        """Unite axes along which one array is read, in program order, if possible."""
        self.axis_unions = self.axis_unions.copy()
        pairs = []
        for first_reads in self.outline.multi_axis_reads.values():
            (_, first), *others = sorted((order, axis) for axis, order in first_reads.items())
            pairs += [(order, first, axis) for order, axis in others]
        for _, first, axis in sorted(pairs):
            self.axis_unions.unite(first, axis)  # if it fails, the array is read along both axes

    def _loop_axes(self, axes: Axes) -> Axes:
        """The representatives of axes, without those of size 1 that are broadcast."""
        representatives = map(self.axis_unions.find, axes)
        return frozenset(
            [
                a
                for a in representatives
                if a in self.used_unit_axes or self.axis_unions.size(a) != 1
            ]
        )

    def loop_structure(self) -> LoopStructure:
        """The loops of the kernel, if no equation is recomputed; ``recomputed_eqn`` checks that."""
        outline = self.outline
        domains: dict[Axes, int] = {}
        for region_axes, position in outline.domains.items():
            axes = self._loop_axes(region_axes)
            domains[axes] = min(position, domains.get(axes, position))
        domain = max(domains, key=lambda axes: (len(axes), -domains[axes]))
        if any(not axes <= domain for axes in domains):
            raise NotOneKernelError("it would loop over axes of several arrays")
        most = MAX_OPERANDS if domain else MAX_SCALAR_OPERANDS
        if outline.num_arrays + sum(outline.stored.values()) > most:
            raise NotOneKernelError(f"it would have more than {most} arrays")
        reduced: dict[Axes, int] = {}
        for region_axes, position in outline.reduced.items():
            axes = self._loop_axes(region_axes)
            if axes:
                reduced[axes] = min(position, reduced.get(axes, position))
        if reduced and outline.has_lane_loops:
            raise NotOneKernelError("it would reduce the result of a loop in each lane")
        if reduced and outline.updates:
            raise NotOneKernelError("it would reduce and update in place")
        if len(reduced) > 1:
            raise NotOneKernelError("it would reduce different axes")
        largest_eqn = domains[domain]
        if not reduced:
            self._check_map(domain)
            no_axes = frozenset[DimKey]()
            return LoopStructure(
                KernelKind.MAP,
                domain,
                no_axes,
                largest_eqn,
                None,
                self.axis_unions,
                self.used_unit_axes,
            )
        ((reduced_axes, lead_reduction),) = reduced.items()
        kind = self._kind_of_reduction(domain, reduced_axes, lead_reduction)
        return LoopStructure(
            kind,
            domain,
            reduced_axes,
            largest_eqn,
            lead_reduction,
            self.axis_unions,
            self.used_unit_axes,
        )

    def _check_map(self, domain: Axes) -> None:
        """Raise if a map cannot store all arrays of the region, or cannot update in place."""
        if any(self._loop_axes(axes) != domain for axes in self.outline.stored):
            raise NotOneKernelError("it would store arrays of different axes")
        for e in self.outline.updates:
            # An update is alone: nothing else is stored, and nothing reads what it overwrites.
            if self.region.stored() != {e} or sum(self.outline.stored.values()) != 1:
                raise NotOneKernelError("it would update in place and store something else")
            eqn = self.program.jaxpr.eqns[e]
            if self.outline.has_lane_loops and eqn.primitive.lower.repeats(eqn.params):
                raise NotOneKernelError("it would run loops of lanes one after the other")
            in_place = self.program.updates.get(e)
            if in_place is not None and any(map(self.region.holds, in_place.earlier_readers)):
                raise NotOneKernelError("it would read what it overwrites")

    def _kind_of_reduction(
        self, domain: Axes, reduced_axes: Axes, lead_reduction: int
    ) -> KernelKind:
        """The kind of a kernel that reduces the axes ``reduced_axes`` of ``domain``."""
        lead_axes = axes_in_order(
            self.region, lead_reduction, self.axis_unions, self.used_unit_axes
        )
        if frozenset(lead_axes) != domain:
            raise NotOneKernelError("it would loop over more axes than the reduction has")
        retained = [key for key in lead_axes if key not in reduced_axes]
        is_minor = lead_axes == [*retained, *(key for key in lead_axes if key in reduced_axes)]
        dependent = self.outline.dependent_domains
        if self.outline.may_reduce_nothing:
            dependent = frozenset(map(self.region.axes_of, self.dependents()))
        consumed = any(self._loop_axes(axes) & reduced_axes for axes in dependent)
        retained_axes = domain - reduced_axes
        if any(
            self._loop_axes(axes) not in (domain, retained_axes) for axes in self.outline.stored
        ):
            raise NotOneKernelError("it would store arrays of different axes")
        if consumed and not is_minor:
            raise NotOneKernelError("only a reduction of the last axes can read its operand twice")
        if reduced_axes == domain:
            if consumed:
                raise NotOneKernelError("a reduction of all elements cannot read them twice")
            return KernelKind.FULL
        return KernelKind.ROW if is_minor else KernelKind.COLUMN

    def members(self) -> list[int]:
        """The equations in program order."""
        region = self.region
        if isinstance(region, Region):
            return sorted(region.members)
        return sorted(region.large.members | region.small.members)

    def dependents(self) -> set[int]:
        """Equations that use the result of a reduction that reduces something."""
        program = self.program
        dependents: set[int] = set()
        from_reduction: set[int] = set()  # reductions and their dependents
        for e in self.members():
            eqn, iteration = program.jaxpr.eqns[e], program.iterations[e]
            assert iteration is not None
            sources = (program.producer.get(a) for a in eqn.inputs if type(a) is not Literal)
            if any(source in from_reduction for source in sources):
                dependents.add(e)
            if e in dependents or self._loop_axes(self.region.axes(e, iteration.reduced)):
                from_reduction.add(e)
        return dependents

    def recomputed_eqn(self, loops: LoopStructure) -> int | None:
        """A costly equation inside a loop in which it does not vary; None if there is none.

        Equations that do not vary in inner loops are hoisted before them. A loop outside the axes
        of an equation would compute it again in each iteration.
        """
        costly = {self._loop_axes(axes) for axes in self.outline.costly}
        costly -= {loops.domain, frozenset()}
        if not costly:
            return None
        depth_of = {key: depth for depth, key in enumerate(loop_order_of(self.region, loops))}
        if all({depth_of.get(key) for key in axes} == {*range(len(axes))} for axes in costly):
            return None
        program = self.program
        axes_with_readers: dict[int, Axes] = {}  # the axes of an equation and of its readers
        for e in reversed(self.members()):
            eqn, axes = program.jaxpr.eqns[e], self._loop_axes(self.region.axes_of(e))
            readers = {r for var in eqn.outputs for r in program.readers.get(var, ())}
            axes_with_readers[e] = axes.union(
                *(axes_with_readers[r] for r in readers if r in axes_with_readers)
            )
            if axes and axes != axes_with_readers[e] and eqn.primitive.lower.costly:
                last = max(depth_of.get(key, 0) for key in axes)
                if any(depth_of.get(key, last) < last for key in axes_with_readers[e] - axes):
                    return e
        return None


def axes_in_order(
    region: Region | MergedRegion,
    position: int,
    axis_unions: AxisUnions,
    used_unit_axes: Iterable[DimKey],
    dims: Sequence[int] | None = None,
) -> list[DimKey]:
    """The axes of an equation's dimensions in order, without broadcast ones of size 1.

    Args:
        region: the region.
        position: a member of it.
        axis_unions, used_unit_axes: see ``LoopStructure``.
        dims: iteration dimensions of the equation; None for all.
    """
    iteration = region.program.iterations[position]
    assert iteration is not None
    dims = range(len(iteration.sizes)) if dims is None else dims
    representatives = [axis_unions.find(region.find((position, d))) for d in dims]
    return [
        axis for axis in representatives if axis in used_unit_axes or axis_unions.size(axis) != 1
    ]


def loop_order_of(region: Region | MergedRegion, loops: LoopStructure) -> list[DimKey]:
    """The axes in the order of the loops, from the outermost."""
    if loops.lead_reduction is not None:
        return axes_in_order(region, loops.lead_reduction, loops.axis_unions, loops.used_unit_axes)
    # Loops follow the first stored array, so that stores are contiguous.
    first = min(region.stored(), default=loops.largest_eqn)
    iteration = region.program.iterations[first]
    assert iteration is not None
    return axes_in_order(region, first, loops.axis_unions, loops.used_unit_axes, iteration.out)


def space_of_region(region: Region, loops: LoopStructure) -> IterationSpace:
    """The iteration space of a region.

    Args:
        region: the region.
        loops: the result of ``loop_structure_of`` for it, or for the union that became it.
    """
    program = region.program
    members = tuple(sorted(region.members))
    unstored = frozenset(region.unstored)
    axis_of_key: dict[DimKey, DimKey] = {}
    for e in members:
        iteration = program.iterations[e]
        assert iteration is not None
        for d in range(len(iteration.sizes)):
            axis_of_key[e, d] = loops.axis_unions.find(region.find((e, d)))
    sizes = {axis: loops.axis_unions.size(axis) for axis in dict.fromkeys(axis_of_key.values())}
    unit_axes = frozenset(
        a for a, size in sizes.items() if size == 1 and a not in loops.used_unit_axes
    )
    domains = {}
    for e in members:
        iteration = program.iterations[e]
        assert iteration is not None
        keys = (axis_of_key[e, d] for d in range(len(iteration.sizes)))
        domains[e] = frozenset(key for key in keys if key not in unit_axes)
    serial_axes = frozenset[DimKey]()
    for e in region.outline.updates:
        eqn = program.jaxpr.eqns[e]
        if eqn.primitive.lower.repeats(eqn.params):
            keys = (axis_of_key[e, d] for d in range(eqn.inputs[1].aval.ndim))
            serial_axes = frozenset(key for key in keys if key not in unit_axes)
    dependent = frozenset[int]()
    if loops.lead_reduction is not None:
        dependents = (
            _FusionRules(region).dependents()
            if region.outline.may_reduce_nothing
            else region.dependent
        )
        dependent = frozenset(dependents)
    return IterationSpace(
        members,
        axis_of_key,
        sizes,
        unit_axes,
        domains,
        kind=loops.kind,
        loop_order=tuple(loop_order_of(region, loops)),
        reduced=loops.reduced,
        dependent=dependent,
        escaping=program.escaping(members, unstored),
        serial_axes=serial_axes,
        unstored=unstored,
    )


def space_of(program: FusionProgram, members: Sequence[int]) -> IterationSpace:
    """The iteration space of a group of equations.

    Args:
        program: the program.
        members: the group, in program order.

    Raises:
        NotOneKernelError: no single kernel can compute it.
    """
    region = region_of(program, members)
    return space_of_region(region, loop_structure_of(region))
