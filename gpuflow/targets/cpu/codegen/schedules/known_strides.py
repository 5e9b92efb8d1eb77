"""Static strides in the text, for operands with small or negative strides.

    for i: y[i] = f(x[i * stride])        for i: y[i] = f(x[i * 2])

LLVM reads a vector of such elements with a few whole loads if the stride is static, and one by one
if it is an argument; then the rest of the loop is not vectorized either.

A short innermost loop is unrolled, and vectors are those of the loop around it: with rows of two,
both elements are stored at once, in whole vectors.
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
LONGEST_KNOWN = max(_KNOWN)  # for larger strides LLVM makes no whole loads

Static = tuple[tuple[str, int, Stride], ...]  # operands, axes, and strides


def _applies(kernel: Kernel) -> bool:
    return bool(_strided(kernel))


def _strided(kernel: Kernel) -> list[tuple[str, int]]:
    """The operands with a dynamic stride along the vectorized loop, and its axis.

    It is the innermost loop, or the one around an unrolled loop, whose strides count too.
    """
    last = len(kernel.axes) - 1
    found = [(o.name, last) for o in kernel.operands if o.mode is Mode.IN]
    if last > 0 and kernel.axes[last].exact is not None:
        # Rows are stored whole; else stores would be strided, and stay scalar.
        modes = (Mode.IN, Mode.INDEX, Mode.OUT, Mode.INOUT)
        found += [(o.name, last - 1) for o in kernel.operands if o.mode in modes]
    strides = {o.name: o.strides for o in kernel.operands}
    return [(name, d) for name, d in found if strides[name][d : d + 1] == (Stride.ANY,)]


def _choose(call: KernelCall, is_copy: bool = False) -> Static | None:
    axes, distances = call.kernel.axes, distances_of(call.kernel)
    strides = []
    for name, d in _strided(call.kernel):
        stride = _KNOWN.get(distances[name, axes[d].name].within(call.slots))
        if stride is None:
            continue
        # Around rows of static size, only strides that follow from it: others would be sizes of a
        # batch, with a kernel for each. Copies are large.
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
    """The kernel with strides written into it."""
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
