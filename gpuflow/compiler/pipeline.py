"""Pass pipeline: from a traced jaxpr to a plan that is bound to its sizes.

``run_passes`` inlines calls, converts loops with independent lanes, and runs the passes of the
platform. ``bound_plan`` then fuses and lowers the program. The programs of loops and branches are
compiled first, because their plans determine which operands the loop or branch updates in place.

Threads may compile at the same time: passes hold no state, and the cache of symbolic plans
(``symbolic_program.py``) allows it.

Tests: tests/compiler/test_passes.py, tests/compiler/test_symbolic_plans.py,
tests/compiler/test_model_plans.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpuflow.base.config import config
from gpuflow.compiler.debugging import show
from gpuflow.compiler.fusion.branch_aliases import branch_donations
from gpuflow.compiler.fusion.chunked_stores import chunked_stores
from gpuflow.compiler.fusion.clones import clone_cheap
from gpuflow.compiler.fusion.select_updates import selects_to_updates
from gpuflow.compiler.lanes.fold_transposes import fold_transposes
from gpuflow.compiler.lanes.loops import lane_loops
from gpuflow.compiler.lowering.excess_precision import all_rounded, unrounded_within
from gpuflow.compiler.passes.epilogues import fuse_epilogues
from gpuflow.compiler.passes.merge_collectives import merge_collectives
from gpuflow.compiler.passes.overlap import overlap_collectives
from gpuflow.compiler.passes.predicated_updates import predicate_updates
from gpuflow.compiler.passes.program import (
    Pass,
    cse,
    dce,
    hoist_array_literals,
    inline,
    inlined_copy,
    is_call,
    simplify,
    simplify_for_gpu,
    simplify_with_atomics,
)
from gpuflow.compiler.passes.reads_first import reads_first
from gpuflow.compiler.passes.updates_in_place import Donations, carry_donations
from gpuflow.compiler.planning.plan import InnerProgram, InnerPrograms, Plan, inner_aliases_of
from gpuflow.compiler.planning.speculation import has_no_effect, is_short
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


class CarryRange(NamedTuple):
    """The carries of a loop among the inputs of its body, or none for a condition.

    Attributes:
        first: index of the first carry.
        count: count of carries.
    """

    first: int
    count: int


def compile_plan(
    jaxpr: ClosedJaxpr,
    donated: Sequence[int] = (),
    carries: CarryRange | None = None,
    target: Target = PLAIN_TARGET,
) -> tuple[Plan, list[Any]]:
    """Compile a program to a plan that is bound to its sizes.

    Args:
        jaxpr: the program.
        donated: indices of inputs whose memory outputs may reuse; only for a whole program.
        carries: None for a whole program. For a program inside a loop, its carries. Its outputs are
            then written to arrays that a call passes after the inputs, and the first outputs may
            reuse the carries' memory.
        target: the platform.

    Returns:
        The plan, and the values of its trailing inputs: array constants of the program.
    """
    program, values = run_passes(jaxpr, target, _report, is_whole=carries is None)
    donations: dict[Var, Var | None] = {program.invars[k]: None for k in donated}
    if carries is not None:
        donations = carry_donations(program, *carries)
    return _bind_program(program, donations, carries is not None, target), values


def plan_of_call(jaxpr: ClosedJaxpr, target: Target) -> Plan:
    """The plan of a program that is one library call: no pass runs, and no kernel is compiled."""
    return _bind_program(jaxpr.jaxpr, {}, False, target)


def _bind_program(
    program: Jaxpr, donations: Donations, into_destinations: bool, target: Target
) -> Plan:
    """The plan of a program after all passes; compiles the programs of its loops and branches."""
    programs = _compile_all_inner(program, target)
    return _bind_with_inner(programs, program, donations, into_destinations, target)


def _compile_all_inner(program: Jaxpr, target: Target) -> InnerPrograms:
    """The compiled programs of loops and branches."""
    return {eqn: compile_inner_programs(eqn, target) for eqn in program.eqns if _has_programs(eqn)}


def _bind_with_inner(
    programs: InnerPrograms,
    program: Jaxpr,
    donations: Donations,
    into_destinations: bool,
    target: Target,
) -> Plan:
    """The plan of a program after all passes, given the plans of its loops and branches.

    Args:
        programs: the compiled programs of all its loops and branches.
        program: the program.
        donations: see ``InPlaceAnalysis``.
        into_destinations: whether outputs are written into arrays that a call passes.
        target: the platform.
    """
    inner_aliases = inner_aliases_of(programs)
    program = selects_to_updates(program, donations, inner_aliases)
    return bound_plan(program, programs, donations, into_destinations, target)


def run_passes(
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
        epilogues: Pass = partial(fuse_epilogues, is_supported=target.supports)
        passes = (*passes[:_BEFORE_CLONES], ("epilogues", epilogues), *passes[_BEFORE_CLONES:])
    return (*passes, ("join calls", merge_collectives), ("overlap", overlap_collectives))


def _has_programs(eqn: Eqn) -> bool:
    return eqn.primitive.lower.runs_programs


def compile_inner_programs(eqn: Eqn, target: Target) -> tuple[InnerProgram, ...]:
    """The plans of the programs that a loop or branch runs.

    Returns:
        For a scan its body; for a while_loop the condition and the body; else one for each branch.
    """
    lowering = eqn.primitive.lower
    if lowering.branches is not None:
        return _compile_branches(lowering.branches(eqn.params), target)
    loop = lowering.form(eqn.params)
    if isinstance(loop, ScanForm):
        return (_compile_body(loop.body, CarryRange(loop.first_carry, loop.num_carry), target),)
    speculative_body = _speculative_body(loop, target) if target.on_gpu else None
    carries = CarryRange(loop.first_carry, loop.num_carry)
    body = speculative_body or _compile_body(_with_condition(loop), carries, target)
    return _compile_body(loop.condition, CarryRange(0, 0), target), body


def _compile_branches(branches: Sequence[ClosedJaxpr], target: Target) -> tuple[InnerProgram, ...]:
    """The plans of branches.

    An output reuses an operand's memory if it is that operand, updated or not, in all branches.
    """
    programs = [run_passes(branch, target, _report) for branch in branches]
    inner_programs = [_compile_all_inner(program, target) for program, _ in programs]
    inner_aliases = [inner_aliases_of(inner) for inner in inner_programs]
    count = len(branches[0].in_avals)
    donations = branch_donations(
        [
            selects_to_updates(program, dict.fromkeys(program.invars[:count]), aliases)
            for (program, _), aliases in zip(programs, inner_aliases, strict=True)
        ],
        inner_aliases,
        count,
    )
    return tuple(
        [
            InnerProgram(_bind_with_inner(inner, program, donated, True, target), tuple(values))
            for (program, values), inner, donated in zip(
                programs, inner_programs, donations, strict=True
            )
        ]
    )


def _compile_body(program: ClosedJaxpr, carries: CarryRange, target: Target) -> InnerProgram:
    """The plan of a program inside a loop: its body or its condition."""
    plan, values = compile_plan(program, (), carries, target)
    return InnerProgram(plan, tuple(values))


def _speculative_body(loop: WhileForm, target: Target) -> InnerProgram | None:
    """The body of a while_loop for speculative iterations; None if it has effects or is long.

    Such a body takes a flag after its carries, see ``InnerProgram.is_speculative``.
    """
    program, values = run_passes(_with_condition(loop, takes_flag=True), target, _report)
    if not all(map(has_no_effect, program.eqns)):
        return None
    first, count = loop.first_carry, loop.num_carry
    donations = carry_donations(program, first, count)
    programs = _compile_all_inner(program, target)
    program = selects_to_updates(program, donations, inner_aliases_of(programs))
    flag = program.invars[first + count]
    program, remaining_donations = predicate_updates(program, donations, flag)
    plan = _bind_with_inner(programs, program, remaining_donations, True, target)
    return InnerProgram(plan, tuple(values), is_speculative=True) if is_short(plan) else None


def _with_condition(loop: WhileForm, takes_flag: bool = False) -> ClosedJaxpr:
    """``(*condition consts, *body consts, *carry) -> (*new carry, next condition)``.

    An iteration is then one program, which also evaluates the condition of the next.

    Args:
        loop: the while_loop.
        takes_flag: add a trailing input, the flag whether this iteration counts.
    """
    key = ("with condition", loop.condition.jaxpr, takes_flag)
    return loop.body.jaxpr.memo(key, lambda: _with_appended_condition(loop, takes_flag))


def _with_appended_condition(loop: WhileForm, takes_flag: bool) -> ClosedJaxpr:
    """The body with the equations of the condition appended, see ``_with_condition``."""
    first, body = loop.num_condition_consts, loop.body.jaxpr
    condition = loop.condition.jaxpr
    env: dict[Var, Atom] = dict(zip(condition.invars[first:], body.outvars, strict=True))
    consts = [Var(var.aval) for var in condition.invars[:first]]
    env.update(zip(condition.invars[:first], consts, strict=True))
    flags = [Var(var.aval) for var in condition.outvars] if takes_flag else []
    eqns, outs = inlined_copy(condition, env)
    return ClosedJaxpr(
        body.replace(
            invars=(*consts, *body.invars, *flags),
            outvars=(*body.outvars, *outs),
            eqns=(*body.eqns, *eqns),
            effects=body.effects | condition.effects,
            argument_names=(),
        )
    )


def _report(name: str, program: Jaxpr) -> None:
    if config.environment.check:
        check_jaxpr(program)
    show(2, f"after {name}", lambda: str(program))
