"""Convolutions as instructions of native programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuflow.compiler.planning.plan import CallStep, nbytes
from gpuflow.core.views import View
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.native.copies import Places, copy_view, operand_place
from gpuflow.targets.cpu.native.program_writer import Code, Place
from gpuflow.targets.cpu.native.services import ConvolutionFunctions, NativeServices
from gpuflow.targets.cpu.providers.convolutions import (
    LHS_WORD,
    OUT_WORD,
    RHS_WORD,
    SLOT_BYTES,
    SLOT_WORDS,
    STEP_TABLE_WORD,
    TABLE_WORD,
    ConvolutionCall,
    workspace_places,
)


def emit_convolution(
    step: CallStep, convolution: tuple[list[ConvolutionCall], bool], services: NativeServices,
    code: Code, places: Places,
) -> None:  # fmt: skip
    aval, (calls, has_zeros) = step.eqn.outputs[0].aval, convolution
    functions = services.convolution_functions(aval.dtype)
    target = places.place(step.outputs[0])
    if has_zeros:
        block, count = code.block((0,)), nbytes(aval)
        code.fill(block, target)
        code.run(functions.zero, block, count, services.chunk(count, count), count)
    operands = [operand_place(operand, code, places) for operand in step.operands]

    def memory(offset: int) -> Place:
        """A place in the workspace, which the calls use in turn."""
        assert step.workspace is not None  # the plan has asked what the calls need
        register, start = places.place(step.workspace)
        return register, start + offset

    for call in calls:
        _convolution_call(call, operands, target, memory, aval.dtype, functions, services, code)


def _convolution_call(
    call: ConvolutionCall, operands: Sequence[Place], target: Place,
    memory: Callable[[int], Place], dtype: np.dtype, functions: ConvolutionFunctions,
    services: NativeServices, code: Code,
) -> None:  # fmt: skip
    words = list(call.words)
    words[0] = functions.gemm
    words[SLOT_WORDS[0] : SLOT_WORDS[-1] + 1] = services.slots(SLOT_BYTES)
    words[TABLE_WORD] = address(code.array(call.table))
    words[STEP_TABLE_WORD] = address(code.array(call.step_table))
    left, right = operands
    offsets, _ = workspace_places(call, dtype.itemsize)
    if call.copied_lhs is not None:
        left = _copied(call.copied_lhs, left, memory(offsets[0]), dtype, services, code)
    if call.copied is not None:
        right = _copied(call.copied, right, memory(offsets[1]), dtype, services, code)
    sums = memory(offsets[2]) if call.partial else target
    block = code.block(words)
    for k, place in ((LHS_WORD, left), (RHS_WORD, right), (OUT_WORD, sums)):
        code.fill(block + k, place, call.words[k])
    code.run(functions.convolution, block, call.extent, call.chunk, call.points)
    if call.partial:
        block = code.block([0, 0, *call.summed])
        code.fill(block, target, call.offset)
        code.fill(block + 1, sums)
        chunk = services.chunk(call.rows, call.partial)
        code.run(functions.sum_parts, block, call.rows, chunk, call.partial)


def _copied(
    view: View, start: Place, target: Place, dtype: np.dtype, services: NativeServices, code: Code
) -> Place:
    """The place of a row-major copy of a view of what begins at ``start``."""
    register, offset = start
    source = register, offset + view.offset * dtype.itemsize
    copy_view(view, dtype.itemsize, source, target, services, code)
    return target
