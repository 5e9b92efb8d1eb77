"""gather and the scatters against their definition, one element at a time."""

import itertools

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def _starts(indices, batch, numbers, shape, sizes, mode):
    """Where the window of one index vector starts; None if it does not fit."""
    start = [0] * len(shape)
    for j, d in enumerate(numbers[2]):
        start[d] = int(indices[(*batch, j)])
    inside = all(0 <= s <= n - w for s, n, w in zip(start, shape, sizes, strict=True))
    if mode == "fill" and not inside:
        return None
    start = [min(max(s, 0), n - w) for s, n, w in zip(start, shape, sizes, strict=True)]
    for d, other in zip(numbers[3], numbers[4], strict=True):
        start[d] = batch[other]
    return start


def _naive_gather(x, indices, numbers, sizes, mode, filling):
    """Source: the definition of Gather in the XLA operation semantics."""
    dropped = {*numbers[1], *numbers[3]}
    kept = [d for d in range(x.ndim) if d not in dropped]
    batch_shape = indices.shape[:-1]
    rank = len(batch_shape) + len(kept)
    batch_dims = [d for d in range(rank) if d not in numbers[0]]
    shape = [0] * rank
    for d, n in zip(batch_dims, batch_shape, strict=True):
        shape[d] = n
    for d, k in zip(numbers[0], kept, strict=True):
        shape[d] = sizes[k]
    out = np.full(shape, filling, x.dtype)
    for position in itertools.product(*map(range, shape)):
        batch = tuple(position[d] for d in batch_dims)
        start = _starts(indices, batch, numbers, x.shape, sizes, mode)
        if start is None:
            continue
        for d, k in zip(numbers[0], kept, strict=True):
            start[k] += position[d]
        out[position] = x[tuple(start)]
    return out


def _naive_scatter(x, indices, updates, numbers, mode, combine):
    out = x.copy()
    dropped = {*numbers[1], *numbers[3]}
    kept = [d for d in range(x.ndim) if d not in dropped]
    sizes = [1] * x.ndim
    for d, k in zip(numbers[0], kept, strict=True):
        sizes[k] = updates.shape[d]
    batch_dims = [d for d in range(updates.ndim) if d not in numbers[0]]
    positions = itertools.product(*map(range, updates.shape))
    # One window after the other: where windows overlap, the last one is seen.
    for position in sorted(positions, key=lambda p: [p[d] for d in batch_dims]):
        batch = tuple(position[d] for d in batch_dims)
        start = _starts(indices, batch, numbers, x.shape, sizes, mode)
        if start is None:
            continue
        for d, k in zip(numbers[0], kept, strict=True):
            start[k] += position[d]
        out[tuple(start)] = combine(out[tuple(start)], updates[position])
    return out


def _random_case(generator):
    """An array, indices, gather dimension numbers and window sizes that fit together."""
    rank = int(generator.integers(1, 4))
    shape = [int(n) for n in generator.integers(2, 5, rank)]
    dims = list(generator.permutation(rank))
    batching = [int(d) for d in dims[: int(generator.integers(0, min(rank, 2)))]]
    free = [int(d) for d in dims[len(batching) :]]
    mapped = free[: int(generator.integers(1, len(free) + 1))] if free else []
    batch_shape = [int(n) for n in generator.integers(1, 4, int(generator.integers(0, 3)))]
    own = []
    for d in batching:
        own.append(len(batch_shape))
        batch_shape.append(shape[d])
    sizes = [int(generator.integers(1, n + 1)) for n in shape]
    collapsed = [d for d in free if generator.random() < 0.4]
    for d in (*collapsed, *batching):
        sizes[d] = 1
    kept = rank - len(collapsed) - len(batching)
    out_rank = len(batch_shape) + kept
    offsets = sorted(int(d) for d in generator.choice(out_rank, kept, replace=False))
    tops = [shape[d] - sizes[d] for d in mapped]
    indices = (
        np.stack([generator.integers(-1, top + 3, batch_shape) for top in tops], axis=-1)
        if mapped
        else np.zeros((*batch_shape, 0))
    )
    x = generator.normal(size=shape).astype(np.float32)
    numbers = tuple(map(tuple, (offsets, sorted(collapsed), mapped, batching, own)))
    return x, indices.astype(np.int32), numbers, sizes


CASES = [_random_case(np.random.default_rng(seed)) for seed in range(60)]
COMBINES = {
    "scatter": (lax.scatter, lambda old, new: new),
    "scatter_add": (lax.scatter_add, np.add),
    "scatter_sub": (lax.scatter_sub, np.subtract),
    "scatter_mul": (lax.scatter_mul, np.multiply),
    "scatter_min": (lax.scatter_min, np.minimum),
    "scatter_max": (lax.scatter_max, np.maximum),
}


@together(by="mode", size=30)
@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_gather(number, mode):
    x, indices, numbers, sizes = CASES[number]
    want = _naive_gather(x, indices, numbers, sizes, mode, np.nan)
    numbers = lax.GatherDimensionNumbers(*numbers)

    def f(x, indices):
        return lax.gather(x, indices, numbers, sizes, mode=mode)

    np.testing.assert_array_equal(f(x, indices), want)
    if number % 6 == 0:
        np.testing.assert_array_equal(gf.jit(f)(x, indices), want)


@pytest.mark.parametrize("name", COMBINES)
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_scatters(name, mode):
    function, combine = COMBINES[name]
    for number, (x, indices, numbers, sizes) in enumerate(CASES):
        shape = _naive_gather(x, indices, numbers, sizes, "clip", 0).shape
        updates = np.random.default_rng(number).normal(size=shape).astype(np.float32)
        want = _naive_scatter(x, indices, updates, numbers, mode, combine)
        own = lax.ScatterDimensionNumbers(*numbers)

        def f(x, indices, updates, own=own):
            return function(x, indices, updates, own, mode=mode)

        np.testing.assert_allclose(f(x, indices, updates), want, rtol=1e-5, atol=1e-6)
        if number % 20 == 0:
            np.testing.assert_allclose(gf.jit(f)(x, indices, updates), want, rtol=1e-5, atol=1e-6)


@together(size=30)
@pytest.mark.parametrize("number", range(0, len(CASES), 3))
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 1)])
def test_batching(number, axes):
    x, indices, numbers, sizes = CASES[number]
    numbers = lax.GatherDimensionNumbers(*numbers)
    generator = np.random.default_rng(number)
    xs = generator.normal(size=(3, *x.shape)).astype(np.float32) if axes[0] == 0 else x
    rows = indices
    if axes[1] is not None:
        rows = np.stack([indices, indices + 1, indices - 1], axes[1])

    def f(x, indices):
        return lax.gather(x, indices, numbers, sizes, mode="clip")

    def g(x, indices):
        updates = jnp.cos(f(x, indices))
        return lax.scatter_add(x, indices, updates, lax.ScatterDimensionNumbers(*numbers))

    for h in (f, g):
        want = []
        for k in range(3):
            row = rows if axes[1] is None else np.take(rows, k, axes[1])
            want.append(h(xs[k] if axes[0] == 0 else x, row))
        got = gf.vmap(h, in_axes=axes)(xs, rows)
        np.testing.assert_allclose(got, np.stack(want), rtol=1e-5, atol=1e-6)


def test_derivative_of_repeated_writes_is_that_of_the_last():
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    places = np.array([[1], [1], [9]], np.int32)

    def f(x, updates):
        return jnp.sum(lax.scatter(x, places, updates, numbers) * jnp.arange(1.0, 4.0))

    x, updates = jnp.ones(3), jnp.arange(3.0)
    by_x, by_updates = gf.grad(f, argnums=(0, 1))(x, updates)
    np.testing.assert_array_equal(by_x, [1, 0, 3])
    np.testing.assert_array_equal(by_updates, [0, 2, 0])


def test_derivative_of_extremes_is_shared():
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    places = np.array([[0], [0]], np.int32)
    f = gf.grad(lambda x, u: jnp.sum(lax.scatter_max(x, places, u, numbers)), argnums=(0, 1))
    by_x, by_updates = f(jnp.array([2.0, 5.0]), jnp.array([2.0, 1.0]))
    np.testing.assert_array_equal(by_x, [0.5, 1])
    np.testing.assert_array_equal(by_updates, [0.5, 0])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "bfloat16", "float16", "complex64"])
def test_every_dtype(dtype):
    x = jnp.asarray(np.arange(6) % 2).astype(dtype)
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    got = lax.gather(x, np.array([[5], [0], [7]], np.uint8), numbers, (1,), mode="fill")
    assert got.dtype == x.dtype
    filled = np.asarray(got)[2]
    expected = {"bool": True, "int8": -128, "uint32": 2**32 - 1}.get(dtype)
    assert filled == expected if expected is not None else np.isnan(complex(filled))
    written = lax.scatter(x, np.array([[1]]), x[:1], lax.ScatterDimensionNumbers((), (0,), (0,)))
    assert written.dtype == x.dtype and not np.asarray(written)[1]


def test_narrow_floats_are_added_in_single_precision():
    ones = jnp.ones(4000, jnp.bfloat16)
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    places = np.zeros((4000, 1), np.int32)
    total = lax.scatter_add(jnp.zeros(1, jnp.bfloat16), places, ones, numbers)
    assert float(total[0]) == 4000


def test_refusals():
    x, numbers = jnp.ones((4, 3)), lax.GatherDimensionNumbers((1,), (0,), (0,))
    good = np.zeros((2, 1), np.int32)
    cases = [
        (TypeError, "integers", lambda: lax.gather(x, good * 1.0, numbers, (1, 3))),
        (TypeError, "last dimension", lambda: lax.gather(x, good[:, :0], numbers, (1, 3))),
        (TypeError, "one size for each", lambda: lax.gather(x, good, numbers, (1,))),
        (TypeError, "size 1 where", lambda: lax.gather(x, good, numbers, (2, 3))),
        (TypeError, "fit into", lambda: lax.gather(x, good, numbers, (1, 4))),
        (TypeError, "offset_dims", lambda: lax.gather(
            x, good, lax.GatherDimensionNumbers((2,), (0,), (0,)), (1, 3))),
        (TypeError, "must differ", lambda: lax.gather(
            x, good, lax.GatherDimensionNumbers((1,), (0,), (2,)), (1, 3))),
        (ValueError, "mode", lambda: lax.gather(x, good, numbers, (1, 3), mode="wrap")),
        (TypeError, "one dtype", lambda: lax.scatter_add(
            x, good, jnp.ones((2, 3), jnp.int32), lax.ScatterDimensionNumbers((1,), (0,), (0,)))),
        (TypeError, "one dtype", lambda: lax.scatter_add(
            x > 0, good, x[:2] > 0, lax.ScatterDimensionNumbers((1,), (0,), (0,)))),
        (TypeError, "besides those of windows", lambda: lax.scatter(
            x, good, x[:3], lax.ScatterDimensionNumbers((1,), (0,), (0,)))),
    ]  # fmt: skip
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)


@pytest.mark.simulated_gpu
@pytest.mark.parametrize("combine", ["add", "min", "set"])
@pytest.mark.parametrize("count", [65, 400])
def test_windows_that_overlap_at_many_places(combine, count):
    """Equal places are combined before the array is met; windows of others overlap all the same."""
    rng = np.random.default_rng(count)
    x = rng.integers(-9, 9, (3, 40, 2)).astype(np.int32)
    places = np.stack([rng.integers(-1, 3, count), rng.integers(-2, 38, count)], 1).astype(np.int32)
    updates = rng.integers(-9, 9, (count, 2, 1, 5)).astype(np.int32)  # along 2, 0 and 1
    order = lax.ScatterDimensionNumbers((1, 2, 3), (), (0, 1), (), ())
    windows = np.moveaxis(updates, 1, 3)
    want = x.copy()
    for (row, start), window in zip(places, windows, strict=True):
        if 0 <= row < 3 and 0 <= start <= 35:
            part = want[row : row + 1, start : start + 5]
            if combine == "add":
                part += window
            elif combine == "min":
                np.minimum(part, window, out=part)
            else:
                part[...] = window
    function = getattr(lax, "scatter" if combine == "set" else f"scatter_{combine}")
    got = gf.jit(function, static_argnums=3)(x, places, windows, order)
    np.testing.assert_array_equal(got, want)
