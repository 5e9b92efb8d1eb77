"""Gradients by what lanes share: their sums over lanes leave the loop, which stays a kernel."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import run_passes
from gpuflow.compiler.target import PLAIN_TARGET, PlainTarget
from gpuflow.core.lowering import Laned, Loop

RNG = np.random.default_rng(0)


@pytest.fixture
def x64():
    with gf.enable_x64():
        yield


def solve(x, p, *, steps=5):
    """A loop of known length."""
    return lax.fori_loop(0, steps, lambda _, y: y + 0.1 * jnp.sin(p * y), x)


def reversed_scan(x, p):
    step = lambda y, k: (y * p + 0.01 * k, y * y)  # noqa: E731
    y, rows = lax.scan(step, x, jnp.arange(4.0), reverse=True)
    return y + rows.sum()


def bounded(x, p):
    def step(s):
        return s[0] + 1, s[1] * p + 0.1

    return lax.while_loop(lambda s: s[1] < 1.5, step, (0, x), max_steps=20)[1]


def nested(x, p):
    inner = lambda y: lax.fori_loop(0, 3, lambda _, z: z + 0.1 * p * jnp.cos(z), y)  # noqa: E731
    return lax.fori_loop(0, 4, lambda _, y: inner(y) * p, x)


def several(x, p):
    def step(_, state):
        a, b = state
        return a + 0.1 * jnp.tanh(p * b), b - 0.1 * a / (1 + p * p)

    a, b = lax.fori_loop(0, 6, step, (x, x * x))
    return a * b


SCALARS = {
    "steps": solve,
    "reverse": reversed_scan,
    "while": bounded,
    "nested": nested,
    "several": several,
    "none": lambda x, p: solve(x, p, steps=0),
}


def both_ways(function, *args):
    """Its results with loops in kernels, and as steps."""
    results = []
    for in_kernels in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PlainTarget, "lane_loops", in_kernels)
            result = gf.jit(lambda *a: function(*a))(*args)
            results.append(gf.tree_util.tree_map(np.asarray, result))
    return results


def kinds(function, *args):
    """The classes of lowering of the compiled program's loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainTarget, "lane_loops", True)
        program, _ = run_passes(gf.jit(function).lower(*args).jaxpr, PLAIN_TARGET, lambda *_: None)
    rules = [eqn.primitive.lower for eqn in program.eqns]
    return {type(rule) for rule in rules if isinstance(rule, (Laned, Loop))}


def gradient(function):
    """By the shared argument, of a sum over all lanes."""
    return gf.grad(lambda p, x: gf.vmap(function, (0, None))(x, p).sum())


def check(function, p, x, rtol, atol):
    got, want = both_ways(gradient(function), p, x)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("lanes", [0, 1, 3, 33, 1000])
@pytest.mark.parametrize("name", SCALARS)
def test_a_number_that_lanes_share(name, lanes, x64):
    x = RNG.uniform(0.2, 1, lanes)
    check(SCALARS[name], np.float64(0.9), x, 1e-12, 1e-13)


@pytest.mark.parametrize("name", ["steps", "reverse", "several"])
def test_they_are_kernels(name):
    x = RNG.uniform(0.2, 1, 50).astype(np.float32)
    assert kinds(gradient(SCALARS[name]), np.float32(0.9), x) == {Laned}


@pytest.mark.parametrize("name", SCALARS)
def test_differences(name, x64):
    x, p, h = RNG.uniform(0.2, 0.6, 20), 0.9, 1e-6
    total = gf.jit(lambda p: gf.vmap(SCALARS[name], (0, None))(x, p).sum())
    want = (float(total(p + h)) - float(total(p - h))) / (2 * h)
    got = float(gf.jit(gradient(SCALARS[name]))(p, x))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def turned(x, m):
    return lax.fori_loop(0, 5, lambda _, y: jnp.tanh(m @ y) + 0.1, x).sum()


def scaled(x, v):
    return lax.fori_loop(0, 5, lambda _, y: y + 0.1 * jnp.sin(v * y), x).sum()


@pytest.mark.parametrize("lanes", [0, 1, 2, 3, 20])
@pytest.mark.parametrize(
    ("function", "shape"), [(turned, (3, 3)), (scaled, (3,)), (turned, (2, 2))]
)
def test_arrays_that_lanes_share(function, shape, lanes, x64):
    """Also where there are as many lanes as elements: any choice means the same."""
    x = RNG.uniform(0.2, 1, (lanes, shape[0]))
    check(function, RNG.normal(size=shape), x, 1e-12, 1e-13)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 3), (5, 1), (0, 4)])
def test_two_axes_of_lanes(sizes, x64):
    x = RNG.uniform(0.2, 1, sizes)
    mapped = lambda x, p: gf.vmap(solve, (0, None))(x, p).sum()  # noqa: E731
    check(mapped, np.float64(0.8), x, 1e-12, 1e-13)
    # One parameter for each lane of one of them.
    rows = gf.vmap(gf.vmap(solve, (0, None)), (0, 0))
    columns = gf.vmap(gf.vmap(solve, (0, 0)), (0, None))
    for function, size in ((rows, sizes[0]), (columns, sizes[1])):
        by = gf.grad(lambda p, x, f=function: f(x, p).sum())
        got, want = both_ways(by, RNG.uniform(0.5, 1, size), x)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_floats_add_up_in_wide_ones(dtype):
    """The exact sum of gradients of lanes is the measure of both."""
    x = jnp.asarray(RNG.uniform(0.2, 1, 4000), dtype)
    p = jnp.asarray(0.5, dtype)
    got, _ = both_ways(gradient(solve), p, x)
    wide = x.astype("float32"), p.astype("float32")
    each = np.asarray(gf.vmap(gf.grad(solve, 1), (0, None))(*wide))
    # A rounding of the result, and those of the lanes, which are at random.
    rtol = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    assert got.dtype == p.dtype
    np.testing.assert_allclose(float(got), each.sum(dtype=np.float64), rtol=rtol)


def test_complex_numbers(x64):
    x = RNG.normal(size=20) + 1j * RNG.normal(size=20)

    def loss(p, x):
        one = lambda x: lax.fori_loop(0, 4, lambda _, z: 0.5 * z * z + p, x)  # noqa: E731
        return (jnp.abs(gf.vmap(one)(0.3 * x)) ** 2).sum()

    got, want = both_ways(gf.grad(loss), 0.1 + 0.2j, x)
    np.testing.assert_allclose(got, want, rtol=1e-11)


def test_values_and_gradients_by_lanes_too(x64):
    """What each lane has for itself is differentiated beside what they share."""
    x = RNG.uniform(0.2, 1, 30)
    loss = lambda p, x: (gf.vmap(several, (0, None))(x, p) ** 2).sum()  # noqa: E731
    got, want = both_ways(gf.value_and_grad(loss, (0, 1)), 0.7, x)
    gf.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), got, want)
    got, want = both_ways(gf.hessian(loss), 0.7, x)
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_a_sum_that_decides_stays_in_the_loop():
    """A total that lanes read in each turn is no sum behind the loop."""

    def function(x):
        def step(_, state):
            y, total = state
            return y + 0.01 * total, total + y.sum()

        return lax.fori_loop(0, 5, step, (x, jnp.float32(0)))

    x = RNG.uniform(size=300).astype(np.float32)
    assert kinds(function, x) == {Loop}
    got, want = both_ways(function, x)
    gf.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def test_sums_that_a_user_writes_keep_their_order():
    """Only what derivatives add up may be added up in another order."""

    def function(x):
        def step(k, state):
            y, total = state
            return y * 0.9, total + (y * y).sum()

        return lax.fori_loop(0, 5, step, (x, jnp.float32(2)))

    assert kinds(function, RNG.uniform(size=300).astype(np.float32)) == {Loop}


def test_sums_that_are_stacked_stay_in_the_loop(x64):
    """Gradients by what each turn is given are sums over lanes that slices hold."""
    x, ps = RNG.uniform(0.2, 1, 40), RNG.uniform(0.5, 1, 6)

    def loss(ps, x):
        one = lambda x: lax.scan(lambda y, p: (y + 0.1 * jnp.sin(p * y), y), x, ps)  # noqa: E731
        last, rows = gf.vmap(one)(x)
        return last.sum() + (rows**2).sum()

    got, want = both_ways(gf.grad(loss), ps, x)
    np.testing.assert_allclose(got, want, rtol=1e-12)
