"""Keys of dicts in results: sorted, as in JAX, whose programs zip them with leaves."""

from collections import OrderedDict, defaultdict

import gpuflow as gf
from gpuflow.base import tree


class _Node:
    def __init__(self, child, tag):
        self.child, self.tag = child, tag


gf.tree_util.register_pytree_node(
    _Node, lambda node: ((node.child,), node.tag), lambda tag, children: _Node(*children, tag)
)


def test_keys_come_out_sorted():
    tree = {"b": 1, "a": ({"d": 2, "c": 3}, [4])}
    out = gf.tree.map(lambda x: x, tree)
    assert out == tree and list(out) == ["a", "b"] and list(out["a"][0]) == ["c", "d"]
    assert list(tree) == ["b", "a"]
    assert list(zip(out, gf.tree.leaves({"b": 1, "a": 2}), strict=True)) == [("a", 2), ("b", 1)]


def test_of_unflatten_jit_grad_vmap_and_scan():
    tree = {"b": 1.0, "a": 2.0}
    x = gf.numpy.arange(3.0)
    results = [
        gf.tree.unflatten(gf.tree.structure(tree), [1, 2]),
        gf.grad(lambda d: d["a"] * d["b"])(tree),
        gf.vmap(lambda v: {"b": v, "a": v})(x),
        gf.lax.scan(lambda c, _: ({"b": c["b"], "a": c["a"]}, None), tree, x)[0],
        gf.eval_shape(lambda: tree),
    ]
    compiled = gf.jit(lambda d: {"b": d["b"], "a": next(iter(d)) == "a"})
    results += [compiled(tree) for _ in range(3)]
    assert all(list(result) == ["a", "b"] for result in results)
    assert bool(results[-1]["a"])  # inside, keys of arguments are sorted as well


def test_other_kinds_of_dicts():
    counted = gf.tree.map(lambda x: x, defaultdict(list, b=1, a=2))
    assert list(counted) == ["a", "b"] and counted.default_factory is list
    ordered = gf.tree.map(lambda x: x, OrderedDict(b=1, a=2))
    assert list(ordered) == ["b", "a"]
    assert list(gf.tree.map(lambda x: x, {2: 1, 1: 2})) == [1, 2]


def test_data_of_custom_nodes_stay_their_own():
    """1 and True are equal, so structures with them are: one must not come out for the other."""
    for tag in (1, True, 1.0):
        out = gf.tree.map(lambda x: x, _Node({"b": 1, "a": 2}, tag))
        assert out.tag is tag and list(out.child) == ["a", "b"]
        (key,) = gf.tree.map(lambda x: x, {tag: 0})
        assert key is tag


def test_data_without_a_hash():
    out = gf.tree.map(lambda x: x, _Node({"b": 1, "a": 2}, [1]))
    assert out.tag == [1] and list(out.child) == ["a", "b"]


def test_structures_that_need_nothing_are_returned_as_they_are():
    for value in (1, (1, 2), [1, None], ()):
        structure = tree.structure(value)
        assert tree.sorted_keys(structure) is structure


def test_what_is_remembered_is_bounded():
    for number in range(1100):
        gf.tree.map(lambda x: x, {f"b{number}": 1, "a": 2})
    assert len(tree._sorted) <= 1024
