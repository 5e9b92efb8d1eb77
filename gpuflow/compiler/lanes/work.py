"""How much a program does for one lane, about, before any of it is emitted."""

from __future__ import annotations

from math import prod

from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import Form, block_of

MOST_WORK = 1500  # operations of a lane: a longer text takes long to compile
WORK_OF_A_TURN = 25

# As many elements pass through a turn of a choice in lanes, some 0.1 ns each, as a turn that is run
# from outside takes, and as it takes to update an element there.
TURN_AS_ELEMENTS = 4000
UPDATE_AS_ELEMENTS = 8


def work(form: Form, lanes: int) -> int:
    """The operations on single elements that the text of one lane would have.

    Args:
        form: a loop, or the programs of a branch.
        lanes: number of batch elements, the size of the leading dimensions of all arrays.
    """
    lanes = max(lanes // max(prod(form.sizes), 1), 1)
    return sum(_of(eqn, lanes) for program in form.programs for eqn in program.jaxpr.eqns)


def most_work(form: Form) -> int:
    """The operations that a lane may have at most.

    Compiling one takes as long as some iterations of a loop that the host runs: a long text pays
    off for many iterations.
    """
    turns = _turns(form)
    return MOST_WORK if turns is None else min(MOST_WORK, WORK_OF_A_TURN * (turns + 4))


def _turns(form: Form) -> int | None:
    """How many turns a loop has, with those in it; None: nobody knows."""
    total = 0
    for program in form.programs:
        for eqn in program.jaxpr.eqns:
            inner = eqn.primitive.lower.inner(eqn)
            turns = 0 if inner is None else _turns(inner)
            if turns is None:
                return None
            total += turns
    return form.trip_count(total)


def _of(eqn: Eqn, lanes: int) -> int:
    rule = eqn.primitive.lower
    inner = rule.inner(eqn)
    if inner is not None:
        return work(inner, lanes)
    if rule.view is not None:
        return 0
    arrays = eqn.inputs if rule.is_reduction else eqn.outputs
    sizes = [prod(atom.aval.shape) for atom in arrays]
    elements = max(sizes) if rule.is_reduction else sum(sizes)
    block = block_of(eqn)
    if isinstance(block, Product):
        shape = eqn.inputs[0].aval.shape
        elements *= 2 * prod(shape[d] for d in block.left[2])
    return -(-elements // lanes)
