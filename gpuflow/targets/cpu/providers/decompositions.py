"""Which decompositions of matrices our own LAPACK makes, and the memory that it needs."""

from __future__ import annotations

from math import prod

import numpy as np

from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.lowering import Library
from gpuflow.targets.cpu.providers.blas import BLAS_LETTERS, private_blas

LARGEST = 512  # rows or columns: beyond, several threads of a library are faster than one


def is_native_lu(step: CallStep) -> bool:
    """Whether a step is an LU decomposition that one thread makes for each matrix."""
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library) or not rule.lu:
        return False
    (a,) = step.operands
    known = a.aval.dtype.name in BLAS_LETTERS and private_blas() is not None
    return known and a.aval.size > 0 and max(a.aval.shape[-2:]) <= LARGEST


def lu_bytes(step: CallStep) -> tuple[int, int]:
    """The bytes of the matrices by columns, and with LAPACK's pivots behind them."""
    aval = step.operands[0].aval
    count = aval.size * np.dtype(aval.dtype).itemsize
    at = -(-count // 64) * 64
    return at, at + prod(aval.shape[:-2]) * min(aval.shape[-2:]) * 8
