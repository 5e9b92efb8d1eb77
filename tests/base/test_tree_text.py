"""Printed readers and builders of trees give the results of flatten and unflatten."""

import collections

import numpy as np
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


class Labelled:
    """A node with data, whose children are made one by one."""

    def __init__(self, x, label):
        self.x, self.label = x, label


tree.register_node(
    Labelled,
    lambda node: ((x for x in [node.x]), node.label),
    lambda label, children: Labelled(*children, label),
)
tree.register_node(Node, lambda node: ((node.x,), None), lambda _, children: Node(*children))
tree.register_node(Own, lambda own: ((own.b,), None), lambda _, children: Own(0, *children))

TREES = [
    1,
    (1,),
    [],
    (),
    {},
    None,
    [None],
    {"b": 1, "a": (2, [3, None])},
    Pair(1, {3: 2}),
    Child(1, 2),
    [Pair(1, ()), {("x", 1): 4}],
    ((1, 2), {}),
    {"it's": 1, 'a "b"\n': 2},
    {True: 1, 0: 2},
    {f"layer{k}": {"w": k, "b": [k]} for k in range(300)},
    {2.5: 1},
    {frozenset([1]): 1},
]
CUSTOM = [
    Node(1),
    [Node((1, 2))],
    Own(1, 2),
    Labelled(1, "a"),
    Labelled(1, "b"),
    (Labelled({"x": Node(2)}, ("c", 3)), None),
]
OTHERS = [collections.OrderedDict(a=1), collections.deque([1])]


def order(node):
    """Dicts are equal in any order; their items here are not."""
    if isinstance(node, dict):
        return [(key, order(value)) for key, value in node.items()]
    if isinstance(node, list | tuple):
        return type(node), [order(value) for value in node]
    return type(node), node


class Leaf:
    def __init__(self, value):
        self.value = value

    @property
    def aval(self):
        return "type", self.value


def read_with(read, value):
    """What a reader of one argument gives for it; its leaves become objects with an aval."""
    found = read((value,), {}, "first", lambda leaves: [*map(Leaf, leaves)])
    if found is None:
        return None
    leaves, key = found
    assert key == ("first", *[leaf.aval for leaf in leaves])
    return [leaf.value for leaf in leaves]


def reader_of(value):
    return reader(tree.structure(((value,), {})), attribute="aval")


@pytest.mark.parametrize("number", range(len(TREES)))
def test_leaves_and_trees(number):
    value = TREES[number]
    leaves, treedef = tree.flatten(value)
    read, build = reader_of(value), builder(treedef)
    assert read_with(read, value) == leaves
    assert order(build(leaves)) == order(tree.unflatten(treedef, leaves))
    with pytest.raises(ValueError, match="unpack"):
        build([*leaves, 1])


@pytest.mark.parametrize("number", range(len(TREES)))
def test_other_structures_are_told_apart(number):
    _, treedef = tree.flatten(TREES[number])
    read = reader_of(TREES[number])
    for value in [*TREES, *CUSTOM, *OTHERS]:
        leaves, other = tree.flatten(value)
        if other == treedef:
            assert read_with(read, value) == leaves
        elif treedef != tree.structure(0):
            # A leaf may be anything to the reader; what it returns has then no leaf there.
            result = read_with(read, value)
            assert result is None or not tree.all_leaves(result)


@pytest.mark.parametrize("number", range(len(CUSTOM)))
def test_nodes_of_registered_classes(number):
    leaves, treedef = tree.flatten(CUSTOM[number])
    read = reader_of(CUSTOM[number])
    assert read_with(read, CUSTOM[number]) == leaves
    for value in [*CUSTOM[:number], *CUSTOM[number + 1 :], *TREES[1:]]:
        result = read_with(read, value)
        assert result is None or not tree.all_leaves(result)
    assert tree.flatten(builder(treedef)(leaves)) == (leaves, treedef)


def test_data_of_nodes_that_cannot_be_compared_are_of_another_structure():
    """Arrays as data have no equality that is true or false."""
    read = reader_of(Labelled(1, np.arange(2)))
    assert read_with(read, Labelled(1, np.arange(2))) is None
    read = reader_of(Labelled(1, {"unhashable": [1]}))
    assert read_with(read, Labelled(1, {"unhashable": [1]})) == [1]
    assert read_with(read, Labelled(1, {"unhashable": [2]})) is None


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_nodes_are_left_to_the_tree_library(number):
    leaves, treedef = tree.flatten(OTHERS[number])
    assert reader_of(OTHERS[number]) is None
    rebuilt = builder(treedef)(leaves)
    assert tree.flatten(rebuilt) == (leaves, treedef)


def test_dicts_may_have_gained_or_lost_keys():
    read = reader_of({"a": 1, "b": {"c": 2}})
    assert read_with(read, {"b": {"c": 5}, "a": 4}) == [4, 5]
    for wrong in (
        {"a": 1},
        {"a": 1, "b": {"d": 2}},
        {"a": 1, "b": {"c": 2}, "e": 3},
        {"a": 1, "b": {"c": 2, "d": 3}},
        {"a": 1, "b": [2]},
    ):
        assert read_with(read, wrong) is None


def test_static_arguments_are_in_the_key():
    read = reader(tree.structure((([1], 2), {"k": 3})), (0, 2, "also"), "aval")
    one, two, three, method = Leaf(1), Leaf(2), Leaf(3), object()
    leaves, key = read((method, [one], 4.0, two), {"also": True, "k": three}, "first")
    assert leaves == [one, two, three]
    avals = one.aval, two.aval, three.aval
    assert key == ("first", *avals, object, method, float, 4.0, bool, True)
    for args, kwargs in [
        ((method, [one], 4.0), {"also": True, "k": three}),
        ((method, [one], 4.0, two, two), {"also": True, "k": three}),
        ((method, one, 4.0, two), {"also": True, "k": three}),
        ((method, [one], 4.0, two), {"k": three}),
        ((method, [one], 4.0, two), {"also": True, "k": three, "more": one}),
    ]:
        assert read(args, kwargs, "first") is None
    with pytest.raises(AttributeError):
        read((method, [one], 4.0, 5), {"also": True, "k": three}, "first")
