"""Operands of which every second element is read, or the last one first: the stride in the text.

    for i: y[i] = f(x[i * stride])        for i: y[i] = f(x[i * 2])

LLVM reads a vector of such elements with a few whole loads where it knows how they lie, and one
after the other where an argument says so; then nothing else of the loop is a vector either.
"""

from __future__ import annotations

from dataclasses import replace

from gpuflow.compiler.lowering.call_layout import distances_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import Kernel, Mode, Stride, arguments, remembered

# Points from which on it pays to build one more kernel.
SMALLEST_KNOWN = 1 << 12
_KNOWN = {stride.number: stride for stride in (Stride.BACK, Stride.TWO, Stride.THREE, Stride.FOUR)}

Known = tuple[tuple[str, Stride], ...]  # operands, and how they lie along the last axis


def _applies(kernel: Kernel) -> bool:
    return bool(kernel.axes) and bool(_spread(kernel))


def _spread(kernel: Kernel) -> list[str]:
    """The operands that are read along the last axis with a stride of the call."""
    operands = [o for o in kernel.operands if o.mode is Mode.IN]
    return [o.name for o in operands if o.strides[-1:] == (Stride.ANY,)]


def _choose(call: KernelCall) -> Known | None:
    if call.points < SMALLEST_KNOWN:
        return None
    kernel = call.kernel
    last, distances = kernel.axes[-1].name, distances_of(kernel)
    numbers = {name: distances[name, last].within(call.words) for name in _spread(kernel)}
    known = [(name, _KNOWN[n]) for name, n in numbers.items() if n in _KNOWN]
    return tuple(known) or None


def _rewrite(call: KernelCall, known: Known, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    kernel = remembered(call.kernel, with_strides, known)
    kept = remembered(kernel, arguments)
    words = zip(arguments(call.kernel), call.words, strict=True)
    return (call._replace(kernel=kernel, words=tuple([w for a, w in words if a in kept])),)


def with_strides(kernel: Kernel, known: Known) -> Kernel:
    """The kernel with strides along its last axis written into it."""
    strides = dict(known)
    operands = tuple(
        replace(o, strides=(*o.strides[:-1], strides[o.name])) if o.name in strides else o
        for o in kernel.operands
    )
    return replace(kernel, operands=operands)


KNOWN_STRIDES = Schedule("known strides", _applies, _choose, _rewrite)
