"""``x[index]`` and ``x.at[index]`` against NumPy, and where JAX differs from NumPy."""

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp

X = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
A, J, K = np.array([0, 2, 1]), np.array([[1], [0]]), np.array([0, 4, 4])
S = slice(None)

INDICES = [
    1, -1, (1, 2), (0, 1, -1), ..., (..., 1), (1, ...), None, (None, 1, None), S, slice(1, 3),
    slice(None, None, -1), (S, slice(2, None, -2)), slice(0, 0), (0, slice(5, 1)), (),
    A, (A,), (S, K % 3), (S, S, K), (A, S, K), (A, K % 3), (J, A, K), (slice(1, 3), A),
    (slice(None, None, -2), A), (None, A), (A, None, K % 3), (0, A), (A, 0), (S, 0, K), (..., K),
    (0, ..., K), (A, S, None, 2), (J, S, A), (slice(3, 0, -1), S, K), (-1, -A), np.array(2),
    np.array([], int), (S, np.array([-1, -2])), (None, S, A, None, K), (A, slice(0, 2), K),
    (slice(0, 0), A), A.astype(np.uint8), (A.astype(np.int8), K % 3),
    X[:, 0, 0] > 0, (S, np.array([True, False, True])), X > 0.5, (X[:, :, 0] > 0, 1),
    (np.array([True, False, True, False]), S, np.array([1, 3])), np.zeros(4, bool),
    (S, 2, ..., np.array([-1])), (A, ..., K % 3, K), (0, [1, 2]),
    ([0, 2], S, [True, False] * 2 + [False]),
    (0, []), ((0, 1), ...), True, (True, 0), (S, True), (..., True), (True, A), (A, True, K % 3),
    (True, True, A), np.array(True), (A, S, True),
]  # fmt: skip
UPDATES = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


def _name(index):
    return str(index).replace("\n", " ")[:60]


@together(size=22)
@pytest.mark.parametrize("index", INDICES, ids=_name)
def test_reading(index):
    want = X[index]
    np.testing.assert_array_equal(jnp.asarray(X)[index], want)
    np.testing.assert_array_equal(gf.jit(lambda x: x[index])(X), want)
    for mode in ("fill", "clip", "promise_in_bounds"):
        np.testing.assert_array_equal(jnp.asarray(X).at[index].get(mode=mode), want)


@together(size=22)
@pytest.mark.parametrize("index", INDICES, ids=_name)
def test_writing(index):
    values = np.random.default_rng(1).uniform(0.5, 2, X[index].shape).astype(np.float32)
    want = X.copy()
    want[index] = values
    for mode in (None, "drop", "clip"):
        np.testing.assert_array_equal(jnp.asarray(X).at[index].set(values, mode=mode), want)
    np.testing.assert_array_equal(gf.jit(lambda x, v: x.at[index].set(v))(X, values), want)
    want[index] = 7
    np.testing.assert_array_equal(jnp.asarray(X).at[index].set(7), want)


@together(size=22)
@pytest.mark.parametrize("index", INDICES, ids=_name)
def test_updating(index):
    values = np.random.default_rng(1).uniform(0.5, 2, X[index].shape).astype(np.float32)
    for name, ufunc in UPDATES.items():
        want = X.copy()
        ufunc.at(want, index, values)
        got = getattr(jnp.asarray(X).at[index], name)(values)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6, err_msg=name)
    want = X.copy()
    np.add.at(want, index, np.float32(1))
    np.testing.assert_allclose(
        jnp.asarray(X).at[index].apply(lambda v: v + 1), want, rtol=1e-6, atol=1e-6
    )


@together(size=22)
@pytest.mark.parametrize("index", INDICES, ids=_name)
def test_derivatives(index):
    """The derivative of reading is what is added back."""
    weights = np.random.default_rng(2).normal(size=X[index].shape).astype(np.float32)
    want = np.zeros_like(X)
    np.add.at(want, index, weights)
    for read in (lambda x: x[index], lambda x: x.at[index].get(mode="clip")):
        got = gf.grad(lambda x, read=read: jnp.sum(read(x) * weights))(X)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    outside = np.ones_like(X)
    outside[index] = 0
    got = gf.grad(lambda x: jnp.sum(x.at[index].set(0)))(X)
    np.testing.assert_array_equal(got, outside)
    got = gf.grad(lambda v: jnp.sum(jnp.asarray(X).at[index].add(v) * X))(weights)
    np.testing.assert_array_equal(got, X[index])


@pytest.mark.parametrize("index", [A, (S, K % 3), (A, S, K), (J, A, K), (0, A)], ids=_name)
def test_traced_indices_and_vmap(index):
    entries = index if type(index) is tuple else (index,)
    is_array = [isinstance(entry, np.ndarray) for entry in entries]
    arrays = [e for e, flag in zip(entries, is_array, strict=True) if flag]

    def rebuilt(arrays):
        remaining = iter(arrays)
        return tuple(next(remaining) if f else e for e, f in zip(entries, is_array, strict=True))

    def f(x, *arrays):
        place = rebuilt(arrays)
        return x[place], x.at[place].add(1.0), x.at[place].set(jnp.cos(x[place]))

    want = f(jnp.asarray(X), *arrays)
    for got in (gf.jit(f)(X, *arrays), gf.vmap(f)(X[None], *[a[None] for a in arrays])):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(np.reshape(a, b.shape), b, rtol=1e-6)
    mapped = gf.vmap(f, in_axes=(0, *[None] * len(arrays)))(np.stack([X, 2 * X]), *arrays)
    for a, b in zip(mapped, f(jnp.asarray(2 * X), *arrays), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-6)


# --- where JAX differs from NumPy ----------------------------------------------------------


def test_places_outside():
    x, far = jnp.arange(5.0), jnp.array([10, -10])
    assert (x[10], x[-10]) == (4, 0)
    np.testing.assert_array_equal(x[far], [4, 0])
    np.testing.assert_array_equal(x.at[far].get(), [4, 0])
    np.testing.assert_array_equal(x.at[far].get(mode="fill"), [np.nan, np.nan])
    np.testing.assert_array_equal(x.at[far].get(mode="fill", fill_value=7), [7, 7])
    np.testing.assert_array_equal(x.at[far].set(9.0), x)
    np.testing.assert_array_equal(x.at[10].set(9.0), x)
    np.testing.assert_array_equal(x.at[far].set(9.0, mode="clip"), [9, 1, 2, 3, 9])
    np.testing.assert_array_equal(x.at[10].add(1.0, mode="clip"), [0, 1, 2, 3, 5])
    np.testing.assert_array_equal(x.at[jnp.array([-1])].set(9.0, wrap_negative_indices=False), x)


def test_values_are_converted():
    with pytest.warns(FutureWarning, match=r"f32\[\] for i32\[5\]"):
        got = jnp.arange(5).at[1].set(jnp.float32(2.5))
    np.testing.assert_array_equal(got, [0, 2, 2, 3, 4])
    assert jnp.zeros(2, jnp.bfloat16).at[0].set(1).dtype == jnp.bfloat16


def test_traced_masks():
    mask = X[:, :, 0] > 0
    row = np.arange(5, dtype=np.float32)
    f = gf.jit(lambda x, m: (x.at[m].set(0.0), x.at[m].multiply(row), x.at[m].add(row[None])))
    zeroed, scaled, added = f(X, mask)
    np.testing.assert_array_equal(zeroed, np.where(mask[..., None], 0, X))
    np.testing.assert_array_equal(scaled, np.where(mask[..., None], X * row, X))
    np.testing.assert_array_equal(added, np.where(mask[..., None], X + row, X))
    with pytest.raises(gf.errors.NonConcreteBooleanIndexError, match="how many elements"):
        gf.jit(lambda x, m: x.at[m].set(np.ones((3, 5))))(X, mask)
    with pytest.raises(gf.errors.NonConcreteBooleanIndexError, match="known while tracing"):
        gf.jit(lambda x, m: x[m])(X, mask)


def test_apply_as_often_as_the_index_says():
    index = jnp.array([1, 1, 2])
    want = [0, 21, 12, 3]
    np.testing.assert_array_equal(jnp.arange(4).at[index].apply(lambda v: v + 10), want)
    f = gf.jit(lambda x, i: x.at[i].apply(lambda v: v + 10))
    np.testing.assert_array_equal(f(jnp.arange(4), index), want)
    once = gf.grad(lambda x: x.at[jnp.array([1, 2])].apply(jnp.sin, unique_indices=True).sum())
    np.testing.assert_allclose(once(jnp.arange(3.0)), [1, np.cos(1), np.cos(2)], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16", "bfloat16", "complex64"])
def test_dtypes(dtype):
    x = jnp.asarray(np.arange(6) % 3).astype(dtype)
    index = jnp.array([1, 5])
    zero = np.zeros((), x.dtype)
    assert x[index].dtype == x.at[index].set(zero).dtype == x.dtype
    assert not np.asarray(x.at[index].set(zero))[[1, 5]].any()


def test_keys():
    keys = gf.random.split(gf.random.key(0), 4)
    moved = keys.at[jnp.array([0])].set(keys[jnp.array([3])])
    np.testing.assert_array_equal(gf.random.key_data(moved)[0], gf.random.key_data(keys)[3])


NEW_AXES = [
    (None, 0),
    (0, None),
    (S, None, 1),
    (0, ..., None),
    (None, S, None, slice(0, 2), None),
    (slice(None, None, -1), None, slice(0, 2)),
    (..., None, 0),
    (-1, slice(7), None, slice(4, 0, -2)),
]


@pytest.mark.parametrize("index", NEW_AXES, ids=_name)
def test_values_with_the_new_axes_of_the_index(index):
    """Static updates compared values with x[index] without its new axes, and raised."""
    shape = X[index].shape
    for own in (shape, tuple(1 if k % 2 else n for k, n in enumerate(shape)), shape[1:]):
        values = np.random.default_rng(1).normal(size=own).astype(np.float32)
        want = X.copy()
        want[index] = values
        np.testing.assert_array_equal(jnp.asarray(X).at[index].set(values), want)
        np.testing.assert_array_equal(gf.jit(lambda x, v: x.at[index].set(v))(X, values), want)


@pytest.mark.parametrize("index", [0, slice(0, 2), A, X[:, 0, 0] > 0, X > 0], ids=_name)
def test_values_have_no_more_axes_than_the_index(index):
    """As in JAX; the scatter and the masks took any number of leading sizes of 1."""
    values = np.ones((1, *X[index].shape), np.float32)
    with pytest.raises(ValueError, match="must broadcast to the shape of x"):
        jnp.asarray(X).at[index].set(values)


def test_negative_ints_are_outside_where_they_do_not_wrap():
    """Static ints counted from the end all the same."""
    x = jnp.asarray(X)
    how = {"wrap_negative_indices": False}
    np.testing.assert_array_equal(x.at[-1].set(0, **how), X)
    np.testing.assert_array_equal(x.at[-1].get(**how), X[0])
    np.testing.assert_array_equal(x.at[-1].get(mode="fill", fill_value=3, **how), 3 + 0 * X[0])
    np.testing.assert_array_equal(x.at[-1].add(1, mode="clip", **how)[0], X[0] + 1)


def test_dividing_integers_gives_floats():
    """As in JAX: x.at[i].divide is x / y, and y is 1 elsewhere."""
    x = jnp.array([7, 9, 5])
    for index in (0, np.array([0, 0]), slice(0, 2), np.array([True, False, True])):
        want = x / jnp.ones(3).at[index].multiply(2)
        out = x.at[index].divide(2)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, want)


def test_refusals():
    x = jnp.asarray(X)
    cases = [
        (IndexError, "at most one index", lambda: x[0, 0, 0, 0]),
        (IndexError, "ellipsis", lambda: x[..., 0, ...]),
        (TypeError, "a sequence", lambda: x[[0, 1]]),
        (TypeError, "a sequence", lambda: x.at[[0, 1]].set(0)),
        (TypeError, "integers or bools", lambda: x[jnp.array([0.5])]),
        (TypeError, "must be ints", lambda: x["a"]),
        (TypeError, "integers or bools", lambda: x[1.5]),
        (IndexError, "a mask must have", lambda: x[np.ones(3, bool)]),
        (ValueError, "must broadcast", lambda: x.at[A].set(np.ones((2, 3, 5)))),
        (ValueError, "must broadcast", lambda: x.at[1:3].set(np.ones((3, 3, 5)))),
        (ValueError, "mode", lambda: x.at[A].set(0, mode="wrap")),
        (ValueError, "step", lambda: x[::0]),
    ]
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)


SOME = np.array([False, True, True])
PARTIAL = {
    "divide": lambda x, index: x.at[index].divide(jnp.array([2.0, 4.0])),
    "divide by a scalar": lambda x, index: x.at[index].divide(2.0),
    "power": lambda x, index: x.at[index].power(0.5),
    "log": lambda x, index: x.at[index].apply(jnp.log, unique_indices=True),
}


@pytest.mark.parametrize("first", [0.0, -0.0, np.inf, np.nan])
@pytest.mark.parametrize("name", PARTIAL)
@pytest.mark.parametrize("index", [slice(1, None), np.array([1, 2]), SOME], ids=str)
def test_elements_outside_of_an_index_pass_with_their_derivative(name, index, first):
    if (index is SOME) > (name != "divide"):
        index = slice(1, None)  # a mask takes one value
    update = PARTIAL[name]
    x = jnp.array([first, 1.0, 2.0])
    for wrap in (lambda f: f, gf.jit):
        out = np.asarray(wrap(lambda x: update(x, index))(x))
        gradient = np.asarray(wrap(gf.grad(lambda x: update(x, index).sum()))(x))
        np.testing.assert_array_equal(out[0], np.float32(first))
        assert np.signbit(out[0]) == np.signbit(np.float32(first)) or np.isnan(first)
        assert gradient[0] == 1.0 and np.isfinite(gradient).all()
