"""Reductions of few columns or rows are split on GPUs, so that most of one is not idle."""

from math import prod

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.targets.cuda.codegen.schedules.launch_config import launch_shape, schedule_cuda
from gpuflow.targets.cuda.codegen.schedules.row_phases import MAX_ROWS, MIN_ROW_LENGTH
from gpuflow.targets.cuda.library.target import gpu_target

RNG = np.random.default_rng(3)


def launches(function, *shapes, dtype="float32"):
    """The names of all launches of a plan, and how many parts the first one has."""
    avals = [gf.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals), target=gpu_target())
    steps = [step for step in plan.steps if step.kind == "kernel"]
    calls = [call for step in steps for group in step.launches for call in group]
    return [call.kernel.name for call in calls], calls[0].extent


def test_what_is_split():
    parts, combine = "column_reduce_sum_parts", "column_reduce_sum_combine"
    assert launches(lambda x: x.sum(0), (1 << 16, 64)) == ([parts, combine], 512)
    assert launches(lambda x: x.sum(0), (1 << 14, 4096)) == ([parts, combine], 8)
    # As many blocks as are wanted, too few elements, rows that fill the device.
    assert launches(lambda x: x.sum(0), (1 << 12, 1 << 15))[0] == ["column_reduce_sum"]
    assert launches(lambda x: x.sum(0), (1 << 10, 64))[0] == ["column_reduce_sum"]
    assert launches(lambda x: x.sum(1), (1 << 12, 1 << 12))[0] == ["row_reduce_sum"]
    names, count = launches(lambda x: x.sum(1), (4, 1 << 22))
    assert names == ["row_reduce_sum_parts", "row_reduce_sum_combine"] and count == 256
    # Full reductions have the whole grid.
    assert launches(lambda x: x.sum(), (1 << 22,))[0] == ["full_reduce_sum"]
    # Statistics of channels: blocks go along pixels.
    names, count = launches(lambda x: x.sum((0, 2)), (256, 64, 3136))
    assert [name.rsplit("_", 1)[1] for name in names] == ["parts", "combine"] and count == 16


def filled(function, *shapes, processors=132):
    """Threads for each multiprocessor, of launches that read as much as the largest one."""
    avals = [gf.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals), target=gpu_target())
    steps = [step for step in plan.steps if step.kind == "kernel"]
    calls = [call for step in steps for group in step.launches for call in group]
    most, threads = max(call.points for call in calls), []
    for call in calls:
        if 2 * call.points >= most:
            launch = schedule_cuda(call.kernel, vectorize=True)
            grid, block = launch_shape(launch, extents_of(call), processors)
            threads.append(prod(grid) * prod(block) / processors)
    return threads


@pytest.mark.parametrize(
    ("function", "shape", "count"),
    [
        (lambda x: (x.mean(0), x.var(0)), (200704, 64), 2),  # batchnorm of 64 images, 56 x 56
        (lambda x: (x.mean((0, 2)), x.var((0, 2))), (64, 64, 3136), 2),
        (lambda x: x.sum(0), (1 << 20, 8), 1),
        (lambda x: x.sum(0), (1 << 22, 1), 1),
        (lambda x: x.sum(0), (1 << 22, 3), 1),
        (gf.nn.softmax, (8, 128256), 3),
        (gf.nn.softmax, (1, 1 << 20), 3),
        (lambda x: x.sum(0), (16384, 4096), 1),
    ],
)
def test_every_launch_that_reads_much_fills_a_gpu(function, shape, count):
    """About 4 blocks of 256 threads, or as many threads, for each of 132 multiprocessors."""
    threads = filled(function, shape)
    assert len(threads) == count and min(threads) >= 2.5 * 256, threads


@requires_cuda_tools
@pytest.mark.parametrize("shape", [(8192, 33), (4099, 64), (3, 100_003), (5, 65_536)])
def test_values(shape):
    """Sums, maxima and their places, whether parts leave something over or not."""
    x = RNG.standard_normal(shape).astype(np.float32)
    axis = int(np.argmax(shape))

    def function(x):
        return x.sum(axis) * 2 + 1, x.max(axis), x.argmax(axis)

    with gf.default_device(gf.devices("cuda_sim")[0]):
        total, most, place = map(np.asarray, gf.jit(function)(x))
    # Sums of so many numbers of the size of 1 differ by their roundings.
    np.testing.assert_allclose(total, x.sum(axis, np.float64) * 2 + 1, rtol=1e-5, atol=2e-3)
    np.testing.assert_array_equal(most, x.max(axis))
    np.testing.assert_array_equal(place, x.argmax(axis))


# --- few long rows that are read more than once --------------------------------------------


def layernorm(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)


def test_phases_of_few_long_rows():
    names, parts = launches(gf.nn.softmax, (8, 128256))
    assert [name.split("_phase")[1] for name in names] == [
        "0_parts",
        "0_combine",
        "1_parts",
        "1_combine",
        "2",
    ]
    assert parts * 8 >= 128  # blocks: with a row each there would be 8
    # Many rows, and short ones, are read again by the block that has them.
    assert len(launches(gf.nn.softmax, (MAX_ROWS + 1, 1 << 17))[0]) == 1
    assert len(launches(gf.nn.softmax, (8, MIN_ROW_LENGTH - 1))[0]) == 1
    # Rows along two axes, and what is left for each row at the end.
    names, _ = launches(lambda x: gf.nn.logsumexp(x, -1), (2, 4, 1 << 17))
    assert [name.split("_phase")[-1] for name in names][-1].startswith("1")


@requires_cuda_tools
@pytest.mark.parametrize("shape", [(3, 70_001), (1, 65_536), (2, 2, 66_000)])
def test_values_of_phases(shape):
    """What the sums need comes from the launches before them, for each row its own."""
    x = (RNG.standard_normal(shape) * 3).astype(np.float32)

    def function(x):
        return gf.nn.softmax(x), layernorm(x), gf.nn.logsumexp(x, -1)

    with gf.default_device(gf.devices("cuda_sim")[0]):
        got = [np.asarray(y) for y in gf.jit(function)(x)]
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    total = powers.sum(-1, keepdims=True)
    centered = wide - wide.mean(-1, keepdims=True)
    want = (
        powers / total,
        centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5),
        (np.log(total) + wide.max(-1, keepdims=True))[..., 0],
    )
    # exp within 2 ulp, sums of 70,000 terms of one sign, in parts.
    for ours, truth in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, truth, rtol=2e-5, atol=2e-6)
