"""Printer base of the CUDA target: overrides of ``KernelPrinter``'s hooks.

Subclasses distribute the points of a kernel. One thread computes a point, or a block if points are
tiles (``points``); or a group of threads does (``rows``, ``columns``), or the grid
(``full_reductions``). The kernel has one parameter for each of ``nodes.arguments``, in that order.

Tests: tests/targets/cuda/test_cuda_schedule.py, tests/targets/cuda/test_cuda_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from gpuflow.kir import nodes
from gpuflow.kir.nodes import (
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Statement,
    Store,
    Stride,
    Value,
)
from gpuflow.kir.rewrite import free_values
from gpuflow.kir.scalar import COMPONENT_DTYPES
from gpuflow.kir.walk import statements
from gpuflow.targets.cuda.codegen.printing.scalar_text import (
    STORAGE_BITS,
    function_helper,
    narrow,
    spell_cast,
    spell_function,
    widen,
)
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    LaunchConfig,
    PointLoop,
    axes_of,
    is_point_loop,
    perfect_nest,
)
from gpuflow.targets.kernel_walk import Names
from gpuflow.targets.printer import KernelPrinter, Source

Nest = list[PointLoop]


class CudaPrintError(RuntimeError):
    """The CUDA target cannot print a kernel; schedules or lowering should not have produced it."""


class CudaNames(Names):
    """Variable names of operands, which never shadow a function that printed source calls."""

    _CALLED = frozenset(
        ("cuda", "libdevice", "maximum", "minimum", "saturate", "bitcast", "barrier")
    )

    def operand(self, operand: str) -> str:
        """As ``Names.operand``."""
        return operand + "_" if operand in self._CALLED else super().operand(operand)


class CudaPrinter(KernelPrinter):
    """Prints a kernel as Python source; subclasses override ``point_loop`` and ``entry``.

    A printer prints one text: ``source`` or ``device_function``, once.

    Attributes:
        launch: the distribution of points over threads.
        index_type: NumPy's name of the type of indices and offsets.
        helpers: text of device functions by name, in the order in which the module has them.
        signature_index: index in ``lines`` of the kernel's signature.
        shared_bytes: upper bound of the static shared memory of a block.
        is_at_point: whether statements are those of a point; always, if the kernel has no loop over
            points.
    """

    target_name = "cuda"
    comment = "A gpuflow kernel for CUDA; its names: targets/cuda/codegen/intrinsics/namespace.py"

    def __init__(self, kernel: Kernel, launch: LaunchConfig) -> None:
        super().__init__(kernel)
        self.names = CudaNames(axis.name for axis in kernel.axes)
        self.launch = launch
        self.index_type = f"int{kernel.index_bits}"
        self.helpers: dict[str, str] = {}
        self.signature_index = 0
        self.shared_bytes = 0
        self.is_at_point = False

    # Text around the body

    def source(self) -> Source:
        """Print the module, with the device functions before the kernel."""
        printed = super().source()
        at = self.signature_index
        helpers = [row for text in self.helpers.values() for row in [*text.splitlines(), "", ""]]
        return replace(printed, text="\n".join([*self.lines[:at], *helpers, *self.lines[at:], ""]))

    def add_helper(self, name: str, text: str) -> None:
        """Print a device function before the kernel, unless one of this name is printed."""
        self.helpers.setdefault(name, text.strip())

    @contextmanager
    def function_body(self) -> Iterator[list[str]]:
        """Print into the yielded list, as the body of a function.

        Values that are bound meanwhile are local to the function.
        """
        outer = self.lines, self.depth, self.values
        self.lines, self.depth, self.values = [], 1, dict(self.values)
        try:
            yield self.lines
        finally:
            self.lines, self.depth, self.values = outer

    def free_variables(
        self,
        items: Sequence[Statement],
        caller_accesses: Sequence[Load | Store],
        axes: Iterable[Axis],
    ) -> list[str]:
        """Free variables of a device function: variables of the kernel that it takes as arguments.

        Args:
            items: the statements of the function.
            caller_accesses: those of ``items`` that the caller executes: vector loads and stores.
            axes: axes of the loops that the function enters, at indices of the kernel.
        """
        names = dict.fromkeys(self.value(value) for value in free_values(items))
        for s in statements(Block(body=tuple(items))):
            if isinstance(s, Load | Store) and s not in caller_accesses:
                names.update(dict.fromkeys(self._address_names(self.operands[s.operand], axes)))
        return list(names)

    def _address_names(self, operand: Operand, axes: Iterable[Axis]) -> Iterator[str]:
        """The kernel's variables in an element's address, before the loops over ``axes``."""
        if operand.mode is Mode.SCALAR:
            yield self._element(operand, None, None)
            return
        if operand.mode is not Mode.INDEX:
            yield self.names.operand(operand.name)
        if self.offsets[operand.name] != "0":
            yield self.offsets[operand.name]
        for axis in axes:
            stride = operand.strides[self.kernel.axes.index(axis)]
            if stride is not Stride.ZERO:
                yield axis.name
            if stride is Stride.ANY:
                yield self.names.stride(operand.name, axis.name)

    def parameters(self) -> list[tuple[str, str]]:
        """Name and type of every parameter; the type of a pointer starts with a star."""
        return [self.parameter(argument) for argument in nodes.arguments(self.kernel)]

    def parameter(self, argument: nodes.Argument) -> tuple[str, str]:
        """Name and type of the parameter for one slot of the argument block."""
        if argument.kind == "extent":
            return self.names.extent(self.axes[argument.axis]), self.index_type
        if argument.kind == "stride":
            return self.names.stride(argument.operand, argument.axis), self.index_type
        name = self.names.operand(argument.operand)
        dtype = self.operands[argument.operand].dtype
        bits = STORAGE_BITS.get(dtype, COMPONENT_DTYPES.get(dtype, dtype))
        if argument.kind == "pointer":
            return name, "*" + bits
        return name, "int64" if argument.kind == "base" else bits

    def signature(self) -> str:
        self.signature_index = len(self.lines)
        return f"def {self.kernel.name}({', '.join(name for name, _ in self.parameters())}):"

    def unpack(self) -> None:
        """Print conversions of scalar arguments from storage dtype to compute dtype."""
        for operand in self.kernel.operands:
            if operand.mode is Mode.SCALAR and operand.dtype in STORAGE_BITS:
                name = self.names.operand(operand.name)
                self.emit(f"{name}_value = {widen(name, operand.dtype)}")

    def device_function(self) -> str:
        """Print a device function instead of a kernel, after those that it calls."""
        super().source()
        at = self.signature_index
        helpers = [row for text in self.helpers.values() for row in [*text.splitlines(), ""]]
        return "\n".join([*helpers, "@device_function", *self.lines[at:]])

    @property
    def grid(self) -> tuple[str, str]:
        """Expressions of the id of this block and the number of blocks; a single one is 0 of 1."""
        return ("0", "1") if self.launch.is_single_block else ("cuda.blockIdx.x", "cuda.gridDim.x")

    # Index arithmetic

    def cast_index(self, expression: str) -> str:
        """An expression cast to the index type."""
        return f"np.{self.index_type}({expression})"

    def index_sum(self, left: str, right: str) -> str:
        """The sum of two index expressions, in the index type."""
        total = f"{left} + {right}"
        return total if self.kernel.index_bits == 64 else self.cast_index(total)

    def next_index(self, index: str, step: str) -> str:
        """The increment of a loop counter: it must not overflow, which LLVM relies on.

        ``index_bits.fits_32_bits`` ensures that for 32-bit indices.
        """
        is_wide = self.kernel.index_bits == 64
        return f"{index} + {step}" if is_wide else f"next_index({index}, {step})"

    def index_product(self, index: str, stride: str) -> str:
        product = f"{index} * {stride}"
        return product if self.kernel.index_bits == 64 else self.cast_index(product)

    def extent(self, axis: Axis) -> str:
        """The number of points of an axis, in the index type."""
        extent = self.names.extent(axis)
        return extent if axis.exact is None else self.cast_index(extent)

    def point_count(self, axes: Sequence[Axis]) -> str:
        """The number of points of several axes, of which there is at least one."""
        total = self.extent(axes[0])
        for axis in axes[1:]:
            total = self.index_product(total, self.names.extent(axis))
        return total

    def unravel(self, linear: str, axes: Sequence[Axis], last_extent: str = "") -> None:
        """Print the index of each axis from a linear index; the last axis varies fastest.

        Args:
            linear: variable of the linear index.
            axes: the axes, outermost first.
            last_extent: expression that replaces the extent of the last axis: a number of vectors.
        """
        if len(axes) == 1:
            self.emit(f"{axes[0].name} = {linear}")
        for position in range(len(axes) - 1, 0, -1):
            axis = axes[position]
            extent = self.extent(axis)
            if position == len(axes) - 1 and last_extent:
                extent = last_extent
            left = axes[0].name if position == 1 else f"rest_{axis.name}"
            self.emit(f"{left}, {axis.name} = split_index({linear}, {extent})")
            linear = left

    # Loops

    @contextmanager
    def counted_loop(self, variable: str, start: str, stop: str, step: str) -> Iterator[None]:
        """Print a while loop; a ``range`` whose step is not constant would cost a division.

        ``start``, ``stop`` and ``step`` are expressions of the index type, ``step`` is positive.
        """
        self.emit(f"{variable} = {start}")
        with self.indented(f"while {variable} < {stop}:"):
            yield
            self.emit(f"{variable} = {self.next_index(variable, step)}")

    @contextmanager
    def axis_loop(self, axis_name: str, body: Block) -> Iterator[None]:
        """Print a sequential loop over an axis, within one thread."""
        axis = self.axes[axis_name]
        counting = self.counted_loop(axis.name, self.cast_index("0"), self.extent(axis), "1")
        with counting, self.at_point(axis, body):
            yield

    def loop(self, s: For) -> None:
        if self.is_at_point or not is_point_loop(s, self.axes):
            super().loop(s)
        else:
            self.distributed_nest(s)

    def distributed_nest(self, s: PointLoop) -> None:
        """Print a nest of loops over points, which the launch distributes.

        Raises CudaPrintError if its axes are not those of the launch.
        """
        nest = perfect_nest(s, self.axes)
        axes = axes_of(nest, self.axes)
        if axes != self.launch.point_axes:
            raise CudaPrintError(
                f"[cuda] all loops over points of {self.kernel.name} must have the axes "
                f"{[axis.name for axis in self.launch.point_axes]}; got {[a.name for a in axes]}. "
                "Fix: make two kernels of it."
            )
        self.is_at_point = True
        self.point_loop(nest)
        self.is_at_point = False

    def point_loop(self, nest: Nest) -> None:
        """Print the loop over all points."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override points")

    def nest_body(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        """Print the statements of a nest of loops at one point, whose indices are defined."""
        loop, *inner = nest
        with self.at_loop(loop):
            if not inner:
                print_body(loop.body)
                return
            for statement in loop.body.body[:-1]:
                self.statement(statement)
            self.nest_body(inner, print_body)

    def at_loop(self, loop: PointLoop) -> AbstractContextManager[None]:
        """Print the offsets of a loop's operands at its index, which is defined."""
        assert isinstance(loop, For) and loop.axis is not None  # a Strip is for ``block_tiles``
        return self.at_point(self.axes[loop.axis], loop.body)

    # Memory

    def raw_load(self, operand: Operand, offset: str) -> str:
        """An element in its storage dtype; through the read-only cache, if nothing writes it.

        A single block may have written its operands in an earlier step, so it does not use that
        cache. ``offset`` is an expression, in elements.
        """
        name = self.names.operand(operand.name)
        if operand.mode is Mode.IN and not self.launch.is_single_block:
            return f"load_readonly({name}, {offset})"
        return f"{name}[{offset}]"

    def load(self, operand: Operand, offset: str) -> str:
        return widen(self.raw_load(operand, offset), operand.dtype)

    def store(self, operand: Operand, offset: str, value: str) -> None:
        super().store(operand, offset, narrow(value, operand.dtype))

    def _element(self, operand: Operand, offset: Value | None, part: int | None) -> str:
        if operand.mode is Mode.SCALAR and operand.dtype in STORAGE_BITS:
            return f"{self.names.operand(operand.name)}_value"
        return super()._element(operand, offset, part)

    def _advance(self, operand: Operand, stride: Stride, axis: Axis) -> None:
        """Print an operand's offset along an axis; in 64 bits for INDEX operands."""
        if operand.mode is not Mode.INDEX or self.kernel.index_bits == 64:
            super()._advance(operand, stride, axis)
            return
        if stride is Stride.ZERO:
            return
        step = f"np.int64({axis.name})"
        if stride is Stride.ANY:
            step += f" * {self.names.stride(operand.name, axis.name)}"
        offset = f"{self.names.operand(operand.name)}_at_{axis.name}"
        self.emit(f"{offset} = {self.offsets[operand.name]} + {step}")
        self.offsets[operand.name] = offset

    # Expressions

    def function(self, fn: str, arguments: Sequence[str], dtype: str) -> str:
        helper = function_helper(fn, dtype)
        if helper is not None:
            self.add_helper(f"{fn}_{dtype}", helper)
        return spell_function(fn, arguments, dtype)

    def cast(self, argument: str, source: str, dtype: str) -> str:
        return spell_cast(argument, source, dtype)
