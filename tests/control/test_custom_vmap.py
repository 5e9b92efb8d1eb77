"""custom_vmap: the user's rule in place of vmap's, also under derivatives."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.custom_batching import custom_vmap, sequential_vmap


def product():
    """A sum that vmap turns into a product, so that one sees whose rule ran."""

    @custom_vmap
    def f(x, y):
        return x + y, x

    @f.def_vmap
    def _(axis_size, in_batched, x, y):
        f.seen.append((axis_size, list(in_batched)))
        return (x * y, x), (True, in_batched[0])

    f.seen = []
    return f


X = np.array([1.0, 2.0, 3.0], "f")


def test_the_rule_runs_under_vmap_only():
    f = product()
    assert [float(v) for v in f(1.0, 2.0)] == [3.0, 1.0] and f.seen == []
    assert float(gf.jit(f)(1.0, 2.0)[0]) == 3.0
    out, x = gf.vmap(f, in_axes=(0, None))(X, 2.0)
    np.testing.assert_array_equal(out, X * 2)
    np.testing.assert_array_equal(x, X)
    assert f.seen == [(3, [True, False])]
    out, x = gf.jit(gf.vmap(f, in_axes=(None, 1)))(2.0, X[None])
    np.testing.assert_array_equal(out, 2 * X[:, None])
    assert x.shape == (3,) and f.seen[-1] == (3, [False, True])


def test_maps_nest():
    f = product()
    xs = np.arange(6, dtype="f").reshape(2, 3)
    nested = gf.vmap(gf.vmap(f, in_axes=(0, None)), in_axes=(0, None))
    np.testing.assert_array_equal(gf.jit(nested)(xs, 2.0)[0], xs * 2)


def test_forward_mode_differentiates_the_rule():
    f = product()
    mapped = gf.vmap(f, in_axes=(0, None))
    (out, _), (tangent, _) = gf.jvp(mapped, (X, 2.0), (X, 1.0))
    np.testing.assert_array_equal(tangent, X * 2 + X)

    def element(x):
        return gf.jvp(f, (x, 2.0), (x, 1.0))

    (out, _x), (tangent, x_tangent) = gf.vmap(element)(X)
    np.testing.assert_array_equal(out, X * 2)
    np.testing.assert_array_equal(tangent, X * 2 + X)
    np.testing.assert_array_equal(x_tangent, X)


def test_tangents_alone_may_be_mapped():
    f = product()
    basis = np.eye(3, dtype="f")

    def push(t):
        return gf.jvp(lambda x: gf.vmap(f, in_axes=(0, None))(x, 2.0)[0], (X,), (t,))[1]

    np.testing.assert_array_equal(gf.vmap(push)(basis), 2 * basis)
    column = gf.vmap(lambda t: gf.jvp(lambda x: f(x, 2.0)[1], (1.0,), (t,))[1])(X)
    np.testing.assert_array_equal(column, X)


def test_reverse_mode_of_the_mapped_function():
    f = product()
    grads = gf.grad(lambda x: jnp.sum(gf.vmap(f, in_axes=(0, None))(x, 2.0)[0]))(X)
    np.testing.assert_array_equal(grads, [2, 2, 2])
    assert gf.grad(lambda x: f(x, 2.0)[0])(1.0).item() == 1.0


def test_with_custom_vjp_outside():
    inner = custom_vmap(lambda x: jnp.sin(x))
    inner.def_vmap(lambda size, in_batched, x: (jnp.cos(x), True))
    f = gf.custom_vjp(lambda x: inner(x))
    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * 7.0,))
    np.testing.assert_allclose(gf.vmap(f)(X), np.cos(X), rtol=1e-6)
    np.testing.assert_array_equal(gf.vmap(gf.grad(f))(X), [7, 7, 7])


def test_trees_keywords_and_methods():
    @custom_vmap
    def f(p, scale=2.0):
        return {"out": p["x"] * scale}

    @f.def_vmap
    def _(axis_size, in_batched, p, scale):
        assert in_batched == [{"x": True}, False]
        return {"out": p["x"] * scale + 100}, {"out": True}

    np.testing.assert_array_equal(gf.vmap(f)({"x": X})["out"], X * 2 + 100)
    assert float(f(p={"x": 1.0})["out"]) == 2.0

    class Model:
        rate = 3.0
        apply = custom_vmap(lambda self, x: x)

    with pytest.raises(TypeError):
        Model.apply.def_vmap(lambda *args: None)
        Model().apply(1.0)


def test_sequential_vmap_calls_one_after_the_other():
    @sequential_vmap
    def f(x, y):
        assert jnp.ndim(x) == 0
        return x + y[0], x

    out, x = gf.vmap(f, in_axes=(0, None))(X, (10.0,))
    np.testing.assert_array_equal(out, X + 10)
    np.testing.assert_array_equal(x, X)
    grads = gf.grad(lambda x: jnp.sum(gf.vmap(f, in_axes=(0, None))(x, (10.0,))[0] ** 2))(X)
    np.testing.assert_array_equal(grads, 2 * (X + 10))


def test_errors():
    f = custom_vmap(lambda x: x)
    with pytest.raises(AttributeError, match=r"\[custom_vmap\] <lambda> must have a rule"):
        f(1.0)
    f.def_vmap(lambda size, in_batched, x: (x, (True,)))
    with pytest.raises(ValueError, match="must return one bool for each output"):
        gf.vmap(f)(X)
    f.def_vmap(lambda size, in_batched, x: ((x,), (True,)))
    with pytest.raises(ValueError, match="must return the tree of the function's output"):
        gf.vmap(f)(X)
    f.def_vmap(lambda size, in_batched, x: x)
    with pytest.raises(ValueError, match=r"must return a pair \(out, out_batched\)"):
        gf.vmap(f)(X)
    with pytest.raises(TypeError, match="arguments must fit the function"):
        f(z=1.0)

    def closes_over(y):
        g = custom_vmap(lambda x: x * y)
        g.def_vmap(lambda size, in_batched, x: (x * y, True))
        return g(2.0 * y)

    with pytest.raises(ValueError, match="must not close over mapped values"):
        gf.vmap(closes_over)(X)
    # Derivatives take the function apart: x * y for x = 2 y.
    assert gf.grad(closes_over)(3.0) == 12
    assert gf.jvp(closes_over, (3.0,), (1.0,)) == (18, 12)
