"""A network learns the spectral radius of random complex 2 x 2 matrices.

Entries have independent standard normal real and imaginary parts; every step draws a new batch
from a seeded key. All parameters are complex: flatten, three times Dense(64) and Relu, Dense(1).
The loss is the mean of ``|output - radius|^2``: about 4.5 for outputs of 0, and 0.40, the variance
of the radius, for the best constant. The network reaches 0.11 in 3,000 steps.

    python docs/examples/spectral_radius.py [number of steps]
"""

from __future__ import annotations

import sys
from typing import Any

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.example_libraries import optimizers, stax

BATCH = 64
STEPS = 3000
LEARNING_RATE = 3e-4
SHOWN_EVERY = 250


def dense(size: int) -> stax.Layer:
    """A fully connected layer of complex parameters."""
    weights = gf.nn.initializers.glorot_normal(dtype=jnp.complex64)
    bias = gf.nn.initializers.normal(dtype=jnp.complex64)
    return stax.Dense(size, weights, bias)


init_network, network = stax.serial(
    stax.Flatten, dense(64), stax.Relu, dense(64), stax.Relu, dense(64), stax.Relu, dense(1)
)
init_state, update_state, params_of = optimizers.adam(LEARNING_RATE)


def batch(key: Any) -> tuple[Any, Any]:
    """Matrices c64[64, 2, 2] and their spectral radii f32[64]."""
    # A complex normal number has variance 1 in all; here each part has.
    matrices = 2**0.5 * gf.random.normal(key, (BATCH, 2, 2), jnp.complex64)
    return matrices, jnp.abs(jnp.linalg.eigvals(matrices)).max(axis=-1)


def loss(params: Any, matrices: Any, radii: Any) -> Any:
    """Mean squared distance of outputs from radii."""
    outputs = network(params, matrices)[:, 0]
    return jnp.mean(jnp.abs(outputs - radii) ** 2)


@gf.jit
def train_step(number: Any, state: Any, matrices: Any, radii: Any) -> tuple[Any, Any]:
    """One step of Adam; the loss before it."""
    value, grads = gf.value_and_grad(loss)(params_of(state), matrices, radii)
    # The gradient of a real function of complex numbers is conjugate to the way up.
    grads = gf.tree.map(jnp.conj, grads)
    return update_state(number, grads, state), value


def train(steps: int = STEPS, seed: int = 0) -> list[float]:
    """The losses of all steps."""
    params_key, data_key = gf.random.split(gf.random.PRNGKey(seed))
    _, params = init_network(params_key, (-1, 2, 2))
    state = init_state(params)
    make_batch = gf.jit(batch)
    losses = []
    for number, key in enumerate(gf.random.split(data_key, steps)):
        state, value = train_step(number, state, *make_batch(key))
        losses.append(value)
    return [float(value) for value in losses]


def main() -> None:
    """Train and print."""
    losses = train(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
    for number in range(0, len(losses), SHOWN_EVERY):
        window = losses[number : number + SHOWN_EVERY]
        print(f"steps {number:4} to {number + len(window):4}: loss {sum(window) / len(window):.3f}")


if __name__ == "__main__":
    main()
