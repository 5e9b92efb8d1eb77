"""Common code of special functions: checks of operands, Chebyshev series, exact exponentials.

A public function promotes its operands and calls a private one, which is jitted, so that
it is one kernel, and has a derivative rule. Constants are Python scalars, so that weak types
and float64 pass through.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import wraps
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.programs import jit
from gpuflow.base import dtypes, tree
from gpuflow.base.caches import cache
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array
from gpuflow.numpy.promotion import convert, promote_args_inexact, strong

Function = Callable[..., Any]


def real_operands(name: str, *operands: Any) -> list[Array]:
    """The operands as arrays of their common float dtype: Python scalars do not divide by 0.

    Raises:
        ValueError: if an argument is complex.
    """
    promoted = promote_args_inexact(name, *operands)
    dtype = aval_of(promoted[0]).dtype
    if dtypes.is_complex(dtype):
        raise ValueError(
            f"[{name}] operands must be real, complex-valued inputs are not supported; got "
            f"{dtype}. Fix: jnp.real(x)."
        )
    return [lax.asarray(x) for x in promoted]


def strong_operands(name: str, *operands: Any) -> list[Array]:
    """``real_operands`` of functions whose results are never weak: the compositions of JAX."""
    return [strong(x) for x in real_operands(name, *operands)]


def typed_operands(name: str, *operands: Any) -> list[Array]:
    """``real_operands`` of functions that are weak only where the first one is a weak scalar."""
    arrays = real_operands(name, *operands)
    return [strong(x) for x in arrays] if aval_of(arrays[0]).ndim else arrays


def is_complex(x: Any) -> bool:
    return dtypes.is_complex(aval_of(x).dtype)


def kernel(function: Function) -> Function:
    """``function`` jitted; 16-bit floats are computed in float32 and rounded once."""
    compiled = jit(function)

    @wraps(function)
    def run(*operands: Any) -> Any:
        dtype = aval_of(operands[0]).dtype
        if dtype.itemsize > 2:
            return compiled(*operands)
        out = compiled(*[convert(x, np.dtype(np.float32)) for x in operands])
        return tree.tree_map(lambda y: lax.convert_element_type(y, dtype), out)

    return run


def with_derivatives(*derivatives: Function | None) -> Callable[[Function], Function]:
    """A decorator: ``kernel`` with ``derivatives[k](tangent, out, *operands)``, one an operand."""

    def decorate(function: Function) -> Function:
        rule = custom_jvp(kernel(function))
        rule.defjvps(*derivatives)
        return rule

    return decorate


def scalar_like(count: Any, x: Any) -> Any:
    """The counter of a loop as a scalar of the dtype of ``x``."""
    aval = aval_of(x)
    return convert(count, aval.dtype, aval.weak_type)


def precision(x: Any) -> float:
    """The distance from 1 to the next number in the dtype of ``x``."""
    return float(jnp.finfo(aval_of(x).dtype).eps)


def least_normal(x: Any) -> float:
    """The smallest normal number of the dtype of ``x``."""
    return float(jnp.finfo(aval_of(x).dtype).tiny)


# Powers of t are used if the sum of their coefficients is at most so many times that of the
# series: rounding them then costs less than a bit.
_GROWTH = 4.0


def chebyshev(series: Sequence[float], t: Any) -> Any:
    """The sum of ``series[k] T_k(t)``, with as many terms as the dtype of ``t`` requires.

    Sources: Horner's rule on powers of t takes half the operations of C. W. Clenshaw, A note on the
    summation of Chebyshev series, 1955, which is left for series that converge slowly.
    """
    terms = list(series)
    negligible = precision(t) * max(map(abs, terms)) / 16
    while abs(terms[-1]) < negligible:
        terms.pop()
    powers = _powers(tuple(terms))
    if sum(map(abs, powers)) <= _GROWTH * sum(map(abs, terms)):
        return horner(powers, t)
    twice, last, before = t + t, terms[-1], 0.0
    for coefficient in reversed(terms[1:-1]):
        last, before = twice * last + (coefficient - before), last
    return t * last - before + terms[0]


def horner(powers: Sequence[float], t: Any) -> Any:
    """The sum of ``powers[k] t**k``."""
    total: Any = powers[-1]
    for coefficient in reversed(powers[:-1]):
        total = total * t + coefficient
    return total


@cache
def _powers(terms: tuple[float, ...]) -> tuple[float, ...]:
    """A Chebyshev series as powers of t, the lowest first; exact up to the last rounding."""
    total = [Fraction(0)] * len(terms)
    before, current = [0], [1]
    for degree, term in enumerate(terms):
        for power, coefficient in enumerate(current):
            total[power] += Fraction(term) * coefficient
        # T_1 = t, and T_(k + 1) = 2 t T_k - T_(k - 1).
        factor = 2 if degree else 1
        following = [0, *(factor * coefficient for coefficient in current)]
        for power, coefficient in enumerate(before if degree else ()):
            following[power] -= coefficient
        before, current = current, following
    return tuple(map(float, total))


def at_least(x: Any, bound: float) -> Any:
    """``jnp.maximum`` that does not distinguish zeros, which takes one instruction."""
    return jnp.where(x < bound, bound, x)


def at_most(x: Any, bound: float) -> Any:
    """``jnp.minimum`` likewise."""
    return jnp.where(x > bound, bound, x)


def clipped(x: Any, bound: float) -> Any:
    """``x`` where its magnitude is at most ``bound``, else that with its sign; nan stays nan."""
    return at_least(at_most(x, bound), -bound)


def on_interval(low: float, high: float, x: Any) -> Any:
    """Map ``low`` to ``high`` to -1 to 1, clamped."""
    scale = 2.0 / (high - low)
    return clipped((x - low) * scale - 1.0, 1.0)


def on_ray(low: float, reach: float, x: Any) -> Any:
    """Map ``low`` to infinity to -1 to 1, clamped."""
    return 1.0 - 2.0 * reach / (at_least(x - low, 0.0) + reach)


def exp_square(x: Any, factor: float) -> Any:
    """``exp(factor x**2)`` without the error that rounding the square would bring.

    The square of ``x`` rounded to sixteenths is exact, and the remainder of ``x**2`` is small; the
    rounding error of their sum is so small that its exponential is a sum. ``factor`` has to be a
    power of 2 times a sign.
    """
    x = clipped(x, 64.0)
    near = jnp.round(x * 16.0) * 0.0625
    large, small = factor * near * near, factor * (x - near) * (x + near)
    both = large + small
    return jnp.exp(both) * (1.0 + (small - (both - large)))
