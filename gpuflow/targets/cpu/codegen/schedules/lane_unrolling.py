"""Unroll factors of the loops inside blocks of lanes (``lane_blocks``).

Tests: tests/compiler/test_lanes.py.
"""

from __future__ import annotations

from gpuflow.kir.nodes import Apply, Block, Load, Statement
from gpuflow.kir.scalar import EXPENSIVE, TRANSCENDENTAL
from gpuflow.kir.walk import results_of, statements, uses_of

_UNROLL_LIMITS = ((12, 8), (24, 4), (48, 2))  # most operations of an iteration, unroll factor
# Costs of functions that are long dependence chains, in cheap statements.
_DIVISION_COST, _SERIES_COST = 12, 48


def unroll_factor(*blocks: Block) -> int:
    """The unroll factor of a loop without loops, given the blocks that an iteration runs.

    Iterations depend on each other, but lanes do not: a long iteration keeps a processor busy
    without unrolling. So does one that loads at an offset from the previous iteration.
    """
    if any(_is_lookup(block) for block in blocks):
        return 1
    count = operation_count(*blocks)
    return next((factor for most, factor in _UNROLL_LIMITS if count <= most), 1)


def operation_count(*blocks: Block) -> int:
    """Estimate the operations of one lane, in cheap statements."""
    return sum(_statement_cost(s) for block in blocks for s in statements(block))


def _statement_cost(s: Statement) -> int:
    if not isinstance(s, Apply) or s.fn not in EXPENSIVE:
        return 1
    return _SERIES_COST if s.fn in TRANSCENDENTAL else _DIVISION_COST


def _is_lookup(block: Block) -> bool:
    """Whether an iteration reads memory at an offset that depends on a carry."""
    dependent = set(block.params[1:])  # the first param may be the counter
    for s in statements(block):
        if isinstance(s, Load) and s.offset in dependent:
            return True
        if not dependent.isdisjoint(uses_of(s)):
            dependent.update(results_of(s))
    return False
