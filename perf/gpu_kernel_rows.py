"""Rows of the GPU acceptance about handwritten kernels.

Each is also measured with handwritten kernels turned off, which is what the compiler generates or a
library does in their place: a kernel that is not faster than that is to be deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from gpu_rows import (
    ATOMIC,
    BF16,
    F32,
    NO_CUDNN,
    NO_KERNELS,
    TORCH,
    Goal,
    Maker,
    Row,
    TorchMaker,
    also_rounded,
    normals,
)

KEEP = Goal(times=1.0, rivals=(NO_KERNELS,))
_OFF = (NO_KERNELS,)


def _attention_inputs(width: int, dtype: str) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        shape = (4, n, 8, width)  # batch, time, heads, width
        return [(normals(rng, shape), dtype) for _ in range(3)]

    return inputs


def _attend(is_causal: bool) -> Maker:
    return lambda jax: lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)


def _torch_attention(torch: Any, is_causal: bool, parts: Any) -> Any:
    heads_first = [x.transpose(1, 2) for x in parts]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*heads_first, is_causal=is_causal).transpose(1, 2)


def _torch_attend(is_causal: bool) -> TorchMaker:
    return lambda torch, jit: jit(lambda *parts: _torch_attention(torch, is_causal, parts))


def _attention_gradients(jax: Any) -> Callable[..., Any]:
    def total(q: Any, k: Any, v: Any) -> Any:
        out = jax.nn.dot_product_attention(q, k, v)
        return (out.astype(jax.numpy.float32) ** 2).sum()

    return jax.grad(total, (0, 1, 2))


def _torch_attention_gradients(torch: Any, jit: Any) -> Callable[..., Any]:
    def total(*parts: Any) -> Any:
        return (_torch_attention(torch, False, parts).float() ** 2).sum()

    total = jit(total)

    def gradients(q: Any, k: Any, v: Any) -> Any:
        parts = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(total(*parts), parts)

    return gradients


def attention_rows() -> list[Row]:
    """Fused attention beside torch's, our own kernels, and the composition that it stands for."""
    goal = Goal(times=1.3, rivals=(TORCH,))
    rows = []
    for width in (64, 128):
        flops = lambda n, width=width: 4.0 * 4 * 8 * n * n * width  # noqa: E731
        inputs = _attention_inputs(width, BF16)
        rows += [
            Row(
                f"attention bf16 D={width}", inputs, _attend(False), 4096, 16,
                _torch_attend(False), flops=flops, unit=BF16, goal=goal,
                without=(*_OFF, NO_CUDNN), tolerance=3e-2,
            ),
            Row(
                f"attention forward and backward bf16 D={width}", inputs, _attention_gradients,
                4096, 16, _torch_attention_gradients, flops=lambda n, f=flops: 3.5 * f(n),
                unit=BF16, goal=goal, without=(*_OFF, NO_CUDNN), tolerance=5e-2,
            ),
        ]  # fmt: skip
    rows.append(
        Row(
            "attention bf16 D=64, causal",
            _attention_inputs(64, BF16),
            _attend(True),
            4096,
            16,
            _torch_attend(True),
            flops=lambda n: 2.0 * 4 * 8 * n * n * 64,
            unit=BF16,
            goal=KEEP,
            without=(*_OFF, NO_CUDNN),
            tolerance=3e-2,
        )
    )
    exact = Row(
        "attention float32 D=64",
        _attention_inputs(64, F32),
        _attend(False),
        2048,
        16,
        _torch_attend(False),
        flops=lambda n: 4.0 * 4 * 8 * n * n * 64,
        unit=F32,
        goal=KEEP,
        without=_OFF,
        tolerance=1e-3,
    )
    gradients = replace(
        exact,
        name="attention forward and backward float32 D=64",
        make=_attention_gradients,
        torch=_torch_attention_gradients,
        flops=lambda n: 14.0 * 4 * 8 * n * n * 64,
    )
    return [*rows, *also_rounded(exact, 5e-3), *also_rounded(gradients, 1e-2)]


def _running(axis: int) -> Maker:
    return lambda jax: lambda x: jax.numpy.cumsum(x, axis)


def _matrix(columns: int) -> Callable[..., list[Any]]:
    return lambda rng, n: [(normals(rng, (max(n // columns, 1), min(columns, n))), F32)]


def _numbers(columns: int) -> Callable[..., list[Any]]:
    """Rows of different numbers: values that repeat would make some sorts faster."""
    return lambda rng, n: [(rng.random((max(n // columns, 1), min(columns, n)), np.float32), F32)]


def _row_rows() -> list[Row]:
    """Running values, sorts and largest values."""
    rows = []
    for name, inputs, axis in (
        ("running sum of a vector", _matrix(1 << 26), 1),
        ("running sums of rows of 4096", _matrix(4096), 1),
        ("running sums of columns", _matrix(4096), 0),
    ):
        rows.append(
            Row(
                name,
                inputs,
                _running(axis),
                1 << 26,
                1 << 13,
                lambda torch, jit, axis=axis: jit(lambda x: torch.cumsum(x, axis)),
                lambda cupy, axis=axis: lambda x: cupy.cumsum(x, axis),
                traffic=lambda n: 8 * n,
                goal=KEEP,
                without=_OFF,
                tolerance=1e-3,
            )
        )
    rows.append(
        Row(
            "running sums of a transposed matrix",
            _matrix(4096),  # which is copied first
            lambda jax: lambda x: jax.numpy.cumsum(x.T, 1),
            1 << 26,
            1 << 13,
            lambda torch, jit: jit(lambda x: torch.cumsum(x.T, 1)),
            lambda cupy: lambda x: cupy.cumsum(x.T, 1),
            traffic=lambda n: 8 * n,
            goal=KEEP,
            without=_OFF,
            tolerance=1e-3,
        )
    )
    for name, columns, full in (
        ("sort of a vector", 1 << 24, 1 << 24),
        ("sorts of rows of 2048", 2048, 1 << 24),
    ):
        rows.append(
            Row(
                name,
                _numbers(columns),
                lambda jax: lambda x: jax.numpy.sort(x, 1),
                full,
                4096,
                lambda torch, jit: jit(lambda x: torch.sort(x, 1)[0]),
                lambda cupy: lambda x: cupy.sort(x, 1),
                traffic=lambda n: 8 * n,
                goal=KEEP,
                without=_OFF,
            )
        )
    for name, columns in (("top 64 of a vector", 1 << 24), ("top 64 of rows of 2^17", 1 << 17)):
        rows.append(
            Row(
                name,
                _numbers(columns),
                lambda jax: lambda x: jax.lax.top_k(x, 64),
                1 << 24,
                4096,
                lambda torch, jit: jit(lambda x: tuple(torch.topk(x, 64, 1))),
                traffic=lambda n: 4 * n,
                goal=KEEP,
                without=_OFF,
            )
        )
    return rows


def _table_inputs(rng: np.random.Generator, n: int) -> list[Any]:
    width, words = 512, max(n // 2, 8)
    places = rng.zipf(1.3, n) % words  # a few words are frequent, as in texts
    return [(normals(rng, (n, width)), F32), (places.astype(np.int32), "int32")]


def _table_gradient(jax: Any) -> Callable[..., Any]:
    def gradient(x: Any, places: Any) -> Any:
        words = max(x.shape[0] // 2, 8)
        return jax.numpy.zeros((words, x.shape[1]), x.dtype).at[places].add(x)

    return gradient


def _torch_table_gradient(torch: Any, jit: Any) -> Callable[..., Any]:
    def gradient(x: Any, places: Any) -> Any:
        words = max(x.shape[0] // 2, 8)
        return torch.zeros(words, x.shape[1], device=x.device).index_add(0, places, x)

    return jit(gradient)


def _matrices(size: int) -> Callable[..., list[Any]]:
    """Positive definite matrices."""

    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        a = normals(rng, (min(n, 256), size, size))
        a = a @ a.transpose(0, 2, 1) / size + np.eye(size, dtype=np.float32)
        return [(np.resize(a, (n, size, size)), F32)]

    return inputs


def _solve_inputs(rng: np.random.Generator, n: int) -> list[Any]:
    return [*_matrices(8)(rng, n), (normals(rng, (n, 8, 1)), F32)]


def _linalg_rows() -> list[Row]:
    """Many small matrices."""

    def row(name: str, function: str, size: int, full: int, outputs: int, checked: bool) -> Row:
        return Row(
            f"{name} of {size} x {size}",
            _matrices(size),
            lambda jax: lambda a: getattr(jax.numpy.linalg, function)(a),
            full,
            3,
            lambda torch, jit: lambda a: getattr(torch.linalg, function)(a),
            (lambda cupy: lambda a: getattr(cupy.linalg, function)(a)) if checked else None,
            traffic=lambda n: 4 * n * size * size * (1 + outputs),
            goal=KEEP,
            without=_OFF,
            tolerance=1e-3 if checked else 0.0,
        )

    solve = Row(
        "solve of 8 x 8",
        _solve_inputs,
        lambda jax: lambda a, b: jax.numpy.linalg.solve(a, b),
        200_000,
        3,
        lambda torch, jit: lambda a, b: torch.linalg.solve(a, b),
        lambda cupy: lambda a, b: cupy.linalg.solve(a, b),
        traffic=lambda n: 4 * n * (64 + 16),
        goal=KEEP,
        without=_OFF,
        tolerance=1e-3,
    )
    # Vectors of eigenvalues and of QR may have other signs elsewhere.
    return [
        solve,
        row("cholesky", "cholesky", 32, 50_000, 1, True),
        row("qr", "qr", 16, 50_000, 2, False),
        row("eigh", "eigh", 16, 20_000, 1, False),
        row("eig", "eig", 16, 2_000, 4, False),
    ]


def _image_inputs(dtype: str) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        side, channels = (56, 64) if n >= 32 else (7, 16)
        x = normals(rng, (n, channels, side, side))
        return [(x, dtype), (normals(rng, (channels, channels, 3, 3)) * 0.05, dtype)]

    return inputs


def _convolve(jax: Any) -> Callable[..., Any]:
    return lambda x, kernel: jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME")


def _convolution_gradients(jax: Any) -> Callable[..., Any]:
    def total(x: Any, kernel: Any) -> Any:
        return (_convolve(jax)(x, kernel).astype(jax.numpy.float32) ** 2).sum()

    return jax.grad(total, (0, 1))


def _torch_convolution_gradients(torch: Any, jit: Any) -> Callable[..., Any]:
    def total(x: Any, kernel: Any) -> Any:
        return (torch.nn.functional.conv2d(x, kernel, padding=1).float() ** 2).sum()

    total = jit(total)

    def gradients(x: Any, kernel: Any) -> Any:
        parts = [x.detach().requires_grad_(), kernel.detach().requires_grad_()]
        return torch.autograd.grad(total(*parts), parts)

    return gradients


def _images_of_channels(rng: np.random.Generator, n: int) -> list[Any]:
    """Images and taps as flax has them: channels last."""
    (x, dtype), (kernel, _) = _image_inputs(BF16)(rng, n)
    return [(x.transpose(0, 2, 3, 1).copy(), dtype), (kernel.transpose(2, 3, 1, 0).copy(), dtype)]


def _convolve_channels(jax: Any) -> Callable[..., Any]:
    layout = ("NHWC", "HWIO", "NHWC")
    return lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=layout
    )


def _torch_convolve_channels(torch: Any, jit: Any) -> Callable[..., Any]:
    def convolve(x: Any, kernel: Any) -> Any:
        first = x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1)  # views: channels stay last
        return torch.nn.functional.conv2d(*first, padding=1).permute(0, 2, 3, 1)

    return jit(convolve)


def _convolve_halving(jax: Any) -> Callable[..., Any]:
    layout = ("NHWC", "HWIO", "NHWC")
    return lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (2, 2), "SAME", dimension_numbers=layout
    )


def _torch_convolve_halving(torch: Any, jit: Any) -> Callable[..., Any]:
    def convolve(x: Any, kernel: Any) -> Any:
        image = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (0, 1, 0, 1))
        convolved = torch.nn.functional.conv2d(image, kernel.permute(3, 2, 0, 1), stride=2)
        return convolved.permute(0, 2, 3, 1)

    return jit(convolve)


def _cudnn_rows() -> list[Row]:
    """By cuDNN where it is there, beside our own kernels and torch, whose cuDNN is another one."""
    plain = Row(
        "convolution 3 x 3 bfloat16, channels last",
        _images_of_channels,
        _convolve_channels,
        64,
        2,
        _torch_convolve_channels,
        flops=lambda n: 2.0 * n * 56 * 56 * 64 * 64 * 9,
        unit=BF16,
        goal=Goal(times=1.0, rivals=(NO_CUDNN,)),
        without=(NO_CUDNN,),
        tolerance=3e-2,
    )
    # One zero more behind the images than before them, which is a copy for cuDNN.
    halving = replace(
        plain,
        name="convolution 3 x 3 bfloat16, channels last, strides 2",
        make=_convolve_halving,
        torch=_torch_convolve_halving,
        flops=lambda n: 2.0 * n * 28 * 28 * 64 * 64 * 9,
    )
    return [plain, halving]


def _convolution_rows() -> list[Row]:
    flops = lambda n: 2.0 * n * 56 * 56 * 64 * 64 * 9  # noqa: E731
    rows = []
    for dtype in (F32, BF16):
        rows += [
            Row(
                f"convolution 3 x 3 {dtype}",
                _image_inputs(dtype),
                _convolve,
                64,
                2,
                lambda torch, jit: jit(
                    lambda x, kernel: torch.nn.functional.conv2d(x, kernel, padding=1)
                ),
                flops=flops,
                unit=dtype,
                goal=KEEP,
                without=(NO_KERNELS, NO_CUDNN),
                tolerance=1e-4 if dtype == F32 else 3e-2,
            ),
            Row(
                f"gradients of convolution 3 x 3 {dtype}",
                _image_inputs(dtype),
                _convolution_gradients,
                64,
                2,
                _torch_convolution_gradients,
                flops=lambda n: 3 * flops(n),
                unit=dtype,
                goal=KEEP,
                without=(NO_KERNELS, NO_CUDNN),
                tolerance=1e-3 if dtype == F32 else 5e-2,
            ),
        ]
    forward, gradients, *narrow = rows
    rounded = [*also_rounded(forward, 5e-3), *also_rounded(gradients, 1e-2)]
    return [*rounded, *narrow, *_cudnn_rows()]


def kernel_rows() -> list[Row]:
    """Handwritten kernels, each by itself."""
    table = Row(
        "gradient of a table of 512 columns",
        _table_inputs,
        _table_gradient,
        1 << 16,
        128,
        _torch_table_gradient,
        traffic=lambda n: 4 * 512 * (n + n // 2),
        goal=KEEP,
        without=(NO_KERNELS, ATOMIC),
    )
    return [*_row_rows(), table, *_linalg_rows(), *_convolution_rows()]
