"""Straight-line code for trees of a known structure: ten times as fast as walking them.

A jitted function gets the same structures repeatedly. For each, ``reader`` prints a function
that checks the arguments of a call and returns their leaves, and ``builder`` one that builds
results.

Tests: tests/base/test_tree_text.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import optree

from gpuflow.base.tree import TreeDef, node_functions, sorted_keys, unflatten
from gpuflow.base.treedef_text import data_of_nodes

# From args, kwargs, the first item of the key and perhaps a function that replaces the leaves.
Read = Callable[..., "tuple[list[Any], tuple[Any, ...]] | None"]
Build = Callable[[list[Any]], Any]

_LITERAL_KEYS = (str, int)
_AS_THEY_ARE: Mapping[int, tuple[Any, ...]] = MappingProxyType({})
# Deeper trees are read and built node by node: the functions here call themselves for each level.
_MAX_LEVELS = 100
_Kind = optree.PyTreeKind


def reader(
    treedef: TreeDef, statics: Iterable[int | str] = (), attribute: str = "_type_key"
) -> Read | None:
    """A function that returns the leaves of a call's arguments, and a key of their types.

    It is called with ``(args, kwargs, first, convert=None)`` and returns the leaves, those that
    ``convert`` makes of them if it is given, and the key ``(first, *types, *statics)``: ``first``,
    the attribute of each leaf, then of each static argument its type and its value. It returns None
    for arguments of another structure, and raises AttributeError if a leaf lacks the attribute.

    Leaves are not looked at: a container where a leaf should be is returned as one.

    Args:
        treedef: the structure of ``(args, kwargs)`` without the static arguments; of dicts, lists,
            tuples, namedtuples, None and nodes of registered classes.
        statics: positions, in ascending order, and then names of the static arguments.
        attribute: of the leaves, by which calls of one type find their program.

    Returns:
        The function; None for structures with other nodes.
    """
    args, kwargs = optree.PyTreeSpec.children(treedef)
    positional: list[TreeDef | None] = [*optree.PyTreeSpec.children(args)]
    children = optree.PyTreeSpec.children(kwargs)
    named: dict[str, TreeDef | None] = dict(zip(kwargs.entries(), children, strict=True))
    for where in statics:
        if isinstance(where, int):
            positional.insert(where, None)
        else:
            named[where] = None
    text = _Text()
    names = [text.fresh() for _ in (*positional, *named)]
    text.add(f"[{', '.join(names[: len(positional)])}] = args")
    text.add(f"if len(kwargs) != {len(named)}: return None" if named else "if kwargs: return None")
    for name, keyword in zip(names[len(positional) :], named, strict=True):
        text.add(f"{name} = kwargs[{keyword!r}]")
    leaves: list[str] = []
    fixed: list[str] = []
    for name, node in zip(names, [*positional, *named.values()], strict=True):
        if node is None:
            fixed += [f"type({name})", name]
        elif not _take(text, node, name, leaves):
            return None
    body = text.indented(depth=2)
    listed = ", ".join(leaves)
    key = ", ".join(["first", *[f"{leaf}.{attribute}" for leaf in leaves], *fixed])
    # A wrong number of items is a ValueError, a missing key a KeyError.
    return text.function(
        "def function(args, kwargs, first, convert=None):\n"
        f"    try:\n{body}\n"
        "    except (KeyError, ValueError):\n        return None\n"
        f"    if convert is not None: [{listed}] = convert([{listed}])\n"
        f"    return [{listed}], ({key},)\n"
    )


def _take(text: _Text, node: TreeDef, name: str, leaves: list[str], level: int = 0) -> bool:
    """Print the check and the flattening of a subtree; False if it has other nodes."""
    if node.kind is _Kind.LEAF:
        leaves.append(name)
        return True
    if node.kind is _Kind.NONE:
        text.add(f"if {name} is not None: return None")
        return True
    if level > _MAX_LEVELS:
        return False
    children = optree.PyTreeSpec.children(node)
    items = [text.fresh() for _ in children]
    text.add(f"if type({name}) is not {text.constant(node.type)}: return None")
    if node.kind is _Kind.DICT:
        text.add(f"if len({name}) != {len(items)}: return None")
        for item, key in zip(items, node.entries(), strict=True):
            text.add(f"{item} = {name}[{text.key(key)}]")
    elif node.kind is _Kind.CUSTOM:
        flatten, data = text.constant(node_functions(node.type)[0]), text.fresh()
        text.add(f"{name}, {data} = {flatten}({name})")
        text.add(f"if not {data} == {text.constant(data_of_nodes(node)[-1])}: return None")
        text.add(f"[{', '.join(items)}] = {name}")
    elif node.kind in _SEQUENCES:
        text.add(f"[{', '.join(items)}] = {name}")
    else:
        return False
    pairs = zip(children, items, strict=True)
    return all(_take(text, child, item, leaves, level + 1) for child, item in pairs)


def builder(
    treedef: TreeDef, leaf_functions: Mapping[int, tuple[Any, ...]] = _AS_THEY_ARE
) -> Build:
    """A function that makes trees of this structure from a list of its leaves.

    Args:
        treedef: the structure.
        made: for leaves by index a function, and its arguments after the leaf; its result
            replaces the leaf.
    """
    text = _Text()
    leaves = [text.fresh() for _ in range(treedef.num_leaves)]
    text.add(f"[{', '.join(leaves)}] = leaves")
    for number, (function, *arguments) in leaf_functions.items():
        listed = ", ".join([leaves[number], *map(text.constant, arguments)])
        text.add(f"{leaves[number]} = {text.constant(function)}({listed})")
    result = _make(text, sorted_keys(treedef), iter(leaves))
    if result is None:
        result = f"{text.constant(unflatten)}({text.constant(treedef)}, [{', '.join(leaves)}])"
    body = text.indented(depth=1)
    return text.function(f"def function(leaves):\n{body}\n    return {result}\n")


def _make(text: _Text, node: TreeDef, leaves: Any, level: int = 0) -> str | None:
    """Print the construction of a subtree; returns its name, None if it has other nodes."""
    if node.kind is _Kind.LEAF:
        return next(leaves)
    if node.kind is _Kind.NONE:
        return "None"
    if level > _MAX_LEVELS:
        return None
    items = []
    for child in optree.PyTreeSpec.children(node):
        item = _make(text, child, leaves, level + 1)
        if item is None:
            return None
        items.append(item)
    expression = _expression(text, node, items)
    if expression is None:
        return None
    name = text.fresh()
    text.add(f"{name} = {expression}")
    return name


def _expression(text: _Text, node: TreeDef, items: Sequence[str]) -> str | None:
    """A node of these children; None for other nodes."""
    listed = ", ".join(items)
    as_tuple = f"({listed},)" if items else "()"
    if node.kind is _Kind.DICT:
        keys = map(text.key, node.entries())
        return f"{{{', '.join(f'{key}: {item}' for key, item in zip(keys, items, strict=True))}}}"
    if node.kind is _Kind.LIST:
        return f"[{listed}]"
    if node.kind is _Kind.TUPLE:
        return as_tuple
    if node.kind is _Kind.NAMEDTUPLE:
        return f"{text.constant(node.type)}({listed})"
    if node.kind is _Kind.CUSTOM:
        unflatten_node = text.constant(node_functions(node.type)[1])
        return f"{unflatten_node}({text.constant(data_of_nodes(node)[-1])}, {as_tuple})"
    return None


_SEQUENCES = (_Kind.TUPLE, _Kind.LIST, _Kind.NAMEDTUPLE)


class _Text:
    """Statements of a function and the constants that they use."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self._constants: dict[int, tuple[str, Any]] = {}
        self._counter = itertools.count()

    def fresh(self) -> str:
        return f"v{next(self._counter)}"

    def add(self, text: str) -> None:
        self.statements.append(text)

    def constant(self, value: Any) -> str:
        name, _ = self._constants.setdefault(id(value), (f"c{len(self._constants)}", value))
        return name

    def key(self, key: Any) -> str:
        return repr(key) if type(key) in _LITERAL_KEYS else self.constant(key)

    def indented(self, depth: int) -> str:
        return "\n".join("    " * depth + text_ for text_ in self.statements)

    def function(self, source: str) -> Callable[..., Any]:
        namespace: dict[str, Any] = {name: value for name, value in self._constants.values()}
        exec(compile(source, "<gpuflow tree>", "exec"), namespace)
        return namespace["function"]
