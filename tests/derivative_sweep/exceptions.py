"""What the sweep does not ask, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable

# Their derivatives come from their values, or are differences that end at 0 or 1: what is lost is
# a few roundings of 1, as in JAX.
OF_VALUES = {
    *(f"{m}.tanh" for m in ("jnp", "lax", "nn")),
    "lax.logistic",
    "nn.sigmoid",
    "special.expit",
    "nn.gelu",
    "gelu_exact",
    "nn.mish",
    "nn.silu",
    "lax.bessel_i0e",
    "lax.bessel_i1e",
    "special.i0e",
    "special.i1e",
    "special.dawsn",
    "special.erfcx",
    "jnp.logaddexp",
    "jnp.logaddexp2",
}

# Steps and jumps, whose derivative is 0 by definition.
STEPS = {"jnp.floor", "jnp.ceil", "jnp.trunc", "jnp.sign"}

Excuse = tuple[Callable[..., bool], str]


def _both_infinite(x: float, y: float) -> bool:
    return math.isinf(x) and math.isinf(y)


def _loses_exponent(x: float, y: float) -> bool:
    """Whether ``x ** (y - 1)`` is another number where 16 bits round ``y - 1``."""
    is_between = math.isfinite(y) and y != math.floor(y)
    return is_between and 0 < x < math.inf and abs(math.log(x)) > 8


def _is_slow_power(x: float, y: float) -> bool:
    """Whether ``x ** (y - 1)`` is 0 or infinite, and about 1 for the numbers that stand for x."""
    return (x == 0 or math.isinf(x)) and 0 < abs(y - 1) < 0.01


_NO_LIMIT = "depends on how both go to infinity"
# No 16-bit floats, as in JAX.
ONLY_WIDE = {"special.ndtr", "special.ndtri", "special.log_ndtr"}

# The derivative follows the permutation: of three equal elements any, where limits are of two.
ORDER = {"sort", "top_k", "median", "quantile"}

# mpmath computes these slowly.
SLOW = {
    "special.ndtri",
    "lax.erf_inv",
    "lax.digamma",
    "special.i0",
    "special.factorial",
    "special.gamma",
    "jnp.i0",
}

# Name -> when, of the operands, and why.
EXCUSES: dict[str, Excuse] = {
    **dict.fromkeys(
        ("jnp.sqrt", "lax.sqrt"),
        (lambda x: x == 0 and math.copysign(1, x) < 0, "one over a root of -0 is -inf"),
    ),
    "jnp.nan_to_num": (math.isinf, "the result there is a constant"),
    **dict.fromkeys(
        ("jnp.power", "lax.pow", "jnp.float_power"),
        (
            lambda x, y: (
                (x <= 0 and (y == 0 or abs(y) > 256))
                or _loses_exponent(x, y)
                or _is_slow_power(x, y)
            ),
            "0**y jumps at 0, large exponents of negative bases are even when rounded, 16 bits "
            "round y - 1, and some powers change too slowly",
        ),
    ),
    "jnp.arctan2": (lambda x, y: x == 0 and y <= 0, "the origin and the cut"),
    **dict.fromkeys(("special.xlogy", "special.xlog1py", "jnp.hypot"), (_both_infinite, _NO_LIMIT)),
    **dict.fromkeys(
        ("jnp.mod", "jnp.fmod"),
        (lambda x, y: _both_infinite(x, y) or abs(y) < 1e-9 * abs(x), "jumps closer than steps"),
    ),
    **dict.fromkeys(
        ("special.kl_div", "special.rel_entr"),
        (
            lambda x, y: x <= 0 or y <= 0 or _both_infinite(x, y),
            "0 at the border of the domain, as in JAX: the limit is infinite",
        ),
    ),
    **dict.fromkeys(
        ("special.boxcox", "special.boxcox1p"),
        (
            lambda x, y: abs(y) > 50 or _is_slow_power(x, y) or 0 < abs(x) < 1e-30,
            "powers that overflow, change too slowly, or are lost in the digits beside 1",
        ),
    ),
    "nn.leaky_relu": (lambda x, y=1.0: math.isinf(y), "an infinite slope"),
    **dict.fromkeys(
        ("nn.celu", "nn.elu", "nn.squareplus"),
        (lambda x, y=1.0: not 1e-4 < y <= 100, "parameters are positive and moderate"),
    ),
}
