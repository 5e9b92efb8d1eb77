"""Emit KernelIR: a Builder writes SSA statements into nested blocks.

    builder = Builder({"x": x, "o": o})
    with builder.for_axis("i0"):
        builder.store("o", builder.apply("exp", builder.load("x")))
    body = builder.finish()

Identical pure statements (Const, Apply, Select, Cast, and Loads of memory that the kernel never
writes) are emitted once per scope: a second one returns the values of the first that is visible.

Tests: tests/kir/test_kir_builder_text.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeVar, overload

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Operand, Stride, Value
from gpuflow.kir.scalar import EXACT_ON_NARROW, FUNCTIONS, NARROW_DTYPES, compute_dtype, dtype_kind

Values = tuple[Value, ...]


@record
class ComplexPair:
    """A complex number: its real and its imaginary component, of one dtype."""

    real: Value
    imag: Value


Element = TypeVar("Element", Value, ComplexPair)


@record(frozen=False)
class _Scope:
    """A block under construction.

    Attributes:
        axes: the kernel axes that its loop or reduction opens.
        closed: whether it sees nothing of the scopes around it: a combine block.
        body: the statements so far.
        available: results of pure statements, by their key.
    """

    axes: tuple[str, ...] = ()
    closed: bool = False
    body: list[nodes.Statement] = field(default_factory=list)
    available: dict[tuple, Values] = field(default_factory=dict)


class Builder:
    """Writes the body of one kernel; used by one thread, until ``finish``.

    Arguments that are Values must be results of this builder that are visible in the current block.
    Only function names, dtypes of ``apply``, and operands are checked here; ``kir.verify`` checks
    the rest.

    Args:
        operands: the kernel's operands by name; their stride classes must be complete when loads
            are emitted, because they determine the loops in which a load varies.
        axes: the kernel's axis names in order; needed only where an operand has stride classes.
    """

    def __init__(self, operands: Mapping[str, Operand], axes: Sequence[str] = ()):
        self._operands = dict(operands)
        self._axes = tuple(axes)
        self._scopes = [_Scope()]
        self._next_number = 0
        # Values that a narrow dtype holds exactly, and the unrounded values of rounded ones.
        self._narrow_dtype_of: dict[Value, str] = {}
        self._unrounded_of: dict[Value, Value] = {}

    def declare(self, operand: Operand) -> None:
        """Add an operand, or replace the one of its name, before it is accessed."""
        self._operands[operand.name] = operand

    def const(self, dtype: str, value: bool | int | float) -> Value:
        """A constant written into the kernel's text.

        Args:
            dtype: a compute dtype.
            value: a Python or NumPy scalar; floats are rounded to ``dtype``, integers must fit.
        """
        exact = _exact_number(dtype, value)
        key = ("const", dtype, repr(exact))
        return self._pure(key, (dtype,), lambda outs: nodes.Const(outs[0], exact))[0]

    def load(
        self,
        operand: str,
        offset: Value | None = None,
        where: Value | None = None,
        component: int | None = None,
    ) -> Value:
        """The element of ``operand`` at the current point, or a component; see ``nodes.Load``."""
        operand_record = self._operand(operand)
        dtypes = (compute_dtype(operand_record.dtype),)

        def statement(outs: Values) -> nodes.Statement:
            return nodes.Load(outs[0], operand, offset, where, component)

        if operand_record.mode in (Mode.OUT, Mode.INOUT, Mode.WORK):
            (out,) = self._emit(dtypes, statement)
        else:
            key = ("load", operand, offset, where, component, self._varying_axes(operand_record))
            (out,) = self._pure(key, dtypes, statement)
        if operand_record.dtype in NARROW_DTYPES:
            self._narrow_dtype_of[out] = operand_record.dtype
        return out

    def store(
        self,
        operand: str,
        value: Value,
        offset: Value | None = None,
        where: Value | None = None,
        component: int | None = None,
    ) -> None:
        """Write ``value`` to ``operand`` at the current point; see ``nodes.Store``.

        ``value`` has the compute dtype of the operand, which the Store rounds to its storage dtype.
        """
        self._operand(operand)
        self._append(nodes.Store(operand, value, offset, where, component))

    def apply(self, fn: str, *args: Value) -> Any:
        """A function of the scalar table.

        Returns:
            A Value, or a tuple of Values where the function has several results.

        Raises:
            KeyError: there is no such function.
            TypeError: the function does not take these dtypes.
        """
        if fn not in FUNCTIONS:
            raise KeyError(f"[kir] fn must be a scalar function; got {fn!r}. Fix: see kir.scalar.")
        dtypes = _result_dtypes(fn, tuple([arg.dtype for arg in args]))
        key = ("apply", fn, args)
        outs = self._pure(key, dtypes, lambda outs: nodes.Apply(outs, fn, args))
        if fn in EXACT_ON_NARROW:
            self._propagate_narrow(outs[0], *args)
        return outs[0] if len(outs) == 1 else outs

    def round(self, value: Value, storage: str) -> Value:
        """``value`` as a storage dtype holds it: rounded if that is a narrow float."""
        if storage not in NARROW_DTYPES or self._narrow_dtype_of.get(value) == storage:
            return value
        rounded = self.apply(f"round_{storage}", value)
        self._narrow_dtype_of[rounded], self._unrounded_of[rounded] = storage, value
        return rounded

    def unrounded(self, value: Value, storage: str | None) -> Value:
        """The operand of ``round``, for a Store to ``storage``, which rounds itself."""
        is_rounded = self._narrow_dtype_of.get(value) == storage
        return self._unrounded_of.get(value, value) if is_rounded else value

    def _propagate_narrow(self, out: Value, *values: Value) -> None:
        """Record that a narrow dtype holds ``out`` exactly if it holds all ``values``."""
        dtypes = {self._narrow_dtype_of.get(value) for value in values}
        dtype = dtypes.pop()
        if not dtypes and dtype is not None:
            self._narrow_dtype_of[out] = dtype

    def cast(self, value: Value, dtype: str) -> Value:
        """Convert to a compute dtype; ``value`` itself where it has that dtype."""
        if value.dtype == dtype:
            return value
        key = ("cast", dtype, value)
        return self._pure(key, (dtype,), lambda outs: nodes.Cast(outs[0], value))[0]

    def const_like(self, like: Element, value: Any) -> Element:
        """A constant written into the kernel's text, in the form and dtype of ``like``."""
        if isinstance(like, ComplexPair):
            real = self.const_like(like.real, value.real)
            return ComplexPair(real, self.const_like(like.imag, value.imag))
        return self.const(like.dtype, value)

    @overload
    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value: ...

    @overload
    def select(
        self, predicate: Value, on_true: ComplexPair, on_false: ComplexPair
    ) -> ComplexPair: ...

    def select(self, predicate: Value, on_true: Any, on_false: Any) -> Value | ComplexPair:
        """``on_true if predicate else on_false``, both evaluated; of pairs, both components."""
        if isinstance(on_true, ComplexPair):
            return ComplexPair(
                self.select(predicate, on_true.real, on_false.real),
                self.select(predicate, on_true.imag, on_false.imag),
            )
        key = ("select", predicate, on_true, on_false)
        dtypes = (on_true.dtype,)
        (out,) = self._pure(
            key, dtypes, lambda outs: nodes.Select(outs[0], predicate, on_true, on_false)
        )
        self._propagate_narrow(out, on_true, on_false)
        return out

    @overload
    def reduce(
        self,
        axes: str | Sequence[str],
        init: Value,
        combine: str | Callable[..., Value],
        body: Callable[[], Value],
    ) -> Value: ...

    @overload
    def reduce(
        self,
        axes: str | Sequence[str],
        init: Sequence[Value],
        combine: str | Callable[..., Sequence[Value]],
        body: Callable[[], Sequence[Value]],
    ) -> Values: ...

    def reduce(
        self,
        axes: str | Sequence[str],
        init: Value | Sequence[Value],
        combine: str | Callable[..., Value | Sequence[Value]],
        body: Callable[[], Value | Sequence[Value]],
    ) -> Value | Values:
        """Reduce the values that ``body`` emits over all points of ``axes``.

        Args:
            axes: one axis name or several.
            init: the neutral value of ``combine``, or one for each component.
            combine: the name of a scalar function of two arguments, applied to each component;
                or a function of n running and n new Values that emits and returns n results. It
                must be associative and commutative, and must not load, store or loop.
            body: emits the elements and returns a Value, or n of them.

        Returns:
            A Value where ``init`` is a Value, else a tuple.
        """
        axis_names = (axes,) if isinstance(axes, str) else tuple(axes)
        initial = _as_values(init)
        body_block = self._block((), body, axes=axis_names)
        params = self._new_values([value.dtype for value in initial] * 2)
        block = self._block(params, self._combine_emitter(combine, len(initial)), closed=True)
        outs = self._emit(
            [value.dtype for value in initial],
            lambda outs: nodes.Reduce(outs, axis_names, initial, block, body_block),
        )
        return outs[0] if isinstance(init, Value) else outs

    @contextmanager
    def for_axis(self, axis: str) -> Iterator[None]:
        """A loop over a kernel axis: statements emitted inside the ``with`` are its body."""
        self._scopes.append(_Scope(axes=(axis,)))
        try:
            yield
        except BaseException:
            self._scopes.pop()
            raise
        body = tuple(self._scopes.pop().body)
        self._append(nodes.For(axis, Block(body=body)))

    def for_count(
        self,
        count: Value,
        init: Sequence[Value],
        body: Callable[..., Sequence[Value] | Value],
        is_long: bool = False,
    ) -> Values:
        """Run ``body(counter, *carries) -> carries`` ``count`` (int64) times; the last carries.

        Args:
            count, init, body: see above; ``body`` is called once, to emit the block.
            is_long: as in ``nodes.For``.
        """
        initial = tuple(init)
        dtypes = [value.dtype for value in initial]
        block = self._block(self._new_values(["int64", *dtypes]), body)
        return self._emit(
            dtypes, lambda outs: nodes.For(None, block, count, outs, initial, is_long=is_long)
        )

    def while_loop(
        self,
        init: Sequence[Value],
        cond: Callable[..., Value],
        body: Callable[..., Sequence[Value] | Value],
    ) -> Values:
        """Run ``carries = body(*carries)`` while ``cond(*carries)`` holds; the last carries."""
        initial = tuple(init)
        dtypes = [value.dtype for value in initial]
        cond_block = self._block(self._new_values(dtypes), cond)
        block = self._block(self._new_values(dtypes), body)
        return self._emit(dtypes, lambda outs: nodes.While(outs, initial, cond_block, block))

    def if_(self, predicate: Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Values:
        """A real branch: the results of ``then()`` or of ``orelse()`` (None: no results)."""
        then_block = self._block((), then)
        else_block = self._block((), orelse)
        dtypes = [value.dtype for value in then_block.results]
        outs = self._emit(dtypes, lambda outs: nodes.If(outs, predicate, then_block, else_block))
        for out, a, b in zip(outs, then_block.results, else_block.results, strict=True):
            self._propagate_narrow(out, a, b)
        return outs

    def lazy_select(
        self,
        predicate: Value,
        on_true: Callable[[], Value | ComplexPair],
        on_false: Callable[[], Value | ComplexPair],
    ) -> Value | ComplexPair:
        """Like ``select``, but as a branch: only the code of the selected function runs.

        Both functions are called once, to emit their code, and return elements of one dtype.
        """
        outs = self.if_(predicate, lambda: _components(on_true()), lambda: _components(on_false()))
        return outs[0] if len(outs) == 1 else ComplexPair(*outs)

    def finish(self) -> Block:
        """The finished body. Raises RuntimeError inside an open loop."""
        if len(self._scopes) != 1:
            raise RuntimeError(
                "[kir] finish must be called outside all loops; got an open one. "
                "Fix: call it after the `with` blocks."
            )
        return Block(body=tuple(self._scopes[0].body))

    def _combine_emitter(self, combine: str | Callable[..., Any], count: int) -> Callable:
        """The function that emits a combine block of ``count`` components."""
        if not isinstance(combine, str):
            return combine

        def each_component(*params: Value) -> Values:
            pairs = zip(params[:count], params[count:], strict=True)
            return tuple(self.apply(combine, running, new) for running, new in pairs)

        return each_component

    def _block(
        self,
        params: Values,
        emit: Callable[..., Any],
        axes: tuple[str, ...] = (),
        closed: bool = False,
    ) -> Block:
        """Run ``emit(*params)`` in a new scope and close it into a Block."""
        depth = len(self._scopes)
        self._scopes.append(_Scope(axes, closed))
        try:
            results = _as_values(emit(*params))
            body = tuple(self._scopes[-1].body)
        finally:
            del self._scopes[depth:]
        return Block(params, body, results)

    def _operand(self, name: str) -> Operand:
        if name not in self._operands:
            raise KeyError(
                f"[kir] operand must be one of {sorted(self._operands)}; got {name!r}. "
                "Fix: give it to the Builder."
            )
        return self._operands[name]

    def _varying_axes(self, operand: Operand) -> tuple[str, ...]:
        """The loops around the current point in which the operand's address changes."""
        constant_axes = set()
        for axis, stride in zip(self._axes, operand.strides, strict=False):
            if stride is Stride.ZERO:
                constant_axes.add(axis)
        if operand.mode is Mode.SCALAR:
            return ()
        enclosing_axes = (axis for scope in self._scopes for axis in scope.axes)
        return tuple(axis for axis in enclosing_axes if axis not in constant_axes)

    def _pure(self, key: tuple, dtypes: Sequence[str], build_statement: Callable) -> Values:
        """The values of an identical visible statement, or of a new one."""
        for scope in reversed(self._scopes):
            if key in scope.available:
                return scope.available[key]
            if scope.closed:
                break
        outs = self._emit(dtypes, build_statement)
        self._scopes[-1].available[key] = outs
        return outs

    def _emit(
        self, dtypes: Sequence[str], build_statement: Callable[[Values], nodes.Statement]
    ) -> Values:
        """Append a statement; returns its results, new values of some dtypes."""
        outs = self._new_values(dtypes)
        self._append(build_statement(outs))
        return outs

    def _append(self, statement: nodes.Statement) -> None:
        self._scopes[-1].body.append(statement)

    def _new_values(self, dtypes: Sequence[str]) -> Values:
        """Values of some dtypes with the next unused numbers."""
        first = self._next_number
        self._next_number += len(dtypes)
        return tuple(Value(first + index, dtype) for index, dtype in enumerate(dtypes))


@lru_cache(4096)
def _result_dtypes(fn: str, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    return FUNCTIONS[fn].results(dtypes)


def simple_combine(block: Block) -> str | None:
    """The scalar function that a Reduce's combine block applies, when it is a single Apply.

    Args:
        block: the combine block of a Reduce.

    Returns:
        The function's name; None for anything more than ``fn(running, new)`` (either order:
        a combine is commutative).
    """
    if len(block.params) != 2 or len(block.body) != 1:
        return None
    (statement,) = block.body
    if not isinstance(statement, nodes.Apply) or statement.outs != block.results:
        return None
    swapped = block.params[::-1]
    return statement.fn if statement.args in (block.params, swapped) else None


def _exact_number(dtype: str, value: bool | int | float) -> bool | int | float:
    """``value`` as the Python number that ``dtype`` holds exactly, so that texts are canonical."""
    kind = dtype_kind(dtype)
    if kind == "float":
        with np.errstate(over="ignore"):
            return float(np.dtype(dtype).type(value))
    return bool(value) if kind == "bool" else int(value)


def _components(element: Value | ComplexPair) -> Values:
    return (element.real, element.imag) if isinstance(element, ComplexPair) else (element,)


def _as_values(values: Any) -> Values:
    """None, one Value or several, as a tuple."""
    if values is None:
        return ()
    return (values,) if isinstance(values, Value) else tuple(values)
