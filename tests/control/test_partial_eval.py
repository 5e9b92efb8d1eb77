"""Rules that users write may differentiate loops and branches: primals stay known."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.jaxpr import evaluate
from gpuflow.core.staging import trace_closed
from gpuflow.transforms.linearize import linearize_flat
from gpuflow.transforms.partial_eval import partial_jaxpr


def scanned(x):
    def body(carry, w):
        a, b, n = carry
        return (jnp.sin(a) * w, b + a * x, n + 1), (a, w * 2.0)

    (a, b, n), (ys, zs) = lax.scan(body, (x, 0.0 * x, 0), jnp.array([0.5, 1.5, -0.7]))
    return a + b * jnp.sum(ys) + n * jnp.sum(zs)


def branched(x):
    y = lax.cond(x > 0.5, lambda x: jnp.sin(x) * x, lambda x: x * x * x, x)
    return lax.switch(jnp.int32(2 * x), [jnp.cos, jnp.tanh, lambda y: y * y], y)


def looped(x):
    def body(state):
        a, k = state
        return jnp.sin(a) + x, k + 1

    return lax.while_loop(lambda state: state[1] < 3, body, (x, 0))[0]


def checkpointed(x):
    return gf.checkpoint(lambda x: scanned(x) * jnp.sin(x))(x)


def jitted(x):
    return gf.jit(lambda x: jnp.exp(scanned(x)))(x)


def by_rule(f):
    """``f`` as a custom_jvp function whose rule is gpuflow's own derivative."""

    @gf.custom_jvp
    def g(*args):
        return f(*args)

    @g.defjvp
    def _(primals, tangents):
        return gf.jvp(f, primals, tangents)

    return g


REVERSIBLE = [scanned, branched, checkpointed, jitted]


@pytest.mark.parametrize("f", REVERSIBLE)
@pytest.mark.parametrize("x", [0.3, 0.8, 1.2])
def test_rules_may_differentiate_control_flow(x64, f, x):
    expected = gf.value_and_grad(f)(x)
    got = gf.value_and_grad(by_rule(f))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(gf.jit(gf.grad(by_rule(f)))(x), expected[1], rtol=1e-12)
    out, f_jvp = gf.linearize(by_rule(f), x)
    np.testing.assert_allclose([out, f_jvp(1.0)], expected, rtol=1e-12)


@pytest.mark.parametrize("f", REVERSIBLE)
def test_under_further_transformations(x64, f):
    g = by_rule(f)
    xs = np.array([0.3, 0.8, 1.2])
    for transform in (
        lambda f: gf.vmap(gf.grad(f)),
        lambda f: gf.grad(lambda xs: jnp.sum(gf.vmap(f)(xs))),
        lambda f: gf.vmap(gf.grad(gf.grad(f))),
        lambda f: gf.jacfwd(gf.vmap(gf.grad(f))),
        lambda f: gf.grad(lambda xs: jnp.sum(lax.map(f, xs))),
    ):
        np.testing.assert_allclose(transform(g)(xs), transform(f)(xs), rtol=1e-10)


def test_a_while_loop_is_linearized(x64):
    out, f_jvp = gf.linearize(by_rule(looped), 0.4)
    np.testing.assert_allclose(out, looped(0.4), rtol=1e-12)
    np.testing.assert_allclose(f_jvp(2.0), 2 * gf.jacfwd(looped)(0.4), rtol=1e-12)
    xs = np.array([0.4, 0.9])

    def mapped(f):
        return gf.linearize(gf.vmap(f), xs)[1](np.ones(2))

    np.testing.assert_allclose(mapped(by_rule(looped)), mapped(looped), rtol=1e-12)


def test_loops_and_branches_of_lanes(x64):
    def f(x, n):
        y = lax.while_loop(lambda s: s[1] < n, lambda s: (jnp.sin(s[0]) * x, s[1] + 1), (x, 0))[0]
        return lax.cond(n > 1, jnp.sin, jnp.cos, x) + 0.0 * lax.stop_gradient(y)

    def mapped(f):
        xs, ns = np.array([0.4, 0.9, 1.3]), np.array([1, 3, 2])
        rule = gf.vmap(by_rule(f))
        return gf.linearize(lambda xs: rule(xs, ns), xs)[1](np.ones(3))

    expected = [np.cos(x) if n > 1 else -np.sin(x) for x, n in ((0.4, 1), (0.9, 3), (1.3, 2))]
    np.testing.assert_allclose(mapped(f), expected, rtol=1e-12)


def test_known_and_unknown_programs_together_are_the_program(x64):
    def f(x, t):
        def body(carry, w):
            a, b = carry
            return (jnp.sin(a), b * a + w), (a * x, b)

        carry, ys = lax.scan(body, (x, t), jnp.array([0.5, 1.0]))
        return [carry[0], carry[1], *ys]

    avals = [gf.typeof(jnp.asarray(v)) for v in (0.3, 0.7)]
    program = trace_closed(f, avals)
    known, unknown, flags, count = partial_jaxpr(program, (False, True))
    assert flags == (False, True, False, True)
    outs = known(jnp.asarray(0.3))
    a, ys = outs[:2]
    assert len(outs) == 2 + count
    b, zs = evaluate(unknown, (), [*outs[2:], jnp.asarray(0.7)])
    for got, want in zip((a, b, ys, zs), f(0.3, 0.7), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_rule_that_mixes_tangents_into_its_output_is_refused():
    @gf.custom_jvp
    def f(x):
        return x

    @f.defjvp
    def _(primals, tangents):
        both = jnp.stack([primals[0], tangents[0]])
        return both[0], both[1]

    assert gf.jvp(f, (2.0,), (3.0,))[1].item() == 3.0
    with pytest.raises(ValueError, match=r"\[custom_jvp_call\] a jvp rule must compute"):
        gf.grad(f)(2.0)


def test_a_branch_that_tangents_choose_is_refused():
    @gf.custom_jvp
    def f(x):
        return x

    @f.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return lax.cond(t > 0, lambda: (x, t), lambda: (x, t))

    with pytest.raises(ValueError, match="computed together with tangents"):
        gf.grad(f)(2.0)


def test_checkpoints_inside_of_rules_compute_again():
    g = by_rule(checkpointed)
    jaxpr = gf.make_jaxpr(gf.grad(g))(0.3).jaxpr
    flags = [e.params["differentiated"] for e in jaxpr.eqns if e.primitive.name == "remat"]
    assert flags.count(True) == 1
    stored = linearize_flat(lambda x: [g(x)], [0.3])[2]
    # The weights of the scan, and nothing else of which there is one for each iteration.
    assert sum(np.shape(value) == (3,) for value in stored) == 1
