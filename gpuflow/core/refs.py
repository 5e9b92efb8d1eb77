"""Refs: cells that hold an array, while programs stay functions of values.

A ref that a recorded program uses is an input of it, and one that it writes an output, which the
caller puts back (ref_programs.py, docs/design/0021-refs.md). ``gpuflow.ref`` has the operations.

Tests: tests/control/test_refs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gpuflow.base.errors import UnexpectedTracerError
from gpuflow.base.records import record
from gpuflow.core.aval import HasShape, ShapedArray, aval_of
from gpuflow.core.formats import Format
from gpuflow.core.staging import StagedTracer, StagingTrace
from gpuflow.core.trace import Trace, Tracer, eval_trace, thread_state

if TYPE_CHECKING:
    from gpuflow.core.methods import RefMethods
else:
    RefMethods = HasShape


@record
class AbstractRef(HasShape):
    """The type of a ref: that of the array in it."""

    inner_aval: ShapedArray

    @property
    def aval(self) -> ShapedArray:
        return self.inner_aval

    def __str__(self) -> str:
        return f"Ref{{{self.inner_aval}}}"


class Ref(RefMethods):
    """A mutable array: ``ref[...]`` reads it, ``ref[...] = x`` writes it; see ``new_ref``.

    Attributes:
        aval: the type, an AbstractRef; it never changes.
    """

    __slots__ = ("__weakref__", "_home", "_is_borrowed", "_is_shared", "_value", "aval")
    # The operators come from wiring; without this one NumPy would take a ref for a sequence.
    __array_priority__: int = 1000

    def __init__(self, value: Any, home: Trace, is_borrowed: bool = False) -> None:
        self._value = value
        self._home: Trace | None = home
        self._is_borrowed = is_borrowed  # an alias of an enclosing ref
        self._is_shared = True  # other code may hold the array
        self.aval: AbstractRef = AbstractRef(aval_of(value))

    @property
    def format(self) -> Format:
        """Layout (always row-major) and sharding of the array in the ref."""
        return read(self).format

    def unsafe_buffer_pointer(self) -> int:
        """Return the address of the array in the ref; the next write may change it."""
        return read(self).unsafe_buffer_pointer()

    def __repr__(self) -> str:
        if self._home is None:
            return f"<frozen {self.aval}>"
        if isinstance(self._value, Tracer) or self._home is not eval_trace:
            return f"<{self.aval} of a traced function>"
        return f"Ref{repr(self._value).removeprefix('Array')}"


class Cell:
    """State of an enclosing ref in a program that is being recorded."""

    __slots__ = ("_is_shared", "_value", "argument")

    def __init__(self, argument: StagedTracer) -> None:
        self.argument = self._value = argument
        self._is_shared = True


def read(ref: Ref) -> Any:
    """The array in ``ref``, as a value of the current trace.

    Raises:
        ValueError: it is frozen.
        UnexpectedTracerError: it outlived the function that made it.
    """
    holder = _holder(ref, None)
    holder._is_shared = True
    return holder._value


def write(ref: Ref, value: Any, is_shared: bool = True) -> None:
    """Put ``value``, whose type is that of ``ref``, into it; ``is_shared``: others have it too.

    Raises:
        ValueError: it is frozen, or ``value`` is mapped or differentiated and the ref is not.
        UnexpectedTracerError: it outlived the function that made it.
    """
    holder = _holder(ref, value)
    holder._value, holder._is_shared = value, is_shared


def close(ref: Ref) -> Any:
    """The last value of ``ref``, which cannot be used any more.

    Raises:
        ValueError: it was made outside of the function that is being traced.
    """
    holder = _holder(ref, None)
    if holder is not ref or ref._is_borrowed:
        raise ValueError(
            f"[freeze] a ref must be frozen by the function that made it; got {ref.aval} of "
            "outside. Fix: freeze it outside, or read it with ref[...]."
        )
    value, ref._value, ref._home = ref._value, None, None
    return value


def _holder(ref: Ref, value: Any) -> Ref | Cell:
    """The object that holds the array of ``ref`` in the current trace, and may get ``value``."""
    home, trace = ref._home, thread_state.trace
    if home is None:
        raise ValueError(
            f"[ref] a frozen ref must not be used; got {ref.aval}. Fix: use the array that freeze "
            "returned."
        )
    if home.finished:
        _raise_leaked(ref)
    while trace is not home:
        if isinstance(trace, StagingTrace):
            return _cell(trace, ref)
        if value is not None and trace.owns(value):
            _refuse_foreign(ref, trace.adds)
        if trace.parent is None:
            _raise_leaked(ref)
        trace = trace.parent
    return ref


def _cell(trace: StagingTrace, ref: Ref) -> Cell:
    if trace.finished:
        _raise_leaked(ref)
    if trace.ref_cells is None:
        raise NotImplementedError(
            f"[ref] {trace.function_name} must not use refs of outside, which this transformation "
            f"does not carry; got {ref.aval}. Fix: pass ref[...] in and return the new value."
        )
    cell = trace.ref_cells.get(ref)
    if cell is None:
        cell = trace.ref_cells[ref] = Cell(trace.new_argument(ref.aval.inner_aval))
    return cell


def _raise_leaked(ref: Ref) -> NoReturn:
    raise UnexpectedTracerError(
        "[ref] a ref must be used in the transformation that made it; got the leaked "
        f"{ref.aval}. Fix: make it outside, or return its value from the function."
    )


def _refuse_foreign(ref: Ref, what: str) -> NoReturn:
    fix = "map the ref with in_axes" if what == "mapped" else "write lax.stop_gradient(x)"
    raise ValueError(
        f"[ref] a ref of outside cannot get a {what} value; got one for {ref.aval}. Fix: {fix}, "
        "or make the ref inside of the function."
    )


# --- among values ----------------------------------------------------------------------------


def type_of(value: Any) -> Any:
    """The aval of a value, or the type of a ref."""
    return value.aval if type(value) is Ref else aval_of(value)


def values_of(refs: Sequence[Any]) -> list[Any]:
    """Values, with refs replaced by their arrays."""
    return [read(x) if type(x) is Ref else x for x in refs]


def lend(ref: Ref) -> tuple[Any, bool]:
    """The array in ``ref`` for a program that runs now, and whether anybody else may have it."""
    holder = _holder(ref, None)
    return holder._value, holder._is_shared


def borrowed(value: Any) -> Ref:
    """A ref of the current trace for an enclosing one, from which ``value`` was read."""
    return Ref(value, thread_state.trace, True)


def refuse_refs(op: str, leaves: Sequence[Any], what: str) -> None:
    """Raise ValueError if there is a ref among ``leaves``: it cannot be ``what``."""
    for leaf in leaves:
        if type(leaf) is Ref:
            raise ValueError(
                f"[{op}] {what} must be arrays; got {leaf.aval}, a ref, which cannot be returned "
                "or carried. Fix: use ref[...], its value, or close over the ref."
            )
