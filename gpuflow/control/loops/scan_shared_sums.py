"""Privatization of sums over lanes in a scan: a partial sum per lane in the loop, one sum after.

A lane is an element of a batch whose loops run independently. The cotangent of an unmapped
parameter is a carry that sums over lanes, so the loop could not run per lane. With a partial sum
for each lane it can:

    total += f(reduce_sum(x))      becomes     totals[lane] += f(x[lane])
                                               total + reduce_sum(totals)   after the loop

``f`` must be linear. The sum may also be a product that contracts lanes. Partial sums of 16-bit
floats are float32.

Tests: tests/experimental/test_rnn.py, tests/control/test_scan_recompute.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import Replacement, dce, inline, is_call
from gpuflow.control.loops.scan_fission import added_term, copy_program, uses_in
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Reduction, block_of
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.core.rules import AxisData
from gpuflow.core.staging import trace_closed
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.axes import insert_axis, reduce_sum
from gpuflow.ops.layout.transpose import transpose
from gpuflow.ops.zeros import zeros_of
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.jvp import jvp_jaxpr

# Elements of partial sums per lane. If there are more, a product of matrices takes less time.
MAX_TOTALS = 16
Shape = tuple[int, ...]
Definition = Callable[[Any], Eqn | None]


@record
class _Sum:
    """An equation that sums over lanes.

    Attributes:
        eqn: a sum reduction or a product.
        dims: for each operand, from a summed lane to its dimension.
    """

    eqn: Eqn
    dims: tuple[dict[int, int], ...]


@record
class _Total:
    """A carry that only accumulates sums over lanes.

    Attributes:
        index: index among the carries.
        term: the summand.
        shape: shape of the partial sums of all lanes.
        axes: the axes of ``shape`` of the summed lanes.
    """

    index: int
    term: Atom
    shape: Shape
    axes: tuple[int, ...]


@record
class _Group:
    """Carries that accumulate sums over the same lanes (``totals``), and these ``sums``."""

    totals: list[_Total]
    sums: list[_Sum]


def shared_sums(
    eqn: Eqn, lanes: Shape, definition: Definition
) -> tuple[list[Eqn], list[Atom]] | None:
    """Move sums over lanes out of a scan.

    Args:
        eqn: the scan.
        lanes: the sizes of the lanes' dimensions. A dimension is recognized by its size alone.
        definition: from an atom to the equation that computes it, or None.

    Returns:
        New equations and their outputs; None if the scan has no such sums.
    """
    params = eqn.params
    program = inline(params["jaxpr"].jaxpr, is_call)
    if program.constvars or program.effects:
        return None
    body, changed = _inner_extracted(program, lanes)
    body = dce(body)
    first, count = params["num_consts"], params["num_carry"]
    operands, extracted = list(eqn.inputs), []
    zero_inits: list[tuple[int, ShapedArray]] = []
    for group in _groups(body, lanes, first, count):
        partial_elements = sum(prod(total.shape) for total in group.totals)
        is_small = partial_elements <= MAX_TOTALS * prod(lanes)
        wide = _wide_body(body, lanes, first, group) if is_small else None
        if wide is None:
            continue
        body = wide
        extracted += group.totals
        for total in group.totals:
            zero_inits.append((first + total.index, body.in_avals[first + total.index]))
    if not extracted and not changed:
        return None
    build = Replacement(eqn.source)
    for k, aval in zero_inits:
        (operands[k],) = copy_program(build, trace_closed(partial(_zeros, aval), []), [])
    changes = {**params, "jaxpr": ClosedJaxpr(body)}
    outs = list(build.apply(eqn.primitive, *operands, **changes))
    for total in extracted:
        init = eqn.inputs[first + total.index]
        outs[total.index] = _summed(build, total, outs[total.index], init, definition)
    return build.eqns, outs


def _zeros(aval: ShapedArray) -> list[Any]:
    return [zeros_of(aval)]


def _partial_sum_type(aval: ShapedArray, shape: Shape) -> ShapedArray:
    """The type of the partial sums of a carry; those of 16-bit floats are float32."""
    is_half = dtypes.is_floating(aval.dtype) and aval.dtype.itemsize < 4
    return ShapedArray(shape, np.dtype(np.float32) if is_half else aval.dtype)


def _summed(
    build: EqnBuilder, total: _Total, out: Atom, init: Atom, definition: Definition
) -> Atom:
    """The sum of the partial sums and the initial value."""
    is_zero = _is_zero(init, definition)

    def add_up(totals: Any, start: Any) -> list[Any]:
        whole = reduce_sum(totals, total.axes)
        if not is_zero:
            whole = add_any_p.bind(convert_element_type(start, aval_of(whole).dtype), whole)
        return [convert_element_type(whole, init.aval.dtype, init.aval.weak_type)]

    program = trace_closed(add_up, [out.aval, init.aval])
    return copy_program(build, program, [out, init])[0]


def _inner_extracted(body: Jaxpr, lanes: Shape) -> tuple[Jaxpr, bool]:
    """The body, with sums over lanes moved after the loops in it."""
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    definitions: dict[Var, Eqn] = {}
    for eqn in body.eqns:
        if env:
            inputs = tuple(env.get(a, a) if type(a) is Var else a for a in eqn.inputs)
            eqn = eqn.replace(inputs=inputs)
        rule, extracted, new_eqns = eqn.primitive.lower, None, [eqn]
        if rule.shared_sums is not None:
            extracted = rule.shared_sums(eqn, lanes, definitions.get)
        if extracted is not None:
            new_eqns, outs = extracted
            env.update(safe_zip(eqn.outputs, outs))
        definitions.update({var: source for source in new_eqns for var in source.outputs})
        eqns += new_eqns
    if not env:
        return body, False
    outvars = tuple(env.get(a, a) if type(a) is Var else a for a in body.outvars)
    return body.replace(eqns=tuple(eqns), outvars=outvars), True


# --- the carries -----------------------------------------------------------------------------


def _groups(body: Jaxpr, lanes: Shape, first: int, count: int) -> list[_Group]:
    """The carries that only accumulate sums over lanes, grouped by these lanes.

    Empty if any other value of the body depends on such a sum.
    """
    uses = uses_in(body.eqns, body.outvars)
    summed_by: dict[Atom, frozenset[int]] = {}  # from a value that depends on a sum to summed lanes
    sums: dict[frozenset[int], list[_Sum]] = {}
    for eqn in body.eqns:
        inherited = {summed_by[a] for a in eqn.inputs if a in summed_by}
        summing = None if inherited else _sum_over_lanes(eqn, lanes)
        if summing is not None:
            inherited = {frozenset(summing.dims[0])}
            sums.setdefault(*inherited, []).append(summing)
        if len(inherited) > 1:
            return []
        summed_by.update({var: summed_lanes for var in eqn.outputs for summed_lanes in inherited})
    totals: dict[frozenset[int], list[_Total]] = {}
    for index, out in enumerate(body.outvars):
        if out not in summed_by:
            continue
        if index >= count:
            return []  # a stacked result depends on the sum, in each iteration
        carry = body.invars[first + index]
        term = added_term(carry, out, uses)
        if term is None or term not in summed_by:
            return []
        shape, axes = _shape_with_lanes(carry.aval.shape, lanes, summed_by[out])
        totals.setdefault(summed_by[out], []).append(_Total(index, term, shape, axes))
    return [_Group(totals[summed_lanes], sums[summed_lanes]) for summed_lanes in totals]


def _sum_over_lanes(eqn: Eqn, lanes: Shape) -> _Sum | None:
    """The description of an equation that sums over lanes; None for others."""
    rule, out = eqn.primitive.lower, eqn.outputs[0].aval if len(eqn.outputs) == 1 else None
    if out is None or not dtypes.is_inexact(out.dtype):
        return None
    block = block_of(eqn)
    if isinstance(rule, Reduction) and rule.combine == "add":
        summed = [tuple(eqn.params["axes"])]
    elif isinstance(block, Product):
        summed = [block.left[2], block.right[1]]
    else:
        return None
    shape, unmatched = eqn.inputs[0].aval.shape, list(lanes)
    of_lane: dict[int, int] = {}  # from a dimension of the first operand to its lane
    for d, size in enumerate(shape):
        if size in unmatched:
            of_lane[d] = unmatched.index(size)
            unmatched[of_lane[d]] = -1
    positions = [k for k, d in enumerate(summed[0]) if d in of_lane]
    if not positions:
        return None
    lane_ids = [of_lane[summed[0][k]] for k in positions]
    dims = [{n: each[k] for n, k in safe_zip(lane_ids, positions)} for each in summed]
    return _Sum(eqn, tuple(dims))


def _shape_with_lanes(shape: Shape, lanes: Shape, missing: frozenset[int]) -> tuple[Shape, Shape]:
    """A shape with all lanes in front, and the axes of the lanes in ``missing``."""
    sizes: list[int] = []
    axes: list[int] = []
    remaining = list(shape)
    for lane, size in enumerate(lanes):
        if lane in missing:
            axes.append(len(sizes))
            sizes.append(size)
        elif remaining and remaining[0] == size:
            sizes.append(remaining.pop(0))
    return (*sizes, *remaining), tuple(axes)


# --- the new body ------------------------------------------------------------------------------


def _wide_body(body: Jaxpr, lanes: Shape, first: int, group: _Group) -> Jaxpr | None:
    """The body with a partial sum for each lane; None if terms are not linear in the sums."""
    totals, sums = group.totals, group.sums
    sum_outputs = [lane_sum.eqn.outputs[0] for lane_sum in sums]
    dependent: set[Atom] = set(sum_outputs)
    chain: list[Eqn] = []
    independent: list[Eqn] = []
    for eqn in body.eqns:
        if not dependent.isdisjoint(eqn.inputs):
            dependent.update(eqn.outputs)
            chain.append(eqn)
        elif dependent.isdisjoint(eqn.outputs):
            independent.append(eqn)
    program = dce(Jaxpr((), (), tuple(total.term for total in totals), tuple(chain)))
    others = list(
        dict.fromkeys(
            a for eqn in program.eqns for a in eqn.inputs if type(a) is Var and a not in dependent
        )
    )
    program = program.replace(invars=(*others, *sum_outputs))
    if not _is_linear(program, len(others)):
        return None
    factors = [atom for lane_sum in sums for atom in lane_sum.eqn.inputs]
    carries = [body.invars[first + total.index] for total in totals]
    partial_sums = [Var(_partial_sum_type(v.aval, t.shape)) for v, t in safe_zip(carries, totals)]
    step = _step(ClosedJaxpr(program), lanes, group, len(others))
    operands = [*others, *factors, *partial_sums]
    build = Replacement(None)
    new = copy_program(build, trace_closed(step, [a.aval for a in operands]), operands)
    outvars, invars = list(body.outvars), list(body.invars)
    for total, var, out in safe_zip(totals, partial_sums, new):
        invars[first + total.index], outvars[total.index] = var, out
    eqns = (*independent, *build.eqns)
    return dce(body.replace(invars=tuple(invars), outvars=tuple(outvars), eqns=eqns))


def _step(program: ClosedJaxpr, lanes: Shape, group: _Group, num_others: int) -> Any:
    """``(*others, *factors, *carries) -> new carries``, separately for each lane.

    Args:
        program: ``(*others, *sums) -> terms``.
        lanes: sizes of the lanes.
        group: the carries and sums.
        num_others: the number of inputs that do not depend on summed lanes.
    """
    factors = [dims for lane_sum in group.sums for dims in lane_sum.dims]
    lane_ids = sorted(factors[0])

    def of_one_lane(*values: Any) -> list[Any]:
        """The terms of one lane: applied to one lane, a sum's equation gives its summand."""
        remaining = iter(values[num_others:])
        points = []
        for lane_sum in group.sums:
            operands = []
            for dims in lane_sum.dims:
                operand = next(remaining)
                for d in sorted(dims.values()):
                    operand = insert_axis(operand, d)
                operands.append(operand)
            points.append(lane_sum.eqn.primitive.bind(*operands, **lane_sum.eqn.params))
        return program(*values[:num_others], *points)

    def step(*values: Any) -> list[Any]:
        end = len(values) - len(group.totals)
        extracted = list(values[:end])
        for k, dims in enumerate(factors, num_others):
            front = [dims[lane] for lane in lane_ids]
            other_dims = [d for d in range(aval_of(values[k]).ndim) if d not in front]
            extracted[k] = transpose(values[k], (*front, *other_dims))
        is_mapped = (*[False] * num_others, *[True] * len(factors))
        avals = [aval_of(value) for value in extracted]
        batched = trace_closed(
            of_one_lane,
            [a.update(shape=a.shape[len(lane_ids) * f :]) for a, f in safe_zip(avals, is_mapped)],
        )
        for lane in reversed(lane_ids):
            axis = AxisData(None, lanes[lane])
            batched, _ = batch_jaxpr(batched, axis, is_mapped, (True,) * len(group.totals))
        results = []
        for total, term, carry in safe_zip(group.totals, batched(*extracted), values[end:]):
            other_dims = [d for d in range(len(total.shape)) if d not in total.axes]
            order = np.argsort([*total.axes, *other_dims]).tolist()
            summand = convert_element_type(transpose(term, order), aval_of(carry).dtype)
            results.append(add_any_p.bind(carry, summand))
        return results

    return step


# --- linear programs ---------------------------------------------------------------------------


def _is_linear(program: Jaxpr, num_fixed: int) -> bool:
    """Whether a program is linear in its inputs after the first ``num_fixed``.

    The test: a linear program is its own derivative.
    """
    if any(
        eqn.primitive.derivatives.jvp is None or eqn.primitive.batch is None for eqn in program.eqns
    ):
        return False
    count = len(program.invars)
    flags = (*[False] * num_fixed, *[True] * (count - num_fixed))
    outs = (True,) * len(program.outvars)
    derivative, nonzeros = jvp_jaxpr(ClosedJaxpr(program), flags, outs)
    if derivative.consts or not all(nonzeros):
        return False
    inner = derivative.jaxpr
    tangents = dce(inner.replace(outvars=inner.outvars[len(outs) :]))
    inputs = (*inner.invars[:num_fixed], *inner.invars[count:])
    return _are_same(program, tangents.replace(invars=inputs))


def _are_same(first_program: Jaxpr, second_program: Jaxpr) -> bool:
    """Whether two programs have the same equations in the same order."""
    corresponding: dict[Atom, Var] = dict(safe_zip(first_program.invars, second_program.invars))
    defines_first, defines_second = (
        {var: eqn for eqn in program.eqns for var in eqn.outputs}.get
        for program in (first_program, second_program)
    )

    def equal(a: Atom, b: Atom) -> bool:
        if _is_zero(a, defines_first) and _is_zero(b, defines_second):
            return True
        if type(a) is Literal and type(b) is Literal:
            return np.array_equal(np.asarray(a.value), np.asarray(b.value))
        return type(a) is Var and corresponding.get(a) is b

    eqns = [eqn for eqn in first_program.eqns if not _is_zero(eqn.outputs[0], defines_first)]
    others = [eqn for eqn in second_program.eqns if not _is_zero(eqn.outputs[0], defines_second)]
    if len(eqns) != len(others):
        return False
    for first, second in safe_zip(eqns, others):
        if first.primitive is not second.primitive or first.params != second.params:
            return False
        if not all(equal(a, b) for a, b in safe_zip(first.inputs, second.inputs)):
            return False
        corresponding.update(safe_zip(first.outputs, second.outputs))
    return all(equal(a, b) for a, b in safe_zip(first_program.outvars, second_program.outvars))


def _is_zero(atom: Atom, definition: Definition) -> bool:
    """Whether all elements of an atom are 0, according to its equations."""
    if type(atom) is Literal:
        return bool(np.all(np.asarray(atom.value) == 0))
    eqn = definition(atom)
    if eqn is None or eqn.primitive.lower.view is None:
        return False
    return _is_zero(eqn.inputs[0], definition)
