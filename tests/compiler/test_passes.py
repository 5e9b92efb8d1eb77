"""The passes before fusion: inline, simplify, cse, dce, clone_cheap."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.fusion.clones import CLONE_SPAN, clone_cheap
from gpuflow.compiler.passes import program as passes
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.jaxpr import DropVar, Literal, check_jaxpr, evaluate
from gpuflow.ops.effects.callbacks import debug_callback

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
PASSES = (passes.simplify, passes.cse, passes.dce, clone_cheap)


def traced(function, *args):
    """The inlined program of a function."""
    jaxpr = passes.inline(gf.jit(function).lower(*args).jaxpr.jaxpr)
    check_jaxpr(jaxpr)
    return jaxpr


def names(jaxpr):
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def run(rewrite, jaxpr):
    """Apply a pass; its result must be well-formed and keep the signature."""
    result = rewrite(jaxpr)
    check_jaxpr(result)
    assert result.in_avals == jaxpr.in_avals and result.out_avals == jaxpr.out_avals
    return result


# --- inline --------------------------------------------------------------------------------


def test_inline_replaces_nested_programs():
    inner = gf.jit(lambda x, y: (x * y, y))

    def function(x):
        a, b = inner(x, x + 1)
        return gf.jit(lambda z: inner(z, b)[0] + 2)(a)

    jaxpr = traced(function, X)
    assert "jit" not in names(jaxpr) and names(jaxpr).count("mul") == 2
    a, b = X * (X + 1), X + 1
    np.testing.assert_allclose(evaluate(jaxpr, (), (X,))[0], a * b + 2, rtol=1e-6)


def test_inline_gives_each_call_its_own_variables():
    inner = gf.jit(lambda x: lax.sin(x))
    jaxpr = traced(lambda x: inner(x) + inner(x * 2), X)
    outputs = [var for eqn in jaxpr.eqns for var in eqn.outputs]
    assert len(outputs) == len(set(outputs)) and names(jaxpr).count("sin") == 2


def test_inline_returns_programs_without_calls_as_they_are():
    jaxpr = traced(lambda x: x + 1, X)
    assert passes.inline(jaxpr) is jaxpr


def test_inner_outputs_may_be_inputs_and_numbers():
    inner = gf.jit(lambda x: (x, 3.0, x))
    jaxpr = traced(lambda x: inner(x), X)
    assert jaxpr.outvars[0] is jaxpr.invars[0] and jaxpr.outvars[2] is jaxpr.invars[0]
    assert isinstance(jaxpr.outvars[1], Literal)


def test_closed_over_arrays_become_inputs_once():
    table = jnp.asarray(X)
    inner = gf.jit(lambda x: x + table)
    step = gf.jit(lambda x: inner(x) * table)
    np.testing.assert_allclose(step(X), (X + X) * X, rtol=1e-6)
    plan = step.lower(X).compile()._compiled.plan
    assert len(plan.jaxpr.invars) == 2


# --- simplify ------------------------------------------------------------------------------


def library_calls(function, *args):
    steps = gf.jit(function).lower(*args).compile().steps
    return [step for step in steps if isinstance(step, CallStep)], steps


def test_transposes_of_operands_are_views():
    calls, steps = library_calls(lambda x, y: x.T @ y, X, X)
    assert len(calls) == len(steps) == 1
    assert calls[0].operands[0].view.strides == (1, 4)
    np.testing.assert_allclose(gf.jit(lambda x, y: x.T @ y)(X, X), X.T @ X, rtol=1e-5)


def test_transpose_of_a_product_is_the_product_of_transposes():
    y = np.ones((4, 5), np.float32)
    jaxpr = run(passes.simplify, traced(lambda x, y: (x @ y).T, X, y))
    left = passes.dce(jaxpr)
    assert left.eqns[-1].primitive.name == "dot_general"
    _, steps = library_calls(lambda x, y: (x @ y).T, X, y)
    assert len(steps) == 1
    np.testing.assert_allclose(gf.jit(lambda x, y: (x @ y).T)(X, y), (X @ y).T, rtol=1e-5)


def test_product_that_is_read_twice_is_not_computed_twice():
    def function(x):
        y = x @ x.T
        return y, y.T

    calls, _ = library_calls(function, X)
    assert len(calls) == 1
    for got, want in zip(gf.jit(function)(X), (X @ X.T, (X @ X.T).T), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_simplify_keeps_values():
    def function(x):
        y = lax.transpose(lax.transpose(x, (1, 0)), (1, 0))
        same = lax.convert_element_type(y, np.float32)
        return y * 1 + 0, lax.integer_pow(x, 2), same, lax.neg(-x)

    jaxpr = traced(function, X)
    for got, want in zip(evaluate(run(passes.simplify, jaxpr), (), (X,)), function(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0])
def test_simplify_does_not_lose_special_values(value):
    """x * 0 is not 0, x + 0 is not x where x is -0, x - x is not 0."""
    x = np.full(3, value, np.float32)

    def function(x):
        return x * 0, x + 0, 0 + x, x - x, x / x, 0 - x, x * 1, x * -1

    for got, want in zip(gf.jit(function)(x), function(jnp.asarray(x)), strict=True):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


# --- cse -----------------------------------------------------------------------------------


def test_cse_computes_equal_expressions_once():
    jaxpr = run(passes.cse, traced(lambda x: jnp.sin(x) * 2 + jnp.sin(x) * 2, X))
    assert names(jaxpr).count("sin") == 1 and names(jaxpr).count("mul") == 1
    assert names(jaxpr).count("add") == 1


def test_cse_tells_params_apart():
    jaxpr = traced(lambda x: (jnp.sum(x, 0), jnp.sum(x, 1), jnp.sum(x, 0)), X)
    assert names(run(passes.cse, jaxpr)).count("reduce_sum") == 2


def test_cse_tells_numbers_apart_by_value_and_dtype():
    """0.0 and -0.0 compare equal, 1 and 1.0 and True do too; none of them may merge."""

    def function(x):
        f = lax.convert_element_type(x, np.float32)
        zeros = lax.div(f, np.float32(0.0)), lax.div(f, np.float32(-0.0))
        ones = jnp.full((3,), 1, np.int32), jnp.full((3,), 1, np.float32), jnp.full((3,), True)
        return (*zeros, *ones, lax.add(f, np.float32(np.nan)), lax.add(f, np.float32(1)))

    x = np.ones(3, np.float32)
    jaxpr = run(passes.cse, traced(function, x))
    assert names(jaxpr).count("div") == 2
    for got, want in zip(gf.jit(function)(x), function(x), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_params_that_compare_equal_are_other_programs():
    """Parameters of primitives of users: 0.0 and -0.0, and 1, 1.0 and True."""
    scaled = gf.extend.define_primitive("test_scaled", lambda x, *, c: x / jnp.asarray(c, x.dtype))
    typed = gf.extend.define_primitive("test_typed", lambda x, *, c: x + (20 if c is True else c))
    x = np.ones(3, np.float32)

    def divided(x):
        return scaled.bind(x, c=0.0), scaled.bind(x, c=-0.0), scaled.bind(x, c=np.float32(-0.0))

    def added(x):
        return typed.bind(x, c=1), typed.bind(x, c=True), typed.bind(x, c=1)

    for function in (divided, added):
        want = [np.asarray(out) for out in function(x)]
        for got, expected in zip(gf.jit(function)(x), want, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert [float(out[0]) for out in divided(x)] == [np.inf, -np.inf, -np.inf]
    assert [float(out[0]) for out in added(x)] == [2.0, 21.0, 2.0]


def test_cse_merges_equal_nan_literals():
    jaxpr = traced(lambda x: (x + np.float32(np.nan), x + np.float32(np.nan)), X)
    assert names(run(passes.cse, jaxpr)).count("add") == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_cse_and_dce_never_touch_effects(ordered):
    seen = []

    def note(x):
        seen.append(float(x))

    def function(x):
        for _ in range(3):
            debug_callback(note, jnp.sum(x) * 0 + 5, ordered=ordered)
        return x

    jaxpr = traced(function, X)
    for rewrite in PASSES:
        jaxpr = run(rewrite, jaxpr)
    assert names(jaxpr).count("debug_callback") == 3
    gf.jit(function)(X)
    assert seen == [5.0, 5.0, 5.0]


def test_expression_whose_result_was_dropped_can_be_read_later():
    from_both = gf.jit(lambda x: (jnp.sin(x), jnp.cos(x)))

    def function(x):
        first, _ = from_both(x)
        _, second = from_both(x)
        return first + second

    jaxpr = run(passes.cse, traced(function, X))
    assert not any(isinstance(atom, DropVar) for eqn in jaxpr.eqns for atom in eqn.inputs)
    np.testing.assert_allclose(gf.jit(function)(X), np.sin(X) + np.cos(X), rtol=1e-5, atol=1e-6)


# --- dce -----------------------------------------------------------------------------------


def test_dce_drops_what_nobody_reads():
    def function(x):
        unused = jnp.tanh(jnp.exp(x) @ x.T)
        del unused
        return x * 2

    assert names(run(passes.dce, traced(function, X))) == ["mul"]


def test_dce_keeps_inputs_and_outputs_of_every_kind():
    jaxpr = run(passes.dce, traced(lambda x, y: (y, 1.0, x), X, X))
    assert not jaxpr.eqns and len(jaxpr.invars) == 2
    outs = gf.jit(lambda x, y: (y, 1.0, x, y))(X, X + 1)
    for got, want in zip(outs, (X + 1, 1, X, X + 1), strict=True):
        np.testing.assert_array_equal(got, want)


# --- clone_cheap ---------------------------------------------------------------------------


def test_clones_keep_values_and_outputs():
    def function(x):
        line = lax.iota(np.float32, (3, 4), 1)
        shifted = x + 1
        return shifted * line, jnp.sum(shifted, 0), line, x.T @ line, shifted

    jaxpr = traced(function, X)
    cloned = run(clone_cheap, jaxpr)
    assert len(cloned.eqns) >= len(jaxpr.eqns)
    for got, want in zip(evaluate(cloned, (), (X,)), function(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_long_chains_of_views_do_not_multiply():
    """Each of n views read twice must not cost 2^n equations."""

    def function(x):
        total = x
        for _ in range(24):
            x = x[None][0].T
            total = total + (x if x.shape == total.shape else x.T)
        return total

    assert len(run(clone_cheap, traced(function, X)).eqns) < 3000
    np.testing.assert_allclose(gf.jit(function)(X), 25 * X, rtol=1e-5)


def test_many_readers_share_clones():
    """A chain that reads ``2 x`` at every second step was half as long again with copies."""

    def function(x, xp=jnp):
        double, total = x * 2, x
        for _ in range(200):
            total = xp.sin(total - double)
        return total

    jaxpr = traced(function, X)
    copies = len(run(clone_cheap, jaxpr).eqns) - len(jaxpr.eqns)
    assert 400 // CLONE_SPAN <= copies <= 400 // CLONE_SPAN + 1
    want = function(np.asarray(X, np.float64), np)
    np.testing.assert_allclose(gf.jit(function)(X), want, atol=1e-4)
