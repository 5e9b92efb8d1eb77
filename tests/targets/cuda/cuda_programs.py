"""Programs whose plans the CUDA tests run, with small arguments: names, functions and operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.kir.interpret import storage_dtype

tree_map = gf.tree_util.tree_map


@dataclass(frozen=True)
class Program:
    """A function, its arguments, and which of them it may overwrite."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...] = ()


def _normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(storage_dtype(dtype))


def _integers(*shape: int, dtype: str = "int32", high: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


# --- rows ----------------------------------------------------------------------------------


def _layernorm(x: Any, scale: Any, shift: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _cross_entropy(logits: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(gf.nn.log_softmax(logits), labels[:, None], axis=1)
    return -chosen.mean()


def _statistics(x: Any) -> Any:
    return x.max(0), x.sum(0), x.argmax(1), x.sum(), (x > 0).any(1), x.min()


def _places(x: Any, y: Any) -> Any:
    x = jnp.where(x > 2, jnp.nan, jnp.round(x))
    return x.argmax(0), x.argmin(0), x.argmax(1), x.argmin(1), x.argmax(), y.argmax(), y.argmin()


ROWS = {
    "softmax": Program(gf.nn.softmax, (_normal(5, 37),)),
    "softmax of long rows": Program(gf.nn.softmax, (_normal(3, 1100),)),
    "softmax of very long rows": Program(gf.nn.softmax, (_normal(2, 8300),)),
    "softmax of short rows": Program(gf.nn.softmax, (_normal(33, 10),)),
    "softmax of columns": Program(lambda x: gf.nn.softmax(x, axis=0), (_normal(37, 40),)),
    "log_softmax and its gradient": Program(
        gf.grad(lambda x: (gf.nn.log_softmax(x) * x).sum()), (_normal(6, 40),)
    ),
    "layernorm": Program(_layernorm, (_normal(4, 96), _normal(96), _normal(96, seed=1))),
    "layernorm's gradients": Program(
        gf.grad(lambda *args: (_layernorm(*args) ** 3).sum(), (0, 1, 2)),
        (_normal(4, 32), _normal(32), _normal(32, seed=1)),
    ),
    "cross-entropy": Program(
        gf.value_and_grad(_cross_entropy), (_normal(8, 21), _integers(8, high=21))
    ),
    "statistics": Program(_statistics, (_normal(40, 36),)),
    "places of extrema": Program(_places, (_normal(40, 36), _integers(300, dtype="uint8"))),
    "places in tall and long arrays": Program(
        lambda x, y: (x.argmax(0), y.argmin(1), jnp.argmax(jnp.abs(y) * 2)),
        (_normal(1100, 40), _normal(3, 1100, dtype="bfloat16")),
    ),
    "sums of tall columns and of everything": Program(
        lambda x: (x.sum(0), (x * x).sum()), (_normal(1100, 40),)
    ),
    "batch statistics": Program(
        lambda x: (x - x.mean((0, 2), keepdims=True)) / x.std((0, 2), keepdims=True),
        (_normal(6, 5, 21),),
    ),
    "nothing to reduce": Program(
        lambda x, y: (x.sum(0), x.sum(), y.sum(1), y + 1), (_normal(0, 5), _normal(0, 5))
    ),
    "scalars": Program(lambda x, y: jnp.exp(x) * y + 1, (np.float32(0.3), np.int32(4))),
}


# --- training steps ------------------------------------------------------------------------


def _adam(params: Any, grads: Any, mean: Any, square: Any, step: Any) -> Any:
    """Adam (Kingma and Ba 2015, algorithm 1)."""
    mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = tree_map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)

    def update(p: Any, m: Any, s: Any) -> Any:
        return p - 1e-3 * (m / (1 - 0.9**step)) / (jnp.sqrt(s / (1 - 0.999**step)) + 1e-8)

    return tree_map(update, params, mean, square), mean, square, step + 1


def _clip(grads: Any) -> Any:
    """Gradients of a common norm of at most 1 (Pascanu et al. 2013)."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in tree_map(jnp.asarray, grads)))
    return norm, tree_map(lambda g: g / jnp.maximum(norm, 1.0), grads)


def _parameters(*sizes: int) -> list[dict[str, np.ndarray]]:
    return [{"w": _normal(n, m, seed=n), "b": _normal(m, seed=m)} for n, m in pairwise(sizes)]


def _loss(params: Any, images: Any, labels: Any) -> Any:
    hidden = images
    for layer in params[:-1]:
        hidden = gf.nn.relu(hidden @ layer["w"] + layer["b"])
    logits = hidden @ params[-1]["w"] + params[-1]["b"]
    picked = gf.nn.one_hot(labels, 10) * gf.nn.log_softmax(logits)
    return -picked.sum(-1).mean()


def _train(params: Any, mean: Any, square: Any, step: Any, images: Any, labels: Any) -> Any:
    loss, grads = gf.value_and_grad(_loss)(params, images, labels)
    return loss, _adam(params, grads, mean, square, step)


_PARAMS = _parameters(12, 20, 10)
_ZEROS = tree_map(np.zeros_like, _PARAMS)
_BATCH = (_normal(7, 12), _integers(7))
TRAINING = {
    "clipping by a global norm": Program(
        _clip, ([_normal(n, seed=n) for n in (5, 2500, 1, 9001)] + [_normal(3, 70)],)
    ),
    "adam": Program(_adam, (_PARAMS, _PARAMS, _ZEROS, _ZEROS, np.float32(3))),
    "mlp": Program(_train, (_PARAMS, _ZEROS, _ZEROS, np.float32(1), *_BATCH)),
    "mlp with donation": Program(
        _train, (_PARAMS, _ZEROS, _ZEROS, np.float32(1), *_BATCH), (0, 1, 2)
    ),
    "donated map": Program(
        lambda x, y: (x * 2 + y, x > y), (_normal(70), _normal(70, seed=1)), (0,)
    ),
    "donated softmax": Program(gf.nn.softmax, (_normal(5, 70),), (0,)),
    "donated softmax of long rows": Program(gf.nn.softmax, (_normal(2, 1500),), (0,)),
    "donated short rows": Program(gf.nn.softmax, (_normal(40, 7),), (0,)),
    "donated layernorm": Program(_layernorm, (_normal(6, 64), _normal(64), _normal(64)), (0, 1)),
    "donated values of rows": Program(
        lambda x, d: (x.sum(1) + d, x * d[:, None]), (_normal(6, 40), _normal(6, seed=1)), (0, 1)
    ),
    "donated to a gradient and its bias": Program(
        lambda x, y, b: (x * y, (x * y).sum(0) - b),
        (_normal(50, 70), _normal(50, 70, seed=1), _normal(70)),
        (0, 2),
    ),
    "donated columns read twice": Program(lambda x: x - x.max(0), (_normal(40, 45),), (0,)),
    "donated to a full sum": Program(
        lambda x, y, t: (x * y, (x * y).sum() + t),
        (_normal(30, 70), _normal(30, 70, seed=1), np.float32(2)),
        (0, 2),
    ),
}


# --- random numbers ------------------------------------------------------------------------

_KEY = np.array([7, 11], np.uint32)
RANDOM = {
    "bits": Program(lambda key: gf.random.bits(key, (7, 9)), (_KEY,)),
    "uniform": Program(lambda key: gf.random.uniform(key, (33,)), (_KEY,)),
    "normal": Program(lambda key: gf.random.normal(key, (8, 12)), (_KEY,)),
    "split and narrow": Program(
        lambda key: [gf.random.uniform(k, (20,), jnp.bfloat16) for k in gf.random.split(key, 2)],
        (_KEY,),
    ),
    "integers": Program(lambda key: gf.random.randint(key, (30,), 0, 100), (_KEY,)),
    "dropout": Program(
        lambda key, x: jnp.where(gf.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0.0),
        (_KEY, _normal(6, 16)),
    ),
}


# --- layouts and indices -------------------------------------------------------------------

LAYOUT = {
    "rows by index": Program(lambda t, i: t[i] * 2, (_normal(30, 24), _integers(9, high=30))),
    "elements by index": Program(lambda t, i: t[i] + 1, (_normal(30), _integers(9, high=30))),
    "along an axis": Program(
        lambda t, i: jnp.take_along_axis(t, i, axis=1), (_normal(6, 9), _integers(6, 4, high=9))
    ),
    "concatenate": Program(
        lambda x, y: jnp.concatenate([jnp.exp(x), y * 2], axis=1), (_normal(5, 8), _normal(5, 3))
    ),
    # NVVM 13.5 loses two labels of this one when it writes down lines.
    "pad between elements": Program(
        lambda x, v: gf.lax.pad(x, v, ((0, 0, 0), (1, 0, 1))), (_normal(8, 1), np.float32(2))
    ),
    "pad": Program(lambda x: jnp.pad(x + 1, ((1, 2), (0, 3))), (_normal(4, 6),)),
    "negative strides": Program(lambda x: x[::-1, ::-2] * x[:, 1::2], (_normal(6, 20),)),
    "reversed row": Program(lambda x: x[::-1] + 1, (_normal(67),)),
    "transposed": Program(lambda x, y: x.T * y, (_normal(9, 16), _normal(16, 9))),
    "broadcast": Program(lambda x, y: x[:, None] * y[None, :], (_normal(9), _normal(17))),
    "rolled": Program(lambda x: jnp.roll(x, 3, axis=1) - x, (_normal(5, 11),)),
    "triangle": Program(lambda x: jnp.tril(x), (_normal(9, 9),)),
    "iota": Program(lambda x: x * jnp.arange(36.0).reshape(4, 9), (_normal(4, 9),)),
}


# --- narrow dtypes -------------------------------------------------------------------------


def _mixed(x: Any, h: Any, n: Any, b: Any) -> Any:
    return jnp.where(b, jnp.tanh(x) * h, 0), n * 3 - n.astype(jnp.int8) // 2, x < h, ~b


_NARROW = (
    _normal(48, dtype="bfloat16"),
    _normal(48, dtype="float16", seed=1),
    _integers(48, dtype="int8"),
    _normal(48) > 0,
)
NARROW = {
    "bfloat16 layernorm": Program(
        _layernorm, tuple(_normal(*s, dtype="bfloat16") for s in ((4, 64), (64,), (64,)))
    ),
    "float16 gelu": Program(gf.nn.gelu, (_normal(8, 16, dtype="float16"),)),
    "int8 arithmetic": Program(
        lambda x, y: (x + y, x // (y + 1), x.sum(), x.astype(jnp.float32) * 0.5),
        (_integers(40, dtype="int8", high=100), _integers(40, dtype="int8", seed=1)),
    ),
    "bool logic": Program(
        lambda x, y: (x & y, x.all(), (x ^ y).sum(0), ~x | y),
        (_normal(16, 16) > 0, _normal(16, 16, seed=1) > 0),
    ),
    "mixed": Program(_mixed, _NARROW),
    "narrow lengths that vectors divide": Program(
        lambda x: (x ^ 5) + (x << 1), (_integers(80, dtype="uint8", high=200),)
    ),
    "bfloat16 loss scale": Program(
        gf.grad(lambda w, x: (gf.nn.relu(x * w).astype(jnp.float32) ** 2).mean()),
        (_normal(32, dtype="bfloat16"), _normal(6, 32, dtype="bfloat16")),
    ),
}

# --- updates -------------------------------------------------------------------------------

_PLACES = np.array([3, -1, 3, 8, 77, 0], np.int32)
UPDATES = {
    "rows added, some again": Program(
        lambda x, i, v: x.at[i].add(v), (_normal(9, 20), _PLACES, _normal(6, 20, seed=1))
    ),
    "elements set, some again": Program(
        lambda x, i, v: (x * 2).at[i].set(v), (_normal(9), _PLACES, _normal(6, seed=1))
    ),
    "a slice set": Program(
        lambda x, u, i: gf.lax.dynamic_update_slice(x * 2, u, (i, i)),
        (_normal(9, 20), _normal(4, 5, seed=1), np.int32(3)),
    ),
}

PROGRAMS = {**ROWS, **TRAINING, **RANDOM, **LAYOUT, **NARROW, **UPDATES}
