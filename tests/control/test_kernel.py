"""gf.kernel: one program for each index of a grid, in exactly one kernel."""

import re

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.targets.cpu.target import NativeTarget

RNG = np.random.default_rng(12)


@pytest.fixture(params=[True, False])
def lane_loops(request, monkeypatch):
    """Kernels are kernels whether other loops are, or not."""
    monkeypatch.setattr(NativeTarget, "lane_loops", request.param)


def steps_of(function, *args):
    plan, _ = compile_plan(gf.make_jaxpr(function)(*args), target=NativeTarget())
    return [step.kind for step in plan.steps]


@gf.kernel(grid=lambda x, index, scale: index.shape)
def lookup(i, x, index, scale):
    """As gathers do: numbers below 0 count from the end, others are bounded."""
    return x[index[i]] * scale


@gf.kernel(grid=lambda a, b: (a.shape[0], b.shape[1]))
def product(place, a, b):
    i, j = place
    return lax.fori_loop(0, a.shape[1], lambda k, total: total + a[i, k] * b[k, j], 0.0)


@gf.kernel(grid=lambda start, factors: start.shape[:1])
def grown(i, start, factors):
    """Each lane by itself; its state is a small vector."""
    return lax.while_loop(
        lambda s: s[0].sum() < 100,
        lambda s: (s[0] * factors[i], s[1] + 1),
        (start[i], 0),
        max_steps=400,
    )


def grown_of(start, factors):
    states, counts = [], []
    for x, factor in zip(np.asarray(start, np.float64), factors, strict=True):
        count = 0
        while x.sum() < 100 and count < 400:
            x, count = x * factor, count + 1
        states.append(x)
        counts.append(count)
    return np.array(states), np.array(counts)


START = RNG.uniform(1, 2, (37, 3)).astype(np.float32)
FACTORS = RNG.uniform(1.2, 3, 37).astype(np.float32)
A, B = RNG.standard_normal((5, 300), np.float32), RNG.standard_normal((300, 4), np.float32)


def test_gathers(lane_loops):
    x, index = np.arange(10, dtype=np.float32), np.array([3, -1, 0, 9, 25, -30])
    np.testing.assert_array_equal(lookup(x, index, 2.0), [6, 18, 0, 18, *2 * x[[9, 0]]])
    assert steps_of(lookup, x, index, 2.0) == ["kernel"]


def test_loops_of_each_lane(lane_loops):
    state, counts = grown(START, FACTORS)
    want, steps = grown_of(START, FACTORS)
    np.testing.assert_allclose(state, want, rtol=1e-4)
    np.testing.assert_array_equal(counts, steps)
    assert steps_of(grown, START, FACTORS) == ["kernel"]


def test_a_grid_of_two_dimensions(lane_loops):
    np.testing.assert_allclose(product(A, B), A @ B, rtol=1e-4, atol=1e-4)
    assert steps_of(product, A, B) == ["kernel"]


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0), (1,), (2, 1, 3)])
def test_any_grid(sizes, lane_loops):
    @gf.kernel(grid=lambda x: sizes)
    def places(index, x):
        index = (index,) if len(sizes) == 1 else index
        return [*index, x.sum() + 1]

    *numbers, total = places(jnp.ones(4))
    for number, want in zip(numbers, np.indices(sizes), strict=True):
        assert number.dtype == np.int32
        np.testing.assert_array_equal(number, want)
    np.testing.assert_array_equal(total, np.full(sizes, 5))


def test_views_of_long_arrays_are_read_where_they_lie(lane_loops):
    @gf.kernel(grid=lambda m, n: n.shape)
    def read(i, m, n):
        turned = m[::-1, 1::2].T[:, None, 5:]  # (20, 1, 45)
        wide = jnp.broadcast_to(m[3][:, None], (41, 30))
        flat = jnp.arange(1000) * 2 + 1
        return turned[n[i] % 20, 0, i], wide[n[i], i], flat[n[i]], m[7, :4] * 2

    m = RNG.standard_normal((50, 41)).astype(np.float32)
    n = RNG.integers(0, 41, 30)
    one, two, three, four = read(m, n)
    turned = m[::-1, 1::2].T[:, None, 5:]
    np.testing.assert_array_equal(one, turned[n % 20, 0, np.arange(30)])
    np.testing.assert_array_equal(two, m[3][n])
    np.testing.assert_array_equal(three, 2 * n + 1)
    np.testing.assert_array_equal(four, np.broadcast_to(2 * m[7, :4], (30, 4)))
    assert steps_of(read, m, n) == ["kernel"]


def test_trees_keywords_closures_and_jit():
    table = jnp.arange(7.0)

    @gf.kernel(grid=lambda tree, *, n: n.shape)
    def read(i, tree, *, n):
        return {"sum": tree["x"][i] + table[n[i] % 7], "pair": (tree["y"], i)}

    tree, n = {"x": jnp.arange(4.0), "y": jnp.float32(3)}, jnp.array([3, 8, 13, 6])
    for run in (read, gf.jit(read)):
        result = run(tree, n=n)
        np.testing.assert_array_equal(result["sum"], [3, 2, 8, 9])
        np.testing.assert_array_equal(result["pair"][0], np.full(4, 3))
        np.testing.assert_array_equal(result["pair"][1], np.arange(4))
    assert read.__name__ == "read"


def test_branches_scans_and_random_numbers(lane_loops):
    def one(i, key, x):
        def step(carry, k):
            up = gf.random.uniform(gf.random.fold_in(key, 10 * i + k))
            return lax.cond(up < 0.5, lambda c: c + up, lambda c: c * x[k], carry), None

        return lax.scan(step, x[i], jnp.arange(10))[0]

    key, x = gf.random.key(3), jnp.linspace(0.5, 1.5, 12)
    walk = gf.kernel(grid=lambda key, x: x.shape)(one)
    want = [float(one(i, key, x)) for i in range(12)]
    np.testing.assert_allclose(walk(key, x), want, rtol=1e-5)


def test_vmap_adds_dimensions_in_front(lane_loops):
    starts = np.stack([START, 1.5 * START])
    both = gf.vmap(grown, (0, None))
    state, counts = both(starts, FACTORS)
    for k in range(2):
        want, steps = grown_of(starts[k], FACTORS)
        np.testing.assert_allclose(state[k], want, rtol=1e-4)
        np.testing.assert_array_equal(counts[k], steps)
    assert steps_of(both, starts, FACTORS) == ["kernel"]
    many = gf.vmap(gf.vmap(product, (None, 1)), (2, None))
    a = RNG.standard_normal((5, 300, 2), np.float32)
    b = RNG.standard_normal((300, 3, 4), np.float32)
    want = np.einsum("ikx,kyj->xyij", a, b)
    np.testing.assert_allclose(many(a, b), want, rtol=1e-4, atol=1e-4)
    assert steps_of(many, a, b) == ["kernel"]


def test_forward_derivatives_are_one_kernel(lane_loops):
    def push(start, factors, d_start, d_factors):
        (state, _), (d_state, _) = gf.jvp(grown, (start, factors), (d_start, d_factors))
        return state, d_state

    d_start = RNG.standard_normal(START.shape).astype(np.float32)
    d_factors = RNG.standard_normal(FACTORS.shape).astype(np.float32)
    state, d_state = push(START, FACTORS, d_start, d_factors)
    step = 1e-6
    _, counts = grown_of(START, FACTORS)
    powers = FACTORS.astype(np.float64)[:, None] ** counts[:, None]
    moved = np.float64(FACTORS)[:, None] + step * d_factors[:, None]
    start = np.float64(START) + step * d_start
    want = (start * moved ** counts[:, None] - START * powers) / step
    np.testing.assert_allclose(d_state, want, rtol=1e-3)
    np.testing.assert_allclose(state, START * powers, rtol=1e-4)
    assert steps_of(push, START, FACTORS, d_start, d_factors) == ["kernel"]


def test_gradients_are_sums_over_those_that_read(lane_loops):
    x, index = np.arange(10, dtype=np.float32), np.array([3, 3, 0, 9, 3])
    weights = np.arange(1, 6, dtype=np.float32)

    def loss(x, scale):
        return (weights * lookup(x, index, scale)).sum()

    d_x, d_scale = gf.grad(loss, (0, 1))(x, 2.0)
    want = np.zeros(10)
    np.add.at(want, index, 2.0 * weights)
    np.testing.assert_allclose(d_x, want)
    np.testing.assert_allclose(d_scale, (weights * x[index]).sum())
    d_start, d_factors = gf.jit(gf.grad(lambda s, f: grown(s, f)[0].sum(), (0, 1)))(START, FACTORS)
    state, counts = grown_of(START, FACTORS)
    np.testing.assert_allclose(d_start, state / START, rtol=1e-3)
    np.testing.assert_allclose(d_factors, state.sum(1) * counts / FACTORS, rtol=1e-3)
    hessian = gf.hessian(lambda x: (lookup(x, index, 2.0) ** 2).sum())(x)
    counts = np.bincount(index, minlength=10)
    np.testing.assert_allclose(hessian, np.diag(8.0 * counts))


def test_in_loops_of_steps_and_on_mapped_devices():
    def step(x, _):
        return product(x, x) / 8, None

    x = RNG.standard_normal((8, 8)).astype(np.float32)
    got, _ = lax.scan(step, x, None, length=3)
    want = x
    for _ in range(3):
        want = want @ want / 8
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gf.pmap(product, in_axes=(None, 0))(x, x[None])[0], x @ x, rtol=1e-4)
    with gf.disable_jit():
        np.testing.assert_allclose(product(x, x), x @ x, rtol=1e-4, atol=1e-5)


@pytest.mark.cuda_toolchain
def test_on_a_simulated_gpu():
    with gf.default_device(gf.devices("cuda_sim")[0]):
        state, counts = grown(jnp.asarray(START), jnp.asarray(FACTORS))
        want, steps = grown_of(START, FACTORS)
        np.testing.assert_allclose(state, want, rtol=1e-4)
        np.testing.assert_array_equal(counts, steps)
        np.testing.assert_allclose(product(A[:2, :9], B[:9]), A[:2, :9] @ B[:9], rtol=1e-4)


def test_explain_shows_the_text():
    assert str(lookup.explain(jnp.ones(4), jnp.arange(3), 2.0)).count("def kernel_") == 1
    assert "1 kernel;" in str(lookup.explain(jnp.ones(4), jnp.arange(3), 2.0, stage="plan"))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda i, x: jnp.sort(x[:9])[i], "sort is a call of a library; the reason is sort"),
        (lambda i, x: (x * 2)[i], "more than 128 elements for each lane; the reason is mul"),
        (lambda i, x: lax.scan(lambda c, y: (c, y * i), 0.0, x)[1], "an inner loop has slices"),
    ],
)
def test_what_cannot_be_one_kernel(function, reason):
    """The equation and its line are named."""
    bad = gf.kernel(grid=lambda x: x.shape)(function)
    with pytest.raises(TypeError, match=f"must compile to one kernel; got: .*{reason}") as error:
        bad(jnp.ones(500))
    assert "test_kernel.py:" in str(error.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda i, x: x.at[i].set(3.0)[0], "scatter.*test_kernel.py:.*Fix: .* is v as the result"),
        (lambda i, x: x.sum(), "reduce_sum.*test_kernel.py:.*Fix: .*a long sum is a fori_loop"),
        (lambda i, x: jnp.sort(x[:9])[i], "Fix: call it outside, and give its result to the k"),
        (lambda i, x: lax.scan(lambda c, y: (c, y * i), 0.0, x)[1], "Fix: .*its carry alone"),
        (lambda i, x: lookup(x, i[None], 1.0)[0], "Fix: call the function of that kernel"),
        (lambda i, x: x.__setitem__(i, 1.0), "immutable.*gf.kernel returns the value to write"),
        (lambda i, x: lax.while_loop(lambda c: c < 3, lambda c: x, x[i]), r"carry is f32\[\] at"),
        (
            lambda i, x: jnp.ones((3, 3)) @ gf.pure_callback(lambda v: v, x[:3], x[:3]),
            "pure_callback.*Fix: do it outside",
        ),
    ],
)
def test_what_to_write_instead(function, message):
    """Writes among it: nothing is written but what is returned."""
    bad = gf.kernel(grid=lambda x: x.shape)(function)
    with pytest.raises(TypeError, match=re.compile(message, re.DOTALL)) as error:
        bad(jnp.ones(500))
    assert re.match(r"\[[a-z_]+\] .*(;|:) .* Fix: ", str(error.value), re.DOTALL)


def test_refs_are_no_arguments():
    ref = gf.new_ref(jnp.ones(4))
    with pytest.raises(TypeError, match=r"got Ref.*ref\[\.\.\.\] = kernel\(ref"):
        gf.kernel(grid=lambda x: (4,))(lambda i, x: x[i])(ref)


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, bool])
def test_reads_out_of_bounds(mode, dtype, lane_loops):
    """As gathers do outside: the modes of take, of arrays in memory and of values of an index."""
    x = (RNG.uniform(0, 9, 7)).astype(dtype)
    index = np.array([-1, -7, -8, -15, 0, 6, 7, 8, 99, -2147483648, 2147483647], np.int32)

    @gf.kernel(grid=lambda x, index: index.shape)
    def read(i, x, index):
        values = jnp.where(i < 0, x, x)  # computed at each index
        return jnp.take(x, index[i], mode=mode), jnp.take(values, index[i], mode=mode)

    want = {
        "fill": np.where((index < -7) | (index >= 7), _filled(dtype), x[index % 7]),
        "clip": x[np.clip(index, 0, 6)],
        "wrap": x[index % 7],
    }[mode]
    for got in (*read(x, index), jnp.take(x, index, mode=mode)):
        np.testing.assert_array_equal(got, want)
    assert steps_of(read, x, index) == ["kernel"]


def _filled(dtype):
    """What JAX gives outside: nan, the least of signed integers, the largest of others."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return dtype.type(np.nan)
    return (
        True
        if dtype.kind == "b"
        else getattr(np.iinfo(dtype), "min" if dtype.kind == "i" else "max")
    )


def test_what_a_kernel_must_be():
    with pytest.raises(TypeError, match="grid of f must be ints"):
        gf.kernel(grid=lambda x: x.sum())(_f)(jnp.ones(3))
    with pytest.raises(TypeError, match="grid of f must be ints"):
        gf.kernel(grid=lambda x: (3, -1))(_f)(jnp.ones(3))
    with pytest.raises(TypeError, match="must have no effects"):
        gf.kernel(grid=lambda x: x.shape)(_printing)(jnp.ones(3))
    with pytest.raises(TypeError, match="must be a function"):
        gf.kernel(3, grid=lambda x: x.shape)
    with pytest.raises(TypeError, match="return arrays"):
        gf.kernel(grid=lambda x: x.shape)(lambda i, x: "no")(jnp.ones(3))


def f(index, x):
    return x[0]


def _printing(i, x):
    gf.debug.print("{}", i)
    return x[i]


_f = f
