"""Pytrees: nested containers of arrays, under the names of jax.tree_util."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from gpuflow.base import tree as base_tree
from gpuflow.base import tree_keys
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.base.records import record
from gpuflow.base.tree_keys import DictKey as DictKey
from gpuflow.base.tree_keys import FlattenedIndexKey as FlattenedIndexKey
from gpuflow.base.tree_keys import GetAttrKey as GetAttrKey
from gpuflow.base.tree_keys import KeyEntry as KeyEntry
from gpuflow.base.tree_keys import KeyPath as KeyPath
from gpuflow.base.tree_keys import SequenceKey as SequenceKey
from gpuflow.base.tree_keys import keystr as keystr

_MOST_CHARACTERS = 300  # of a structure in a message
PyTreeDef = base_tree.TreeDef
IsLeaf = Callable[[Any], bool] | None
_Node = TypeVar("_Node")



def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of ``tree`` and its structure.

    Raises:
        ValueError: a dict whose keys cannot be sorted.
    """
    leaves, treedef = base_tree.flatten(tree, is_leaf)
    return leaves, base_tree.check_keys(treedef)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of ``tree``; ValueError for dicts whose keys cannot be sorted."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of ``tree``; ValueError for dicts whose keys cannot be sorted."""
    return base_tree.check_keys(base_tree.structure(tree, is_leaf))


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether no item is a container."""
    items = list(iterable)
    if is_leaf is None:
        return base_tree.all_leaves(items)
    return all(is_leaf(item) or base_tree.all_leaves([item]) for item in items)


@overload
def tree_map(f: Callable[[Any], Any], tree: Any, *, is_leaf: IsLeaf = None) -> Any: ...
@overload
def tree_map(
    f: Callable[[Any, Any], Any], tree: Any, other: Any, /, *, is_leaf: IsLeaf = None
) -> Any: ...
@overload
def tree_map(
    f: Callable[..., Any], tree: Any, first: Any, second: Any, /, *rest: Any,
    is_leaf: IsLeaf = None,
) -> Any: ...  # fmt: skip
def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply ``f`` to the leaves of trees of one structure.

    Args:
        f: a function of one leaf of each tree.
        tree: the tree that gives the structure.
        rest: trees that have at least that structure.
        is_leaf: what else counts as a leaf.

    Raises:
        ValueError: the trees differ in structure; the message says where.
    """
    try:
        return base_tree.tree_map(f, tree, *rest, is_leaf=is_leaf)
    except ValueError:
        _explain_mismatch("tree_map", tree, rest, base_tree.structure(tree, is_leaf))
        raise  # it came from f


def _short(treedef: PyTreeDef) -> str:
    """The beginning of a structure's text."""
    text = str(treedef)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _explain_mismatch(op: str, tree: Any, rest: tuple[Any, ...], treedef: PyTreeDef) -> None:
    """Raise ValueError if ``tree``, of structure ``treedef``, is no prefix of each other one."""
    for number, other in enumerate(rest, 1):
        try:
            treedef.flatten_up_to(other)
        except ValueError as error:
            where = tree_keys.difference(tree, other) or str(error)
            raise ValueError(
                f"[{op}] trees must have one structure; got {_short(treedef)} and, as tree "
                f"{number}, {_short(base_tree.structure(other))}: {where}. "
                "Fix: make them of the same containers."
            ) from None


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


def tree_transpose(
    outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any
) -> Any:
    """Turn a tree of trees inside out: outer of inner becomes inner of outer.

    Raises:
        TypeError: the tree is not ``outer_treedef`` filled with ``inner_treedef``.
    """
    if inner_treedef is None:
        parts = outer_treedef.flatten_up_to(pytree_to_transpose)
        inner_treedef = base_tree.structure(parts[0]) if parts else base_tree.structure(None)
    leaves, treedef = base_tree.flatten(pytree_to_transpose)
    count, size = outer_treedef.num_leaves, inner_treedef.num_leaves
    check(
        len(leaves) == count * size
        and treedef == base_tree.structure(_filled(outer_treedef, inner_treedef)),
        lambda: (
            f"[tree_transpose] the tree must be {outer_treedef} of {inner_treedef}; got {treedef}. "
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


def tree_reduce_associative(
    operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:  # fmt: skip
    """Combine leaves by an associative operation, pair by pair: a balanced tree of calls.

    Raises:
        TypeError: there are no leaves and no ``identity``.
    """
    values = base_tree.leaves(tree, is_leaf)
    if not values:
        check(
            identity is not _NOTHING,
            lambda: (
                "[tree_reduce_associative] a tree without leaves needs an identity; got none. "
                "Fix: identity=0, for a sum."
            ),
        )
        return identity
    while len(values) > 1:
        pairs = [operation(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[2 * len(pairs) :]]
    return values[0]


def tree_broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """``full_tree`` with each leaf replaced by the leaf of ``prefix_tree`` that stands above it.

    Raises:
        ValueError: ``prefix_tree`` is not a tree prefix.
    """

    def spread(item: Any, subtree: Any) -> Any:
        return base_tree.tree_map(lambda _: item, subtree)

    return tree_map(spread, prefix_tree, full_tree, is_leaf=is_leaf)


# --- structures ----------------------------------------------------------------------------


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of a node's children."""
    return base_tree.children(treedef)


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure has one node or none inside: a leaf, None, or an empty container."""
    return treedef.num_nodes == 1


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees."""
    return base_tree.structure(tuple(tree_keys.skeleton(treedef) for treedef in treedefs))


def is_tree_node(typ: type) -> bool:
    """Whether values of a type are nodes."""
    return typ is type(None) or base_tree.is_node_type(typ)


def flatten_one_level(tree: Any) -> tuple[list[Any], Any]:
    """The children of a node, and what else it is made of.

    Raises:
        ValueError: ``tree`` is a leaf.
    """
    pairs, aux = tree_keys.one_level(tree)
    return [child for _, child in pairs], aux


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a node as pairs (key, child), and what else it is made of.

    Raises:
        ValueError: ``tree`` is a leaf.
    """
    return tree_keys.one_level(tree)


class _Registry:
    """The one registry of node types, with the methods that libraries call."""

    def flatten_one_level(self, tree: Any) -> tuple[list[Any], Any] | None:
        """As ``flatten_one_level``; None for a leaf."""
        return None if tree_keys.is_leaf_type(tree) else flatten_one_level(tree)

    def flatten(self, tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
        """As ``tree_flatten``."""
        return base_tree.flatten(tree, is_leaf)


default_registry = _Registry()

# --- registration --------------------------------------------------------------------------

WithKeys = Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]]


def register_pytree_node(
    nodetype: type[_Node],
    flatten_func: Callable[[_Node], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], _Node],
    flatten_with_keys_func: WithKeys | None = None,
) -> None:
    """Make a class a pytree node.

    Args:
        nodetype: the class.
        flatten_func: ``node -> (children, aux)``; ``aux`` is hashable and comparable.
        unflatten_func: ``(aux, children) -> node``.
        flatten_with_keys_func: ``node -> (pairs (key, child), aux)``, for key paths.

    Raises:
        ValueError: the class is registered already.
    """
    base_tree.register_node(nodetype, flatten_func, unflatten_func)
    if flatten_with_keys_func is not None:
        tree_keys.register_keys(nodetype, flatten_with_keys_func)


def register_pytree_with_keys(
    nodetype: type[_Node],
    flatten_with_keys: WithKeys,
    unflatten_func: Callable[[Any, Any], _Node],
    flatten_func: Callable[[_Node], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """Make a class a pytree node whose children have names.

    Args:
        nodetype: the class.
        flatten_with_keys: ``node -> (pairs (key, child), aux)``.
        unflatten_func: ``(aux, children) -> node``.
        flatten_func: ``node -> (children, aux)``, where that is faster.

    Raises:
        ValueError: the class is registered already.
    """

    def flatten(node: _Node) -> tuple[list[Any], Any]:
        pairs, aux = flatten_with_keys(node)
        return [child for _, child in pairs], aux

    register_pytree_node(nodetype, flatten_func or flatten, unflatten_func, flatten_with_keys)


def register_pytree_node_class(cls: type[_Node]) -> type[_Node]:
    """Make a class with ``tree_flatten`` and the class method ``tree_unflatten`` a node."""
    nodes: Any = cls
    register_pytree_node(nodes, lambda node: node.tree_flatten(), nodes.tree_unflatten)
    return cls


def register_pytree_with_keys_class(cls: type[_Node]) -> type[_Node]:
    """Make a class with ``tree_flatten_with_keys`` and ``tree_unflatten`` a node."""
    nodes: Any = cls
    plain = (lambda node: node.tree_flatten()) if hasattr(cls, "tree_flatten") else None
    register_pytree_with_keys(
        nodes, lambda node: node.tree_flatten_with_keys(), nodes.tree_unflatten, plain
    )
    return cls


def register_static(cls: type[_Node]) -> type[_Node]:
    """Make values of a class part of the structure: nodes without children."""
    register_pytree_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


def static(**arguments: Any) -> Any:
    """A field of a dataclass that is part of the structure; arguments of ``dataclasses.field``."""
    metadata = {**(arguments.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **arguments)


def register_dataclass(
    nodetype: type[_Node],
    data_fields: Iterable[str] | None = None,
    meta_fields: Iterable[str] | None = None,
    drop_fields: Iterable[str] = (),
) -> type[_Node]:
    """Make a dataclass a pytree node.

    Args:
        nodetype: a dataclass.
        data_fields: fields that hold trees; by default those not marked as static in their
            metadata, ``dataclasses.field(metadata={"static": True})``.
        meta_fields: fields that are part of the structure.
        drop_fields: fields that are neither; they get their defaults again.

    Raises:
        TypeError: only one of data and meta fields is given, or the class is no dataclass.
        ValueError: the fields given are not those of the dataclass.
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
        dropped = set(drop_fields)
        data_fields = [name for name in data_fields if name not in dropped]
        meta_fields = [name for name in meta_fields if name not in dropped]
    data, meta = tuple(data_fields), tuple(meta_fields)
    check(
        not {*data} & {*meta},
        lambda: (
            f"[register_dataclass] a field of {nodetype.__name__} is data or meta; got "
            f"{sorted({*data} & {*meta})} as both. Fix: name each field once."
        ),
        ValueError,
    )
    init_fields = {name for name, field in fields.items() if field.init}
    named_fields = {*data, *meta, *drop_fields}
    check(
        not fields or init_fields == named_fields,
        lambda: (
            f"[register_dataclass] the fields given must be those of {nodetype.__name__}; got "
            f"{sorted(named_fields)} for {sorted(init_fields)}. Fix: name each field once."
        ),
        ValueError,
    )

    def flatten(node: _Node) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, n) for n in data), tuple(getattr(node, n) for n in meta)

    def unflatten(aux: Any, children: Any) -> _Node:
        return nodetype(**dict(zip(data, children)), **dict(zip(meta, aux)))

    def flatten_with_keys(node: _Node) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, aux = flatten(node)
        return [(GetAttrKey(name), x) for name, x in zip(data, children, strict=True)], aux

    register_pytree_node(nodetype, flatten, unflatten, flatten_with_keys)
    return nodetype


class Partial(functools.partial[Any]):
    """``functools.partial`` as a pytree: its arguments are children, its function structure.

    Another Partial is a function as any other: its arguments are not children of this one.
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Partial:
        # functools.partial would take a partial function apart.
        return super().__new__(cls, _opaque(func), *args, **keywords)


@record
class _Opaque:
    """A partial function whose arguments stay with it."""

    function: functools.partial

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)


def _opaque(function: Any) -> Any:
    return _Opaque(function) if isinstance(function, functools.partial) else function


def _flatten_partial(node: Partial) -> tuple[tuple[Any, Any], Any]:
    return (node.args, node.keywords), node.func


def _unflatten_partial(func: Any, children: Any) -> Partial:
    args, keywords = children
    return Partial(func, *args, **keywords)


register_pytree_node(Partial, _flatten_partial, _unflatten_partial)


# --- paths ---------------------------------------------------------------------------------


def tree_flatten_with_path(
    tree: Any, is_leaf: Callable[..., Any] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """The leaves as pairs (path, leaf), and the structure; a path is a tuple of keys.

    Args:
        tree: a tree.
        is_leaf: whether a node is a leaf.
        is_leaf_takes_path: ``is_leaf`` is called with the path and the node, not the node alone.
    """
    if is_leaf is None or not is_leaf_takes_path:
        return tree_keys.leaves_with_path(tree, is_leaf), base_tree.structure(tree, is_leaf)
    # Both walks ask about the same nodes in the same order, so the second repeats the answers.
    answers: list[bool] = []

    def asked(path: KeyPath, node: Any) -> bool:
        answers.append(bool(is_leaf(path, node)))
        return answers[-1]

    pairs = tree_keys.leaves_with_path(tree, asked, takes_path=True)
    repeated = iter(answers)
    return pairs, base_tree.structure(tree, lambda node: next(repeated))


def tree_leaves_with_path(
    tree: Any, is_leaf: Callable[..., Any] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The leaves as pairs (path, leaf), in order; arguments as of ``tree_flatten_with_path``."""
    return tree_keys.leaves_with_path(tree, is_leaf, is_leaf_takes_path)


def tree_map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., Any] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """``tree_map`` of a function that gets the path first.

    Raises:
        ValueError: the trees differ in structure; the message says where.
    """
    pairs, treedef = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    _explain_mismatch("tree_map_with_path", tree, rest, treedef)
    others = [treedef.flatten_up_to(other) for other in rest]
    new_leaves = [f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *others, strict=True)]
    return base_tree.unflatten(treedef, new_leaves)


_FROM_BASE = (
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "PyTreeDef", "SequenceKey",
    "keystr",
)  # fmt: skip
publish(globals(), "tree_util", [*public_names(globals(), __name__), *_FROM_BASE])
