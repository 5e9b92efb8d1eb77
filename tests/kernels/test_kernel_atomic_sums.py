"""Sums at repeated places by atomic additions, in the PTX interpreter."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import at_gpu, on_gpu

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.targets.cuda.library.target import gpu_target

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(29)


def added(x, places, rows):
    return x.at[places].add(rows, mode="drop", wrap_negative_indices=False)


def reference(x, places, rows):
    out = x.copy()
    for place, row in zip(places, rows, strict=True):
        if 0 <= place < len(out):
            out[place] += row
    return out


def kernels_of(function, *operands, atomic_sums=True):
    """The handwritten kernels that a program runs."""
    target = gpu_target(atomic_sums)
    plan, _ = compile_plan(gf.make_jaxpr(function)(*operands), target=target)
    schedules = [step.implementation for step in plan.steps if isinstance(step, CallStep)]
    assert None not in schedules
    return [one.kernel.__name__ for schedule in schedules if schedule for one in schedule.launches]


@pytest.mark.parametrize("count", [64, 65, 1025])
@pytest.mark.parametrize("width", [(), (3,), (2, 5)])
def test_sums(count, width):
    places = RNG.integers(-2, 33, count)
    # Sums of small integers are exact, in any order.
    rows = RNG.integers(-9, 9, (count, *width)).astype(np.float32)
    x = RNG.integers(-9, 9, (31, *width)).astype(np.float32)
    with config.override("atomic_sums", True):
        got = on_gpu(added, x, places, rows)
    np.testing.assert_array_equal(got, reference(x, places, rows))


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float64", "complex64", "complex128"])
def test_dtypes(dtype):
    places = RNG.integers(0, 7, 101)
    rows, x = RNG.integers(0, 5, (101, 2)).astype(dtype), RNG.integers(0, 5, (7, 2)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        rows = rows * (1 - 2j)
    with config.override("atomic_sums", True), gf.enable_x64():
        got = on_gpu(added, x, places, rows.astype(dtype))
        assert "add_rows" in kernels_of(added, x, places, rows.astype(dtype))
    np.testing.assert_array_equal(got, reference(x, places, rows.astype(dtype)))


def test_sums_of_any_numbers_agree_up_to_rounding():
    """In whatever order 100 numbers are added, each addition rounds by half a unit."""
    places, rows = RNG.integers(0, 5, 500), RNG.normal(size=(500, 3)).astype(np.float32)
    x = np.zeros((5, 3), np.float32)
    with config.override("atomic_sums", True):
        got = on_gpu(added, x, places, rows)
    want = reference(x.astype(np.float64), places, rows)
    np.testing.assert_allclose(got, want, rtol=0, atol=500 * 6e-8 * np.abs(rows).max() * 10)


def test_windows_within_an_array():
    """Columns of a matrix: neighbors of a window lie far apart."""
    places, rows = RNG.integers(0, 9, 70), RNG.integers(0, 9, (4, 70)).astype(np.float32)
    x = np.ones((4, 9), np.float32)
    want = reference(x.T, places, rows.T).T
    with config.override("atomic_sums", True):
        got = on_gpu(lambda x, places, rows: x.at[:, places].add(rows), x, places, rows)
    np.testing.assert_array_equal(got, want)


def test_sums_of_16_bit_floats_are_made_in_float32():
    """1 + 2^-11 + ... in float16, each of which would be lost by itself."""
    places, rows = np.zeros(64, np.int64), np.full(64, 2.0**-11, np.float16)
    with config.override("atomic_sums", True):
        got = on_gpu(added, np.ones(2, np.float16), places, rows)
    np.testing.assert_array_equal(got, np.array([1 + 2.0**-5, 1], np.float16))


def test_segment_sums_and_gradients_of_gathers():
    values, segments = RNG.integers(-9, 9, 300).astype(np.float32), RNG.integers(0, 11, 300)
    table = RNG.normal(size=(9, 4)).astype(np.float32)

    def both(values, segments, table):
        total = gf.ops.segment_sum(values, segments, num_segments=11)
        return total, gf.grad(lambda t: jnp.sum(t[segments % 9] * 2.0))(table)

    with config.override("atomic_sums", True):
        total, slope = on_gpu(both, values, segments, table)
    np.testing.assert_array_equal(total, np.bincount(segments, values, minlength=11))
    np.testing.assert_array_equal(slope[:, 0], 2 * np.bincount(segments % 9, minlength=9))


def test_launches():
    """Zeros need no array that is copied; few rows, and what is not added, are as ever."""
    x, places = np.ones(9, np.float32), np.zeros(100, np.int64)
    rows = np.ones(100, np.float32)
    assert kernels_of(added, x, places, rows) == ["copy_strided", "add_rows"]
    into_zeros = kernels_of(lambda p, r: added(jnp.zeros(9, jnp.float32), p, r), places, rows)
    assert into_zeros == ["clear", "add_rows"]
    assert "add_rows" not in kernels_of(added, x, places[:63], rows[:63])
    assert "add_rows" not in kernels_of(lambda x, p, r: x.at[p].max(r), x, places, rows)
    assert "add_rows" not in kernels_of(added, x, places, rows, atomic_sums=False)


def test_the_default_has_the_same_bits_in_every_run_and_the_setting_is_in_the_key():
    places, rows = RNG.integers(0, 5, 300), RNG.normal(size=300).astype(np.float32)
    x = np.zeros(5, np.float32)

    def both_ways():
        traced = []

        @gf.jit
        def total(x, places, rows):
            traced.append(config.atomic_sums)
            return added(x, places, rows)

        ordered = [total(x, places, rows) for _ in range(2)]
        with config.override("atomic_sums", True):
            other = total(x, places, rows)
            eager = added(jnp.asarray(x), jnp.asarray(places), jnp.asarray(rows))
        assert traced == [False, True]
        return *ordered, other, eager

    first, again, other, eager = at_gpu(both_ways)
    np.testing.assert_array_equal(first.view(np.uint32), again.view(np.uint32))
    for got in (other, eager):
        np.testing.assert_allclose(got, first, rtol=1e-4, atol=1e-4)


def test_what_the_setting_takes():
    with pytest.raises(ValueError, match=r"atomic_sums must be one of \(True, False\); got 'yes'"):
        config.update("atomic_sums", "yes")
