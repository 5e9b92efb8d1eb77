"""Provider of kernels of users: converts their arguments to argument slots.

Tests: tests/targets/cuda/test_user_kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.blocks import CudaText, UserKernel
from gpuflow.targets.cuda.codegen.build import KernelArrayAccess
from gpuflow.targets.cuda.codegen.user_kernels import ArrayType, ParameterType, ScalarType
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence, UserLaunch


def _choose(kernel: UserKernel, step: CallStep, target: Any) -> LaunchSequence:
    del target
    avals = [operand.aval for operand in step.operands]
    count = len(avals)
    sequence = LaunchSequence(count + len(step.outputs))
    locations = [ArrayLocation(index) for index in range(count + len(step.outputs))]
    avals += [var.aval for var in step.eqn.outputs]
    sequence.launches.append(_launch(kernel, locations, avals, count))
    return sequence


def _launch(
    kernel: UserKernel, locations: Sequence[ArrayLocation], avals: Sequence[ShapedArray], count: int
) -> UserLaunch:
    """The launch of a user's kernel: arrays become pointers (CUDA C) or Numba's array structs.

    Args:
        kernel: the kernel; its parameters are scalars, or indices of arrays.
        locations, avals: all arrays: operands, then outputs.
        count: number of operands.
    """
    types: list[ParameterType] = []
    slots: list[ArrayLocation | int] = []
    array_accesses: list[KernelArrayAccess] = []
    for parameter in kernel.parameters:
        if isinstance(parameter, np.generic):
            types.append(ScalarType(parameter.dtype.name))
            slots.append(_bits(parameter))
            continue
        aval, dtype = avals[parameter], storage_dtype(avals[parameter].dtype)
        types.append(ArrayType(dtype.name, len(aval.shape)))
        before, after = ([], []) if isinstance(kernel.code, CudaText) else _fields(aval, dtype)
        slots += before
        is_output = parameter >= count
        begins = is_output and kernel.begins[parameter - count] is not None
        what = f"output {parameter - count}" if is_output else f"operand {parameter}"
        nbytes = prod(aval.shape) * dtype.itemsize
        array_accesses.append(
            KernelArrayAccess(len(slots), nbytes, what, not is_output or begins, is_output)
        )
        slots.append(locations[parameter])
        slots += after
    return UserLaunch(kernel, tuple(types), tuple(slots), tuple(array_accesses))


def _fields(aval: ShapedArray, dtype: np.dtype) -> tuple[list[int], list[int]]:
    """The fields of Numba's array struct before and after its address.

    Before: owner and parent (both null), number of elements, and size of an element in bytes.
    After: sizes, and strides in bytes.
    """
    strides = [prod(aval.shape[k + 1 :]) * dtype.itemsize for k in range(len(aval.shape))]
    return [0, 0, prod(aval.shape), dtype.itemsize], [*aval.shape, *strides]


def _bits(scalar: np.generic) -> int:
    """The bits of a scalar of at most 8 bytes in the low bytes of an argument slot."""
    return int.from_bytes(scalar.tobytes().ljust(8, b"\0"), "little", signed=True)


PROVIDER = Provider("the user's kernel", _choose)
