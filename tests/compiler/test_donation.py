"""Outputs take the memory of donated inputs, in kernels of every kind, where that is safe."""

import numpy as np
import pytest
from cpu_harness import calls_of

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning import symbolic_program
from gpuflow.kir.nodes import Apply, Mode
from gpuflow.kir.verify import verify
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.schedules.row_values import cache_row_values
from gpuflow.targets.cpu.codegen.schedules.rows_across_lanes import MIN_TRANSPOSED
from gpuflow.targets.cpu.codegen.schedules.split_reductions import MIN_SPLIT

RANDOM = np.random.default_rng(0)


def normals(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layernorm(x, scale, shift):
    centered = x - x.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
    return centered / deviation * scale + shift


def scaled_by_rows(x, d):
    """What a row stores for itself is read again by its elements."""
    return x.sum(-1) + d, x * d[:, None]


def two_rows(x, y):
    """Both are read by both."""
    total = (x * y).sum(-1, keepdims=True)
    return x * total + y, jnp.exp(y - total) * x


def gradient_and_bias(x, y, b):
    g = x * jnp.where(y > 0, 1.0, 0.5)
    return g, g.sum(0) + b


def scaled_and_norm(x, y, t):
    g = x * y
    return g, (g * g).sum() + t


def plan_of(function, args, donated):
    plan = compile_plan(gf.jit(function).lower(*args).jaxpr, donated)[0]
    for step in plan.steps:
        if step.kind == "kernel":
            verify(step.kernel)
    return plan


def check_values(function, args, donated):
    """Donated arguments give what others give, and their memory is the results'."""
    wanted = gf.tree_util.tree_leaves(gf.jit(function)(*args))
    jitted = gf.jit(function, donate_argnums=donated)
    for _ in range(2):
        arrays = [jnp.array(x) for x in args]
        got = gf.tree_util.tree_leaves(jitted(*arrays))
        for a, b in zip(got, wanted, strict=True):
            # Loops over one row may be vectorised in another way.
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
        assert all(arrays[k].is_deleted() for k in donated)


# --- every kind and schedule -----------------------------------------------------------------

ROWS = {
    "turned": (2 + MIN_TRANSPOSED // 10, 10),
    "a few elements": (40, 10),
    "one element": (30, 1),
    "a few vectors": (200, 50),
    "in L1": (70, 1025),
    "blocks of a sum": (5, 9000),
    "longer than L1": (3, 70001),
    "one row": (1, 5000),
    "no row": (0, 7),
    "empty rows": (3, 0),
}


@pytest.mark.parametrize("shape", ROWS.values(), ids=list(ROWS))
def test_rows(shape):
    if 0 not in shape:
        check_values(softmax, (normals(*shape),), (0,))
    d, scale = normals(shape[0]), normals(shape[1])
    check_values(layernorm, (normals(*shape), scale, scale + 1), (0,))
    check_values(scaled_by_rows, (normals(*shape), d), (0, 1))
    check_values(two_rows, (normals(*shape) / 10, normals(*shape) / 10), (0, 1))
    check_values(lambda x, y: (x.sum(-1), y * 2), (normals(*shape), normals(*shape)), (0, 1))


@pytest.mark.parametrize(
    ("function", "shapes", "donated", "count"),
    [
        (softmax, [(30, 40)], (0,), 1),
        (layernorm, [(30, 40), (40,), (40,)], (0, 1, 2), 1),
        (scaled_by_rows, [(30, 40), (30,)], (0, 1), 2),
        (two_rows, [(30, 40), (30, 40)], (0, 1), 2),
        (gradient_and_bias, [(30, 40), (30, 40), (40,)], (0, 2), 2),
        (gradient_and_bias, [(30, 40), (30, 40), (40,)], (1,), 1),
        (scaled_and_norm, [(30, 40), (30, 40), ()], (0, 2), 2),
    ],
)
def test_one_kernel_reads_and_writes_one_array(function, shapes, donated, count):
    plan = plan_of(function, [normals(*shape) for shape in shapes], donated)
    (step,) = plan.steps
    assert sum(o.mode is Mode.INOUT for o in step.kernel.operands) == count == len(plan.in_place)


COLUMNS = {
    "rows of columns": (300, 70),
    "few columns": (30_000, 3),
    "channels": (6, 5, 7, 9),
    "parts": (5000, 64),
    "many columns": (10, 9000),
    "one row": (1, 1025),
    "no row": (0, 5),
}


@pytest.mark.parametrize("shape", COLUMNS.values(), ids=list(COLUMNS))
def test_columns(shape):
    axes = (0, *range(2, len(shape)))

    def function(x, y, b):
        g = x * jnp.where(y > 0, 1.0, 0.5)
        return g, g.sum(axes) + b, (g * x).sum(axes), x.max(axes, initial=0.0)

    args = normals(*shape), normals(*shape), normals(shape[1])
    for donated in ((0,), (1,), (0, 2), (0, 1, 2)):
        check_values(function, args, donated)


@pytest.mark.parametrize("shape", [(), (1,), (37, 41), (300, 401), (0, 3)])
def test_full(shape):
    args = normals(*shape) / 10, normals(*shape) / 10, np.float32(2)
    for donated in ((0,), (1, 2), (0, 1, 2)):
        check_values(scaled_and_norm, args, donated)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32"])
@pytest.mark.parametrize("columns", [5, 50])
def test_dtypes(dtype, columns):
    with gf.enable_x64(dtype == "float64"):
        x = jnp.asarray(normals(MIN_TRANSPOSED // 5, columns) * 9).astype(dtype)
        plain, donating = gf.jit(scaled), gf.jit(scaled, donate_argnums=0)
        wanted = np.asarray(plain(x))
        np.testing.assert_array_equal(np.asarray(donating(x)), wanted)


def scaled(x):
    return x - x.max(-1, keepdims=True)


def test_parts_of_a_split_sum_write_in_place():
    shape = (MIN_SPLIT // 64, 128)
    jaxpr = gf.jit(gradient_and_bias).lower(normals(*shape), normals(*shape), normals(128)).jaxpr
    (step,) = compile_plan(jaxpr, (0, 2))[0].steps
    assert {o.mode for o in step.kernel.operands if o.name.startswith("u")} == {Mode.INOUT}
    check_values(gradient_and_bias, (normals(*shape), normals(*shape), normals(128)), (0, 2))


# --- where it must not happen ----------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: softmax(x) + x[::-1],  # another row reads it
        lambda x: (softmax(x[:, ::-1]), x[0]),
        lambda x: x.T / x.sum(1),
        lambda x: softmax(x) + jnp.roll(x, 1, axis=1),
        lambda x: (softmax(x), jnp.sort(x, axis=0)),
        lambda x: (x * 2, x.sum(0), jnp.argmax(x, 0)),
        lambda x: (x * 2, jnp.argmax(x), x.sum()),
    ],
)
def test_what_is_read_elsewhere_keeps_its_memory(function):
    for size in (9, 40, 300):
        check_values(function, (normals(size, size),), (0,))


def test_a_second_loop_over_columns_reads_the_old_values():
    """The place of the largest element takes a loop of its own, after the one that stores."""

    def function(x):
        return x * 2, x.sum(0), jnp.argmax(x, 0)

    plan = plan_of(function, [normals(30, 40)], (0,))
    assert not plan.in_place or len(plan.steps) > 1
    x = normals(30, 40)
    stored, total, places = gf.jit(function, donate_argnums=0)(jnp.array(x))
    np.testing.assert_array_equal(stored, x * 2)
    np.testing.assert_array_equal(places, x.argmax(0))
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-4, atol=1e-5)


# --- the code that runs ----------------------------------------------------------------------


def count(kernel, fn):
    return sum(isinstance(s, Apply) and s.fn == fn for s in statements(kernel.body))


def test_a_donated_softmax_evaluates_exp_once():
    """exp waits in the row that is overwritten: nothing reads the old values any more."""
    (step,) = plan_of(softmax, [normals(30, 400)], (0,)).steps
    assert count(step.kernel, "exp") == 2
    assert count(cache_row_values(step.kernel), "exp") == 1


def test_a_row_that_is_read_again_keeps_nothing():
    def function(x):
        e = jnp.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) + x

    (step,) = plan_of(function, [normals(30, 400)], (0,)).steps
    assert cache_row_values(step.kernel) == step.kernel
    (call,) = calls_of(function, (30, 400))
    assert count(cache_row_values(call.kernel), "exp") == 1  # into the other row
    check_values(function, (normals(30, 400),), (0,))


def test_new_sizes_take_plans(monkeypatch):
    monkeypatch.setattr(symbolic_program, "_programs", {})
    jitted = gf.jit(gradient_and_bias, donate_argnums=(0, 2))
    rows = gf.jit(two_rows, donate_argnums=(0, 1))
    for n, m in ((20, 30), (40, 50), (6, 9), (300, 70)):
        x, y, b = normals(n, m), normals(n, m), normals(m)
        stated = jitted.lower(x, y, b).compile().memory_analysis()
        assert stated.alias_size_in_bytes == x.nbytes + b.nbytes
        stated = rows.lower(x, y).compile().memory_analysis()
        assert stated.alias_size_in_bytes == 2 * x.nbytes
    programs = symbolic_program._programs.values()
    assert len(programs) == 2 and all(len(program.plans) <= 2 for program in programs)


def test_a_loop_keeps_a_carry_that_rows_overwrite():
    def function(x):
        return lax.fori_loop(0, 5, lambda i, x: softmax(x) * 2, x)

    copy, step = plan_of(function, [normals(30, 40)], ()).steps
    assert copy.kind == "copy" and len(step.programs[-1].plan.in_place) == 1
    x = normals(30, 40)
    wanted = x.astype(np.float64)
    for _ in range(5):
        e = np.exp(wanted - wanted.max(1, keepdims=True))
        wanted = e / e.sum(1, keepdims=True) * 2
    np.testing.assert_allclose(gf.jit(function)(x), wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8"])
def test_what_numpy_sees_stays_where_an_update_is_no_output(dtype):
    """The updated array is what others are made of, and its memory the operand's."""

    def function(x):
        updated = x.at[jnp.array([3, 5])].set(0)
        small = jnp.resize(updated, (5, 3))
        return gf.lax.dynamic_update_slice(updated, small, (jnp.int32(2), jnp.int32(3)))

    start = np.ones((19, 31), dtype)
    wanted = start.copy()
    wanted[[3, 5]] = 0
    wanted[2:7, 3:6] = np.resize(wanted, (5, 3))
    for is_seen in (True, False):
        x = jnp.array(start)
        seen = np.asarray(x) if is_seen else start
        found = gf.jit(function, donate_argnums=0)(x)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(seen, start)
        assert x.is_deleted()
