"""Provider of QR decompositions of small matrices by the private LAPACK (?geqrf, ?orgqr).

LAPACK's matrices are column-major. Each matrix is copied transposed to the workspace, where ?geqrf
replaces it by R and Householder reflectors. R is copied from there. Then ?orgqr expands the
reflectors to the columns of Q, which is copied too. Threads share the matrices of a stack.

Tests: tests/targets/cpu/test_native_matrices.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Qr
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.library.blas import BLAS_LETTERS, private_blas
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.object_code import READ_ARGUMENTS, NativeModule, load_native
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

# Rows times columns times reflectors: for more, a library with several threads is faster.
MAX_ELEMENTS = 256**3
_UNBLOCKED, _BLOCK = 128, 32  # LAPACK processes more than 128 reflectors in blocks of 32
_ALIGNMENT = 64  # of the parts of the workspace, in bytes

# gf_qr_BYTES(arguments, lo, hi): an index is one matrix. LAPACK takes scalars by their addresses.
# Arguments, which ``_emit`` fills:
#   0  LAPACK's ?geqrf  1  ?orgqr or ?ungqr  2  rows  3  columns  4  columns of Q  5  reflectors
#   6  elements of LAPACK's workspace  7  matrices  8  Q  9  R
#  10  memory of each matrix: the column-major matrix, scalar factors of reflectors, LAPACK's
#      workspace  11  byte offset of the factors  12  of LAPACK's workspace  13  bytes of it all
_MODULE_TEXT = """
; Copy a matrix, transposed: target[j * rows + i] = source[i * columns + j].
define internal void @transpose(ptr %target, ptr %source, i64 %rows, i64 %columns) {
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i.next, %row.done ]
  %i.more = icmp slt i64 %i, %rows
  br i1 %i.more, label %column, label %end
column:
  %j = phi i64 [ 0, %row ], [ %j.next, %copy ]
  %j.more = icmp slt i64 %j, %columns
  br i1 %j.more, label %copy, label %row.done
copy:
  %from.row = mul i64 %i, %columns
  %from = add i64 %from.row, %j
  %to.row = mul i64 %j, %rows
  %to = add i64 %to.row, %i
  %from.at = getelementptr iBITS, ptr %source, i64 %from
  %to.at = getelementptr iBITS, ptr %target, i64 %to
  %value = load iBITS, ptr %from.at, align 4
  store iBITS %value, ptr %to.at, align 4
  %j.next = add i64 %j, 1
  br label %column
row.done:
  %i.next = add i64 %i, 1
  br label %row
end:
  ret void
}

; The triangle on and above the diagonal of a matrix by columns, zeros below it, by rows.
define internal void @upper(ptr %target, ptr %source, i64 %rows, i64 %columns, i64 %leading) {
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i.next, %row.done ]
  %i.more = icmp slt i64 %i, %rows
  br i1 %i.more, label %column, label %end
column:
  %j = phi i64 [ 0, %row ], [ %j.next, %copy ]
  %j.more = icmp slt i64 %j, %columns
  br i1 %j.more, label %copy, label %row.done
copy:
  %from.column = mul i64 %j, %leading
  %from = add i64 %from.column, %i
  %to.row = mul i64 %i, %columns
  %to = add i64 %to.row, %j
  %from.at = getelementptr iBITS, ptr %source, i64 %from
  %to.at = getelementptr iBITS, ptr %target, i64 %to
  %value = load iBITS, ptr %from.at, align 4
  %is.below = icmp sgt i64 %i, %j
  %upper = select i1 %is.below, iBITS 0, iBITS %value
  store iBITS %upper, ptr %to.at, align 4
  %j.next = add i64 %j, 1
  br label %column
row.done:
  %i.next = add i64 %i, 1
  br label %row
end:
  ret void
}

define void @gf_qr_BYTES(ptr %arguments, i64 %low, i64 %high) {
entry:
  %info = alloca i64
  %geqrf = call ptr @pointer(ptr %arguments, i64 0)
  %orgqr = call ptr @pointer(ptr %arguments, i64 1)
  %rows.at = getelementptr i64, ptr %arguments, i64 2
  %columns.at = getelementptr i64, ptr %arguments, i64 3
  %inner.at = getelementptr i64, ptr %arguments, i64 4
  %reflectors.at = getelementptr i64, ptr %arguments, i64 5
  %length.at = getelementptr i64, ptr %arguments, i64 6
  %rows = load i64, ptr %rows.at
  %columns = load i64, ptr %columns.at
  %inner = load i64, ptr %inner.at
  %matrices = call ptr @pointer(ptr %arguments, i64 7)
  %qs = call ptr @pointer(ptr %arguments, i64 8)
  %rs = call ptr @pointer(ptr %arguments, i64 9)
  %memory = call ptr @pointer(ptr %arguments, i64 10)
  %factors.at = call i64 @integer(ptr %arguments, i64 11)
  %work.at = call i64 @integer(ptr %arguments, i64 12)
  %own.bytes = call i64 @integer(ptr %arguments, i64 13)
  %a.size = mul i64 %rows, %columns
  %q.size = mul i64 %rows, %inner
  %r.size = mul i64 %inner, %columns
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %a.first = mul i64 %k, %a.size
  %a = getelementptr iBITS, ptr %matrices, i64 %a.first
  %q.first = mul i64 %k, %q.size
  %q = getelementptr iBITS, ptr %qs, i64 %q.first
  %r.first = mul i64 %k, %r.size
  %r = getelementptr iBITS, ptr %rs, i64 %r.first
  %own.offset = mul i64 %k, %own.bytes
  %own = getelementptr i8, ptr %memory, i64 %own.offset
  %factors = getelementptr i8, ptr %own, i64 %factors.at
  %work = getelementptr i8, ptr %own, i64 %work.at
  call void @transpose(ptr %own, ptr %a, i64 %rows, i64 %columns)
  call void %geqrf(ptr %rows.at, ptr %columns.at, ptr %own, ptr %rows.at, ptr %factors, ptr %work, ptr %length.at, ptr %info)
  call void @upper(ptr %r, ptr %own, i64 %inner, i64 %columns, i64 %rows)
  call void %orgqr(ptr %rows.at, ptr %inner.at, ptr %reflectors.at, ptr %own, ptr %rows.at, ptr %factors, ptr %work, ptr %length.at, ptr %info)
  call void @transpose(ptr %q, ptr %own, i64 %inner, i64 %rows)
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
"""  # noqa: E501  an instruction is one line


@cache
def _function(itemsize: int) -> int:
    text = _MODULE_TEXT.replace("BYTES", str(itemsize)).replace("BITS", str(8 * itemsize))
    symbol = f"gf_qr_{itemsize}"
    return load_native(NativeModule(READ_ARGUMENTS + text, (symbol,)), kernel_cache()).addresses[
        symbol
    ]


@record
class _MatrixMemory:
    """Layout of the memory for one matrix, which begins with the column-major matrix.

    Attributes:
        work_length: elements of LAPACK's workspace.
        factors_offset, work_offset: byte offsets of the reflectors' scalar factors, and of LAPACK's
            workspace.
        total_bytes: size of it all, a multiple of 64.
    """

    work_length: int
    factors_offset: int
    work_offset: int
    total_bytes: int


def _matrix_memory(decomposition: Qr, inner: int) -> _MatrixMemory:
    """The layout for matrices whose Q has ``inner`` columns."""
    itemsize = np.dtype(decomposition.dtype).itemsize
    reflectors = min(decomposition.rows, decomposition.columns)
    widest = max(decomposition.columns, inner)
    work_length = widest * (_BLOCK if reflectors > _UNBLOCKED else 1)
    factors_offset = _aligned(decomposition.rows * widest * itemsize)
    work_offset = factors_offset + _aligned(reflectors * itemsize)
    total_bytes = work_offset + _aligned(work_length * itemsize)
    return _MatrixMemory(work_length, factors_offset, work_offset, total_bytes)


def _aligned(byte_count: int) -> int:
    return -(-byte_count // _ALIGNMENT) * _ALIGNMENT


def choose(decomposition: Qr, step: CallStep, target: Any) -> NativeCall | None:
    """Decompose each matrix on one thread; None if a matrix is too large for that."""
    del target
    (operand,) = step.operands
    inner = step.eqn.outputs[0].aval.shape[-1]
    reflectors = min(decomposition.rows, decomposition.columns)
    work = decomposition.rows * max(decomposition.columns, inner) * reflectors
    if work > MAX_ELEMENTS or operand.aval.size == 0:
        return None
    if decomposition.dtype.name not in BLAS_LETTERS or private_blas() is None:
        return None
    memory, itemsize = _matrix_memory(decomposition, inner), decomposition.dtype.itemsize
    copy_bytes = 0 if operand.layout.is_contiguous else operand.aval.size * itemsize
    return NativeCall(
        partial(_emit, decomposition, memory),
        decomposition.count * memory.total_bytes + copy_bytes,
        lambda: [Build(_function, (itemsize,))],
    )


def _emit(
    decomposition: Qr,
    memory: _MatrixMemory,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    (a,), (q, r) = step.operands, map(locations.of, step.outputs)
    blas = private_blas()
    assert blas is not None and step.workspace is not None  # checked by choose
    name, itemsize = decomposition.dtype.name, decomposition.dtype.itemsize
    rows, columns, count = decomposition.rows, decomposition.columns, decomposition.count
    inner = step.eqn.outputs[0].aval.shape[-1]
    workspace, source = locations.of(step.workspace), operand_location(a, code, locations)
    if not a.layout.is_contiguous:
        copy = workspace.shifted(count * memory.total_bytes)
        copy_view(a.layout, itemsize, source, copy, services, code)
        source = copy
    block = code.add_argument_block(
        (
            blas.geqrf[name],
            blas.orgqr[name],
            rows,
            columns,
            inner,
            min(rows, columns),
            memory.work_length,
            0,
            0,
            0,
            0,
            memory.factors_offset,
            memory.work_offset,
            memory.total_bytes,
        )
    )
    for slot, location in ((7, source), (8, q), (9, r), (10, workspace)):
        code.set_address(block + slot, location)
    work = count * rows * columns * inner // 4
    code.run(_function(itemsize), block, count, services.chunk(count, work), work)


PROVIDER = Provider("LAPACK in native programs", choose)
