"""Pytrees, on optree: None is an empty node, dict keys are sorted, custom nodes are registered.

Source: optree's own semantics with ``none_is_leaf=False``, in the namespace "gpuflow".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import optree

NAMESPACE = "gpuflow"
TreeDef = optree.PyTreeSpec


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    """The leaves of ``tree`` and its structure."""
    return optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of structure ``treedef`` with ``leaves``."""
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of ``tree``."""
    return optree.tree_leaves(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeDef:
    """The structure of ``tree``."""
    return optree.tree_structure(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def tree_map(
    function: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Apply ``function`` to the leaves of trees; ``tree`` may be a prefix of the others."""
    return optree.tree_map(function, tree, *rest, is_leaf=is_leaf, namespace=NAMESPACE)


def all_leaves(items: Iterable[Any]) -> bool:
    """Whether no item is a container."""
    return optree.all_leaves(items, namespace=NAMESPACE)


def children(treedef: TreeDef) -> list[TreeDef]:
    """The structures of a node's children; none for a leaf."""
    return treedef.children()


def is_node_type(cls: type) -> bool:
    """Whether values of ``cls`` are containers."""
    return _entry(cls) is not None or optree.is_namedtuple_class(cls)


def is_namedtuple_type(cls: type) -> bool:
    """Whether ``cls`` is a namedtuple that nobody registered with functions of its own."""
    found = _entry(cls)
    return found is not None and found.kind is optree.PyTreeKind.NAMEDTUPLE


def _entry(cls: type) -> Any:
    return optree.register_pytree_node.get(cls, namespace=NAMESPACE)  # type: ignore[attr-defined]


def register_node(
    cls: type,
    flatten_function: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_function: Callable[[Any, Any], Any],
) -> None:
    """Make ``cls`` a pytree node: ``flatten -> (children, aux)``, ``unflatten(aux, children)``."""
    if is_node_type(cls) and not is_namedtuple_type(cls):
        raise ValueError(
            f"[tree] a class must be registered once; got {cls.__name__} again. "
            "Fix: drop one registration."
        )
    with warnings.catch_warnings():
        # optree warns of namedtuples, which may have functions of their own.
        warnings.simplefilter("ignore", UserWarning)
        optree.register_pytree_node(cls, flatten_function, unflatten_function, namespace=NAMESPACE)


def _is_none(item: Any) -> bool:
    return item is None


def paths(tree: Any) -> list[str]:
    """A readable path such as ``['w'][0]`` for each leaf of ``tree``."""
    accessors = optree.tree_accessors(tree, namespace=NAMESPACE)
    return [accessor.codify("") for accessor in accessors]


def broadcast_prefix(prefix: Any, tree: Any, what: str) -> list[Any]:
    """One item of ``prefix`` for each leaf of ``tree``; None in ``prefix`` is an item.

    Raises:
        ValueError: ``prefix`` is not a tree prefix of ``tree``.
    """
    items: list[Any] = []

    def spread(item: Any, subtree: Any) -> None:
        items.extend([item] * len(leaves(subtree)))

    try:
        optree.tree_map_(spread, prefix, tree, is_leaf=_is_none, namespace=NAMESPACE)
    except (ValueError, TypeError, KeyError):
        where = _mismatch(structure(prefix, is_leaf=_is_none), structure(tree))
        raise ValueError(
            f"[{what}] the value must be a tree prefix of the argument; got {prefix!r} for "
            f"{structure(tree)}{where}. Fix: give one value, or a tree with the same containers."
        ) from None
    return items


def _mismatch(prefix: TreeDef, full: TreeDef, path: str = "") -> str:
    """Where a prefix and a full structure first differ, in words."""
    if prefix.is_leaf():
        return ""
    place = f"at {path}" if path else "at the top"
    if prefix.type is not full.type:
        kind = "a leaf" if full.type is None else f"a {full.type.__name__}"
        return f": {place} a {getattr(prefix.type, '__name__', 'leaf')} for {kind}"
    if list(prefix.entries()) != list(full.entries()):
        return f": {place} the entries {prefix.entries()} for {full.entries()}"
    for entry, own, other in zip(prefix.entries(), prefix.children(), full.children(), strict=True):
        found = _mismatch(own, other, f"{path}[{entry!r}]")
        if found:
            return found
    return ""
