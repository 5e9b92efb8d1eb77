"""Loop unrolling of scans: the compiled loop runs ``unroll`` iterations per iteration.

Tests: tests/control/test_scan_fission.py, tests/control/test_control_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.control.loops.scan_fission import copy_program
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.core.staging import trace_closed
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape, squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_in_dim

BindScan = Callable[..., list[Any]]


def unroll_scan(bind: BindScan, eqn: Eqn, build: EqnBuilder) -> Sequence[Atom] | None:
    """Unroll a scan: its body runs ``unroll`` iterations, and the remainder follows the loop.

    A scan of one element is also unrolled, unless it contains loops: those are batched only if
    they are separate programs. Scans with effects are unchanged: unrolling is for speed, which is
    irrelevant for calls of Python.

    Returns:
        The outputs; None if the scan is unchanged.
    """
    params = eqn.params
    is_loop = params["unroll"] <= 1 and (params["length"] > 1 or _has_programs(params["jaxpr"]))
    if is_loop or params["length"] == 0 or eqn.effects:
        return None
    body: ClosedJaxpr = params["jaxpr"]
    key = ("unrolled", *[params[name] for name in sorted(params) if name != "jaxpr"])
    avals = [atom.aval for atom in eqn.inputs]

    def make() -> ClosedJaxpr:
        unrolled = trace_closed(lambda *operands: _unrolled(bind, operands, **params), avals)
        # Iterations outside of the loop must not contain jit calls: no later pass inlines them.
        return ClosedJaxpr(inline(unrolled.jaxpr), unrolled.consts)

    return copy_program(build, body.jaxpr.memo(key, make), eqn.inputs)


def _has_programs(body: ClosedJaxpr) -> bool:
    """Whether there are loops or branches in a program."""
    eqns = inline(body.jaxpr).eqns
    return any(eqn.primitive.lower.runs_programs for eqn in eqns)


def _unrolled(
    bind: BindScan,
    operands: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    length: int,
    reverse: bool,
    unroll: int,
    num_consts: int,
    num_carry: int,
) -> list[Any]:
    """The unrolled scan, its remainder, and the concatenation of their ys."""
    split = num_consts + num_carry
    consts, carry, xs = operands[:num_consts], operands[num_consts:split], operands[split:]
    blocks, remainder = divmod(length, unroll)
    whole = length - remainder
    # A reverse scan starts at the end, so its remainder is the first elements.
    start = remainder if reverse else 0

    def run(values: Sequence[Any], state: Sequence[Any], elements: Sequence[Any], count: int):
        return _iterations(jaxpr, values, state, elements, count, reverse)

    def block(*values: Any) -> list[Any]:
        state, rows = run(values[:num_consts], values[num_consts:split], values[split:], unroll)
        return [*state, *rows]

    in_loop = [slice_in_dim(x, start, start + whole) for x in xs]
    if blocks == 1:
        carry, ys = run(consts, carry, in_loop, unroll)
    else:
        grouped = [reshape(x, (blocks, unroll, *aval_of(x).shape[1:])) for x in in_loop]
        avals = [aval_of(value) for value in (*consts, *carry)]
        rows = [aval_of(x).update(shape=aval_of(x).shape[1:]) for x in grouped]
        results = bind(
            trace_closed(block, [*avals, *rows]),
            consts,
            carry,
            grouped,
            length=blocks,
            reverse=reverse,
            unroll=1,
        )
        carry, block_ys = results[:num_carry], results[num_carry:]
        ys = [reshape(y, (whole, *aval_of(y).shape[2:])) for y in block_ys]
    if remainder:
        ends = slice(0, remainder) if reverse else slice(whole, length)
        tail = [slice_in_dim(x, ends.start, ends.stop) for x in xs]
        carry, last = run(consts, carry, tail, remainder)
        pairs = safe_zip(last, ys) if reverse else safe_zip(ys, last)
        ys = [concatenate(pair, 0) for pair in pairs]
    return [*carry, *ys]


def _iterations(
    body: ClosedJaxpr,
    consts: Sequence[Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    count: int,
    reverse: bool,
) -> tuple[list[Any], list[Any]]:
    """``count`` iterations one after the other: the last carry and the stacked ys."""
    num_carry = len(carry)
    rows: list[list[Any]] = [[] for _ in range(count)]
    for k in reversed(range(count)) if reverse else range(count):
        element = [squeeze(slice_in_dim(x, k, k + 1), (0,)) for x in xs]
        outs = body(*consts, *carry, *element)
        carry, rows[k] = outs[:num_carry], outs[num_carry:]
    return list(carry), [concatenate([_row(y) for y in ys], 0) for ys in safe_zip(*rows)]


def _row(y: Any) -> Any:
    shape = aval_of(y).shape
    return broadcast_in_dim(y, (1, *shape), range(1, len(shape) + 1))
