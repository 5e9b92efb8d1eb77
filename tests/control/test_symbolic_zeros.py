"""Rules that see which tangents and cotangents are zero, and arguments without derivatives."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.custom_derivatives import (
    CustomVJPPrimal,
    SymbolicZero,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)

X = np.array([1.0, 2.0, 3.0], "f")


def two_outputs():
    seen = []

    @gf.custom_vjp
    def f(x, y):
        return x * y, x, 3

    def fwd(x, y):
        assert isinstance(x, CustomVJPPrimal)
        seen.append((x.perturbed, y.perturbed))
        x, y = custom_vjp_primal_tree_values((x, y))
        return (x * y, x, 3), (x, y)

    def bwd(saved, g):
        x, y = saved
        seen.append(tuple(isinstance(part, SymbolicZero) for part in g))
        if isinstance(g[0], SymbolicZero):
            assert g[0].shape == () and g[0].dtype == np.float32 and g[0].ndim == 0
            return g[1], g[0]
        return g[0] * y, g[0] * x

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f, seen


def test_cotangents_that_are_zero():
    f, seen = two_outputs()
    assert gf.grad(lambda x: f(x, 2.0)[0])(1.0).item() == 2.0
    assert seen == [(True, False), (False, True, True)]
    seen.clear()
    grads = gf.grad(lambda x, y: f(x, y)[1], argnums=(0, 1))(1.0, 2.0)
    assert [g.item() for g in grads] == [1.0, 0.0]
    assert seen == [(True, True), (True, False, True)]


def test_cotangents_that_are_zero_under_vmap():
    f, seen = two_outputs()
    mapped = gf.vmap(gf.grad(lambda x: f(x, 2.0)[0]))(X)
    np.testing.assert_array_equal(mapped, [2, 2, 2])
    assert seen[-1] == (False, True, True)
    grads = gf.grad(lambda x: jnp.sum(gf.vmap(lambda x: f(x, 2.0)[1])(x)))(X)
    np.testing.assert_array_equal(grads, [1, 1, 1])
    assert seen[-1] == (True, False, True)
    jitted = gf.jit(gf.grad(lambda x: jnp.sum(gf.vmap(f, in_axes=(0, None))(x, 2.0)[0])))(X)
    np.testing.assert_array_equal(jitted, [2, 2, 2])


def tangents_seen():
    seen = []

    @gf.custom_jvp
    def f(x, y):
        return x * y, x

    def rule(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        seen.append((isinstance(tx, SymbolicZero), isinstance(ty, SymbolicZero)))
        first = 0.0 * x
        if not isinstance(tx, SymbolicZero):
            first = first + tx * y
        if not isinstance(ty, SymbolicZero):
            first = first + x * ty
        return f(x, y), (first, tx)

    f.defjvp(rule, symbolic_zeros=True)
    return f, seen


def test_tangents_that_are_zero():
    f, seen = tangents_seen()
    _out, tangents = gf.jvp(lambda x: f(x, 2.0), (3.0,), (1.0,))
    assert [float(t) for t in tangents] == [2.0, 1.0] and seen == [(False, True)]
    assert gf.grad(lambda y: f(3.0, y)[0])(2.0).item() == 3.0 and seen[-1] == (True, False)
    mapped = gf.vmap(gf.grad(lambda y: f(3.0, y)[0] + f(3.0, y)[1]))(X)
    np.testing.assert_array_equal(mapped, [3, 3, 3])
    grads = gf.grad(lambda x: jnp.sum(gf.vmap(f, in_axes=(0, None))(x, 2.0)[0]))(X)
    np.testing.assert_array_equal(grads, [2, 2, 2])
    assert seen[-1] == (False, True)


def test_what_a_symbolic_zero_is():
    zero = zero_from_primal(X, symbolic_zeros=True)
    np.testing.assert_array_equal(np.asarray(zero_from_primal({"a": X})["a"]), np.zeros_like(X))
    assert (zero.shape, zero.dtype, zero.ndim, zero.size) == ((3,), np.float32, 1, 3)
    assert repr(zero) == "SymbolicZero(f32[3])"
    assert SymbolicZero.from_primal_value(3).dtype == gf.float0


def test_arguments_of_custom_jvp_without_derivative_by_name():
    def power(x, n, flip):
        return -(x**n) if flip else x**n

    f = gf.custom_jvp(power, nondiff_argnums=(-1,), nondiff_argnames=("n",))
    f.defjvp(lambda n, flip, primals, tangents: (power(*primals, n, flip), 100.0 * tangents[0] * n))
    assert gf.grad(f)(2.0, 3, False).item() == 300.0
    assert gf.grad(lambda x: f(x, flip=True, n=2))(2.0).item() == 200.0
    with pytest.raises(ValueError, match=r"\[custom_jvp\] nondiff_argnames must be arguments"):
        gf.custom_jvp(power, nondiff_argnames=("m",))
    g = gf.custom_jvp(power, nondiff_argnums=(5,))
    g.defjvp(lambda *args: None)
    with pytest.raises(ValueError, match=r"\[custom_jvp\] nondiff_argnums must name arguments"):
        g(1.0, 2, False)


def test_callables_without_a_name():
    class Sine:
        def __call__(self, x):
            return jnp.sin(x)

    f = gf.custom_jvp(Sine())
    f.defjvp(lambda primals, tangents: (jnp.sin(*primals), 5.0 * tangents[0]))
    assert gf.grad(f)(1.0).item() == 5.0
