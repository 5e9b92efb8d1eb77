"""Structures print as JAX's, and are what optree's are otherwise."""

from __future__ import annotations

import collections
import copy
import pickle
import subprocess
import sys
import textwrap

import pytest

import gpuflow as gf
from gpuflow.base import tree as base_tree

structure = gf.tree_util.tree_structure
Pair = collections.namedtuple("Pair", "a b")


class Node:
    def __init__(self, data, *children):
        self.data, self.children = data, children


gf.tree_util.register_pytree_node(
    Node, lambda node: (node.children, node.data), lambda data, children: Node(data, *children)
)

# Printed by JAX 0.10.2.
PRINTED = [
    (1, "*"),
    (None, "None"),
    ((), "()"),
    ([], "[]"),
    ({}, "{}"),
    ((1,), "(*,)"),
    ([1, 2], "[*, *]"),
    ({"b": 1, "a": (1, None)}, "{'a': (*, None), 'b': *}"),
    ([[[1]], {"x": {}}], "[[[*]], {'x': {}}]"),
    (Pair(1, [None]), "CustomNode(namedtuple[Pair], [*, [None]])"),
    (Node("aux", 1), "CustomNode(Node[aux], [*])"),
    (Node(None, [1, 2]), "CustomNode(Node[None], [[*, *]])"),
    (
        Node(("s", "t"), {"x": Node("y", 1)}),
        "CustomNode(Node[('s', 't')], [{'x': CustomNode(Node[y], [*])}])",
    ),
    (collections.OrderedDict(b=1, a=2), "CustomNode(OrderedDict[('b', 'a')], [*, *])"),
    (
        collections.defaultdict(list, b=1, a=2),
        "CustomNode(defaultdict[(<class 'list'>, ('a', 'b'))], [*, *])",
    ),
    (
        gf.tree_util.Partial(print, 1, k=2),
        "CustomNode(Partial[<built-in function print>], [(*,), {'k': *}])",
    ),
]


@pytest.mark.parametrize(("tree", "printed"), PRINTED, ids=[text for _, text in PRINTED])
def test_structures_print_as_jax_does(tree, printed):
    expected = f"PyTreeDef({printed})"
    leaves, treedef = gf.tree_util.tree_flatten(tree)
    pairs, other = gf.tree_util.tree_flatten_with_path(tree)
    for one in (treedef, other, structure(tree), copy.deepcopy(treedef)):
        assert repr(one) == str(one) == f"{one}" == expected
        assert isinstance(one, gf.tree_util.PyTreeDef) and type(one).__name__ == "PyTreeDef"
    plain = base_tree.structure(tree)
    assert treedef == plain and plain == treedef and hash(treedef) == hash(plain)
    assert treedef.num_leaves == len(leaves) == len(pairs)
    assert structure(gf.tree_util.tree_unflatten(treedef, leaves)) == treedef
    assert structure(treedef.unflatten(leaves)) == treedef
    assert treedef.flatten_up_to(tree) == leaves


def test_parts_of_structures_print_so_too():
    treedef = structure((1, {"a": [2]}))
    assert repr(treedef.children()) == "[PyTreeDef(*), PyTreeDef({'a': [*]})]"
    assert repr(gf.tree_util.treedef_children(treedef)) == repr(treedef.children())
    assert repr(gf.tree_util.treedef_tuple(treedef.children())) == repr(treedef)
    lowered = gf.jit(lambda x, y: {"sum": x + y["a"][0]}).lower(1.0, {"a": [2.0]})
    assert repr(lowered.in_tree) == "PyTreeDef(((*, {'a': [*]}), {}))"
    assert repr(lowered.compile().out_tree) == "PyTreeDef({'sum': *})"


def test_structures_are_pickled():
    treedef = structure({"a": [1, None]})
    again = pickle.loads(pickle.dumps(treedef))
    assert again == treedef and repr(again) == repr(treedef) == "PyTreeDef({'a': [*, None]})"
    assert type(again) is type(treedef) is type(copy.deepcopy(treedef))


def test_garbage_is_collected_at_any_time():
    """The process ended when a collection met an object of optree that had no state yet."""
    text = """
        import gc, pickle
        gc.set_threshold(1)
        import gpuflow
        for k in range(100):
            treedef = gpuflow.tree.structure({f"a{k}": (1, [2, None])})
            assert repr(treedef) == f"PyTreeDef({{'a{k}': (*, [*, None])}})"
            assert pickle.loads(pickle.dumps(treedef)) == treedef
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_keys_of_a_structure_are_sorted_whichever_dict_was_first():
    """Equal structures are one object, which must not depend on the first dict's order."""
    for keys in ("ba", "ab"):
        treedef = structure({key: {"z": 1, "y": 2} for key in keys})
        for made in (treedef.unflatten(range(4)), gf.tree_util.tree_unflatten(treedef, range(4))):
            assert list(made) == ["a", "b"] and list(made["a"]) == ["y", "z"]
            assert made == {"a": {"y": 0, "z": 1}, "b": {"y": 2, "z": 3}}


@pytest.mark.parametrize("one", [1, True, 1.0])
def test_equal_data_are_not_confused(one):
    """Structures with 1 and True are equal; each keeps its own."""
    (key,) = gf.tree_util.tree_unflatten(structure({one: 5}), [5])
    assert type(key) is type(one)
    for data in (one, ("a", one)):
        made = gf.tree_util.tree_unflatten(structure(Node(data, 5)), [5])
        assert repr(made.data) == repr(data)


def test_a_class_is_data_like_any_other():
    assert repr(structure(Node(dict, 1))) == "PyTreeDef(CustomNode(Node[<class 'dict'>], [*]))"


def test_messages_show_structures_as_jax_prints_them():
    with pytest.raises(ValueError, match=r"got PyTreeDef\(\{'a': \*\}\) and, as tree 1, Py"):
        gf.tree.map(lambda x, y: x, {"a": 1}, {"b": 1})
    with pytest.raises(TypeError, match=r"got PyTreeDef\(\(\*,\)\) and PyTreeDef\(\(\*, \*\)\)"):
        gf.jvp(lambda x: x, (1.0,), (1.0, 2.0))
    with pytest.raises(TypeError, match=r"\(carry, y\); got PyTreeDef\(\[\*, \*, \*\]\)"):
        gf.lax.scan(lambda c, x: [c, c, c], 0.0, None, length=2)
