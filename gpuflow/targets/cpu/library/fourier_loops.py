"""Provider of small Fourier transforms that ``fourier`` cannot vectorize, by NumPy's gufuncs.

Dimensions are transformed one after the other in the memory of the result. An irfft transforms the
others first, in the workspace, and the last dimension last.

Tests: tests/targets/cpu/test_native_fourier.py.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Fourier
from gpuflow.kir.scalar import COMPONENT_DTYPES
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.library.ufuncs import (
    Batch,
    UfuncArgument,
    UfuncLoop,
    call_loop,
    find_loop,
    loop_function,
)
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location, fixed
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

MAX_ELEMENTS = 1 << 16  # elements: for more, SciPy is faster, since it vectorizes over rows

# NumPy's type characters of the real and complex dtype of a transform.
_LETTERS = {"complex64": ("f", "F"), "complex128": ("d", "D")}


def _find_loop(name: str, complex_dtype: str) -> UfuncLoop | None:
    """Return the inner loop of a ufunc. NumPy's module is private, so it may be missing."""
    module = getattr(np.fft, "_pocketfft_umath", None)
    real, complex_ = _LETTERS[complex_dtype]
    source = real if name.startswith("rfft") else complex_
    target = real if name == "irfft" else complex_
    return find_loop(getattr(module, name, None), f"{source}{real}->{target}")


def _ufunc_names(fourier: Fourier) -> tuple[str, str]:
    """Names of NumPy's ufuncs for the last dimension and for the others."""
    if fourier.kind == "RFFT":
        return ("rfft_n_odd" if fourier.lengths[-1] % 2 else "rfft_n_even"), "fft"
    if fourier.kind == "IRFFT":
        return "irfft", "ifft"
    return fourier.kind.lower(), fourier.kind.lower()


def choose(fourier: Fourier, step: CallStep, target: Any) -> NativeCall | None:
    """Transform by NumPy's loops; None if arrays are too large, or a loop is missing."""
    del target
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    size = max(operand.aval.size, out.size)
    if not 0 < size <= MAX_ELEMENTS or not operand.aval.size or not out.size:
        return None
    dtype = _complex_dtype(step)
    loops = [_find_loop(name, dtype) for name in _ufunc_names(fourier)]
    if operand.buffer == NO_BUFFER or None in loops:
        return None
    operand_bytes = operand.aval.size * operand.aval.dtype.itemsize
    stores_spectra = fourier.kind == "IRFFT" and len(fourier.lengths) > 1
    is_copied = not operand.layout.is_contiguous
    scalar_bytes = np.dtype(COMPONENT_DTYPES[dtype]).itemsize
    return NativeCall(
        partial(_emit, fourier),
        operand_bytes if stores_spectra or is_copied else 0,
        lambda: [Build(loop_function, (scalar_bytes,))],
    )


def _complex_dtype(step: CallStep) -> str:
    dtypes = step.operands[0].aval.dtype, step.eqn.outputs[0].aval.dtype
    return next(dtype.name for dtype in dtypes if dtype.name in _LETTERS)


class _LoopTransforms:
    """Emits the transforms of one call, one dimension at a time.

    Args:
        dtype: complex dtype.
        scale: factor of the results of the first dimension that is transformed; that of the others
            is 1.
        services: services of the program.
        code: the program.
    """

    def __init__(self, dtype: str, scale: float, services: NativeServices, code: Code) -> None:
        self.dtype, self.services, self.code = dtype, services, code
        self.real = np.dtype(COMPONENT_DTYPES[dtype])
        self._scales = np.array([scale, 1], self.real)
        self._transformed_dims = 0
        code.keep_alive(self._scales)

    def _next_scale(self) -> UfuncArgument:
        """The scale operand of the next dimension."""
        offset = min(self._transformed_dims, 1) * self.real.itemsize
        self._transformed_dims += 1
        return UfuncArgument(fixed(address(self._scales) + offset), 0, 0)

    def along_last(
        self,
        name: str,
        source: Location,
        target: Location,
        rows: int,
        lengths: tuple[int, int],
        itemsizes: tuple[int, int],
    ) -> None:
        """Emit the transforms of contiguous rows; ``lengths`` are those of operand and result."""
        work = _operation_count(rows, max(lengths))
        index_rows = self.services.chunk(rows, work)
        operand, result = (
            UfuncArgument(location, index_rows * length * size, length * size, (size,))
            for location, length, size in zip((source, target), lengths, itemsizes, strict=True)
        )
        arguments = operand, self._next_scale(), result
        self._call(name, arguments, lengths, Batch(index_rows, rows), work)

    def across(
        self, name: str, source: Location, target: Location, before: int, length: int, after: int
    ) -> None:
        """Emit complex transforms along a dimension that is not the last.

        Args:
            name: name of the ufunc.
            source, target: locations, which may be equal.
            before: product of the sizes of preceding dimensions.
            length: size of the dimension.
            after: product of the sizes of following dimensions.
        """
        size, work = 2 * self.real.itemsize, _operation_count(before * after, length)
        index_rows = after if before > 1 else self.services.chunk(after, work)
        index_stride = (length * after if before > 1 else index_rows) * size
        operand, result = (
            UfuncArgument(location, index_stride, size, (after * size,))
            for location in (source, target)
        )
        arguments = operand, self._next_scale(), result
        batch = Batch(index_rows, before * after)
        self._call(name, arguments, (length, length), batch, work)

    def _call(
        self,
        name: str,
        arguments: tuple[UfuncArgument, ...],
        sizes: tuple[int, int],
        batch: Batch,
        work: int,
    ) -> None:
        loop = _find_loop(name, self.dtype)
        assert loop is not None  # checked by choose
        call_loop(
            loop,
            self.real.itemsize,
            arguments,
            sizes,
            batch,
            check=None,
            work=work,
            shares_batch=True,
            services=self.services,
            code=self.code,
        )


def _operation_count(rows: int, length: int) -> int:
    return rows * length * max(length.bit_length(), 1)


def _emit(
    fourier: Fourier, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    shape, lengths, dtype = operand.aval.shape, fourier.lengths, _complex_dtype(step)
    source, target = operand_location(operand, code, locations), locations.of(step.outputs[0])
    workspace = None if step.workspace is None else locations.of(step.workspace)
    if not operand.layout.is_contiguous:
        assert workspace is not None  # reserved by the plan
        copy_view(operand.layout, operand.aval.dtype.itemsize, source, workspace, services, code)
        source = workspace
    is_inverse = fourier.kind in ("IFFT", "IRFFT")
    transforms = _LoopTransforms(dtype, 1 / prod(lengths) if is_inverse else 1.0, services, code)
    last_name, leading_name = _ufunc_names(fourier)
    itemsizes = operand.aval.dtype.itemsize, out.dtype.itemsize
    rows, last_lengths = out.size // out.shape[-1], (shape[-1], out.shape[-1])
    leading_dims = range(len(shape) - len(lengths), len(shape) - 1)
    if fourier.kind != "IRFFT":
        transforms.along_last(last_name, source, target, rows, last_lengths, itemsizes)
        source, shape = target, out.shape
    for d in reversed(leading_dims):
        into = target if fourier.kind != "IRFFT" else workspace
        assert into is not None  # reserved by the plan
        before, after = prod(shape[:d]), prod(shape[d + 1 :])
        transforms.across(leading_name, source, into, before, shape[d], after)
        source = into
    if fourier.kind == "IRFFT":
        transforms.along_last(last_name, source, target, rows, last_lengths, itemsizes)


PROVIDER = Provider("NumPy's loops in native programs", choose)
