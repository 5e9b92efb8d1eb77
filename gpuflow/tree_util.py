"""Pytrees: nested containers of arrays, under the names of jax.tree_util."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import optree

from gpuflow.base import tree as base_tree
from gpuflow.base.errors import check
from gpuflow.base.names import missing_name, public_names

PyTreeDef = base_tree.TreeDef
IsLeaf = Callable[[Any], bool] | None
_Node = TypeVar("_Node")

tree_flatten = base_tree.flatten
tree_leaves = base_tree.leaves
tree_structure = base_tree.structure
all_leaves = base_tree.all_leaves


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply ``f`` to the leaves of trees of one structure.

    Args:
        f: a function of one leaf of each tree.
        tree: the tree that gives the structure.
        rest: trees that have at least that structure.
        is_leaf: what else counts as a leaf.
    """
    return base_tree.tree_map(f, tree, *rest, is_leaf=is_leaf)


def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of structure ``treedef`` with ``leaves``."""
    return base_tree.unflatten(treedef, leaves)


_NOTHING = object()


def tree_reduce(
    function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:  # fmt: skip
    """Combine leaves from left to right."""
    leaves = base_tree.leaves(tree, is_leaf)
    if initializer is _NOTHING:
        return functools.reduce(function, leaves)
    return functools.reduce(function, leaves, initializer)


def tree_all(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether all leaves are true."""
    return all(base_tree.leaves(tree, is_leaf))


def tree_transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, tree: Any) -> Any:
    """Turn a tree of trees inside out: outer of inner becomes inner of outer.

    Raises:
        TypeError: the tree is not ``outer_treedef`` filled with ``inner_treedef``.
    """
    if inner_treedef is None:
        parts = outer_treedef.flatten_up_to(tree)
        inner_treedef = base_tree.structure(parts[0]) if parts else base_tree.structure(None)
    leaves, found = base_tree.flatten(tree)
    count, size = outer_treedef.num_leaves, inner_treedef.num_leaves
    check(
        len(leaves) == count * size
        and found == base_tree.structure(_filled(outer_treedef, inner_treedef)),
        lambda: (
            f"[tree_transpose] the tree must be {outer_treedef} of {inner_treedef}; got {found}. "
            "Fix: pass the structures of the outer and the inner tree."
        ),
    )
    rows = [leaves[k * size : (k + 1) * size] for k in range(count)]
    columns = [outer_treedef.unflatten([row[k] for row in rows]) for k in range(size)]
    return inner_treedef.unflatten(columns)


def _filled(outer: PyTreeDef, inner: PyTreeDef) -> Any:
    """A tree of structure ``outer`` whose leaves are trees of structure ``inner``."""
    one = inner.unflatten([0] * inner.num_leaves)
    return outer.unflatten([one] * outer.num_leaves)


def register_pytree_node(
    nodetype: type[_Node],
    flatten_func: Callable[[_Node], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], _Node],
) -> None:
    """Make a class a pytree node.

    Args:
        nodetype: the class.
        flatten_func: ``node -> (children, aux)``; ``aux`` is hashable and comparable.
        unflatten_func: ``(aux, children) -> node``.

    Raises:
        ValueError: the class is registered already.
    """
    base_tree.register_node(nodetype, flatten_func, unflatten_func)


def register_pytree_node_class(cls: Any) -> Any:
    """Make a class with ``tree_flatten`` and the class method ``tree_unflatten`` a node."""
    register_pytree_node(cls, lambda node: node.tree_flatten(), cls.tree_unflatten)
    return cls


def register_static(cls: type[_Node]) -> type[_Node]:
    """Make values of a class part of the structure: nodes without children."""
    register_pytree_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


def register_dataclass(
    nodetype: type[_Node],
    data_fields: Iterable[str] | None = None,
    meta_fields: Iterable[str] | None = None,
) -> type[_Node]:
    """Make a dataclass a pytree node.

    Args:
        nodetype: a dataclass.
        data_fields: fields that hold trees; by default those not marked as static in their
            metadata, ``dataclasses.field(metadata={"static": True})``.
        meta_fields: fields that are part of the structure.
    """
    fields = getattr(nodetype, "__dataclass_fields__", {})
    if data_fields is None or meta_fields is None:
        check(
            bool(fields) and data_fields is None and meta_fields is None,
            lambda: (
                "[register_dataclass] give data_fields and meta_fields, or neither for a "
                f"dataclass; got {nodetype.__name__}. Fix: @dataclass it first."
            ),
        )
        static = [name for name, field in fields.items() if field.metadata.get("static")]
        data_fields = [name for name, field in fields.items() if field.init and name not in static]
        meta_fields = static
    data, meta = tuple(data_fields), tuple(meta_fields)

    def flatten(node: _Node) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, n) for n in data), tuple(getattr(node, n) for n in meta)

    def unflatten(aux: Any, children: Any) -> _Node:
        return nodetype(**dict(zip(data, children)), **dict(zip(meta, aux)))

    register_pytree_node(nodetype, flatten, unflatten)
    return nodetype


class Partial(functools.partial):
    """``functools.partial`` as a pytree: its arguments are children, its function structure."""


def _flatten_partial(node: Partial) -> tuple[tuple[Any, Any], Any]:
    return (node.args, node.keywords), node.func


def _unflatten_partial(func: Any, children: Any) -> Partial:
    args, keywords = children
    return Partial(func, *args, **keywords)


register_pytree_node(Partial, _flatten_partial, _unflatten_partial)


# --- paths ---------------------------------------------------------------------------------


def tree_flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves as pairs (path, leaf), and the structure; a path is a tuple of keys."""
    paths, leaves, treedef = optree.tree_flatten_with_path(
        tree, is_leaf=is_leaf, namespace=base_tree.NAMESPACE
    )
    return list(zip(paths, leaves, strict=True)), treedef


def tree_leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves as pairs (path, leaf)."""
    return tree_flatten_with_path(tree, is_leaf)[0]


def tree_map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None
) -> Any:
    """``tree_map`` of a function that gets the path first."""
    pairs, treedef = tree_flatten_with_path(tree, is_leaf)
    others = [treedef.flatten_up_to(other) for other in rest]
    made = [f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *others, strict=True)]
    return base_tree.unflatten(treedef, made)


def keystr(keys: Iterable[Any]) -> str:
    """A path as text, such as ``['w'][0]``."""
    return "".join(f"[{key!r}]" for key in keys)


__getattr__ = missing_name(
    __name__,
    "tree_util",
    [*public_names(globals(), __name__), "tree_flatten", "tree_leaves", "tree_structure"],
)
