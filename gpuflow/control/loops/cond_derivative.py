"""Linearization and partial evaluation of cond: the residuals of its branches share slots.

Tests: tests/control/test_partial_eval.py, tests/control/test_remat_partial_evaluation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.lanes import Lanes, extend
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr, Literal, evaluate
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.zeros import zeros_of
from gpuflow.transforms.linearize import linearize_jaxpr
from gpuflow.transforms.partial_eval import partial_jaxpr


def linearize_cond(
    bind: Callable[..., list[Any]],
    nonzeros: tuple[bool, ...],
    index: Any,
    *operands: Any,
    branches: tuple[ClosedJaxpr, ...],
    lanes: Lanes = (),
) -> tuple[Any, ...]:
    """The linearize rule: a cond evaluates and returns residuals, another maps tangents.

    A residual that is an operand is read again. The others are stored in slots. There are as many
    slots of a type as the branch that needs most of them has residuals. Unused slots are zeros.
    """
    flags = tuple(nonzeros[1:])
    nonzero_outs = [linearize_jaxpr(branch, flags).out_nonzeros for branch in branches]
    out_nonzeros = tuple(any(column) for column in zip(*nonzero_outs, strict=True))
    splits = [linearize_jaxpr(branch, flags, out_nonzeros) for branch in branches]
    slots = _Slots([(known, count) for known, _, _, count in splits], len(operands))
    evaluations = [
        slots.evaluation(ordinal, known, count)
        for ordinal, (known, _, _, count) in enumerate(splits)
    ]
    results = bind(evaluations, index, operands, lanes)
    num_outs = len(out_nonzeros)
    linears = [slots.linear(ordinal, linear) for ordinal, (_, linear, _, _) in enumerate(splits)]
    tangent_positions = [k for k, flag in enumerate(flags) if flag]
    sources = [*slots.operands, *[-1] * len(slots.avals), *tangent_positions]
    residuals = [index, *[operands[k] for k in slots.operands], *results[num_outs:]]

    def tangent_function(values: Sequence[Any], *tangents: Any) -> list[Any]:
        return bind(linears, values[0], [*values[1:], *tangents], extend(lanes, sources))

    return results[:num_outs], out_nonzeros, residuals, tangent_function


def partial_cond(
    bind: Callable[..., list[Any]],
    unknowns: tuple[bool, ...],
    index: Any,
    *operands: Any,
    branches: tuple[ClosedJaxpr, ...],
    lanes: Lanes = (),
) -> tuple[Any, ...]:
    """The partial_eval rule: a cond computes the known outputs, another the unknown ones."""
    flags = tuple(unknowns[1:])
    if unknowns[0]:
        return _all_unknown(bind, flags, operands, branches, lanes)
    out_flags = [partial_jaxpr(branch, flags).out_unknowns for branch in branches]
    out_unknowns = tuple(any(column) for column in zip(*out_flags, strict=True))
    splits = [partial_jaxpr(branch, flags, out_unknowns) for branch in branches]
    known_positions = [k for k, flag in enumerate(flags) if not flag]
    slots = _Slots([(known, count) for known, _, _, count in splits], len(known_positions))
    evaluations = [
        slots.evaluation(ordinal, known, count)
        for ordinal, (known, _, _, count) in enumerate(splits)
    ]
    known_operands = [operands[k] for k in known_positions]
    results = bind(evaluations, index, known_operands, extend(lanes, known_positions))
    num_outs = len(out_unknowns) - sum(out_unknowns)
    unknown_branches = [
        slots.linear(ordinal, unknown) for ordinal, (_, unknown, _, _) in enumerate(splits)
    ]
    reread_positions = [known_positions[k] for k in slots.operands]
    sources = [
        *reread_positions,
        *[-1] * len(slots.avals),
        *[k for k, flag in enumerate(flags) if flag],
    ]
    residuals = [index, *[operands[k] for k in reread_positions], *results[num_outs:]]

    def unknown_function(values: Sequence[Any], *unknown_operands: Any) -> list[Any]:
        inner_operands = [*values[1:], *unknown_operands]
        return bind(unknown_branches, values[0], inner_operands, extend(lanes, sources))

    return results[:num_outs], out_unknowns, residuals, unknown_function


def _all_unknown(
    bind: Callable[..., list[Any]],
    flags: Sequence[bool],
    operands: Sequence[Any],
    branches: tuple[ClosedJaxpr, ...],
    lanes: Lanes,
) -> tuple[Any, ...]:
    """The partial_eval rule for an unknown index: every output is unknown."""

    def unknown_function(values: Sequence[Any], index: Any, *unknown_operands: Any) -> list[Any]:
        known, unknown = iter(values), iter(unknown_operands)
        full = [next(unknown if flag else known) for flag in flags]
        return bind(branches, index, full, lanes)

    known = [x for x, flag in safe_zip(operands, flags) if not flag]
    return [], (True,) * len(branches[0].out_avals), known, unknown_function


class _Slots:
    """The assignment of the residuals of all branches to shared slots.

    Attributes:
        operands: indices of operands that the linear map of some branch reads again.
        avals: the type of each slot.
        plans: for each branch and residual its source: ("operand", k), ("slot", k) or
            ("literal", value).
    """

    def __init__(self, knowns: Sequence[tuple[ClosedJaxpr, int]], num_operands: int) -> None:
        self.in_avals = knowns[0][0].in_avals
        self.operands: list[int] = []
        self.avals: list[ShapedArray] = []
        self.plans: list[list[tuple[str, Any]]] = []
        for known, count in knowns:
            inner = known.jaxpr
            positions = {var: k for k, var in enumerate(inner.invars[:num_operands])}
            used_slots: set[int] = set()
            plan: list[tuple[str, Any]] = []
            for atom in inner.outvars[len(inner.outvars) - count :]:
                if type(atom) is Literal:
                    plan.append(("literal", atom))
                elif atom in positions:
                    if positions[atom] not in self.operands:
                        self.operands.append(positions[atom])
                    plan.append(("operand", positions[atom]))
                else:
                    slot = self._slot(atom.aval, used_slots)
                    used_slots.add(slot)
                    plan.append(("slot", slot))
            self.plans.append(plan)

    def _slot(self, aval: ShapedArray, used_slots: set[int]) -> int:
        for k, slot_aval in enumerate(self.avals):
            if k not in used_slots and (slot_aval.shape, slot_aval.dtype) == (
                aval.shape,
                aval.dtype,
            ):
                return k
        self.avals.append(aval)
        return len(self.avals) - 1

    def _plan_key(self, ordinal: int) -> tuple[Any, ...]:
        plan = self.plans[ordinal]
        return tuple((kind, None if kind == "literal" else source) for kind, source in plan)

    def evaluation(self, ordinal: int, known: ClosedJaxpr, count: int) -> ClosedJaxpr:
        """The forward branch with the slots as additional outputs."""
        plan = self.plans[ordinal]

        def evaluate_branch(*operands: Any) -> list[Any]:
            outs = known(*operands)
            split = len(outs) - count
            filled = {
                source: out
                for (kind, source), out in safe_zip(plan, outs[split:])
                if kind == "slot"
            }
            slots = [
                filled[k] if k in filled else zeros_of(aval) for k, aval in enumerate(self.avals)
            ]
            return [*outs[:split], *slots]

        key = ("cond evaluation", self._plan_key(ordinal), tuple(self.avals))
        return known.jaxpr.memo(key, lambda: _traced(evaluate_branch, known.in_avals))

    def linear(self, ordinal: int, linear: Jaxpr) -> ClosedJaxpr:
        """The branch's linear map ``(*operands read again, *slots, *tangents) -> tangents``."""
        plan = self.plans[ordinal]
        tangents = linear.invars[len(plan) :]
        num_operands = len(self.operands)

        def apply(*values: Any) -> list[Any]:
            reread_operands, remaining = values[:num_operands], values[num_operands:]
            slots, tangent_values = remaining[: len(self.avals)], remaining[len(self.avals) :]
            residuals = []
            for kind, source in plan:
                if kind == "operand":
                    residuals.append(reread_operands[self.operands.index(source)])
                elif kind == "slot":
                    residuals.append(slots[source])
                else:
                    residuals.append(source.operand)
            return evaluate(linear, (), [*residuals, *tangent_values])

        key = ("cond linear", self._plan_key(ordinal), tuple(self.operands), tuple(self.avals))
        avals = [*[self.in_avals[k] for k in self.operands], *self.avals]
        return linear.memo(key, lambda: _traced(apply, [*avals, *[v.aval for v in tangents]]))


def _traced(function: Callable[..., list[Any]], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    jaxpr, consts = trace_to_jaxpr(function, avals)
    return ClosedJaxpr(jaxpr, tuple(consts))
