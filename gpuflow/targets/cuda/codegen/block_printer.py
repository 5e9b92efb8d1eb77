"""Printer of programs that one block runs: locations, calls of kernels, copies (see block_text.py).

Each kernel of the program becomes a device function, printed for a single block. Arguments that a
launch would pass are constants of the text, so a text serves the sizes of one plan.

Tests: tests/targets/cuda/test_block_programs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.planning.plan import ALIGNMENT, CallStep, StepOperand
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.blocks import Product
from gpuflow.core.lowering import block_of
from gpuflow.core.views import View, contiguous
from gpuflow.kernels import block_products, tiles
from gpuflow.kir.nodes import arguments
from gpuflow.targets.cuda.codegen.handwritten import kernel_source
from gpuflow.targets.cuda.codegen.printing.printers import PRINTERS
from gpuflow.targets.cuda.codegen.schedules.index_bits import with_narrowest_indices
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    SINGLE_BLOCK_THREADS,
    single_block_config,
)
from gpuflow.targets.layouts.product_axes import batch_axes, collapsed_axes
from gpuflow.targets.printer import IndentedText

ENTRY = "block_program"
# A program with more calls would take too long to compile.
_MAX_CALLS = 200
# The assembler refuses more than 48 KB of static shared memory; this leaves a margin.
_MAX_STATIC_BYTES = 40 << 10
_DTYPE_CODES = {
    np.dtype(np.float32): tiles.FLOAT32,
    np.dtype(np.float64): block_products.FLOAT64,
    np.dtype(np.float16): tiles.FLOAT16,
    dtypes.bfloat16: tiles.BFLOAT16,
}
_HALF_CODES = (tiles.FLOAT16, tiles.BFLOAT16)
_HEAD = """# A program that a block runs by itself, printed by gpuflow; what it calls:
# targets/cuda/codegen/intrinsics/namespace.py
import math

import numpy as np
"""
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)


class NotSingleBlockError(Exception):
    """A step of the program cannot be printed for a single block."""


@record(eq=False)
class ConstantOperand:
    """A constant or literal that a program takes as a further operand."""

    value: Any
    aval: ShapedArray


@record
class BlockProgramText:
    """A printed program.

    Attributes:
        text: a module that ``build.build_cuda`` compiles.
        operands: one per parameter, which is its address: a constant, or an index into the
            step's operands followed by its outputs. If arenas are not in shared memory, one more
            parameter follows: the address of the arenas of all blocks.
        arena_bytes: size of the arena of each block.
        is_shared: whether arenas are in shared memory.
    """

    text: str
    operands: tuple[int | ConstantOperand, ...]
    arena_bytes: int
    is_shared: bool


class ByteLocation(NamedTuple):
    """A memory location, as expressions of the printed text.

    Attributes:
        pointer: name of a variable that is a byte pointer.
        offset: an integer expression: byte offset from the pointer.
        is_static: whether the location is constant for the whole program, so that a pointer to it
            can be defined once at the start.
    """

    pointer: str
    offset: str = "0"
    is_static: bool = True

    def advanced(self, byte_count: int) -> ByteLocation:
        """The location ``byte_count`` bytes further."""
        if self.offset.isdecimal():
            return self._replace(offset=str(int(self.offset) + byte_count))
        offset = f"{self.offset} + {byte_count}" if byte_count else self.offset
        return self._replace(offset=offset)


def element_location(
    location: ByteLocation, shape: Sequence[int], dtype: Any, index: str
) -> ByteLocation:
    """The location of ``array[index]`` in a row-major stacked array.

    Args:
        location: location of the array.
        shape, dtype: shape, of at least one dimension, and dtype of the array.
        index: an integer expression of an iteration; it must be in bounds.
    """
    row_bytes = prod(shape[1:]) * storage_dtype(dtype).itemsize
    if row_bytes == 0:
        return location
    offset = f"{row_bytes} * {index}"
    if location.offset != "0":
        offset = f"{location.offset} + {offset}"
    return ByteLocation(location.pointer, offset, is_static=False)


class BlockPrinter(IndentedText):
    """Collects the statements of a program, the device functions it calls, and its parameters.

    Attributes:
        operands: one per parameter, see ``BlockProgramText``.
        flag_bytes: size of the flags, which follow the arena: a byte for each condition of a
            while loop, and one that nothing reads.
    """

    def __init__(self) -> None:
        self.lines, self.depth = [], 1
        self.operands: list[int | ConstantOperand] = []
        self.flag_bytes = 0
        self._functions: dict[str, str] = {}  # names of device functions, by text
        self._hoisted: dict[str, str] = {}  # variables defined at the start, by expression
        self._name_count = self._call_count = self._static_bytes = 0

    def fresh(self, stem: str) -> str:
        """A name that no other variable has."""
        self._name_count += 1
        return f"{stem}_{self._name_count}"

    def text(self, arena_bytes: int, max_shared_bytes: int) -> BlockProgramText:
        """The whole module.

        Args:
            arena_bytes: size of the arena of each block, without flags.
            max_shared_bytes: most shared memory of a block. If static shared memory and an arena
                exceed it, the arena is in global memory.
        """
        flag_bytes = -(-self.flag_bytes // ALIGNMENT) * ALIGNMENT
        arena_bytes = max(-(-arena_bytes // ALIGNMENT) * ALIGNMENT + flag_bytes, ALIGNMENT)
        is_shared = self._static_bytes + arena_bytes <= max_shared_bytes
        names = [f"address_{k}" for k in range(len(self.operands))]
        parameters = names if is_shared else [*names, "arenas"]
        thread = f"{SINGLE_BLOCK_THREADS[0]} * cuda.threadIdx.y + cuda.threadIdx.x"
        header = [f"def {ENTRY}({', '.join(parameters)}):", f"    thread = np.int32({thread})"]
        if is_shared:
            header.append("    arena = dynamic_shared(np.uint8)")
        else:
            arena_address = f"arenas + {arena_bytes} * np.int64(cuda.blockIdx.x)"
            header.append(f"    arena = pointer_from_address({arena_address}, np.uint8)")
        header.append(f"    flags = pointer_within(arena, {arena_bytes - flag_bytes}, np.uint8)")
        header += [
            f"    operand_{k} = pointer_from_address({name}, np.uint8)"
            for k, name in enumerate(names)
        ]
        header += [f"    {name} = {expression}" for expression, name in self._hoisted.items()]
        functions = [_renamed(text, name) for text, name in self._functions.items()]
        texts = [_HEAD, *functions, "\n".join([*header, *self.lines]), ""]
        return BlockProgramText("\n\n".join(texts), tuple(self.operands), arena_bytes, is_shared)

    # Locations

    def parameter(self, source: int | ConstantOperand) -> ByteLocation:
        """Add a parameter for an operand or output of the step, or a constant; its location."""
        self.operands.append(source)
        return ByteLocation(f"operand_{len(self.operands) - 1}")

    def constant(self, operand: StepOperand) -> ByteLocation:
        """The location of a literal."""
        return self.parameter(ConstantOperand(operand.value, operand.aval))

    def pointer(self, location: ByteLocation, kind: str) -> str:
        """A pointer to elements of the NumPy type ``kind``; the location must be aligned to it."""
        expression = f"pointer_within({location.pointer}, {location.offset}, np.{kind})"
        return self._hoisted_name(expression, "at") if location.is_static else expression

    def _hoisted_name(self, expression: str, stem: str) -> str:
        """The variable of an expression of constants and parameters, defined at the start."""
        return self._hoisted.setdefault(expression, f"{stem}_{len(self._hoisted)}")

    # Steps: all threads of the block run them, and the caller emits the barrier

    def call_kernel(self, call: KernelCall, location_of: Callable[[int], ByteLocation]) -> None:
        """Print the call of a kernel's device function.

        Args:
            call: the kernel, with its buffers and arguments.
            location_of: gives the location of a buffer.

        Raises:
            NotSingleBlockError: if the kernel has no schedule for one block, or the program has
                too many calls, or too much shared memory.
        """
        kernel = with_narrowest_indices(replace(call.kernel, segmented=False), [call])
        launch = single_block_config(kernel)
        if launch is None:
            raise NotSingleBlockError(f"{kernel.name} uses tiles of another size")
        printer = PRINTERS[launch.strategy](kernel, launch)
        text = printer.device_function()
        name = self._device_function(text, kernel.name, printer.shared_bytes)
        expressions, types = [], [parameter_type for _, parameter_type in printer.parameters()]
        for k, (argument, parameter_type) in enumerate(safe_zip(arguments(kernel), types)):
            if argument.kind == "pointer":
                location = location_of(call.buffers[k]).advanced(call.slots[k])
                expressions.append(self.pointer(location, parameter_type.removeprefix("*")))
            else:
                literal = _literal(call.slots[k], parameter_type)
                expressions.append(self._hoisted_name(literal, "number"))
        statement = f"{name}({', '.join(expressions)})"
        if launch.point_axes:
            self.emit(statement)
            return
        is_row = launch.strategy == "row"
        takes_part = f"thread < {SINGLE_BLOCK_THREADS[0]}" if is_row else "thread == 0"
        with self.indented(f"if {takes_part}:"):
            self.emit(statement)

    def call_library(
        self, step: CallStep, operands: list[ByteLocation], outs: list[ByteLocation]
    ) -> None:
        """Print the call of the device function that replaces a library call: a matrix product.

        Args:
            step: the library call.
            operands, outs: locations of its operands and outputs.

        Raises:
            NotSingleBlockError: if it is another call, or a product that block_products lacks.
        """
        product = block_of(step.eqn)
        if not isinstance(product, Product) or product.epilogue is not None:
            raise NotSingleBlockError(f"{step.name} is a call of a library")
        constants = _product_constants(product, step)
        if constants["M"] * constants["N"] * constants["BATCH"] == 0:
            return
        text = kernel_source(block_products.multiply_in_block, constants, is_device=True)
        name = self._device_function(text, "multiply", 0)
        types = [_element_type(atom.aval.dtype) for atom in (*step.eqn.outputs, *step.operands)]
        pointers = [self.pointer(*pair) for pair in safe_zip([*outs, *operands], types)]
        self.emit(f"{name}({', '.join(pointers)})")

    def copy(
        self, source: ByteLocation, target: ByteLocation, aval: Any, view: View | None = None
    ) -> None:
        """Print a copy to a row-major array, by all threads; the caller emits the barrier.

        Args:
            source: location of the view's first element.
            target: location of the copy, which must not overlap the source.
            aval: shape and dtype of the copy.
            view: strides of the source; None: row-major.
        """
        if aval.size == 0:
            return
        self._count_calls()
        unit_type, units = _copy_unit(storage_dtype(aval.dtype).itemsize)
        view = view or contiguous(aval.shape)
        broadcast = view.broadcast or (False,) * len(view.shape)
        pairs = safe_zip(view.strides, broadcast)
        steps = [0 if is_broadcast else stride * units for stride, is_broadcast in pairs]
        dims = [*safe_zip(view.shape, steps), (units, 1)]  # sizes and strides, in units
        index = self.fresh("copied")
        self.emit(f"{index} = np.int64(thread)")
        with self.indented(f"while {index} < {prod([size for size, _ in dims])}:"):
            self.emit(f"rest, offset = {index}, np.int64(0)")
            for size, step in reversed(dims):
                if size > 1:
                    self.emit(f"offset += (rest % {size}) * {step}")
                    self.emit(f"rest = rest // {size}")
            written, read = self.pointer(target, unit_type), self.pointer(source, unit_type)
            self.emit(f"{written}[{index}] = {read}[offset]")
            self.emit(f"{index} += {prod(SINGLE_BLOCK_THREADS)}")

    def _device_function(self, text: str, stem: str, shared_bytes: int) -> str:
        """Add a device function unless it exists, and count a call; returns its name.

        Args:
            text: text of the function, after those of functions that it calls.
            stem: begins its name.
            shared_bytes: its static shared memory.
        """
        self._count_calls()
        if text not in self._functions:
            self._static_bytes += shared_bytes
            if self._static_bytes > _MAX_STATIC_BYTES:
                raise NotSingleBlockError("its kernels need too much shared memory")
            self._functions[text] = f"{stem}_{len(self._functions)}"
        return self._functions[text]

    def _count_calls(self) -> None:
        self._call_count += 1
        if self._call_count > _MAX_CALLS:
            raise NotSingleBlockError("it has too many steps")


def _renamed(text: str, name: str) -> str:
    """Rename device functions: the last one to ``name``, the others to names that contain it."""
    *callees, last = _DEFINED.findall(text)
    names = {**{other: f"{other}_of_{name}" for other in callees}, last: name}
    return re.sub(r"(?<![\w.])(\w+)(?=\()", lambda match: names.get(match[1], match[1]), text)


def _element_type(dtype: Any) -> str:
    """Element type of a product's operand in printed text; 16-bit floats are uint16."""
    return "uint16" if storage_dtype(dtype).itemsize == 2 else np.dtype(dtype).name


def _copy_unit(itemsize: int) -> tuple[str, int]:
    """The unsigned integer type that copies elements, and the number of copies per element."""
    unit_bytes = min(itemsize, 8)
    return f"uint{8 * unit_bytes}", itemsize // unit_bytes


def _literal(bits: int, kind: str) -> str:
    """The literal of a scalar argument of type ``kind``, from its 64-bit argument slot."""
    if kind not in ("float32", "float64"):
        return f"np.{kind}({bits})"
    data = np.array([bits], np.int64).view(np.uint8)[: np.dtype(kind).itemsize]
    value = float(data.view(kind)[0])
    if np.isfinite(value):
        return f"np.{kind}({value!r})"
    sign = "-" if value == -np.inf else ""
    return f"np.{kind}({sign}np.{'nan' if np.isnan(value) else 'inf'})"


def _product_constants(product: Product, step: CallStep) -> Mapping[str, int]:
    """The constants of ``block_products.multiply_in_block``: sizes, strides and dtypes.

    Raises NotSingleBlockError if it has none for these operands.
    """
    left, right = step.operands
    code, right_code, out_code = [
        _DTYPE_CODES.get(a.dtype) for a in (left.aval, right.aval, step.eqn.outputs[0].aval)
    ]
    out_codes = (code, tiles.FLOAT32) if code in _HALF_CODES else (code,)
    if code is None or code != right_code or out_code not in out_codes:
        raise NotSingleBlockError(f"a product of {left.aval} and {right.aval} is a library's")
    batch = batch_axes(left.layout, right.layout, product)
    sides = [
        [collapsed_axes(view, dims, 1) for dims in groups[1:]]
        for view, groups in ((left.layout, product.left), (right.layout, product.right))
    ]
    if batch is None or len(batch) > 1 or any(axes is None for side in sides for axes in side):
        raise NotSingleBlockError("the operands of a product have too many strides")
    count, left_step, right_step = batch[0] if batch else (1, 0, 0)
    (m, k), (depth, n) = [[(axes or [(1, 0)])[0] for axes in side] for side in sides]
    return {
        "BATCH": count,
        "M": m[0],
        "N": n[0],
        "K": k[0],
        "LEFT_B": left_step,
        "LEFT_M": m[1],
        "LEFT_K": k[1],
        "RIGHT_B": right_step,
        "RIGHT_K": depth[1],
        "RIGHT_N": n[1],
        "KIND": code,
        "OUT_KIND": out_code,
    }
