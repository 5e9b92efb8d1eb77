"""Helpers of the CUDA tests: build a kernel, and run its PTX in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from cpu_harness import (
    ANY,
    IN,
    INOUT,
    OUT,
    UNIT,
    ZERO,
    assert_close,
    make_kernel,
    random_array,
)
from cuda_tools import requires_cuda_tools
from ptx_launch import launch_ptx

from gpuflow.kir.interpret import run, storage_dtype
from gpuflow.kir.nodes import Kernel, Mode, Operand, Role, arguments
from gpuflow.kir.verify import verify
from gpuflow.targets.cuda.codegen.build import CudaObject, build_cuda
from gpuflow.targets.cuda.codegen.printing.printers import CudaSource, print_cuda
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    launch_shape,
    may_launch,
    scratch_bytes,
)

__all__ = [
    "ANY", "ARCHITECTURES", "IN", "INOUT", "OUT", "PARALLEL", "REDUCE", "ROW", "UNIT", "VECTOR",
    "ZERO", "argument_list", "assert_close", "build", "check", "make", "random_array",
    "requires_cuda_tools", "run_cuda",
]  # fmt: skip

PARALLEL, ROW, REDUCE, VECTOR = Role.PARALLEL, Role.ROW, Role.REDUCE, Role.VECTOR
ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]
PROCESSORS = 2  # of the device that the tests imagine: few, so that grids stay small


def make(name: str, axes: Mapping[str, Any], operands: Sequence[Operand], body: Any, **more: Any):
    """A verified kernel; arguments as for ``cpu_harness.make_kernel``."""
    kernel = make_kernel(name, axes, operands, body, **more)
    verify(kernel)
    return kernel


@cache
def build(
    kernel: Kernel, vectorize: bool, architecture: tuple[int, int]
) -> tuple[CudaSource, CudaObject]:
    """Print and build a kernel, once per test run."""
    source = print_cuda(kernel, vectorize)
    built = build_cuda(
        source.text, source.entry, source.signature, architecture, source.launch.max_threads
    )
    return source, built


def stored(array: np.ndarray) -> np.ndarray:
    """An array as the unsigned integers that a pointer of the kernel points to."""
    bits = STORAGE_BITS.get(array.dtype.name)
    return array if bits is None else array.view(bits)


def argument_list(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int],
    strides: Mapping[tuple[str, str], int],
) -> list[Any]:
    """The arguments of ``launch_ptx`` for arrays given as in ``kir.interpret.run``."""
    found: list[Any] = []
    operands = {operand.name: operand for operand in kernel.operands}
    for argument in arguments(kernel):
        if argument.kind == "extent":
            found.append(extents[argument.axis])
        elif argument.kind == "stride":
            found.append(strides[argument.operand, argument.axis])
        elif argument.kind == "pointer":
            array, first = _placed(arrays[argument.operand])
            array = stored(array)
            if operands[argument.operand].mode is Mode.IN:
                array = array.view()
                array.flags.writeable = False
            found.append((array, first))
        else:
            found.append(_scalar(operands[argument.operand], arrays[argument.operand]))
    return found


def _placed(given: Any) -> tuple[np.ndarray, int]:
    return given if isinstance(given, tuple) else (given, 0)


def _scalar(operand: Operand, given: Any) -> Any:
    if operand.dtype not in STORAGE_BITS:
        return given
    return stored(np.array([given]).astype(storage_dtype(operand.dtype)))[0]


def run_cuda(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int] | None = None,
    strides: Mapping[tuple[str, str], int] | None = None,
    vectorize: bool = True,
    architecture: tuple[int, int] = (9, 0),
    block: tuple[int, int] | None = None,
) -> None:
    """Run the kernel's PTX; a block shape that the launch would not choose may be given."""
    extents, strides = extents or {}, strides or {}
    source, built = build(kernel, vectorize, architecture)
    listed = argument_list(kernel, arrays, extents, strides)
    pointers = {k: _placed(v) for k, v in arrays.items() if isinstance(v, np.ndarray | tuple)}
    addresses = {n: a.ctypes.data + first * a.itemsize for n, (a, first) in pointers.items()}
    if not may_launch(source.launch, kernel, addresses, extents, strides):
        source, built = build(kernel, False, architecture)
    grid, chosen = launch_shape(source.launch, extents, PROCESSORS)
    if grid[0] == 0:
        return
    counter = np.zeros(1, np.uint32)
    if source.launch.strategy == "full":
        listed += [np.zeros(scratch_bytes(source.launch, grid) // 8, np.uint64), counter]
    launch_ptx(built.ptx, grid, block or chosen, listed)
    assert counter[0] == 0, "the counter must be ready for the next launch"


def check(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int] | None = None,
    strides: Mapping[tuple[str, str], int] | None = None,
    ulps: float = 0,
    **how: Any,
) -> dict[str, np.ndarray]:
    """Both variants of the PTX must agree with the definition of KernelIR.

    Gives what the vector variant wrote.
    """
    defined = _copies(arrays)
    run(kernel, defined, extents or {}, strides)
    written = [o.name for o in kernel.operands if o.mode in (OUT, INOUT)]
    for vectorize in (False, True):
        compiled = _copies(arrays)
        run_cuda(kernel, compiled, extents, strides, vectorize, **how)
        for name in written:
            assert_close(_placed(compiled[name])[0], _placed(defined[name])[0], ulps)
    return {name: _placed(compiled[name])[0] for name in written}


def _copies(arrays: Mapping[str, Any]) -> dict[str, Any]:
    copies = {}
    for name, given in arrays.items():
        if isinstance(given, np.ndarray | tuple):
            array, first = _placed(given)
            copies[name] = (aligned(array), first)
        else:
            copies[name] = given
    return copies


def aligned(array: np.ndarray, alignment: int = 256) -> np.ndarray:
    """A copy that begins at a multiple of ``alignment`` bytes, as GPU allocations do."""
    flat = array.reshape(-1)
    raw = np.zeros(flat.nbytes + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    copy = raw[skip : skip + flat.nbytes].view(array.dtype)
    copy[:] = flat
    return copy
