"""Cost model of lane programs: operations of one lane, estimated before code is emitted.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_updates.py.
"""

from __future__ import annotations

from math import prod

from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import Form, block_of

MAX_OPERATIONS = 1500  # operations in the text of a lane program; longer texts compile slowly
OPERATIONS_PER_ITERATION = 25  # operations whose compilation one iteration of the loop pays for

# Costs of a loop that the host runs: an iteration, and an update of one element. The unit is an
# element of a select in a lane program, which takes about 0.1 ns.
ITERATION_AS_ELEMENTS = 4000
UPDATE_AS_ELEMENTS = 8


def operation_count(form: Form, lanes: int) -> int:
    """The count of scalar operations in the text of a lane program.

    The body of a loop counts once: it is once in the text. Slices of an inner scan that are
    unrolled are not counted; ``FoldingBuilder`` bounds the values that are emitted in fact.

    Args:
        form: a loop or a branch.
        lanes: count of batch elements: the product of the batch dimensions of all arrays; positive.
    """
    lanes = max(lanes // max(prod(form.sizes), 1), 1)
    return sum(
        _eqn_operations(eqn, lanes) for program in form.programs for eqn in program.jaxpr.eqns
    )


def operation_limit(form: Form) -> int:
    """The most operations that the text of a lane program may have.

    Compiling it takes as long as some iterations of a loop that the host runs, so a long text pays
    off only for many iterations. If the trip count is not static, it is taken to be large.
    """
    trip_count = _trip_count(form)
    if trip_count is None:
        return MAX_OPERATIONS
    return min(MAX_OPERATIONS, OPERATIONS_PER_ITERATION * (trip_count + 4))


def _trip_count(form: Form) -> int | None:
    """The trip count of a loop, including those of inner loops; None if it is not static."""
    total = 0
    for program in form.programs:
        for eqn in program.jaxpr.eqns:
            inner = eqn.primitive.lower.inner(eqn)
            trip_count = 0 if inner is None else _trip_count(inner)
            if trip_count is None:
                return None
            total += trip_count
    return form.trip_count(total)


def _eqn_operations(eqn: Eqn, lanes: int) -> int:
    """The count of scalar operations of an equation in the text of a lane program."""
    rule = eqn.primitive.lower
    inner = rule.inner(eqn)
    if inner is not None:
        return operation_count(inner, lanes)
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
