"""Updates happen in the array's own memory where nobody needs the old values, and only there."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline

N = 40


def steps_of(function, *args):
    plan = plan_of(function, *args)
    return [step.kind for step in plan.steps]


def plan_of(function, *args, donated=()):
    jaxpr = gf.jit(function).lower(*args).jaxpr
    return pipeline.compile_plan(jaxpr, donated)[0]


def inner_plan(plan):
    (step,) = [step for step in plan.steps if step.kind == "program"]
    return step.programs[-1].plan


ARRAY = np.arange(N, dtype=np.float32)
INDICES = np.array([3, -1, 3, 39, 77, 0, -40, -41])
VALUES = np.linspace(1, 2, len(INDICES)).astype(np.float32)


def places(indices, size):
    wrapped = [int(i) + size if i < 0 else int(i) for i in indices]
    return [(k, i) for k, i in enumerate(wrapped) if 0 <= i < size]


def expected(x, indices, values, combine):
    out = np.array(x)
    for k, i in places(indices, len(x)):
        out[i] = combine(out[i], values[k])
    return out


# --- what is in place ----------------------------------------------------------------------


def test_an_input_is_copied_once():
    assert steps_of(lambda x, i, v: x.at[i].set(v), ARRAY, INDICES, VALUES) == ["copy", "kernel"]


def test_a_computed_array_is_updated_where_it_lies():
    kinds = steps_of(lambda x, i, v: (x * 2).at[i].add(v), ARRAY, INDICES, VALUES)
    assert kinds == ["kernel", "kernel"]


def test_updates_in_a_row_need_one_copy():
    def function(x, i, v):
        return x.at[i].set(v).at[i + 1].add(v).at[0].mul(2)

    assert steps_of(function, ARRAY, INDICES, VALUES).count("copy") == 1


def test_an_array_that_is_read_before_needs_no_copy():
    def function(x, i):
        y = x * 2
        return y.at[i].set(y[0] + y.sum())

    kinds = steps_of(function, ARRAY, 3)
    assert "copy" not in kinds
    made = gf.jit(function)(ARRAY, 3)
    wanted = ARRAY * 2
    wanted[3] = wanted[0] + wanted.sum()
    np.testing.assert_allclose(made, wanted, rtol=1e-6)


def test_an_array_that_is_read_after_is_copied():
    def function(x, i):
        y = x * 2
        z = y.at[i].set(-1.0)
        return z, jnp.cumsum(y) + z

    made = gf.jit(function)(ARRAY, 3)
    wanted = ARRAY * 2
    changed = wanted.copy()
    changed[3] = -1
    np.testing.assert_array_equal(made[0], changed)
    np.testing.assert_allclose(made[1], np.cumsum(wanted) + changed, rtol=1e-6)


def test_an_array_that_is_an_output_too_is_copied():
    old, new = gf.jit(lambda x: ((y := x + 1), y.at[2].set(0.0)))(ARRAY)
    np.testing.assert_array_equal(old, ARRAY + 1)
    assert new[2] == 0 and new[3] == ARRAY[3] + 1


def test_views_of_the_old_array_keep_their_values():
    def function(x):
        y = jnp.sort(x)  # a library's result, so that what follows are views of it
        rows = y.reshape(4, 10)
        z = y.at[7].set(100.0)
        return rows.T, z, rows[0]

    made = gf.jit(function)(ARRAY)
    np.testing.assert_array_equal(made[0], ARRAY.reshape(4, 10).T)
    assert made[1][7] == 100 and made[2][7] == 7


def test_two_updates_of_one_array_do_not_meet():
    def function(x):
        y = x * 1.5
        return y.at[1].set(0.0), y.at[2].set(0.0)

    one, two = gf.jit(function)(ARRAY)
    assert one[1] == 0 and one[2] == 3 and two[1] == 1.5 and two[2] == 0


def test_a_donated_array_is_updated_without_a_copy():
    plan = plan_of(lambda x, i, v: x.at[i].add(v), ARRAY, INDICES, VALUES, donated=(0,))
    assert [step.kind for step in plan.steps] == ["kernel"] and len(plan.in_place) == 1
    function = gf.jit(lambda x, i, v: x.at[i].add(v), donate_argnums=0)
    x = jnp.asarray(ARRAY)
    wanted = expected(ARRAY, INDICES, VALUES, np.add)
    np.testing.assert_allclose(function(x, INDICES, VALUES), wanted, rtol=1e-6)
    assert x.is_deleted()


def test_a_donated_array_that_somebody_else_sees_is_left_alone():
    x = jnp.asarray(ARRAY)
    seen = np.asarray(x)
    gf.jit(lambda x: x.at[0].set(-5.0), donate_argnums=0)(x)
    assert seen[0] == 0


def test_a_constant_is_filled_where_it_is_updated():
    kinds = steps_of(lambda u, i: lax.dynamic_update_slice(jnp.zeros(N), u, (i,)), VALUES, 3)
    assert kinds == ["kernel", "kernel"]


# --- loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [True, False])
def test_a_loop_updates_its_carry_in_place(jit):
    def function(x):
        return lax.fori_loop(0, N, lambda i, x: x.at[i].set(x[i - 1] + i), x)

    plan = inner_plan(plan_of(function, ARRAY))
    assert len(plan.in_place) == 1 and not any(step.kind == "copy" for step in plan.steps)
    wanted = ARRAY.copy()
    for i in range(N):
        wanted[i] = wanted[i - 1] + i
    np.testing.assert_allclose((gf.jit(function) if jit else function)(ARRAY), wanted, rtol=1e-6)


def test_a_loop_leaves_its_operand_alone():
    x = jnp.asarray(ARRAY)
    gf.jit(lambda x: lax.fori_loop(0, 3, lambda i, x: x.at[i].set(-1.0), x))(x)
    np.testing.assert_array_equal(x, ARRAY)


def test_carries_that_change_places_are_not_in_place():
    def function(a, b):
        return lax.fori_loop(0, 3, lambda i, s: (s[1].at[i].set(-1.0), s[0] * 2), (a, b))

    a, b = ARRAY.copy(), ARRAY[::-1].copy()
    made = gf.jit(function)(a, b)
    for i in range(3):
        new = b.copy()
        new[i] = -1
        a, b = new, a * 2
    np.testing.assert_array_equal(made[0], a)
    np.testing.assert_array_equal(made[1], b)


def test_a_carry_that_is_stacked_as_well_keeps_its_old_values():
    def function(x):
        return lax.scan(lambda c, i: (c.at[i].set(9.0), c), x, jnp.arange(4))

    last, stacked = gf.jit(function)(ARRAY)
    wanted, rows = ARRAY.copy(), []
    for i in range(4):
        rows.append(wanted.copy())
        wanted[i] = 9
    np.testing.assert_array_equal(last, wanted)
    np.testing.assert_array_equal(stacked, rows)


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_while_loops_mix_kept_and_alternating_carries(length):
    def function(x, y):
        def body(s):
            i, x, y = s
            return i + 1, x.at[i].add(y[i]), y[::-1] * 2

        return lax.while_loop(lambda s: s[0] < length, body, (0, x, y))

    made = gf.jit(function)(ARRAY, ARRAY + 1)
    x, y = ARRAY.copy(), ARRAY + 1
    for i in range(length):
        x[i] += y[i]
        y = y[::-1] * 2
    assert made[0] == length
    np.testing.assert_array_equal(made[1], x)
    np.testing.assert_array_equal(made[2], y)


def test_a_loop_that_calls_python_updates_in_place_as_well():
    def function(x):
        def body(i, x):
            row = jnp.sort(x)[:3]  # a library call: the loop is driven from Python
            return x.at[i].set(row.sum())

        return lax.fori_loop(0, 5, body, x)

    wanted = ARRAY.copy()
    for i in range(5):
        wanted[i] = np.sort(wanted)[:3].sum()
    np.testing.assert_allclose(gf.jit(function)(ARRAY), wanted, rtol=1e-6)


def copies(plan):
    return [step for step in inner_plan(plan).steps if step.kind == "copy"]


# Bodies that read the old array behind the update, in the order of the text.
READS_BEHIND = {
    "an element at the index": lambda x, y, i: (x.at[i].set(y[i]), y.at[0].add(x[i])),
    "a part of it": lambda x, y, i: (x.at[i].set(-1.0), y.at[i].set(x[3] + x[4:9].sum())),
    "by another update of it": lambda x, y, i: (x.at[i].set(1.0).at[2 * i].add(x[i] + x[3]), y),
    "between two updates": lambda x, y, i: ((z := x.at[i].set(y[2])).at[i + 1].set(z[2 * i]), y),
    "what is updated itself": lambda x, y, i: (x.at[i].set(y[i + 1]), y.at[i].set(x[i + 1])),
    "as a window": lambda x, y, i: (
        lax.dynamic_update_slice(x, x[:9], (i,)),
        lax.dynamic_update_slice(y, x[4:9], (i + 1,)),
    ),
    "all of it": lambda x, y, i: (x.at[i].set(0.5), y.at[i].set(x.sum() / 64)),
}


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("case", READS_BEHIND)
def test_reads_of_the_old_array_come_before_its_update(case):
    body = READS_BEHIND[case]

    def function(x, y):
        return lax.fori_loop(0, 8, lambda i, s: body(*s, i), (x, y))

    x, y = jnp.asarray(ARRAY), jnp.asarray(ARRAY[::-1].copy())
    # A part of an array that is a window is no kernel of its own: that array is copied.
    assert len(copies(plan_of(function, x, y))) == (case == "as a window")
    made = gf.jit(function)(x, y)
    np.testing.assert_array_equal(x, ARRAY)
    wanted = x, y
    for i in range(8):  # ops by themselves make new arrays
        wanted = body(*wanted, i)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_elements_that_a_scan_stacks_are_stored_before_the_update():
    def function(x):
        return lax.scan(lambda c, i: (c.at[i].set(9.0), (c[0], c[2], c[i])), x, jnp.arange(6))

    assert not copies(plan_of(function, ARRAY))
    last, (first, third, old) = gf.jit(function)(ARRAY)
    np.testing.assert_array_equal(last, np.where(np.arange(N) < 6, 9, ARRAY))
    np.testing.assert_array_equal(first, [0, 9, 9, 9, 9, 9])
    np.testing.assert_array_equal(old, ARRAY[:6])
    np.testing.assert_array_equal(third, [2, 2, 2, 9, 9, 9])


def test_two_updates_that_need_each_other_first_are_not_both_in_place():
    """Each reads the old array of the other behind its own update."""

    def function(x, y):
        def body(i, s):
            x, y = s
            new_x = x.at[i].set(1.5)
            new_y = y.at[i].set(new_x[i + 1] + new_x[i])
            return new_x.at[i + 1].set(y[i] + new_y[i]), new_y.at[i + 2].set(x[i])

        return lax.fori_loop(0, 5, body, (x, y))

    made = gf.jit(function)(ARRAY, ARRAY + 1)
    x, y = ARRAY.copy(), ARRAY + 1
    for i in range(5):
        old_x, old_y = x.copy(), y.copy()
        x[i] = 1.5
        y[i] = x[i + 1] + x[i]
        x[i + 1], y[i + 2] = old_y[i] + y[i], old_x[i]
    np.testing.assert_array_equal(made[0], x)
    np.testing.assert_array_equal(made[1], y)


def test_a_cache_of_keys_and_values_is_updated_in_place():
    """A step of attention writes a row and reads all of them."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((6, 4)).astype(np.float32)

    def function(keys, values, queries):
        def step(state, q):
            keys, values, at = state
            keys = lax.dynamic_update_slice(keys, q[None], (at, 0))
            values = lax.dynamic_update_slice(values, 2 * q[None], (at, 0))
            scores = jnp.where(jnp.arange(8) <= at, keys @ q, -jnp.inf)
            return (keys, values, at + 1), gf.nn.softmax(scores) @ values

        return lax.scan(step, (keys, values, 0), queries)

    empty = jnp.zeros((8, 4), np.float32)
    assert not copies(plan_of(function, empty, empty, queries))
    (keys, values, at), outs = gf.jit(function)(empty, empty, queries)
    assert at == 6 and not np.asarray(empty).any()
    np.testing.assert_array_equal(keys[:6], queries)
    np.testing.assert_array_equal(values[:6], 2 * queries)
    for k in range(6):
        weights = np.exp(queries[: k + 1] @ queries[k])
        wanted = weights / weights.sum() @ (2 * queries[: k + 1])
        np.testing.assert_allclose(outs[k], wanted, rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_bodies_of_updates_and_reads(seed):
    """Against the same ops one by one, each of which makes a new array."""
    rng = np.random.default_rng(seed)
    script = [rng.integers(0, 9, 5) for _ in range(6)]

    def body(i, arrays):
        every = list(arrays)  # old and new arrays: any may be read later
        last = [0, 1]
        for which, source, kind, one, two in script:
            array, other = every[last[which % 2]], every[source % len(every)]
            parts = other[two], other[i + two], other[two : two + 3].sum() / 4
            value = [*parts, other[two] + other[i]][kind % 4]
            if kind < 3:
                new = array.at[i + one].set(value)
            elif kind < 6:
                new = array.at[one + 2 * i].add(value * 0.5)
            else:
                new = lax.dynamic_update_slice(array, other[two : two + 4], (i + one,))
            last[which % 2] = len(every)
            every.append(new)
        return every[last[0]], every[last[1]]

    arrays = jnp.asarray(ARRAY), jnp.asarray(ARRAY[::-1].copy())
    made = gf.jit(lambda *a: lax.fori_loop(0, 5, body, a))(*arrays)
    wanted = arrays
    for i in range(5):
        wanted = body(i, wanted)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_loops_in_loops():
    def function(x):
        def outer(i, x):
            return lax.fori_loop(0, 10, lambda j, x: x.at[i, j].set(i * 10.0 + j), x)

        return lax.fori_loop(0, 4, outer, x)

    made = gf.jit(function)(np.zeros((4, 10), np.float32))
    np.testing.assert_array_equal(made, np.arange(40).reshape(4, 10))


# --- branches and loops inside of loops ------------------------------------------------------


def every_copy(plan):
    """The elements of all copies that a plan makes, with those of programs inside it."""
    found = [step.source.aval.size for step in plan.steps if step.kind == "copy"]
    for step in plan.steps:
        if step.kind == "program":
            found += [size for inner in step.programs for size in every_copy(inner.plan)]
    return found


def large_copies(function, *args, donated=()):
    return sum(size >= N for size in every_copy(plan_of(function, *args, donated=donated)))


def set_at(i, value=1.0):
    return lambda x, *rest: x.at[i].set(value)


# Bodies ``(i, x, y) -> (x, y)`` and how many arrays are copied; one for each input of the program.
BRANCHES = {
    "one branch updates": (
        lambda i, x, y: (lax.cond(i % 2 == 0, set_at(i), lambda x: x, x), y), 1,
    ),
    "over what it closes over": (
        lambda i, x, y: (lax.cond(i % 2 == 0, lambda: x.at[i].set(2.0), lambda: x), y), 1,
    ),
    "both update": (
        lambda i, x, y: (lax.cond(i % 2 == 0, set_at(i), set_at(i + 1, 2.0), x), y), 1,
    ),
    "of several": (
        lambda i, x, y: (lax.switch(i % 3, [set_at(i), lambda x: x, set_at(2 * i)], x), y), 1,
    ),
    "twice": (
        lambda i, x, y: (lax.cond(i > 2, lambda x: x.at[i].set(1.0).at[i + 1].add(x[0]),
                                  lambda x: x, x), y), 1,
    ),
    "behind an update": (
        lambda i, x, y: (lax.cond(i > 2, set_at(i), lambda x: x, x.at[2 * i].add(3.0)), y), 1,
    ),
    "before an update": (
        lambda i, x, y: (lax.cond(i > 2, set_at(i), lambda x: x, x).at[2 * i].add(3.0), y), 1,
    ),
    "a branch in a branch": (
        lambda i, x, y: (lax.cond(
            i > 1, lambda x: lax.cond(i > 3, set_at(i), lambda x: x, x), set_at(i + 2), x), y), 1,
    ),
    "a loop in a branch": (
        lambda i, x, y: (lax.cond(i % 2 == 0, lambda x: lax.fori_loop(
            0, 3, lambda j, x: x.at[i + j].add(j), x), lambda x: x, x), y), 1,
    ),
    "a branch in a loop": (
        lambda i, x, y: (lax.fori_loop(0, 3, lambda j, x: lax.cond(
            j == i, set_at(i + j), lambda x: x, x), x), y), 1,
    ),
    "a loop": (
        lambda i, x, y: (lax.fori_loop(0, 4, lambda j, x: x.at[i + j].add(x[j]), x), y), 1,
    ),
    "a loop without turns": (
        lambda i, x, y: (lax.while_loop(lambda s: s[0] < 0, lambda s: (
            s[0] + 1, s[1].at[0].set(5.0)), (i, x))[1].at[i].set(2.0), y), 1,
    ),
    "both arrays": (
        lambda i, x, y: lax.cond(i % 2 == 0, lambda x, y: (x.at[i].set(y[0]), y),
                                 lambda x, y: (x, y.at[i].set(x[1])), x, y), 2,
    ),
    "read before": (
        lambda i, x, y: (lax.cond(x.sum() > 3, set_at(i, 0.5), lambda x: x, x), y), 1,
    ),
}  # fmt: skip

# Bodies in which an array must stay as it is; ``None``: some are copied in each turn.
NOT_IN_PLACE = {
    "read behind": lambda i, x, y: (
        (z := lax.cond(i % 2 == 0, set_at(i), lambda x: x, x)),
        y.at[i].set((x - z).sum()),
    ),
    "stays beside": lambda i, x, y: (x, lax.cond(i % 2 == 0, set_at(i), lambda x: x, x) + y[0]),
    "swapped by one branch": lambda i, x, y: lax.cond(
        i % 2 == 0, lambda x, y: (x.at[i].set(1.0), y), lambda x, y: (y, x), x, y
    ),
    "swapped by both": lambda i, x, y: lax.cond(
        i % 2 == 0, lambda x, y: (y.at[i].set(1.0), x), lambda x, y: (y, x.at[i].add(2.0)), x, y
    ),
    "swapped behind": lambda i, x, y: (y, lax.cond(i % 2 == 0, set_at(i), lambda x: x, x)),
    "twice a result": lambda i, x, y: lax.cond(
        i % 2 == 0, lambda x: (x.at[i].set(1.0), x), lambda x: (x, x), x
    ),
    "of the other": lambda i, x, y: (
        lax.cond(i % 2 == 0, lambda x, y: x.at[i].set(1.0), lambda x, y: y, x, y),
        y,
    ),
    "computed by one": lambda i, x, y: (
        lax.cond(i % 2 == 0, set_at(i), lambda x: x[::-1] * 0.5, x),
        y,
    ),
    "passed twice": lambda i, x, y: (
        lax.cond(i % 2 == 0, lambda x, z: x.at[i].set(z[::-1].sum() / 64), lambda x, z: x, x, x),
        y,
    ),
    "a loop over what is read behind": lambda i, x, y: (
        lax.fori_loop(0, 3, lambda j, x: x.at[i + j].set(4.0), x),
        y.at[i].set(x.sum() / 64),
    ),
    "a loop over two carries from one": lambda i, x, y: lax.fori_loop(
        0, 3, lambda j, s: (s[0].at[i + j].set(4.0), s[1].at[j].add(s[0][j])), (x, x)
    ),
}


def run_loop(body, x, y):
    return lax.fori_loop(0, 6, lambda i, s: tuple(body(i, *s)), (x, y))


def check_body(body, jitted=gf.jit):
    x, y = jnp.asarray(ARRAY / 7), jnp.asarray(ARRAY[::-1] / 5)
    made = jitted(lambda x, y: run_loop(body, x, y))(x, y)
    wanted = x, y
    for i in range(6):  # each op by itself makes a new array
        wanted = tuple(body(jnp.int32(i), *wanted))
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_array_equal(x, ARRAY / np.float32(7))
    np.testing.assert_array_equal(y, ARRAY[::-1] / np.float32(5))


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("case", BRANCHES)
def test_branches_and_loops_update_what_they_are_given(case):
    body, count = BRANCHES[case]
    assert large_copies(lambda x, y: run_loop(body, x, y), ARRAY, ARRAY) == count
    check_body(body)


@pytest.mark.parametrize("case", NOT_IN_PLACE)
def test_branches_and_loops_leave_alone_what_somebody_needs(case):
    check_body(NOT_IN_PLACE[case])


def in_python(body):
    """The same body with a library call beside it: the loop is driven from Python."""

    def function(i, x, y):
        x, y = body(i, x, y)
        return x, y.at[0].add(jnp.sort(y)[3])

    return function


@pytest.mark.parametrize("case", [*BRANCHES, *NOT_IN_PLACE])
def test_the_same_in_loops_that_python_drives(case):
    check_body(in_python(NOT_IN_PLACE.get(case) or BRANCHES[case][0]))


@pytest.mark.usefixtures("loops_of_steps")
def test_a_computed_array_is_no_loops_to_copy():
    def function(x):
        y = jnp.sort(x) * 2
        return lax.fori_loop(0, 5, lambda i, y: y.at[i].set(-1.0), y)

    assert large_copies(function, ARRAY) == 0
    np.testing.assert_array_equal(gf.jit(function)(ARRAY)[:7], [-1, -1, -1, -1, -1, 10, 12])


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize(
    "update",
    [
        lambda x: lax.fori_loop(0, 5, lambda i, x: x.at[i].set(-1.0), x),
        lambda x: lax.cond(x[7] > 0, lambda x: x.at[jnp.arange(5)].set(-1.0), lambda x: x, x),
    ],
)
def test_a_donated_array_is_what_a_loop_or_branch_updates(update):
    assert large_copies(update, ARRAY, donated=(0,)) == 0
    assert large_copies(update, ARRAY) == 1
    x, wanted = jnp.asarray(ARRAY), np.where(np.arange(N) < 5, -1, ARRAY)
    np.testing.assert_array_equal(gf.jit(update, donate_argnums=0)(x), wanted)
    assert x.is_deleted()
    y = jnp.asarray(ARRAY)
    np.testing.assert_array_equal(gf.jit(update)(y), wanted)
    np.testing.assert_array_equal(y, ARRAY)


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("turns", [0, 1, 4])
def test_numbers_that_loops_start_from(turns):
    """A counter that starts as a literal is counted in a copy of it."""

    def function(x, n):
        return lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, x[s[0]], s[2] + 2.0), (0, 0.5, 1.0)
        )

    for _ in range(2):
        made = gf.jit(function)(ARRAY, turns)
        assert [float(one) for one in made] == [turns, turns - 1 if turns else 0.5, 1 + 2 * turns]


def test_a_kernel_that_reads_before_a_loop_does_not_join_one_behind_it():
    """Equal kernels run together where the last of them stands."""

    def function(x, z):
        y = jnp.sort(x)
        before = jnp.tanh(y * 3.0) / 7.0
        late = lax.fori_loop(0, 4, lambda i, y: y.at[i].set(y[i] + 50.0), y)
        return jnp.sort(before), late, jnp.sort(jnp.tanh(jnp.sort(z + late[0]) * 3.0) / 7.0)

    before, late, other = gf.jit(function)(ARRAY, ARRAY)
    np.testing.assert_allclose(before, np.tanh(ARRAY * 3) / 7, rtol=1e-5)
    np.testing.assert_array_equal(late[:5], [50, 51, 52, 53, 4])
    np.testing.assert_allclose(other, np.tanh((ARRAY + 50) * 3) / 7, rtol=1e-5)


def test_a_donated_array_that_is_returned_too_is_copied():
    def function(x):
        return x, lax.cond(x[3] > 0, set_at(1, 7.0), lambda x: x, x)

    old, new = gf.jit(function, donate_argnums=0)(jnp.asarray(ARRAY))
    np.testing.assert_array_equal(old, ARRAY)
    assert new[1] == 7 and new[2] == 2


def test_a_constant_stays_what_it_is():
    table = jnp.asarray(ARRAY)

    def function(p):
        return lax.cond(p, set_at(1, 7.0), lambda x: x, table)

    for _ in range(2):
        np.testing.assert_array_equal(gf.jit(function)(False), ARRAY)
        assert gf.jit(function)(True)[1] == 7
    np.testing.assert_array_equal(table, ARRAY)


def test_zeros_that_two_loops_start_from_are_two_arrays():
    def function(n):
        zeros = jnp.zeros(N)
        one = lax.fori_loop(0, n, lambda i, x: x.at[i].set(1.0), zeros)
        two = lax.fori_loop(0, n, lambda i, x: x.at[2 * i].set(2.0), zeros)
        return one, two, zeros

    one, two, zeros = gf.jit(function)(3)
    np.testing.assert_array_equal(one[:6], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(two[:6], [2, 0, 2, 0, 2, 0])
    assert not np.asarray(zeros).any()


@pytest.mark.parametrize("case", [*BRANCHES, *NOT_IN_PLACE])
def test_mapped_and_differentiated(case):
    body = NOT_IN_PLACE.get(case) or BRANCHES[case][0]
    if case == "a loop without turns":
        pytest.skip("a while_loop has no reverse-mode derivative")
    xs, ys = jnp.asarray(np.stack([ARRAY / 7, ARRAY / 9])), jnp.asarray(ARRAY[::-1] / 5)

    def function(x, y):
        return run_loop(body, x, y)

    made = gf.jit(gf.vmap(function, in_axes=(0, None)))(xs, ys)
    for k in range(2):
        for one, other in zip(made, gf.jit(function)(xs[k], ys), strict=True):
            np.testing.assert_allclose(one[k], other, rtol=1e-5)

    def loss(x, y):
        x, y = function(x * x, y)
        return (x * jnp.arange(N)).sum() + (y * y).sum()

    def unrolled(x, y):
        x = x * x
        for i in range(6):
            x, y = body(jnp.int32(i), x, y)
        return (x * jnp.arange(N)).sum() + (y * y).sum()

    with gf.disable_jit():
        wanted = gf.grad(unrolled, (0, 1))(xs[0], ys)
    for one, other in zip(gf.jit(gf.grad(loss, (0, 1)))(xs[0], ys), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


# --- values --------------------------------------------------------------------------------

COMBINE = {
    "set": lambda old, new: new,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16", "int16"])
@pytest.mark.parametrize("method", COMBINE)
def test_repeated_places_in_order(method, dtype):
    x = jnp.asarray(ARRAY % 7).astype(dtype)
    v = jnp.asarray(np.arange(len(INDICES)) % 5).astype(dtype)
    made = gf.jit(lambda x, i, v: getattr(x.at[i], method)(v))(x, INDICES, v)
    wanted = expected(np.asarray(x), INDICES, np.asarray(v), COMBINE[method])
    np.testing.assert_array_equal(np.asarray(made), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
def test_index_dtypes_and_modes(dtype, mode):
    highest = min(np.iinfo(dtype).max, 2**31 - 1)  # larger ones wrap, as in JAX
    indices = np.array([0, 5, 5, 39 if mode == "promise_in_bounds" else highest], dtype)
    values = np.arange(1, 5, dtype=np.float32)
    made = gf.jit(lambda x, i, v: x.at[i].add(v, mode=mode))(ARRAY, indices, values)
    wanted = ARRAY.copy()
    for i, v in zip(indices, values, strict=True):
        if mode == "drop" and i >= N:
            continue
        wanted[min(int(i), N - 1)] += v
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("seed", range(30))
def test_random_windows(seed):
    """Against the op by itself, which NumPy computes in another way."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.integers(1, 6, rank))
    mapped = tuple(int(d) for d in rng.permutation(rank)[: rng.integers(0, rank + 1)])
    inserted = tuple(sorted(d for d in mapped if rng.random() < 0.5))
    batch = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 3)))
    window = [int(rng.integers(1, shape[d] + 1)) for d in range(rank) if d not in inserted]
    spots = sorted(rng.permutation(len(batch) + len(window))[: len(window)].tolist())
    sizes, rest = iter(window), iter(batch)
    updates_shape = [
        next(sizes) if k in spots else next(rest) for k in range(len(batch) + len(window))
    ]
    numbers = lax.ScatterDimensionNumbers(tuple(spots), inserted, mapped)
    x = rng.integers(0, 9, shape).astype(np.int32)
    indices = rng.integers(-2, 6, (*batch, len(mapped))).astype(np.int32)
    updates = rng.integers(1, 9, updates_shape).astype(np.int32)
    for scatter in (lax.scatter, lax.scatter_add, lax.scatter_max):
        for mode in ("clip", "fill"):

            def function(x, i, u, scatter=scatter, mode=mode):
                return scatter(x, i, u, numbers, mode=mode)

            alone = function(jnp.asarray(x), indices, updates)
            np.testing.assert_array_equal(gf.jit(function)(x, indices, updates), alone)


@pytest.mark.parametrize("batched", [(True, True, True), (True, True, False), (False, True, True)])
def test_mapped_dynamic_update_slices(batched):
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((3, 6, 5)), rng.standard_normal((3, 2, 3))
    starts = np.array([0, 9, 3])
    operands = [a if m else a[0] for a, m in zip((x, u, starts), batched, strict=True)]
    axes = tuple(0 if m else None for m in batched)

    def one(x, u, i):
        return lax.dynamic_update_slice(x, u, (i, i - 1))

    made = gf.jit(gf.vmap(one, in_axes=axes))(*operands)
    for k in range(3):
        mine = [a[k] if m else a for a, m in zip(operands, batched, strict=True)]
        np.testing.assert_array_equal(made[k], one(*mine))


def test_empty_windows_and_arrays():
    assert gf.jit(lambda x: x.at[np.zeros(0, int)].set(1.0))(ARRAY).shape == (N,)
    empty = gf.jit(lambda x, i: x.at[i].set(1.0))(np.zeros(0, np.float32), INDICES)
    assert empty.shape == (0,)


def test_gradients_of_updates_agree_with_eager_ones():
    def loss(x, v):
        y = jnp.tanh(x).at[INDICES].set(v, mode="drop").at[2:9].add(v[0])
        y = lax.dynamic_update_slice(y, v[:3] * 2, (v.argmax(),))
        return (y * jnp.arange(N)).sum()

    eager = gf.grad(loss, (0, 1))(jnp.asarray(ARRAY), jnp.asarray(VALUES))
    compiled = gf.jit(gf.grad(loss, (0, 1)))(ARRAY, VALUES)
    for one, other in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_what_an_update_returns_is_not_a_temporary():
    """A temporary may lie where others lay before; an output may not."""
    f = gf.jit(lambda x, k, y: jnp.arctan(jnp.sort(x)).at[k].add(y))
    x = np.array([0.8, 0.3, 2.0], np.float32)
    want = np.arctan(np.sort(x))
    want[1] += -1.4
    for _ in range(3):
        np.testing.assert_allclose(f(x, np.int32(1), np.float32(-1.4)), want, rtol=1e-6)
