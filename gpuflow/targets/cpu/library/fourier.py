"""Provider of Fourier transforms that vectorize over rows: fft, ifft, rfft and irfft.

Each dimension is one instruction over blocks of rows (``fourier_rows``). The last dimension is
transformed first, but last in transforms to real numbers (irfft). Results must depend on shapes
only, not on the number of threads.

The other modules: ``fourier_lengths`` selects radices and tables; ``fourier_passes``,
``fourier_rows`` and ``fourier_long_rows`` write the code; ``fourier_writer`` emits instructions.
Calls that this provider rejects go to ``fourier_loops``.

Tests: tests/targets/cpu/test_fourier_rows.py, tests/targets/cpu/test_native_fourier.py.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Fourier
from gpuflow.core.views import View
from gpuflow.kir.scalar import COMPONENT_DTYPES
from gpuflow.targets.cpu.library.fourier_lengths import MAX_LENGTH, memory_length, split_shape
from gpuflow.targets.cpu.library.fourier_passes import lanes_of
from gpuflow.targets.cpu.library.fourier_rows import (
    COMPLEX,
    FROM_ODD,
    FROM_REAL,
    TO_ODD,
    TO_REAL,
)
from gpuflow.targets.cpu.library.fourier_writer import (
    BuildRecorder,
    FourierWriter,
    RowLayout,
    RowTransforms,
)
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import (
    Locations,
    collapsed_view_axes,
    copy_view,
    operand_location,
)
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location, fixed
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices


def _row_kind(fourier: Fourier) -> int:
    """The kind of the transforms along the last dimension, see ``fourier_rows``."""
    is_odd = fourier.lengths[-1] % 2 == 1
    if fourier.kind == "RFFT":
        return FROM_ODD if is_odd else FROM_REAL
    if fourier.kind == "IRFFT":
        return TO_ODD if is_odd else TO_REAL
    return COMPLEX


class _Axis(NamedTuple):
    """An axis of rows: number of rows, and elements from one to the next."""

    size: int
    stride: int


@record
class _FourierCall:
    """The decisions for one call. Parts of its workspace are in the order of the last three fields.

    Attributes:
        fourier: the library call.
        kind: kind of the transforms along the last dimension, see ``fourier_rows``.
        dtype: dtype of a component: "float32" or "float64".
        shape: rows and columns of the matrix that each row of the last dimension is split into;
            (length, 1) if rows are not split.
        row_groups: axes of groups and of rows, if a strided operand is read in place.
        copy_bytes: size of a row-major copy of the operand; 0 if it is read in place.
        spectra_bytes: size of the spectra that an irfft stores before its last dimension.
        split_rows_bytes: size of all complex rows if they are split into matrices, else 0.
    """

    fourier: Fourier
    kind: int
    dtype: str
    shape: tuple[int, int]
    row_groups: tuple[_Axis, _Axis] | None
    copy_bytes: int
    spectra_bytes: int
    split_rows_bytes: int

    @property
    def length(self) -> int:
        """Length of the complex transforms along the last dimension."""
        return self.shape[0] * self.shape[1]

    @property
    def is_split(self) -> bool:
        """Whether rows of the last dimension are split into matrices."""
        return self.shape[1] > 1

    @property
    def is_inverse(self) -> bool:
        """Whether it is an ifft or irfft."""
        return self.fourier.kind in ("IFFT", "IRFFT")

    @property
    def to_real(self) -> bool:
        """Whether the last dimension is transformed last, to real numbers."""
        return self.fourier.kind == "IRFFT"


def choose(fourier: Fourier, step: CallStep, target: Any) -> NativeCall | None:
    """Transform in blocks of rows; None if there are too few rows or a row is too long."""
    del target
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    if operand.buffer == NO_BUFFER or not operand.aval.size or not out.size:
        return None
    kind = _row_kind(fourier)
    names = operand.aval.dtype.name, out.dtype.name
    dtype = next(COMPONENT_DTYPES[name] for name in names if name in COMPONENT_DTYPES)
    length = fourier.lengths[-1] // (2 if kind in (FROM_REAL, TO_REAL) else 1)
    rows = prod(out.shape[:-1])
    is_odd = kind in (FROM_ODD, TO_ODD)
    shape = (length, 1) if is_odd else split_shape(length, rows, dtype)
    if shape is None or (is_odd and 2 * rows < lanes_of(dtype)):
        return None
    if any(memory_length(n) > MAX_LENGTH for n in (*fourier.lengths[:-1], *shape)):
        return None
    operand_bytes = operand.aval.size * operand.aval.dtype.itemsize
    stores_spectra = fourier.kind == "IRFFT" and len(fourier.lengths) > 1
    row_groups = None
    if shape[1] == 1 and not stores_spectra and not operand.layout.is_contiguous:
        row_groups = _row_groups(operand.layout, kind, lanes_of(dtype))
    is_in_place = operand.layout.is_contiguous or row_groups is not None
    call = _FourierCall(
        fourier,
        kind,
        dtype,
        shape,
        row_groups,
        copy_bytes=0 if is_in_place else operand_bytes,
        spectra_bytes=operand_bytes if stores_spectra else 0,
        split_rows_bytes=rows * length * 2 * np.dtype(dtype).itemsize if shape[1] > 1 else 0,
    )
    workspace = call.copy_bytes + call.spectra_bytes + call.split_rows_bytes
    return NativeCall(partial(_emit, call), workspace, partial(_required_code, call, step))


def _required_code(call: _FourierCall, step: CallStep) -> list[Build]:
    recorder, nowhere = BuildRecorder(call.dtype, NativeServices(), Code()), fixed(0)
    _emit_transforms(call, step, _Memory(nowhere, nowhere, nowhere, nowhere), recorder)
    return recorder.builds


def _row_groups(view: View, kind: int, lanes: int) -> tuple[_Axis, _Axis] | None:
    """Return the axes of groups and of rows of a view; None if it must be copied.

    Rows of a group have one stride, and a group must have at least as many rows as lanes.
    """
    axes = collapsed_view_axes(View(view.shape[:-1], view.strides[:-1], 0, view.broadcast[:-1]))
    if kind == FROM_REAL and view.strides[-1] != 1:
        return None  # pairs of real numbers must be contiguous
    if True in view.broadcast[-1:] or len(axes) > 2 or (len(axes) == 2 and axes[1][0] < lanes):
        return None
    groups = axes[0] if len(axes) == 2 else (1, 0)
    return _Axis(*groups), _Axis(*axes[-1])


def _emit(
    call: _FourierCall,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    (operand,) = step.operands
    writer = FourierWriter(call.dtype, services, code)
    source, target = operand_location(operand, code, locations), locations.of(step.outputs[0])
    workspace = fixed(0) if step.workspace is None else locations.of(step.workspace)
    if call.copy_bytes:
        itemsize = operand.aval.dtype.itemsize
        copy_view(operand.layout, itemsize, source, workspace, services, code)
        source = workspace
    spectra = workspace.shifted(call.copy_bytes)
    split_rows = spectra.shifted(call.spectra_bytes)
    _emit_transforms(call, step, _Memory(source, target, spectra, split_rows), writer)


class _Memory(NamedTuple):
    """Locations of operand, result, and the two workspace parts that ``_FourierCall`` sizes."""

    source: Location
    target: Location
    spectra: Location
    split_rows: Location


def _emit_transforms(
    call: _FourierCall, step: CallStep, memory: _Memory, writer: FourierWriter
) -> None:
    source, target, spectra, split_rows = memory
    if call.to_real:
        source = _emit_leading_dims(call, step.operands[0].aval.shape, source, spectra, writer)
        _emit_last_dim(call, step, source, target, split_rows, writer)
    else:
        _emit_last_dim(call, step, source, target, split_rows, writer)
        _emit_leading_dims(call, step.eqn.outputs[0].aval.shape, target, target, writer)


def _emit_leading_dims(
    call: _FourierCall,
    shape: tuple[int, ...],
    source: Location,
    target: Location,
    writer: FourierWriter,
) -> Location:
    """Emit the transforms along all dimensions but the last; returns the result's location."""
    itemsize = writer.complex_bytes
    for d in reversed(range(len(shape) - len(call.fourier.lengths), len(shape) - 1)):
        inner_size = prod(shape[d + 1 :])
        exchanges = call.is_inverse, call.is_inverse
        transforms = RowTransforms(shape[d], inner_size, prod(shape[:d]), exchanges=exchanges)
        stride = inner_size * itemsize
        layouts = [
            RowLayout(location, stride, itemsize, shape[d] * stride)
            for location in (source, target)
        ]
        writer.transform(transforms, *layouts)
        source = target
    return source


def _emit_last_dim(
    call: _FourierCall,
    step: CallStep,
    source: Location,
    target: Location,
    split_rows: Location,
    writer: FourierWriter,
) -> None:
    """Emit the transforms along the last dimension."""
    avals = step.operands[0].aval, step.eqn.outputs[0].aval
    groups, rows = 1, prod(avals[1].shape[:-1])
    layouts = []
    for location, aval in zip((source, target), avals, strict=True):
        # Real numbers are read and written as pairs (complex numbers), unless the length is odd.
        is_real = call.kind in (FROM_ODD, TO_ODD) and aval.dtype.kind == "f"
        stride = writer.scalar_bytes if is_real else writer.complex_bytes
        layouts.append(RowLayout(location, stride, aval.shape[-1] * aval.dtype.itemsize))
    if call.row_groups is not None:
        (groups, group_stride), (rows, row_stride) = call.row_groups
        itemsize, first, last = avals[0].dtype.itemsize, *layouts
        stride = first.element_stride
        if call.kind != FROM_REAL:
            stride = step.operands[0].layout.strides[-1] * itemsize
        layouts = [
            RowLayout(source, stride, row_stride * itemsize, group_stride * itemsize),
            RowLayout(target, last.element_stride, last.row_stride, rows * last.row_stride),
        ]
    # An inverse transform is a forward one with components exchanged when it reads and writes. In
    # transforms of unsplit rows to real numbers, the mirror step exchanges them, not the read.
    exchanges_read = call.is_inverse and (not call.to_real or call.is_split)
    transforms = RowTransforms(
        call.length,
        rows,
        groups,
        call.kind,
        exchanges=(exchanges_read, call.is_inverse),
        scale=1 / prod(call.fourier.lengths) if call.is_inverse else 1.0,
        real_length=2 * call.length if call.kind in (FROM_REAL, TO_REAL) else 0,
    )
    if call.is_split:
        writer.transform_long(call.shape, transforms, *layouts, split_rows)
    else:
        writer.transform(transforms, *layouts)


PROVIDER = Provider("transforms of several lines at once in native programs", choose)
