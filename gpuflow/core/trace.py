"""Traces and tracers: the current meaning of a bind.

One trace is current in a thread. No stack of levels is searched: a trace has a parent, and a
rule of the trace runs with the parent as the current trace. A tracer belongs to one trace; every
other value, tracers of outer traces among them, is a constant to it.

Tests: tests/core/test_trace.py.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)
from gpuflow.base.garbage import collect_garbage
from gpuflow.base.util import SourceLocation, user_source_location
from gpuflow.core.aval import HasAval, ShapedArray, register_value_type


class Trace:
    """Gives ``bind`` its meaning.

    Attributes:
        parent: the trace that was current when this one began; None for the outermost.
        finished: whether the traced function has returned; tracers must not be used afterwards.
    """

    __slots__ = ("__weakref__", "finished", "parent")
    # The role of its tracers, for messages.
    adds = "traced"

    def __init__(self, parent: Trace | None) -> None:
        self.parent = parent
        self.finished = False

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Apply ``primitive``; returns one output, or a sequence if it has multiple results.

        ``bind`` calls it while this trace is the current one. An operand is a tracer of this trace
        or any other value, which is a constant.
        """
        raise NotImplementedError(f"[trace] {type(self).__name__} must define process.")

    @property
    def main(self) -> Trace:
        """Identity of the trace, for libraries that compare traces: the trace itself."""
        return self

    def owns(self, value: Any) -> bool:
        """Whether ``value`` is a tracer of this trace."""
        return isinstance(value, Tracer) and value._trace is self


# ``(primitive, operands, params) -> outputs``
Evaluator = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class EvalTrace(Trace):
    """The outermost trace: every bind is evaluated on concrete arrays.

    Its ``process`` is the evaluator that ``gpuflow.wiring`` plugs in, possibly inside of wrappers
    that follow the evaluated ops.
    """

    __slots__ = ("_evaluator", "_wrappers", "process")

    def __init__(self) -> None:
        super().__init__(None)
        self.process: Evaluator = _no_evaluator
        self._evaluator: Evaluator = _no_evaluator
        self._wrappers: tuple[Callable[[Evaluator], Evaluator], ...] = ()

    def plug_in(self, evaluator: Evaluator) -> None:
        """Set the evaluator of every bind."""
        self._evaluator = evaluator
        self._renew()

    def wrap(self, wrapper: Callable[[Evaluator], Evaluator]) -> None:
        """Evaluate by ``wrapper(evaluator)`` until ``unwrap(wrapper)``."""
        self._wrappers += (wrapper,)
        self._renew()

    def unwrap(self, wrapper: Callable[[Evaluator], Evaluator]) -> None:
        """Evaluate without ``wrapper``, if it is in use; other wrappers stay."""
        self._wrappers = tuple(other for other in self._wrappers if other is not wrapper)
        self._renew()

    def _renew(self) -> None:
        process = self._evaluator
        for wrapper in self._wrappers:
            process = wrapper(process)
        self.process = process


def _no_evaluator(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
    del operands, params
    raise RuntimeError(f"[{primitive.name}] no evaluator is plugged in. Fix: import gpuflow.")


eval_trace = EvalTrace()


class ConcreteTrace(Trace):
    """Evaluates like the outermost trace inside of others, which receive unknown values."""

    __slots__ = ()
    parent: Trace

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if any(isinstance(value, Tracer) for value in operands):
            with current_trace(self.parent):
                return self.parent.process(primitive, operands, params)
        return eval_trace.process(primitive, operands, params)


class _ThreadState(threading.local):
    trace: Trace = eval_trace
    source: SourceLocation | None = None  # of the equation that is being applied again


thread_state = _ThreadState()


def source_location() -> SourceLocation | None:
    """The location of an operation: that of the equation being evaluated, or of the user's call."""
    return thread_state.source or user_source_location()


class made_at:
    """``with made_at(eqn.source):`` gives the operations in the block an equation's location.

    None: they are those of a Python function, and have the locations of their calls.
    """

    __slots__ = ("before", "source")

    def __init__(self, source: SourceLocation | None) -> None:
        self.source = source

    def __enter__(self) -> None:
        self.before = thread_state.source
        thread_state.source = self.source

    def __exit__(self, *exception: object) -> None:
        thread_state.source = self.before


class current_trace:
    """``with current_trace(trace):`` makes ``trace`` current in this thread."""

    __slots__ = ("before", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __enter__(self) -> Trace:
        self.before = thread_state.trace
        thread_state.trace = self.trace
        return self.trace

    def __exit__(self, *exception: object) -> None:
        thread_state.trace = self.before


def _of_arrays(name: str) -> Callable[..., Any]:
    """A method that only arrays with values have."""

    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        fix = f"call .{name}() outside the traced function."
        raise self._refusal(ConcretizationTypeError, name, fix)

    method.__name__ = name
    return method


class Tracer(HasAval):
    """Placeholder of an array during tracing. Operators and methods come from wiring."""

    __slots__ = ("__weakref__", "_trace", "aval")
    __array_priority__ = 1000

    def __init__(self, trace: Trace, aval: ShapedArray) -> None:
        self._trace = trace
        self.aval = aval

    def concrete(self) -> Any:
        """The concrete array of the tracer, or None."""
        return None

    def to_concrete_value(self) -> Any:
        """The value, if it is known while tracing; else None."""
        return self.concrete()

    def full_lower(self) -> Tracer:
        """The tracer itself; interpreters written for JAX call it."""
        return self

    get_referent = full_lower
    dimension_as_value = None  # sizes are not values

    def describe(self) -> str:
        """Describe the origin of the value, for error messages."""
        return ""

    def __hash__(self) -> int:
        raise TypeError(
            f"[hash] tracers are not hashable; got {self}. Fix: use id(x), or a static argument."
        )

    def _need_concrete(self, error: type[Exception], what: str, fix: str) -> Any:
        value = self.concrete()
        if value is None:
            raise self._refusal(error, what, fix)
        return value

    def _refusal(self, error: type[Exception], what: str, fix: str) -> Exception:
        origin = self.describe()
        return error(
            f"[{what}] the value must be known while tracing; got a traced {self.aval}"
            f"{', ' + origin if origin else ''}. Fix: {fix}"
        )

    def __bool__(self) -> bool:
        fix = "use jnp.where, or a static argument (static_argnums)."
        return bool(self._need_concrete(TracerBoolConversionError, "bool", fix))

    def __int__(self) -> int:
        fix = "keep it an array, or pass it as a static argument."
        return int(self._need_concrete(ConcretizationTypeError, "int", fix))

    # A known value under differentiation converts where no derivative can be lost (bool, int,
    # index) and on request (item); float(x) would silently make a constant of it.

    def __float__(self) -> float:
        fix = "keep it an array, or convert outside the traced function."
        raise self._refusal(ConcretizationTypeError, "float", fix)

    def __complex__(self) -> complex:
        fix = "keep it an array, or convert outside the traced function."
        raise self._refusal(ConcretizationTypeError, "complex", fix)

    def __index__(self) -> int:
        if self.aval.shape or not dtypes.is_integer(self.aval.dtype):
            raise TypeError(
                f"[index] only integer scalars can be indices; got a traced {self.aval}. "
                "Fix: x.astype(int) for an index of arrays, or a static argument."
            )
        fix = "pass it as a static argument (static_argnums), or use the size of an array."
        return self._need_concrete(TracerIntegerConversionError, "index", fix).__index__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del dtype, copy
        fix = "use gpuflow.numpy instead of numpy on traced values."
        raise self._refusal(TracerArrayConversionError, "numpy", fix)

    def item(self) -> Any:
        """The value as a Python scalar, if it is concrete."""
        fix = "return the array and call .item() outside the traced function."
        return np.asarray(self._need_concrete(ConcretizationTypeError, "item", fix)).item()

    def tolist(self) -> Any:
        """Tracers have no values to list; raises ConcretizationTypeError."""
        fix = "return the array and call .tolist() outside the traced function."
        raise self._refusal(ConcretizationTypeError, "tolist", fix)

    devices = _of_arrays("devices")
    delete = _of_arrays("delete")
    is_deleted = _of_arrays("is_deleted")
    addressable_data = _of_arrays("addressable_data")
    unsafe_buffer_pointer = _of_arrays("unsafe_buffer_pointer")
    tobytes = _of_arrays("tobytes")

    # Like an array, a tracer never changes, so that it is its own copy.

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracer:
        del memo
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        fix = "return the array and pickle it outside the traced function."
        raise self._refusal(ConcretizationTypeError, "pickle", fix)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"[setitem] arrays are immutable; got an assignment to x[{index!r}]. Fix: x = "
            f"x.at[{index!r}].set(...); a function of gf.kernel returns the value to write at its "
            "index."
        )

    def __repr__(self) -> str:
        weak = ", weak_type" if self.aval.weak_type else ""
        dtype = self.aval.dtype if dtypes.is_extended(self.aval.dtype) else self.aval.dtype.name
        return f"{type(self).__name__}<{dtype}{list(self.aval.shape)}{weak}>"


def _tracer_aval(tracer: Tracer) -> ShapedArray:
    return tracer.aval


register_value_type(Tracer, _tracer_aval)


_TraceKind = TypeVar("_TraceKind", bound=Trace)
_Result = TypeVar("_Result")


def with_trace(make: Callable[[], _TraceKind], run: Callable[[_TraceKind], _Result]) -> _Result:
    """The result of ``run`` with a trace that ends there.

    Raises:
        UnexpectedTracerError: a tracer outlives its trace, where a user asks for that to be found.
        RecursionError: functions are nested too deeply for Python's stack.
    """
    trace = make()
    try:
        result = run(trace)
    except RecursionError as error:
        if str(error).startswith("["):
            raise
        raise RecursionError(
            "[trace] traced functions must fit into Python's stack; got more than "
            f"{sys.getrecursionlimit()} frames. Fix: sys.setrecursionlimit(10_000), if the "
            "function does not call itself without end."
        ) from None
    ended = weakref.ref(trace)
    del trace  # from here on only leaked tracers hold it
    _check_leaks(ended)
    return result


def _check_leaks(ended: weakref.ref[_TraceKind]) -> None:
    if ended() is None or not config.switches().check_tracer_leaks:
        return
    collect_garbage()  # tracers in dead cycles
    leaked = _tracers_of(ended())
    if leaked:
        origins = [f"{tracer!r}, {tracer.describe() or 'an argument'}" for tracer in leaked]
        raise UnexpectedTracerError(
            f"[checking_leaks] the tracers of a transformation must not outlive it; got "
            f"{'; '.join(origins)}, which {'is' if len(leaked) == 1 else 'are'} still referred to. "
            "Fix: return values from the function instead of storing them in a global, an "
            "attribute or a closure."
        )


def _tracers_of(trace: Trace | None) -> list[Tracer]:
    if trace is None:
        return []
    referring = gc.get_referrers(trace)
    return [x for x in referring if isinstance(x, Tracer) and x._trace is trace]


def raise_leaked_tracer(tracer: Tracer, where: str) -> None:
    """Raise for a tracer that outlived its trace or that was used as an array.

    Raises:
        UnexpectedTracerError: always.
    """
    origin = tracer.describe()
    raise UnexpectedTracerError(
        f"[{where}] values must belong to the transformation that runs now; got the leaked tracer "
        f"{tracer!r}{', ' + origin if origin else ''}. Fix: return the value from the function "
        "instead of storing it in a global, an attribute or a closure."
    )
