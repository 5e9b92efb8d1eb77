"""Ops on sliding windows under jit, against loops over windows; gradients go to first extremes."""

import itertools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.ops.windows.bodies import _Slide


def _elements(shape, window, strides, pads, holes, gaps):
    """For each place of the window the elements under it, in order, as index tuples."""
    counts = []
    for n, w, s, (low, high), hole, gap in zip(
        shape, window, strides, pads, holes, gaps, strict=True
    ):
        room = (max(n - 1, 0) * hole + 1 if n else 0) + low + high - ((w - 1) * gap + 1)
        counts.append(room // s + 1 if room >= 0 else 0)
    elements = {}
    for place in itertools.product(*map(range, counts)):
        inside = []
        for tap in itertools.product(*map(range, window)):
            at = [
                p * s + k * gap - low
                for p, s, k, gap, (low, _) in zip(place, strides, tap, gaps, pads, strict=True)
            ]
            if all(
                a % hole == 0 and 0 <= a // hole < n
                for a, hole, n in zip(at, holes, shape, strict=True)
            ):
                inside.append(tuple(a // hole for a, hole in zip(at, holes, strict=True)))
        elements[place] = inside
    return tuple(counts), elements


def _extreme(x, elements, least):
    """The first extreme; a nan is one."""
    values = [x[e] for e in elements]
    nans = [k for k, v in enumerate(values) if v != v]
    best = min(values) if least else max(values)
    return elements[nans[0] if nans else values.index(best)]


def _random_case(seed, holes=True):
    generator = np.random.default_rng(seed)
    rank = int(generator.integers(1, 4))
    draw = lambda low, high: tuple(int(n) for n in generator.integers(low, high, rank))  # noqa: E731
    shape, window, strides = draw(1, 9), draw(1, 4), draw(1, 4)
    pads = tuple(zip(draw(-1, 3), draw(-1, 3), strict=True))
    base = tuple(int(n) for n in generator.choice([1, 1, 2], rank)) if holes else (1,) * rank
    gaps = tuple(int(n) for n in generator.choice([1, 1, 2], rank)) if holes else (1,) * rank
    # Few different values: ties are common.
    x = generator.integers(-3, 4, shape).astype(np.float32)
    return x, (window, strides, pads, base, gaps)


OPS = {"max": (lax.max, -np.inf), "min": (lax.min, np.inf), "add": (lax.add, 0.0)}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("seed", range(8))
def test_reductions_and_their_gradients(seed, name):
    x, arguments = _random_case(seed)
    counts, windows = _elements(x.shape, *arguments)
    op, init = OPS[name]

    def call(x):
        return lax.reduce_window(x, init, op, *arguments)

    want, slope = np.full(counts, init, np.float32), np.zeros_like(x)
    ct = np.random.default_rng(seed).normal(size=counts).astype(np.float32)
    for place, elements in windows.items():
        if name == "add":
            want[place] = sum(x[e] for e in elements)
            for e in elements:
                slope[e] += ct[place]
        elif elements:
            chosen = _extreme(x, elements, name == "min")
            want[place] = x[chosen]
            slope[chosen] += ct[place]

    def both(x, ct):
        out, pull = gf.vjp(call, x)
        return out, pull(ct)[0]

    got, by_x = gf.jit(both)(x, ct)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(by_x, slope, rtol=1e-5, atol=1e-5)
    along = np.random.default_rng(seed + 1).normal(size=x.shape).astype(np.float32)
    tangent = gf.jit(lambda x, t: gf.jvp(call, (x,), (t,))[1])(x, along)
    # The derivative and its transpose agree.
    np.testing.assert_allclose(np.sum(tangent * ct), np.sum(along * slope), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("select", ["ge", "le"])
@pytest.mark.parametrize("seed", range(3))
def test_nans_are_extremes(seed, select):
    x, (window, strides, pads, _, _) = _random_case(seed, holes=False)
    ones = (1,) * x.ndim
    x = np.where(np.random.default_rng(seed).random(x.shape) < 0.3, np.float32(np.nan), x)
    counts, windows = _elements(x.shape, window, strides, pads, ones, ones)
    source = np.random.default_rng(seed).normal(size=counts).astype(np.float32)
    prim = lax.ge_p if select == "ge" else lax.le_p
    written, read = np.zeros_like(x), np.zeros(counts, np.float32)
    along = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    for place, elements in windows.items():
        if elements:
            chosen = _extreme(x, elements, select == "le")
            written[chosen] += source[place]
            read[place] = along[chosen]
    arguments = (prim, window, strides, pads)
    got = gf.jit(lambda s, x: lax.select_and_scatter_add(s, x, *arguments))(source, x)
    np.testing.assert_allclose(got, written, rtol=1e-5, atol=1e-5)
    got = gf.jit(lambda t, x: lax.select_and_gather_add(t, x, *arguments))(along, x)
    np.testing.assert_array_equal(got, read)


def test_windows_too_large_to_be_written_out():
    x = np.random.default_rng(0).normal(size=(2, 20, 17)).astype(np.float32)
    arguments = ((1, 9, 8), (1, 3, 2), ((0, 0), (2, 3), (1, 0)), (1, 1, 1), (1, 1, 1))
    for name, (op, init) in OPS.items():

        def call(x, op=op, init=init):
            return lax.reduce_window(x, init, op, *arguments)

        counts, windows = _elements(x.shape, *arguments)
        got = np.asarray(gf.jit(call)(x))
        slope = gf.jit(gf.grad(lambda x, call=call: jnp.sum(call(x))))(x)
        want = np.zeros_like(x)
        assert got.shape == counts
        for place, elements in windows.items():
            values = [x[e] for e in elements]
            if name == "add":
                np.testing.assert_allclose(got[place], np.sum(values), rtol=1e-4, atol=1e-4)
                for e in elements:
                    want[e] += 1
            else:
                assert got[place] == (min(values) if name == "min" else max(values))
                want[_extreme(x, elements, name == "min")] += 1
        np.testing.assert_array_equal(slope, want)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "bfloat16", "int32"])
def test_dtypes(dtype):
    x = jnp.asarray(np.arange(24).reshape(4, 6) % 7).astype(dtype)
    for op, init in ((lax.max, lax.convert_element_type(0, dtype)), (lax.add, x.dtype.type(0))):
        got = gf.jit(lambda x, op=op, init=init: lax.reduce_window(x, init, op, (2, 2)))(x)
        assert got.dtype == x.dtype
        values = np.asarray(x, np.float64)
        parts = [values[a : 3 + a, b : 5 + b] for a in range(2) for b in range(2)]
        want = np.max(parts, 0) if op is lax.max else np.sum(parts, 0)
        np.testing.assert_array_equal(np.asarray(got, np.float64), want)


def test_an_initial_value_that_counts():
    x = jnp.asarray([1.0, -2.0, -3.0, 5.0])
    got = gf.jit(lambda x, v: lax.reduce_window(x, v, lax.max, (2,)))(x, 2.0)
    np.testing.assert_array_equal(got, [2, 2, 5])
    np.testing.assert_array_equal(lax.reduce_window(x, 1.5, lax.add, (2,)), [0.5, -3.5, 3.5])


def test_empty():
    assert gf.jit(lambda x: lax.reduce_window(x, 0.0, lax.add, (3,)))(jnp.ones(2)).shape == (0,)
    x = jnp.ones((0, 4))
    assert gf.jit(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2)))(x).shape == (0, 3)
    slope = gf.jit(gf.grad(lambda x: jnp.sum(lax.reduce_window(x, -np.inf, lax.max, (3,)))))
    np.testing.assert_array_equal(slope(jnp.ones(2)), [0, 0])


def test_conditions_that_are_left_out_always_hold():
    # Every place of small windows in all of their positions: what has no condition needs none.
    ranges = (range(1, 4), range(1, 4), range(-2, 4), range(-2, 4), (1, 2), (1, 2), range(5))
    for window, stride, low, high, hole, gap, size in itertools.product(*ranges):
        slide = _Slide(window, stride, low, high, hole, gap)
        last = (size - 1) * hole if size else -1
        count = max((last + 1 + low + high - slide.span) // stride + 1, 0)
        for tap, place in itertools.product(range(window), range(count)):
            at = place * stride + tap * gap - low
            assert at >= 0 or slide.reaches_low(tap), slide
            assert at <= last or slide.reaches_high(tap), slide
        backs = range(-(-slide.span // stride))
        for back, element in itertools.product(backs, range(size)):
            place = element * hole + low
            if place >= 0:
                assert place // stride >= back or slide.is_before(back), slide
                assert place // stride - back < count or slide.is_after(back), slide
    same = _Slide(3, 1, 1, 1, 1, 1)
    assert [same.reaches_low(k) for k in range(3)] == [True, False, False]
    assert [same.reaches_high(k) for k in range(3)] == [False, False, True]
