"""Runtime checks of values in compiled functions, returned as errors.

``checkify(f)`` returns the first failed check together with the result of ``f``. The function is
traced once; its program also computes, through loops, branches and jitted functions, which check
failed first. User checks are equations of the program (ops/effects/checks.py). Other checks come
from rules of ops (transforms/checking.py) and from indexing (numpy/bounds.py).

Tests: tests/test_checkify.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes, tree
from gpuflow.base.config import config
from gpuflow.base.errors import check as must
from gpuflow.control.jit import bind_program
from gpuflow.control.programs import trace_program
from gpuflow.core.aval import HasAval, aval_of, is_value
from gpuflow.core.rules import DIVISION, INDEX, NAN, USER
from gpuflow.core.trace import Tracer
from gpuflow.ops.effects.checks import JaxRuntimeError, Site, check_p, message_of
from gpuflow.random.keys import key_data
from gpuflow.transforms.checking import checked_jaxpr
from gpuflow.tree_util import register_pytree_node_class

__all__ = [
    "DivisionByZeroError", "Error", "ErrorCategory", "FailedCheckError", "JaxRuntimeError",
    "NaNError", "OOBError", "all_checks", "automatic_checks", "check", "check_error", "checkify",
    "debug_check", "div_checks", "float_checks", "index_checks", "init_error", "nan_checks",
    "user_checks",
]  # fmt: skip


class FailedCheckError(Exception):
    """Category of failed ``check`` calls."""


class NaNError(Exception):
    """Category of nan results."""


class DivisionByZeroError(Exception):
    """Category of divisions by 0."""


class OOBError(Exception):
    """Category of out-of-bounds indices."""


ErrorCategory = type[Exception]

_CATEGORIES: dict[ErrorCategory, str] = {
    FailedCheckError: USER,
    NaNError: NAN,
    DivisionByZeroError: DIVISION,
    OOBError: INDEX,
}

user_checks = frozenset({FailedCheckError})
nan_checks = frozenset({NaNError})
div_checks = frozenset({DivisionByZeroError})
index_checks = frozenset({OOBError})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


@register_pytree_node_class
class Error:
    """The results of checks. It can be returned from jit and vmap.

    Args:
        state: the first failed check, i32[...], 0 for none, with the axes of vmap; and the arrays
            for the messages of all checks. It is empty if there are no checks.
        sites: the message texts.
    """

    def __init__(self, state: Sequence[Any] = (), sites: Sequence[Site] = ()) -> None:
        self._state, self._sites = tuple(state), tuple(sites)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the arrays, and the texts."""
        return self._state, self._sites

    @classmethod
    def tree_unflatten(cls, sites: Any, children: Any) -> Error:
        """Invert ``tree_flatten``."""
        return cls(children, sites)

    def get(self) -> str | None:
        """Return the message of the first failed check (one line per element of vmap), or None."""
        return message_of(self._state[0], self._state[1:], self._sites) if self._state else None

    def get_exception(self) -> Exception | None:
        """Return the first failure as an exception of its category, or None."""
        text = self.get()
        if text is None:
            return None
        codes = np.asarray(self._state[0])
        site = self._sites[int(codes[codes != 0][0]) - 1]
        return next(kind for kind, name in _CATEGORIES.items() if name == site.category)(text)

    def throw(self) -> None:
        """Raise JaxRuntimeError if a check failed."""
        check_error(self)

    def __repr__(self) -> str:
        if any(isinstance(value, Tracer) for value in self._state):
            return f"Error({len(self._sites)} checks)"
        return f"Error({self.get()})"


init_error = Error()


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Check that ``pred`` is True.

    Args:
        pred: a bool, or bool[].
        msg: the message if the check fails, a format string for the other arguments.
        fmt_args, fmt_kwargs: pytrees of arrays; random keys are shown as their key data.
        debug: whether to ignore the check in programs without ``checkify``.

    Raises:
        TypeError: if ``pred`` is not a bool scalar, or values are not numeric arrays.
        JaxRuntimeError: if it does not hold, outside of ``checkify``.
        ValueError: if the program is compiled without a transformation by ``checkify``.
    """
    must(
        is_value(pred) and aval_of(pred).shape == () and aval_of(pred).dtype == dtypes.bool_,
        lambda: f"[check] pred must be one bool; got {pred!r}. Fix: jnp.all(...).",
    )
    values, structure = tree.flatten((fmt_args, fmt_kwargs))
    for value in values:
        must(
            is_value(value) and aval_of(value).dtype != dtypes.float0,
            lambda value=value: (
                f"[check] values must be trees of arrays; got {value!r}. Fix: write it into msg."
            ),
        )
    arrays = [
        key_data(value) if dtypes.is_extended(aval_of(value).dtype) else value for value in values
    ]
    strong = [lax.convert_element_type(value, aval_of(value).dtype) for value in arrays]
    failed = lax.convert_element_type(lax.bitwise_not(pred), np.int32)
    site = Site(USER, f"{msg} (`check` failed)", structure)
    check_p.bind(failed, *strong, sites=(site,), debug=debug)


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """Check that ``pred`` is True; without ``checkify`` it does nothing."""
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


def check_error(error: Error) -> None:
    """Raise if ``error`` contains a failed check; inside ``checkify``, add it as a check.

    Raises:
        TypeError: if an argument is not an Error.
        JaxRuntimeError: if a check failed.
        ValueError: if the program is compiled without a transformation by ``checkify``.
    """
    must(
        isinstance(error, Error),
        lambda: (
            f"[check_error] the argument must be an Error; got {error!r}. "
            "Fix: error, out = checkify(f)(x)."
        ),
    )
    if error._state:
        check_p.bind(*error._state, sites=error._sites, debug=False)


_TRACED = (HasAval, np.ndarray, np.generic, float, complex)


def checkify(
    f: Callable[..., Any], errors: frozenset[ErrorCategory] = user_checks
) -> Callable[..., tuple[Error, Any]]:
    """Return a function that returns the first failure together with the result.

    Args:
        f: a function that calls ``check``.
        errors: the categories to check: ``user_checks``, ``nan_checks``, ``div_checks``,
            ``index_checks``, or a set of them, such as ``all_checks``.

    Returns:
        ``(*args, **kwargs) -> (Error, f(*args, **kwargs))``.

    Raises:
        TypeError: if ``f`` is not a function, or ``errors`` is not a set of categories.
        NotImplementedError: when the returned function is called, if checks are inside programs
            that cannot return them, such as those of ``custom_linear_solve`` and ``shard_map``.
    """
    must(
        callable(f),
        lambda: f"[checkify] the first argument must be a function; got {f!r}. Fix: checkify(f).",
    )
    must(
        isinstance(errors, frozenset | set) and errors <= all_checks,
        lambda: (
            f"[checkify] errors must be a set of categories; got {errors!r}. "
            "Fix: checkify.user_checks | checkify.index_checks."
        ),
    )
    categories = frozenset(_CATEGORIES[category] for category in errors)

    def of_arrays(args: Any, kwargs: Any) -> Any:
        return f(*args, **kwargs)

    @wraps(f)
    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        # Arrays and floats are traced. Other arguments, such as Python ints, are static, as under
        # jit.
        everything, tree_of_all = tree.flatten((args, kwargs))
        positions = [k for k, leaf in enumerate(everything) if isinstance(leaf, _TRACED)]
        leaves = [everything[k] for k in positions]

        def of_leaves(*values: Any) -> Any:
            full = list(everything)
            for position, value in zip(positions, values, strict=True):
                full[position] = value
            return of_arrays(*tree.unflatten(tree_of_all, full))

        all_arrays = len(positions) == len(everything)
        call, in_tree = (
            (of_arrays, tree_of_all) if all_arrays else (of_leaves, tree.structure(tuple(leaves)))
        )
        avals = [aval_of(leaf) for leaf in leaves]
        with config.override("check_indices", INDEX in categories):
            program = trace_program("checkify", call, in_tree, avals)
        jaxpr, sites = checked_jaxpr(program.jaxpr, categories)
        name = getattr(f, "__name__", "function")
        results = bind_program(jaxpr, f"checkify({name})", [*program.closed_values, *leaves])
        count = program.out_tree.num_leaves
        return Error(results[count:], sites), tree.unflatten(program.out_tree, results[:count])

    return checked
