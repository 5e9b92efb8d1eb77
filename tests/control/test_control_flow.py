"""cond, switch, while_loop, fori_loop, scan, map, associative_scan: values and edge cases."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

pytestmark = pytest.mark.simulated_gpu

DTYPES = ["bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32", "complex64"]


def _both(function, *args):
    """The result eagerly; compiled it is the same."""
    eager = function(*args)
    compiled = gf.jit(function)(*args)
    for a, b in zip(gf.tree.leaves(eager), gf.tree.leaves(compiled), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
    return eager


# --- scan ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_scan_of_every_dtype(dtype):
    xs = jnp.asarray(np.arange(6).reshape(3, 2) % 2).astype(dtype)

    def step(carry, x):
        return jnp.where(x != 0, x, carry), (carry, x[::-1])

    last, (before, turned) = _both(lambda xs: lax.scan(step, jnp.zeros(2, dtype), xs), xs)
    assert last.dtype == before.dtype == turned.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(turned, np.complex64), np.asarray(xs)[:, ::-1])
    np.testing.assert_array_equal(np.asarray(last, np.complex64), [0, 1])


def test_scan_without_iterations():
    def step(carry, x):
        return carry + 1, (x * 2, jnp.ones(3))

    carry, (a, b) = _both(lambda: lax.scan(step, 7, jnp.zeros((0, 2))))
    assert carry == 7 and a.shape == (0, 2) and b.shape == (0, 3)
    gradient = gf.grad(lambda c: lax.scan(lambda c, x: (c * x, None), c, jnp.zeros(0))[0])(2.0)
    assert gradient == 1.0


def test_scan_of_empty_elements_and_of_nothing():
    carry, ys = _both(lambda: lax.scan(lambda c, x: (c, x + 1), (), jnp.zeros((4, 0))))
    assert carry == () and ys.shape == (4, 0)
    assert _both(lambda: lax.scan(lambda c, _: (c + 1, None), 0, None, length=5)) == (5, None)
    assert lax.scan(lambda c, _: (c, None), None, None, length=3) == (None, None)


def test_scan_of_strided_and_transposed_xs():
    xs = np.arange(24, dtype=np.float32).reshape(4, 6)
    got = _both(
        lambda xs: lax.scan(lambda c, x: (c + x, c), jnp.zeros(4), xs.T[::-2])[1], jnp.asarray(xs)
    )
    rows = xs.T[::-2]
    np.testing.assert_array_equal(got, np.concatenate([np.zeros((1, 4)), np.cumsum(rows, 0)[:-1]]))


def test_scan_keeps_random_keys():
    def step(key, _):
        key, subkey = gf.random.split(key)
        return key, gf.random.uniform(subkey)

    last, draws = _both(lambda key: (lax.scan(step, key, None, length=3)[1],) * 2, gf.random.key(0))
    assert len(set(np.asarray(draws).tolist())) == 3
    np.testing.assert_array_equal(last, draws)


def test_python_numbers_in_a_carry_take_the_dtype_of_the_body():
    carry, _ = lax.scan(lambda c, x: (c + x, None), 0, jnp.arange(3, dtype=jnp.float32))
    assert carry.dtype == np.float32 and carry == 3
    carry, _ = lax.scan(lambda c, x: (c + 1, None), 0, jnp.arange(3))
    assert carry.dtype == np.int32 and carry.weak_type


def test_scan_swaps_carries():
    """Each iteration reads what the other one wrote: buffers must not be mixed up."""
    got = _both(lambda: lax.scan(lambda c, x: ((c[1], c[0] + x), c), (1.0, 2.0), jnp.arange(5.0)))
    a, b, ys = 1.0, 2.0, []
    for x in range(5):
        ys.append((a, b))
        a, b = b, a + x
    np.testing.assert_allclose(got[0], (a, b))
    np.testing.assert_allclose(np.transpose(got[1]), ys)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_unrolled_bodies_that_call_jit_and_update(length):
    """The rest that stands outside of the loop held calls of jit, and int64 numbers as int32."""
    scale = gf.jit(lambda v: jnp.sin(v) * 2)

    def body(carry, i):
        row = lax.dynamic_update_slice(carry, scale(carry[:1]), (i,))
        return row.at[i + 1].set(1.0, mode="drop"), i * i

    def run(places, unroll):
        outs = lax.scan(body, jnp.arange(6.0), places, unroll=unroll)
        return outs[0]

    places = np.array([3, 0, 5, 1, 2])[:length]
    want = np.arange(6.0)
    for i in places:
        want[i] = np.sin(want[0]) * 2
        want[i + 1 : i + 2] = 1
    for unroll in (1, 2):
        got = gf.jit(gf.vmap(lambda p, n=unroll: run(p, n)))(np.stack([places, places]))
        np.testing.assert_allclose(got, [want, want], rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_one_turn_is_no_loop(reverse):
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((40, 40)) / 8, rng.standard_normal((1, 3, 40)) / 8

    def run(w, x):
        def turn(c, row):
            return jnp.tanh(c @ w + row), c

        last, ys = lax.scan(turn, jnp.ones((3, 40)), x, 1, reverse)
        return (last * ys[0]).sum()

    operands = jnp.asarray(w, jnp.float32), jnp.asarray(x, jnp.float32)
    for function in (run, gf.grad(run, (0, 1))):
        steps = gf.jit(function).lower(*operands).compile().steps
        assert {step.kind for step in steps} == {"kernel", "library"}
    last = np.tanh(np.ones((3, 40)) @ w + x[0])
    np.testing.assert_allclose(gf.jit(run)(*operands), last.sum(), rtol=1e-5)
    got = gf.jit(gf.grad(run, (0, 1)))(*operands)
    np.testing.assert_allclose(got[0], np.ones((40, 3)) @ (1 - last**2), rtol=1e-5)
    np.testing.assert_allclose(got[1], (1 - last**2)[None], rtol=1e-5)


def test_one_value_is_the_next_of_two_carries():
    """It was computed into the memory of the second one and looked for in that of the first."""

    def body(i, carry):
        _, _, third = carry
        return jnp.tanh(third), jnp.tanh(third), carry[0]

    want = carry = (0.1, 0.2, 0.7)
    for _ in range(3):
        want = np.tanh(want[2]), np.tanh(want[2]), want[0]
    for_loop = gf.jit(lambda carry: lax.fori_loop(0, 3, body, carry))
    while_loop = gf.jit(lambda carry, n: lax.fori_loop(0, n, body, carry))
    np.testing.assert_allclose(for_loop(carry), want, rtol=1e-6)
    np.testing.assert_allclose(while_loop(carry, 3), want, rtol=1e-6)


def test_ys_that_are_inputs_constants_or_repeated():
    w = jnp.arange(3.0)

    def step(c, x):
        return c, (x, w, c, c, 1.0, w)

    _, ys = _both(lambda: lax.scan(step, 5, jnp.arange(4)))
    np.testing.assert_array_equal(ys[0], np.arange(4))
    np.testing.assert_array_equal(ys[1], np.tile(np.arange(3), (4, 1)))
    np.testing.assert_array_equal(ys[2], np.full(4, 5))
    np.testing.assert_array_equal(ys[4], np.ones(4))


def test_scan_in_a_thread_of_its_own():
    import threading

    f = gf.jit(lambda x: lax.scan(lambda c, e: (c + jnp.sum(jnp.sin(e)), None), 0.0, x)[0])
    x = jnp.ones((50, 100))
    want, results = float(f(x)), []
    threads = [
        threading.Thread(target=lambda: results.extend(float(f(x)) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {want}


def test_effects_happen_in_order():
    seen = []

    def step(c, x):
        gf.debug.callback(lambda v: seen.append(int(v)), x, ordered=True)
        return c + x, None

    gf.jit(lambda: lax.scan(step, 0, jnp.arange(4)))()
    assert seen == [0, 1, 2, 3]
    gf.jit(lambda: lax.scan(step, 0, jnp.arange(4), reverse=True))()
    assert seen[4:] == [3, 2, 1, 0]


def test_an_error_in_a_loop_leaves_everything_usable():
    def fail(v):
        if v == 2:
            raise RuntimeError("stop here")

    def step(c, x):
        gf.debug.callback(fail, x)
        return c + x, None

    f = gf.jit(lambda xs: lax.scan(step, 0, xs)[0])
    with pytest.raises(Exception, match="stop here"):
        f(jnp.arange(4))
    assert f(jnp.arange(2)) == 1


# --- while_loop and fori_loop --------------------------------------------------------------


def test_while_loop_that_never_runs():
    x = jnp.arange(3.0)
    got = _both(lambda x: lax.while_loop(lambda v: False, lambda v: v + 1, x), x)
    np.testing.assert_array_equal(got, x)


def test_while_loop_closes_over_different_values():
    limit, step = jnp.float32(10), jnp.float32(3)
    assert _both(lambda: lax.while_loop(lambda v: v < limit, lambda v: v + step, 0.0)) == 12


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_while_loop_with_two_sets_of_buffers(steps):
    got = _both(
        lambda: lax.while_loop(
            lambda v: v[0] < steps, lambda v: (v[0] + 1, v[2], v[1] + v[0]), (0, 1, 2)
        )
    )
    a, b = 1, 2
    for k in range(steps):
        a, b = b, a + k
    assert tuple(map(int, got)) == (steps, a, b)


def test_forward_mode_of_while_loop():
    def root(a):
        """Newton's iteration for the square root, often enough for its derivatives too."""
        return lax.while_loop(
            lambda v: v[0] < 8, lambda v: (v[0] + 1, 0.5 * (v[1] + a / v[1])), (0, a)
        )[1]

    value, slope = gf.jvp(root, (2.0,), (1.0,))
    np.testing.assert_allclose([value, slope], [2**0.5, 0.5 / 2**0.5], rtol=1e-5)
    np.testing.assert_allclose(gf.jacfwd(root)(2.0), 0.5 / 2**0.5, rtol=1e-5)
    np.testing.assert_allclose(gf.jit(gf.jacfwd(gf.jacfwd(root)))(2.0), -0.25 / 2**1.5, rtol=1e-3)
    out, push = gf.linearize(root, 2.0)
    np.testing.assert_allclose([out, push(2.0)], [2**0.5, 1 / 2**0.5], rtol=1e-5)


def test_each_lane_stops_by_itself():
    def collatz(n):
        return lax.while_loop(
            lambda v: v[0] > 1,
            lambda v: (jnp.where(v[0] % 2 == 0, v[0] // 2, 3 * v[0] + 1), v[1] + 1),
            (n, 0),
        )[1]

    numbers = jnp.arange(1, 13).reshape(3, 4)
    want = [[0, 1, 7, 2], [5, 8, 16, 3], [19, 6, 14, 9]]
    np.testing.assert_array_equal(_both(gf.vmap(gf.vmap(collatz)), numbers), want)
    np.testing.assert_array_equal(gf.vmap(gf.vmap(collatz), in_axes=1, out_axes=1)(numbers), want)
    np.testing.assert_array_equal(gf.vmap(gf.jit(collatz))(numbers[0]), want[0])


def test_lanes_that_share_what_they_read():
    table = jnp.arange(5.0)

    def look(k, bound):
        return lax.while_loop(lambda v: table[v] < bound, lambda v: v + 1, k)

    got = _both(gf.vmap(look, in_axes=(0, None)), jnp.array([0, 3]), 2.5)
    np.testing.assert_array_equal(got, [3, 3])
    got = gf.vmap(gf.vmap(look, (0, None)), (None, 0))(jnp.array([0, 3]), jnp.array([0.5, 2.5]))
    np.testing.assert_array_equal(got, [[1, 3], [3, 3]])


def test_a_mapped_body_with_one_condition_for_all():
    def f(x):
        return lax.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * x), (0, 1.0))[1]

    np.testing.assert_allclose(_both(gf.vmap(f), jnp.array([1.0, 2.0])), [1, 8])
    assert "lane_while" not in str(gf.make_jaxpr(gf.vmap(f))(jnp.ones(2)))


def test_fori_loop_with_traced_bounds():
    def total(low, high):
        return lax.fori_loop(low, high, lambda k, c: c + k, 0)

    assert gf.jit(total)(2, 6) == 14 and gf.jit(total)(6, 2) == 0
    np.testing.assert_array_equal(
        gf.vmap(total, in_axes=(None, 0))(0, jnp.array([0, 1, 4])), [0, 0, 6]
    )


def test_fori_loop_numbers():
    assert _both(lambda: lax.fori_loop(3, 7, lambda k, c: c * 10 + k, 0)) == 3456
    assert _both(lambda: lax.fori_loop(-2, 1, lambda k, c: c + k, 0)) == -3
    assert lax.fori_loop(5, 2, lambda k, c: c + k, 8) == 8
    kinds = []
    note = gf.jit(lambda n, m: lax.fori_loop(n, m, lambda k, c: (kinds.append(k.dtype), c)[1], 0))
    note(np.uint8(0), np.uint8(3))
    assert kinds == [np.uint8]
    # Known bounds are Python ints, whatever their dtype.
    lax.fori_loop(0, 3, lambda k, c: (kinds.append(k.aval), c)[1], 0)
    lax.fori_loop(np.uint8(0), np.uint8(3), lambda k, c: (kinds.append(k.aval), c)[1], 0)
    assert all(aval.dtype == np.int32 and aval.weak_type for aval in kinds[1:])


def test_fori_loop_with_float_bounds():
    def power(x, low=0.0, high=3.0):
        return lax.fori_loop(low, high, lambda k, c: c * x + k, x)

    # Known ones are truncated: the loop has a length, so that it has a gradient.
    assert _both(power, 2.0) == power(2.0, 0.9, 3.7) == 20
    assert gf.grad(power)(2.0).item() == gf.jit(gf.grad(power))(2.0).item() == 33
    with gf.disable_jit():
        assert power(2.0) == 20
    # Traced ones are compared as they are.
    assert gf.jit(power)(2.0, 0.5, 2.0).item() == (2 * 2 + 0.5) * 2 + 1.5


# --- branches ------------------------------------------------------------------------------


def test_only_one_branch_runs():
    seen = []

    def mark(name):
        return lambda: gf.debug.callback(lambda: seen.append(name))

    gf.jit(lambda p: lax.cond(p, mark("true"), mark("false")))(True)
    gf.jit(lambda k: lax.switch(k, [mark(0), mark(1), mark(2)]))(2)
    assert seen == ["true", 2]


def test_predicates_that_are_numbers():
    f = gf.jit(lambda p: lax.cond(p, lambda: 1, lambda: 2))
    assert [int(f(p)) for p in (0, 3, -1, 0.5, 0.0, float("nan"), True)] == [2, 1, 1, 1, 2, 1, 1]


@pytest.mark.parametrize(("index", "want"), [(-5, 10), (0, 10), (1, 20), (2, 30), (99, 30)])
def test_switch_takes_the_nearest_branch(index, want):
    branches = [lambda: 10, lambda: 20, lambda: 30]
    assert lax.switch(index, branches) == want
    assert gf.jit(lambda k: lax.switch(k, branches))(index) == want
    assert gf.vmap(lambda k: lax.switch(k, branches))(jnp.array([index]))[0] == want


def test_branches_return_their_operands():
    x, y = jnp.arange(3.0), jnp.ones(3)
    f = gf.jit(lambda p, x, y: lax.cond(p, lambda x, y: (x, y), lambda x, y: (y, x), x, y))
    np.testing.assert_array_equal(f(False, x, y)[0], y)
    np.testing.assert_array_equal(f(True, x, y)[0], x)


def test_python_floats_yield_to_the_other_branch():
    out = lax.cond(True, lambda: 1.0, lambda: jnp.float32(2))
    assert out.dtype == np.float32 and out == 1
    with pytest.raises(TypeError, match=r"f32\[\] from false_fun and i32\[\] from true_fun"):
        lax.cond(True, lambda: 1, lambda: jnp.float32(2))


def test_the_older_form_of_cond():
    assert lax.cond(True, 3, lambda x: x + 1, 4, lambda x: x) == 4
    assert lax.cond(False, lambda x: x + 1, lambda x: x, operand=4) == 4


def test_gradient_of_a_branch_that_is_not_taken_is_no_nan():
    """With a real branch the square root of a negative number is never made."""
    f = gf.grad(lambda x: lax.cond(x > 0, jnp.sqrt, lambda x: 0.0 * x, x))
    assert f(-1.0) == 0 and gf.jit(f)(4.0) == 0.25


def test_shared_weights_of_mapped_branches_get_one_cotangent():
    w = jnp.arange(6.0).reshape(2, 3)

    def f(w, p, x):
        return gf.vmap(lambda p, x: lax.cond(p, lambda x: jnp.sum(w @ x), jnp.sum, x))(p, x).sum()

    p, x = jnp.array([True, False, True]), jnp.arange(9.0).reshape(3, 3)
    want = np.tile(np.arange(9).reshape(3, 3)[[0, 2]].sum(0), (2, 1))
    np.testing.assert_allclose(gf.grad(f)(w, p, x), want)


# --- map and associative_scan --------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 20])
def test_map_in_batches(batch_size):
    xs = jnp.arange(14.0).reshape(7, 2)
    got = _both(lambda xs: lax.map(lambda x: (x.sum(), x * 2), xs, batch_size=batch_size), xs)
    np.testing.assert_array_equal(got[0], np.asarray(xs).sum(1))
    np.testing.assert_array_equal(got[1], np.asarray(xs) * 2)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_every_size(size, reverse):
    x = np.random.default_rng(0).integers(1, 5, (2, size)).astype(np.int32)
    got = lax.associative_scan(jnp.add, jnp.asarray(x), reverse=reverse, axis=1)
    want = np.cumsum(x[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(x, 1)
    np.testing.assert_array_equal(got, want)


def test_associative_scan_keeps_the_order_of_operands():
    matrices = np.random.default_rng(0).normal(size=(5, 2, 2)).astype(np.float32)
    got = lax.associative_scan(lambda a, b: a @ b, jnp.asarray(matrices))
    want = matrices[0]
    for k in range(1, 5):
        want = want @ matrices[k]
        np.testing.assert_allclose(got[k], want, rtol=1e-5, atol=1e-6)


def test_associative_scan_of_nan_and_infinity():
    """Interleaving moves elements; it computes nothing."""
    x = jnp.array([1.0, np.inf, np.nan, 2.0, -0.0])
    got = lax.associative_scan(lambda a, b: b, x)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(x))
    assert np.signbit(np.asarray(got)[4])


# --- disable_jit ---------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(-1, 2), (np.int8(-1), np.int8(2))])
def test_the_index_of_a_loop_is_what_it_is_within_jit(bounds):
    """It was an array of NumPy's: 0 // 0 was 0, and uint8 plus it int32."""
    kinds = []

    def body(i, carry):
        place = [5, 6, 7][i] if given else 0
        kinds.append((i.dtype, i.weak_type, (i + jnp.uint8(1)).dtype, place))
        return carry + (i // i).astype(int)

    results = []
    for given in (False, True):
        with gf.disable_jit(given):
            results.append(int(lax.fori_loop(*bounds, body, 0)))
    assert results == [1, 1]
    assert {kind[:3] for kind in kinds} == {(np.dtype("int32"), True, np.dtype("uint8"))}
    assert [kind[3] for kind in kinds][-3:] == [7, 5, 6]


def test_loops_run_in_python_without_jit():
    with gf.disable_jit():
        values = []
        lax.scan(lambda c, x: (values.append(float(c)) or c + x, x), 0.0, jnp.arange(3.0))
        assert values == [0, 0, 1]
        assert lax.while_loop(lambda v: v < 3, lambda v: v + 1, 0) == 3
        assert lax.fori_loop(0, 3, lambda k, c: c + int(k), 0) == 3
        assert lax.cond(True, lambda: 1, lambda: 1 / 0) == 1
        np.testing.assert_array_equal(
            lax.scan(lambda c, x: (c, x), 0, jnp.arange(3), reverse=True)[1], np.arange(3)
        )


def test_mapped_while_loops_without_jit():
    """A mapped condition has many values: what is left of the loop runs as a whole."""

    def steps(start):
        return lax.while_loop(lambda v: v[0] < 5, lambda v: (v[0] + start, v[1] + 1), (0, 0))[1]

    def bounded(start):
        condition, body = (lambda v: v[0] < 5), (lambda v: (v[0] + start, v[1] + 1))
        return lax.while_loop(condition, body, (0, 0), max_steps=3)[1]

    with gf.disable_jit():
        np.testing.assert_array_equal(gf.vmap(steps)(jnp.array([1, 2, 5])), [5, 3, 1])
        np.testing.assert_array_equal(gf.vmap(bounded)(jnp.array([1, 2, 5])), [3, 3, 1])
        counted = gf.vmap(lambda n: lax.fori_loop(0, n, lambda k, c: c + k, 0))
        np.testing.assert_array_equal(counted(jnp.array([0, 3, 4])), [0, 3, 6])


@pytest.mark.parametrize("length", [3.0, np.float32(3), np.array(3.0), jnp.array(3.0), 3.9])
def test_the_length_of_a_scan_may_be_a_quotient_of_floats(length):
    """As in JAX, which takes ``int(length)``: programs divide numbers of steps."""
    total, steps = lax.scan(lambda c, _: (c + 1, c), 0, length=length)
    assert int(total) == 3 and steps.shape == (3,)


@pytest.mark.parametrize("length", [float("nan"), float("inf"), "many", np.array([3.0]), 1j])
def test_other_lengths_of_a_scan_are_refused(length):
    with pytest.raises(TypeError, match=r"\[scan\] length must be"):
        lax.scan(lambda c, _: (c, c), 0, length=length)
