"""Classes as nodes of pytrees, under the names of jax.tree_util.

Tests: tests/test_tree_util.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gpuflow.base import tree as base_tree
from gpuflow.base import tree_keys
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.base.records import record
from gpuflow.base.tree_keys import GetAttrKey
from gpuflow.core.argument_kinds import explained

_Node = TypeVar("_Node")
WithKeys = Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]]


@explained
def register_pytree_node(
    nodetype: type[_Node],
    flatten_func: Callable[[_Node], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], _Node],
    flatten_with_keys_func: WithKeys | None = None,
) -> None:
    """Register a class as a pytree node.

    Args:
        nodetype: the class.
        flatten_func: ``node -> (children, aux)``; ``aux`` is hashable and comparable.
        unflatten_func: ``(aux, children) -> node``.
        flatten_with_keys_func: ``node -> (pairs (key, child), aux)``, for key paths.

    Returns:
        None.

    Raises:
        ValueError: if the class is already registered.

    Example:
        >>> class Pair:
        ...     def __init__(self, a, b):
        ...         self.a, self.b = a, b
        >>> gf.tree_util.register_pytree_node(
        ...     Pair, lambda p: ((p.a, p.b), None), lambda aux, children: Pair(*children)
        ... )
        >>> gf.tree.leaves(Pair(1, 2))
        [1, 2]
    """
    base_tree.register_node(nodetype, flatten_func, unflatten_func)
    if flatten_with_keys_func is not None:
        tree_keys.register_keys(nodetype, flatten_with_keys_func)


@explained
def register_pytree_with_keys(
    nodetype: type[_Node],
    flatten_with_keys: WithKeys,
    unflatten_func: Callable[[Any, Any], _Node],
    flatten_func: Callable[[_Node], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """Register a class as a pytree node with named children.

    Args:
        nodetype: the class.
        flatten_with_keys: ``node -> (pairs (key, child), aux)``.
        unflatten_func: ``(aux, children) -> node``.
        flatten_func: ``node -> (children, aux)``, optional and faster.

    Returns:
        None.

    Raises:
        ValueError: if the class is already registered.

    Example:
        >>> class Box:
        ...     def __init__(self, value):
        ...         self.value = value
        >>> key = gf.tree_util.GetAttrKey("value")
        >>> gf.tree_util.register_pytree_with_keys(
        ...     Box, lambda box: (((key, box.value),), None), lambda aux, children: Box(*children)
        ... )
        >>> gf.tree.leaves_with_path(Box(1))
        [((GetAttrKey(name='value'),), 1)]
    """

    def flatten(node: _Node) -> tuple[list[Any], Any]:
        pairs, aux = flatten_with_keys(node)
        return [child for _, child in pairs], aux

    register_pytree_node(nodetype, flatten_func or flatten, unflatten_func, flatten_with_keys)


def _check_methods(op: str, cls: Any, *names: str) -> None:
    for name in names:
        check(
            isinstance(cls, type) and hasattr(cls, name),
            lambda name=name: (
                f"[{op}] a class with a method {name} is needed; got {brief(cls)}. "
                f"Fix: def {name} in the class."
            ),
            AttributeError if isinstance(cls, type) else TypeError,
        )


@explained
def register_pytree_node_class(cls: type[_Node]) -> type[_Node]:
    """Register a class with ``tree_flatten`` and the class method ``tree_unflatten`` as a node.

    Args:
        cls: a class; ``tree_flatten()`` returns ``(children, aux)``, ``tree_unflatten(aux,
            children)`` an object.

    Returns:
        The class.

    Raises:
        ValueError: if the class is already registered.

    Example:
        >>> @gf.tree_util.register_pytree_node_class
        ... class Point:
        ...     def __init__(self, x, y):
        ...         self.x, self.y = x, y
        ...     def tree_flatten(self):
        ...         return (self.x, self.y), None
        ...     @classmethod
        ...     def tree_unflatten(cls, aux, children):
        ...         return cls(*children)
        >>> gf.tree.leaves(Point(1, 2))
        [1, 2]
    """
    _check_methods("register_pytree_node_class", cls, "tree_flatten", "tree_unflatten")
    nodes: Any = cls
    register_pytree_node(nodes, lambda node: node.tree_flatten(), nodes.tree_unflatten)
    return cls


@explained
def register_pytree_with_keys_class(cls: type[_Node]) -> type[_Node]:
    """Register a class with ``tree_flatten_with_keys`` and ``tree_unflatten`` as a node.

    Args:
        cls: a class; ``tree_flatten_with_keys()`` returns ``(pairs (key, child), aux)``,
            ``tree_unflatten(aux, children)`` an object.

    Returns:
        The class.

    Raises:
        ValueError: if the class is already registered.

    Example:
        >>> @gf.tree_util.register_pytree_with_keys_class
        ... class Named:
        ...     def __init__(self, x):
        ...         self.x = x
        ...     def tree_flatten_with_keys(self):
        ...         return ((gf.tree_util.GetAttrKey("x"), self.x),), None
        ...     @classmethod
        ...     def tree_unflatten(cls, aux, children):
        ...         return cls(*children)
        >>> gf.tree.leaves_with_path(Named(1))
        [((GetAttrKey(name='x'),), 1)]
    """
    op, names = "register_pytree_with_keys_class", ("tree_flatten_with_keys", "tree_unflatten")
    _check_methods(op, cls, *names)
    nodes: Any = cls
    plain = (lambda node: node.tree_flatten()) if hasattr(cls, "tree_flatten") else None
    register_pytree_with_keys(
        nodes, lambda node: node.tree_flatten_with_keys(), nodes.tree_unflatten, plain
    )
    return cls


@explained
def register_static(cls: type[_Node]) -> type[_Node]:
    """Register a class as static: its objects are nodes without children.

    Args:
        cls: a class with hashable and comparable objects.

    Returns:
        The class.

    Raises:
        ValueError: if the class is already registered.

    Example:
        >>> @gf.tree_util.register_static
        ... class Mode(str):
        ...     pass
        >>> gf.tree.leaves([Mode("train"), 1])
        [1]
    """
    register_pytree_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


@explained
def static(**arguments: Any) -> Any:
    """Declare a static field of a dataclass, which is not a child.

    Args:
        arguments: arguments of ``dataclasses.field``.

    Returns:
        A field.

    Example:
        >>> import dataclasses
        >>> @gf.tree_util.register_dataclass
        ... @dataclasses.dataclass
        ... class Layer:
        ...     weight: float
        ...     name: str = gf.tree.static(default="dense")
        >>> gf.tree.leaves(Layer(2.0))
        [2.0]
    """
    metadata = {**(arguments.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **arguments)


@explained
def register_dataclass(
    nodetype: type[_Node],
    data_fields: Iterable[str] | None = None,
    meta_fields: Iterable[str] | None = None,
    drop_fields: Iterable[str] = (),
) -> type[_Node]:
    """Register a dataclass as a pytree node.

    Args:
        nodetype: a dataclass.
        data_fields: fields that contain pytrees; by default all that are not marked as static,
            ``dataclasses.field(metadata={"static": True})``.
        meta_fields: fields that are part of the structure.
        drop_fields: fields that are neither; they are reset to their defaults.

    Returns:
        The class.

    Raises:
        TypeError: if only one of data and meta fields is given, or the class is not a dataclass.
        ValueError: if the fields differ from those of the dataclass.

    Example:
        >>> import dataclasses
        >>> @gf.tree_util.register_dataclass
        ... @dataclasses.dataclass
        ... class State:
        ...     step: int
        ...     loss: float
        >>> gf.tree.map(lambda x: x + 1, State(0, 0.5))
        State(step=1, loss=1.5)
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
    """``functools.partial`` as a pytree: its arguments are children, its function is static.

    A nested Partial is treated as a function: its arguments are not children of the outer one.
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Partial:
        # functools.partial would flatten a nested partial function.
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
