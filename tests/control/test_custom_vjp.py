"""custom_vjp: rules of users under every transformation, with trees, closures and bad rules."""

import functools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base import tree
from gpuflow.core.jaxpr import all_eqns

X = np.array([0.2, 0.5, 0.9], "f")
ONES = np.ones(3, "f")


def with_rules(fun, fwd, bwd, **options):
    f = gf.custom_vjp(fun, **options)
    f.defvjp(fwd, bwd)
    return f


def marked(jit_rules=False, factor=10.0):
    """sin with a derivative that shows that the rule was used: factor * cos."""

    @gf.custom_vjp
    def f(x):
        return jnp.sin(x)

    def fwd(x):
        return f(x), x

    def bwd(x, g):
        return (factor * jnp.cos(x) * g,)

    f.defvjp(*(map(gf.jit, (fwd, bwd)) if jit_rules else (fwd, bwd)))
    return f


def summed(f):
    return lambda x: jnp.sum(f(x))


TABLE = {
    "call": (lambda f: f(X), np.sin(X)),
    "jit": (lambda f: gf.jit(f)(X), np.sin(X)),
    "vmap": (lambda f: gf.vmap(f)(X), np.sin(X)),
    "jit vmap": (lambda f: gf.jit(gf.vmap(f))(X), np.sin(X)),
    "vmap jit": (lambda f: gf.vmap(gf.jit(f))(X), np.sin(X)),
    "grad": (lambda f: gf.grad(summed(f))(X), 10 * np.cos(X)),
    "grad jit": (lambda f: gf.grad(summed(gf.jit(f)))(X), 10 * np.cos(X)),
    "jit grad": (lambda f: gf.jit(gf.grad(summed(f)))(X), 10 * np.cos(X)),
    "jit grad jit": (lambda f: gf.jit(gf.grad(summed(gf.jit(f))))(X), 10 * np.cos(X)),
    "vmap grad": (lambda f: gf.vmap(gf.grad(f))(X), 10 * np.cos(X)),
    "grad vmap": (lambda f: gf.grad(summed(gf.vmap(f)))(X), 10 * np.cos(X)),
    "vmap grad jit": (lambda f: gf.vmap(gf.grad(gf.jit(f)))(X), 10 * np.cos(X)),
    "vmap jit grad": (lambda f: gf.vmap(gf.jit(gf.grad(f)))(X), 10 * np.cos(X)),
    "grad vmap jit": (lambda f: gf.grad(summed(gf.vmap(gf.jit(f))))(X), 10 * np.cos(X)),
    "grad jit vmap": (lambda f: gf.grad(summed(gf.jit(gf.vmap(f))))(X), 10 * np.cos(X)),
    "jit vmap grad": (lambda f: gf.jit(gf.vmap(gf.grad(f)))(X), 10 * np.cos(X)),
    "jit grad vmap": (lambda f: gf.jit(gf.grad(summed(gf.vmap(f))))(X), 10 * np.cos(X)),
    "value": (lambda f: gf.value_and_grad(summed(f))(X)[0], np.sin(X).sum()),
    "vjp": (lambda f: gf.vjp(f, X)[1](ONES)[0], 10 * np.cos(X)),
    "vjp value": (lambda f: gf.vjp(gf.jit(f), X)[0], np.sin(X)),
    "vmapped pullback": (
        lambda f: gf.vmap(gf.vjp(f, X)[1])(np.eye(3, dtype="f"))[0],
        np.diag(10 * np.cos(X)),
    ),
    "linearize value": (lambda f: gf.linearize(f, X)[0], np.sin(X)),
    "jacrev": (lambda f: gf.jacrev(f)(X), np.diag(10 * np.cos(X))),
    "jacrev vmap": (lambda f: gf.jacrev(gf.vmap(gf.jit(f)))(X), np.diag(10 * np.cos(X))),
    "vmap vmap grad": (lambda f: gf.vmap(gf.vmap(gf.grad(f)))(X[None]), 10 * np.cos(X)[None]),
    "grad grad": (lambda f: gf.vmap(gf.grad(gf.grad(f)))(X), -10 * np.sin(X)),
    "grad jit grad": (lambda f: gf.vmap(gf.grad(gf.jit(gf.grad(f))))(X), -10 * np.sin(X)),
    "jacrev jacrev": (lambda f: gf.jacrev(gf.jacrev(f))(X[0]), -10 * np.sin(X[0])),
    "make_jaxpr": (lambda f: gf.make_jaxpr(gf.grad(f))(0.5)(0.5)[0], 10 * np.cos(0.5)),
}


@pytest.mark.parametrize("jit_rules", [False, True], ids=["plain", "jitted"])
@pytest.mark.parametrize("name", TABLE)
def test_the_rule_is_used(name, jit_rules):
    transform, want = TABLE[name]
    np.testing.assert_allclose(transform(marked(jit_rules)), want, rtol=1e-5, atol=1e-6)


FORWARD = {
    "jvp": lambda f: gf.jvp(f, (X,), (ONES,)),
    "jit jvp": lambda f: gf.jit(lambda x: gf.jvp(f, (x,), (x,)))(X),
    "jvp jit": lambda f: gf.jvp(gf.jit(f), (X,), (ONES,)),
    "jacfwd": lambda f: gf.jacfwd(f)(X),
    "vmap jvp": lambda f: gf.vmap(lambda x: gf.jvp(f, (x,), (x,)))(X),
    "jvp vmap": lambda f: gf.jvp(gf.vmap(f), (X,), (ONES,)),
    "linearize": lambda f: gf.linearize(f, X)[1](ONES),
    "hessian through fwd": lambda f: gf.hessian(f)(0.5),
    "grad of jvp": lambda f: gf.grad(lambda x: gf.jvp(f, (x,), (1.0,))[1])(0.5),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_refused(name):
    with pytest.raises(TypeError, match=r"\[custom_vjp\] forward-mode.*got f\. Fix: use grad"):
        FORWARD[name](marked())


def test_forward_over_reverse_works_where_fwd_is_differentiable():
    f = with_rules(jnp.sin, lambda x: (jnp.sin(x), x), lambda x, g: (10 * jnp.cos(x) * g,))
    np.testing.assert_allclose(gf.jacfwd(gf.grad(f))(0.5), -10 * np.sin(0.5), rtol=1e-6)


def test_the_rule_may_be_linearized_inside_a_custom_jvp_rule():
    """Forward mode that is transposed afterwards asks for no value; batched, in one case."""
    f = marked()
    outer = gf.custom_jvp(lambda x: jnp.sin(x))

    @outer.defjvp
    def rule(primals, tangents):
        return gf.vmap(lambda x, t: gf.jvp(f, (x,), (t,)))(primals[0], tangents[0])

    np.testing.assert_allclose(gf.grad(summed(outer))(X), 10 * np.cos(X), rtol=1e-6)
    np.testing.assert_allclose(gf.jit(gf.grad(summed(outer)))(X), 10 * np.cos(X), rtol=1e-6)


def test_a_gradient_of_a_shared_argument_is_summed_like_in_a_loop():
    """Also for a bwd that does not look at the cotangent, and for outputs that vmap shares."""
    constant = with_rules(lambda x, y: x * y, lambda x, y: (x * y, 0), lambda _, g: (None, 2.0))
    weighted = with_rules(lambda x, y: 1 * y, lambda x, y: (1 * y, x), lambda x, g: (None, x * g))
    for f, want in ((constant, 2.0 * len(X)), (weighted, X.sum())):
        for wrap in (lambda f: f, gf.jit):
            mapped = gf.vmap(wrap(f), in_axes=(0, None))
            got = gf.grad(lambda y, mapped=mapped: mapped(X, y).sum())(3.0)
            np.testing.assert_allclose(got, want, rtol=1e-6)
            loop = sum(gf.grad(f, argnums=1)(x, 3.0).item() for x in X)
            np.testing.assert_allclose(loop, want, rtol=1e-6)


def test_mapped_axes_other_than_the_first():
    f = with_rules(
        lambda x, y: jnp.sin(x) @ y,
        lambda x, y: (jnp.sin(x) @ y, {"r": (x, y)}),
        lambda res, g: (
            3 * jnp.cos(res["r"][0]) * (res["r"][1] @ g)
            if g.ndim
            else 3 * jnp.cos(res["r"][0]) * res["r"][1] * g,
            jnp.sin(res["r"][0]) * g,
        ),
    )
    x, y = np.arange(6, dtype="f").reshape(2, 3) / 7, np.array([1.0, 2.0], "f")
    mapped = gf.vmap(f, in_axes=(1, None))
    gx, gy = gf.grad(lambda x, y: mapped(x, y).sum(), argnums=(0, 1))(x, y)
    np.testing.assert_allclose(gx, 3 * np.cos(x) * y[:, None], rtol=1e-6)
    np.testing.assert_allclose(gy, np.sin(x).sum(1), rtol=1e-6)
    wide = gf.vmap(gf.grad(f, argnums=(0, 1)), in_axes=(1, None), out_axes=(1, 0))(x, y)
    np.testing.assert_allclose(wide[0], gx, rtol=1e-6)
    np.testing.assert_allclose(wide[1], np.sin(x).T, rtol=1e-6)


# --- what rules are written for --------------------------------------------------------------


@functools.partial(gf.custom_vjp, nondiff_argnums=(0,))
def clip_gradient(limit, x):
    return x


clip_gradient.defvjp(lambda limit, x: (x, None), lambda limit, _, g: (jnp.clip(g, -limit, limit),))


@gf.custom_vjp
def straight_through(x):
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


@gf.custom_vjp
def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


log1pexp.defvjp(lambda x: (log1pexp(x), x), lambda x, g: (g * (1 - 1 / (1 + jnp.exp(x))),))


@gf.custom_vjp
def fixed_point(a):
    """The x with x = a cos(x), found by a loop in Python on known values."""
    x = jnp.zeros_like(a)
    while jnp.max(jnp.abs(a * jnp.cos(x) - x)) > 1e-12:
        x = a * jnp.cos(x)
    return x


def fixed_point_bwd(residuals, g):
    a, x = residuals
    return (g * jnp.cos(x) / (1 + a * jnp.sin(x)),)


def fixed_point_fwd(a):
    x = fixed_point(a)
    return x, (a, x)


fixed_point.defvjp(fixed_point_fwd, fixed_point_bwd)


def test_clipped_gradients():
    for transform in (lambda f: f, gf.jit, gf.vmap):
        f = transform(lambda x: clip_gradient(0.5, x) * 3.0 + x)
        np.testing.assert_allclose(gf.grad(summed(f))(X), 1.5 * ONES, rtol=1e-6)


def test_straight_through_and_log1pexp():
    for wrap in (lambda f: f, gf.jit):
        loss = wrap(lambda x: jnp.sum(straight_through(x * 3) * X))
        np.testing.assert_allclose(gf.grad(loss)(X), 3 * X, rtol=1e-6)
        slopes = wrap(gf.vmap(gf.grad(log1pexp)))(np.array([-100.0, 0.0, 100.0], "f"))
        np.testing.assert_allclose(slopes, [0.0, 0.5, 1.0], atol=1e-7)


@pytest.mark.parametrize("f", [log1pexp, fixed_point], ids=lambda f: f.name)
def test_against_finite_differences(f):
    x, step = np.array([0.3, 0.7]), 1e-5

    def difference(g):
        return (np.asarray(g(x + step)) - np.asarray(g(x - step))) / (2 * step)

    with gf.enable_x64():
        slope = gf.grad(summed(f))
        second = gf.grad(summed(slope))(x)
        assert second.dtype == np.float64
        # Central differences in float64 with this step are good to about 1e-10.
        np.testing.assert_allclose(slope(x), difference(f), rtol=1e-8)
        np.testing.assert_allclose(second, difference(slope), rtol=1e-8)


# --- arguments, outputs and residuals ---------------------------------------------------------


def test_trees_defaults_and_keywords():
    @gf.custom_vjp
    def f(p, scale=2.0):
        return {"y": p["a"] * p["b"][0] * scale, "z": (p["a"], None)}

    def fwd(p, scale):
        return f(p, scale), {"p": p, "n": None, "k": [scale]}

    def bwd(residuals, g):
        p, (scale,) = residuals["p"], residuals["k"]
        y, (z, _) = g["y"], g["z"]
        return {"a": 7 * y * p["b"][0] * scale + z, "b": [7 * y * p["a"] * scale]}, None

    f.defvjp(fwd, bwd)
    p = {"a": 2.0, "b": [3.0]}
    for wrap in (lambda f: f, gf.jit):
        grads = gf.grad(wrap(lambda p: f(p)["y"] + f(p)["z"][0]))(p)
        assert (grads["a"].item(), grads["b"][0].item()) == (43.0, 28.0)
        grads = gf.grad(wrap(lambda p: f(p, scale=1.0)["y"]))(p)
        assert grads["a"].item() == 21.0
    assert tree.structure(f(p)) == tree.structure({"y": 0, "z": (0, None)})
    assert gf.grad(lambda s: f(p, s)["y"])(1.0).item() == 0.0
    mapped = gf.vmap(gf.grad(lambda p: f(p)["y"]), in_axes=({"a": 0, "b": None},))
    np.testing.assert_allclose(mapped({"a": X, "b": [3.0]})["b"][0], 14 * X, rtol=1e-6)


def test_a_cotangent_may_be_none_inside_or_a_number_for_a_subtree():
    f = with_rules(lambda p: p["a"] * p["b"], lambda p: (p["a"] * p["b"], p), None)
    p = {"a": 2.0, "b": 3.0}
    for result, want in [
        (({"a": 5.0, "b": None},), (5.0, 0.0)),
        ((4,), (4.0, 4.0)),
        ([None], (0.0, 0.0)),
    ]:
        f.defvjp(f.fwd, lambda p, g, result=result: result)
        grads = gf.grad(f)(p)
        assert (grads["a"].item(), grads["b"].item()) == want
        assert grads["a"].dtype == np.float32


@pytest.mark.parametrize("zero", [None, np.zeros((), gf.float0), 5.0], ids=str)
def test_integers_have_no_cotangents(zero):
    def bwd(residuals, g):
        (x, n), (g, g_n) = residuals, g
        assert g_n.dtype == gf.float0
        return 7 * n * x ** (n - 1) * g, zero

    f = with_rules(lambda x, n: (x**n, n), lambda x, n: ((x**n, n), (x, n)), bwd)
    slope = gf.grad(lambda x, n: f(x, n)[0])
    np.testing.assert_allclose(slope(3.0, jnp.asarray(2)), 42.0, rtol=1e-5)
    np.testing.assert_allclose(gf.jit(slope)(3.0, 2), 42.0, rtol=1e-5)
    powers = np.array([1, 2, 3])
    want = 7 * powers * 3.0 ** (powers - 1)
    np.testing.assert_allclose(gf.vmap(slope, (None, 0))(3.0, powers), want, rtol=1e-5)
    total = gf.grad(lambda x: gf.vmap(f, (None, 0))(x, powers)[0].sum())(3.0)
    np.testing.assert_allclose(total, want.sum(), rtol=1e-5)
    assert gf.grad(lambda n: f(2.0, n)[0], allow_int=True)(1).dtype == gf.float0


@pytest.mark.parametrize(
    "options",
    [{"nondiff_argnums": (0,)}, {"nondiff_argnums": (-2,)}, {"nondiff_argnames": ("op",)}],
    ids=str,
)
def test_nondiff_arguments(options):
    apply = with_rules(
        lambda op, x: op(x),
        lambda op, x: (op(x), x),
        lambda op, x, g: (5 * op(x) * g,),
        **options,
    )
    np.testing.assert_allclose(gf.grad(lambda x: apply(jnp.sin, x))(1.0), 5 * np.sin(1.0))
    np.testing.assert_allclose(gf.jit(lambda x: apply(jnp.cos, x))(1.0), np.cos(1.0), rtol=1e-6)


def test_methods():
    class Model:
        @functools.partial(gf.custom_vjp, nondiff_argnums=(0,))
        def scaled(self, x):
            return x * 2

    Model.scaled.defvjp(lambda self, x: (x * 2, ()), lambda self, _, g: (g * 3,))
    assert gf.grad(Model().scaled)(1.0).item() == 3.0


def test_rules_run_only_where_they_are_needed():
    called = []

    def fwd(x, y):
        called.append("fwd")
        return x * y, y

    def bwd(y, g):
        called.append("bwd")
        return g * y, None

    f = with_rules(lambda x, y: x * y, fwd, bwd)
    f(2.0, 3.0)
    gf.jit(f)(2.0, 3.0)
    gf.vmap(f)(X, X)
    gf.grad(lambda x: x * f(2.0, 3.0))(1.0)
    assert called == []
    gf.grad(lambda x: f(x, 3.0) * 0 + x)(1.0)
    assert called == ["fwd", "bwd"]
    called.clear()
    assert gf.grad(lambda x: (x, f(x, 3.0))[0])(1.0).item() == 1.0
    assert called == ["fwd"]


def test_nested_custom_rules():
    inner = marked()
    jvp_rule = gf.custom_jvp(jnp.tanh)
    jvp_rule.defjvp(lambda p, t: (jnp.tanh(p[0]), 2.0 * t[0]))
    outer = with_rules(
        lambda x: inner(x), lambda x: (inner(x), x), lambda x, g: (gf.grad(inner)(x) * g * 3,)
    )
    for wrap in (lambda f: f, gf.jit):
        np.testing.assert_allclose(gf.grad(wrap(outer))(0.5), 30 * np.cos(0.5), rtol=1e-6)
        np.testing.assert_allclose(gf.grad(gf.grad(wrap(outer)))(0.5), -30 * np.sin(0.5), rtol=1e-6)
        chain = gf.vmap(gf.grad(wrap(lambda x: jvp_rule(outer(x)))))
        np.testing.assert_allclose(chain(X), 60 * np.cos(X), rtol=1e-6)


# --- jaxprs -----------------------------------------------------------------------------------


def test_the_equation_keeps_its_function_and_rules():
    text = str(gf.make_jaxpr(marked())(1.0))
    assert "custom_vjp_call[" in text
    assert "call_jaxpr={ lambda" in text and "sin" in text
    assert "fwd=fwd" in text and "bwd=bwd" in text
    mapped = gf.make_jaxpr(gf.vmap(marked()))(X)
    assert [eqn.primitive.name for eqn in mapped.eqns] == ["custom_vjp_call"]
    assert "fwd=fwd" in str(mapped)


def test_gradients_hold_no_trace_of_the_linear_map():
    jaxpr = gf.make_jaxpr(gf.grad(gf.jit(marked())))(1.0).jaxpr
    names = {eqn.primitive.name for eqn in all_eqns(jaxpr)}
    assert "custom_vjp_linear" not in names
    forward = gf.make_jaxpr(lambda x: gf.jvp(marked(), (x,), (x,)))(1.0)
    assert "custom_vjp_linear" in {eqn.primitive.name for eqn in forward.eqns}


# --- closures ---------------------------------------------------------------------------------


def closing_over(y):
    f = gf.custom_vjp(lambda x: x * y)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (g * y * 3,))
    return f


def test_constants_and_values_of_the_same_transformation_may_be_closed_over():
    assert gf.grad(gf.jit(closing_over(np.float32(2.0))))(1.0).item() == 6.0
    array = closing_over(jnp.asarray(X))
    np.testing.assert_allclose(gf.grad(summed(gf.jit(array)))(X), 3 * X, rtol=1e-6)
    np.testing.assert_allclose(gf.vmap(lambda y: closing_over(y)(2.0))(X), 2 * X, rtol=1e-6)
    np.testing.assert_allclose(gf.vmap(lambda y: closing_over(y)(y))(X), X * X, rtol=1e-6)
    np.testing.assert_allclose(gf.jit(gf.vmap(lambda y: closing_over(y)(2.0)))(X), 2 * X)
    np.testing.assert_allclose(gf.vmap(lambda y: gf.grad(closing_over(y))(2.0))(X), 3 * X)
    assert gf.jit(lambda y: gf.grad(closing_over(y))(2.0))(4.0).item() == 12.0


def test_closing_over_a_differentiated_value_is_an_error():
    with pytest.raises(TypeError, match=r"\[custom_vjp\].*must not close over.*Fix: pass it"):
        gf.grad(gf.jit(lambda y: closing_over(y)(y)))(3.0)
    for use in (lambda y: closing_over(y)(y), lambda y: closing_over(y)(2.0)):
        with pytest.raises(
            gf.errors.UnexpectedTracerError,
            match=r"\[custom_vjp\] <lambda>, its fwd and its bwd must not close over.*Fix: pass it",
        ):
            gf.grad(use)(3.0)


@pytest.mark.parametrize("wrap", [lambda f: f, gf.jit, gf.checkpoint])
def test_rules_may_close_over_a_value_mapped_inside_of_grad(wrap):
    mapped = gf.vmap(lambda y, x: wrap(lambda x: closing_over(y)(x))(x), in_axes=(0, None))
    gradient = gf.grad(lambda x: mapped(X, x).sum())
    np.testing.assert_allclose(gradient(3.0), 3 * X.sum(), rtol=1e-6)
    np.testing.assert_allclose(gf.jit(gradient)(3.0), 3 * X.sum(), rtol=1e-6)
    several = gf.vmap(gradient)(jnp.arange(2.0))
    np.testing.assert_allclose(several, [3 * X.sum()] * 2, rtol=1e-6)


def test_the_rules_are_attributes():
    f = gf.custom_vjp(lambda x: x)
    assert not f.optimize_remat and not f.symbolic_zeros
    fwd, bwd = (lambda x: (x, None)), (lambda _, g: (2 * g,))
    f.defvjp(fwd, bwd, symbolic_zeros=False, optimize_remat=True)
    assert (f.fwd, f.bwd, f.optimize_remat) == (fwd, bwd, True)
    assert gf.grad(gf.checkpoint(f))(3.0).item() == 2


# --- bad rules --------------------------------------------------------------------------------


def test_rules_are_required():
    f = gf.custom_vjp(jnp.sin)
    with pytest.raises(AttributeError, match=r"\[custom_vjp\] sin must have rules.*sin\.defvjp"):
        f(1.0)


def pair(p, q):
    return p["a"] * q


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (1.0, TypeError, r"a tuple with a cotangent for each argument \(p, q\); got f32\[\]"),
        (None, TypeError, r"got NoneType"),
        ((1.0,), TypeError, r"got a tuple of 1\. Fix: return 2 cotangents"),
        (({"b": 1.0}, None), TypeError, r"argument, p of .*'a'.*; got .*'b'"),
        ((None, (1.0, 2.0)), TypeError, r"argument, q of .*\*.*; got .*\(\*, \*\)"),
        (
            ({"a": np.ones(3, "f")}, 1.0),
            ValueError,
            r"type f32\[\] for p\['a'\]; got f32\[3\]\. Fix: sum over",
        ),
        ((None, 1j), ValueError, r"for q; got c64\[\]"),
        ((None, "one"), TypeError, r"for q; got 'one'"),
    ],
)
def test_bad_cotangents(result, error, message):
    f = with_rules(pair, lambda p, q: (pair(p, q), None), lambda _, g: result)
    for wrap in (lambda f: f, gf.jit):
        with pytest.raises(error, match=r"\[custom_vjp\] bwd of pair must return.*" + message):
            gf.grad(wrap(f), argnums=(0, 1))({"a": 1.0}, 2.0)


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.float64])
def test_cotangents_of_other_dtypes_are_converted(dtype):
    f = with_rules(pair, lambda p, q: (pair(p, q), None), lambda _, g: (None, np.ones((), dtype)))
    for wrap in (lambda f: f, gf.jit):
        got = gf.grad(wrap(f), argnums=1)({"a": 1.0}, 2.0)
        assert got.dtype == np.float32 and got == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1.0, r"must return a pair \(out, residuals\); got f32\[\]"),
        ((1.0, 2.0, 3.0), r"must return a pair.*got a tuple of 3"),
        ((1.0, "text"), r"must return arrays.*got 'text'\. Fix: .*nondiff_argnums"),
    ],
)
def test_bad_forward_rules(result, message):
    f = with_rules(lambda x: x * 1.0, lambda x: result, lambda _, g: (g,))
    with pytest.raises(TypeError, match=r"\[custom_vjp\] fwd of <lambda> " + message):
        gf.grad(f)(1.0)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ((1.0,), r"output first, of tree .*; got .*Fix: return f\(\.\.\.\), residuals"),
        (np.ones(2, "f"), r"output first, of type f32\[\]; got f32\[2\]"),
        (np.ones((), np.float16), r"output first, of type f32\[\]; got f16\[\]"),
    ],
)
def test_fwd_must_agree_with_the_function(out, message):
    """It can be compared where the function has run: under jit."""

    def f(x):
        return x * 1.0

    bad = with_rules(f, lambda x: (out, None), lambda _, g: (g,))
    with pytest.raises(TypeError, match=r"\[custom_vjp\] fwd of f must return.*" + message):
        gf.grad(gf.jit(bad))(1.0)


def test_bad_arguments():
    rules = (lambda x, n: (x, None), lambda _, g: (g,))
    f = with_rules(lambda x, n: x, *rules, nondiff_argnums=(1,))
    with pytest.raises(gf.errors.UnexpectedTracerError, match=r"argument 1 of <lambda>.*Fix: drop"):
        gf.jit(f)(1.0, 2.0)
    with pytest.raises(ValueError, match=r"nondiff_argnums must name arguments.*got 2 for a call"):
        with_rules(lambda x, n: x, *rules, nondiff_argnums=(2,))(1.0, 2.0)
    with pytest.raises(ValueError, match=r"nondiff_argnames must be arguments.*\['x'\]; got 'n'"):
        gf.custom_vjp(lambda x: x, nondiff_argnames=("n",))
    with pytest.raises(TypeError, match="arguments must fit the function"):
        f(1.0, q=2)


def test_outputs_that_are_not_mapped_may_have_no_axis():
    # Outputs of a mapped call are mapped for the sake of bwd, also those that do not differ.
    f = gf.custom_vjp(lambda x, y: (x, y * 2))
    f.defvjp(lambda x, y: ((x, y * 2), None), lambda _, g: (g[0], g[1] * 2))
    mapped = gf.vmap(f, in_axes=(0, None), out_axes=(0, None))
    x = jnp.arange(3.0)
    out, shared = gf.jit(mapped)(x, 1.0)
    np.testing.assert_array_equal(out, x)
    assert shared.shape == () and shared.item() == 2.0
    assert gf.grad(lambda y: mapped(x, y)[1])(1.0).item() == 2.0
    every = gf.vmap(f, in_axes=(0, None))
    assert gf.grad(lambda y: jnp.sum(every(x, y)[1]))(1.0).item() == 6.0
    with pytest.raises(ValueError, match="out_axes of None needs an output that is not mapped"):
        gf.vmap(f, in_axes=(0, None), out_axes=None)(x, 1.0)


def test_what_may_only_be_named_keeps_its_default():
    @gf.custom_vjp
    def scaled(x, *, scale=2.0):
        return x * scale

    scaled.defvjp(lambda x: (x * 2.0, None), lambda _, g: (5 * g,))
    assert scaled(3.0) == 6.0 and gf.grad(scaled)(1.0) == 5.0
    with pytest.raises(TypeError, match=r"keyword-only .* got \['scale'\]"):
        scaled(1.0, scale=3.0)
