"""Choices at known places, as of ``x.at[5].set``, are updates where a program keeps the array."""

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
}  # fmt: skip

MATRICES = {
    "a row": lambda i, x: x.at[3].set(x[4] + i),
    "a column": lambda i, x: x.at[:, 0].set(x[:, 2] + i),
    "a number in a column": lambda i, x: x.at[:, -1].add(i),
    "an element": lambda i, x: x.at[3, 1].set(x[5, 2] + i),
    "a part": lambda i, x: x.at[2:9, 1:].set(x[3:10, :2] + i),
    "some rows": lambda i, x: x.at[-4:].multiply(jnp.arange(3)),
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
}  # fmt: skip


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
    "every second": lambda i, x: x.at[::2].set(i),
    "of what lies behind": lambda i, x: x.at[2:7].add(x[4:9]),
    "of what lies backwards": lambda i, x: x.at[2:7].set(x[2:7][::-1]),
    "almost all, by a part": lambda i, x: x.at[1:].add(x[0]),
    "almost all, of itself": lambda i, x: x.at[1:].set(x[:-1]),
}  # fmt: skip


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
