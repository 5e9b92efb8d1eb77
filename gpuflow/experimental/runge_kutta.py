"""Explicit Runge-Kutta methods on pytrees, shared by ``ode`` and ``ensemble``.

Tests: tests/experimental/test_ensemble.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.numpy.creation import astype
from gpuflow.ops.elementwise.select import where
from gpuflow.tree_util import tree_leaves, tree_map

zip = safe_zip

Slope = Callable[[Any, Any], Any]


@record
class Tableau:
    """The coefficients of a method.

    Attributes:
        order: of the solution.
        nodes: of the stages after the first, in steps.
        rows: the weights of earlier stages for each of them; the last row is the solution.
        error: the solution less the embedded one, by stage; None: there is none.
        reuses_last: the slope at the solution is the last stage, and the next step's first one.
    """

    order: int
    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    error: tuple[float, ...] | None
    reuses_last: bool


# Source: Kutta, Z. Math. Phys. 46 (1901), 435.
CLASSICAL = Tableau(
    4,
    (0.5, 0.5, 1.0, 1.0),
    ((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    None,
    reuses_last=False,
)

# Source: Dormand and Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6
# (1980), 19.
DORMAND_PRINCE = Tableau(
    5,
    (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
    (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    (
        35 / 384 - 1951 / 21600,
        0,
        500 / 1113 - 22642 / 50085,
        125 / 192 - 451 / 720,
        -2187 / 6784 + 12231 / 42400,
        11 / 84 - 649 / 6300,
        -1 / 60,
    ),
    reuses_last=True,
)

# Source: Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying
# assumption, Comput. Math. Appl. 62 (2011), 770, table 1.
TSITOURAS = Tableau(
    5,
    (0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0),
    (
        (0.161,),
        (-0.008480655492356989, 0.335480655492357),
        (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        (
            5.86145544294642,
            -12.92096931784711,
            8.159367898576159,
            -0.071584973281401,
            -0.028269050394068383,
        ),
        (
            0.09646076681806523,
            0.01,
            0.4798896504144996,
            1.379008574103742,
            -3.290069515436081,
            2.324710524099774,
        ),
    ),
    (
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        1 / 66,
    ),
    reuses_last=True,
)


def tsitouras_weights(theta: Any) -> tuple[Any, ...]:
    """The weights of the seven stages for the state within a step: an interpolant of order 4.

    Args:
        theta: the position in the step, from 0 to 1.

    Source: Tsitouras 2011, the formula below table 1; it needs no further stage.
    """
    square = theta * theta
    return (
        -1.0530884977290216
        * theta
        * (theta - 1.3299890189751412)
        * (square - 1.4364028541716351 * theta + 0.7139816917074209),
        0.1017 * square * (square - 2.1966568338249754 * theta + 1.2949852507374631),
        2.490627285651252793
        * square
        * (square - 2.38535645472061657 * theta + 1.57803468208092486),
        -16.54810288924490272
        * square
        * (theta - 1.21712927295533244)
        * (theta - 0.61620406037800089),
        47.37952196281928122
        * square
        * (theta - 1.203071208372362603)
        * (theta - 0.658047292653547382),
        -34.87065786149660974 * square * (theta - 1.2) * (theta - 0.666666666666666667),
        2.5 * square * (theta - 1.0) * (theta - 0.6),
    )


def combined(weights: Sequence[Any], slopes: Sequence[Any]) -> Any:
    """The sum of arrays with weights; those that are the number 0 are left out."""
    terms = [
        slopes[k] * weight
        for k, weight in enumerate(weights)
        if not (isinstance(weight, (int, float)) and weight == 0)
    ]
    return sum(terms[1:], terms[0])


def moved(y: Any, dt: Any, weights: Sequence[Any], slopes: Sequence[Any]) -> Any:
    """``y + dt * sum(weights * slopes)``, for trees; each leaf keeps the dtype of its slope."""

    def move(leaf: Any, *ks: Any) -> Any:
        dtype = aval_of(ks[0]).dtype
        known = [w if isinstance(w, (int, float)) else astype(w, dtype) for w in weights]
        return leaf + astype(dt, dtype) * combined(known, ks)

    return tree_map(move, y, *slopes)


def take_step(
    tableau: Tableau, slope: Slope, t: Any, y: Any, first: Any, dt: Any
) -> tuple[Any, list[Any]]:
    """One step: the new state, and the slopes of its stages.

    Args:
        tableau: the method.
        slope: ``(t, y) -> dy/dt``.
        t, y: where the step begins; first: the slope there.
        dt: its length, below 0 for steps back in time.
    """
    slopes = [first]
    for k, (node, row) in enumerate(zip(tableau.nodes, tableau.rows)):
        new = moved(y, dt, row, slopes)
        if tableau.reuses_last or k + 1 < len(tableau.rows):
            slopes.append(slope(t + dt * node, new))
    return new, slopes


def error_of(tableau: Tableau, dt: Any, slopes: Sequence[Any]) -> Any:
    """An estimate of the step's error, a tree like the state."""
    assert tableau.error is not None
    weights = tableau.error
    return tree_map(lambda *ks: astype(dt, aval_of(ks[0]).dtype) * combined(weights, ks), *slopes)


def abs2(x: Any) -> Any:
    """The squared absolute value."""
    if dtypes.is_complex(aval_of(x).dtype):
        return jnp.real(x) ** 2 + jnp.imag(x) ** 2
    return x**2


def mean_square_ratio(error: Any, rtol: Any, atol: Any, y0: Any, y1: Any) -> Any:
    """The mean over all elements of the square of the error over the one that is tolerated."""

    def squares(error: Any, y0: Any, y1: Any) -> Any:
        tolerated = atol + rtol * jnp.maximum(jnp.abs(y0), jnp.abs(y1))
        return jnp.sum(abs2(error / astype(tolerated, aval_of(error).dtype)))

    sums = tree_leaves(tree_map(squares, error, y0, y1))
    return sum(sums[1:], sums[0]) / max(_size(error), 1)


def _size(tree: Any) -> int:
    return sum(aval_of(leaf).size for leaf in tree_leaves(tree))


def first_step(slope: Slope, t: Any, y: Any, first: Any, order: int, rtol: Any, atol: Any) -> Any:
    """A length for the first step of a method of ``order``.

    Args:
        slope: ``(t, y) -> dy/dt``.
        t, y: where the step begins; first: the slope there.

    Source: Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I (1993), II.4.
    """
    scale = tree_map(lambda x: astype(atol + jnp.abs(x) * rtol, aval_of(x).dtype), y)

    def norm(tree: Any) -> Any:
        squares = tree_leaves(tree_map(lambda x, s: jnp.sum(abs2(x / s)), tree, scale))
        return jnp.sqrt(sum(squares[1:], squares[0]))

    d0, d1 = norm(y), norm(first)
    tiny = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = jnp.where(tiny, 1e-6, 0.01 * d0 / where(tiny, 1, d1))
    second = slope(t + h0, moved(y, h0, (1.0,), (first,)))
    d2 = norm(tree_map(lambda b, a: b - a, second, first)) / h0
    flat = (d1 <= 1e-15) & (d2 <= 1e-15)
    steep = where(flat, 1, jnp.maximum(d1, d2))
    h1 = jnp.where(flat, jnp.maximum(1e-6, h0 * 1e-3), (0.01 / steep) ** (1 / (order + 1.0)))
    return jnp.minimum(100.0 * h0, h1)
