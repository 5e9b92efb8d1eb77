"""Training steps that the GPU acceptance times: an MLP with Adam, a transformer block, a CNN."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from gpu_rows import BF16, COMPILED, F32, JAX, NO_EPILOGUES, NO_GRAPHS, NO_KERNELS, Goal, Row

_SIZES = (784, 512, 512, 10)


def _mlp_inputs(rng: np.random.Generator, batch: int) -> list[Any]:
    arrays = [rng.standard_normal((batch, _SIZES[0]), np.float32)]
    for rows, columns in pairwise(_SIZES):
        arrays.append(rng.standard_normal((rows, columns), np.float32) * rows**-0.5)
        arrays.append(np.zeros(columns, np.float32))
    weights = arrays[1:]
    made = [(array, F32) for array in arrays]
    made += [(np.zeros_like(array), F32) for array in weights * 2]
    return [*made, (rng.integers(0, _SIZES[-1], batch).astype(np.int32), "int32")]


def _mlp_step(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def loss(weights: Any, x: Any, labels: Any) -> Any:
        for k in range(0, 6, 2):
            x = x @ weights[k] + weights[k + 1]
            x = np_.maximum(x, 0) if k < 4 else x
        chosen = np_.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1)
        return -chosen.mean()

    def step(x: Any, *rest: Any) -> Any:
        weights, first, second, labels = rest[:6], rest[6:12], rest[12:18], rest[18]
        value, grads = jax.value_and_grad(loss)(weights, x, labels)
        outs = []
        for w, g, m, v in zip(weights, grads, first, second, strict=True):
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            outs.append((w - 1e-3 * m / (np_.sqrt(v) + 1e-8), m, v))
        return value, outs

    return step


def _torch_step(
    torch: Any, jit: Any, loss: Callable[..., Any], update: Callable[..., Any]
) -> Callable[..., Any]:
    """A training step as torch's users compile it: the loss, its gradient, and the update."""
    loss, update = jit(loss), jit(update)

    def step(x: Any, given: Any, *rest: Any) -> Any:
        weights = [w.detach().requires_grad_() for w in given]
        value = loss(x, weights, *rest)
        grads = torch.autograd.grad(value, weights)
        return value.detach(), update([w.detach() for w in weights], list(grads), *rest)

    return step


def _torch_mlp_step(torch: Any, jit: Any) -> Callable[..., Any]:
    functional = torch.nn.functional

    def loss(x: Any, weights: Any, first: Any, second: Any, labels: Any) -> Any:
        for k in range(0, 6, 2):
            x = torch.addmm(weights[k + 1], x, weights[k])
            x = torch.relu(x) if k < 4 else x
        return functional.cross_entropy(x, labels)

    def update(weights: Any, grads: Any, first: Any, second: Any, labels: Any) -> Any:
        outs = []
        for w, g, m, v in zip(weights, grads, first, second, strict=True):
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            outs.append((w - 1e-3 * m / (torch.sqrt(v) + 1e-8), m, v))
        return outs

    step = _torch_step(torch, jit, loss, update)
    return lambda x, *rest: step(
        x, list(rest[:6]), list(rest[6:12]), list(rest[12:18]), rest[18].long()
    )


def _block_inputs(rng: np.random.Generator, width: int) -> list[Any]:
    time, batch = (1024, 8) if width >= 256 else (8, 2)
    x = rng.standard_normal((batch, time, width), np.float32)
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    weights = [rng.standard_normal(shape, np.float32) * shape[0] ** -0.5 for shape in shapes]
    return [(x, BF16), *[(w, BF16) for w in weights]]


def _block_step(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def norm(x: Any) -> Any:
        wide = x.astype(np_.float32)
        centered = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
        return (centered * scale).astype(x.dtype)

    def loss(weights: Any, x: Any) -> Any:
        into, out, up, down = weights
        batch, time, width = x.shape
        heads = max(width // 64, 1)
        split = (norm(x) @ into).reshape(batch, time, 3, heads, width // heads)
        q, k, v = (split[:, :, n] for n in range(3))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(batch, time, width) @ out
        x = x + jax.nn.gelu(norm(x) @ up) @ down
        return (x.astype(np_.float32) ** 2).mean()

    def step(x: Any, *weights: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return value, [w - g * 0.01 for w, g in zip(weights, grads, strict=True)]

    return step


def _descent(rate: float) -> Callable[..., Any]:
    """The update of a step that has no state; labels are of no use to it."""

    def update(weights: Any, grads: Any, *labels: Any) -> Any:
        del labels
        return [w - g * rate for w, g in zip(weights, grads, strict=True)]

    return update


def _torch_block_step(torch: Any, jit: Any) -> Callable[..., Any]:
    functional = torch.nn.functional

    def loss(x: Any, weights: Any) -> Any:
        into, out, up, down = weights
        batch, time, width = x.shape
        heads = max(width // 64, 1)
        split = (functional.layer_norm(x, (width,)) @ into).view(
            batch, time, 3, heads, width // heads
        )
        q, k, v = (split[:, :, n].transpose(1, 2) for n in range(3))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, time, width) @ out
        hidden = functional.gelu(functional.layer_norm(x, (width,)) @ up, approximate="tanh")
        x = x + hidden @ down
        return (x.float() ** 2).mean()

    step = _torch_step(torch, jit, loss, _descent(0.01))
    return lambda x, *weights: step(x, list(weights))


def _cnn_inputs(rng: np.random.Generator, batch: int) -> list[Any]:
    shapes = [(32, 1, 3, 3), (64, 32, 3, 3)]
    filters = [rng.standard_normal(shape, np.float32) * 0.1 for shape in shapes]
    dense = rng.standard_normal((64 * 7 * 7, 10), np.float32) * 0.02
    x = rng.standard_normal((batch, 1, 28, 28), np.float32)
    labels = rng.integers(0, 10, batch).astype(np.int32)
    return [(x, F32), *[(f, F32) for f in filters], (dense, F32), (labels, "int32")]


def _cnn_step(jax: Any) -> Callable[..., Any]:
    np_, lax = jax.numpy, jax.lax

    def loss(weights: Any, x: Any, labels: Any) -> Any:
        first, second, dense = weights
        for kernel in (first, second):
            x = np_.maximum(lax.conv_general_dilated(x, kernel, (1, 1), "SAME"), 0)
            x = lax.reduce_window(x, -np_.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        scores = jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ dense)
        return -np_.take_along_axis(scores, labels[:, None], 1).mean()

    def step(x: Any, *rest: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(rest[:3], x, rest[3])
        return value, [w - 0.1 * g for w, g in zip(rest[:3], grads, strict=True)]

    return step


def _torch_cnn_step(torch: Any, jit: Any) -> Callable[..., Any]:
    functional = torch.nn.functional

    def loss(x: Any, weights: Any, labels: Any) -> Any:
        for kernel in weights[:2]:
            x = functional.max_pool2d(torch.relu(functional.conv2d(x, kernel, padding=1)), 2)
        return functional.cross_entropy(x.flatten(1) @ weights[2], labels)

    step = _torch_step(torch, jit, loss, _descent(0.1))
    return lambda x, *rest: step(x, list(rest[:3]), rest[3].long())


def model_rows() -> list[Row]:
    """The rows of whole training steps."""
    goal = Goal(times=1.0, rivals=(JAX, COMPILED))
    return [
        Row("MLP Adam step", _mlp_inputs, _mlp_step, 128, 4, _torch_mlp_step, goal=goal,
            without=(NO_EPILOGUES, NO_GRAPHS), tolerance=1e-3),
        Row("transformer block step bf16", _block_inputs, _block_step, 1024, 16,
            _torch_block_step, goal=goal, without=(NO_KERNELS, NO_EPILOGUES), tolerance=5e-2),
        Row("CNN step", _cnn_inputs, _cnn_step, 128, 2, _torch_cnn_step, goal=goal,
            without=(NO_KERNELS,), tolerance=1e-2),
    ]  # fmt: skip
