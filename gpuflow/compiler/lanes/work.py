"""How much a program does for one lane, about, before any of it is emitted."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn
from gpuflow.core.lowering import (
    Branch,
    Inline,
    LaneForm,
    Layout,
    Loop,
    Reduction,
    ScanForm,
    TupleReduction,
    WhileForm,
    block_of,
)

MOST_WORK = 1500  # operations of a lane: a longer text takes long to compile
WORK_OF_A_TURN = 25

# As many elements pass through a turn of a choice in lanes, some 0.1 ns each, as a turn that is run
# from outside takes, and as it takes to update an element there.
TURN_AS_ELEMENTS = 4000
UPDATE_AS_ELEMENTS = 8

Form = ScanForm | WhileForm | LaneForm | ClosedJaxpr | Sequence[Any]


def work(form: Form, lanes: int) -> int:
    """The operations on single elements that the text of one lane would have.

    Args:
        form: a loop, or the programs of a branch.
        lanes: number of batch elements, the size of the leading dimensions of all arrays.
    """
    if isinstance(form, LaneForm):
        return work(form.form, max(lanes // max(prod(form.sizes), 1), 1))
    return sum(_of(eqn, lanes) for program in programs_of(form) for eqn in program.jaxpr.eqns)


def programs_of(form: ScanForm | WhileForm | ClosedJaxpr | Sequence[Any]) -> Sequence[Any]:
    """The programs of a loop or a branch, or the one program that a form is."""
    if isinstance(form, WhileForm):
        return [form.condition, form.body]
    if isinstance(form, ScanForm):
        return [form.body]
    return [form] if isinstance(form, ClosedJaxpr) else form


def most_work(form: Form) -> int:
    """The operations that a lane may have at most.

    Compiling one takes as long as some iterations of a loop that the host runs: a long text pays
    off for many iterations.
    """
    turns = _turns(form)
    return MOST_WORK if turns is None else min(MOST_WORK, WORK_OF_A_TURN * (turns + 4))


def _turns(form: Form) -> int | None:
    """How many turns a loop has, with those in it; None: nobody knows."""
    if isinstance(form, LaneForm):
        if not isinstance(form.form, ClosedJaxpr):
            return _turns(form.form)
        inner = _inner_turns([form.form])
        return None if inner is None else prod(form.sizes) * max(inner, 1)
    if isinstance(form, WhileForm):
        return None
    if not isinstance(form, ScanForm):
        return _inner_turns(form)
    inner = _inner_turns([form.body])
    return None if inner is None else form.length * max(inner, 1)


def _inner_turns(programs: Sequence[Any]) -> int | None:
    total = 0
    for program in programs:
        for eqn in program.jaxpr.eqns:
            rule, turns = eqn.primitive.lower, 0
            if isinstance(rule, Inline):
                form = None if rule.lanes is None else rule.lanes(eqn.params)
                turns = _inner_turns([rule.program(eqn)]) if form is None else _turns(form)
            elif isinstance(rule, Loop):
                turns = _turns(rule.form(eqn.params))
            elif isinstance(rule, Branch):
                turns = _inner_turns(rule.branches(eqn.params))
            if turns is None:
                return None
            total += turns
    return total


def _of(eqn: Eqn, lanes: int) -> int:
    rule = eqn.primitive.lower
    if isinstance(rule, Layout):
        return 0
    if isinstance(rule, Inline):
        form = None if rule.lanes is None else rule.lanes(eqn.params)
        return work([rule.program(eqn)] if form is None else form, lanes)
    if isinstance(rule, Loop):
        return work(rule.form(eqn.params), lanes)
    if isinstance(rule, Branch):
        return work(rule.branches(eqn.params), lanes)
    elements = sum(prod(var.aval.shape) for var in eqn.outputs)
    if isinstance(rule, Reduction | TupleReduction):
        elements = max(prod(atom.aval.shape) for atom in eqn.inputs)
    block = block_of(eqn)
    if isinstance(block, Product):
        shape = eqn.inputs[0].aval.shape
        elements *= 2 * prod(shape[d] for d in block.left[2])
    return -(-elements // lanes)
