"""Printer base of kernels in which a group of threads computes one point.

The threads of a group are its members. Every member runs the statements of the point, and so holds
all its values. Loops over ROW and REDUCE axes are distributed: each member runs some iterations.
After a Reduce, the members combine their partial results.

    strategy    members of a group                    groups
    row         threadIdx.x: a warp, or a block       threadIdx.y and blocks
    column      threadIdx.y                           threadIdx.x and blocks
    full        all threads of the grid               one

Tests: tests/targets/cuda/test_cuda_kernels.py, tests/targets/cuda/test_gpu_columns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    For,
    If,
    Load,
    Mode,
    Reduce,
    Select,
    Store,
    While,
)
from gpuflow.kir.rewrite import numbered_from_zero
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import statements
from gpuflow.targets.cuda.codegen.printing import group_reductions
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrinter, Nest
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS
from gpuflow.targets.cuda.codegen.printing.vector_accesses import MAX_UNROLLED_STATEMENTS, may_fuse
from gpuflow.targets.cuda.codegen.schedules.launch_config import MEMBER_ROLES, axes_of, perfect_nest
from gpuflow.targets.printer import constant

# Unroll factor of a column's loop: the loads of that many iterations are in flight at once.
UNROLL_FACTOR = 4


class GroupPrinter(CudaPrinter):
    """Prints statements for a group of threads, one element of an iteration at a time.

    Three flags describe where a statement is:

        is_at_point       the group is at a point; always, if the kernel has no loop over points
        members_diverge   members of a group are at different iterations of a distributed loop, or
                          only one of them is here
        groups_diverge    groups of a block may be in different branches or iterations

    A barrier is legal only if all its threads reach it: if neither diverge (``may_synchronize``).
    ``_emit_barrier`` and ``combine_members`` print all barriers, and assert that. Loops are
    distributed, and values combined, only at points where barriers are legal. Elsewhere each member
    runs the whole loop by itself. A subclass that prints iterations of a distributed loop must set
    ``members_diverge`` meanwhile.
    """

    members_diverge = False
    groups_diverge = False

    @property
    def is_column(self) -> bool:
        """Whether members differ in threadIdx.y, and the groups of a block in threadIdx.x."""
        return self.launch.strategy == "column"

    def entry(self) -> None:
        self.unpack()
        self.name_members()
        self.is_at_point = not self.launch.point_axes
        self.block(self.kernel.body)

    def name_members(self) -> None:
        """Print the id of the member in its group, and the number of members."""
        along = "y" if self.is_column else "x"
        self.emit(f"member_id = {self.cast_index(f'cuda.threadIdx.{along}')}")
        self.emit(f"member_count = {self.cast_index(f'cuda.blockDim.{along}')}")

    # Loops

    def point_loop(self, nest: Nest) -> None:
        axes = axes_of(nest, self.axes)
        self.emit(f"point_count = {self.point_count(axes)}")
        if self.is_column:
            self._column_loop(nest, axes)
            return
        block, blocks = self.grid
        first = f"{self.cast_index(block)} * cuda.blockDim.y + cuda.threadIdx.y"
        self.emit(f"group_count = {self.cast_index(f'{blocks} * cuda.blockDim.y')}")
        with self.counted_loop("point_id", self.cast_index(first), "point_count", "group_count"):
            self.unravel("point_id", axes)
            self.nest_body(nest, self.block)

    def _column_loop(self, nest: Nest, axes: Sequence[Axis]) -> None:
        """Print the loop in which a block computes 32 neighboring columns, or pairs, at a time.

        Threads past the last column compute it once more, as they must reach all barriers. They
        store nothing.
        """
        width = self.launch.vector_width
        if width > 1:
            self.emit(f"point_count = {self.cast_index(f'point_count // {width}')}")
        block, blocks = self.grid
        first = self.cast_index(f"{self.cast_index(block)} * 32")
        self.emit(f"tile_step = {self.cast_index(f'{blocks} * 32')}")
        with self.counted_loop("tile_id", first, "point_count", "tile_step"):
            self.emit(f"point_id = {self.cast_index('tile_id + cuda.threadIdx.x')}")
            self.emit("is_inside = point_id < point_count")
            with self.indented("if not is_inside:"):
                self.emit(f"point_id = {self.cast_index('point_count - 1')}")
            if width > 1:
                self.emit(f"point_id = {self.index_product('point_id', str(width))}")
            self.unravel("point_id", axes)
            self.nest_body(nest, self.block)

    def loop(self, s: For) -> None:
        if s.axis is None:
            with self._diverging():
                super().loop(s)
        elif self.is_distributed(s.axis):
            self._barrier_before_inplace_stores(s.body)
            nest = perfect_nest(s, self.axes, MEMBER_ROLES)
            self.member_loop(axes_of(nest, self.axes), lambda: self.nest_body(nest, self.block))
        else:
            super().loop(s)

    def _while(self, s: While) -> None:
        with self._diverging():
            super()._while(s)

    def _if(self, s: If) -> None:
        with self._diverging():
            super()._if(s)

    @contextmanager
    def _diverging(self) -> Iterator[None]:
        """Print a branch or a loop of unknown trip count: in columns it must have no barrier.

        The columns of a block share its barriers and may diverge here, so every member computes
        all iterations of inner loops. Rows may keep their barriers: a row of several warps has
        the block to itself, and other rows only synchronize their warp.
        """
        outer_value = self.groups_diverge
        self.groups_diverge = outer_value or self.is_column
        yield
        self.groups_diverge = outer_value

    @property
    def may_synchronize(self) -> bool:
        """Whether all threads that share a barrier reach this statement, so that it is legal."""
        return not (self.members_diverge or self.groups_diverge)

    def is_distributed(self, axis: str) -> bool:
        """Whether a loop over ``axis`` is distributed over the members at this statement."""
        at_point = self.is_at_point and self.may_synchronize
        return at_point and self.axes[axis].role in MEMBER_ROLES

    def member_loop(self, axes: Sequence[Axis], print_body: Callable[[], None]) -> None:
        """Print a loop over the product of ``axes`` that is distributed over the members.

        ``print_body`` prints the body at the indices of ``axes``, which are defined there.
        """
        self.members_diverge = True
        linear_index = axes[0].name if len(axes) == 1 else f"place_{axes[-1].name}"
        with self.counted_loop(linear_index, "member_id", self.point_count(axes), "member_count"):
            if len(axes) > 1:
                self.unravel(linear_index, axes)
            print_body()
        self.members_diverge = False

    def unrolled_member_loop(self, axes: Sequence[Axis], print_body: Callable[[], None]) -> None:
        """Print ``member_loop``, unrolled by ``UNROLL_FACTOR``; the body must only read.

        The assembler then overlaps the loads of the unrolled iterations. It does not overlap
        iterations of a loop with an unknown step.
        """
        self.members_diverge = True
        linear_index = axes[0].name if len(axes) == 1 else f"place_{axes[-1].name}"
        count = self.point_count(axes)
        self.emit("turn = member_id")
        self.emit(f"ahead = {self.index_product('member_count', str(UNROLL_FACTOR - 1))}")
        with self.indented(f"while {self.index_sum('turn', 'ahead')} < {count}:"):
            for _ in range(UNROLL_FACTOR):
                self.emit(f"{linear_index} = turn")
                if len(axes) > 1:
                    self.unravel(linear_index, axes)
                print_body()
                self.emit(f"turn = {self.index_sum('turn', 'member_count')}")
        with self.counted_loop(linear_index, "turn", count, "member_count"):
            if len(axes) > 1:
                self.unravel(linear_index, axes)
            print_body()
        self.members_diverge = False

    # Reductions

    def block(self, block: Block) -> None:
        """Print statements; adjacent independent reductions are fused into one loop."""
        adjacent: list[Reduce] = []
        for statement in block.body:
            if isinstance(statement, Reduce) and self.is_distributed(statement.axes[0]):
                if adjacent and not may_fuse(adjacent, statement):
                    self._print_reduces(adjacent)
                    adjacent = []
                adjacent.append(statement)
                continue
            if adjacent and not isinstance(statement, Const):
                self._print_reduces(adjacent)
                adjacent = []
            self.statement(statement)
        self._print_reduces(adjacent)

    def _print_reduces(self, reduces: Sequence[Reduce]) -> None:
        """Print reductions that share a loop, and the combination of each over the members."""
        self.partial_reduces(reduces)
        for s in reduces:
            self.combine_members(s, "column" if self.is_column else "row")

    def partial_reduces(self, reduces: Sequence[Reduce]) -> None:
        """Print one loop in which each member reduces its iterations, for all ``reduces``.

        All of ``reduces`` must have the same axes.
        """
        self.begin_reduces(reduces)
        if reduces:
            axes = [axis for axis in self.kernel.axes if axis.name in reduces[0].axes]
            can_unroll = self.is_column and _is_unrollable(reduces)
            print_loop = self.unrolled_member_loop if can_unroll else self.member_loop
            print_loop(axes, lambda: self._combine_iteration(reduces, axes))

    def begin_reduces(self, reduces: Sequence[Reduce]) -> None:
        """Set the results to their initial values; emit the barrier that in-place stores need."""
        for s in reduces:
            self.assign(self.results(s), [self.value(v) for v in s.init])
        self._barrier_before_inplace_stores(*(s.body for s in reduces))

    def _combine_iteration(self, reduces: Sequence[Reduce], axes: Sequence[Axis]) -> None:
        for s in reduces:
            self._combine_one(s, axes)

    def _combine_one(self, s: Reduce, axes: Sequence[Axis]) -> None:
        """Print the body of a reduction at the indices of ``axes``, and add its value."""
        if axes:
            with self.at_point(axes[0], s.body):
                self._combine_one(s, axes[1:])
            return
        self.block(s.body)
        self.combine(s, self.results(s), [self.value(v) for v in s.body.results])

    def results(self, s: Reduce) -> list[str]:
        """The variables of the results of a reduction."""
        return [self.value(o) for o in s.outs]

    def combine_members(self, s: Reduce, reduction: str) -> None:
        """Combine the partial results of the members, with barriers; each of them gets the total.

        Args:
            s: the reduction.
            reduction: key of ``GROUP_REDUCTIONS``: "row" combines the threads of one threadIdx.y,
                "column" those of one threadIdx.x.
        """
        assert self.may_synchronize, self.kernel.name
        outs = self.results(s)
        combine = self.combine_function(s)
        dtypes = [out.dtype for out in s.outs]
        text = group_reductions.GROUP_REDUCTIONS[reduction](combine, dtypes)
        self.add_helper(f"{reduction}_{combine}", text)
        shared = [self._shared_memory_array(number, dtype) for number, dtype in enumerate(dtypes)]
        neutral = [self.value(v) for v in s.init] if reduction == "row" else []
        arguments = ", ".join([*outs, *neutral, *shared])
        self.emit(f"{', '.join(outs)} = {reduction}_{combine}({arguments})")

    def _shared_memory_array(self, component: int, dtype: str) -> str:
        """Declare an array in the block's shared memory, once for all reductions; returns its name.

        Its size serves the largest block: 32 x 32 threads for each lane of a column kernel, and one
        element for each of 32 warps otherwise.

        Args:
            component: the component of the reduction.
            dtype: its compute dtype.
        """
        name = f"shared_{component}_{dtype}"
        size = 32 * 32 * self.launch.vector_width if self.is_column else 32
        declaration = f"    {name} = shared_array(np.{STORAGE_BITS.get(dtype, dtype)}, {size})"
        if declaration not in self.lines:
            self.shared_bytes += storage_bytes(dtype) * size
            self.lines.insert(self.signature_index + 1, declaration)
        return name

    def combine_function(self, s: Reduce) -> str:
        """Print the device function that combines two partial results, once; returns its name."""
        count = len(s.outs)
        sides = [f"a{n}" for n in range(count)] + [f"b{n}" for n in range(count)]
        combine = numbered_from_zero(s.combine)  # equal combinations have equal text
        with self.function_body() as body:
            self.values.clear()  # values of the function are numbered from zero, too
            self.bind(combine.params, sides)
            self.block(combine)
            self.emit(f"return {', '.join(self.value(v) for v in combine.results)}")
        definition = "\n".join([f"({', '.join(sides)}):", *body])
        existing = [name for name in self.helpers if name.startswith("combine_")]
        for name in existing:
            if self.helpers[name] == f"@device_function\ndef {name}{definition}":
                return name
        name = f"combine_{len(existing)}"
        self.add_helper(name, f"@device_function\ndef {name}{definition}")
        return name

    # Loads and stores

    def _load(self, s: Load) -> None:
        """Print a load; threads past the last column do not load from INOUT operands.

        They repeat the last column, whose threads may write those elements at the same time.
        """
        if not self.is_column or self.operands[s.operand].mode is not Mode.INOUT:
            super()._load(s)
            return
        with self.indented("if is_inside:"):
            super()._load(s)
        with self.indented("else:"):
            self.emit(f"{self.value(s.out)} = {constant(0, s.out.dtype)}")

    def _store(self, s: Store) -> None:
        """Print a store; outside of distributed loops, member 0 stores for its group."""
        guards = ["is_inside"] if self.is_column else []
        if not self.members_diverge:
            if self.operands[s.operand].mode is Mode.INOUT and self.may_synchronize:
                self._emit_barrier()
            guards.append("member_id == 0")
        if not guards:
            super()._store(s)
            return
        with self.indented(f"if {' and '.join(guards)}:"):
            super()._store(s)

    def _barrier_before_inplace_stores(self, *bodies: Block) -> None:
        """Emit a barrier if bodies store in place: other members may still read the elements."""
        stored = {s.operand for body in bodies for s in statements(body) if isinstance(s, Store)}
        if any(self.operands[name].mode is Mode.INOUT for name in stored):
            self._emit_barrier()

    def _emit_barrier(self) -> None:
        """Print a barrier for the threads of a group; of the whole block, if it has columns."""
        assert self.may_synchronize, self.kernel.name
        if self.is_column:
            self.emit("barrier()")
            return
        self.add_helper("row_barrier", group_reductions.ROW_BARRIER)
        self.emit("row_barrier()")


def _is_unrollable(reduces: Sequence[Reduce]) -> bool:
    """Whether the bodies have few statements, and no stores, loops or branches."""
    body_statements = [s for reduce in reduces for s in reduce.body.body]
    pure = (Const, Load, Apply, Select, Cast)
    return len(body_statements) <= MAX_UNROLLED_STATEMENTS and all(
        isinstance(s, pure) for s in body_statements
    )
