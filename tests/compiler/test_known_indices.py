"""Selects at static indices, as of ``x.at[5].set``, become in-place updates if the program may."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline

N, TURNS = 40, 6
ARRAY = np.arange(N, dtype=np.float32)
MATRIX = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


def plan_of(function, *args, donated=()):
    return pipeline.compile_plan(gf.jit(function).lower(*args).jaxpr, donated)[0]


def plans_inside(plan):
    for step in plan.steps:
        if step.kind == "program":
            for inner in step.programs:
                yield inner.plan
                yield from plans_inside(inner.plan)


def kinds_of(plan):
    return [step.kind for step in plan.steps]


def loop(body, turns=TURNS):
    return lambda x: lax.fori_loop(0, turns, body, x)


def one_by_one(body, x, turns=TURNS):
    """The turns of a loop, where each op makes a new array."""
    x = jnp.asarray(x)
    for i in range(turns):
        x = body(jnp.int32(i), x)
    return x


def same_bits(made, wanted):
    assert made.dtype == wanted.dtype and made.shape == wanted.shape
    assert np.asarray(made).tobytes() == np.asarray(wanted).tobytes()


# Bodies that change a few elements; sums of few small integers are exact in any order.
VECTORS = {
    "an element": lambda i, x: x.at[5].set(i * 2.0),
    "of itself": lambda i, x: x.at[5].set(x[5] * 2 + i),
    "from the end": lambda i, x: x.at[-1].add(x[3] + i),
    "a slice": lambda i, x: x.at[2:7].set(x[5] + i),
    "of several values": lambda i, x: x.at[2:7].set(x[20:25] * 2),
    "of what lies behind": lambda i, x: x.at[2:7].add(x[4:9]),
    "of what lies backwards": lambda i, x: x.at[2:7].set(x[2:7][::-1]),
    "of its neighbours": lambda i, x: x.at[2:7].set(x[1:6] + 1),
    "written backwards": lambda i, x: x.at[6:1:-1].set(x[2:7] + i),
    "combined": lambda i, x: x.at[2:7].multiply(2.0).at[3:5].min(x[9] + i).at[-4:].max(i * 9.0),
    "of a function": lambda i, x: x.at[3:6].apply(lambda old: old * 2 + 1),
    "divided": lambda i, x: x.at[3].divide(4.0),
    "almost all": lambda i, x: x.at[1:].add(i),
    "beside a traced place": lambda i, x: x.at[i].set(x[5]).at[5].add(1.0),
    "with a new axis": lambda i, x: x.at[None, 4:7].add(1.0),
    "all places of an ellipsis": lambda i, x: x.at[..., 7].set(x[8] + 1),
    "as a choice": lambda i, x: jnp.where(jnp.arange(N) == 4, x + i, x),
    "as a choice of some": lambda i, x: jnp.where(jnp.arange(N) > N - 3, x[3] + i, x),
    "every second": lambda i, x: x.at[::2].set(i),
    "every third, of itself": lambda i, x: x.at[1::3].set(x[1::3] * 2 + i),
    "every third, of others": lambda i, x: x.at[1:30:3].set(x[30:] + i),
    "backwards": lambda i, x: x.at[30:2:-5].set(x[:6] + i),
    "backwards, as it is": lambda i, x: x.at[::-7].set(x[:6]),
    "every seventh, combined": lambda i, x: x.at[3::7].add(x[2] + i).at[::7].max(i * 9.0),
    "every seventh, of the old": lambda i, x: x.at[3::7].add(x[2] + i).at[::7].set(x[1::7]),
    "every sixth, of a function": lambda i, x: x.at[5::6].apply(lambda old: old * 2 + 1),
    "every ninth beside others": lambda i, x: x.at[i].set(x[5]).at[::9].add(1.0).at[7].set(i),
    "as a choice of every fourth": lambda i, x: jnp.where(
        lax.rem(jnp.arange(N), 4) == 3, x[3] + i, x
    ),
    "as a choice behind a place": lambda i, x: jnp.where(
        lax.rem(jnp.arange(N) - 7, 4) == 1, x + i, x
    ),
    "as a choice by two steps": lambda i, x: jnp.where(
        (lax.rem(jnp.arange(N) - 2, 4) == 0) & (lax.rem(jnp.arange(N), 6) == 4), x[3] + i, x
    ),
}

MATRICES = {
    "a row": lambda i, x: x.at[3].set(x[4] + i),
    "a column": lambda i, x: x.at[:, 0].set(x[:, 2] + i),
    "a number in a column": lambda i, x: x.at[:, -1].add(i),
    "an element": lambda i, x: x.at[3, 1].set(x[5, 2] + i),
    "a part": lambda i, x: x.at[2:9, 1:].set(x[3:10, :2] + i),
    "some rows": lambda i, x: x.at[-4:].multiply(jnp.arange(3)),
    "every second row": lambda i, x: x.at[::2].set(x[1] + i),
    "every second in a column": lambda i, x: x.at[::2, 1].set(x[1::2, 2] + i),
    "some of some rows": lambda i, x: x.at[1:30:4, ::2].add(x[2:10, 1:] + i),
    "some columns of a row": lambda i, x: x.at[3, ::-2].set(x[4, :2]),
    "some columns": lambda i, x: x.at[:, ::2].set(i),
    "with a size of 1": lambda i, x: x.at[2:3, 1:].set(x[:1, :2] + 1),
}


def check_in_place(function, *args, copied=1):
    """Carries are updated in all programs inside, and what is copied is what goes in."""
    plan = plan_of(function, *args)
    inside = [*plans_inside(plan)]
    assert inside and all(len(inner.in_place) == 1 for inner in inside)
    assert not any("copy" in kinds_of(inner) for inner in inside)
    assert kinds_of(plan).count("copy") == copied


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("case", [*VECTORS, *MATRICES])
def test_elements_of_a_carry_change_where_they_lie(case):
    x, body = (ARRAY, VECTORS[case]) if case in VECTORS else (MATRIX, MATRICES[case])
    same_bits(gf.jit(loop(body))(x), one_by_one(body, x))
    check_in_place(loop(body), x)


@pytest.mark.parametrize("case", [*VECTORS, *MATRICES])
def test_the_same_where_loops_are_kernels_and_without_loops(case):
    x, body = (ARRAY, VECTORS[case]) if case in VECTORS else (MATRIX, MATRICES[case])
    wanted = one_by_one(body, x)
    same_bits(gf.jit(loop(body))(x), wanted)
    same_bits(gf.jit(lambda x: one_by_one(body, x))(x), wanted)
    donating = gf.jit(lambda x: one_by_one(body, x), donate_argnums=0)
    same_bits(donating(jnp.asarray(x.copy())), wanted)


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.while_loop(
            lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1].at[5].set(s[0])), (0, x)
        )[1],
        lambda x: lax.scan(lambda c, i: (c.at[5].add(c[7] + i), c[5]), x, jnp.arange(5.0))[0],
        lambda x: lax.fori_loop(
            0, 5, lambda i, x: lax.cond(i % 2 == 0, lambda x: x.at[5].add(1.0), lambda x: x, x), x
        ),
        lambda x: lax.fori_loop(
            0, 5, lambda i, x: lax.fori_loop(0, 3, lambda j, x: x.at[5].add(1.0), x), x
        ),
        lambda x: lax.fori_loop(
            0, 5, lambda i, x: lax.fori_loop(0, 3, lambda j, x: x.at[j].add(1.0), x).at[5].set(i), x
        ),
    ],
)
def test_in_every_kind_of_loop_and_branch(function):
    plan = plan_of(function, ARRAY)
    bodies = [inner for inner in plans_inside(plan) if inner.jaxpr.outvars[0].aval.size == N]
    bodies += [inner for inner in plans_inside(plan) if len(inner.jaxpr.outvars) > 1]
    updating = [inner for inner in bodies if inner.jaxpr.eqns]
    assert updating and all(inner.in_place for inner in updating)
    assert not any("copy" in kinds_of(inner) for inner in bodies)
    with gf.disable_jit():
        wanted = function(jnp.asarray(ARRAY))
    same_bits(gf.jit(function)(ARRAY), wanted)


# Of arrays of these shapes at most half of the elements.
STEPS = [
    ((40,), np.s_[::3]), ((40,), np.s_[::-3]), ((40,), np.s_[2:30:7]), ((40,), np.s_[30:2:-7]),
    ((40,), np.s_[39::5]), ((40,), np.s_[::40]), ((40,), np.s_[::-100]), ((40,), np.s_[1:38:2]),
    ((6, 7), np.s_[::2, 3]), ((6, 7), np.s_[1::4, ::2]), ((6, 7), np.s_[:, ::-3]),
    ((6, 7), np.s_[::3, 1:]), ((6, 7), np.s_[2, ::2]), ((6, 7), np.s_[..., 6::-3]),
    ((6, 7), np.s_[None, ::5]), ((6, 7), np.s_[::5, None, -1]), ((1, 7), np.s_[::2, ::3]),
    ((4, 3, 5), np.s_[::2, :, ::3]), ((4, 3, 5), np.s_[:, 1, ::2]), ((4, 3, 5), np.s_[1::2, ::2]),
    ((4, 3, 5), np.s_[::-3, 1, 4]), ((2, 2, 2, 2), np.s_[:, ::2, :, 1::2]),
]  # fmt: skip
KINDS = [
    (kind, dtype)
    for kind in ("set", "add", "turned")
    for dtype in ("float32", "int8", "bfloat16", "bool", "complex64", "float64")
    if (kind, dtype) != ("add", "bool")
]


def updated(array, index, kind, turn):
    """One turn in NumPy."""
    if kind == "set":
        array[index] = turn % 2 if array.dtype == bool else 3 * turn + 1
    elif kind == "add":
        array[index] += 2 * turn + 1
    else:
        part = array[index].copy()
        array[index] = part[tuple(slice(None, None, -1) for _ in part.shape)]


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_steps_as_in_numpy(kind, dtype):
    """Sums of few small integers are exact in every dtype."""
    wide = {"bool": bool, "complex64": complex}.get(dtype, float)

    def body(i, x, index):
        if kind == "set":
            return x.at[index].set(i % 2 == 1 if dtype == "bool" else (3 * i + 1).astype(x.dtype))
        if kind == "add":
            return x.at[index].add((2 * i + 1).astype(x.dtype))
        part = x[index]
        return x.at[index].set(part[tuple(slice(None, None, -1) for _ in part.shape)])

    # The rest of the dtypes differ in their elements only.
    steps = STEPS if dtype in ("float32", "int8") else STEPS[::3]
    with gf.enable_x64():
        for shape, index in steps:
            wanted = (np.arange(np.prod(shape)).reshape(shape) % 5).astype(wide)
            x = jnp.asarray(wanted).astype(dtype)
            made = gf.jit(loop(lambda i, x, index=index: body(i, x, index), 3))(x)
            for turn in range(3):
                updated(wanted, index, kind, turn)
            np.testing.assert_array_equal(np.asarray(made).astype(wide), wanted, str(index))
            check_in_place(loop(lambda i, x, index=index: body(i, x, index), 3), x)


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((40,), np.s_[5:5:2]),
        ((40,), np.s_[50::3]),
        ((40,), np.s_[2:9:-3]),
        ((40,), np.s_[::1]),
        ((40,), np.s_[::-1]),
        ((1,), np.s_[::3]),
        ((0,), np.s_[::2]),
        ((0, 3), np.s_[:, ::2]),
        ((4, 0), np.s_[::2, ::2]),
        ((4, 3), np.s_[3:3:2, ::2]),
        ((4, 3), np.s_[::4, ::3]),
    ],
)
def test_steps_that_take_nothing_or_all(shape, index):
    wanted = np.arange(np.prod(shape), dtype=float).reshape(shape)
    made = gf.jit(loop(lambda i, x: x.at[index].set(i).at[index].add(3), 3))(np.float32(wanted))
    for turn in range(3):
        wanted[index] = turn
        wanted[index] += 3
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("seed", range(12))
def test_random_steps_as_in_numpy(seed):
    """Several updates in each turn, each of elements of the array."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, size=rng.integers(1, 4)))

    def random_slice(size):
        step = int(rng.choice([-4, -3, -2, -1, 1, 2, 3, 4]))
        ends = [None if rng.random() < 0.4 else int(rng.integers(-size, size)) for _ in "ab"]
        return int(rng.integers(-size, size)) if rng.random() < 0.2 else slice(*ends, step)

    script = [
        (tuple(map(random_slice, shape)), tuple(map(int, rng.integers(0, shape))), rng.integers(3))
        for _ in range(4)
    ]

    def body(i, x):
        for index, place, kind in script:
            if kind == 0:
                x = x.at[index].set(x[place] + i)
            elif kind == 1:
                x = x.at[index].add(x[place])
            else:
                x = x.at[index].set(x[index] - x[place])
        return x

    wanted = rng.integers(-3, 4, size=shape).astype(float)
    x = np.float32(wanted)
    for turn in range(3):
        for index, place, kind in script:
            value = wanted[place]
            if kind == 0:
                wanted[index] = value + turn
            elif kind == 1:
                wanted[index] += value
            else:
                wanted[index] -= value
    np.testing.assert_array_equal(gf.jit(loop(body, 3))(x), wanted)


@pytest.mark.usefixtures("loops_of_steps")
def test_steps_mapped_and_differentiated():
    def function(x):
        return lax.fori_loop(0, 5, lambda i, x: x.at[1::4].set(i * 2.0), x)

    every = np.arange(N) % 4 == 1
    rows = np.stack([ARRAY, ARRAY + 1])
    for axis in (0, 1):
        mapped = gf.vmap(function, in_axes=axis, out_axes=axis)
        operand = rows if axis == 0 else rows.T.copy()
        np.testing.assert_array_equal(
            gf.jit(mapped)(operand),
            np.where(every, 8, rows) if axis == 0 else np.where(every, 8, rows).T,
        )
    check_in_place(gf.vmap(function), rows)

    def values(x, v):
        return lax.fori_loop(0, 5, lambda i, x: x.at[1::4].add(v), x)

    lanes = np.float32([2, 3])
    made = gf.jit(gf.vmap(values))(rows, lanes)
    np.testing.assert_array_equal(made, rows + 5 * every * lanes[:, None])

    def loss(x):
        return (function(x) ** 2).sum()

    backward = [p for p in plans_inside(plan_of(gf.grad(loss), ARRAY)) if p.jaxpr.eqns]
    assert len(backward) == 2 and all(len(plan.in_place) == 1 for plan in backward)
    assert not any("select_n" in str(plan.jaxpr) for plan in backward)
    np.testing.assert_array_equal(gf.jit(gf.grad(loss))(ARRAY), np.where(every, 0, 2 * ARRAY))
    np.testing.assert_array_equal(
        gf.jit(gf.grad(lambda v: values(ARRAY, v).sum()))(np.float32(2)), 5 * every.sum()
    )


@pytest.mark.parametrize(
    ("size", "step", "is_less"),
    [(40, 4, False), (100_000, 1000, True), (100_000, 2, False), (100_001, 1000, True)],
)
def test_gradients_go_over_few_elements_where_that_is_less(size, step, is_less):
    """A kernel of lanes would take all elements through all turns."""

    def loss(x):
        return (lax.fori_loop(0, 5, lambda i, x: x.at[1::step].set(i * 2.0), x) ** 2).sum()

    x = np.arange(size, dtype=np.float32) % 100
    wanted = 2 * x
    wanted[1::step] = 0
    np.testing.assert_array_equal(gf.jit(gf.grad(loss))(x), wanted)
    updating = [plan for plan in plans_inside(plan_of(gf.grad(loss), x)) if plan.in_place]
    assert len(updating) == 1 + is_less  # the loop itself always does
    assert not any("select_n" in str(plan.jaxpr) for plan in updating)


@pytest.mark.usefixtures("loops_of_steps")
def test_what_is_no_update_leaves_the_loop():
    """Where a choice stays one, remainders are computed once."""
    for body in (
        lambda i, x: (x * 0.5).at[::3].set(i),
        lambda i, x: jnp.where(lax.rem(jnp.arange(N), 4) == 2, x[::-1], x),
    ):
        for plan in plans_inside(plan_of(loop(body), ARRAY)):
            assert "rem" not in str(plan.jaxpr)
        same_bits(gf.jit(loop(body))(ARRAY), one_by_one(body, ARRAY))


def test_a_mask_of_size_1_repeats():
    def function(x):
        return jnp.where(jnp.broadcast_to(lax.iota(np.int32, 1) == 0, x.shape), x[3] + 7, x)

    donating = gf.jit(function, donate_argnums=0)
    np.testing.assert_array_equal(donating(jnp.asarray(ARRAY.copy())), np.full(N, 10))
    np.testing.assert_array_equal(gf.jit(loop(lambda i, x: function(x), 2))(ARRAY), np.full(N, 17))


@pytest.mark.usefixtures("loops_of_steps")
def test_mapped_and_differentiated():
    def function(x):
        return lax.fori_loop(0, 5, lambda i, x: x.at[3:6].set(i * 2.0), x)

    rows = np.stack([ARRAY, ARRAY + 1])
    check_in_place(gf.vmap(function), rows)
    made = gf.jit(gf.vmap(function))(rows)
    np.testing.assert_array_equal(made, np.where((np.arange(N) // 3) == 1, 8, rows))

    def loss(x):
        return (function(x) ** 2).sum()

    # The loop of derivatives sets elements to 0, and knows their places too.
    backward = [p for p in plans_inside(plan_of(gf.grad(loss), ARRAY)) if p.jaxpr.eqns]
    assert len(backward) == 2 and all(len(plan.in_place) == 1 for plan in backward)
    wanted = np.where((np.arange(N) // 3) == 1, 0, 2 * ARRAY)
    np.testing.assert_array_equal(gf.jit(gf.grad(loss))(ARRAY), wanted)


def test_a_donated_array_is_changed_where_it_lies():
    plan = plan_of(lambda x: x.at[2:5].add(1.0), ARRAY, donated=(0,))
    assert kinds_of(plan) == ["kernel"] and len(plan.in_place) == 1
    assert "update_windows" in str(plan.jaxpr)


# Outside of loops, and where an array is made for it, a choice is part of a kernel.
CHOICES = {
    "an input": lambda x: x.at[5].set(0.0),
    "between functions": lambda x: jnp.sin(x).at[5].set(0.0) * 2,
    "of zeros": lambda x: jnp.zeros(N).at[3:7].set(x[3:7]),
    "several": lambda x: jnp.exp(x).at[0].set(0.0).at[-1].add(1.0) + x,
    "before a sum": lambda x: (x * 2).at[3:9].multiply(3.0).sum(),
}


@pytest.mark.parametrize("donated", [(), (0,)])
@pytest.mark.parametrize("case", CHOICES)
def test_choices_are_free_beside_other_work(case, donated):
    if case == "an input" and donated:
        return  # see above
    plan = plan_of(CHOICES[case], ARRAY, donated=donated)
    assert kinds_of(plan) == ["kernel"] and "update_windows" not in str(plan.jaxpr)


# Bodies whose old array is needed, or is made by each turn: their choices stay choices.
STAY = {
    "of what a turn makes": lambda i, x: (x * 0.5).at[5].set(1.0),
    "before other work": lambda i, x: x.at[5].set(1.0) * 0.5,
    "read behind": lambda i, x: jnp.sort(x).at[5].set(x.at[5].set(i * 1.0).sum()),
    "of two arrays": lambda i, x: x.at[5].set(1.0) + x.at[6].set(2.0),
    "a mask that is no window": lambda i, x: jnp.where(jnp.arange(N) != 3, x, i),
    "a traced mask": lambda i, x: jnp.where(jnp.arange(N) == i, x + 1, x),
    "nowhere": lambda i, x: x.at[N + 3].set(1.0),
    "every third from behind the end": lambda i, x: jnp.where(
        lax.rem(jnp.arange(N) - 50, 3) == 0, x + i, x
    ),
    "almost all, by a part": lambda i, x: x.at[1:].add(x[0]),
    "almost all, of itself": lambda i, x: x.at[1:].set(x[:-1]),
}


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("case", STAY)
def test_other_choices_stay(case):
    body = STAY[case]
    same_bits(gf.jit(loop(body))(ARRAY), one_by_one(body, ARRAY))
    for plan in plans_inside(plan_of(loop(body), ARRAY)):
        assert "update_windows" not in str(plan.jaxpr)


@pytest.mark.usefixtures("loops_of_steps")
def test_the_old_array_is_kept_where_it_is_stacked():
    def function(x):
        return lax.scan(lambda c, i: (c.at[5].set(i), c), x, jnp.arange(3.0))

    last, stacked = gf.jit(function)(ARRAY)
    wanted = np.stack([np.where(np.arange(N) == 5, v, ARRAY) for v in (5, 0, 1)])
    np.testing.assert_array_equal(stacked, wanted)
    assert last[5] == 2


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8", "complex64", "int32"])
def test_dtypes_and_places_outside(dtype):
    def body(i, x):
        x = x.at[5].set(x[3]).at[-2].add(x[4]).at[2:4].multiply(x[1])
        return x.at[N].set(x[0]).at[-N - 1].add(x[0]).at[35:99].set(x[2]).at[4:4].set(x[2])

    x = jnp.asarray(ARRAY % 3).astype(dtype)
    same_bits(gf.jit(loop(body, 2))(x), one_by_one(body, x, 2))


@pytest.mark.usefixtures("loops_of_steps")
def test_arrays_without_dimensions_or_elements():
    scalar = gf.jit(loop(lambda i, x: x.at[()].add(i)))(np.float32(1))
    assert scalar == 1 + sum(range(TURNS))
    empty = gf.jit(loop(lambda i, x: x.at[:, 0].add(i).at[2:].set(1)))(np.zeros((0, 3)))
    assert empty.shape == (0, 3)


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("seed", range(12))
def test_random_windows_of_one_array(seed):
    """Each reads and writes some elements of it; against the same ops one by one."""
    rng = np.random.default_rng(seed)
    script = [(*rng.integers(0, 30, 2), rng.integers(1, 9), rng.integers(4)) for _ in range(4)]

    def body(i, x):
        for there, here, count, kind in script:
            part = x[here : here + count] if kind else x[here] + i
            at = x.at[there : there + count]
            x = at.add(part) if kind == 2 else at.set(part)
        return jnp.minimum(x, 99) if seed % 4 == 0 else x

    same_bits(gf.jit(loop(body, 3))(ARRAY), one_by_one(body, ARRAY, 3))
