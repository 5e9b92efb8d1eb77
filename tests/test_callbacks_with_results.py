"""pure_callback and io_callback, eager and compiled, mapped, nested, wrong."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental import io_callback

X = np.arange(3, dtype=np.float32)


def struct(*shape, dtype=jnp.float32):
    return gf.ShapeDtypeStruct(shape, dtype)


def _modes(function, *args):
    return function(*args), gf.jit(function)(*args)


def test_trees_of_arguments_and_results():
    def host(pair, *, scale):
        assert isinstance(pair["a"], np.ndarray)
        return {"sum": pair["a"] + pair["b"], "n": np.int32(7)}, scale * np.ones(2, np.float32)

    def f(x):
        declared = {"sum": struct(3), "n": struct(dtype=jnp.int32)}, struct(2)
        return gf.pure_callback(host, declared, {"a": x, "b": 2 * x}, scale=x[2])

    for got in _modes(f, X):
        np.testing.assert_array_equal(got[0]["sum"], 3 * X)
        assert got[0]["n"] == 7
        np.testing.assert_array_equal(got[1], [2, 2])


def test_scalars_empty_arrays_and_dtypes():
    empty = np.zeros((0, 3), np.float32)
    for value in (np.float32(2), empty, np.array([True]), np.ones(2, np.int8)):
        f = lambda x: gf.pure_callback(lambda v: v, x, x)  # noqa: E731
        for got in _modes(f, value):
            assert got.dtype == value.dtype
            np.testing.assert_array_equal(got, value)
    assert gf.pure_callback(lambda x: 5, struct(), 1.0) == 5


def test_pure_callbacks_may_be_dropped_and_io_callbacks_may_not():
    seen = []

    def host(x):
        seen.append(float(x))
        return x

    gf.jit(lambda x: (gf.pure_callback(host, x, x), x)[1])(1.0)
    assert seen == []
    gf.jit(lambda x: (io_callback(host, x, x), x)[1])(2.0)
    assert seen == [2.0]
    gf.jit(lambda x: (io_callback(host, x, x), io_callback(host, x, x))[0])(3.0)
    assert seen == [2.0, 3.0, 3.0]
    assert io_callback(lambda: seen.append(0), None) is None


def test_ordered_calls_in_loops():
    seen = []

    def step(c, x):
        y = io_callback(
            lambda v: (seen.append(int(v)), v * 2)[1], struct(dtype=jnp.int32), x, ordered=True
        )
        return c + y, y

    total, ys = gf.jit(lambda: lax.scan(step, 0, jnp.arange(4)))()
    assert seen == [0, 1, 2, 3] and total == 12
    np.testing.assert_array_equal(ys, [0, 2, 4, 6])


@pytest.mark.parametrize(
    "method",
    ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"],
)
def test_vmap_methods(method):
    shapes = []

    def host(x, y):
        shapes.append((x.shape, y.shape))
        return x * y

    def f(x, y):
        return gf.pure_callback(host, struct(3), x, y, vmap_method=method)

    xs, y = np.stack([X, X + 1], axis=1), 2 * X
    mapped = gf.vmap(f, in_axes=(1, None))
    for got in _modes(mapped, xs, y):
        np.testing.assert_array_equal(got, [X * y, (X + 1) * y])
    want = {
        "expand_dims": ((2, 3), (1, 3)),
        "broadcast_all": ((2, 3), (2, 3)),
        "legacy_vectorized": ((2, 3), (3,)),
    }.get(method, ((3,), (3,)))
    assert set(shapes) == {want}
    twice = gf.vmap(gf.vmap(f, (0, None)), (0, None))(np.ones((4, 2, 3), np.float32), y)
    assert twice.shape == (4, 2, 3)
    assert gf.vmap(f, (0, None))(np.ones((0, 3), np.float32), y).shape == (0, 3)


def test_derivatives_through_custom_rules():
    @gf.custom_jvp
    def sine(x):
        return gf.pure_callback(np.sin, struct(), x, vmap_method="expand_dims")

    @sine.defjvp
    def sine_jvp(primals, tangents):
        (x,), (t,) = primals, tangents
        return sine(x), t * gf.pure_callback(np.cos, struct(), x, vmap_method="expand_dims")

    got = gf.vmap(gf.grad(sine))(X)
    np.testing.assert_allclose(got, np.cos(X), rtol=1e-6)
    np.testing.assert_allclose(gf.jit(gf.grad(sine))(1.0), np.cos(1.0), rtol=1e-6)


def test_callbacks_may_call_the_framework():
    inner = gf.jit(lambda x: jnp.sum(jnp.sin(x)))

    def host(x):
        return np.asarray(inner(jnp.asarray(x)) + gf.grad(lambda v: v**2)(1.0))

    f = gf.jit(lambda x: gf.pure_callback(host, struct(), jnp.cos(x)) + 1)
    np.testing.assert_allclose(f(X), np.sin(np.cos(X)).sum() + 3, rtol=1e-6)


def test_errors_of_a_callback_reach_the_user():
    def host(x):
        raise KeyError("lost")

    f = gf.jit(lambda x: gf.pure_callback(host, x, x))
    for call in (f, lambda x: gf.pure_callback(host, x, x)):
        with pytest.raises(KeyError, match="lost"):
            call(X)
    np.testing.assert_array_equal(gf.jit(lambda x: x + 1)(X), X + 1)


def test_refusals():
    def returning(value, declared=None):
        f = lambda x: gf.pure_callback(lambda v: value, declared or struct(3), x)  # noqa: E731
        return lambda: gf.jit(f)(X)

    def identity(x):
        return gf.pure_callback(lambda v: v, x, x)

    cases = [
        (ValueError, r"f32\[2\] for f32\[3\]", returning(np.ones(2, np.float32))),
        (ValueError, r"i32\[3\] for f32\[3\]", returning(np.ones(3, np.int32))),
        (ValueError, "same tree", returning((X, X))),
        (TypeError, "ShapeDtypeStructs", returning(X, declared="text")),
        (TypeError, "function", lambda: gf.pure_callback(3, struct(3), X)),
        (ValueError, "no derivative", lambda: gf.grad(identity)(1.0)),
        (
            ValueError,
            "no derivative",
            lambda: gf.jvp(lambda x: io_callback(lambda v: v, x, x), (1.0,), (1.0,)),
        ),
        (
            ValueError,
            "vmap_method",
            lambda: gf.pure_callback(np.sin, struct(3), X, vmap_method="all"),
        ),
        (NotImplementedError, "vmap_method", lambda: gf.vmap(identity)(X)),
        (
            ValueError,
            "ordered",
            lambda: gf.vmap(lambda x: io_callback(np.sin, x, x, ordered=True))(X),
        ),
    ]
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)
