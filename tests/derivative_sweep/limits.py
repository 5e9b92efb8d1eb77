"""Derivatives by their definition: limits of difference quotients in mpmath.

``slopes(function, operands, k)`` are the limits from the left and from the right; a result is right
if it lies between them, as a subgradient does. An infinite operand is the limit of large numbers,
which are the same for all operands that are infinite, so that ``(inf, inf)`` is approached on the
diagonal. None stands for a limit that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath
from mpmath import mp, mpf

Function = Callable[..., mpf]

# Digits, and steps of quotients relative to the operand: two, so that growth and decay show.
WIDE = 280, (mpf("1e-30"), mpf("1e-45"))  # for float64
NARROW = 180, (mpf("1e-20"), mpf("1e-32"))
QUICK = 80, (mpf("1e-20"), mpf("1e-30"))  # for what mpmath computes slowly
Precision = tuple[int, tuple[mpf, mpf]]
# Two numbers in place of infinity, and how near their results have to be.
_ENDLESS = (mpf("1e42"), mpf("1e57"))
_AGREE = mpf("1e-6")
_HUGE = mpf("1e100")
_NOTHING = mpf("1e-340")  # below all numbers of float64


def _value(function: Function, operands: Sequence[mpf]) -> mpf | None:
    try:
        out = function(*operands)
    except (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.ComplexResult):
        return None
    if isinstance(out, mpmath.mpc):
        return out.real if out.imag == 0 else None
    out = mpf(out)
    return None if mpmath.isnan(out) else out


def _settled(first: mpf | None, second: mpf | None) -> mpf | None:
    """The limit of a sequence of which two members far apart are given."""
    if first is None or second is None:
        return None
    size = max(abs(first), abs(second))
    if size < _NOTHING:
        return mpf(0)
    if mpmath.isinf(second) or abs(second - first) <= _AGREE * size:
        return second
    if abs(second) > 1.02 * abs(first):
        return mpmath.sign(second) * mpf("inf") if second * first >= 0 else None
    # What decays by a power of the step is 0 in the end.
    return mpf(0) if abs(second) < 1e-4 * abs(first) else None


def _quotient(
    function: Function, operands: Sequence[mpf], place: int, side: int, step: mpf, order: int
) -> mpf | None:
    x = operands[place]
    # Steps are those of the operand, but near infinity, where others are as large, those of 1.
    move = side * step * (1 if not x or 1 < abs(x) < _HUGE else abs(x))
    values = []
    for count in range(order + 1):
        shifted = list(operands)
        shifted[place] = x + count * move
        values.append(_value(function, shifted))
    if any(value is None or mpmath.isinf(value) for value in values):
        return None
    change = values[1] - values[0] if order == 1 else values[2] - 2 * values[1] + values[0]
    # What is left of values that cancel is rounding: 0 where that is far below all numbers.
    rounding = max(map(abs, values)) * mpf(10) ** (4 - mp.dps)
    if abs(change) <= rounding:
        return mpf(0) if rounding / abs(move) ** order < mpf("1e-45") else None
    return change / move**order


def _one_sided(
    function: Function, operands: Sequence[mpf], place: int, side: int, order: int,
    steps: tuple[mpf, mpf],
) -> mpf | None:
    first, second = (
        _quotient(function, operands, place, side, step, order) for step in steps
    )
    return _settled(first, second)


def slopes(
    function: Function, operands: Sequence[float], place: int, order: int = 1,
    precision: Precision = WIDE,
) -> list[mpf | None]:
    """The limits from both sides of the derivative by operand ``place``, of ``order`` 1 or 2."""
    digits, steps = precision
    with mp.workdps(digits):
        numbers = [mpf(x) for x in operands]
        if not any(map(mpmath.isinf, numbers)):
            return [_one_sided(function, numbers, place, side, order, steps) for side in (-1, 1)]
        limits = []
        for endless in _ENDLESS:
            near = [mpmath.sign(x) * endless if mpmath.isinf(x) else x for x in numbers]
            limits.append(
                [_one_sided(function, near, place, side, order, steps) for side in (-1, 1)]
            )
        return [_settled(*pair) for pair in zip(*limits, strict=True)]
