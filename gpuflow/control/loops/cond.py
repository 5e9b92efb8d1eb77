"""``cond_p``, the conditional of cond and switch: one of several programs runs; and its rules.

The operands are ``(index, *operands)``, where the index is an int32 scalar. Every branch is a
program ``(*operands) -> outs``. ``lane_cond_p`` has an index for each lane (see lanes.py).
``branches`` has the public functions.

Tests: tests/control/test_control_nesting.py, tests/control/test_partial_eval.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.cond_derivative import linearize_cond, partial_cond
from gpuflow.control.loops.lanes import (
    Lane,
    Lanes,
    communicate,
    extend,
    lane_counts,
    lane_shape,
    over_lanes,
)
from gpuflow.control.loops.partial_evaluation import recompute_cond
from gpuflow.control.loops.pruning import prune_cond
from gpuflow.control.program_rules import check_types
from gpuflow.control.programs import close, execute_alone, join_consts
from gpuflow.core.aval import NOT_MANUAL, ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.key_use import (
    Flow,
    States,
    alternatives,
    copied,
    follow_program,
    restored,
    slice_states,
    spend,
)
from gpuflow.core.lowering import Branch, BranchForm, Inline, LaneForm
from gpuflow.core.primitive import Primitive, make_primitive, register
from gpuflow.core.rules import AxisData, UndefinedPrimal, Uniform, Zero, is_undefined
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.elementwise.select import select_n
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.batching import batch_jaxpr, batch_jaxpr_dims
from gpuflow.transforms.checking import (
    Categories,
    State,
    blank,
    checked_jaxpr,
    shifted_code,
    split_state,
)
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.transpose import backward_pass

Branches = tuple[ClosedJaxpr, ...]


def bind_cond(
    branches: Sequence[ClosedJaxpr], index: Any, operands: Sequence[Any], lanes: Lanes = ()
) -> list[Any]:
    """Bind branches; their own constants become leading operands, common to all."""
    pairs = [close(branch) for branch in branches]
    merged, values = join_consts([branch for branch, _ in pairs], [closed for _, closed in pairs])
    if not lanes:
        return cond_p.bind(index, *values, *operands, branches=tuple(merged))
    mapped = [(*[False] * len(values), *lane.mapped) for lane in lanes]
    full = tuple(Lane(lane.axis, flags) for lane, flags in safe_zip(lanes, mapped))
    return lane_cond_p.bind(index, *values, *operands, branches=tuple(merged), lanes=full)


def _shape(
    index: ShapedArray, *avals: ShapedArray, branches: Branches, lanes: Lanes = ()
) -> list[ShapedArray]:
    lanes_shape = lane_shape(lanes)
    if index.shape != lanes_shape or index.dtype != np.int32:
        raise TypeError(
            f"[cond] the index must be i32[{lanes_shape}]; got {index}. Fix: use lax.switch."
        )
    for aval, expected, count in safe_zip(
        avals, branches[0].in_avals, lane_counts(lanes, len(avals))
    ):
        if (aval.shape[count:], aval.dtype) != (expected.shape, expected.dtype):
            raise TypeError(
                f"[cond] operands must match the traced branches; got {aval} for {expected}. "
                "Fix: the rule that bound this cond; programs cannot cause it."
            )
    for branch in branches[1:]:
        check_types("cond", "inputs of branches", branch.in_avals, branches[0].in_avals)
        check_types("cond", "results of branches", branch.out_avals, branches[0].out_avals)
    return [
        _selected_type(index, outs).update(shape=(*lanes_shape, *outs[0].shape))
        for outs in zip(*[branch.out_avals for branch in branches], strict=True)
    ]


def _selected_type(index: ShapedArray, outs: Sequence[ShapedArray]) -> ShapedArray:
    """The type of a selected value: it varies along the axes of the index and of all values."""
    first = outs[0]
    if index.mat is NOT_MANUAL and all(out.mat is NOT_MANUAL for out in outs):
        return first
    return first.varying(index.mat.varying.union(*[out.mat.varying for out in outs]))


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, branches: Branches, lanes: Lanes = ()
) -> tuple[list[Any], list[Any]]:
    index, *operands = primals
    nonzeros = tuple(type(tangent) is not Zero for tangent in tangents[1:])
    out_nonzeros = _any_nonzero([jvp_jaxpr(branch, nonzeros, False)[1] for branch in branches])
    derivatives = [jvp_jaxpr(branch, nonzeros, out_nonzeros)[0] for branch in branches]
    nonzero_tangents = [tangent for tangent in tangents[1:] if type(tangent) is not Zero]
    sources = [*range(len(operands)), *[k for k, flag in enumerate(nonzeros) if flag]]
    results = bind_cond(derivatives, index, [*operands, *nonzero_tangents], extend(lanes, sources))
    count = len(out_nonzeros)
    out_tangents = iter(results[count:])
    outs = results[:count]
    return outs, [
        next(out_tangents) if flag else Zero(aval_of(out).tangent())
        for out, flag in safe_zip(outs, out_nonzeros)
    ]


def _any_nonzero(flags: Sequence[Sequence[bool]]) -> tuple[bool, ...]:
    return tuple(any(column) for column in zip(*flags, strict=True))


def _transpose(
    cotangents: Sequence[Any], index: Any, *operands: Any, branches: Branches, lanes: Lanes = ()
) -> list[Any]:
    undefined = tuple(is_undefined(operand) for operand in operands)
    shared = [k for k, flag in enumerate(undefined) if flag]
    if any(not lane.mapped[k] for lane in lanes for k in shared):
        # The cotangent of an unmapped operand is a sum over lanes. The batched program computes
        # it without storing the summands.
        program = _over_lanes(branches, lanes)
        values = [index, *operands]
        return backward_pass(program.jaxpr, program.consts, values, cotangents)
    nonzeros = tuple(type(cotangent) is not Zero for cotangent in cotangents)
    backwards = [_backward(branch, undefined, nonzeros) for branch in branches]
    known = [x for x, flag in safe_zip(operands, undefined) if not flag]
    nonzero_cts = [cotangent for cotangent in cotangents if type(cotangent) is not Zero]
    sources = [*[k for k, flag in enumerate(undefined) if not flag], *[-1] * len(nonzero_cts)]
    results = bind_cond(backwards, index, [*known, *nonzero_cts], extend(lanes, sources))
    in_cotangents = iter(results)
    return [None, *[next(in_cotangents) if flag else None for flag in undefined]]


def _backward(
    branch: ClosedJaxpr, undefined: tuple[bool, ...], nonzeros: tuple[bool, ...]
) -> ClosedJaxpr:
    """``(*known operands, *nonzero cotangents) -> cotangents of the undefined operands``."""

    def backward(*values: Any) -> list[Any]:
        remaining = iter(values)
        operands = [
            UndefinedPrimal(aval) if flag else next(remaining)
            for aval, flag in safe_zip(branch.in_avals, undefined)
        ]
        cotangents = [
            next(remaining) if flag else Zero(aval.tangent())
            for aval, flag in safe_zip(branch.out_avals, nonzeros)
        ]
        results = backward_pass(branch.jaxpr, branch.consts, operands, cotangents)
        return [instantiate(ct) for ct, flag in safe_zip(results, undefined) if flag]

    def make() -> ClosedJaxpr:
        known = [aval for aval, flag in safe_zip(branch.in_avals, undefined) if not flag]
        cts = [a.tangent() for a, flag in safe_zip(branch.out_avals, nonzeros) if flag]
        jaxpr, consts = trace_to_jaxpr(backward, [*known, *cts])
        return ClosedJaxpr(jaxpr, tuple(consts))

    return branch.jaxpr.memo(("branch transpose", undefined, nonzeros), make)


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    branches: Branches,
    lanes: Lanes = (),
) -> tuple[list[Any], Sequence[int | Uniform | None]]:
    """The batch rule: a mapped index adds a lane, otherwise the branches are batched."""
    index, *values = operands
    mapped = tuple(dim is not None for dim in dims[1:])
    if dims[0] is not None:
        batched_operands = [
            x if dim is None else move_axis(x, dim, 0)
            for x, dim in safe_zip([index, *values], dims)
        ]
        all_lanes = (Lane(axis, mapped), *lanes)
        if communicate(branches):
            outs = _over_lanes(branches, all_lanes)(*batched_operands)
        else:
            outs = bind_cond(branches, batched_operands[0], batched_operands[1:], all_lanes)
        return outs, [0] * len(outs)
    out_mapped = _any_nonzero([batch_jaxpr(branch, axis, mapped)[1] for branch in branches])
    pairs = [batch_jaxpr_dims(branch, axis, mapped, out_mapped) for branch in branches]
    batched = [branch for branch, _ in pairs]
    batched_operands = [
        x if dim is None else move_axis(x, dim, count)
        for x, dim, count in safe_zip(values, dims[1:], lane_counts(lanes, len(values)))
    ]
    outs = bind_cond(batched, index, batched_operands, lanes)
    out_dims = zip(*(branch_dims for _, branch_dims in pairs), strict=True)
    return outs, [_merged_dim(dims_by_branch, len(lanes)) for dims_by_branch in out_dims]


def _merged_dim(dims: Sequence[int | Uniform | None], lanes: int) -> int | Uniform | None:
    """The batch dimension of an output: it follows the lane dimensions, whose number is given."""
    if dims[0] is None:
        return None
    is_uniform = all(isinstance(dim, Uniform) for dim in dims)
    return Uniform(lanes) if is_uniform else lanes


def _over_lanes(branches: Branches, lanes: Lanes) -> ClosedJaxpr:
    """``(index, *operands) -> outs``: every branch for all lanes, then a select for each lane."""

    def choose(index: Any, *operands: Any) -> list[Any]:
        sources = range(len(operands))
        cases = [over_lanes(branch, lanes, sources)(*operands) for branch in branches]
        lane_dims = tuple(range(len(lanes)))
        outs = []
        for values in zip(*cases, strict=True):
            which = broadcast_in_dim(index, aval_of(values[0]).shape, lane_dims)
            outs.append(select_n(which, *values))
        return outs

    def make() -> ClosedJaxpr:
        shape = lane_shape(lanes)
        avals = [ShapedArray(shape, np.int32)]
        for k, aval in enumerate(branches[0].in_avals):
            sizes = [lane.axis.size for lane in lanes if lane.mapped[k]]
            avals.append(aval.update(shape=(*sizes, *aval.shape)))
        jaxpr, consts = trace_to_jaxpr(choose, avals)
        return ClosedJaxpr(jaxpr, tuple(consts))

    key = ("over lanes", tuple(branch.jaxpr for branch in branches), lanes)
    return branches[0].jaxpr.memo(key, make)


def _checked(
    categories: Categories, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State | None]:
    """The checkify rule: each branch returns the state of all, and sets only that of its sites."""
    lanes = params.get("lanes", ())
    pairs = [checked_jaxpr(branch, categories) for branch in params["branches"]]
    sites = tuple(site for _, branch_sites in pairs for site in branch_sites)
    count = len(params["branches"][0].out_avals)
    avals = [ShapedArray((), np.int32)]
    for program, branch_sites in pairs:
        avals += program.out_avals[count + 1 :] if branch_sites else []

    def with_all(ordinal: int) -> ClosedJaxpr:
        program, branch_sites = pairs[ordinal]
        sites_before = sum(len(other) for _, other in pairs[:ordinal])
        start = 1 + sum(site.count for _, other in pairs[:ordinal] for site in other)

        def branch(*values: Any) -> list[Any]:
            results = program(*values)
            if not sites:
                return results
            state = blank(avals)
            if branch_sites:
                code, *site_values = results[count:]
                state[0] = shifted_code(code, sites_before)
                state[start : start + len(site_values)] = site_values
            return [*results[:count], *state]

        jaxpr, consts = trace_to_jaxpr(branch, program.in_avals)
        return ClosedJaxpr(jaxpr, tuple(consts))

    key = ("checked cond", tuple(program.jaxpr for program, _ in pairs))
    branches = pairs[0][0].jaxpr.memo(key, lambda: [with_all(k) for k in range(len(pairs))])
    return split_state(bind_cond(branches, operands[0], operands[1:], lanes), count, sites)


def _effects(params: dict[str, Any]) -> frozenset[Any]:
    return frozenset().union(*[branch.effects for branch in params["branches"]])


def _keys(flow: Flow) -> States | None:
    """Key-reuse rule: a key is used if any branch uses it, a result unused if it is in all."""
    branches, operands = flow.params["branches"], flow.states[1:]
    has_lanes = "lanes" in flow.params
    if has_lanes:
        operands = slice_states(operands, branches[0].in_avals)
    before, after, results = copied(operands), [], []
    for branch in branches:
        restored(operands, before)
        results.append(follow_program(branch, operands))
        after.append(copied(operands))
    restored(operands, [np.logical_or.reduce(used) for used in zip(*after, strict=True)])
    if has_lanes:
        spend(flow, [None, *operands])
        return None
    return [alternatives(states) for states in zip(*results, strict=True)]


def _define(
    name: str, lower: Any, execute: Callable[..., Any], prune: Callable[..., Any] | None = None
) -> Primitive:
    return register(
        make_primitive(
            name,
            shape=_shape,
            execute=execute,
            jvp=_jvp,
            linearize=partial(linearize_cond, bind_cond),
            partial_eval=partial(partial_cond, bind_cond),
            transpose=_transpose,
            batch=_batch,
            lower=lower,
            prune=prune,
            recompute=recompute_cond,
            multiple_results=True,
            effects=_effects,
            checked=_checked,
            subjaxprs=lambda params: list(params["branches"]),
            keys=_keys,
        )
    )


def _lane_form(params: dict[str, Any]) -> LaneForm:
    """The form for lowering as lanes; the index is an operand that all lanes map."""
    lanes: Lanes = params["lanes"]
    mapped = tuple((True, *lane.mapped) for lane in lanes)
    return LaneForm(BranchForm(params["branches"]), lane_shape(lanes), mapped)


cond_p = _define(
    "cond",
    Branch(lambda params: params["branches"]),
    execute_alone(lambda: cond_p),
    prune_cond,
)
lane_cond_p = _define(
    "lane_cond",
    Inline(lambda _, params: _over_lanes(params["branches"], params["lanes"]), _lane_form),
    execute_alone(lambda: lane_cond_p),
)
