"""The rest of gpuflow.lax: windows, scatters, bits and products as what they are defined to be."""

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ROW = lax.ScatterDimensionNumbers((), (0,), (0,))


# --- windows -------------------------------------------------------------------------------


def by_windows(x, source, window, strides, pads, start):
    """A loop over windows: add the source where the number of the largest magnitude stands."""
    out = np.full_like(x, start)
    counts = source.shape
    for place in np.ndindex(*counts):
        best = None
        for offset in np.ndindex(*window):
            at = tuple(p * s + o - low for p, s, o, (low, _) in zip(place, strides, offset, pads))
            inside = all(0 <= k < n for k, n in zip(at, x.shape))
            if inside and (best is None or abs(x[at]) > abs(x[best])):
                best = at
        if best is not None:
            out[best] = max(out[best], source[place])
    return out


@pytest.mark.parametrize(
    ("window", "strides", "pads"),
    [
        ((2, 2), (2, 2), ((0, 1), (0, 0))),
        ((2, 3), (1, 2), ((1, 0), (1, 1))),
        ((1, 1), (1, 1), ((0, 0), (0, 0))),
    ],
)
def test_select_and_scatter_of_any_functions(window, strides, pads):
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 4)).astype(np.float32)
    shape = lax.reduce_window_shape_tuple(x.shape, window, strides, pads)
    source = random.normal(size=shape).astype(np.float32)

    def select(a, b):
        return lax.ge(lax.abs(a), lax.abs(b))

    def function(x, source):
        return lax.select_and_scatter(
            x, select, window, strides, pads, source, np.float32(0.25), lax.max
        )

    want = by_windows(x, source, window, strides, pads, 0.25)
    for call in (lambda f: f, gf.jit):
        np.testing.assert_array_equal(call(function)(x, source), want)
    mapped = gf.vmap(function, in_axes=(None, 0))(x, np.stack([source, source + 1]))
    np.testing.assert_array_equal(mapped[0], want)


def test_select_and_scatter_add_is_the_transpose_of_gather():
    random = np.random.default_rng(1)
    x, t = random.normal(size=(2, 4, 5)).astype(np.float32)
    arguments = (lax.le_p, (2, 2), (1, 2), ((0, 1), (1, 0)))
    read = lax.select_and_gather_add(t, x, *arguments)
    ct = random.normal(size=read.shape).astype(np.float32)
    written = lax.select_and_scatter_add(ct, x, *arguments)
    assert np.allclose(np.sum(read * ct), np.sum(t * np.asarray(written)), rtol=1e-5)
    empty = lax.select_and_gather_add(t, x, lax.ge_p, (1, 1), (1, 1), ((2, 0), (0, 0)))
    assert not np.asarray(empty)[:2].any()


def test_derivative_of_windows_with_holes():
    """A window of the largest number may have holes, in reverse mode too (JAX refuses it)."""
    x = np.array([1, 5, 2, 4, 3, 0], np.float32)

    def total(x):
        return jnp.sum(lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), "VALID", None, (2,)))

    np.testing.assert_array_equal(gf.grad(total)(x), [0, 1, 1, 1, 1, 0])


# --- scatter_apply -------------------------------------------------------------------------


def test_derivatives_and_vmap_of_scatter_apply():
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    places = np.array([[1], [3], [1]])

    def apply(x, places, unique=False):
        return lax.scatter_apply(
            x, places, jnp.sin, ROW, update_shape=(len(places),), unique_indices=unique
        )

    want = x.copy()
    for k in (1, 3, 1):
        want[k] = np.sin(want[k])
    np.testing.assert_allclose(apply(x, places), want, rtol=1e-6)
    slopes = np.ones(5)
    slopes[[1, 3]] = np.cos(np.sin(x[1])) * np.cos(x[1]), np.cos(x[3])
    np.testing.assert_allclose(gf.grad(lambda x: apply(x, places).sum())(x), slopes, rtol=1e-5)
    forward = gf.jit(lambda x, p: gf.jvp(lambda x: apply(x, p), (x,), (jnp.ones_like(x),))[1])
    np.testing.assert_allclose(forward(x, places), slopes, rtol=1e-5)
    once = gf.jit(gf.grad(lambda x, p: apply(x, p, unique=True).sum()))(x, places[:2])
    np.testing.assert_allclose(once, np.where(np.isin(range(5), [1, 3]), np.cos(x), 1), rtol=1e-5)
    both = np.stack([places, places + 1])
    mapped = gf.vmap(apply, in_axes=(None, 0))(x, both)
    for k in range(2):
        np.testing.assert_allclose(mapped[k], apply(x, both[k]), rtol=1e-6)


# --- bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_mulhi_is_the_upper_half_of_the_product(dtype):
    limits, random = np.iinfo(dtype), np.random.default_rng(0)
    x, y = random.integers(limits.min, limits.max, (2, 200), dtype=dtype, endpoint=True)
    x[:4], y[:4] = [limits.min, limits.max] * 2, [limits.min] * 2 + [limits.max] * 2
    want = [(int(a) * int(b)) >> limits.bits for a, b in zip(x, y)]
    with gf.enable_x64():
        for call in (lambda f: f, gf.jit):
            np.testing.assert_array_equal(call(lax.mulhi)(x, y), np.array(want, dtype))


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
def test_states_advance_and_may_be_mapped(algorithm):
    state = np.array([5, 6, 0xFFFFFFFF, 0xFFFFFFFF], np.uint32)

    def draw(state):
        return lax.rng_bit_generator(state, (2, 3), algorithm=algorithm)

    later, bits = draw(state)
    assert np.asarray(later)[:2].tolist() == [5, 6] and np.asarray(later)[3] == 0
    others = gf.jit(gf.vmap(draw))(np.stack([np.asarray(later), state]))
    np.testing.assert_array_equal(others[1][1], bits)
    assert not np.array_equal(others[1][0], bits)
    with gf.enable_x64():
        wide_state, wide = lax.rng_bit_generator(state.view(np.uint64), (6,), "uint64", algorithm)
        assert wide.dtype == np.uint64 and wide_state.dtype == np.uint64
        if algorithm is not lax.RandomAlgorithm.RNG_THREE_FRY:
            words = np.asarray(wide).view(np.uint32)[:6].reshape(2, 3)
            np.testing.assert_array_equal(words, bits)


def test_rng_uniform():
    draw = gf.jit(lambda a, b: (lax.rng_uniform(a, b, (4000,)), lax.rng_uniform(a, b, (4000,))))
    first, second = map(np.asarray, draw(np.float32(2), np.float32(5)))
    for drawn in (first, second):
        assert drawn.min() >= 2 and drawn.max() < 5 and abs(drawn.mean() - 3.5) < 0.1
    # Equal expressions are two draws, and another call gives others.
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, draw(np.float32(2), np.float32(5))[0])
    integers = np.asarray(lax.rng_uniform(np.int8(-100), np.int8(100), (4000,)))
    assert integers.dtype == np.int8 and integers.min() < -90 and 90 < integers.max() < 100


def test_rules_of_rng_uniform():
    low = np.array([0, 10, 20], np.float32)
    drawn = np.asarray(gf.vmap(lambda a: lax.rng_uniform(a, a + 1, (50,)))(low))
    np.testing.assert_array_equal(np.floor(drawn), np.repeat(low[:, None], 50, 1))
    drawn, moved = gf.jvp(lambda b: lax.rng_uniform(np.float32(0), b, (9,)), (2.0,), (1.0,))
    np.testing.assert_allclose(moved, np.asarray(drawn) / 2, rtol=1e-6)


def test_fine_gumbel_numbers_reach_far():
    drawn = np.asarray(gf.random.gumbel(gf.random.key(0), (1 << 17,), mode="highest"))
    assert np.isfinite(drawn).all() and abs(drawn.mean() - np.euler_gamma) < 0.02
    bfloat16 = gf.random.gumbel(gf.random.key(0), (4,), "bfloat16", mode="highest")
    np.testing.assert_array_equal(
        bfloat16, gf.random.gumbel(gf.random.key(0), (4,), "bfloat16", mode="high")
    )


# --- products ------------------------------------------------------------------------------


def test_dot_algorithms_round_as_they_say():
    a = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    exact = a @ a.T
    for name, dtype in (("F16_F16_F32", np.float16), ("BF16_BF16_F32", ml_dtypes.bfloat16)):
        rounded = a.astype(dtype).astype(np.float32)
        for precision in (name, lax.DotAlgorithmPreset[name], lax.DotAlgorithm(dtype, dtype, "f4")):
            got = gf.jit(lambda a, p=precision: lax.dot(a, a.T, precision=p))(a)
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, rounded @ rounded.T, rtol=1e-5, atol=1e-6)
    for name in (
        "F32_F32_F32",
        "BF16_BF16_F32_X3",
        "BF16_BF16_F32_X9",
        "TF32_TF32_F32_X3",
        "TF32_TF32_F32",
    ):
        np.testing.assert_allclose(lax.dot(a, a.T, precision=name), exact, rtol=1e-5, atol=1e-6)
    half = a.astype(np.float16)
    assert lax.dot(half, half.T, precision="F16_F16_F32").dtype == np.float16
    wide = lax.dot(half, half.T, precision="F16_F16_F32", preferred_element_type=np.float32)
    np.testing.assert_allclose(wide, half.astype("f4") @ half.T.astype("f4"), rtol=1e-5, atol=1e-6)
    with gf.enable_x64():
        assert lax.dot(a, a.T, precision="F64_F64_F64").dtype == np.float32


def test_derivatives_follow_the_algorithm():
    a = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    slope = gf.grad(lambda x: lax.dot(x, a.T, precision="BF16_BF16_F32").sum())(a)
    rounded = a.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(slope, np.tile(rounded.sum(0), (3, 1)), rtol=1e-2, atol=1e-2)


def test_float8_presets():
    eight = X.astype(ml_dtypes.float8_e4m3fn)
    got = lax.dot(eight, eight.T, precision="ANY_F8_ANY_F8_ANY", preferred_element_type=np.float32)
    np.testing.assert_array_equal(got, eight.astype("f4") @ eight.T.astype("f4"))
    assert lax.dot(eight, eight.T, precision="ANY_F8_ANY_F8_F32").dtype == eight.dtype


def test_precision_names():
    assert lax.Precision("highest") is lax.Precision.HIGHEST
    text = str(gf.make_jaxpr(lambda x: lax.dot(x, x.T, precision="bfloat16_3x"))(X))
    assert "(Precision.HIGH, Precision.HIGH)" in text
    with gf.config.override("default_matmul_precision", "float32"):
        assert "Precision.HIGHEST" in str(gf.make_jaxpr(lambda x: lax.dot(x, x.T))(X))


@pytest.mark.parametrize("dims", [(0, None, None), (None, 3, None), (2, 0, None), (0, 1, 1)])
def test_vmap_of_ragged_dot(dims):
    random = np.random.default_rng(0)
    shapes, sizes = [(5, 3), (2, 3, 4)], np.array([[1, 3], [2, 2]])
    stacked = [
        random.normal(size=shape if d is None else np.insert(shape, d, 2)).astype(np.float32)
        for shape, d in zip(shapes, dims)
    ]
    stacked.append(sizes[0] if dims[2] is None else sizes)

    def pick(x, d, k):
        return x if d is None else np.take(x, k, d)

    mapped = gf.jit(gf.vmap(lax.ragged_dot, in_axes=dims))(*stacked)
    for k in range(2):
        want = lax.ragged_dot(*[pick(x, d, k) for x, d in zip(stacked, dims)])
        np.testing.assert_allclose(mapped[k], want, rtol=1e-5, atol=1e-6)


def test_ragged_sizes_of_small_integers_do_not_wrap():
    x, w = np.ones((2, 100, 3), np.float32), np.ones((1, 3, 2), np.float32)
    numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), [1], [0])
    out = lax.ragged_dot_general(x, w, np.array([100], np.int8), numbers)
    np.testing.assert_array_equal(out, np.full((2, 100, 2), 3))
