"""Work that need not wait for an iteration leaves a scan, where a library does it all at once.

A product of xs and consts alone is made for all elements before the loop. A carry that only adds up
products (the cotangent of a weight) becomes one product after the loop, of the stacked factors:

    total += outer(x[t], ct[t])   becomes   total + contract(x, ct) over t and the batch
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.rules import AxisData
from gpuflow.core.staging import trace_closed
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.transforms.batching import batch_jaxpr

# What leaves the loop may take this many times the memory of the xs that it is made of.
MOST_GROWTH = 2


@record
class Parts:
    """A decomposed scan: variables of the body with their outer operands.

    Attributes:
        eqns: of the body.
        consts, carry, xs: from a variable of the body to the outer value; in order.
        carry_out: for each carry the atom that is its next value.
        ys: the atoms that are stacked.
        length: the number of iterations.
    """

    eqns: tuple[Eqn, ...]
    consts: dict[Var, Atom]
    carry: dict[Var, Atom]
    xs: dict[Var, Atom]
    carry_out: tuple[Atom, ...]
    ys: tuple[Atom, ...]
    length: int


def copy_into(build: Any, eqn: Eqn, outer: dict[Var, Atom]) -> None:
    """Repeat an equation outside; ``outer`` maps its variables, and gets its outputs."""
    inputs = [atom if type(atom) is Literal else outer[atom] for atom in eqn.inputs]
    outs = build.apply(eqn.primitive, *inputs, **eqn.params)
    outs = outs if eqn.primitive.multiple_results else (outs,)
    outer.update(zip(eqn.outputs, outs, strict=True))


def copy_program(build: Any, program: ClosedJaxpr, operands: Sequence[Atom]) -> list[Atom]:
    """Repeat a program's equations outside; its outputs for ``operands``.

    Programs in them, which batching may have made, are opened: nobody does that later.
    """
    inner = inline(program.jaxpr)
    outer: dict[Var, Atom] = dict(safe_zip(inner.invars, operands))
    for eqn in inner.eqns:
        copy_into(build, eqn, outer)
    return [atom if type(atom) is Literal else outer[atom] for atom in inner.outvars]


# --- before the loop -----------------------------------------------------------------------


def products_first(parts: Parts, build: Any) -> Parts | None:
    """Make products of xs and consts for all elements at once; None if there are none."""
    origin: dict[Var, frozenset[Var]] = {var: frozenset([var]) for var in parts.xs}
    origin.update({var: frozenset() for var in parts.consts})
    producers: dict[Var, Eqn] = {}
    xs = dict(parts.xs)
    kept: list[Eqn] = []
    for eqn in parts.eqns:
        kept.append(eqn)
        known = all(type(a) is Literal or a in origin for a in eqn.inputs)
        # What simplifying made for the compiler alone has no rule for all elements at once. Of a
        # branch or loop each element does its own.
        if eqn.effects or eqn.primitive.batch is None or not known:
            continue
        if eqn.primitive.lower.runs_programs:
            continue
        leaves = frozenset().union(*[origin[a] for a in eqn.inputs if type(a) is not Literal])
        origin.update({var: leaves for var in eqn.outputs})
        producers.update({var: eqn for var in eqn.outputs})
        rule = eqn.primitive.lower
        growth = sum(v.aval.size for v in eqn.outputs), sum(v.aval.size for v in leaves)
        summable = rule.summed is not None
        if not (summable and leaves and growth[0] <= MOST_GROWTH * growth[1]):
            continue
        needed = _closure(eqn.outputs, producers)
        products = _for_all_elements(parts, build, needed, eqn.outputs)
        kept.pop()
        xs.update(safe_zip(eqn.outputs, products))
    if len(xs) == len(parts.xs):
        return None
    return replace(parts, eqns=tuple(kept), xs=xs)


def _closure(outputs: Sequence[Var], producers: dict[Var, Eqn]) -> list[Eqn]:
    """The equations that make ``outputs``, in order."""
    needed: dict[int, Eqn] = {}

    def visit(var: Atom) -> None:
        eqn = None if type(var) is Literal else producers.get(var)
        if eqn is not None and id(eqn) not in needed:
            for atom in eqn.inputs:
                visit(atom)
            needed[id(eqn)] = eqn

    for var in outputs:
        visit(var)
    return list(needed.values())


def _for_all_elements(
    parts: Parts, build: Any, eqns: Sequence[Eqn], outputs: Sequence[Var]
) -> list[Atom]:
    """The outputs of equations of xs and consts, with the scanned axis in front."""
    inputs = [*parts.consts, *parts.xs]
    program = ClosedJaxpr(Jaxpr((), tuple(inputs), tuple(outputs), tuple(eqns)))
    flags = (*[False] * len(parts.consts), *[True] * len(parts.xs))
    return _over_iterations(parts, build, program, flags, summed=False)


def _over_iterations(
    parts: Parts, build: Any, program: ClosedJaxpr, flags: tuple[bool, ...], summed: bool,
    operands: Sequence[Atom] = (),
) -> list[Atom]:  # fmt: skip
    axis = AxisData(None, parts.length)
    count = len(program.out_avals)
    batched, _ = batch_jaxpr(program, axis, flags, (True,) * count)
    if summed:
        batched = trace_closed(
            lambda *values: [reduce_sum(out, (0,)) for out in batched(*values)], batched.in_avals
        )
    assert not batched.jaxpr.constvars  # rules of library and layout ops make no arrays
    return copy_program(
        build, batched, operands or [*parts.consts.values(), *parts.xs.values()]
    )


# --- after the loop ------------------------------------------------------------------------


@record
class Sum:
    """A carry that only accumulates the results of one library equation.

    Attributes:
        carry: its variable in the body.
        eqns: the equation, and layout operations after it.
        term: the summand.
        factors: variables of the body that the equation reads.
    """

    carry: Var
    eqns: tuple[Eqn, ...]
    term: Var
    factors: tuple[Var, ...]


@record
class Uses:
    """Who makes and who reads the variables of a body.

    Attributes:
        producers: of each variable the equation that makes it.
        readers: of each variable how often it is read, as a result of the body, too.
    """

    producers: dict[Var, Eqn]
    readers: Counter[Var]


def uses_in(eqns: Sequence[Eqn], outs: Iterable[Atom]) -> Uses:
    """The uses of variables in a body with these results."""
    atoms = (*[atom for eqn in eqns for atom in eqn.inputs], *outs)
    readers = Counter(atom for atom in atoms if type(atom) is Var)
    return Uses({var: eqn for eqn in eqns for var in eqn.outputs}, readers)


def added_term(carry: Var, out: Atom, uses: Uses) -> Atom | None:
    """The summand of an iteration to a carry with the next value ``out``.

    None: it does something else with it, or something else reads one of the two. Only derivatives
    add up with ``add_any``; users' sums keep their order.
    """
    eqn = uses.producers.get(out) if type(out) is Var else None
    if eqn is None or eqn.primitive is not add_any_p or carry not in eqn.inputs:
        return None
    if uses.readers[carry] != 1 or uses.readers[eqn.outputs[0]] != 1:
        return None
    return eqn.inputs[1 - eqn.inputs.index(carry)]


def find_sums(parts: Parts) -> list[Sum]:
    """The carries that may leave the loop."""
    uses = uses_in(parts.eqns, (*parts.carry_out, *parts.ys))
    sums = []
    for carry, out in safe_zip(parts.carry, parts.carry_out):
        term = added_term(carry, out, uses)
        product = _product(term, uses) if isinstance(term, Var) else None
        if product is not None and isinstance(term, Var) and _is_worthwhile(product, parts):
            sums.append(Sum(carry, tuple(product), term, _factors(product)))
    return sums


def _product(term: Var, uses: Uses) -> list[Eqn] | None:
    """The library equation behind ``term``, and layout operations between; nobody else reads."""
    eqns: list[Eqn] = []
    while True:
        eqn = uses.producers.get(term)
        if eqn is None or uses.readers[term] != 1:
            return None
        eqns.insert(0, eqn)
        rule = eqn.primitive.lower
        if rule.summed is not None:
            return eqns
        if rule.view is None or type(eqn.inputs[0]) is Literal:
            return None
        term = eqn.inputs[0]


def _factors(eqns: Sequence[Eqn]) -> tuple[Var, ...]:
    return tuple(dict.fromkeys(a for a in eqns[0].inputs if type(a) is not Literal))


def _is_worthwhile(eqns: Sequence[Eqn], parts: Parts) -> bool:
    """Stacking the factors must not take more memory traffic than adding up the products."""
    outside = {**parts.consts, **parts.xs}
    stacked = sum(a.aval.size for a in _factors(eqns) if a not in outside)
    return stacked <= eqns[0].outputs[0].aval.size


def sum_afterwards(
    parts: Parts, build: Any, total: Sum, stacks: dict[Var, Atom], init: Atom
) -> Atom:
    """``init`` and the sum of all terms; ``stacks`` holds factors that the loop has stacked."""
    outside = {**parts.consts, **parts.xs, **stacks}
    program = ClosedJaxpr(Jaxpr((), total.factors, (total.term,), total.eqns))
    flags = tuple(factor not in parts.consts for factor in total.factors)
    summed = _over_iterations(
        parts, build, program, flags, True, [outside[factor] for factor in total.factors]
    )
    return build.apply(add_any_p, init, summed[0])
