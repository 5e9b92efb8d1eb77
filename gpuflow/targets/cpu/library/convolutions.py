"""Provider of convolutions by packed matrices and the private BLAS.

``convolution_calls`` makes the decisions; this module emits the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.compiler.planning.plan import CallStep, nbytes
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.library.blas import BLAS_LETTERS, private_blas
from gpuflow.targets.cpu.library.convolution_calls import (
    LHS_ARGUMENT,
    OUT_ARGUMENT,
    RHS_ARGUMENT,
    SLOT_ARGUMENTS,
    SLOT_BYTES,
    STEP_TABLE_ARGUMENT,
    TABLE_ARGUMENT,
    ConvolutionCall,
    convolution_call,
    workspace_offsets,
)
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

DTYPES = ("float32", "float64")


class Functions(NamedTuple):
    """Addresses of the functions that a convolution calls."""

    convolution: int
    sum_partials: int
    zero: int
    gemm: int


def _choose(convolution: Convolution, step: CallStep, target: Any) -> NativeCall | None:
    del target
    out = step.eqn.outputs[0].aval
    if out.dtype.name not in DTYPES or private_blas() is None:
        return None
    if step.operands[0].aval.dtype != out.dtype:
        return None
    left, right = (operand.layout._replace(offset=0) for operand in step.operands)
    calls = _calls(convolution, left, right, out.shape, out.dtype, pool_threads())
    if calls is None:
        return None
    size = out.dtype.itemsize
    count = max((workspace_offsets(call, size)[1] for call in calls[0]), default=0)
    function = f"gf_convolution_{BLAS_LETTERS[out.dtype.name]}"
    return NativeCall(partial(_emit, calls), count, lambda: [Build(native_function, (function,))])


# Cached, because calls with equal shapes and strides recur.
_calls = lru_cache(256)(convolution_call)


def _functions(dtype: np.dtype, services: NativeServices) -> Functions:
    blas, letter = private_blas(), BLAS_LETTERS[dtype.name]
    assert blas is not None  # checked by _choose
    names = ("convolution", "sum_partials", "zero")
    addresses = [native_function(f"gf_{name}_{letter}") for name in names]
    return Functions(*addresses, blas.gemm[dtype.name])


def _emit(
    convolution: tuple[list[ConvolutionCall], bool],
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    """Emit a convolution: zero the result if calls skip positions, then each call."""
    aval, (calls, has_zeros) = step.eqn.outputs[0].aval, convolution
    functions = _functions(aval.dtype, services)
    target = locations.of(step.outputs[0])
    if has_zeros:
        block, count = code.block((0,)), nbytes(aval)
        code.fill(block, target)
        code.run(functions.zero, block, count, services.chunk(count, count), count)
    operands = [operand_location(operand, code, locations) for operand in step.operands]

    def memory(offset: int) -> Location:
        """A location in the workspace, which all calls share."""
        assert step.workspace is not None  # reserved by the plan
        register, start = locations.of(step.workspace)
        return register, start + offset

    for call in calls:
        _convolution_call(call, operands, target, memory, aval.dtype, functions, services, code)


def _convolution_call(
    call: ConvolutionCall,
    operands: Sequence[Location],
    target: Location,
    memory: Callable[[int], Location],
    dtype: np.dtype,
    functions: Functions,
    services: NativeServices,
    code: Code,
) -> None:
    """Emit one call: copies of operands, the products, and the sum of partial results."""
    arguments = list(call.arguments)
    arguments[0] = functions.gemm
    arguments[SLOT_ARGUMENTS[0] : SLOT_ARGUMENTS[-1] + 1] = services.slots(SLOT_BYTES)
    arguments[TABLE_ARGUMENT] = address(code.array(call.table))
    arguments[STEP_TABLE_ARGUMENT] = address(code.array(call.step_table))
    left, right = operands
    offsets, _ = workspace_offsets(call, dtype.itemsize)
    if call.copied_lhs is not None:
        left = _copied(call.copied_lhs, left, memory(offsets[0]), dtype, services, code)
    if call.copied is not None:
        right = _copied(call.copied, right, memory(offsets[1]), dtype, services, code)
    sums = memory(offsets[2]) if call.partial else target
    block = code.block(arguments)
    for k, location in ((LHS_ARGUMENT, left), (RHS_ARGUMENT, right), (OUT_ARGUMENT, sums)):
        code.fill(block + k, location, call.arguments[k])
    code.run(functions.convolution, block, call.extent, call.chunk, call.points)
    if call.partial:
        block = code.block([0, 0, *call.summed])
        code.fill(block, target, call.offset)
        code.fill(block + 1, sums)
        chunk = services.chunk(call.rows, call.partial)
        code.run(functions.sum_partials, block, call.rows, chunk, call.partial)


def _copied(
    view: View,
    start: Location,
    target: Location,
    dtype: np.dtype,
    services: NativeServices,
    code: Code,
) -> Location:
    """Emit a row-major copy of a view of the array at ``start``; returns the copy's location."""
    register, offset = start
    source = register, offset + view.offset * dtype.itemsize
    copy_view(view, dtype.itemsize, source, target, services, code)
    return target


PROVIDER = Provider("our convolution over BLAS, in native programs", _choose)
