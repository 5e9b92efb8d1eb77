"""The launch configuration of a kernel, which its printed text and its launch share.

A *point* is one index of all PARALLEL (and VECTOR) axes; points are independent. A *member* is one
thread of the group that computes a point.

    strategy   one point is done by    groups in a block        members combine through
    point      one thread              256; 64 with loops       nothing
    row        blockDim.x threads      blockDim.y               shuffles, then shared memory
    column     blockDim.y threads      32, or 32 pairs, in x    shared memory
    full       the whole grid          -                        the last block to finish

If Strips tile two axes, the points of strategy "point" are the tiles: a block computes each.
A step of a program of one block has that block alone, and none of it is "full".
The text is independent of sizes: the launch selects a warp or a block for a row, and whether the
group holds it in registers or reads it again for every phase.
With 32-bit indices the sum of points and threads must stay below 2**31, for which
``index_bits`` leaves room.
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
# For points with inner loops: a few thousand of them fill a device, and a block lasts as long as
# the longest of its loops.
LANE_THREADS = 64
FULL_THREADS = 256
# Along x and y: a warp for a row, eight members for a column, and a tile of two axes.
ALONE_THREADS = (32, 8)
LONGEST_WARP_ROW = 1024
MOST_ROW_THREADS = 512
# Threads of a block of a small tile: few enough that each may use the most registers.
SMALL_TILE_THREADS = 256
# Rows at or below this length are visited by one thread each.
SHORTEST_SHARED_ROW = 16
# Blocks per multiprocessor: enough to fill it several times over, so that uneven blocks even out.
BLOCKS_PER_PROCESSOR = 16
# Of a full reduction: fill it once, as every block adds to the work of the last one.
FULL_BLOCKS_PER_PROCESSOR = 8
# Each thread of a full reduction takes at least this many elements before another block is used.
FULL_ELEMENTS_PER_THREAD = 8

Dim = tuple[int, int] | tuple[int, int, int]
PointLoop = nodes.For | nodes.Strip


@record
class LaunchConfig:
    """The rule by which the grid and block of a printed kernel follow from its extents.

    Attributes:
        strategy: see the head of this module.
        points: axes whose product is the number of points.
        members: axes that the members of a group share.
        width: elements of the innermost axis that a thread handles at once; 1 in scalar variants.
        vector_operands: operands read or written ``width`` elements at once. See ``may_launch``.
        register_operands: operands whose row a thread may hold in registers; see ``tile``.
        tile: the vectors of each that it holds, in rows that are short enough; 0 if there are none.
        components: values per block in the scratch memory of a full reduction.
        segmented: the only parameter is the device address of a segment table.
        small_tile: a group has at most 256 threads, for kernels that need many registers.
        block_tile: the tile of a block along each axis of the points; empty if a thread does each
            point by itself.
        lanes: points have inner loops, and each has a thread, in small blocks.
        alone: one block does the kernel, as a step of its program: see ``schedule_alone``.
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
        """Threads of a block of strategy "point"."""
        return LANE_THREADS if self.lanes else POINT_THREADS

    @property
    def tile_threads(self) -> tuple[int, int]:
        """Threads of a block for a tile, along x and y: a row of the tile is along x."""
        return self.block_tile[-1], POINT_THREADS // self.block_tile[-1]

    @property
    def bounds(self) -> int:
        """The most threads per block that ``launch_shape`` gives, for the build."""
        if self.small_tile:
            return SMALL_TILE_THREADS
        most = {"row": MOST_ROW_THREADS, "column": WARP * WARP, "full": FULL_THREADS}
        return most.get(self.strategy, self.point_threads)


def launch_shape(
    launch: LaunchConfig, extents: Mapping[str, int], processors: int, segment_points: int = 0
) -> tuple[Dim, Dim]:
    """The grid (x, y) and block (x, y) for given extents.

    Args:
        launch: of the printed kernel.
        extents: by axis name; exact axes may be left out.
        processors: multiprocessors of the device.
        segment_points: for segmented kernels, the total number of points of all segments; of full
            reductions, of their blocks, see ``full_blocks``.

    Returns:
        The grid and the block. A grid of 0 blocks means that there is nothing to do.
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
    """Blocks of a full reduction of ``members`` elements, alone or in a segment."""
    needed = _ceil(members, FULL_THREADS * FULL_ELEMENTS_PER_THREAD)
    # No element gives one block all the same: the result is then the initial value.
    return max(1, min(needed, FULL_BLOCKS_PER_PROCESSOR * processors))


def _row_shape(launch: LaunchConfig, points: int, members: int, most: int) -> tuple[Dim, Dim]:
    if launch.tile:
        # The fewest threads that hold the row; or all of them, which then read a longer one again.
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
    """Whether a vector variant may run on these arguments; if not, the scalar variant must.

    Every vector operand starts at a multiple of ``width`` elements. With several axes each row
    starts at one too, and holds a multiple of ``width`` elements: there is no tail in the kernel.
    Nor is there one if members share the innermost axis, or if columns are along it.

    Args:
        addresses: by operand, the address of its first element.
        extents: by axis name.
        strides: by (operand, axis), in elements.
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
    """Whether pairs of columns are fewer blocks than a device has multiprocessors.

    Without pairs there are twice as many, and the results have the same bits.
    """
    if launch.strategy != "column" or launch.width == 1:
        return False
    return launch_shape(launch, extents, processors)[0][0] < processors


def scratch_bytes(launch: LaunchConfig, grid: Dim) -> int:
    """Size of scratch memory of a launch in addition to its 4-byte counter; 0 if not full."""
    return 8 * launch.components * grid[0]


def _extent(axis: Axis, extents: Mapping[str, int]) -> int:
    return extents[axis.name] if axis.exact is None else axis.exact


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def schedule_cuda(
    kernel: Kernel, vectorize: bool, small_tile: bool = False, max_tile: int = MAX_REGISTER_VECTORS
) -> LaunchConfig:
    """Choose the strategy of ``kernel``, from its kind and the roles of its axes.

    Args:
        kernel: a verified kernel.
        vectorize: whether to use wide accesses where the text allows them.
        small_tile: give rows and columns smaller groups, whose threads may use more registers.
        max_tile: at most so many vectors of a row stay in the registers of a thread.
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
    """The launch of a group, with vectors if its phases allow them."""
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
    """The launch of columns, two for each thread if they are 16-bit floats."""
    if launch.segmented or not launch.points or launch.points[-1] is not kernel.axes[-1]:
        return launch
    vectors = column_pairs(kernel, block)
    return replace(launch, width=vectors.width, vector_operands=vectors.operands)


def schedule_alone(kernel: Kernel) -> LaunchConfig | None:
    """The schedule of a kernel that is a step of a program of one block, of ALONE_THREADS.

    Its text is a device function without a grid, and its operands may have been written by the same
    block. None: there is no such schedule.
    """
    launch = schedule_cuda(kernel, vectorize=False)
    if launch.block_tile and launch.tile_threads != ALONE_THREADS:
        return None
    if launch.strategy == "full":
        launch = LaunchConfig("row", (), kernel.axes)
    return replace(launch, alone=True, segmented=False)


def schedules_to_try(kernel: Kernel, vectorize: bool) -> Iterator[LaunchConfig]:
    """The preferred schedule, then ones that leave a thread more registers, for kernels that spill.

    A thread of a smaller tile holds less of its row, or nothing; one of the scalar variant has one
    point's values alive instead of several points'; a block of a small tile has fewer threads to
    share the registers with.
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
    """Whether a statement is a loop over an axis of points, or over tiles of one."""
    if not isinstance(statement, PointLoop) or statement.axis is None:
        return False
    return axes[statement.axis].role in POINT_ROLES


def perfect_nest(
    loop: PointLoop, axes: Mapping[str, Axis], roles: tuple[Role, ...] = POINT_ROLES
) -> list[PointLoop]:
    """Perfectly nested loops, from the outermost.

    Statements that only compute may come before an inner loop: they are computed per point. Any may
    come before a Strip; loops within Strips are those of one tile.
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
    """The axes of nested loops."""
    return tuple(axes[loop.axis] for loop in nest if loop.axis is not None)


def _vector_width(
    kernel: Kernel, loop: PointLoop, axes: Mapping[str, Axis]
) -> tuple[int, tuple[str, ...]]:
    """Elements per thread such that the widest vector operand moves 16 bytes at once."""
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
