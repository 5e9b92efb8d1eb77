"""kfac-jax: a network trained by Kronecker-factored curvature, with all that adapts."""

import jax
import jax.numpy as jnp
import kfac_jax
from common import digits, show
from kfac_jax._src import tag_graph_matcher

POINTS, LABELS = digits(count=64)


def eval_jaxpr_eqn(eqn, values):
    """kfac_jax 0.0.8 expects two results of get_bind_params, which JAX 0.10 does not give."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


tag_graph_matcher.eval_jaxpr_eqn = eval_jaxpr_eqn


def loss_of(params, batch):
    points, labels = batch
    hidden = jnp.tanh(points @ params["first"]["w"] + params["first"]["b"])
    scores = hidden @ params["second"]["w"] + params["second"]["b"]
    kfac_jax.register_softmax_cross_entropy_loss(scores, labels)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1)
    return -jnp.mean(chosen)


def adaptive():
    one, two, key = jax.random.split(jax.random.PRNGKey(0), 3)
    params = {
        "first": {"w": jax.random.normal(one, (16, 8)) / 4, "b": jnp.zeros(8)},
        "second": {"w": jax.random.normal(two, (8, 5)) / 3, "b": jnp.zeros(5)},
    }
    optimizer = kfac_jax.Optimizer(
        jax.value_and_grad(loss_of),
        l2_reg=1e-3,
        use_adaptive_learning_rate=True,
        use_adaptive_momentum=True,
        use_adaptive_damping=True,
        initial_damping=1.0,
        num_burnin_steps=0,
    )
    batch = jnp.asarray(POINTS), jnp.asarray(LABELS)
    state = optimizer.init(params, key, batch)
    losses = []
    for k in range(8):
        key, used = jax.random.split(key)
        params, state, stats = optimizer.step(params, state, used, batch=batch, global_step_int=k)
        losses.append(stats["loss"])
    return losses, params


if __name__ == "__main__":
    show({"adaptive": adaptive()})
