"""Specialization of kernels to static strides, for operands with small or negative strides.

    for i: y[i] = f(x[i * stride])        for i: y[i] = f(x[i * 2])

If the stride is static, LLVM loads such a vector with a few contiguous loads and shuffles. If it is
an argument, LLVM loads elements one at a time, and does not vectorize the loop.

A short innermost loop is unrolled, and the loop around it is vectorized. With rows of two elements,
both are then stored at once, in contiguous vectors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuflow.compiler.lowering.call_layout import distances_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import Kernel, Mode, Stride, arguments, remembered

SMALLEST_KNOWN = 1 << 12  # points of a call that are worth one more kernel
_KNOWN = {n: stride for stride in Stride if (n := stride.number)}
LONGEST_KNOWN = max(_KNOWN)  # for larger strides, LLVM does not use contiguous loads

Static = tuple[tuple[str, int, Stride], ...]  # operands, axes, and strides


def _applies(kernel: Kernel) -> bool:
    return bool(_strided(kernel))


def _strided(kernel: Kernel) -> list[tuple[str, int]]:
    """Pairs of operand and axis whose stride is dynamic, along the loop that is vectorized.

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


def _choose(call: KernelCall, is_copy: bool = False) -> Static | None:
    axes, distances = call.kernel.axes, distances_of(call.kernel)
    strides = []
    for name, d in _strided(call.kernel):
        stride = _KNOWN.get(distances[name, axes[d].name].within(call.slots))
        if stride is None:
            continue
        # Around rows of exact size, only strides that follow from that size. Other strides may be
        # sizes of a batch, each of which would build a kernel. Copies are large enough for that.
        follows = d < len(axes) - 1 and stride.number in (1, axes[-1].exact)
        if follows or is_copy or (d == len(axes) - 1 and call.points >= SMALLEST_KNOWN):
            strides.append((name, d, stride))
    return tuple(strides) or None


def _rewrite(call: KernelCall, strides: Static, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    kernel = remembered(call.kernel, with_strides, strides)
    remaining = remembered(kernel, arguments)
    slots = zip(arguments(call.kernel), call.slots, strict=True)
    return (call._replace(kernel=kernel, slots=tuple([w for a, w in slots if a in remaining])),)


def with_strides(kernel: Kernel, static: Static) -> Kernel:
    """Specialize the kernel to static strides."""
    strides = {(name, d): stride for name, d, stride in static}
    operands = []
    for o in kernel.operands:
        kinds = [strides.get((o.name, d), kind) for d, kind in enumerate(o.strides)]
        operands.append(replace(o, strides=tuple(kinds)))
    return replace(kernel, operands=tuple(operands))


KNOWN_STRIDES = Schedule("known strides", _applies, _choose, _rewrite)
KNOWN_STRIDES_OF_COPIES = Schedule(
    "known strides", _applies, partial(_choose, is_copy=True), _rewrite
)
