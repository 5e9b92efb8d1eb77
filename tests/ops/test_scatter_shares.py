"""Many updates of few elements are made in shares; the result is that of one after the other."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.core.aval import ShapedArray
from gpuflow.core.views import View, contiguous
from gpuflow.kir.verify import verify
from gpuflow.ops.indexing.scatter_shares import MAX_SHARES, MIN_UPDATES, scatter_shares_p, shares

pytestmark = pytest.mark.not_simulated("is about kernels of the CPU")

COUNT, SIZE = MIN_UPDATES + 627, 37  # shares of unequal lengths
FUNCTIONS = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


def case(dtype, low=0, high=SIZE, index_dtype=np.int32):
    random = np.random.default_rng(1)
    x = (random.standard_normal(SIZE) * 5).astype(dtype)
    places = random.integers(low, high, COUNT).astype(index_dtype)
    with np.errstate(all="ignore"):  # negative numbers as unsigned ones
        return x, places, (random.standard_normal(COUNT) * 5).astype(dtype)


def one_by_one(name, x, places, values, wide=None):
    out = x.astype(wide or x.dtype)
    FUNCTIONS[name].at(out, places, values.astype(out.dtype))
    return out


def steps(function, *operands):
    """The names of what a compiled function runs."""
    return [step.name for step in compile_plan(gf.jit(function).lower(*operands).jaxpr)[0].steps]


def update(name, mode=None):
    return lambda x, places, values: getattr(jnp.asarray(x).at[places], name)(values, mode=mode)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int16, np.int64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers(name, dtype):
    with gf.enable_x64(True):
        x, places, values = case(dtype)
        out = gf.jit(update(name))(x, places, values)
        assert out.dtype == dtype
        np.testing.assert_array_equal(np.asarray(out), one_by_one(name, x, places, values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["add", "min", "max"])
def test_floats(name, dtype):
    """16-bit sums are made in float32 and rounded once."""
    with gf.enable_x64(True):
        x, places, values = case(dtype)
        out = np.asarray(gf.jit(update(name))(x, places, values)).astype(np.float64)
        wanted = one_by_one(name, x, places, values, np.float64)
        limit = {2: 8e-3, 4: 1e-6, 8: 1e-14}[np.dtype(dtype).itemsize]
        assert np.abs(out - wanted).max() <= limit * np.abs(wanted).max() * (name == "add")


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64, np.uint8, np.int8])
@pytest.mark.parametrize("mode", [None, "drop", "clip", "promise_in_bounds"])
def test_places_outside(mode, index_dtype):
    """Negative ones count from the end; what is outside is dropped or moved inside."""
    with gf.enable_x64(True):
        inside = mode == "promise_in_bounds"
        low = -50 if np.dtype(index_dtype).kind == "i" and not inside else 0
        x, places, values = case(np.int32, low, SIZE if inside else 60, index_dtype)
        wrapped = np.where(places < 0, places.astype(np.int64) + SIZE, places)
        kept = np.ones(COUNT, bool) if mode == "clip" else (wrapped >= 0) & (wrapped < SIZE)
        out = gf.jit(update("add", mode))(x, places, values)
        wanted = one_by_one("add", x, np.clip(wrapped, 0, SIZE - 1)[kept], values[kept])
        np.testing.assert_array_equal(np.asarray(out), wanted)


def test_what_is_shared():
    """Not what is replaced, nor products of floats, nor where places are promised to differ."""
    for dtype in (np.float32, np.int32):
        operands = case(dtype)
        for name in ("add", "multiply", "min", "max", "set"):
            may = name != "set" and (name != "multiply" or dtype is np.int32)
            assert ("scatter_parts" in steps(update(name), *operands)) == may
    operands = case(np.float32)

    def unique(x, places, values):
        return x.at[places].add(values, unique_indices=True)

    assert "scatter_parts" not in steps(unique, jnp.asarray(operands[0]), *operands[1:])
    few = [operands[0], *(x[: MIN_UPDATES - 1] for x in operands[1:])]
    assert "scatter_parts" not in steps(update("add"), *few)


def test_rows_and_several_indices():
    random = np.random.default_rng(2)
    x = random.integers(-9, 9, (50, 8)).astype(np.int32)
    i, j = (random.integers(0, n, COUNT).astype(np.int32) for n in (50, 8))
    rows = random.integers(-9, 9, (COUNT, 8)).astype(np.int32)
    for index, values in (
        ((i,), rows),
        ((i, j), rows[:, 0]),
        ((slice(None), j), rows[:50, 0].repeat(COUNT)),
        ((i,), np.int32(1)),
        ((i,), rows[0]),
    ):
        values = values.reshape(50, COUNT) if values.size == 50 * COUNT else values
        out = gf.jit(lambda x, v, index=index: x.at[index].add(v))(jnp.asarray(x), values)
        wanted = x.copy()
        np.add.at(wanted, index, values)
        np.testing.assert_array_equal(np.asarray(out), wanted)
    transposed = gf.jit(lambda x, v: x.at[i].add(v.T))(jnp.asarray(x), rows.T.copy())
    wanted = x.copy()
    np.add.at(wanted, i, rows)
    np.testing.assert_array_equal(np.asarray(transposed), wanted)


def test_batches_gradients_and_segments():
    random = np.random.default_rng(3)
    x, values = random.standard_normal((4, 30)), random.standard_normal((4, 8000))
    places = random.integers(0, 30, (4, 8000)).astype(np.int32)
    with gf.enable_x64(True):
        out = gf.jit(gf.vmap(lambda x, i, v: x.at[i].add(v)))(x, places, values)
        for row in range(4):
            wanted = one_by_one("add", x[row], places[row], values[row])
            np.testing.assert_allclose(np.asarray(out)[row], wanted, rtol=1e-12, atol=1e-12)
        gradient = gf.jit(gf.grad(lambda x: (x[places.ravel()] ** 2).sum()))(jnp.asarray(x[0]))
        wanted = 2 * x[0] * np.bincount(places.ravel(), minlength=30)
        np.testing.assert_allclose(np.asarray(gradient), wanted, rtol=1e-12)
        rows = values.reshape(-1, 1)
        sums = gf.jit(lambda v: gf.ops.segment_sum(v, places.ravel(), 30))(rows)
        wanted = np.bincount(places.ravel(), values.ravel(), 30)
        np.testing.assert_allclose(np.asarray(sums)[:, 0], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, 70000])
def test_places_have_16_bits_where_these_hold_all(size):
    """And one more, for what is outside."""
    random = np.random.default_rng(4)
    places = random.integers(-size - 9, size + 9, 32 * size).astype(np.int32)
    places[:2] = size - 1, size
    values = random.integers(-9, 9, len(places)).astype(np.int32)
    operands = np.zeros(size, np.int32), places, values
    assert "scatter_parts" in steps(update("add"), *operands)
    wrapped = np.where(places < 0, places + size, places)
    kept = (wrapped >= 0) & (wrapped < size)
    wanted = one_by_one("add", operands[0], wrapped[kept], values[kept])
    np.testing.assert_array_equal(np.asarray(gf.jit(update("add"))(*operands)), wanted)


def test_elements_without_updates_stay():
    """Also -0.0, nan and infinities."""
    x = np.array([-0.0, np.nan, np.inf, 1], np.float32)
    for name in ("add", "min", "max"):
        out = gf.jit(update(name))(x, np.full(COUNT, 3, np.int32), np.ones(COUNT, np.float32))
        np.testing.assert_array_equal(np.asarray(out)[:3], x[:3])
        assert np.signbit(np.asarray(out)[0])


def test_nan_wins_and_zeros_have_an_order():
    x, places, values = case(np.float32)
    values[5] = np.nan
    out = np.asarray(gf.jit(update("max"))(x, places, values))
    np.testing.assert_array_equal(np.isnan(out), np.arange(SIZE) == places[5])


def test_the_operand_is_not_changed():
    x, places, values = case(np.float32)
    held = jnp.asarray(x)
    gf.jit(update("add"))(held, places, values)
    np.testing.assert_array_equal(np.asarray(held), x)


def test_how_many_shares():
    """A function of the sizes: few updates, or an array that is large against them, are one."""
    assert shares(1000, 1 << 20, 1) == MAX_SHARES
    assert shares(1 << 18, 1 << 20, 1) == 1
    assert shares(10, MIN_UPDATES - 1, 1) == 1
    assert shares(1 << 14, 1 << 20, 1) == 7
    assert shares((1 << 31) - 1, 1 << 40, 1) == 1


def launches(views, out, combine):
    params = {"combine": combine}
    return scatter_shares_p.lower.what(None, [out], params).launches(views, [out], params)


def test_kernels_keep_the_rules():
    for width in (1, 8):
        for dtype, combine in ((np.float16, "add"), (np.int8, "multiply")):
            views = [contiguous((SIZE,)), contiguous((COUNT,)), contiguous((COUNT, width))]
            out = ShapedArray((SIZE,), np.dtype(dtype))
            kernels = launches(views, out, combine)
            assert len(kernels.launches) == 4
            for launch in kernels.launches:
                verify(launch.kernel)


def test_an_array_with_gaps_is_left_to_numpy():
    views = [View((SIZE,), (2,), 0, (False,)), contiguous((COUNT,)), contiguous((COUNT, 1))]
    out = ShapedArray((SIZE,), np.dtype(np.float32))
    assert launches(views, out, "add") is None
    x, places, values = case(np.float32)
    result = scatter_shares_p.impl(np, x, places, values[:, None], combine="add")
    wanted = one_by_one("add", x, places, values, np.float64)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-3)
