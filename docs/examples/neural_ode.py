"""A network learns the law of motion of a spiral from a few noisy paths.

The law is an unknown function of the state; the network stands for it, and a path is what a solver
makes of the network. Gradients come from the adjoint equation, which is solved backwards, so no
step of the solver is kept.

    python docs/examples/neural_ode.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.example_libraries import optimizers
from gpuflow.experimental.ode import odeint

PATHS, HIDDEN, NOISE = 8, 16, 0.02
TIMES = np.linspace(0, 3, 12).astype(np.float32)
TRUTH = np.array([[-0.1, 2.0], [-2.0, -0.1]], np.float32)

init_state, update_state, params_of = optimizers.adam(3e-2)


def true_slope(state: Any, t: Any) -> Any:
    """The spiral's law, a cubic one: the farther out, the faster.

    Source: Chen et al. 2018, "Neural ordinary differential equations", their example.
    """
    del t
    return state**3 @ TRUTH


def slope(state: Any, t: Any, params: dict[str, Any]) -> Any:
    """The network's law, of states f32[PATHS, 2]."""
    del t
    hidden = jnp.tanh(state**3 @ params["in"] + params["bias"])
    return hidden @ params["out"]


def initial_params(key: Any) -> dict[str, Any]:
    """A network that begins with slopes close to 0."""
    in_key, out_key = gf.random.split(key)
    return {
        "in": gf.random.normal(in_key, (2, HIDDEN)),
        "bias": jnp.zeros(HIDDEN),
        "out": 0.1 * gf.random.normal(out_key, (HIDDEN, 2)),
    }


def starts(key: Any) -> Any:
    """f32[PATHS, 2], on a ring."""
    angles = gf.random.uniform(key, (PATHS,), maxval=2 * jnp.pi)
    return 1.2 * jnp.stack([jnp.cos(angles), jnp.sin(angles)], -1)


@gf.jit
def true_paths(start: Any) -> Any:
    """f32[times, PATHS, 2]."""
    return odeint(true_slope, start, TIMES, rtol=1e-5, atol=1e-5)


@gf.jit
def learned_paths(params: dict[str, Any], start: Any) -> Any:
    """f32[times, PATHS, 2]."""
    return odeint(slope, start, TIMES, params, rtol=1e-4, atol=1e-4)


def loss(params: dict[str, Any], start: Any, seen: Any) -> Any:
    """Mean squared distance of paths."""
    return jnp.mean((learned_paths(params, start) - seen) ** 2)


@gf.jit
def train_step(number: Any, state: Any, start: Any, seen: Any) -> tuple[Any, Any]:
    """One step of Adam; the loss before it."""
    value, grads = gf.value_and_grad(loss)(params_of(state), start, seen)
    return update_state(number, grads, state), value


def train(steps: int = 300) -> tuple[Any, list[float]]:
    """Parameters, and the losses of all steps."""
    params_key, start_key, noise_key = gf.random.split(gf.random.key(0), 3)
    start = starts(start_key)
    seen = true_paths(start)
    seen = seen + NOISE * gf.random.normal(noise_key, seen.shape)
    state, losses = init_state(initial_params(params_key)), []
    for number in range(steps):
        state, value = train_step(number, state, start, seen)
        losses.append(value)
    return params_of(state), [float(value) for value in losses]


def error(params: dict[str, Any]) -> float:
    """Root of the mean squared distance from paths that training has not seen."""
    start = starts(gf.random.key(7))
    distance = learned_paths(params, start) - true_paths(start)
    return float(jnp.sqrt(jnp.mean(distance**2)))


def main() -> None:
    """Train and print."""
    params, losses = train()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.5f}, of which noise is {NOISE**2:.5f}")
    print(f"new paths are {error(params):.3f} away from the true ones, which are 1.2 wide")


if __name__ == "__main__":
    main()
