"""Runs the kernels of real plans: each on the CPU, and its PTX on copies of the same memory.

    run_plan(jitted, args)    every kernel of the plan, step by step, with the plan's own words

Results of the CPU go on to the next step, so that each kernel is compared on equal operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cpu_harness import shared_cache
from cuda_harness import PROCESSORS, aligned
from ptx_launch import launch_ptx

import gpuflow as gf
from gpuflow.base import tree
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import (
    CallStep,
    KernelStep,
    Plan,
    Step,
    StepOperand,
    nbytes,
    reads_of,
    writes_of,
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.kir.nodes import Kernel, Mode, arguments
from gpuflow.kir.verify import verify
from gpuflow.targets.cpu.runtime.kernels import compile_cpu
from gpuflow.targets.cuda.codegen.cached_builds import CudaKernel, compile_cuda
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS
from gpuflow.targets.cuda.codegen.schedules.index_bits import with_narrowest_indices
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    full_blocks,
    launch_shape,
    may_launch,
    scratch_bytes,
)

Memory = dict[int, np.ndarray]  # by number of buffer
UNWRITTEN = 0x5A  # fills new memory: an element that only one side writes will differ


@dataclass(frozen=True)
class Ran:
    """One kernel step: what was built, and which variant each of its launches took."""

    step: KernelStep
    compiled: CudaKernel


def plan_of(function: Callable[..., Any], args: Sequence[Any], donate: Sequence[int] = ()) -> Plan:
    """The plan of a jitted function, with its hidden operands; donation by argument."""
    return _plan_and_values(function, args, donate)[0]


def _plan_and_values(
    function: Callable[..., Any], args: Sequence[Any], donate: Sequence[int]
) -> tuple[Plan, list[Any]]:
    lowered = gf.jit(function).lower(*args)
    hidden = lowered._entry.consts  # closed-over arrays are the program's first operands
    flags = [False] * len(hidden)
    flags += [k in donate for k, arg in enumerate(args) for _ in tree.leaves(arg)]
    plan, values = compile_plan(lowered.jaxpr, [k for k, flag in enumerate(flags) if flag])
    return plan, [*hidden, *tree.leaves(tuple(args)), *values]


def run_plan(
    function: Callable[..., Any],
    args: Sequence[Any],
    donate: Sequence[int] = (),
    architecture: tuple[int, int] = (9, 0),
) -> list[Ran]:
    """Run a jitted function's plan; each kernel's PTX must compute what the CPU's kernel does."""
    plan, values = _plan_and_values(function, args, donate)
    memory: Memory = {}
    for buffer, value in enumerate(values):
        array = np.asarray(value.data if isinstance(value, gf.Array) else value)
        aval = plan.jaxpr.invars[buffer].aval
        assert aval_of(value).shape == aval.shape
        memory[buffer] = aligned(array.astype(storage_dtype(aval.dtype))).reshape(array.shape)
    assert len(memory) == len(plan.jaxpr.invars)
    for out, buffer in plan.in_place.items():
        memory[out] = memory[buffer]
    ran = []
    for step in plan.steps:
        _allocate(plan, step, memory)
        if isinstance(step, KernelStep):
            ran += _kernel_step(step, memory, architecture)
        elif isinstance(step, CallStep):
            _call_step(step, memory)
        else:
            np.copyto(memory[step.target], _view(step.source, memory))
    return ran


def _allocate(plan: Plan, step: Step, memory: Memory) -> None:
    for buffer in writes_of(step):
        if buffer not in memory:
            aval = plan.aval(buffer)
            fresh = aligned(np.full(nbytes(aval), UNWRITTEN, np.uint8))
            memory[buffer] = fresh.view(storage_dtype(aval.dtype)).reshape(aval.shape)


# --- kernels -------------------------------------------------------------------------------


def _kernel_step(step: KernelStep, memory: Memory, architecture: tuple[int, int]) -> list[Ran]:
    verify(step.kernel)
    if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
        return []
    touched = dict.fromkeys(
        buffer for call in step.calls for buffer in call.buffers if buffer != NO_BUFFER
    )
    narrow = with_narrowest_indices(step.kernel, step.calls)
    assert narrow.index_bits == 32, "sizes of tests are small"
    wide, device = (
        {buffer: aligned(memory[buffer]).reshape(memory[buffer].shape) for buffer in touched}
        for _ in range(2)
    )
    compiled = _run_on_cuda(step, step.kernel, wide, architecture)
    with_32_bits = _run_on_cuda(step, narrow, device, architecture)
    assert compiled.source.launch == with_32_bits.source.launch
    _run_on_cpu(step, memory)
    for buffer in touched:
        assert wide[buffer].tobytes() == device[buffer].tobytes(), step.kernel.name
        assert_same(device[buffer], memory[buffer], step.kernel.name)
    assert set(reads_of(step)) <= set(memory)
    return [Ran(step, compiled)]


def _run_on_cpu(step: KernelStep, memory: Memory) -> None:
    for call in step.calls:
        loaded = compile_cpu(call.kernel, shared_cache())
        loaded.call(numbers_of(call, memory).ctypes.data, 0, call.extent)


def numbers_of(call: KernelCall, memory: Memory) -> np.ndarray:
    """The argument block of a call: every word a number."""
    numbers = list(call.slots)
    for k, buffer in enumerate(call.buffers):
        if buffer != NO_BUFFER:
            numbers[k] += memory[buffer].ctypes.data
    return np.array(numbers or [0], np.int64)


def _segment_table(blocks: Sequence[np.ndarray], extents: Sequence[int]) -> np.ndarray:
    table, start = [len(blocks)], 0
    for block, extent in zip(blocks, extents, strict=True):
        table += [start, block.ctypes.data]
        start += extent
    return np.array([*table, start], np.int64)


def _run_on_cuda(
    step: KernelStep, kernel: Kernel, device: Memory, architecture: tuple[int, int]
) -> CudaKernel:
    """Run the step with one of the widths of its kernel."""
    blocks = [numbers_of(call, device) for call in step.calls]
    if kernel.segmented:
        return _run_segments(step, kernel, blocks, device, architecture)
    (numbers,) = blocks
    named = _by_kind(kernel, numbers)
    compiled = compile_cuda(kernel, shared_cache(), architecture)
    if not may_launch(
        compiled.source.launch, kernel, named["pointer"], named["extent"], named["stride"]
    ):
        compiled = compile_cuda(kernel, shared_cache(), architecture, vectorize=False)
    grid, block = launch_shape(compiled.source.launch, named["extent"], PROCESSORS)
    if grid[0] == 0:
        return compiled
    listed = list(_parameters(kernel, numbers))
    counter = np.zeros(1, np.uint32)
    if compiled.source.launch.strategy == "full":
        listed += [np.zeros(scratch_bytes(compiled.source.launch, grid) // 8, np.uint64), counter]
    launch_ptx(_text(compiled), grid, block, listed, _writable(step, device))
    assert counter[0] == 0, "the counter must be ready for the next launch"
    return compiled


def _run_segments(
    step: KernelStep,
    kernel: Kernel,
    blocks: Sequence[np.ndarray],
    device: Memory,
    architecture: tuple[int, int],
) -> CudaKernel:
    compiled = compile_cuda(kernel, shared_cache(), architecture)
    launch = compiled.source.launch
    is_full = launch.strategy == "full"
    lengths = [
        full_blocks(call.points, PROCESSORS) if is_full else call.extent for call in step.calls
    ]
    table = _segment_table(blocks, lengths)
    grid, block = launch_shape(launch, {}, PROCESSORS, sum(lengths))
    memory, arguments = [*blocks, *_writable(step, device)], [_locked(table)]
    counters = np.zeros(len(blocks), np.uint32)
    if is_full:
        scratch = np.zeros(scratch_bytes(launch, grid) // 8, np.uint64)
        arguments += [scratch, np.int64(counters.ctypes.data)]
        memory.append(counters)
    launch_ptx(_text(compiled), grid, block, arguments, memory)
    assert not counters.any(), "the counters must be ready for the next launch"
    return compiled


def _text(compiled: CudaKernel) -> str:
    return compiled.built.ptx


def _locked(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _writable(step: KernelStep, device: Memory) -> list[np.ndarray]:
    """All memory that the kernel may touch; what no operand writes is locked."""
    written = set()
    for call in step.calls:
        pairs = zip(step.kernel.operands, call.buffers, strict=True)
        written |= {buffer for operand, buffer in pairs if operand.mode is not Mode.IN}
    return [array if buffer in written else _locked(array) for buffer, array in device.items()]


def _by_kind(kernel: Kernel, numbers: np.ndarray) -> Mapping[str, dict[Any, int]]:
    """Addresses by operand, extents by axis and strides by both, from the argument block."""
    named: dict[str, dict[Any, int]] = {"pointer": {}, "extent": {}, "stride": {}}
    for argument, number in zip(arguments(kernel), numbers.tolist(), strict=False):
        if argument.kind == "pointer":
            named["pointer"][argument.operand] = number
        elif argument.kind == "extent":
            named["extent"][argument.axis] = number
        elif argument.kind == "stride":
            named["stride"][argument.operand, argument.axis] = number
    return named


def _parameters(kernel: Kernel, numbers: np.ndarray) -> Any:
    """The kernel's parameters: a scalar is the value that the low bytes of its word hold."""
    dtypes = {operand.name: operand.dtype for operand in kernel.operands}
    for place, argument in enumerate(arguments(kernel)):
        word = numbers[place : place + 1]
        if argument.kind == "scalar":
            dtype = dtypes[argument.operand]
            yield word.view(STORAGE_BITS.get(dtype, dtype))[0]
        else:
            yield word[0]


# --- other steps ---------------------------------------------------------------------------


def _view(operand: StepOperand, memory: Memory) -> np.ndarray:
    if operand.buffer == NO_BUFFER:
        return np.asarray(operand.value, storage_dtype(operand.aval.dtype))
    buffer, view = memory[operand.buffer], operand.layout
    if 0 in view.shape:
        return np.empty(view.shape, buffer.dtype)
    strides = tuple(stride * buffer.itemsize for stride in view.strides)
    offset = view.offset * buffer.itemsize
    return np.ndarray(view.shape, buffer.dtype, buffer, offset, strides)


def _call_step(step: CallStep, memory: Memory) -> None:
    primitive = step.eqn.primitive
    operands = [np.ascontiguousarray(_view(operand, memory)) for operand in step.operands]
    results = primitive.impl(np, *operands, **step.eqn.params)
    results = results if primitive.multiple_results else [results]
    for buffer, result in zip(step.outputs, results, strict=True):
        np.copyto(memory[buffer], result, casting="unsafe")


# Both targets compute in float32 and round once: results may differ in the last place that the
# functions and the order of a sum leave open.
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def assert_same(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Integers and bools equal; floats close, relative to the largest of the array."""
    tolerance = TOLERANCES.get(found.dtype.name)
    if tolerance is None:
        np.testing.assert_array_equal(found, expected, err_msg=name)
        return
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = tolerance / 10 * finite.max(initial=0.0)
    np.testing.assert_allclose(found, expected, tolerance, scale, err_msg=name)
