"""Scatters into the small state of a loop are selections inside of its kernel."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

RANDOM = np.random.default_rng(0)


def normals(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def is_one_kernel(function, *args):
    text = str(gf.jit(function).lower(*args).compile().explain("plan"))
    return "lane_loop" in text and "loop or branch" not in text


def turns(body, count=9):
    """A loop over ``count`` turns that changes a small array, whose values the body sees."""

    def run(x, v):
        def turn(c):
            i, x = c
            return i + 1, body(x, i, v * (i + 1))

        return lax.while_loop(lambda c: c[0] < count, turn, (-2, x))[1]

    return run


def steps(body, x, v, count=9):
    """The same with NumPy, on a copy."""
    x = np.array(x)
    for i in range(-2, count):
        body(x, i, v * np.float32(i + 1))
    return x


def inside(i, n):
    return -n <= i < n


UPDATES = {
    "set": None,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def by_hand(name):
    def change(x, i, v):
        if inside(i, len(x)):
            x[i] = v if name == "set" else UPDATES[name](x[i], v)

    return change


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("shape", [(7, 2), (5,), (3, 2, 4), (1, 3)])
def test_one_row(name, shape):
    x, v = normals(*shape), normals(*shape[1:])
    function = turns(lambda x, i, v: getattr(x.at[i], name)(v))
    np.testing.assert_allclose(gf.jit(function)(x, v), steps(by_hand(name), x, v), 1e-6)
    assert is_one_kernel(function, x, v)


def test_two_indices_and_columns():
    x, v = normals(4, 5), normals()

    def body(x, i, v):
        return x.at[i % 4, (i + 2) % 5].set(v).at[:, i % 3].add(v)

    def change(x, i, v):
        x[i % 4, (i + 2) % 5] = v
        x[:, i % 3] += v

    function = turns(body)
    np.testing.assert_allclose(gf.jit(function)(x, v), steps(change, x, v), 1e-6)
    assert is_one_kernel(function, x, v)


@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
def test_outside(mode):
    x, v = normals(5, 2), normals(2)

    def place(i):
        return jnp.clip(i, 0, 4) if mode == "promise_in_bounds" else i

    def change(x, i, v):
        at = min(max(i, 0), 4) if mode != "drop" else i % 5 if inside(i, 5) else None
        if at is not None:
            x[at] = v

    function = turns(lambda x, i, v: x.at[place(i)].set(v, mode=mode))
    got = gf.jit(function)(x, v)
    if mode == "clip":  # negative indices count from the end before they are clipped, as in JAX

        def change(x, i, v):
            x[min(max(i + 5 if i < 0 else i, 0), 4)] = v

    np.testing.assert_array_equal(got, steps(change, x, v))
    assert is_one_kernel(function, x, v)


def test_special_values_and_types():
    x = np.array([[-0.0, np.nan], [np.inf, -0.0], [1e-45, 2.0]], np.float32)
    function = turns(lambda x, i, v: x.at[i].add(v), 1)
    wanted = steps(by_hand("add"), x, np.zeros(2, np.float32), 1)
    got = np.asarray(gf.jit(function)(x, np.zeros(2, np.float32)))
    np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))
    for dtype in (np.int8, np.uint32, np.float16, bool):
        x = np.zeros((4, 2), dtype)
        got = gf.jit(turns(lambda x, i, v: x.at[i].set((v > 3).astype(x.dtype))))(x, normals(2))
        assert got.dtype == dtype and got.shape == (4, 2)


def test_under_vmap_each_lane_has_its_own_index():
    x, v, first = normals(33, 6, 2), normals(33, 2), RANDOM.integers(-3, 9, 33)

    def run(x, v, first):
        def turn(c):
            i, x, _ = c
            return i + 1, x.at[i].add(v * (i + 1)), x[i % 6, 0]

        return lax.while_loop(lambda c: c[0] < first + 4, turn, (first, x, v[0]))[1:]

    got, last = gf.jit(gf.vmap(run))(x, v, first)
    assert is_one_kernel(gf.vmap(run), x, v, first)
    for n in range(33):
        mine, seen = np.array(x[n]), v[n, 0]
        for i in range(first[n], first[n] + 4):
            seen = mine[i % 6, 0]
            if inside(i, 6):
                mine[i] += v[n] * np.float32(i + 1)
        np.testing.assert_allclose(got[n], mine, 1e-5, 1e-6)
        np.testing.assert_allclose(last[n], seen, 1e-5, 1e-6)


def test_derivatives():
    x, v = normals(5, 2), normals(2)

    def function(x, v):
        def turn(i, x):
            return x.at[i % 5].multiply(jnp.sin(v * (i + 1))).at[2].add(x[i % 3])

        return (lax.fori_loop(0, 7, turn, x) ** 2).sum()

    gf.test_util.check_grads(gf.jit(function), (x, v), order=1, rtol=2e-2, atol=2e-2)


def test_what_is_too_much_is_no_kernel():
    function = turns(lambda x, i, v: x.at[i].set(v))
    x, v = normals(80, 2), normals(2)
    np.testing.assert_array_equal(gf.jit(function)(x, v), steps(by_hand("set"), x, v))
    assert not is_one_kernel(function, x, v)
    several = turns(lambda x, i, v: x.at[jnp.array([0, 2])].set(v))
    np.testing.assert_allclose(gf.jit(several)(x[:4], v)[:1], v[None] * 9, 1e-6)
