"""linear_call: values, both modes, the user's transpose, batching, errors."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow.custom_derivatives import linear_call

D, X, Y = (np.random.default_rng(k).normal(size=(3,)).astype(np.float32) + 3 for k in range(3))
calls = []


def divide(d, x):
    return {"q": x["n"] / d}


def divide_transpose(d, ct):
    calls.append("transposed")
    return {"n": ct["q"] / d}


def quotient(d, x):
    return linear_call(divide, divide_transpose, d, {"n": x})["q"]


@pytest.mark.parametrize("run", [lambda f: f, gpuflow.jit])
def test_values_and_derivatives(run):
    np.testing.assert_allclose(np.asarray(run(quotient)(D, X)), X / D, rtol=1e-6)
    tangent = run(lambda x, t: gpuflow.jvp(lambda v: quotient(D, v), (x,), (t,)))(X, Y)[1]
    np.testing.assert_allclose(np.asarray(tangent), Y / D, rtol=1e-6)
    tangent = run(lambda d, t: gpuflow.jvp(lambda v: quotient(v, X), (d,), (t,)))(D, Y)[1]
    np.testing.assert_allclose(np.asarray(tangent), -X / D**2 * Y, rtol=1e-5)
    gradient = run(gpuflow.grad(lambda x: jnp.sum(quotient(D, x) ** 2)))(X)
    np.testing.assert_allclose(np.asarray(gradient), 2 * X / D**2, rtol=1e-5)


def test_the_transpose_is_the_users():
    triple = gpuflow.grad(
        lambda x: linear_call(lambda r, v: 2.0 * v, lambda r, ct: 3.0 * ct, (), x)
    )
    assert float(triple(1.0)) == 3.0
    (back,) = gpuflow.linear_transpose(lambda x: quotient(D, x), X)(Y)
    np.testing.assert_allclose(np.asarray(back), Y / D, rtol=1e-6)
    assert calls


def test_transposing_twice_gives_the_function():
    def function(x):
        return linear_call(lambda r, v: 2.0 * v, lambda r, ct: 3.0 * ct, (), x)

    once = gpuflow.linear_transpose(function, 1.0)
    assert float(once(1.0)[0]) == 3.0
    assert float(gpuflow.linear_transpose(lambda ct: once(ct)[0], 1.0)(1.0)[0]) == 2.0


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_under_vmap(axes):
    d = D if axes[0] is None else np.stack([D, D + 1])
    x = X if axes[1] is None else np.stack([X, X * 2])
    out = gpuflow.jit(gpuflow.vmap(quotient, axes))(d, x)
    np.testing.assert_allclose(np.asarray(out), np.broadcast_to(x / d, (2, 3)), rtol=1e-6)
    gradient = gpuflow.vmap(gpuflow.grad(lambda d, x: quotient(d, x).sum(), 1), axes)(d, x)
    np.testing.assert_allclose(np.asarray(gradient), np.broadcast_to(1 / d, (2, 3)), rtol=1e-6)


def test_closed_over_tracers():
    def outer(s, x):
        return linear_call(lambda d, v: s * v / d, lambda d, ct: s * ct / d, D, x).sum()

    got = gpuflow.jit(gpuflow.grad(outer, argnums=1))(2.0, X)
    np.testing.assert_allclose(np.asarray(got), 2 / D, rtol=1e-6)


def test_errors():
    with pytest.raises(TypeError, match=r"\[linear_call\] fun_transpose must return the type of"):
        linear_call(divide, lambda d, ct: ct["q"], D, {"n": X})
    with pytest.raises(TypeError, match=r"fun must be callable"):
        linear_call(3, divide_transpose, D, {"n": X})
    with pytest.raises(NotImplementedError, match=r"linear in linear_args only"):
        gpuflow.linear_transpose(
            lambda d: linear_call(lambda r, v: r * v, lambda r, ct: r * ct, d, X), X
        )(Y)
