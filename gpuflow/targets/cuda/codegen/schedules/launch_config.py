"""Launch configurations: the distribution of a kernel's points over threads, grids and blocks.

A *point* is one index of all PARALLEL (and VECTOR) axes; points are independent. A *group* is the
threads that compute one point together, a *member* one of these threads. The kernel's text and its
launches must use the same configuration.

    strategy   group of a point        groups in a block        members combine through
    point      one thread              256; 64 with loops       nothing
    row        blockDim.x threads      blockDim.y               shuffles, then shared memory
    column     blockDim.y threads      32, or 32 pairs, in x    shared memory
    full       the whole grid          -                        the last block to finish

If Strips tile two axes, the points of strategy "point" are tiles, and a block computes each.
Kernels of a program that a single block runs are printed for that block, never as "full".

The text is independent of sizes. At each launch, sizes decide whether a row gets a warp or a block,
and whether the group holds the row in registers.
With 32-bit indices, the sum of points and threads must stay below 2**31 (see ``index_bits``).

Tests: tests/targets/cuda/test_cuda_schedule.py, tests/targets/cuda/test_cuda_cache.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Axis, Block, Kernel, Role, Stride
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import has_long_loops
from gpuflow.targets.cuda.codegen.printing.vector_accesses import (
    MAX_REGISTER_VECTORS,
    VECTOR_BYTES,
    column_pairs,
    group_vectors,
    is_vector_access,
    read_after_write,
)

POINT_ROLES = (Role.PARALLEL, Role.VECTOR)
MEMBER_ROLES = (Role.ROW, Role.REDUCE)

WARP = 32
POINT_THREADS = 256  # threads of a block, for points without inner loops
# Block size for points with inner loops: a few thousand points fill a device, and a block runs as
# long as the longest of its loops.
INNER_LOOP_THREADS = 64
FULL_THREADS = 256  # threads of a block of a full reduction
# Threads of a single block along x and y: a warp for a row, eight members for a column.
SINGLE_BLOCK_THREADS = (32, 8)
MAX_WARP_ROW = 1024  # elements; a longer row gets a block
MAX_ROW_THREADS = 512
# Most threads of a block with ``is_small_block``: each may use as many registers as a thread can.
SMALL_BLOCK_THREADS = 256
SHORT_COLUMN_THREADS = 8  # along y, for columns of fewer than MAX_WARP_ROW elements
# One thread computes a row or column whose constant length is at most this.
MIN_SHARED_ROW = 16
# Most blocks per multiprocessor: several times as many as run at once, to balance the load.
BLOCKS_PER_PROCESSOR = 16
# The same for full reductions: as many as run at once, as each block adds work for the last one.
FULL_BLOCKS_PER_PROCESSOR = 8
# Each thread of a full reduction takes at least this many elements before another block is used.
FULL_ELEMENTS_PER_THREAD = 8

Dim = tuple[int, int] | tuple[int, int, int]  # size of a grid or block, CUDA's dim3
PointLoop = nodes.For | nodes.Strip


@record
class LaunchConfig:
    """The distribution of a kernel's points; ``launch_shape`` gives grid and block for extents.

    Attributes:
        strategy: "point", "row", "column" or "full", see the module.
        point_axes: axes whose product is the number of points, outermost first.
        member_axes: axes that are distributed over the members of a group, outermost first.
        vector_width: elements of the innermost axis that a thread takes at once; 1: the scalar
            variant.
        vector_operands: operands accessed as vectors of ``vector_width`` elements. ``may_launch``
            checks their alignment.
        register_operands: operands of which a group may hold the row in registers.
        register_vectors: vectors of each of these in a thread's registers, for rows that are short
            enough; 0 if there are none.
        scratch_components: 64-bit values per block in the scratch memory of a full reduction.
        segmented: the parameters start with a segment table (``printing/segments``).
        is_small_block: a block has at most SMALL_BLOCK_THREADS threads, for kernels that need many
            registers.
        block_tile: size of a block's tile along each of ``point_axes``; empty without tiles.
        has_inner_loops: points have loops of unknown trip count; one thread computes each, in small
            blocks.
        is_single_block: one block runs the whole kernel as a step of a program, see
            ``single_block_config``.
    """

    strategy: str
    point_axes: tuple[Axis, ...]
    member_axes: tuple[Axis, ...] = ()
    vector_width: int = 1
    vector_operands: tuple[str, ...] = ()
    register_operands: tuple[str, ...] = ()
    register_vectors: int = 0
    scratch_components: int = 0
    segmented: bool = False
    is_small_block: bool = False
    block_tile: tuple[int, ...] = ()
    has_inner_loops: bool = False
    is_single_block: bool = False

    @property
    def point_threads(self) -> int:
        """Threads of a block, for strategy "point" without tiles."""
        return INNER_LOOP_THREADS if self.has_inner_loops else POINT_THREADS

    @property
    def tile_threads(self) -> tuple[int, int]:
        """Threads of a tile's block along x and y; x is along the rows of the tile."""
        return self.block_tile[-1], POINT_THREADS // self.block_tile[-1]

    @property
    def max_threads(self) -> int:
        """The most threads per block that ``launch_shape`` gives: the build's launch bounds."""
        if self.is_small_block:
            return SMALL_BLOCK_THREADS
        by_strategy = {"row": MAX_ROW_THREADS, "column": WARP * WARP, "full": FULL_THREADS}
        return by_strategy.get(self.strategy, self.point_threads)


def launch_shape(
    launch: LaunchConfig, extents: Mapping[str, int], processors: int, segment_points: int = 0
) -> tuple[Dim, Dim]:
    """Grid and block of a launch.

    Args:
        launch: configuration of the printed kernel.
        extents: sizes of the axes, at least 0, by name; exact axes may be missing.
        processors: multiprocessors of the device.
        segment_points: for segmented kernels, the number of points of all segments together, or of
            blocks for full reductions (see ``full_blocks``).

    Returns:
        The grid (x, y) and the block (x, y). If the grid has 0 blocks, skip the launch.
    """
    points = segment_points
    if launch.segmented and launch.strategy == "full":
        return (segment_points, 1), (FULL_THREADS, 1)
    if not launch.segmented:
        tile = launch.block_tile or (1,) * len(launch.point_axes)
        point_extents = [_extent(axis, extents) for axis in launch.point_axes]
        points = math.prod(map(_ceil_div, point_extents, tile))
    elements = math.prod(_extent(axis, extents) for axis in launch.member_axes)
    max_blocks = processors * BLOCKS_PER_PROCESSOR
    if launch.strategy == "row":
        return _row_shape(launch, points, elements, max_blocks)
    if launch.strategy == "column":
        is_long = elements >= MAX_WARP_ROW
        height = launch.max_threads // WARP if is_long else SHORT_COLUMN_THREADS
        blocks = _ceil_div(_ceil_div(points, launch.vector_width), WARP)
        return (min(blocks, max_blocks), 1), (WARP, height)
    if launch.strategy == "full":
        return (full_blocks(elements, processors), 1), (FULL_THREADS, 1)
    if launch.block_tile:
        return (min(points, max_blocks), 1), launch.tile_threads
    if not launch.point_axes:
        return (1, 1), (1, 1)
    threads = launch.point_threads
    blocks = _ceil_div(_ceil_div(points, launch.vector_width), threads)
    return (min(blocks, max_blocks * (POINT_THREADS // threads)), 1), (threads, 1)


def full_blocks(elements: int, processors: int) -> int:
    """Number of blocks of a full reduction of ``elements`` elements, alone or in a segment."""
    needed = _ceil_div(elements, FULL_THREADS * FULL_ELEMENTS_PER_THREAD)
    # Without elements, one block stores the initial value.
    return max(1, min(needed, FULL_BLOCKS_PER_PROCESSOR * processors))


def _row_shape(
    launch: LaunchConfig, points: int, elements: int, max_blocks: int
) -> tuple[Dim, Dim]:
    """Grid and block for ``points`` rows of ``elements`` elements each."""
    if launch.register_vectors:
        # As few warps as can hold the row in registers. If even ``max_threads`` cannot, the
        # kernel loads it again in every phase.
        warps = _ceil_div(elements, WARP * launch.vector_width * launch.register_vectors)
        threads = min(WARP * warps, launch.max_threads)
        if warps > 1:
            return (min(points, max_blocks * max(1, POINT_THREADS // threads)), 1), (threads, 1)
    if launch.register_vectors or elements <= MAX_WARP_ROW:
        rows = POINT_THREADS // WARP if launch.point_axes else 1
        return (min(_ceil_div(points, rows), max_blocks), 1), (WARP, rows)
    threads = 256 if elements <= 8 * MAX_WARP_ROW else launch.max_threads
    return (min(points, max_blocks), 1), (threads, 1)


def may_launch(
    launch: LaunchConfig,
    kernel: Kernel,
    addresses: Mapping[str, int],
    extents: Mapping[str, int],
    strides: Mapping[tuple[str, str], int],
) -> bool:
    """Whether a vector variant may run on these arguments; if not, launch the scalar variant.

    Every vector operand must start at a multiple of the vector's size. With several axes, so must
    every row, and its length must be a multiple of ``vector_width``: only maps over a single axis
    have a remainder loop.

    Args:
        launch: configuration of the vector variant.
        kernel: the kernel.
        addresses: address of the first element, in bytes, by operand.
        extents: extents by axis name.
        strides: strides in elements by (operand, axis).
    """
    if launch.vector_width == 1:
        return True
    operands = {operand.name: operand for operand in kernel.operands}
    axes = (*launch.point_axes, *launch.member_axes)
    if launch.strategy == "column":
        axes = (*launch.member_axes, *launch.point_axes)
    for name in launch.vector_operands:
        if addresses[name] % (launch.vector_width * storage_bytes(operands[name].dtype)):
            return False
        for axis in axes[:-1]:
            if strides.get((name, axis.name), 0) % launch.vector_width:
                return False
    has_remainder_loop = len(axes) == 1 and not launch.member_axes
    return has_remainder_loop or _extent(axes[-1], extents) % launch.vector_width == 0


def leaves_processors_idle(
    launch: LaunchConfig, extents: Mapping[str, int], processors: int
) -> bool:
    """Whether pairs of columns give fewer blocks than the device has multiprocessors.

    The scalar variant has twice as many blocks, and results of the same bits.
    """
    if launch.strategy != "column" or launch.vector_width == 1:
        return False
    return launch_shape(launch, extents, processors)[0][0] < processors


def scratch_bytes(launch: LaunchConfig, grid: Dim) -> int:
    """Bytes of scratch memory of a launch, without its 4-byte counter; 0 unless "full".

    The caller allocates both, and zeros the counter once (``printing/full_reductions``).
    """
    return 8 * launch.scratch_components * grid[0]


def _extent(axis: Axis, extents: Mapping[str, int]) -> int:
    """The size of an axis."""
    return extents[axis.name] if axis.exact is None else axis.exact


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def schedule_cuda(
    kernel: Kernel,
    vectorize: bool,
    is_small_block: bool = False,
    max_register_vectors: int = MAX_REGISTER_VECTORS,
) -> LaunchConfig:
    """Select the launch configuration of a kernel, from its kind and the roles of its axes.

    Args:
        kernel: a kernel that ``kir.verify`` accepts.
        vectorize: whether to use vector accesses if the kernel allows them.
        is_small_block: limit blocks of rows and columns, so that threads may use more registers.
        max_register_vectors: most vectors of a row in the registers of a thread.
    """
    strategy = _strategy(kernel)
    axes = {axis.name: axis for axis in kernel.axes}
    if strategy == "full":
        components = _result_count(kernel.body)
        launch = LaunchConfig(
            strategy, (), kernel.axes, scratch_components=components, segmented=kernel.segmented
        )
        return _with_vectors(launch, kernel, kernel.body, vectorize, 0)
    loop = next((s for s in kernel.body.body if is_point_loop(s, axes)), None)
    nest = perfect_nest(loop, axes) if loop else []
    point_axes = axes_of(nest, axes)
    if strategy != "point":
        member_axes = tuple(axis for axis in kernel.axes if axis.role in MEMBER_ROLES)
        launch = LaunchConfig(strategy, point_axes, member_axes, is_small_block=is_small_block)
        is_only_loop = loop is None or sum(isinstance(s, nodes.For) for s in kernel.body.body) == 1
        block = nest[-1].body if nest else kernel.body
        if strategy == "column":
            return _with_pairs(launch, kernel, block) if vectorize and is_only_loop else launch
        if not point_axes:
            max_register_vectors = 0
        return _with_vectors(
            launch, kernel, block, vectorize and is_only_loop, max_register_vectors
        )
    if any(isinstance(s, nodes.Strip) for s in nest):
        block_tile = tuple(s.size if isinstance(s, nodes.Strip) else 1 for s in nest)
        return LaunchConfig(strategy, point_axes, block_tile=block_tile)
    if has_long_loops(kernel):
        return LaunchConfig(strategy, point_axes, segmented=kernel.segmented, has_inner_loops=True)
    if vectorize and loop and not kernel.segmented:
        width, operands = _vector_width(kernel, loop, axes)
        return LaunchConfig(strategy, point_axes, (), width, operands)
    return LaunchConfig(strategy, point_axes, segmented=kernel.segmented)


def _with_vectors(
    launch: LaunchConfig, kernel: Kernel, block: Block, vectorize: bool, max_register_vectors: int
) -> LaunchConfig:
    """The configuration with vectors along the members' axes, if the phases allow them."""
    if not vectorize or launch.segmented:
        return launch
    vectors = group_vectors(kernel, block, max_register_vectors > 0)
    register_vectors = min(vectors.register_vectors, max_register_vectors)
    return replace(
        launch,
        vector_width=vectors.width,
        vector_operands=vectors.operands,
        register_vectors=register_vectors,
        register_operands=vectors.register_operands if register_vectors else (),
    )


def _with_pairs(launch: LaunchConfig, kernel: Kernel, block: Block) -> LaunchConfig:
    """The configuration with two columns per thread, if that pays off (16-bit floats)."""
    if launch.segmented or not launch.point_axes or launch.point_axes[-1] is not kernel.axes[-1]:
        return launch
    vectors = column_pairs(kernel, block)
    return replace(launch, vector_width=vectors.width, vector_operands=vectors.operands)


def single_block_config(kernel: Kernel) -> LaunchConfig | None:
    """The configuration for one block of SINGLE_BLOCK_THREADS, which runs the kernel as a step.

    The text is a device function that uses no grid. It must not load through the read-only cache,
    as earlier steps of the block may have written its operands. None: tiles of the kernel have
    another block size.
    """
    launch = schedule_cuda(kernel, vectorize=False)
    if launch.block_tile and launch.tile_threads != SINGLE_BLOCK_THREADS:
        return None
    if launch.strategy == "full":
        launch = LaunchConfig("row", (), kernel.axes)
    return replace(launch, is_single_block=True, segmented=False)


def schedules_to_try(kernel: Kernel, vectorize: bool) -> Iterator[LaunchConfig]:
    """Yield the preferred configuration, then those that spill fewer registers, in order of trial.

    These hold fewer vectors of a row in registers, then none. The next one computes one point per
    thread instead of a vector of points. The last one has fewer threads per block, which share its
    registers.
    """
    preferred = schedule_cuda(kernel, vectorize)
    yield preferred
    for max_register_vectors in (
        dict.fromkeys((preferred.register_vectors // 2, 0)) if preferred.register_vectors else ()
    ):
        yield schedule_cuda(kernel, vectorize, max_register_vectors=max_register_vectors)
    if preferred.vector_width > 1:
        yield schedule_cuda(kernel, vectorize=False)
    if preferred.max_threads > SMALL_BLOCK_THREADS:
        yield schedule_cuda(kernel, vectorize=False, is_small_block=True)


def _strategy(kernel: Kernel) -> str:
    """The strategy of ``LaunchConfig`` for a kernel's kind and axes."""
    member_axes = [axis for axis in kernel.axes if axis.role in MEMBER_ROLES]
    is_short = all(axis.exact is not None for axis in member_axes)
    is_short = is_short and math.prod(axis.exact or 1 for axis in member_axes) <= MIN_SHARED_ROW
    if kernel.kind == "full" and len(member_axes) == len(kernel.axes) and member_axes:
        return "full"
    if kernel.kind not in ("row", "column", "full") or not member_axes or is_short:
        return "point"
    if kernel.axes[-1].role in POINT_ROLES:
        return "column"
    contiguous = any(o.strides and o.strides[-1] is Stride.UNIT for o in kernel.operands)
    return "column" if kernel.kind == "column" and not contiguous else "row"


def _result_count(body: Block) -> int:
    """The number of values that the top-level reductions of a kernel define."""
    return sum(len(s.outs) for s in body.body if isinstance(s, nodes.Reduce))


def is_point_loop(statement: nodes.Statement, axes: Mapping[str, Axis]) -> TypeGuard[PointLoop]:
    """Whether a statement is a loop over an axis of points, or over tiles of such an axis."""
    if not isinstance(statement, PointLoop) or statement.axis is None:
        return False
    return axes[statement.axis].role in POINT_ROLES


def perfect_nest(
    loop: PointLoop, axes: Mapping[str, Axis], roles: tuple[Role, ...] = POINT_ROLES
) -> list[PointLoop]:
    """The nest of loops that starts at ``loop``, outermost first.

    The caller has tested ``loop`` with ``is_point_loop``, or its axis has one of ``roles``.
    An inner loop must be the last statement of its outer loop. Only pure statements may precede it,
    as each point computes them again; before a Strip, any may. Loops in the innermost Strip are
    loops of one tile, and do not belong to the nest.
    """
    nest = [loop]
    *preceding, last = loop.body.body or (None,)
    if isinstance(last, nodes.Strip):
        return nest + perfect_nest(last, axes, roles)
    if isinstance(loop, nodes.Strip):
        return nest
    if not isinstance(last, nodes.For) or last.axis is None or axes[last.axis].role not in roles:
        return nest
    pure = (nodes.Const, nodes.Load, nodes.Apply, nodes.Select, nodes.Cast)
    if all(isinstance(statement, pure) for statement in preceding):
        return nest + perfect_nest(last, axes, roles)
    return nest


def axes_of(nest: Iterable[PointLoop], axes: Mapping[str, Axis]) -> tuple[Axis, ...]:
    """The axes of a nest of loops, in order."""
    return tuple(axes[loop.axis] for loop in nest if loop.axis is not None)


def _vector_width(
    kernel: Kernel, loop: PointLoop, axes: Mapping[str, Axis]
) -> tuple[int, tuple[str, ...]]:
    """Vector width of a map, and its vector operands; (1, ()) if it has no vectors.

    The operand with the widest elements moves VECTOR_BYTES at once, the others fewer.
    """
    nest = perfect_nest(loop, axes)
    axis, body = axes_of(nest, axes)[-1], nest[-1].body
    no_vectors: tuple[int, tuple[str, ...]] = (1, ())
    if axis is not kernel.axes[-1]:
        return no_vectors
    vector_accesses = [s for s in body.body if is_vector_access(s, kernel)]
    names = tuple(dict.fromkeys(s.operand for s in vector_accesses))
    stores = [s.operand for s in vector_accesses if isinstance(s, nodes.Store)]
    if not stores or read_after_write(body, stores):
        return no_vectors
    dtypes = [o.dtype for o in kernel.operands if o.name in names]
    width = VECTOR_BYTES // max(storage_bytes(dtype) for dtype in dtypes)
    if len(nest) > 1 and axis.exact is not None and axis.exact % width:
        return no_vectors
    return (width, names) if width > 1 else no_vectors
