"""Sorts by handwritten kernels, in the PTX interpreter."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import SIZES, on_gpu, run_schedule

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.blocks import Sort
from gpuflow.targets.cuda.library import sorts
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence
from ptxsim.checks import THOROUGH
from ptxsim.kernel import PtxKernel

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(11)
SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 5e-8, -0.0, 0.0]


def keys_of(dtype, shape):
    """Values with many equal ones, and all that is special about a dtype."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype.kind == "c":
        parts = np.stack([keys_of("float32", shape), keys_of("float32", shape)], -1)
        return parts.view(dtype)[..., 0]
    if dtype == np.bool_:
        return RNG.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        chosen = [info.min, info.max, 0, 1, 2, info.max // 2 + 1, info.max // 3]
        return RNG.choice(np.array(chosen, dtype), shape)
    if "int4" in dtype.name:
        return RNG.integers(-8 if dtype.name == "int4" else 0, 8, shape).astype(dtype)
    few = (RNG.normal(size=shape) * 3).round(1)
    return np.where(RNG.random(shape) < 0.4, RNG.choice(SPECIAL, shape), few).astype(dtype)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    bits = f"u{min(got.dtype.itemsize, 8)}"
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(bits), np.ascontiguousarray(want).view(bits)
    )


@pytest.mark.parametrize("size", [n for n in SIZES if n < 1000])
def test_rows_within_a_block(size):
    x = keys_of("float32", (3, size))
    order = on_gpu(lambda x: jnp.argsort(x, 1), x)
    np.testing.assert_array_equal(order, np.asarray(jnp.argsort(x, 1)))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int32", "uint64", "bfloat16", "float64", "complex64", "float8_e4m3fn", "int4"],
)
def test_the_order_is_that_of_the_host(dtype):
    """nan last, zeros equal, and equal ones keep their order."""
    x = keys_of(dtype, (2, 31))
    with gf.enable_x64():
        numbers = np.tile(np.arange(31, dtype=np.int32), (2, 1))
        got = on_gpu(lambda x, k: lax.sort([x, k], 1), x, numbers)
        want = lax.sort([x, numbers], 1)
    assert_same_bits(got[0], np.asarray(want[0]))
    np.testing.assert_array_equal(got[1], np.asarray(want[1]))


def test_long_rows_in_passes(monkeypatch):
    monkeypatch.setattr(sorts, "MAX_TILE", {32: 256, 64: 256})
    monkeypatch.setattr(sorts, "_MAX_CHUNKS", 2)  # of the five tiles: three, and two
    x = keys_of("float32", (2, 1031))
    sequence = LaunchSequence(2)
    sort = Sort(2, 1031, 1, 1, 1031)
    assert sorts.add_sort(sequence, sort, [ArrayLocation(0)], [ArrayLocation(1)], [x.dtype])
    assert len(sequence.launches) == 2 + 4
    got = run_schedule(sequence, [x, np.zeros_like(x)])[1]
    assert_same_bits(got, np.asarray(lax.sort(x, 1)))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("length, inner", [(31, 2), (257, 1), (257, 2)])
@pytest.mark.parametrize("dtype", ["int8", "uint64", "bfloat16", "float8_e4m3fn", "int4"])
def test_keys_alone(dtype, length, inner, descending, monkeypatch):
    """Bits move as they are: zeros and nan of both signs keep their order."""
    monkeypatch.setattr(sorts, "MAX_TILE", {32: 256, 64: 256})
    x = keys_of(dtype, (2, length, inner))
    sequence, sort = LaunchSequence(2), Sort(2, length, inner, 1, length, descending)
    assert sorts.add_sort(sequence, sort, [ArrayLocation(0)], [ArrayLocation(1)], [x.dtype])
    got = run_schedule(sequence, [x, np.zeros_like(x)])[1]
    if x.dtype.kind in "biu":
        keys = [~x if descending else x]
    else:
        value = x.astype(np.float64)
        is_nan = np.isnan(value)
        value = np.where(is_nan, 0, value)
        keys = [-value, ~is_nan] if descending else [value, is_nan]
    order = np.lexsort(keys, axis=1)
    assert_same_bits(got, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alone", [True, False])
def test_blocks_in_any_order(alone, seed, monkeypatch):
    """Blocks begin in any order, and stop anywhere: results have the same bits, and none waits on.

    A block that took its tile by its number would wait for ones that have not begun.
    """
    monkeypatch.setattr(sorts, "MAX_TILE", {32: 256, 64: 256})
    launch = PtxKernel.launch

    def in_any_order(self, grid, block, words, memory, shared_bytes=0, checks=THOROUGH):
        checks = replace(checks, order=seed, instructions=200_000)
        return launch(self, grid, block, words, memory, shared_bytes, checks)

    monkeypatch.setattr(PtxKernel, "launch", in_any_order)
    x = keys_of("bfloat16", (2, 1500))
    sort, arrays = Sort(2, 1500, 1, 1, 1500), [x]
    if not alone:
        arrays.append(np.tile(np.arange(1500, dtype=np.int32), (2, 1)))
    sequence, count = LaunchSequence(2 * len(arrays)), len(arrays)
    places = [ArrayLocation(number) for number in range(2 * count)]
    assert sorts.add_sort(
        sequence, sort, places[:count], places[count:], [array.dtype for array in arrays]
    )
    got = run_schedule(sequence, [*arrays, *map(np.zeros_like, arrays)])[count:]
    value = x.astype(np.float64)
    order = np.lexsort([np.where(np.isnan(value), 0, value), np.isnan(value)], axis=1)
    for array, out in zip(arrays, got, strict=True):
        assert_same_bits(out, np.take_along_axis(array, order, 1))


def bytes_moved(function, x, monkeypatch):
    """Bytes of global memory that kernels load and store, for each element."""
    moved, launch = [], PtxKernel.launch

    def counted(self, *args):
        done = launch(self, *args)
        moved.append(done.bytes)
        return done

    with monkeypatch.context() as patch:
        # One block after another: none waits, so that none reads a word again.
        patch.setattr("ptxsim.kernel._LANES", 1)
        patch.setattr(PtxKernel, "launch", counted)
        on_gpu(function, x)
    return sum(moved) / x.size


@pytest.mark.parametrize("dtype, least", [("float32", 36), ("bfloat16", 10), ("uint8", 3)])
def test_keys_alone_are_read_once_and_moved_in_each_pass(dtype, least, monkeypatch):
    """Read for the counts of all digits, then read and written in each pass.

    The words of tiles grow with tiles alone: for each pass and digit one is cleared, stored twice,
    and those of tiles before are read; totals are cleared, added to and read once.
    """
    itemsize = np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
    short = bytes_moved(lambda x: jnp.sort(x), keys_of(dtype, (500,)), monkeypatch)
    assert short == 2 * itemsize
    tiles, x = 2, keys_of(dtype, (8192,))
    words = itemsize * 256 * 4 * (tiles * (1 + 2) + (tiles - 1) + 4)
    moved = bytes_moved(lambda x: jnp.sort(x), x, monkeypatch)
    assert least <= moved <= least + words / x.size, (moved, words / x.size)


def test_long_columns_by_several_keys(monkeypatch):
    monkeypatch.setattr(sorts, "MAX_TILE", {32: 256, 64: 256})
    first, second = keys_of("int8", (257, 2)), keys_of("int8", (257, 2))
    payload = RNG.normal(size=(257, 2))
    arrays = [first, second, payload]
    sequence = LaunchSequence(6)
    sort = Sort(1, 257, 2, 2, 257)
    places = [ArrayLocation(k) for k in range(6)]
    assert sorts.add_sort(sequence, sort, places[:3], places[3:], [x.dtype for x in arrays])
    got = run_schedule(sequence, [*arrays, *map(np.zeros_like, arrays)])[3:]
    order = np.lexsort((second, first), axis=0)
    for x, out in zip(arrays, got, strict=True):
        np.testing.assert_array_equal(out, np.take_along_axis(x, order, 0))


@pytest.mark.parametrize("dtype, k", [("float32", 5), ("float32", 33), ("float32", 0)])
def test_top_k(dtype, k):
    x = keys_of(dtype, (33, 3))
    got = on_gpu(lambda x: lax.top_k(x, k, axis=0), x)
    want = lax.top_k(x, k, axis=0)
    assert_same_bits(got[0], np.asarray(want[0]))
    np.testing.assert_array_equal(got[1], np.asarray(want[1]))


def test_operands_of_any_strides():
    x = keys_of("float32", (5, 2, 33))
    got = on_gpu(lambda x: jnp.sort(x.transpose(1, 2, 0)[:, ::2], 1), x)
    assert_same_bits(got, np.asarray(jnp.sort(x.transpose(1, 2, 0)[:, ::2], 1)))
