"""Provider of Cholesky, eigen- and singular value decompositions of small matrices.

It calls the inner loops of NumPy's gufuncs, one matrix at a time: if one fails, only its results
are nan. Matrices with nan or inf must not reach LAPACK's iterations, which may not terminate for
them; their results are nan.

Tests: tests/targets/cpu/test_native_matrices.py.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Cholesky, Decomposition, Eig, Eigh, Svd
from gpuflow.targets.cpu.library.ufuncs import (
    Batch,
    FiniteCheck,
    UfuncArgument,
    UfuncLoop,
    call_loop,
    find_loop,
    loop_function,
)
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

MAX_ROWS = 64  # rows or columns: for larger matrices, SciPy's routines are faster
_MAX_SPLIT = 32  # rows or columns: for larger matrices, NumPy's BLAS may start threads itself

# NumPy's type characters of a dtype, of its real and of its complex dtype.
_LETTERS = {
    "float32": ("f", "f", "F"),
    "float64": ("d", "d", "D"),
    "complex64": ("F", "f", "F"),
    "complex128": ("D", "d", "D"),
}


class _Routine(NamedTuple):
    """A ufunc, and constants of its calls.

    Attributes:
        name: name of the ufunc.
        types: dtypes of the results: "x" for the operand's, "r" for its real, "c" for its complex
            dtype.
        outputs: for each result of the ufunc, the index of the op's output.
        triangle: the elements that must be finite, see ``FiniteCheck``; None: nan is allowed.
        flops: rough number of operations for an n by n matrix, divided by n cubed.
    """

    name: str
    types: str
    outputs: tuple[int, ...]
    triangle: str | None
    flops: int


def _routine(decomposition: Decomposition) -> _Routine | None:
    """Return the routine of a block; None if NumPy has no ufunc for its parameters."""
    params = decomposition.params
    if isinstance(decomposition, Cholesky):
        return _Routine("cholesky_lo", "x", (0,), None, 1)
    if isinstance(decomposition, Eig):
        if params["compute_left_eigenvectors"]:
            return None
        if params["compute_right_eigenvectors"]:
            return _Routine("eig", "cc", (0, 1), "all", 25)
        return _Routine("eigvals", "c", (0,), "all", 10)
    if params["subset_by_index"] is not None:
        return None
    if isinstance(decomposition, Eigh):
        side = "lower" if params["lower"] else "upper"
        if params["compute_vectors"]:
            return _Routine(f"eigh_{side[:2]}", "rx", (1, 0), side, 9)
        return _Routine(f"eigvalsh_{side[:2]}", "r", (0,), side, 2)
    assert isinstance(decomposition, Svd)
    if not params["compute_uv"]:
        return _Routine("svd", "r", (0,), "all", 4)
    name = "svd_f" if params["full_matrices"] else "svd_s"
    return _Routine(name, "xrx", (1, 0, 2), "all", 20)


def _find_loop(routine: _Routine, dtype: str) -> UfuncLoop | None:
    """Return the inner loop. NumPy's module is private, so it may be missing."""
    operand, real, complex_ = _LETTERS[dtype]
    results = "".join({"x": operand, "r": real, "c": complex_}[kind] for kind in routine.types)
    module = getattr(np.linalg, "_umath_linalg", None)
    return find_loop(getattr(module, routine.name, None), f"{operand}->{results}")


def choose(decomposition: Decomposition, step: CallStep, target: Any) -> NativeCall | None:
    """Decompose by NumPy's loops; None if a matrix is too large, or a loop is missing."""
    del target
    (operand,) = step.operands
    if not 0 < max(decomposition.rows, decomposition.columns) <= MAX_ROWS or operand.aval.size == 0:
        return None
    routine = _routine(decomposition)
    if routine is None or operand.buffer == NO_BUFFER:
        return None
    if _find_loop(routine, operand.aval.dtype.name) is None:
        return None
    aval = operand.aval
    copy_bytes = 0 if operand.layout.is_contiguous else aval.size * aval.dtype.itemsize
    return NativeCall(
        partial(_emit, decomposition, routine),
        copy_bytes,
        lambda: [Build(loop_function, (_scalar_bytes(aval.dtype),))],
    )


def _scalar_bytes(dtype: np.dtype) -> int:
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def _emit(
    decomposition: Decomposition,
    routine: _Routine,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    (operand,) = step.operands
    dtype = operand.aval.dtype
    source = operand_location(operand, code, locations)
    if not operand.layout.is_contiguous:
        assert step.workspace is not None  # reserved by the plan
        copy = locations.of(step.workspace)
        copy_view(operand.layout, dtype.itemsize, source, copy, services, code)
        source = copy
    rows, columns, count = decomposition.rows, decomposition.columns, decomposition.count
    arguments = [_matrix(source, (rows, columns), dtype.itemsize)]
    for position in routine.outputs:
        aval = step.eqn.outputs[position].aval
        shape = aval.shape[operand.aval.ndim - 2 :]  # without batch dimensions
        location = locations.of(step.outputs[position])
        arguments.append(_matrix(location, shape, aval.dtype.itemsize, True))
    components = 2 if dtype.kind == "c" else 1
    check = None
    if routine.triangle is not None:
        check = FiniteCheck(rows, columns, components, routine.triangle)
    # The core dimensions of NumPy's ufuncs: n, or m, n and min(m, n).
    is_square = isinstance(decomposition, (Cholesky, Eig, Eigh))
    sizes = [rows] if is_square else [rows, columns, min(rows, columns)]
    loop = _find_loop(routine, dtype.name)
    assert loop is not None  # checked by choose
    work = count * routine.flops * prod(sizes[:2]) * sizes[-1]
    call_loop(
        loop,
        _scalar_bytes(dtype),
        arguments,
        sizes,
        Batch(1, count),
        check,
        work,
        shares_batch=max(rows, columns) <= _MAX_SPLIT,
        services=services,
        code=code,
    )


def _matrix(
    location: Location, shape: tuple[int, ...], itemsize: int, is_result: bool = False
) -> UfuncArgument:
    """A contiguous stack of matrices or vectors as an argument of a loop.

    ``shape`` is that of one of them, with one or two dimensions.
    """
    byte_count = prod(shape) * itemsize
    strides = (shape[-1] * itemsize, itemsize)[2 - len(shape) :]
    return UfuncArgument(location, byte_count, byte_count, strides, byte_count if is_result else 0)


PROVIDER = Provider("NumPy's loops in native programs", choose)
