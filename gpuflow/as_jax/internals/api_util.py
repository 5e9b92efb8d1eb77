"""``jax.api_util``: functions of trees as functions of leaves.

Tests: tests/test_as_jax_names.py, tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpuflow.as_jax.internals.linear_util import (
    DebugInfo,
    Store,
    WrappedFun,
    transformation_with_aux2,
)
from gpuflow.base import tree, tree_keys
from gpuflow.base.util import safe_zip as safe_zip
from gpuflow.control import jit_options
from gpuflow.core.aval import aval_of as shaped_abstractify  # noqa: F401


def safe_map(f: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
    """``f`` of each row of equally long columns."""
    return [f(*row) for row in safe_zip(*columns)]


def _ensure_index(x: Any) -> int | tuple[int, ...]:
    """An index, or a tuple of them."""
    try:
        return operator.index(x)
    except TypeError:
        return tuple(map(operator.index, x))


def fun_signature(fun: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function, if it has one."""
    try:
        return inspect.signature(fun)
    except (ValueError, TypeError):
        return None


def infer_argnums_and_argnames(
    sig: inspect.Signature,
    argnums: int | Iterable[int] | None,
    argnames: str | Iterable[str] | None,
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers and names of arguments, those that are left out from the others."""
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    positional = [
        (k, name)
        for k, (name, parameter) in enumerate(sig.parameters.items())
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if argnums is None:
        positions = tuple(k for k, name in positional if name in names)
    elif argnames is None:
        names = tuple(name for k, name in positional if k in positions)
    return positions, names


def flatten_axes(name: str, treedef: Any, axis_tree: Any) -> list[Any]:
    """For each leaf of a tree the axis that a tree prefix has for it."""
    leaves = tree.unflatten(treedef, [0.0] * treedef.num_leaves)
    return list(tree.broadcast_prefix(axis_tree, leaves, name))


def debug_info(
    traced_for: str,
    fun: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    **_: Any,
) -> DebugInfo:
    """Facts about a function for messages: why it is traced, its line, names of its arguments.

    Args:
        traced_for: the transformation.
        fun: the function.
        args, kwargs: examples of arguments.
        static_argnums, static_argnames: those that are not traced.
    """
    sig = fun_signature(fun)
    named: dict[str, Any] = {}
    if sig is not None:
        try:
            named = dict(sig.bind(*args, **(kwargs or {})).arguments)
        except TypeError:
            named = {}
    static = {*static_argnames, *(name for k, name in enumerate(named) if k in static_argnums)}
    paths = [
        f"{name}{tree_keys.keystr(path)}"
        for name, value in named.items()
        if name not in static
        for path, _ in tree_keys.leaves_with_path(value)
    ]
    return DebugInfo(traced_for, _located_name(fun), tuple(paths) if named else None)


def _located_name(fun: Callable[..., Any]) -> str:
    """``name at file:line``, or the name alone."""
    inner = inspect.unwrap(fun)
    while isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__name__", type(inner).__name__)
    return name if code is None else f"{name} at {code.co_filename}:{code.co_firstlineno}"


def check_callable(fun: Any) -> None:
    """Raise TypeError unless ``fun`` can be called, and returns its results."""
    jit_options.check_callable(fun, "check_callable")


def argnums_partial(
    f: WrappedFun,
    dyn_argnums: int | Sequence[int],
    args: Sequence[Any],
    require_static_args_hashable: bool = True,
) -> tuple[WrappedFun, tuple[Any, ...]]:
    """The function of some arguments with the others given, and those arguments.

    Args:
        f: the function.
        dyn_argnums: the positions of the arguments that stay; negative ones count from the end.
        args: all arguments.
        require_static_args_hashable: whether the others must have a hash.

    Raises:
        ValueError: if a position is out of bounds, or an argument without a hash is given.
    """
    positions = (dyn_argnums,) if isinstance(dyn_argnums, int) else tuple(dyn_argnums)
    for position in positions:
        if not -len(args) <= position < len(args):
            raise ValueError(
                f"[argnums_partial] dyn_argnums must be positions of {len(args)} arguments; got "
                f"{position}. Fix: count from 0."
            )
    positions = tuple(position % len(args) for position in positions)
    fixed = {k: arg for k, arg in enumerate(args) if k not in positions}
    for k, arg in fixed.items():
        if require_static_args_hashable and getattr(type(arg), "__hash__", None) is None:
            raise ValueError(
                f"[argnums_partial] static arguments must be hashable; got argument {k} of type "
                f"{type(arg).__name__}. Fix: require_static_args_hashable=False."
            )

    def call(f: Callable[..., Any], *dynamic: Any, **kwargs: Any) -> Any:
        given = {**fixed, **dict(zip(positions, dynamic, strict=True))}
        return f(*[given[k] for k in range(len(args))], **kwargs)

    return f.wrap(call, ()), tuple(args[k] for k in positions)


@transformation_with_aux2
def flatten_fun(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """A function of the leaves of ``(args, kwargs)``, and one that gives its result's tree."""
    args, kwargs = tree.unflatten(in_tree, leaves)
    return _leaves(f(*args, **kwargs), store)


@transformation_with_aux2
def flatten_fun_nokwargs(
    f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any
) -> list[Any]:
    """A function of the leaves of ``args``, and one that gives its result's tree."""
    return _leaves(f(*tree.unflatten(in_tree, leaves)), store)


def _leaves(out: Any, store: Store) -> list[Any]:
    outs, treedef = tree.flatten(out)
    store.reset()
    store.store(treedef)
    return outs
