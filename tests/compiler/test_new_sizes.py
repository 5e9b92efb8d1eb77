"""A new size takes the plan of another; arguments of kernels are those that lowering would give."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.planning import specialize, symbolic_program
from gpuflow.compiler.planning.plan import KernelStep

SHAPES = [(5, 7), (6, 8), (33, 20), (20, 33), (9, 9), (17, 40), (2, 3), (40, 16), (7, 5), (64, 100)]
ODD_SHAPES = [(1, 7), (7, 1), (1, 1), (5, 7), (0, 3), (3, 0), (8, 9), (1, 9)]


def softmax_of_slices(x):
    part = x[1:, ::-1] * 2
    return gf.nn.softmax(part, axis=1), part.T + 1


def reductions(x):
    return x.sum(), x.mean(0), x.std(1), (x - x.mean(1, keepdims=True)) / x.shape[0], x.T.sum(1)


def padded(x):
    return jnp.pad(x, ((1, 2), (0, 3))) + 1, jnp.concatenate([x, x * 2], 1)[:, 1:]


def gathered(x):
    rows = jnp.arange(x.shape[0]) % 3 % x.shape[0]
    return x[rows] * 2, jnp.take_along_axis(x, rows[:, None] % x.shape[1], 1), x[-1], x[:, 0]


def counted(x):
    i = jnp.arange(x.shape[0])[:, None]
    return jnp.where(i < jnp.arange(x.shape[1]), x, 0) / x.size, jnp.tril(x), jnp.eye(x.shape[1])


def updated(x):
    return x.at[0].set(1.0), (x + 1).at[:, -1].add(x[:, 0])


def reshaped(x):
    return jnp.sin(x).reshape(-1) + 1, (x.T @ x).reshape(-1)[::2], x[None] + x[:, None]


def looped(x):
    def body(carry, row):
        return carry + jnp.tanh(row), carry * 2

    return gf.lax.scan(body, jnp.zeros(x.shape[1]), x)


def searched(x):
    return jnp.argmax(x, 0), jnp.argmin(x * 2, 1), jnp.argmax(x.T, 1)


def random_numbers(x):
    return gf.random.uniform(gf.random.key(0), x.shape) + x


PROGRAMS = [
    softmax_of_slices,
    reductions,
    padded,
    gathered,
    counted,
    updated,
    reshaped,
    looped,
    random_numbers,
    searched,
]


@pytest.fixture
def checked(monkeypatch):
    """Every plan is compared with lowering; no programs of earlier tests."""
    set_check(monkeypatch, True)


def set_check(monkeypatch, check):
    monkeypatch.setattr(symbolic_program, "_programs", {})
    config = SimpleNamespace(environment=SimpleNamespace(check=check))
    monkeypatch.setattr(symbolic_program, "config", config)


def arrays(shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("donates", [False, True])
def test_plans_are_those_of_lowering(function, donates, checked):
    jitted = gf.jit(function, donate_argnums=(0,) if donates else ())
    for shape in SHAPES:
        x = arrays(shape)
        found = gf.tree_util.tree_leaves(jitted(jnp.array(x)))
        with gf.disable_jit():
            wanted = gf.tree_util.tree_leaves(function(jnp.array(x)))
        for got, want in zip(found, wanted, strict=True):
            # Sums of up to 6400 terms of order 1.
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    programs = symbolic_program._programs.values()
    assert sum(len(program.plans) for program in programs) < len(SHAPES) * 2


@pytest.mark.parametrize("function", [softmax_of_slices, counted, padded, looped, reductions])
def test_sizes_of_0_and_1(function, checked):
    jitted = gf.jit(function)
    for shape in ODD_SHAPES:
        if 0 in shape and function in (reductions, looped):
            continue  # a mean of nothing; without jit, scan needs an element
        x = arrays(shape)
        with gf.disable_jit():
            wanted = gf.tree_util.tree_leaves(function(jnp.array(x)))
        for got, want in zip(gf.tree_util.tree_leaves(jitted(x)), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_a_new_size_prints_schedules_and_lowers_nothing(monkeypatch):
    set_check(monkeypatch, False)  # checks would lower each group to compare
    jitted = gf.jit(lambda x: gf.nn.softmax(x * 2 + 1) @ x.T)
    kernels = []
    for number, rows in enumerate((20, 33, 50)):
        if number:
            monkeypatch.setattr(specialize, "lower_group", None)
            monkeypatch.setattr(symbolic_program, "fuse", None)
        steps = jitted.lower(arrays((rows, 40))).compile().steps
        kernels.append([step.kernel for step in steps if isinstance(step, KernelStep)])
    assert kernels[0]
    for later in kernels[1:]:
        assert all(a is b for a, b in zip(kernels[0], later, strict=True))


def test_a_short_innermost_axis_has_kernels_of_its_own(checked):
    """Sizes up to 16 stand in the text; each has a plan, and longer ones share one."""
    jitted = gf.jit(lambda x: x - x.max(1, keepdims=True))
    for columns in (40, 8, 50, 16, 8, 17, 100):
        x = arrays((30, columns))
        np.testing.assert_array_equal(jitted(x), x - x.max(1, keepdims=True))
    (program,) = symbolic_program._programs.values()
    assert len(program.plans) == 3


@pytest.mark.usefixtures("loops_of_steps")
def test_programs_with_loops_share_plans(checked):
    """The key of a program forgets the sizes inside its loops, whose programs have their own."""
    jitted = gf.jit(lambda x: looped(x)[0] * 2)
    for rows in (4, 9, 30):
        jitted.lower(arrays((rows, 20 + rows))).compile()
    assert [len(program.plans) for program in symbolic_program._programs.values()] == [1, 1]


def test_threads_share_plans(checked):
    """Several threads bind new sizes of one program at once."""

    def function(x):
        return gf.nn.softmax(x[1:] * 2, axis=1) @ x.T, jnp.pad(x, 1) / x.shape[0]

    jitted, failures = gf.jit(function), []

    def work(start):
        for rows in range(start, start + 40, 4):
            x = arrays((rows, 3 + rows % 20))
            found = jitted(x)
            part = np.exp(2 * x[1:] - (2 * x[1:]).max(1, keepdims=True))
            wanted = part / part.sum(1, keepdims=True) @ x.T
            if not np.allclose(found[0], wanted, rtol=1e-4, atol=1e-5):
                failures.append(rows)

    threads = [threading.Thread(target=work, args=(20 + k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_literals_follow_the_program(checked):
    """Numbers that are not in the text may differ between programs of one key."""
    for number in (2.0, 3.0, 3, 2.5):
        np.testing.assert_array_equal(
            gf.jit(lambda x, c=number: x * c)(np.arange(4, dtype=np.float32)), np.arange(4) * number
        )
