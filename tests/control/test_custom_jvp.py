"""custom_jvp: rules of users under every transformation, with trees, closures and bad rules."""

import functools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

X = np.array([0.2, 0.5, 0.9], "f")


def marked(rule_factor=10.0, jit_rule=False):
    """sin with a derivative that shows that the rule was used: factor * cos."""

    @gf.custom_jvp
    def f(x):
        return jnp.sin(x)

    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x), rule_factor * jnp.cos(x) * t

    f.defjvp(gf.jit(rule) if jit_rule else rule)
    return f


@pytest.mark.parametrize("jit_rule", [False, True])
@pytest.mark.parametrize(
    ("transform", "want"),
    [
        (lambda f: f(X), np.sin(X)),
        (lambda f: gf.jit(f)(X), np.sin(X)),
        (lambda f: gf.vmap(f)(X), np.sin(X)),
        (lambda f: gf.vmap(gf.grad(f))(X), 10 * np.cos(X)),
        (lambda f: gf.grad(lambda x: gf.vmap(f)(x).sum())(X), 10 * np.cos(X)),
        (lambda f: gf.vmap(gf.value_and_grad(f))(X)[0], np.sin(X)),
        (lambda f: gf.jvp(f, (X,), (np.ones(3, "f"),))[1], 10 * np.cos(X)),
        (lambda f: gf.jvp(gf.jit(f), (X,), (np.ones(3, "f"),))[1], 10 * np.cos(X)),
        (lambda f: gf.jit(gf.vmap(gf.grad(gf.jit(f))))(X), 10 * np.cos(X)),
        (lambda f: gf.linearize(gf.jit(f), X)[1](np.ones(3, "f")), 10 * np.cos(X)),
        (lambda f: gf.linearize(gf.jit(f), X)[0], np.sin(X)),
        (lambda f: gf.vmap(gf.grad(gf.grad(f)))(X), -10 * np.sin(X)),
        (lambda f: np.diagonal(gf.jacfwd(gf.jit(f))(X)), 10 * np.cos(X)),
        (lambda f: np.diagonal(gf.jacrev(gf.vmap(f))(X)), 10 * np.cos(X)),
    ],
)
def test_the_rule_is_used(transform, want, jit_rule):
    np.testing.assert_allclose(transform(marked(jit_rule=jit_rule)), want, rtol=1e-5, atol=1e-6)


def test_a_jitted_rule_gives_known_primals():
    """The value of a jitted rule was once recorded with the tangents, and leaked."""
    f = marked(jit_rule=True)
    value, slope = gf.value_and_grad(lambda x: f(x) * x)(0.5)
    np.testing.assert_allclose(value, np.sin(0.5) * 0.5, rtol=1e-6)
    np.testing.assert_allclose(slope, 10 * np.cos(0.5) * 0.5 + np.sin(0.5), rtol=1e-6)


def test_the_equation_keeps_its_function():
    jaxpr = gf.make_jaxpr(marked())(1.0)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["custom_jvp_call"]
    assert "sin" in str(jaxpr)


def test_trees_defaults_and_keywords():
    @gf.custom_jvp
    def f(p, scale=2.0):
        return {"y": p["a"] * p["b"] * scale}

    @f.defjvp
    def rule(primals, tangents):
        p, scale = primals
        t, _ = tangents
        return f(p, scale), {"y": (t["a"] * p["b"] + p["a"] * t["b"]) * scale * 7}

    p = {"a": 2.0, "b": 3.0}
    grads = gf.grad(lambda p: f(p)["y"])(p)
    assert (grads["a"].item(), grads["b"].item()) == (42.0, 28.0)
    assert gf.grad(lambda p: f(p, scale=1.0)["y"])(p)["a"].item() == 21.0
    out = gf.vmap(lambda a, b: f({"a": a, "b": b})["y"])(X, X)
    np.testing.assert_allclose(out, X * X * 2, rtol=1e-6)


def test_defaults_before_a_named_argument():
    """A default that is left out came between positions and names, and what follows was refused."""

    @functools.partial(gf.custom_jvp, nondiff_argnums=(1, 2, 4))
    def f(x, shift=1.0, scale=2.0, y=3.0, sign=1.0):
        return (x + shift) * scale * y * sign

    @f.defjvp
    def rule(shift, scale, sign, primals, tangents):
        return f(primals[0], shift, scale, primals[1], sign), 100.0 * sign * tangents[0]

    assert float(f(1.0, sign=-1.0)) == -12.0
    assert float(gf.grad(lambda x: f(x, sign=-1.0))(1.0)) == -100.0


def test_nondiff_arguments_and_integers():
    @gf.custom_jvp
    def power(x, n):
        return x**n

    @power.defjvp
    def rule(primals, tangents):
        (x, n), (t, t_n) = primals, tangents
        assert t_n.dtype == gf.float0
        return power(x, n), n * x ** (n - 1) * t

    np.testing.assert_allclose(gf.grad(power)(3.0, jnp.asarray(2)), 6.0, rtol=1e-5)

    apply = gf.custom_jvp(lambda op, x: op(x), nondiff_argnums=(0,))
    apply.defjvp(lambda op, primals, tangents: (op(primals[0]), 5.0 * tangents[0]))
    assert gf.grad(lambda x: apply(jnp.sin, x))(1.0).item() == 5.0
    np.testing.assert_allclose(gf.jit(lambda x: apply(jnp.cos, x))(1.0), np.cos(1.0), rtol=1e-6)


def test_defjvps():
    f = gf.custom_jvp(lambda x, y: x * y)
    f.defjvps(lambda t, out, x, y: 3.0 * t, None)
    grads = gf.grad(f, argnums=(0, 1))(2.0, 5.0)
    assert [g.item() for g in grads] == [3.0, 0.0]


def test_derivatives_only_of_nonzero_tangents():
    called = []

    @gf.custom_jvp
    def f(x):
        return x

    @f.defjvp
    def rule(primals, tangents):
        called.append(1)
        return primals[0], tangents[0]

    gf.grad(lambda x: x * f(2.0))(1.0)
    assert not called
    gf.grad(f)(1.0)
    assert called


def closing_over(y):
    @gf.custom_jvp
    def f(x):
        return x * y

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 3.0))
    return f


def test_functions_may_close_over_mapped_and_staged_values():
    """A mapped value behind the closure was once taken for a leaked tracer."""
    np.testing.assert_allclose(gf.vmap(lambda y: closing_over(y)(2.0))(X), 2 * X, rtol=1e-6)
    np.testing.assert_allclose(gf.vmap(lambda y: closing_over(y)(y))(X), X * X, rtol=1e-6)
    np.testing.assert_allclose(gf.jit(lambda y: closing_over(y)(y))(2.0), 4.0)
    np.testing.assert_allclose(gf.jit(gf.vmap(lambda y: closing_over(y)(2.0)))(X), 2 * X)


def test_closing_over_a_differentiated_value_is_an_error():
    with pytest.raises(TypeError, match=r"\[custom_jvp\].*must not close over.*Fix: pass it"):
        gf.grad(gf.jit(lambda y: closing_over(y)(y)))(3.0)


def test_a_rule_is_required():
    with pytest.raises(AttributeError, match=r"\[custom_jvp\] f must have a rule.*@f.defjvp"):

        @gf.custom_jvp
        def f(x):
            return x

        f(1.0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda p, t: p[0], "must return a pair"),
        (lambda p, t: (p[0], (t[0], t[0])), "must return equal trees"),
        (lambda p, t: (p[0], jnp.ones(3)), r"tangents of type f32\[\]; got f32\[3\]"),
        (lambda p, t: (p[0], t[0].astype("float16")), r"got f16\[\].*astype\(float32\)"),
    ],
)
def test_bad_rules(rule, message):
    f = gf.custom_jvp(lambda x: x * 1.0)
    f.defjvp(rule)
    with pytest.raises(TypeError, match=r"\[custom_jvp\].*" + message):
        gf.grad(f)(1.0)


def test_bad_arguments():
    f = gf.custom_jvp(lambda x, *, k=1: x)
    f.defjvp(lambda p, t: (p[0], t[0]))
    with pytest.raises(TypeError, match=r"keyword-only arguments are not passed to rules.*Fix:"):
        f(1.0, k=2)
    assert f(1.0) == 1
    with pytest.raises(TypeError, match="arguments must fit the function"):
        f(1.0, q=2)


def test_defjvps_knows_no_arguments_without_derivative():
    f = gf.custom_jvp(lambda x, n: x * n, nondiff_argnums=(1,))
    with pytest.raises(TypeError, match=r"\[custom_jvp\] defjvps needs.*nondiff_argnums \(1,\)"):
        f.defjvps(lambda t, out, x: t)


# --- under vmap -------------------------------------------------------------------------------


def test_a_primal_that_ignores_its_argument():
    """Only the rule knows that the tangent depends on what is mapped."""

    @gf.custom_jvp
    def f(x, y):
        return jnp.float32(1.0), y * 3

    f.defjvp(lambda primals, tangents: (f(*primals), (2 * tangents[0], 3 * tangents[1])))
    x = jnp.arange(3.0)

    def first(x):
        return f(x, 2.0)[0]

    both = gf.vmap(f, in_axes=(0, None), out_axes=(0, None))
    for wrap in (lambda g: g, gf.jit, gf.checkpoint):
        mapped = wrap(gf.vmap(first))
        np.testing.assert_array_equal(gf.vmap(gf.grad(wrap(first)))(x), [2, 2, 2])
        total = gf.grad(lambda x, mapped=mapped: mapped(x).sum())
        np.testing.assert_array_equal(total(x), [2, 2, 2])
        out, tangent = gf.jvp(mapped, (x,), (x,))
        np.testing.assert_array_equal([out, tangent], [[1, 1, 1], [0, 2, 4]])
        # What is not mapped needs no axis in the result.
        assert wrap(both)(x, 2.0)[1].shape == ()
        assert gf.grad(lambda y, wrap=wrap: wrap(both)(x, y)[1])(2.0).item() == 3
        assert gf.vmap(wrap(first), out_axes=None)(x).shape == ()
    branch = gf.vmap(lambda x: gf.lax.cond(True, first, jnp.sin, x), out_axes=None)
    with pytest.raises(ValueError, match=r"\[vmap\] out_axes of None"):
        branch(x)
    same = gf.vmap(lambda x: gf.lax.cond(True, first, first, x), out_axes=None)
    assert same(x).shape == ()


def test_arguments_without_derivative_may_be_traced():
    @functools.partial(gf.custom_jvp, nondiff_argnums=(0,))
    def f(scale, x):
        return scale * x

    f.defjvp(lambda scale, primals, tangents: (f(scale, *primals), 3 * scale * tangents[0]))
    scales = jnp.arange(3.0)
    slopes = gf.vmap(lambda t: gf.grad(lambda x: f(t, x))(2.0))
    np.testing.assert_array_equal(slopes(scales), [0, 3, 6])
    total = gf.grad(lambda x: gf.vmap(lambda t: f(t, x))(scales).sum())
    assert total(2.0).item() == gf.jit(total)(2.0).item() == 9
    assert gf.jit(lambda t: gf.grad(lambda x: f(t, x))(2.0))(4.0).item() == 12
    # They have no derivative, of whatever order.
    assert gf.grad(lambda t: f(t, 2.0))(3.0).item() == 0
    assert gf.grad(lambda t: gf.grad(lambda x: f(t, x))(2.0))(3.0).item() == 0


SCALARS = {
    "float": (3.0, 4.0),
    "numpy": (np.float32(3), np.float32(4)),
    "primal": (3.0, None),
    "tangent": (None, 4.0),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("wrap", [lambda f: f, gf.jit], ids=["eager", "jit"])
def test_rules_may_return_scalars(name, wrap):
    """They came back as they were, so that the result had no dtype outside of jit."""
    out, tangent = SCALARS[name]
    f = gf.custom_jvp(lambda x: 3.0 * x)
    f.defjvp(
        lambda primals, tangents: (
            3.0 * primals[0] if out is None else out,
            4.0 * tangents[0] if tangent is None else tangent,
        )
    )
    x = jnp.float32(1.0)
    results = wrap(lambda x: gf.jvp(f, (x,), (x,)))(x)
    for result, expected in zip(results, (3, 4), strict=True):
        assert isinstance(result, gf.Array)
        assert result.dtype == "float32" and result.shape == () and float(result) == expected
    mapped = wrap(gf.vmap(lambda x: gf.jvp(f, (x,), (x,))))(jnp.ones(2))
    np.testing.assert_array_equal(mapped, [[3, 3], [4, 4]])
    value, slope = wrap(gf.value_and_grad(lambda x: f(x) * 2))(x)
    assert value.dtype == slope.dtype == "float32" and float(value) == 6
    # A constant tangent does not depend on the operand's.
    assert float(slope) == (8 if tangent is None else 0)


@pytest.mark.parametrize("tangent", [True, 4, np.float16(4)], ids=repr)
def test_scalar_tangents_of_other_dtypes_are_refused(tangent):
    f = gf.custom_jvp(lambda x: 3.0 * x)
    f.defjvp(lambda primals, tangents: (3.0, tangent))
    with pytest.raises(TypeError, match=r"\[custom_jvp\] the rule of .* must return tangents of"):
        gf.jvp(f, (1.0,), (1.0,))
