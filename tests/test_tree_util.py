"""Pytrees under JAX's names."""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import tree, tree_util

Point = namedtuple("Point", ["x", "y"])
TREES = [
    1,
    (),
    [],
    {},
    None,
    (1, 2),
    [1, [2, (3,)]],
    {"b": 1, "a": [2, None]},
    Point(1, {"k": 2}),
    OrderedDict([("z", 1), ("a", 2)]),
    {"deep": {"er": [{}, ()]}},
]


@pytest.mark.parametrize("value", TREES, ids=str)
def test_round_trip(value):
    leaves, treedef = tree.flatten(value)
    assert tree.unflatten(treedef, leaves) == value
    assert tree.structure(value) == treedef
    assert tree.leaves(value) == leaves
    assert treedef.num_leaves == len(leaves)


def test_none_is_a_node_and_dict_keys_are_sorted():
    assert tree.leaves({"b": 1, "a": None, "c": 2}) == [1, 2]
    assert tree.leaves({"b": 1, "a": 3}) == [3, 1]
    assert tree.leaves([None, 1], is_leaf=lambda v: v is None) == [None, 1]


def test_map_and_reduce():
    assert tree.map(lambda a, b: a + b, {"k": (1, 2)}, {"k": (3, 4)}) == {"k": (4, 6)}
    assert tree.reduce(lambda a, b: a + b, [1, (2, 3)]) == 6
    assert tree.reduce(lambda a, b: a + b, [], 10) == 10
    assert tree.all([True, (1,)]) and not tree.all([True, (0,)])
    with pytest.raises(ValueError):
        tree.map(lambda a, b: a, (1, 2), (1, 2, 3))


def test_transpose():
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    outer, inner = tree.structure([0, 0]), tree.structure({"a": 0, "b": 0})
    assert tree.transpose(outer, inner, rows) == {"a": [1, 3], "b": [2, 4]}
    assert tree.transpose(outer, None, rows) == {"a": [1, 3], "b": [2, 4]}
    assert tree.transpose(outer, inner, tuple(rows)) == {"a": [1, 3], "b": [2, 4]}  # as in JAX
    with pytest.raises(TypeError, match="tree_transpose"):
        tree.transpose(outer, inner, [*rows, {"a": 5, "b": 6}])


def test_registered_classes():
    @tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a,), self.b

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children, aux)

    out = tree.map(lambda v: v + 1, Pair(1, "name"))
    assert (out.a, out.b) == (2, "name")
    gradient = gpuflow.grad(lambda p: jnp.sum(p.a**2))(Pair(jnp.arange(3.0), "n"))
    np.testing.assert_array_equal(np.asarray(gradient.a), [0, 2, 4])


def test_registered_dataclass():
    @tree_util.register_dataclass
    @dataclass
    class Layer:
        weight: object
        name: str = field(default="", metadata={"static": True})

    leaves, treedef = tree.flatten(Layer(3, "dense"))
    assert leaves == [3]
    assert tree.unflatten(treedef, [4]) == Layer(4, "dense")
    assert treedef != tree.structure(Layer(3, "other"))


def test_static_node():
    @tree_util.register_static
    @dataclass(frozen=True)
    class Setting:
        value: int

    assert tree.leaves([Setting(1), 2]) == [2]
    assert tree.map(lambda v: v, Setting(1)) == Setting(1)


def test_partial_is_a_tree():
    function = tree_util.Partial(lambda a, b, c=0: a * b + c, 2, c=1)
    assert function(3) == 7
    assert sorted(tree.leaves(function)) == [1, 2]
    doubled = tree.map(lambda v: 2 * v, function)
    assert isinstance(doubled, tree_util.Partial) and doubled(3) == 14
    assert float(gpuflow.jit(lambda f, x: f(x))(function, 3.0)) == 7.0


def test_paths():
    pairs, treedef = tree.flatten_with_path({"w": [1, 2]})
    assert [tree_util.keystr(path) for path, _ in pairs] == ["['w'][0]", "['w'][1]"]
    assert treedef.num_leaves == 2
    named = tree.map_with_path(lambda path, leaf, other: (len(path), leaf + other), [1], [5])
    assert named == [(1, 6)]
    assert tree.leaves_with_path([7])[0][1] == 7


def test_all_leaves():
    assert tree_util.all_leaves([1, "a"])
    assert not tree_util.all_leaves([1, (2,)])


# --- keys, structures, registration --------------------------------------------------------


def test_key_paths_are_those_of_jax():
    pairs, _ = tree_util.tree_flatten_with_path({"b": [1, (2, None)], "a": Point(3, 4)})
    paths = [path for path, _ in pairs]
    key, index, name = tree_util.DictKey, tree_util.SequenceKey, tree_util.GetAttrKey
    assert paths == [
        (key("a"), name("x")),
        (key("a"), name("y")),
        (key("b"), index(0)),
        (key("b"), index(1), index(0)),
    ]
    assert [tree_util.keystr(path) for path in paths] == [
        "['a'].x",
        "['a'].y",
        "['b'][0]",
        "['b'][1][0]",
    ]
    assert tree_util.keystr(paths[3], simple=True, separator="/") == "b/1/0"
    assert str(tree_util.FlattenedIndexKey(2)) == "[<flat index 2>]"
    assert repr(key("a")) == "DictKey(key='a')"
    assert tree_util.tree_leaves_with_path(3) == [((), 3)]
    assert tree_util.tree_leaves_with_path([[1]], is_leaf=lambda x: x == [1]) == [
        ((index(0),), [1])
    ]


def test_registration_with_keys():
    class Named:
        def __init__(self, left, right):
            self.left, self.right = left, right

    tree_util.register_pytree_with_keys(
        Named,
        lambda n: (((tree_util.GetAttrKey("left"), n.left), ("second", n.right)), None),
        lambda _, children: Named(*children),
    )
    assert [p for p, _ in tree_util.tree_leaves_with_path([Named(1, 2)])] == [
        (tree_util.SequenceKey(0), tree_util.GetAttrKey("left")),
        (tree_util.SequenceKey(0), "second"),
    ]
    assert tree.map(lambda x: -x, Named(1, 2)).right == -2

    @tree_util.register_pytree_with_keys_class
    class Keyed:
        def __init__(self, value):
            self.value = value

        def tree_flatten_with_keys(self):
            return (("value", self.value),), "aux"

        @classmethod
        def tree_unflatten(cls, aux, children):
            assert aux == "aux"
            return cls(*children)

    assert tree_util.tree_map_with_path(lambda p, x: (p, x), Keyed(5)).value == (("value",), 5)
    with pytest.raises(ValueError):
        tree_util.register_pytree_with_keys_class(Keyed)


def test_dataclasses_with_static_and_dropped_fields():
    @tree_util.register_dataclass
    @dataclass
    class Layer:
        weight: object
        name: str = tree.static(default="layer")

    assert tree.leaves(Layer(1, "a")) == [1]
    assert tree.structure(Layer(1, "a")) != tree.structure(Layer(1, "b"))
    assert tree_util.tree_leaves_with_path(Layer(1))[0][0] == (tree_util.GetAttrKey("weight"),)

    @dataclass
    class Cache:
        data: object
        memory: object = None

    tree_util.register_dataclass(Cache, ["data"], [], drop_fields=["memory"])
    assert tree.map(lambda x: x + 1, Cache(1, "large")) == Cache(2, None)

    @dataclass
    class Wrong:
        a: int
        b: int

    with pytest.raises(ValueError, match="fields given must be"):
        tree_util.register_dataclass(Wrong, ["a"], [])


def test_structures():
    a, b = tree.structure([1, 2]), tree.structure({"k": None})
    assert tree_util.treedef_tuple([a, b]) == tree.structure(([1, 2], {"k": None}))
    assert tree_util.treedef_children(tree.structure((1, [2]))) == [
        tree.structure(0),
        tree.structure([0]),
    ]
    assert tree_util.treedef_is_leaf(tree.structure(3))
    assert not tree_util.treedef_is_leaf(a)
    assert tree_util.is_tree_node(dict) and tree_util.is_tree_node(Point)
    assert not tree_util.is_tree_node(int)
    assert tree_util.flatten_one_level({"b": 2, "a": [1]}) == ([[1], 2], ("a", "b"))
    assert tree_util.flatten_one_level(None) == ([], None)
    assert tree_util.flatten_one_level_with_keys([7])[0] == [(tree_util.SequenceKey(0), 7)]
    assert tree_util.default_registry.flatten_one_level(3) is None
    with pytest.raises(ValueError, match="flatten_one_level"):
        tree_util.flatten_one_level(3)
    assert tree_util.all_leaves([1, "a"]) and not tree_util.all_leaves([1, [2]])


def test_broadcast_and_balanced_reduction():
    assert tree.broadcast((1, 2), ([3, 4], 5)) == ([1, 1], 2)
    with pytest.raises(ValueError, match="one structure"):
        tree.broadcast((1, 2), [3])
    calls = []
    total = tree.reduce_associative(lambda a, b: (calls.append((a, b)), a + b)[1], list(range(5)))
    assert total == 10 and calls[0] == (0, 1) and len(calls) == 4
    assert tree.reduce_associative(max, (), identity=-1) == -1
    with pytest.raises(TypeError, match="identity"):
        tree.reduce_associative(max, ())


def test_mismatches_name_the_place():
    with pytest.raises(ValueError, match=r"at \['a'\]\[1\] a leaf and a dict|with keys"):
        tree.map(lambda x, y: x, {"a": [1, {"b": 2}]}, {"a": [1, {"c": 2}]})
    with pytest.raises(ZeroDivisionError):
        tree.map(lambda x: 1 / x, [0])

    def fail(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        tree.map(fail, [0])


def test_is_leaf_may_ask_for_the_path():
    nested = {"a": (1, 2), "b": {"c": (3, None, [4, 5])}, "n": None}

    def stops(path, node):
        return len(path) == 2

    pairs, treedef = tree_util.tree_flatten_with_path(nested, stops, is_leaf_takes_path=True)
    named = [(tree_util.keystr(path), leaf) for path, leaf in pairs]
    assert named == [("['a'][0]", 1), ("['a'][1]", 2), ("['b']['c']", (3, None, [4, 5]))]
    assert treedef.num_leaves == 3
    assert tree_util.tree_unflatten(treedef, [leaf for _, leaf in pairs]) == nested
    assert tree.leaves_with_path(nested, lambda path, node: True, True) == [((), nested)]
    other = {"a": (5, 6), "b": {"c": 7}, "n": None}
    got = tree.map_with_path(
        lambda path, x, y: (len(path), y), nested, other, is_leaf=stops, is_leaf_takes_path=True
    )
    assert got == {"a": ((2, 5), (2, 6)), "b": {"c": (2, 7)}, "n": None}
    got = tree.map_with_path(
        lambda path, x: x is None,
        {"a": None, "b": (None, 2)},
        is_leaf=lambda path, node: node is None,
        is_leaf_takes_path=True,
    )
    assert got == {"a": True, "b": (True, False)}


def test_a_field_is_not_both_data_and_meta():
    @dataclass
    class Point:
        x: float

    with pytest.raises(ValueError, match=r"data or meta; got \['x'\] as both.*Fix:"):
        tree_util.register_dataclass(Point, ["x"], ["x"])


def test_a_partial_of_a_partial_keeps_its_arguments():
    """functools.partial takes the inner one apart, whose arguments then became children."""
    for inner in (tree_util.Partial(max, 1), functools.partial(max, 1)):
        outer = tree_util.Partial(inner, 2)
        assert tree_util.tree_leaves(outer) == [2] and outer() == 2 and outer(5) == 5
        assert tree_util.tree_map(lambda x: x + 7, outer)(0) == 9
        assert gpuflow.jit(lambda f: f())(tree_util.Partial(functools.partial(jnp.add, 1), 2)) == 3
