"""Printer of programs that one block runs: locations, calls of kernels, copies (see block_text.py).

Each kernel of the program becomes a device function, printed for a lone block. Arguments that a
launch would pass are constants of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.planning.plan import ALIGNMENT, CallStep, Operand
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.blocks import Product
from gpuflow.core.lowering import block_of
from gpuflow.core.views import View, contiguous
from gpuflow.kernels import block_products, tiles
from gpuflow.kir.nodes import arguments
from gpuflow.targets.cuda.codegen.handwritten import kernel_source
from gpuflow.targets.cuda.codegen.printing.printers import EMITTERS
from gpuflow.targets.cuda.codegen.schedules.index_bits import at_fitting_width
from gpuflow.targets.cuda.codegen.schedules.launch_config import ALONE_THREADS, schedule_alone
from gpuflow.targets.layouts.product_axes import batch_axes, collapsed_axes
from gpuflow.targets.printer import IndentedText

ENTRY = "block_program"
# A program with more calls would take too long to compile.
_MOST_CALLS = 200
# The assembler refuses more than 48 KB of static shared memory; this leaves a margin.
_MOST_STATIC_BYTES = 40 << 10
_KINDS = {
    np.dtype(np.float32): tiles.FLOAT32,
    np.dtype(np.float64): block_products.FLOAT64,
    np.dtype(np.float16): tiles.FLOAT16,
    dtypes.bfloat16: tiles.BFLOAT16,
}
_HALVES = (tiles.FLOAT16, tiles.BFLOAT16)
_HEAD = """# A program that a block runs by itself, printed by gpuflow; what it calls:
# targets/cuda/codegen/intrinsics/namespace.py
import math

import numpy as np
"""
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)


class NotOfOneBlockError(Exception):
    """A step of the program cannot be printed for a lone block."""


@record(eq=False)
class Constant:
    """A constant or literal that a program takes as a further operand."""

    value: Any
    aval: ShapedArray


@record
class BlockText:
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
    operands: tuple[int | Constant, ...]
    arena_bytes: int
    is_shared: bool


# A byte pointer, and a byte offset from it: the variable's name, and an integer expression.
Location = tuple[str, str]


def element_location(location: Location, shape: Sequence[int], dtype: Any, index: str) -> Location:
    """The location of ``array[index]`` in a stacked array.

    Args:
        location: location of the array.
        shape, dtype: shape and dtype of the array.
        index: an integer expression.
    """
    count = prod(shape[1:]) * storage_dtype(dtype).itemsize
    if count == 0:
        return location
    variable, at = location
    return variable, f"{count} * {index}" if at == "0" else f"{at} + {count} * {index}"


def plus(location: Location, count: int) -> Location:
    """The location ``count`` bytes further."""
    variable, at = location
    if at.isdecimal():
        return variable, str(int(at) + count)
    return variable, f"{at} + {count}" if count else at


class BlockPrinter(IndentedText):
    """Collects the statements of a program, the device functions it calls, and its parameters.

    Attributes:
        operands: one per parameter, see ``BlockText``.
        flags: bytes of conditions of while loops, which follow the arena.
    """

    def __init__(self) -> None:
        self.lines, self.depth = [], 1
        self.operands: list[int | Constant] = []
        self.flags = 0
        self._functions: dict[str, str] = {}  # names of device functions, by text
        self._named: dict[str, str] = {}  # variables defined at the start, by expression
        self._count = self._calls = self._static_bytes = 0

    def fresh(self, stem: str) -> str:
        """A name that no other variable has."""
        self._count += 1
        return f"{stem}_{self._count}"

    def text(self, arena_bytes: int, most_shared: int) -> BlockText:
        """The whole module.

        Args:
            arena_bytes: size of the arena of each block, without flags.
            most_shared: the most shared memory of a block. If static shared memory and an arena
                exceed it, the arena is in global memory.
        """
        flags = -(-self.flags // ALIGNMENT) * ALIGNMENT
        arena_bytes = max(-(-arena_bytes // ALIGNMENT) * ALIGNMENT + flags, ALIGNMENT)
        is_shared = self._static_bytes + arena_bytes <= most_shared
        names = [f"address_{k}" for k in range(len(self.operands))]
        parameters = names if is_shared else [*names, "arenas"]
        header = [
            f"def {ENTRY}({', '.join(parameters)}):",
            f"    thread = np.int32({ALONE_THREADS[0]} * cuda.threadIdx.y + cuda.threadIdx.x)",
        ]
        if is_shared:
            header.append("    arena = dynamic_shared(np.uint8)")
        else:
            own = f"arenas + {arena_bytes} * np.int64(cuda.blockIdx.x)"
            header.append(f"    arena = pointer_from_address({own}, np.uint8)")
        header.append(f"    flags = pointer_within(arena, {arena_bytes - flags}, np.uint8)")
        header += [
            f"    operand_{k} = pointer_from_address({name}, np.uint8)"
            for k, name in enumerate(names)
        ]
        header += [f"    {name} = {expression}" for expression, name in self._named.items()]
        functions = [_renamed(text, name) for text, name in self._functions.items()]
        texts = [_HEAD, *functions, "\n".join([*header, *self.lines]), ""]
        return BlockText("\n\n".join(texts), tuple(self.operands), arena_bytes, is_shared)

    # Locations

    def parameter(self, source: int | Constant) -> Location:
        """Add a parameter for an operand or output of the step, or a constant; its location."""
        self.operands.append(source)
        return f"operand_{len(self.operands) - 1}", "0"

    def constant(self, operand: Operand) -> Location:
        """The location of a literal."""
        return self.parameter(Constant(operand.value, operand.aval))

    def pointer(self, location: Location, kind: str) -> str:
        """A pointer to elements."""
        expression = f"pointer_within({location[0]}, {location[1]}, np.{kind})"
        return self._name(expression, "at") if _is_static(location) else expression

    def _name(self, expression: str, stem: str) -> str:
        """The variable of an expression of constants and parameters, defined at the start."""
        return self._named.setdefault(expression, f"{stem}_{len(self._named)}")

    # Steps: all threads of the block run them, and the caller emits the barrier

    def call_kernel(self, call: KernelCall, location_of: Callable[[int], Location]) -> None:
        """Print the call of a kernel's device function.

        Args:
            call: the kernel, with its buffers and arguments.
            location_of: gives the location of a buffer.

        Raises:
            NotOfOneBlockError: if the kernel has no schedule for a lone block, or the program has
                too many calls, or too much shared memory.
        """
        kernel = at_fitting_width(replace(call.kernel, segmented=False), [call])
        launch = schedule_alone(kernel)
        if launch is None:
            raise NotOfOneBlockError(f"{kernel.name} uses tiles of another size")
        printer = EMITTERS[launch.strategy](kernel, launch)
        text = printer.device_function()
        name = self._function(text, kernel.name, printer.shared_bytes)
        expressions, kinds = [], [kind for _, kind in printer.parameters()]
        for k, (argument, kind) in enumerate(safe_zip(arguments(kernel), kinds)):
            if argument.kind == "pointer":
                at = plus(location_of(call.buffers[k]), call.slots[k])
                expressions.append(self.pointer(at, kind[1:]))
            else:
                expressions.append(self._name(_literal(call.slots[k], kind), "number"))
        statement = f"{name}({', '.join(expressions)})"
        if launch.points:
            self.emit(statement)
            return
        is_member = f"thread < {ALONE_THREADS[0]}" if launch.strategy == "row" else "thread == 0"
        with self.indented(f"if {is_member}:"):
            self.emit(statement)

    def call_library(self, step: CallStep, operands: list[Location], outs: list[Location]) -> None:
        """Print the call of the device function that replaces a library call: a matrix product.

        Raises:
            NotOfOneBlockError: if it is another call, or a product that block_products lacks.
        """
        product = block_of(step.eqn)
        if not isinstance(product, Product) or product.epilogue is not None:
            raise NotOfOneBlockError(f"{step.name} is a call of a library")
        constants = _product_constants(product, step)
        if constants["M"] * constants["N"] * constants["BATCH"] == 0:
            return
        text = kernel_source(block_products.multiply_in_block, constants, is_device=True)
        name = self._function(text, "multiply", 0)
        kinds = [_element_type(atom.aval.dtype) for atom in (*step.eqn.outputs, *step.operands)]
        pointers = [self.pointer(*pair) for pair in safe_zip([*outs, *operands], kinds)]
        self.emit(f"{name}({', '.join(pointers)})")

    def copy(self, source: Location, target: Location, aval: Any, view: View | None = None) -> None:
        """Print a copy to a row-major array.

        Args:
            source: location of the view's first element.
            target: location of the copy.
            aval: shape and dtype of the copy.
            view: strides of the source; None: row-major.
        """
        if aval.size == 0:
            return
        self._count_calls()
        kind, units = _copy_unit(storage_dtype(aval.dtype).itemsize)
        view = view or contiguous(aval.shape)
        broadcast = view.broadcast or (False,) * len(view.shape)
        pairs = safe_zip(view.strides, broadcast)
        dims = safe_zip(view.shape, [0 if repeats else step * units for step, repeats in pairs])
        dims = [*dims, (units, 1)]
        index = self.fresh("copied")
        self.emit(f"{index} = np.int64(thread)")
        with self.indented(f"while {index} < {prod([size for size, _ in dims])}:"):
            self.emit(f"rest, offset = {index}, np.int64(0)")
            for size, step in reversed(dims):
                if size > 1:
                    self.emit(f"offset += (rest % {size}) * {step}")
                    self.emit(f"rest = rest // {size}")
            to, of = self.pointer(target, kind), self.pointer(source, kind)
            self.emit(f"{to}[{index}] = {of}[offset]")
            self.emit(f"{index} += {prod(ALONE_THREADS)}")

    def _function(self, text: str, stem: str, shared_bytes: int) -> str:
        """Add a device function unless it exists, and count a call; returns its name.

        Args:
            text: text of the function, after those of functions that it calls.
            stem: begins its name.
            shared_bytes: its static shared memory.
        """
        self._count_calls()
        if text not in self._functions:
            self._static_bytes += shared_bytes
            if self._static_bytes > _MOST_STATIC_BYTES:
                raise NotOfOneBlockError("its kernels need too much shared memory")
            self._functions[text] = f"{stem}_{len(self._functions)}"
        return self._functions[text]

    def _count_calls(self) -> None:
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise NotOfOneBlockError("it has too many steps")


def _is_static(location: Location) -> bool:
    """Whether a location is constant for the whole program, so that its pointer is defined once."""
    variable, at = location
    is_of_head = variable in ("arena", "flags") or variable.startswith("operand_")
    return is_of_head and at.isdecimal()


def _renamed(text: str, name: str) -> str:
    """Rename device functions: the last one to ``name``, the others to names that contain it."""
    *others, own = _DEFINED.findall(text)
    names = {**{other: f"{other}_of_{name}" for other in others}, own: name}
    return re.sub(r"(?<![\w.])(\w+)(?=\()", lambda found: names.get(found[1], found[1]), text)


def _element_type(dtype: Any) -> str:
    """Element type of a product's operand in printed text; 16-bit floats are uint16."""
    return "uint16" if storage_dtype(dtype).itemsize == 2 else np.dtype(dtype).name


def _copy_unit(itemsize: int) -> tuple[str, int]:
    """The unsigned integer type that copies elements, and their number per element."""
    size = min(itemsize, 8)
    return f"uint{8 * size}", itemsize // size


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

    Raises NotOfOneBlockError if it has none for these operands.
    """
    left, right = step.operands
    kind, other, result = [
        _KINDS.get(a.dtype) for a in (left.aval, right.aval, step.eqn.outputs[0].aval)
    ]
    if kind is None or kind != other or result not in (kind, *[tiles.FLOAT32][: kind in _HALVES]):
        raise NotOfOneBlockError(f"a product of {left.aval} and {right.aval} is a library's")
    batch = batch_axes(left.layout, right.layout, product)
    sides = [
        [collapsed_axes(view, dims, 1) for dims in groups[1:]]
        for view, groups in ((left.layout, product.left), (right.layout, product.right))
    ]
    if batch is None or len(batch) > 1 or any(axes is None for side in sides for axes in side):
        raise NotOfOneBlockError("the operands of a product have too many strides")
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
        "KIND": kind,
        "OUT_KIND": result,
    }
