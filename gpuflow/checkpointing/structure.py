"""The containers of a pytree as JSON, and back.

A node is ``{"node": kind, "keys": [...], "children": [...]}``, a leaf ``{"leaf": number}``. Kinds
are the containers that can be made from that alone; of any other class there is the name, and its
values come from a tree of the same structure.

Tests: tests/checkpointing/test_forgeries.py, tests/checkpointing/test_round_trips.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.errors import check
from gpuflow.base.tree_keys import DictKey, is_leaf_type, one_level

_KINDS: dict[type, str] = {
    type(None): "None",
    dict: "dict",
    OrderedDict: "OrderedDict",
    list: "list",
    tuple: "tuple",
    deque: "deque",
}
_MAKERS: dict[str, Callable[[Any, list[Any], list[Any]], Any]] = {
    "None": lambda node, keys, children: None,
    "dict": lambda node, keys, children: dict(zip(keys, children, strict=True)),
    "OrderedDict": lambda node, keys, children: OrderedDict(zip(keys, children, strict=True)),
    "list": lambda node, keys, children: children,
    "tuple": lambda node, keys, children: tuple(children),
    "deque": lambda node, keys, children: deque(children, node["maxlen"]),
}
KINDS = frozenset(_KINDS.values())
PLAIN_KEYS = (str, int, float, bool, type(None))
# Levels of containers, far below the recursion limit.
DEEPEST = 100


def described(tree: Any, op: str = "save") -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """A tree as JSON, and its leaves with their paths, in order.

    Args:
        tree: the tree to describe.
        op: the function to name in errors.

    Returns:
        the description, and pairs of a path such as ``['w'][0]`` and a leaf.

    Raises:
        ValueError: if containers are nested too deeply, as in a cycle.
    """
    leaves: list[tuple[str, Any]] = []

    def visit(item: Any, path: str, depth: int) -> dict[str, Any]:
        if is_leaf_type(item):
            leaves.append((path, item))
            return {"leaf": len(leaves) - 1}
        check(
            depth < DEEPEST,
            lambda: (
                f"[{op}] containers must be nested at most {DEEPEST} levels deep; got a deeper "
                f"tree, or one that contains itself, at {path[:60]}... Fix: a list of the leaves "
                "instead of a chain of containers."
            ),
            ValueError,
        )
        pairs, _ = one_level(item)
        kind = _KINDS.get(type(item), type(item).__qualname__)
        node: dict[str, Any] = {"node": kind} if type(item) in _KINDS else {"class": kind}
        if isinstance(item, deque):
            node["maxlen"] = item.maxlen
        node["keys"] = [_encoded(key) for key, _ in pairs]
        node["children"] = [visit(child, f"{path}{key}", depth + 1) for key, child in pairs]
        return node

    return visit(tree, "", 0), leaves


def _encoded(key: Any) -> Any:
    """A key as JSON: a value that can be decoded, else its text in a list."""
    if isinstance(key, DictKey) and type(key.key) in PLAIN_KEYS and key.key == key.key:
        return key.key
    return [str(key)]


def key_text(key: Any) -> str:
    """The form of a key of a node in paths."""
    return key[0] if isinstance(key, list) else str(DictKey(key))


def rebuilt(node: dict[str, Any], leaves: Sequence[Any]) -> Any:
    """The tree of a description, with ``leaves``.

    Raises:
        ValueError: a class, or a key of a dict, that the description does not hold.
    """

    def make(node: dict[str, Any], path: str) -> Any:
        if "leaf" in node:
            return leaves[node["leaf"]]
        keys = node["keys"]
        named = node.get("node") in ("dict", "OrderedDict")
        check(
            "node" in node and not (named and any(isinstance(key, list) for key in keys)),
            lambda: (
                f"[restore] without like= containers must be dicts with keys of text or numbers, "
                f"lists, tuples, deques and None; got {_node_text(node)} {_location(path)}. "
                "Fix: restore(path, like=tree), with a tree of the same structure."
            ),
            ValueError,
        )
        children = [
            make(child, path + key_text(key))
            for key, child in zip(keys, node["children"], strict=True)
        ]
        return _MAKERS[node["node"]](node, keys, children)

    return make(node, "")


def difference(saved: dict[str, Any], like: dict[str, Any], path: str = "") -> str:
    """Return where two descriptions first differ, with both sides; empty if they are equal."""
    if "leaf" in saved and "leaf" in like:
        return ""
    node_types = [node.get("node", node.get("class")) for node in (saved, like)]
    same = node_types[0] == node_types[1] and saved["keys"] == like["keys"]
    if not same:
        only = [
            ", ".join(key_text(key) for key in one.get("keys", []) if key not in other["keys"])
            for one, other in ((saved, like), (like, saved))
            if "keys" in other and node_types[0] == node_types[1]
        ]
        more = ""
        if node_types[0] == node_types[1]:
            more = f" (only there: {only[0] or 'nothing'}; only in like: {only[1] or 'nothing'})"
        here, there = _node_text(like), _node_text(saved)
        return f"{_location(path)}, {there} in the checkpoint and {here} in like{more}"
    pairs = zip(saved["keys"], saved["children"], like["children"], strict=True)
    for key, child, other in pairs:
        deeper = difference(child, other, path + key_text(key))
        if deeper:
            return deeper
    return ""


def _location(path: str) -> str:
    return f"at {path}" if path else "at the top"


_MAX_KEYS = 6


def _node_text(node: dict[str, Any]) -> str:
    """Describe a node for errors."""
    if "leaf" in node:
        return "a leaf"
    kind, keys = node.get("node", node.get("class")), node["keys"]
    if kind == "None":
        return "None"
    if kind in ("list", "tuple", "deque"):
        return f"a {kind} of {len(keys)}"
    shown = ", ".join(map(key_text, keys[:_MAX_KEYS]))
    more = ", ..." if len(keys) > _MAX_KEYS else ""
    return f"a {kind} with {shown}{more}" if keys else f"an empty {kind}"
