"""Loop fission of scans: products that do not depend on carries become one library call outside.

A product of xs and consts alone is computed for all elements before the loop. A carry that only
adds up products (the cotangent of a weight) becomes one product of the stacked factors after it:

    total += outer(x[t], ct[t])   becomes   total + contract(x, ct) over t and the batch

Tests: tests/control/test_scan_fission.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.core.rules import AxisData
from gpuflow.core.staging import trace_closed
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.transforms.batching import batch_jaxpr

# Bound on the size of hoisted products, relative to the xs that they depend on.
MAX_GROWTH = 2


@record
class DecomposedScan:
    """A scan by roles: the variables of the body, each with the operand of the equation.

    Attributes:
        eqns: the equations of the body.
        consts, carry, xs: from an input variable of the body to its operand; in order.
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


def copy_into(build: EqnBuilder, eqn: Eqn, outer: dict[Var, Atom]) -> None:
    """Copy an equation to the outer program; ``outer``, which maps variables, gets its outputs."""
    inputs = [atom if type(atom) is Literal else outer[atom] for atom in eqn.inputs]
    outs = build.apply(eqn.primitive, *inputs, **eqn.params)
    outs = outs if eqn.primitive.multiple_results else (outs,)
    outer.update(zip(eqn.outputs, outs, strict=True))


def copy_program(build: EqnBuilder, program: ClosedJaxpr, operands: Sequence[Atom]) -> list[Atom]:
    """Copy a program's equations to the outer program; returns its outputs for ``operands``.

    Calls in them, which batching may have made, are inlined: no later pass does that.
    """
    inner = inline(program.jaxpr)
    outer: dict[Var, Atom] = dict(safe_zip(inner.invars, operands))
    for eqn in inner.eqns:
        copy_into(build, eqn, outer)
    return [atom if type(atom) is Literal else outer[atom] for atom in inner.outvars]


# --- before the loop -----------------------------------------------------------------------


def products_first(loop: DecomposedScan, build: EqnBuilder) -> DecomposedScan | None:
    """Compute products of xs and consts for all elements at once; None if there are none."""
    origin: dict[Var, frozenset[Var]] = {var: frozenset([var]) for var in loop.xs}
    origin.update({var: frozenset() for var in loop.consts})
    producers: dict[Var, Eqn] = {}
    xs = dict(loop.xs)
    remaining: list[Eqn] = []
    for eqn in loop.eqns:
        remaining.append(eqn)
        is_invariant = all(type(a) is Literal or a in origin for a in eqn.inputs)
        # Internal ops of simplification have no batching rule. Branches and loops stay in the loop.
        if eqn.effects or eqn.primitive.batch is None or not is_invariant:
            continue
        if eqn.primitive.lower.runs_programs:
            continue
        leaves = frozenset().union(*[origin[a] for a in eqn.inputs if type(a) is not Literal])
        origin.update({var: leaves for var in eqn.outputs})
        producers.update({var: eqn for var in eqn.outputs})
        rule = eqn.primitive.lower
        growth = sum(v.aval.size for v in eqn.outputs), sum(v.aval.size for v in leaves)
        summable = rule.summed is not None
        if not (summable and leaves and growth[0] <= MAX_GROWTH * growth[1]):
            continue
        needed = _closure(eqn.outputs, producers)
        products = _for_all_elements(loop, build, needed, eqn.outputs)
        remaining.pop()
        xs.update(safe_zip(eqn.outputs, products))
    if len(xs) == len(loop.xs):
        return None
    return replace(loop, eqns=tuple(remaining), xs=xs)


def _closure(outputs: Sequence[Var], producers: dict[Var, Eqn]) -> list[Eqn]:
    """The equations that compute ``outputs``, in order."""
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
    loop: DecomposedScan, build: EqnBuilder, eqns: Sequence[Eqn], outputs: Sequence[Var]
) -> list[Atom]:
    """Compute equations of xs and consts for all iterations; the scanned axis comes first."""
    inputs = [*loop.consts, *loop.xs]
    program = ClosedJaxpr(Jaxpr((), tuple(inputs), tuple(outputs), tuple(eqns)))
    flags = (*[False] * len(loop.consts), *[True] * len(loop.xs))
    return _over_iterations(loop, build, program, flags, summed=False)


def _over_iterations(
    loop: DecomposedScan,
    build: EqnBuilder,
    program: ClosedJaxpr,
    flags: tuple[bool, ...],
    summed: bool,
    operands: Sequence[Atom] = (),
) -> list[Atom]:
    """Copy a program, batched over the iterations, to the outer program.

    Args:
        program: the computation of one iteration.
        flags: for each input, whether its operand has the scanned axis.
        summed: whether to sum the outputs over the iterations.
        operands: the outer values of the inputs; default: consts and xs.
    """
    axis = AxisData(None, loop.length)
    count = len(program.out_avals)
    batched, _ = batch_jaxpr(program, axis, flags, (True,) * count)
    if summed:
        batched = trace_closed(
            lambda *values: [reduce_sum(out, (0,)) for out in batched(*values)], batched.in_avals
        )
    assert not batched.jaxpr.constvars  # rules of library and layout ops make no arrays
    return copy_program(build, batched, operands or [*loop.consts.values(), *loop.xs.values()])


# --- after the loop ------------------------------------------------------------------------


@record
class Sum:
    """A carry that only accumulates the results of one library equation.

    Attributes:
        carry: the variable of the carry in the body.
        eqns: the library equation, and layout operations after it.
        term: the summand, output of the last equation.
        factors: variables of the body that the library equation reads.
    """

    carry: Var
    eqns: tuple[Eqn, ...]
    term: Var
    factors: tuple[Var, ...]


@record
class Uses:
    """Producers and readers of the variables of a body.

    Attributes:
        producers: from a variable to the equation that computes it.
        readers: from a variable to its number of reads, including results of the body.
    """

    producers: dict[Var, Eqn]
    readers: Counter[Var]


def uses_in(eqns: Sequence[Eqn], outs: Iterable[Atom]) -> Uses:
    """The uses of variables in a body with these results."""
    atoms = (*[atom for eqn in eqns for atom in eqn.inputs], *outs)
    readers = Counter(atom for atom in atoms if type(atom) is Var)
    return Uses({var: eqn for eqn in eqns for var in eqn.outputs}, readers)


def added_term(carry: Var, out: Atom, uses: Uses) -> Atom | None:
    """The term that an iteration adds to a carry with the next value ``out``.

    None if the carry is not a sum, or anything else reads the carry or ``out``. Only derivatives
    add up with ``add_any``; users' sums keep their order.
    """
    eqn = uses.producers.get(out) if type(out) is Var else None
    if eqn is None or eqn.primitive is not add_any_p or carry not in eqn.inputs:
        return None
    if uses.readers[carry] != 1 or uses.readers[eqn.outputs[0]] != 1:
        return None
    return eqn.inputs[1 - eqn.inputs.index(carry)]


def find_sums(loop: DecomposedScan) -> list[Sum]:
    """The carries that can be computed after the loop as one product of stacked factors."""
    uses = uses_in(loop.eqns, (*loop.carry_out, *loop.ys))
    sums = []
    for carry, out in safe_zip(loop.carry, loop.carry_out):
        term = added_term(carry, out, uses)
        product = _product(term, uses) if isinstance(term, Var) else None
        if product is not None and isinstance(term, Var) and _is_worthwhile(product, loop):
            sums.append(Sum(carry, tuple(product), term, _factors(product)))
    return sums


def _product(term: Var, uses: Uses) -> list[Eqn] | None:
    """The library equation that computes ``term``, and layout operations after it.

    None if another operation computes it, or if an intermediate value has other readers.
    """
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


def _is_worthwhile(eqns: Sequence[Eqn], loop: DecomposedScan) -> bool:
    """Stacking the factors must not take more memory traffic than adding up the products."""
    external = {**loop.consts, **loop.xs}
    stacked = sum(a.aval.size for a in _factors(eqns) if a not in external)
    return stacked <= eqns[0].outputs[0].aval.size


def sum_afterwards(
    loop: DecomposedScan, build: EqnBuilder, total: Sum, stacks: dict[Var, Atom], init: Atom
) -> Atom:
    """``init`` and the sum of all terms; ``stacks`` holds factors that the loop has stacked."""
    external = {**loop.consts, **loop.xs, **stacks}
    program = ClosedJaxpr(Jaxpr((), total.factors, (total.term,), total.eqns))
    flags = tuple(factor not in loop.consts for factor in total.factors)
    summed = _over_iterations(
        loop, build, program, flags, True, [external[factor] for factor in total.factors]
    )
    return build.apply(add_any_p, init, summed[0])
