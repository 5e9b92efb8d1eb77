"""Printed readers and builders of trees do what flatten and unflatten do."""

import collections

import pytest

from gpuflow.base import tree
from gpuflow.base.tree_text import builder, reader

Pair = collections.namedtuple("Pair", "a b")
Child = type("Child", (Pair,), {})


class Own(collections.namedtuple("Own", "a b")):
    """A namedtuple with a form of its own: only b is a child."""


class Node:
    def __init__(self, x):
        self.x = x


tree.register_node(Node, lambda node: ((node.x,), None), lambda _, children: Node(*children))
tree.register_node(Own, lambda own: ((own.b,), None), lambda _, children: Own(0, *children))

TREES = [
    1, (1,), [], (), {}, None, [None], {"b": 1, "a": (2, [3, None])}, Pair(1, {3: 2}), Child(1, 2),
    [Pair(1, ()), {("x", 1): 4}], ((1, 2), {}), {"it's": 1, 'a "b"\n': 2}, {True: 1, 0: 2},
    {f"layer{k}": {"w": k, "b": [k]} for k in range(300)}, {2.5: 1}, {frozenset([1]): 1},
]  # fmt: skip
OTHERS = [Node(1), [Node((1, 2))], Own(1, 2), collections.OrderedDict(a=1), collections.deque([1])]


def order(node):
    """Dicts are equal in any order; their items here are not."""
    if isinstance(node, dict):
        return [(key, order(value)) for key, value in node.items()]
    if isinstance(node, list | tuple):
        return type(node), [order(value) for value in node]
    return type(node), node


@pytest.mark.parametrize("number", range(len(TREES)))
def test_leaves_and_trees(number):
    value = TREES[number]
    leaves, treedef = tree.flatten(value)
    read, build = reader(treedef), builder(treedef)
    assert read(value) == leaves
    assert order(build(leaves)) == order(tree.unflatten(treedef, leaves))
    with pytest.raises(ValueError, match="unpack"):
        build([*leaves, 1])


@pytest.mark.parametrize("number", range(len(TREES)))
def test_other_structures_are_told_apart(number):
    _, treedef = tree.flatten(TREES[number])
    read = reader(treedef)
    for value in [*TREES, *OTHERS]:
        leaves, other = tree.flatten(value)
        if other == treedef:
            assert read(value) == leaves
        elif treedef != tree.structure(0):
            # A leaf may be anything to the reader; what it returns has then no leaf there.
            result = read(value)
            assert result is None or not tree.all_leaves(result)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_nodes_are_left_to_the_tree_library(number):
    leaves, treedef = tree.flatten(OTHERS[number])
    assert reader(treedef) is None
    rebuilt = builder(treedef)(leaves)
    assert tree.flatten(rebuilt) == (leaves, treedef)


def test_dicts_may_have_gained_or_lost_keys():
    read = reader(tree.structure({"a": 1, "b": {"c": 2}}))
    assert read({"b": {"c": 5}, "a": 4}) == [4, 5]
    for wrong in ({"a": 1}, {"a": 1, "b": {"d": 2}}, {"a": 1, "b": {"c": 2}, "e": 3},
                  {"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": [2]}):  # fmt: skip
        assert read(wrong) is None
