"""Provider of convolutions by packed matrices and the private BLAS.

``convolution_calls`` makes the decisions; this module emits the instructions.

Tests: tests/targets/cpu/test_native_convolutions.py.
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
    ConvolutionCalls,
    plan_convolution,
    workspace_layout,
)
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

DTYPES = ("float32", "float64")


class ConvolutionFunctions(NamedTuple):
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
    planned = _cached_plan(convolution, left, right, out.shape, out.dtype, pool_threads())
    if planned is None:
        return None
    layouts = [workspace_layout(call, out.dtype.itemsize) for call in planned.calls]
    workspace = max((layout.total_bytes for layout in layouts), default=0)
    function = f"gf_convolution_{BLAS_LETTERS[out.dtype.name]}"
    return NativeCall(
        partial(_emit, planned), workspace, lambda: [Build(native_function, (function,))]
    )


# Cached, because calls with equal shapes and strides recur.
_cached_plan = lru_cache(256)(plan_convolution)


def _functions(dtype: np.dtype) -> ConvolutionFunctions:
    blas, letter = private_blas(), BLAS_LETTERS[dtype.name]
    assert blas is not None  # checked by _choose
    names = ("convolution", "sum_partials", "zero")
    addresses = [native_function(f"gf_{name}_{letter}") for name in names]
    return ConvolutionFunctions(*addresses, blas.gemm[dtype.name])


def _emit(
    planned: ConvolutionCalls,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    """Emit a convolution: zero the result if calls skip positions, then each call."""
    aval = step.eqn.outputs[0].aval
    functions = _functions(aval.dtype)
    target = locations.of(step.outputs[0])
    if planned.skips_positions:
        block, byte_count = code.add_argument_block((0,)), nbytes(aval)
        code.set_address(block, target)
        chunk = services.chunk(byte_count, byte_count)
        code.run(functions.zero, block, byte_count, chunk, byte_count)
    operands = [operand_location(operand, code, locations) for operand in step.operands]

    def memory(offset: int) -> Location:
        """A location in the workspace, which all calls share."""
        assert step.workspace is not None  # reserved by the plan
        return locations.of(step.workspace).shifted(offset)

    for call in planned.calls:
        _emit_call(call, operands, target, memory, aval.dtype, functions, services, code)


def _emit_call(
    call: ConvolutionCall,
    operands: Sequence[Location],
    target: Location,
    memory: Callable[[int], Location],
    dtype: np.dtype,
    functions: ConvolutionFunctions,
    services: NativeServices,
    code: Code,
) -> None:
    """Emit one call: copies of operands, the products, and the sum of partial results."""
    arguments = list(call.arguments)
    arguments[0] = functions.gemm
    arguments[SLOT_ARGUMENTS[0] : SLOT_ARGUMENTS[-1] + 1] = services.slots(SLOT_BYTES)
    arguments[TABLE_ARGUMENT] = address(code.constant_array(call.outer_table))
    arguments[STEP_TABLE_ARGUMENT] = address(code.constant_array(call.step_table))
    left, right = operands
    layout = workspace_layout(call, dtype.itemsize)
    if call.lhs_copy is not None:
        left = _emit_copy(call.lhs_copy, left, memory(layout.lhs_copy), dtype, services, code)
    if call.rhs_copy is not None:
        right = _emit_copy(call.rhs_copy, right, memory(layout.rhs_copy), dtype, services, code)
    sums = memory(layout.partial_sums) if call.partial_elements else target
    block = code.add_argument_block(arguments)
    for slot, location in ((LHS_ARGUMENT, left), (RHS_ARGUMENT, right), (OUT_ARGUMENT, sums)):
        code.set_address(block + slot, location, call.arguments[slot])
    code.run(functions.convolution, block, call.extent, call.chunk, call.points)
    if call.partial_elements:
        block = code.add_argument_block([0, 0, *call.sum_arguments])
        code.set_address(block, target, call.out_offset)
        code.set_address(block + 1, sums)
        points = call.partial_elements
        chunk = services.chunk(call.sum_rows, points)
        code.run(functions.sum_partials, block, call.sum_rows, chunk, points)


def _emit_copy(
    view: View,
    start: Location,
    target: Location,
    dtype: np.dtype,
    services: NativeServices,
    code: Code,
) -> Location:
    """Emit a row-major copy of a view of the array at ``start``; returns the copy's location."""
    source = start.shifted(view.offset * dtype.itemsize)
    copy_view(view, dtype.itemsize, source, target, services, code)
    return target


PROVIDER = Provider("our convolution over BLAS, in native programs", _choose)
