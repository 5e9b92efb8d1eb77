"""The space of a group worked out from nothing: slow, plain, and what regions must agree with.

All equations of a group are looked at for each question, where ``regions`` looks at what is new.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.compiler.fusion.legality import MAX_OPERANDS, MAX_SCALAR_OPERANDS
from gpuflow.compiler.fusion.regions import MAX_MEMBERS, MAX_MEMBERS_IN_LOOPS
from gpuflow.compiler.fusion.space import (
    DimKey,
    FusionProgram,
    IterationSpace,
    KernelKind,
    NotOneKernelError,
)
from gpuflow.core.jaxpr import Eqn, Literal, Var
from gpuflow.core.lowering import Elementwise, Indexed, Update


class _Unifier:
    """Union-find on keys, with the equations that have a dimension in each class."""

    def __init__(self) -> None:
        self.parent: dict[DimKey, DimKey] = {}
        self.eqns: dict[DimKey, set[int]] = {}
        self.size: dict[DimKey, int] = {}

    def add(self, key: DimKey, size: int) -> None:
        self.parent[key] = key
        self.eqns[key] = {key[0]}
        self.size[key] = size

    def find(self, key: DimKey) -> DimKey:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def union(self, first: DimKey, second: DimKey) -> bool:
        """Unify two classes; False if an equation would have one axis twice."""
        a, b = self.find(first), self.find(second)
        if a == b:
            return True
        if self.eqns[a] & self.eqns[b] or self.size[a] != self.size[b]:
            return False
        if b < a:
            a, b = b, a
        self.parent[b] = a
        self.eqns[a] |= self.eqns[b]
        return True


def analyse(program: FusionProgram, members: Sequence[int]) -> IterationSpace | None:
    """The space of a group of equations, or None if no single kernel can compute it."""
    try:
        return space_of(program, members)
    except NotOneKernelError:
        return None


def space_of(
    program: FusionProgram, members: Sequence[int], unstored: frozenset[int] = frozenset()
) -> IterationSpace:
    """The space of a group of equations.

    Args:
        program, members: the group.
        unstored: equations whose outputs whoever reads them computes for itself.

    Raises:
        NotOneKernelError: no single kernel can compute it.
    """
    if len(members) > MAX_MEMBERS:
        raise NotOneKernelError(f"it would have more than {MAX_MEMBERS} equations")
    in_loops = [e for e in members if program.iterations[e].sizes]
    if len(in_loops) > MAX_MEMBERS_IN_LOOPS:
        raise NotOneKernelError(
            f"it would have more than {MAX_MEMBERS_IN_LOOPS} equations in loops"
        )
    unifier, real = _unify(program, members)
    classes = {key: unifier.find(key) for key in unifier.parent}
    sizes = {root: unifier.size[root] for root in set(classes.values())}
    real_roots = {unifier.find(key) for key in real}
    units = frozenset(root for root, size in sizes.items() if size == 1 and root not in real_roots)
    domains = {}
    for e in members:
        iteration = program.iterations[e]
        assert iteration is not None
        keys = (classes[e, d] for d in range(len(iteration.sizes)))
        domains[e] = frozenset(key for key in keys if key not in units)
    space = IterationSpace(tuple(members), classes, sizes, units, domains, unstored=unstored)
    _classify(program, space)
    return space


def _unify(program: FusionProgram, members: Sequence[int]) -> tuple[_Unifier, list[DimKey]]:
    unifier = _Unifier()
    inside = set(members)
    for e in members:
        iteration = program.iterations[e]
        assert iteration is not None
        for d, size in enumerate(iteration.sizes):
            unifier.add((e, d), size)
    shared: dict[tuple[Var, int], DimKey] = {}
    tentative: list[tuple[DimKey, DimKey]] = []
    real: list[DimKey] = []
    for e in members:
        eqn, iteration = program.jaxpr.eqns[e], program.iterations[e]
        assert iteration is not None
        if isinstance(eqn.primitive.lower, Indexed | Update) and eqn.inputs:
            real += [(e, d) for d in range(len(iteration.sizes))]
        in_memory = eqn.primitive.lower.operands_in_memory(eqn)
        for number, (atom, links) in enumerate(zip(eqn.inputs, iteration.reads, strict=True)):
            if type(atom) is Literal:
                continue
            source = program.producer.get(atom)
            if source in inside:
                assert source is not None
                if number < in_memory:
                    raise NotOneKernelError(
                        f"{eqn.primitive.name} selects elements of it, so it must be complete"
                    )
                if isinstance(program.jaxpr.eqns[source].primitive.lower, Update):
                    raise NotOneKernelError("the update must be complete before it is read")
                producer = program.iterations[source]
                assert producer is not None
                for dim, axis in links:
                    if not unifier.union((e, axis), (source, producer.out[dim])):
                        raise NotOneKernelError(
                            f"{eqn.primitive.name} would read an array along two axes at once"
                        )
                continue
            view = program.views.get(atom)
            for dim, axis in links:
                if view is None or not view[1].broadcast[dim]:
                    real.append((e, axis))
                first = shared.setdefault((atom, dim), (e, axis))
                if first != (e, axis):
                    tentative.append((first, (e, axis)))
    for first, second in tentative:
        unifier.union(first, second)  # operands in common may be read along different axes
    return unifier, real


def _classify(program: FusionProgram, space: IterationSpace) -> None:
    """Fill in kind, order and the rest."""
    largest = max(space.members, key=lambda e: (len(space.domains[e]), -e))
    domain = space.domains[largest]
    if any(not own <= domain for own in space.domains.values()):
        raise NotOneKernelError("it would loop over axes of several arrays")
    _choose_kind(program, space, domain, largest)
    repeated = _repeated(program, space)
    if repeated is not None:
        name = program.jaxpr.eqns[repeated].primitive.name
        raise NotOneKernelError(f"it would compute {name} again for each element of another axis")


def _choose_kind(
    program: FusionProgram, space: IterationSpace, domain: frozenset[DimKey], largest: int
) -> None:
    space.escaping = program.escaping(space.members, space.unstored)
    most = MAX_OPERANDS if domain else MAX_SCALAR_OPERANDS
    if len(_external_arrays(program, space)) + len(space.escaping) > most:
        raise NotOneKernelError(f"it would have more than {most} arrays")
    reductions = [e for e in space.members if _reduced_axes(program, space, e)]
    if reductions and any(_is_update(program, e) for e in space.members):
        raise NotOneKernelError("it would reduce and update in place")
    if not reductions:
        _classify_map(program, space, domain, largest)
        return
    red = _reduced_axes(program, space, reductions[0])
    if any(_reduced_axes(program, space, e) != red for e in reductions):
        raise NotOneKernelError("it would reduce different axes")
    _classify_reduction(program, space, domain, red, reductions)


def _repeated(program: FusionProgram, space: IterationSpace) -> int | None:
    """A costly equation that a loop which it does not need would run again, or None.

    Loops over inner axes do not: what an equation needs of outer ones only is computed before them.
    """
    place = {key: number for number, key in enumerate(space.loop_order)}
    around: dict[int, frozenset[DimKey]] = {}  # the axes of what an equation is computed for
    inside = set(space.members)
    for e in reversed(space.members):
        eqn, own = program.jaxpr.eqns[e], space.domains[e]
        readers = {r for var in eqn.outputs for r in program.readers.get(var, ()) if r in inside}
        around[e] = own.union(*(around[r] for r in readers))
        if own and own != around[e] and _is_costly(eqn):
            last = max(place.get(key, 0) for key in own)
            if any(place.get(key, last) < last for key in around[e] - own):
                return e
    return None


def _is_costly(eqn: Eqn) -> bool:
    rule = eqn.primitive.lower
    return isinstance(rule, Elementwise) and not rule.cheap


def _external_arrays(program: FusionProgram, space: IterationSpace) -> set[Var]:
    inside = set(space.members)
    return {
        atom
        for e in space.members
        for atom in program.jaxpr.eqns[e].inputs
        if type(atom) is not Literal and program.producer.get(atom) not in inside
    }


def _reduced_axes(
    program: FusionProgram, space: IterationSpace, position: int
) -> frozenset[DimKey]:
    iteration = program.iterations[position]
    assert iteration is not None
    keys = (space.axis_of_key[position, d] for d in iteration.reduced)
    return frozenset(key for key in keys if key not in space.unit_axes)


def _output_domain(program: FusionProgram, space: IterationSpace, var: Var) -> frozenset[DimKey]:
    position = program.producer[var]
    keys = space.axes_of_output(program, position)
    return frozenset(key for key in keys if key not in space.unit_axes)


def _classify_map(
    program: FusionProgram, space: IterationSpace, domain: frozenset[DimKey], largest: int
) -> None:
    if any(_output_domain(program, space, var) != domain for var in space.escaping):
        raise NotOneKernelError("it would store arrays of different axes")
    for e in space.members:
        if _is_update(program, e):
            _classify_update(program, space, e)
    # Loops follow the first stored array, so that stores are contiguous.
    first = program.producer[space.escaping[0]] if space.escaping else largest
    keys = space.axes_of_output(program, first)
    space.kind = KernelKind.MAP
    space.loop_order = tuple(key for key in keys if key not in space.unit_axes)


def _is_update(program: FusionProgram, position: int) -> bool:
    return isinstance(program.jaxpr.eqns[position].primitive.lower, Update)


def _classify_update(program: FusionProgram, space: IterationSpace, position: int) -> None:
    """An update stands alone: nothing else is stored, and nothing reads what it overwrites."""
    eqn = program.jaxpr.eqns[position]
    if space.escaping != eqn.outputs:
        raise NotOneKernelError("it would update in place and store something else")
    done = program.updates.get(position)
    if done is not None and set(done.earlier_readers) & set(space.members):
        raise NotOneKernelError("it would read what it overwrites")
    if eqn.primitive.lower.repeats(eqn.params):
        keys = [space.axis_of_key[position, d] for d in range(eqn.inputs[1].aval.ndim)]
        space.serial_axes = frozenset(key for key in keys if key not in space.unit_axes)


def _classify_reduction(
    program: FusionProgram,
    space: IterationSpace,
    domain: frozenset[DimKey],
    red: frozenset[DimKey],
    reductions: list[int],
) -> None:
    iteration = program.iterations[reductions[0]]
    assert iteration is not None
    lead = reductions[0]
    own = [space.axis_of_key[lead, d] for d in range(len(iteration.sizes))]
    own = [key for key in own if key not in space.unit_axes]
    if frozenset(own) != domain:
        raise NotOneKernelError("it would loop over more axes than the reduction has")
    kept = [key for key in own if key in domain - red]
    is_minor = own == [*kept, *(key for key in own if key in red)]
    dependent = _dependents(program, space, set(reductions))
    full_rank = [e for e in space.members if space.domains[e] & red]
    consumed = any(e in dependent for e in full_rank)
    keep = domain - red
    domains = [_output_domain(program, space, var) for var in space.escaping]
    if any(d not in (domain, keep) for d in domains):
        raise NotOneKernelError("it would store arrays of different axes")
    if consumed and not is_minor:
        raise NotOneKernelError("only a reduction of the last axes can read its operand twice")
    if red == domain:
        if consumed:
            raise NotOneKernelError("a reduction of all elements cannot read them twice")
        space.kind = KernelKind.FULL
    elif is_minor:
        space.kind = KernelKind.ROW
    else:
        space.kind = KernelKind.COLUMN
    space.loop_order = tuple(own)
    space.reduced = red
    space.dependent = frozenset(dependent)


def _dependents(program: FusionProgram, space: IterationSpace, sources: set[int]) -> set[int]:
    """Members that use the result of a reduction, directly or not."""
    found: set[int] = set()
    for e in space.members:  # in program order
        for atom in program.jaxpr.eqns[e].inputs:
            producer = None if type(atom) is Literal else program.producer.get(atom)
            if producer in found or producer in sources:
                found.add(e)
    return found
