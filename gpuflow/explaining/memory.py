"""Memory of a plan over its steps, in bytes, and as a picture.

Tests: tests/explaining/test_explanation.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.tables import scaled
from gpuflow.base.util import SourceLocation
from gpuflow.compiler.planning.plan import (
    Plan,
    ProgramStep,
    argument_positions,
    nbytes,
    reads_of,
    scratch_of,
    writes_of,
)
from gpuflow.core.aval import ShapedArray
from gpuflow.explaining.costs import communication_of, origins_of

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 120, 64, 8


def memory_over(plan: Plan) -> tuple[int, ...]:
    """Size of temporaries and new results while each step runs, in bytes.

    Arguments, and results in the memory of donated ones, do not count: the caller holds them.
    """
    changes = [0] * (len(plan.steps) + 1)
    for buffer, (first, last) in _lifetimes(plan).items():
        changes[first] += nbytes(plan.aval(buffer))
        changes[last + 1] -= nbytes(plan.aval(buffer))
    held, totals = 0, []
    for change in changes[:-1]:
        held += change
        totals.append(held)
    return tuple(totals)


def _lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    """The first and the last step of each buffer, without arguments and what aliases them."""
    operands = argument_positions(plan)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        for buffer in (*writes_of(step), *scratch_of(step)):
            first.setdefault(buffer, number)
            last[buffer] = number
        for buffer in reads_of(step):
            last[buffer] = number
    for out in plan.outputs:
        if isinstance(out, int):
            last[out] = len(plan.steps) - 1
    return {k: (start, last[k]) for k, start in first.items() if k not in operands}


@record
class LiveArray:
    """An array at the moment when a plan needs most memory.

    Attributes:
        name: path of an argument, or the step that makes the array.
        kind: "argument", "result", "temporary" or "communication", which is the result of a
            collective.
        aval: its type.
        nbytes: bytes of it.
        line: the user's line that made it; None for arguments.
    """

    name: str
    kind: str
    aval: ShapedArray
    nbytes: int
    line: SourceLocation | None


def live_at_peak(plan: Plan) -> list[LiveArray]:
    """The temporaries and results while the step with most of them runs, largest first.

    The workspace of a loop counts as the arrays of its program at that program's peak.
    """
    totals = memory_over(plan)
    if not totals:
        return []
    peak = max(range(len(totals)), key=totals.__getitem__)
    makers = {buffer: step for step in reversed(plan.steps) for buffer in writes_of(step)}
    results, found = {out for out in plan.outputs if isinstance(out, int)}, []
    for buffer, (first, last) in _lifetimes(plan).items():
        if not first <= peak <= last:
            continue
        step = makers.get(buffer)
        if isinstance(step, ProgramStep) and buffer == step.workspace:
            inner = max((one.plan for one in step.programs), key=lambda plan: plan.arena_bytes)
            arrays, size = live_at_peak(inner), nbytes(plan.aval(buffer))
            unnamed = size - sum(array.nbytes for array in arrays)  # second carries, alignment
            workspace = ShapedArray((max(unnamed, 0),), np.dtype(np.uint8))
            found += arrays
            if unnamed > 0:
                found.append(
                    LiveArray(f"workspace of {step.name}", "temporary", workspace, unnamed, None)
                )
            continue
        kind = "result" if buffer in results else "temporary"
        if step is not None and communication_of(step) is not None:
            kind = "communication"
        lines = () if step is None else origins_of(step)
        name, aval = "scratch" if step is None else step.name, plan.aval(buffer)
        found.append(LiveArray(name, kind, aval, nbytes(aval), lines[0] if lines else None))
    return sorted(found, key=lambda array: -array.nbytes)


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
