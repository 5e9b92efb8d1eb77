"""Outputs lie where the temporaries were that a kernel reads last, where that is safe."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan

RANDOM = np.random.default_rng(0)


def normals(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, W, B = normals(37, 20), normals(20, 53) / 4, normals(53)


def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layernorm(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5) * B


def plan_of(function, *args):
    return compile_plan(gf.jit(function).lower(*args).jaxpr, ())[0]


def lies_in_a_temporary(function, *args):
    """Whether a kernel writes what it reads, and the program needs no memory besides results."""
    plan = plan_of(function, *args)
    kernels = [step for step in plan.steps if step.kind == "kernel"]
    return any(step.symbolic.overwrites for step in kernels) and plan.arena_bytes == 0


def check(function, *args, rtol=1e-5):
    """What jit gives, twice, is what operations one by one give."""
    args = [jnp.asarray(x) for x in args]
    wanted = gf.tree_util.tree_leaves(function(*args))
    jitted = gf.jit(function)
    for _ in range(2):
        got = gf.tree_util.tree_leaves(jitted(*args))
        for a, b in zip(got, wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


BEHIND = {
    "map": lambda y: jnp.maximum(y + B, 0),
    "another shape": lambda y: jnp.tanh(y + B).reshape(-1),
    "more dimensions": lambda y: jnp.tanh(y + B)[:, None, :, None],
    "softmax": softmax,
    "layernorm": layernorm,
    "a map and a column": lambda y: (jnp.exp(y), y.sum(0)),
    "a map and a full sum": lambda y: (jnp.exp(y), (y * y).sum()),
    "a map and a row": lambda y: (y * y.sum(-1, keepdims=True), y.max(-1)),
    "two maps": lambda y: (y + 1, y * 2),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_made_of_a_product_lies_in_its_memory(name):
    def function(x, w):
        return BEHIND[name](x @ w)

    check(function, X, W)
    assert lies_in_a_temporary(function, X, W)


NOT_IN_PLACE = {
    "mirrored": lambda y: jnp.tanh(y[::-1] + 1),
    "a part": lambda y: jnp.tanh(y[3:9] + 1),
    "broadcast": lambda y: jnp.tanh(y[None] + np.ones((3, 1, 1), np.float32)),
    "another type": lambda y: (y + 1).astype(np.float64),
    "an output itself": lambda y: (y, jnp.tanh(y)),
    "read as it is and turned": lambda y: y[:30, :30] + y[:30, :30].T,
    "a sum of rows": lambda y: y.sum(-1),
}


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_what_does_not_fit_lies_elsewhere(name):
    with gf.enable_x64():

        def function(x, w):
            return NOT_IN_PLACE[name](x @ w)

        check(function, X, W)
        plan = plan_of(function, X, W)
        assert not any(step.symbolic.overwrites for step in plan.steps if step.kind == "kernel")


OTHERWISE = {
    "read by a product later": lambda x, w: (jnp.tanh(y := x @ w), y @ w.T),
    "the output is read": lambda x, w: (z := jnp.tanh(x @ w), z @ w.T),
    "twice an output": lambda x, w: (z := jnp.tanh(x @ w), z),
    "and in another shape": lambda x, w: (z := jnp.tanh(x @ w), z.reshape(-1)),
    "two temporaries": lambda x, w: (x @ w) * (x @ (w + 1)),
    "two of each": lambda x, w: ((y := x @ w) + (z := x @ (w + 1)), y - z),
    "one after the other": lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w.T),
    "a sort": lambda x, w: jnp.sort(x @ w, 1) * 2,
    "a running sum": lambda x, w: jnp.exp(-jnp.cumsum(x @ w, 1)),
    "an update": lambda x, w: (x @ w).at[3].add(1.0) * 2,
    "half of a stack": lambda x, w: jnp.stack([x @ w, x @ w + 1]) * 2,
    "two halves": lambda x, w: jnp.concatenate([x @ w, x @ (2 * w)]) + 1,
    "a loop": lambda x, w: lax.fori_loop(0, 5, lambda i, y: jnp.tanh(y @ w @ w.T + i), x),
    "stacked turns": lambda x, w: lax.map(lambda r: jnp.tanh(r @ w).reshape(-1, 1), x) * 2,
    "turns of turns": lambda x, w: lax.map(
        lambda r: (lax.map(lambda c: jnp.tanh(x @ c), w.T) + r[0]).reshape(-1), x
    ),
    "a carry": lambda x, w: lax.scan(lambda c, r: (jnp.tanh(c @ w.T @ w + 1), c + 1), x @ w, x),
    "a branch": lambda x, w: lax.cond(
        x[0, 0] > 0, lambda: jnp.tanh(x @ w + 1).reshape(-1), lambda: (x @ w).reshape(-1)
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_programs(name):
    check(OTHERWISE[name], X, W, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_loop_of_python_writes_into_a_result_of_another_shape(rows):
    """The product is made by a call, in a turn that Python drives, and is a row of the result."""

    def double(x):
        return np.asarray(x) * 2

    def turn(_, x):
        y = gf.pure_callback(double, gf.ShapeDtypeStruct((rows, 53), np.float32), x @ W)
        return _, jnp.tanh(y + 1).reshape(-1)

    x = normals(5, rows, 20)
    _, got = gf.jit(lambda x: lax.scan(turn, 0, x))(x)
    np.testing.assert_allclose(got, np.tanh(x @ W * 2 + 1).reshape(5, -1), rtol=1e-4, atol=1e-5)
    _, got = gf.jit(lambda x: lax.scan(lambda c, x: (c, (x @ W).reshape(-1)), 0, x))(x)
    np.testing.assert_allclose(got, (x @ W).reshape(5, -1), rtol=1e-4, atol=1e-5)


def test_one_program_for_many_sizes():
    """Also where one of them is 1 or 0, and where two are equal."""

    def function(x, w):
        y = jnp.tanh(x @ w + 1)
        return y.reshape(-1), softmax(x @ (w + 1)).T

    jitted = gf.jit(function)
    for n, k, m in [(3, 4, 5), (1, 4, 5), (5, 4, 1), (5, 5, 5), (0, 4, 5), (3, 0, 5), (40, 9, 17)]:
        x, w = normals(n, k), normals(k, m)
        for a, b in zip(jitted(x, w), function(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_results_stay_as_they_are():
    """A result's memory is its own: later calls do not write there."""
    jitted = gf.jit(lambda x, w: jnp.tanh(x @ w))
    first = jitted(X, W)
    kept = np.array(first)
    second = jitted(X + 1, W)
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(second, kept)


def test_derivatives_and_vmap():
    def loss(w, x):
        return (softmax(x @ w) ** 2).sum() + jnp.tanh(x @ w).reshape(-1)[3]

    got = gf.jit(gf.vmap(gf.grad(loss), (None, 0)))(W, np.stack([X, X + 1]))
    for row, x in zip(got, (X, X + 1), strict=True):
        np.testing.assert_allclose(row, gf.grad(loss)(W, x), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("value", [-4, 0, 3])
def test_a_copied_update_takes_no_temporary(value):
    """The copy of the operand would be in the update's own buffer, and not in the temporary."""

    def both(x):
        index = lax.reduce_max(x, axes=[0])
        return lax.dynamic_update_slice(x, x, (index,)), lax.dynamic_slice(x, (index,), (1,))

    x = jnp.array([value], jnp.int32)
    for result in gf.jit(both)(x):
        np.testing.assert_array_equal(result, x)
