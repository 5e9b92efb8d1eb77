"""Calls the inner loops of NumPy's generalized ufuncs (gufuncs) from native programs.

A ufunc object has the address of a C function, its inner loop, for each combination of dtypes.
NumPy's Fourier transforms and decompositions are such loops. Native programs call them as NumPy
does, without Python:

    function(addresses of the operands, sizes, bytes between elements, data)

``find_loop`` returns None if NumPy has no such ufunc, or if its objects have an unknown layout. The
library is then called from Python.

Tests: tests/targets/cpu/test_native_matrices.py, tests/targets/cpu/test_native_fourier.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.runtime.memory import has_known_layout
from gpuflow.targets.cpu.runtime.native.object_code import READ_ARGUMENTS, NativeModule, load_native
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import NativeServices

MAX_OPERANDS, _MAX_SIZES = 4, 5
# Byte offsets in NumPy's PyUFuncObject (ufuncobject.h; pointers have 8 bytes): nin, nout and nargs;
# functions; data; ntypes. ``find_loop`` compares the counts with the ufunc's attributes.
_COUNTS_OFFSET, _LOOPS_OFFSET, _DATA_OFFSET, _TYPE_COUNT_OFFSET = 16, 32, 40, 48

# gf_ufunc_BITS(arguments, lo, hi): an index is a group of batch elements, which is one call of the
# loop. Arguments, which ``call_loop`` fills:
#   0  loop  1  its data  2  operands  3  sizes besides the number of batch elements
#   4  scalars of the first operand that must be finite: rows  5  columns  6  scalars per element
#   7  triangle that is checked: 0 all, 1 lower, 2 upper
#   8  batch elements of an index  9  of all
#  10  for each of 4 operands: address, bytes from an index to the next, bytes that become nan
#  22  sizes (4)  26  bytes between batch elements of operands, then between elements
_OPERAND_TABLE, _CORE_SIZES, _STRIDES = 10, 22, 26
_TEXT = """
declare i64 @llvm.smin.i64(i64, i64)

; Whether scalars of a matrix are finite: nan and infinities have an exponent of ones.
define internal i1 @finite(ptr %arguments, ptr %matrix) {
entry:
  %rows = call i64 @integer(ptr %arguments, i64 4)
  %columns = call i64 @integer(ptr %arguments, i64 5)
  %components = call i64 @integer(ptr %arguments, i64 6)
  %triangle = call i64 @integer(ptr %arguments, i64 7)
  %is.lower = icmp eq i64 %triangle, 1
  %is.upper = icmp eq i64 %triangle, 2
  br label %next.row
next.row:
  %row = phi i64 [ 0, %entry ], [ %row.next, %row.done ]
  %found = phi iBITS [ 0, %entry ], [ %found.row, %row.done ]
  %more.rows = icmp slt i64 %row, %rows
  br i1 %more.rows, label %start.row, label %end
start.row:
  %diagonal = mul i64 %row, %components
  %behind = add i64 %diagonal, %components
  %first = select i1 %is.upper, i64 %diagonal, i64 0
  %last = select i1 %is.lower, i64 %behind, i64 %columns
  %row.offset = mul i64 %row, %columns
  br label %look
look:
  %k = phi i64 [ %first, %start.row ], [ %k.next, %one ]
  %found.row = phi iBITS [ %found, %start.row ], [ %found.next, %one ]
  %more = icmp slt i64 %k, %last
  br i1 %more, label %one, label %row.done
one:
  %offset = add i64 %row.offset, %k
  %at = getelementptr iBITS, ptr %matrix, i64 %offset
  %value = load iBITS, ptr %at
  %exponent = and iBITS %value, EXPONENT
  %is.bad = icmp eq iBITS %exponent, EXPONENT
  %bad = zext i1 %is.bad to iBITS
  %found.next = or iBITS %found.row, %bad
  %k.next = add i64 %k, 1
  br label %look
row.done:
  %row.next = add i64 %row, 1
  br label %next.row
end:
  %fine = icmp eq iBITS %found, 0
  ret i1 %fine
}

define internal void @make_nan(ptr %at, i64 %bytes) {
entry:
  %end.at = getelementptr i8, ptr %at, i64 %bytes
  br label %look
look:
  %here = phi ptr [ %at, %entry ], [ %next, %one ]
  %more = icmp ult ptr %here, %end.at
  br i1 %more, label %one, label %end
one:
  store iBITS NAN, ptr %here
  %next = getelementptr iBITS, ptr %here, i64 1
  br label %look
end:
  ret void
}

define void @gf_ufunc_BITS(ptr %arguments, i64 %low, i64 %high) {
entry:
  %addresses = alloca [OPERANDS x ptr]
  %sizes = alloca [SIZES x i64]
  %loop = call ptr @pointer(ptr %arguments, i64 0)
  %data = call ptr @pointer(ptr %arguments, i64 1)
  %count = call i64 @integer(ptr %arguments, i64 2)
  %inner = call i64 @integer(ptr %arguments, i64 3)
  %checked = call i64 @integer(ptr %arguments, i64 4)
  %group = call i64 @integer(ptr %arguments, i64 8)
  %total = call i64 @integer(ptr %arguments, i64 9)
  %table = getelementptr i64, ptr %arguments, i64 OPERANDS_AT
  %inner.at = getelementptr i64, ptr %arguments, i64 SIZES_AT
  %steps = getelementptr i64, ptr %arguments, i64 STEPS_AT
  %own.inner = getelementptr i64, ptr %sizes, i64 1
  %inner.bytes = mul i64 %inner, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %own.inner, ptr %inner.at, i64 %inner.bytes, i1 false)
  %is.checked = icmp ne i64 %checked, 0
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %done ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %before = mul i64 %k, %group
  %left = sub i64 %total, %before
  %here = call i64 @llvm.smin.i64(i64 %left, i64 %group)
  store i64 %here, ptr %sizes
  br label %operand
operand:
  %o = phi i64 [ 0, %one ], [ %o.next, %set ]
  %o.more = icmp slt i64 %o, %count
  br i1 %o.more, label %set, label %ready
set:
  %row = mul i64 %o, 3
  %base = call ptr @pointer(ptr %table, i64 %row)
  %step.at = add i64 %row, 1
  %step = call i64 @integer(ptr %table, i64 %step.at)
  %offset = mul i64 %k, %step
  %address = getelementptr i8, ptr %base, i64 %offset
  %into = getelementptr ptr, ptr %addresses, i64 %o
  store ptr %address, ptr %into
  %o.next = add i64 %o, 1
  br label %operand
ready:
  br i1 %is.checked, label %check, label %call
check:
  %matrix = load ptr, ptr %addresses
  %fine = call i1 @finite(ptr %arguments, ptr %matrix)
  br i1 %fine, label %call, label %next.nan
call:
  call void %loop(ptr %addresses, ptr %sizes, ptr %steps, ptr %data)
  br label %done
next.nan:
  %n = phi i64 [ 0, %check ], [ %n.next, %nan ]
  %n.more = icmp slt i64 %n, %count
  br i1 %n.more, label %nan, label %done
nan:
  %n.row = mul i64 %n, 3
  %bytes.at = add i64 %n.row, 2
  %bytes = call i64 @integer(ptr %table, i64 %bytes.at)
  %out.at = getelementptr ptr, ptr %addresses, i64 %n
  %out = load ptr, ptr %out.at
  call void @make_nan(ptr %out, i64 %bytes)
  %n.next = add i64 %n, 1
  br label %next.nan
done:
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
# By bytes of a scalar: its bits, the mask of its exponent, and a nan as an integer.
_BITS = {4: (32, 0x7F800000, 0x7FC00000), 8: (64, 0x7FF0000000000000, 0x7FF8000000000000)}


@cache
def loop_function(scalar_bytes: int) -> int:
    """The address of the function that calls loops, for a width of scalars."""
    bits, exponent, nan = _BITS[scalar_bytes]
    values = {
        "OPERANDS_AT": _OPERAND_TABLE,
        "SIZES_AT": _CORE_SIZES,
        "STEPS_AT": _STRIDES,
        "OPERANDS": MAX_OPERANDS,
        "SIZES": _MAX_SIZES,
        "BITS": bits,
        "EXPONENT": exponent,
        "NAN": nan,
    }
    text = READ_ARGUMENTS + _TEXT
    for name, value in values.items():
        text = text.replace(name, str(value))
    symbol = f"gf_ufunc_{bits}"
    return load_native(NativeModule(text, (symbol,)), kernel_cache()).addresses[symbol]


@record
class UfuncLoop:
    """The inner loop of a ufunc for one signature: addresses of the C function and its data."""

    function: int
    data: int


@cache
def find_loop(ufunc: Any, types: str) -> UfuncLoop | None:
    """Find the inner loop of a ufunc; None if there is none, or if its object looks unfamiliar.

    Args:
        ufunc: the attribute of NumPy's module that should be the ufunc, or None.
        types: the signature as in ``ufunc.types``, such as "ff->F".
    """
    if not isinstance(ufunc, np.ufunc) or types not in ufunc.types or not has_known_layout():
        return None
    at = id(ufunc)
    counts = tuple((ctypes.c_int * 3).from_address(at + _COUNTS_OFFSET))
    type_count = ctypes.c_int.from_address(at + _TYPE_COUNT_OFFSET).value
    if counts != (ufunc.nin, ufunc.nout, ufunc.nargs) or type_count != len(ufunc.types):
        return None
    index = ufunc.types.index(types)
    tables = (ctypes.c_size_t * 2).from_address(at + _LOOPS_OFFSET)
    function, data = (
        ctypes.c_size_t.from_address(table + 8 * index).value if table else 0 for table in tables
    )
    return UfuncLoop(function, data) if function else None


@record
class UfuncArgument:
    """An operand or result of a loop, aligned to its dtype. Strides are in bytes.

    Attributes:
        location: location of its first element.
        index_stride: from an index of the launch to the next.
        batch_stride: from a batch element of an index to the next.
        strides: from an element to the next, along each core dimension.
        nan_bytes: for a result, the contiguous bytes that become nan if the first operand is not
            finite.
    """

    location: Location
    index_stride: int
    batch_stride: int
    strides: tuple[int, ...] = ()
    nan_bytes: int = 0


@record
class FiniteCheck:
    """The check of the first operand: if a scalar is not finite, all results become nan.

    The operand must be a contiguous matrix.

    Attributes:
        rows, columns: shape of the matrix.
        components: scalars of an element: 2 if it is complex, else 1.
        triangle: the elements that are checked: "all", "lower" or "upper".
    """

    rows: int
    columns: int
    components: int
    triangle: str = "all"


class Batch(NamedTuple):
    """Numbers of batch elements: of one index of the launch, and of all (both at least 1)."""

    per_index: int
    total: int


def call_loop(
    loop: UfuncLoop,
    scalar_bytes: int,
    arguments: Sequence[UfuncArgument],
    sizes: Sequence[int],
    batch: Batch,
    check: FiniteCheck | None,
    work: int,
    shares_batch: bool,
    services: NativeServices,
    code: Code,
) -> None:
    """Emit the calls of a loop for a batch.

    Args:
        loop: the loop.
        scalar_bytes: bytes of a real scalar, 4 or 8.
        arguments: operands, then results; at most MAX_OPERANDS.
        sizes: sizes of the core dimensions, at most ``_MAX_SIZES - 1``.
        batch: how batch elements are divided into indices.
        check: the check of the first operand; only if an index has one batch element.
        work: approximate number of operations of the whole batch.
        shares_batch: whether threads share indices.
        services: services of the program.
        code: the program.
    """
    check_slots = [0, 0, 1, 0]
    if check is not None:
        triangle = ("all", "lower", "upper").index(check.triangle)
        check_slots = [check.rows, check.columns * check.components, check.components, triangle]
    table: list[int] = []
    for argument in arguments:
        table += (0, argument.index_stride, argument.nan_bytes)
    table += [0] * (3 * MAX_OPERANDS - len(table))
    core_sizes = [*sizes, *[0] * (_MAX_SIZES - 1 - len(sizes))]
    strides = [argument.batch_stride for argument in arguments]
    strides += [stride for argument in arguments for stride in argument.strides]
    block = code.add_argument_block(
        [
            loop.function,
            loop.data,
            len(arguments),
            len(sizes),
            *check_slots,
            *batch,
            *table,
            *core_sizes,
            *strides,
        ]
    )
    for k, argument in enumerate(arguments):
        code.set_address(block + _OPERAND_TABLE + 3 * k, argument.location)
    extent = -(-batch.total // batch.per_index)
    chunk = services.chunk(extent, work) if shares_batch else extent
    code.run(loop_function(scalar_bytes), block, extent, chunk, work)
