"""Turns that do not see each other are lanes: lax.map, and scans that carry nothing on."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.targets.cpu.target import NativeTarget

RNG = np.random.default_rng(21)


@pytest.fixture(autouse=True)
def lane_loops(monkeypatch):
    monkeypatch.setattr(NativeTarget, "lane_loops", True)


def steps_of(function, *args):
    plan, _ = compile_plan(gf.make_jaxpr(function)(*args), target=NativeTarget())
    return [step.kind for step in plan.steps]


def root(a):
    """Newton's steps until they are small, for each element by itself."""
    state = lax.while_loop(
        lambda s: (jnp.abs(s[0] * s[0] - a) > 1e-4 * a) & (s[1] < 60),
        lambda s: (0.5 * (s[0] + a / s[0]), s[1] + 1),
        (a, 0),
    )
    return state[0]


@pytest.mark.parametrize("count", [0, 1, 2, 33, 200])
def test_a_map_of_loops_is_one_kernel(count):
    x = np.exp(RNG.uniform(0, 9, count)).astype(np.float32)
    np.testing.assert_allclose(gf.jit(lambda x: lax.map(root, x))(x), np.sqrt(x), rtol=1e-4)
    if count > 1:
        assert steps_of(lambda x: lax.map(root, x), x) == ["kernel"]


def test_explain_says_that_it_is_one_kernel():
    text = gf.explain(lambda x: lax.map(root, x), jnp.ones(100), stage="plan").text
    assert ": 1 kernel;" in text and "lane_loop" in text


def test_trees_and_small_state():
    xs = {"m": RNG.standard_normal((50, 3, 3)), "v": RNG.standard_normal((50, 3))}
    xs = {name: x.astype(np.float32) for name, x in xs.items()}
    shift = RNG.standard_normal(3).astype(np.float32)

    def f(x):
        w = x["m"] @ x["v"] + shift
        return w, {"norm": jnp.sqrt(jnp.sum(w * w)), "place": w.argmax()}

    w, rest = gf.jit(lambda xs: lax.map(f, xs))(xs)
    want = np.einsum("nij,nj->ni", xs["m"], xs["v"]) + shift
    np.testing.assert_allclose(w, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rest["norm"], np.linalg.norm(want, axis=1), rtol=1e-4)
    np.testing.assert_array_equal(rest["place"], want.argmax(1))
    assert steps_of(lambda xs: lax.map(f, xs), xs) == ["kernel"]


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_that_carry_nothing_on(reverse):
    """Carries that are passed on, or that nobody needs, are none."""
    x = RNG.standard_normal((40, 2)).astype(np.float32)

    def passed(c, x):
        return lax.scan(lambda c, v: (c, v * c + 1), c, x, reverse=reverse)[1]

    def dead(c, x):
        return lax.scan(lambda c, v: (c + v[0], jnp.sin(v)), c, x, reverse=reverse)[1]

    def both(c, x):
        return lax.scan(lambda c, v: (c, v * c), c, x, reverse=reverse)

    np.testing.assert_allclose(gf.jit(passed)(np.float32(3), x), x * 3 + 1, rtol=1e-5)
    np.testing.assert_allclose(gf.jit(dead)(np.float32(3), x), np.sin(x), rtol=1e-5, atol=1e-6)
    last, ys = gf.jit(both)(np.float32(3), x)
    assert float(last) == 3
    np.testing.assert_allclose(ys, x * 3, rtol=1e-5)
    for function in (passed, dead):
        assert steps_of(function, np.float32(3), x) == ["kernel"]
    vector = gf.jit(passed)(np.float32([3, 4]), x)
    np.testing.assert_allclose(vector, x * [3, 4] + 1, rtol=1e-5)


def test_batches_and_mapped_maps():
    x = np.exp(RNG.uniform(0, 9, (6, 35))).astype(np.float32)
    batched = gf.jit(lambda x: lax.map(root, x, batch_size=8))(x[0])
    np.testing.assert_allclose(batched, np.sqrt(x[0]), rtol=1e-4)
    assert "program" not in steps_of(lambda x: lax.map(root, x, batch_size=8), x[0])
    both = gf.vmap(lambda x: lax.map(root, x))
    np.testing.assert_allclose(gf.jit(both)(x), np.sqrt(x), rtol=1e-4)
    assert steps_of(both, x) == ["kernel"]
    inner = gf.jit(lambda x: lax.map(lambda row: lax.map(root, row), x))
    np.testing.assert_allclose(inner(x), np.sqrt(x), rtol=1e-4)


@pytest.mark.parametrize("count", [4, 300])
def test_counters_are_computed_at_each_lane(count):
    """A counter has no array: its element at a lane was taken for all of its elements."""
    x = RNG.standard_normal(count).astype(np.float32)

    def f(x):
        turns = jnp.arange(count)
        return lax.map(lambda pair: pair[0] * 2 + x[pair[0]] * pair[1], (turns, 3 - turns))

    want = np.arange(count) * 2 + x * (3 - np.arange(count))
    np.testing.assert_allclose(gf.jit(f)(x), want, rtol=1e-5)
    assert steps_of(f, x) == ["kernel"]
    one = gf.kernel(grid=lambda k, x: ())(lambda index, k, x: x[k] * k)
    both = gf.jit(lambda x: gf.vmap(one, (0, None))(jnp.arange(count) + 0, x))
    np.testing.assert_allclose(both(x), x * np.arange(count), rtol=1e-5)


def test_places_that_follow_from_counters():
    """Of an op with several results all are emitted, also where operands are computed; one was."""
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    w = RNG.standard_normal(3).astype(np.float32)

    def f(w, x):
        def step(c, pair):
            v, k = pair
            return c, (v.at[jnp.arange(2) + k].add(c[0]), v * jnp.exp(w).sum())

        return lax.scan(step, w, (x, jnp.arange(5)))[1]

    put, scaled = gf.jit(f)(w, x)
    want = x.copy()
    for k in range(5):
        want[k, k : k + 2] += w[0]
    np.testing.assert_allclose(put, want, rtol=1e-6)
    np.testing.assert_allclose(scaled, x * np.exp(w).sum(), rtol=1e-5)


def test_elementwise_bodies_of_long_arrays():
    x, y = RNG.standard_normal((2, 5, 400)).astype(np.float32)
    f = gf.jit(lambda x, y: lax.map(lambda v: v * y[0] + v[0], x))
    np.testing.assert_allclose(f(x, y), x * y[0] + x[:, :1], rtol=1e-5, atol=1e-6)


def test_what_all_turns_share_is_made_first():
    table = RNG.uniform(0, 1, (30, 30)).astype(np.float32)
    x = RNG.standard_normal(50).astype(np.float32)

    def f(table, x):
        return lax.map(lambda v: v * table.sum() + jnp.sin(v), x)

    np.testing.assert_allclose(gf.jit(f)(table, x), x * table.sum() + np.sin(x), rtol=1e-4)
    assert "program" not in steps_of(f, table, x)


def test_large_states_stay_a_loop(capsys):
    """A map bounds memory: what is large for each turn is there once."""
    x = RNG.standard_normal((5, 300)).astype(np.float32)

    def f(x):
        return lax.map(lambda v: jnp.sort(jnp.outer(v, v).reshape(-1))[:7], x)

    want = np.sort(np.einsum("ni,nj->nij", x, x).reshape(5, -1))[:, :7]
    np.testing.assert_allclose(gf.jit(f)(x), want, rtol=1e-5)
    assert steps_of(f, x) == ["program"]
    assert "loop    not one kernel: it " in gf.explain(f, x, stage="plan").text


def test_derivatives_of_maps():
    x = RNG.uniform(0.5, 2, 60).astype(np.float32)
    p = np.float32(1.5), np.float32(0.7)

    def loss(x, p):
        return lax.map(lambda v: jnp.sin(p[0] * v) * p[1], x).sum()

    d_x, d_p = gf.jit(gf.grad(loss, (0, 1)))(x, p)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(d_x, np.cos(p[0] * wide) * p[0] * p[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_p[0], (np.cos(p[0] * wide) * wide * p[1]).sum(), rtol=1e-4)
    np.testing.assert_allclose(d_p[1], np.sin(p[0] * wide).sum(), rtol=1e-4)
    assert "program" not in steps_of(gf.grad(loss, (0, 1)), x, p)
    _, tangent = gf.jvp(gf.jit(lambda x: lax.map(root, x)), (x,), (np.ones_like(x),))
    # Steps end when the value is good; the derivative is one step behind.
    np.testing.assert_allclose(tangent, 0.5 / np.sqrt(wide), rtol=0.02)

    def powers(x):
        return lax.map(lambda a: lax.fori_loop(0, 8, lambda i, s: s * a, a), x).sum()

    np.testing.assert_allclose(gf.jit(gf.grad(powers))(x), 9 * wide**8, rtol=1e-4)
    assert "program" not in steps_of(gf.grad(powers), x)


def test_sums_of_derivatives_over_many_sizes():
    """Of a matrix that turns share: few elements are summed behind the loop, many are carried."""
    for size in (1, 3, 9):
        w = RNG.standard_normal((size, size)).astype(np.float32)
        x = RNG.standard_normal((20, size)).astype(np.float32)
        got = gf.jit(gf.grad(lambda w: lax.map(lambda v: jnp.tanh(v @ w), x).sum()))(w)  # noqa: B023
        slope = 1 / np.cosh(x.astype(np.float64) @ w) ** 2
        np.testing.assert_allclose(got, x.T @ slope, rtol=1e-3, atol=1e-4)


@pytest.mark.cuda_toolchain
def test_on_a_simulated_gpu():
    x = np.exp(RNG.uniform(0, 9, 40)).astype(np.float32)
    with gf.default_device(gf.devices("cuda_sim")[0]):
        got = gf.jit(lambda x: lax.map(root, x))(jnp.asarray(x))
        np.testing.assert_allclose(got, np.sqrt(x), rtol=1e-4)

        def loss(p):
            return lax.map(lambda v: jnp.sin(p * v), jnp.asarray(x / 100)).sum()

        slope = gf.jit(gf.grad(loss))(jnp.float32(1.5))
        wide = np.float64(x) / 100
        np.testing.assert_allclose(slope, (np.cos(1.5 * wide) * wide).sum(), rtol=1e-3, atol=0.01)
