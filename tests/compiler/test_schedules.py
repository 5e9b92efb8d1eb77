"""Schedules: what each gives means what it was made from, on random kernels; order and explain."""

import itertools
import random

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.compiler.schedules.schedule import (
    Schedule,
    apply_rewrites,
    is_plain,
    rewritings,
    scheduled,
)
from gpuflow.compiler.target import PLAIN_TARGET, PlainTarget
from gpuflow.kir.interpret import interpret
from gpuflow.kir.nodes import Mode
from gpuflow.kir.verify import verify
from gpuflow.targets.cpu.codegen.schedules import (
    interchange,
    known_strides,
    row_phases,
    rows_across_lanes,
    split_reductions,
    tiled_maps,
)
from gpuflow.targets.cpu.codegen.schedules.lane_blocks import FEW_LANES
from gpuflow.targets.cpu.codegen.schedules.pipeline import CPU_REWRITES, CPU_SCHEDULES
from gpuflow.targets.cuda.codegen.schedules import row_phases as gpu_row_phases
from gpuflow.targets.cuda.codegen.schedules import split_reductions as splits
from gpuflow.targets.cuda.codegen.schedules import tiled_maps as gpu_tiled_maps
from gpuflow.targets.cuda.codegen.schedules.pipeline import CUDA_SCHEDULES

# Where a schedule begins to pay, made small: the interpreter takes its time with each point.
SMALL = {
    split_reductions: {
        "MIN_SPLIT": 64,
        "MIN_CHUNK": 16,
        "MIN_CHUNK_ROWS": 3,
        "ENOUGH_POINTS": 8,
        "ENOUGH_COLUMNS": 512,
        "_ALIGNED_ROWS": 2,
    },
    row_phases: {"MIN_ROW_LENGTH": 24, "MIN_LENGTH_OF_MANY_ROWS": 48},
    gpu_row_phases: {"MIN_ROW_LENGTH": 12},
    rows_across_lanes: {"MIN_TRANSPOSED": 32},
    known_strides: {"MIN_SPECIALIZED": 16},
    tiled_maps: {"MIN_TILED_SIZE": 16, "MIN_TILED_DIM": 3, "TILE": 4, "BAND": 8},
    interchange: {"COLUMN_BLOCK": 8, "ROW_BLOCK": 4},
    gpu_tiled_maps: {"MIN_TILED_SIZE": 16, "MIN_TILED_DIM": 3, "SIDE": 4},
    splits: {"MIN_SPLIT": 64, "TARGET_BLOCKS": 64, "MIN_CHUNK": {"column": 4, "row": 8}},
}
MAPS = (
    lambda x, y: x * 2 - y,
    lambda x, y: jnp.where(x > y, x, -y),
    lambda x, y: jnp.minimum(x, y)[..., ::-1],
    lambda x, y: x[..., ::2] - y[..., ::-2],
    lambda x, y: x[..., 1::3] + y[..., ::-1][..., : -(-(x.shape[-1] - 1) // 3)],
)
REDUCTIONS = (jnp.sum, jnp.max, jnp.min, jnp.argmax, lambda x, axis: (x * x + 1).sum(axis))
ROWS = (
    lambda x: jnp.sqrt(x * x) - jnp.sqrt(x * x).sum(-1, keepdims=True),  # exact, and costly
    lambda x: x - x.max(-1, keepdims=True),
    lambda x: (x * 3).sum(-1, keepdims=True) * x + x.min(-1, keepdims=True),
    lambda x: jnp.where(x == x.max(-1)[..., None], x.argmin(-1)[..., None], x.sum(-1)[..., None]),
)
LENGTHS = (1, 2, 3, 5, 7, 12, 16, 33, 70, 129)


@pytest.fixture(params=["cpu", "cuda"])
def schedules(request, monkeypatch):
    for module, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    return {"cpu": CPU_SCHEDULES, "cuda": CUDA_SCHEDULES}[request.param]


def random_program(rng):
    """A function of one array or two, some of them transposed, and their shape."""
    rank = rng.choice((1, 2, 2, 2, 3))
    shape = tuple(rng.choice(LENGTHS[: 6 if rank == 3 else None]) for _ in range(rank))
    order = rng.sample(range(rank), rank) if rng.random() < 0.6 else range(rank)
    what = rng.choice(("map", "reduction", "reduction", "row"))
    if what == "map":
        f = rng.choice(MAPS)
        return (lambda x, y: f(x.transpose(order), y.transpose(order))), shape
    if what == "row":
        f = rng.choice(ROWS)
        return (lambda x, y: f(x.transpose(order)) + y.reshape(-1)[0]), shape
    f, axis = rng.choice(REDUCTIONS), rng.choice((None, *range(rank)))
    return (lambda x, y: f(x.transpose(order), axis=axis) + y.sum() * 0), shape


def kernel_calls(function, shape, dtype, target=PLAIN_TARGET):
    avals = [gf.ShapeDtypeStruct(shape, dtype)] * 2
    with gf.enable_x64():
        plan, _ = compile_plan(gf.make_jaxpr(function)(*avals), target=target)
    for step in plan.steps:
        if isinstance(step, KernelStep):
            yield from ((plan, call) for call in step.calls)


class Memory:
    """Arrays by buffer, at addresses of their own."""

    def __init__(self, plan, call, rng):
        self.arrays = {}
        for buffer in call.buffers:
            if buffer >= 0:
                aval = plan.aval(buffer)
                values = rng.integers(-9, 10, max(aval.size, 1))
                self.arrays[buffer] = values.astype(aval.dtype)
        self.scratch = itertools.count(10_000)

    def allocate(self, count):
        buffer = next(self.scratch)
        self.arrays[buffer] = np.full(count, 0xA5, np.uint8)
        return buffer

    def copy(self):
        other = object.__new__(Memory)
        other.arrays = {buffer: array.copy() for buffer, array in self.arrays.items()}
        other.scratch = itertools.count(10_000)
        return other

    def run(self, call):
        verify(call.kernel)
        address = {buffer: buffer + 1 << 32 for buffer in self.arrays}
        words = list(call.slots)
        for place, (operand, buffer) in enumerate(
            zip(call.kernel.operands, call.buffers, strict=True)
        ):
            if operand.mode in (Mode.IN, Mode.OUT, Mode.INOUT):
                words[place] += address[buffer]
        interpret(call.kernel, words, {address[b]: array for b, array in self.arrays.items()})


def compare(plan, call, launches, before, after):
    written = [o.mode in (Mode.OUT, Mode.INOUT) for o in call.kernel.operands]
    for buffer, is_written in zip(call.buffers, written, strict=True):
        if is_written:
            want, got = before.arrays[buffer], after.arrays[buffer]
            # Sums of so many small integers are exact in whichever order.
            np.testing.assert_array_equal(got, want, err_msg=f"{plan.jaxpr}\n{len(launches)}")


class WithLanes(PlainTarget):
    lane_loops = True


def _halved(x, y):
    return lax.fori_loop(0, 11, lambda i, z: jnp.where(z > i, jnp.floor(z / 2), z + y), x)


def _counted(x, y):
    return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + abs(y) + 1, s[1] + 1), (x, 0))[1]


def _nested(x, y):
    def step(z):
        return z + 1 + lax.cond(y > 0, _halved, jnp.add, z, y) % 3

    return lax.while_loop(lambda z: z < 20, step, x)


def _each(function):
    return lambda x, y: gf.vmap(function)(x.ravel(), y.ravel()).reshape(x.shape)


LOOPS = (_halved, _each(_counted), _each(_nested))


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_rewritten_calls_mean_the_same(schedules, dtype):
    """Every schedule of the target is used by these programs, or the test fails."""
    rng, used = random.Random(17), set()
    programs = [random_program(rng) for _ in range(150)]
    if dtype is np.float64:
        programs += [(f, shape) for f in LOOPS for shape in ((5,), (4, 3))]
    for number, (function, shape) in enumerate(programs):
        for plan, call in kernel_calls(function, shape, dtype, WithLanes()):
            done = [r.schedule for r in rewritings(call, lambda size: 0, schedules)]
            used.update(done)
            if not done:
                continue
            before = Memory(plan, call, np.random.default_rng(number))
            after = before.copy()
            before.run(call)
            launches = scheduled(call, after.allocate, schedules)
            for launch in launches:
                after.run(launch)
            compare(plan, call, launches, before, after)
    wanted = set(schedules) - ({FEW_LANES} if dtype is np.int32 else set())
    assert used == wanted, [s.name for s in wanted if s not in used]


def test_printed_kernels_mean_the_same(monkeypatch):
    """What is done to a kernel when its text is made, on kernels before and after schedules."""
    for module, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    rng, used = random.Random(29), set()
    programs = [(*random_program(rng), PLAIN_TARGET) for _ in range(100)]
    programs += [(f, shape, WithLanes()) for f in LOOPS for shape in ((5,), (64,), (3, 70))]
    for number, (function, shape, target) in enumerate(programs):
        for plan, call in kernel_calls(function, shape, np.float64, target):
            memory = Memory(plan, call, np.random.default_rng(number))
            for launch in (call, *scheduled(call, memory.allocate, CPU_SCHEDULES)):
                kernel = launch.kernel
                for step in CPU_REWRITES:
                    used |= {step} if step.rewrite(kernel) is not kernel else set()
                    kernel = step.rewrite(kernel)
                other = memory.copy()
                memory.run(launch)
                other.run(launch._replace(kernel=apply_rewrites(launch.kernel, CPU_REWRITES)))
                compare(plan, launch, (launch,), memory, other)
    assert used == set(CPU_REWRITES)


def test_plain_kernels_are_never_rewritten(schedules):
    rng = random.Random(3)
    for _ in range(60):
        function, shape = random_program(rng)
        for _, call in kernel_calls(function, shape, np.float64):
            if is_plain(call.kernel, schedules):
                assert scheduled(call, lambda size: 0, schedules) == (call,)


def test_the_order_of_schedules():
    """One after the other looks at what the ones before gave; none looks at what the last gives."""
    ((_, call),) = kernel_calls(lambda x, y: x + y, (3, 4), np.float64)
    seen = []

    def tell(name, choice=1, is_last=False, copies=1):
        def choose(call):
            seen.append(name)
            return choice

        return Schedule(name, lambda kernel: True, choose, lambda c, k, a: (c,) * copies, is_last)

    last = tell("last", is_last=True)
    schedules = (tell("never", None), tell("twice", copies=2), last, tell("no"))
    assert scheduled(call, lambda size: 0, schedules) == (call, call)
    assert seen == ["never", "twice", "last", "last"]
    seen.clear()
    done = list(rewritings(call, lambda size: 0, schedules))
    assert [r.schedule.name for r in done] == ["twice", "last", "last"]
    assert seen == ["never", "twice", "last", "last"]


def test_explain_shows_kernels_before_and_after():
    x = jnp.ones((300, 70), jnp.float32)
    text = gf.jit(lambda x: jnp.sin(x.T)).lower(x).compile().explain("schedule")
    assert "tiles, True" in text
    assert "before:" in text
    assert "after, 1 launch:" in text
    text = gf.jit(jnp.sum).lower(jnp.ones(1 << 17)).compile().explain("schedule")
    assert "split reductions, Cut(chunks=" in text
    assert "after, 2 launches:" in text
    text = gf.jit(lambda x: x.sum(0)).lower(x).compile().explain("schedule")
    assert "columns in rows, when its text is made" in text
    assert "strip i1 by 1024:" in text
    text = gf.jit(jnp.sin).lower(x).compile().explain("schedule")
    assert text.endswith(": as it is")
