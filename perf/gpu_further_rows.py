"""Rows of the GPU acceptance about copies, narrow types, losses over words, and loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_rows import (
    BF16,
    COMPILED,
    CUPY,
    F32,
    JAX,
    NO_EPILOGUES,
    NO_GRAPHS,
    NO_KERNELS,
    Goal,
    Row,
    normals,
)

_BANDWIDTH = Goal(0.85, None, 1.0, (JAX, COMPILED))
_WORDS = 128_256  # of Llama 3's vocabulary


def _matrix_of(columns: int, dtype: str = F32) -> Callable[..., list[Any]]:
    """Inputs: a matrix of so many columns, and of n elements."""
    return lambda rng, n: [(normals(rng, (max(n // columns, 2), min(columns, n // 2))), dtype)]


def _two_matrices(rng: np.random.Generator, n: int) -> list[Any]:
    rows, columns = max(n // 4096, 2), min(4096, n // 2)
    return [(normals(rng, (rows, columns)), F32), (normals(rng, (rows, columns)), F32)]


def _two_squares(rng: np.random.Generator, n: int) -> list[Any]:
    side = math.isqrt(n)
    return [(normals(rng, (side, side)), F32) for _ in range(2)]


def _boxes(rng: np.random.Generator, n: int) -> list[Any]:
    """Of 256 x 512, or of 8 x 16 in the simulator."""
    middle, last = (256, 512) if n >= 1 << 20 else (8, 16)
    return [(normals(rng, (n // (middle * last), middle, last)), F32)]


def _two_vectors(rng: np.random.Generator, n: int) -> list[Any]:
    return [(normals(rng, (n,)), F32) for _ in range(2)]


def _copy_rows() -> list[Row]:
    """Data that moves and is not computed with."""
    return [
        Row(
            "transpose", _matrix_of(8192), lambda jax: lambda x: x.T, 1 << 26, 1 << 10,
            lambda torch, jit: jit(lambda x: x.t().contiguous()),
            lambda cupy: lambda x: cupy.ascontiguousarray(x.T), traffic=lambda n: 8 * n,
            goal=_BANDWIDTH,
        ),
        Row(
            # It begins at no multiple of 16 bytes, and rows of the result are shorter.
            "slice", _matrix_of(4096), lambda jax: lambda x: x[1:, 1:], 1 << 26, 1 << 10,
            lambda torch, jit: jit(lambda x: x[1:, 1:].contiguous()),
            lambda cupy: lambda x: cupy.ascontiguousarray(x[1:, 1:]), traffic=lambda n: 8 * n,
            goal=_BANDWIDTH,
        ),
        Row(
            # Of every second row, every third element is used: all lines of those rows are read.
            "strided slice", _matrix_of(4096), lambda jax: lambda x: x[::2, ::3], 1 << 26, 1 << 10,
            lambda torch, jit: jit(lambda x: x[::2, ::3].contiguous()),
            lambda cupy: lambda x: cupy.ascontiguousarray(x[::2, ::3]),
            traffic=lambda n: 2 * n + 2 * n // 3, goal=_BANDWIDTH,
        ),
        Row(
            "reversed rows", _matrix_of(4096), lambda jax: lambda x: x[:, ::-1], 1 << 26, 1 << 10,
            lambda torch, jit: jit(lambda x: x.flip(1)),
            lambda cupy: lambda x: cupy.ascontiguousarray(x[:, ::-1]), traffic=lambda n: 8 * n,
            goal=_BANDWIDTH,
        ),
        Row(
            "transpose (2, 0, 1)", _boxes, lambda jax: lambda x: x.transpose(2, 0, 1), 1 << 26,
            1 << 12, lambda torch, jit: jit(lambda x: x.permute(2, 0, 1).contiguous()),
            lambda cupy: lambda x: cupy.ascontiguousarray(x.transpose(2, 0, 1)),
            traffic=lambda n: 8 * n, goal=_BANDWIDTH,
        ),
        Row(
            "add of a transposed operand", _two_squares, lambda jax: lambda x, y: x + y.T, 1 << 26,
            1 << 10, lambda torch, jit: jit(lambda x, y: x + y.t()),
            lambda cupy: lambda x, y: x + y.T, traffic=lambda n: 12 * n, goal=_BANDWIDTH,
        ),
        Row(
            "sum of 8 columns", _matrix_of(8), lambda jax: lambda x: x.sum(0), 1 << 26, 1 << 12,
            lambda torch, jit: jit(lambda x: x.sum(0)), lambda cupy: lambda x: x.sum(0),
            traffic=lambda n: 4 * n, goal=_BANDWIDTH, tolerance=1e-3,
        ),
        Row(
            "concatenate", _two_matrices, lambda jax: lambda x, y: jax.numpy.concatenate([x, y], 1),
            1 << 25, 1 << 10, lambda torch, jit: jit(lambda x, y: torch.cat([x, y], 1)),
            lambda cupy: lambda x, y: cupy.concatenate([x, y], 1), traffic=lambda n: 16 * n,
            goal=_BANDWIDTH,
        ),
        Row(
            "eager add", _two_vectors, lambda jax: lambda a, b: a + b, 1 << 26, 1 << 10,
            lambda torch, jit: lambda a, b: a + b, lambda cupy: lambda a, b: a + b,
            traffic=lambda n: 12 * n, goal=Goal(0.85, None, 1.0, (JAX, CUPY)), is_eager=True,
        ),
    ]  # fmt: skip


def _images(rng: np.random.Generator, n: int) -> list[Any]:
    side, channels = (56, 256) if n >= 32 else (5, 8)
    parts = [normals(rng, (n, channels, side, side)), normals(rng, (channels,))]
    return [(part, F32) for part in [*parts, normals(rng, (channels,))]]


def _batchnorm(jax: Any) -> Callable[..., Any]:
    def batchnorm(x: Any, scale: Any, bias: Any) -> Any:
        mean = x.mean((0, 2, 3), keepdims=True)
        variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
        normal = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
        return normal * scale[:, None, None] + bias[:, None, None]

    return batchnorm


def _torch_batchnorm(torch: Any, jit: Any) -> Callable[..., Any]:
    def batchnorm(x: Any, scale: Any, bias: Any) -> Any:
        return torch.nn.functional.batch_norm(x, None, None, scale, bias, training=True)

    return jit(batchnorm)


def _layernorm(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def layernorm(x: Any) -> Any:
        wide = x.astype(np_.float32)
        centered = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
        return (centered * scale).astype(x.dtype)

    return layernorm


def _words_gradient(jax: Any) -> Callable[..., Any]:
    """Of a table of vectors for words, from what its users want changed."""

    def total(table: Any, words: Any, wanted: Any) -> Any:
        return (table[words] * wanted).sum()

    return jax.grad(total)


def _torch_words_gradient(torch: Any, jit: Any) -> Callable[..., Any]:
    def gradient(table: Any, words: Any, wanted: Any) -> Any:
        return torch.zeros_like(table).index_add(0, words, wanted)

    return jit(gradient)


def _words(rng: np.random.Generator, n: int) -> list[Any]:
    words, width = (50_257, 768) if n > 1024 else (61, 8)
    table = normals(rng, (words, width))
    places = (rng.zipf(1.3, n) % words).astype(np.int32)  # a few are frequent, as in texts
    return [(table, F32), (places, "int32"), (normals(rng, (n, width)), F32)]


def _network_rows() -> list[Row]:
    """Parts of networks."""
    return [
        Row(
            "batchnorm NCHW", _images, _batchnorm, 64, 2, _torch_batchnorm,
            # Twice read for the statistics of a batch that no cache holds, and written once.
            traffic=lambda n: 4 * 3 * n * 256 * 56 * 56, goal=Goal(0.6, None, 1.0, (JAX, COMPILED)),
            tolerance=1e-3,
        ),
        Row(
            f"softmax of 8 rows of {_WORDS}",
            lambda rng, n: [(normals(rng, (8, n)), F32)],
            lambda jax: lambda x: jax.nn.softmax(x, axis=-1), _WORDS, 1026,
            lambda torch, jit: jit(lambda x: torch.softmax(x, -1)), traffic=lambda n: 64 * n,
            goal=Goal(times=1.0, rivals=(JAX, COMPILED)),
        ),
        Row(
            "layernorm bfloat16 rows of 4096", _matrix_of(4096, BF16), _layernorm, 1 << 26, 1 << 13,
            lambda torch, jit: jit(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
            traffic=lambda n: 4 * n, goal=_BANDWIDTH, tolerance=3e-2,
        ),
        Row(
            "column sum bfloat16", _matrix_of(4096, BF16), lambda jax: lambda x: x.sum(0),
            1 << 26, 1 << 13, lambda torch, jit: jit(lambda x: x.sum(0)),
            traffic=lambda n: 2 * n, goal=_BANDWIDTH, tolerance=3e-2,
        ),
        Row(
            "gradient of an embedding", _words, _words_gradient, 8192, 64, _torch_words_gradient,
            traffic=lambda n: 4 * 768 * (50_257 + n),
            goal=Goal(times=1.0, rivals=(JAX, COMPILED)), without=(NO_KERNELS,), tolerance=1e-3,
        ),
        Row(
            "x @ w + b with gelu, bfloat16", _layer, _gelu_layer, 8192, 16, _torch_gelu_layer,
            flops=lambda n: 2.0 * n * 1024 * 4096, unit=BF16,
            goal=Goal(times=1.0, rivals=(JAX, COMPILED)), without=(NO_EPILOGUES,), tolerance=3e-2,
        ),
        Row(
            "solve of 512 x 512", _system, lambda jax: lambda a, b: jax.numpy.linalg.solve(a, b),
            512, 6, lambda torch, jit: lambda a, b: torch.linalg.solve(a, b),
            lambda cupy: lambda a, b: cupy.linalg.solve(a, b),
            goal=Goal(times=1.0, rivals=(JAX,)), tolerance=1e-3,
        ),
    ]  # fmt: skip


def _layer(rng: np.random.Generator, n: int) -> list[Any]:
    width, wide = (1024, 4096) if n >= 1024 else (8, 32)
    x, w = normals(rng, (n, width)), normals(rng, (width, wide)) * width**-0.5
    return [(x, BF16), (w, BF16), (normals(rng, (wide,)), BF16)]


def _gelu_layer(jax: Any) -> Callable[..., Any]:
    return lambda x, w, b: jax.nn.gelu(x @ w + b)


def _torch_gelu_layer(torch: Any, jit: Any) -> Callable[..., Any]:
    def layer(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh")

    return jit(layer)


def _system(rng: np.random.Generator, n: int) -> list[Any]:
    a = normals(rng, (n, n)) / n**0.5 + 2 * np.eye(n, dtype=np.float32)
    return [(a, F32), (normals(rng, (n, 1)), F32)]


def _scan(jax: Any) -> Callable[..., Any]:
    """A loop whose body is four kernels: each needs a number from all that the one before made."""
    np_ = jax.numpy

    def body(carry: Any, number: Any) -> Any:
        for k in range(3):
            carry = np_.sin(carry + (carry.sum() if k % 2 else carry.max()) * 1e-3)
        return carry + number * 1e-6, None

    return lambda x, numbers: jax.lax.scan(body, x, numbers)[0]


def _branches(jax: Any) -> Callable[..., Any]:
    """A loop in which each step decides by data which of two programs runs."""
    np_ = jax.numpy

    def body(carry: Any, number: Any) -> Any:
        carry = jax.lax.cond(
            carry[0] * number > 0, lambda v: np_.sin(v) + 0.1, lambda v: np_.cos(v) - 0.1, carry
        )
        return carry, carry.sum()

    return lambda x, numbers: jax.lax.scan(body, x, numbers)


def _loop_inputs(full: int, tiny: int) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        steps = full if n >= 4096 else tiny
        return [(normals(rng, (n,)), F32), (normals(rng, (steps,)), F32)]

    return inputs


def _loop_rows() -> list[Row]:
    """Loops, which cost launches."""
    goal = Goal(times=1.0, rivals=(JAX,))
    return [
        Row("scan of 1000 steps with 4 launches", _loop_inputs(1000, 3), _scan, 1 << 16, 64,
            goal=goal, without=(NO_GRAPHS,), tolerance=1e-2),
        Row("loop over 60 cond steps", _loop_inputs(60, 3), _branches, 1 << 16, 64, goal=goal,
            without=(NO_GRAPHS,), tolerance=1e-2),
    ]  # fmt: skip


def further_rows() -> list[Row]:
    """All of them."""
    return [*_copy_rows(), *_network_rows(), *_loop_rows()]
