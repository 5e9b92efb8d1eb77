"""A small GPT learns a verse by heart, and recites it from a cache of keys and values.

Training sees windows of the text at once, with a causal mask. Reciting goes letter by letter: a
step computes one position, and attends to the keys and values of all earlier ones, which lie in
arrays of a fixed size; so one compiled step serves every position. Both ways give the same logits.

    python docs/examples/gpt.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.example_libraries import optimizers

TEXT = """Tyger Tyger, burning bright,
In the forests of the night;
What immortal hand or eye,
Could frame thy fearful symmetry?
"""  # Blake 1794
LETTERS = sorted(set(TEXT))
TOKENS = np.array([LETTERS.index(letter) for letter in TEXT])
WINDOW, WIDTH, HEADS, LAYERS, BATCH = 32, 32, 2, 2, 16
MAX_LENGTH = len(TEXT)  # positions that can be told apart

init_state, update_state, params_of = optimizers.adam(1e-2)


def initial_params(key: Any) -> dict[str, Any]:
    """Tables of letters and positions, and four matrices for each layer."""
    keys = iter(gf.random.split(key, 3 + 4 * LAYERS))

    def matrix(rows: int, columns: int) -> Any:
        return gf.random.normal(next(keys), (rows, columns)) / rows**0.5

    layers = [
        {
            "attend": matrix(WIDTH, 3 * WIDTH),
            "merge": matrix(WIDTH, WIDTH),
            "widen": matrix(WIDTH, 4 * WIDTH),
            "narrow": matrix(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    letters, positions = matrix(len(LETTERS), WIDTH), matrix(MAX_LENGTH, WIDTH)
    return {
        "letters": letters,
        "positions": positions,
        "layers": layers,
        "out": matrix(WIDTH, len(LETTERS)),
    }


def heads_of(layer: dict[str, Any], x: Any) -> Any:
    """Queries, keys and values f32[n, HEADS, WIDTH / HEADS] of positions f32[n, WIDTH]."""
    parts = jnp.split(gf.nn.standardize(x) @ layer["attend"], 3, axis=-1)
    return [part.reshape(len(x), HEADS, WIDTH // HEADS) for part in parts]


def rest_of_layer(layer: dict[str, Any], x: Any, attended: Any) -> Any:
    """What comes after attention, at each position for itself."""
    x = x + attended.reshape(x.shape) @ layer["merge"]
    return x + gf.nn.gelu(gf.nn.standardize(x) @ layer["widen"]) @ layer["narrow"]


def logits_of(params: dict[str, Any], tokens: Any) -> Any:
    """f32[n, letters] of i32[n]: at each position, what comes next."""
    x = params["letters"][tokens] + params["positions"][: len(tokens)]
    for layer in params["layers"]:
        q, k, v = heads_of(layer, x)
        x = rest_of_layer(layer, x, gf.nn.dot_product_attention(q, k, v, is_causal=True))
    return gf.nn.standardize(x) @ params["out"]


def next_logits(params: dict[str, Any], cache: list[Any], token: Any, place: Any) -> Any:
    """f32[letters] after one token at a place, and the cache with its keys and values."""
    x = (params["letters"][token] + params["positions"][place])[None]
    seen, new_cache = jnp.arange(MAX_LENGTH) <= place, []
    for layer, (keys, values) in zip(params["layers"], cache, strict=True):
        q, k, v = heads_of(layer, x)
        keys = lax.dynamic_update_slice(keys, k, (place, 0, 0))
        values = lax.dynamic_update_slice(values, v, (place, 0, 0))
        attended = gf.nn.dot_product_attention(q, keys, values, mask=seen[None, None])
        x, new_cache = rest_of_layer(layer, x, attended), [*new_cache, (keys, values)]
    return (gf.nn.standardize(x) @ params["out"])[0], new_cache


def empty_cache() -> list[Any]:
    """Room for the keys and values of each layer, f32[MAX_LENGTH, HEADS, WIDTH / HEADS]."""
    nothing = jnp.zeros((MAX_LENGTH, HEADS, WIDTH // HEADS))
    return [(nothing, nothing) for _ in range(LAYERS)]


def loss(params: dict[str, Any], windows: Any) -> Any:
    """Mean of -log p of each next letter, of i32[batch, WINDOW + 1]."""
    logits = gf.vmap(lambda tokens: logits_of(params, tokens))(windows[:, :-1])
    chosen = jnp.take_along_axis(gf.nn.log_softmax(logits), windows[:, 1:, None], -1)
    return -jnp.mean(chosen)


@gf.jit
def train_step(number: Any, state: Any, windows: Any) -> tuple[Any, Any]:
    """One step of Adam; the loss before it."""
    value, grads = gf.value_and_grad(loss)(params_of(state), windows)
    return update_state(number, grads, state), value


def train(steps: int = 150) -> tuple[Any, list[float]]:
    """Parameters, and the losses of all steps; windows begin anywhere in the text."""
    state, losses = init_state(initial_params(gf.random.key(0))), []
    starts = np.random.default_rng(0).integers(0, len(TEXT), (steps, BATCH))
    for number, start in enumerate(starts):
        # The verse begins again at its end.
        windows = TOKENS[(start[:, None] + np.arange(WINDOW + 1)) % len(TEXT)]
        state, value = train_step(number, state, windows)
        losses.append(value)
    return params_of(state), [float(value) for value in losses]


@gf.jit
def recite(params: dict[str, Any], opening: Any) -> tuple[Any, Any]:
    """An opening i32[k], and the most likely letters after it: i32[WINDOW], and their logits."""

    def step(carry: Any, place: Any) -> tuple[Any, Any]:
        cache, token = carry
        logits, cache = next_logits(params, cache, token, place)
        given = opening[jnp.minimum(place + 1, len(opening) - 1)]
        following = jnp.where(place + 1 < len(opening), given, jnp.argmax(logits))
        return (cache, following), (token, logits)

    start = (empty_cache(), opening[0])
    return lax.scan(step, start, jnp.arange(WINDOW))[1]


def main() -> None:
    """Train, recite and print."""
    params, losses = train()
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.3f}")
    for line in TEXT.splitlines():
        opening = jnp.array([LETTERS.index(letter) for letter in line[:8]])
        letters = [LETTERS[int(token)] for token in recite(params, opening)[0]]
        print(f"{line[:8]}|{''.join(letters)[8:].splitlines()[0]}")


if __name__ == "__main__":
    main()
