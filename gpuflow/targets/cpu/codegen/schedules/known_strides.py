"""Operands of which every second element is read, or the last one first: the stride in the text.

    for i: y[i] = f(x[i * stride])        for i: y[i] = f(x[i * 2])

LLVM reads a vector of such elements with a few whole loads if it knows their stride, and one after
the other if it is an argument; then nothing else of the loop is vectorized either.

A short innermost loop is written out, and vectors are those of the loop around it: with rows of
two, both elements are stored at once, in whole vectors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuflow.compiler.lowering.call_layout import distances_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import Kernel, Mode, Stride, arguments, remembered

# Points from which on it pays to build one more kernel.
SMALLEST_KNOWN = 1 << 12
_READ = (Mode.IN, Mode.INDEX)
_KNOWN = {n: stride for stride in Stride if (n := stride.number)}
LONGEST_KNOWN = max(_KNOWN)  # further apart LLVM makes no whole loads

Known = tuple[tuple[str, int, Stride], ...]  # operands, axes, and how they lie along these


def _applies(kernel: Kernel) -> bool:
    return bool(_spread(kernel))


def _spread(kernel: Kernel) -> list[tuple[str, int]]:
    """The operands that go along the loop of vectors with a stride of the call, and the axis.

    It is the innermost one, or the one around a loop that is written out, whose strides count too.
    """
    last = len(kernel.axes) - 1
    found = [(o.name, last) for o in kernel.operands if o.mode is Mode.IN]
    if last > 0 and kernel.axes[last].exact is not None:
        # Rows are stored whole; else stores would leave gaps, and stay single.
        modes = (Mode.IN, Mode.INDEX, Mode.OUT, Mode.INOUT)
        found += [(o.name, last - 1) for o in kernel.operands if o.mode in modes]
    strides = {o.name: o.strides for o in kernel.operands}
    return [(name, d) for name, d in found if strides[name][d : d + 1] == (Stride.ANY,)]


def _choose(call: KernelCall, is_copy: bool = False) -> Known | None:
    axes, distances = call.kernel.axes, distances_of(call.kernel)
    known = []
    for name, d in _spread(call.kernel):
        stride = _KNOWN.get(distances[name, axes[d].name].within(call.words))
        if stride is None:
            continue
        # Around rows whose size is in the text, strides that follow from it, in all calls: others
        # would be sizes of a batch, and each would have a kernel. Copies are large.
        follows = d < len(axes) - 1 and stride.number in (1, axes[-1].exact)
        if follows or is_copy or (d == len(axes) - 1 and call.points >= SMALLEST_KNOWN):
            known.append((name, d, stride))
    return tuple(known) or None


def _rewrite(call: KernelCall, known: Known, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    kernel = remembered(call.kernel, with_strides, known)
    kept = remembered(kernel, arguments)
    words = zip(arguments(call.kernel), call.words, strict=True)
    return (call._replace(kernel=kernel, words=tuple([w for a, w in words if a in kept])),)


def with_strides(kernel: Kernel, known: Known) -> Kernel:
    """The kernel with strides written into it."""
    strides = {(name, d): stride for name, d, stride in known}
    operands = []
    for o in kernel.operands:
        kinds = [strides.get((o.name, d), kind) for d, kind in enumerate(o.strides)]
        operands.append(replace(o, strides=tuple(kinds)))
    return replace(kernel, operands=tuple(operands))


KNOWN_STRIDES = Schedule("known strides", _applies, _choose, _rewrite)
KNOWN_STRIDES_OF_COPIES = Schedule(
    "known strides", _applies, partial(_choose, is_copy=True), _rewrite
)
