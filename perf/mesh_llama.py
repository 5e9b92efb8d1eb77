"""A training step of a transformer of 7 billion parameters, as shapes."""

from __future__ import annotations

from typing import Any

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax, nn

LAYERS, WIDTH, HIDDEN, VOCABULARY, HEADS = 32, 4096, 11008, 32000, 32
_MATRICES = {
    "q": (WIDTH, WIDTH),
    "k": (WIDTH, WIDTH),
    "v": (WIDTH, WIDTH),
    "o": (WIDTH, WIDTH),
    "gate": (WIDTH, HIDDEN),
    "up": (WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH),
}
_VECTORS = {"norm1": (WIDTH,), "norm2": (WIDTH,)}


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    inverse = lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * inverse).astype(x.dtype) * scale


def _layer(x: Any, w: Any) -> Any:
    batch, length, width = x.shape
    h = _norm(x, w["norm1"])
    shape = (batch, length, HEADS, width // HEADS)
    q, k, v = ((h @ w[name]).reshape(shape) for name in "qkv")
    mixed = nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + mixed.reshape(x.shape) @ w["o"]
    h = _norm(x, w["norm2"])
    return x + (nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def loss(params: Any, tokens: Any) -> Any:
    """Cross-entropy of the next token; layers are recomputed in the backward pass."""
    x = params["embedding"][tokens]
    layer = gf.checkpoint(_layer)
    if isinstance(params["layers"], list):
        for w in params["layers"]:
            x = layer(x, w)
    else:
        x = lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])[0]
    scores = (x @ params["head"]).astype(jnp.float32)[:, :-1]
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
    return (nn.logsumexp(scores, axis=-1) - right).mean()


def step(params: Any, tokens: Any) -> Any:
    """A step of gradient descent."""
    value, gradients = gf.value_and_grad(loss)(params, tokens)
    return gf.tree.map(lambda p, g: p - (1e-3 * g).astype(p.dtype), params, gradients), value


def arguments(
    batch: int, length: int, *, scanned: bool, dim: int = 0, layers: int = LAYERS
) -> tuple[Any, Any]:
    """Shapes of the parameters and tokens, and their specs: every matrix is split along ``dim``.

    There are as many devices as rows of the batch; sizes are multiples of it.
    """

    def whole(size: int) -> int:
        return -(-size // batch) * batch

    def shapes(stack: tuple[int, ...]) -> dict[str, Any]:
        sizes = {**_MATRICES, **_VECTORS}
        return {
            name: gf.ShapeDtypeStruct((*stack, *map(whole, size)), jnp.bfloat16)
            for name, size in sizes.items()
        }

    def specs(stack: tuple[None, ...]) -> dict[str, Any]:
        matrices = {name: P(*stack, *_matrix(dim)) for name in _MATRICES}
        return matrices | {name: P(*stack, "x") for name in _VECTORS}

    params: dict[str, Any] = {
        "embedding": gf.ShapeDtypeStruct((whole(VOCABULARY), WIDTH), jnp.bfloat16),
        "head": gf.ShapeDtypeStruct((WIDTH, whole(VOCABULARY)), jnp.bfloat16),
        "layers": shapes((layers,)) if scanned else [shapes(()) for _ in range(layers)],
    }
    split = {
        "embedding": P(*_matrix(dim)),
        "head": P(*_matrix(dim)),
        "layers": specs((None,)) if scanned else [specs(()) for _ in range(layers)],
    }
    tokens = gf.ShapeDtypeStruct((batch, length), jnp.int32)
    return (params, tokens), (split, P("x"))


def _matrix(dim: int) -> tuple[str | None, ...]:
    return ("x", None) if dim == 0 else (None, "x")
