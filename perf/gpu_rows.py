"""What the GPU acceptance times: one row for each task, in gpuflow, JAX, torch and CuPy.

A task is written once for gpuflow and JAX, and again for torch and CuPy where they are rivals.
Inputs are made with NumPy from a fixed seed, so that results of frameworks can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

F32, F16, BF16 = "float32", "float16", "bfloat16"
TF32 = "TF32"  # float32 whose products are rounded
Maker = Callable[[Any], Callable[..., Any]]
TorchMaker = Callable[[Any, Callable[[Any], Any]], Callable[..., Any]]
# Names of frameworks: rivals, and gpuflow with something turned off, or on.
JAX, TORCH, COMPILED, CUPY = "jax", "torch", "torch.compile", "cupy"
NO_KERNELS = "without handwritten kernels"
NO_EPILOGUES, NO_GRAPHS = "without epilogues", "without graphs"
NO_CUDNN, NO_BLOCKS = "without cuDNN", "without loops of blocks"
ATOMIC = "with atomic sums"
# All are columns of their own.
OFF = (NO_KERNELS, NO_EPILOGUES, NO_GRAPHS, NO_CUDNN, NO_BLOCKS, ATOMIC)
MANY_SIZES = "500 random batch sizes"  # a row of its own kind: gpu_child.py
_DRAWN = 1 << 22  # numbers that are drawn for an array; longer ones repeat them


@dataclass(frozen=True)
class Goal:
    """What a row must reach; what is None is not asked for.

    Attributes:
        share: of the copy bandwidth that was measured, at least.
        seconds: at most.
        times: at most so many times the time of the fastest of ``rivals``.
        rivals: frameworks.
    """

    share: float | None = None
    seconds: float | None = None
    times: float | None = None
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One task.

    Attributes:
        name: in the table.
        inputs: ``(random generator, size) -> [(array, dtype), ...]``.
        make: ``(jax-like module) -> function of the arrays``, jitted by the caller.
        full, tiny: the size on a GPU, and in the simulator.
        torch: ``(torch, jit) -> function of tensors``, which jits what it wants; or None.
        cupy: ``(cupy) -> function of arrays``, or None.
        traffic: bytes that must move at least, of a size; None: the row is not about bandwidth.
        flops: floating-point operations of a size, and ``unit``: of which product's ceiling.
        goal: what is asked for.
        without: other settings of gpuflow in which the row is measured as well: those of OFF.
        group: rows whose slowest and fastest times are compared.
        is_eager: the function is called without jit, and so are rivals'.
        host: the time of the host is wanted, not that of the device.
        tolerance: of results between frameworks, relative to the largest; 0: they differ freely.
        kernels: how many kernels gpuflow's plan must have; 0: any.
        rounds: whether float32 products are TF32, in all frameworks; else all make them in float32.
    """

    name: str
    inputs: Callable[[np.random.Generator, int], list[Any]]
    make: Maker
    full: int
    tiny: int
    torch: TorchMaker | None = None
    cupy: Maker | None = None
    traffic: Callable[[int], int] | None = None
    flops: Callable[[int], float] | None = None
    unit: str = F32
    goal: Goal = Goal()
    without: tuple[str, ...] = ()
    group: str = ""
    is_eager: bool = False
    host: bool = False
    tolerance: float = 1e-4
    kernels: int = 0
    rounds: bool = False


def also_rounded(row: Row, tolerance: float) -> list[Row]:
    """A row of float32 products, and the same with TF32; CuPy has no such setting of its own."""
    name = row.name.replace(F32, TF32)
    rounded = replace(row, name=name, rounds=True, unit=TF32, cupy=None, tolerance=tolerance)
    return [row, rounded]


def normals(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers as float32; a long array holds the first ones again and again."""
    count = int(np.prod(shape))
    drawn = rng.standard_normal(min(count, _DRAWN), np.float32)
    return np.resize(drawn, count).reshape(shape)


def vector(dtype: str) -> Callable[..., list[Any]]:
    """Inputs: one vector."""
    return lambda rng, n: [(normals(rng, (n,)), dtype)]


def rows_of(columns: int) -> Callable[..., list[Any]]:
    """Inputs: a matrix of so many columns, and of n elements."""
    return lambda rng, n: [(normals(rng, (max(n // columns, 1), columns)), F32)]


def _steps_of(count: int) -> Maker:
    """A chain of ``count`` kernels: each step needs a sum of all that the one before made."""

    def make(jax: Any) -> Callable[..., Any]:
        np_ = jax.numpy

        def steps(x: Any) -> Any:
            for k in range(count - 1):
                x = np_.sin(x + (x.sum() if k % 2 else x.max()) * 1e-3)
            return x

        return steps

    return make


def _pair(rng: np.random.Generator, n: int) -> list[Any]:
    return [(normals(rng, (n,)), F32) for _ in range(2)]


def _host_rows() -> list[Row]:
    return [
        Row(
            "host: eager add", _pair, lambda jax: lambda a, b: a + b, 1024, 64,
            lambda torch, jit: lambda a, b: a + b, lambda cupy: lambda a, b: a + b,
            goal=Goal(seconds=6e-6), is_eager=True, host=True,
        ),
        Row(
            "host: jitted call of 2 arrays", _pair, lambda jax: lambda a, b: a * b + 1, 1024, 64,
            lambda torch, jit: jit(lambda a, b: a * b + 1), goal=Goal(seconds=4e-6), host=True,
        ),
        Row(
            "host: plan of 3 kernels", vector(F32), _steps_of(3), 1024, 64,
            goal=Goal(seconds=8e-6), without=(NO_GRAPHS,), host=True, kernels=3,
        ),
        Row(
            "host: plan of 100 kernels", vector(F32), _steps_of(100), 1024, 64,
            goal=Goal(seconds=15e-6), without=(NO_GRAPHS,), host=True, kernels=100,
        ),
        Row(
            "plan of 100 kernels on the device", vector(F32), _steps_of(100), 1024, 64,
            goal=Goal(times=1.0, rivals=(NO_GRAPHS,)), without=(NO_GRAPHS,), kernels=100,
        ),
    ]  # fmt: skip


_NORMALS = [100_000_000]  # how many; ``_seed`` sets it to the size


def _seed(rng: np.random.Generator, n: int) -> list[Any]:
    del rng
    _NORMALS[0] = n
    return [(np.array([1, 2], np.uint32), "uint32")]


def _normal(jax: Any) -> Callable[..., Any]:
    def total(seed: Any) -> Any:
        key = jax.random.wrap_key_data(seed)
        return (jax.random.normal(key, (_NORMALS[0],)) ** 2).mean()

    return total


def _segments(is_sorted: bool, dtype: str) -> Callable[..., list[Any]]:
    def inputs(rng: np.random.Generator, n: int) -> list[Any]:
        places = rng.integers(0, max(n // 64, 1), n).astype(np.int32)
        return [(normals(rng, (n,)), dtype), (np.sort(places) if is_sorted else places, "int32")]

    return inputs


def _segment_sum(jax: Any) -> Callable[..., Any]:
    def total(x: Any, places: Any) -> Any:
        return jax.numpy.zeros(max(x.shape[0] // 64, 1), x.dtype).at[places].add(x)

    return total


def _torch_segment_sum(torch: Any, jit: Any) -> Callable[..., Any]:
    def total(x: Any, places: Any) -> Any:
        zeros = torch.zeros(max(x.shape[0] // 64, 1), dtype=x.dtype, device=x.device)
        return zeros.index_add(0, places, x)

    return jit(total)


def _task_rows() -> list[Row]:
    goal = Goal(times=0.7, rivals=(JAX,))
    rows = [
        Row(
            "normal, fused into a mean", _seed, _normal, 100_000_000, 512, goal=goal, tolerance=1e-3
        ),
    ]
    for dtype, size in ((F16, 2), (F32, 4)):
        for is_sorted in (True, False):
            rows.append(
                Row(
                    f"segment sum {dtype}, {'sorted' if is_sorted else 'unsorted'}",
                    _segments(is_sorted, dtype),
                    _segment_sum,
                    1 << 24,
                    1 << 10,
                    _torch_segment_sum,
                    traffic=lambda n, size=size: n * (size + 4),
                    group="segment sum",
                    without=(NO_KERNELS, ATOMIC) if dtype == F32 else (NO_KERNELS,),
                    tolerance=2e-2 if dtype == F16 else 1e-4,
                )
            )
    return rows


# Groups of rows: the slowest may take so many times as long as the fastest.
GROUPS = {"segment sum": 3.0}


def _square(dtype: str) -> Callable[..., list[Any]]:
    return lambda rng, n: [(normals(rng, (n, n)) / n**0.5, dtype) for _ in range(2)]


def _matrix_rows() -> list[Row]:
    exact, narrow = (
        Row(
            f"matmul {dtype}",
            _square(dtype),
            lambda jax: lambda a, b: jax.numpy.matmul(a, b),
            8192,
            32,
            lambda torch, jit: jit(lambda a, b: torch.matmul(a, b)),
            (lambda cupy: lambda a, b: cupy.matmul(a, b)) if dtype == F32 else None,
            flops=lambda n: 2.0 * n**3,
            unit=dtype,
            tolerance=1e-5 if dtype == F32 else 2e-2,
        )
        for dtype in (F32, BF16)
    )
    return [*also_rounded(exact, tolerance=5e-3), narrow]


def chosen(name: str, only: str) -> bool:
    """Whether a name holds one of the texts of a list with commas; an empty list is everything."""
    return not only or any(text.strip() in name for text in only.split(",") if text.strip())


# What is timed first, by the beginning of names: what most programs consist of.
_FIRST = (
    "chain ", "softmax rows of 4096", "layernorm rows of 4096", "full sum", "column sum",
    "matmul ", "MLP ", "transformer ", "attention bf16 D=64", "attention forward and backward bf16",
    "host: ", "plan of 100", "x @ w + b", "scan of 1000", "loop over 60",
    "Lorenz", "scan of 100k", "transpose",
    "layernorm bfloat16", "batchnorm", "gradient of an embedding", "softmax of 8", "CNN ",
    "normal, fused", "segment sum", "solve of 512", "eager add", "slice", "concatenate",
)  # fmt: skip


def all_rows() -> list[Row]:
    """All rows, the most important first."""
    from gpu_bandwidth_rows import bandwidth_rows  # beside this file; they need Row
    from gpu_further_rows import further_rows
    from gpu_kernel_rows import attention_rows, kernel_rows
    from gpu_loop_rows import loop_rows
    from gpu_models import model_rows

    rows = [*_host_rows(), *bandwidth_rows(), *_task_rows(), *model_rows(), *attention_rows()]
    rows += [*_matrix_rows(), *further_rows(), *loop_rows(), *kernel_rows()]
    return sorted(rows, key=_place)


def _place(row: Row) -> int:
    """Where a row stands; those that are not named keep their order behind the others."""
    found = [k for k, name in enumerate(_FIRST) if row.name.startswith(name)]
    return found[0] if found else len(_FIRST)
