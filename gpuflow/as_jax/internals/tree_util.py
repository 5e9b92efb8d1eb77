"""``jax._src.tree_util``: the registry of node classes.

Tests: tests/test_as_jax.py, tests/test_as_jax_table.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuflow.base import tree
from gpuflow.base.records import record


@record
class _Entry:
    """Flattening and unflattening of nodes of one class."""

    cls: type

    def to_iter(self, node: Any) -> tuple[Iterable[Any], Any]:
        """The children of a node, and the auxiliary data: of a dict its sorted keys."""
        if self.cls is dict:
            keys = tuple(sorted(node))
            return [node[key] for key in keys], keys
        return tree.node_contents(node)

    def from_iter(self, aux: Any, children: Iterable[Any]) -> Any:
        """A node of children and auxiliary data."""
        if self.cls is dict:
            return dict(zip(aux, children, strict=True))
        return tree.node_of(self.cls, aux, children)


class _Registry:
    """Answers ``cls in _registry`` and ``_registry[cls]``."""

    def __contains__(self, cls: type) -> bool:
        return tree.is_node_type(cls)

    def __getitem__(self, cls: type) -> _Entry:
        if not tree.is_node_type(cls):
            raise KeyError(cls)
        return _Entry(cls)


_registry = _Registry()
