"""Fourier transforms of several lines at once, as calls of native programs.

Each dimension is one instruction over blocks of lines (``fourier_lines``), the last one first; of
transforms to real numbers the last one last. Results depend on shapes alone, not on threads.
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
from gpuflow.kir.scalar import PARTS
from gpuflow.targets.cpu.library.fourier_lengths import LONGEST, memory_length, split
from gpuflow.targets.cpu.library.fourier_lines import (
    COMPLEX,
    FROM_ODD,
    FROM_REAL,
    TO_ODD,
    TO_REAL,
)
from gpuflow.targets.cpu.library.fourier_passes import lanes_of
from gpuflow.targets.cpu.library.fourier_writer import Lines, Recorder, Side, Writer
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Places, copy_view, moving_axes, operand_place
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Place, fixed
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
    """How a call is made.

    Attributes:
        block: its block.
        kind: of the last dimension.
        dtype: of real numbers.
        shape: rows and columns of a line of the last dimension.
        apart: sizes and strides of groups and lines where the operand is read as it lies, though
            that is not in order.
        copied: bytes of a copy of the operand, in order.
        between: bytes of spectra before the last dimension.
        long: bytes of lines that are matrices.
    """

    block: Fourier
    kind: int
    dtype: str
    shape: tuple[int, int]
    apart: tuple[tuple[int, int], tuple[int, int]] | None
    copied: int
    between: int
    long: int

    @property
    def length(self) -> int:
        """Of the complex transforms along the last dimension."""
        return self.shape[0] * self.shape[1]

    @property
    def to_real(self) -> bool:
        """Whether the last dimension is transformed last, to real numbers."""
        return self.block.kind == "IRFFT"


def choose(block: Fourier, step: CallStep, target: Any) -> NativeCall | None:
    """The transforms, unless a vector would be of few lines, or a line too long."""
    del target
    (operand,), out = step.operands, step.eqn.outputs[0].aval
    if operand.buffer == NO_BUFFER or not operand.aval.size or not out.size:
        return None
    kind = _kind(block)
    names = operand.aval.dtype.name, out.dtype.name
    dtype = next(PARTS[name] for name in names if name in PARTS)
    length = block.lengths[-1] // (2 if kind in (FROM_REAL, TO_REAL) else 1)
    lines = prod(out.shape[:-1])
    is_odd = kind in (FROM_ODD, TO_ODD)
    shape = (length, 1) if is_odd else split(length, lines, dtype)
    if shape is None or (is_odd and 2 * lines < lanes_of(dtype)):
        return None
    if any(memory_length(n) > LONGEST for n in (*block.lengths[:-1], *shape)):
        return None
    unit = 2 * np.dtype(dtype).itemsize
    bytes_ = operand.aval.size * operand.aval.dtype.itemsize
    is_between = block.kind == "IRFFT" and len(block.lengths) > 1
    apart = None
    if shape[1] == 1 and not is_between and not operand.lies.is_contiguous:
        apart = _lines_apart(operand.lies, kind, lanes_of(dtype))
    plan = _Plan(
        block, kind, dtype, shape, apart,
        0 if operand.lies.is_contiguous or apart is not None else bytes_,
        bytes_ if is_between else 0,
        lines * length * unit if shape[1] > 1 else 0,
    )  # fmt: skip
    workspace = plan.copied + plan.between + plan.long
    return NativeCall(partial(_emit, plan), workspace, partial(_runs, plan, step))


def _runs(plan: _Plan, step: CallStep) -> list[Build]:
    recorder, nowhere = Recorder(plan.dtype, NativeServices(), Code()), fixed(0)
    _transform(plan, step, _Memory(nowhere, nowhere, nowhere, nowhere), recorder)
    return recorder.builds


def _lines_apart(
    view: View, kind: int, lanes: int
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Sizes and strides of groups and lines, where a view's lines are groups of many."""
    axes = moving_axes(View(view.shape[:-1], view.strides[:-1], 0, view.broadcast[:-1]))
    if kind == FROM_REAL and view.strides[-1] != 1:
        return None  # pairs of real numbers lie side by side
    if True in view.broadcast[-1:] or len(axes) > 2 or (len(axes) == 2 and axes[1][0] < lanes):
        return None
    return axes[0] if len(axes) == 2 else (1, 0), axes[-1]


def _emit(
    plan: _Plan, step: CallStep, services: NativeServices, code: Code, places: Places
) -> None:
    (operand,) = step.operands
    writer = Writer(plan.dtype, services, code)
    source, target = operand_place(operand, code, places), places.place(step.outputs[0])
    register, start = (-1, 0) if step.workspace is None else places.place(step.workspace)
    if plan.copied:
        copy = register, start
        copy_view(operand.lies, operand.aval.dtype.itemsize, source, copy, services, code)
        source = copy
    between = register, start + plan.copied
    long = register, start + plan.copied + plan.between
    _transform(plan, step, _Memory(source, target, between, long), writer)


class _Memory(NamedTuple):
    """Where a call's elements are; ``between`` and ``long`` as of ``_Plan``."""

    source: Place
    target: Place
    between: Place
    long: Place


def _transform(plan: _Plan, step: CallStep, memory: _Memory, writer: Writer) -> None:
    source, target, between, long = memory
    if plan.to_real:
        source = _others(plan, step.operands[0].aval.shape, source, between, writer)
        _last(plan, step, source, target, long, writer)
    else:
        _last(plan, step, source, target, long, writer)
        _others(plan, step.eqn.outputs[0].aval.shape, target, target, writer)


def _others(
    plan: _Plan, shape: tuple[int, ...], source: Place, into: Place, writer: Writer
) -> Place:
    """Transform the dimensions before the last one; returns where the result is."""
    is_inverse, unit = plan.block.kind in ("IFFT", "IRFFT"), writer.unit
    for d in reversed(range(len(shape) - len(plan.block.lengths), len(shape) - 1)):
        after = prod(shape[d + 1 :])
        what = Lines(shape[d], after, prod(shape[:d]), exchange=(is_inverse, is_inverse))
        sides = [Side(at, after * unit, unit, shape[d] * after * unit) for at in (source, into)]
        writer.lines(what, *sides)
        source = into
    return source


def _last(
    plan: _Plan, step: CallStep, source: Place, target: Place, long: Place, writer: Writer
) -> None:
    """Transform the last dimension."""
    avals = step.operands[0].aval, step.eqn.outputs[0].aval
    is_inverse = plan.block.kind in ("IFFT", "IRFFT")
    groups, lines = 1, prod(avals[1].shape[:-1])
    sides = []
    for place, aval in zip((source, target), avals, strict=True):
        # Real numbers are read and written in pairs, unless their number is odd.
        alone = plan.kind in (FROM_ODD, TO_ODD) and aval.dtype.kind == "f"
        step_bytes = writer.size if alone else writer.unit
        sides.append(Side(place, step_bytes, aval.shape[-1] * aval.dtype.itemsize))
    if plan.apart is not None:
        (groups, group_step), (lines, line_step) = plan.apart
        itemsize, first, last = avals[0].dtype.itemsize, *sides
        element = first.element
        if plan.kind != FROM_REAL:
            element = step.operands[0].lies.strides[-1] * itemsize
        sides = [
            Side(source, element, line_step * itemsize, group_step * itemsize),
            Side(target, last.element, last.line, lines * last.line),
        ]
    order = 2 * plan.length if plan.kind in (FROM_REAL, TO_REAL) else 0
    factor = 1 / prod(plan.block.lengths) if is_inverse else 1.0
    # Half spectra are exchanged on their way into transforms to real numbers.
    exchange = is_inverse and (not plan.to_real or plan.shape[1] > 1), is_inverse
    what = Lines(plan.length, lines, groups, plan.kind, exchange, factor, order)
    if plan.shape[1] > 1:
        writer.long_lines(plan.shape, what, sides[0], sides[1], long)
    else:
        writer.lines(what, sides[0], sides[1])


PROVIDER = Provider("transforms of several lines at once in native programs", choose)
