"""Pytrees: nested containers of arrays, under the names of jax.tree_util.

Tests: tests/test_tree_util.py, tests/base/test_treedefs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from gpuflow.base import tree as base_tree
from gpuflow.base import tree_keys
from gpuflow.base.arguments import as_truth
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.base.tree_keys import DictKey as DictKey
from gpuflow.base.tree_keys import FlattenedIndexKey as FlattenedIndexKey
from gpuflow.base.tree_keys import GetAttrKey as GetAttrKey
from gpuflow.base.tree_keys import KeyEntry as KeyEntry
from gpuflow.base.tree_keys import KeyPath as KeyPath
from gpuflow.base.tree_keys import SequenceKey as SequenceKey
from gpuflow.base.tree_keys import keystr as keystr
from gpuflow.core.argument_kinds import explained
from gpuflow.tree_nodes import Partial as Partial
from gpuflow.tree_nodes import register_dataclass as register_dataclass
from gpuflow.tree_nodes import register_pytree_node as register_pytree_node
from gpuflow.tree_nodes import register_pytree_node_class as register_pytree_node_class
from gpuflow.tree_nodes import register_pytree_with_keys as register_pytree_with_keys
from gpuflow.tree_nodes import register_pytree_with_keys_class as register_pytree_with_keys_class
from gpuflow.tree_nodes import register_static as register_static
from gpuflow.tree_nodes import static as static

_MAX_CHARACTERS = 300  # of a structure in a message
PyTreeDef = base_tree.TreeDef
IsLeaf = Callable[[Any], bool] | None
_Node = TypeVar("_Node")


@explained
def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """Return the leaves and the structure of ``tree``.

    Args:
        tree: a pytree.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        A list of leaves, and a PyTreeDef.

    Raises:
        ValueError: if the keys of a dict cannot be sorted.

    Example:
        >>> gf.tree.flatten({"b": 1, "a": (2, 3)})
        ([2, 3, 1], PyTreeDef({'a': (*, *), 'b': *}))
    """
    leaves, treedef = base_tree.flatten(tree, is_leaf)
    return leaves, base_tree.check_keys(treedef)


@explained
def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves of ``tree`` in order; dicts are sorted by key.

    Args:
        tree: a pytree.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        A list.

    Raises:
        ValueError: if the keys of a dict cannot be sorted.

    Example:
        >>> gf.tree.leaves({"b": 1, "a": (2, None, 3)})
        [2, 3, 1]
    """
    return tree_flatten(tree, is_leaf)[0]


@explained
def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """Return the structure of ``tree``.

    Args:
        tree: a pytree.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        A PyTreeDef.

    Raises:
        ValueError: if the keys of a dict cannot be sorted.

    Example:
        >>> gf.tree.structure({"b": 1, "a": (2, 3)})
        PyTreeDef({'a': (*, *), 'b': *})
    """
    return base_tree.check_keys(base_tree.structure(tree, is_leaf))


@explained
def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Return whether all items are leaves.

    Args:
        iterable: items to check.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        bool.

    Example:
        >>> gf.tree_util.all_leaves([1, 2]), gf.tree_util.all_leaves([1, [2]])
        (True, False)
    """
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
@explained
def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply ``f`` to corresponding leaves of pytrees with the same structure.

    Args:
        f: a function of one leaf of each tree.
        tree: the pytree that determines the structure.
        rest: pytrees with at least that structure.
        is_leaf: a predicate of a node of ``tree``: whether it counts as a leaf.

    Returns:
        A pytree with the structure of ``tree``.

    Raises:
        ValueError: if the trees differ in structure; the message contains the path.

    Example:
        >>> gf.tree.map(lambda x, y: x + y, {"a": 1, "b": 2}, {"a": 10, "b": 20})
        {'a': 11, 'b': 22}
    """
    try:
        return base_tree.tree_map(f, tree, *rest, is_leaf=is_leaf)
    except ValueError:
        _explain_mismatch("tree_map", tree, rest, base_tree.structure(tree, is_leaf))
        raise  # it came from f


def _short(treedef: PyTreeDef) -> str:
    """The beginning of a structure's text."""
    text = base_tree.text(treedef)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def _explain_mismatch(op: str, tree: Any, rest: tuple[Any, ...], treedef: PyTreeDef) -> None:
    """Raise ValueError if ``tree``, of structure ``treedef``, is no prefix of one of ``rest``."""
    for position, other in enumerate(rest, 1):
        try:
            treedef.flatten_up_to(other)
        except ValueError as error:
            where = tree_keys.difference(tree, other) or str(error)
            raise ValueError(
                f"[{op}] trees must have one structure; got {_short(treedef)} and, as tree "
                f"{position}, {_short(base_tree.structure(other))}: {where}. "
                "Fix: make them of the same containers."
            ) from None


@explained
def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """Build a pytree from a structure and its leaves.

    Args:
        treedef: a PyTreeDef.
        leaves: an iterable of as many leaves as the structure has.

    Returns:
        The tree.

    Raises:
        ValueError: if the number of leaves does not match.

    Example:
        >>> leaves, treedef = gf.tree.flatten({"b": 1, "a": 2})
        >>> gf.tree.unflatten(treedef, [10, 20])
        {'a': 10, 'b': 20}
    """
    leaves = tuple(leaves)
    check(
        len(leaves) == treedef.num_leaves,
        lambda: (
            f"[tree_unflatten] there must be {treedef.num_leaves} leaves for {treedef}; got "
            f"{len(leaves)}. Fix: pass a leaf for each * of the structure."
        ),
        ValueError,
    )
    return base_tree.unflatten(treedef, leaves)


_NOTHING = object()


@explained
def tree_reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:
    """Reduce the leaves from left to right.

    Args:
        function: ``(accumulated, leaf) -> accumulated``.
        tree: a pytree.
        initializer: initial value; the first leaf by default.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        The accumulated value.

    Raises:
        TypeError: if there are no leaves and no ``initializer``.

    Example:
        >>> gf.tree.reduce(lambda a, b: a + b, {"a": 1, "b": (2, 3)})
        6
    """
    leaves = base_tree.leaves(tree, is_leaf)
    if initializer is _NOTHING:
        if not leaves:
            raise TypeError("[tree_reduce] there must be leaves; got none. Fix: initializer=0.")
        return functools.reduce(function, leaves)
    return functools.reduce(function, leaves, initializer)


@explained
def tree_all(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Return whether all leaves are true.

    Args:
        tree: a pytree.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        bool.

    Example:
        >>> gf.tree.all({"a": 1, "b": (True, 0)})
        False
    """
    return all(as_truth("tree_all", "each leaf", leaf) for leaf in base_tree.leaves(tree, is_leaf))


@explained
def tree_transpose(
    outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any
) -> Any:
    """Transpose a pytree of pytrees: swap the outer and the inner structure.

    Args:
        outer_treedef: the structure of the outer tree.
        inner_treedef: the structure of the inner trees; None uses that of the first one.
        pytree_to_transpose: the pytree.

    Returns:
        A pytree of structure ``inner_treedef`` of pytrees of structure ``outer_treedef``.

    Raises:
        TypeError: if the number of leaves differs. Containers of other types are accepted.

    Example:
        >>> outer, inner = gf.tree.structure([0, 0]), gf.tree.structure({"a": 0})
        >>> gf.tree.transpose(outer, inner, [{"a": 1}, {"a": 2}])
        {'a': [1, 2]}
    """
    if inner_treedef is None:
        inner_trees = outer_treedef.flatten_up_to(pytree_to_transpose)
        inner_treedef = base_tree.structure(inner_trees[0] if inner_trees else None)
    leaves, treedef = base_tree.flatten(pytree_to_transpose)
    count, size = outer_treedef.num_leaves, inner_treedef.num_leaves
    check(
        len(leaves) == count * size,
        lambda: (
            f"[tree_transpose] the tree must be {base_tree.text(outer_treedef)} of "
            f"{base_tree.text(inner_treedef)}; got {base_tree.text(treedef)}. "
            "Fix: pass the structures of the outer and the inner tree."
        ),
    )
    rows = [leaves[k * size : (k + 1) * size] for k in range(count)]
    columns = [outer_treedef.unflatten([row[k] for row in rows]) for k in range(size)]
    return inner_treedef.unflatten(columns)


@explained
def tree_reduce_associative(
    operation: Callable[[Any, Any], Any],
    tree: Any,
    *,
    identity: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:
    """Reduce the leaves with an associative operation, as a balanced tree of calls.

    Args:
        operation: ``(a, b) -> c``.
        tree: a pytree.
        identity: the result for a tree without leaves.
        is_leaf: a predicate: whether a node counts as a leaf.

    Returns:
        The reduced value.

    Raises:
        TypeError: if there are no leaves and no ``identity``.

    Example:
        >>> gf.tree.reduce_associative(lambda a, b: f"({a}{b})", list("abcd"))
        '((ab)(cd))'
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


@explained
def tree_broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Broadcast the leaves of ``prefix_tree`` to the structure of ``full_tree``.

    Args:
        prefix_tree: a tree prefix of ``full_tree``.
        full_tree: a pytree.
        is_leaf: a predicate of a node of ``prefix_tree``: whether it counts as a leaf.

    Returns:
        A pytree with the structure of ``full_tree``.

    Raises:
        ValueError: if ``prefix_tree`` is not a tree prefix.

    Example:
        >>> gf.tree.broadcast({"a": 1, "b": 2}, {"a": [0, 0], "b": 0})
        {'a': [1, 1], 'b': 2}
    """

    def broadcast(item: Any, subtree: Any) -> Any:
        return base_tree.tree_map(lambda _: item, subtree)

    return tree_map(broadcast, prefix_tree, full_tree, is_leaf=is_leaf)


# --- structures ----------------------------------------------------------------------------


@explained
def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """Return the structures of a node's children.

    Args:
        treedef: a PyTreeDef.

    Returns:
        A list of PyTreeDefs.

    Example:
        >>> gf.tree_util.treedef_children(gf.tree.structure((1, [2, 3])))
        [PyTreeDef(*), PyTreeDef([*, *])]
    """
    return list(map(base_tree.check_keys, base_tree.children(treedef)))


@explained
def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Return whether the structure is a single node: a leaf, None, or an empty container.

    Args:
        treedef: a PyTreeDef.

    Returns:
        bool.

    Example:
        >>> gf.tree_util.treedef_is_leaf(gf.tree.structure(1))
        True
    """
    return treedef.num_nodes == 1


@explained
def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """Return the structure of a tuple of trees.

    Args:
        treedefs: PyTreeDefs.

    Returns:
        A PyTreeDef.

    Example:
        >>> gf.tree_util.treedef_tuple([gf.tree.structure(1), gf.tree.structure([2])])
        PyTreeDef((*, [*]))
    """
    skeletons = tuple(tree_keys.skeleton(treedef) for treedef in treedefs)
    return base_tree.check_keys(base_tree.structure(skeletons))


@explained
def is_tree_node(typ: type) -> bool:
    """Return whether values of a type are nodes.

    Args:
        typ: a type.

    Returns:
        bool.

    Example:
        >>> gf.tree_util.is_tree_node(dict), gf.tree_util.is_tree_node(str)
        (True, False)
    """
    return typ is type(None) or base_tree.is_node_type(typ)


@explained
def flatten_one_level(tree: Any) -> tuple[list[Any], Any]:
    """Return the children of a node, and its other data.

    Args:
        tree: a node, such as a list.

    Returns:
        A list of children, and the data that the node's type needs to rebuild it.

    Raises:
        ValueError: if ``tree`` is a leaf.

    Example:
        >>> gf.tree_util.flatten_one_level({"a": 1, "b": [2]})
        ([1, [2]], ('a', 'b'))
    """
    pairs, aux = tree_keys.one_level(tree)
    return [child for _, child in pairs], aux


@explained
def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of a node as pairs (key, child), and its other data.

    Args:
        tree: a node, such as a list.

    Returns:
        A list of pairs, and the data that the node's type needs to rebuild it.

    Raises:
        ValueError: if ``tree`` is a leaf.

    Example:
        >>> gf.tree_util.flatten_one_level_with_keys([5, (6,)])[0]
        [(SequenceKey(idx=0), 5), (SequenceKey(idx=1), (6,))]
    """
    return tree_keys.one_level(tree)


class _Registry:
    """The registry of node types, with the methods that libraries call."""

    def flatten_one_level(self, tree: Any) -> tuple[list[Any], Any] | None:
        """As ``flatten_one_level``; None for a leaf."""
        return None if tree_keys.is_leaf_type(tree) else flatten_one_level(tree)

    def flatten(self, tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
        """As ``tree_flatten``."""
        return tree_flatten(tree, is_leaf)


default_registry = _Registry()

# --- paths ---------------------------------------------------------------------------------


@explained
def tree_flatten_with_path(
    tree: Any, is_leaf: Callable[..., Any] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Return the leaves as pairs (path, leaf), and the structure; a path is a tuple of keys.

    Args:
        tree: a pytree.
        is_leaf: a predicate: whether a node counts as a leaf.
        is_leaf_takes_path: whether ``is_leaf`` takes the path and the node, not the node alone.

    Returns:
        A list of pairs, and a PyTreeDef.

    Example:
        >>> pairs, treedef = gf.tree.flatten_with_path({"a": [1, 2]})
        >>> [(gf.tree_util.keystr(path), leaf) for path, leaf in pairs]
        [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    if is_leaf is None or not is_leaf_takes_path:
        return tree_keys.leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)
    # Both walks ask about the same nodes in the same order, so the second repeats the answers.
    answers: list[bool] = []

    def is_boundary(path: KeyPath, node: Any) -> bool:
        answers.append(bool(is_leaf(path, node)))
        return answers[-1]

    pairs = tree_keys.leaves_with_path(tree, is_boundary, takes_path=True)
    repeated = iter(answers)
    return pairs, tree_structure(tree, lambda node: next(repeated))


@explained
def tree_leaves_with_path(
    tree: Any, is_leaf: Callable[..., Any] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """Return the leaves as pairs (path, leaf), in order; a path is a tuple of keys.

    Args:
        tree: a pytree.
        is_leaf: a predicate: whether a node counts as a leaf.
        is_leaf_takes_path: whether ``is_leaf`` takes the path and the node, not the node alone.

    Returns:
        A list of pairs.

    Example:
        >>> gf.tree.leaves_with_path({"a": [5]})
        [((DictKey(key='a'), SequenceKey(idx=0)), 5)]
    """
    return tree_keys.leaves_with_path(tree, is_leaf, is_leaf_takes_path)


@explained
def tree_map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., Any] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """Apply a function of key path and leaves to pytrees with the same structure.

    Args:
        f: a function of a path and of one leaf of each tree.
        tree: the pytree that determines the structure.
        rest: pytrees with at least that structure.
        is_leaf: a predicate of a node of ``tree``: whether it counts as a leaf.
        is_leaf_takes_path: whether ``is_leaf`` takes the path and the node, not the node alone.

    Returns:
        A pytree with the structure of ``tree``.

    Raises:
        ValueError: if the trees differ in structure; the message contains the path.

    Example:
        >>> gf.tree.map_with_path(lambda path, x: f"{gf.tree_util.keystr(path)}={x}", {"a": [1, 2]})
        {'a': ["['a'][0]=1", "['a'][1]=2"]}
    """
    pairs, treedef = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    _explain_mismatch("tree_map_with_path", tree, rest, treedef)
    others = [treedef.flatten_up_to(other) for other in rest]
    new_leaves = [f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *others, strict=True)]
    return base_tree.unflatten(treedef, new_leaves)


_FROM_BELOW = (
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "Partial", "PyTreeDef",
    "SequenceKey", "keystr", "register_dataclass", "register_pytree_node",
    "register_pytree_node_class", "register_pytree_with_keys", "register_pytree_with_keys_class",
    "register_static", "static",
)  # fmt: skip
publish(globals(), "tree_util", [*public_names(globals(), __name__), *_FROM_BELOW])
