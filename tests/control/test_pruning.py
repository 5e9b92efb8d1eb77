"""Results of loops and branches that nobody reads are not computed."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def plan_of(f, *args):
    return compile_plan(gf.jit(f).lower(*args).jaxpr)[0]


def loop_of(f, *args):
    """The equation of the one loop or branch of a compiled function."""
    (step,) = [step for step in plan_of(f, *args).steps if step.kind == "program"]
    return step.eqn


@pytest.mark.usefixtures("loops_of_steps")
def test_scan():
    def f(x, w):
        def body(carry, row):
            a, b, c = carry
            return (a + row, jnp.sin(b) * w, c + b), (row * 2, jnp.tan(b), c)

        (a, b, c), (doubled, tan, cs) = lax.scan(body, (x[0], x[0], x[0]), x)
        return {"a": a, "b": b, "c": c, "doubled": doubled, "tan": tan, "cs": cs}

    w = np.float32(0.5)
    whole = f(X, w)
    sizes = {"a": 1, "b": 1, "c": 2, "doubled": 0, "tan": 1, "cs": 2}
    for name, carries in sizes.items():
        g = gf.jit(lambda x, w, name=name: f(x, w)[name])
        np.testing.assert_array_equal(g(X, w), whole[name])
        if carries:
            eqn = loop_of(lambda x, w, name=name: f(x, w)[name], X, w)
            assert eqn.params["num_carry"] == carries
    assert len(loop_of(lambda x, w: f(x, w)["a"], X, w).inputs) == 2
    assert len(plan_of(lambda x, w: f(x, w)["doubled"], X, w).steps) >= 1


@pytest.mark.usefixtures("loops_of_steps")
def test_while():
    def f(x, w, n):
        def body(s):
            return s[0] + 1, s[1] * w, jnp.sin(s[2]) + s[1], s[3] + 1

        return lax.while_loop(lambda s: s[0] < n, body, (0, x, x, x))

    whole = f(X, 0.5, 3)
    for k, carries in enumerate((1, 2, 3, 2)):
        g = gf.jit(lambda x, w, n, k=k: f(x, w, n)[k])
        np.testing.assert_allclose(g(X, 0.5, 3), whole[k], rtol=1e-6)
        eqn = loop_of(lambda x, w, n, k=k: f(x, w, n)[k], X, 0.5, 3)
        assert len(eqn.outputs) == carries


def test_branches():
    def f(p, x, y, z):
        return lax.cond(p, lambda x, y, z: (x * y, jnp.sin(z)), lambda x, y, z: (x, z), x, y, z)

    for p in (True, False):
        whole = f(p, X, X + 1, X + 2)
        for k, operands in enumerate((2, 1)):
            g = gf.jit(lambda p, *xs, k=k: f(p, *xs)[k])
            np.testing.assert_allclose(g(p, X, X + 1, X + 2), whole[k], rtol=1e-6)
            eqn = loop_of(lambda p, *xs, k=k: f(p, *xs)[k], p, X, X, X)
            assert len(eqn.inputs) == 1 + operands and len(eqn.outputs) == 1


def test_effects_are_kept():
    seen = []

    def f(x):
        def body(c, row):
            gf.debug.callback(lambda v: seen.append(float(v)), c)
            return c + row.sum(), row * 2

        lax.scan(body, 0.0, x)
        lax.cond(x[0, 0] == 0, lambda: gf.debug.callback(lambda: seen.append("yes")), lambda: None)
        return x + 1

    gf.jit(f)(X).block_until_ready()
    assert sorted(v for v in seen if v != "yes") == [0, 3, 15, 36] and "yes" in seen


def test_loops_in_loops_and_derivatives():
    def f(x):
        def outer(c, row):
            inner, (stacked, _) = lax.scan(lambda d, v: (d * v, (d + v, jnp.exp(v))), c, row)
            return inner, (stacked, jnp.tan(row))

        return lax.scan(outer, 1.0, x)[1][0].sum()

    eager, compiled = gf.grad(f)(X + 1), gf.jit(gf.grad(f))(X + 1)
    np.testing.assert_allclose(compiled, eager, rtol=1e-5)
    text = str(plan_of(f, X).jaxpr)
    assert "tan" not in text and "exp" not in text
