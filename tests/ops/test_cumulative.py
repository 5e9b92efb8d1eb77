"""Cumulative ops: against JAX, against loops, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
from gpuflow import lax
from gpuflow.ops.reductions.cumulative import _doubling

OPS = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": np.logaddexp,
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 31, 33])
@pytest.mark.parametrize("name", OPS)
def test_against_a_loop(name, size, reverse):
    """Eager and jit, values and tangents: each output depends on what came before it only."""
    random = np.random.default_rng(size)
    x, t = random.uniform(0.5, 1.5, (2, 2, size, 3))
    order = slice(None, None, -1 if reverse else 1)

    def loop(x):
        rows = [x[:, order][:, 0]]
        for k in range(1, size):
            rows.append(OPS[name](rows[-1], x[:, order][:, k]))
        return np.stack(rows, 1)[:, order]

    def function(x):
        return getattr(lax, name)(x, 1, reverse)

    with gf.enable_x64(True):
        for call in (function, gf.jit(function)):
            np.testing.assert_allclose(np.asarray(call(x)), loop(x), rtol=1e-12)
        _, tangent = gf.jvp(function, (x,), (t,))
        step = 1e-6
        quotient = (loop(x + step * t) - loop(x - step * t)) / (2 * step)
        # Products of 33 factors grow to 1e5, and with them the rounding of the differences.
        np.testing.assert_allclose(np.asarray(tangent), quotient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_added_in_32(dtype):
    """One thousand and more ones: in 16 bits the sum stops growing at 2048, or at 256."""
    out = lax.cumsum(np.ones(3000, dtype))
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out), np.arange(1, 3001).astype(dtype))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16, "int8", "complex64"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_short_ones_are_written_out(name, dtype, reverse):
    """The same bits as outside of jit, in one kernel; running sums of float32 are rounded once."""
    random = np.random.default_rng(0)
    for shape, axis in [((50, 4), 1), ((3, 50), 0), ((4, 8, 5), 1), ((6,), 0), ((2, 1), 1)]:
        x = (random.standard_normal(shape) * 10).astype(dtype)
        if x.ndim == 2 and np.dtype(dtype).kind in "fV":
            x[0], x[1, 0] = -0.0, np.nan
        function = gf.jit(lambda x, axis=axis: getattr(lax, name)(x, axis, reverse))
        got, want = np.asarray(function(x)), np.asarray(getattr(lax, name)(x, axis, reverse))
        if np.dtype(dtype).kind == "V":  # NumPy's tests do not know its nan
            got, want = got.astype("f"), want.astype("f")
        np.testing.assert_array_equal(got, want)
        if np.dtype(dtype).kind in "fV":
            known = want == want
            np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])
        if dtype != "complex64":
            assert "library" not in function.lower(x).compile().as_text()


def test_short_ones_that_kernels_do_not_hold():
    """Numbers of 4 bits: equations of them raised a KeyError."""
    x = np.array([1, 2, 3, 7]).astype(ml_dtypes.int4)
    np.testing.assert_array_equal(gf.jit(lax.cumsum)(x).astype(np.int8), [1, 3, 6, -3])


@pytest.mark.parametrize("function", [np.add, np.maximum, np.minimum, np.logaddexp])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 8, 13])
def test_doubling_agrees_with_accumulate(function, size):
    """The portable scan, for libraries and dtypes without accumulate."""
    x = np.random.default_rng(size).standard_normal((3, size))
    got = _doubling(np, lambda xp, a, b: function(a, b), x, 1)
    np.testing.assert_allclose(got, function.accumulate(x, 1), rtol=1e-12)


def test_operands_are_left_alone():
    x = np.array([[-0.0, 0.0], [3.0, np.nan]], np.float32)
    kept = x.copy()
    for name in OPS:
        gf.jit(getattr(lax, name))(x)
        getattr(lax, name)(x)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(np.signbit(x), np.signbit(kept))


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: lax.cumsum(np.ones(3), -1), ValueError, r"\[cumsum\] axis must be in \[0, 1\)"),
        (lambda: lax.cummax(np.ones(()), 0), ValueError, r"\[cummax\] axis.*Fix"),
        (lambda: lax.cumprod(np.array([True])), TypeError, r"\[cumprod\].*a number \(not bool\)"),
        (lambda: lax.cumlogsumexp(np.arange(3)), TypeError, r"a float or complex number; got i32"),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


@pytest.mark.parametrize("shape", [(100_000,), (20_000, 40), (3, 9_000)])
def test_compiled_running_sums_are_rounded_once(shape):
    x = np.random.default_rng(0).random(shape, np.float32)
    for axis in range(len(shape)):
        exact = np.cumsum(x.astype(np.float64), axis)
        got = np.asarray(gf.jit(lambda x, axis=axis: lax.cumsum(x, axis))(x))
        assert np.all(np.abs(got - exact) <= 0.51 * np.spacing(exact.astype(np.float32)))


@pytest.mark.parametrize("x", [[3.0, 3.0], [3.0, 3.0, 1.0], [0.0] * 5, [1.0, -2.0, 1.0, 3.0]])
def test_second_derivatives_of_logsumexp_where_elements_are_equal(x):
    """Those of a maximum and of a distance are no help there: they gave other matrices."""
    x = np.array(x)
    weights = np.linspace(-1, 1, len(x))
    want = np.zeros((len(x), len(x)))
    for k, weight in enumerate(weights):
        share = np.where(np.arange(len(x)) <= k, np.exp(x), 0)
        share /= share.sum()
        want += weight * (np.diag(share) - np.outer(share, share))

    def loss(x):
        return lax.reduce_sum(lax.mul(lax.cumlogsumexp(x), weights), (0,))

    orders = [(gf.jacfwd, gf.jacrev), (gf.jacrev, gf.jacrev), (gf.jacrev, gf.jacfwd)]
    with gf.enable_x64(True):
        for outer, inner in orders:
            np.testing.assert_allclose(outer(inner(loss))(x), want, atol=1e-14)
