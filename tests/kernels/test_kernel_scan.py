"""Running values by handwritten kernels, in the PTX interpreter."""

import math

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import SIZES, on_gpu, run_schedule

import gpuflow.kernels.scan as kernels
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.core.blocks import Scan
from gpuflow.targets.cuda.library import prefix_scans as scans
from gpuflow.targets.cuda.library.launch_sequence import (
    ArrayLocation,
    LaunchSequence,
    scalar_format,
)
from gpuflow.targets.cuda.library.prefix_scans import add_scan

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(7)
FLOATS = RNG.normal(size=(2, 1025)).astype(np.float32)

REFERENCES = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
}


def reference(scan, x):
    """The meaning of the kernels: elements are combined one after the other."""
    turned = x[:, ::-1] if scan.reverse else x
    wide = np.float64 if dtypes.is_floating(x.dtype) else None
    result = REFERENCES[scan.combine].accumulate(turned, 1, dtype=wide)
    return result[:, ::-1] if scan.reverse else result


def run_scan(scan, x):
    sequence = LaunchSequence(2)
    add_scan(sequence, scan, *scalar_format(x.dtype), ArrayLocation(0), ArrayLocation(1))
    return run_schedule(sequence, [x, np.zeros_like(x)])[1], sequence


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_rows(size):
    x = RNG.normal(size=(3, size)).astype(np.float32)
    # Sums of n numbers of size 1 err by at most n roundings of a sum of about sqrt(n).
    want = np.cumsum(x.astype(np.float64), 1)
    tolerance = 6e-8 * max(size, 1)
    np.testing.assert_allclose(on_gpu(lambda x: lax.cumsum(x, 1), x), want, atol=tolerance)


@pytest.mark.parametrize(
    "name, dtype, reverse",
    [
        ("cummax", "float32", True),
        ("cummin", "float64", False),
        ("cumprod", "int32", False),
        ("cumlogsumexp", "float32", False),
        ("cumsum", "bfloat16", True),
        ("cumsum", "uint8", False),
        ("cummin", "uint64", True),
    ],
)
def test_rows_are_what_the_host_computes(name, dtype, reverse):
    x = (FLOATS[:, :257] * 3).astype(np.int64) if "int" in dtype else FLOATS[:, :257]
    x = np.abs(x).astype(dtype) if dtype.startswith("u") else x.astype(dtypes.canonicalize(dtype))
    x = x | 1 if name == "cumprod" else x

    def function(x):
        return getattr(lax, name)(x, 1, reverse=reverse)

    got, want = on_gpu(function, x), np.asarray(function(x))
    assert got.dtype == want.dtype
    if "int" in dtype or name in ("cummax", "cummin"):
        np.testing.assert_array_equal(got, want)
    else:
        # Both add in float32; bfloat16 is rounded once, and may be rounded to the other side.
        tolerance = 1e-2 if dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )


def test_nan_infinities_and_signs_of_zeros():
    x = np.float32([[-0.0, -0.0, 0.0, math.inf, 1, -math.inf, math.nan, 2]])
    for name in ("cumsum", "cummax", "cummin", "cumlogsumexp"):
        got = on_gpu(lambda x, name=name: getattr(lax, name)(x, 1), x)
        want = np.asarray(getattr(lax, name)(x, 1))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got[:, :3]), np.signbit(want[:, :3]))


def test_columns_and_complex_numbers():
    x = FLOATS[:, :330].reshape(4, 33, 5)
    for operand in (x, x[..., :2] + 1j * x[..., 2:4]):
        got = on_gpu(lambda x: lax.cumsum(x, 1), operand)
        np.testing.assert_allclose(got, np.cumsum(operand, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_in_chunks(reverse, monkeypatch):
    monkeypatch.setattr(scans, "MAX_CHUNK", 1 << 11)
    monkeypatch.setattr(scans, "ROW_CHUNK", 1 << 11)
    x = RNG.integers(-9, 9, size=(2, 5003)).astype(np.int32)
    scan = Scan("add", 2, 5003, 1, reverse)
    got, sequence = run_scan(scan, x)
    assert [one.kernel for one in sequence.launches] == [
        kernels.scan_rows,
        kernels.scan_columns,
        kernels.scan_rows,
    ]
    np.testing.assert_array_equal(got, reference(scan, x))


def test_columns_in_chunks_of_chunks(monkeypatch):
    monkeypatch.setattr(scans, "MAX_COLUMN", 4)
    x = RNG.integers(0, 9, size=(2, 31)).astype(np.uint8)
    scan = Scan("max", 2, 31, 1, True)
    got, sequence = run_scan(scan, x)
    assert len(sequence.launches) == 7  # 16 chunks, 8 of them, and 4 of those
    np.testing.assert_array_equal(got, reference(scan, x))


def test_results_do_not_depend_on_the_device():
    """The order of additions is part of the schedule, which knows shapes only."""
    first = on_gpu(lambda x: lax.cumsum(x, 1), FLOATS)
    again = on_gpu(lambda x: lax.cumsum(x, 1), FLOATS)
    np.testing.assert_array_equal(first.view(np.uint32), again.view(np.uint32))
