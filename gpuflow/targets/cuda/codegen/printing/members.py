"""Several threads that compute one point: rows, columns and full reductions.

The threads of a group are its members. All of them run the statements of a point, and so have all
its values; loops over ROW and REDUCE axes are shared, and a Reduce is combined over the members.
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
from gpuflow.targets.cuda.codegen.printing import combining
from gpuflow.targets.cuda.codegen.printing.phases import MOST_REPEATED, may_share
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrinter, Nest
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS
from gpuflow.targets.cuda.codegen.schedules.launch_config import MEMBER_ROLES, axes_of, perfect_nest
from gpuflow.targets.printer import constant

# Iterations of a column's loop whose loads are in flight at once.
IN_FLIGHT = 4


class MemberPrinter(CudaPrinter):
    """Common code of the emitters of groups and of full reductions, element by element."""

    in_members = False  # inside a loop that the members share
    uniform = True  # here all groups of a block run the same statements

    @property
    def is_column(self) -> bool:
        """Whether members are along the block's y and groups along its x."""
        return self.launch.strategy == "column"

    def entry(self) -> None:
        self.unpack()
        self.member_names()
        self.in_points = not self.launch.points
        self.block(self.kernel.body)

    def member_names(self) -> None:
        """Define the id of the member in its group, and the count of members."""
        along = "y" if self.is_column else "x"
        self.emit(f"member_id = {self.index(f'cuda.threadIdx.{along}')}")
        self.emit(f"member_count = {self.index(f'cuda.blockDim.{along}')}")

    # Loops

    def points(self, nest: Nest) -> None:
        axes = axes_of(nest, self.axes)
        self.emit(f"point_count = {self.product(axes)}")
        if self.is_column:
            self._column_points(nest, axes)
            return
        block, blocks = self.grid
        first = f"{self.index(block)} * cuda.blockDim.y + cuda.threadIdx.y"
        self.emit(f"group_count = {self.index(f'{blocks} * cuda.blockDim.y')}")
        with self.counting("point_id", self.index(first), "point_count", "group_count"):
            self.split("point_id", axes)
            self.inside(nest, self.block)

    def _column_points(self, nest: Nest, axes: Sequence[Axis]) -> None:
        """32 neighbors at a time, or pairs; threads past the last repeat it and store nothing."""
        width = self.launch.width
        if width > 1:
            self.emit(f"point_count = {self.index(f'point_count // {width}')}")
        block, blocks = self.grid
        first = self.index(f"{self.index(block)} * 32")
        self.emit(f"tile_step = {self.index(f'{blocks} * 32')}")
        with self.counting("tile_id", first, "point_count", "tile_step"):
            self.emit(f"point_id = {self.index('tile_id + cuda.threadIdx.x')}")
            self.emit("is_inside = point_id < point_count")
            with self.indented("if not is_inside:"):
                self.emit(f"point_id = {self.index('point_count - 1')}")
            if width > 1:
                self.emit(f"point_id = {self.index_product('point_id', str(width))}")
            self.split("point_id", axes)
            self.inside(nest, self.block)

    def loop(self, s: For) -> None:
        if s.axis is None:
            with self._diverging():
                super().loop(s)
        elif self.is_shared(s.axis):
            self._barrier_before_inplace_stores(s.body)
            nest = perfect_nest(s, self.axes, MEMBER_ROLES)
            self.over_members(axes_of(nest, self.axes), lambda: self.inside(nest, self.block))
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
        """Columns of a block may diverge in a branch or trip count: it must not have a barrier.

        Shared values are then computed by every member. Rows may have one: the groups of a
        block share a barrier only when there is one group.
        """
        before = self.uniform
        self.uniform = before and not self.is_column
        yield
        self.uniform = before

    def is_shared(self, axis: str) -> bool:
        """Whether a loop over ``axis`` here is shared by the members of a group."""
        shared = self.in_points and not self.in_members and self.uniform
        return shared and self.axes[axis].role in MEMBER_ROLES

    def over_members(self, axes: Sequence[Axis], print_body: Callable[[], None]) -> None:
        """A loop over the product of ``axes`` that the members of a group share."""
        self.in_members = True
        linear = axes[0].name if len(axes) == 1 else f"place_{axes[-1].name}"
        with self.counting(linear, "member_id", self.product(axes), "member_count"):
            if len(axes) > 1:
                self.split(linear, axes)
            print_body()
        self.in_members = False

    def unrolled_over_members(self, axes: Sequence[Axis], print_body: Callable[[], None]) -> None:
        """``over_members`` of a body that only reads, unrolled by several iterations.

        The assembler then overlaps their loads, which it does not across the iterations of a loop
        with an unknown step.
        """
        self.in_members = True
        linear = axes[0].name if len(axes) == 1 else f"place_{axes[-1].name}"
        count = self.product(axes)
        self.emit("turn = member_id")
        self.emit(f"ahead = {self.index_product('member_count', str(IN_FLIGHT - 1))}")
        with self.indented(f"while {self.index_sum('turn', 'ahead')} < {count}:"):
            for _ in range(IN_FLIGHT):
                self.emit(f"{linear} = turn")
                if len(axes) > 1:
                    self.split(linear, axes)
                print_body()
                self.emit(f"turn = {self.index_sum('turn', 'member_count')}")
        with self.counting(linear, "turn", count, "member_count"):
            if len(axes) > 1:
                self.split(linear, axes)
            print_body()
        self.in_members = False

    # Reductions

    def block(self, block: Block) -> None:
        """Adjacent independent reductions share one loop."""
        fused: list[Reduce] = []
        for statement in block.body:
            if isinstance(statement, Reduce) and self.is_shared(statement.axes[0]):
                if fused and not may_share(fused, statement):
                    self._reduce_fused(fused)
                    fused = []
                fused.append(statement)
                continue
            if fused and not isinstance(statement, Const):
                self._reduce_fused(fused)
                fused = []
            self.statement(statement)
        self._reduce_fused(fused)

    def _reduce_fused(self, reduces: Sequence[Reduce]) -> None:
        self.partial_reduces(reduces)
        for s in reduces:
            self.combine_members(s, "column" if self.is_column else "row")

    def partial_reduces(self, reduces: Sequence[Reduce]) -> None:
        """Each member combines its share, of all reductions in one loop."""
        self.begin_reduces(reduces)
        if reduces:
            axes = [axis for axis in self.kernel.axes if axis.name in reduces[0].axes]
            only_reads = self.is_column and _only_read(reduces)
            over = self.unrolled_over_members if only_reads else self.over_members
            over(axes, lambda: self._combine_points(reduces, axes))

    def begin_reduces(self, reduces: Sequence[Reduce]) -> None:
        """Set the results to their initial values; the bodies may write in place."""
        for s in reduces:
            self.assign(self.results(s), [self.value(v) for v in s.init])
        self._barrier_before_inplace_stores(*(s.body for s in reduces))

    def _combine_points(self, reduces: Sequence[Reduce], axes: Sequence[Axis]) -> None:
        for s in reduces:
            self._combine_point(s, axes)

    def _combine_point(self, s: Reduce, axes: Sequence[Axis]) -> None:
        if axes:
            with self.at_point(axes[0], s.body):
                self._combine_point(s, axes[1:])
            return
        self.block(s.body)
        self.combine(s, self.results(s), [self.value(v) for v in s.body.results])

    def results(self, s: Reduce) -> list[str]:
        """The variables that hold the results of a reduction."""
        return [self.value(o) for o in s.outs]

    def combine_members(self, s: Reduce, group: str) -> None:
        """Combine the results of the members, so that each of them has the result."""
        outs = self.results(s)
        combine = self.combine_function(s)
        dtypes = [out.dtype for out in s.outs]
        self.helper(f"{group}_{combine}", combining.GROUPS[group](combine, dtypes))
        shared = [self._shared_array(number, dtype) for number, dtype in enumerate(dtypes)]
        neutral = [self.value(v) for v in s.init] if group == "row" else []
        arguments = ", ".join([*outs, *neutral, *shared])
        self.emit(f"{', '.join(outs)} = {group}_{combine}({arguments})")

    def _shared_array(self, number: int, dtype: str) -> str:
        """Shared memory for one component; reductions follow each other and use the same."""
        name = f"shared_{number}_{dtype}"
        size = 32 * 32 * self.launch.width if self.is_column else 32
        declaration = f"    {name} = shared_array(np.{STORAGE_BITS.get(dtype, dtype)}, {size})"
        if declaration not in self.lines:
            self.shared_bytes += storage_bytes(dtype) * size
            self.lines.insert(self.signature_index + 1, declaration)
        return name

    def combine_function(self, s: Reduce) -> str:
        """Print the device function that combines two partial results; returns its name."""
        count = len(s.outs)
        sides = [f"a{n}" for n in range(count)] + [f"b{n}" for n in range(count)]
        combine = numbered_from_zero(s.combine)  # equal combinations have equal text
        with self.function_body() as body:
            self.values.clear()  # it numbers its own values
            self.bind(combine.params, sides)
            self.block(combine)
            self.emit(f"return {', '.join(self.value(v) for v in combine.results)}")
        definition = "\n".join([f"({', '.join(sides)}):", *body])
        existing = [name for name in self.helpers if name.startswith("combine_")]
        for name in existing:
            if self.helpers[name] == f"@device_function\ndef {name}{definition}":
                return name
        name = f"combine_{len(existing)}"
        self.helper(name, f"@device_function\ndef {name}{definition}")
        return name

    # Loads and stores

    def _load(self, s: Load) -> None:
        """Threads past the last point read nothing that those of the last point write in place."""
        if not self.is_column or self.operands[s.operand].mode is not Mode.INOUT:
            super()._load(s)
            return
        with self.indented("if is_inside:"):
            super()._load(s)
        with self.indented("else:"):
            self.emit(f"{self.value(s.out)} = {constant(0, s.out.dtype)}")

    def _store(self, s: Store) -> None:
        """Except in loops that members share, one of them stores for all."""
        guards = ["is_inside"] if self.is_column else []
        if not self.in_members:
            if self.operands[s.operand].mode is Mode.INOUT and self.uniform:
                self.emit(self._group_barrier())
            guards.append("member_id == 0")
        if not guards:
            super()._store(s)
            return
        with self.indented(f"if {' and '.join(guards)}:"):
            super()._store(s)

    def _barrier_before_inplace_stores(self, *bodies: Block) -> None:
        """Emit a barrier: other members may still read the elements, in an earlier phase."""
        stored = {s.operand for body in bodies for s in statements(body) if isinstance(s, Store)}
        if any(self.operands[name].mode is Mode.INOUT for name in stored):
            self.emit(self._group_barrier())

    def _group_barrier(self) -> str:
        if self.is_column:
            return "barrier()"
        self.helper("row_barrier", combining.ROW_BARRIER)
        return "row_barrier()"


def _only_read(reduces: Sequence[Reduce]) -> bool:
    """Whether the bodies are short, and only read and compute."""
    inside = [s for reduce in reduces for s in reduce.body.body]
    pure = (Const, Load, Apply, Select, Cast)
    return len(inside) <= MOST_REPEATED and all(isinstance(s, pure) for s in inside)
