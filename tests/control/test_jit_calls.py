"""Calls of jitted functions: the short way for known trees of Arrays, and all that leaves it."""

import collections
import warnings

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.errors import DeletedArrayError

pytestmark = pytest.mark.simulated_gpu

Point = collections.namedtuple("Point", "x y")
X = jnp.arange(3.0)


def test_trees_of_arrays():
    traced = []

    @gf.jit
    def f(tree, scale=None):
        traced.append(1)
        point = tree["p"]
        out = {"sum": point.x + point.y[0], "kept": [tree["q"], None], "p": Point(point.x, ())}
        return out if scale is None else (out["sum"] * scale,)

    tree = {"q": X, "p": Point(X + 1, [X * 2])}
    for _ in range(3):
        out = f(tree)
        assert list(out) == ["kept", "p", "sum"] and type(out["p"]) is Point
        np.testing.assert_array_equal(out["sum"], 3 * np.arange(3) + 1)
        assert out["kept"][1] is None and out["kept"][0] is not X
        (scaled,) = f(tree, scale=X)
        np.testing.assert_array_equal(scaled, (3 * np.arange(3) + 1) * np.arange(3))
    assert len(traced) == 2
    assert f({"p": Point(X, [X]), "q": X})["sum"].shape == (3,) and len(traced) == 2


def test_other_leaves_take_the_long_way():
    f = gf.jit(lambda t: t["a"] * 2)
    f({"a": X})
    for value in (np.arange(3.0, dtype=np.float32), 3.0, np.float32(3), True):
        np.testing.assert_array_equal(f({"a": value}), 2 * np.asarray(value))
    assert len(f({"a": [1.0, 2.0, 3.0]})) == 6  # another structure: a list, taken twice
    with pytest.raises(TypeError, match=r"t\['a'\]"):
        f({"a": "text"})
    with pytest.raises(ValueError, match="masked"):
        f({"a": np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])})
    np.testing.assert_array_equal(gf.vmap(f)({"a": jnp.ones((2, 3))}), np.full((2, 3), 2))
    assert gf.grad(lambda x: f({"a": x}).sum())(X).tolist() == [2, 2, 2]


def test_types_and_settings_are_told_apart():
    f = gf.jit(lambda x: x / 2)
    assert f(X).dtype == np.float32 and f(jnp.arange(4)).shape == (4,)
    with gf.enable_x64():
        wide = jnp.arange(3.0)
        assert f(wide).dtype == np.float64
    assert f(X).dtype == np.float32
    weak = jnp.asarray(2.0)
    assert f(weak).weak_type and not f(weak.astype("float32")).weak_type
    with gf.disable_jit():
        seen = []
        gf.jit(lambda x: seen.append(float(x)))(weak)
        assert seen == [2.0]


def test_deleted_arrays_are_refused():
    f = gf.jit(lambda t: t[0] + t[1])
    x = X + 1
    f((x, X))
    x.delete()
    assert x.is_deleted()
    x.delete()
    for call in (lambda: f((x, X)), lambda: x + 1, lambda: np.asarray(x), x.block_until_ready):
        with pytest.raises(DeletedArrayError, match="donated or deleted"):
            call()


def test_closed_over_arrays_are_refused_once_deleted():
    w = X * 3
    f = gf.jit(lambda x: x + w)
    np.testing.assert_array_equal(f(X), 4 * np.arange(3))
    w.delete()
    with pytest.raises(DeletedArrayError):
        f(X)


def test_more_structures_than_are_remembered():
    f = gf.jit(lambda *args, **kwargs: sum(args) + sum(kwargs.values()))
    for _ in range(2):
        for count in range(1, 9):
            assert f(*[X] * count).tolist() == [0, count, 2 * count]
            assert f(X, **{f"k{k}": X for k in range(count)}).tolist()[1] == 1 + count


def test_donated_leaves_of_a_tree():
    f = gf.jit(lambda state, x: ({"w": state["w"] + x}, x), donate_argnums=0)
    state = {"w": jnp.zeros(1000)}
    x = jnp.ones(1000)
    for k in range(4):
        old = state["w"]
        state, same = f(state, x)
        assert old.is_deleted() and not x.is_deleted() and same is not x
        assert state["w"][0] == k + 1
    with pytest.raises(ValueError, match="passed once"):
        f({"w": x}, x)


def test_results_that_are_operands_have_arrays_of_their_own():
    f = gf.jit(lambda a, b: (b, a, b))
    for y in (jnp.ones(3), np.ones(3, np.float32)):
        b, a, again = f(X, y)
        assert a is not X and b is not again and isinstance(b, gf.Array)
        a.delete()
        assert not X.is_deleted()
        if isinstance(y, np.ndarray):
            y[:] = 7
            assert b.tolist() == again.tolist() == [1, 1, 1]


def test_numpy_warns_of_nothing_and_stays_as_it_is():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        out = jnp.ones(3) / jnp.zeros(3) + jnp.log(-jnp.ones(3))
        assert np.isnan(np.asarray(out)).all()
        with pytest.raises(FloatingPointError):
            np.ones(3) / np.zeros(3)
