"""Derivatives by their definition: limits of difference quotients in mpmath.

``slopes(function, operands, k)`` are the limits from the left and from the right; a result is right
if it lies between them, as a subgradient does. An infinite operand is the limit of large numbers,
which are the same for all operands that are infinite, so that ``(inf, inf)`` is approached on the
diagonal. None stands for a limit that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import copysign

import mpmath
from mpmath import mp, mpf

Function = Callable[..., mpf]

# Digits, and steps of quotients relative to the operand: two, so that growth and decay show. The
# other operand may be 1e40, by which a step must not become large.
WIDE = 280, (mpf("1e-50"), mpf("1e-65"))  # for float64
NARROW = 240, (mpf("1e-48"), mpf("1e-60"))
QUICK = 80, (mpf("1e-20"), mpf("1e-30"))  # for what mpmath computes slowly
Precision = tuple[int, tuple[mpf, mpf]]
# Two numbers in place of infinity, and how near their results have to be.
_ENDLESS = (mpf("1e42"), mpf("1e57"))
_AGREE = mpf("1e-6")
_HUGE = mpf("1e100")
_NOTHING = mpf("1e-340")  # below all numbers of float64
_MINUS_ZERO = mpf("-1e-2000")  # mpmath has no -0.0: a negative number smaller than all others
# Growth between two steps, and between two numbers in place of infinity: slower growth may be that
# of a logarithm, which any decaying power overtakes further out.
_GROWS, _GROWS_FAR = mpf("1.02"), mpf("2.5")


def _exact(x: mpf | float) -> mpf:
    return _MINUS_ZERO if x == 0 and isinstance(x, float) and copysign(1, x) < 0 else mpf(x)


def _value(function: Function, operands: Sequence[mpf]) -> mpf | None:
    try:
        out = function(*operands)
    except (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.ComplexResult):
        return None
    if isinstance(out, mpmath.mpc):
        return out.real if out.imag == 0 else None
    out = mpf(out)
    return None if mpmath.isnan(out) else out


def _settled(first: mpf | None, second: mpf | None, growth: mpf = _GROWS) -> mpf | None:
    """The limit of a sequence of which two members far apart are given."""
    if first is None or second is None:
        return None
    size = max(abs(first), abs(second))
    if size < _NOTHING:
        return mpf(0)
    if mpmath.isinf(second) or abs(second - first) <= _AGREE * size:
        return second
    if abs(second) > growth * abs(first):
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
    function: Function,
    operands: Sequence[mpf],
    place: int,
    side: int,
    order: int,
    steps: tuple[mpf, mpf],
) -> mpf | None:
    first, second = (_quotient(function, operands, place, side, step, order) for step in steps)
    return _settled(first, second)


def slopes(
    function: Function,
    operands: Sequence[mpf | float],
    place: int,
    order: int = 1,
    precision: Precision = WIDE,
) -> list[mpf | None]:
    """The limits from both sides of the derivative by operand ``place``, of ``order`` 1 or 2."""
    digits, steps = precision
    with mp.workdps(digits):
        numbers = [_exact(x) if k != place else mpf(x) for k, x in enumerate(operands)]
        if not any(map(mpmath.isinf, numbers)):
            return [_one_sided(function, numbers, place, side, order, steps) for side in (-1, 1)]
        limits = []
        for endless in _ENDLESS:
            near = [mpmath.sign(x) * endless if mpmath.isinf(x) else x for x in numbers]
            limits.append(
                [_one_sided(function, near, place, side, order, steps) for side in (-1, 1)]
            )
        return [_settled(*pair, _GROWS_FAR) for pair in zip(*limits, strict=True)]


def nearby_slopes(
    function: Function,
    operands: Sequence[float],
    place: int,
    order: int,
    precision: Precision,
    eps: float,
) -> list[mpf | None]:
    """Limits at operands that differ by a rounding: each by at most ``eps`` times itself.

    A result between them is the derivative for such operands. Where they differ much, the point is
    ill-conditioned: an algorithm that rounds an intermediate result once cannot be more exact.
    """
    with mp.workdps(precision[0]):
        found: list[mpf | None] = []
        for signs in product((-1, 0, 1), repeat=len(operands)):
            pairs = zip(operands, signs, strict=True)
            # To most functions -0.0 is 0.
            near = [
                (_exact(x) if x or sign else mpf(0)) * (1 + mpf(eps) * sign) for x, sign in pairs
            ]
            found += slopes(function, near, place, order, precision)
    return found


def slopes_along(
    meaning: Callable[[list[mpf]], mpf | list[mpf]],
    x: Sequence[mpf | float],
    direction: Sequence[float],
    k: int,
    precision: Precision,
) -> list[mpf | None]:
    """Limits for result ``k`` of a function of a vector, along a direction."""

    def on_interval(t: mpf) -> mpf:
        out = meaning([mpf(v) + t * mpf(d) for v, d in zip(x, direction, strict=True)])
        return out[k] if isinstance(out, list) else out

    return slopes(on_interval, [0.0], 0, 1, precision)


def nearby_slopes_along(
    meaning: Callable[[list[mpf]], mpf | list[mpf]],
    x: Sequence[float],
    direction: Sequence[float],
    k: int,
    precision: Precision,
    distance: float,
) -> list[mpf | None]:
    """The same at vectors that differ by a rounding of their largest element, in each element.

    Ties are resolved in all orders: a derivative that follows one of them lies between the limits.
    """
    with mp.workdps(precision[0]):
        found: list[mpf | None] = []
        # Different sizes, else two of four equal elements remain a tie.
        for signs in product((-1, -0.3, 0.4, 1), repeat=len(x)):
            near = [mpf(v) + mpf(distance) * sign for v, sign in zip(x, signs, strict=True)]
            found += slopes_along(meaning, near, direction, k, precision)
    return found
