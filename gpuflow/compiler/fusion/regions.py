"""Regions: groups of equations while they grow, with the data that fusion decides by.

``fuse.py`` grows groups by tentative unions: ``MergedRegion(a, b)`` raises or summarizes the union,
``legality.loop_structure_of`` decides whether one kernel can compute it, and ``commit`` merges.
After that only the result may be used. An outline must equal the one that is rebuilt from the
members of its region.

Merging two regions costs as much as the smaller one: only its equations are visited, for reads that
cross between the regions. All other data is in outlines, which name axes instead of equations, and
so stay short however large a region gets. Merging n equations into one region takes O(n log n).

An axis is an equivalence class of keys (equation, iteration dimension), named by its smallest key.
Producers and their readers share axes. Equations that read the same array from memory should share
them too, unless an equation would then have one axis twice. Each outline decides this again, for
the few arrays that are read along several axes.

Tests: tests/compiler/test_regions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import field, replace

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import (
    DimKey,
    FusionProgram,
    Iteration,
    NotOneKernelError,
)
from gpuflow.core.jaxpr import Literal, Var

# Most equations in the loops of a kernel. With more, chains compile no sooner and run no faster.
# With fewer, functions such as expi are two kernels. The table is in docs/design/0024-fusion.md.
# MAX_MEMBERS also counts equations that compute scalars.
MAX_MEMBERS_IN_LOOPS = 256
MAX_MEMBERS = 400

Axes = frozenset[DimKey]
ReadPosition = tuple[int, int, int]  # a read, in program order: equation, operand, dimension
ArrayDim = tuple[Var, int]  # an array that is read from memory, and a dimension of it


@record(frozen=False)
class Outline:
    """Summary of a region by axes: all that legality needs, without its equations.

    Equations are positions in the program; "first" is the smallest position. Axes include those of
    size 1; ``legality._FusionRules`` drops the ones that are broadcast.

    Attributes:
        domains: sets of axes that equations iterate over, with the first such equation.
        reduced: sets of axes that reductions reduce, with the first such reduction.
        stored: sets of axes of stored arrays, with the count of these arrays, which is positive.
        costly: sets of axes of equations that must not be recomputed.
        dependent_domains: sets of axes of equations that use results of the region's reductions.
        used_unit_axes: for axes of size 1 that are not broadcast, the count of uses in memory or as
            an index, which is positive.
        updates: equations that update in place.
        multi_axis_reads: dimensions of arrays in memory that are read along several axes, with the
            first read along each axis.
        num_arrays: count of external arrays that are read.
        num_in_loops: count of equations with axes.
        may_reduce_nothing: whether all axes of some reduction have size 1, so that it may reduce
            none.
        has_lane_loops: whether some equation is a loop in each lane.
    """

    domains: dict[Axes, int] = field(default_factory=dict)
    reduced: dict[Axes, int] = field(default_factory=dict)
    stored: dict[Axes, int] = field(default_factory=dict)
    costly: frozenset[Axes] = frozenset()
    dependent_domains: frozenset[Axes] = frozenset()
    used_unit_axes: dict[DimKey, int] = field(default_factory=dict)
    updates: tuple[int, ...] = ()
    multi_axis_reads: dict[ArrayDim, dict[DimKey, ReadPosition]] = field(default_factory=dict)
    num_arrays: int = 0
    num_in_loops: int = 0
    may_reduce_nothing: bool = False
    has_lane_loops: bool = False


class Region:
    """Equations that one kernel may compute; a new region has one, regions grow by merging.

    Args:
        program: the program.
        position: an equation with iteration dimensions (``FusionProgram.iterations``).
        is_stored: whether its outputs are stored if they are read outside; False if external
            readers recompute them.

    Attributes:
        members: the equations, unordered.
        outline: the summary of the region.
        parent: union-find of axis keys: a key's parent; representatives have none.
        eqns_on_axis: for each axis (representative key) the equations that have it.
        reads: external arrays that are read.
        reads_by_dim: for each dimension of these, the axes along which it is read, with the first
            read. Axes of a region that was merged may be keys that ``find`` has to resolve.
        escaping: arrays that must be stored, with the count of operands outside the region that
            read them; being an output of the program counts as one.
        dependent: equations that use the result of a reduction of the region.
        unstored: equations whose readers outside the region recompute their outputs.
    """

    def __init__(self, program: FusionProgram, position: int, is_stored: bool = True) -> None:
        iteration = program.iterations[position]
        assert iteration is not None
        eqn = program.jaxpr.eqns[position]
        self.program = program
        self.members = {position}
        keys = [(position, d) for d in range(len(iteration.sizes))]
        self.parent: dict[DimKey, DimKey] = {}
        self.eqns_on_axis: dict[DimKey, set[int]] = {key: {position} for key in keys}
        self.reads: set[Var] = set()
        self.reads_by_dim: dict[ArrayDim, dict[DimKey, ReadPosition]] = {}
        self.escaping: dict[Var, int] = {}
        self.dependent: set[int] = set()
        self.unstored: set[int] = set() if is_stored else {position}
        domain = frozenset(keys)
        outline = self.outline = Outline(domains={domain: position}, num_in_loops=int(bool(keys)))
        if iteration.reduced:
            reduced = [(position, d) for d in iteration.reduced]
            outline.reduced[frozenset(reduced)] = position
            outline.may_reduce_nothing = all(iteration.sizes[d] == 1 for d in iteration.reduced)
        rule = eqn.primitive.lower
        outline.has_lane_loops = rule.is_lane_program
        if rule.costly:
            outline.costly = frozenset((domain,))
        if rule.is_update:
            outline.updates = (position,)
        if rule.has_addresses(eqn):
            unit_dims = [d for d, n in enumerate(iteration.sizes) if n == 1]
            outline.used_unit_axes = {(position, d): 1 for d in unit_dims}
        self._add_reads(position, iteration)
        if is_stored:
            for var in eqn.outputs:
                count = len(program.readers.get(var, ())) + (var in program.outputs)
                if count:
                    self.escaping[var] = count
                    axes = frozenset((position, d) for d in iteration.out)
                    outline.stored[axes] = outline.stored.get(axes, 0) + 1

    def _add_reads(self, position: int, iteration: Iteration) -> None:
        """Record the reads from memory of the first equation."""
        program, used_units = self.program, self.outline.used_unit_axes
        inputs = program.jaxpr.eqns[position].inputs
        for operand, (atom, dim_axes) in enumerate(zip(inputs, iteration.reads, strict=True)):
            if type(atom) is Literal:
                continue
            self.reads.add(atom)
            view = program.views.get(atom)
            for k, (dim, axis) in enumerate(dim_axes):
                key = (position, axis)
                if iteration.sizes[axis] == 1 and not (view and view.layout.broadcast[dim]):
                    used_units[key] = used_units.get(key, 0) + 1
                first_reads = self.reads_by_dim.setdefault((atom, dim), {})
                first_reads.setdefault(key, (position, operand, k))
        self.outline.num_arrays = len(self.reads)
        self.outline.multi_axis_reads = {
            array_dim: first_reads
            for array_dim, first_reads in self.reads_by_dim.items()
            if len(first_reads) > 1
        }

    def find(self, key: DimKey) -> DimKey:
        """The axis of a key: the representative of its class."""
        parent = self.parent
        while key in parent:
            ancestor = parent[key]
            if ancestor in parent:
                parent[key] = parent[ancestor]
            key = ancestor
        return key

    def axes(self, position: int, dims: Iterable[int]) -> Axes:
        """The axes of some dimensions of an equation."""
        return frozenset([self.find((position, d)) for d in dims])

    def axes_of(self, position: int) -> Axes:
        """The axes that an equation loops over."""
        iteration = self.program.iterations[position]
        assert iteration is not None
        return self.axes(position, range(len(iteration.sizes)))

    def holds(self, position: int) -> bool:
        """Whether an equation is in the region."""
        return position in self.members

    def stored(self) -> set[int]:
        """The equations whose results must be stored."""
        return {self.program.producer[var] for var in self.escaping}

    def without(self, var: Var) -> Region:
        """This region if its external readers recompute ``var``, the only output of an equation.

        The result shares sets with this region: only one of the two may be merged later.
        """
        result = copy(self)
        position = self.program.producer[var]
        iteration = self.program.iterations[position]
        assert iteration is not None
        result.unstored = self.unstored | {position}
        result.escaping = {other: n for other, n in self.escaping.items() if other is not var}
        axes = self.axes(position, iteration.out)
        stored = {domain: n - (domain == axes) for domain, n in self.outline.stored.items()}
        stored = {domain: n for domain, n in stored.items() if n}
        result.outline = replace(self.outline, stored=stored)
        return result

    @property
    def axis_unions(self) -> AxisUnions:
        """The region's axes as a new union-find, in which more of them can be united."""
        return AxisUnions(self.program, (self,))


class AxisUnions:
    """Union-find on top of the axes of one or two regions, which it does not change.

    The regions must not be merged while it is in use. Arguments of its methods are axes of the
    regions: representatives that ``Region.find`` returns.

    Attributes:
        parent: a united axis's parent; representatives have none.
    """

    def __init__(self, program: FusionProgram, regions: Sequence[Region]) -> None:
        self._program, self._regions = program, regions
        self.parent: dict[DimKey, DimKey] = {}
        self._united: dict[DimKey, list[DimKey]] = {}

    def copy(self) -> AxisUnions:
        """A copy, in which more axes can be united."""
        result = AxisUnions(self._program, self._regions)
        result.parent = dict(self.parent)
        result._united = dict(self._united)
        return result

    def find(self, axis: DimKey) -> DimKey:
        """The representative of a region's axis."""
        while axis in self.parent:
            axis = self.parent[axis]
        return axis

    def region_axes_of(self, axis: DimKey) -> list[DimKey]:
        """The regions' axes that are united in an axis."""
        return self._united.get(axis) or [axis]

    def size(self, axis: DimKey) -> int:
        """The size of an axis."""
        iteration = self._program.iterations[axis[0]]
        assert iteration is not None
        return iteration.sizes[axis[1]]

    def unite(self, first: DimKey, second: DimKey) -> bool:
        """Unite two axes; False if sizes differ, or an equation would then have one axis twice."""
        a, b = self.find(first), self.find(second)
        if a == b:
            return True
        if self.size(a) != self.size(b):
            return False
        axes_of_a, axes_of_b = self.region_axes_of(a), self.region_axes_of(b)
        for axis_of_a in axes_of_a:
            eqns = self._eqns_on_axis(axis_of_a)
            if not all(eqns.isdisjoint(self._eqns_on_axis(axis_of_b)) for axis_of_b in axes_of_b):
                return False
        if b < a:
            a, b = b, a
        self.parent[b] = a
        self._united[a] = [*axes_of_a, *axes_of_b]
        return True

    def to_representatives(self, axes: Axes) -> Axes:
        """The representatives of a region's axes."""
        if not self.parent:
            return axes
        return frozenset([self.find(axis) for axis in axes])

    def united_axes(self) -> list[tuple[DimKey, list[DimKey]]]:
        """The united axes, each with the regions' axes that it consists of."""
        return [pair for pair in self._united.items() if pair[0] not in self.parent]

    def _eqns_on_axis(self, axis: DimKey) -> set[int]:
        """The equations that have an axis of one of the regions."""
        return next(r.eqns_on_axis[axis] for r in self._regions if axis in r.eqns_on_axis)


class MergedRegion:
    """The tentative union of two regions; ``commit`` applies it.

    Nothing changes before ``commit``, which changes and returns the larger region. The smaller one,
    and other unions with either of them, must not be used afterwards. Call ``commit`` once, after
    ``legality.loop_structure_of`` has accepted the union.

    Args:
        program: the program of both regions.
        first, second: the regions, without a common equation.

    Attributes:
        large, small: the regions, by count of equations.
        axis_unions: the axes of both regions, with those of values that one reads from the other
            united.
        newly_dependent: equations that use the result of a reduction only in the union.
        outline: the outline of the union.

    Raises:
        NotOneKernelError: if no kernel can hold both.
    """

    def __init__(self, program: FusionProgram, first: Region, second: Region) -> None:
        self.program = program
        if len(first.members) < len(second.members):
            first, second = second, first
        self.large, self.small = first, second
        if len(first.members) + len(second.members) > MAX_MEMBERS:
            raise NotOneKernelError(f"it would have more than {MAX_MEMBERS} equations")
        num_in_loops = first.outline.num_in_loops + second.outline.num_in_loops
        if num_in_loops > MAX_MEMBERS_IN_LOOPS:
            raise NotOneKernelError(
                f"it would have more than {MAX_MEMBERS_IN_LOOPS} equations in loops"
            )
        self.axis_unions = AxisUnions(program, (first, second))
        self._removed_reads: set[Var] = set()  # arrays that become internal
        self._removed_units: dict[DimKey, int] = {}
        self._internal_reads: dict[Var, int] = {}
        self._crossing_readers: set[int] = set()  # readers of the other region's values
        for reader, operand, source in self._crossing_reads():
            self._unify_read(reader, operand, source)
        self.newly_dependent = self._new_dependents()
        self.outline = self._outline(num_in_loops)

    def holds(self, position: int) -> bool:
        """Whether an equation is in one of the regions."""
        return position in self.large.members or position in self.small.members

    def find(self, key: DimKey) -> DimKey:
        """The axis of a key: the representative of its class."""
        region = self.large if key[0] in self.large.members else self.small
        return self.axis_unions.find(region.find(key))

    def axes(self, position: int, dims: Iterable[int]) -> Axes:
        """The axes of some dimensions of an equation."""
        return frozenset([self.find((position, d)) for d in dims])

    def axes_of(self, position: int) -> Axes:
        """The axes that an equation loops over."""
        iteration = self.program.iterations[position]
        assert iteration is not None
        return self.axes(position, range(len(iteration.sizes)))

    def _crossing_reads(self) -> list[tuple[int, int, int]]:
        """Reads of one region from the other: reader, operand, producer; in program order."""
        program, members = self.program, self.large.members
        eqns, producer, readers = program.jaxpr.eqns, program.producer, program.readers
        crossing_reads = []
        for e in self.small.members:
            for operand, atom in enumerate(eqns[e].inputs):
                source = None if type(atom) is Literal else producer.get(atom)
                if source in members:
                    crossing_reads.append((e, operand, source))
            for var in eqns[e].outputs:
                for reader in set(readers.get(var, ())):
                    if reader in members:
                        operands = enumerate(eqns[reader].inputs)
                        crossing_reads += [(reader, k, e) for k, atom in operands if atom is var]
        return sorted(crossing_reads)

    def _unify_read(self, reader: int, operand: int, producer: int) -> None:
        """Unite the axes of a reader and its producer; raise if the value cannot stay internal."""
        program = self.program
        eqn, iteration = program.jaxpr.eqns[reader], program.iterations[reader]
        producer_iteration = program.iterations[producer]
        assert iteration is not None
        assert producer_iteration is not None
        name = eqn.primitive.name
        if operand < eqn.primitive.lower.operands_in_memory(eqn):
            raise NotOneKernelError(f"{name} selects elements of it, so it must be complete")
        producer_eqn, atom = program.jaxpr.eqns[producer], eqn.inputs[operand]
        if producer_eqn.primitive.lower.stores(producer_eqn, atom):
            raise NotOneKernelError("the loop must have stored it before it is read")
        if producer_eqn.primitive.lower.is_update:
            raise NotOneKernelError("the update must be complete before it is read")
        for dim, axis in iteration.reads[operand]:
            reader_axis = self.find((reader, axis))
            producer_axis = self.find((producer, producer_iteration.out[dim]))
            if not self.axis_unions.unite(reader_axis, producer_axis):
                raise NotOneKernelError(f"{name} would read an array along two axes at once")
            if iteration.sizes[axis] == 1:
                self._removed_units[reader_axis] = self._removed_units.get(reader_axis, 0) + 1
        var = eqn.inputs[operand]
        assert isinstance(var, Var)
        self._removed_reads.add(var)
        self._internal_reads[var] = self._internal_reads.get(var, 0) + 1
        self._crossing_readers.add(reader)

    def _new_dependents(self) -> set[int]:
        """Equations that use the result of a reduction in the union, but not in their region."""
        program = self.program
        dependents_before = (self.large.dependent, self.small.dependent)
        if not (self.large.outline.reduced or self.small.outline.reduced):
            return set()
        dependents: set[int] = set()

        def is_dependent(position: int) -> bool:
            return (
                position in dependents
                or position in dependents_before[0]
                or position in dependents_before[1]
            )

        undecided_readers = [e for e in self._crossing_readers if not is_dependent(e)]
        worklist = [
            e
            for e in undecided_readers
            if any(self._follows_reduction(s, is_dependent) for s in self._producers_of(e))
        ]
        while worklist:
            e = worklist.pop()
            if is_dependent(e):
                continue
            dependents.add(e)
            for var in program.jaxpr.eqns[e].outputs:
                readers = program.readers.get(var, ())
                worklist += [r for r in readers if self.holds(r) and not is_dependent(r)]
        return dependents

    def _follows_reduction(self, position: int, is_dependent: Callable[[int], bool]) -> bool:
        """Whether an equation is a reduction, or uses the result of one."""
        iteration = self.program.iterations[position]
        assert iteration is not None
        return bool(iteration.reduced) or is_dependent(position)

    def _producers_of(self, position: int) -> list[int]:
        """The equations of the union whose results an equation reads."""
        atoms = self.program.jaxpr.eqns[position].inputs
        sources = (self.program.producer.get(a) for a in atoms if type(a) is not Literal)
        return [s for s in sources if s is not None and self.holds(s)]

    def _outline(self, num_in_loops: int) -> Outline:
        """The outline of the union, from those of the regions."""
        large, small = self.large.outline, self.small.outline
        to_representatives = self.axis_unions.to_representatives
        result = Outline(num_in_loops=num_in_loops)
        for outline in (large, small):
            domains, reduced = (outline.domains, result.domains), (outline.reduced, result.reduced)
            for first_positions, merged_positions in (domains, reduced):
                for axes, position in first_positions.items():
                    merged_axes = to_representatives(axes)
                    merged_positions[merged_axes] = min(
                        position, merged_positions.get(merged_axes, position)
                    )
            for axes, count in outline.stored.items():
                merged_axes = to_representatives(axes)
                result.stored[merged_axes] = result.stored.get(merged_axes, 0) + count
            for axis, count in outline.used_unit_axes.items():
                axis = self.axis_unions.find(axis)
                result.used_unit_axes[axis] = result.used_unit_axes.get(axis, 0) + count
        result.costly = frozenset(map(to_representatives, large.costly | small.costly))
        dependent_domains = large.dependent_domains | small.dependent_domains
        result.dependent_domains = frozenset(map(to_representatives, dependent_domains))
        result.dependent_domains |= {self.axes_of(e) for e in self.newly_dependent}
        result.updates = large.updates + small.updates
        result.may_reduce_nothing = large.may_reduce_nothing or small.may_reduce_nothing
        result.has_lane_loops = large.has_lane_loops or small.has_lane_loops
        self._remove_internal(result)
        common_reads = sum(var in self.large.reads for var in self.small.reads)
        num_arrays = len(self.large.reads) + len(self.small.reads) - common_reads
        result.num_arrays = num_arrays - len(self._removed_reads)
        multi_axis_dims = {*large.multi_axis_reads, *small.multi_axis_reads}
        multi_axis_dims.update(
            array_dim
            for array_dim in self.small.reads_by_dim
            if array_dim in self.large.reads_by_dim
        )
        for array_dim in multi_axis_dims:
            first_reads = self._first_reads(array_dim)
            if len(first_reads) > 1:
                result.multi_axis_reads[array_dim] = first_reads
        return result

    def _remove_internal(self, outline: Outline) -> None:
        """Remove the stores and unit axes of values that become internal."""
        for axis, count in self._removed_units.items():
            axis = self.axis_unions.find(axis)
            outline.used_unit_axes[axis] -= count
            if not outline.used_unit_axes[axis]:
                del outline.used_unit_axes[axis]
        for var in self._internal_reads:
            is_stored = any(var in region.escaping for region in (self.large, self.small))
            if is_stored and not self._is_escaping(var):
                iteration = self.program.iterations[self.program.producer[var]]
                assert iteration is not None
                axes = self.axes(self.program.producer[var], iteration.out)
                outline.stored[axes] -= 1
                if not outline.stored[axes]:
                    del outline.stored[axes]

    def _is_escaping(self, var: Var) -> bool:
        """Whether an array of one of the regions is still read outside."""
        internal_reads = self._internal_reads.get(var, 0)
        regions = self.large, self.small
        return any(region.escaping.get(var, internal_reads) > internal_reads for region in regions)

    def _first_reads(self, array_dim: ArrayDim) -> dict[DimKey, ReadPosition]:
        """The axes along which a dimension of an external array is read, with the first reads.

        Empty if the array becomes internal to the union.
        """
        first_reads: dict[DimKey, ReadPosition] = {}
        if array_dim[0] in self._removed_reads:
            return first_reads
        for region in (self.large, self.small):
            for axis, read_position in region.reads_by_dim.get(array_dim, {}).items():
                axis = self.axis_unions.find(region.find(axis))
                first_reads[axis] = min(read_position, first_reads.get(axis, read_position))
        return first_reads

    def stored(self) -> set[int]:
        """The equations whose results must be stored."""
        producer, regions = self.program.producer, (self.large, self.small)
        escaping = (var for region in regions for var in region.escaping)
        return {producer[var] for var in escaping if self._is_escaping(var)}

    def commit(self) -> Region:
        """Merge the smaller region into the larger one, which is changed and returned."""
        large, small = self.large, self.small
        array_dims = (*small.reads_by_dim, *self.outline.multi_axis_reads)
        reads_by_dim = {array_dim: self._first_reads(array_dim) for array_dim in array_dims}
        large.members |= small.members
        large.parent.update(small.parent)
        large.eqns_on_axis.update(small.eqns_on_axis)
        for axis in self.axis_unions.parent:
            large.parent[axis] = self.axis_unions.find(axis)
        for axis, region_axes in self.axis_unions.united_axes():
            eqn_sets = sorted(
                [large.eqns_on_axis.pop(region_axis) for region_axis in region_axes], key=len
            )
            eqn_sets[-1].update(*eqn_sets[:-1])
            large.eqns_on_axis[axis] = eqn_sets[-1]
        large.reads |= small.reads
        large.reads -= self._removed_reads
        large.reads_by_dim.update(reads_by_dim)
        for var in self._removed_reads:
            for dim in range(var.aval.ndim):
                large.reads_by_dim.pop((var, dim), None)
        large.escaping.update(small.escaping)
        for var, count in self._internal_reads.items():
            if var in large.escaping:
                large.escaping[var] -= count
                if not large.escaping[var]:
                    del large.escaping[var]
        large.dependent |= small.dependent | self.newly_dependent
        large.unstored |= small.unstored
        large.outline = self.outline
        return large


def region_of(
    program: FusionProgram, members: Iterable[int], unstored: Collection[int] = ()
) -> Region:
    """The region of some equations.

    Args:
        program: the program.
        members: the equations, in program order.
        unstored: equations whose readers recompute their outputs.

    Returns:
        A new region; at least one equation is needed.

    Raises:
        NotOneKernelError: if no kernel can hold all of them.
    """
    singletons = (Region(program, e, e not in unstored) for e in members)
    region = next(singletons)
    for singleton in singletons:
        region = MergedRegion(program, region, singleton).commit()
    return region
