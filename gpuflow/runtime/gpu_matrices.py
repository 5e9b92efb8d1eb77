"""Batches of small matrices on GPUs: a warp for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gpuflow.kernels.small_eigenvalues as eigenvalues
import gpuflow.kernels.small_matrices as kernels
from gpuflow.core.lowering import Matrices
from gpuflow.runtime.gpu_blocks import At, Schedule

_INDEX = "int64"
_LANES = 32  # threads of a warp
_AREA = _LANES * kernels.LINE  # numbers of shared memory for a matrix


def add_matrices(
    schedule: Schedule, matrices: Matrices, sources: Sequence[At], outs: Sequence[At],
    kinds: Sequence[Any],
) -> bool:  # fmt: skip
    """Add the launch of an op on a batch of matrices.

    Args:
        schedule: to which. matrices: what to do.
        sources, outs: operands and outputs, row-major. kinds: the operands' dtypes.
    """
    dtype = np.dtype(kinds[0])
    is_double = dtype.itemsize == 8
    warps = 2 if is_double else 4
    pointer = f"*{dtype.name}"
    kernel, arguments, constants = _CALLS[matrices.what](matrices, sources, outs, pointer)
    numbers = [argument if isinstance(argument, tuple) else (_INDEX, argument)
               for argument in arguments]  # fmt: skip
    constants |= {
        "DOUBLE": int(is_double), "WARPS": warps, "AREA": warps * _AREA,
        "LIMIT": 1000 if is_double else 120,
    }  # fmt: skip
    grid = (-(-matrices.count // warps), 1, 1)
    schedule.launch(kernel, numbers, grid, warps * _LANES, constants)
    return True


_Call = tuple[Callable[..., None], list[Any], dict[str, int]]


def _lu(m: Matrices, sources: Sequence[At], outs: Sequence[At], pointer: str) -> _Call:
    arrays = [(pointer, sources[0]), (pointer, outs[0]), ("*int32", outs[1]), ("*int32", outs[2])]
    return kernels.factor_lu, [*arrays, m.count, m.rows, m.columns], {}


def _cholesky(m: Matrices, sources: Sequence[At], outs: Sequence[At], pointer: str) -> _Call:
    arrays = [(pointer, sources[0]), (pointer, outs[0])]
    return kernels.factor_cholesky, [*arrays, m.count, m.rows], {}


def _triangular(m: Matrices, sources: Sequence[At], outs: Sequence[At], pointer: str) -> _Call:
    params, size = m.params, m.rows
    arrays = [(pointer, sources[0]), (pointer, sources[1]), (pointer, outs[0])]
    # X op(A) = B is op(A)^T X^T = B^T.
    turned = params["transpose_a"] == params["left_side"]
    step, across = (m.sides, 1) if params["left_side"] else (1, size)
    constants = {
        "LOWER": int(params["lower"] != turned), "TURNED": int(turned),
        "UNIT": int(params["unit_diagonal"]),
    }  # fmt: skip
    return kernels.solve_triangular, [*arrays, m.count, size, m.sides, step, across], constants


def _qr(m: Matrices, sources: Sequence[At], outs: Sequence[At], pointer: str) -> _Call:
    arrays = [(pointer, sources[0]), (pointer, outs[0]), (pointer, outs[1])]
    inner = m.rows if m.params["full_matrices"] else min(m.rows, m.columns)
    return kernels.factor_qr, [*arrays, m.count, m.rows, m.columns, inner], {}


def _eigh(m: Matrices, sources: Sequence[At], outs: Sequence[At], pointer: str) -> _Call:
    params = m.params
    start, stop = params["subset_by_index"] or (0, m.rows)
    arrays = [(pointer, sources[0]), (pointer, outs[0]), (pointer, outs[-1])]
    constants = {"LOWER": int(params["lower"]), "VECTORS": int(params["compute_vectors"])}
    numbers = [m.count, m.rows, start, stop - start]
    return eigenvalues.find_eigenvalues, [*arrays, *numbers], constants


_CALLS: dict[str, Callable[..., _Call]] = {
    "lu": _lu, "cholesky": _cholesky, "triangular": _triangular, "qr": _qr, "eigh": _eigh,
}  # fmt: skip
