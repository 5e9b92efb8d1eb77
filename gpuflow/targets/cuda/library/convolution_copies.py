"""Candidate copies of a convolution's operands, with a layout that kernels read in vectors.

Kernels read an operand in vectors of 16 bytes only if its depth or its free dimension is innermost.
That is not the case for channels first, or filters as ``OIHW``. If tiles read such an operand
often, it is cheaper to copy it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from gpuflow.base.util import row_major_strides
from gpuflow.core.views import View
from gpuflow.targets.cuda.library.convolution_forms import ONE_BY_ONE, Form
from gpuflow.targets.cuda.library.copy_forms import MOST_DIMS, collapsed, tiled_form
from gpuflow.targets.layouts.convolution_axes import Axes


def with_copies(form: Form, chunk: int) -> Iterator[Form]:
    """Yield the form, and forms with copies of the operands that are read element by element."""
    for left in _with_copied(form, 0, chunk):
        yield from _with_copied(left, 1, chunk)


def _with_copied(form: Form, side: int, chunk: int) -> Iterator[Form]:
    yield form
    if form.read_modes(chunk)[side] != ONE_BY_ONE:
        return
    for candidate in (_copied(form, side, True), _copied(form, side, False)):
        if candidate is not None and candidate.read_modes(chunk)[side] != ONE_BY_ONE:
            yield candidate


def _copied(form: Form, side: int, depth_inner: bool) -> Form | None:
    """The form with a copy of an operand; None if the copy kernel does not support its view.

    Args:
        form: the form.
        side: the operand: 0 for lhs, 1 for rhs.
        depth_inner: whether depth is innermost in the copy, instead of the last free dimension.
    """
    free = form.columns if side else form.rows
    axes = [*form.outer, *free]
    sizes = [axis[0] for axis in axes] + [(one.size, one.taps)[side] for one in form.slides]
    steps = [axis[1 + side] for axis in axes] + [(one.lhs, one.rhs)[side] for one in form.slides]
    sizes.append(form.depth[0])
    steps.append(form.depth[1 + side])
    # Broadcast dimensions have size 1 in the copy.
    sizes = [size if step else 1 for size, step in zip(sizes, steps, strict=True)]
    order = list(range(len(sizes)))
    if not depth_inner:
        inner = len(axes) - 1
        order.remove(inner)
        order.append(inner)
    shape = tuple(sizes[k] for k in order)
    view = View(shape, tuple(steps[k] for k in order), form.offsets[side], (False,) * len(order))
    if 0 in shape or len(collapsed(view)) > MOST_DIMS:
        return None
    copy_strides = [0] * len(order)
    for k, size, step in zip(order, shape, row_major_strides(shape), strict=True):
        copy_strides[k] = step if size > 1 else 0
    next_strides = iter(copy_strides)

    def with_copy_strides(axis_group: Axes) -> Axes:
        return [_with_step(axis, side, next(next_strides)) for axis in axis_group]

    outer, free = with_copy_strides(form.outer), with_copy_strides(free)
    name = ("lhs", "rhs")[side]
    slides = [replace(one, **{name: next(next_strides)}) for one in form.slides]
    (depth,) = with_copy_strides([form.depth])
    offsets, copied = list(form.offsets), list(form.copied)
    offsets[side], copied[side] = 0, view
    return replace(
        form,
        outer=outer,
        rows=form.rows if side else free,
        columns=free if side else form.columns,
        depth=depth,
        slides=slides,
        offsets=(offsets[0], offsets[1]),
        copied=(copied[0], copied[1]),
    )


def _with_step(axis: tuple[int, ...], side: int, step: int) -> tuple[int, int, int, int]:
    axis_values = list(axis)
    axis_values[1 + side] = step
    return axis_values[0], axis_values[1], axis_values[2], axis_values[3]


def copied_bytes(view: View, itemsize: int) -> int:
    """Estimated memory traffic of a copy in bytes; untiled copies count twice, as they reread."""
    return prod(view.shape) * itemsize * (4 if tiled_form(view, itemsize) is None else 2)
