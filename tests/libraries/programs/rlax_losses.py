"""rlax: losses and targets of reinforcement learning."""

import jax
import jax.numpy as jnp
import rlax
from common import show

KEY = jax.random.key(0)
Q = jax.random.normal(KEY, (6, 4))
ACTIONS = jnp.array([0, 1, 2, 3, 0, 1])
REWARDS = jnp.linspace(-1.0, 1.0, 6)
DISCOUNTS = jnp.full(6, 0.9)
VALUES = jnp.linspace(0.0, 2.0, 6)


def targets():
    return (
        jax.vmap(rlax.q_learning)(Q, ACTIONS, REWARDS, DISCOUNTS, Q[::-1]),
        jax.vmap(rlax.double_q_learning)(Q, ACTIONS, REWARDS, DISCOUNTS, Q[::-1], Q),
        rlax.lambda_returns(REWARDS, DISCOUNTS, VALUES, 0.8),
        rlax.vtrace(VALUES, VALUES[::-1], REWARDS, DISCOUNTS, jnp.ones(6) * 0.7, 0.9),
        rlax.td_lambda(VALUES, REWARDS, DISCOUNTS, VALUES[::-1], 0.5),
        rlax.truncated_generalized_advantage_estimation(
            REWARDS, DISCOUNTS, 0.95, jnp.append(VALUES, 0.0)
        ),
    )


def losses():
    weights = jnp.ones(6)
    return (
        rlax.policy_gradient_loss(Q, ACTIONS, VALUES, weights),
        rlax.entropy_loss(Q, weights),
        rlax.clipped_surrogate_pg_loss(jnp.exp(VALUES * 0.1), VALUES, 0.2),
        jax.grad(lambda q: rlax.dpg_loss(q, q * 2).mean())(VALUES),
        rlax.huber_loss(VALUES - 1.0),
    )


def exploration():
    softmax = rlax.softmax(0.5)
    greedy = rlax.epsilon_greedy(0.1)
    return (
        softmax.logprob(ACTIONS, Q),
        softmax.entropy(Q),
        greedy.probs(Q),
        greedy.sample(KEY, Q),
        rlax.categorical_cross_entropy(jax.nn.softmax(Q[0]), Q[1]),
        rlax.signed_hyperbolic(VALUES),
        rlax.transform_to_2hot(0.3, -1.0, 1.0, 11),
    )


if __name__ == "__main__":
    show({part.__name__: part() for part in (targets, losses, exploration)})
