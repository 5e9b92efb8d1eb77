"""Memory of a plan over its steps, in bytes, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base.tables import scaled
from gpuflow.compiler.planning.plan import (
    Plan,
    argument_positions,
    nbytes,
    reads_of,
    scratch_of,
    writes_of,
)

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 120, 64, 8


def memory_over(plan: Plan) -> tuple[int, ...]:
    """Size of temporaries and new results while each step runs, in bytes.

    Arguments, and results in the memory of donated ones, do not count: the caller holds them.
    """
    operands = argument_positions(plan)
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        for buffer in (*writes_of(step), *scratch_of(step)):
            first.setdefault(buffer, number)
            last[buffer] = number
        for buffer in reads_of(step):
            last[buffer] = number
    for out in plan.outputs:
        if isinstance(out, int):
            last[out] = len(plan.steps) - 1
    changes = [0] * (len(plan.steps) + 1)
    for buffer, number in first.items():
        if buffer not in operands:
            changes[number] += nbytes(plan.aval(buffer))
            changes[last[buffer] + 1] -= nbytes(plan.aval(buffer))
    held, totals = 0, []
    for change in changes[:-1]:
        held += change
        totals.append(held)
    return tuple(totals)


def memory_picture(totals: Sequence[int]) -> str:
    """The bytes while each step runs, as an SVG of bars that refer to the steps."""
    most = max(totals, default=0) or 1
    width = (_WIDTH - _LEFT) / max(len(totals), 1)
    bars = []
    for number, total in enumerate(totals, 1):
        height = _HEIGHT * total / most
        bars.append(
            f'<a href="#step-{number}"><rect data-steps="{number}" '
            f'x="{_LEFT + (number - 1) * width:.2f}" y="{_TOP + _HEIGHT - height:.2f}" '
            f'width="{max(width * 0.9, 0.5):.2f}" height="{height:.2f}">'
            f"<title>step {number}: {scaled(total, 'B')}</title></rect></a>"
        )
    bottom = _TOP + _HEIGHT
    labels = (
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{scaled(most, "B")}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{bottom + 16}">step 1</text>'
        f'<text x="{_WIDTH}" y="{bottom + 16}" text-anchor="end">step {len(totals)}</text>'
    )
    return (
        f'<svg class="memory" viewBox="0 0 {_WIDTH} {bottom + 22}" role="img" '
        'aria-label="bytes of temporaries and results while each step runs">'
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{bottom}" y2="{bottom}"/>'
        f"{''.join(bars)}{labels}</svg>"
    )
