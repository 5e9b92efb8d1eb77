"""Operands of which every second element is read, or the last one first: the stride in the text.

    for i: y[i] = f(x[i * stride])        for i: y[i] = f(x[i * 2])

LLVM reads a vector of such elements with a few whole loads where it knows how they lie, and one
after the other where an argument says so; then nothing else of the loop is a vector either.

A short innermost loop is written out, and vectors are those of the loop around it: with rows of
two, both elements are stored at once, in whole vectors.
"""

from __future__ import annotations

from dataclasses import replace

from gpuflow.compiler.lowering.call_layout import distances_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import Kernel, Mode, Operand, Stride, arguments, remembered

# Points from which on it pays to build one more kernel.
SMALLEST_KNOWN = 1 << 12
_READ = (Mode.IN, Mode.INDEX)
_KNOWN = {n: stride for stride in Stride if (n := stride.number)}
LONGEST_KNOWN = max(_KNOWN)  # further apart LLVM makes no whole loads

Known = tuple[tuple[str, Stride], ...]  # operands, and how they lie along the loop of vectors


def _applies(kernel: Kernel) -> bool:
    return bool(_spread(kernel))


def _place(kernel: Kernel) -> int:
    """Which of the axes is the loop that vectors are made of."""
    is_written_out = len(kernel.axes) > 1 and kernel.axes[-1].exact is not None
    return len(kernel.axes) - (2 if is_written_out else 1)


def _spread(kernel: Kernel) -> list[str]:
    """The operands that go along that loop with a stride of the call."""
    place = _place(kernel)
    # Stores that leave gaps stay single.
    modes = (Mode.IN,) if place == len(kernel.axes) - 1 else (*_READ, Mode.OUT, Mode.INOUT)
    operands = [o for o in kernel.operands if o.mode in modes]
    return [o.name for o in operands if o.strides[place : place + 1] == (Stride.ANY,)]


def _choose(call: KernelCall) -> Known | None:
    if call.points < SMALLEST_KNOWN:
        return None
    kernel = call.kernel
    axis, distances = kernel.axes[_place(kernel)].name, distances_of(kernel)
    numbers = {name: distances[name, axis].within(call.words) for name in _spread(kernel)}
    known = [(name, _KNOWN[n]) for name, n in numbers.items() if n in _KNOWN]
    return tuple(known) or None


def _rewrite(call: KernelCall, known: Known, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    kernel = remembered(call.kernel, with_strides, known)
    kept = remembered(kernel, arguments)
    words = zip(arguments(call.kernel), call.words, strict=True)
    return (call._replace(kernel=kernel, words=tuple([w for a, w in words if a in kept])),)


def with_strides(kernel: Kernel, known: Known) -> Kernel:
    """The kernel with strides along its loop of vectors written into it."""
    strides, place = dict(known), _place(kernel)

    def written(o: Operand) -> Operand:
        kinds = (*o.strides[:place], strides[o.name], *o.strides[place + 1 :])
        return replace(o, strides=kinds)

    operands = tuple(written(o) if o.name in strides else o for o in kernel.operands)
    return replace(kernel, operands=operands)


KNOWN_STRIDES = Schedule("known strides", _applies, _choose, _rewrite)
