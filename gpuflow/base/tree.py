"""Pytrees, on optree: None is an empty node, dict keys are sorted, custom nodes are registered.

Source: optree's own semantics with ``none_is_leaf=False``, in the namespace "gpuflow".

Tests: tests/base/test_treedefs.py, tests/base/test_tree_order.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import tee
from types import BuiltinFunctionType, FunctionType
from typing import Any

import optree

from gpuflow.base.garbage import without_collection
from gpuflow.base.treedef_text import data_of_nodes
from gpuflow.base.treedef_text import text as text

NAMESPACE = "gpuflow"
TreeDef = optree.PyTreeSpec


class PyTreeDef(optree.PyTreeSpec):
    """A structure as users get it: optree's, printed as JAX does."""

    __slots__ = ()

    def children(self) -> list[Any]:
        """The structures of the node's children; none for a leaf."""
        return [check_keys(child) for child in super().children()]

    def __repr__(self) -> str:
        return text(self)

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_state, (self.__getstate__(),)


def _printed(treedef: TreeDef) -> PyTreeDef:
    """An equal structure that prints as JAX's."""
    return _from_state(treedef.__getstate__())


def _from_state(state: Any) -> PyTreeDef:
    """The structure with the state of an optree's: objects of a subclass are made by unpickling.

    A collection of garbage that meets an object without its state ends the process (optree 0.17 to
    0.20). So it is made and gets the state within one call of C.
    """
    made, second_ref = tee(map(PyTreeDef.__new__, (PyTreeDef,)))
    without_collection(partial(next, map(PyTreeDef.__setstate__, made, (state,))))
    return next(second_ref)


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    """Return the leaves and the structure of ``tree``."""
    try:
        return optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RuntimeError as error:
        _explain(error)
        raise


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of structure ``treedef`` with ``leaves``; dicts have sorted keys, as in JAX."""
    return optree.tree_unflatten(sorted_keys(treedef), leaves)


def sorted_keys(treedef: TreeDef) -> TreeDef:
    """The same structure, whose dicts come out with sorted keys.

    optree gives a dict the order of the one that was flattened. In JAX the keys of a result go
    along with its leaves: programs zip the two.

    Cost: a look-up; structures with dicts and custom nodes are traversed each time, since equal
    ones may hold custom data that are equal but not the same (1 and True).
    """
    if type(treedef) is PyTreeDef or treedef.num_nodes <= 1:
        return treedef  # a PyTreeDef was made of a sorted one
    try:
        cached = _sorted.get(treedef, _UNKNOWN)
    except TypeError:  # custom data without a hash
        return optree.treespec_transform(treedef, _sorted_node)
    if cached is _UNKNOWN:
        if len(_sorted) >= _MAX_CACHED:
            _sorted.clear()
        cached = _sorted[treedef] = _classified(treedef)
    if cached is _HAS_CUSTOM_DATA:
        return optree.treespec_transform(treedef, _sorted_node)
    return treedef if cached is None else cached


def check_keys(treedef: TreeDef) -> TreeDef:
    """The structure for users, whose dicts must have keys that can be sorted, as JAX asks for.

    Cost: a look-up. So a structure is a PyTreeDef only if equal ones are the same; those with
    numbers among keys or custom data, where 1 equals True, stay optree's.

    Raises:
        ValueError: a dict with keys that cannot be compared, such as 1 and "a".
    """
    if treedef.num_nodes <= 1:
        return _single.get(treedef.type, treedef)
    try:
        cached = _checked.get(treedef, _UNKNOWN)
    except (TypeError, ValueError):  # custom data without a hash, or an equality, of its own
        _check_nodes(treedef)
        return treedef
    if cached is _UNKNOWN:
        _check_nodes(treedef)
        if len(_checked) >= _MAX_CACHED:
            _checked.clear()
        is_exact = all(map(_is_exact, data_of_nodes(treedef)))
        cached = _checked[treedef] = _printed(sorted_keys(treedef)) if is_exact else None
    return treedef if cached is None else cached


def _is_exact(data: Any) -> bool:
    """Whether all data that are equal are the same."""
    if type(data) in (tuple, list):
        return all(map(_is_exact, data))
    return data is None or type(data) in _EXACT_TYPES


def _check_nodes(treedef: TreeDef) -> None:
    if treedef.kind in _SORTED_KINDS:
        _check_comparable(treedef.entries())
    # Children without any of their own are leaves or empty.
    if treedef.num_nodes > treedef.num_children + 1:
        for child in treedef.children():
            _check_nodes(child)


def _check_comparable(keys: Iterable[Any]) -> None:
    try:
        sorted(keys)
    except TypeError:
        raise ValueError(
            f"[tree] the keys of a dict must be sortable; got {list(keys)}. Fix: keys of one type."
        ) from None


_UNKNOWN, _HAS_CUSTOM_DATA = object(), object()
# For structures: None where there is nothing to sort, the sorted one, or _HAS_CUSTOM_DATA.
_sorted: dict[TreeDef, Any] = {}
# For structures whose keys were checked: the PyTreeDef, or None where equal ones may differ.
_checked: dict[TreeDef, PyTreeDef | None] = {}
_EXACT_TYPES = (str, bytes, type, FunctionType, BuiltinFunctionType)
_single = {spec.type: _printed(spec) for spec in map(optree.tree_structure, (0, None, (), [], {}))}
_MAX_CACHED = 1024
_SORTED_KINDS = (optree.PyTreeKind.DICT, optree.PyTreeKind.DEFAULTDICT)


def _classified(treedef: TreeDef) -> Any:
    """Cached data of ``_sorted`` for a structure."""
    has_dict = is_plain = False

    def look(node: TreeDef) -> TreeDef:
        nonlocal has_dict, is_plain
        has_dict = has_dict or node.kind in _SORTED_KINDS
        # Equal strings are the same key; 1 and True are equal too.
        named = node.kind in (*_SORTED_KINDS, optree.PyTreeKind.ORDEREDDICT)
        is_plain = is_plain and node.kind is not optree.PyTreeKind.CUSTOM
        is_plain = is_plain and not (named and any(type(k) is not str for k in node.entries()))
        return _sorted_node(node)

    is_plain = True
    ordered = optree.treespec_transform(treedef, look)
    return None if not has_dict else ordered if is_plain else _HAS_CUSTOM_DATA


def _sorted_node(node: TreeDef) -> TreeDef:
    if node.kind not in _SORTED_KINDS:
        return node
    _check_comparable(node.entries())
    items = dict(zip(node.entries(), node.children(), strict=True))
    if node.kind is optree.PyTreeKind.DICT:
        return optree.treespec_dict(items, namespace=NAMESPACE)
    empty: Any = optree.tree_unflatten(node, [None] * len(items))
    return optree.treespec_defaultdict(empty.default_factory, items, namespace=NAMESPACE)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of ``tree``."""
    try:
        return optree.tree_leaves(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RuntimeError as error:
        _explain(error)
        raise


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeDef:
    """Return the structure of ``tree``."""
    try:
        return optree.tree_structure(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RuntimeError as error:
        _explain(error)
        raise


def _explain(error: RuntimeError) -> None:
    """Raise an error that explains optree's; other errors are those of users' functions."""
    text = str(error)
    if text.startswith("Maximum recursion depth exceeded during"):
        raise too_deep() from None
    if text.startswith("Unable to cast Python instance"):
        raise RuntimeError(
            "[tree] is_leaf must return a bool; got another value. Fix: bool(...)."
        ) from None


def too_deep() -> RecursionError:
    """The error about a tree that is too deep."""
    return RecursionError(
        "[tree] trees must be at most 1,000 nodes deep; got a deeper one. "
        "Fix: put the leaves into one list."
    )


def tree_map(
    function: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Apply ``function`` to the leaves of trees; ``tree`` may be a prefix of the others."""
    leaves, treedef = flatten(tree, is_leaf)
    columns = [leaves, *[treedef.flatten_up_to(other) for other in rest]]
    return unflatten(treedef, map(function, *columns))


def all_leaves(items: Iterable[Any]) -> bool:
    """Return whether all items are leaves."""
    return optree.all_leaves(items, namespace=NAMESPACE)


def children(treedef: TreeDef) -> list[TreeDef]:
    """The structures of a node's children; none for a leaf."""
    return treedef.children()


def is_node_type(cls: type) -> bool:
    """Whether values of ``cls`` are containers."""
    return _entry(cls) is not None or optree.is_namedtuple_class(cls)


def is_namedtuple_type(cls: type) -> bool:
    """Whether ``cls`` is a namedtuple without registered functions."""
    entry = _entry(cls)
    return entry is not None and entry.kind is optree.PyTreeKind.NAMEDTUPLE


def _entry(cls: type) -> Any:
    return optree.register_pytree_node.get(cls, namespace=NAMESPACE)  # type: ignore[attr-defined]


def node_functions(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """The flatten and unflatten functions of a registered class."""
    entry = _entry(cls)
    return entry.flatten_func, entry.unflatten_func


def node_of(cls: type, aux: Any, children: Iterable[Any]) -> Any:
    """A node of a registered class."""
    return _entry(cls).unflatten_func(aux, tuple(children))


def node_contents(node: Any) -> tuple[tuple[Any, ...], Any]:
    """The children of a node of a registered class, and its auxiliary data."""
    children, aux, *_ = _entry(type(node)).flatten_func(node)
    return tuple(children), aux


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
        # optree warns of namedtuples, which may have separate functions.
        warnings.simplefilter("ignore", UserWarning)
        optree.register_pytree_node(cls, flatten_function, unflatten_function, namespace=NAMESPACE)


def _is_none(item: Any) -> bool:
    return item is None


def paths(tree: Any) -> list[str]:
    """A readable path such as ``['w'][0]`` for each leaf of ``tree``."""
    accessors = optree.tree_accessors(tree, namespace=NAMESPACE)
    return [accessor.codify("") for accessor in accessors]


def paths_in(treedef: TreeDef) -> list[str]:
    """A readable path for each leaf of a structure."""
    return [accessor.codify("") for accessor in optree.treespec_accessors(treedef)]


def broadcast_prefix(
    prefix: Any, tree: Any, op: str, is_leaf: Callable[[Any], bool] | None = None
) -> list[Any]:
    """One item of ``prefix`` for each leaf of ``tree``; None in ``prefix`` is an item.

    Raises:
        ValueError: ``prefix`` is not a tree prefix of ``tree``.
    """
    items: list[Any] = []

    def repeat(item: Any, subtree: Any) -> None:
        items.extend([item] * len(leaves(subtree, is_leaf)))

    try:
        optree.tree_map_(repeat, prefix, tree, is_leaf=_is_none, namespace=NAMESPACE)
    except (ValueError, TypeError, KeyError):
        where = _mismatch(structure(prefix, is_leaf=_is_none), structure(tree))
        raise ValueError(
            f"[{op}] the value must be a tree prefix of the argument; got {prefix!r} for "
            f"{text(structure(tree))}{where}. "
            "Fix: give one value, or a tree with the same containers."
        ) from None
    return items


def _mismatch(prefix: TreeDef, full: TreeDef, path: str = "") -> str:
    """Describe the first difference of a prefix and a full structure."""
    if prefix.is_leaf():
        return ""
    location = f"at {path}" if path else "at the top"
    if prefix.type is not full.type:
        kind = "a leaf" if full.type is None else f"a {full.type.__name__}"
        return f": {location} a {getattr(prefix.type, '__name__', 'leaf')} for {kind}"
    if list(prefix.entries()) != list(full.entries()):
        return f": {location} the entries {prefix.entries()} for {full.entries()}"
    children = zip(prefix.entries(), prefix.children(), full.children(), strict=True)
    for entry, child, other in children:
        mismatch = _mismatch(child, other, f"{path}[{entry!r}]")
        if mismatch:
            return mismatch
    return ""
