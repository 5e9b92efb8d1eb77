"""Regions: groups of equations while they grow, with the data that fusion decides by.

``fuse.py`` grows groups by tentative unions: ``MergedRegion(a, b)`` raises or summarizes the union,
``kinds.form_of`` decides whether one kernel can compute it, and ``commit`` merges. After that only
the result may be used. An outline must equal the one that is rebuilt from the members of its
region, see tests/compiler/test_regions.py.

Merging two regions costs as much as the smaller one: only its equations are visited, for reads that
cross between the regions. All other data is in outlines, which name axes instead of equations, and
so stay short however large a region gets. Merging n equations into one region takes O(n log n).

An axis is an equivalence class of keys (equation, iteration dimension), named by its smallest key.
Producers and their readers share axes. Equations that read the same array from memory should share
them too, unless an equation would then have one axis twice. Each outline decides this again, for
the few arrays that are read along several axes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import field, replace

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import (
    Iteration,
    Key,
    NotOneKernelError,
    Program,
)
from gpuflow.core.jaxpr import Literal, Var

# Most equations in the loops of a kernel. With more, chains compile no sooner and run no faster.
# With fewer, functions such as expi are two kernels. The table is in docs/design/0024-fusion.md.
# MOST_MEMBERS also counts equations that compute scalars.
MOST_IN_LOOPS = 256
MOST_MEMBERS = 400

Axes = frozenset[Key]
Order = tuple[int, int, int]  # a read, in program order: equation, operand, dimension
Shared = tuple[Var, int]  # an array that is read from memory, and a dimension of it


@record(frozen=False)
class Outline:
    """Summary of a region by axes: all that ``kinds.form_of`` needs, without its equations.

    Attributes:
        domains: sets of axes that equations iterate over, with the first such equation.
        reduced: sets of axes that reductions reduce, with the first such reduction.
        stored: sets of axes of stored arrays, with the count of these arrays.
        costly: sets of axes of equations that must not be recomputed.
        dependent_domains: sets of axes of equations that use results of the region's reductions.
        used_units: for axes of size 1 that are not broadcast, the count of uses in memory or as an
            index.
        updates: equations that update in place.
        shared_reads: arrays in memory that are read along several axes, with the first read along
            each axis.
        arrays: count of external arrays that are read.
        in_loops: count of equations with axes.
        maybe_unreduced: whether all axes of some reduction have size 1, so that it may reduce none.
        loops: whether some equation is a loop in each lane.
    """

    domains: dict[Axes, int] = field(default_factory=dict)
    reduced: dict[Axes, int] = field(default_factory=dict)
    stored: dict[Axes, int] = field(default_factory=dict)
    costly: frozenset[Axes] = frozenset()
    dependent_domains: frozenset[Axes] = frozenset()
    used_units: dict[Key, int] = field(default_factory=dict)
    updates: tuple[int, ...] = ()
    shared_reads: dict[Shared, dict[Key, Order]] = field(default_factory=dict)
    arrays: int = 0
    in_loops: int = 0
    maybe_unreduced: bool = False
    loops: bool = False


class Region:
    """Equations that one kernel may compute; a new region has one, regions grow by merging.

    Attributes:
        members: the equations, unordered.
        outline: the summary of the region.
        parent: union-find of axis keys.
        eqns: for each axis the equations that have it.
        reads: external arrays that are read.
        shared: for each dimension of these, the axes along which it is read, with the first read.
        escaping: arrays that must be stored, with the count of reads outside the region.
        dependent: equations that use the result of a reduction of the region.
        unstored: equations whose readers outside the region recompute their outputs.
    """

    def __init__(self, program: Program, position: int, is_stored: bool = True) -> None:
        iteration = program.iterations[position]
        assert iteration is not None
        eqn = program.jaxpr.eqns[position]
        self.program = program
        self.members = {position}
        keys = [(position, d) for d in range(len(iteration.sizes))]
        self.parent: dict[Key, Key] = {}
        self.eqns: dict[Key, set[int]] = {key: {position} for key in keys}
        self.reads: set[Var] = set()
        self.shared: dict[Shared, dict[Key, Order]] = {}
        self.escaping: dict[Var, int] = {}
        self.dependent: set[int] = set()
        self.unstored: set[int] = set() if is_stored else {position}
        domain = frozenset(keys)
        outline = self.outline = Outline(domains={domain: position}, in_loops=int(bool(keys)))
        if iteration.reduced:
            reduced = [(position, d) for d in iteration.reduced]
            outline.reduced[frozenset(reduced)] = position
            outline.maybe_unreduced = all(iteration.sizes[d] == 1 for d in iteration.reduced)
        rule = eqn.primitive.lower
        outline.loops = rule.is_lane_program
        if rule.costly:
            outline.costly = frozenset((domain,))
        if rule.is_update:
            outline.updates = (position,)
        if rule.has_addresses(eqn):
            units = [d for d, n in enumerate(iteration.sizes) if n == 1]
            outline.used_units = {(position, d): 1 for d in units}
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
        program, used_units = self.program, self.outline.used_units
        inputs = program.jaxpr.eqns[position].inputs
        for operand, (atom, links) in enumerate(zip(inputs, iteration.reads, strict=True)):
            if type(atom) is Literal:
                continue
            self.reads.add(atom)
            view = program.views.get(atom)
            for k, (dim, axis) in enumerate(links):
                key = (position, axis)
                if iteration.sizes[axis] == 1 and not (view and view[1].broadcast[dim]):
                    used_units[key] = used_units.get(key, 0) + 1
                first_reads = self.shared.setdefault((atom, dim), {})
                first_reads.setdefault(key, (position, operand, k))
        self.outline.arrays = len(self.reads)
        self.outline.shared_reads = {s: first for s, first in self.shared.items() if len(first) > 1}

    def find(self, key: Key) -> Key:
        """The axis of a key: the representative of its class."""
        parent = self.parent
        while key in parent:
            above = parent[key]
            if above in parent:
                parent[key] = parent[above]
            key = above
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
    def classes(self) -> Classes:
        """The region's axes as a new union-find, in which more of them can be united."""
        return Classes(self.program, (self,))


class Classes:
    """Union-find on top of the axes of one or two regions, which it does not change."""

    def __init__(self, program: Program, regions: Sequence[Region]) -> None:
        self._program, self._regions = program, regions
        self.parent: dict[Key, Key] = {}
        self._united: dict[Key, list[Key]] = {}

    def copy(self) -> Classes:
        """A copy, in which more axes can be united."""
        result = Classes(self._program, self._regions)
        result.parent = dict(self.parent)
        result._united = dict(self._united)
        return result

    def find(self, axis: Key) -> Key:
        """The representative of a region's axis."""
        while axis in self.parent:
            axis = self.parent[axis]
        return axis

    def united(self, axis: Key) -> list[Key]:
        """The regions' axes that are united in an axis."""
        return self._united.get(axis) or [axis]

    def size(self, axis: Key) -> int:
        """The size of an axis."""
        iteration = self._program.iterations[axis[0]]
        assert iteration is not None
        return iteration.sizes[axis[1]]

    def unite(self, first: Key, second: Key) -> bool:
        """Unite two axes; False if sizes differ, or an equation would then have one axis twice."""
        a, b = self.find(first), self.find(second)
        if a == b:
            return True
        if self.size(a) != self.size(b):
            return False
        firsts, seconds = self.united(a), self.united(b)
        for one in firsts:
            eqns = self._eqns(one)
            if not all(eqns.isdisjoint(self._eqns(other)) for other in seconds):
                return False
        if b < a:
            a, b = b, a
        self.parent[b] = a
        self._united[a] = [*firsts, *seconds]
        return True

    def renamed(self, axes: Axes) -> Axes:
        """The representatives of a region's axes."""
        if not self.parent:
            return axes
        return frozenset([self.find(axis) for axis in axes])

    def merged(self) -> list[tuple[Key, list[Key]]]:
        """The united axes, each with the regions' axes that it consists of."""
        return [pair for pair in self._united.items() if pair[0] not in self.parent]

    def _eqns(self, axis: Key) -> set[int]:
        return next(region.eqns[axis] for region in self._regions if axis in region.eqns)


class MergedRegion:
    """The tentative union of two regions; ``commit`` applies it.

    Nothing changes before ``commit``, which changes and returns the larger region. The smaller one,
    and other unions with either of them, must not be used afterwards.

    Args:
        program: the program of both regions.
        first, second: the regions.

    Raises:
        NotOneKernelError: if no kernel can hold both.
    """

    def __init__(self, program: Program, first: Region, second: Region) -> None:
        self.program = program
        if len(first.members) < len(second.members):
            first, second = second, first
        self.large, self.small = first, second
        if len(first.members) + len(second.members) > MOST_MEMBERS:
            raise NotOneKernelError(f"it would have more than {MOST_MEMBERS} equations")
        in_loops = first.outline.in_loops + second.outline.in_loops
        if in_loops > MOST_IN_LOOPS:
            raise NotOneKernelError(f"it would have more than {MOST_IN_LOOPS} equations in loops")
        self.classes = Classes(program, (first, second))
        self._removed_reads: set[Var] = set()  # arrays that become internal
        self._removed_units: dict[Key, int] = {}
        self._internal_reads: dict[Var, int] = {}
        self._crossing_readers: set[int] = set()  # readers of the other region's values
        for reader, operand, source in self._crossing():
            self._unify_read(reader, operand, source)
        self.new_dependent = self._new_dependents()
        self.outline = self._outline(in_loops)

    def holds(self, position: int) -> bool:
        """Whether an equation is in one of the regions."""
        return position in self.large.members or position in self.small.members

    def find(self, key: Key) -> Key:
        """The axis of a key: the representative of its class."""
        region = self.large if key[0] in self.large.members else self.small
        return self.classes.find(region.find(key))

    def axes(self, position: int, dims: Iterable[int]) -> Axes:
        """The axes of some dimensions of an equation."""
        return frozenset([self.find((position, d)) for d in dims])

    def axes_of(self, position: int) -> Axes:
        """The axes that an equation loops over."""
        iteration = self.program.iterations[position]
        assert iteration is not None
        return self.axes(position, range(len(iteration.sizes)))

    def _crossing(self) -> list[tuple[int, int, int]]:
        """Reads of one region from the other: reader, operand, producer; in program order."""
        program, members = self.program, self.large.members
        eqns, producer, readers = program.jaxpr.eqns, program.producer, program.readers
        crossing = []
        for e in self.small.members:
            for operand, atom in enumerate(eqns[e].inputs):
                source = None if type(atom) is Literal else producer.get(atom)
                if source in members:
                    crossing.append((e, operand, source))
            for var in eqns[e].outputs:
                for reader in set(readers.get(var, ())):
                    if reader in members:
                        operands = enumerate(eqns[reader].inputs)
                        crossing += [(reader, k, e) for k, atom in operands if atom is var]
        return sorted(crossing)

    def _unify_read(self, reader: int, operand: int, source: int) -> None:
        """Unite the axes of a reader and its producer; raise if the value cannot stay internal."""
        program = self.program
        eqn, iteration = program.jaxpr.eqns[reader], program.iterations[reader]
        producer = program.iterations[source]
        assert iteration is not None
        assert producer is not None
        name = eqn.primitive.name
        if operand < eqn.primitive.lower.operands_in_memory(eqn):
            raise NotOneKernelError(f"{name} selects elements of it, so it must be complete")
        source_eqn, atom = program.jaxpr.eqns[source], eqn.inputs[operand]
        if source_eqn.primitive.lower.stores(source_eqn, atom):
            raise NotOneKernelError("the loop must have stored it before it is read")
        if source_eqn.primitive.lower.is_update:
            raise NotOneKernelError("the update must be complete before it is read")
        for dim, axis in iteration.reads[operand]:
            reader_axis = self.find((reader, axis))
            producer_axis = self.find((source, producer.out[dim]))
            if not self.classes.unite(reader_axis, producer_axis):
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
        old = (self.large.dependent, self.small.dependent)
        if not (self.large.outline.reduced or self.small.outline.reduced):
            return set()
        dependents: set[int] = set()

        def is_dependent(position: int) -> bool:
            return position in dependents or position in old[0] or position in old[1]

        todo = [e for e in self._crossing_readers if not is_dependent(e)]
        stack = [
            e
            for e in todo
            if any(self._follows_reduction(s, is_dependent) for s in self._producers_of(e))
        ]
        while stack:
            e = stack.pop()
            if is_dependent(e):
                continue
            dependents.add(e)
            for var in program.jaxpr.eqns[e].outputs:
                readers = program.readers.get(var, ())
                stack += [r for r in readers if self.holds(r) and not is_dependent(r)]
        return dependents

    def _follows_reduction(self, position: int, is_dependent: Callable[[int], bool]) -> bool:
        iteration = self.program.iterations[position]
        assert iteration is not None
        return bool(iteration.reduced) or is_dependent(position)

    def _producers_of(self, position: int) -> list[int]:
        atoms = self.program.jaxpr.eqns[position].inputs
        sources = (self.program.producer.get(a) for a in atoms if type(a) is not Literal)
        return [s for s in sources if s is not None and self.holds(s)]

    def _outline(self, in_loops: int) -> Outline:
        """The outline of the union, from those of the regions."""
        large, small = self.large.outline, self.small.outline
        renamed = self.classes.renamed
        result = Outline(in_loops=in_loops)
        for outline in (large, small):
            domains, reduced = (outline.domains, result.domains), (outline.reduced, result.reduced)
            for firsts, merged in (domains, reduced):
                for axes, position in firsts.items():
                    name = renamed(axes)
                    merged[name] = min(position, merged.get(name, position))
            for axes, count in outline.stored.items():
                name = renamed(axes)
                result.stored[name] = result.stored.get(name, 0) + count
            for axis, count in outline.used_units.items():
                axis = self.classes.find(axis)
                result.used_units[axis] = result.used_units.get(axis, 0) + count
        result.costly = frozenset(map(renamed, large.costly | small.costly))
        dependent_domains = large.dependent_domains | small.dependent_domains
        result.dependent_domains = frozenset(map(renamed, dependent_domains))
        result.dependent_domains |= {self.axes_of(e) for e in self.new_dependent}
        result.updates = large.updates + small.updates
        result.maybe_unreduced = large.maybe_unreduced or small.maybe_unreduced
        result.loops = large.loops or small.loops
        self._remove_internal(result)
        both = sum(var in self.large.reads for var in self.small.reads)
        arrays = len(self.large.reads) + len(self.small.reads) - both
        result.arrays = arrays - len(self._removed_reads)
        shared_reads = {*large.shared_reads, *small.shared_reads}
        shared_reads.update(shared for shared in self.small.shared if shared in self.large.shared)
        for shared in shared_reads:
            first_reads = self._first_reads(shared)
            if len(first_reads) > 1:
                result.shared_reads[shared] = first_reads
        return result

    def _remove_internal(self, outline: Outline) -> None:
        """Remove the stores and unit axes of values that become internal."""
        for axis, count in self._removed_units.items():
            axis = self.classes.find(axis)
            outline.used_units[axis] -= count
            if not outline.used_units[axis]:
                del outline.used_units[axis]
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
        internal = self._internal_reads.get(var, 0)
        regions = self.large, self.small
        return any(region.escaping.get(var, internal) > internal for region in regions)

    def _first_reads(self, shared: Shared) -> dict[Key, Order]:
        """The axes along which an external array is read, with the first read of each."""
        first_reads: dict[Key, Order] = {}
        if shared[0] in self._removed_reads:
            return first_reads
        for region in (self.large, self.small):
            for axis, order in region.shared.get(shared, {}).items():
                axis = self.classes.find(region.find(axis))
                first_reads[axis] = min(order, first_reads.get(axis, order))
        return first_reads

    def stored(self) -> set[int]:
        """The equations whose results must be stored."""
        producer, regions = self.program.producer, (self.large, self.small)
        escaping = (var for region in regions for var in region.escaping)
        return {producer[var] for var in escaping if self._is_escaping(var)}

    def commit(self) -> Region:
        """Merge the smaller region into the larger one, which is changed and returned."""
        large, small = self.large, self.small
        keys = (*small.shared, *self.outline.shared_reads)
        shared = {key: self._first_reads(key) for key in keys}
        large.members |= small.members
        large.parent.update(small.parent)
        large.eqns.update(small.eqns)
        for axis in self.classes.parent:
            large.parent[axis] = self.classes.find(axis)
        for axis, united in self.classes.merged():
            sets = sorted([large.eqns.pop(one) for one in united], key=len)
            sets[-1].update(*sets[:-1])
            large.eqns[axis] = sets[-1]
        large.reads |= small.reads
        large.reads -= self._removed_reads
        large.shared.update(shared)
        for var in self._removed_reads:
            for dim in range(var.aval.ndim):
                large.shared.pop((var, dim), None)
        large.escaping.update(small.escaping)
        for var, count in self._internal_reads.items():
            if var in large.escaping:
                large.escaping[var] -= count
                if not large.escaping[var]:
                    del large.escaping[var]
        large.dependent |= small.dependent | self.new_dependent
        large.unstored |= small.unstored
        large.outline = self.outline
        return large


def region_of(program: Program, members: Iterable[int], unstored: Collection[int] = ()) -> Region:
    """The region of some equations.

    Args:
        program: the program.
        members: the equations, in program order.
        unstored: equations whose readers recompute their outputs.

    Raises:
        NotOneKernelError: if no kernel can hold all of them.
    """
    singles = (Region(program, e, e not in unstored) for e in members)
    region = next(singles)
    for single in singles:
        region = MergedRegion(program, region, single).commit()
    return region
