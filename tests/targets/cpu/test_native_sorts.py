"""Compiled sorts of few elements and cumulative ops, in loops and outside, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from native_programs import in_scan, in_while, is_native

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.aval import ShapedArray
from gpuflow.core.views import View, contiguous
from gpuflow.kir.verify import verify
from gpuflow.ops.sorting.sort_kernels import MAX_ROW_LENGTH, MAX_SELECTED, sort_launches

AROUND = [lambda function: function, in_scan, in_while]
# A row of one digit's length, of short and long digits, rows along each axis.
SHAPES = [(1,), (2,), (127,), (128,), (1500,), (5, 40), (3, 17, 2), (0,), (4, 0), (0, 4)]
SPECIAL = [-np.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 3.0, np.inf, np.nan]


def sample(shape, dtype):
    random = np.random.default_rng(len(shape))
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)
    chosen = random.choice(np.array(SPECIAL), shape)
    x = np.where(random.uniform(size=shape) < 0.5, chosen, random.standard_normal(shape))
    return (x + 1j * random.integers(-2, 2, shape) if dtype.kind == "c" else x).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.complex64])
@pytest.mark.parametrize("shape", SHAPES)
def test_orders(shape, dtype):
    with gf.enable_x64(True):
        x = sample(shape, dtype)
        for axis in range(x.ndim):
            order = np.argsort(x, axis, kind="stable")
            function = gf.jit(in_scan(lambda x, a=axis: (jnp.argsort(x, a), lax.sort(x, a))))
            if x.dtype.kind in "iu":  # a scan adds a float's zero to others only
                function = gf.jit(lambda x, a=axis: (jnp.argsort(x, a), lax.sort(x, a)))
            found, values = map(np.asarray, function(x))
            np.testing.assert_array_equal(found, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


def test_zeros_and_nan_keep_their_bits():
    """Both zeros are equal, and all nan: they keep their order, sign and all."""
    x = np.array([np.nan, 0.0, -0.0, 1.0, -np.nan, 0.0, -0.0], np.float32)
    out, order = map(np.asarray, gf.jit(lambda x: (lax.sort(x), jnp.argsort(x)))(x))
    np.testing.assert_array_equal(order, [1, 2, 5, 6, 3, 0, 4])
    np.testing.assert_array_equal(np.signbit(out), np.signbit(x[order]))


@pytest.mark.parametrize("k", [0, 1, 7, MAX_SELECTED, MAX_SELECTED + 1, 60])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_top_k(k, dtype):
    """In total order: nan by their sign, -0.0 below 0.0; of equal ones the first one is first."""
    with gf.enable_x64(True):
        for x in (sample((3, 60), dtype), np.sort(sample((2, 60), dtype)), sample((60,), dtype)):
            bits = x
            if x.dtype.kind == "f":
                whole = x.view(f"i{x.dtype.itemsize}")
                bits = np.where(whole < 0, whole ^ np.iinfo(whole.dtype).max, whole)
            wide = bits.astype(object)
            order = np.argsort(-wide, axis=-1, kind="stable")[..., :k].astype(np.int32)
            values, positions = map(np.asarray, gf.jit(lambda x: tuple(lax.top_k(x, k)))(x))
            np.testing.assert_array_equal(positions, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_other_axes_and_operands_that_do_not_lie_in_order():
    x = sample((6, 40, 5), np.float32)
    changes = [lambda x: x[::-1, ::2], lambda x: x.swapaxes(0, 2), lambda x: x[1:3, 3:, ::-2]]
    for change in changes:
        wanted = np.sort(change(x), 1, kind="stable")
        found = np.asarray(gf.jit(lambda x, c=change: lax.sort(c(x), 1))(x))
        np.testing.assert_array_equal(found, wanted)
        values = np.asarray(gf.jit(lambda x, c=change: lax.top_k(c(abs(x)), 3, axis=1)[0])(x))
        finite = np.where(np.isnan(x), np.inf, abs(x))
        wanted = -np.sort(-change(finite), 1)[:, :3]
        np.testing.assert_array_equal(np.where(np.isnan(values), np.inf, values), wanted)
    repeated = gf.jit(lambda x: lax.sort(jnp.broadcast_to(x, (3, 5)), 0))(x[0, 0])
    np.testing.assert_array_equal(np.asarray(repeated), np.tile(x[0, 0], (3, 1)))


def test_words_that_sort():
    random = np.random.default_rng(3)
    x = random.integers(-3, 4, 50).astype(np.float32)
    keys = random.integers(0, 3, 50).astype(np.int32)
    for around in AROUND:
        out = gf.jit(around(lambda x: jnp.lexsort((x, keys))))(x)
        np.testing.assert_array_equal(np.asarray(out), np.lexsort((x, keys)))
        out = gf.jit(around(lambda x: jnp.unique(x, size=9, fill_value=7)))(x)
        unique = np.unique(x)
        np.testing.assert_array_equal(np.asarray(out), [*unique, *[7] * (9 - len(unique))])
        places = np.asarray(gf.jit(around(lambda x: jnp.nonzero(x > 0, size=50)[0]))(x))
        wanted = np.flatnonzero(x > 0)
        np.testing.assert_array_equal(places, [*wanted, *[0] * (50 - len(wanted))])
        out = gf.jit(around(jnp.median))(x)
        np.testing.assert_array_equal(np.asarray(out), np.median(x))
        out = gf.jit(around(jnp.cumsum))(x)
        np.testing.assert_array_equal(np.asarray(out), np.cumsum(x))


def test_what_is_native():
    x = sample((40,), np.float32)
    functions = [
        jnp.sort,
        jnp.argsort,
        jnp.median,
        jnp.cumsum,
        jnp.cumprod,
        lambda x: lax.cummax(x),
        lambda x: tuple(lax.top_k(x, 5)),
        lambda x: tuple(lax.top_k(x, 39)),
        lambda x: jnp.nonzero(x, size=8)[0],
        lambda x: jnp.unique(x, size=8),
        lambda x: jnp.lexsort((x, -x)),
        lambda x: jnp.searchsorted(jnp.sort(x), x),
    ]
    for function in functions:
        assert is_native(in_scan(function), x) and is_native(in_while(function), x)
    large = np.zeros(MAX_ROW_LENGTH + 1, np.float32)
    assert not is_native(jnp.sort, large) and is_native(lambda x: tuple(lax.top_k(x, 3)), large)
    assert not is_native(jnp.sort, x[:0])


def test_kernels_keep_the_rules():
    for dtype in (np.float32, np.complex128, np.int16, np.bool_):
        outs = [ShapedArray((3, 200, 2), np.dtype(dtype))] * 2
        for launch in sort_launches([contiguous((3, 200, 2))] * 2, outs, 1, 2, 200).launches:
            verify(launch.kernel)
    out, positions = ShapedArray((9,), np.dtype(np.float32)), ShapedArray((9,), np.dtype(np.int32))
    views = [contiguous((200,))]
    for launch in sort_launches(views, [out, positions], 0, 1, 9, True, True).launches:
        verify(launch.kernel)
    apart = View((4, 5, 6), (1000, 35, 1), 0, (False,) * 3)
    assert sort_launches([apart], [ShapedArray((4, 5, 6), np.dtype(np.float32))], 2, 1, 6) is None


def test_derivatives():
    x = np.random.default_rng(0).permutation(30).astype(np.float32)
    weights = np.arange(30, dtype=np.float32)
    gradient = gf.jit(gf.grad(lambda x: (lax.sort(x) * weights).sum()))(x)
    np.testing.assert_array_equal(np.asarray(gradient), x)
    gradient = gf.jit(gf.grad(lambda x: (lax.top_k(x, 4)[0] * weights[:4]).sum()))(x)
    np.testing.assert_array_equal(np.asarray(gradient), np.where(x > 25, 29 - x, 0))
