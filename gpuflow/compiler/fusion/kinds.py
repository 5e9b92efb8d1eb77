"""Fusion legality: whether one kernel can compute a region, of which kind, over which axes.

``form_of`` decides while regions grow; ``space_of_region`` gives the result that lowering reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuflow.base.records import record
from gpuflow.compiler.fusion.regions import Axes, Classes, MergedRegion, Region, region_of
from gpuflow.compiler.fusion.space import Key, Kind, NotOneKernelError, Program, Space
from gpuflow.core.jaxpr import Literal

# Most arrays of a kernel. A kernel without axes has no strides and extents as arguments, so that
# more fit into the 512 argument slots of CUDA.
MOST_OPERANDS = 96
MOST_NUMBERS = 400


@record
class Form:
    """The loops and kind of one kernel that computes a region.

    Attributes:
        kind: the kind of the kernel.
        domain: the axes of its loops.
        reduced: the axes that it reduces.
        largest: the first equation that iterates over all of ``domain``.
        lead: the first reduction; None without reductions.
        classes: the region's axes, after axes along which one array is read have been united.
        used_units: axes of size 1 that memory or an index refers to, so that they get a loop.
    """

    kind: Kind
    domain: Axes
    reduced: Axes
    largest: int
    lead: int | None
    classes: Classes
    used_units: frozenset[Key]


def form_of(group: Region | MergedRegion) -> Form:
    """The form of one kernel for a region.

    Raises:
        NotOneKernelError: if no single kernel can compute it; the message is the reason.
    """
    rules = _FusionRules(group)
    form = rules.form()
    repeated = rules.repeated(form)
    if repeated is not None:
        name = group.program.jaxpr.eqns[repeated].primitive.name
        raise NotOneKernelError(f"it would compute {name} again for each element of another axis")
    return form


class _FusionRules:
    """The rules of ``form_of``, on the axes after those of shared reads have been united."""

    def __init__(self, group: Region | MergedRegion) -> None:
        self.group, self.program, self.outline = group, group.program, group.outline
        self.classes = group.classes
        if self.outline.shared_reads:
            self._unite_shared()
        self.used_units = frozenset(map(self.classes.find, self.outline.used_units))

    def _unite_shared(self) -> None:
        """Unite axes along which one array is read, in program order, if possible."""
        self.classes = self.classes.copy()
        pairs = []
        for first_reads in self.outline.shared_reads.values():
            (_, first), *others = sorted((order, axis) for axis, order in first_reads.items())
            pairs += [(order, first, axis) for order, axis in others]
        for _, first, axis in sorted(pairs):
            self.classes.unite(first, axis)  # if it fails, the array is read along both axes

    def _axes(self, axes: Axes) -> Axes:
        """Axes without those of size 1 that are broadcast."""
        names = map(self.classes.find, axes)
        return frozenset([a for a in names if a in self.used_units or self.classes.size(a) != 1])

    def form(self) -> Form:
        """The form of the kernel, if no equation is repeated."""
        outline = self.outline
        domains: dict[Axes, int] = {}
        for region_axes, position in outline.domains.items():
            axes = self._axes(region_axes)
            domains[axes] = min(position, domains.get(axes, position))
        domain = max(domains, key=lambda axes: (len(axes), -domains[axes]))
        if any(not axes <= domain for axes in domains):
            raise NotOneKernelError("it would loop over axes of several arrays")
        most = MOST_OPERANDS if domain else MOST_NUMBERS
        if outline.arrays + sum(outline.stored.values()) > most:
            raise NotOneKernelError(f"it would have more than {most} arrays")
        reduced: dict[Axes, int] = {}
        for region_axes, position in outline.reduced.items():
            axes = self._axes(region_axes)
            if axes:
                reduced[axes] = min(position, reduced.get(axes, position))
        if reduced and outline.loops:
            raise NotOneKernelError("it would reduce the result of a loop in each lane")
        if reduced and outline.updates:
            raise NotOneKernelError("it would reduce and update in place")
        if len(reduced) > 1:
            raise NotOneKernelError("it would reduce different axes")
        largest = domains[domain]
        if not reduced:
            self._check_map(domain)
            no_axes = frozenset[Key]()
            return Form(Kind.MAP, domain, no_axes, largest, None, self.classes, self.used_units)
        ((red, lead),) = reduced.items()
        kind = self._kind_of_reduction(domain, red, lead)
        return Form(kind, domain, red, largest, lead, self.classes, self.used_units)

    def _check_map(self, domain: Axes) -> None:
        """Raise if a map cannot store all arrays of the region, or cannot update in place."""
        if any(self._axes(axes) != domain for axes in self.outline.stored):
            raise NotOneKernelError("it would store arrays of different axes")
        for e in self.outline.updates:
            # An update is alone: nothing else is stored, and nothing reads what it overwrites.
            if self.group.stored() != {e} or sum(self.outline.stored.values()) != 1:
                raise NotOneKernelError("it would update in place and store something else")
            eqn = self.program.jaxpr.eqns[e]
            if self.outline.loops and eqn.primitive.lower.repeats(eqn.params):
                raise NotOneKernelError("it would run loops of lanes one after the other")
            in_place = self.program.updates.get(e)
            if in_place is not None and any(map(self.group.holds, in_place.earlier)):
                raise NotOneKernelError("it would read what it overwrites")

    def _kind_of_reduction(self, domain: Axes, red: Axes, lead: int) -> Kind:
        """The kind of a kernel that reduces the axes ``red`` of ``domain``."""
        lead_axes = ordered_axes(self.group, lead, self.classes, self.used_units)
        if frozenset(lead_axes) != domain:
            raise NotOneKernelError("it would loop over more axes than the reduction has")
        retained = [key for key in lead_axes if key not in red]
        is_minor = lead_axes == [*retained, *(key for key in lead_axes if key in red)]
        dependent = self.outline.dependent_domains
        if self.outline.maybe_unreduced:
            dependent = frozenset(map(self.group.axes_of, self.dependents()))
        consumed = any(self._axes(axes) & red for axes in dependent)
        retained_axes = domain - red
        if any(self._axes(axes) not in (domain, retained_axes) for axes in self.outline.stored):
            raise NotOneKernelError("it would store arrays of different axes")
        if consumed and not is_minor:
            raise NotOneKernelError("only a reduction of the last axes can read its operand twice")
        if red == domain:
            if consumed:
                raise NotOneKernelError("a reduction of all elements cannot read them twice")
            return Kind.FULL
        return Kind.ROW if is_minor else Kind.COLUMN

    def members(self) -> list[int]:
        """The equations in program order."""
        group = self.group
        if isinstance(group, Region):
            return sorted(group.members)
        return sorted(group.large.members | group.small.members)

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
            if e in dependents or self._axes(self.group.axes(e, iteration.reduced)):
                from_reduction.add(e)
        return dependents

    def repeated(self, form: Form) -> int | None:
        """A costly equation inside a loop in which it does not vary; None if there is none.

        Equations that do not vary in inner loops are hoisted before them. A loop outside the axes
        of an equation would compute it again in each iteration.
        """
        costly = {self._axes(axes) for axes in self.outline.costly}
        costly -= {form.domain, frozenset()}
        if not costly:
            return None
        depth_of = {key: depth for depth, key in enumerate(order_of(self.group, form))}
        if all({depth_of.get(key) for key in axes} == {*range(len(axes))} for axes in costly):
            return None
        program = self.program
        around: dict[int, Axes] = {}  # the axes of an equation and of its readers
        for e in reversed(self.members()):
            eqn, axes = program.jaxpr.eqns[e], self._axes(self.group.axes_of(e))
            readers = {r for var in eqn.outputs for r in program.readers.get(var, ())}
            around[e] = axes.union(*(around[r] for r in readers if r in around))
            if axes and axes != around[e] and eqn.primitive.lower.costly:
                last = max(depth_of.get(key, 0) for key in axes)
                if any(depth_of.get(key, last) < last for key in around[e] - axes):
                    return e
        return None


def ordered_axes(
    group: Region | MergedRegion,
    position: int,
    classes: Classes,
    used_units: Iterable[Key],
    dims: Sequence[int] | None = None,
) -> list[Key]:
    """The axes of an equation's dimensions in order, without broadcast ones of size 1."""
    iteration = group.program.iterations[position]
    assert iteration is not None
    dims = range(len(iteration.sizes)) if dims is None else dims
    names = [classes.find(group.find((position, d))) for d in dims]
    return [axis for axis in names if axis in used_units or classes.size(axis) != 1]


def order_of(group: Region | MergedRegion, form: Form) -> list[Key]:
    """The axes in the order of the loops, from the outermost."""
    if form.lead is not None:
        return ordered_axes(group, form.lead, form.classes, form.used_units)
    # Loops follow the first stored array, so that stores are contiguous.
    first = min(group.stored(), default=form.largest)
    iteration = group.program.iterations[first]
    assert iteration is not None
    return ordered_axes(group, first, form.classes, form.used_units, iteration.out)


def space_of_region(region: Region, form: Form) -> Space:
    """The iteration space of a region, given its form."""
    program = region.program
    members = tuple(sorted(region.members))
    unstored = frozenset(region.unstored)
    classes: dict[Key, Key] = {}
    for e in members:
        iteration = program.iterations[e]
        assert iteration is not None
        for d in range(len(iteration.sizes)):
            classes[e, d] = form.classes.find(region.find((e, d)))
    sizes = {axis: form.classes.size(axis) for axis in dict.fromkeys(classes.values())}
    units = frozenset(a for a, size in sizes.items() if size == 1 and a not in form.used_units)
    domains = {}
    for e in members:
        iteration = program.iterations[e]
        assert iteration is not None
        keys = (classes[e, d] for d in range(len(iteration.sizes)))
        domains[e] = frozenset(key for key in keys if key not in units)
    serial = frozenset[Key]()
    for e in region.outline.updates:
        eqn = program.jaxpr.eqns[e]
        if eqn.primitive.lower.repeats(eqn.params):
            keys = (classes[e, d] for d in range(eqn.inputs[1].aval.ndim))
            serial = frozenset(key for key in keys if key not in units)
    dependent = frozenset[int]()
    if form.lead is not None:
        judged = (
            _FusionRules(region).dependents()
            if region.outline.maybe_unreduced
            else region.dependent
        )
        dependent = frozenset(judged)
    return Space(
        members,
        classes,
        sizes,
        units,
        domains,
        form.kind,
        tuple(order_of(region, form)),
        form.reduced,
        dependent,
        program.escaping(members, unstored),
        serial,
        unstored,
    )


def space_of(program: Program, members: Sequence[int]) -> Space:
    """The iteration space of a group of equations.

    Args:
        program: the program.
        members: the group, in program order.

    Raises:
        NotOneKernelError: no single kernel can compute it.
    """
    region = region_of(program, members)
    return space_of_region(region, form_of(region))
