"""jnp's sorting and cumulative functions; their values are compared with JAX's elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import random

X = np.random.default_rng(0).integers(0, 6, (20, 30)).astype(np.float32)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("axis", [0, -1, None])
def test_argsort_sorts(axis, descending, stable):
    order = jnp.argsort(X, axis, descending=descending, stable=stable)
    x = X.ravel() if axis is None else X
    taken = jnp.take_along_axis(x, order, 0 if axis is None else axis)
    want = jnp.sort(X, axis, descending=descending, stable=stable)
    np.testing.assert_array_equal(np.asarray(taken), np.asarray(want))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_is_numpys(side):
    a = np.sort(np.random.default_rng(1).integers(0, 50, 40).astype(np.float32))
    v = np.random.default_rng(2).integers(-5, 60, (7, 9)).astype(np.float32)
    want = np.searchsorted(a, v, side)
    got = jnp.searchsorted(a, v, side)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(np.asarray(got), want)
    shuffled = np.random.default_rng(3).permutation(40)
    inverse = np.argsort(shuffled)
    got = gf.jit(lambda a, v, s: jnp.searchsorted(a, v, side, s))(a[shuffled], v, inverse)
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_searchsorted_for_nothing_and_in_nothing(shape):
    assert jnp.searchsorted(jnp.arange(3.0), jnp.zeros(shape)).shape == shape
    np.testing.assert_array_equal(np.asarray(jnp.searchsorted(jnp.zeros(0), X)), np.zeros(X.shape))


def test_methods_and_tracers():
    def function(x):
        return x.sort(), x.argsort(0), x.cumsum(1), x.cumprod(axis=0, dtype=int)

    for eager, traced in zip(function(jnp.asarray(X)), gf.jit(function)(X), strict=True):
        np.testing.assert_array_equal(np.asarray(eager), np.asarray(traced))


def test_median_of_gradients_reaches_the_middle_element():
    x = jnp.array([5.0, 1.0, 3.0])
    np.testing.assert_array_equal(np.asarray(gf.grad(lambda x: jnp.sort(x)[1])(x)), [0, 0, 1])


def test_permutations_under_jit_and_vmap():
    keys = random.split(random.key(1), 3)
    mapped = np.asarray(gf.jit(gf.vmap(lambda key: random.permutation(key, 50)))(keys))
    for k in range(3):
        np.testing.assert_array_equal(mapped[k], np.asarray(random.permutation(keys[k], 50)))
        np.testing.assert_array_equal(np.sort(mapped[k]), np.arange(50))
    rows = np.asarray(random.permutation(keys[0], X))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, X))


def test_choices_without_replacement_differ():
    key = random.key(2)
    for p in (None, jnp.arange(1.0, 31.0) / 465):
        drawn = np.asarray(random.choice(key, 30, (5, 6), False, p))
        np.testing.assert_array_equal(np.sort(drawn, None), np.arange(30))
    kept = np.asarray(random.choice(key, X, (4,), replace=False, axis=1))
    assert kept.shape == (20, 4)
    assert random.choice(key, 3, (0, 2)).shape == (0, 2)
    with gf.enable_x64(True):
        for replace in (True, False):
            drawn = random.choice(key, 3, (2,), replace, jnp.ones(3) / 3)
            assert drawn.dtype == np.int64


def test_choice_follows_its_probabilities():
    drawn = np.asarray(random.choice(random.key(3), 3, (20000,), p=jnp.array([0.5, 0.0, 0.5])))
    # Four standard deviations of a fair coin.
    assert 1 not in drawn and abs((drawn == 0).mean() - 0.5) < 4 * 0.5 / 20000**0.5


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: jnp.sort(X, kind="heapsort"), TypeError, r"\[sort\] kind and order.*stable=True"),
        (lambda: jnp.argsort(X, order="x"), TypeError, r"\[argsort\] kind and order"),
        (lambda: jnp.sort(X, 2), ValueError, "axis"),
        (lambda: jnp.sort([1, 2]), TypeError, "arrays or numbers"),
        (lambda: jnp.lexsort([]), TypeError, r"\[lexsort\] there must be a key"),
        (lambda: jnp.searchsorted(X[0], 1, "middle"), ValueError, "side must be 'left' or 'right'"),
        (lambda: jnp.searchsorted(X, 1), ValueError, r"must have rank 1; got f32\[20,30\]"),
        (lambda: jnp.cumsum(X, 2), ValueError, "axis"),
        (lambda: jnp.cumsum(X, out=X), NotImplementedError, "out must be None.*jnp.cumsum"),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int16])
def test_places_in_arrays_larger_than_a_cache(side, dtype):
    """They are found in a loop, which has derivatives and can be mapped."""
    generator = np.random.default_rng(2)
    a = np.sort(generator.integers(-1000, 1000, 200_001)).astype(dtype)
    v = generator.integers(-1100, 1100, (7, 31)).astype(dtype)
    if dtype is np.float32:
        a[-5:], v[0, :3] = np.nan, [np.nan, np.inf, -np.inf]
    for method in ("scan", "scan_unrolled"):
        got = jnp.searchsorted(a, v, side, method=method)
        np.testing.assert_array_equal(got, np.searchsorted(a, v, side))
    got = gf.vmap(lambda v: jnp.searchsorted(a, v, side))(v)
    np.testing.assert_array_equal(got, np.searchsorted(a, v, side))
    points = jnp.arange(100_000.0)
    slope = gf.grad(lambda y: jnp.interp(y, points, points**2).sum())(jnp.array([3.5, 99.25]))
    np.testing.assert_array_equal(slope, [7.0, 199.0])
