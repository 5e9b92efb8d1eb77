"""ds: slices of known size at places known at run time, in indices of arrays and refs."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.experimental import checkify

X = np.arange(24, dtype=np.float32).reshape(6, 4)
# What JAX 0.10 gives, as an index of NumPy, for a start of 1.
INDICES = {
    "rows": (lambda i: gf.ds(i, 2), np.s_[1:3]),
    "rows, column": (lambda i: (gf.ds(i, 2), 0), np.s_[1:3, 0]),
    "row, columns": (lambda i: (i, gf.ds(i, 2)), np.s_[1, 1:3]),
    "both": (lambda i: (gf.ds(i, 2), gf.ds(i + 1, 1)), np.s_[1:3, 2:3]),
    "behind an ellipsis": (lambda i: (..., gf.ds(i, 3)), np.s_[..., 1:4]),
    "beside a new axis": (lambda i: (None, gf.ds(i, 2)), np.s_[None, 1:3]),
    "with a stride": (lambda i: gf.ds(i, 2, 3), np.s_[1:5:3]),
    "beside an array": (lambda i: (gf.ds(i, 2), np.array([3, 0])), np.s_[1:3, [3, 0]]),
    "nothing": (lambda i: gf.ds(i, 0), np.s_[1:1]),
    "from the front": (lambda i: gf.ds(2), np.s_[:2]),
    "all": (lambda i: gf.ds(None), np.s_[:]),
}


@pytest.mark.parametrize("wrap", [gf.jit, lambda f: f])
@pytest.mark.parametrize("name", INDICES)
def test_arrays_and_refs(name, wrap):
    make, index = INDICES[name]
    array = jnp.asarray(X)
    one = np.int32(1)
    np.testing.assert_array_equal(wrap(lambda x, i: x[make(i)])(array, one), X[index])
    np.testing.assert_array_equal(wrap(lambda x, i: x.at[make(i)].get())(array, one), X[index])
    for method, change in (("set", lambda old: 0 * old - 1), ("add", lambda old: old - 1)):
        expected = X.copy()
        expected[index] = change(expected[index])
        out = wrap(lambda x, i, method=method: getattr(x.at[make(i)], method)(-1.0))(array, one)
        np.testing.assert_array_equal(out, expected)
    ref = gf.new_ref(X)
    read = wrap(lambda i: ref[make(i)])
    np.testing.assert_array_equal(read(one), X[index])

    @wrap
    def write(i):
        ref[make(i)] = ref[make(i)] * 2

    write(one)
    expected = X.copy()
    expected[index] *= 2
    np.testing.assert_array_equal(ref[...], expected)


def test_derivatives_and_vmap():
    gradient = gf.grad(lambda x: (x[gf.ds(1, 2)] ** 2).sum())(jnp.asarray(X))
    expected = np.zeros_like(X)
    expected[1:3] = 2 * X[1:3]
    np.testing.assert_array_equal(gradient, expected)
    starts = jnp.arange(3)
    rows = gf.vmap(lambda i: jnp.asarray(X)[gf.ds(i, 2), 0])(starts)
    np.testing.assert_array_equal(rows, [X[i : i + 2, 0] for i in range(3)])


@pytest.mark.parametrize(("start", "first"), [(5, 4), (99, 4), (-3, 3)])
def test_slices_that_do_not_fit_are_moved(start, first):
    """As in JAX for starts that are traced."""
    out = gf.jit(lambda x, i: x[gf.ds(i, 2)])(X, np.int32(start))
    np.testing.assert_array_equal(out, X[first : first + 2])


def test_checkify_looks_at_them():
    f = checkify.checkify(lambda x, i: x[gf.ds(i, 2)], checkify.index_checks)
    assert f(X, np.int32(4))[0].get() is None
    assert "index 5 is out of bounds for axis 0 with size 6" in f(X, np.int32(5))[0].get()


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: gf.ds(0, 1.5), TypeError, r"\[ds\] size must be an integer"),
        (lambda: gf.jit(lambda n: gf.ds(0, n).size)(3), TypeError, "concrete|must be known|an int"),
        (lambda: gf.ds(0, -1), ValueError, "the size not negative; got stride None and size -1"),
        (lambda: gf.ds(0, 1, 0), ValueError, "the stride must be an int of at least 1"),
        (lambda: gf.ds(1.5, 1), TypeError, "the start must be an integer scalar; got 1.5"),
        (lambda: jnp.asarray(X)[gf.ds(0, 7)], ValueError, "must fit into its axis; got one"),
        (lambda: jnp.asarray(X)[gf.ds(0, 1), 0, 0], IndexError, "at most one index for each axis"),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()
