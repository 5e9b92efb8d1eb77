"""Error messages: differences of two pytrees of types that should be equal.

Tests: tests/control/test_control_errors.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base import tree, tree_keys
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray

_MAX_SHOWN = 600  # characters of the text of a tree


@record
class Typed:
    """The types of a pytree of arrays.

    Attributes:
        name: a phrase for messages, such as "at first".
        structure: the treedef.
        avals: the types of the leaves.
    """

    name: str
    structure: tree.TreeDef
    avals: Sequence[ShapedArray]


@record
class _Shown:
    """A leaf whose repr is the text of a type."""

    text: str

    def __repr__(self) -> str:
        return self.text


def same_type(a: ShapedArray, b: ShapedArray) -> bool:
    """Whether two avals agree in shape and dtype."""
    return (a.shape, a.dtype) == (b.shape, b.dtype)


def describe_structures(what: str, first: Typed, second: Typed) -> str:
    """Describe the first difference of two structures, then both; ``what`` names the trees."""
    skeletons = [tree_keys.skeleton(typed.structure) for typed in (first, second)]
    difference = tree_keys.difference(*skeletons)
    return f"{what} trees that differ {difference}{_both_trees(first, second)}"


def describe_types(what: str, first: Typed, second: Typed) -> str | None:
    """Describe the leaves that differ, by path, then both trees; None if no leaf differs.

    Args:
        what: the name of the trees.
        first, second: trees of equal structure.
    """
    paths = tree.paths(tree_keys.skeleton(first.structure))
    differing = [
        f"{what}{path} is {a} {first.name} and {b} {second.name}"
        for path, a, b in safe_zip(paths, first.avals, second.avals)
        if not same_type(a, b)
    ]
    return f"{'; '.join(differing)}{_both_trees(first, second)}" if differing else None


def how_to_match(what: str, first: Typed, second: Typed) -> str:
    """Suggest a change so that the first leaf that differs agrees with the one in ``first``."""
    paths = tree.paths(tree_keys.skeleton(first.structure))
    for path, a, b in safe_zip(paths, first.avals, second.avals):
        if a.shape != b.shape:
            longer = b if _repeats(a, b) else a if _repeats(b, a) else None
            if longer is None:
                return f"make {what}{path} an array of one shape, with reshape, a slice or a sum"
            where = first.name if longer is b else second.name
            return f"jnp.broadcast_to({what}{path}, {longer.shape}) {where}"
        if a.dtype != b.dtype:
            return (
                f"{what}{path}.astype({a.dtype.name!r}) {second.name}, or "
                f".astype({b.dtype.name!r}) {first.name}"
            )
    return f"make {what}s of one type"


def _repeats(a: ShapedArray, b: ShapedArray) -> bool:
    """Whether ``a`` can be broadcast to the shape of ``b``."""
    tail = b.shape[len(b.shape) - len(a.shape) :]
    return a.ndim <= b.ndim and all(n in (1, m) for n, m in zip(a.shape, tail, strict=True))


def _both_trees(first: Typed, second: Typed) -> str:
    """The text of both trees, one per line, and the start of a new line."""
    width = max(len(first.name), len(second.name))
    rows = [f"\n    {typed.name:{width}}  {_text(typed)}" for typed in (first, second)]
    return f"{rows[0]}{rows[1]}\n "


def _text(typed: Typed) -> str:
    text = repr(tree.unflatten(typed.structure, [_Shown(str(aval)) for aval in typed.avals]))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."
