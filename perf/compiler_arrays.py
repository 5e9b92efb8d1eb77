"""Workloads of bench_compiler.py that compute on a few arrays, and single calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from compiler_builds import hundred_functions
from models import layernorm
from numpy_library import numpy_library
from reference import check_close, double
from workload import Target, Workload

MILLION = 1 << 20
Function = Callable[..., Any]


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def uniforms(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def array_row(
    name: str,
    inputs: Callable[[], tuple[Any, ...]],
    function: Callable[[Any, Any], Function],
    target: Target,
    torch: Callable[[Any], Function] | None = None,
    tolerance: tuple[float, float] = (1e-5, 1e-6),
    jitted: bool = True,
) -> Workload:
    """A row that calls one function of arrays.

    Args:
        name: the row's label.
        inputs: makes the arguments, NumPy arrays in nested lists.
        function: from (jax, jnp) to the function; written once for JAX's names and NumPy.
        target: the largest allowed ratio.
        torch: from torch to the function; None: `function`, whose names torch has too.
        tolerance: relative and absolute, of the comparison with NumPy in float64.
        jitted: whether the framework compiles the function.
    """

    def make(jax: Any, jnp: Any) -> Callable[[], Any]:
        arrays = [_convert(jnp.asarray, value) for value in inputs()]
        call = function(jax, jnp)
        call = jax.jit(call) if jitted else call
        return lambda: call(*arrays)

    def make_numpy(jax: Any, jnp: Any) -> Callable[[], Any]:
        del jax, jnp
        return make(numpy_library(), np)

    def make_torch(module: Any, _: Any) -> Callable[[], Any]:
        tensors = [_convert(module.from_numpy, value) for value in inputs()]
        call = function(module, module) if torch is None else torch(module)
        return lambda: call(*tensors)

    def check(result: Any) -> None:
        wanted = function(numpy_library(), np)(*[_convert(double, value) for value in inputs()])
        check_close(name, result, wanted, *tolerance)

    makers = {"numpy": make_numpy, "torch": make_torch}
    return Workload(name, make, target, ("jax", "numpy", "torch"), makers, check)


def _convert(function: Callable[[Any], Any], value: Any) -> Any:
    return [function(part) for part in value] if isinstance(value, list) else function(value)


# --- elementwise -------------------------------------------------------------------------------


def transcendental(jax: Any, jnp: Any) -> Function:
    return lambda x, y: jnp.tanh(x * y) + jnp.exp(-x) + jnp.sin(y)


def hundred_ops(jax: Any, jnp: Any) -> Function:
    """25 times four operations that no compiler can simplify."""

    def chain(x: Any, y: Any) -> Any:
        for _ in range(25):
            x = abs(x * y + 0.25) - y
        return x

    return chain


# --- rows and reductions -----------------------------------------------------------------------


def standardize(jax: Any, jnp: Any) -> Function:
    return lambda x: (x - jnp.mean(x, axis=1, keepdims=True)) / jnp.std(x, axis=1, keepdims=True)


def _torch_standardize(torch: Any) -> Function:
    return lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)


def _torch_layernorm(torch: Any) -> Function:
    return lambda x, scale, offset: torch.nn.functional.layer_norm(
        x, scale.shape, scale, offset, 1e-5
    )


def _rows() -> tuple[np.ndarray, ...]:
    return (normals(4096, 1024),)


def _rows_with_scale() -> tuple[np.ndarray, ...]:
    return normals(4096, 1024), normals(1024, seed=1), normals(1024, seed=2)


# --- matmuls -----------------------------------------------------------------------------------


def chained_matmuls(jax: Any, jnp: Any) -> Function:
    """(f(x)*f(x) + f(x)*f(x)) / f(x), f a chain of ten matmuls: fifty of them as written."""

    def f(x: Any, weights: list[Any]) -> Any:
        for weight in weights:
            x = x @ weight
        return x

    return lambda x, w: (f(x, w) * f(x, w) + f(x, w) * f(x, w)) / f(x, w)


def _matmul_inputs() -> tuple[Any, ...]:
    """Orthogonal matrices, which keep the values' size."""
    weights = [np.linalg.qr(normals(512, 512, seed=k))[0] for k in range(10)]
    return normals(512, 512, seed=10), weights


# --- rows of the table -------------------------------------------------------------------------

ROWS = [
    array_row(
        "tanh(x*y)+exp(-x)+sin(y), 4M",
        lambda: (normals(4 * MILLION), normals(4 * MILLION, seed=1)),
        transcendental,
        {"jax": 0.2},
    ),
    array_row(
        "100 chained elementwise ops, 1M",
        lambda: (uniforms(MILLION), uniforms(MILLION, seed=1)),
        hundred_ops,
        {"jax": 0.6},
    ),
    array_row(
        "100 sines and tangents, 100k",
        lambda: (normals(MILLION // 10),),
        lambda jax, jnp: hundred_functions(jax, jnp)[0],
        {"jax": 0.6},
        tolerance=(1e-2, 1e-2),  # each of them makes errors larger
    ),
    array_row(
        "softmax over rows, 4096 x 1024",
        _rows,
        lambda jax, jnp: lambda x: jax.nn.softmax(x, axis=-1),
        {"jax": 1.0},
        torch=lambda torch: lambda x: torch.softmax(x, -1),
    ),
    array_row(
        "layernorm over rows, 4096 x 1024",
        _rows_with_scale,
        lambda jax, jnp: lambda x, scale, offset: layernorm(jnp, x, scale, offset),
        {"jax": 1.0},
        torch=_torch_layernorm,
    ),
    array_row(
        "logsumexp over rows, 4096 x 1024",
        _rows,
        lambda jax, jnp: lambda x: jax.nn.logsumexp(x, axis=-1),
        {"jax": 1.0},
        torch=lambda torch: lambda x: torch.logsumexp(x, -1),
    ),
    array_row(
        "variance over rows, 4096 x 1024",
        _rows,
        lambda jax, jnp: lambda x: jnp.var(x, axis=1),
        {"jax": 1.0},
        torch=lambda torch: lambda x: torch.var(x, 1, correction=0),
    ),
    array_row(
        "(x - mean) / std over rows, keepdims, 5000 x 5000",
        lambda: (normals(5000, 5000),),
        standardize,
        {"jax": 0.6, "numpy": 0.4},
        torch=_torch_standardize,
    ),
    array_row(
        "sum of 16M",
        lambda: (uniforms(16 * MILLION),),
        lambda jax, jnp: lambda x: jnp.sum(x),
        {"jax": 1.0},
    ),
    array_row(
        "max of 16M",
        lambda: (uniforms(16 * MILLION),),
        lambda jax, jnp: lambda x: jnp.max(x),
        {"jax": 1.0},
    ),
    array_row(
        "column mean, 4096 x 1024",
        _rows,
        lambda jax, jnp: lambda x: jnp.mean(x, axis=0),
        {"jax": 1.0},
        torch=lambda torch: lambda x: torch.mean(x, 0),
    ),
    array_row(
        "column mean, 65536 x 64",
        lambda: (normals(65536, 64),),
        lambda jax, jnp: lambda x: jnp.mean(x, axis=0),
        {"jax": 1.0},
        torch=lambda torch: lambda x: torch.mean(x, 0),
    ),
    array_row(
        "(f*f + f*f) / f, f of ten matmuls 512 x 512",
        _matmul_inputs,
        chained_matmuls,
        {"jax": 1.0},
        # The sum of 5120 products; small results keep the error of large ones.
        tolerance=(1e-3, 1e-4),
    ),
    array_row(
        "eager add of 100 elements",
        lambda: (normals(100), normals(100, seed=1)),
        lambda jax, jnp: lambda x, y: x + y,
        {"jax": 0.5},
        jitted=False,
    ),
]
