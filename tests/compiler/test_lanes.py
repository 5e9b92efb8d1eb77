"""Loops inside of kernels: what each lane computes, beside Python's loops; and what is none."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.lanes import arrays
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.interpret import interpret
from gpuflow.kir.nodes import For, Mode, Strip, While
from gpuflow.kir.verify import verify
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.schedules import lane_compaction
from gpuflow.targets.cpu.codegen.schedules.lane_blocks import MIN_LANES, lanes_in_blocks
from gpuflow.targets.cpu.target import NativeTarget

RNG = np.random.default_rng(9)


@pytest.fixture(autouse=True)
def lane_loops(monkeypatch):
    monkeypatch.setattr(NativeTarget, "lane_loops", True)


class On(NativeTarget):
    lane_loops = True


def kernels(function, *args):
    """The kernels of a program, with nothing else in its plan."""
    return [call.kernel for call in calls(function, *args)]


def calls(function, *args):
    """The calls of them."""
    plan, _ = compile_plan(gf.make_jaxpr(function)(*args), target=On())
    steps = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert len(steps) == len(plan.steps), plan.steps
    return [call for step in steps for launch in step.launches for call in launch]


def has_loop(kernel):
    return any(
        isinstance(s, While) or (isinstance(s, For) and s.axis is None)
        for s in statements(kernel.body)
    )


def newton(a, limit):
    """A square root, with a count of steps; -1 where it takes too long."""

    def goes_on(state):
        x, count = state
        return (jnp.abs(x * x - a) > 1e-3 * a) & (count < limit)

    x, count = lax.while_loop(goes_on, lambda s: (0.5 * (s[0] + a / s[0]), s[1] + 1), (a, 0))
    return x, jnp.where(count < limit, count, -1)


def newton_of(a, limit):
    x, count = np.float64(a), 0
    while abs(x * x - a) > 1e-3 * a and count < limit:
        x, count = 0.5 * (x + a / x), count + 1
    return x, count if count < limit else -1


@pytest.mark.parametrize("count", [0, 1, 33, 64, 200])
def test_each_lane_stops_by_itself(count):
    rng = np.random.default_rng(count)
    a = np.exp(rng.uniform(0, 20, count)).astype(np.float32)
    limits = rng.integers(0, 14, count).astype(np.int32)
    x, counts = gf.jit(gf.vmap(newton))(a, limits)
    want = np.array([newton_of(*pair) for pair in zip(a, limits, strict=True)]).reshape(-1, 2)
    np.testing.assert_allclose(x, want[:, 0], rtol=1e-5)
    np.testing.assert_array_equal(counts, want[:, 1])


def test_a_vmapped_loop_is_one_kernel():
    (kernel,) = kernels(gf.vmap(newton), jnp.ones(7), jnp.ones(7, int))
    assert has_loop(kernel)


def test_a_scalar_loop_is_one_kernel():
    def logistic(x, steps):
        return lax.fori_loop(0, steps, lambda i, x: 3.5 * x * (1 - x), x)

    (kernel,) = kernels(logistic, jnp.float32(0.3), 10)
    assert has_loop(kernel) and not kernel.axes
    x = np.float64(0.3)
    for _ in range(11):
        x = 3.5 * x * (1 - x)
    np.testing.assert_allclose(gf.jit(logistic)(jnp.float32(0.3), 11), x, rtol=1e-4)


def test_loops_exchange_carries_of_different_dtypes():
    def exchanged(x, n):
        first = lax.fori_loop(0, n, lambda _, c: (c[1], c[0]), (n, n + 1))
        return first, lax.fori_loop(0, first[0], lambda _, c: (c[1], c[0]), (x, 2 * x))

    got = gf.jit(exchanged)(np.float32(1.5), np.int32(4))
    assert gf.tree.map(float, got) == ((4, 5), (1.5, 3))


def rotated(state, _):
    """Small state: a matrix and a vector, with products, slices and sums."""
    matrix, v = state
    v = matrix @ v / jnp.sqrt(jnp.sum(v * v))
    matrix = matrix.at[0, 1].add(0.1 * v[2]).at[v.argmax(), 2].set(0.5)
    return (matrix, v), jnp.concatenate([v[::-1], matrix[1:, 1]])


@pytest.mark.parametrize("reverse", [False, True])
def test_small_state_and_stacked_slices(reverse):
    rng = np.random.default_rng(3)
    matrices = rng.uniform(-1, 1, (5, 3, 3)).astype(np.float32)
    vectors = rng.uniform(0.5, 1, (5, 3)).astype(np.float32)

    def scan(m, v):
        return lax.scan(rotated, (m, v), None, length=9, reverse=reverse)

    (m, v), ys = gf.jit(gf.vmap(scan))(matrices, vectors)
    for k in range(5):
        matrix, vector, rows = matrices[k].astype(float), vectors[k].astype(float), []
        for _ in range(9):
            vector = matrix @ vector / np.sqrt(vector @ vector)
            matrix[0, 1] += 0.1 * vector[2]
            matrix[vector.argmax(), 2] = 0.5
            rows.append([*vector[::-1], *matrix[1:, 1]])
        np.testing.assert_allclose(m[k], matrix, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(v[k], vector, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(ys[k], rows[::-1] if reverse else rows, rtol=2e-4, atol=1e-5)


def test_state_that_nobody_reads_in_the_end_has_no_memory():
    """Its reader is a carry of a loop of steps, which loses it when the first loop is a kernel."""

    def function(x, m):
        last, slices = lax.scan(lambda y, x: (y[::-1] + x, y), jnp.zeros(3), x)

        def step(_, state):
            return jnp.tanh(state[0] @ state[0]), state[1] + last.sum()

        return slices, lax.fori_loop(0, 3, step, (m, 0.0))[0]

    x, m = (RNG.standard_normal(shape).astype(np.float32) for shape in ((5,), (16, 16)))
    slices, got = gf.jit(function)(x, m)
    want = np.cumsum(np.concatenate([[0], x[:-1]]))
    np.testing.assert_allclose(slices, np.broadcast_to(want[:, None], (5, 3)), rtol=1e-5, atol=1e-6)
    for _ in range(3):
        m = np.tanh(m @ m)
    np.testing.assert_allclose(got, m, rtol=1e-4, atol=1e-5)


def collatz(n, table):
    """Nested control flow, a gather by a computed index, integers."""

    def step(state):
        n, total = state
        half = lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n)
        inner = lax.fori_loop(0, n % 4, lambda i, t: t + table[(n + i) % 40], 0)
        return half, total + lax.switch(n % 3, [lambda t: t, lambda t: 2 * t, lambda t: -t], inner)

    return lax.while_loop(lambda state: state[0] > 1, step, (n, 0))


def collatz_of(n, table):
    total = 0
    while n > 1:
        inner = sum(table[(n + i) % 40] for i in range(n % 4))
        total += (inner, 2 * inner, -inner)[n % 3]
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return n, total


def test_loops_and_branches_nest():
    numbers, table = np.arange(130, dtype=np.int32), np.arange(40, dtype=np.int32) ** 2
    mapped = gf.vmap(collatz, in_axes=(0, None))
    (kernel,) = kernels(mapped, numbers, table)
    verify(lanes_in_blocks(kernel))
    ends, totals = gf.jit(mapped)(numbers, table)
    want = np.array([collatz_of(int(n), table.astype(int)) for n in numbers])
    np.testing.assert_array_equal(ends, want[:, 0])
    np.testing.assert_array_equal(totals, want[:, 1])


def test_elementwise_loops_fuse_with_what_stands_around():
    def function(x, y):
        start = x * 2 + y[None]
        out = lax.fori_loop(0, 5, lambda i, z: jnp.where(z > i, z * 0.5, z + 1.0), start)
        return jnp.exp(-out) + 1

    x, y = np.random.default_rng(0).uniform(-2, 9, (6, 50)).astype(np.float32), np.ones(50, "f")
    *_, kernel = kernels(function, x, y)  # before it the loop's numbers are counted
    assert has_loop(kernel) and kernel.name == "map_mul_add_lane_loop_neg_exp"
    want = x.astype(float) * 2 + 1
    for i in range(5):
        want = np.where(want > i, want * 0.5, want + 1)
    np.testing.assert_allclose(gf.jit(function)(x, y), np.exp(-want) + 1, rtol=1e-5)


def test_slices_in_lanes_and_unmapped_carries():
    def scan(start, xs, scale):
        def body(carry, x):
            total, index = carry
            total = total * scale + x
            return (total, index + 1), (total, index)

        return lax.scan(body, (start, 0), xs)

    rng = np.random.default_rng(1)
    starts, xs = rng.uniform(size=70).astype("f"), rng.uniform(size=(20, 70)).astype("f")
    mapped = gf.vmap(scan, in_axes=(0, 1, None), out_axes=((0, None), (0, 0)))
    (total, index), (totals, indices) = gf.jit(mapped)(starts, xs, jnp.float32(0.5))
    want, rows = starts.astype(float), []
    for x in xs:
        want = want * 0.5 + x
        rows.append(want)
    np.testing.assert_allclose(total, want, rtol=1e-5)
    np.testing.assert_allclose(totals, np.array(rows).T, rtol=1e-5)
    assert index == 20
    np.testing.assert_array_equal(indices, np.tile(np.arange(20), (70, 1)))


def test_derivatives_are_those_of_loops_outside_of_kernels():
    def energy(p, y):
        def step(y, _):
            y = y + 0.1 * jnp.stack([y[1] * p[0], -jnp.sin(y[0]) * p[1]])
            return y, y[0]

        y, path = lax.scan(step, y, None, length=12)
        return jnp.sum(y * y) + jnp.sum(path)

    p, y = jnp.array([1.1, 0.7]), jnp.ones((40, 2)) * jnp.arange(1, 41)[:, None] / 40

    def total(p, y):
        return jnp.sum(gf.vmap(energy, in_axes=(None, 0))(p, y))

    got = gf.jit(gf.grad(total, (0, 1)))(p, y)
    with gf.disable_jit():
        want = gf.grad(total, (0, 1))(p, y)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)


def cubes(count, table):
    """Collatz steps again, with a number of the lane and a table that all read in the loop."""

    def step(n, add):
        def turn(state):
            m, k, total = state
            return jnp.where(m % 2 == 0, m // 2, 3 * m + 1), k + 1, total + add * table[m % 5]

        return lax.while_loop(lambda s: s[0] != 1, turn, (n, 0, 0))[1:]

    n = jnp.arange(1, count + 1)
    return gf.vmap(step)(n, n % 7)


@pytest.mark.parametrize("count", [16, 63, 64, 65, 1024, 1025, 2500])
def test_lanes_that_go_on_move_together(count):
    table = np.array([1, 10, 100, 1000, 10000], np.int32)
    steps, totals = gf.jit(cubes, static_argnums=0)(count, table)
    for k in range(count):
        n, steps_of, total = k + 1, 0, 0
        while n != 1:
            total += (k + 1) % 7 * table[n % 5]
            n, steps_of = n // 2 if n % 2 == 0 else 3 * n + 1, steps_of + 1
        assert (steps[k], totals[k]) == (steps_of, total), k


@pytest.mark.parametrize("price", [0, 1, 32, 1 << 30])
@pytest.mark.parametrize("count", [1, 5, 64, 100])
def test_blocks_of_lanes_mean_the_same(count, price, monkeypatch):
    """The rewritten kernel and the kernel, through the interpreter, bit for bit.

    Lanes that go on move often, or never.
    """
    monkeypatch.setattr(lane_compaction, "ELEMENT_MOVE_COST", price)
    (call,) = calls(gf.vmap(newton), jnp.ones(count), jnp.ones(count, int))
    blocks = lanes_in_blocks(call.kernel)
    verify(blocks)
    assert any(isinstance(s, Strip) for s in statements(blocks.body)) == (count >= MIN_LANES)
    a = np.exp(np.random.default_rng(0).uniform(0, 9, count)).astype(np.float32)
    limits = np.arange(count, dtype=np.int32) % 9
    results = []
    for kernel in (call.kernel, blocks):
        words, memory = list(call.slots), {}
        for place, operand in enumerate(kernel.operands):
            if operand.mode in (Mode.IN, Mode.OUT):
                given = {"float32": a, "int32": limits}[operand.dtype]
                array = given.copy() if operand.mode is Mode.IN else np.zeros_like(given)
                memory[place + 1 << 32] = array
                words[place] += place + 1 << 32
        interpret(kernel, words, memory)
        results.append(list(memory.values()))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(np.any(array) for array in results[0])


WANTED = np.arange(500.0)


@pytest.mark.parametrize(
    ("body", "reason", "want"),
    [
        (lambda i, x: x - jnp.mean(x), "it reduces over lanes", WANTED - WANTED.mean()),
        (lambda i, x: jnp.sort(x), "sort is a call of a library", WANTED),
        (lambda i, x: x[::-1], "it moves elements between lanes", WANTED[::-1]),
    ],
)
def test_why_a_loop_is_outside_of_kernels(body, reason, want):
    def function(x):
        return lax.fori_loop(0, 3, body, x)

    x = jnp.arange(500.0)
    assert f"   loop    not one kernel: {reason}\n" in gf.explain(function, x).text
    np.testing.assert_allclose(gf.jit(function)(x), want, atol=1e-3)


def test_lanes_that_only_a_dropped_result_has():
    """Nothing knew their size: binding the program raised a KeyError."""

    def function(n):
        def step(carry, _):
            rows = lax.scan(lambda c, _: (c | 1, c), carry, None, length=5)[1]
            return carry + 1, (carry, rows)

        return lax.scan(step, n, None, length=0)

    (last, (first, rows)) = gf.jit(function)(jnp.int32(3))
    assert (int(last), first.shape, rows.shape) == (3, (0,), (0, 5))
    assert int(gf.jit(lambda n: function(n)[0])(jnp.int32(3))) == 3


def test_two_dimensions_are_not_one_lane():
    """Such an array would hold its diagonal only; a random program stored one."""
    with pytest.raises(arrays.NotLanesError, match="one lane"):
        arrays.LaneArray((3, 3), (1, 1), np.empty((), object))
    arrays.LaneArray((3, 3), (arrays.SMALL, arrays.SMALL), np.empty((3, 3), object))


def halved_until(x, n):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 2, s[1] * 0.5 + s[0]), (1, x))


def rows_until(x, n):
    """A loop that counts, with one in it, and a branch by the counter."""

    def turn(i, y):
        y = lax.fori_loop(0, i, lambda k, z: z + k * y, y)
        return lax.cond(i % 2 == 0, lambda z: z * 0.5, lambda z: z - 1.0, y)

    return lax.fori_loop(0, n, turn, x)


def inside_another(x, n):
    """Lanes stop by themselves; in a turn, all that go on count to the same number."""

    def turn(y):
        return lax.fori_loop(0, n, lambda k, z: z + 1.0 / (k + 1.0), y + 0.5)

    return gf.vmap(lambda y: lax.while_loop(lambda z: z < 5.0, turn, y))(x)


def of_lanes_after_all(x, n):
    """The second counter begins alike and does not stay so."""

    def turn(s):
        return s[0] + 1, s[1] + (s[2] > 0.0), s[2] - 0.25

    def each(y):
        return lax.while_loop(lambda s: s[0] < n, turn, (0, 0, y))

    return gf.vmap(each)(x)[1:]


def twice(x, n):
    """Two numbers that all lanes have, and the condition needs the one that follows the other."""
    start = (jnp.int32(0), jnp.int32(1), x)
    return lax.while_loop(
        lambda s: s[1] < n * n, lambda s: (s[0] + 1, s[1] + s[0], s[2] + s[1]), start
    )


ALIKE = {halved_until: 1, rows_until: 2, inside_another: 1, of_lanes_after_all: 1, twice: 1}


@pytest.mark.parametrize("function", ALIKE)
def test_what_all_lanes_count_alike_needs_no_mask(function, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(NativeTarget, "lane_loops", False)
        wants = {}
        for count in (0, 1, 20, 200):
            for n in (0, 1, 6, 9):
                x = np.linspace(-3, 3, count).astype(np.float32)
                wants[count, n] = gf.jit(lambda *args: function(*args))(x, n)
    for (count, n), want in wants.items():
        x = np.linspace(-3, 3, count).astype(np.float32)
        got = gf.jit(lambda *args: function(*args))(x, n)
        for one, other in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    (kernel,) = kernels(function, np.linspace(-3, 3, 200).astype(np.float32), 6)
    done = lanes_in_blocks(kernel)
    verify(done)
    # A mask is an array; that of the lanes that there are is one, where lanes stop by themselves.
    masks = [local for local in done.locals if local.dtype == "bool"]
    assert len(masks) == (0 if function is not inside_another else 2), masks
    loops = [s for s in statements(done.body) if isinstance(s, While)]
    alike = [s for s in loops if any(v.dtype == "int32" for v in s.outs)]
    assert len(alike) == ALIKE[function]


@pytest.mark.parametrize("place, expected", [(0, 4 + 2j), (1, np.nan)], ids=["inside", "outside"])
def test_complex_elements_of_what_is_computed_that_may_be_outside(place, expected):
    """The rows of the loop are made of single elements, and one is read where there is one."""
    rows = np.array([[[[4 + 2j]]]] * 3, np.complex64)[:, 0]
    places = jnp.asarray([[place]], "uint32")

    def turn(carry, row):
        found = jnp.take_along_axis(row, places, axis=-2, mode="fill")
        return jnp.resize(found, (3, 1)), found

    computed = jnp.take_along_axis(rows, np.zeros((3, 1, 1), "int32"), axis=2)
    run = gf.vmap(lambda start: gf.lax.scan(turn, start, computed, unroll=2), in_axes=-2)
    for result in run(computed):
        np.testing.assert_array_equal(result.real, np.full(result.shape, np.real(expected)))


@pytest.mark.parametrize(
    "body",
    [
        lambda row: row[1:13] * jnp.log(row[13:18])[0],
        lambda row: jnp.where(jnp.exp(row[13:18])[2] > 4.5, row[1:13], -row[1:13]),
        lambda row: jnp.interp(jnp.log(row[1:13]), jnp.log(row[13:18]), jnp.arange(5.0)),
    ],
    ids=["product", "predicate", "searched"],
)
def test_an_element_of_a_computed_array_is_a_scalar_of_others(body):
    """A scalar element, read from an array that is computed when needed, had the array's index."""
    rows = np.random.default_rng(0).uniform(1, 2, (6, 18)).astype(np.float32)
    found = gf.jit(lambda rows: lax.scan(lambda c, row: (c, body(row)), 0.0, rows)[1])(rows)
    want = [body(jnp.asarray(row)) for row in rows]
    np.testing.assert_allclose(found, np.stack(want), rtol=1e-6)


def test_a_value_that_only_inner_blocks_yield():
    """A branch in a loop in the condition returns a carry that nothing else there reads."""

    def compute(limit, x, z):
        def condition(carry):
            i, y, state = carry

            def body(_, values):
                count = values[0]
                return lax.cond(count <= 0, lambda: values, lambda: (count + 1, count, state))

            _, previous, _ = lax.fori_loop(0, x.shape[0], body, (0, i, y))
            return (i < limit) & (previous < 3)

        return lax.while_loop(condition, lambda c: (c[0] + 1, c[1], c[1]), (0, x, z))[1:]

    x = np.arange(25, dtype=np.uint16).reshape(5, 5)
    y, z = gf.jit(compute)(3, x, x + 1)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, x)
