"""Cumulative ops as kernels: blocks are scanned side by side.

One running value after the other waits for the sum before it. So a worker carries several: those
of neighbouring columns, or of blocks of one long row.

    blocks       x x x x   x x x x   x x x x   x x
    their totals    t0        t1        t2
    starts        0        t0     t0+t1   t0+t1+t2
    results      start + the running sum of the block's own elements

Where blocks are depends on the shape only. A total is made in the order of its block, so that the
last result of a block is the start of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Launch, Launches
from gpuflow.core.views import View
from gpuflow.kir.nodes import Kernel, Mode, Value
from gpuflow.kir.scalar import PARTS, compute_dtype, storage_bytes
from gpuflow.ops.handwritten.launch import array, builder_of, is_held, launch, number, worker_axes

BLOCK = 256  # elements of a block
_ENOUGH_LANES = 64  # columns or rows that keep all workers busy without blocks
_NEIGHBOURS = 16  # running values of a worker, where they lie side by side in memory
_APART = 4  # where they do not: more of them would push each other out of the cache

X, OUT, WORKSPACE = 0, 1, 2


@record
class Combine:
    """The combining function of a scan.

    Attributes:
        name: an associative function of kir.scalar.
        neutral: ``compute dtype -> its neutral element``.
        in_blocks: ``dtype -> bool``: results may be made of blocks; else in order only.
    """

    name: str
    neutral: Callable[[str], Any]
    in_blocks: Callable[[Any], bool]


@record
class _Dim:
    """A dimension of independent running values: its size and strides.

    ``starts`` is the stride in the totals of blocks and in the starts.
    """

    size: int
    x: int
    out: int
    starts: int = 0


@record
class _Line:
    """Where running values go: how many steps, how far each is, and where they begin.

    All but ``count`` are in elements; ``starts`` is None where all begin with the neutral element.
    """

    count: int
    x: int
    out: int
    x_first: int
    out_first: int
    starts: int | None = None


def _running_dtype(dtype: str, name: str) -> str:
    """The dtype of running values: sums of float32 would lose a digit in every thousand terms."""
    wide = compute_dtype(dtype)
    return "float64" if (wide, name) == ("float32", "add") else wide


# --- kernels -------------------------------------------------------------------------------


@cache
def _kernel(dtype: str, name: str, neutral: Any, kept: str, chains: int, started: bool) -> Kernel:
    """A kernel that carries ``chains`` running values.

    Args:
        dtype: of x in memory.
        name, neutral: see Combine.
        kept: "all" results, the "last" of each, or those "before" each step and the last.
        chains: how many; 16 lie side by side in x, and in a result of which all are kept.
        started: whether results are combined with starts.
    """
    axes, wide = worker_axes(3), _running_dtype(dtype, name)
    operands = [array("x", dtype, Mode.IN, 3)]
    operands.append(array("o", dtype if kept == "all" else wide, Mode.OUT, 3))
    kept_dtype = compute_dtype(dtype) if kept == "all" else wide
    if started:
        operands.append(array("f", wide, Mode.IN, 3))
    walked = [operand.name for operand in operands]
    scalars = ["count", *(f"{name}_{part}" for name in walked for part in ("step", "chain"))]
    operands += [number(scalar, 3) for scalar in scalars]
    builder = builder_of(operands, axes)
    side_by_side = chains == _NEIGHBOURS

    def at(operand: str, chain: int, step: Value | None = None) -> Value | None:
        """The element of a chain; None: the very first."""
        base = None
        if step is not None:
            base = builder.apply("mul", step, builder.load(f"{operand}_step"))
        if chain == 0:
            return base
        offset = builder.const("int64", chain)
        if not (side_by_side and (operand == "x" or (operand == "o" and kept == "all"))):
            offset = builder.apply("mul", offset, builder.load(f"{operand}_chain"))
        return offset if base is None else builder.apply("add", base, offset)

    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        start = builder.const(wide, neutral)
        firsts = [builder.load("f", at("f", c)) for c in range(chains)] if started else []

        def step(k: Value, *running: Value) -> list[Value]:
            loaded = [builder.cast(builder.load("x", at("x", c, k)), wide) for c in range(chains)]
            after = [builder.apply(name, a, b) for a, b in zip(running, loaded, strict=True)]
            results = list(running) if kept == "before" else after
            if started:
                results = [builder.apply(name, a, b) for a, b in zip(firsts, after, strict=True)]
            if kept != "last":
                for c, result in enumerate(results):
                    builder.store("o", builder.cast(result, kept_dtype), at("o", c, k))
            return after

        count = builder.load("count")
        ends = builder.for_count(count, [start] * chains, step)
        if kept != "all":
            last = None if kept == "last" else count
            for c, end in enumerate(ends):
                builder.store("o", end, at("o", c, last))
    return Kernel(f"scan_{name}_{kept}_{chains}", axes, tuple(operands), builder.finish())


# --- launches ------------------------------------------------------------------------------


def scan_launches(
    combine: Combine, views: Sequence[View], outs: Sequence[ShapedArray], axis: int, reverse: bool
) -> Launches | None:
    """The launches of a scan along ``axis``, or None where NumPy does it.

    Args:
        combine: the combining function.
        views: the layout of the operand.
        outs: the type of the result.
        axis, reverse: of the op.
    """
    (view,), (out,) = views, outs
    by_parts = combine.name == "add" and storage_name(out.dtype) in PARTS
    if out.size == 0 or not (by_parts or is_held(out.dtype)):
        return None
    lengths, strides = out.shape, view.strides
    outer = _joined(lengths[:axis], strides[:axis], prod(lengths[axis:]))
    inner = _joined(lengths[axis + 1 :], strides[axis + 1 :], 1)
    if outer is None or inner is None:
        return None
    x, o, first = strides[axis], prod(lengths[axis + 1 :]), view.offset
    dtype = storage_name(out.dtype)
    if by_parts:
        # Complex numbers are pairs of real ones, and the parts are added each by itself.
        if inner.size > 1 and inner.x != 1:
            return None
        dtype = PARTS[dtype]
        outer = _Dim(outer.size, 2 * outer.x, 2 * outer.out)
        inner = _Dim(2 * inner.size, 1, 1)
        x, o, first = 2 * x, 2 * o, 2 * first
    line = _Line(lengths[axis], x, o, first, 0)
    if reverse:
        line = _Line(line.count, -x, -o, first + (line.count - 1) * x, (line.count - 1) * o)
    lanes, blocks = outer.size * inner.size, line.count // BLOCK
    if blocks < 4 or lanes >= _ENOUGH_LANES or not combine.in_blocks(out.dtype):
        return Launches(tuple(_Maker(combine, dtype).grouped("all", (outer, inner), line)))
    # The last start is that of the elements behind the blocks.
    outer = _Dim(outer.size, outer.x, outer.out, inner.size * (blocks + 1))
    inner = _Dim(inner.size, inner.x, inner.out, blocks + 1)
    return _Maker(combine, dtype, lanes * (blocks + 1)).in_blocks(outer, inner, line, blocks)


def _joined(sizes: Sequence[int], strides: Sequence[int], unit: int) -> _Dim | None:
    """Dimensions as one; ``unit`` is the stride of the last one in the row-major result."""
    size, stride = 1, 0
    for extent, step in zip(reversed(sizes), reversed(strides), strict=True):
        if extent == 1:
            continue
        if size == 1:
            stride = step
        elif step != stride * size:
            return None
        size *= extent
    return _Dim(size, stride, unit)


def _chained(dims: Sequence[_Dim]) -> tuple[int, int]:
    """The dimension whose neighbours one worker carries, and how many."""
    for d, dim in enumerate(dims):
        if dim.size >= _NEIGHBOURS and dim.x == dim.out == 1:
            return d, _NEIGHBOURS
    longest = max(range(len(dims)), key=lambda d: dims[d].size)
    return longest, _APART if dims[longest].size >= _APART else 1


@record
class _Walk:
    """How a kernel walks through an array.

    Attributes:
        array: its number.
        first: bytes from its start.
        step, chain, strides: elements from one step, running value and worker to the next.
    """

    array: int
    first: int
    step: int
    chain: int
    strides: tuple[int, ...]


def _launched(
    kernel: Kernel, sizes: Sequence[int], walks: dict[str, _Walk], count: int, chains: int
) -> Launch:
    """The launch of a kernel of ``_kernel``, with the longest axis first: threads share it."""
    order = sorted(range(len(sizes)), key=lambda d: -sizes[d])
    more = 3 - len(sizes)
    extents = [*[sizes[d] for d in order], *[1] * more]
    numbers = {"count": count}
    strides = {}
    for name, walk in walks.items():
        strides[name] = [*[walk.strides[d] for d in order], *[0] * more]
        numbers |= {f"{name}_step": walk.step, f"{name}_chain": walk.chain}
    arrays = {name: (walk.array, walk.first) for name, walk in walks.items()}
    return launch(kernel, arrays, extents, strides, numbers, prod(extents) * chains * count)


@record
class _Maker:
    """Makes the launches of one scan; ``totals`` is how many totals of blocks there are."""

    combine: Combine
    dtype: str
    totals: int = 0

    def in_blocks(self, outer: _Dim, inner: _Dim, line: _Line, blocks: int) -> Launches:
        """Totals of blocks, their starts, and the results."""
        block = _Dim(blocks, BLOCK * line.x, BLOCK * line.out, 1)
        whole = _Line(BLOCK, line.x, line.out, line.x_first, line.out_first, 0)
        launches = self.grouped("last", (block, outer, inner), whole)
        launches.append(self._starts(outer, inner, blocks))
        launches += self.grouped("all", (block, outer, inner), whole)
        done = blocks * BLOCK
        if line.count > done:
            x, out = line.x_first + done * line.x, line.out_first + done * line.out
            rest = _Line(line.count - done, line.x, line.out, x, out, blocks)
            launches += self.grouped("all", (outer, inner), rest)
        return Launches(tuple(launches), 2 * self._starts_at)

    @property
    def _wide(self) -> str:
        """The dtype of totals and starts."""
        return _running_dtype(self.dtype, self.combine.name)

    @property
    def _starts_at(self) -> int:
        """The bytes of all totals; behind them lie the starts."""
        return self.totals * storage_bytes(self._wide)

    def _starts(self, outer: _Dim, inner: _Dim, blocks: int) -> Launch:
        """The launch that turns totals into starts."""
        strides = outer.starts, inner.starts
        kernel = self._kernel(self._wide, "before", 1, False)
        walks = {
            "x": _Walk(WORKSPACE, 0, 1, 0, strides),
            "o": _Walk(WORKSPACE, self._starts_at, 1, 0, strides),
        }
        return _launched(kernel, (outer.size, inner.size), walks, blocks, 1)

    def grouped(self, kept: str, dims: Sequence[_Dim], line: _Line) -> list[Launch]:
        """Launches over all running values, in groups, and over those that are left."""
        place, chains = _chained(dims)
        chain = dims[place]
        groups, rest = divmod(chain.size, chains)
        launches = []
        for size, first, count in ((groups, 0, chains), (rest, groups * chains, 1)):
            if size:
                group = list(dims)
                group[place] = _Dim(size, count * chain.x, count * chain.out, count * chain.starts)
                launches.append(self._group(kept, group, line, chain, first, count))
        return launches

    def _group(
        self, kept: str, dims: Sequence[_Dim], line: _Line, chain: _Dim, first: int, chains: int
    ) -> Launch:
        """One launch; its first running value is number ``first`` along the dimension ``chain``."""
        small, large = storage_bytes(self.dtype), storage_bytes(self._wide)
        started = line.starts is not None and kept == "all"
        total = ((line.starts or 0) + first * chain.starts) * large
        starts = tuple(dim.starts for dim in dims)
        x_first = (line.x_first + first * chain.x) * small
        walks = {"x": _Walk(X, x_first, line.x, chain.x, tuple(dim.x for dim in dims))}
        if kept == "last":
            walks["o"] = _Walk(WORKSPACE, total, 0, chain.starts, starts)
        else:
            out_first = (line.out_first + first * chain.out) * small
            outs = tuple(dim.out for dim in dims)
            walks["o"] = _Walk(OUT, out_first, line.out, chain.out, outs)
        if started:
            walks["f"] = _Walk(WORKSPACE, self._starts_at + total, 0, chain.starts, starts)
        kernel = self._kernel(self.dtype, kept, chains, started)
        return _launched(kernel, [dim.size for dim in dims], walks, line.count, chains)

    def _kernel(self, dtype: str, kept: str, chains: int, started: bool) -> Kernel:
        neutral = self.combine.neutral(_running_dtype(dtype, self.combine.name))
        return _kernel(dtype, self.combine.name, neutral, kept, chains, started)
