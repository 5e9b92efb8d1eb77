"""Assertions of chex on gpuflow, as JSON: which wrong values each one found. See test_as_jax.py."""

import json

import chex
import jax
import jax.numpy as jnp

X = jnp.ones((2, 3))
OTHER = {"a": X + 1}

RIGHT_AND_WRONG = {
    "shape": (lambda: chex.assert_shape(X, (2, 3)), lambda: chex.assert_shape(X, (3, 2))),
    "rank": (lambda: chex.assert_rank(X, 2), lambda: chex.assert_rank(X, 1)),
    "type": (lambda: chex.assert_type(X, jnp.float32), lambda: chex.assert_type(X, int)),
    "equal_shape": (
        lambda: chex.assert_equal_shape([X, X]),
        lambda: chex.assert_equal_shape([X, X[0]]),
    ),
    "trees_all_close": (
        lambda: chex.assert_trees_all_close({"a": X}, {"a": X + 1e-8}),
        lambda: chex.assert_trees_all_close({"a": X}, OTHER),
    ),
    "trees_all_equal": (
        lambda: chex.assert_trees_all_equal({"a": X}, {"a": X}),
        lambda: chex.assert_trees_all_equal({"a": X}, OTHER),
    ),
    "trees_all_equal_structs": (
        lambda: chex.assert_trees_all_equal_structs({"a": X}, OTHER),
        lambda: chex.assert_trees_all_equal_structs({"a": X}, {"b": X}),
    ),
    "tree_all_finite": (
        lambda: chex.assert_tree_all_finite(X),
        lambda: chex.assert_tree_all_finite(X / 0),
    ),
    "numerical_grads": (
        lambda: chex.assert_numerical_grads(lambda x: x**2, (jnp.ones(()),), 1),
        lambda: chex.assert_scalar_in(3.0, 0, 1),
    ),
}


def is_refused(call, error=AssertionError):
    try:
        call()
    except error:
        return True
    return False


def value_assertions():
    """Assertions of values inside of jit, as results of the program."""

    @chex.chexify
    @jax.jit
    def f(x, y):
        chex.assert_tree_all_finite(x)
        chex.assert_trees_all_close(x, y)
        return x.sum()

    def late(*args):
        f(*args)
        f.wait_checks()

    late(X, X)
    refused = [is_refused(lambda: late(X / 0, X)), is_refused(lambda: late(X, X + 1))]
    outside = jax.jit(lambda x: chex.assert_tree_all_finite(x))
    return [*refused, is_refused(lambda: outside(X), RuntimeError)]


def traces():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def f(x):
        return x + 1

    f(X), f(X)
    return is_refused(lambda: f(X[0]))


@chex.dataclass
class Point:
    x: chex.Array
    y: float = 2.0


def dataclasses():
    out = jax.tree.map(lambda v: v * 2, Point(x=X))
    total = jax.jit(lambda p: p.x.sum() + p.y)(Point(x=X))
    return [float(out.y), float(total), float(jax.grad(lambda p: p.y**2)(Point(x=X)).y)]


def main():
    for name, (right, _) in RIGHT_AND_WRONG.items():
        assert not is_refused(right), name
    with chex.fake_pmap_and_jit():
        faked = jax.pmap(lambda x: x + 1)(jnp.arange(3)).tolist()
    report = {
        "refused": [name for name, (_, wrong) in RIGHT_AND_WRONG.items() if is_refused(wrong)],
        "values": value_assertions(),
        "traces": traces(),
        "dataclass": dataclasses(),
        "fake_pmap": faked,
    }
    print(json.dumps(report))


main()
