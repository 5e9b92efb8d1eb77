"""Primitives from outside (gpuflow.extend): equations with rules of their own, and without."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.extend import ShapedArray, Zero, define_primitive, is_undefined

X = np.linspace(0.1, 1.0, 6, dtype=np.float32)


def scaled_sine(x, *, factor):
    return jnp.sin(x) * factor


plain_p = define_primitive("plain_sine", scaled_sine)


def plain(x):
    return plain_p.bind(x, factor=2.0)


def test_it_is_one_equation_and_the_function_when_it_runs():
    jaxpr = gf.make_jaxpr(plain)(X)
    (eqn,) = jaxpr.eqns
    assert eqn.primitive is plain_p and eqn.params == {"factor": 2.0}
    assert "plain_sine[factor=2.0]" in str(jaxpr)
    want = 2 * np.sin(X.astype(np.float64))
    for run in (plain, gf.jit(plain), lambda x: gf.jit(lambda y: plain(y) + 0)(x)):
        np.testing.assert_allclose(run(X), want, rtol=1e-6)
    assert float(plain(0.5)) == pytest.approx(2 * np.sin(0.5), rel=1e-6)


def test_without_rules_those_of_its_operations_hold():
    want = 2 * np.cos(X.astype(np.float64))
    for wrap in (lambda f: f, gf.jit):
        grad = wrap(gf.grad(lambda x: plain(x).sum()))
        np.testing.assert_allclose(grad(X), want, rtol=1e-6)
        np.testing.assert_allclose(wrap(gf.vmap(gf.grad(plain)))(X), want, rtol=1e-6)
        _, tangent = gf.jvp(wrap(plain), (X,), (np.ones_like(X),))
        np.testing.assert_allclose(tangent, want, rtol=1e-6)
    second = gf.vmap(gf.grad(gf.grad(plain)))(X)
    np.testing.assert_allclose(second, -2 * np.sin(X.astype(np.float64)), rtol=1e-6)


def test_a_linear_one_is_transposed_by_its_operations():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    product_p = define_primitive("product", lambda a, x: a @ x)
    (transposed,) = gf.linear_transpose(lambda x: product_p.bind(matrix, x), np.zeros(3, "f4"))(
        jnp.ones(2)
    )
    np.testing.assert_allclose(transposed, matrix.sum(0))
    grads = gf.grad(lambda a, x: product_p.bind(a, x).sum(), argnums=(0, 1))(matrix, X[:3])
    np.testing.assert_allclose(grads[0], np.broadcast_to(X[:3], (2, 3)))
    np.testing.assert_allclose(grads[1], matrix.sum(0))


def test_rules_are_used_where_they_are_given():
    """The rules give results that the function's own operations would not."""
    called = []

    def jvp(primals, tangents, *, factor):
        called.append("jvp")
        (x,), (t,) = primals, tangents
        assert not isinstance(t, Zero)
        return ruled_p.bind(x, factor=factor), tangent_p.bind(t, factor=7.0)

    def batch(axis, operands, dims, *, factor):
        called.append(("batch", axis.size, dims))
        return ruled_p.bind(operands[0], factor=factor), dims[0]

    def transpose(cotangent, operand, *, factor):
        called.append("transpose")
        assert is_undefined(operand) and operand.aval.shape == ()
        return [cotangent * factor * 10]

    ruled_p = define_primitive("ruled", scaled_sine, jvp=jvp, batch=batch)
    tangent_p = define_primitive(
        "ruled_tangent", lambda t, *, factor: t * factor, transpose=transpose
    )

    def f(x):
        return ruled_p.bind(x, factor=2.0)

    assert float(gf.jvp(f, (1.0,), (1.0,))[1]) == 7.0
    assert float(gf.grad(f)(1.0)) == 70.0 == float(gf.jit(gf.grad(f))(1.0))
    assert {"jvp", "transpose"} == set(called)
    np.testing.assert_allclose(gf.jit(gf.vmap(f))(X), 2 * np.sin(X), rtol=1e-6)
    assert called[-1] == ("batch", 6, [0])


def test_several_results_and_types_of_ones_own():
    def result(x, y, *, axis):
        if x.shape != y.shape:
            raise TypeError(f"[spread] shapes must be equal; got {x} and {y}.")
        return [ShapedArray((), x.dtype), x]

    spread_p = define_primitive(
        "spread",
        lambda x, y, *, axis: (jnp.sum(x, axis), x - y),
        result=result,
        multiple_results=True,
    )

    def f(x, y):
        return spread_p.bind(x, y, axis=0)

    total, difference = gf.jit(f)(X, 2 * X)
    np.testing.assert_allclose(total, X.sum(), rtol=1e-6)
    np.testing.assert_allclose(difference, -X, rtol=1e-6)
    totals, _ = gf.vmap(f, in_axes=(1, None))(np.stack([X, X], 1), X)
    np.testing.assert_allclose(totals, [X.sum()] * 2, rtol=1e-6)
    grad = gf.grad(lambda x: f(x, X)[0])(X)
    np.testing.assert_allclose(grad, np.ones(6))
    with pytest.raises(TypeError, match=r"\[spread\] shapes must be equal"):
        gf.jit(f)(X, X[:2])


def test_inside_loops_and_branches():
    def loop(x):
        return lax.fori_loop(0, 3, lambda _, v: plain(v), x)

    want = X.astype(np.float64)
    for _ in range(3):
        want = 2 * np.sin(want)
    np.testing.assert_allclose(gf.jit(loop)(X), want, rtol=1e-5)
    np.testing.assert_allclose(gf.jit(gf.vmap(loop))(X), want, rtol=1e-5)
    chosen = gf.jit(lambda p, x: lax.cond(p, plain, lambda v: v, x))
    np.testing.assert_allclose(chosen(True, X), 2 * np.sin(X), rtol=1e-6)


def test_what_a_function_may_not_do():
    @gf.jit
    def closed(x):
        inner_p = define_primitive("closes", lambda y: y + x)
        return inner_p.bind(x)

    with pytest.raises(TypeError, match=r"\[closes\] the function .* Fix: pass it to bind"):
        closed(1.0)
    prints_p = define_primitive("prints", lambda x: (gf.debug.print("{}", x), x)[1])
    with pytest.raises(TypeError, match=r"\[prints\] the function of a primitive must have no ef"):
        gf.jit(prints_p.bind)(1.0)


def test_constants_of_the_function_are_part_of_the_program():
    table = jnp.arange(6.0)
    shifted_p = define_primitive("shifted", lambda x: x + table)
    np.testing.assert_allclose(gf.jit(shifted_p.bind)(X), X + np.arange(6), rtol=1e-6)
    traced = []
    counted_p = define_primitive("counted", lambda x: traced.append(1) or x + 1)
    for _ in range(2):
        gf.jit(lambda x: counted_p.bind(x) * 2)(X)
    assert len(traced) == 1


def test_params_without_a_hash():
    listed_p = define_primitive("listed", lambda x, *, shifts: x + shifts[0])
    program = gf.make_jaxpr(lambda x: listed_p.bind(x, shifts=[1]))(X)
    np.testing.assert_allclose(program(X)[0], X + 1)


def test_interpreters_read_jaxprs_by_jaxs_names():
    """Field names that interpreters of jaxprs use, and evaluation by them."""

    def evaluate(jaxpr, *args):
        env = dict(zip(jaxpr.jaxpr.invars, args, strict=True))
        env.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))

        def read(atom):
            return atom.val if hasattr(atom, "val") else env[atom]

        for eqn in jaxpr.eqns:
            params = eqn.primitive.get_bind_params(eqn.params)
            outs = eqn.primitive.bind(*map(read, eqn.invars), **params)
            outs = outs if eqn.primitive.multiple_results else [outs]
            env.update(zip(eqn.outvars, outs, strict=True))
            assert eqn.source_info is None or "test_external_primitives" in str(eqn.source_info)
        return [read(atom) for atom in jaxpr.jaxpr.outvars]

    def f(x):
        return plain(gf.jit(jnp.cumsum)(x * 3.0)) + 1

    np.testing.assert_allclose(evaluate(gf.make_jaxpr(f)(X), X)[0], f(X), rtol=1e-6)
    assert ShapedArray((2,), np.int32).to_tangent_aval().dtype == gf.float0
