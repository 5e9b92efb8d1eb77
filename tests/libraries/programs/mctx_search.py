"""mctx: Monte Carlo tree search with a learned model."""

import jax
import jax.numpy as jnp
import mctx
from common import show


def search():
    key = jax.random.key(0)
    weights = jax.random.normal(key, (3, 4))

    def recurrent(params, key, action, embedding):
        embedding = jnp.tanh(embedding + jax.nn.one_hot(action, 4) @ params.T)
        out = mctx.RecurrentFnOutput(
            reward=embedding.sum(-1) * 0.1,
            discount=jnp.full(embedding.shape[0], 0.9),
            prior_logits=embedding @ params,
            value=embedding.mean(-1),
        )
        return out, embedding

    start = jax.random.normal(key, (2, 3))
    root = mctx.RootFnOutput(prior_logits=start @ weights, value=start.mean(-1), embedding=start)
    results = []
    for policy in (mctx.muzero_policy, mctx.gumbel_muzero_policy):
        run = jax.jit(
            lambda key, policy=policy: policy(weights, key, root, recurrent, num_simulations=8)
        )
        out = run(key)
        results.append((out.action, out.action_weights, out.search_tree.node_values))
    return results


if __name__ == "__main__":
    show({"search": search()})
