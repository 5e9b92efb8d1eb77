"""folx: Laplacians of a small wave function, by one pass forward."""

import folx
import jax
import jax.numpy as jnp
from common import show

KEYS = jax.random.split(jax.random.key(0), 4)
FIRST = jax.random.normal(KEYS[0], (3, 8)) / 2
SECOND = jax.random.normal(KEYS[1], (8, 8)) / 3
LAST = jax.random.normal(KEYS[2], (24, 1)) / 5
X = jax.random.normal(KEYS[3], (12,))


def psi(x):
    places = x.reshape(4, 3)
    hidden = jnp.tanh(places @ FIRST)
    hidden = jax.nn.silu(hidden @ SECOND) + hidden
    hidden = hidden / jnp.sqrt(jnp.sum(hidden**2, -1, keepdims=True) + 1)
    apart = jnp.linalg.norm(places[:, None] - places[None] + 0.1, axis=-1)
    orbitals = jnp.linalg.slogdet(hidden[:, :4] + jnp.eye(4))[1]
    total = (hidden[:3].reshape(-1) @ LAST).sum()
    return jnp.log(total**2 + 1) - 0.1 * jnp.sum(jnp.exp(-apart)) + orbitals


def dense_and_sparse():
    outs = []
    for threshold in (0, 6):
        out = jax.jit(folx.forward_laplacian(psi, sparsity_threshold=threshold))(X)
        outs.append((out.x, out.jacobian.dense_array, out.laplacian))
    return outs


def operators():
    laplacian = folx.ForwardLaplacianOperator(0)(psi)(X)
    return laplacian, jnp.trace(jax.hessian(psi)(X))


def batched():
    forward = folx.forward_laplacian(psi, 0)
    batch = jnp.stack([X, 2 * X, 3 * X, X + 1])
    return folx.batched_vmap(lambda x: forward(x).laplacian, 2)(batch)


if __name__ == "__main__":
    show({part.__name__: part() for part in (dense_and_sparse, operators, batched)})
