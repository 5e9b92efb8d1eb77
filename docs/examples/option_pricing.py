"""The price of an Asian option by Monte Carlo, and how it depends on what it is made of.

Each path is a loop over days that draws its own random numbers, so that paths take no memory. The
option pays by the geometric mean of the daily prices, of which the value is known (Kemna and Vorst
1990); with the arithmetic mean, which is what is traded, there is no formula.

    python docs/examples/option_pricing.py
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

PRICE, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 100.0, 0.05, 0.2, 1.0
DAYS = 64


def payoffs(key: Any, price: Any, volatility: Any) -> tuple[Any, Any]:
    """Of one path, discounted: by the geometric and by the arithmetic mean of its prices."""
    day = YEARS / DAYS
    drift, scale = (RATE - volatility**2 / 2) * day, volatility * math.sqrt(day)

    def step(number: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        log_price, logs, prices = state
        normal = gf.random.normal(gf.random.fold_in(key, number))
        log_price = log_price + drift + scale * normal
        return log_price, logs + log_price, prices + jnp.exp(log_price)

    start = jnp.log(price)
    zero = jnp.zeros_like(start)
    _, logs, prices = lax.fori_loop(0, DAYS, step, (start, zero, zero))
    discount = math.exp(-RATE * YEARS)
    means = jnp.exp(logs / DAYS), prices / DAYS
    return tuple(discount * jnp.maximum(mean - STRIKE, 0) for mean in means)


def mean_payoffs(key: Any, paths: int, price: Any, volatility: Any) -> tuple[Any, Any]:
    """Means over paths f32[2], and their standard errors."""
    keys = gf.random.split(key, paths)
    found = jnp.stack(gf.vmap(payoffs, in_axes=(0, None, None))(keys, price, volatility))
    return jnp.mean(found, axis=1), jnp.std(found, axis=1) / math.sqrt(paths)


@gf.jit(static_argnums=1)
def valued(key: Any, paths: int) -> tuple[Any, Any, Any]:
    """Values f32[2], standard errors f32[2], and derivatives f32[2] by price and volatility."""

    def values(price: Any, volatility: Any) -> Any:
        return mean_payoffs(key, paths, price, volatility)

    means, errors = values(PRICE, VOLATILITY)
    slopes = gf.jacfwd(lambda *x: values(*x)[0], argnums=(0, 1))(PRICE, VOLATILITY)
    return means, errors, jnp.stack(slopes)


def geometric_value(price: float = PRICE, volatility: float = VOLATILITY) -> float:
    """The option's value by its formula: the logarithm of the geometric mean is normal."""
    part = YEARS / DAYS
    mean = math.log(price) + (RATE - volatility**2 / 2) * part * (DAYS + 1) / 2
    variance = volatility**2 * part * (DAYS + 1) * (2 * DAYS + 1) / (6 * DAYS)
    d2 = (mean - math.log(STRIKE)) / math.sqrt(variance)
    normal = [0.5 * math.erfc(-d / math.sqrt(2)) for d in (d2 + math.sqrt(variance), d2)]
    forward = math.exp(mean + variance / 2)
    return math.exp(-RATE * YEARS) * (forward * normal[0] - STRIKE * normal[1])


def main() -> None:
    """Simulate and print."""
    means, errors, slopes = valued(gf.random.key(0), 100_000)
    print(f"geometric  {means[0]:.3f} +- {errors[0]:.3f}, by formula {geometric_value():.3f}")
    print(f"arithmetic {means[1]:.3f} +- {errors[1]:.3f}")
    step = 1e-3
    by_price = (geometric_value(PRICE + step) - geometric_value(PRICE - step)) / (2 * step)
    print(f"slope by price {slopes[0, 0]:.3f}, by formula {by_price:.3f}")


if __name__ == "__main__":
    main()
