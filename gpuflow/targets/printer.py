"""Prints a KernelIR kernel as the text of a Python module.

Numba compiles it for CUDA, ``targets/cpu/codegen/text_compiler.py`` for the CPU.

Both targets share this walk: statements, addresses, constants, loops and branches. A target is a
subclass that overrides hooks; they stand together at the end of ``KernelPrinter``:

    module_lines    lines between the header comment and the function
    function_name   the name of the function
    signature       the ``def`` line
    unpack          lines that give every argument its local name (``Names`` says which)
    entry           the function's body; calls ``block(kernel.body)`` wherever the body belongs
    split_loop      the head of a ``For`` over the axis that a launch splits
    inner_loop      the head of any other loop over an axis
    reduce          a Reduce statement
    load, store     one element, at an offset in elements; those of complex numbers are their parts
    strip           a Strip statement
    copy            a Copy statement
    load_local, store_local     one element of a local array
    load_where      a load under a condition, where a target has one that needs no branch
    function        a scalar function without an operator; its expression has the exact dtype
    select, cast    an expression
    index_sum, index_product    address arithmetic at ``kernel.index_bits``

A loop head is one line ending in a colon that defines the axis's index variable.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from gpuflow.base.records import record
from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    Copy,
    For,
    If,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Reduce,
    Role,
    Select,
    Statement,
    Store,
    Stride,
    Strip,
    Value,
    While,
)
from gpuflow.kir.rewrite import LOOP_VALUES, as_loops
from gpuflow.kir.text import kernel_text
from gpuflow.kir.walk import statements, unused_number

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FLOATS = ("float32", "float64")

# An operand with one of these names gets an underscore: they would hide names of the text itself.
_TAKEN = re.compile(
    r"[ct]\d+|np|math|cuda|words|lo|hi|reader|writer"
    r"|range|min|max|int|float|bool|abs|.*_.*"
)


@record
class Source:
    """The text of one Python module and the name of the kernel function in it."""

    text: str
    entry: str
    target: str


def constant(value: bool | int | float, dtype: str) -> str:
    """A Python expression for ``value`` that Numba types exactly as ``dtype``.

    Args:
        value: A Python number, also inf, nan and -0.0.
        dtype: A compute dtype.

    Returns:
        The expression's text.
    """
    if dtype == "bool":
        return "True" if value else "False"
    if dtype not in FLOATS:
        return f"np.{dtype}({int(value)})"
    number = float(value)
    if math.isnan(number):
        text = "np.nan"
    elif math.isinf(number):
        text = "np.inf" if number > 0 else "-np.inf"
    else:
        text = repr(number)
    return f"np.{dtype}({text})"


def operands_in(block: Block) -> tuple[str, ...]:
    """Names of the operands of a block and its nested blocks, local arrays too, in order."""
    names: dict[str, None] = {}
    for s in statements(block):
        if isinstance(s, Load | Store):
            names[s.operand] = None
        elif isinstance(s, Copy):
            names.update(dict.fromkeys((s.source, s.target)))
    return tuple(names)


def combine_functions(reduce: Reduce) -> tuple[str, ...] | None:
    """The scalar function that combines each value of a Reduce on its own, or None.

    None means that the combine block mixes the values or needs several statements for one.
    """
    combine, count = reduce.combine, len(reduce.outs)
    if len(combine.body) != count:
        return None
    functions = []
    for place, statement in enumerate(combine.body):
        if not isinstance(statement, Apply) or statement.outs != (combine.results[place],):
            return None
        if set(statement.args) != {combine.params[place], combine.params[count + place]}:
            return None
        functions.append(statement.fn)
    return tuple(functions)


class Names:
    """The names of the entries of the argument block in the text.

    Args:
        taken: Names that the text uses for something else: those of the axes.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = frozenset(taken)

    def operand(self, operand: str) -> str:
        """A pointer, an INDEX operand's base or a scalar's value."""
        taken = operand in self._taken or keyword.iskeyword(operand)
        return operand + "_" if taken or _TAKEN.fullmatch(operand) else operand

    def extent(self, axis: Axis) -> str:
        """The number of points of an axis: a literal when it is exact."""
        return f"n_{axis.name}" if axis.exact is None else str(axis.exact)

    def stride(self, operand: str, axis: str) -> str:
        """The stride, in elements, of an operand along an axis."""
        return f"{self.operand(operand)}_stride_{axis}"


class Lines:
    """Lines of Python text, and the indentation of the next one."""

    lines: list[str]
    depth: int

    def emit(self, line: str) -> None:
        """Append one line at the current depth."""
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Append a line that ends in a colon; lines emitted inside are its suite."""
        self.emit(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1


class KernelPrinter(Lines):
    """Walks one kernel and prints it; see the module's text for the hooks."""

    target = ""
    comment = ""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = Names(axis.name for axis in kernel.axes)
        self.axes: dict[str, Axis] = {axis.name: axis for axis in kernel.axes}
        self.operands: dict[str, Operand] = {o.name: o for o in kernel.operands}
        self.locals: dict[str, Local] = {local.name: local for local in kernel.locals}
        self.values: dict[int, str] = {}
        self._free = unused_number(kernel.body)  # of values that a printer makes
        self._indices: set[int] = set()  # numbers of values that are indices
        self.lines: list[str] = []
        self.depth = 0
        # Per operand, the expression of its address sum over the loops that are open now.
        self.offsets: dict[str, str] = {
            o.name: self.names.operand(o.name) if o.mode is Mode.INDEX else "0"
            for o in kernel.operands
        }
        parallel = [axis.name for axis in kernel.axes if axis.role is Role.PARALLEL]
        self.split_axis = parallel[0] if parallel else None

    def source(self) -> Source:
        """Print the module."""
        comment = [self.comment, *kernel_text(self.kernel).rstrip().splitlines()]
        for line in comment:
            self.emit(f"# {line}".rstrip())
        for line in self.module_lines():
            self.emit(line)
        with self.indented(self.signature()):
            self.entry()
        return Source("\n".join(self.lines) + "\n", self.function_name(), self.target)

    # Values

    def value(self, value: Value) -> str:
        """The expression of a value."""
        return self.values.get(value.number, f"t{value.number}")

    def bind(self, values: Sequence[Value], expressions: Sequence[str]) -> None:
        """Bind values to expressions (variables) that already exist."""
        for value, expression in zip(values, expressions, strict=True):
            self.values[value.number] = expression

    def assign(self, targets: Sequence[str], expressions: Sequence[str]) -> None:
        """Assign all targets at once: an expression may name a target that is overwritten."""
        pairs = [(t, e) for t, e in zip(targets, expressions, strict=True) if t != e]
        overwritten = {t for t, _ in pairs}
        clash = len(pairs) > 1 and any(e in overwritten for _, e in pairs)
        if clash:
            # Named by what they become, so that a name has one type in all of the text.
            for target, expression in pairs:
                self.emit(f"next_{target} = {expression}")
            pairs = [(target, f"next_{target}") for target, _ in pairs]
        for target, expression in pairs:
            self.emit(f"{target} = {expression}")

    # Statements

    def block(self, block: Block) -> None:
        """Print the statements of a block."""
        for statement in block.body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        """Print one statement."""
        printers: dict[type, Callable[..., None]] = {
            Const: self._const,
            Load: self._load,
            Store: self._store,
            Apply: self._apply,
            Select: self._select,
            Cast: self._cast,
            Reduce: self.reduce,
            For: self.loop,
            Strip: self.strip,
            Copy: self.copy,
            While: self._while,
            If: self._if,
        }
        printers[type(statement)](statement)

    def _const(self, s: Const) -> None:
        self.emit(f"{self.value(s.out)} = {constant(s.value, s.out.dtype)}")

    def _load(self, s: Load) -> None:
        out = self.value(s.out)
        if s.operand in self.locals:
            self.emit(f"{out} = {self.load_local(self.locals[s.operand], s.offset)}")
            return
        operand = self.operands[s.operand]
        if operand.mode is Mode.INDEX and s.where is None:
            self._indices.add(s.out.number)
        expression = self._element(operand, s.offset, s.part)
        if s.where is None:
            self.emit(f"{out} = {expression}")
            return
        where = self.value(s.where)
        if operand.mode not in (Mode.SCALAR, Mode.INDEX):
            place = self._within(operand, s.offset, s.part)
            guarded = self.load_where(operand, place, where, s.out.dtype)
            if guarded is not None:
                self.emit(f"{out} = {guarded}")
                return
        # A real branch: nothing may be read where the mask is false.
        with self.indented(f"if {where}:"):
            self.emit(f"{out} = {expression}")
        with self.indented("else:"):
            self.emit(f"{out} = {constant(0, s.out.dtype)}")

    def _element(self, operand: Operand, offset: Value | None, part: int | None) -> str:
        if operand.mode is Mode.SCALAR:
            return self.names.operand(operand.name)
        if operand.mode is Mode.INDEX:
            return self._as_int64(self._address(operand, offset))
        return self.load(operand, self._within(operand, offset, part))

    def _within(self, operand: Operand, offset: Value | None, part: int | None) -> str:
        """Where an element lies, or a part of one, counted in values of the compute dtype."""
        address = self._address(operand, offset)
        if part is None:
            return address
        real = address if address == "0" else f"({address}) * 2"
        return f"{real} + 1" if part else real

    def _address(self, operand: Operand, offset: Value | None) -> str:
        """An explicit offset is an int64 value, and so is its sum with offsets of any width."""
        base = self.offsets[operand.name]
        if offset is None:
            return base
        extra = self.value(offset)
        return extra if base == "0" else f"{base} + {extra}"

    def _as_int64(self, expression: str) -> str:
        return expression if self.kernel.index_bits == 64 else f"np.int64({expression})"

    def _store(self, s: Store) -> None:
        if s.operand in self.locals:
            self.emit(self.store_local(self.locals[s.operand], s.offset, self.value(s.value)))
            return
        operand = self.operands[s.operand]
        place = self._within(operand, s.offset, s.part)
        line = self.store(operand, place, self.value(s.value))
        if s.where is None:
            self.emit(line)
            return
        with self.indented(f"if {self.value(s.where)}:"):
            self.emit(line)

    def _apply(self, s: Apply) -> None:
        arguments = [self.value(a) for a in s.args]
        outs = ", ".join(self.value(o) for o in s.outs)
        self.emit(f"{outs} = {self.call(s.fn, arguments, s.args[0].dtype)}")

    def call(self, fn: str, arguments: list[str], dtype: str) -> str:
        """The expression of a scalar function on arguments of one dtype."""
        if fn in COMPARE:
            return f"{arguments[0]} {COMPARE[fn]} {arguments[1]}"
        if fn in ARITHMETIC:
            return self.wrap(f"{arguments[0]} {ARITHMETIC[fn]} {arguments[1]}", dtype)
        if fn == "div" and dtype in FLOATS:
            return f"{arguments[0]} / {arguments[1]}"
        if fn == "neg":
            return self.wrap(f"-{arguments[0]}", dtype)
        if fn == "not":
            negated = f"not {arguments[0]}" if dtype == "bool" else f"~{arguments[0]}"
            return self.wrap(negated, dtype)
        return self.function(fn, arguments, dtype)

    def wrap(self, expression: str, dtype: str) -> str:
        """Give an arithmetic expression its dtype: in Numba's types integers widen to 64 bits."""
        if dtype in FLOATS or dtype == "bool":
            return expression
        return f"np.{dtype}({expression})"

    def _select(self, s: Select) -> None:
        chosen = self.select(
            self.value(s.predicate), self.value(s.on_true), self.value(s.on_false), s.out.dtype
        )
        self.emit(f"{self.value(s.out)} = {chosen}")

    def _cast(self, s: Cast) -> None:
        source = "index" if s.arg.number in self._indices else s.arg.dtype
        cast = self.cast(self.value(s.arg), source, s.out.dtype)
        self.emit(f"{self.value(s.out)} = {cast}")

    # Loops and branches

    def loop(self, s: For) -> None:
        """Print a loop over an axis, or one that runs ``count`` times."""
        if s.axis is not None:
            with self.axis_loop(s.axis, s.body):
                self.block(s.body)
            return
        assert s.count is not None
        outs = [self.value(o) for o in s.outs]
        counter = f"c{s.body.params[0].number}"
        self.assign(outs, [self.value(v) for v in s.init])
        self.bind(s.body.params, [counter, *outs])
        self.count_loop(s, counter, self.value(s.count))

    def turn(self, s: For | While) -> None:
        """Print one iteration: the body, and the assignment of results to carries."""
        self.block(s.body)
        outs = [self.value(o) for o in s.outs]
        self.assign(outs, [self.value(v) for v in s.body.results])

    @contextmanager
    def axis_loop(self, axis_name: str, body: Block) -> Iterator[None]:
        """Open a loop over an axis and advance the offsets of the operands used in ``body``."""
        axis = self.axes[axis_name]
        split = axis_name == self.split_axis
        head = self.split_loop(axis) if split else self.inner_loop(axis)
        with self.indented(head), self.at_point(axis, body):
            yield

    @contextmanager
    def at_point(self, axis: Axis, body: Block) -> Iterator[None]:
        """Advance the offsets to the index of ``axis`` for the operands used in ``body``."""
        saved = self.offsets
        self.offsets = dict(saved)
        position = self.kernel.axes.index(axis)
        for name in operands_in(body):
            if name in self.locals:
                continue
            operand = self.operands[name]
            if position < len(operand.strides):
                self._advance(operand, operand.strides[position], axis)
        yield
        self.offsets = saved

    def _advance(self, operand: Operand, stride: Stride, axis: Axis) -> None:
        if stride is Stride.ZERO:
            return
        step = axis.name
        if stride is Stride.ANY:
            step = self.index_product(axis.name, self.names.stride(operand.name, axis.name))
        elif stride is not Stride.UNIT:
            step = self.index_product(axis.name, stride.value)
        base = self.offsets[operand.name]
        if base == "0" and stride is Stride.UNIT:
            self.offsets[operand.name] = axis.name
            return
        offset = f"{self.names.operand(operand.name)}_at_{axis.name}"
        self.emit(f"{offset} = {step if base == '0' else self.index_sum(base, step)}")
        self.offsets[operand.name] = offset

    def loops_of(self, s: Copy) -> For:
        """The loops of a Copy."""
        local = self.locals[s.source if s.source in self.locals else s.target]
        self._free += LOOP_VALUES
        return as_loops(s, local, self._free - LOOP_VALUES)

    def combine(self, s: Reduce, running: Sequence[str], new: Sequence[str]) -> None:
        """Print ``running = combine(running, new)`` of a Reduce; both are variables."""
        self.bind(s.combine.params, [*running, *new])
        self.block(s.combine)
        self.assign(running, [self.value(v) for v in s.combine.results])

    def serial_reduce(self, s: Reduce) -> None:
        """Print a Reduce as a loop nest that one worker runs in order."""
        outs = [self.value(o) for o in s.outs]
        self.assign(outs, [self.value(v) for v in s.init])
        self.over_axes(
            s.axes,
            s.body,
            lambda: self.combine(s, outs, [self.value(v) for v in s.body.results]),
        )

    def over_axes(self, axes: Sequence[str], body: Block, after: Callable[[], None]) -> None:
        """Print ``body`` and then ``after()`` inside loops over ``axes``."""
        if axes:
            with self.axis_loop(axes[0], body):
                self.over_axes(axes[1:], body, after)
            return
        self.block(body)
        after()

    def _while(self, s: While) -> None:
        outs = [self.value(o) for o in s.outs]
        self.assign(outs, [self.value(v) for v in s.init])
        self.bind(s.cond.params, outs)
        self.bind(s.body.params, outs)
        with self.indented("while True:"):
            self.block(s.cond)
            with self.indented(f"if not {self.value(s.cond.results[0])}:"):
                self.emit("break")
            self.turn(s)
            self.after_turn(s)

    def _if(self, s: If) -> None:
        outs = [self.value(o) for o in s.outs]
        heads = (f"if {self.value(s.predicate)}:", "else:")
        for head, branch in zip(heads, (s.then, s.orelse), strict=True):
            with self.indented(head):
                self.block(branch)
                self.assign(outs, [self.value(v) for v in branch.results])

    # Hooks: what a target may override. The defaults are plain Python that Numba accepts.

    def module_lines(self) -> list[str]:
        """Lines between the header comment and the function: imports, helper definitions."""
        return ["import math", "", "import numpy as np", "", ""]

    def function_name(self) -> str:
        """The name of the kernel's function in the text."""
        return self.kernel.name

    def signature(self) -> str:
        """The ``def`` line of the kernel."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override signature")

    def unpack(self) -> None:
        """Emit the lines that define every name of ``Names`` from the function's arguments."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override unpack")

    def entry(self) -> None:
        """Emit the function's suite."""
        self.unpack()
        self.block(self.kernel.body)

    def split_loop(self, axis: Axis) -> str:
        """The head of a loop over the first PARALLEL axis, whose range a launch splits."""
        return self.inner_loop(axis)

    def count_loop(self, s: For, counter: str, count: str) -> None:
        """Print the iterations of a loop that runs ``count`` times."""
        with self.indented(f"for {counter} in range({count}):"):
            self.turn(s)

    def after_turn(self, s: While) -> None:
        """Print the code after an iteration of a loop with a condition."""
        del s

    def inner_loop(self, axis: Axis) -> str:
        """The head of a loop over any other axis."""
        return f"for {axis.name} in range({self.names.extent(axis)}):"

    def reduce(self, s: Reduce) -> None:
        """Print a Reduce; afterwards every worker of the group has its results."""
        self.serial_reduce(s)

    def load(self, operand: Operand, offset: str) -> str:
        """The expression of the element at ``offset``, widened to the compute dtype."""
        return f"{self.names.operand(operand.name)}[{offset}]"

    def store(self, operand: Operand, offset: str, value: str) -> str:
        """The line that rounds ``value`` to the storage dtype and writes it at ``offset``."""
        return f"{self.names.operand(operand.name)}[{offset}] = {value}"

    def strip(self, s: Strip) -> None:
        """Print the loop over the pieces of an axis; inside, ``span`` is that of the piece."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override strip")

    def copy(self, s: Copy) -> None:
        """Print a Copy as loops."""
        self.statement(self.loops_of(s))

    def load_local(self, local: Local, offset: Value | None) -> str:
        """The expression of an element of a local array, at the current point or an offset."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override load_local")

    def store_local(self, local: Local, offset: Value | None, value: str) -> str:
        """The line that writes an element of a local array, at the current point or an offset."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override store_local")

    def load_where(self, operand: Operand, offset: str, where: str, dtype: str) -> str | None:
        """The same where a condition holds and 0 elsewhere, or None: in a branch."""
        del operand, offset, where, dtype
        return None

    def function(self, fn: str, arguments: list[str], dtype: str) -> str:
        """The expression of a scalar function that has no operator, on arguments of ``dtype``."""
        del dtype
        return f"{fn}({', '.join(arguments)})"

    def select(self, predicate: str, on_true: str, on_false: str, dtype: str) -> str:
        """The expression of a Select."""
        del dtype
        return f"{on_true} if {predicate} else {on_false}"

    def cast(self, argument: str, source: str, dtype: str) -> str:
        """The expression of a Cast; only those that Numba spells as a call are done here.

        ``source``: a dtype, or "index": an int64 that is an index.
        """
        del source
        return f"np.{dtype}({argument})"

    def index_sum(self, left: str, right: str) -> str:
        """The sum of two offsets."""
        return f"{left} + {right}"

    def index_product(self, index: str, stride: str) -> str:
        """An index times a stride."""
        return f"{index} * {stride}"
