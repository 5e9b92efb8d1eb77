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
    "of what lies behind": lambda i, x: x.at[2:7].add(x[4:9]),
    "of what lies backwards": lambda i, x: x.at[2:7].set(x[2:7][::-1]),
    "written backwards": lambda i, x: x.at[6:1:-1].set(x[2:7] + i),
    "combined": lambda i, x: x.at[2:7].multiply(2.0).at[3:5].min(x[9] + i).at[-4:].max(i * 9.0),
    "of a function": lambda i, x: x.at[3:6].apply(lambda old: old * 2 + 1),
    "divided": lambda i, x: x.at[3].divide(4.0),
    "almost all": lambda i, x: x.at[1:].add(x[0]),
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


def check_loop(body, x, structure=True):
    made = gf.jit(loop(body))(x)
    same_bits(made, one_by_one(body, x))
    if structure:
        plan = plan_of(loop(body), x)
        (inner,) = plans_inside(plan)
        assert len(inner.in_place) == 1 and "copy" not in kinds_of(inner)
        assert kinds_of(plan).count("copy") == 1


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("case", VECTORS)
def test_elements_of_a_carry_change_where_they_lie(case):
    body = VECTORS[case]
    check_loop(body, ARRAY, case not in NEED_COPIES)


# Parts that overlap what is written cannot be read where they lie while it is written.
NEED_COPIES = {"of its neighbours", "of what lies behind", "of what lies backwards"}


@pytest.mark.usefixtures("loops_of_steps")
@pytest.mark.parametrize("case", MATRICES)
def test_parts_of_a_matrix_change_where_they_lie(case):
    check_loop(MATRICES[case], MATRIX)


@pytest.mark.parametrize("case", [*VECTORS, *MATRICES])
def test_the_same_where_loops_are_kernels(case):
    x, body = (ARRAY, VECTORS[case]) if case in VECTORS else (MATRIX, MATRICES[case])
    check_loop(body, x, structure=False)
    jitted = gf.jit(lambda x: one_by_one(body, x))
    same_bits(jitted(x), one_by_one(body, x))
