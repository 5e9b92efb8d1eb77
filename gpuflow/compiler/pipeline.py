"""Pass pipeline: from a traced jaxpr to a plan that is bound to its sizes.

``rewritten`` inlines calls, converts loops with independent lanes, and runs the passes of the
platform. ``bound_plan`` then fuses and lowers the program. The programs of loops and branches are
compiled first, because their plans determine which operands the loop or branch updates in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow.base.config import config
from gpuflow.compiler.debugging import show
from gpuflow.compiler.fusion.chunked_stores import chunked_stores
from gpuflow.compiler.fusion.clones import clone_cheap
from gpuflow.compiler.fusion.select_updates import selects_to_updates
from gpuflow.compiler.fusion.shared_memory import shared_memory
from gpuflow.compiler.lanes.fold_transposes import fold_transposes
from gpuflow.compiler.lanes.loops import lane_loops
from gpuflow.compiler.lowering.excess_precision import all_rounded, unrounded_within
from gpuflow.compiler.passes.epilogues import fuse_epilogues
from gpuflow.compiler.passes.guarded_updates import guarded_updates
from gpuflow.compiler.passes.join_calls import join_calls
from gpuflow.compiler.passes.overlap import overlap
from gpuflow.compiler.passes.program import (
    Pass,
    cse,
    dce,
    hoist_array_literals,
    inline,
    is_call,
    renamed,
    simplify,
    simplify_for_gpu,
    simplify_with_atomics,
)
from gpuflow.compiler.passes.reads_first import reads_first
from gpuflow.compiler.passes.updates_in_place import Donations, carry_donations
from gpuflow.compiler.planning.ahead import has_no_effect, is_short
from gpuflow.compiler.planning.plan import Inner, Plan, Programs, inner_aliases_of
from gpuflow.compiler.planning.symbolic_program import bound_plan
from gpuflow.compiler.target import PLAIN_TARGET, Target
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, check_jaxpr
from gpuflow.core.lowering import ScanForm, WhileForm

# Passes of all platforms; ``explain("passes")`` shows these names. CSE precedes ``simplify``, whose
# rules look at the readers of a value: slices of two equal sums must be readers of one sum.
PASSES: tuple[tuple[str, Pass], ...] = (
    ("merge", cse),
    ("simplify", simplify),
    ("cse", cse),
    ("dce", dce),
    ("clone", clone_cheap),
    ("drop cloned", dce),
    ("reads first", reads_first),
)

# Where epilogue fusion is inserted on GPUs: before cheap values are duplicated.
_BEFORE_CLONES = [name for name, _ in PASSES].index("clone")

# ``simplify`` with the rules for GPUs; with ATOMIC_PASSES sums may differ from run to run.
GPU_PASSES = (PASSES[0], ("simplify", simplify_for_gpu), *PASSES[2:])
ATOMIC_PASSES = (PASSES[0], ("simplify", simplify_with_atomics), *PASSES[2:])
# The last two passes do not pay on GPUs. There, coalesced stores and a copy are faster than stores
# in another order, and one launch for all chunks of an array is faster than one for each.
CPU_PASSES = (*PASSES, ("parts", chunked_stores), ("stored order", fold_transposes))


def compile_plan(
    jaxpr: ClosedJaxpr,
    donated: Sequence[int] = (),
    carried: tuple[int, int] | None = None,
    target: Target = PLAIN_TARGET,
) -> tuple[Plan, list[Any]]:
    """Compile a program to a plan that is bound to its sizes.

    Args:
        jaxpr: the program.
        donated: indices of inputs whose memory outputs may reuse.
        carried: None for a whole program. For a program inside a loop, the index of the first carry
            among the inputs, and the count of carries. Its outputs are then written to arrays that
            a call passes after the inputs, and the first outputs may reuse the carries' memory.
        target: the platform.

    Returns:
        The plan, and the values of its trailing inputs: array constants of the program.
    """
    program, values = rewritten(jaxpr, target, _report, is_whole=carried is None)
    donations: dict[Var, Var | None] = {program.invars[k]: None for k in donated}
    if carried is not None:
        donations = carry_donations(program, *carried)
    return _bound(program, donations, carried is not None, target), values


def plan_of_call(jaxpr: ClosedJaxpr, target: Target) -> Plan:
    """The plan of a program that is one library call: no pass runs, and no kernel is compiled."""
    return _bound(jaxpr.jaxpr, {}, False, target)


def _bound(program: Jaxpr, donations: Donations, into_destinations: bool, target: Target) -> Plan:
    """The plan of a program after all passes."""
    programs = _inner_programs(program, target)
    return _bound_with(programs, program, donations, into_destinations, target)


def _inner_programs(program: Jaxpr, target: Target) -> Programs:
    """The compiled programs of loops and branches."""
    return {eqn: compile_inner(eqn, target) for eqn in program.eqns if _has_programs(eqn)}


def _bound_with(
    programs: Programs,
    program: Jaxpr,
    donations: Donations,
    into_destinations: bool,
    target: Target,
) -> Plan:
    """The plan of a program after all passes, given the plans of its loops and branches."""
    inner_aliases = inner_aliases_of(programs)
    program = selects_to_updates(program, donations, inner_aliases)
    return bound_plan(program, programs, donations, into_destinations, target)


def rewritten(
    jaxpr: ClosedJaxpr,
    target: Target,
    report: Callable[[str, Jaxpr], None],
    is_whole: bool = False,
) -> tuple[Jaxpr, list[Any]]:
    """The program after all passes, and the values of its trailing inputs (array constants).

    Args:
        jaxpr: the program.
        target: the platform.
        report: called with the name of each pass and its result.
        is_whole: False for programs of loops and branches. They have no fused epilogues, because a
            single block of a GPU may run a loop.
    """
    program = jaxpr.jaxpr
    unrounded = unrounded_within if target.excess_precision else all_rounded
    # Composites that define a lane program are converted first: inlining would expand them.
    program = lane_loops(inline(program, is_call), unrounded, target.lane_loops)
    program, values = hoist_array_literals(inline(program))
    report("inline", program)
    if target.lane_loops:
        program = lane_loops(program, unrounded, with_loops=True)
        report("lanes", program)
    for name, rewrite in _passes(target, is_whole):
        program = rewrite(program)
        report(name, program)
    return program, values


def _passes(target: Target, is_whole: bool) -> tuple[tuple[str, Pass], ...]:
    """The passes of a platform."""
    passes = CPU_PASSES
    if target.on_gpu:
        passes = ATOMIC_PASSES if target.atomic_sums else GPU_PASSES
    if target.on_gpu and is_whole:
        fused: Pass = partial(fuse_epilogues, offered=target.offers)
        passes = (*passes[:_BEFORE_CLONES], ("epilogues", fused), *passes[_BEFORE_CLONES:])
    return (*passes, ("join calls", join_calls), ("overlap", overlap))


def _has_programs(eqn: Eqn) -> bool:
    return eqn.primitive.lower.runs_programs


def compile_inner(eqn: Eqn, target: Target) -> tuple[Inner, ...]:
    """The plans of the programs that a loop or branch runs.

    Returns:
        For a scan its body; for a while_loop the condition and the body; else one for each branch.
    """
    rule = eqn.primitive.lower
    if rule.branches is not None:
        return _compile_branches(rule.branches(eqn.params), target)
    form = rule.form(eqn.params)
    if isinstance(form, ScanForm):
        return (_inner(form.body, (form.first_carry, form.num_carry), target),)
    ahead = _body_ahead(form, target) if target.on_gpu else None
    carries = form.first_carry, form.num_carry
    body = ahead or _inner(_with_condition(form), carries, target)
    return _inner(form.condition, (0, 0), target), body


def _compile_branches(branches: Sequence[ClosedJaxpr], target: Target) -> tuple[Inner, ...]:
    """The plans of branches.

    An output reuses an operand's memory if it is that operand, updated or not, in all branches.
    """
    programs = [rewritten(branch, target, _report) for branch in branches]
    inner = [_inner_programs(program, target) for program, _ in programs]
    inner_aliases = [inner_aliases_of(one) for one in inner]
    count = len(branches[0].in_avals)
    donations = shared_memory(
        [
            selects_to_updates(program, dict.fromkeys(program.invars[:count]), aliases)
            for (program, _), aliases in zip(programs, inner_aliases, strict=True)
        ],
        inner_aliases,
        count,
    )
    return tuple(
        [
            Inner(_bound_with(one, program, donated, True, target), tuple(values))
            for (program, values), one, donated in zip(programs, inner, donations, strict=True)
        ]
    )


def _inner(program: ClosedJaxpr, carries: tuple[int, int], target: Target) -> Inner:
    plan, values = compile_plan(program, (), carries, target)
    return Inner(plan, tuple(values))


def _body_ahead(form: WhileForm, target: Target) -> Inner | None:
    """The body of a while_loop for speculative iterations; None if it has effects or is long."""
    program, values = rewritten(_with_condition(form, takes_flag=True), target, _report)
    if not all(map(has_no_effect, program.eqns)):
        return None
    first, count = form.first_carry, form.num_carry
    donations, programs = carry_donations(program, first, count), _inner_programs(program, target)
    program = selects_to_updates(program, donations, inner_aliases_of(programs))
    program, updated = guarded_updates(program, donations, program.invars[first + count])
    plan = _bound_with(programs, program, updated, True, target)
    return Inner(plan, tuple(values), ahead=True) if is_short(plan) else None


def _with_condition(form: WhileForm, takes_flag: bool = False) -> ClosedJaxpr:
    """``(*condition consts, *body consts, *carry) -> (*new carry, next condition)``.

    An iteration is then one program, which also evaluates the condition of the next.

    Args:
        form: the loop.
        takes_flag: add a trailing input, the flag whether this iteration counts.
    """
    key = ("with condition", form.condition.jaxpr, takes_flag)
    return form.body.jaxpr.memo(key, lambda: _appended(form, takes_flag))


def _appended(form: WhileForm, takes_flag: bool) -> ClosedJaxpr:
    """The body with the equations of the condition appended, see ``_with_condition``."""
    first, body = form.num_condition_consts, form.body.jaxpr
    test = form.condition.jaxpr
    env: dict[Var, Atom] = dict(zip(test.invars[first:], body.outvars, strict=True))
    consts = [Var(var.aval) for var in test.invars[:first]]
    env.update(zip(test.invars[:first], consts, strict=True))
    flags = [Var(var.aval) for var in test.outvars] if takes_flag else []
    eqns, outs = renamed(test, env)
    return ClosedJaxpr(
        body.replace(
            invars=(*consts, *body.invars, *flags),
            outvars=(*body.outvars, *outs),
            eqns=(*body.eqns, *eqns),
            effects=body.effects | test.effects,
            argument_names=(),
        )
    )


def _report(name: str, program: Jaxpr) -> None:
    if config.environment.check:
        check_jaxpr(program)
    show(2, f"after {name}", lambda: str(program))
