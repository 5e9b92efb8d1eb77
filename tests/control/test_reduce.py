"""reduce and reduce_window with any computation, against loops in NumPy."""

import itertools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)

COMPUTATIONS = {
    "add": (lax.add, np.add, 0),
    "jnp add": (jnp.add, np.add, 0),
    "mul": (lax.mul, np.multiply, 1),
    "max": (lax.max, np.maximum, -np.inf),
    "min": (jnp.minimum, np.minimum, np.inf),
    "hypot": (lambda a, b: jnp.sqrt(a * a + b * b), np.hypot, 0),
    "swapped": (lambda a, b: b + a, np.add, 0),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), ()])
def test_reduce(name, axes):
    computation, ufunc, init = COMPUTATIONS[name]
    want = X.astype(float)
    for axis in sorted(axes, reverse=True):
        want = ufunc.reduce(want, axis)
    if name == "hypot" and not axes:
        want = np.abs(want)
    init = np.float32(init)
    for call in (lambda f: f, gf.jit):
        got = call(lambda x: lax.reduce(x, init, computation, axes))(X)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_known_computations_are_ops_of_their_own():
    text = str(gf.make_jaxpr(lambda x: lax.reduce(x, 0.0, jnp.add, (0,)))(X))
    assert "reduce_sum" in text
    assert "reduce_xor" in str(
        gf.make_jaxpr(lambda x: lax.reduce(x, jnp.int32(0), lax.bitwise_xor, (0,)))(jnp.arange(4))
    )


def test_several_operands():
    """argmax by hand."""

    def pick(a, b):
        (va, ia), (vb, ib) = a, b
        better = (va > vb) | ((va == vb) & (ia < ib))
        return jnp.where(better, va, vb), jnp.where(better, ia, ib)

    numbers = np.broadcast_to(np.arange(5, dtype=np.int32)[:, None], (5, 4))
    values, places = lax.reduce((X[0], numbers), (np.float32(-np.inf), np.int32(9)), pick, (0,))
    np.testing.assert_array_equal(values, X[0].max(0))
    np.testing.assert_array_equal(places, X[0].argmax(0))


def test_derivatives_and_vmap():
    computation = COMPUTATIONS["hypot"][0]

    def norm(x):
        return lax.reduce(x, np.float32(0), computation, (0,))

    x = X[0, :, 0]
    np.testing.assert_allclose(gf.grad(norm)(x), x / np.linalg.norm(x), rtol=1e-5)
    np.testing.assert_allclose(gf.vmap(norm)(X[0]), np.linalg.norm(X[0], axis=1), rtol=1e-5)


def test_empty():
    assert lax.reduce(np.zeros((0, 3), np.float32), 5.0, jnp.hypot, (0,)).tolist() == [5, 5, 5]
    assert lax.reduce(np.zeros((0, 3), np.float32), 0.0, jnp.add, (1,)).shape == (0,)
    assert lax.reduce(np.zeros((0, 3), np.float32), 0.0, jnp.hypot, (1,)).shape == (0,)


# --- windows -------------------------------------------------------------------------------


def _naive(x, init, ufunc, window, strides, pads, base, gaps):
    sizes = [(n - 1) * d + 1 + sum(p) for n, d, p in zip(x.shape, base, pads, strict=True)]
    spans = [(w - 1) * d + 1 for w, d in zip(window, gaps, strict=True)]
    counts = [
        max((n - w) // s + 1, 0) if n >= w else 0
        for n, w, s in zip(sizes, spans, strides, strict=True)
    ]
    out = np.full(counts, init, float)
    for s in itertools.product(*map(range, counts)):
        for k in itertools.product(*map(range, window)):
            at = [
                a * st + b * g - p[0]
                for a, st, b, g, p in zip(s, strides, k, gaps, pads, strict=True)
            ]
            place = [a // d for a, d in zip(at, base, strict=True)]
            inside = all(
                a >= 0 and a % d == 0 and p < n
                for a, d, p, n in zip(at, base, place, x.shape, strict=True)
            )
            out[s] = ufunc(out[s], x[tuple(place)] if inside else init)
    return out


def _window_case(seed):
    generator = np.random.default_rng(seed)
    rank = int(generator.integers(1, 4))
    draw = lambda low, high: tuple(int(n) for n in generator.integers(low, high, rank))  # noqa: E731
    x = generator.normal(size=draw(1, 6)).astype(np.float32)
    pads = tuple(zip(draw(-1, 3), draw(-1, 3), strict=True))
    return x, draw(1, 4), draw(1, 3), pads, draw(1, 3), draw(1, 3)


@pytest.mark.parametrize("name", ["add", "max", "min", "hypot"])
def test_reduce_window(name):
    computation, ufunc, init = COMPUTATIONS[name]
    for seed in range(25):
        x, *rest = _window_case(seed)
        want = _naive(x, init, ufunc, *rest)
        got = lax.reduce_window(x, np.float32(init), computation, *rest)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["add", "max", "min"])
def test_gradients_of_windows(name):
    computation, _, init = COMPUTATIONS[name]
    with gf.enable_x64():
        for seed in range(0, 25, 3):
            x, *rest = _window_case(seed)
            x = x.astype(np.float64)
            direction = np.random.default_rng(seed).normal(size=x.shape)

            def pooled(v, rest=rest):
                out = lax.reduce_window(v, np.float64(init), computation, *rest)
                return jnp.sum(jnp.where(jnp.isfinite(out), out, 0.0) ** 3)

            step = 1e-6
            want = (pooled(x + step * direction) - pooled(x - step * direction)) / (2 * step)
            slope = np.sum(gf.grad(pooled)(x) * direction)
            np.testing.assert_allclose(slope, want, rtol=1e-5, atol=1e-6)
            second = gf.jvp(gf.grad(pooled), (x,), (direction,))[1]
            plus, minus = (
                gf.grad(pooled)(x + step * direction),
                gf.grad(pooled)(x - step * direction),
            )
            np.testing.assert_allclose(second, (plus - minus) / (2 * step), rtol=1e-4, atol=1e-4)


def test_pools():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32))

    def max_pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    blocks = np.asarray(x).reshape(2, 3, 2, 3, 2, 3)
    np.testing.assert_array_equal(max_pool(x), blocks.max((2, 4)))
    np.testing.assert_array_equal(gf.jit(max_pool)(x), blocks.max((2, 4)))
    np.testing.assert_array_equal(gf.vmap(lambda v: max_pool(v[None])[0])(x), max_pool(x))
    chosen = gf.grad(lambda x: max_pool(x).sum())(x)
    np.testing.assert_array_equal(
        chosen,
        (np.asarray(x) == np.repeat(np.repeat(blocks.max((2, 4)), 2, 1), 2, 2)).astype(np.float32),
    )
    same = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), None, "SAME")
    assert same.shape == x.shape


def test_ties_and_nan():
    x = jnp.array([1.0, 1.0, np.nan, 0.0])
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (2,))
    np.testing.assert_array_equal(pooled, [1, np.nan, np.nan])
    slope = gf.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,))[0])(x)
    np.testing.assert_array_equal(slope, [1, 0, 0, 0])


def test_refusals():
    cases = [
        (TypeError, "one structure", lambda: lax.reduce((X, X), 0.0, jnp.add, (0,))),
        (TypeError, "one shape", lambda: lax.reduce((X, X[0]), (0.0, 0.0), lambda a, b: a, (0,))),
        (TypeError, "must return scalars", lambda: lax.reduce(X, 0.0, lambda a, b: a > b, (0,))),
        (TypeError, "must be scalars", lambda: lax.reduce(X, X[0], jnp.add, (0,))),
        (ValueError, "axis", lambda: lax.reduce(X, 0.0, jnp.add, (3,))),
        (TypeError, "each dimension", lambda: lax.reduce_window(X, 0.0, jnp.add, (2,))),
        (TypeError, "at least 1", lambda: lax.reduce_window(X, 0.0, jnp.add, (2, 0, 1))),
        (
            ValueError,
            "a name must be",
            lambda: lax.reduce_window(X, 0.0, jnp.add, (2, 2, 1), padding="FULL"),
        ),
    ]
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)
