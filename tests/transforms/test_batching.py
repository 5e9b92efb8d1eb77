"""vmap: axes in and out over trees, names, sizes, nesting, and jaxprs batched once."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.rules import AxisData
from gpuflow.transforms.batching import batch_jaxpr

RANDOM = np.random.default_rng(1)
A = RANDOM.normal(size=(2, 3, 4)).astype("f")
B = RANDOM.normal(size=(4, 3)).astype("f")


def _loop(f, in_axes, size, *args):
    rows = []
    for k in range(size):
        taken = [x if axis is None else np.take(x, k, axis) for x, axis in zip(args, in_axes)]
        rows.append(np.asarray(f(*taken)))
    return np.stack(rows)


FUNCTIONS = {
    "sum": lambda a, b: jnp.sum(a) + jnp.sum(b, axis=0),
    "max": lambda a, b: jnp.max(a, axis=-1) * jnp.min(b),
    "concatenate": lambda a, b: jnp.concatenate([a.ravel(), b.ravel()]),
    "gather": lambda a, b: a[jnp.asarray([0, -1])] * jnp.max(b),
    "where": lambda a, b: jnp.where(a > jnp.mean(b), a, 0),
    "softmax": lambda a, b: jnp.exp(a) / jnp.sum(jnp.exp(a), -1, keepdims=True) + b.ravel()[0],
    "closure": lambda a, b: gf.vmap(lambda row: jnp.sum(row) * b)(a),
    "jit": lambda a, b: gf.jit(lambda x, y: x.T * jnp.sum(y))(a, b),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("in_axes", [(0, None), (1, 1), (-1, 0), (2, -2), (None, 0)])
def test_against_a_loop(name, in_axes):
    f = FUNCTIONS[name]
    sizes = {x.shape[axis] for x, axis in zip((A, B), in_axes) if axis is not None}
    assert len(sizes) == 1
    got = gf.vmap(f, in_axes)(A, B)
    want = _loop(f, in_axes, sizes.pop(), A, B)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    moved = gf.vmap(f, in_axes, out_axes=-1)(A, B)
    np.testing.assert_allclose(moved, np.moveaxis(want, 0, -1), rtol=1e-5, atol=1e-6)


def test_trees_prefixes_and_keywords():
    tree = {"w": A, "b": (B[0], None)}

    def f(p, s, k):
        return {"y": p["w"] * s + k, "b": p["b"][0]}

    out = gf.vmap(f, in_axes=({"w": 1, "b": 0}, None))(tree, 2.0, k=B[0])
    np.testing.assert_allclose(out["y"], A.transpose(1, 0, 2) * 2 + B[0][:, None, None], rtol=1e-6)
    np.testing.assert_array_equal(out["b"], B[0])
    both = gf.vmap(lambda x: (x, {"z": x * 2}), out_axes=(1, {"z": 0}))(A)
    assert both[0].shape == (3, 2, 4) and both[1]["z"].shape == (2, 3, 4)
    np.testing.assert_array_equal(gf.vmap(lambda x: x, in_axes=[1])(B), B.T)


def test_outputs_that_are_not_mapped():
    np.testing.assert_array_equal(gf.vmap(lambda x: 3.0)(B), [3, 3, 3, 3])
    columns = gf.vmap(lambda x: jnp.arange(2), out_axes=1)(B)
    np.testing.assert_array_equal(columns, [[0] * 4, [1] * 4])
    assert float(gf.vmap(lambda x: 3.0, out_axes=None)(B)) == 3.0
    assert gf.vmap(lambda x: None)(B) is None


def test_axis_size_without_mapped_arguments():
    np.testing.assert_array_equal(gf.vmap(lambda: 2.0, axis_size=3)(), [2, 2, 2])
    np.testing.assert_array_equal(gf.vmap(lambda x: x, in_axes=None, axis_size=2)(1.0), [1, 1])


def test_axes_of_size_zero_and_one():
    assert gf.vmap(lambda x: jnp.sum(x) + x)(np.zeros((0, 3), "f")).shape == (0, 3)
    np.testing.assert_array_equal(gf.vmap(lambda x, y: x + y)(A[:1], A[:1]), 2 * A[:1])


def test_nested_maps_and_matmul():
    got = gf.vmap(gf.vmap(jnp.dot, (None, 1)), (0, None))(A[0], B)
    np.testing.assert_allclose(got, A[0] @ B, rtol=1e-5, atol=1e-6)
    got = gf.vmap(lambda a: gf.vmap(lambda b: jnp.dot(a, b), 1, 1)(B))(A)
    np.testing.assert_allclose(got, A @ B, rtol=1e-5, atol=1e-6)


def test_per_example_gradients():
    def loss(w, x):
        return jnp.sum(jnp.tanh(jnp.dot(x, w)))

    w, x = B[:, 0], A[0]
    got = gf.vmap(gf.grad(loss), (None, 0))(w, x)
    want = (1 - np.tanh(x @ w) ** 2)[:, None] * x
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    whole = gf.grad(lambda w: jnp.sum(gf.vmap(loss, (None, 0))(w, x)))(w)
    np.testing.assert_allclose(whole, want.sum(0), rtol=1e-5, atol=1e-6)


def test_integers_and_bools():
    n = np.arange(4)
    got = gf.vmap(lambda k, flag: jnp.where(flag, k * 2, -k))(n, n > 1)
    np.testing.assert_array_equal(got, [0, -1, 4, 6])
    assert got.dtype == np.int32


def test_batched_jaxprs_are_made_once():
    closed = gf.make_jaxpr(lambda x, y: (x * 2, y))(1.0, 2.0)
    axis = AxisData(None, 3)
    mapped, flags = batch_jaxpr(closed, axis, (True, False))
    assert flags == (True, False)
    assert batch_jaxpr(closed, AxisData(None, 3), (True, False))[0] is mapped
    forced, flags = batch_jaxpr(closed, axis, (True, False), (True, True))
    assert flags == (True, True) and forced.out_avals[1].shape == (3,)


def test_mapped_tracers_hide_the_axis():
    shapes = []
    gf.vmap(lambda x: shapes.append((x.shape, x.ndim, x.dtype)) or x, in_axes=1)(A)
    assert shapes == [((2, 4), 2, np.float32)]
