"""Common code of the distributions.

Each module has one distribution; its functions standardize their argument, evaluate a formula that
is finite even where ``where`` drops it (so derivatives are, too), and return nan where SciPy does.

Tests: tests/scipy_surface/test_stats_distributions.py.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable
from typing import Any, ParamSpec

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.control.composite import composite
from gpuflow.core.types import Array
from gpuflow.scipy.special.common import typed_operands
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI, deviance, log_ratio, stirling_remainder

P = ParamSpec("P")

_LOG_2 = math.log(2.0)
# --- documentation --------------------------------------------------------------------------

_PARAMETERS = (
    "x: array of real numbers; all arguments broadcast.",
    "k: array of numbers; all arguments broadcast.",
    "q: probabilities, in [0, 1].",
    "loc: location parameter (shift).",
    "scale: scale parameter, above 0.",
)
_RETURNS = {
    "logpmf": ": -inf for impossible values, nan if a parameter is invalid.",
    "pmf": ": 0 for impossible values, nan if a parameter is invalid.",
    "ppf": "; nan if ``{first}`` is not a probability or a parameter is invalid.",
    "isf": "; nan if ``{first}`` is not a probability or a parameter is invalid.",
    "": "; nan if a parameter is invalid.",
}


def distribution(*parameters: str) -> Callable[[Callable[P, Array]], Callable[P, Array]]:
    """A decorator for the functions of one distribution.

    It makes them composites, and completes their docstrings: sections Args, Returns and Raises that
    they do not have are derived.

    Args:
        *parameters: as in a docstring, such as ``"a, b: shape parameters, above 0."``; before those
            that all distributions have.
    """
    known = {}
    for text in (*_PARAMETERS, *parameters):
        known.update(dict.fromkeys(text.partition(":")[0].split(", "), text))

    def decorate(function: Callable[P, Array]) -> Callable[P, Array]:
        if function.__doc__:  # not with python -OO
            function.__doc__ = _completed(function, function.__doc__, known)
        return composite(function)

    return decorate


def _completed(function: Callable[..., Any], doc: str, known: dict[str, str]) -> str:
    """A docstring with all sections."""
    head, *given = re.split(r"^(\w+):\n", inspect.cleandoc(doc), flags=re.MULTILINE)
    names = list(inspect.signature(function).parameters)
    result = _RETURNS.get(function.__name__, _RETURNS[""]).format(first=names[0])
    derived = {
        "Args": dict.fromkeys(known[one] for one in names if one in known),
        "Returns": ["An array of floats of the common shape" + result],
        "Raises": ["ValueError: if an argument is complex."],
    }
    sections = {title: "\n".join(map(_indented, lines)) for title, lines in derived.items()}
    sections.update(zip(given[::2], given[1::2], strict=True))
    return "\n\n".join([head.rstrip(), *[f"{k}:\n{v.rstrip()}" for k, v in sections.items()]])


def _indented(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)


# --- arguments ------------------------------------------------------------------------------


def standardize(
    name: str,
    x: Any,
    loc: Any,
    scale: Any,
    *shapes: Any,
    prepare: Callable[..., list[Array]] = typed_operands,
) -> list[Array]:
    """``(x - loc) / scale``, the scale and the shape parameters, in one float dtype.

    ``prepare=real_operands`` keeps weak types also of arrays, where JAX does.
    """
    x, loc, scale, *others = prepare(name, x, loc, scale, *shapes)
    return [(x - loc) / scale, scale, *others]


def shift(
    name: str,
    k: Any,
    loc: Any,
    *shapes: Any,
    prepare: Callable[..., list[Array]] = typed_operands,
) -> list[Array]:
    """``k - loc`` of a discrete distribution and the shape parameters, in one float dtype."""
    k, loc, *others = prepare(name, k, loc, *shapes)
    return [k - loc, *others]


def guarded(result: Any, *conditions: Any) -> Any:
    """``result`` where all parameters are possible, and nan elsewhere."""
    for condition in conditions:
        result = jnp.where(condition, result, jnp.nan)
    return result


def in_support(condition: Any, x: Any, filler: float) -> Any:
    """``x`` in the support; elsewhere a value at which the formulas and derivatives are finite.

    nan stays, so that it reaches the result.
    """
    return jnp.where(condition | jnp.isnan(x), x, filler)


def is_whole(k: Any) -> Any:
    return k == jnp.floor(k)


def quantile(result: Any, q: Any) -> Any:
    """``result`` where ``q`` is a probability, and nan elsewhere."""
    return jnp.where((q >= 0.0) & (q <= 1.0), result, jnp.nan)


def log_complement(log: Any) -> Any:
    """``log(1 - exp(log))`` for ``log <= 0``. Source: M. Maechler, log(1 - exp(-a)), 2012."""
    near = log > -_LOG_2
    return jnp.where(
        near,
        jnp.log(-jnp.expm1(jnp.where(near, log, -1.0))),
        jnp.log1p(-jnp.exp(jnp.where(near, -1.0, log))),
    )


def log_rare(z: Any) -> Any:
    """``log(1 - exp(-exp(z)))``, which is about ``z`` where that is far below 0."""
    far = z < -20.0
    return jnp.where(
        far,
        z - 0.5 * jnp.exp(jnp.where(far, z, 0.0)),
        log_complement(-jnp.exp(jnp.where(far, 0.0, z))),
    )


def log_probability(p: Any, q: Any) -> Any:
    """``log(p)`` of a probability whose complement is ``q``, with all its digits near 0."""
    likely = q < 0.5
    return jnp.where(
        likely, jnp.log1p(-jnp.where(likely, q, 0.0)), jnp.log(jnp.where(likely, 1.0, p))
    )


# From such parameters on the large terms of a density cancel, and the forms below are better.
LARGE = 10.0

# --- densities whose large terms cancel -----------------------------------------------------


def _stirling_remainder(x: Any) -> Any:
    """delta(x) for x > 0, below 1 too: delta(x) = delta(x + 1) + (x + 1/2) log(1 + 1 / x) - 1."""
    small = x < 1.0
    safe = jnp.where(small, x, 1.0)
    step = jnp.where(small, (safe + 0.5) * jnp.log1p(1.0 / safe) - 1.0, 0.0)
    return stirling_remainder(jnp.where(small, x + 1.0, x)) + step


def log_poisson(k: Any, mu: Any) -> Any:
    """``k log(mu) - mu - gammaln(k + 1)`` for real ``k >= 0``. Source: C. Loader, 2000."""
    some = k > 0.0
    safe = jnp.where(some, k, 1.0)
    log = -_stirling_remainder(safe) - deviance(safe, mu) - 0.5 * jnp.log(safe) - HALF_LOG_2_PI
    return jnp.where(some, log, -mu)


@composite
def log_gamma_density(y: Any, a: Any) -> Any:
    """The logarithm of ``y**(a - 1) exp(-y) / gamma(a)``."""
    some = (y > 0.0) & (y < jnp.inf)
    safe = in_support(some, y, 1.0)
    large = log_poisson(a, safe) + log_ratio(a, safe)
    small = (a - 1.0) * jnp.log(safe) - safe - lax.lgamma(a)
    log = jnp.where(a > LARGE, large, small)
    at_zero = jnp.where(a < 1.0, jnp.inf, jnp.where(a == 1.0, 0.0, -jnp.inf))
    return jnp.where(some | jnp.isnan(y), log, jnp.where(y == 0.0, at_zero, -jnp.inf))


def log_power(n: Any, p: Any, q: Any) -> Any:
    """``n log(p)`` with ``p + q = 1``, and 0 where ``n`` is 0."""
    some = n != 0.0
    near = q < 0.5
    log = jnp.where(near, jnp.log1p(-jnp.where(near, q, 0.0)), jnp.log(jnp.where(near, 1.0, p)))
    return jnp.where(some, jnp.where(some, n, 1.0) * log, 0.0)


def log_binomial(k: Any, m: Any, p: Any, q: Any) -> Any:
    """The logarithm of the probability of ``k`` among ``k + m``, for reals and ``p + q = 1``.

    Their sum may have lost all digits of the lesser one.
    """
    none, all_ = k == 0.0, m == 0.0
    edge = none | all_
    some, other = (jnp.where(edge, 1.0, v) for v in (k, m))
    total = some + other
    remainders = _stirling_remainder(total) - _stirling_remainder(some) - _stirling_remainder(other)
    deviances = deviance(some, total * p) + deviance(other, total * q)
    log = remainders - deviances - 0.5 * jnp.log(some * (other / total)) - HALF_LOG_2_PI
    return jnp.where(none, log_power(m, q, p), jnp.where(all_, log_power(k, p, q), log))
