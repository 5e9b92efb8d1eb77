"""Key paths: the position of a leaf in a pytree.

Tests: tests/test_tree_util.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

import optree

from gpuflow.base.arguments import as_items, as_truth
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.base.records import record
from gpuflow.base.tree import NAMESPACE, TreeDef


@record
class SequenceKey:
    """Key path entry: an index in a list, tuple or deque."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@record
class DictKey:
    """Key path entry: a key of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@record
class GetAttrKey:
    """Key path entry: the name of an attribute of a named tuple or dataclass."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@record
class FlattenedIndexKey:
    """Key path entry: the index of a child of a node without names."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = Any
KeyPath = tuple[KeyEntry, ...]

_with_keys: dict[type, Callable[[Any], tuple[Iterable[tuple[KeyEntry, Any]], Any]]] = {}


def register_keys(
    cls: type, flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[KeyEntry, Any]], Any]]
) -> None:
    """Register the names of children of ``cls``: ``node -> ((key, child) pairs, aux)``."""
    _with_keys[cls] = flatten_with_keys


def one_level(tree: Any) -> tuple[list[tuple[KeyEntry, Any]], Any]:
    """Return the children of a node, each with its key, and its auxiliary data.

    Raises:
        ValueError: if ``tree`` is a leaf.
    """
    if tree is None:
        return [], None
    flatten = _with_keys.get(type(tree))
    if flatten is not None:
        pairs, aux = flatten(tree)
        return list(pairs), aux
    try:
        children, aux, entries, _ = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)
    except ValueError:
        raise ValueError(
            f"[flatten_one_level] the value must be a node; got a leaf of type "
            f"{type(tree).__name__}. Fix: check with all_leaves([x]), or register the type."
        ) from None
    keys: list[KeyEntry]
    if isinstance(tree, dict):
        keys, aux = [DictKey(entry) for entry in entries], tuple(entries)
    elif hasattr(tree, "_fields"):
        keys, aux = [GetAttrKey(name) for name in tree._fields], type(tree)
    elif isinstance(tree, (list, tuple, deque)):
        keys, aux = [SequenceKey(k) for k in range(len(children))], None
    else:
        keys = [FlattenedIndexKey(k) for k in range(len(children))]
    return list(zip(keys, children, strict=True)), aux


def leaves_with_path(
    tree: Any, is_leaf: Callable[..., Any] | None = None, takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The leaves as pairs (path, leaf), in order; ``is_leaf`` gets the node, or path and node."""
    leaves: list[tuple[KeyPath, Any]] = []

    def stops(item: Any, path: KeyPath) -> bool:
        if is_leaf is None:
            return False
        return bool(is_leaf(path, item) if takes_path else is_leaf(item))

    waiting: list[tuple[Any, KeyPath]] = [(tree, ())]  # the next one is the last
    while waiting:
        item, path = waiting.pop()
        if stops(item, path) or is_leaf_type(item):
            leaves.append((path, item))
        else:
            waiting += [(child, (*path, key)) for key, child in reversed(one_level(item)[0])]
    return leaves


def is_leaf_type(item: Any) -> bool:
    """Whether ``item`` is not a node."""
    return item is not None and optree.tree_is_leaf(item, namespace=NAMESPACE)


def keystr(keys: Iterable[KeyEntry], *, simple: bool = False, separator: str = "") -> str:
    """Format a key path as a string.

    Args:
        keys: a key path.
        simple: whether to use only the names, as in ``a0x`` instead of ``['a'][0].x``.
        separator: the separator of keys, as in ``a/0/x``.

    Returns:
        A string.

    Example:
        >>> (path, _), = gf.tree.leaves_with_path({"a": [5]})
        >>> gf.tree_util.keystr(path), gf.tree_util.keystr(path, simple=True, separator="/")
        ("['a'][0]", 'a/0')
    """
    check(
        isinstance(separator, str),
        lambda: f"[keystr] separator must be a string; got {brief(separator)}. Fix: separator='/'.",
    )
    keys = as_items("keystr", "keys", keys)
    if not as_truth("keystr", "simple", simple):
        return separator.join(str(key) for key in keys)
    return separator.join(_simple(key) for key in keys)


def _simple(key: KeyEntry) -> str:
    for name in ("idx", "key", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


_FEW = 8


def _listed(names: list[str], without: Container[str]) -> str:
    """The first names, without some."""
    left = [name for name in names if name not in without]
    rest = f", and {len(left) - _FEW} more" if len(left) > _FEW else ""
    return f"{', '.join(left[:_FEW])}{rest}" if left else "none"


def difference(expected: Any, got: Any) -> str:
    """Describe where two trees first differ in structure; empty if they do not."""
    return _difference(expected, got, ())


def _difference(a: Any, b: Any, path: KeyPath) -> str:
    location = f"at {keystr(path)}" if path else "at the top"
    leaf_a, leaf_b = is_leaf_type(a), is_leaf_type(b)
    if leaf_a and leaf_b:
        return ""
    kinds = [
        "a leaf" if flag else f"a {type(item).__name__}"
        for item, flag in ((a, leaf_a), (b, leaf_b))
    ]
    if leaf_a or leaf_b or type(a) is not type(b):
        return f"{location} {kinds[0]} and {kinds[1]}"
    (pairs_a, aux_a), (pairs_b, aux_b) = one_level(a), one_level(b)
    keys_a, keys_b = [key for key, _ in pairs_a], [key for key, _ in pairs_b]
    if keys_a != keys_b:
        both = {*map(_simple, keys_a)} & {*map(_simple, keys_b)} if len(keys_a) > _FEW else ()
        names = [_listed([_simple(key) for key in keys], both) for keys in (keys_a, keys_b)]
        more = f" beside {len(both)} that both have" if both else ""
        return f"{location} {kinds[0]} with keys {names[0]} and with keys {names[1]}{more}"
    if aux_a != aux_b:
        return f"{location} {kinds[0]} with {aux_a!r} and with {aux_b!r}"
    for (key, left), (_, right) in zip(pairs_a, pairs_b, strict=True):
        deeper = _difference(left, right, (*path, key))
        if deeper:
            return deeper
    return ""


def skeleton(treedef: TreeDef) -> Any:
    """A tree of structure ``treedef`` whose leaves are 0."""
    return optree.tree_unflatten(treedef, [0] * treedef.num_leaves)
