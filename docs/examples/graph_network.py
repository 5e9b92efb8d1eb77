"""A graph network finds the groups of people from who knows whom, and one label for each group.

The graph is random: within a group, people know each other more often. All that the network sees
are pairs who know each other; a person is a random vector to begin with. A layer sends each
person's vector along all pairs, and adds up what arrives: a gather and a segment sum, whatever the
degrees are. The loss looks at the few people whose group is told; the others follow.

    python docs/examples/graph_network.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.example_libraries import optimizers
from gpuflow.ops import segment_sum

PEOPLE, GROUPS, WIDTH, TOLD = 90, 3, 16, 4
KNOWN_WITHIN, KNOWN_ACROSS = 0.3, 0.03

init_state, update_state, params_of = optimizers.adam(2e-2)


def random_graph(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups i32[PEOPLE], and pairs in both directions: senders and receivers, i32[pairs]."""
    rng = np.random.default_rng(seed)
    groups = np.arange(PEOPLE) % GROUPS
    share = np.where(groups[:, None] == groups, KNOWN_WITHIN, KNOWN_ACROSS)
    senders, receivers = np.nonzero(np.triu(rng.uniform(size=share.shape) < share, 1))
    both = np.concatenate([senders, receivers]), np.concatenate([receivers, senders])
    return groups.astype(np.int32), both[0].astype(np.int32), both[1].astype(np.int32)


def messages(x: Any, senders: Any, receivers: Any) -> Any:
    """The mean f32[PEOPLE, n] of the vectors of whom each person knows, and of the person's own."""
    total = x + segment_sum(x[senders], receivers, PEOPLE)
    count = 1.0 + segment_sum(jnp.ones(len(receivers)), receivers, PEOPLE)
    return total / count[:, None]


def initial_params(key: Any) -> dict[str, Any]:
    """A vector for each person, and two matrices."""
    keys = gf.random.split(key, 3)
    return {
        "people": gf.random.normal(keys[0], (PEOPLE, WIDTH)),
        "hidden": gf.random.normal(keys[1], (WIDTH, WIDTH)) / WIDTH**0.5,
        "out": gf.random.normal(keys[2], (WIDTH, GROUPS)) / WIDTH**0.5,
    }


def logits_of(params: dict[str, Any], senders: Any, receivers: Any) -> Any:
    """f32[PEOPLE, GROUPS]: three rounds of messages.

    Source: Kipf and Welling 2017, "Semi-supervised classification with graph convolutional
    networks", with means in place of their symmetric weights.
    """
    x = messages(params["people"], senders, receivers)
    x = jnp.tanh(messages(x, senders, receivers) @ params["hidden"])
    return messages(x, senders, receivers) @ params["out"]


def loss(params: dict[str, Any], groups: Any, senders: Any, receivers: Any) -> Any:
    """Cross-entropy at the first people, TOLD of each group, and a little weight on size."""
    told = TOLD * GROUPS
    log_shares = gf.nn.log_softmax(logits_of(params, senders, receivers)[:told])
    right = jnp.take_along_axis(log_shares, groups[:told, None], 1)
    return -jnp.mean(right) + 1e-3 * jnp.sum(params["hidden"] ** 2)


@gf.jit
def train_step(number: Any, state: Any, *graph: Any) -> tuple[Any, Any]:
    """One step of Adam; the loss before it."""
    value, grads = gf.value_and_grad(loss)(params_of(state), *graph)
    return update_state(number, grads, state), value


def train(steps: int = 150) -> tuple[Any, list[float]]:
    """Parameters, and the losses of all steps."""
    graph, state, losses = random_graph(), init_state(initial_params(gf.random.key(0))), []
    for number in range(steps):
        state, value = train_step(number, state, *graph)
        losses.append(value)
    return params_of(state), [float(value) for value in losses]


def share_right(params: dict[str, Any]) -> float:
    """Of the people whose group was not told, the share whose group is found."""
    groups, senders, receivers = random_graph()
    found = np.argmax(logits_of(params, senders, receivers), 1)
    return float(np.mean((found == groups)[TOLD * GROUPS :]))


def main() -> None:
    """Train and print."""
    params, losses = train()
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.3f}, from {TOLD} people of each group")
    print(f"of the others, {share_right(params):.0%} are found")


if __name__ == "__main__":
    main()
