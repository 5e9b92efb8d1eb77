"""vmap as users call it: axes over trees, keywords, sizes, outputs, names, keys, messages."""

from typing import NamedTuple

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.trace import thread_state

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(3, 2)).astype("f")
Y = RANDOM.normal(size=(4, 2)).astype("f")


class Pair(NamedTuple):
    first: object
    second: object


def two(x, y):
    return x


# --- axes in -------------------------------------------------------------------------------


def test_axes_follow_the_containers_of_the_arguments():
    def f(tree, pair):
        assert tree["u"].shape == (2,) and tree["v"][0].shape == (3,) and tree["v"][1].shape == (3,)
        return tree["u"] + tree["v"][0][:2] + pair.first + pair.second

    tree = {"u": X, "v": (X, np.ones(3, "f"))}
    axes = ({"u": 0, "v": (1, None)}, Pair(None, 0))
    with pytest.raises(ValueError, match="one size"):
        gf.vmap(f, axes)(tree, Pair(1.0, X))
    tree["v"] = (np.ones((3, 3), "f"), np.ones(3, "f"))
    got = gf.vmap(f, axes)(tree, Pair(1.0, X))
    np.testing.assert_allclose(got, 2 * X + 2, rtol=1e-6)


def test_one_axis_stands_for_a_whole_argument():
    tree = {"a": X, "b": [X, (X,)]}
    got = gf.vmap(lambda t, s: t["a"] + t["b"][1][0] * s, in_axes=(1, None))(tree, 2.0)
    np.testing.assert_allclose(got, (3 * X).T, rtol=1e-6)
    got = gf.vmap(lambda t: t["a"] * t["b"][0].sum(), in_axes=({"a": 0, "b": None},))(tree)
    np.testing.assert_allclose(got, X * X.sum(), rtol=1e-5)


def test_lists_stand_for_the_tuple_of_arguments():
    np.testing.assert_array_equal(gf.vmap(jnp.add, in_axes=[0, None])(X, X[0]), X + X[0])
    np.testing.assert_array_equal(gf.vmap(lambda x: x, in_axes=np.int64(1))(X), X.T)


def test_keyword_arguments_are_mapped_over_their_first_axis():
    got = gf.vmap(lambda a, *, b, c: a + b["w"] * c, in_axes=None)(2.0, b={"w": X}, c=X[:, 0])
    np.testing.assert_allclose(got, 2 + X * X[:, :1], rtol=1e-6)


def test_what_is_not_mapped_may_be_any_object():
    got = gf.vmap(lambda x, how, none: x * 2 if how == "twice" else x, in_axes=(0, None, 0))(
        X, "twice", None
    )
    np.testing.assert_array_equal(got, X * 2)


def test_sizes_may_be_given():
    assert gf.vmap(lambda: jnp.zeros(2), axis_size=3)().shape == (3, 2)
    assert gf.vmap(lambda x: x, axis_size=3)(X).shape == (3, 2)
    assert gf.vmap(lambda: 1.0, axis_size=0)().shape == (0,)
    assert gf.vmap(lambda x: jnp.sum(x) * 2)(np.zeros((0, 3), "f")).shape == (0,)


# --- axes out ------------------------------------------------------------------------------


def test_outputs_go_where_they_are_wanted():
    out = gf.vmap(lambda x: {"a": x, "b": [x, 1.0]}, out_axes={"a": -1, "b": [0, None]})(X)
    np.testing.assert_array_equal(out["a"], X.T)
    np.testing.assert_array_equal(out["b"][0], X)
    assert float(out["b"][1]) == 1.0
    np.testing.assert_array_equal(gf.vmap(lambda x: Pair(x, x), out_axes=Pair(1, 0))(X).first, X.T)
    assert gf.vmap(lambda x: (None, x))(X)[0] is None


@pytest.mark.parametrize("in_axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("out_axis", [0, 1, 2, -1, -3])
def test_all_places(in_axis, out_axis):
    x = RANDOM.normal(size=(2, 3, 4)).astype("f")
    got = gf.vmap(lambda v: v * 2, in_axes=in_axis, out_axes=out_axis)(x)
    np.testing.assert_array_equal(got, np.moveaxis(2 * x, in_axis, out_axis))


def test_outputs_without_the_axis_are_repeated():
    got = gf.vmap(lambda x: (jnp.arange(2.0), 3), out_axes=(1, 0))(X)
    np.testing.assert_array_equal(got[0], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(got[1], [3, 3, 3])


# --- names ---------------------------------------------------------------------------------


def test_names_are_in_scope_inside_only():
    seen = []
    gf.vmap(lambda x: seen.append(gf.config.axis_env) or x, axis_name="i")(X)
    inner = gf.vmap(lambda x: seen.append(gf.config.axis_env) or x, axis_name=("a", 1))
    gf.vmap(inner, axis_name="i")(X)
    gf.vmap(lambda x: seen.append(gf.config.axis_env) or x)(X)
    assert seen == [(("i", 3),), (("i", 3), (("a", 1), 2)), ()]
    with pytest.raises(ZeroDivisionError):
        gf.vmap(lambda x: 1 // 0, axis_name="i")(X)
    assert gf.config.axis_env == ()


def test_a_tuple_may_be_a_name():
    with pytest.raises(NameError, match=r"'i' must be bound; got \('i', 'j'\) in scope"):
        gf.vmap(lambda x: lax.psum(x, "i"), axis_name=("i", "j"))(X)


@pytest.mark.parametrize("given, kept", [(None, None), ("mesh", ("mesh",)), (("a", "b"),) * 2])
def test_mesh_names_reach_the_rules(given, kept):
    seen = []
    mapped = gf.vmap(lambda x: seen.append(thread_state.trace.axis) or x, spmd_axis_name=given)
    mapped(X)
    assert seen[0].spmd_name == kept and seen[0].size == 3


def test_keys_are_mapped_like_numbers():
    keys = gf.random.split(gf.random.key(3), 4)
    got = gf.vmap(lambda key: gf.random.normal(key, (2,)))(keys)
    want = np.stack([gf.random.normal(keys[k], (2,)) for k in range(4)])
    np.testing.assert_allclose(got, want, rtol=1e-6)  # one program, and op by op
    bits = gf.vmap(lambda key: gf.random.bits(key, (2,)))(keys)
    want = np.stack([gf.random.bits(keys[k], (2,)) for k in range(4)])
    np.testing.assert_array_equal(bits, want)
    grid = gf.vmap(gf.vmap(gf.random.bits))(keys.reshape(2, 2))
    np.testing.assert_array_equal(grid.ravel(), gf.vmap(gf.random.bits)(keys))
    folded = gf.vmap(lambda n: gf.random.fold_in(gf.random.key(3), n), out_axes=0)(np.arange(2))
    assert folded.shape == (2,) and folded.dtype == keys.dtype


def test_the_wrapper_looks_like_the_function():
    mapped = gf.vmap(two)
    assert mapped.__name__ == "two" and mapped.__doc__.startswith("vmap of two")


# --- messages ------------------------------------------------------------------------------

AT_ONCE = [
    (lambda: gf.vmap(3), "must be a function; got 3"),
    (lambda: gf.vmap(two, in_axes="0"), "in_axes must hold ints and None; got '0' for two"),
    (lambda: gf.vmap(two, in_axes=(0, 1.0)), "in_axes must hold ints and None; got 1.0"),
    (lambda: gf.vmap(two, in_axes=(True, 0)), "in_axes must hold ints and None; got True"),
    (lambda: gf.vmap(two, in_axes={"a": 0}), "must be an int, None, or a tuple"),
    (lambda: gf.vmap(two, out_axes=("x", 0)), "out_axes must hold ints and None; got 'x'"),
    (lambda: gf.vmap(two, axis_name=["i"]), "axis_name must be hashable; got ['i']"),
    (
        lambda: gf.vmap(two, axis_size=-1),
        "axis_size must be an int of at least 0; got -1",
        ValueError,
    ),
    (
        lambda: gf.vmap(two, axis_size=2.0),
        "axis_size must be an int of at least 0; got 2.0",
        ValueError,
    ),
]
IN_THE_CALL = [
    (
        lambda: gf.vmap(two)(X, {"k": (Y, X)}),
        ValueError,
        "got 3 along axis 0 of x, 4 along axis 0 of y['k'][0], 3 along axis 0 of y['k'][1].",
    ),
    (lambda: gf.vmap(two, axis_size=5)(X, X), ValueError, "axis_size=5"),
    (lambda: gf.vmap(two, in_axes=(0, 0, 0))(X, X), ValueError, "one item for each argument"),
    (
        lambda: gf.vmap(two, in_axes=((0, 0, 0), 0))((X, X), X),
        ValueError,
        "at [0] the entries [0, 1, 2] for [0, 1]",
    ),
    (
        lambda: gf.vmap(two, in_axes=({"a": 0}, 0))({"b": X}, X),
        ValueError,
        "at [0] the entries ['a'] for ['b']",
    ),
    (lambda: gf.vmap(two, in_axes=(0, (0,)))(X, X), ValueError, "at [1] a tuple for a leaf"),
    (lambda: gf.vmap(lambda x: [x, x], out_axes=(0, 1))(X), ValueError, "a tuple for a list"),
    (lambda: gf.vmap(two, in_axes=None)(X, X), ValueError, "got in_axes of None only"),
    (lambda: gf.vmap(lambda: 1.0)(), ValueError, "got no arguments"),
    (lambda: gf.vmap(two, in_axes=(2, None))(X, X), ValueError, "got 2 for f32[3,2]"),
    (lambda: gf.vmap(two, in_axes=(-3, None))(X, X), ValueError, "an axis in [-2, 2)"),
    (lambda: gf.vmap(two)(X, y=1.0), ValueError, "got 0 for f32[]"),
    (
        lambda: gf.vmap(lambda x: {"u": (1.0, x)}, out_axes={"u": (0, None)})(X),
        ValueError,
        "from <lambda> at ['u'][1]",
    ),
    (lambda: gf.vmap(lambda x: x, out_axes=2)(X), ValueError, "[vmap out_axes] axis must be in"),
    (lambda: gf.vmap(two)(X, "text"), TypeError, "got 'text' of type str"),
    (lambda: gf.vmap(lambda x: (x, "text"))(X), TypeError, "got 'text' of type str from <lambda>"),
]


@pytest.mark.parametrize("number", range(len(AT_ONCE)))
def test_messages_at_once(number):
    call, text, *error = AT_ONCE[number]
    with pytest.raises(*error or [TypeError]) as caught:
        call()
    assert text in str(caught.value) and "Fix: " in str(caught.value)


@pytest.mark.parametrize("number", range(len(IN_THE_CALL)))
def test_messages_in_the_call(number):
    call, error, text = IN_THE_CALL[number]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value) and "Fix: " in str(caught.value)
