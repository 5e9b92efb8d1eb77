"""Specialization of kernels to static strides, for operands with small or negative strides.

    for i: y[i] = f(x[i * stride])        for i: y[i] = f(x[i * 2])

If the stride is static, LLVM loads such a vector with a few contiguous loads and shuffles. If it is
an argument, LLVM loads elements one at a time, and does not vectorize the loop.

A short innermost loop is unrolled, and the loop around it is vectorized. With rows of two elements,
both are then stored at once, in contiguous vectors.

Tests: tests/targets/cpu/test_cpu_orders.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpuflow.compiler.lowering.argument_block import stride_sources_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import Kernel, Mode, Stride, arguments, memoized

MIN_SPECIALIZED = 1 << 12  # points of a call that are worth one more kernel
_STATIC_STRIDES = {n: stride for stride in Stride if (n := stride.static_value)}
# For larger strides, LLVM does not use contiguous loads.
MAX_STATIC_STRIDE = max(_STATIC_STRIDES)


class StaticStride(NamedTuple):
    """A stride that becomes static.

    Attributes:
        operand: name of the operand.
        axis: index of the axis.
        stride: the stride, not ``Stride.ANY``.
    """

    operand: str
    axis: int
    stride: Stride


def _applies(kernel: Kernel) -> bool:
    return bool(_dynamic_strides(kernel))


def _dynamic_strides(kernel: Kernel) -> list[tuple[str, int]]:
    """Pairs (operand, index of an axis) whose stride is dynamic, along the vectorized loop.

    That is the innermost loop. If it is exact, and so unrolled, the loop around it counts too.
    """
    last = len(kernel.axes) - 1
    candidates = [(o.name, last) for o in kernel.operands if o.mode is Mode.IN]
    if last > 0 and kernel.axes[last].exact is not None:
        # Outputs too: with static strides, stores of unrolled rows become contiguous vectors.
        modes = (Mode.IN, Mode.INDEX, Mode.OUT, Mode.INOUT)
        candidates += [(o.name, last - 1) for o in kernel.operands if o.mode in modes]
    strides = {o.name: o.strides for o in kernel.operands}
    return [(name, d) for name, d in candidates if strides[name][d : d + 1] == (Stride.ANY,)]


def _choose(call: KernelCall, is_copy: bool = False) -> tuple[StaticStride, ...] | None:
    """The strides to specialize to; None if there are none that are worth one more kernel.

    Args:
        call: the call.
        is_copy: whether the kernel is a copy, for which every small stride is worth it.
    """
    axes, stride_sources = call.kernel.axes, stride_sources_of(call.kernel)
    static = []
    for name, d in _dynamic_strides(call.kernel):
        stride = _STATIC_STRIDES.get(stride_sources[name, axes[d].name].value_in(call.slots))
        if stride is None:
            continue
        # Around rows of exact size, only strides that follow from that size. Other strides may be
        # sizes of a batch, each of which would build a kernel. Copies are large enough for that.
        follows = d < len(axes) - 1 and stride.static_value in (1, axes[-1].exact)
        if follows or is_copy or (d == len(axes) - 1 and call.points >= MIN_SPECIALIZED):
            static.append(StaticStride(name, d, stride))
    return tuple(static) or None


def _rewrite(
    call: KernelCall, static: tuple[StaticStride, ...], allocate: Allocate
) -> tuple[KernelCall, ...]:
    del allocate
    kernel = memoized(call.kernel, with_static_strides, static)
    remaining = memoized(kernel, arguments)
    old_slots = zip(arguments(call.kernel), call.slots, strict=True)
    slots = tuple([slot for argument, slot in old_slots if argument in remaining])
    return (call._replace(kernel=kernel, slots=slots),)


def with_static_strides(kernel: Kernel, static: tuple[StaticStride, ...]) -> Kernel:
    """Specialize the kernel to static strides, which are then no arguments of it."""
    static_of = {(operand, axis): stride for operand, axis, stride in static}
    operands = []
    for o in kernel.operands:
        strides = [static_of.get((o.name, axis), stride) for axis, stride in enumerate(o.strides)]
        operands.append(replace(o, strides=tuple(strides)))
    return replace(kernel, operands=tuple(operands))


KNOWN_STRIDES = Schedule("known strides", _applies, _choose, _rewrite)
KNOWN_STRIDES_OF_COPIES = Schedule(
    "known strides", _applies, partial(_choose, is_copy=True), _rewrite
)
