"""``jax.api_util``: functions of trees as functions of leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from gpuflow.as_jax.internals.extend.linear_util import WrappedFun
from gpuflow.base import tree
from gpuflow.base.util import safe_zip as safe_zip
from gpuflow.core.aval import aval_of as shaped_abstractify  # noqa: F401


def safe_map(f: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
    """``f`` of each row of equally long columns."""
    return [f(*row) for row in safe_zip(*columns)]


def fun_signature(fun: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function, if it has one."""
    try:
        return inspect.signature(fun)
    except (ValueError, TypeError):
        return None


def infer_argnums_and_argnames(
    sig: inspect.Signature, argnums: int | Iterable[int] | None,
    argnames: str | Iterable[str] | None,
) -> tuple[tuple[int, ...], tuple[str, ...]]:  # fmt: skip
    """Numbers and names of arguments, those that are left out from the others."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    positional = [
        (k, name)
        for k, (name, parameter) in enumerate(sig.parameters.items())
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if argnums is None:
        numbers = tuple(k for k, name in positional if name in names)
    elif argnames is None:
        names = tuple(name for k, name in positional if k in numbers)
    return numbers, names


def flatten_axes(name: str, treedef: Any, axis_tree: Any) -> list[Any]:
    """For each leaf of a tree the axis that a tree prefix has for it."""
    leaves = tree.unflatten(treedef, [0.0] * treedef.num_leaves)
    return list(tree.broadcast_prefix(axis_tree, leaves, name))


def debug_info(traced_for: str, fun: Callable[..., Any], *_: Any, **__: Any) -> tuple[str, str]:
    """What messages would say of a function: why it is traced, and its name."""
    return traced_for, getattr(fun, "__name__", type(fun).__name__)


def flatten_fun(fun: WrappedFun, in_tree: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """A function of the leaves of ``(args, kwargs)``, and one that gives its result's tree."""

    def call(*leaves: Any) -> Any:
        args, kwargs = tree.unflatten(in_tree, leaves)
        return fun.call_wrapped(*args, **kwargs)

    return _flat(fun, call)


def flatten_fun_nokwargs(fun: WrappedFun, in_tree: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """A function of the leaves of ``args``, and one that gives its result's tree."""
    return _flat(fun, lambda *leaves: fun.call_wrapped(*tree.unflatten(in_tree, leaves)))


def _flat(fun: WrappedFun, call: Callable[..., Any]) -> tuple[WrappedFun, Callable[[], Any]]:
    trees: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        outs, treedef = tree.flatten(call(*leaves))
        trees.append(treedef)
        return outs

    return WrappedFun(flat, fun.debug_info), lambda: trees[-1]
