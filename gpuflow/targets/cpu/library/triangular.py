"""Provider of triangular solves by the private BLAS (?trsm).

The right-hand sides are copied to the result, which BLAS solves in place. Threads share its
columns, or its rows if the matrix is on the right. The size of a block must depend on shapes only,
so that results do not depend on the number of threads.

Tests: tests/targets/cpu/test_native_triangular.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuflow.base.caches import cache
from gpuflow.compiler.planning.plan import CallStep, nbytes
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Triangular
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.library.blas import BLAS_LETTERS, private_blas
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.object_code import READ_ARGUMENTS, NativeModule, load_native
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import CHUNKS_PER_THREAD, Build, NativeServices

_LEFT, _RIGHT, _UPPER, _LOWER, _GENERAL, _UNIT = 141, 142, 121, 122, 131, 132  # CBLAS's enums
_PLAIN, _TRANSPOSED, _ADJOINT = 111, 112, 113
_MIN_FLOPS = 1 << 20  # with less work, waking a worker costs more than it saves
# Blocks of rows or columns of X: smallest size, largest number, and a divisor of sizes above the
# smallest.
_MIN_BLOCK, _MAX_GRID_DIM, _BLOCK_MULTIPLE = 64, 16, 16

# gf_triangular_TYPE(arguments, lo, hi) solves op(A) X = B for stacks of matrices. An index is one
# block of columns or rows of one X. Arguments are filled by ``_emit``.
# BLAS gets the transposed system, in column-major order. The reason is a bug of OpenBLAS 0.3.31
# (its pull request 5898): on 64-bit ARM, cblas_strsm multiplies instead of solving if the order is
# row-major and A is on the left.
#   0  cblas_TYPEtrsm  1 to 4  side, triangle, transposition, diagonal (CBLAS's enums)
#   5  size of A  6  X  7  A  8  rows of X  9  its columns, contiguous
#  10  blocks of one X  11  rows or columns of a block  12  whether columns are split
#  13  bytes between matrices of A  14  of X  15  between rows or columns that are split
_MODULE_TEXT = """
declare i64 @llvm.smin.i64(i64, i64)
CONSTANTS
define internal i32 @flag(ptr %arguments, i64 %k) alwaysinline {
  %wide = call i64 @integer(ptr %arguments, i64 %k)
  %value = trunc i64 %wide to i32
  ret i32 %value
}

define void @gf_triangular_TYPE(ptr %arguments, i64 %low, i64 %high) {
entry:
  %trsm = call ptr @pointer(ptr %arguments, i64 0)
  %side = call i32 @flag(ptr %arguments, i64 1)
  %triangle = call i32 @flag(ptr %arguments, i64 2)
  %transposed = call i32 @flag(ptr %arguments, i64 3)
  %diagonal = call i32 @flag(ptr %arguments, i64 4)
  %size = call i64 @integer(ptr %arguments, i64 5)
  %x = call ptr @pointer(ptr %arguments, i64 6)
  %a = call ptr @pointer(ptr %arguments, i64 7)
  %rows = call i64 @integer(ptr %arguments, i64 8)
  %columns = call i64 @integer(ptr %arguments, i64 9)
  %blocks = call i64 @integer(ptr %arguments, i64 10)
  %block = call i64 @integer(ptr %arguments, i64 11)
  %split = call i64 @integer(ptr %arguments, i64 12)
  %a.next = call i64 @integer(ptr %arguments, i64 13)
  %x.next = call i64 @integer(ptr %arguments, i64 14)
  %step = call i64 @integer(ptr %arguments, i64 15)
  %by.columns = icmp ne i64 %split, 0
  %total = select i1 %by.columns, i64 %columns, i64 %rows
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %matrix = sdiv i64 %k, %blocks
  %number = srem i64 %k, %blocks
  %first = mul i64 %number, %block
  %rest = sub i64 %total, %first
  %count = call i64 @llvm.smin.i64(i64 %block, i64 %rest)
  %m = select i1 %by.columns, i64 %rows, i64 %count
  %n = select i1 %by.columns, i64 %count, i64 %columns
  %a.offset = mul i64 %matrix, %a.next
  %a.at = getelementptr i8, ptr %a, i64 %a.offset
  %x.offset = mul i64 %matrix, %x.next
  %x.matrix = getelementptr i8, ptr %x, i64 %x.offset
  %x.first = mul i64 %first, %step
  %x.at = getelementptr i8, ptr %x.matrix, i64 %x.first
  call void %trsm(i32 102, i32 %side, i32 %triangle, i32 %transposed, i32 %diagonal, i64 %n, i64 %m, ONE, ptr %a.at, i64 %size, ptr %x.at, i64 %columns)
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
"""  # noqa: E501  an instruction is one line


@cache
def _function(letter: str) -> int:
    scalar = {"s": "float", "d": "double", "c": "float", "z": "double"}[letter]
    one, constants = f"{scalar} 1.0", ""
    if letter in "cz":
        one = "ptr @one"
        constants = f"@one = internal constant [2 x {scalar}] [{scalar} 1.0, {scalar} 0.0]"
    text = _MODULE_TEXT.replace("CONSTANTS", constants).replace("ONE", one).replace("TYPE", letter)
    symbol = f"gf_triangular_{letter}"
    return load_native(NativeModule(READ_ARGUMENTS + text, (symbol,)), kernel_cache()).addresses[
        symbol
    ]


def choose(system: Triangular, step: CallStep, target: Any) -> NativeCall | None:
    """Solve by BLAS; None if BLAS does not support the system, or cannot read A in place."""
    del target
    a, b = step.operands
    if system.conjugate and not system.transpose:
        return None
    if not b.aval.size or system.dtype.name not in BLAS_LETTERS or private_blas() is None:
        return None
    if not a.layout.is_contiguous:
        return None
    letter = BLAS_LETTERS[system.dtype.name]
    return NativeCall(partial(_emit, system), required_code=lambda: [Build(_function, (letter,))])


def _emit(
    system: Triangular, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    a, b = step.operands
    dtype, blas = b.aval.dtype, private_blas()
    assert blas is not None  # checked by choose
    source, target = operand_location(b, code, locations), locations.of(step.outputs[0])
    copy_view(b.layout, dtype.itemsize, source, target, services, code)
    (rows, columns), size, matrices = b.aval.shape[-2:], system.size, system.matrices
    split_size = columns if system.left_side else rows
    multiples = -(-split_size // (_MAX_GRID_DIM * _BLOCK_MULTIPLE))
    block_size = max(_MIN_BLOCK, multiples * _BLOCK_MULTIPLE)
    blocks = -(-split_size // block_size)
    transposition = _PLAIN
    if system.transpose:
        transposition = _ADJOINT if system.conjugate else _TRANSPOSED
    letter = BLAS_LETTERS[dtype.name]
    block = code.add_argument_block(
        (
            blas.trsm[dtype.name],
            _RIGHT if system.left_side else _LEFT,
            _UPPER if system.lower else _LOWER,
            transposition,
            _UNIT if system.unit_diagonal else _GENERAL,
            size,
            0,
            0,
            rows,
            columns,
            blocks,
            block_size,
            int(system.left_side),
            size * size * dtype.itemsize,
            rows * columns * dtype.itemsize,
            (1 if system.left_side else columns) * dtype.itemsize,
        )
    )
    code.set_address(block + 6, target)
    code.set_address(block + 7, operand_location(a, code, locations))
    extent, flops = matrices * blocks, matrices * size * rows * columns
    chunk = extent
    if flops >= _MIN_FLOPS:
        chunk = max(1, extent // (pool_threads() * CHUNKS_PER_THREAD))
    code.run(_function(letter), block, extent, chunk, max(flops // 16, nbytes(b.aval) // 4))


PROVIDER = Provider("BLAS in native programs", choose)
