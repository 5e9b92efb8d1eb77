"""Slices that lie across the lanes of a loop: tiles, and results in their readers' order."""

import itertools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.interpret import interpret
from gpuflow.kir.nodes import Mode
from gpuflow.kir.verify import verify
from gpuflow.targets.cpu.codegen.schedules import lane_tiles
from gpuflow.targets.cpu.codegen.schedules.lane_blocks import lanes_in_blocks
from gpuflow.targets.cpu.target import NativeTarget

TURNS = (0, 1, 15, 16, 17, 63, 64, 65, 1000)
LANES = (0, 1, 15, 16, 63, 64, 65, 130)
DTYPES = ("bool", "int8", "int32", "bfloat16", "float32", "float64", "complex64")


class On(NativeTarget):
    lane_loops = True


@pytest.fixture(autouse=True)
def lane_loops(monkeypatch):
    monkeypatch.setattr(NativeTarget, "lane_loops", True)


def steps_of(function, *args):
    return compile_plan(gf.make_jaxpr(function)(*args), target=On())[0].steps


def kernels_of(function, *args):
    """The calls of a program that is kernels alone."""
    steps = steps_of(function, *args)
    assert all(isinstance(step, KernelStep) for step in steps), steps
    return [call for step in steps for launch in step.launches for call in launch]


def random(rng, shape, dtype):
    values = rng.integers(-3, 4, shape)
    return values > 0 if dtype == "bool" else jnp.asarray(values).astype(dtype)


def last_two(xs):
    """Each slice beside the one before it; the last one: only moves, so that all is exact."""
    return lax.scan(lambda before, x: (x, (before, x)), xs[0] if len(xs) else xs.sum(0), xs)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("turns", TURNS)
def test_any_size(turns, lanes):
    def counted(xs):
        def step(total, x):
            total = total * 3 + x
            return total, (total, x - total)

        return lax.scan(step, np.int32(1), xs)

    xs = np.random.default_rng(turns).integers(-99, 99, (lanes, turns)).astype(np.int32)
    last, (totals, differences) = gf.jit(gf.vmap(counted))(xs)
    total, want = np.ones(lanes, np.int32), np.empty_like(xs)
    for k in range(turns):
        total = total * np.int32(3) + xs[:, k]
        want[:, k] = total
    np.testing.assert_array_equal(last, total)
    np.testing.assert_array_equal(totals, want)
    np.testing.assert_array_equal(differences, xs - want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_any_dtype(dtype, reverse):
    with gf.enable_x64():
        xs = random(np.random.default_rng(5), (70, 83), dtype)

        def scan(xs):
            def step(state, x):
                before, count = state
                return (x, count + 1), (before, x)

            return lax.scan(step, (xs[0], 0), xs, reverse=reverse)

        (last, count), (before, same) = gf.jit(gf.vmap(scan))(xs)
        values = np.asarray(xs)
        order = values[:, ::-1] if reverse else values
        want = np.concatenate([values[:, :1], order[:, :-1]], axis=1)
        np.testing.assert_array_equal(last, order[:, -1])
        np.testing.assert_array_equal(same, values)
        np.testing.assert_array_equal(before, want[:, ::-1] if reverse else want)
        assert (np.asarray(count) == 83).all()


VIEWS = {
    "backwards": lambda x: x[::-1, ::-1],
    "every third": lambda x: x[::3, 1::2],
    "repeated": lambda x: jnp.broadcast_to(x[:1], x.shape),
    "one slice": lambda x: jnp.broadcast_to(x[:, :1], x.shape),
    "turns first": lambda x: x.T,
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_strides(name):
    x = np.random.default_rng(1).standard_normal((140, 150)).astype(np.float32)

    def scan(xs):
        return lax.scan(lambda top, x: (jnp.maximum(top, x),) * 2, -jnp.inf, xs)

    top, tops = gf.jit(lambda x: gf.vmap(scan)(VIEWS[name](x)))(x)
    want = np.maximum.accumulate(np.asarray(VIEWS[name](jnp.asarray(x))), axis=1)
    np.testing.assert_array_equal(tops, want)
    np.testing.assert_array_equal(top, want[:, -1])


@pytest.mark.parametrize("lanes", [16, 65])
def test_small_state(lanes):
    xs = np.random.default_rng(1).standard_normal((lanes, 70, 3)).astype(np.float32)

    def scan(xs):
        return lax.scan(lambda v, x: (jnp.maximum(v[::-1], x), v), jnp.zeros(3), xs)

    last, before = gf.jit(gf.vmap(scan))(xs)
    v, want = np.zeros((lanes, 3), np.float32), []
    for k in range(70):
        want.append(v)
        v = np.maximum(v[:, ::-1], xs[:, k])
    np.testing.assert_array_equal(last, v)
    np.testing.assert_array_equal(before, np.stack(want, 1))


def test_two_dimensions_of_lanes():
    xs = np.random.default_rng(1).integers(0, 9, (3, 70, 37)).astype(np.int32)
    scan = gf.vmap(gf.vmap(lambda xs: lax.scan(lambda s, x: (s + x, s), np.int32(0), xs)))
    total, before = gf.jit(scan)(xs)
    np.testing.assert_array_equal(total, xs.sum(-1))
    np.testing.assert_array_equal(before, xs.cumsum(-1) - xs)


def nested(n, xs):
    """A loop of slices with a loop in it, of which each lane has its own number of turns."""

    def step(total, x):
        return lax.fori_loop(0, abs(x) % 4, lambda i, t: t * 3 + i, total + x), total

    return lax.scan(step, n, xs)


def with_pairs(n, xs):
    """A loop of slices with a loop in it of which all lanes do as many turns."""

    def step(total, x):
        return lax.fori_loop(0, 2, lambda i, t: t * 3 + i, total + x), total

    return lax.scan(step, n, xs)


def test_a_loop_in_a_loop():
    rng = np.random.default_rng(1)
    n, xs = rng.integers(0, 9, 70).astype(np.int32), rng.integers(-9, 9, (70, 67)).astype(np.int32)
    last, before = gf.jit(gf.vmap(nested))(n, xs)
    total, want = n.copy(), np.empty_like(xs)
    for k in range(67):
        want[:, k] = total
        total = total + xs[:, k]
        for i in range(3):
            total = np.where(i < np.abs(xs[:, k]) % 4, total * 3 + i, total).astype(np.int32)
    np.testing.assert_array_equal(last, total)
    np.testing.assert_array_equal(before, want)


def results(kernel, call, rng):
    """What a kernel writes, through the interpreter."""
    words, memory, written = list(call.slots), {}, []
    for place, operand in enumerate(kernel.operands):
        if operand.mode in (Mode.IN, Mode.OUT):
            array = rng.integers(-9, 9, 70 * 67 + 1).astype(operand.dtype)
            memory[place + 1 << 32] = array
            words[place] += place + 1 << 32
            written += [array] if operand.mode is Mode.OUT else []
    interpret(kernel, words, memory)
    return written


@pytest.mark.parametrize("most", [8, 16, 128])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        *itertools.product(
            (gf.vmap(with_pairs), gf.vmap(lambda n, xs: last_two(xs))),
            ((65, 18), (16, 16), (33, 7), (64, 9)),
        ),
    ],
)
def test_tiles_mean_the_same(function, most, shape, monkeypatch):
    monkeypatch.setattr(lane_tiles, "MAX_ITERATIONS", most)
    *_, call = kernels_of(function, jnp.ones(shape[0], int), jnp.ones(shape, int))
    blocks = lanes_in_blocks(call.kernel)
    verify(blocks)
    assert any(1 < local.rows <= most for local in blocks.locals)
    monkeypatch.setattr(lane_tiles, "MAX_ITERATIONS", 0)
    others = lanes_in_blocks(call.kernel)
    assert all(local.rows == 1 for local in others.locals)
    want, *got = [
        results(kernel, call, np.random.default_rng(0)) for kernel in (call.kernel, blocks, others)
    ]
    for arrays in got:
        for one, other in zip(arrays, want, strict=True):
            np.testing.assert_array_equal(one, other)


# --- the order of what is stored -----------------------------------------------------------------


def test_results_are_stored_as_their_only_reader_wants_them():
    xs = jnp.ones((40, 50))
    assert len(kernels_of(gf.vmap(last_two), xs)) == 1

    def with_two_readers(xs):
        last, (before, _) = gf.vmap(last_two, out_axes=(0, 1))(xs)
        return last, before, before.T

    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    last, before, other = gf.jit(with_two_readers)(x)
    want = np.concatenate([x[:, :1], x[:, :-1]], axis=1)
    np.testing.assert_array_equal(before, want.T)
    np.testing.assert_array_equal(other, want)
    np.testing.assert_array_equal(last, x[:, -1])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("shape", [(20, 7, 3), (20, 1, 3), (16, 16, 1), (1, 5, 2)])
def test_any_order(order, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def function(x):
        (_, before) = gf.vmap(lambda xs: lax.scan(lambda v, x: (x, v), jnp.zeros(shape[2]), xs))(x)
        return before.transpose(order), jnp.abs(before.transpose(order))

    def alone(x):
        return function(x)[0]

    want = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], axis=1).transpose(order)
    np.testing.assert_array_equal(gf.jit(alone)(x), want)
    for got, wanted in zip(gf.jit(function)(x), (want, np.abs(want)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_reversed_results_are_no_permutation():
    x = np.random.default_rng(0).standard_normal((33, 20)).astype(np.float32)
    got = gf.jit(lambda x: gf.vmap(last_two)(x)[1][1][:, ::-1])(x)
    np.testing.assert_array_equal(got, x[:, ::-1])
