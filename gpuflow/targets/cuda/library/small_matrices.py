"""Provider of decompositions and triangular solves of small matrices: a warp for each matrix.

Tests: tests/kernels/test_kernel_matrices.py, tests/kernels/test_kernel_eig.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import gpuflow.kernels.small_eigenvalues as eigenvalues
import gpuflow.kernels.small_general_eigenvalues as general
import gpuflow.kernels.small_matrices as kernels
from gpuflow.base import dtypes
from gpuflow.core.blocks import (
    Cholesky,
    Decomposition,
    Eig,
    Eigh,
    Lu,
    Qr,
    Triangular,
)
from gpuflow.targets.cuda.codegen.handwritten import SHARED_BYTES
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence, on_rows

_INDEX = "int64"
_LANES = 32  # threads of a warp
_TILE_ELEMENTS = _LANES * kernels.PITCH  # of a matrix's tile in shared memory


def add_matrices(
    sequence: LaunchSequence,
    matrices: Decomposition | Triangular,
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
    operand_dtypes: Sequence[Any],
) -> bool:
    """Add the launch of an op on a batch of matrices; False if they are too large for a warp.

    Args:
        sequence: receives the launches.
        matrices: the operation.
        sources, outs: locations of operands and outputs, row-major.
        operand_dtypes: not used, as ``matrices`` has the dtype.
    """
    del operand_dtypes
    if matrices.fits_a_warp:
        _LAUNCHES[type(matrices)](sequence, matrices, sources, outs)
    return matrices.fits_a_warp


class _MatrixLaunch(NamedTuple):
    """A launch for a batch of real matrices, without what all of them have in common.

    Attributes:
        kernel: a function of kernels/.
        count: number of matrices.
        arguments: arguments of the kernel: (type, location), or an int for an int64 scalar.
        constants: constants of the build that only this kernel has.
    """

    kernel: Callable[..., None]
    count: int
    arguments: list[Any]
    constants: dict[str, int]


# Gives the launch of (operation, locations of operands, locations of outputs, pointer type).
_LaunchFor = Callable[[Any, Sequence[ArrayLocation], Sequence[ArrayLocation], str], _MatrixLaunch]


def _adding(launch_for: _LaunchFor) -> Callable[..., None]:
    """Turn a function that gives a launch into one that adds it to a launch sequence."""

    def add(
        sequence: LaunchSequence,
        matrices: Any,
        sources: Sequence[ArrayLocation],
        outs: Sequence[ArrayLocation],
    ) -> None:
        is_double = matrices.dtype.itemsize == 8
        warps = 2 if is_double else 4
        pointer = f"*{matrices.dtype.name}"
        launch = launch_for(matrices, sources, outs, pointer)
        arguments = [
            argument if isinstance(argument, tuple) else (_INDEX, argument)
            for argument in launch.arguments
        ]
        constants = launch.constants | {
            "DOUBLE": int(is_double),
            "WARPS": warps,
            "AREA": warps * _TILE_ELEMENTS,
            # Of the exponents by which matrices are scaled, see kernels/small_eigenvalues.py.
            "LIMIT": 1000 if is_double else 120,
        }
        grid = (-(-launch.count // warps), 1, 1)
        sequence.launch(launch.kernel, arguments, grid, warps * _LANES, constants)

    return add


def _lu(
    m: Lu, sources: Sequence[ArrayLocation], outs: Sequence[ArrayLocation], pointer: str
) -> _MatrixLaunch:
    arrays = [(pointer, sources[0]), (pointer, outs[0]), ("*int32", outs[1]), ("*int32", outs[2])]
    return _MatrixLaunch(kernels.factor_lu, m.count, [*arrays, m.count, m.rows, m.columns], {})


def _cholesky(
    m: Cholesky, sources: Sequence[ArrayLocation], outs: Sequence[ArrayLocation], pointer: str
) -> _MatrixLaunch:
    arrays = [(pointer, sources[0]), (pointer, outs[0])]
    return _MatrixLaunch(kernels.factor_cholesky, m.count, [*arrays, m.count, m.rows], {})


def _triangular(
    m: Triangular, sources: Sequence[ArrayLocation], outs: Sequence[ArrayLocation], pointer: str
) -> _MatrixLaunch:
    arrays = [(pointer, sources[0]), (pointer, sources[1]), (pointer, outs[0])]
    # X op(A) = B is op(A)^T X^T = B^T.
    transposed = m.transpose == m.left_side
    step, across = (m.sides, 1) if m.left_side else (1, m.size)
    constants = {
        "LOWER": int(m.lower != transposed),
        "TRANSPOSED": int(transposed),
        "UNIT": int(m.unit_diagonal),
    }
    numbers = [m.matrices, m.size, m.sides, step, across]
    return _MatrixLaunch(kernels.solve_triangular, m.matrices, [*arrays, *numbers], constants)


def _qr(
    m: Qr, sources: Sequence[ArrayLocation], outs: Sequence[ArrayLocation], pointer: str
) -> _MatrixLaunch:
    arrays = [(pointer, sources[0]), (pointer, outs[0]), (pointer, outs[1])]
    inner = m.rows if m.params["full_matrices"] else min(m.rows, m.columns)
    return _MatrixLaunch(
        kernels.factor_qr, m.count, [*arrays, m.count, m.rows, m.columns, inner], {}
    )


def _eigh(
    m: Eigh, sources: Sequence[ArrayLocation], outs: Sequence[ArrayLocation], pointer: str
) -> _MatrixLaunch:
    params = m.params
    start, stop = params["subset_by_index"] or (0, m.rows)
    arrays = [(pointer, sources[0]), (pointer, outs[0]), (pointer, outs[-1])]
    constants = {"LOWER": int(params["lower"]), "VECTORS": int(params["compute_vectors"])}
    numbers = [m.count, m.rows, start, stop - start]
    return _MatrixLaunch(eigenvalues.find_eigenvalues, m.count, [*arrays, *numbers], constants)


# --- general eigenvalues -------------------------------------------------------------------

_BLOCK_BYTES = 48 << 10  # shared memory that every GPU gives a block by default
_MAX_WARPS = 4  # per block
ITERATIONS_PER_ROW = 30  # most iterations, per row of a matrix


def _add_eig(
    sequence: LaunchSequence,
    matrices: Eig,
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
) -> None:
    """Add the launch for general eigenvalues, with the requested left and right eigenvectors."""
    dtype = matrices.dtype
    is_complex = dtypes.is_complex(dtype)
    real_dtype = np.dtype(f"f{dtype.itemsize // 2}") if is_complex else dtype
    left = matrices.params["compute_left_eigenvectors"]
    right = matrices.params["compute_right_eigenvectors"]
    constants = _tile_offsets(is_complex, left or right)
    matrix_bytes = constants["TILES"] * _TILE_ELEMENTS * real_dtype.itemsize
    warps = max(min(_MAX_WARPS, _BLOCK_BYTES // matrix_bytes), 1)
    constants |= {
        "DOUBLE": int(real_dtype.itemsize == 8),
        "COMPLEX": int(is_complex),
        "WARPS": warps,
        "VECTORS": int(left or right),
        "LEFT": int(left),
        "RIGHT": int(right),
        # Of exponents of T, see kernels/small_eigenvectors.py.
        "LIMIT": 460 if real_dtype.itemsize == 8 else 40,
        "MAX_ITERATIONS": ITERATIONS_PER_ROW,
        SHARED_BYTES: warps * matrix_bytes,
    }
    pointer = f"*{real_dtype.name}"
    unused = ArrayLocation(0)
    vectors = [outs[1] if left else unused, outs[-1] if right else unused]
    arguments = [(pointer, location) for location in [sources[0], outs[0], *vectors]]
    arguments += [(_INDEX, matrices.count), (_INDEX, matrices.rows)]
    grid = (-(-matrices.count // warps), 1, 1)
    sequence.launch(general.find_general_eigenvalues, arguments, grid, warps * _LANES, constants)


def _tile_offsets(is_complex: bool, has_vectors: bool) -> dict[str, int]:
    """Constants: element offsets of a matrix's tiles in shared memory, and their number."""
    names = ["T"]
    names += ["T_IMAG"] if is_complex else []
    names += ["Z"] if has_vectors else []
    names += ["Z_IMAG"] if has_vectors and is_complex else []
    names += ["X", "X_IMAG"] if has_vectors else []
    offsets = {name: index * _TILE_ELEMENTS for index, name in enumerate(names)}
    defaults = {name: offsets.get(name, 0) for name in ("T_IMAG", "Z", "Z_IMAG", "X", "X_IMAG")}
    return {**defaults, "TILES": len(names)}


_LAUNCHES: dict[type[Any], Callable[..., None]] = {
    Lu: _adding(_lu),
    Cholesky: _adding(_cholesky),
    Triangular: _adding(_triangular),
    Qr: _adding(_qr),
    Eigh: _adding(_eigh),
    Eig: _add_eig,
}

PROVIDER = on_rows("kernels of ours, a warp a matrix", add_matrices)
