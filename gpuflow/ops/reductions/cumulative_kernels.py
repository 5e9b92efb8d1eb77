"""Blocked scan kernels of cumulative ops.

Each running value depends on the one before it. So a worker carries several: those of adjacent
columns, or of blocks of one long row.

    blocks       x x x x   x x x x   x x x x   x x
    their totals    t0        t1        t2
    starts        0        t0     t0+t1   t0+t1+t2
    results      start + the running sum of the block's own elements

The block layout depends only on the shape. A total is summed in the order of its block, so that
the last result of a block is the start of the next one.

Tests: tests/ops/test_scan_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Launch, Launches
from gpuflow.core.views import View
from gpuflow.kir.nodes import Kernel, Mode, Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, compute_dtype, storage_bytes
from gpuflow.ops.handwritten.launch import (
    array,
    builder_of,
    fits_kernels,
    launch,
    number,
    worker_axes,
)

BLOCK = 256  # elements of a block
_ENOUGH_ROWS = 64  # columns or rows that keep all workers busy without blocks
_CONTIGUOUS = 16  # running values of a worker, if they are contiguous in memory
_STRIDED = 4  # if they are not: more of them would evict each other from the cache

X, OUT, WORKSPACE = 0, 1, 2


@record
class Combine:
    """The combining function of a scan.

    Attributes:
        name: an associative function of kir.scalar.
        neutral: ``compute dtype -> its neutral element``.
        in_blocks: ``dtype -> bool``: whether blocks are allowed; else in order only.
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
class _Scan:
    """Scan of running values: number of steps, strides, and offsets of the first elements.

    All but ``count`` are in elements; ``starts`` is None if all begin with the neutral element.
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
def _kernel(dtype: str, name: str, neutral: Any, stored: str, chains: int, started: bool) -> Kernel:
    """A kernel that carries ``chains`` running values.

    Args:
        dtype: of x in memory.
        name, neutral: see Combine.
        stored: "all" results, the "last" of each, or those "before" each step and the last.
        chains: how many; 16 are contiguous in x, and in a result of which all are stored.
        started: whether results are combined with starts.
    """
    axes, wide = worker_axes(3), _running_dtype(dtype, name)
    operands = [array("x", dtype, Mode.IN, 3)]
    operands.append(array("o", dtype if stored == "all" else wide, Mode.OUT, 3))
    out_dtype = compute_dtype(dtype) if stored == "all" else wide
    if started:
        operands.append(array("f", wide, Mode.IN, 3))
    accessed = [operand.name for operand in operands]
    scalars = ["count", *(f"{name}_{suffix}" for name in accessed for suffix in ("step", "chain"))]
    operands += [number(scalar, 3) for scalar in scalars]
    builder = builder_of(operands, axes)
    is_contiguous = chains == _CONTIGUOUS

    def at(operand: str, chain: int, step: Value | None = None) -> Value | None:
        """The element of a chain; None for the first of chain 0."""
        base = None
        if step is not None:
            base = builder.apply("mul", step, builder.load(f"{operand}_step"))
        if chain == 0:
            return base
        offset = builder.const("int64", chain)
        if not (is_contiguous and (operand == "x" or (operand == "o" and stored == "all"))):
            offset = builder.apply("mul", offset, builder.load(f"{operand}_chain"))
        return offset if base is None else builder.apply("add", base, offset)

    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        start = builder.const(wide, neutral)
        firsts = [builder.load("f", at("f", c)) for c in range(chains)] if started else []

        def step(k: Value, *running: Value) -> list[Value]:
            loaded = [builder.cast(builder.load("x", at("x", c, k)), wide) for c in range(chains)]
            after = [builder.apply(name, a, b) for a, b in zip(running, loaded, strict=True)]
            results = list(running) if stored == "before" else after
            if started:
                results = [builder.apply(name, a, b) for a, b in zip(firsts, after, strict=True)]
            if stored != "last":
                for c, result in enumerate(results):
                    builder.store("o", builder.cast(result, out_dtype), at("o", c, k))
            return after

        count = builder.load("count")
        ends = builder.for_count(count, [start] * chains, step)
        if stored != "all":
            last = None if stored == "last" else count
            for c, end in enumerate(ends):
                builder.store("o", end, at("o", c, last))
    return Kernel(f"scan_{name}_{stored}_{chains}", axes, tuple(operands), builder.finish())


# --- launches ------------------------------------------------------------------------------


def scan_launches(
    combine: Combine, views: Sequence[View], outs: Sequence[ShapedArray], axis: int, reverse: bool
) -> Launches | None:
    """The launches of a scan along ``axis``; None if NumPy does it.

    Args:
        combine: the combining function.
        views: the layout of the operand.
        outs: the type of the result.
        axis, reverse: of the op.
    """
    (view,), (out,) = views, outs
    by_components = combine.name == "add" and storage_name(out.dtype) in COMPONENT_DTYPES
    if out.size == 0 or not (by_components or fits_kernels(out.dtype)):
        return None
    lengths, strides = out.shape, view.strides
    outer = _merged(lengths[:axis], strides[:axis], prod(lengths[axis:]))
    inner = _merged(lengths[axis + 1 :], strides[axis + 1 :], 1)
    if outer is None or inner is None:
        return None
    x, o, first = strides[axis], prod(lengths[axis + 1 :]), view.offset
    dtype = storage_name(out.dtype)
    if by_components:
        # Complex numbers are pairs of real ones, whose components are added separately.
        if inner.size > 1 and inner.x != 1:
            return None
        dtype = COMPONENT_DTYPES[dtype]
        outer = _Dim(outer.size, 2 * outer.x, 2 * outer.out)
        inner = _Dim(2 * inner.size, 1, 1)
        x, o, first = 2 * x, 2 * o, 2 * first
    scan = _Scan(lengths[axis], x, o, first, 0)
    if reverse:
        scan = _Scan(scan.count, -x, -o, first + (scan.count - 1) * x, (scan.count - 1) * o)
    rows, blocks = outer.size * inner.size, scan.count // BLOCK
    if blocks < 4 or rows >= _ENOUGH_ROWS or not combine.in_blocks(out.dtype):
        return Launches(tuple(_Maker(combine, dtype).grouped("all", (outer, inner), scan)))
    # The last start is that of the elements after the blocks.
    outer = _Dim(outer.size, outer.x, outer.out, inner.size * (blocks + 1))
    inner = _Dim(inner.size, inner.x, inner.out, blocks + 1)
    return _Maker(combine, dtype, rows * (blocks + 1)).in_blocks(outer, inner, scan, blocks)


def _merged(sizes: Sequence[int], strides: Sequence[int], unit: int) -> _Dim | None:
    """Merge dimensions; ``unit`` is the stride of the last one in the row-major result."""
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
    """The dimension along which a worker carries several running values, and their count."""
    for d, dim in enumerate(dims):
        if dim.size >= _CONTIGUOUS and dim.x == dim.out == 1:
            return d, _CONTIGUOUS
    longest = max(range(len(dims)), key=lambda d: dims[d].size)
    return longest, _STRIDED if dims[longest].size >= _STRIDED else 1


@record
class _Access:
    """Access pattern of an array in a kernel.

    Attributes:
        array: its index.
        first: byte offset of the first element.
        step, chain, strides: elements from one step, running value and worker to the next.
    """

    array: int
    first: int
    step: int
    chain: int
    strides: tuple[int, ...]


def _launched(
    kernel: Kernel, sizes: Sequence[int], accesses: dict[str, _Access], count: int, chains: int
) -> Launch:
    """The launch of a kernel of ``_kernel``, with the longest axis first, for threads."""
    order = sorted(range(len(sizes)), key=lambda d: -sizes[d])
    more = 3 - len(sizes)
    extents = [*[sizes[d] for d in order], *[1] * more]
    scalars = {"count": count}
    strides = {}
    for name, access in accesses.items():
        strides[name] = [*[access.strides[d] for d in order], *[0] * more]
        scalars |= {f"{name}_step": access.step, f"{name}_chain": access.chain}
    arrays = {name: (access.array, access.first) for name, access in accesses.items()}
    return launch(kernel, arrays, extents, strides, scalars, prod(extents) * chains * count)


@record
class _Maker:
    """Builds the launches of one scan; ``totals`` is the number of totals of blocks."""

    combine: Combine
    dtype: str
    totals: int = 0

    def in_blocks(self, outer: _Dim, inner: _Dim, scan: _Scan, blocks: int) -> Launches:
        """Launches for totals of blocks, their starts, and the results."""
        block = _Dim(blocks, BLOCK * scan.x, BLOCK * scan.out, 1)
        block_scan = _Scan(BLOCK, scan.x, scan.out, scan.x_first, scan.out_first, 0)
        launches = self.grouped("last", (block, outer, inner), block_scan)
        launches.append(self._starts(outer, inner, blocks))
        launches += self.grouped("all", (block, outer, inner), block_scan)
        done = blocks * BLOCK
        if scan.count > done:
            x, out = scan.x_first + done * scan.x, scan.out_first + done * scan.out
            tail = _Scan(scan.count - done, scan.x, scan.out, x, out, blocks)
            launches += self.grouped("all", (outer, inner), tail)
        return Launches(tuple(launches), 2 * self._starts_at)

    @property
    def _wide(self) -> str:
        """The dtype of totals and starts."""
        return _running_dtype(self.dtype, self.combine.name)

    @property
    def _starts_at(self) -> int:
        """Byte offset of the starts, which follow all totals."""
        return self.totals * storage_bytes(self._wide)

    def _starts(self, outer: _Dim, inner: _Dim, blocks: int) -> Launch:
        """The launch that computes starts from totals."""
        strides = outer.starts, inner.starts
        kernel = self._kernel(self._wide, "before", 1, False)
        accesses = {
            "x": _Access(WORKSPACE, 0, 1, 0, strides),
            "o": _Access(WORKSPACE, self._starts_at, 1, 0, strides),
        }
        return _launched(kernel, (outer.size, inner.size), accesses, blocks, 1)

    def grouped(self, stored: str, dims: Sequence[_Dim], scan: _Scan) -> list[Launch]:
        """Launches over groups of running values, and over the remaining ones."""
        axis, chains = _chained(dims)
        chain = dims[axis]
        groups, tail = divmod(chain.size, chains)
        launches = []
        for size, first, count in ((groups, 0, chains), (tail, groups * chains, 1)):
            if size:
                group = list(dims)
                group[axis] = _Dim(size, count * chain.x, count * chain.out, count * chain.starts)
                launches.append(self._group(stored, group, scan, chain, first, count))
        return launches

    def _group(
        self, stored: str, dims: Sequence[_Dim], scan: _Scan, chain: _Dim, first: int, chains: int
    ) -> Launch:
        """One launch; its first running value is at ``first`` along the dimension ``chain``."""
        small, large = storage_bytes(self.dtype), storage_bytes(self._wide)
        started = scan.starts is not None and stored == "all"
        total = ((scan.starts or 0) + first * chain.starts) * large
        starts = tuple(dim.starts for dim in dims)
        x_first = (scan.x_first + first * chain.x) * small
        accesses = {"x": _Access(X, x_first, scan.x, chain.x, tuple(dim.x for dim in dims))}
        if stored == "last":
            accesses["o"] = _Access(WORKSPACE, total, 0, chain.starts, starts)
        else:
            out_first = (scan.out_first + first * chain.out) * small
            outs = tuple(dim.out for dim in dims)
            accesses["o"] = _Access(OUT, out_first, scan.out, chain.out, outs)
        if started:
            accesses["f"] = _Access(WORKSPACE, self._starts_at + total, 0, chain.starts, starts)
        kernel = self._kernel(self.dtype, stored, chains, started)
        return _launched(kernel, [dim.size for dim in dims], accesses, scan.count, chains)

    def _kernel(self, dtype: str, stored: str, chains: int, started: bool) -> Kernel:
        neutral = self.combine.neutral(_running_dtype(dtype, self.combine.name))
        return _kernel(dtype, self.combine.name, neutral, stored, chains, started)
