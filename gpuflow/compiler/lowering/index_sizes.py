"""The numbers that an ``Indexed`` op passes to its kernel, without emitting the kernel.

The op's body runs against a context that only notes what it is asked for. Bodies ask for the same
things in the same order whatever the sizes are; the trace tells if one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import operands_in_memory
from gpuflow.compiler.lowering.loops import is_written_short
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Jaxpr, Literal, Var
from gpuflow.core.views import View, contiguous
from gpuflow.kir.builder import Builder, Pair
from gpuflow.kir.nodes import Value
from gpuflow.kir.scalar import FUNCTIONS, PARTS, compute_dtype


@record
class Asked:
    """What a body asked for: a trace without sizes, and the sizes in the order of their slots."""

    trace: tuple[Any, ...]
    sizes: tuple[int, ...]


def ask_sizes(jaxpr: Jaxpr, position: int, views: Mapping[Var, tuple[Var, View]]) -> Asked:
    """Run the body of an ``Indexed`` op for what it asks."""
    context = _Recorder(jaxpr, position, views)
    eqn = jaxpr.eqns[position]
    avals = [atom.aval for atom in eqn.inputs]
    eqn.primitive.lower.body(context, avals, eqn.outputs[0].aval, eqn.params)
    return Asked(tuple(context.trace), tuple(context.sizes))


@lru_cache(4096)
def _results(fn: str, dtypes: tuple[str, ...]) -> tuple[Value, ...]:
    return tuple(Value(0, dtype) for dtype in FUNCTIONS[fn].results(dtypes))


class _Types(Builder):
    """Gives values of the right dtypes, and writes no statements for them."""

    def const(self, dtype: str, value: bool | int | float) -> Value:
        """A value of the dtype."""
        return Value(0, dtype)

    def apply(self, fn: str, *args: Value) -> Any:
        """Values of the function's results."""
        outs = _results(fn, tuple(arg.dtype for arg in args))
        return outs[0] if len(outs) == 1 else outs

    def cast(self, value: Value, dtype: str) -> Value:
        """A value of the dtype."""
        return Value(0, dtype)

    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value:
        """One of the two."""
        return on_true

    def choose(
        self, predicate: Value, on_true: Callable[[], Any], on_false: Callable[[], Any]
    ) -> Any:
        """One of the two; both are asked for what they ask for."""
        found = on_true()
        on_false()
        return found


class _Recorder:
    """In place of ``emit.IndexContext``; its values are numbers that mean nothing."""

    def __init__(
        self, jaxpr: Jaxpr, position: int, views: Mapping[Var, tuple[Var, View]]
    ) -> None:
        self._eqn, self._views = jaxpr.eqns[position], views
        self.builder = _Types({})
        self.trace: list[Any] = []
        self.sizes: list[int] = []
        self._strides: set[tuple[int, int]] = set()  # that are among the sizes

    def _number(self, dtype: str) -> Value:
        return Value(0, compute_dtype(dtype))

    def _value(self, atom: Var | Literal) -> Any:
        storage = storage_name(atom.aval.dtype)
        if storage not in PARTS:
            return self._number(storage)
        return Pair(self._number(PARTS[storage]), self._number(PARTS[storage]))

    def index(self, dim: int) -> Value:
        """The output index along ``dim``."""
        self.trace.append(("index", dim))
        return self._number("int64")

    def linear_index(self, first_dim: int = 0) -> Value:
        """The row-major index over output dimensions ``first_dim`` and later."""
        self.trace.append(("linear", first_dim))
        return self._number("int64")

    def size(self, number: int) -> Value:
        """A size, passed at run time."""
        self.trace.append(("size",))
        self.sizes.append(int(number))
        return self._number("int64")

    def border(self, dim: int, number: int) -> Value:
        """A number that indices along ``dim`` are compared with; see ``emit.IndexContext``."""
        if not is_written_short(self._eqn.outputs[0].aval.shape, dim):
            return self.size(number)
        self.trace.append(("border", int(number)))
        return self._number("int64")

    def load(
        self, operand: int, indices: Sequence[Value], where: Value | None = None
    ) -> Any:
        """The operand's element at ``indices``, one for each of its dimensions."""
        atom = self._eqn.inputs[operand]
        if type(atom) is not Literal:
            strides = self._view(atom).strides[: len(indices)]
            self.trace.append(("load", operand, tuple(stride == 1 for stride in strides)))
            asked = {(operand, d): s for d, s in enumerate(strides) if s != 1}
            self.sizes += [s for key, s in asked.items() if key not in self._strides]
            self._strides |= asked.keys()
        return self._value(atom)

    def element(self, operand: int, dims: Sequence[int]) -> Any:
        """The operand's element at the output's index; its dimension k is output ``dims[k]``."""
        atom = self._eqn.inputs[operand]
        if type(atom) is not Literal and operand < operands_in_memory(self._eqn):
            self.trace.append(("element", operand, tuple(dims)))
        return self._value(atom)

    def _view(self, atom: Var) -> View:
        return self._views[atom][1] if atom in self._views else contiguous(atom.aval.shape)
