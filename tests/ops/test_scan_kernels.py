"""Cumulative ops as kernels: long ones are made of blocks, and what they give is that of a loop."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from together import together

import gpuflow as gf
from gpuflow import lax
from gpuflow.core.aval import ShapedArray
from gpuflow.core.views import View, contiguous
from gpuflow.kir.verify import verify
from gpuflow.ops.reductions.cumulative import cumprod_p, cumsum_p
from gpuflow.ops.reductions.cumulative_kernels import BLOCK

pytestmark = pytest.mark.not_simulated("is about kernels of the CPU")

OPS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
# One row, a prime length, few columns, many columns, an axis of one, long rows.
SHAPES = [
    (1,),
    (7,),
    (0, 3),
    (4 * BLOCK - 1,),
    (4096,),
    (16 * BLOCK + 3,),
    (5003,),
    (2100, 2),
    (3, 70, 40),
    (1, 5000, 1),
    (5, 1100),
]


def numbers(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape) * 3
    if np.dtype(dtype).kind == "c":
        x = x + 1j * random.standard_normal(shape)
    with np.errstate(all="ignore"):  # negative numbers as unsigned ones
        return x.astype(dtype)


def accumulated(name, x, axis, reverse):
    """In float64, or in the integers' own type."""
    wide = {"f": np.float64, "c": np.complex128}.get(x.dtype.kind, x.dtype)
    if x.dtype == ml_dtypes.bfloat16:
        wide = np.float64
    flipped = np.flip(x, axis) if reverse else x
    out = OPS[name].accumulate(flipped.astype(wide), axis, dtype=wide)
    return np.flip(out, axis) if reverse else out


@together(by="name", size=22)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPS)
def test_floats(name, shape, reverse):
    """Within the rounding of blocks of 256, for every axis."""
    x = numbers(shape, np.float32)
    if name == "cumprod":
        x = np.sign(x) * (1 + np.abs(x) / 3000)
    for axis in range(x.ndim):
        out = gf.jit(lambda x, axis=axis: getattr(lax, name)(x, axis, reverse))(x)
        wanted = accumulated(name, x, axis, reverse)
        # Products are made in order: each of up to 5000 factors may round.
        scale = np.abs(wanted) if name == "cumprod" else np.abs(wanted).max(initial=0)
        limit = 5e-4 if name == "cumprod" else 1e-5
        assert (np.abs(np.asarray(out) - wanted) <= limit * scale).all()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int16, np.int64])
@pytest.mark.parametrize("name", OPS)
def test_integers_wrap(name, dtype):
    with gf.enable_x64(True):
        for shape in SHAPES:
            x = numbers(shape, dtype)
            for axis in range(x.ndim):
                out = gf.jit(lambda x, axis=axis: getattr(lax, name)(x, axis, True))(x)
                wanted = accumulated(name, x, axis, True)
                np.testing.assert_array_equal(np.asarray(out), wanted)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.complex128])
def test_other_sums(dtype):
    with gf.enable_x64(True):
        for shape in SHAPES:
            x = numbers(shape, dtype)
            for axis in range(x.ndim):
                out = gf.jit(lambda x, axis=axis: lax.cumsum(x, axis))(x)
                assert out.dtype == dtype
                wanted = accumulated("cumsum", x, axis, False)
                single = np.finfo(dtype).eps > 1e-10
                error = np.abs(np.asarray(out) - wanted).max(initial=0)
                assert error <= (1e-5 if single else 1e-13) * np.abs(wanted).max(initial=0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_added_in_32(dtype):
    """Over all blocks: in 16 bits the sum stops growing at 2048, or at 256."""
    out = np.asarray(gf.jit(lax.cumsum)(np.ones(5000, dtype))).astype(np.float64)
    np.testing.assert_array_equal(out, np.arange(1, 5001).astype(dtype).astype(np.float64))


def test_blocks_lose_less_than_one_long_sum():
    x = numbers((1 << 18,), np.float32)
    wanted = np.cumsum(x, dtype=np.float64)
    error = np.abs(np.asarray(gf.jit(lax.cumsum)(x)) - wanted).max()
    assert error <= np.abs(np.cumsum(x) - wanted).max()


def test_sums_of_positive_numbers_never_fall():
    """The start of a block is the last sum of the one before, to the last bit."""
    x = np.random.default_rng(0).uniform(0, 1, 1 << 15).astype(np.float32)
    x[::3] = 0
    assert (np.diff(np.asarray(gf.jit(lax.cumsum)(x))) >= 0).all()


def test_no_sum_is_minus_zero():
    out = np.asarray(gf.jit(lax.cumsum)(np.full(5000, -0.0, np.float32)))
    assert not np.signbit(out).any()


def test_nan_and_infinities_stay():
    x = np.ones(5000, np.float32)
    x[600], x[3000], x[4000] = np.inf, -np.inf, np.nan
    out = np.asarray(gf.jit(lax.cumsum)(x))
    np.testing.assert_array_equal(out[:600], np.arange(1, 601))
    assert (out[600:3000] == np.inf).all() and np.isnan(out[3000:]).all()
    largest = np.asarray(gf.jit(lax.cummax)(x))
    assert (largest[600:4000] == np.inf).all() and np.isnan(largest[4000:]).all()


def test_minus_zero_is_below_zero():
    x = np.full(5000, -0.0, np.float32)
    x[2500:] = 0.0
    largest, least = (np.asarray(gf.jit(f)(x)) for f in (lax.cummax, lax.cummin))
    assert np.signbit(largest[:2500]).all() and not np.signbit(largest[2500:]).any()
    assert np.signbit(least).all()


def test_a_product_overflows_only_where_it_is_too_large():
    """Factors of a block would give inf, and what came before makes them small."""
    x = np.ones(5000, np.float32)
    x[:4], x[2000:2004], x[4000:4002] = 1e-9, 1e12, 1e-12
    out = np.asarray(gf.jit(lax.cumprod)(x))
    wanted = np.cumprod(x.astype(np.float64))
    np.testing.assert_allclose(out[2003:], wanted[2003:], rtol=1e-5)


CHANGES = {
    "transposed": lambda xp, x: x.T,
    "reversed": lambda xp, x: x[::-1, ::-1],
    "cut": lambda xp, x: x[3:, ::2],
    "repeated": lambda xp, x: xp.broadcast_to(x[:1], (90, 80)),
    "three dimensions": lambda xp, x: x.reshape(90, 8, 10).transpose(0, 2, 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_operands_that_do_not_lie_in_order(change):
    x, change = numbers((90, 80), np.float32), CHANGES[change]
    for axis in range(change(np, x).ndim):
        out = gf.jit(lambda x, axis=axis: lax.cumsum(change(gf.numpy, x), axis))(x)
        wanted = np.cumsum(change(np, x), axis, dtype=np.float64)
        # Equal numbers round alike, up to 90 times.
        np.testing.assert_allclose(np.asarray(out), wanted, rtol=1e-5, atol=1e-4)


def test_inside_a_loop():
    """There the workspace and the carries are parts of another plan's memory."""
    x = numbers((5000,), np.float32)

    def body(carry, _):
        return lax.cumsum(carry) / 100, carry[-1]

    last, _ = gf.jit(lambda x: lax.scan(body, x, None, length=3))(x)
    wanted = x.astype(np.float64)
    for _ in range(3):
        wanted = np.cumsum(wanted) / 100
    np.testing.assert_allclose(np.asarray(last), wanted, atol=1e-4 * np.abs(wanted).max())


def test_gradient_and_batches():
    x = numbers((3, 5000), np.float32)
    weights = numbers((3, 5000), np.float32, 1)
    gradient = gf.jit(gf.grad(lambda x: (gf.vmap(lax.cumsum)(x) * weights).sum()))(x)
    wanted = np.cumsum(weights[:, ::-1].astype(np.float64), 1)[:, ::-1]
    np.testing.assert_allclose(np.asarray(gradient), wanted, atol=1e-3)


def launches(primitive, view, dtype, **params):
    out = ShapedArray(view.shape, np.dtype(dtype))
    params = {"axis": 0, "reverse": False, **params}
    return primitive.lower.what([out], [out], params).launches([view], [out], params)


def test_kernels_keep_the_rules():
    for shape in SHAPES:
        for axis in range(len(shape)):
            for dtype in (np.float32, np.int16, np.complex64):
                kernels = launches(cumsum_p, contiguous(shape), dtype, axis=axis)
                if 0 in shape:
                    assert kernels is None
                    continue
                for launch in kernels.launches:
                    verify(launch.kernel)


def test_complex_products_and_those_without_strides_are_left_to_numpy():
    assert launches(cumprod_p, contiguous((4096,)), np.complex64) is None
    apart = View((10, 20, 30), (1000, 35, 1), 0, (False,) * 3)
    assert launches(cumsum_p, apart, np.float32, axis=2) is None
    assert launches(cumsum_p, apart, np.float32, axis=1) is not None
