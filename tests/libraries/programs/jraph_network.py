"""jraph: a graph network over batched graphs."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from common import show


def graph(seed, nodes, edges):
    rng = np.random.default_rng(seed)
    return jraph.GraphsTuple(
        n_node=np.array([nodes]),
        n_edge=np.array([edges]),
        nodes=rng.normal(size=(nodes, 3)).astype(np.float32),
        edges=rng.normal(size=(edges, 2)).astype(np.float32),
        senders=rng.integers(0, nodes, edges),
        receivers=rng.integers(0, nodes, edges),
        globals=np.zeros((1, 1), np.float32),
    )


def network():
    batch = jraph.pad_with_graphs(jraph.batch([graph(0, 4, 6), graph(1, 3, 5)]), 10, 16, 3)
    key = jax.random.key(0)
    weights = {
        "edge": jax.random.normal(key, (9, 2)),
        "node": jax.random.normal(key, (8, 3)),
        "global": jax.random.normal(key, (6, 1)),
    }

    def apply(weights):
        net = jraph.GraphNetwork(
            lambda e, s, r, g: jnp.tanh(jnp.concatenate([e, s, r, g], 1) @ weights["edge"]),
            lambda n, s, r, g: jnp.tanh(jnp.concatenate([n, s, r, g], 1) @ weights["node"]),
            lambda n, e, g: jnp.concatenate([n, e, g], 1) @ weights["global"],
        )
        out = net(net(jax.tree.map(jnp.asarray, batch)))
        return jnp.sum(out.globals * jraph.get_graph_padding_mask(batch)[:, None]), out

    loss, out = jax.jit(apply)(weights)
    grads = jax.jit(jax.grad(lambda w: apply(w)[0]))(weights)
    parts = jraph.unbatch(jraph.unpad_with_graphs(jax.tree.map(np.asarray, out)))
    softmax = jraph.segment_softmax(jnp.arange(6.0), jnp.array([0, 0, 1, 1, 1, 2]), 3)
    mean = jraph.segment_mean(jnp.arange(6.0), jnp.array([0, 0, 1, 1, 1, 2]), 3)
    return loss, grads, [part.nodes for part in parts], softmax, mean


if __name__ == "__main__":
    show({"network": network()})
