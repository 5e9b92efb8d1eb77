"""Checks of values in compiled functions, whose results say whether they held.

``checkify(f)`` returns what failed first beside the result of ``f``. It is compiled, if the checks
are made by ``f`` itself, under vmap or derivatives or not. Where they are inside of loops, branches
and functions under jit, the whole of ``f`` runs one operation at a time; under jit it is written
out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api import jit
from gpuflow.base import dtypes, tree
from gpuflow.base.config import config
from gpuflow.base.errors import check as must
from gpuflow.control.jit_function import JitFunction
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Trace, Tracer, current_trace, eval_trace, thread_state
from gpuflow.transforms.batching import BatchTracer
from gpuflow.transforms.jvp import DualTracer
from gpuflow.tree_util import register_pytree_node_class


class JaxRuntimeError(ValueError):
    """A check did not hold."""


class FailedCheckError(Exception):
    """The category of ``check``."""


class NaNError(Exception):
    """The category of results that are nan."""


class DivisionByZeroError(Exception):
    """The category of divisions by 0; nothing looks for them."""


class OOBError(Exception):
    """The category of indices outside; nothing looks for them."""


ErrorCategory = type[Exception]

user_checks = frozenset({FailedCheckError})
nan_checks = frozenset({NaNError})
div_checks = frozenset({DivisionByZeroError})
index_checks = frozenset({OOBError})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


@register_pytree_node_class
class Error:
    """What checks found. It may be returned from jit and vmap.

    Args:
        failed: for each check whether it failed, bool[...]; axes are those of vmap.
        values: for each check the arrays of its text.
        texts: for each check the text, and the structure of its arrays.
    """

    def __init__(
        self, failed: Sequence[Any] = (), values: Sequence[Any] = (), texts: Sequence[Any] = ()
    ) -> None:
        self._failed, self._values, self._texts = tuple(failed), tuple(values), tuple(texts)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arrays, and the texts."""
        return (self._failed, self._values), self._texts

    @classmethod
    def tree_unflatten(cls, texts: Any, children: Any) -> Error:
        """Undoes ``tree_flatten``."""
        failed, values = children
        return cls(failed, values, texts)

    def get(self) -> str | None:
        """The text of the first check that failed, a line for each element of vmap; or None."""
        flags = [np.asarray(flag) for flag in self._failed]
        if not flags or not any(flag.any() for flag in flags):
            return None
        lines = []
        for place in np.ndindex(flags[0].shape):
            first = next((k for k, flag in enumerate(flags) if flag[place]), None)
            if first is not None:
                where = ", ".join(map(str, place))
                line = self._text(first, place)
                lines.append(f"at mapped index {where}: {line}" if place else line)
        return "\n".join(lines)

    def _text(self, number: int, place: tuple[int, ...]) -> str:
        text, structure = self._texts[number]
        if structure is None:
            return text
        values = [np.asarray(value)[place] for value in self._values[number]]
        args, kwargs = tree.unflatten(structure, values)
        return f"{text.format(*args, **kwargs)} (`check` failed)"

    def throw(self) -> None:
        """Raise JaxRuntimeError if a check failed."""
        if (text := self.get()) is not None:
            raise JaxRuntimeError(text)

    def __repr__(self) -> str:
        if any(isinstance(flag, Tracer) for flag in self._failed):
            return f"Error({len(self._failed)} checks)"
        return f"Error({self.get()})"


init_error = Error()


class _Inside(Exception):
    """A check is made where a flag cannot get out: in the body of a loop or branch."""


class _Found:
    """What the checks of one call found so far."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.failed: list[Any] = []
        self.values: list[list[Any]] = []
        self.texts: list[tuple[str, Any]] = []

    def add(self, pred: Any, text: str, values: list[Any], structure: Any) -> None:
        """One more check; of known ones only the first that failed counts."""
        pred, values = _outside(pred, values, self.trace)
        is_known = not isinstance(pred, Tracer)
        if is_known and (bool(pred) or any(f is True for f in self.failed)):
            return
        self.failed.append(True if is_known else lax.bitwise_not(pred))
        self.values.append(values)
        self.texts.append((text, structure))

    def error(self) -> Error:
        """All of it."""
        return Error([jnp.asarray(flag) for flag in self.failed], self.values, self.texts)


class _State(threading.local):
    found: _Found | None = None


_state = _State()


def _outside(pred: Any, values: list[Any], trace: Trace) -> tuple[Any, list[Any]]:
    """A flag and values as they are outside of vmap and derivatives.

    Raises:
        _Inside: the flag is that of a program inside.
    """
    while isinstance(pred, Tracer) and pred._trace is not trace:
        inner = pred._trace
        parent = inner.parent
        if isinstance(pred, DualTracer):
            pred = pred.primal
            values = [v.primal if inner.owns(v) else v for v in values]
        elif isinstance(pred, BatchTracer) and parent is not None:
            with current_trace(parent):
                dim, flags = pred.dim, pred.value
                if dim is None:
                    pred = flags
                    continue
                worst = jnp.argmin(flags, dim)
                values = [_element(v, worst) if inner.owns(v) else v for v in values]
                pred = jnp.all(flags, dim)
        else:
            raise _Inside
    return pred, [_value_outside(value, trace) for value in values]


def _value_outside(value: Any, trace: Trace) -> Any:
    """A value of a text, where its flag is already outside; nan if it cannot follow."""
    while isinstance(value, Tracer) and value._trace is not trace:
        value = value.primal if isinstance(value, DualTracer) else np.nan
    return value


def _element(value: Any, place: Any) -> Any:
    if value.dim is None:
        return value.value
    return lax.dynamic_index_in_dim(value.value, place, value.dim, keepdims=False)


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Say that ``pred`` must hold.

    Args:
        pred: a bool, or bool[].
        msg: what is wrong if it does not, a format string for the other arguments.
        fmt_args, fmt_kwargs: trees of arrays.
        debug: whether to be silent in programs that nobody made with ``checkify``.

    Raises:
        TypeError: ``pred`` is no such scalar, or values are no arrays.
        JaxRuntimeError: it does not hold, outside of ``checkify``.
        ValueError: in a program that nobody made with ``checkify``.
    """
    must(
        is_value(pred) and aval_of(pred).shape == () and aval_of(pred).dtype == dtypes.bool_,
        lambda: f"[check] pred must be one bool; got {pred!r}. Fix: jnp.all(...).",
    )
    values, structure = tree.flatten((fmt_args, fmt_kwargs))
    for value in values:
        must(
            is_value(value),
            lambda value=value: (
                f"[check] values must be trees of arrays; got {value!r}. Fix: write it into msg."
            ),
        )
    found = _state.found
    if found is not None:
        found.add(pred, msg, values, structure)
    elif not isinstance(pred, Tracer):
        if not bool(pred):
            Error([True], [values], [(msg, structure)]).throw()
    elif not debug:
        raise ValueError(
            "[check] programs with checks must be made with checkify; got a traced value. "
            "Fix: jit(checkify.checkify(f)), or debug_check."
        )


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """``check``, which does nothing in programs that nobody made with ``checkify``."""
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


def check_error(error: Error) -> None:
    """Raise if ``error`` holds a failed check; inside ``checkify`` it is one more check.

    Raises:
        TypeError: it is no Error.
        JaxRuntimeError: a check failed.
    """
    must(
        isinstance(error, Error),
        lambda: f"[check_error] the argument must be an Error; got {error!r}. "
        "Fix: error, out = checkify(f)(x).",
    )
    found = _state.found
    flags = error._failed
    if found is None and not any(isinstance(flag, Tracer) for flag in flags):
        error.throw()
        return
    must(
        found is not None,
        lambda: "[check_error] errors of traced functions must be looked at outside of them, or "
        "inside checkify; got a traced one. Fix: return it.",
        ValueError,
    )
    assert found is not None
    for flag, values, (text, structure) in zip(flags, error._values, error._texts, strict=True):
        found.add(lax.bitwise_not(jnp.any(flag)), text, list(values), structure)


def checkify(
    f: Callable[..., Any], errors: frozenset[ErrorCategory] = user_checks
) -> Callable[..., tuple[Error, Any]]:
    """A function that returns what failed first, and the result.

    Args:
        f: a function with ``check`` in it.
        errors: which categories count: ``user_checks``, ``nan_checks``, or both.

    Returns:
        ``(*args, **kwargs) -> (Error, f(*args, **kwargs))``.

    Raises:
        TypeError: ``f`` is no function.
        NotImplementedError: other categories; and, from the call, checks that a traced function has
            inside of a loop or branch.
    """
    must(
        callable(f),
        lambda: f"[checkify] the first argument must be a function; got {f!r}. Fix: checkify(f).",
    )
    must(
        isinstance(errors, frozenset | set) and errors <= user_checks | nan_checks,
        lambda: (
            "[checkify] errors must be user_checks, nan_checks or both: nothing looks for "
            f"divisions by 0 and indices outside; got {errors}. Fix: checkify.check(y != 0, ...)."
        ),
        NotImplementedError,
    )
    looks_for_nan = bool(errors & nan_checks)

    is_plain_jit = isinstance(f, JitFunction) and not f._has_statics
    plain = f._function if is_plain_jit else f

    def collect(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        with _collecting() as found:
            out = plain(*args, **kwargs)
        return (found.error() if errors & user_checks else Error()), out

    compiled = jit(collect)

    @wraps(f)
    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        is_eager = thread_state.trace is eval_trace
        must(
            is_eager or not looks_for_nan,
            lambda: "[checkify] nan_checks need values; got a traced call. "
            "Fix: checkify(jit(f)), which runs one operation at a time.",
            NotImplementedError,
        )
        if looks_for_nan and (error := _found_nan(f, args, kwargs)) is not None:
            return error, f(*args, **kwargs)
        try:
            return compiled(*args, **kwargs) if is_eager else collect(*args, **kwargs)
        except _Inside:
            pass
        try:
            with config.override("disable_jit", True):
                return collect(*args, **kwargs)
        except _Inside:
            raise NotImplementedError(
                "[checkify] a traced function must have its checks outside of loops and branches; "
                "got one inside. Fix: checkify(jit(f)) instead of jit(checkify(f))."
            ) from None

    return checked


@contextmanager
def _collecting() -> Iterator[_Found]:
    """Let ``check`` add to what is found."""
    before = _state.found
    found = _state.found = _Found(thread_state.trace)
    try:
        yield found
    finally:
        _state.found = before


def _found_nan(f: Callable[..., Any], args: Any, kwargs: Any) -> Error | None:
    try:
        with (
            config.override("debug_nans", True),
            config.override("disable_jit", True),
            _collecting(),
        ):
            f(*args, **kwargs)
    except FloatingPointError as error:
        return Error([jnp.asarray(True)], [[]], [(f"nan generated by primitive: {error}", None)])
    return None
