"""Bits and divisors of integers, elementwise.

Tests: tests/test_stored_values.py, tests/control/test_composite.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_arrays
from gpuflow.numpy.logic import where
from gpuflow.numpy.promotion import broadcastlike, constant, convert, like, promote_dtypes, strong
from gpuflow.numpy.ufuncs import described, make_unary


def _count_bits(x: Any) -> Any:
    if dtypes.is_bool(aval_of(x).dtype):
        x = convert(x, dtypes.default_int())
    if aval_of(x).dtype.kind == "i":
        x = lax.abs(x)
    return lax.convert_element_type(lax.population_count(x), np.uint8)


bitwise_count = composite(
    make_unary(
        "bitwise_count",
        _count_bits,
        described(
            "Elementwise number of bits of ``abs(x)`` that are 1.",
            "x: array of integers or bools.",
            "uint8 array of the shape of ``x``.",
            ">>> jnp.bitwise_count(jnp.array([0, 7, -8]))",
            "Array([0, 3, 1], dtype=uint8)",
            raises="TypeError: if ``x`` is float or complex.",
        ),
    )
)


def _integers(name: str, x1: Any, x2: Any) -> list[Any]:
    x1, x2 = promote_dtypes(*as_arrays(name, x1, x2))
    check(
        dtypes.is_integer(aval_of(x1).dtype),
        lambda: f"[{name}] operands must be integers; got {aval_of(x1)}. Fix: x.astype(int).",
        ValueError,
    )
    signed = aval_of(x1).dtype.kind == "i"
    operands = broadcastlike(x1, x2)
    if aval_of(operands[0]).ndim:  # only Python scalars stay weak
        operands = [strong(x) for x in operands]
    return [lax.abs(x) if signed else x for x in operands]


@composite
def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the greatest common divisor of integers, by Euclid's algorithm.

    Args:
        x1, x2: arrays of integers that broadcast; signs are ignored.

    Returns:
        A nonnegative array of the common shape and dtype; 0 if both are 0.

    Raises:
        ValueError: if the operands are not integers.

    Example:
        >>> jnp.gcd(jnp.array([12, 7, 0]), 18)
        Array([ 6,  1, 18], dtype=int32)
    """
    x1, x2 = _integers("gcd", x1, x2)

    def goes_on(pair: Any) -> Any:
        some = lax.ne(pair[1], constant(0, pair[1]))
        return lax.reduce_or(some, tuple(range(aval_of(x1).ndim)))

    def step(pair: Any) -> Any:
        a, b = pair
        done = lax.eq(b, constant(0, b))
        remainder = lax.rem(a, where(done, constant(1, b), b))
        return where(done, a, b), where(done, b, remainder)

    divisor = lax.while_loop(goes_on, step, (x1, x2))[0]
    # The absolute value of the least integer overflows, so that its divisors may be negative.
    return lax.abs(divisor) if aval_of(divisor).dtype.kind == "i" else divisor


@composite
def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the least common multiple of integers; 0 if one is 0.

    Args:
        x1, x2: arrays of integers that broadcast; signs are ignored.

    Returns:
        A nonnegative array of the common shape and dtype.

    Raises:
        ValueError: if the operands are not integers.

    Example:
        >>> jnp.lcm(jnp.array([4, 7, 0]), 6)
        Array([12, 42,  0], dtype=int32)
    """
    x1, x2 = _integers("lcm", x1, x2)
    divisor = gcd(x1, x2)
    none = lax.eq(divisor, like(0, divisor))
    return where(none, like(0, divisor), x1 * lax.div(x2, where(none, like(1, divisor), divisor)))
