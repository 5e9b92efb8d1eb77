"""What the GPU acceptance times: one row for each task, in gpuflow, JAX, torch and CuPy.

A task is written once for gpuflow and JAX, and again for torch where it has a rival there. Inputs
are made with NumPy from a fixed seed, so that results of frameworks can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

F32, HALF = "float32", "bfloat16"


@dataclass(frozen=True)
class Row:
    """One task.

    Attributes:
        name: in the table.
        inputs: ``(random generator, size) -> arrays``; a tuple (array, "bfloat16") is converted.
        make: ``(jax-like module) -> function of the arrays``, jitted by the caller.
        torch: ``(torch) -> function of tensors``, or None.
        full, tiny: the size on a GPU, and in the simulator.
        traffic: bytes that must move, of a size; None: the row is not about bandwidth.
        flops: floating-point operations, of a size.
        goal: what the project wants, in words.
        is_eager: the function is called without jit, and so are rivals'.
        host: the time of the host is wanted, not that of the device.
        tolerance: of results between frameworks, relative to the largest.
        deterministic: results can be compared between frameworks.
    """

    name: str
    inputs: Callable[[np.random.Generator, int], list[Any]]
    make: Callable[[Any], Callable[..., Any]]
    full: int
    tiny: int
    torch: Callable[[Any], Callable[..., Any]] | None = None
    traffic: Callable[[int], int] | None = None
    flops: Callable[[int], float] | None = None
    goal: str = ""
    is_eager: bool = False
    host: bool = False
    tolerance: float = 1e-4
    deterministic: bool = True


def _vector(dtype: str) -> Callable[..., list[Any]]:
    return lambda rng, n: [(rng.standard_normal(n, np.float32), dtype)]


def _rows_of(columns: int) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        return [(rng.standard_normal((max(n // columns, 1), columns), np.float32), F32)]

    return inputs


def _chain(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def chain(x: Any) -> Any:
        y = np_.tanh(x) * 0.5 + x
        return np_.maximum(y * y - x, 0) + np_.exp(-(x * x))

    return chain


def _torch_chain(torch: Any) -> Callable[..., Any]:
    def chain(x: Any) -> Any:
        y = torch.tanh(x) * 0.5 + x
        return torch.relu(y * y - x) + torch.exp(-(x * x))

    return chain


def _layernorm(jax: Any) -> Callable[..., Any]:
    np_ = jax.numpy

    def layernorm(x: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered / np_.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)

    return layernorm


def _normal(jax: Any) -> Callable[..., Any]:
    def total(seed: Any) -> Any:
        key = jax.random.wrap_key_data(seed)
        return (jax.random.normal(key, (_NORMALS[0],)) ** 2).mean()

    return total


_NORMALS = [100_000_000]  # the child sets it to the size


def _seed(rng: np.random.Generator, n: int) -> list[Any]:
    del rng
    _NORMALS[0] = n
    return [(np.array([1, 2], np.uint32), "uint32")]


def _attention_inputs(width: int) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        shape = (4, n, 8, width)  # batch, time, heads, width
        return [(rng.standard_normal(shape, np.float32), HALF) for _ in range(3)]

    return inputs


def _attend(jax: Any, q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v)


def _torch_attend(torch: Any, *parts: Any) -> Any:
    heads_first = [x.transpose(1, 2) for x in parts]
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


def _attention_grad(jax: Any) -> Callable[..., Any]:
    def total(q: Any, k: Any, v: Any) -> Any:
        return _attend(jax, q, k, v).astype(jax.numpy.float32).sum()

    return jax.grad(total, (0, 1, 2))


def _torch_attention_grad(torch: Any) -> Callable[..., Any]:
    def grads(q: Any, k: Any, v: Any) -> Any:
        parts = [x.detach().requires_grad_() for x in (q, k, v)]
        out = _torch_attend(torch, *parts)
        return torch.autograd.grad(out.float().sum(), parts)

    return grads


def _segments(is_sorted: bool) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        places = rng.integers(0, max(n // 64, 1), n).astype(np.int32)
        return [
            (rng.standard_normal(n, np.float32), F32),
            (np.sort(places) if is_sorted else places, "int32"),
        ]

    return inputs


def _segment_sum(jax: Any) -> Callable[..., Any]:
    def total(x: Any, places: Any) -> Any:
        count = max(x.shape[0] // 64, 1)
        return jax.numpy.zeros(count, x.dtype).at[places].add(x)

    return total


def _many(count: int) -> Callable[[Any], Callable[..., Any]]:
    """A chain that no fusion makes one kernel: each step sorts out a sum first."""

    def make(jax: Any) -> Callable[..., Any]:
        np_ = jax.numpy

        def steps(x: Any) -> Any:
            for k in range(count):
                x = np_.sin(x + (x.sum() if k % 2 else x.max()) * 1e-3)
            return x

        return steps

    return make


def _square(dtype: str) -> Callable[..., list[Any]]:
    return lambda rng, n: [
        (rng.standard_normal((n, n), np.float32) / n**0.5, dtype) for _ in range(2)
    ]


def _matmul(jax: Any) -> Callable[..., Any]:
    return lambda a, b: jax.numpy.matmul(a, b)


def _torch_matmul(torch: Any) -> Callable[..., Any]:
    return lambda a, b: torch.matmul(a, b)


def _bandwidth_rows() -> list[Row]:
    goal = "at least 90 % (chain), 85 % (rows, sums) of copy bandwidth; not slower than rivals"
    rows = [
        Row(
            f"chain {dtype}", _vector(dtype), _chain, 1 << 26, 1 << 10, _torch_chain,
            traffic=lambda n, size=size: 2 * n * size, goal=goal,
            tolerance=1e-5 if dtype == F32 else 2e-2,
        )
        for dtype, size in ((F32, 4), (HALF, 2))
    ]  # fmt: skip
    for columns in (256, 1024, 4096, 32768):
        common: Mapping[str, Any] = {
            "full": 1 << 26, "tiny": columns * 2, "traffic": lambda n: 8 * n, "goal": goal
        }  # fmt: skip
        rows.append(
            Row(
                f"softmax rows of {columns}", _rows_of(columns),
                lambda jax: lambda x: jax.nn.softmax(x, axis=-1),
                torch=lambda torch: lambda x: torch.softmax(x, -1), **common,
            )
        )  # fmt: skip
        rows.append(
            Row(
                f"layernorm rows of {columns}", _rows_of(columns), _layernorm,
                torch=lambda torch: lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
                **common,
            )
        )  # fmt: skip
    rows.append(
        Row(
            "full sum", _vector(F32), lambda jax: lambda x: x.sum(), 1 << 28, 1 << 12,
            lambda torch: lambda x: x.sum(), traffic=lambda n: 4 * n, goal=goal, tolerance=1e-2,
        )
    )  # fmt: skip
    rows.append(
        Row(
            "column sum", _rows_of(4096), lambda jax: lambda x: x.sum(0), 1 << 26, 1 << 13,
            lambda torch: lambda x: x.sum(0), traffic=lambda n: 4 * n, goal=goal,
        )
    )  # fmt: skip
    return rows


def _host_rows() -> list[Row]:
    small: Mapping[str, Any] = {"full": 1024, "tiny": 64, "host": True}
    pair: Callable[..., list[Any]] = lambda rng, n: [  # noqa: E731
        (rng.standard_normal(n, np.float32), F32) for _ in range(2)
    ]
    return [
        Row("host: eager add", pair, lambda jax: lambda a, b: a + b, is_eager=True,
            torch=lambda torch: lambda a, b: a + b, goal="6 us", **small),
        Row("host: jitted call of 2 arrays", pair, lambda jax: lambda a, b: a * b + 1,
            torch=lambda torch: lambda a, b: a * b + 1, goal="4 us", **small),
        Row("host: plan of 3 kernels", _vector(F32), _many(2), goal="8 us", **small),
        Row("host: plan of 100 kernels", _vector(F32), _many(50), goal="15 us, captured", **small),
    ]  # fmt: skip


def _matrix_rows() -> list[Row]:
    return [
        Row(
            f"matmul {dtype}", _square(dtype), _matmul, 8192, 32, _torch_matmul,
            flops=lambda n: 2.0 * n**3, goal="as the library",
            tolerance=1e-5 if dtype == F32 else 2e-2,
        )
        for dtype in (F32, HALF)
    ]  # fmt: skip


def _task_rows() -> list[Row]:
    rows = [
        Row("normal, fused into a mean", _seed, _normal, 100_000_000, 512,
            goal="0.7 x JAX's time", tolerance=1e-3),
        Row("segment sum, sorted", _segments(True), _segment_sum, 1 << 24, 1 << 10,
            goal="worst over best of these at most 3"),
        Row("segment sum, unsorted", _segments(False), _segment_sum, 1 << 24, 1 << 10),
    ]  # fmt: skip
    for width in (64, 128):
        flops = lambda n, width=width: 4.0 * 4 * 8 * n * n * width  # noqa: E731
        rows.append(
            Row(
                f"attention bf16 D={width}", _attention_inputs(width),
                lambda jax: lambda q, k, v: _attend(jax, q, k, v), 4096, 16,
                lambda torch: lambda *parts: _torch_attend(torch, *parts),
                flops=flops, goal="1.3 x torch's fused kernel", tolerance=3e-2,
            )
        )  # fmt: skip
        rows.append(
            Row(
                f"attention forward and backward bf16 D={width}", _attention_inputs(width),
                _attention_grad, 4096, 16, _torch_attention_grad, goal="1.3 x torch's fused kernel",
                tolerance=5e-2,
            )
        )  # fmt: skip
    return rows


def all_rows() -> list[Row]:
    """All rows, those about single kernels first."""
    from gpu_models import model_rows  # beside this file; it needs Row

    return [*_host_rows(), *_bandwidth_rows(), *_matrix_rows(), *_task_rows(), *model_rows()]
