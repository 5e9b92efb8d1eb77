"""Derivatives with respect to the elements of sparse arrays; indices have none.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gpuflow.numpy as jnp
from gpuflow.api.derivatives import value_and_grad as dense_value_and_grad
from gpuflow.api.jacobian import jacfwd as dense_jacfwd
from gpuflow.api.jacobian import jacrev as dense_jacrev
from gpuflow.core.aval import aval_of
from gpuflow.experimental.sparse.base import JAXSparse
from gpuflow.tree_util import tree_flatten, tree_map, tree_unflatten


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def _elements(tree: Any) -> Any:
    """A tree in which the data replace sparse arrays."""
    return tree_map(lambda x: x.data if _is_sparse(x) else x, tree, is_leaf=_is_sparse)


def _restored(old: Any, new: Any) -> Any:
    """The leaf ``old`` with other elements, perhaps with dimensions in front."""
    if not _is_sparse(old):
        return new
    (data, *rest), structure = tree_flatten(old)
    extra = aval_of(new).shape[: aval_of(new).ndim - aval_of(data).ndim]
    rest = [jnp.broadcast_to(leaf, (*extra, *aval_of(leaf).shape)) for leaf in rest]
    return tree_unflatten(structure, [new, *rest])


def _like(tree: Any, elements: Any) -> Any:
    return tree_map(_restored, tree, elements, is_leaf=_is_sparse)


def _prepared(
    fun: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], kwargs: Any
) -> tuple[Callable[..., Any], tuple[Any, ...], list[Any], bool]:
    """``fun`` of the selected elements, these, the selected arguments, and whether it is one."""
    single = not isinstance(argnums, Sequence)
    numbers = [n % len(args) for n in ([argnums] if single else argnums)]
    selected = [args[n] for n in numbers]

    def of_elements(*elements: Any) -> Any:
        whole = list(args)
        for n, tree, new in zip(numbers, selected, elements, strict=True):
            whole[n] = _like(tree, new)
        return fun(*whole, **kwargs)

    return of_elements, tuple(_elements(tree) for tree in selected), selected, single


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., tuple[Any, Any]]:
    """``gpuflow.value_and_grad`` with sparse gradients for sparse arguments."""

    def value_and_grad_of(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        function, elements, selected, single = _prepared(fun, argnums, args, kwargs)
        take = dense_value_and_grad(function, tuple(range(len(selected))), has_aux, **options)
        value, grads = take(*elements)
        grads = tuple(_like(tree, g) for tree, g in zip(selected, grads, strict=True))
        return value, grads[0] if single else grads

    return value_and_grad_of


def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """``gpuflow.grad`` with sparse gradients for sparse arguments."""
    take = value_and_grad(fun, argnums, has_aux, **options)

    def grad_of(*args: Any, **kwargs: Any) -> Any:
        value, grads = take(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return grad_of


def _jacobian(
    transform: Callable[..., Any],
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    options: dict[str, Any],
) -> Callable[..., Any]:
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        function, elements, selected, single = _prepared(fun, argnums, args, kwargs)
        take = transform(function, tuple(range(len(selected))), has_aux=has_aux, **options)
        out = take(*elements)
        jacobians, aux = out if has_aux else (out, None)
        pairs = zip(selected, jacobians, strict=True)
        jacobians = tuple(_like(tree, jacobian) for tree, jacobian in pairs)
        result = jacobians[0] if single else jacobians
        return (result, aux) if has_aux else result

    return jacobian_of


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """``gpuflow.jacfwd`` of a function to one dense array; sparse arguments give sparse results."""
    return _jacobian(dense_jacfwd, fun, argnums, has_aux, options)


def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """``gpuflow.jacrev`` of a function to one dense array; sparse arguments give sparse results."""
    return _jacobian(dense_jacrev, fun, argnums, has_aux, options)


jacobian = jacrev
