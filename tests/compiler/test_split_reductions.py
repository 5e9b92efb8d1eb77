"""Long reductions in parts: the kernels, which calls are split, and results of every size."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cpu_harness import call_of, calls_of, normals

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.schedules.split_reduction import split_kernel
from gpuflow.kir.verify import verify
from gpuflow.targets.cpu.codegen.schedules.split_reductions import (
    ENOUGH_COLUMNS,
    ENOUGH_POINTS,
    MAX_CHUNKS,
    MIN_SPLIT,
)

ROOT = Path(__file__).resolve().parents[2]


# --- what is split --------------------------------------------------------------------------


def test_small_arrays_are_one_launch():
    for shape in [(0,), (2,), (1000,), (MIN_SPLIT - 1,)]:
        assert len(calls_of(jnp.sum, shape)) == 1
    assert len(calls_of(lambda x: x.sum(0), (100, 100))) == 1


@pytest.mark.parametrize(
    "function, shape, count",
    [
        (jnp.sum, (MIN_SPLIT,), 2),
        (jnp.sum, (MIN_SPLIT + 1,), 3),  # with a call for what is left over
        (lambda x: x.sum(0), (65536, 64), 2),
        (lambda x: x.sum(0), (128, 65536), 1),  # wide: threads take columns
        (lambda x: x.sum(1), (4096, 1024), 1),  # many rows: threads take rows
        (lambda x: x.sum(1), (4, 1 << 20), 2),
        (lambda x: x.sum(1), (2, 65536, 32), 2),
        (lambda x: x.sum(1), (64, 4096, 32), 1),
        (lambda x: x / x.sum(1, keepdims=True), (4, 1 << 18), 1),  # the sum is needed in the row
        (lambda x: x + 1, (1 << 20,), 1),
    ],
)
def test_which_calls_are_split(function, shape, count):
    assert len(calls_of(function, shape)) == count


def test_parts_depend_on_the_shape_only():
    """Nothing of the split asks for threads, and there are never more chunks than MAX_CHUNKS."""
    for rows in (MIN_SPLIT, MIN_SPLIT + 77, 1 << 20, 10**7, 1 << 24):
        parts = calls_of(jnp.sum, (rows,))[0]
        assert 2 <= parts.extent <= MAX_CHUNKS
        left = calls_of(jnp.sum, (rows,))[1:-1]
        assert parts.points + sum(call.points for call in left) == rows


def test_rules_at_their_bounds():
    rows = MIN_SPLIT // ENOUGH_POINTS
    assert len(calls_of(lambda x: x.sum(1), (ENOUGH_POINTS, rows))) == 1
    assert len(calls_of(lambda x: x.sum(1), (ENOUGH_POINTS - 1, 2 * rows))) > 1
    assert len(calls_of(lambda x: x.sum(0), (4096, ENOUGH_COLUMNS))) == 1
    assert len(calls_of(lambda x: x.sum(0), (4096, ENOUGH_COLUMNS - 1))) > 1


# --- kernels --------------------------------------------------------------------------------

FUNCTIONS = {
    "sum": lambda x: x.sum(),
    "mean of squares": lambda x: (x * x).mean(),
    "two results": lambda x: x.max() - x.min(),
    "columns": lambda x: x.sum(0),
    "column mean and more": lambda x: jnp.exp(-(x * 0.5).mean(0)),
    "rows": lambda x: x.sum(1),
    "middle": lambda x: x.sum(1),
    "outer and inner": lambda x: x.mean((0, 2)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_kernels_are_valid(name):
    shape = (8, 70, 9) if name in ("middle", "outer and inner") else (80, 70)
    kernel = call_of(FUNCTIONS[name], shape).kernel
    split = split_kernel(kernel)
    assert split is not None
    verify(split.partial)
    verify(split.combine)
    assert split.partial.axes[0].name == split.combine.axes[0].name == "part"


def test_a_kernel_that_needs_its_result_again_is_not_split():
    call = call_of(lambda x: x - x.max(1, keepdims=True), (80, 70))
    assert split_kernel(call.kernel) is None


# --- results --------------------------------------------------------------------------------

LENGTHS = [
    MIN_SPLIT - 1,
    MIN_SPLIT,
    MIN_SPLIT + 1,
    65537,
    99991,
    1 << 17,
    (1 << 18) + 63,
]


@pytest.mark.parametrize("length", LENGTHS)
def test_full_reductions_of_awkward_lengths(length):
    x = normals(length)
    total, top, low = gf.jit(lambda x: (x.sum(), x.max(), x.min()))(x)
    wide = x.astype(np.float64)
    # Each of the additions rounds by up to 6e-8 of a lane's sum of 64 normals, which is about 8; at
    # random these add up to 6e-8 * 8 * sqrt(length).
    assert abs(float(total) - wide.sum()) <= 6e-8 * (abs(wide.sum()) + 8 * length**0.5)
    assert float(top) == x.max()
    assert float(low) == x.min()


COLUMNS = [1, 2, 3, 7, 16, 17, 64, 127, 128, 129, 1000]


@pytest.mark.parametrize("columns", COLUMNS)
def test_columns_of_awkward_widths(columns):
    rows = MIN_SPLIT // columns + 13
    x = normals(rows, columns) + 1
    mean, top = gf.jit(lambda x: (x.mean(0), x.max(0)))(x)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(0), rtol=3e-7)
    np.testing.assert_array_equal(top, x.max(0))


VIEWS = {
    "every second": lambda x: x[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T,
    "shifted": lambda x: x[3:, 5:-2],
    "column of three": lambda x: x[:, :3],
    "broadcast": lambda x: x + jnp.arange(x.shape[1], dtype=x.dtype),
    "row times column": lambda x: x[:, :1] * x[:1],
}


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", VIEWS)
def test_views(name, axis):
    x = normals(2311, 301) + 1
    view = VIEWS[name]
    found = gf.jit(lambda x: view(x).sum(axis))(x)
    wide = x.astype(np.float64)
    want = wide + np.arange(301.0) if name == "broadcast" else np.asarray(view(wide))
    np.testing.assert_allclose(found, want.sum(axis), rtol=1e-6, atol=1e-3)


AXES = [
    ((2, 40001, 3), (1,)),
    ((33, 7, 20, 21), (0, 2, 3)),
    ((3, 50000), (1,)),
    ((5, 4, 9000), (0, 2)),
]


@pytest.mark.parametrize("shape, axes", AXES)
def test_inner_and_outer_axes(shape, axes):
    x = normals(*shape) + 1
    found = gf.jit(lambda x: x.mean(axes))(x)
    np.testing.assert_allclose(found, x.astype(np.float64).mean(axes), rtol=1e-6)


DTYPES = ["int8", "uint8", "int16", "int32", "int64", "uint32", "float16", "bfloat16", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, axis", [((100003,), None), ((5003, 31), 0)])
def test_storage_dtypes(dtype, shape, axis):
    with gf.enable_x64(True):
        integers = np.random.default_rng(0).integers(0, 100, shape)
        x = jnp.asarray(integers).astype(dtype)
        total, top = gf.jit(lambda x: (x.sum(axis), x.max(axis)))(x)
        want = integers.sum(axis)
        if dtype in ("float16", "bfloat16"):
            with np.errstate(over="ignore"):
                want = np.asarray(jnp.asarray(want.astype(np.float32)).astype(dtype))
            np.testing.assert_array_equal(np.asarray(total), want)
        else:
            np.testing.assert_array_equal(np.asarray(total).astype(np.float64), want)
        assert (np.asarray(top).astype(int) == integers.max(axis)).all()


def test_integers_wrap():
    x = np.full((70001,), 2**31 - 1, np.int32)
    assert int(gf.jit(lambda x: x.sum(dtype=jnp.int32))(x)) == int(x.sum(dtype=np.int32))
    assert int(gf.jit(lambda x: x.prod(dtype=jnp.int32))(x)) == int(x.prod(dtype=np.int32))


def test_truth_values_and_products():
    for place in (None, 0, 65000, 70000):
        flags = np.zeros(70001, bool)
        if place is not None:
            flags[place] = True
        some, every = gf.jit(lambda x: (x.any(), (~x).all()))(flags)
        assert bool(some) == flags.any() and bool(every) == (~flags).all()
    x = np.random.default_rng(0).uniform(0.9999, 1.0001, 70001).astype(np.float32)
    found = gf.jit(jnp.prod)(x)
    # 70001 roundings of at most 6e-8, which are biased near 1: lanes of NumPy's differ by 4e-4.
    np.testing.assert_allclose(found, x.astype(np.float64).prod(), rtol=4e-3)


# --- special values ---------------------------------------------------------------------------

NAN = float("nan")
SPECIAL = [
    [1.0, NAN],
    [-NAN, 1.0],
    [NAN, np.inf],
    [-NAN, -np.inf],
    [0.0, -0.0],
    [-0.0, -0.0],
    [-np.inf, -np.inf],
    [np.inf, -np.inf],
    [-np.inf, 1e-45],
    [-1e-45, -0.0],
    [3.4e38, np.inf],
]


def _bits(x):
    """Bits, with all nan alike."""
    x = np.asarray(x)
    return np.where(np.isnan(x), np.array(NAN, x.dtype), x).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", SPECIAL, ids=str)
def test_maxima_keep_nan_and_order_zeros(values, dtype):
    """As full, row and column reductions, short and in parts, in either order."""
    top = NAN if np.isnan(values).any() else max(values, key=lambda v: (v, np.copysign(1, v)))
    low = NAN if np.isnan(values).any() else min(values, key=lambda v: (v, np.copysign(1, v)))
    with gf.enable_x64(True):
        for order, count in itertools.product((values, values[::-1]), (1, 30, 40000)):
            x = np.repeat(np.array(order, dtype), count)
            for array, axis in ((x, None), (np.stack([x, x]), 1), (np.stack([x, x], 1), 0)):
                reduce = gf.jit(lambda x, axis=axis: (x.max(axis), x.min(axis)))
                for found, want in zip(reduce(array), (top, low), strict=True):
                    assert _bits(found) == _bits(np.full(np.shape(found), want, dtype))


def test_sums_of_special_values():
    x = np.ones(100003, np.float32)
    for value, place in itertools.product((np.inf, -np.inf, NAN), (0, 65536, 100002)):
        x[place] = value
        np.testing.assert_array_equal(gf.jit(jnp.sum)(x), value)
        x[place] = 1
    x[[3, 90000]] = np.inf, -np.inf
    assert np.isnan(gf.jit(jnp.sum)(x))


def test_empty_axes():
    assert float(gf.jit(jnp.sum)(np.zeros((0,), np.float32))) == 0
    found = gf.jit(lambda x: x.sum(0))(np.zeros((0, 70000), np.float32))
    np.testing.assert_array_equal(found, np.zeros(70000, np.float32))
    assert gf.jit(lambda x: x.sum(0))(np.zeros((70000, 0), np.float32)).shape == (0,)


# --- accuracy and determinism -----------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_sums_of_16_million_are_as_accurate_as_pairwise_ones(shift):
    x = np.random.default_rng(1).random(1 << 24, dtype=np.float32) + np.float32(shift)
    exact = x.sum(dtype=np.float64)
    pairwise = abs(float(x.sum()) - exact)
    rounding = float(np.spacing(np.float32(exact))) / 2
    assert abs(float(gf.jit(jnp.sum)(x)) - exact) <= max(2 * pairwise, 1.01 * rounding)
    columns = x.reshape(-1, 64)
    exact = columns.sum(0, dtype=np.float64)
    error = np.abs(np.asarray(gf.jit(lambda x: x.sum(0))(columns)) - exact).max()
    assert error <= np.abs(columns.sum(0) - exact).max()


NOT_IN_LANES = {
    "reversed": lambda x: x[..., ::-1],
    "every second": lambda x: x[..., ::2],
    "remainder": lambda x: jnp.mod(x, np.float32(0.7)),
    "quotient": lambda x: x * ((jnp.arange(x.shape[-1]) + 1) // 3 % 5),
    "chosen": lambda x: x[..., np.arange(x.shape[-1]) * 7 % x.shape[-1]],
}


@pytest.mark.parametrize("name", NOT_IN_LANES)
def test_sums_are_accurate_where_no_loop_is_vectorized(name):
    function = NOT_IN_LANES[name]
    for shape in [(1300,), (4096,), (3, 2049), (100_003,)]:
        x = np.random.default_rng(1).uniform(0.1, 0.9, shape).astype(np.float32)
        exact = np.asarray(gf.jit(function)(x)).sum(-1, dtype=np.float64)
        got = np.asarray(gf.jit(lambda x: function(x).sum(-1))(x))
        # 128 additions in a row; the rest is added in float64.
        assert np.all(np.abs(got - exact) <= 4 * np.spacing(exact.astype(np.float32)))


_SCRIPT = """
import hashlib, sys
import numpy as np
import gpuflow as gf, gpuflow.numpy as jnp
r = np.random.default_rng(0)
digest = hashlib.sha256()
def softmax(x):
    e = jnp.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)
CASES = [
    (lambda x: x.sum(), (1000003,)), (lambda x: (x * x).mean(), (1031, 1033)),
    (lambda x: x.sum(0), (100003, 7)), (lambda x: x.mean(0), (4099, 1025)),
    (lambda x: x.sum(0), (129, 9001)), (lambda x: x.sum(1), (3, 100003)),
    (lambda x: x.sum(1), (3, 20011, 5)), (lambda x: x.mean((0, 2, 3)), (33, 7, 30, 31)),
    (lambda x: x.sum(1), (30011, 10)), (softmax, (9973, 10)), (softmax, (1031, 129)),
]
for f, shape in CASES:
    x = r.standard_normal(shape, dtype=np.float32)
    digest.update(np.asarray(gf.jit(f)(x)).tobytes())
print(digest.hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads():
    results = set()
    for threads in (1, 2, 3):
        environment = {**os.environ, "GPUFLOW_NUM_THREADS": str(threads)}
        command = [sys.executable, "-c", _SCRIPT]
        ran = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        results.add(ran.stdout)
    assert len(results) == 1
