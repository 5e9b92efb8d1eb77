"""Code generation from KernelIR: the visitor that all targets share.

``KernelWalk`` visits the statements of a kernel in order. It computes addresses as sums over the
enclosing loops, and assigns loop carries, branch results and reductions. Kernels must be ones that
``kir.verify`` accepts. In all methods, ``s`` is a statement.

An emitter is a subclass with its own expression type ``E``: text for CUDA (``printer``), records
for the CPU. It overrides these hooks, which are the last methods of ``KernelWalk``:

    name, constant, target   expressions of a variable and of a constant; the variable of a value
    set, set_all             the assignment of one variable, or of all results of a function
    when, otherwise          the sides of a branch
    forever, leave           a loop that runs until its body leaves it
    axis_loop, count_loop    loops over an axis, and of a number of iterations
    after_iteration          code after an iteration of a loop with a condition
    reduce                   a Reduce statement
    element_index            the index of an element, or of one component of a complex number
    load, store, load_where  one element of an operand
    load_local, store_local  one element of a local array
    strip, copy              a Strip statement, and a Copy statement
    operation, prefix        expressions of operators
    converted, function      a conversion; a scalar function that has no operator
    select, cast             expressions of a Select and a Cast
    index_sum, index_product address arithmetic at ``kernel.index_bits``

Tests: tests/targets/cpu/test_cpu_kernels.py, tests/targets/cuda/test_cuda_kernels.py.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

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
from gpuflow.kir.rewrite import COPY_LOOP_VALUES, copy_loops
from gpuflow.kir.walk import next_value_number, statements

E = TypeVar("E")
FLOATS = ("float32", "float64")
# Scalar functions of KernelIR that all targets write as operators.
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# Names that generated code uses itself. An operand with such a name gets an underscore.
_RESERVED = re.compile(
    r"[ct]\d+|np|math|cuda|words|lo|hi|reader|writer"
    r"|range|min|max|int|float|bool|abs|.*_.*"
)


def operands_in(block: Block) -> tuple[str, ...]:
    """Names of all operands and local arrays that a block accesses, in order of first use."""
    names: dict[str, None] = {}
    for s in statements(block):
        if isinstance(s, Load | Store):
            names[s.operand] = None
        elif isinstance(s, Copy):
            names.update(dict.fromkeys((s.source, s.target)))
    return tuple(names)


def combine_functions(reduce: Reduce) -> tuple[str, ...] | None:
    """Return the scalar function that combines each value of a Reduce, or None.

    None: the combine block mixes values (as argmax does), or one value needs several statements.
    """
    combine, count = reduce.combine, len(reduce.outs)
    if len(combine.body) != count:
        return None
    functions = []
    for position, statement in enumerate(combine.body):
        if not isinstance(statement, Apply) or statement.outs != (combine.results[position],):
            return None
        if set(statement.args) != {combine.params[position], combine.params[count + position]}:
            return None
        functions.append(statement.fn)
    return tuple(functions)


class Names:
    """Names of the local variables that hold a kernel's arguments.

    Args:
        reserved: names that generated code already uses: those of the axes.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)

    def operand(self, operand: str) -> str:
        """The name of a pointer, of an INDEX operand's base, or of a scalar."""
        is_reserved = operand in self._reserved or keyword.iskeyword(operand)
        return operand + "_" if is_reserved or _RESERVED.fullmatch(operand) else operand

    def extent(self, axis: Axis) -> str:
        """The name of an axis's extent, or its literal if the extent is exact."""
        return f"n_{axis.name}" if axis.exact is None else str(axis.exact)

    def stride(self, operand: str, axis: str) -> str:
        """The name of an operand's stride along an axis, in elements."""
        return f"{self.operand(operand)}_stride_{axis}"


class KernelWalk(Generic[E]):
    """Visits the statements of one kernel; the module's docstring lists the hooks.

    Attributes:
        names: names of the kernel's arguments.
        axes, operands, locals: the kernel's declarations by name.
        values: expressions that replace a value's own variable, by value number.
        offsets: per operand, the address sum over the loops that enclose the current statement.
        distributed_axis: name of the first PARALLEL axis, which a launch divides among threads;
            None: there is none.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = Names(axis.name for axis in kernel.axes)
        self.axes: dict[str, Axis] = {axis.name: axis for axis in kernel.axes}
        self.operands: dict[str, Operand] = {o.name: o for o in kernel.operands}
        self.locals: dict[str, Local] = {local.name: local for local in kernel.locals}
        self.values: dict[int, E] = {}
        self._next_value_number = next_value_number(
            kernel.body
        )  # next unused value number, for new values
        self._indices: set[int] = set()  # numbers of values that INDEX operands loaded
        self.offsets: dict[str, E] = {
            o.name: self.name(self.names.operand(o.name)) if o.mode is Mode.INDEX else self.zero
            for o in kernel.operands
        }
        parallel = [axis.name for axis in kernel.axes if axis.role is Role.PARALLEL]
        self.distributed_axis = parallel[0] if parallel else None

    # Values

    def value(self, value: Value) -> E:
        """The expression of a value: the bound one, else its own variable."""
        bound = self.values.get(value.number)
        return self.name(f"t{value.number}") if bound is None else bound

    def bind(self, values: Sequence[Value], expressions: Sequence[E]) -> None:
        """Bind values to existing variables, so that no copy is emitted."""
        for value, expression in zip(values, expressions, strict=True):
            self.values[value.number] = expression

    def assign(self, targets: Sequence[str], expressions: Sequence[E]) -> None:
        """Emit a parallel assignment: every expression is read before any target is written."""
        pairs = [
            (target, expression)
            for target, expression in zip(targets, expressions, strict=True)
            if self.name(target) != expression
        ]
        overwritten = [self.name(target) for target, _ in pairs]
        if len(pairs) > 1 and any(expression in overwritten for _, expression in pairs):
            # A temporary is named after its target, so that each name keeps one type.
            for target, expression in pairs:
                self.set(f"next_{target}", expression)
            pairs = [(target, self.name(f"next_{target}")) for target, _ in pairs]
        for target, expression in pairs:
            self.set(target, expression)

    def carry(self, outs: Sequence[Value], values: Sequence[Value]) -> None:
        """Emit the parallel assignment of ``values`` to the variables of ``outs``."""
        self.assign([self.target(o) for o in outs], [self.value(v) for v in values])

    # Statements

    def block(self, block: Block) -> None:
        """Emit the statements of a block."""
        for statement in block.body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        """Emit one statement."""
        emitters: dict[type, Callable[..., None]] = {
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
        emitters[type(statement)](statement)

    def _const(self, s: Const) -> None:
        self.set(self.target(s.out), self.constant(s.value, s.out.dtype))

    def _load(self, s: Load) -> None:
        """Emit a Load; if its mask is false, the result is 0 and no memory is read."""
        out = self.target(s.out)
        if s.operand in self.locals:
            self.set(out, self.load_local(self.locals[s.operand], s.offset))
            return
        operand = self.operands[s.operand]
        if operand.mode is Mode.INDEX and s.where is None:
            self._indices.add(s.out.number)
        expression = self._element(operand, s.offset, s.component)
        if s.where is None:
            self.set(out, expression)
            return
        where = self.value(s.where)
        if operand.mode not in (Mode.SCALAR, Mode.INDEX):
            element = self.element_index(self._address(operand, s.offset), s.component)
            masked_load = self.load_where(operand, element, where, s.out.dtype)
            if masked_load is not None:
                self.set(out, masked_load)
                return
        # A branch and not a select: if the mask is false, the address may be out of bounds.
        with self.when(where):
            self.set(out, expression)
        with self.otherwise():
            self.set(out, self.constant(0, s.out.dtype))

    def _element(self, operand: Operand, offset: Value | None, component: int | None) -> E:
        if operand.mode is Mode.SCALAR:
            return self.name(self.names.operand(operand.name))
        if operand.mode is Mode.INDEX:
            address = self._address(operand, offset)
            return address if self.kernel.index_bits == 64 else self.converted(address, "int64")
        return self.load(operand, self.element_index(self._address(operand, offset), component))

    def _address(self, operand: Operand, offset: Value | None) -> E:
        """The index of an element. An explicit offset is an int64, so the sum is one too."""
        base = self.offsets[operand.name]
        if offset is None:
            return base
        offset_value = self.value(offset)
        return offset_value if base == self.zero else self.operation("+", base, offset_value)

    def _store(self, s: Store) -> None:
        if s.operand in self.locals:
            self.store_local(self.locals[s.operand], s.offset, self.value(s.value))
            return
        operand = self.operands[s.operand]
        element = self.element_index(self._address(operand, s.offset), s.component)
        if s.where is None:
            self.store(operand, element, self.value(s.value))
            return
        with self.when(self.value(s.where)):
            self.store(operand, element, self.value(s.value))

    def _apply(self, s: Apply) -> None:
        arguments = [self.value(a) for a in s.args]
        self.set_all([self.target(o) for o in s.outs], self.call(s.fn, arguments, s.args[0].dtype))

    def call(self, fn: str, arguments: Sequence[E], dtype: str) -> E:
        """The expression of a scalar function whose arguments all have ``dtype``."""
        if fn in COMPARISONS:
            return self.operation(COMPARISONS[fn], *arguments)
        if fn in ARITHMETIC:
            return self._to_dtype(self.operation(ARITHMETIC[fn], *arguments), dtype)
        if fn == "div" and dtype in FLOATS:
            return self.operation("/", *arguments)
        if fn == "neg":
            return self._to_dtype(self.prefix("-", *arguments), dtype)
        if fn == "not":
            return self._to_dtype(self.prefix("not" if dtype == "bool" else "~", *arguments), dtype)
        return self.function(fn, arguments, dtype)

    def _to_dtype(self, expression: E, dtype: str) -> E:
        """Convert an integer result back to ``dtype``: in Numba integers widen to 64 bits."""
        keeps_dtype = dtype in FLOATS or dtype == "bool"
        return expression if keeps_dtype else self.converted(expression, dtype)

    def _select(self, s: Select) -> None:
        selected = self.select(
            self.value(s.predicate), self.value(s.on_true), self.value(s.on_false), s.out.dtype
        )
        self.set(self.target(s.out), selected)

    def _cast(self, s: Cast) -> None:
        source = "index" if s.arg.number in self._indices else s.arg.dtype
        self.set(self.target(s.out), self.cast(self.value(s.arg), source, s.out.dtype))

    # Loops and branches

    def loop(self, s: For) -> None:
        """Emit a loop over an axis, or one that runs ``count`` times."""
        if s.axis is not None:
            with self.axis_loop(s.axis, s.body):
                self.block(s.body)
            return
        assert s.count is not None
        counter = f"c{s.body.params[0].number}"
        self.carry(s.outs, s.init)
        self.bind(s.body.params, [self.name(counter), *map(self.value, s.outs)])
        self.count_loop(s, counter, self.value(s.count))

    def iteration(self, s: For | While) -> None:
        """Emit one iteration: the body, then the assignment of its results to the carries."""
        self.block(s.body)
        self.carry(s.outs, s.body.results)

    @contextmanager
    def at_point(self, axis: Axis, body: Block) -> Iterator[None]:
        """Add the current index of ``axis`` to the offsets of the operands used in ``body``.

        The old offsets are restored on exit.
        """
        outer_offsets = self.offsets
        self.offsets = dict(outer_offsets)
        position = self.kernel.axes.index(axis)
        for name in operands_in(body):
            if name in self.locals:
                continue
            operand = self.operands[name]
            if position < len(operand.strides):
                self._advance(operand, operand.strides[position], axis)
        yield
        self.offsets = outer_offsets

    def _advance(self, operand: Operand, stride: Stride, axis: Axis) -> None:
        if stride is Stride.ZERO:
            return
        step = index = self.name(axis.name)
        if stride is Stride.ANY:
            step = self.index_product(index, self.name(self.names.stride(operand.name, axis.name)))
        elif stride is not Stride.UNIT:
            step = self.index_product(index, self.constant_stride(stride))
        base = self.offsets[operand.name]
        if base == self.zero and stride is Stride.UNIT:
            self.offsets[operand.name] = index
            return
        offset = f"{self.names.operand(operand.name)}_at_{axis.name}"
        self.set(offset, step if base == self.zero else self.index_sum(base, step))
        self.offsets[operand.name] = self.name(offset)

    def loops_of(self, s: Copy) -> For:
        """Return a Copy as a loop nest."""
        local = self.locals[s.source if s.source in self.locals else s.target]
        self._next_value_number += COPY_LOOP_VALUES
        return copy_loops(s, local, self._next_value_number - COPY_LOOP_VALUES)

    def combine(self, s: Reduce, running: Sequence[str], new: Sequence[E]) -> None:
        """Emit ``running = combine(running, new)``.

        Args:
            s: the reduction.
            running: names of the variables of the partial results.
            new: the values to combine, as variables or constants.
        """
        self.bind(s.combine.params, [*map(self.name, running), *new])
        self.block(s.combine)
        self.assign(running, [self.value(v) for v in s.combine.results])

    def sequential_reduce(self, s: Reduce) -> None:
        """Emit a Reduce as a sequential loop nest of one worker."""
        self.carry(s.outs, s.init)
        outs = [self.target(o) for o in s.outs]
        self.over_axes(
            s.axes,
            s.body,
            lambda: self.combine(s, outs, [self.value(v) for v in s.body.results]),
        )

    def over_axes(self, axes: Sequence[str], body: Block, after: Callable[[], None]) -> None:
        """Emit ``body`` and then ``after()`` inside loops over ``axes``."""
        if axes:
            with self.axis_loop(axes[0], body):
                self.over_axes(axes[1:], body, after)
            return
        self.block(body)
        after()

    def _while(self, s: While) -> None:
        self.carry(s.outs, s.init)
        outs = [self.value(o) for o in s.outs]
        self.bind(s.cond.params, outs)
        self.bind(s.body.params, outs)
        with self.forever():
            self.block(s.cond)
            with self.when(self.prefix("not", self.value(s.cond.results[0]))):
                self.leave()
            self.iteration(s)
            self.after_iteration(s)

    def _if(self, s: If) -> None:
        with self.when(self.value(s.predicate)):
            self.block(s.then)
            self.carry(s.outs, s.then.results)
        with self.otherwise():
            self.block(s.orelse)
            self.carry(s.outs, s.orelse.results)

    # Hooks

    zero: E  # the empty address sum

    def name(self, name: str) -> E:
        """The expression of a variable."""
        raise NotImplementedError

    def target(self, value: Value) -> str:
        """The name of a value's variable."""
        raise NotImplementedError

    def constant(self, value: bool | int | float, dtype: str) -> E:
        """The expression of a constant of a compute dtype."""
        raise NotImplementedError

    def constant_stride(self, stride: Stride) -> E:
        """The expression of a constant stride."""
        raise NotImplementedError

    def set(self, target: str, value: E) -> None:
        """Emit an assignment."""
        raise NotImplementedError

    def set_all(self, targets: Sequence[str], value: E) -> None:
        """Emit the assignment of all results of one function."""
        raise NotImplementedError

    def when(self, test: E) -> AbstractContextManager[None]:
        """Emit an if; statements emitted in the context are its then side."""
        raise NotImplementedError

    def otherwise(self) -> AbstractContextManager[None]:
        """Emit the else side of the preceding ``when``."""
        raise NotImplementedError

    def forever(self) -> AbstractContextManager[None]:
        """Emit an endless loop, which ``leave`` exits."""
        raise NotImplementedError

    def leave(self) -> None:
        """Emit a break out of the innermost loop."""
        raise NotImplementedError

    def axis_loop(self, axis_name: str, body: Block) -> AbstractContextManager[None]:
        """Emit a loop over an axis and advance the offsets of the operands used in ``body``."""
        raise NotImplementedError

    def count_loop(self, s: For, counter: str, count: E) -> None:
        """Emit a loop with trip count ``count``; calls ``iteration(s)`` for its body."""
        raise NotImplementedError

    def after_iteration(self, s: While) -> None:
        """Emit code at the end of a While's body, such as a check for interrupts."""
        del s

    def reduce(self, s: Reduce) -> None:
        """Emit a Reduce; afterwards every worker that takes part must have the results."""
        self.sequential_reduce(s)

    def element_index(self, address: E, component: int | None) -> E:
        """The index of an element, or of its real or imaginary component, in values of the
        compute dtype.
        """
        raise NotImplementedError

    def load(self, operand: Operand, offset: E) -> E:
        """The expression of the element at ``offset``, widened to the compute dtype."""
        raise NotImplementedError

    def store(self, operand: Operand, offset: E, value: E) -> None:
        """Emit the store of ``value``, rounded to the storage dtype, at ``offset``."""
        raise NotImplementedError

    def strip(self, s: Strip) -> None:
        """Emit the loop over the strips of an axis; inner loops over it cover one strip."""
        raise NotImplementedError

    def copy(self, s: Copy) -> None:
        """Emit a Copy as loops."""
        self.statement(self.loops_of(s))

    def load_local(self, local: Local, offset: Value | None) -> E:
        """The expression of an element of a local array, at the current point or an offset."""
        raise NotImplementedError

    def store_local(self, local: Local, offset: Value | None, value: E) -> None:
        """Emit the store of an element of a local array, at the current point or an offset."""
        raise NotImplementedError

    def load_where(self, operand: Operand, offset: E, where: E, dtype: str) -> E | None:
        """A masked load: the element if ``where`` holds, else 0.

        None: the target has no masked load, and the walk emits a branch.
        """
        del operand, offset, where, dtype
        return None

    def operation(self, operator: str, left: E, right: E) -> E:
        """The expression of a Python operator on two variables."""
        raise NotImplementedError

    def prefix(self, operator: str, operand: E) -> E:
        """The expression of "-", "~" or "not" of a variable."""
        raise NotImplementedError

    def converted(self, value: E, dtype: str) -> E:
        """A conversion to a compute dtype that is at least as exact as the value's own."""
        raise NotImplementedError

    def function(self, fn: str, arguments: Sequence[E], dtype: str) -> E:
        """The expression of a scalar function that has no operator, on arguments of ``dtype``."""
        raise NotImplementedError

    def select(self, predicate: E, on_true: E, on_false: E, dtype: str) -> E:
        """The expression of a Select."""
        raise NotImplementedError

    def cast(self, argument: E, source: str, dtype: str) -> E:
        """The expression of a Cast.

        Args:
            argument: The value.
            source: Its dtype, or "index" for an int64 that an INDEX operand loaded.
            dtype: The dtype of the result.
        """
        raise NotImplementedError

    def index_sum(self, left: E, right: E) -> E:
        """The sum of two offsets, at ``kernel.index_bits``."""
        return self.operation("+", left, right)

    def index_product(self, index: E, stride: E) -> E:
        """An index times a stride, at ``kernel.index_bits``."""
        return self.operation("*", index, stride)
