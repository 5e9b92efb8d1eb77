"""Structures of pytrees as text, in the form that JAX prints.

Tests: tests/test_tree_util.py, tests/test_export_forgeries.py.
"""

from __future__ import annotations

from typing import Any

import optree


def text(treedef: optree.PyTreeSpec) -> str:
    """A structure as JAX prints it: ``PyTreeDef({'a': (*, None)})``."""
    return f"PyTreeDef({_node_text(treedef)})"


def _node_text(treedef: optree.PyTreeSpec) -> str:
    kind, kinds = treedef.kind, optree.PyTreeKind
    if kind is kinds.LEAF:
        return "*"
    if kind is kinds.NONE:
        return "None"
    items = [_node_text(child) for child in optree.PyTreeSpec.children(treedef)]
    listed, keys = ", ".join(items), treedef.entries()
    if kind is kinds.TUPLE:
        return f"({listed}{',' if len(items) == 1 else ''})"
    if kind is kinds.LIST:
        return f"[{listed}]"
    if kind is kinds.DICT:
        return f"{{{', '.join(f'{k!r}: {item}' for k, item in zip(keys, items, strict=True))}}}"
    data: Any = data_of_nodes(treedef)[-1]
    if kind is kinds.NAMEDTUPLE:
        name, data = "namedtuple", treedef.type.__name__
    elif kind is kinds.ORDEREDDICT:
        name, data = "OrderedDict", tuple(keys)
    elif kind is kinds.DEFAULTDICT:
        name, data = "defaultdict", (data[0], tuple(keys))
    else:
        name = treedef.type.__name__
    return f"CustomNode({name}[{data}], [{listed}])"


def data_of_nodes(treedef: optree.PyTreeSpec) -> list[Any]:
    """The data of each node, the root last."""
    found: list[Any] = []
    leaves = [None] * treedef.num_leaves
    try:
        treedef.walk(leaves, lambda cls, data, children: found.append(data), None)
    except TypeError:  # optree before 0.14
        treedef.walk(lambda children, data: found.append(data), None, leaves)  # type: ignore
    return found
