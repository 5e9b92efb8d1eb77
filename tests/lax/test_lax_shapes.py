"""The short forms of gpuflow.lax, and ops on bits, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_filled_arrays():
    assert lax.full((2, 0), 1).shape == (2, 0)
    assert lax.full((2,), 3).weak_type and lax.full((2,), 3, np.int8).dtype == np.int8
    np.testing.assert_array_equal(lax.full_like(X, 7), np.full_like(X, 7))
    assert lax.full_like(X, 1, dtype=np.int32, shape=(2,)).shape == (2,)
    assert lax.empty((2,), None).dtype == np.float32
    assert lax.asarray(3).dtype == np.int32 and lax.dtype(2.0) == np.float32
    for given in (np.dtype("float64"), float, jnp.float32):  # dtypes too
        assert lax.dtype(given) == np.float32
    with pytest.raises(TypeError, match="scalar"):
        lax.full((2,), X)


def test_shapes():
    np.testing.assert_array_equal(lax.broadcast(X, (2,)), np.stack([X, X]))
    assert lax.broadcast_shapes((3, 1), (4,), ()) == (3, 4)
    assert lax.expand_dims(X, (0, -1)).shape == (1, 3, 4, 1)
    assert lax.collapse(jnp.ones((2, 3, 4)), 1).shape == (2, 12)
    assert lax.collapse(jnp.ones((2, 3, 4)), 0, 2).shape == (6, 4)
    for got, want in zip(lax.split(X, (1, 0, 3), 1), np.split(X, [1, 1], 1), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(lax.tile(X, (2, 3)), np.tile(X, (2, 3)))
    np.testing.assert_array_equal(lax.stack([X, X + 1], 1), np.stack([X, X + 1], 1))
    np.testing.assert_array_equal(lax.unstack(X, 1)[2], X[:, 2])
    for call in (
        lambda: lax.split(X, (1, 1)),
        lambda: lax.tile(X, (2,)),
        lambda: lax.broadcast_shapes((2,), (3,)),
    ):
        with pytest.raises(ValueError, match="Fix:"):
            call()


@pytest.mark.parametrize("start", [0, 1, 2, 5, -1, -9])
def test_windows_at_run_time(start):
    place = min(max(start + 3 if start < 0 else start, 0), 1)
    for given in (start, jnp.int32(start)):
        for call in (lambda f: f, gf.jit):
            got = call(lambda s: lax.dynamic_slice(X, (s, 1), (2, 2)))(given)
            np.testing.assert_array_equal(got, X[place : place + 2, 1:3])
            got = call(lambda s: lax.dynamic_update_slice(X, np.zeros((2, 2), np.float32), (s, 1)))(
                given
            )
            want = X.copy()
            want[place : place + 2, 1:3] = 0
            np.testing.assert_array_equal(got, want)


def test_windows_along_one_axis():
    assert lax.dynamic_slice(X, jnp.array([1, 2]), (1, 2)).tolist() == [[6, 7]]
    np.testing.assert_array_equal(lax.dynamic_slice_in_dim(X, 1, 2, 1), X[:, 1:3])
    np.testing.assert_array_equal(lax.dynamic_index_in_dim(X, -1, 1, False), X[:, 3])
    np.testing.assert_array_equal(lax.index_in_dim(X, -1, 0), X[2:])
    got = lax.dynamic_update_index_in_dim(X, np.zeros(3, np.float32), jnp.int32(2), 1)
    np.testing.assert_array_equal(got[:, 2], 0)
    np.testing.assert_array_equal(lax.index_take(X, (np.array([0, 3]),), (1,)), X[:, [0, 3]].T)
    with pytest.raises(IndexError, match="index_in_dim"):
        lax.index_in_dim(X, 3)


def test_products():
    np.testing.assert_allclose(lax.dot(X, X.T, precision=lax.Precision.HIGHEST), X @ X.T)
    np.testing.assert_allclose(lax.dot(X[0], X[1]), X[0] @ X[1])
    np.testing.assert_allclose(
        lax.batch_matmul(jnp.ones((2, 3, 4)), jnp.ones((2, 4, 5))), np.full((2, 3, 5), 4)
    )
    with pytest.raises(TypeError, match="vectors or matrices"):
        lax.dot(jnp.ones((2, 2, 2)), X)
    with pytest.raises(TypeError, match="one rank"):
        lax.batch_matmul(X, jnp.ones((2, 2, 2)))


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [((8, 7), ml_dtypes.bfloat16), ((5, 10), np.float16)],
)
def test_reduce_precision_is_rounding_to_the_format(bits, dtype):
    generator = np.random.default_rng(0)
    x = (generator.normal(size=4000) * 10.0 ** generator.uniform(-4, 4, 4000)).astype(np.float32)
    x = np.concatenate([x, np.array([0, -0.0, np.inf, -np.inf, np.nan, 65519, 65520, 1e38])])
    x = x.astype(np.float32)
    want = x.astype(dtype).astype(np.float32)
    # Subnormal numbers of the format become 0.
    want = np.where(np.abs(want) < float(ml_dtypes.finfo(dtype).tiny), np.copysign(0, x), want)
    for call in (lax.reduce_precision, gf.jit(lax.reduce_precision, static_argnums=(1, 2))):
        np.testing.assert_array_equal(call(x, *bits), want)
    with pytest.raises(ValueError, match="exponent bit"):
        lax.reduce_precision(x, 0, 3)
    with pytest.raises(TypeError, match="real float"):
        lax.reduce_precision(np.arange(3), 5, 10)


@pytest.mark.parametrize(
    ("bits", "want"),
    [
        ((8, 23), [0x116C2, 0x800000, 0x7FFFFF, 0x7F675C, 0x4040B4, 0x80000001]),
        ((8, 7), [0x10000, 0x800000, 0x800000, 0x7F0000, 0x400000, 0x80000000]),
        ((8, 0), [0, 0x800000, 0x800000, 0x800000, 0x800000, 0x80000000]),
        ((11, 52), [0x116C2, 0x800000, 0x7FFFFF, 0x7F675C, 0x4040B4, 0x80000001]),
        ((5, 10), [0, 0, 0, 0, 0, 0x80000000]),
    ],
)
def test_subnormal_numbers_stay_where_the_exponent_does(bits, want):
    """Compared with JAX 0.10.2. They became 0."""
    x = np.array([0x116C2, 0x800000, 0x7FFFFF, 0x7F675C, 0x4040B4, 0x80000001], np.uint32)
    x = x.view(np.float32)
    for call in (lax.reduce_precision, gf.jit(lax.reduce_precision, static_argnums=(1, 2))):
        np.testing.assert_array_equal(np.asarray(call(x, *bits)).view(np.uint32), want)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_kernels_have_the_bits_of_all_16_bit_floats(dtype):
    generator = np.random.default_rng(0)
    x = np.arange(65536, dtype=np.uint16).view(dtype)

    def same(got, want):
        differs = np.asarray(got).view(np.uint16) != np.asarray(want).view(np.uint16)
        assert np.isnan(np.asarray(got)[differs].astype(np.float32)).all()
        assert np.isnan(np.asarray(want)[differs].astype(np.float32)).all()

    with np.errstate(all="ignore"):
        for y in (generator.permutation(x), x, np.zeros_like(x), np.full_like(x, -0.0)):
            # A zero towards a zero is the second one.
            want = np.where(x == y, y, np.nextafter(x, y))
            for call in (lax.nextafter, gf.jit(lax.nextafter)):
                same(call(x, y), want)
    rounded = gf.jit(lax.reduce_precision, static_argnums=(1, 2))
    for bits in ((1, 0), (2, 3), (4, 10), (5, 1), (5, 8), (8, 0), (8, 6), (9, 12)):
        same(rounded(x, *bits), lax.reduce_precision(x, *bits))


def test_transformations_of_reduce_precision():
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    rounded = gf.vmap(lambda v: lax.reduce_precision(v, 8, 3), in_axes=0)(x)
    np.testing.assert_array_equal(rounded, lax.reduce_precision(x, 8, 3))
    out, tangent = gf.jvp(lambda v: lax.reduce_precision(v, 8, 3), (x,), (x,))
    np.testing.assert_array_equal(out, tangent)
    slope = gf.grad(lambda v: jnp.sum(lax.reduce_precision(v, 8, 3) * 1.0625))(x)
    np.testing.assert_array_equal(slope, np.full_like(x, 1.0))


def test_bits_of_integers():
    x = np.array([0, 1, 7, -1, 127, -128], np.int8)
    assert lax.population_count(x).tolist() == [0, 1, 3, 8, 7, 1]
    assert lax.clz(x).tolist() == [8, 7, 5, 0, 1, 0]
    assert lax.clz(np.uint32(1)) == 31
    assert lax.nextafter(np.float32(1), np.float32(2)) == np.nextafter(np.float32(1), 2)
    with pytest.raises(TypeError, match="integer"):
        lax.clz(1.0)


@pytest.mark.parametrize("start", [-(2**40), -7, -5, -2, 0, 2, 4, 9, 2**40])
def test_windows_at_known_places_far_outside(start):
    """Python's ints of any size choose the window nearest to them, eagerly and inside of jit."""
    x, few = np.arange(5, dtype=np.float32), np.array([8.0, 9.0], np.float32)
    first = min(max(start + 5 if start < 0 else start, 0), 3)
    updated = x.copy()
    updated[first : first + 2] = few
    element = min(max(start + 5 if start < 0 else start, 0), 4)
    changed = x.copy()
    changed[element] = 7
    seven = np.float32(7)
    for run in (lambda f: f, gf.jit):
        sliced = run(lambda x: lax.dynamic_slice(x, (start,), (2,)))(x)
        np.testing.assert_array_equal(sliced, x[first : first + 2])
        sliced = run(lambda x: lax.dynamic_slice_in_dim(x, start, 2))(x)
        np.testing.assert_array_equal(sliced, x[first : first + 2])
        out = run(lambda x: lax.dynamic_update_slice(x, few, (start,)))(x)
        np.testing.assert_array_equal(out, updated)
        assert run(lambda x: lax.dynamic_index_in_dim(x, start, keepdims=False))(x) == x[element]
        out = run(lambda x: lax.dynamic_update_index_in_dim(x, seven, start, 0))(x)
        np.testing.assert_array_equal(out, changed)


def test_unstack_of_few_and_of_many():
    for shape in ((3, 4), (2, 100)):
        x = np.arange(np.prod(shape)).reshape(shape)
        parts = lax.unstack(jnp.asarray(x), 1)
        assert type(parts) is list
        np.testing.assert_array_equal(np.stack(parts, 1), x)
    assert lax.unstack(jnp.ones((2, 0)), 1) == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
def test_shifts_by_any_count(dtype):
    """Counts beyond the width, and negative ones, leave zeros, or copies of the sign."""
    info = np.iinfo(dtype)
    width = info.bits
    values = [info.min, info.max, 1, 0, 5, info.max // 3]
    counts = [0, 1, width - 1, width, width + 1, info.max] + [-1, info.min] * (info.min < 0)
    x, y = (a.ravel() for a in np.meshgrid(np.array(values, dtype), np.array(counts, dtype)))
    inside = [0 <= int(count) < width for count in y]
    words = [int(v) % 2**width for v in x]
    signed = [v - 2**width if v >= 2 ** (width - 1) else v for v in words]
    shifts = [int(c) if ok else 0 for c, ok in zip(y, inside)]
    wanted = {
        lax.shift_left: [v << s if ok else 0 for v, s, ok in zip(words, shifts, inside)],
        lax.shift_right_logical: [v >> s if ok else 0 for v, s, ok in zip(words, shifts, inside)],
        lax.shift_right_arithmetic: [
            v >> (s if ok else width - 1) for v, s, ok in zip(signed, shifts, inside)
        ],
    }
    for function, results in wanted.items():
        want = np.array([v % 2**width for v in results], np.uint64).astype(f"u{width // 8}")
        for run in (function, gf.jit(function)):
            got = np.asarray(run(jnp.asarray(x), jnp.asarray(y)))
            np.testing.assert_array_equal(got.view(want.dtype), want)


@pytest.mark.parametrize("count", [3, 5000])
def test_maxima_of_zeros_and_nan(count):
    x = np.tile(np.array([0.0, -0.0, 0.0, -0.0, np.nan, 1.0, -5.0], np.float32), count)
    y = np.tile(np.array([-0.0, 0.0, 0.0, -0.0, 0.0, np.nan, -0.0], np.float32), count)
    largest, least = np.asarray(lax.max(x, y))[:7], np.asarray(lax.min(x, y))[-7:]
    np.testing.assert_array_equal(np.signbit(largest[[0, 1, 2, 3, 6]]), [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(np.signbit(least[:4]), [1, 1, 0, 1])
    assert np.isnan(largest[4:6]).all() and np.isnan(least[4:6]).all() and least[6] == -5
    assert lax.max(np.float32(1), np.float32(2)) == 2 and lax.min(x[:0], y[:0]).shape == (0,)
