"""A Gaussian process finds its own length scale, and says how sure it is.

Thirty noisy points of a function are given. Scale, height and noise of the process are those under
which the points are most likely: the logarithm of that likelihood is a few lines with a Cholesky
factor, and its gradient comes from ``grad``. Predictions have a mean and a deviation, which grows
where no points are.

    python docs/examples/gaussian_process.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.example_libraries import optimizers
from gpuflow.scipy.linalg import cho_solve, solve_triangular

POINTS, NOISE = 30, 0.1

init_state, update_state, params_of = optimizers.adam(5e-2)


def truth(x: Any) -> Any:
    """What is to be found."""
    return np.sin(3 * x) + 0.5 * x


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Places f32[POINTS] to the left and right of a gap, and noisy values there."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-3, 0, POINTS // 2), rng.uniform(1.2, 3, POINTS // 2)])
    y = truth(x) + NOISE * rng.standard_normal(POINTS)
    return x.astype(np.float32), y.astype(np.float32)


def kernel(params: dict[str, Any], a: Any, b: Any) -> Any:
    """Covariances f32[n, m] of places f32[n] and f32[m]."""
    distance = (a[:, None] - b) / jnp.exp(params["log_scale"])
    return jnp.exp(2 * params["log_height"] - 0.5 * distance**2)


def factor_of(params: dict[str, Any], x: Any) -> Any:
    """Cholesky's factor f32[n, n] of the covariance of noisy values."""
    variance = jnp.exp(2 * params["log_noise"])
    return jnp.linalg.cholesky(kernel(params, x, x) + variance * jnp.eye(len(x)))


def negative_evidence(params: dict[str, Any], x: Any, y: Any) -> Any:
    """-log p(y) of the values at places.

    Source: Rasmussen and Williams 2006, algorithm 2.1.
    """
    factor = factor_of(params, x)
    whitened = solve_triangular(factor, y, lower=True)
    halves = 0.5 * jnp.sum(whitened**2) + jnp.sum(jnp.log(jnp.diagonal(factor)))
    return halves + 0.5 * len(x) * jnp.log(2 * jnp.pi)


@gf.jit
def fit(x: Any, y: Any, steps: int = 200) -> tuple[Any, Any]:
    """Logarithms of scale, height and noise, and -log p(y) before each step."""
    zeros = {name: jnp.float32(0) for name in ("log_scale", "log_height", "log_noise")}

    def step(state: Any, number: Any) -> tuple[Any, Any]:
        value, grads = gf.value_and_grad(negative_evidence)(params_of(state), x, y)
        return update_state(number, grads, state), value

    state, values = lax.scan(step, init_state(zeros), jnp.arange(steps))
    return params_of(state), values


@gf.jit
def predict(params: dict[str, Any], x: Any, y: Any, new: Any) -> tuple[Any, Any]:
    """Means and deviations of the function at new places, f32[m] each."""
    factor, across = factor_of(params, x), kernel(params, x, new)
    means = across.T @ cho_solve((factor, True), y)
    explained = jnp.sum(solve_triangular(factor, across, lower=True) ** 2, 0)
    return means, jnp.sqrt(jnp.exp(2 * params["log_height"]) - explained)


def main() -> None:
    """Fit, predict and print."""
    x, y = data()
    params, values = fit(x, y)
    print(f"-log p: {values[0]:.1f} -> {values[-1]:.1f}")
    print(f"noise {jnp.exp(params['log_noise']):.3f}, truly {NOISE}")
    new = np.linspace(-3, 3, 61).astype(np.float32)
    means, deviations = predict(params, x, y, new)
    print(f"within two deviations: {np.mean(np.abs(truth(new) - means) < 2 * deviations):.0%}")


if __name__ == "__main__":
    main()
