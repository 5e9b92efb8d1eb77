"""Provider of Fourier transforms that vectorize over rows.

Each dimension is one instruction over blocks of rows (``fourier_rows``). The last dimension is
transformed first, but last in transforms to real numbers (irfft). Results must depend on shapes
only, not on the number of threads.

The other modules: ``fourier_lengths`` selects radices and tables, ``fourier_passes`` and
``fourier_rows`` write the code, and ``fourier_writer`` emits the instructions.
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
from gpuflow.targets.cpu.library.fourier_lengths import LONGEST, memory_length, split
from gpuflow.targets.cpu.library.fourier_passes import lanes_of
from gpuflow.targets.cpu.library.fourier_rows import (
    COMPLEX,
    FROM_ODD,
    FROM_REAL,
    TO_ODD,
    TO_REAL,
)
from gpuflow.targets.cpu.library.fourier_writer import Recorder, RowTransforms, Side, Writer
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import (
    Locations,
    copy_view,
    moving_axes,
    operand_location,
)
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location, fixed
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices


def _kind(block: Fourier) -> int:
    is_odd = block.lengths[-1] % 2 == 1
    if block.kind == "RFFT":
        return FROM_ODD if is_odd else FROM_REAL
    if block.kind == "IRFFT":
        return TO_ODD if is_odd else TO_REAL
    return COMPLEX


@record
class _Plan:
    """The decisions for one call.

    Attributes:
        block: the library call.
        kind: kind of the transforms along the last dimension, see ``fourier_rows``.
        dtype: dtype of a component.
        shape: rows and columns of the matrix that each row of the last dimension is split into;
            (length, 1) if rows are not split.
        row_groups: (size, stride) of groups and of rows, if a strided operand is read in place.
        copied: bytes of a row-major copy of the operand; 0 if it is read in place.
        between: bytes of the spectra that an irfft stores before its last dimension.
        long: bytes of complex rows that are split into matrices.
    """

    block: Fourier
    kind: int
    dtype: str
    shape: tuple[int, int]
    row_groups: tuple[tuple[int, int], tuple[int, int]] | None
    copied: int
    between: int
    long: int

    @property
    def length(self) -> int:
        """Length of the complex transforms along the last dimension."""
        return self.shape[0] * self.shape[1]

    @property
    def to_real(self) -> bool:
        """Whether the last dimension is transformed last, to real numbers."""
        return self.block.kind == "IRFFT"


def choose(block: Fourier, step: CallStep, target: Any) -> NativeCall | None:
    """Transform in blocks of rows; None if there are too few rows or a row is too long."""
    del target
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    if operand.buffer == NO_BUFFER or not operand.aval.size or not out.size:
        return None
    kind = _kind(block)
    names = operand.aval.dtype.name, out.dtype.name
    dtype = next(COMPONENT_DTYPES[name] for name in names if name in COMPONENT_DTYPES)
    length = block.lengths[-1] // (2 if kind in (FROM_REAL, TO_REAL) else 1)
    rows = prod(out.shape[:-1])
    is_odd = kind in (FROM_ODD, TO_ODD)
    shape = (length, 1) if is_odd else split(length, rows, dtype)
    if shape is None or (is_odd and 2 * rows < lanes_of(dtype)):
        return None
    if any(memory_length(n) > LONGEST for n in (*block.lengths[:-1], *shape)):
        return None
    unit = 2 * np.dtype(dtype).itemsize
    bytes_ = operand.aval.size * operand.aval.dtype.itemsize
    is_between = block.kind == "IRFFT" and len(block.lengths) > 1
    row_groups = None
    if shape[1] == 1 and not is_between and not operand.layout.is_contiguous:
        row_groups = _row_groups(operand.layout, kind, lanes_of(dtype))
    plan = _Plan(
        block,
        kind,
        dtype,
        shape,
        row_groups,
        0 if operand.layout.is_contiguous or row_groups is not None else bytes_,
        bytes_ if is_between else 0,
        rows * length * unit if shape[1] > 1 else 0,
    )
    workspace = plan.copied + plan.between + plan.long
    return NativeCall(partial(_emit, plan), workspace, partial(_runs, plan, step))


def _runs(plan: _Plan, step: CallStep) -> list[Build]:
    recorder, nowhere = Recorder(plan.dtype, NativeServices(), Code()), fixed(0)
    _transform(plan, step, _Memory(nowhere, nowhere, nowhere, nowhere), recorder)
    return recorder.builds


def _row_groups(
    view: View, kind: int, lanes: int
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(size, stride) of groups and rows of a view; None if it must be copied.

    Rows of a group have one stride, and a group must have at least as many rows as lanes.
    """
    axes = moving_axes(View(view.shape[:-1], view.strides[:-1], 0, view.broadcast[:-1]))
    if kind == FROM_REAL and view.strides[-1] != 1:
        return None  # pairs of real numbers must be contiguous
    if True in view.broadcast[-1:] or len(axes) > 2 or (len(axes) == 2 and axes[1][0] < lanes):
        return None
    return axes[0] if len(axes) == 2 else (1, 0), axes[-1]


def _emit(
    plan: _Plan, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    (operand,) = step.operands
    writer = Writer(plan.dtype, services, code)
    source, target = operand_location(operand, code, locations), locations.of(step.outputs[0])
    register, start = (-1, 0) if step.workspace is None else locations.of(step.workspace)
    if plan.copied:
        copy = register, start
        copy_view(operand.layout, operand.aval.dtype.itemsize, source, copy, services, code)
        source = copy
    between = register, start + plan.copied
    long = register, start + plan.copied + plan.between
    _transform(plan, step, _Memory(source, target, between, long), writer)


class _Memory(NamedTuple):
    """Locations of operand, result, and the two parts of the workspace that ``_Plan`` sizes."""

    source: Location
    target: Location
    between: Location
    long: Location


def _transform(plan: _Plan, step: CallStep, memory: _Memory, writer: Writer) -> None:
    source, target, between, long = memory
    if plan.to_real:
        source = _others(plan, step.operands[0].aval.shape, source, between, writer)
        _last(plan, step, source, target, long, writer)
    else:
        _last(plan, step, source, target, long, writer)
        _others(plan, step.eqn.outputs[0].aval.shape, target, target, writer)


def _others(
    plan: _Plan, shape: tuple[int, ...], source: Location, into: Location, writer: Writer
) -> Location:
    """Emit the transforms along all dimensions but the last; returns the result's location."""
    is_inverse, unit = plan.block.kind in ("IFFT", "IRFFT"), writer.unit
    for d in reversed(range(len(shape) - len(plan.block.lengths), len(shape) - 1)):
        after = prod(shape[d + 1 :])
        exchange = is_inverse, is_inverse
        transforms = RowTransforms(shape[d], after, prod(shape[:d]), exchange=exchange)
        sides = [Side(at, after * unit, unit, shape[d] * after * unit) for at in (source, into)]
        writer.transform(transforms, *sides)
        source = into
    return source


def _last(
    plan: _Plan, step: CallStep, source: Location, target: Location, long: Location, writer: Writer
) -> None:
    """Emit the transforms along the last dimension."""
    avals = step.operands[0].aval, step.eqn.outputs[0].aval
    is_inverse = plan.block.kind in ("IFFT", "IRFFT")
    groups, rows = 1, prod(avals[1].shape[:-1])
    sides = []
    for location, aval in zip((source, target), avals, strict=True):
        # Real numbers are read and written as pairs (complex numbers), unless the length is odd.
        alone = plan.kind in (FROM_ODD, TO_ODD) and aval.dtype.kind == "f"
        step_bytes = writer.size if alone else writer.unit
        sides.append(Side(location, step_bytes, aval.shape[-1] * aval.dtype.itemsize))
    if plan.row_groups is not None:
        (groups, group_step), (rows, row_step) = plan.row_groups
        itemsize, first, last = avals[0].dtype.itemsize, *sides
        element = first.element
        if plan.kind != FROM_REAL:
            element = step.operands[0].layout.strides[-1] * itemsize
        sides = [
            Side(source, element, row_step * itemsize, group_step * itemsize),
            Side(target, last.element, last.row, rows * last.row),
        ]
    order = 2 * plan.length if plan.kind in (FROM_REAL, TO_REAL) else 0
    factor = 1 / prod(plan.block.lengths) if is_inverse else 1.0
    # An inverse transform is a forward one with components exchanged when it reads and writes. In
    # transforms of unsplit rows to real numbers, the mirror step exchanges them, not the read.
    exchange = is_inverse and (not plan.to_real or plan.shape[1] > 1), is_inverse
    transforms = RowTransforms(plan.length, rows, groups, plan.kind, exchange, factor, order)
    if plan.shape[1] > 1:
        writer.transform_long(plan.shape, transforms, sides[0], sides[1], long)
    else:
        writer.transform(transforms, sides[0], sides[1])


PROVIDER = Provider("transforms of several lines at once in native programs", choose)
