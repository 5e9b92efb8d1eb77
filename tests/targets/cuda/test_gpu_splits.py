"""Reductions of few columns or rows are split on GPUs, so that most of one is not idle."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.targets.cuda.providers.target import gpu_target

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
    assert launches(lambda x: x.sum(0), (1 << 16, 64)) == ([parts, combine], 64)
    assert launches(lambda x: x.sum(0), (1 << 14, 4096)) == ([parts, combine], 8)
    # As many blocks as are wanted, too few elements, rows that fill the device.
    assert launches(lambda x: x.sum(0), (1 << 12, 1 << 15))[0] == ["column_reduce_sum"]
    assert launches(lambda x: x.sum(0), (1 << 10, 64))[0] == ["column_reduce_sum"]
    assert launches(lambda x: x.sum(1), (1 << 12, 1 << 12))[0] == ["row_reduce_sum"]
    names, count = launches(lambda x: x.sum(1), (4, 1 << 22))
    assert names == ["row_reduce_sum_parts", "row_reduce_sum_combine"] and count == 64
    # Rows that need a result again are read again; full reductions have the whole grid.
    assert len(launches(gf.nn.softmax, (4, 1 << 20))[0]) == 1
    assert launches(lambda x: x.sum(), (1 << 22,))[0] == ["full_reduce_sum"]
    # Statistics of channels: blocks go along pixels.
    names, count = launches(lambda x: x.sum((0, 2)), (256, 64, 3136))
    assert [name.rsplit("_", 1)[1] for name in names] == ["parts", "combine"] and count == 16


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
