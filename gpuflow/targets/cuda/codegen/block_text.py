"""The text of a kernel in which a block runs a program by itself: its loops and branches, too.

    turn = np.int64(cuda.blockIdx.x)                  a turn of a loop that carries nothing
    while turn < 64:
        step_0(pointer_within(arena, 0, np.float32), pointer_within(operand_1, 256 * turn, ...), 7)
        barrier()
        count_0 = 0
        while count_0 < 32:                           a scan in it; carries have two places in turn
            ...

Each kernel of the program is a device function, as the emitters print it for a block that is alone;
numbers that a launch would bring stand in the text. Buffers of the program lie in an arena of the
block, in shared memory if there is room. What a step writes the next one sees: a barrier is behind
each. See docs/design/0034-programs-of-one-block.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import (
    ALIGNMENT,
    CallStep,
    CopyStep,
    Inner,
    KernelStep,
    Operand,
    Plan,
    ProgramStep,
    carried_places,
    carry_count,
    kept_outputs,
    nbytes,
    operand_places,
)
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.blocks import Product
from gpuflow.core.lowering import Branch, ScanForm, WhileForm, block_of
from gpuflow.core.views import View, contiguous
from gpuflow.kernels import block_products, tiles
from gpuflow.kir.nodes import arguments
from gpuflow.targets.cuda.codegen.handwritten import kernel_source
from gpuflow.targets.cuda.printing.printers import EMITTERS
from gpuflow.targets.cuda.schedules.index_bits import at_fitting_width
from gpuflow.targets.cuda.schedules.spread import ALONE_THREADS, Launch, schedule_alone
from gpuflow.targets.layouts.product_axes import batch_axes, collapsed_axes

ENTRY = "block_program"
# More steps than that make a text that takes seconds to compile.
_MOST_FUNCTIONS = 100
_KINDS = {
    np.dtype(np.float32): tiles.FLOAT32, np.dtype(np.float64): block_products.FLOAT64,
    np.dtype(np.float16): tiles.FLOAT16, dtypes.bfloat16: tiles.BFLOAT16,
}  # fmt: skip
_HEAD = """# A program that a block runs by itself, printed by gpuflow; what it calls:
# targets/cuda/intrinsics/namespace.py
import math

import numpy as np
"""


class NotOfOneBlockError(Exception):
    """A program has a step that no block does by itself."""


@record(eq=False)
class Constant:
    """A value that a program takes besides its operands."""

    value: Any
    aval: ShapedArray


@record
class BlockText:
    """A printed program.

    Attributes:
        text: a module that ``build.build_cuda`` compiles.
        operands: its parameters are the addresses of these: operands of the step and its outputs
            behind them, by number, or constants. Behind them stands that of all blocks' arenas, if
            these are not in shared memory.
        arena_bytes: of each block.
    """

    text: str
    operands: tuple[int | Constant, ...]
    arena_bytes: int


# A variable that points to bytes, and an expression of the bytes from there.
Place = tuple[str, str]


def turns_text(step: ProgramStep, is_shared: bool) -> BlockText:
    """The text for a scan that carries nothing, in which each block takes turns.

    Args:
        step: the scan.
        is_shared: whether the arena is in shared memory.

    Raises:
        NotOfOneBlockError: there is a step that no block does by itself.
    """
    form: ScanForm = step.eqn.primitive.lower.form(step.eqn.params)
    (inner,) = step.programs
    writer = _Writer()
    operands, outs = writer.outside(step)
    table = operands[: form.num_consts]
    xs = safe_zip(operands[form.num_consts :], step.operands[form.num_consts :])
    table += [_element(place, x.aval.shape, x.aval.dtype, "turn") for place, x in xs]
    table += writer.values(inner)
    ys = safe_zip(outs, step.eqn.outputs)
    table += [_element(place, var.aval.shape, var.aval.dtype, "turn") for place, var in ys]
    writer.emit("turn = np.int64(cuda.blockIdx.x)")
    with writer.indented(f"while turn < {form.length}:"):
        writer.plan(inner.plan, table, 0)
        writer.emit("turn += np.int64(cuda.gridDim.x)")
    return writer.text(inner.plan.arena_bytes, is_shared)


def loop_text(step: ProgramStep, is_shared: bool) -> BlockText:
    """The text for a loop that one block runs from its first turn to its last.

    Arguments and errors are those of ``turns_text``.
    """
    writer = _Writer()
    operands, outs = writer.outside(step)
    arena, spare = carried_places(step, 0)
    writer.loop(step, operands, outs, arena[0], [("arena", str(at)) for at in spare])
    carries = [var.aval for var in step.eqn.outputs]
    room = sum(-(-max(nbytes(aval), 1) // ALIGNMENT) * ALIGNMENT for aval in carries)
    return writer.text(arena[1] + ALIGNMENT + room, is_shared)


def _element(place: Place, shape: Sequence[int], dtype: Any, number: str) -> Place:
    """Where the element of a stacked array is."""
    count = prod(shape[1:]) * storage_dtype(dtype).itemsize
    variable, at = place
    moved = f"{count} * {number}"
    return variable, (moved if at == "0" else f"{at} + {moved}") if count else at


def _plus(place: Place, count: int) -> Place:
    variable, at = place
    if at.isdecimal():
        return variable, str(int(at) + count)
    return variable, f"{at} + {count}" if count else at


class _Writer:
    """Collects the lines of the kernel, and the device functions that it calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.functions: dict[str, str] = {}  # name by text
        self.operands: list[int | Constant] = []
        self.named: dict[str, str] = {}  # variables of the head by expression: typed once
        self.count = 0
        self.flags = 0

    # Lines

    def emit(self, line: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Append a line that ends in a colon; what is emitted inside is its suite."""
        self.emit(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}_{self.count}"

    def text(self, arena_bytes: int, is_shared: bool) -> BlockText:
        """The whole module."""
        flags = -(-self.flags // ALIGNMENT) * ALIGNMENT
        arena_bytes = max(-(-arena_bytes // ALIGNMENT) * ALIGNMENT + flags, ALIGNMENT)
        names = [f"address_{k}" for k in range(len(self.operands))]
        parameters = names if is_shared else [*names, "arenas"]
        lines = [
            f"def {ENTRY}({', '.join(parameters)}):",
            "    thread = np.int32(32 * cuda.threadIdx.y + cuda.threadIdx.x)",
        ]
        if is_shared:
            lines.append("    arena = dynamic_shared(np.uint8)")
        else:
            own = f"arenas + {arena_bytes} * np.int64(cuda.blockIdx.x)"
            lines.append(f"    arena = pointer_from_address({own}, np.uint8)")
        lines.append(f"    flags = pointer_within(arena, {arena_bytes - flags}, np.uint8)")
        lines += [
            f"    operand_{k} = pointer_from_address({name}, np.uint8)"
            for k, name in enumerate(names)
        ]
        lines += [f"    {name} = {expression}" for expression, name in self.named.items()]
        parts = [_HEAD, *self.functions.keys(), "\n".join([*lines, *self.lines]), ""]
        return BlockText("\n\n".join(parts), tuple(self.operands), arena_bytes)

    def name(self, expression: str, stem: str) -> str:
        """The variable that holds an expression of what is known at the head."""
        return self.named.setdefault(expression, f"{stem}_{len(self.named)}")

    def pointer(self, place: Place, kind: str) -> str:
        """A pointer to elements."""
        expression = f"pointer_within({place[0]}, {place[1]}, np.{kind})"
        return self.name(expression, "at") if _is_known(place) else expression

    # Places

    def outside(self, step: ProgramStep) -> tuple[list[Place], list[Place]]:
        """The places of the operands and outputs of the step that a launch runs."""
        operands = [
            self._constant(o) if o.buffer == NO_BUFFER else self._parameter(k)
            for k, o in enumerate(step.operands)
        ]
        first = len(step.operands)
        outs = [self._parameter(first + k) for k in range(len(step.outputs))]
        moved = safe_zip(operands, step.operands)
        return [_plus(place, _offset(operand)) for place, operand in moved], outs

    def _parameter(self, what: int | Constant) -> Place:
        self.operands.append(what)
        return f"operand_{len(self.operands) - 1}", "0"

    def _constant(self, operand: Operand) -> Place:
        return self._parameter(Constant(operand.value, operand.aval))

    def values(self, inner: Inner) -> list[Place]:
        """The constants of a program."""
        return [self._parameter(Constant(value, aval_of(value))) for value in inner.values]

    # Programs

    def plan(self, plan: Plan, table: Sequence[Place], arena: int) -> None:
        """Print the steps of a program.

        Args:
            plan: of the program.
            table: the places of its inputs, and then of its outputs' memory.
            arena: where its memory is, in that of the block.
        """
        registers = operand_places(plan)

        def place(buffer: int) -> Place:
            if buffer in registers:
                return table[registers[buffer]]
            return "arena", str(arena + plan.offsets[buffer])

        def operand_place(operand: Operand) -> Place:
            if operand.buffer == NO_BUFFER:
                return self._constant(operand)
            return _plus(place(operand.buffer), _offset(operand))

        for step in plan.steps:
            if isinstance(step, KernelStep):
                self._kernel_step(step, place)
            elif isinstance(step, CopyStep):
                aval = step.source.aval
                self._copy(operand_place(step.source), place(step.target), step.source.lies, aval)
            elif isinstance(step, CallStep):
                at = [operand_place(operand) for operand in step.operands]
                self._call(step, at, [place(buffer) for buffer in step.outputs])
            else:
                operands = [operand_place(operand) for operand in step.operands]
                outs = [place(buffer) for buffer in step.outputs]
                start = arena + plan.offsets[step.workspace]
                (inner, _), spare = carried_places(step, start)
                second: list[Place] = [("arena", str(offset)) for offset in spare]
                if isinstance(step.eqn.primitive.lower, Branch):
                    self._branch(step, operands, outs, inner)
                else:
                    self.loop(step, operands, outs, inner, second)

    def _kernel_step(self, step: KernelStep, place: Any) -> None:
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            for call in calls:
                self._kernel(call, place)
            self.emit("barrier()")

    def _kernel(self, call: KernelCall, place: Any) -> None:
        kernel = at_fitting_width(replace(call.kernel, segmented=False), [call])
        launch = schedule_alone(kernel)
        if launch is None:
            raise NotOfOneBlockError(f"{kernel.name} works on pieces of another size")
        name = self._function(_printed(kernel, launch), kernel.name)
        words = []
        types = [kind for _, kind in EMITTERS[launch.strategy](kernel, launch).parameters()]
        for k, (argument, kind) in enumerate(safe_zip(arguments(kernel), types)):
            if argument.kind == "pointer":
                at = _plus(place(call.buffers[k]), call.words[k])
                words.append(self.pointer(at, kind[1:]))
            else:
                words.append(self.name(_number(call.words[k], kind), "number"))
        line = f"{name}({', '.join(words)})"
        if launch.points:
            self.emit(line)
        else:
            who = "thread < 32" if launch.strategy == "row" else "thread == 0"
            with self.indented(f"if {who}:"):
                self.emit(line)

    def _function(self, text: str, stem: str) -> str:
        """The name of a device function, which its text defines in a function of its own."""
        if text not in self.functions.values():
            if len(self.functions) == _MOST_FUNCTIONS:
                raise NotOfOneBlockError("it has too many steps")
            name = f"{stem}_{len(self.functions)}"
            inside = textwrap.indent(text, "    ")
            made = text.rpartition("\ndef ")[2].partition("(")[0]
            whole = f"def make_{name}():\n{inside}\n    return {made}\n\n\n{name} = make_{name}()\n"
            self.functions[whole] = text
        at = list(self.functions.values()).index(text)
        return list(self.functions)[at].rpartition("\n\n\n")[2].partition(" = ")[0]

    # Steps that are no kernels

    def _copy(self, source: Place, target: Place, lies: View, aval: Any) -> None:
        """A row-major copy of a view; ``source`` has its offset already."""
        if aval.size == 0:
            return
        kind, parts = _word(storage_dtype(aval.dtype).itemsize)
        shape, strides = list(lies.shape), list(lies.strides)
        broadcast = lies.broadcast or (False,) * len(shape)
        strides = [0 if repeats else s * parts for s, repeats in safe_zip(strides, broadcast)]
        if parts > 1:
            shape, strides = [*shape, parts], [*strides, 1]
        number = self.fresh("copied")
        self.emit(f"{number} = np.int64(thread)")
        with self.indented(f"while {number} < {prod(shape)}:"):
            self.emit(f"rest, offset = {number}, np.int64(0)")
            for size, stride in reversed(list(safe_zip(shape, strides))):
                if size > 1:
                    self.emit(f"offset += (rest % {size}) * {stride}")
                    self.emit(f"rest = rest // {size}")
            to, of = self.pointer(target, kind), self.pointer(source, kind)
            self.emit(f"{to}[{number}] = {of}[offset]")
            self.emit(f"{number} += {prod(ALONE_THREADS)}")
        self.emit("barrier()")

    def _move(self, source: Place, target: Place, aval: Any) -> None:
        self._copy(source, target, contiguous(aval.shape), aval)

    def _call(self, step: CallStep, operands: list[Place], outs: list[Place]) -> None:
        what = block_of(step.eqn)
        if not isinstance(what, Product):
            raise NotOfOneBlockError(f"{step.name} is a call of a library")
        constants = _product_constants(what, step)
        dtype = step.operands[0].aval.dtype
        if constants["M"] * constants["N"] * constants["BATCH"] == 0:
            return
        text = kernel_source(block_products.multiply_in_block, constants, is_device=True)
        name = self._function(text, "multiply")
        out_kind = _element_type(step.eqn.outputs[0].aval.dtype)
        left, right = [self.pointer(place, _element_type(dtype)) for place in operands]
        self.emit(f"{name}({self.pointer(outs[0], out_kind)}, {left}, {right})")
        self.emit("barrier()")

    # Loops and branches

    def _branch(
        self, step: ProgramStep, operands: list[Place], outs: list[Place], arena: int
    ) -> None:
        kept = kept_outputs(step.eqn, step.programs)
        moving = [out for out, keeps in safe_zip(outs, kept) if not keeps]
        number, last = self.fresh("branch"), len(step.programs) - 1
        self.emit(f"{number} = {self.pointer(operands[0], 'int32')}[0]")
        for k, inner in enumerate(step.programs):
            tests = [f"{number} == {k}"]
            if k == 0:
                tests = [f"{number} <= 0"]
            if k == last:
                tests = [f"{number} >= {k}"] if k else ["True"]
            with self.indented(f"if {' and '.join(tests)}:"):
                table = [*operands[1:], *self.values(inner), *moving]
                self.plan(inner.plan, table, arena)
        self.emit("barrier()")

    def loop(
        self, step: ProgramStep, operands: list[Place], outs: list[Place], arena: int,
        spare: Sequence[Place],
    ) -> None:  # fmt: skip
        """Print a loop.

        Args:
            step: the loop.
            operands, outs: where they are.
            arena: where the memory of its programs is.
            spare: the second place of each carry that has two.
        """
        form = step.eqn.primitive.lower.form(step.eqn.params)
        kept, count = kept_outputs(step.eqn, step.programs), carry_count(step.eqn)
        is_scan = isinstance(form, ScanForm)
        first = form.num_consts if is_scan else form.num_condition_consts + form.num_body_consts
        turn, free = self.fresh("count"), iter(spare)
        now: list[Place] = []
        later: list[Place] = []
        ends: list[tuple[str, Place, Any]] = []
        choices: list[tuple[str, str, str, str]] = []
        # The last turn of a scan writes into the outputs; of a while_loop nobody knows which it is.
        swapped = is_scan and form.length % 2 == 1
        for k in range(count):
            aval, out, start = step.eqn.outputs[k].aval, outs[k], operands[first + k]
            if kept[k]:
                now.append(out)
                later.append(out)
                continue
            even, odd = (next(free), out) if swapped else (out, next(free))
            if is_scan and form.length == 0:
                even, odd = out, out
            self._move(start, even, aval)
            names = self.fresh("carry"), self.fresh("next")
            choices.append((*names, self.pointer(even, "uint8"), self.pointer(odd, "uint8")))
            now.append((names[0], "0"))
            later.append((names[1], "0"))
            ends.append((names[0], out, aval))
        if is_scan:
            self._scan(form, step, operands, outs, now, later, choices, turn, arena)
        else:
            self._while(form, step, operands, now, later, choices, turn, arena)
            with self.indented(f"if {turn} & 1:"):
                for name, out, aval in ends:
                    self._move((name, "0"), out, aval)

    def _choose(self, choices: Sequence[tuple[str, str, str, str]], turn: str) -> None:
        """Let variables point to what this turn reads of each carry, and writes."""
        if not choices:
            return
        for now, later, even, odd in choices:
            self.emit(f"{now}, {later} = {even}, {odd}")
        with self.indented(f"if {turn} & 1:"):
            for now, later, even, odd in choices:
                self.emit(f"{now}, {later} = {odd}, {even}")

    def _scan(
        self, form: ScanForm, step: ProgramStep, operands: list[Place], outs: list[Place],
        now: list[Place], later: list[Place], choices: Any, turn: str, arena: int,
    ) -> None:  # fmt: skip
        if form.length == 0:
            return
        (inner,) = step.programs
        kept = kept_outputs(step.eqn, step.programs)
        self.emit(f"{turn} = np.int64(0)")
        with self.indented(f"while {turn} < {form.length}:"):
            self._choose(choices, turn)
            number = f"({form.length - 1} - {turn})" if form.reverse else turn
            split = form.num_consts + form.num_carry
            xs = safe_zip(operands[split:], step.operands[split:])
            ys = safe_zip(outs[form.num_carry :], step.eqn.outputs[form.num_carry :])
            table = [*operands[: form.num_consts], *now]
            table += [_element(p, o.aval.shape, o.aval.dtype, number) for p, o in xs]
            table += self.values(inner)
            table += [place for place, keeps in zip(later, kept, strict=False) if not keeps]
            table += [_element(p, v.aval.shape, v.aval.dtype, number) for p, v in ys]
            self.plan(inner.plan, table, arena)
            self.emit(f"{turn} += 1")

    def _while(
        self, form: WhileForm, step: ProgramStep, operands: list[Place], now: list[Place],
        later: list[Place], choices: Any, turn: str, arena: int,
    ) -> None:  # fmt: skip
        condition, body = step.programs
        kept = kept_outputs(step.eqn, step.programs)
        first, split = form.num_condition_consts, form.num_condition_consts + form.num_body_consts
        flags = [("flags", str(self.flags + k)) for k in range(2)]
        self.flags += 2
        moving = [place for place, keeps in safe_zip(later, kept) if not keeps]
        # A body that may run once more than the loop goes on asks whether it is such a turn.
        asked = [flags[0]] if body.ahead else []
        self.emit(f"{turn} = np.int64(0)")
        with self.indented("while True:"):
            self._choose(choices, turn)
            table = [*operands[:first], *now, *self.values(condition), flags[0]]
            self.plan(condition.plan, table, arena)
            self.emit("barrier()")
            with self.indented(f"if {self.pointer(flags[0], 'uint8')}[0] == 0:"):
                self.emit("break")
            table = [*operands[:split], *now, *asked, *self.values(body), *moving, flags[1]]
            self.plan(body.plan, table, arena)
            self.emit("barrier()")
            self.emit(f"{turn} += 1")


def _offset(operand: Operand) -> int:
    """Bytes from the start of an operand's buffer."""
    return operand.lies.offset * storage_dtype(operand.aval.dtype).itemsize


def _printed(kernel: Any, launch: Launch) -> str:
    return EMITTERS[launch.strategy](kernel, launch).device_function()


def _is_known(place: Place) -> bool:
    """Whether a place is known at the head."""
    variable, at = place
    is_of_head = variable in ("arena", "flags") or variable.startswith("operand_")
    return is_of_head and at.isdecimal()


def _element_type(dtype: Any) -> str:
    """What Numba knows the elements of a product as: 16-bit floats by their bits."""
    return "uint16" if storage_dtype(dtype).itemsize == 2 else np.dtype(dtype).name


def _word(itemsize: int) -> tuple[str, int]:
    """Words of which an element is made, and how many."""
    size = min(itemsize, 8)
    return f"uint{8 * size}", itemsize // size


def _number(word: int, kind: str) -> str:
    """The text of a number that a launch passes as a word."""
    if kind not in ("float32", "float64"):
        return f"np.{kind}({word})"
    data = np.array([word], np.int64).view(np.uint8)[: np.dtype(kind).itemsize]
    value = float(data.view(kind)[0])
    text = repr(value) if np.isfinite(value) else f"np.{'nan' if np.isnan(value) else 'inf'}"
    return f"np.{kind}({'-' if value == -np.inf else ''}{text})"


def _product_constants(product: Product, step: CallStep) -> Mapping[str, int]:
    """What the text of a product has to know."""
    left, right = step.operands
    kinds = [_KINDS.get(a.dtype) for a in (left.aval, right.aval, step.eqn.outputs[0].aval)]
    results = (kinds[0], tiles.FLOAT32) if _is_half(kinds[0]) else (kinds[0],)
    if kinds[0] is None or kinds[0] != kinds[1] or kinds[2] not in results:
        raise NotOfOneBlockError(f"a product of {left.aval} and {right.aval} is a library's")
    batch = batch_axes(left.lies, right.lies, product)
    sides = [
        [collapsed_axes(view, dims, 1) for dims in groups[1:]]
        for view, groups in ((left.lies, product.left), (right.lies, product.right))
    ]
    if batch is None or len(batch) > 1 or any(axes is None for side in sides for axes in side):
        raise NotOfOneBlockError("the operands of a product lie in too many pieces")
    numbers, left_step, right_step = batch[0] if batch else (1, 0, 0)
    (m, k), (depth, n) = [[(axes or [(1, 0)])[0] for axes in side] for side in sides]
    return {
        "BATCH": numbers, "M": m[0], "N": n[0], "K": k[0],
        "LEFT_B": left_step, "LEFT_M": m[1], "LEFT_K": k[1],
        "RIGHT_B": right_step, "RIGHT_K": depth[1], "RIGHT_N": n[1],
        "KIND": kinds[0], "OUT_KIND": kinds[2],
    }  # fmt: skip


def _is_half(kind: int | None) -> bool:
    return kind in (tiles.FLOAT16, tiles.BFLOAT16)
