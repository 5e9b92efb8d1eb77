"""row_gather and row_scatter_add: against loops, with all their rules and kernel bodies."""

import ml_dtypes
import numpy as np
import pytest
from rule_checks import check_derivatives, check_vmap, random_array, run_body

import gpuflow as gf
from gpuflow.ops.indexing.rows import MODES, fill_value, row_gather, row_gather_p, row_scatter_add
from gpuflow.ops.random import keys

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((5, 4)).astype(np.float32)
INDICES = np.array([[0, 4, 2], [-1, 5, 2]], np.int32)
INSIDE = np.clip(INDICES, 0, 4)
FILL = {"float32": np.nan, "complex64": np.nan, "int8": -128, "uint8": 255, "bool": True}


def gathered(x, indices, mode, batch_dims=0):
    """One row at a time."""
    b = batch_dims
    out = np.zeros((*indices.shape, *x.shape[b + 1 :]), x.dtype)
    for place in np.ndindex(*indices.shape):
        row = int(indices[place])
        inside = 0 <= row < x.shape[b]
        if mode in ("clip", "promise_in_bounds"):
            row, inside = min(max(row, 0), x.shape[b] - 1), True
        if inside:
            out[place] = x[(*place[:b], row)]
        elif mode == "fill":
            out[place] = FILL[x.dtype.name]
    return out


def scattered(rows, indices, shape, mode, batch_dims=0):
    b = batch_dims
    out = np.zeros(shape, rows.dtype)
    for place in np.ndindex(*indices.shape):
        row = int(indices[place])
        if mode == "clip":
            row = min(max(row, 0), shape[b] - 1)
        if 0 <= row < shape[b]:
            out[(*place[:b], row)] += rows[place]
    return out


@pytest.mark.parametrize("mode", MODES)
def test_gather(mode):
    for dtype in FILL:
        x = random_array(GENERATOR, (5, 4), dtype)
        got = row_gather(x, INDICES, mode)
        want = gathered(x, INDICES, mode)
        assert got.dtype == x.dtype
        assert np.array_equal(np.asarray(got), want, equal_nan=dtype in ("float32", "complex64"))
        if dtype != "complex64":
            body = run_body(row_gather_p, x, INDICES, mode=mode, batch_dims=0)
            assert np.array_equal(body, want, equal_nan=dtype == "float32")
    mapped = INDICES if mode != "fill" else INSIDE
    check_vmap(lambda x, i: row_gather(x, i, mode), [X, mapped])
    check_derivatives(lambda x: row_gather(x, INSIDE, mode), [X])


@pytest.mark.parametrize("mode", MODES)
def test_batched_gather(mode):
    x = GENERATOR.standard_normal((2, 5, 4)).astype(np.float32)
    want = gathered(x, INDICES, mode, 1)
    got = row_gather(x, INDICES, mode, batch_dims=1)
    assert np.array_equal(np.asarray(got), want, equal_nan=True)
    body = run_body(row_gather_p, x, INDICES, mode=mode, batch_dims=1)
    assert np.array_equal(body, want, equal_nan=True)
    mapped = INDICES if mode != "fill" else INSIDE
    check_vmap(lambda x, i: row_gather(x, i, mode, 1), [x, mapped])
    check_derivatives(lambda x: row_gather(x, INSIDE, mode, 1), [x])
    deep = GENERATOR.standard_normal((2, 3, 5)).astype(np.float32)
    got = row_gather(deep, INSIDE, mode, batch_dims=2)
    assert np.array_equal(np.asarray(got), gathered(deep, INSIDE, mode, 2))


def test_a_filled_row_has_no_tangent():
    _, tangent = gf.jvp(lambda x: row_gather(x, INDICES, "fill"), (X,), (X,))
    assert np.array_equal(np.asarray(tangent), gathered(X, INDICES, "zero"))
    _, pullback = gf.vjp(lambda x: row_gather(x, INDICES, "fill"), X)
    rows = np.ones((2, 3, 4), np.float32)
    assert np.array_equal(np.asarray(pullback(rows)[0]), scattered(rows, INDICES, (5, 4), "zero"))


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "uint32", "int32"])
def test_index_dtypes(dtype):
    x = GENERATOR.standard_normal((300,)).astype(np.float32)
    top = min(299, np.iinfo(dtype).max)
    indices = np.array([0, top, 7], dtype)
    for mode in MODES:
        assert np.array_equal(np.asarray(row_gather(x, indices, mode)), x[[0, top, 7]])
        body = run_body(row_gather_p, x, indices, mode=mode, batch_dims=0)
        assert np.array_equal(body, x[[0, top, 7]])


def test_huge_unsigned_indices():
    """As int64 they would be negative; they lie beyond the end all the same."""
    indices = np.array([2**63 + 1, 1], np.uint64)
    for mode, first in (("clip", X[4]), ("zero", 0 * X[4])):
        body = run_body(row_gather_p, X, indices, mode=mode, batch_dims=0)
        assert np.array_equal(body, np.stack([first, X[1]]))


def test_one_row_and_one_element():
    assert np.array_equal(np.asarray(row_gather(X, np.int32(3), "clip")), X[3])
    one = row_gather(X[:, 0], np.int32(9), "fill")
    assert one.shape == () and np.isnan(float(one))
    assert float(row_gather(X[:, 0], 2, "fill")) == X[2, 0]


def test_empty():
    none = np.zeros((0, 4), np.float32)
    assert row_gather(none, np.zeros((0,), np.int32), "clip").shape == (0, 4)
    assert np.isnan(np.asarray(row_gather(none, INDICES, "fill"))).all()
    assert row_scatter_add(none, np.zeros((0,), np.int32), (3, 4)).shape == (3, 4)
    assert row_scatter_add(np.ones((2, 3, 4)), INDICES, (0, 4)).shape == (0, 4)


def test_keys_gather():
    seeded = keys.random_seed(np.arange(5))
    got = np.asarray(keys.random_unwrap(row_gather(seeded, INSIDE, "clip")))
    assert np.array_equal(got, np.asarray(keys.random_unwrap(seeded))[INSIDE])


@pytest.mark.parametrize("mode", MODES)
def test_scatter(mode):
    for dtype in ("float32", "complex64", "int32", "uint8"):
        rows = random_array(GENERATOR, (2, 3, 4), dtype)
        got = row_scatter_add(rows, INDICES, (5, 4), mode)
        want = scattered(rows, INDICES, (5, 4), mode)
        assert got.dtype == rows.dtype
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6, atol=1e-6)
    rows = GENERATOR.standard_normal((2, 3, 4)).astype(np.float32)
    # Rows that meet are added in another order under vmap.
    check_vmap(lambda r, i: row_scatter_add(r, i, (5, 4), mode), [rows, INDICES], tolerance=1e-6)
    check_derivatives(lambda r: row_scatter_add(r, INSIDE, (5, 4), mode), [rows])
    got = row_scatter_add(rows, INDICES, (2, 5, 4), mode, batch_dims=1)
    want = scattered(rows, INDICES, (2, 5, 4), mode, 1)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6, atol=1e-6)
    check_vmap(
        lambda r, i: row_scatter_add(r, i, (2, 5, 4), mode, 1), [rows, INDICES], tolerance=1e-6
    )
    deep = GENERATOR.standard_normal((2, 3)).astype(np.float32)
    got = row_scatter_add(deep, INSIDE, (2, 3, 5), mode, batch_dims=2)
    assert np.array_equal(np.asarray(got), scattered(deep, INSIDE, (2, 3, 5), mode, 2))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_narrow_floats_add_in_float32(dtype):
    """4096 ones, added in a format of 8 or 11 bits, would stop at 256 or 2048."""
    ones = np.ones((4096,), dtype)
    total = row_scatter_add(ones, np.zeros((4096,), np.int32), (2,))
    assert np.asarray(total).astype(np.float32).tolist() == [4096, 0]


ERRORS = [
    (lambda: row_gather(X, INDICES * 1.0), TypeError, r"\[row_gather\] .*integer indices; got f32"),
    (lambda: row_gather(X, INDICES, "wrap"), ValueError, r"mode must be one of .*; got 'wrap'"),
    (
        lambda: row_gather(X[0, 0], INDICES),
        ValueError,
        r"must have rows .* got f32\[\], i32",
    ),
    (lambda: row_gather(X, INDICES, "clip", 1), ValueError, r"share its first 1 sizes"),
    (lambda: row_gather(X[:0], INDICES, "clip"), IndexError, r"nothing to take; got f32\[0,4\]"),
    (
        lambda: row_scatter_add(X, INDICES, (5, 4)),
        ValueError,
        r"rows f32\[5,4\], indices i32",
    ),
    (lambda: row_scatter_add(X, X, (5, 4)), TypeError, r"\[row_scatter_add\] .*integer indices"),
    (
        lambda: row_scatter_add(X > 0, INDICES[0], (5, 4)),
        TypeError,
        r"must be a number .* got bool",
    ),
    (lambda: row_scatter_add(X, INDICES, (5, 4), "x"), ValueError, r"mode must be one of"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, error, message = ERRORS[number]
    with pytest.raises(error, match=message):
        call()


def test_fill_value_of_keys():
    seeded = keys.random_seed(np.arange(2))
    got = row_gather(seeded, np.int32(5), "fill")
    assert np.asarray(keys.random_unwrap(got)).tolist() == [2**32 - 1] * 2
    assert fill_value(seeded.dtype) == 2**64 - 1
