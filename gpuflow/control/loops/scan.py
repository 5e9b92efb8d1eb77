"""``scan_p``: a loop of static length over carries and leading axes, and its rules.

The operands are ``(*consts, *init, *xs)``, the outputs ``(*carry, *ys)``. The body is a program
``(*consts, *carry, *x) -> (*carry, *y)`` without constants. The rules map bodies to bodies and bind
``scan_p`` again. ``scan_and_map`` has the public function.

Tests: tests/control/test_control_nesting.py, tests/control/test_scan_recompute.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.partial_evaluation import recompute_scan
from gpuflow.control.loops.pruning import prune_scan
from gpuflow.control.loops.scan_consts import recompute_consts, updated_elements
from gpuflow.control.loops.scan_derivative import linearize_scan, partial_scan, transpose_scan
from gpuflow.control.loops.scan_independent import independent_iterations
from gpuflow.control.loops.scan_shared_sums import shared_sums
from gpuflow.control.loops.scan_simplify import simplify_scan
from gpuflow.control.loops.scan_unroll import unroll_scan
from gpuflow.control.program_rules import check_types
from gpuflow.control.programs import close, execute_alone, with_inputs
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn
from gpuflow.core.key_use import Flow, KeyState, States, follow_program, slice_states, spend
from gpuflow.core.lowering import Loop, ScanForm
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Zero
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.checking import Categories, State, blank, checked_jaxpr, first_failure
from gpuflow.transforms.jvp import jvp_jaxpr


def bind_scan(
    jaxpr: ClosedJaxpr,
    consts: Sequence[Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    *,
    length: int,
    reverse: bool,
    unroll: int,
) -> list[Any]:
    """Bind a body; its own constants become leading consts."""
    jaxpr, closed = close(jaxpr)
    return scan_p.bind(
        *closed,
        *consts,
        *init,
        *xs,
        jaxpr=jaxpr,
        length=length,
        reverse=reverse,
        unroll=unroll,
        num_consts=len(closed) + len(consts),
        num_carry=len(init),
    )


def _shape(
    *avals: ShapedArray,
    jaxpr: ClosedJaxpr,
    length: int,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> list[ShapedArray]:
    del params
    split = num_consts + num_carry
    ins = jaxpr.in_avals
    expected_avals = [*ins[:split], *[stacked(aval, length) for aval in ins[split:]]]
    for operand, expected in safe_zip(avals, expected_avals):
        if (operand.shape, operand.dtype) != (expected.shape, expected.dtype):
            raise TypeError(
                f"[scan] operands must match the traced body; got {operand} for {expected}. "
                "Fix: the rule that bound this scan; programs cannot cause it."
            )
    outs = jaxpr.out_avals
    check_types("scan", "carries", outs[:num_carry], jaxpr.in_avals[num_consts:split])
    return [*outs[:num_carry], *[stacked(aval, length) for aval in outs[num_carry:]]]


def stacked(aval: ShapedArray, length: int) -> ShapedArray:
    """The aval of ``length`` elements of ``aval`` along a new leading axis."""
    return aval.update(shape=(length, *aval.shape))


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """The jvp rule: one scan over primals and tangents."""
    nonzeros = [type(tangent) is not Zero for tangent in tangents]
    split = num_consts + num_carry
    num_ys = len(jaxpr.out_avals) - num_carry
    # Fixed point: a carry that gets a tangent in an iteration has one from the beginning.
    while True:
        requested = (*nonzeros[num_consts:split], *[False] * num_ys)
        body, out_nonzeros = jvp_jaxpr(jaxpr, tuple(nonzeros), requested)
        if list(out_nonzeros[:num_carry]) == nonzeros[num_consts:split]:
            break
        nonzeros[num_consts:split] = out_nonzeros[:num_carry]
    full_tangents = [instantiate(t) if flag else None for t, flag in safe_zip(tangents, nonzeros)]
    body = _interleave_jvp(body, nonzeros, out_nonzeros, num_consts, num_carry)
    roles = [slice(0, num_consts), slice(num_consts, split), slice(split, None)]
    consts, init, xs = [
        [*primals[role], *[t for t in full_tangents[role] if t is not None]] for role in roles
    ]
    results = bind_scan(body, consts, init, xs, **params)
    carry_end = num_carry + sum(out_nonzeros[:num_carry])
    outs = [*results[:num_carry], *results[carry_end : carry_end + num_ys]]
    remaining = iter([*results[num_carry:carry_end], *results[carry_end + num_ys :]])
    out_tangents = [
        next(remaining) if flag else Zero(aval_of(out).tangent())
        for out, flag in safe_zip(outs, out_nonzeros)
    ]
    return outs, out_tangents


def _interleave_jvp(
    body: ClosedJaxpr,
    nonzeros: Sequence[bool],
    out_nonzeros: Sequence[bool],
    num_consts: int,
    num_carry: int,
) -> ClosedJaxpr:
    """Reorder ``(*primals, *tangents)``: consts, carries and xs, each followed by tangents."""

    def arranged(atoms: Sequence[Any], flags: Sequence[bool], ends: Sequence[int]) -> list[Any]:
        primals, remaining = atoms[: len(flags)], iter(atoms[len(flags) :])
        tangents = [next(remaining) if flag else None for flag in flags]
        result, start = [], 0
        for end in (*ends, len(flags)):
            result += [*primals[start:end], *[t for t in tangents[start:end] if t is not None]]
            start = end
        return result

    def make() -> ClosedJaxpr:
        invars = arranged(body.jaxpr.invars, nonzeros, (num_consts, num_consts + num_carry))
        outvars = arranged(body.jaxpr.outvars, out_nonzeros, (num_carry,))
        return with_inputs(body, invars, outvars)

    key = ("scan jvp", tuple(nonzeros), num_consts, num_carry)
    return body.jaxpr.memo(key, make)


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[int | None]]:
    """The batch rule: batch axis 0 of consts and carries, 1 of xs and ys (after the scanned)."""
    split = num_consts + num_carry
    batched = [dim is not None for dim in dims]
    num_ys = len(jaxpr.out_avals) - num_carry
    # Fixed point: a carry that an iteration batches is batched from the beginning.
    while True:
        requested = (*batched[num_consts:split], *[False] * num_ys)
        body, out_batched = batch_jaxpr(jaxpr, axis, tuple(batched), requested)
        if list(out_batched[:num_carry]) == batched[num_consts:split]:
            break
        batched[num_consts:split] = out_batched[:num_carry]
    batched_operands = []
    for k, (x, dim, flag) in enumerate(safe_zip(operands, dims, batched)):
        batched_operands.append(
            batch_to_dim(x, dim, 0 if k < split else 1, axis.size) if flag else x
        )
    outs = bind_scan(
        body,
        batched_operands[:num_consts],
        batched_operands[num_consts:split],
        batched_operands[split:],
        **params,
    )
    out_dims = [(0 if k < num_carry else 1) if flag else None for k, flag in enumerate(out_batched)]
    return outs, out_dims


def _checked(
    categories: Categories, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State | None]:
    """The checkify rule: the first failure is an additional carry."""
    body, sites = checked_jaxpr(params["jaxpr"], categories)
    count, num_carry = params["num_consts"], params["num_carry"]
    num_outs = len(params["jaxpr"].out_avals)
    avals = body.out_avals[num_outs:]

    def step(*values: Any) -> list[Any]:
        consts, held = values[:count], values[count : count + len(avals)]
        results = body(*consts, *values[count + len(avals) :])
        return [*first_failure(held, results[num_outs:]), *results[:num_outs]] if sites else results

    def make() -> ClosedJaxpr:
        in_avals = body.in_avals
        jaxpr, consts = trace_to_jaxpr(step, [*in_avals[:count], *avals, *in_avals[count:]])
        return ClosedJaxpr(jaxpr, tuple(consts))

    program = body.jaxpr.memo(("checked scan", count, num_carry), make)
    consts, others = operands[:count], operands[count:]
    init = [*blank(avals), *others[:num_carry]]
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    results = bind_scan(program, consts, init, others[num_carry:], **options)
    outs, values = results[len(avals) :], results[: len(avals)]
    return outs, State(tuple(values), sites) if sites else None


def _keys(flow: Flow) -> States | None:
    """Key-reuse rule: follow two iterations, so that reuse of a const or carry is detected."""
    body, count, num_carry = (flow.params[k] for k in ("jaxpr", "num_consts", "num_carry"))
    split = count + num_carry
    consts, carry, xs = flow.states[:count], flow.states[count:split], flow.states[split:]
    outs: Sequence[KeyState | None] = []
    for _ in range(min(flow.params["length"], 2)):
        slices = slice_states(xs, body.in_avals[split:])
        outs = follow_program(body, [*consts, *carry, *slices])
        carry = outs[:num_carry]
    if outs:
        spend(flow, [*[None] * split, *slices])
    return [*carry, *[None] * (len(body.out_avals) - num_carry)]


def _form(params: dict[str, Any]) -> ScanForm:
    return ScanForm(
        params["jaxpr"],
        params["num_consts"],
        params["num_carry"],
        params["length"],
        params["reverse"],
    )


def _simplify(eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder) -> Sequence[Atom] | None:
    """Hoist invariants, or else recompute masks in the body, or else unroll iterations."""
    simplified = simplify_scan(eqn, build)
    if simplified is None:
        simplified = recompute_consts(eqn, definition, build)
    return unroll_scan(bind_scan, eqn, build) if simplified is None else simplified


scan_p = register(
    make_primitive(
        "scan",
        shape=_shape,
        execute=execute_alone(lambda: scan_p),
        jvp=_jvp,
        linearize=partial(linearize_scan, bind_scan),
        partial_eval=partial(partial_scan, bind_scan),
        transpose=partial(transpose_scan, bind_scan),
        batch=_batch,
        lower=Loop(_form, shared_sums, independent_iterations, updated_elements),
        simplify=_simplify,
        prune=prune_scan,
        recompute=recompute_scan,
        checked=_checked,
        multiple_results=True,
        effects=lambda params: params["jaxpr"].effects,
        subjaxprs=lambda params: [params["jaxpr"]],
        keys=_keys,
    )
)
