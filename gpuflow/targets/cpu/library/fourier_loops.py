"""Provider of small Fourier transforms that ``fourier`` cannot vectorize, by NumPy's gufuncs.

Dimensions are transformed one after the other in the memory of the result. An irfft transforms the
others first, in the workspace, and the last dimension last.
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
    Argument,
    Loop,
    call_loop,
    find_loop,
    loop_function,
)
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location, fixed
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

LARGEST = 1 << 16  # elements: for more, SciPy is faster, since it vectorizes over rows

# NumPy's type characters of the real and complex dtype of a transform.
_LETTERS = {"complex64": ("f", "F"), "complex128": ("d", "D")}


def _loop(name: str, complex_dtype: str) -> Loop | None:
    """Return the inner loop of a ufunc. NumPy's module is private, so it may be missing."""
    module = getattr(np.fft, "_pocketfft_umath", None)
    real, complex_ = _LETTERS[complex_dtype]
    source = real if name.startswith("rfft") else complex_
    target = real if name == "irfft" else complex_
    return find_loop(getattr(module, name, None), f"{source}{real}->{target}")


def _names(block: Fourier) -> tuple[str, str]:
    """Names of the ufuncs for the last dimension and for the others."""
    if block.kind == "RFFT":
        return ("rfft_n_odd" if block.lengths[-1] % 2 else "rfft_n_even"), "fft"
    if block.kind == "IRFFT":
        return "irfft", "ifft"
    return block.kind.lower(), block.kind.lower()


def choose(block: Fourier, step: CallStep, target: Any) -> NativeCall | None:
    """Transform by NumPy's loops; None if arrays are too large, or a loop is missing."""
    del target
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    size = max(operand.aval.size, out.size)
    if not 0 < size <= LARGEST or not operand.aval.size or not out.size:
        return None
    dtype = _complex_dtype(step)
    if operand.buffer == NO_BUFFER or any(_loop(name, dtype) is None for name in _names(block)):
        return None
    bytes_ = operand.aval.size * operand.aval.dtype.itemsize
    needs = len(block.lengths) > 1 if block.kind == "IRFFT" else False
    copied = not operand.layout.is_contiguous
    scalar_bytes = np.dtype(COMPONENT_DTYPES[dtype]).itemsize
    return NativeCall(
        partial(_emit, block),
        bytes_ if needs or copied else 0,
        lambda: [Build(loop_function, (scalar_bytes,))],
    )


def _complex_dtype(step: CallStep) -> str:
    dtypes = step.operands[0].aval.dtype, step.eqn.outputs[0].aval.dtype
    return next(dtype.name for dtype in dtypes if dtype.name in _LETTERS)


class _Transforms:
    """Emits the transforms of one call, one dimension at a time.

    Args:
        dtype: complex dtype.
        scale: factor of the first dimension that is transformed; that of the others is 1.
        services: services of the program.
        code: the program.
    """

    def __init__(self, dtype: str, scale: float, services: NativeServices, code: Code) -> None:
        self.dtype, self.services, self.code = dtype, services, code
        self.real = np.dtype(COMPONENT_DTYPES[dtype])
        self._scales = np.array([scale, 1], self.real)
        self._passes = 0
        code.keep(self._scales)

    def _scale(self) -> Argument:
        offset = min(self._passes, 1) * self.real.itemsize
        self._passes += 1
        return Argument(fixed(address(self._scales) + offset), 0, 0)

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
        work = _work(rows, max(lengths))
        of_index = self.services.chunk(rows, work)
        ends = zip((source, target), lengths, itemsizes, strict=True)
        first, last = (
            Argument(location, of_index * length * size, length * size, (size,))
            for location, length, size in ends
        )
        self._call(name, (first, self._scale(), last), lengths, (of_index, rows), work)

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
        size, work = 2 * self.real.itemsize, _work(before * after, length)
        of_index = after if before > 1 else self.services.chunk(after, work)
        step = (length * after if before > 1 else of_index) * size
        first, last = (
            Argument(location, step, size, (after * size,)) for location in (source, target)
        )
        arguments = first, self._scale(), last
        self._call(name, arguments, (length, length), (of_index, before * after), work)

    def _call(
        self,
        name: str,
        arguments: tuple[Argument, ...],
        sizes: tuple[int, int],
        rows: tuple[int, int],
        work: int,
    ) -> None:
        loop = _loop(name, self.dtype)
        assert loop is not None  # checked by choose
        call_loop(
            loop,
            self.real.itemsize,
            arguments,
            sizes,
            rows,
            None,
            work,
            True,
            self.services,
            self.code,
        )


def _work(rows: int, length: int) -> int:
    return rows * length * max(length.bit_length(), 1)


def _emit(
    block: Fourier, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    shape, lengths, dtype = operand.aval.shape, block.lengths, _complex_dtype(step)
    source, target = operand_location(operand, code, locations), locations.of(step.outputs[0])
    work = None if step.workspace is None else locations.of(step.workspace)
    if not operand.layout.is_contiguous:
        assert work is not None
        copy_view(operand.layout, operand.aval.dtype.itemsize, source, work, services, code)
        source = work
    is_inverse = block.kind in ("IFFT", "IRFFT")
    passes = _Transforms(dtype, 1 / prod(lengths) if is_inverse else 1.0, services, code)
    last, others = _names(block)
    itemsizes = operand.aval.dtype.itemsize, out.dtype.itemsize
    rows, ends = out.size // out.shape[-1], (shape[-1], out.shape[-1])
    leading = range(len(shape) - len(lengths), len(shape) - 1)
    if block.kind != "IRFFT":
        passes.along_last(last, source, target, rows, ends, itemsizes)
        source, shape = target, out.shape
    for d in reversed(leading):
        into = target if block.kind != "IRFFT" else work
        assert into is not None
        passes.across(others, source, into, prod(shape[:d]), shape[d], prod(shape[d + 1 :]))
        source = into
    if block.kind == "IRFFT":
        passes.along_last(last, source, target, rows, ends, itemsizes)


PROVIDER = Provider("NumPy's loops in native programs", choose)
