"""Programs that only a GPU can show to be wrong: large shared memory, and calls of libraries.

Each runs in a fresh process (gpu_parts.py), as a fault of the device ends a process. All of them
must run on the device: a library call that is refused there runs on the host, with a right result.
gpuflow is imported by the programs only, since what starts the processes needs no more than names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SIDE = 108  # a matrix of float32 takes 46,656 bytes


def column_sums(matrices: Any) -> Any:
    """Columns divided by their sums, matrix by matrix.

    A block keeps a matrix in dynamic shared memory, below the 48 KB that a launch may use without
    asking for more; the static shared memory of its sums is above them.
    """
    from gpuflow import lax
    from gpuflow import numpy as jnp

    def one(matrix: Any) -> Any:
        positive = jnp.exp(matrix)
        return (positive / positive.sum(0)).sum(1)

    return lax.map(one, matrices)


def masked_attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Causal attention with a mask, and a head size that is not a power of 2.

    Its dynamic and static shared memory together are 4 bytes above 48 KB, in float32.
    """
    from gpuflow import nn

    return nn.dot_product_attention(query, key, value, mask=mask, is_causal=True)


def batched_lu(matrices: Any) -> Any:
    """The LU factors of many matrices, too large for kernels."""
    from gpuflow import lax

    return lax.linalg.lu(matrices)


def reflected(reflectors: Any, taus: Any, matrix: Any) -> Any:
    """The product of Householder reflections with a matrix."""
    from gpuflow import lax

    return lax.linalg.ormqr(reflectors, taus, matrix)


def names() -> tuple[str, ...]:
    """The names of the programs."""
    return tuple(programs(tiny=True))


def programs(tiny: bool) -> dict[str, tuple[Any, ...]]:
    """Functions and arguments by name.

    Args:
        tiny: whether sizes are those for a machine without a GPU.
    """
    rng = np.random.default_rng(3)

    def normals(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    batch, length, heads = (1, 16, 2) if tiny else (2, 512, 4)
    operands = [normals(batch, length, heads, 48) for _ in range(3)]
    mask = rng.random((batch, 1, length, length)) < 0.8
    mask |= np.eye(length, dtype=bool)  # no query is without a key
    reflectors = normals(64, 48)
    below = np.tril(reflectors, -1).astype(np.float64)
    taus = (2 / (1 + (below**2).sum(0))).astype(np.float32)
    matrices = normals(4 if tiny else 1000, _SIDE, _SIDE)
    return {
        "static and dynamic shared memory": (column_sums, matrices),
        "float32 attention, D=48, mask": (masked_attention, *operands, mask),
        "batched LU": (batched_lu, normals(2 if tiny else 64, 64, 64)),
        "ormqr": (reflected, reflectors, taus, normals(64, 5)),
    }
