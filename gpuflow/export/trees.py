"""Structures of pytrees as JSON, and back.

Dicts, lists, tuples and None are supported; other classes must register how their auxiliary data is
serialized (``register_pytree_node_serialization``). A process that reads a file must have
registered them under the same names.

Tests: tests/test_export_forgeries.py, tests/test_export.py.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

from gpuflow.base import tree
from gpuflow.base.errors import ExportError, check
from gpuflow.base.records import record
from gpuflow.base.tree import TreeDef
from gpuflow.export.schema import check_structure
from gpuflow.tree_util import flatten_one_level

_Node = TypeVar("_Node")
_LEAF = 0  # placeholder for any leaf
_PLAIN_KEYS = (str, int, bool, type(None))


@record
class _Registered:
    """The serialization of a class.

    Attributes:
        cls: the class.
        name: its name in files, which must stay the same.
        write: the static data of a node as bytes.
        read: the inverse of ``write``.
        make: ``(static data, children) -> node``.
    """

    cls: type
    name: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    make: Callable[[Any, Sequence[Any]], Any]


OURS = "gpuflow."


def looked_up(path: str) -> Any:
    """The class or function of gpuflow that is defined as ``module:name``; None: none is.

    Names that a module imports from elsewhere, such as ``os``, are not its own, and programs to
    start (``__main__``) are not imported.
    """
    module, _, name = path.partition(":")
    if not module.startswith(OURS) or "__main__" in module:
        return None
    try:
        value: Any = import_module(module)
        for attribute in name.split("."):
            value = vars(value)[attribute]
        is_own = (value.__module__, value.__qualname__) == (module, name)
    except (ImportError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return value if is_own else None


def _own(name: str) -> _Registered | None:
    """The entry of a named tuple of gpuflow, such as the result of ``eigh``; None: it is none."""
    cls = looked_up(name)
    if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return None
    make: Any = cls
    return _Registered(
        cls, name, lambda aux: b"", lambda data: None, lambda aux, children: make(*children)
    )


_by_class: dict[type, _Registered] = {}
_by_name: dict[str, _Registered] = {}


def register_pytree_node_serialization(
    nodetype: type[_Node],
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> type[_Node]:
    """Register the serialization of a pytree class, for arguments and results of exports.

    Call it in the exporting and in the loading process, after ``tree_util.register_pytree_node``.

    Args:
        nodetype: the class, a registered pytree node.
        serialized_name: name of the class in files.
        serialize_auxdata: converts the auxiliary data of a node (all but its children) to bytes.
        deserialize_auxdata: the inverse of ``serialize_auxdata``.
        from_children: ``(auxdata, children) -> node``; None uses the registered function of the
            class.

    Returns:
        ``nodetype``.

    Raises:
        ValueError: if the class or the name is already registered, or the class is not a pytree
            node.

    Example:
        >>> from gpuflow import export, tree_util
        >>> class Pair:
        ...     def __init__(self, a, b): self.a, self.b = a, b
        >>> tree_util.register_pytree_node(
        ...     Pair, lambda p: ((p.a, p.b), None), lambda _, ab: Pair(*ab))
        >>> _ = export.register_pytree_node_serialization(
        ...     Pair, serialized_name="example.Pair", serialize_auxdata=lambda aux: b"",
        ...     deserialize_auxdata=lambda data: None)
    """
    check(
        nodetype not in _by_class and serialized_name not in _by_name,
        lambda: (
            "[export] a class and a name must be registered once; got "
            f"{nodetype.__name__} as {serialized_name!r} again. Fix: drop one registration."
        ),
        ValueError,
    )
    check(
        from_children is not None or tree.is_node_type(nodetype),
        lambda: (
            "[export] the class must be a pytree node; got "
            f"{nodetype.__name__}. Fix: tree_util.register_pytree_node first."
        ),
        ValueError,
    )
    make = from_children or (lambda aux, children: tree.node_of(nodetype, aux, children))
    entry = _Registered(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, make)
    _by_class[nodetype] = _by_name[serialized_name] = entry
    return nodetype


def register_namedtuple_serialization(
    nodetype: type[_Node], *, serialized_name: str
) -> type[_Node]:
    """Register the serialization of a namedtuple, for arguments and results of exports.

    Args:
        nodetype: the class.
        serialized_name: name of the class in files.

    Returns:
        ``nodetype``.

    Raises:
        ValueError: if the class is not a namedtuple, or it or the name is already registered.

    Example:
        >>> from collections import namedtuple
        >>> from gpuflow import export
        >>> Point = namedtuple("Point", "x y")
        >>> _ = export.register_namedtuple_serialization(Point, serialized_name="example.Point")
    """
    check(
        issubclass(nodetype, tuple) and hasattr(nodetype, "_fields"),
        lambda: (
            f"[export] the class must be a namedtuple; got {nodetype.__name__}. "
            "Fix: register_pytree_node_serialization."
        ),
        ValueError,
    )
    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda aux: b"",
        deserialize_auxdata=lambda data: None,
        from_children=lambda aux, children: nodetype(*children),
    )


def structure_record(treedef: TreeDef) -> Any:
    """A structure as JSON: 0 for a leaf, None for None.

    Raises:
        ExportError: a class without registration, or a dict's key that is not a text or number.
    """
    return _written(tree.unflatten(treedef, [_LEAF] * treedef.num_leaves))


def _written(node: Any) -> Any:
    if node is None or type(node) is int:
        return node
    if type(node) in (tuple, list):
        return [type(node).__name__, *map(_written, node)]
    if type(node) is dict:
        for key in node:
            check(
                type(key) in _PLAIN_KEYS,
                lambda key=key: (
                    "[export] keys of dicts must be texts or ints; got "
                    f"{key!r}. Fix: {{str(key): ...}}."
                ),
                ExportError,
            )
        return ["dict", *([key, _written(child)] for key, child in node.items())]
    entry = _by_class.get(type(node)) or _own(f"{type(node).__module__}:{type(node).__qualname__}")
    if entry is None:
        is_named = isinstance(node, tuple)
        mend, name = "namedtuple" if is_named else "pytree_node", type(node).__name__
        raise ExportError(
            "[export] classes in arguments and results must be registered for files; got "
            f"{name}. Fix: export.register_{mend}_serialization({name}, serialized_name=...)."
        )
    children, aux = (list(node), None) if isinstance(node, tuple) else flatten_one_level(node)
    data = base64.b64encode(entry.write(aux)).decode()
    return ["node", entry.name, data, *map(_written, children)]


def structure_from(record: Any) -> TreeDef:
    """The structure of a record.

    Raises:
        ExportError: if this process has not registered a class, or its function rejects the data of
            the file.
        Malformed: if it is not a record of a structure.
    """
    check_structure(record)
    try:
        return tree.check_keys(tree.structure(_made(record)))
    except ExportError:
        raise
    except Exception as error:  # of a user's class
        raise ExportError(
            f"[export] structures of a file must match its classes; got the error: {error!r}. Fix: "
            "export it again with the classes of this process."
        ) from error


def _made(record: Any) -> Any:
    if record is None or type(record) is int:
        return record
    kind, *items = record
    if kind in ("tuple", "list"):
        made = [_made(item) for item in items]
        return tuple(made) if kind == "tuple" else made
    if kind == "dict":
        return {key: _made(child) for key, child in items}
    name, data, *children = items
    entry = _by_name.get(name) or _own(name)
    if entry is None:
        raise ExportError(
            "[export] classes of a file must be registered where it is read; got "
            f"{name!r}, which is not. Fix: export.register_pytree_node_serialization(..., "
            f"serialized_name={name!r}) before deserialize."
        )
    aux = entry.read(base64.b64decode(data, validate=True))
    return entry.make(aux, [_made(child) for child in children])
