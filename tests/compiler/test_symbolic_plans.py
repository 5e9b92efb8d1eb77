"""Symbolic plans: bound to new sizes they are the plans that each program alone has."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline
from gpuflow.compiler.planning import key, symbolic_program
from gpuflow.compiler.planning.plan import CopyStep, KernelStep, reads_of, scratch_of, writes_of
from gpuflow.compiler.target import PLAIN_TARGET
from gpuflow.kir.text import kernel_text
from gpuflow.targets.cpu.target import NATIVE_TARGET

# Short, exact and long rows; primes; a size of 1; long enough for split reductions and tiles.
SHAPES = [
    (5, 7),
    (6, 8),
    (33, 20),
    (9, 9),
    (2, 3),
    (40, 16),
    (40, 17),
    (1, 7),
    (7, 1),
    (1, 1),
    (97, 101),
    (300, 400),
    (3, 70001),
    (70001, 3),
    (64, 128),
    (5, 7),
]


def norms(x):
    mean = x.mean(1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-5), x.sum(0), x.T * 2


def products(x):
    y = jnp.tanh(x @ x.T[:, :1])
    return y, (y * x).T @ y, jnp.argmax(x, 0)


def update(x):
    """Equal kernels as one step, an output that is an input, and one that is there twice."""
    parts = [x, x[1:], x[:, :1], x * 2]
    moved = [0.9 * p + 0.1 for p in parts]
    return moved, sum(jnp.sum(p * p) for p in parts), x, moved[0], x.T


def looped(x):
    def body(carry, row):
        return carry + jnp.tanh(row), carry * 2

    return gf.lax.scan(body, jnp.zeros(x.shape[0]), x.T), x.at[0].set(1.0), x + 1


PROGRAMS = [norms, products, update, looped]


@pytest.fixture(autouse=True)
def fresh_programs(monkeypatch):
    """No symbolic programs of earlier tests."""
    monkeypatch.setattr(symbolic_program, "_programs", {})


def plan_of(function, shape, donated=(), target=None):
    jaxpr = gf.make_jaxpr(function)(gf.ShapeDtypeStruct(shape, np.float32))
    return pipeline.compile_plan(jaxpr, donated, target=target or NATIVE_TARGET)[0]


def meaning(plan):
    """All that a plan says, without variables and equations, which each trace makes anew."""
    steps = []
    for step in plan.steps:
        own = [step.kind, step.name, reads_of(step), writes_of(step), scratch_of(step)]
        if isinstance(step, KernelStep):
            for calls in (step.calls, *step.launches):
                own += [(kernel_text(call.kernel), *call[1:]) for call in calls]
            own += [len(step.launches), [eqn.primitive for eqn in step.eqns]]
        else:
            operands = (step.source,) if isinstance(step, CopyStep) else step.operands
            own += [(operand.buffer, operand.aval, operand.layout) for operand in operands]
        own += [meaning(inner.plan) for inner in getattr(step, "programs", ())]
        steps.append(own)
    return [
        steps,
        [out if isinstance(out, int) else str(out) for out in plan.outputs],
        dict(plan.in_place),
        dict(plan.offsets),
        plan.arena_bytes,
        plan.owned,
        plan.destinations,
        dict(plan.added_avals),
        [var.aval for var in plan.variables],
    ]


def meaning_alone(*args):
    """The same for a program without earlier ones."""
    known, symbolic_program._programs = symbolic_program._programs, {}
    try:
        return meaning(plan_of(*args))
    finally:
        symbolic_program._programs = known


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("donated", [(), (0,)])
def test_plans_are_those_of_each_program_alone(function, donated):
    for shape in SHAPES:
        assert meaning(plan_of(function, shape, donated)) == meaning_alone(function, shape, donated)
    assert all(program.plans for program in symbolic_program._programs.values())


def test_one_plan_serves_a_class_of_sizes(monkeypatch):
    made, make = [], symbolic_program.specialize
    monkeypatch.setattr(symbolic_program, "specialize", lambda *args: made.append(1) or make(*args))
    # Checks specialize to compare.
    check_off = SimpleNamespace(environment=SimpleNamespace(check=False))
    monkeypatch.setattr(symbolic_program, "config", check_off)
    for rows in (20, 33, 50, 97, 1000):
        plan_of(norms, (rows, 40))
    assert len(made) == 1
    for columns in (8, 16, 40, 8, 16, 41):  # those up to 16 stand in the text
        plan_of(norms, (30, columns))
    assert len(made) == 3
    (program,) = symbolic_program._programs.values()
    assert len(program.plans) == 3


def test_the_oldest_plan_goes(monkeypatch):
    monkeypatch.setattr(symbolic_program, "MAX_PLANS", 4)
    for columns in (*range(2, 18), 5, 2, 100, 9):
        plan = plan_of(norms, (30, columns))
        (program,) = symbolic_program._programs.values()
        assert meaning(plan) == meaning_alone(norms, (30, columns))
        assert len(program.plans) <= 4
    assert len(program.plans) == 4


def test_arrangements_follow_split_reductions():
    """How many buffers there are depends on the sizes; the symbolic plan is one."""
    for rows in (20, 70001, 30, 80021, 70001):
        assert meaning(plan_of(norms, (rows, 40))) == meaning_alone(norms, (rows, 40))
    (program,) = symbolic_program._programs.values()
    (plan,) = program.plans
    assert len(plan.interference_graphs) == 2


def test_platforms_have_programs_of_their_own():
    for _ in range(2):
        for target in (NATIVE_TARGET, PLAIN_TARGET):
            wanted = meaning_alone(norms, (70001, 40), (), target)
            assert meaning(plan_of(norms, (70001, 40), (), target)) == wanted
    programs = symbolic_program._programs.values()
    assert [program.target for program in programs] == [NATIVE_TARGET, PLAIN_TARGET]
    assert [len(program.plans) for program in programs] == [1, 1]


def test_threads_bind_at_once():
    shapes = [(rows, 3 + rows % 20) for rows in range(2, 62)]
    found, failures = {}, []

    def work(start):
        try:
            for shape in shapes[start::4]:
                found[shape] = meaning(plan_of(norms, shape))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for shape in shapes:
        assert found[shape] == meaning_alone(norms, shape)


def test_a_program_without_a_key_leaves_nothing(monkeypatch):
    params = key._params
    monkeypatch.setattr(key, "_params", lambda eqn, kept: [params(eqn, kept)])  # not hashable
    wanted = meaning(plan_of(norms, (30, 40)))
    assert not symbolic_program._programs
    monkeypatch.undo()
    assert meaning_alone(norms, (30, 40)) == wanted


def test_a_size_of_0_is_another_program():
    for rows, columns in ((0, 7), (5, 7), (0, 20), (0, 21)):
        shape = (rows, columns)
        assert meaning(plan_of(update, shape)) == meaning_alone(update, shape)
    assert [len(program.plans) for program in symbolic_program._programs.values()] == [1, 1]


def test_buffers_are_numbers_in_order_of_appearance():
    plan = plan_of(update, (30, 40))
    inputs = len(plan.jaxpr.invars)
    assert plan.variables[:inputs] == plan.jaxpr.invars
    assert len(set(plan.variables)) == len(plan.variables)
    as_it_is = [out for out in plan.outputs if plan.is_input(out)]
    assert as_it_is == [0]
    copies = [step for step in plan.steps if step.kind == "copy"]
    assert copies and all(step.target >= len(plan.variables) for step in copies)
    assert all(plan.aval(step.target) is step.source.aval for step in copies)
    needed = {b for step in plan.steps for b in (*reads_of(step), *writes_of(step))}
    assert needed <= {*range(inputs), *plan.owned, *plan.in_place, *plan.offsets}


def test_results_in_another_shape_are_not_copied():
    """Those of programs inside another one are: a library writes in its own shape."""
    x = np.array([[1.0, 3.0], [2.0, 0.0]], np.float32)
    turned = gf.jit(lambda x: lax.top_k(x, 1, axis=0)[0])
    assert [step.kind for step in turned.lower(x).compile().steps].count("copy") == 0
    np.testing.assert_array_equal(turned(x), [[2, 3]])
    chosen = gf.grad(
        lambda x: lax.cond(
            x[0, 0] > 0, lambda x: lax.top_k(x, 1, axis=0)[0], lambda x: x[:1], x
        ).sum()
    )
    np.testing.assert_array_equal(chosen(x), [[0, 1], [1, 0]])
    both = gf.jit(lambda x: (lambda y: (y.reshape(4), y, y.reshape(4)))(jnp.linalg.inv(x)))
    flat, inverse, again = both(x)
    np.testing.assert_allclose(inverse, np.linalg.inv(x), rtol=1e-6)
    np.testing.assert_array_equal(flat, np.asarray(inverse).ravel())
    np.testing.assert_array_equal(again, flat)


def test_results_of_inner_programs_in_another_shape_are_stored_once():
    """A kernel writes into what it is given, whatever the shape; two outputs are two arrays."""

    @gf.jit
    def blocks(x):
        def block(_, k):
            rows = lax.dynamic_slice_in_dim(x, 2 * k, 2)
            pieces = jnp.cumsum(rows, 1).reshape(2, 3, 70) * 2
            turned = pieces.transpose(1, 0, 2) + 1
            return None, (turned.reshape(-1), turned.reshape(6, 70))

        return lax.scan(block, None, jnp.arange(x.shape[0] // 2))[1]

    x = np.random.default_rng(0).integers(0, 9, (8, 210)).astype(np.float32)
    steps = [step for step in blocks.lower(x).compile().steps if hasattr(step, "programs")]
    inner = [step.kind for step in steps[0].programs[0].plan.steps]
    assert inner.count("copy") == 1  # two arrays for one that was made
    pieces = np.cumsum(x.reshape(4, 2, 210), 2).reshape(4, 2, 3, 70) * 2
    want = pieces.transpose(0, 2, 1, 3) + 1
    for got, shape in zip(blocks(x), [(4, 420), (4, 6, 70)], strict=True):
        np.testing.assert_array_equal(got, want.reshape(shape))
