"""Provider of LU decompositions by the private LAPACK (?getrf).

LAPACK's matrices are column-major. Matrices are copied transposed to the workspace, decomposed
there, and copied to the result. Threads share the matrices of a stack.

Tests: tests/targets/cpu/test_native_lu.py.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core import views
from gpuflow.core.blocks import Lu
from gpuflow.core.views import View
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.library.blas import BLAS_LETTERS, private_blas
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import (
    Locations,
    code_for_copy,
    copy_view,
    operand_location,
)
from gpuflow.targets.cpu.runtime.native.object_code import READ_ARGUMENTS, NativeModule, load_native
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import Build, Buildable, NativeServices

MAX_ROWS = 512  # rows or columns: for larger ones, a library with several threads is faster

_ALIGNMENT = 64  # of the parts of the workspace, in bytes

# gf_lu(arguments, lo, hi): an index is one matrix. LAPACK takes scalars by their addresses, and
# counts from 1. Its pivots may be out of bounds if there are nans, so they are clamped. Arguments,
# which ``_emit`` fills:
#   0  LAPACK's ?getrf  1  rows  2  columns  3  pivots of a matrix  4  bytes of a matrix
#   5  matrices, column-major  6  LAPACK's pivots (int64)  7  pivots (int32)  8  permutations
_MODULE_TEXT = """
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define void @gf_lu(ptr %arguments, i64 %low, i64 %high) {
entry:
  %info = alloca i64
  %getrf = call ptr @pointer(ptr %arguments, i64 0)
  %rows.at = getelementptr i64, ptr %arguments, i64 1
  %columns.at = getelementptr i64, ptr %arguments, i64 2
  %rows = load i64, ptr %rows.at
  %row.last = sub i64 %rows, 1
  %count = call i64 @integer(ptr %arguments, i64 3)
  %bytes = call i64 @integer(ptr %arguments, i64 4)
  %matrices = call ptr @pointer(ptr %arguments, i64 5)
  %own = call ptr @pointer(ptr %arguments, i64 6)
  %pivots = call ptr @pointer(ptr %arguments, i64 7)
  %permutations = call ptr @pointer(ptr %arguments, i64 8)
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %done ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %a.offset = mul i64 %k, %bytes
  %a = getelementptr i8, ptr %matrices, i64 %a.offset
  %pivot.offset = mul i64 %k, %count
  %own.k = getelementptr i64, ptr %own, i64 %pivot.offset
  %pivots.k = getelementptr i32, ptr %pivots, i64 %pivot.offset
  %row.offset = mul i64 %k, %rows
  %order = getelementptr i32, ptr %permutations, i64 %row.offset
  call void %getrf(ptr %rows.at, ptr %columns.at, ptr %a, ptr %rows.at, ptr %own.k, ptr %info)
  br label %fill
fill:
  %f = phi i64 [ 0, %one ], [ %f.next, %filled ]
  %f.more = icmp slt i64 %f, %rows
  br i1 %f.more, label %filled, label %exchange
filled:
  %f.at = getelementptr i32, ptr %order, i64 %f
  %f.value = trunc i64 %f to i32
  store i32 %f.value, ptr %f.at
  %f.next = add i64 %f, 1
  br label %fill
exchange:
  %i = phi i64 [ 0, %fill ], [ %i.next, %exchanged ]
  %i.more = icmp slt i64 %i, %count
  br i1 %i.more, label %exchanged, label %done
exchanged:
  %own.at = getelementptr i64, ptr %own.k, i64 %i
  %from.one = load i64, ptr %own.at
  %j.found = sub i64 %from.one, 1
  %j.low = call i64 @llvm.smax.i64(i64 %j.found, i64 0)
  %j = call i64 @llvm.smin.i64(i64 %j.low, i64 %row.last)
  %pivot = trunc i64 %j to i32
  %pivot.at = getelementptr i32, ptr %pivots.k, i64 %i
  store i32 %pivot, ptr %pivot.at
  %i.at = getelementptr i32, ptr %order, i64 %i
  %j.at = getelementptr i32, ptr %order, i64 %j
  %i.value = load i32, ptr %i.at
  %j.value = load i32, ptr %j.at
  store i32 %j.value, ptr %i.at
  store i32 %i.value, ptr %j.at
  %i.next = add i64 %i, 1
  br label %exchange
done:
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
"""


@cache
def _function() -> int:
    module = NativeModule(READ_ARGUMENTS + _MODULE_TEXT, ("gf_lu",))
    return load_native(module, kernel_cache()).addresses["gf_lu"]


def choose(decomposition: Lu, step: CallStep, target: Any) -> NativeCall | None:
    """Decompose each matrix on one thread; None if a matrix is too large for that."""
    del target
    if (
        max(decomposition.rows, decomposition.columns) > MAX_ROWS
        or 0 in step.operands[0].aval.shape
    ):
        return None
    if decomposition.dtype.name not in BLAS_LETTERS or private_blas() is None:
        return None
    # The workspace: column-major matrices, then LAPACK's pivots (int64).
    matrix_bytes = step.operands[0].aval.size * np.dtype(decomposition.dtype).itemsize
    pivots_offset = -(-matrix_bytes // _ALIGNMENT) * _ALIGNMENT
    pivot_count = decomposition.count * min(decomposition.rows, decomposition.columns)
    layout = step.operands[0].layout
    return NativeCall(
        partial(_emit, pivots_offset),
        pivots_offset + 8 * pivot_count,
        partial(_required_code, layout, decomposition.dtype),
    )


def _required_code(view: View, dtype: np.dtype) -> list[Buildable]:
    column_major = views.contiguous(_transposed(view).shape)
    copies = [code_for_copy(_transposed(copied), dtype.itemsize) for copied in (view, column_major)]
    return [Build(_function), *copies[0], *copies[1]]


def _transposed(view: View) -> View:
    """Matrices with rows and columns exchanged."""
    rank = len(view.shape)
    return views.transpose(view, (*range(rank - 2), rank - 1, rank - 2))


def _emit(
    pivots_offset: int, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    (a,), (factors, pivots, permutation) = step.operands, map(locations.of, step.outputs)
    blas = private_blas()
    assert blas is not None and step.workspace is not None  # checked by choose
    dtype, shape = a.aval.dtype, a.aval.shape
    *batch, rows, columns = shape
    column_major = locations.of(step.workspace)
    source = operand_location(a, code, locations)
    copy_view(_transposed(a.layout), dtype.itemsize, source, column_major, services, code)
    matrices, size = prod(batch), rows * columns
    block = code.add_argument_block(
        (
            blas.getrf[dtype.name],
            rows,
            columns,
            min(rows, columns),
            size * dtype.itemsize,
            0,
            0,
            0,
            0,
        )
    )
    lapack_pivots = column_major.shifted(pivots_offset)
    for slot, location in ((5, column_major), (6, lapack_pivots), (7, pivots), (8, permutation)):
        code.set_address(block + slot, location)
    work = matrices * size * min(rows, columns) // 8
    code.run(_function(), block, matrices, services.chunk(matrices, work), work)
    stored = views.contiguous((*batch, columns, rows))
    copy_view(_transposed(stored), dtype.itemsize, column_major, factors, services, code)


PROVIDER = Provider("LAPACK in native programs", choose)
