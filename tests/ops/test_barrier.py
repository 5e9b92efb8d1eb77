"""optimization_barrier: nothing is merged across it, started before it, or copied."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def plan_of(function, *args):
    return gf.jit(function).lower(*args).compile()


def names_of(compiled):
    return [
        [eqn.primitive.name for eqn in step.eqns] if hasattr(step, "eqns") else step.kind
        for step in compiled.steps
    ]


def test_equal_expressions_stay_apart():
    x = np.linspace(0, 1, 5, dtype="f")

    def f(x):
        return jnp.sin(x) + jnp.sin(lax.optimization_barrier(x))

    assert sum(names.count("sin") for names in names_of(plan_of(f, x))) == 2
    np.testing.assert_allclose(gf.jit(f)(x), 2 * np.sin(x), rtol=1e-6)


def test_what_reads_a_result_waits_for_every_operand():
    x, y = np.ones(4, "f"), np.ones((2, 4), "f")

    def f(x, y):
        a, total = lax.optimization_barrier((x * 2, jnp.sum(y)))
        return jnp.sin(a) + 0 * total, jnp.cos(x)

    steps = names_of(plan_of(f, x, y))
    position = {name: k for k, names in enumerate(steps) for name in names}
    assert position["reduce_sum"] < position["sin"] == len(steps) - 1
    np.testing.assert_allclose(gf.jit(f)(x, y)[0], np.sin(x * 2), rtol=1e-6)


def test_nothing_is_copied_or_launched():
    x = np.arange(6, dtype="f").reshape(2, 3)

    def f(x):
        a, b = lax.optimization_barrier((x, x.T))
        return a + 1, b * 2

    compiled = plan_of(f, x)
    assert all(names != "copy" for names in names_of(compiled))
    assert compiled.memory_analysis().temp_size_in_bytes == 0
    a, b = gf.jit(f)(x)
    np.testing.assert_array_equal(a, x + 1)
    np.testing.assert_array_equal(b, x.T * 2)


@pytest.mark.parametrize("wrap", [lambda f: f, gf.jit])
def test_results_that_are_outputs_literals_and_repeated(wrap):
    def f(x):
        a, b, c, d = lax.optimization_barrier((x, 2.0, x, jnp.zeros(3) + 1))
        (e,) = lax.optimization_barrier((a,))
        return a, b, c, d + e, e

    x = jnp.arange(3.0)
    a, b, c, d, e = wrap(f)(x)
    for got, want in ((a, x), (b, 2.0), (c, x), (d, x + 1), (e, x)):
        np.testing.assert_array_equal(got, want)
    y = jnp.arange(3.0)
    (kept,) = gf.jit(lambda x: lax.optimization_barrier((x,)), donate_argnums=0)(y)
    np.testing.assert_array_equal(kept, [0, 1, 2])


def test_results_nobody_reads_keep_nothing_alive():
    def f(x):
        a, _ = lax.optimization_barrier((x, jnp.sum(jnp.exp(x))))
        return jnp.sin(a)

    assert all("exp" not in names for names in names_of(plan_of(f, np.ones(4, "f"))))


def test_derivatives_and_vmap():
    def f(x, n):
        x, n = lax.optimization_barrier((x, n))
        return jnp.sin(x) * n

    assert gf.grad(f)(0.0, 3).item() == 3.0
    assert gf.grad(gf.grad(f))(0.5, 1).item() == pytest.approx(-np.sin(0.5))
    assert gf.jvp(lambda x: f(x, 2), (0.0,), (1.0,))[1].item() == 2.0
    x = np.linspace(0, 1, 4, dtype="f")
    mapped = gf.vmap(f, in_axes=(0, None))(x, 2)
    np.testing.assert_allclose(mapped, np.sin(x) * 2, rtol=1e-6)


def test_in_a_loop():
    def f(x):
        def body(c, _):
            (c,) = lax.optimization_barrier((c,))
            return jnp.sin(c), c

        return lax.scan(body, x, None, length=3)

    last, ys = gf.jit(f)(0.5)
    np.testing.assert_allclose(last, np.sin(np.sin(np.sin(0.5))), rtol=1e-6)
    np.testing.assert_allclose(ys, [0.5, np.sin(0.5), np.sin(np.sin(0.5))], rtol=1e-6)


def test_errors():
    with pytest.raises(TypeError, match=r"\[optimization_barrier\] operands.*'a'.*operand\[1\]"):
        lax.optimization_barrier((1.0, "a"))
