"""Pass that replaces batched loops and branches by lane programs, which fusion puts into kernels.

Parts of a loop that are common to all lanes are hoisted into equations before or after it.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_shared_sums.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuflow.compiler.lanes.arrays import NotLanesError
from gpuflow.compiler.lanes.convert import conversion_attempts, lane_equation, may_be_lanes
from gpuflow.compiler.lanes.cost_model import ITERATION_AS_ELEMENTS, UPDATE_AS_ELEMENTS
from gpuflow.compiler.lanes.evaluate import Unrounded
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import LaneForm, ScanForm, WhileForm

Shape = tuple[int, ...]


def lane_loops(jaxpr: Jaxpr, unrounded: Unrounded, with_loops: bool) -> Jaxpr:
    """Replace loops and branches with independent lanes by lane programs.

    Args:
        jaxpr: the program.
        unrounded: returns the values of a program that kernels may hold with excess precision.
        with_loops: whether to convert all candidates. If not, only composites that must become one
            kernel are converted.

    Raises:
        TypeError: if a program that must be one kernel cannot be one.
    """

    def is_candidate(eqn: Eqn) -> bool:
        return _kernel_of(eqn) is not None or (with_loops and may_be_lanes(eqn))

    if not any(is_candidate(eqn) for eqn in jaxpr.eqns):
        return jaxpr
    live = {atom for atom in jaxpr.outvars if type(atom) is not Literal}
    definition = {var: eqn for eqn in jaxpr.eqns for var in eqn.outputs}
    eqns: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        used = [var in live for var in eqn.outputs]
        if any(used) and _kernel_of(eqn) is not None:
            eqn = _kernel_equation(eqn, used, unrounded)
        replacement = [eqn]
        if any(used) and is_candidate(eqn) and _kernel_of(eqn) is None:
            replacement = lane_equations(eqn, used, unrounded, definition)
        if any(used) or is_observable(eqn.effects):
            for new_eqn in reversed(replacement):
                eqns.append(new_eqn)
                live.update(atom for atom in new_eqn.inputs if type(atom) is not Literal)
    return jaxpr.replace(eqns=tuple(reversed(eqns)))


def _kernel_of(eqn: Eqn) -> LaneForm | None:
    """The batched form of an equation that must become one kernel; None for any other."""
    rule = eqn.primitive.lower
    form = None if rule.lanes is None else rule.lanes(eqn.params)
    return None if form is None or form.kernel is None else form


def _kernel_equation(eqn: Eqn, used: Sequence[bool], unrounded: Unrounded) -> Eqn:
    """The lane program of an equation that must become one kernel; raises TypeError."""
    form = _kernel_of(eqn)
    assert form is not None
    (attempt,) = conversion_attempts(eqn, unrounded)
    try:
        return attempt.equation(used)
    except NotLanesError as error:
        reason = "" if error.eqn is None else f"; the reason is {_equation_text(error.eqn)}"
        fix = error.fix or "let each index do by itself what it needs"
        raise TypeError(
            f"[kernel] {form.kernel} must compile to one kernel; got: {error}{reason}. Fix: {fix}; "
            "or use jit(vmap(...)), which may run several kernels."
        ) from None


def _equation_text(eqn: Eqn) -> str:
    """Text of an equation for messages."""
    operands = ", ".join(str(atom.aval) for atom in eqn.inputs)
    source = "" if eqn.source is None else f" at {eqn.source}"
    return f"{eqn.primitive.name}({operands}){source}"


def lane_equations(
    eqn: Eqn, used: Sequence[bool], unrounded: Unrounded, definition: Mapping[Var, Eqn]
) -> list[Eqn]:
    """Equations that replace a loop or branch by a lane program; the equation if none can.

    Args:
        eqn, used, unrounded, definition: see ``lane_equation``.
    """
    eqn, used = _without_unused_values(eqn, used)
    if _is_cheaper_as_loop(eqn, definition):
        return [eqn]
    strategies = [with_iterations_as_lanes, _as_one_lane_program, with_shared_sums]
    form = eqn.primitive.lower.inner(eqn)
    if form is not None and form.is_parallel:
        strategies = [_as_one_lane_program, with_iterations_as_lanes]
    for strategy in strategies:
        replacement = strategy(eqn, used, unrounded, definition)
        if replacement is not None:
            return replacement
    return [eqn]


def _is_cheaper_as_loop(eqn: Eqn, definition: Mapping[Var, Eqn]) -> bool:
    """Whether a loop updates so few elements that a lane program, which visits all, is slower."""
    rule = eqn.primitive.lower
    if rule.updated is None:
        return False
    num_elements = max((var.aval.size for var in eqn.outputs), default=0)
    if num_elements <= ITERATION_AS_ELEMENTS:
        return False
    updated_elements = rule.updated(eqn, definition.get)
    return (
        updated_elements is not None
        and ITERATION_AS_ELEMENTS + UPDATE_AS_ELEMENTS * updated_elements < num_elements
    )


def _as_one_lane_program(
    eqn: Eqn, used: Sequence[bool], unrounded: Unrounded, definition: Mapping[Var, Eqn]
) -> list[Eqn] | None:
    lane_eqn = lane_equation(eqn, used, unrounded, definition)
    return None if lane_eqn is None else [lane_eqn]


def _without_unused_values(eqn: Eqn, used: Sequence[bool]) -> tuple[Eqn, Sequence[bool]]:
    """A loop without unused values, and the new ``used`` flags of its outputs."""
    rule = eqn.primitive.lower
    if rule.form is None or eqn.primitive.programs.prune is None:
        return eqn, used
    used_outputs = {var for var, is_used in zip(eqn.outputs, used, strict=True) if is_used}
    eqn = eqn.primitive.programs.prune(eqn, used)
    return eqn, [var in used_outputs for var in eqn.outputs]


def with_iterations_as_lanes(
    eqn: Eqn, used: Sequence[bool], unrounded: Unrounded, definition: Mapping[Var, Eqn]
) -> list[Eqn] | None:
    """Replace a scan with independent iterations by a lane program over iterations; or None.

    Loop-invariant values are hoisted before it, and so are products, batched over all iterations.
    Values that iterations only sum are summed after it.
    """
    rule = eqn.primitive.lower
    if rule.independent_iterations is None:
        return None
    replacement = rule.independent_iterations(eqn)
    if replacement is None:
        return None
    return _with_inner_loops_converted(eqn, used, *replacement, unrounded, definition)


def with_shared_sums(
    eqn: Eqn, used: Sequence[bool], unrounded: Unrounded, definition: Mapping[Var, Eqn]
) -> list[Eqn] | None:
    """Replace a loop that sums over the batch by equations with a lane program; or None.

    Args:
        eqn, used, unrounded, definition: see ``lane_equation``.
    """
    rule = eqn.primitive.lower
    if rule.shared_sums is None:
        return None
    for lane_sizes in _lane_size_prefixes(rule.form(eqn.params)):
        replacement = rule.shared_sums(eqn, lane_sizes, definition.get)
        eqns = None
        if replacement is not None:
            eqns = _with_inner_loops_converted(eqn, used, *replacement, unrounded, definition)
        if eqns is not None:
            return eqns
    return None


def _with_inner_loops_converted(
    eqn: Eqn,
    used: Sequence[bool],
    eqns: Sequence[Eqn],
    outs: Sequence[Atom],
    unrounded: Unrounded,
    definition: Mapping[Var, Eqn],
) -> list[Eqn] | None:
    """Convert the loops in the replacement of a loop; None if not all can be lane programs.

    Args:
        eqn, used, unrounded, definition: see ``lane_equation``.
        eqns, outs: the replacement, and the atoms that replace the outputs of ``eqn``.
    """
    defined_vars = {var for inner in eqns for var in inner.outputs}
    pairs = zip(outs, eqn.outputs, used, strict=True)
    output_of = {out: var for out, var, is_used in pairs if is_used}
    if len(output_of) < sum(used) or not defined_vars.issuperset(output_of):
        return None  # an output is an input, or several are one
    renamed = _with_renamed_vars(eqns, output_of)
    live, new_eqns = set(output_of.values()), []
    for inner in reversed(renamed):
        inner_used = [var in live for var in inner.outputs]
        if not any(inner_used):
            continue
        if inner.primitive.lower.form is not None:
            inner = lane_equation(*_without_unused_values(inner, inner_used), unrounded, definition)
            if inner is None:
                return None
        new_eqns.append(inner)
        live.update(atom for atom in inner.inputs if type(atom) is not Literal)
    return new_eqns[::-1]


def _lane_size_prefixes(form: ScanForm | WhileForm) -> list[Shape]:
    """Candidates for the batch dimensions if not all carries have them; most dimensions first."""
    shapes = dict.fromkeys(aval.shape for aval in form.body.out_avals)
    prefixes = dict.fromkeys(shape[:n] for shape in shapes for n in range(1, len(shape) + 1))
    return sorted((shape for shape in prefixes if 1 not in shape), key=len, reverse=True)


def _with_renamed_vars(eqns: Sequence[Eqn], new_vars: Mapping[Any, Var]) -> list[Eqn]:
    """Equations with variables substituted by ``new_vars``."""

    def rename(atom: Any) -> Any:
        return new_vars.get(atom, atom) if type(atom) is Var else atom

    return [
        eqn.replace(inputs=tuple(map(rename, eqn.inputs)), outputs=tuple(map(rename, eqn.outputs)))
        for eqn in eqns
    ]
