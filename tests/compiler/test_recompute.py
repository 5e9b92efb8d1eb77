"""Cheap values are computed where they are read; others are stored."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.fusion.legality import loop_structure_of
from gpuflow.compiler.fusion.recompute import FusedKernel, rematerialize
from gpuflow.compiler.fusion.regions import Region
from gpuflow.compiler.passes.program import cse, dce, inline
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import writes_of

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((30, 40)).astype(np.float32)
W = RANDOM.standard_normal((40, 40)).astype(np.float32)


def stored(f, *args):
    """For each kernel how many arrays it writes."""
    steps = compile_plan(gf.jit(f).lower(*args).jaxpr)[0].steps
    return [len(set(writes_of(step))) for step in steps if step.kind == "kernel"]


def check(f, *args):
    got, want = gf.jit(f)(*args), f(*args)
    for a, b in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
        assert_near(a, b)


def assert_near(a, b):
    """Sums of 40 products round by their largest terms."""
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5 * np.abs(b).max())


def gelu_step(x, w):
    return gf.grad(lambda x: (gf.nn.gelu(x @ w) @ w).sum())(x)


def test_the_gradient_of_gelu_stores_its_tanh():
    check(gelu_step, X, W)
    # The forward kernel stores the output for the product and tanh for the gradient.
    assert stored(gelu_step, X, W)[0] <= 2


def test_values_from_a_librarys_result():
    def f(x, w):
        y = x @ w
        a = y * 2 + 1
        return (jnp.exp(a) @ w) * a

    check(f, X, W)
    assert stored(f, X, W) == [1, 1]


@pytest.mark.parametrize(
    "f",
    [
        lambda y, w: (jnp.exp(y) @ w) * jnp.exp(y),  # not cheap
        lambda y, w: ((y + 1) @ w) * (y + 1),  # a library reads it anyway
        lambda y, w: (((((y * 2 + 1) * y) - 3) * y) + 4) * y - 5 + (jnp.exp(y) @ w),
    ],
    ids=["expensive", "needed", "long"],
)
def test_what_is_stored_all_the_same(f):
    def g(x, w):
        y = x @ w
        return f(y, w)

    check(g, X, W)


def test_outputs_and_their_readers():
    def f(x, w):
        y = x @ w
        a = y * 2
        return a, (jnp.sin(y) @ w) + a

    check(f, X, W)
    assert sum(stored(f, X, W)) == 3  # a once, sin, and the sum


def test_masks_are_made_where_they_are_used():
    def f(x, w):
        mask = jnp.arange(30)[:, None] >= jnp.arange(40)[None, :]
        y = jnp.where(mask, x, 0) @ w
        return jnp.where(mask, y, -1).sum(1)

    check(f, X, W)
    assert stored(f, X, W) == [1, 1]


def test_several_readers_in_rows_and_columns():
    def f(x, w):
        y = x @ w
        a = y - 0.5
        z = jnp.tanh(y) @ w
        return (z * a).sum(0), gf.nn.softmax(z + a), (z - a).sum()

    check(f, X, W)


def test_updates_are_left_alone():
    def f(x, w, k):
        y = x @ w
        a = y * 2
        b = jnp.asarray(a).at[k].set(1.0)
        return (b @ w) + a, b

    check(f, X, W, 3)


def test_donated_memory_is_not_overwritten_before_it_is_read_again():
    def f(x, w):
        a = x * 2 + 1
        z = jnp.sin(a) @ w
        return z + a, x * 3

    want = f(jnp.asarray(X), W)
    got = gf.jit(f, donate_argnums=0)(jnp.asarray(X), W)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_other_sizes_take_the_same_template():
    f = gf.jit(gelu_step)
    for rows in (1, 2, 7, 64, 65):
        x = RANDOM.standard_normal((rows, 40)).astype(np.float32)
        assert_near(f(x, W), gelu_step(x, W))


@pytest.mark.parametrize("index", [0, slice(0, 1), np.array([1, 0])])
def test_what_is_updated_in_place_is_not_read_again(index):
    def step(c):
        return jnp.tanh(c.at[index].add(1.0, mode="clip"))

    def f(c):
        return step(step(c))

    c = np.array([[2.6, 1.9], [-3.0, 2.1]], np.float32)
    t = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)
    out, tangent = gf.jit(lambda c, t: gf.jvp(f, (c,), (t,)))(c, t)
    expected, slope = c.astype(np.float64), t.astype(np.float64)
    for _ in range(2):
        expected = expected.copy()
        expected[index] += 1
        expected = np.tanh(expected)
        slope = slope * (1 - expected**2)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    # 1 - tanh(x)**2 has an absolute error of some roundings of 1.
    np.testing.assert_allclose(tangent, slope, atol=1e-6)


def test_groups_come_in_execution_order():
    """Readers of a value are visited after it, and so are what they read to recompute it."""
    jaxpr = dce(cse(inline(gf.make_jaxpr(lambda x, w: jnp.sin(x @ w * 2) @ w)(X, W).jaxpr)))
    program = describe_program(jaxpr, {})
    regions = [Region(program, k) for k, found in enumerate(program.iterations) if found]
    kernels = [FusedKernel(region, loop_structure_of(region)) for region in regions]
    assert len(rematerialize(program, kernels)) == 2
    with pytest.raises(AssertionError, match="execution order"):
        rematerialize(program, kernels[::-1])
