"""sort and top_k: against JAX, permutation properties, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
from gpuflow import lax, random
from gpuflow.ops.sorting import sort

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    ml_dtypes.bfloat16,
    "float32",
    "float64",
    "complex64",
)
EXTREMES = [-np.inf, -3.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3.5, np.inf]


def sample(dtype, shape, seed=0):
    """Many repeated values, with the bounds of the dtype among them."""
    dtype, generator = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return generator.choice(np.array([bounds.min, 0, 1, 5, bounds.max], dtype), shape)
    values = generator.choice(np.array([*EXTREMES, np.nan]), shape)
    if dtype.kind == "c":
        values = values + 1j * generator.choice(np.array(EXTREMES[1:-1]), shape)
    return values.astype(dtype)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_values_and_permutation(dtype, axis):
    """Values alone, and with their positions, are NumPy's stable order, bit for bit."""
    with gf.enable_x64(True):
        x = sample(dtype, (40, 37))
        comparable = x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x
        order = np.argsort(comparable, axis=axis, kind="stable")
        want = np.take_along_axis(comparable, order, axis)
        positions = np.indices(x.shape)[axis].astype(np.int32)
        for call in (lambda f: f, gf.jit):
            alone = np.asarray(call(lambda x: lax.sort(x, axis))(x))
            pair = call(lambda x, p: lax.sort([x, p], axis))(x, positions)
            np.testing.assert_array_equal(np.asarray(pair[1]), order)
            for got in (alone, np.asarray(pair[0])):
                assert got.dtype == x.dtype
                np.testing.assert_array_equal(got.astype(comparable.dtype), want)
                if comparable.dtype.kind == "f":
                    zeros = want == 0
                    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_ordered_bits_keep_the_order(dtype):
    x = np.array(sorted({float(np.dtype(dtype).type(v)) for v in EXTREMES}), dtype)
    bits = sort._ordered_bits(np, x)
    assert (np.diff(bits.astype(object)) > 0).all()
    minus, plus = (sort._ordered_bits(np, np.array([v], x.dtype)) for v in (-0.0, 0.0))
    assert minus < plus


def test_several_keys_are_a_lexicographic_order():
    first, second, third = (sample(d, (200,), k) for k, d in enumerate(("int8", "float32", "bool")))
    outs = lax.sort([first, second, third, np.arange(200, dtype=np.int32)], num_keys=3)
    order = np.lexsort((third, second, first))
    np.testing.assert_array_equal(np.asarray(outs[3]), order)
    np.testing.assert_array_equal(np.asarray(outs[1]), second[order])


def test_random_keys_are_moved_but_are_no_keys():
    keys = random.split(random.key(0), 4)
    moved = lax.sort_key_val(np.array([3, 1, 2, 0]), keys)[1]
    want = np.asarray(random.key_data(keys))[[3, 1, 2, 0]]
    np.testing.assert_array_equal(np.asarray(random.key_data(moved)), want)
    with pytest.raises(TypeError, match=r"\[sort\].*where it is a key"):
        lax.sort(keys)


@pytest.mark.parametrize("k", [0, 1, 7, 50])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "float16"])
def test_top_k_is_the_stable_descending_order(dtype, k):
    with gf.enable_x64(True):
        x = sample(dtype, (6, 50))
        x = np.where(x == x, x, x.dtype.type(2))
        values, positions = lax.top_k(x, k)
        # Backwards, so that a stable ascending order has the first of equal elements last; zeros
        # have the order of their signs, which one more bit gives.
        keys = np.signbit(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        order = np.lexsort((~keys[:, ::-1], x[:, ::-1]))
        want = (49 - order[:, ::-1])[:, :k]
        np.testing.assert_array_equal(np.asarray(positions), want)
        np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, want, 1))
        assert positions.dtype == np.int32
        np.testing.assert_array_equal(np.asarray(lax.top_k(x[0], k)[1]), want[0])


def test_second_order_and_mixed_modes():
    """The permutation is constant, so that second derivatives come from the rest alone."""
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)

    def function(x):
        return (lax.sort(x, 1) ** 3).sum()

    np.testing.assert_allclose(np.asarray(gf.grad(function)(x)), 3 * x**2, rtol=1e-6)
    second = gf.hessian(lambda row: (lax.sort(row) ** 3).sum())(x[0])
    np.testing.assert_allclose(np.asarray(second), np.diag(6 * x[0]), rtol=1e-6)
    mapped = gf.jit(gf.vmap(gf.grad(lambda row: (lax.top_k(row, 2)[0] ** 2).sum())))(x)
    kept = np.asarray(x) >= np.sort(x, 1)[:, -2:-1]
    np.testing.assert_allclose(np.asarray(mapped), np.where(kept, 2 * x, 0), rtol=1e-6)


def test_operands_are_left_alone():
    x = np.array([[3.0, 1.0], [2.0, -0.0]], np.float32)
    kept = x.copy()
    for call in (lax.sort, gf.jit(lax.sort), lambda x: lax.top_k(x, 1)):
        call(x)
    np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_to_sort(shape):
    x = np.zeros(shape, np.float32)
    outs = lax.sort([x, x], num_keys=2)
    assert lax.sort(x).shape == outs[0].shape == shape
    assert gf.jit(lambda x: lax.sort(x, 0))(x).shape == shape
    assert lax.top_k(x, 0)[0].shape == (*shape[:-1], 0)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: lax.sort([]), TypeError, r"\[sort\] there must be an array"),
        (lambda: lax.sort([X, X[0]]), TypeError, r"equal shapes; got f32\[2,3\], f32\[3\]"),
        (lambda: lax.sort(X, 2), ValueError, r"\[sort\]"),
        (lambda: lax.sort(X[0, 0]), ValueError, r"\[sort\]"),
        (lambda: lax.sort([X, X], num_keys=3), ValueError, r"num_keys must be in \[1, 2\]; got 3"),
        (
            lambda: sort.sort_p.bind(X, dimension=-1, is_stable=True, num_keys=1),
            ValueError,
            r"dimension must be in \[0, 2\)",
        ),
        (
            lambda: sort.sort_p.bind(dimension=0, is_stable=True, num_keys=1),
            TypeError,
            "there must be an array",
        ),
        (lambda: lax.top_k(X, 4), ValueError, r"\[top_k\] k must be in \[0, 3\].*got 4"),
        (lambda: lax.top_k(X, -1), ValueError, "k must be in"),
        (lambda: lax.top_k(X, 1, axis=2), ValueError, r"\[top_k\]"),
        (lambda: sort.top_k_p.bind(X, k=1, axis=-1), ValueError, "axis must be in"),
        (lambda: lax.top_k(X * 1j, 1), ValueError, "a real float or bool"),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.uint8])
@pytest.mark.parametrize("k", [1, 5, 32])
def test_the_greatest_few_of_long_rows_are_those_of_numpy(dtype, k):
    """A list in order is kept, for arrays of any size; NumPy sorts where ops run one by one."""
    generator = np.random.default_rng(k)
    x = generator.integers(0, 200, (300, 700)).astype(dtype)
    x[0], x[1], x[2] = np.sort(x[0]), -np.sort(-x[1].astype(np.int64)).astype(dtype), 7
    if np.dtype(dtype).kind == "f":
        special = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40], dtype)
        x[3:9] = generator.choice(special, (6, 700))
    for array, axis in ((x, 1), (x.T, 0), (x[::-1, ::-1], 1), (x.reshape(-1), 0)):
        operand = gf.numpy.asarray(array)
        with gf.disable_jit():
            want = lax.top_k(operand, k, axis=axis)
        got = gf.jit(lambda v, axis=axis: lax.top_k(v, k, axis=axis))(operand)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(
                np.asarray(a).view(f"V{a.dtype.itemsize}"),
                np.asarray(b).view(f"V{b.dtype.itemsize}"),
            )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_no_zero_is_lost(dtype):
    """NumPy's sort in vectors gives one of -0 and 0 twice: one zero of the other sign was lost."""
    with gf.enable_x64(dtype == "float64"):
        for size in (16, 33, 1000):
            for place in range(0, size, 7):
                x = np.resize([-0.0, 1.0, -2.0, -0.0], size).astype(gf.numpy.dtype(dtype))
                x[place] = 0
                zeros = np.signbit(x[x == 0].astype(float))
                with gf.disable_jit():
                    plain = np.asarray(lax.sort(x))
                for got in (plain, np.asarray(lax.sort(x)), np.asarray(gf.jit(lax.sort)(x))):
                    kept = np.signbit(got[got == 0].astype(float))
                    np.testing.assert_array_equal(kept, zeros)
