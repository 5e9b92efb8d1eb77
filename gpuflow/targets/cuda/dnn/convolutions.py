"""Convolutions by cuDNN on one device: choosing an algorithm, and running it. See ``cudnn.py``."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.targets.cuda.dnn import cudnn
from gpuflow.targets.cuda.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    ChosenConvolution,
    ConvolutionCall,
    Convolve,
)
from gpuflow.targets.cuda.dnn.descriptors import Descriptors
from gpuflow.targets.cuda.dnn.device import CudnnDevice, NotTaken

MOST_WORKSPACE = 1 << 28  # bytes; a guess: nothing was measured
_MOST_ALGORITHMS = 16  # more than there are of any kind
_ALIGNED = 16  # bytes: loads of 128 bits


@record
class _Functions:
    """The functions of one kind of call, and the arrays that they take in order.

    Attributes:
        run, heuristic, workspace: names of functions.
        arrays: the two operands and the output, as cuDNN orders them.
        is_swapped: our left operand is cuDNN's second one.
    """

    run: str
    heuristic: str
    workspace: str
    arrays: str
    is_swapped: bool = False


def _functions(name: str, arrays: str, is_swapped: bool = False) -> _Functions:
    start = f"cudnnGetConvolution{name}"
    return _Functions(
        f"cudnnConvolution{name}", f"{start}Algorithm_v7", f"{start}WorkspaceSize", arrays,
        is_swapped,
    )  # fmt: skip


_KINDS = {
    FORWARD: _functions("Forward", "xwy"),
    DATA: _functions("BackwardData", "wyx", True),
    FILTER: _functions("BackwardFilter", "xyw"),
}


class CudnnConvolutions(CudnnDevice[ConvolutionCall, ChosenConvolution]):
    """cuDNN's convolutions on one device."""

    def bind(self, chosen: ChosenConvolution, stream: int) -> Convolve:
        """A call of the chosen algorithm.

        Raises:
            CudnnError: if cuDNN does not support its choice of one device on another.
        """
        call, library = chosen.call, self._opened()
        functions = _KINDS[call.kind]
        descriptors = Descriptors(library, call, chosen.math, functions.arrays)
        first, second, third = descriptors.arrays
        run, handle = getattr(library, functions.run), self._handle_of(call)
        one, zero = _scalars(call.dtype)
        ends = ctypes.addressof(one), ctypes.addressof(zero)
        count, lock = chosen.workspace_bytes, self._lock
        check = partial(cudnn.checked, library, call, "cudnnSetStream", handle)

        def convolve(
            left: int, right: int, out: int, workspace: int, recorded: int = stream
        ) -> None:
            _check_alignment(call, left, right, out)
            operands = (right, left) if functions.is_swapped else (left, right)
            with lock:
                check(recorded)
                status = run(
                    handle, ends[0], first, operands[0], second, operands[1],
                    descriptors.convolution, chosen.algorithm, workspace, count,
                    ends[1], third, out,
                )  # fmt: skip
                if status:
                    raise cudnn.CudnnError(library, functions.run, call, status)

        convolve.kept = one, zero, descriptors  # type: ignore[attr-defined]
        return convolve

    def _choice(self, call: ConvolutionCall, deterministic: bool) -> ChosenConvolution:
        handle = self._handle_of(call)
        with self._on_device():
            try:
                chosen = self._asked(handle, call, deterministic)
            except cudnn.CudnnError as error:
                if not cudnn.is_refusal(error.status):
                    raise
                raise NotTaken(str(error)) from error
        if chosen is None:
            raise NotTaken(f"none of its algorithms may be taken for a {call}")
        return chosen

    def _asked(
        self, handle: int | None, call: ConvolutionCall, deterministic: bool
    ) -> ChosenConvolution | None:
        library, functions = self._library, _KINDS[call.kind]
        descriptors = Descriptors(library, call, _wanted_math(call), functions.arrays)
        first, second, third = descriptors.arrays
        operands = (handle, first, second, descriptors.convolution, third)
        results, count = (cudnn.Performance * _MOST_ALGORITHMS)(), ctypes.c_int()
        cudnn.checked(
            library, call, functions.heuristic, *operands, _MOST_ALGORITHMS,
            ctypes.addressof(count), ctypes.addressof(results),
        )  # fmt: skip
        for one in results[: count.value]:
            math = _math_of(call, one)
            if one.status or math is None or one.memory > MOST_WORKSPACE:
                continue
            if deterministic and one.determinism != cudnn.DETERMINISTIC:
                continue
            descriptors.set_math(math)
            size = ctypes.c_size_t()
            status = getattr(library, functions.workspace)(
                *operands, one.algo, ctypes.addressof(size)
            )
            if status == 0 and size.value <= MOST_WORKSPACE:
                return ChosenConvolution(call, one.algo, math, size.value)
        return None


def _wanted_math(call: ConvolutionCall) -> int:
    """How products may be made: with TF32 only where it is allowed."""
    if call.dtype.itemsize == 2:
        return cudnn.TENSOR_OP_MATH
    is_exact = call.dtype == np.float32 and not call.reduced
    return cudnn.FMA_MATH if is_exact else cudnn.DEFAULT_MATH


def _math_of(call: ConvolutionCall, one: cudnn.Performance) -> int | None:
    """How an algorithm makes products; None: less exactly than it may."""
    if one.mathType == cudnn.TENSOR_OP_MATH_ALLOW_CONVERSION:
        return None  # operands are rounded to float16
    if _wanted_math(call) == cudnn.FMA_MATH:
        return None if one.mathType == cudnn.TENSOR_OP_MATH else cudnn.FMA_MATH
    return one.mathType


def _scalars(dtype: np.dtype) -> tuple[Any, Any]:
    """1 and 0 as cuDNN wants alpha and beta."""
    kind = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    return kind(1.0), kind(0.0)


def _check_alignment(call: ConvolutionCall, *places: int) -> None:
    if any(place % _ALIGNED for place in places):
        raise ValueError(
            f"[conv_general_dilated] arrays must begin at multiples of {_ALIGNED} bytes for cuDNN; "
            f"got {', '.join(map(hex, places))} for a {call}. Fix: copy arrays of other libraries "
            "(jnp.array), or set GPUFLOW_CUDNN=0."
        )
