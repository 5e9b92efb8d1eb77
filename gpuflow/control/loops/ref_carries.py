"""Loops and branches that use refs: convert them to programs that carry the values of the refs.

A ref is a mutable array. Only written refs become carries or outputs; refs that are only read
become consts.

Tests: tests/control/test_refs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.control.programs import Program, with_inputs
from gpuflow.core.jaxpr import Atom, Var
from gpuflow.core.ref_programs import check_once
from gpuflow.core.refs import Ref, read


def changed_refs(program: Program, leaves: Sequence[Any] = ()) -> list[Ref]:
    """The refs that a program writes, in the order of its outputs; ``leaves`` are its arguments."""
    if program.refs is None:
        return []
    known = [*program.refs.closed, *leaves]
    return [known[k] for k in program.refs.written]


def with_ref_carries(op: str, program: Program, leaves: Sequence[Any]) -> tuple[Program, list[Ref]]:
    """Convert the closed-over refs of a loop body to consts and carries.

    Args:
        op: name of the loop in messages.
        program: ``(*consts, *refs, *arguments) -> (*results, *new values of refs)``.
        leaves: the arguments, some of which may be refs.

    Returns:
        The body, and the carried refs. It is ``(*consts, *refs that are read, *carried refs,
        *arguments) -> (*carried refs, *results, *new values of arguments)``; its ``consts`` are
        the values of all inputs before the carried refs.
    """
    use = program.refs
    if use is None:
        return program, []
    check_once(op, use, leaves)
    carried_refs = [k for k in use.written if k < len(use.closed)]
    fixed = [k for k in range(len(use.closed)) if k not in carried_refs]

    def arrange() -> Any:
        inner, split = program.jaxpr.jaxpr, len(program.consts)
        refs = inner.invars[split : split + len(use.closed)]
        arguments = inner.invars[split + len(use.closed) :]
        invars = [*inner.invars[:split], *[refs[k] for k in (*fixed, *carried_refs)], *arguments]
        count = program.out_tree.num_leaves
        results, finals = inner.outvars[:count], inner.outvars[count:]
        outvars = [*finals[: len(carried_refs)], *results, *finals[len(carried_refs) :]]
        return with_inputs(program.jaxpr, invars, outvars)

    body = program.jaxpr.jaxpr.memo(("ref carries", len(use.closed), use.written), arrange)
    consts = (*program.consts, *[read(use.closed[k]) for k in fixed])
    return Program(body, consts, program.out_tree), [use.closed[k] for k in carried_refs]


def condition_of_carries(condition: Program, carried_refs: Sequence[Ref]) -> Program:
    """Pass carried refs to the condition of a while_loop, in front of its arguments.

    Raises:
        ValueError: if the condition writes a ref.
    """
    use = condition.refs
    if use is not None and use.written:
        raise ValueError(
            f"[while_loop] cond_fun must not write refs; got a write of {use.closed[0].aval}. "
            "Fix: write it in body_fun."
        )
    closed = () if use is None else use.closed
    if not closed and not carried_refs:
        return condition
    positions = tuple(closed.index(ref) if ref in closed else -1 for ref in carried_refs)
    fixed = [k for k in range(len(closed)) if k not in positions]

    def arrange() -> Any:
        inner, split = condition.jaxpr.jaxpr, len(condition.consts)
        refs = inner.invars[split : split + len(closed)]
        lead = [
            refs[k] if k >= 0 else Var(ref.aval.inner_aval)
            for k, ref in safe_zip(positions, carried_refs)
        ]
        arguments = inner.invars[split + len(closed) :]
        invars = [*inner.invars[:split], *[refs[k] for k in fixed], *lead, *arguments]
        return with_inputs(condition.jaxpr, invars)

    avals = tuple(ref.aval for ref in carried_refs)
    program = condition.jaxpr.jaxpr.memo(("ref condition", positions, avals), arrange)
    consts = (*condition.consts, *[read(closed[k]) for k in fixed])
    return Program(program, consts, condition.out_tree)


def with_ref_outputs(
    op: str, programs: Sequence[Program], leaves: Sequence[Any]
) -> tuple[list[Program], list[Ref]]:
    """Make all branches return new values of the refs that any of them writes.

    Args:
        op: name of the op in messages.
        programs: the branches, ``(*consts, *refs, *arguments) -> (*results, *new values)``.
        leaves: the arguments, some of which may be refs.

    Returns:
        Branches ``(*consts, *arguments) -> (*results, *new values of refs)``, and these refs.
    """
    if all(program.refs is None for program in programs):
        return list(programs), []
    for program in programs:
        if program.refs is not None:
            check_once(op, program.refs, leaves)
    changed = [changed_refs(program, leaves) for program in programs]
    targets = list(dict.fromkeys(ref for refs in changed for ref in refs))
    pairs = safe_zip(programs, changed)
    return [_with_outputs(p, refs, targets, leaves) for p, refs in pairs], targets


def _with_outputs(
    program: Program, changed: Sequence[Ref], targets: Sequence[Ref], leaves: Sequence[Any]
) -> Program:
    """Add an output for each target; refs that the branch does not write pass through it."""
    closed = () if program.refs is None else program.refs.closed
    known = [*closed, *leaves]
    positions = {ref: k for k, ref in enumerate(known) if type(ref) is Ref}
    missing = [ref for ref in targets if ref not in positions]
    # For each target an index into the new values, or (unwritten) into refs, arguments, missing.
    sources = tuple(
        (True, changed.index(ref))
        if ref in changed
        else (False, len(known) + missing.index(ref) if ref in missing else positions[ref])
        for ref in targets
    )

    def arrange() -> Any:
        inner, split = program.jaxpr.jaxpr, len(program.consts)
        refs = inner.invars[split : split + len(closed)]
        arguments = inner.invars[split + len(closed) :]
        more = [Var(ref.aval.inner_aval) for ref in missing]
        inputs = [*refs, *arguments, *more]
        count = program.out_tree.num_leaves
        results, finals = inner.outvars[:count], inner.outvars[count:]
        news: list[Atom] = [finals[k] if is_new else inputs[k] for is_new, k in sources]
        invars = [*inner.invars[:split], *refs, *more, *arguments]
        return with_inputs(program.jaxpr, invars, [*results, *news])

    avals = tuple(ref.aval for ref in missing)
    jaxpr = program.jaxpr.jaxpr.memo(("ref outputs", len(closed), sources, avals), arrange)
    consts = (*program.closed_values, *[read(ref) for ref in missing])
    return replace(program, jaxpr=jaxpr, consts=consts, refs=None)
