"""Refs in functions with derivatives of their own: as arguments, closed over, and as residuals."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

WRAPS = {"eager": lambda f: f, "jit": gf.jit, "jit of jit": lambda f: gf.jit(gf.jit(f))}


def made(kind, function, slope):
    """``function`` with a rule that says that its derivative is ``slope``."""
    if kind == "jvp":
        f = gf.custom_jvp(function)
        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * slope))
    else:
        f = gf.custom_vjp(function)
        f.defvjp(lambda *args: (f(*args), None), lambda _, ct: (ct * slope,))
    return f


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_closed_over(kind, wrap):
    ref = gf.new_ref(jnp.float32(2))

    def function(x):
        ref[...] += 1
        return x * ref[...]

    f = made(kind, function, 5.0)
    assert float(WRAPS[wrap](f)(jnp.float32(3))) == 9 and float(ref[...]) == 3
    assert float(WRAPS[wrap](gf.grad(f))(jnp.float32(3))) == 5 and float(ref[...]) == 4
    rows = WRAPS[wrap](gf.vmap(f))(jnp.arange(2.0))
    np.testing.assert_array_equal(rows, [0, 5])
    gradients = WRAPS[wrap](gf.vmap(gf.grad(f)))(jnp.arange(2.0))
    np.testing.assert_array_equal(gradients, [5, 5])
    assert float(ref[...]) == 6


@pytest.mark.parametrize("wrap", WRAPS)
def test_arguments_of_custom_jvp(wrap):
    @gf.custom_jvp
    def f(x, refs):
        return x * refs["a"][...] + refs["b"][...]

    seen = []

    @f.defjvp
    def rule(primals, tangents):
        seen.append(type(tangents[1]["a"]).__name__)
        return f(*primals), tangents[0] * 3

    refs = {"a": gf.new_ref(2.0), "b": gf.new_ref(1.0)}
    assert float(WRAPS[wrap](f)(3.0, refs)) == 7
    assert float(WRAPS[wrap](gf.grad(f))(3.0, refs)) == 3
    assert seen == ["SymbolicZero"]


@pytest.mark.parametrize("wrap", WRAPS)
def test_bwd_may_put_a_cotangent_into_a_residual(wrap):
    """How gradients of values inside of a function are looked at."""

    @gf.custom_vjp
    def stash(ref, x):
        return x

    def bwd(residuals, ct):
        ref, factor = residuals
        ref[...] = ct * factor
        return None, ct

    stash.defvjp(lambda ref, x: (x, (ref, jnp.float32(2))), bwd)
    ref = gf.new_ref(jnp.zeros(3))
    x = jnp.arange(3.0)

    def loss(x, ref):
        return jnp.sum(jnp.sin(stash(ref, x * x)))

    gradient = WRAPS[wrap](gf.grad(loss))(x, ref)
    np.testing.assert_allclose(gradient, 2 * x * np.cos(x * x), rtol=1e-6)
    np.testing.assert_allclose(ref[...], 2 * np.cos(x * x), rtol=1e-6)
    np.testing.assert_allclose(WRAPS[wrap](loss)(x, ref), np.sin(x * x).sum(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_from_outside_of_the_program_they_have_no_derivative(kind):
    ref = gf.new_ref(jnp.float32(2))
    f = gf.jit(made(kind, lambda x: x * ref[...], 5.0))
    with pytest.raises(NotImplementedError, match=r"must be differentiated inside the program"):
        gf.grad(f)(3.0)
    scanned = lambda x: gf.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]  # noqa: E731
    assert float(scanned(3.0)) == 12
    with pytest.raises(NotImplementedError, match=r"Fix: jit\(grad\(f\)\) instead of grad\(jit"):
        gf.grad(scanned)(3.0)


def test_refs_are_nothing_to_differentiate():
    ref = gf.new_ref(2.0)
    for transform in (gf.grad, gf.value_and_grad, lambda f: lambda r: gf.vjp(f, r)):
        with pytest.raises(TypeError, match=r"got Ref{f32\[\]}, a ref at \[0\]. Fix: different"):
            transform(lambda r: r[...] ** 2)(ref)
    assert float(gf.grad(lambda r, x: r[...] * x, argnums=1)(ref, 1.0)) == 2
