"""The thread of each lane: the special registers of a launch, as arrays over its lanes.

Tests: tests/ptxsim/test_ptx_data.py, tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from ptxsim.types import U32, U64, Array

WARP = 32
Extents = tuple[int, int, int]


class Geometry:
    """The lanes of a run of consecutive blocks: all threads of a block, x fastest, then the next.

    Uniform values are arrays of one element. A block whose threads are not a multiple of 32 ends
    with a partial warp; the missing lanes do not exist. Equal launches share it, also between
    threads, so nothing may write to its arrays.

    Attributes:
        grid: thread blocks of the launch in x, y and z (%nctaid).
        block: threads of a thread block in x, y and z (%ntid).
        first: linear index of the first of these thread blocks in the grid, x fastest.
        blocks: count of these thread blocks.
        threads: threads of a thread block.
        warps: warps of a thread block, a partial one included.
        count: count of lanes.
        shuffles: cached sources of shfl.sync, see warp.py.
    """

    def __init__(self, grid: Extents, block: Extents, first: int, blocks: int) -> None:
        self.grid = grid
        self.block = block
        self.first = first
        self.blocks = blocks
        self.threads = block[0] * block[1] * block[2]
        self.warps = -(-self.threads // WARP)
        self.count = self.threads * blocks
        self._special: dict[str, Array] = {}
        self.shuffles: dict[tuple[str, int, int], tuple[Array, Array]] = {}

    @cached_property
    def lanes(self) -> Array:
        """0, 1, 2, ..."""
        return np.arange(self.count)

    @cached_property
    def thread(self) -> Array:
        """The thread's index in its block."""
        return self.lanes % self.threads

    @cached_property
    def block_number(self) -> Array:
        """The index of the lane's block among these blocks."""
        return self.lanes // self.threads

    @cached_property
    def lane(self) -> Array:
        """The position in the warp."""
        return self.thread % WARP

    @cached_property
    def warp(self) -> Array:
        """The index of the lane's warp among these blocks."""
        return self.block_number * self.warps + self.thread // WARP

    @cached_property
    def warp_start(self) -> Array:
        """The first lane of the lane's warp."""
        return self.lanes - self.lane

    @cached_property
    def warp_size(self) -> Array:
        """The number of lanes of the lane's warp."""
        return np.minimum(WARP, self.threads - (self.thread - self.lane))

    @cached_property
    def whole_warps(self) -> bool:
        """Whether every warp has 32 lanes."""
        return self.threads % WARP == 0

    def block_position(self, lane: int) -> Extents:
        """The block of a lane, as the kernel sees it."""
        return _position(self.first + lane // self.threads, self.grid)

    def thread_position(self, lane: int) -> Extents:
        """The thread of a lane, as the kernel sees it."""
        return _position(lane % self.threads, self.block)

    def special(self, name: str) -> Array | None:
        """The values of a special register, or None for an unknown one."""
        if name not in self._special:
            values = self._values(name)
            if values is None:
                return None
            dtype = U64 if name in ("%gridid", "%globaltimer") else U32
            self._special[name] = np.atleast_1d(np.asarray(values)).astype(dtype)
        return self._special[name]

    def _values(self, name: str) -> Array | int | None:
        base, _, axis = name.partition(".")
        if axis in ("x", "y", "z"):
            return self._extent(base, "xyz".index(axis))
        masks = {
            "%lanemask_eq": lambda one: one,
            "%lanemask_lt": lambda one: one - 1,
            "%lanemask_le": lambda one: 2 * one - 1,
            "%lanemask_gt": lambda one: 0xFFFFFFFF - (2 * one - 1),
            "%lanemask_ge": lambda one: 0xFFFFFFFF - (one - 1),
        }
        if name in masks:
            return masks[name](np.int64(1) << self.lane)
        if name == "%laneid":
            return self.lane
        if name == "%warpid":
            return self.thread // WARP
        return {"%nwarpid": self.warps, "%smid": 0, "%nsmid": 1, "%gridid": 0}.get(name)

    def _extent(self, base: str, axis: int) -> Array | int | None:
        below = (1, self.block[0], self.block[0] * self.block[1])[axis]
        blocks_below = (1, self.grid[0], self.grid[0] * self.grid[1])[axis]
        if base == "%tid":
            return self.thread // below % self.block[axis] if self.block[axis] > 1 else 0
        if base == "%ctaid":
            number = self.first + (self.block_number if self.blocks > 1 else 0)
            return number // blocks_below % self.grid[axis]
        return {"%ntid": self.block[axis], "%nctaid": self.grid[axis]}.get(base)


def _position(number: int, extents: Extents) -> Extents:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


@lru_cache(64)
def geometry(grid: Extents, block: Extents, first: int, blocks: int) -> Geometry:
    """The lanes of some blocks of a launch; launches of one shape share it."""
    return Geometry(grid, block, first, blocks)
