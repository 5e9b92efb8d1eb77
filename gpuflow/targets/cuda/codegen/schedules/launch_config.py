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
Kernels of a program that one block runs are printed for that block alone, never as "full".

The text is independent of sizes. At each launch, sizes decide whether a row gets a warp or a block,
and whether the group holds the row in registers.
With 32-bit indices, the sum of points and threads must stay below 2**31 (see ``index_bits``).
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
from gpuflow.targets.cuda.codegen.printing.phases import (
    MAX_REGISTER_VECTORS,
    VECTOR_BYTES,
    column_pairs,
    group_vectors,
    moves_as_vector,
    read_after_write,
)

POINT_ROLES = (Role.PARALLEL, Role.VECTOR)
MEMBER_ROLES = (Role.ROW, Role.REDUCE)

WARP = 32
POINT_THREADS = 256
# Block size for points with inner loops: a few thousand points fill a device, and a block runs as
# long as the longest of its loops.
LANE_THREADS = 64
FULL_THREADS = 256
# Threads of a lone block along x and y: a warp for a row, eight members for a column.
ALONE_THREADS = (32, 8)
LONGEST_WARP_ROW = 1024
MOST_ROW_THREADS = 512
# Most threads of a block with ``small_tile``: each may use as many registers as a thread can.
SMALL_TILE_THREADS = 256
# One thread computes a row or column whose constant length is at most this.
SHORTEST_SHARED_ROW = 16
# Most blocks per multiprocessor: several times as many as run at once, to balance the load.
BLOCKS_PER_PROCESSOR = 16
# The same for full reductions: as many as run at once, as each block adds work for the last one.
FULL_BLOCKS_PER_PROCESSOR = 8
# Each thread of a full reduction takes at least this many elements before another block is used.
FULL_ELEMENTS_PER_THREAD = 8

Dim = tuple[int, int] | tuple[int, int, int]
PointLoop = nodes.For | nodes.Strip


@record
class LaunchConfig:
    """The distribution of a kernel's points; ``launch_shape`` gives grid and block for extents.

    Attributes:
        strategy: "point", "row", "column" or "full", see the module.
        points: axes whose product is the number of points.
        members: axes (not threads) that are distributed over the members of a group.
        width: elements of the innermost axis that a thread takes at once; 1: the scalar variant.
        vector_operands: operands accessed as vectors of ``width`` elements. See ``may_launch``.
        register_operands: operands of which a group may hold the row in registers.
        tile: vectors of each of these in a thread's registers, for rows that are short enough; 0 if
            there are none.
        components: values per block in the scratch memory of a full reduction.
        segmented: the parameters start with a segment table (``printing/segments``).
        small_tile: a block has at most 256 threads, for kernels that need many registers.
        block_tile: size of a block's tile along each axis of ``points``; empty without tiles.
        lanes: points have inner loops; one thread each, in small blocks.
        alone: one block runs the whole kernel as a step of a program, see ``schedule_alone``.
    """

    strategy: str
    points: tuple[Axis, ...]
    members: tuple[Axis, ...] = ()
    width: int = 1
    vector_operands: tuple[str, ...] = ()
    register_operands: tuple[str, ...] = ()
    tile: int = 0
    components: int = 0
    segmented: bool = False
    small_tile: bool = False
    block_tile: tuple[int, ...] = ()
    lanes: bool = False
    alone: bool = False

    @property
    def point_threads(self) -> int:
        """Threads of a block, for strategy "point" without tiles."""
        return LANE_THREADS if self.lanes else POINT_THREADS

    @property
    def tile_threads(self) -> tuple[int, int]:
        """Threads of a tile's block along x and y; x is along the rows of the tile."""
        return self.block_tile[-1], POINT_THREADS // self.block_tile[-1]

    @property
    def bounds(self) -> int:
        """The most threads per block that ``launch_shape`` gives: the build's launch bounds."""
        if self.small_tile:
            return SMALL_TILE_THREADS
        most = {"row": MOST_ROW_THREADS, "column": WARP * WARP, "full": FULL_THREADS}
        return most.get(self.strategy, self.point_threads)


def launch_shape(
    launch: LaunchConfig, extents: Mapping[str, int], processors: int, segment_points: int = 0
) -> tuple[Dim, Dim]:
    """Grid and block of a launch.

    Args:
        launch: configuration of the printed kernel.
        extents: extents by axis name; exact axes may be missing.
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
        sizes = launch.block_tile or (1,) * len(launch.points)
        points = math.prod(map(_ceil, (_extent(axis, extents) for axis in launch.points), sizes))
    members = math.prod(_extent(axis, extents) for axis in launch.members)
    most = processors * BLOCKS_PER_PROCESSOR
    if launch.strategy == "row":
        return _row_shape(launch, points, members, most)
    if launch.strategy == "column":
        height = launch.bounds // WARP if members >= LONGEST_WARP_ROW else 8
        return (min(_ceil(_ceil(points, launch.width), WARP), most), 1), (WARP, height)
    if launch.strategy == "full":
        return (full_blocks(members, processors), 1), (FULL_THREADS, 1)
    if launch.block_tile:
        return (min(points, most), 1), launch.tile_threads
    if not launch.points:
        return (1, 1), (1, 1)
    threads = launch.point_threads
    blocks = _ceil(_ceil(points, launch.width), threads)
    return (min(blocks, most * (POINT_THREADS // threads)), 1), (threads, 1)


def full_blocks(members: int, processors: int) -> int:
    """Number of blocks of a full reduction of ``members`` elements, alone or in a segment."""
    needed = _ceil(members, FULL_THREADS * FULL_ELEMENTS_PER_THREAD)
    # Without elements, one block stores the initial value.
    return max(1, min(needed, FULL_BLOCKS_PER_PROCESSOR * processors))


def _row_shape(launch: LaunchConfig, points: int, members: int, most: int) -> tuple[Dim, Dim]:
    if launch.tile:
        # As few warps as can hold the row in registers. If even ``bounds`` threads cannot, the
        # kernel loads it again in every phase.
        warps = _ceil(members, WARP * launch.width * launch.tile)
        threads = min(WARP * warps, launch.bounds)
        if warps > 1:
            return (min(points, most * max(1, POINT_THREADS // threads)), 1), (threads, 1)
    if launch.tile or members <= LONGEST_WARP_ROW:
        rows = POINT_THREADS // WARP if launch.points else 1
        return (min(_ceil(points, rows), most), 1), (WARP, rows)
    threads = 256 if members <= 8 * LONGEST_WARP_ROW else launch.bounds
    return (min(points, most), 1), (threads, 1)


def may_launch(
    launch: LaunchConfig,
    kernel: Kernel,
    addresses: Mapping[str, int],
    extents: Mapping[str, int],
    strides: Mapping[tuple[str, str], int],
) -> bool:
    """Whether a vector variant may run on these arguments; if not, launch the scalar variant.

    Every vector operand must start at a multiple of the vector's size. With several axes, so must
    every row, and its length must be a multiple of ``width``: only maps over a single axis have a
    remainder loop.

    Args:
        launch: configuration of the vector variant.
        kernel: the kernel.
        addresses: address of the first element by operand.
        extents: extents by axis name.
        strides: strides in elements by (operand, axis).
    """
    if launch.width == 1:
        return True
    operands = {operand.name: operand for operand in kernel.operands}
    axes = (*launch.points, *launch.members)
    if launch.strategy == "column":
        axes = (*launch.members, *launch.points)
    for name in launch.vector_operands:
        if addresses[name] % (launch.width * storage_bytes(operands[name].dtype)):
            return False
        for axis in axes[:-1]:
            if strides.get((name, axis.name), 0) % launch.width:
                return False
    has_tail = len(axes) == 1 and not launch.members
    return has_tail or _extent(axes[-1], extents) % launch.width == 0


def leaves_idle(launch: LaunchConfig, extents: Mapping[str, int], processors: int) -> bool:
    """Whether pairs of columns give fewer blocks than the device has multiprocessors.

    The scalar variant has twice as many blocks, and results of the same bits.
    """
    if launch.strategy != "column" or launch.width == 1:
        return False
    return launch_shape(launch, extents, processors)[0][0] < processors


def scratch_bytes(launch: LaunchConfig, grid: Dim) -> int:
    """Bytes of scratch memory of a launch, without its 4-byte counter; 0 unless "full"."""
    return 8 * launch.components * grid[0]


def _extent(axis: Axis, extents: Mapping[str, int]) -> int:
    return extents[axis.name] if axis.exact is None else axis.exact


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def schedule_cuda(
    kernel: Kernel, vectorize: bool, small_tile: bool = False, max_tile: int = MAX_REGISTER_VECTORS
) -> LaunchConfig:
    """Select the launch configuration of a kernel, from its kind and the roles of its axes.

    Args:
        kernel: a kernel that ``kir.verify`` accepts.
        vectorize: whether to use vector accesses if the kernel allows them.
        small_tile: limit blocks of rows and columns, so that threads may use more registers.
        max_tile: most vectors of a row in the registers of a thread.
    """
    strategy = _strategy(kernel)
    axes = {axis.name: axis for axis in kernel.axes}
    if strategy == "full":
        components = _components(kernel.body)
        launch = LaunchConfig(
            strategy, (), kernel.axes, components=components, segmented=kernel.segmented
        )
        return _with_vectors(launch, kernel, kernel.body, vectorize, 0)
    loop = next((s for s in kernel.body.body if is_point_loop(s, axes)), None)
    nest = perfect_nest(loop, axes) if loop else []
    points = axes_of(nest, axes)
    if strategy != "point":
        members = tuple(axis for axis in kernel.axes if axis.role in MEMBER_ROLES)
        launch = LaunchConfig(strategy, points, members, small_tile=small_tile)
        alone = loop is None or sum(isinstance(s, nodes.For) for s in kernel.body.body) == 1
        block = nest[-1].body if nest else kernel.body
        if strategy == "column":
            return _with_pairs(launch, kernel, block) if vectorize and alone else launch
        return _with_vectors(launch, kernel, block, vectorize and alone, max_tile if points else 0)
    if any(isinstance(s, nodes.Strip) for s in nest):
        block_tile = tuple(s.size if isinstance(s, nodes.Strip) else 1 for s in nest)
        return LaunchConfig(strategy, points, block_tile=block_tile)
    if has_long_loops(kernel):
        return LaunchConfig(strategy, points, segmented=kernel.segmented, lanes=True)
    if vectorize and loop and not kernel.segmented:
        width, operands = _vector_width(kernel, loop, axes)
        return LaunchConfig(strategy, points, (), width, operands)
    return LaunchConfig(strategy, points, segmented=kernel.segmented)


def _with_vectors(
    launch: LaunchConfig, kernel: Kernel, block: Block, vectorize: bool, max_tile: int
) -> LaunchConfig:
    """The configuration with vectors along the members' axes, if the phases allow them."""
    if not vectorize or launch.segmented:
        return launch
    vectors = group_vectors(kernel, block, max_tile > 0)
    tile = min(vectors.tile, max_tile)
    return replace(
        launch,
        width=vectors.width,
        vector_operands=vectors.operands,
        tile=tile,
        register_operands=vectors.register_operands if tile else (),
    )


def _with_pairs(launch: LaunchConfig, kernel: Kernel, block: Block) -> LaunchConfig:
    """The configuration with two columns per thread, if that pays off (16-bit floats)."""
    if launch.segmented or not launch.points or launch.points[-1] is not kernel.axes[-1]:
        return launch
    vectors = column_pairs(kernel, block)
    return replace(launch, width=vectors.width, vector_operands=vectors.operands)


def schedule_alone(kernel: Kernel) -> LaunchConfig | None:
    """The configuration for a lone block of ALONE_THREADS, which runs the kernel as a step.

    The text is a device function that uses no grid. It must not load through the read-only cache,
    as earlier steps of the block may have written its operands. None: tiles of the kernel have
    another block size.
    """
    launch = schedule_cuda(kernel, vectorize=False)
    if launch.block_tile and launch.tile_threads != ALONE_THREADS:
        return None
    if launch.strategy == "full":
        launch = LaunchConfig("row", (), kernel.axes)
    return replace(launch, alone=True, segmented=False)


def schedules_to_try(kernel: Kernel, vectorize: bool) -> Iterator[LaunchConfig]:
    """Yield the preferred configuration, then those that spill less, in the order to try them.

    These hold fewer vectors of a row in registers, then none. The next one computes one point per
    thread instead of a vector of points. The last one has fewer threads per block, which share its
    registers.
    """
    preferred = schedule_cuda(kernel, vectorize)
    yield preferred
    for max_tile in dict.fromkeys((preferred.tile // 2, 0)) if preferred.tile else ():
        yield schedule_cuda(kernel, vectorize, max_tile=max_tile)
    if preferred.width > 1:
        yield schedule_cuda(kernel, vectorize=False)
    if preferred.bounds > SMALL_TILE_THREADS:
        yield schedule_cuda(kernel, vectorize=False, small_tile=True)


def _strategy(kernel: Kernel) -> str:
    members = [axis for axis in kernel.axes if axis.role in MEMBER_ROLES]
    short = all(axis.exact is not None for axis in members)
    short = short and math.prod(axis.exact or 1 for axis in members) <= SHORTEST_SHARED_ROW
    if kernel.kind == "full" and len(members) == len(kernel.axes) and members:
        return "full"
    if kernel.kind not in ("row", "column", "full") or not members or short:
        return "point"
    if kernel.axes[-1].role in POINT_ROLES:
        return "column"
    contiguous = any(o.strides and o.strides[-1] is Stride.UNIT for o in kernel.operands)
    return "column" if kernel.kind == "column" and not contiguous else "row"


def _components(body: Block) -> int:
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

    An inner loop must be the last statement of its outer loop. Only pure statements may precede it,
    as each point computes them again; before a Strip, any may. Loops in the innermost Strip are
    loops of one tile, and do not belong to the nest.
    """
    nest = [loop]
    *before, last = loop.body.body or (None,)
    if isinstance(last, nodes.Strip):
        return nest + perfect_nest(last, axes, roles)
    if isinstance(loop, nodes.Strip):
        return nest
    if not isinstance(last, nodes.For) or last.axis is None or axes[last.axis].role not in roles:
        return nest
    pure = (nodes.Const, nodes.Load, nodes.Apply, nodes.Select, nodes.Cast)
    if all(isinstance(statement, pure) for statement in before):
        return nest + perfect_nest(last, axes, roles)
    return nest


def axes_of(nest: Iterable[PointLoop], axes: Mapping[str, Axis]) -> tuple[Axis, ...]:
    """The axes of a nest of loops, in order."""
    return tuple(axes[loop.axis] for loop in nest if loop.axis is not None)


def _vector_width(
    kernel: Kernel, loop: PointLoop, axes: Mapping[str, Axis]
) -> tuple[int, tuple[str, ...]]:
    """Vector width of a map, and its vector operands: the widest one moves 16 bytes at once."""
    nest = perfect_nest(loop, axes)
    axis, body = axes_of(nest, axes)[-1], nest[-1].body
    scalar: tuple[int, tuple[str, ...]] = (1, ())
    if axis is not kernel.axes[-1]:
        return scalar
    moved = [s for s in body.body if moves_as_vector(s, kernel)]
    names = tuple(dict.fromkeys(s.operand for s in moved))
    stores = [s.operand for s in moved if isinstance(s, nodes.Store)]
    if not stores or read_after_write(body, stores):
        return scalar
    dtypes = [o.dtype for o in kernel.operands if o.name in names]
    width = VECTOR_BYTES // max(storage_bytes(dtype) for dtype in dtypes)
    if len(nest) > 1 and axis.exact is not None and axis.exact % width:
        return scalar
    return (width, names) if width > 1 else scalar
