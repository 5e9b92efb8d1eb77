"""Rows of the GPU acceptance that memory limits: elementwise chains, softmax, layernorm, sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_rows import BF16, COMPILED, F32, JAX, Goal, Row, rows_of, vector


def _chain(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def chain(x: Any) -> Any:
        y = np_.tanh(x) * 0.5 + x
        return np_.maximum(y * y - x, 0) + np_.exp(-(x * x))

    return chain


def _torch_chain(torch: Any, jit: Any) -> Callable[..., Any]:
    def chain(x: Any) -> Any:
        y = torch.tanh(x) * 0.5 + x
        return torch.relu(y * y - x) + torch.exp(-(x * x))

    return jit(chain)


def _layernorm(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def layernorm(x: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered / np_.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)

    return layernorm


def _torch_layernorm(torch: Any, jit: Any) -> Callable[..., Any]:
    return jit(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))


def _cupy_softmax(cupy: Any) -> Callable[..., Any]:
    def softmax(x: Any) -> Any:
        weights = cupy.exp(x - x.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    return softmax


def bandwidth_rows() -> list[Row]:
    """Chains, rows and sums."""
    rivals = (JAX, COMPILED)
    rows = [
        Row(
            f"chain {dtype}",
            vector(dtype),
            _chain,
            1 << 26,
            1 << 10,
            _torch_chain,
            (lambda cupy: _chain(_JaxLike(cupy))) if dtype == F32 else None,
            traffic=lambda n, size=size: 2 * n * size,
            goal=Goal(0.9, None, 1.0, rivals),
            tolerance=1e-5 if dtype == F32 else 2e-2,
            kernels=1,
        )
        for dtype, size in ((F32, 4), (BF16, 2))
    ]
    goal = Goal(0.85, None, 1.0, rivals)
    for columns in (256, 1024, 4096, 32768):
        rows.append(
            Row(
                f"softmax rows of {columns}",
                rows_of(columns),
                lambda jax: lambda x: jax.nn.softmax(x, axis=-1),
                1 << 26,
                columns * 2,
                lambda torch, jit: jit(lambda x: torch.softmax(x, -1)),
                _cupy_softmax,
                traffic=lambda n: 8 * n,
                goal=goal,
            )
        )
        rows.append(
            Row(
                f"layernorm rows of {columns}",
                rows_of(columns),
                _layernorm,
                1 << 26,
                columns * 2,
                _torch_layernorm,
                traffic=lambda n: 8 * n,
                goal=goal,
            )
        )
    rows.append(
        Row(
            "full sum",
            vector(F32),
            lambda jax: lambda x: (x * x).sum(),
            1 << 28,
            1 << 12,
            lambda torch, jit: jit(lambda x: (x * x).sum()),
            lambda cupy: lambda x: (x * x).sum(),
            traffic=lambda n: 4 * n,
            goal=goal,
        )
    )
    rows.append(
        Row(
            "column sum",
            rows_of(4096),
            lambda jax: lambda x: x.sum(0),
            1 << 26,
            1 << 13,
            lambda torch, jit: jit(lambda x: x.sum(0)),
            lambda cupy: lambda x: x.sum(0),
            traffic=lambda n: 4 * n,
            goal=goal,
        )
    )
    return rows


class _JaxLike:
    """CuPy where a row takes its functions from ``.numpy``."""

    def __init__(self, cupy: Any) -> None:
        self.numpy = cupy
