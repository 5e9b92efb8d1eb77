"""The greatest of long rows by selection, in the PTX interpreter."""

import math

import ml_dtypes
import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import on_gpu, run_schedule

import gpuflow as gf
from gpuflow import lax
from gpuflow.core.blocks import Sort
from gpuflow.targets.cuda.library import sorts
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(23)
SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0]


@pytest.fixture
def short_tiles(monkeypatch):
    """Rows of 257 elements are long."""
    monkeypatch.setattr(sorts, "MAX_TILE", {32: 256, 64: 256})


def keys_of(dtype, shape):
    """Values with many equal ones, and all that is special about a dtype."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        some = RNG.integers(0, 300 if dtype.itemsize > 1 else 100, shape)
        ends = RNG.choice([info.min, info.max], shape)
        return np.where(RNG.random(shape) < 0.1, ends, some).astype(dtype)
    few = (RNG.normal(size=shape) * 3).round(2)
    return np.where(RNG.random(shape) < 0.02, RNG.choice(SPECIAL, shape), few).astype(dtype)


def schedule_for(x, axis, k):
    """The launches of a top_k, and the shape of its results."""
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    sequence = LaunchSequence(3)
    sort = Sort(outer, x.shape[axis], inner, 1, k, descending=True, total_order=True)
    assert sorts.add_sort(
        sequence, sort, [ArrayLocation(0)], [ArrayLocation(1), ArrayLocation(2)], [x.dtype]
    )
    return sequence, shape


def names(sequence):
    return [one.kernel.__name__ for one in sequence.launches]


def assert_top_k(x, axis, k):
    sequence, shape = schedule_for(x, axis, k)
    assert "gather_selected" in names(sequence)
    outs = [np.zeros(shape, x.dtype), np.zeros(shape, np.int32)]
    _, values, positions = run_schedule(sequence, [x, *outs])
    with gf.enable_x64():
        want = [np.asarray(out) for out in lax.top_k(x, k, axis=axis)]
    np.testing.assert_array_equal(positions, want[1])
    bits = f"u{x.dtype.itemsize}"
    np.testing.assert_array_equal(values.view(bits), want[0].view(bits))


@pytest.mark.parametrize("size, k", [(257, 1), (257, 256), (1025, 33), (1031, 31), (2048, 2)])
def test_sizes(short_tiles, size, k):
    assert_top_k(keys_of("float32", (3, size)), 1, k)


@pytest.mark.parametrize("dtype", ["int32", "uint16", "bfloat16", "float64", "int64"])
def test_keys(short_tiles, dtype):
    assert_top_k(keys_of(dtype, (2, 521)), 1, 65)


def test_columns(short_tiles):
    assert_top_k(keys_of("float32", (263, 3)), 0, 7)


def test_equal_keys_come_in_their_order(short_tiles):
    x = np.zeros((2, 1025), np.float32)
    x[1, 700:] = 1
    assert_top_k(x, 1, 33)


def test_tiles_of_a_gpu():
    x = keys_of("float32", (4099,))
    values, positions = on_gpu(lambda x: lax.top_k(x, 5), x)
    want = lax.top_k(x, 5)
    np.testing.assert_array_equal(values.view(np.uint32), np.asarray(want[0]).view(np.uint32))
    np.testing.assert_array_equal(positions, np.asarray(want[1]))


def test_what_is_sorted_as_a_whole(short_tiles):
    """Short rows, many elements, and keys of one digit."""
    rows = keys_of("float32", (2, 600))
    for x, k in ((rows[:, :256], 3), (rows, 257), (keys_of("int8", (2, 600)), 3)):
        assert "gather_selected" not in names(schedule_for(x, 1, k)[0])


@pytest.mark.parametrize("dtype, launches", [("float32", 10), ("bfloat16", 8), ("float64", 14)])
def test_how_many_launches_it_takes(dtype, launches):
    x = np.broadcast_to(np.zeros((), getattr(ml_dtypes, dtype, dtype)), (1, 1 << 20))
    assert len(schedule_for(x, 1, 100)[0].launches) == launches
