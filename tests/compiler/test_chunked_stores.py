"""Slices that are computed for one array are stored in it directly, without a copy."""

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline

SIZES = (5, 1, 0, 33, 64, 7)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45)


def ops_of(function, *args):
    """The names of the ops of each step's kernel."""
    plan = pipeline.compile_plan(gf.jit(function).lower(*args).jaxpr)[0]
    return [
        [eqn.primitive.name for eqn in step.eqns] for step in plan.steps if step.kind == "kernel"
    ]


def pieces(dtype=np.float32, inner=()):
    rng = np.random.default_rng(3)
    made = [rng.normal(0, 9, (size, *inner)).astype(dtype) for size in SIZES]
    if np.issubdtype(dtype, np.floating):
        made[3].reshape(-1)[: len(SPECIAL)] = SPECIAL
    return made


def copies_of(steps):
    return [ops for ops in steps if "concatenate" in ops]


# --- where it is done ----------------------------------------------------------------------


def test_each_piece_is_stored_by_the_kernel_that_computes_it():
    steps = ops_of(lambda *xs: jnp.concatenate([jnp.sin(x) * 2 for x in xs]), *pieces())
    assert not copies_of(steps)
    assert all("update_windows" in ops and "sin" in ops for ops in steps)
    assert len(steps) == len(SIZES)


def test_what_reads_the_whole_at_its_index_keeps_it_in_its_kernel():
    x, y, _, z, *_ = pieces()
    steps = ops_of(lambda *xs: jnp.exp(jnp.concatenate([jnp.sin(x) for x in xs])), x, y, z)
    assert any("exp" in ops and "concatenate" in ops for ops in steps)


def test_pieces_that_lie_in_memory_stay_one_kernel():
    x, y, *_ = pieces()
    assert ops_of(lambda x, y: jnp.concatenate([x, y]), x, y) == [["concatenate"]]


def test_many_pieces_that_lie_in_memory_are_stored_one_by_one():
    xs = [np.arange(3 + k, dtype=np.float32) for k in range(60)]

    def function(*xs):
        return jnp.concatenate(xs)

    assert not copies_of(ops_of(function, *xs))
    np.testing.assert_array_equal(gf.jit(function)(*xs), np.concatenate(xs))


def test_pieces_that_share_what_is_costly_are_computed_together():
    def function(x):
        t = jnp.sin(x)
        return jnp.concatenate([t * x, t + x, t - x])

    assert copies_of(ops_of(function, pieces()[0]))


def test_a_piece_that_something_else_reads_is_stored_once_more():
    def function(x, y):
        a, b = jnp.sin(x), jnp.cos(y)
        return jnp.concatenate([a, b]), a

    x, y = pieces()[3], pieces()[4]
    whole, a = gf.jit(function)(x, y)
    np.testing.assert_allclose(whole, np.concatenate([np.sin(x), np.cos(y)]), 1e-5, 1e-6)
    np.testing.assert_array_equal(a, np.asarray(whole)[: len(x)])


def test_rows_that_lie_apart_stay_one_kernel():
    x = pieces(inner=(4,))[0]
    assert copies_of(ops_of(lambda x: jnp.stack([jnp.sin(x), jnp.cos(x)], 1), x))


def test_columns_that_are_computed_are_stored_row_by_row_in_one_kernel():
    x, y = np.ones((2, 40), np.float32)
    function = lambda x, y: jnp.stack([x * y, x + y, x], -1)  # noqa: E731
    assert [ops[-1] for ops in ops_of(function, x, y)] == ["columns"]
    # Of one that is more than a column, and of more than a row is written out for, as before.
    wide = lambda x, y: jnp.concatenate([(x * 2)[:, None], y.reshape(20, 2)], 1)  # noqa: E731
    assert ops_of(wide, x[:20], y)[-1] == ["concatenate"]
    assert ops_of(lambda x: jnp.stack([x * k for k in range(2, 12)], -1), x)[-1] == ["concatenate"]


@together(by="dtype", size=10)
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int8", "bool", "bfloat16", "complex64", "complex128"]
)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 5000])
def test_values_of_columns(dtype, count, size):
    with gf.enable_x64():
        x = jnp.asarray(np.random.default_rng(2).normal(0, 9, size)).astype(dtype)

        def function(x):
            columns = [x, x[::-1], x + x, x * x, jnp.where(x == x[:1], x, x * x)]
            return jnp.stack((columns + columns)[:count], -1)

        eager, got = function(x), gf.jit(function)(x)
        np.testing.assert_array_equal(
            np.asarray(got).view(np.uint8), np.asarray(eager).view(np.uint8)
        )


def test_columns_of_keys_and_columns_that_are_read_elsewhere():
    keys = gf.random.split(gf.random.key(0), 5)
    got = gf.jit(lambda k: jnp.stack([k, k[::-1]], -1))(keys)
    data = np.asarray(gf.random.key_data(keys))
    np.testing.assert_array_equal(gf.random.key_data(got), np.stack([data, data[::-1]], 1))
    x = pieces()[3]

    def function(x):
        a = jnp.sin(x)
        return jnp.stack([a, a * 2], 1), a

    pair, a = gf.jit(function)(x)
    np.testing.assert_array_equal(np.asarray(pair)[:, 0], np.asarray(a))
    np.testing.assert_array_equal(np.asarray(pair)[:, 1], np.asarray(a) * 2)
    batched = gf.vmap(gf.jit(lambda x, y: jnp.stack([x + y, x - y], -1)), (0, None))
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(
        batched(rows, rows[0]), np.stack([rows + rows[0], rows - rows[0]], -1)
    )


# --- values --------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [(), (3,), (2, 40)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "bool", "bfloat16"])
def test_values(dtype, inner):
    with gf.enable_x64():
        xs = [jnp.asarray(x).astype(dtype) for x in pieces(inner=inner)]

        def function(*xs):
            return jnp.concatenate(
                [
                    x if k % 3 == 2 else -x | x if dtype == "bool" else x + x
                    for k, x in enumerate(xs)
                ]
            )

        if dtype == "bool":
            xs = [x & True for x in xs]
            function = lambda *xs: jnp.concatenate([~x for x in xs])  # noqa: E731
        eager = function(*xs)
        got = gf.jit(function)(*xs)
        assert got.dtype == eager.dtype
        np.testing.assert_array_equal(
            np.asarray(got).view(np.uint8), np.asarray(eager).view(np.uint8)
        )


def test_numbers_that_are_none_and_signs_of_zero():
    x = pieces()[3]
    got = gf.jit(lambda x, y: jnp.concatenate([-x, y[::-1], jnp.abs(x)]))(x, x)
    expected = np.concatenate([-x, x[::-1], np.abs(x)])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[::2],
        lambda x: x[1:],
        lambda x: x.T,
        lambda x: x[:, ::-3],
    ],
)
def test_operands_that_lie_in_any_way(view):
    x = np.random.default_rng(0).normal(size=(36, 36)).astype(np.float32)
    y = view(x)
    got = gf.jit(lambda x, y: jnp.concatenate([view(x) * 3, y * 2, y[:0]]))(x, y)
    np.testing.assert_array_equal(got, np.concatenate([y * 3, y * 2]))


def test_one_program_serves_all_sizes():
    function = gf.jit(lambda x, y: jnp.concatenate([x + 1, y * 2]))
    for n, m in ((3, 4), (1, 1), (0, 5), (5, 0), (1000, 17), (17, 1000), (100_000, 3)):
        x, y = np.arange(n, dtype=np.float32), np.arange(m, dtype=np.float32)
        np.testing.assert_array_equal(function(x, y), np.concatenate([x + 1, y * 2]))


def test_wholes_of_wholes():
    x = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)

    def function(xp, x):
        left = xp.concatenate([x * 2, x + 1], 0)
        right = xp.concatenate([x - 1, xp.concatenate([x[:10] * 3, x[10:] * 5])], 0)
        return xp.concatenate([xp.concatenate([left, right], 1), left.repeat(2, 1) * 2], 0)

    np.testing.assert_array_equal(gf.jit(lambda x: function(jnp, x))(x), function(np, x))


def test_more_pieces_than_a_kernel_has_arrays():
    xs = [np.arange(k % 5, dtype=np.float32) for k in range(120)]
    got = gf.jit(lambda *xs: jnp.concatenate([x * 2 for x in xs]))(*xs)
    np.testing.assert_array_equal(got, np.concatenate(xs) * 2)


def test_reductions_and_libraries_behind_and_before():
    x = np.random.default_rng(0).normal(size=(30, 30)).astype(np.float32)

    def function(xp, x):
        whole = xp.concatenate([x @ x, x * 2, x.sum(0, keepdims=True), xp.exp(x)])
        return whole @ x, whole.sum(1), xp.sort(whole, 0)

    got = gf.jit(lambda x: function(jnp, x))(x)
    for mine, truth in zip(got, function(np, x.astype(np.float64)), strict=True):
        np.testing.assert_allclose(mine, truth, 2e-4, 2e-4)


# --- transformations and loops -------------------------------------------------------------


def whole_of(x, y):
    return jnp.concatenate([jnp.sin(x) * y, y[:3], x * x])


def test_derivatives_and_batches():
    x, y = (np.random.default_rng(k).normal(size=20).astype(np.float32) for k in (1, 2))
    weights = np.arange(43, dtype=np.float32)

    def loss(x, y):
        return jnp.sum(whole_of(x, y) * weights)

    dx, dy = gf.jit(gf.grad(loss, (0, 1)))(x, y)
    np.testing.assert_allclose(dx, np.cos(x) * y * weights[:20] + 2 * x * weights[23:], 1e-4, 1e-4)
    slope = np.sin(x) * weights[:20]
    slope[:3] += weights[20:23]
    np.testing.assert_allclose(dy, slope, 1e-4, 1e-4)
    xs, ys = np.stack([x, y, x + y]), np.stack([y, x, x - y])
    expected = [np.concatenate([np.sin(a) * b, b[:3], a * a]) for a, b in zip(xs, ys, strict=True)]
    np.testing.assert_allclose(gf.jit(gf.vmap(whole_of))(xs, ys), expected, 1e-5, 1e-6)


def test_in_loops_and_branches():
    x = np.linspace(-1, 1, 12, dtype=np.float32)

    def turn(k, x):
        return jnp.concatenate([x[6:] * 0.5, jnp.sin(x[:6])])

    expected = x
    for _ in range(5):
        expected = np.concatenate([expected[6:] * np.float32(0.5), np.sin(expected[:6])])
    np.testing.assert_allclose(
        gf.jit(lambda x: lax.fori_loop(0, 5, turn, x))(x), expected, 1e-5, 1e-6
    )
    _, every = gf.jit(lambda x: lax.scan(lambda c, _: (turn(0, c), turn(0, c)), x, length=5))(x)
    np.testing.assert_allclose(every[-1], expected, 1e-5, 1e-6)
    for flag in (True, False):
        got = gf.jit(lambda f, x: lax.cond(f, lambda x: turn(0, x), lambda x: x + 1, x))(flag, x)
        truth = np.concatenate([x[6:] * np.float32(0.5), np.sin(x[:6])]) if flag else x + 1
        np.testing.assert_allclose(got, truth, 1e-5, 1e-6)


def test_a_donated_operand():
    x = jnp.arange(8.0)
    got = gf.jit(lambda x: jnp.concatenate([x[4:] * 2, x[:4] + 1]), donate_argnums=0)(x)
    np.testing.assert_array_equal(got, np.concatenate([np.arange(4.0, 8) * 2, np.arange(4.0) + 1]))


# --- parts of what is computed -------------------------------------------------------------


def test_halves_of_what_is_computed_are_computed_where_they_are_read():
    def gates(x, w, b):
        i, f, o, c = jnp.split(x @ w + b, 4, -1)
        return jnp.tanh(i) * c + jnp.tanh(f) * o

    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 64), (64,)))
    assert len(ops_of(gates, x, w, b)) == 1
    i, f, o, c = np.split(x.astype(np.float64) @ w + b, 4, -1)
    expected = np.tanh(i) * c + np.tanh(f) * o
    np.testing.assert_allclose(gf.jit(gates)(x, w, b), expected, 1e-4, 1e-4)


def test_slices_that_overlap_read_what_is_stored_once():
    def differences(x):
        y = jnp.sin(x)
        return y[1:] - y[:-1]

    steps = ops_of(differences, pieces()[3])
    assert sum(ops.count("sin") for ops in steps) == 1


def test_slices_of_ops_with_operands_that_repeat():
    rng = np.random.default_rng(0)
    x, y, z = (rng.normal(size=s).astype(np.float32) for s in ((12, 9), (12, 1), (9,)))

    def function(x, y, z):
        whole = x * y + z - 2
        return whole[:3, 1::2], whole[5:6], whole[7:, :4]

    for got, truth in zip(gf.jit(function)(x, y, z), function(x, y, z), strict=True):
        np.testing.assert_allclose(got, truth, 1e-6, 1e-6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_gradient_of_a_split_is_a_concatenation(count, axis):
    x = np.random.default_rng(1).normal(size=(7 * 12, 7 * 12)).astype(np.float32)

    def loss(x):
        parts = jnp.split(x, count, axis)
        return sum((part * (k + 2)).sum() for k, part in enumerate(parts))

    steps = ops_of(gf.grad(lambda x: loss(jnp.sin(x))), x)
    assert not any("add_any" in ops for ops in steps)
    got = gf.jit(gf.grad(loss))(x)
    weights = np.repeat(np.arange(count) + 2, x.shape[0] // count)
    wide = weights[:, None] if axis == 0 else weights
    np.testing.assert_array_equal(got, np.broadcast_to(wide, x.shape))


def test_parts_that_are_put_back_in_any_order():
    x = np.arange(1, 21, dtype=np.float32)
    for cuts in (
        [(0, 5), (5, 20)],
        [(5, 20), (0, 5)],
        [(2, 5), (5, 9), (12, 20)],
        [(0, 8), (8, 8)],
        [(0, 12), (8, 20)],
        [(0, 20), (3, 5)],
        [(3, 4), (4, 5), (1, 3), (5, 20)],
    ):

        def function(x, cuts=cuts):
            return sum((x[a:b] ** 2).sum() * (k + 1) for k, (a, b) in enumerate(cuts))

        expected = np.zeros_like(x)
        for k, (a, b) in enumerate(cuts):
            expected[a:b] += 2 * x[a:b] * (k + 1)
        np.testing.assert_array_equal(gf.jit(gf.grad(function))(x), expected, str(cuts))


def test_the_gradient_of_a_concatenation_is_no_copy():
    def loss(*xs):
        return jnp.sum(jnp.concatenate(xs, -1) ** 2) / 2

    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(20, n)).astype(np.float32) for n in (3, 1, 8)]
    gradient = gf.grad(loss, (0, 1, 2))
    assert not copies_of(ops_of(gradient, *xs))
    for got, x in zip(gf.jit(gradient)(*xs), xs, strict=True):
        np.testing.assert_allclose(got, x, 1e-6)


@pytest.mark.parametrize("edges", [(0, 0, 0), (2, 0, 1), (0, 3, 2), (-1, 2, 0), (1, -2, 1)])
def test_the_gradient_of_a_pad(edges):
    x = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    config = [edges, (1, 2, 0)]
    places = lax.pad(np.arange(35, dtype=np.int32).reshape(7, 5), np.int32(-1), config)
    weights = np.random.default_rng(1).normal(size=places.shape).astype(np.float32)
    expected = np.zeros(35)
    for k, w in zip(np.ravel(places), np.ravel(weights), strict=True):
        expected[k] += w if k >= 0 else 0
    got = gf.grad(lambda x: jnp.sum(lax.pad(x, np.float32(0), config) * weights))(x)
    np.testing.assert_allclose(np.ravel(got), expected, 1e-6)


# --- what repeats --------------------------------------------------------------------------

REPEATED = {
    "repeat": lambda xp, x: xp.repeat(x, 3),
    "rows": lambda xp, x: xp.repeat(x, 2, 0),
    "columns": lambda xp, x: xp.repeat(x, 5, -1),
    "tile": lambda xp, x: xp.tile(x, (4,) * x.ndim),
    "wider": lambda xp, x: xp.tile(x, (2, 1, 1, 3)),
    "broadcast": lambda xp, x: xp.broadcast_to(x, (3, *x.shape)),
    "one": lambda xp, x: xp.expand_dims(x, -1),
    "computed": lambda xp, x: xp.repeat(x, 3) * 2 - xp.tile(x.reshape(-1), 3),
    "alike": lambda xp, x: xp.repeat(x, 3, -1) + xp.repeat(x + 1, 3, -1),
    "a part": lambda xp, x: xp.repeat(x, 3, 0)[1:4],
}


@together(by="name", size=12)
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 1, 40), (0, 4)], ids=str)
@pytest.mark.parametrize("name", REPEATED)
def test_repeats(name, shape, dtype):
    x = np.random.default_rng(0).normal(0, 20, shape).astype(dtype)
    got = gf.jit(lambda x: REPEATED[name](jnp, x))(x)
    np.testing.assert_array_equal(got, REPEATED[name](np, x).astype(dtype))


def test_what_is_done_with_repeated_elements_is_done_once_for_each():
    steps = ops_of(lambda x: jnp.exp(jnp.repeat(x, 3)) * 2, pieces()[3])
    (names,) = steps
    assert names.index("mul") < names.index("broadcast_in_dim")


@pytest.mark.parametrize("shift", [0, 1, -1, 3, 11, -29, 10**6, -(2**31), 2**31 - 1])
def test_rolls_by_traced_places(shift):
    x = np.arange(22, dtype=np.int32).reshape(11, 2)
    for axis in (0, 1, None):
        got = gf.jit(lambda x, s, axis=axis: jnp.roll(x, s, axis))(x, np.int32(shift))
        np.testing.assert_array_equal(got, np.roll(x, shift, axis))


def test_slices_of_equal_results_are_of_one():
    """What is written twice, and sliced, is computed once, not once for each slice."""

    def f(x):
        return jnp.sin(x) * x

    ops = ops_of(lambda x: f(x)[1:] - f(x)[:-1], jnp.ones(8))
    assert [op for step in ops for op in step].count("sin") == 1


def test_long_programs_are_judged_in_linear_time():
    """Each value is read twice: as many ways lead back as there are powers of two."""

    def long(x):
        for _ in range(200):
            x = x * 0.5 + jnp.abs(x)
        return x

    x = np.linspace(-1, 1, 8)
    got = gf.jit(lambda x, y: jnp.concatenate([long(x), long(y)]))(x, x[::-1].copy())
    np.testing.assert_allclose(got[:8], got[8:][::-1])
