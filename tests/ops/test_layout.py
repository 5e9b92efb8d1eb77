"""slice, pad, rev, iota and concatenate: against NumPy, with all their rules and kernel bodies."""

import ml_dtypes
import numpy as np
import pytest
from rule_checks import check_derivatives, check_vmap, random_array, run_body

import gpuflow as gf
from gpuflow.core import views
from gpuflow.core.aval import KEY_DTYPES, ShapedArray
from gpuflow.ops.layout import axes, concatenate, iota, rev, slicing, transpose
from gpuflow.ops.random import keys

DTYPES = ["float32", "float16", ml_dtypes.bfloat16, "complex64", "int32", "uint8", "bool"]
GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((5, 7)).astype(np.float32)

SLICES = [
    ((0, 0), (5, 7), None),
    ((1, 2), (4, 7), None),
    ((0, 1), (5, 7), (2, 3)),
    ((4, 0), (5, 7), (3, 6)),
    ((2, 3), (2, 7), (1, 2)),
]
PADS = [
    ((0, 0, 0), (0, 0, 0)),
    ((1, 2, 0), (0, 3, 0)),
    ((-1, 2, 0), (3, -2, 0)),
    ((0, 0, 1), (2, 0, 2)),
    ((-1, -2, 2), (-3, 1, 1)),
    ((-2, -3, 0), (0, 0, 0)),
    ((-4, 3, 1), (5, -11, 0)),
]


def padded(x, value, config):
    """pad one element at a time, as its definition says."""
    shape = [
        low + high + size + max(size - 1, 0) * interior
        for size, (low, high, interior) in zip(x.shape, config)
    ]
    out = np.full(shape, value, x.dtype)
    for place in np.ndindex(*x.shape):
        target = tuple(low + k * (interior + 1) for k, (low, _, interior) in zip(place, config))
        if all(0 <= t < size for t, size in zip(target, shape)):
            out[target] = x[place]
    return out


@pytest.mark.parametrize("start,limit,strides", SLICES)
def test_slice(start, limit, strides):
    region = tuple(map(slice, start, limit, strides or (1, 1)))
    for dtype in DTYPES:
        x = random_array(GENERATOR, (5, 7), dtype)
        got = slicing.slice_(x, start, limit, strides)
        assert got.dtype == x.dtype
        assert np.array_equal(np.asarray(got), x[region])

    def cut(x):
        return slicing.slice_(x, start, limit, strides)

    check_derivatives(cut, [X])
    check_vmap(cut, [X])


@pytest.mark.parametrize("start,limit,strides", SLICES)
def test_slice_view_and_links(start, limit, strides):
    params = {"start_indices": start, "limit_indices": limit, "strides": strides}
    aval = ShapedArray(X.shape, X.dtype)
    out = slicing.slice_p.shape(aval, **params)
    view = slicing.slice_p.lower.view(views.contiguous(X.shape), out, **params)
    assert view.shape == out.shape
    places = view.offset + sum(
        (index * stride for index, stride in zip(np.indices(out.shape), view.strides)),
        np.zeros(out.shape, int),
    )
    assert np.array_equal(X.ravel()[places], np.asarray(slicing.slice_(X, start, limit, strides)))
    links = slicing.slice_p.lower.links(aval, out, **params)
    # A slice that drops something needs its operand in memory.
    assert links == ([(0, 0), (1, 1)] if out.shape == X.shape else None)


def test_slice_strides_of_one_are_none():
    jaxpr = gf.make_jaxpr(lambda x: slicing.slice_(x, (1, 0), (2, 3), (1, 1)))(X)
    assert "strides=None" in str(jaxpr)


def test_slice_in_dim():
    assert np.array_equal(np.asarray(slicing.slice_in_dim(X, 1, -1, 2, axis=-1)), X[:, 1:-1:2])
    assert np.array_equal(np.asarray(slicing.slice_in_dim(X, None, 2)), X[:2])


@pytest.mark.parametrize("config", PADS)
def test_pad(config):
    for dtype in DTYPES:
        x = random_array(GENERATOR, (5, 7), dtype)
        value = random_array(GENERATOR, (), dtype)[()]
        got = slicing.pad(x, value, config)
        assert got.dtype == x.dtype
        assert np.array_equal(np.asarray(got), padded(x, value, config))

    def filled(x, value):
        return slicing.pad(x, value, config)

    value = np.float32(0.5)
    check_derivatives(filled, [X, np.asarray(value)])
    check_vmap(filled, [X, np.asarray(value)])
    body = run_body(slicing.pad_p, X, value, padding_config=tuple(config))
    assert np.array_equal(body, padded(X, value, config))


@pytest.mark.parametrize(
    "size,config",
    [(0, (1, 1, 2)), (0, (0, 0, 3)), (1, (0, 0, 3)), (1, (-1, 2, 1)), (3, (-9, 9, 1))],
)
def test_pad_small(size, config):
    x = np.arange(1, size + 1, dtype=np.float32)
    want = padded(x, 0, (config,))
    assert np.array_equal(np.asarray(slicing.pad(x, 0, (config,))), want)
    body = run_body(slicing.pad_p, x, np.float32(0), padding_config=(config,))
    assert np.array_equal(body, want)
    check_derivatives(lambda x: slicing.pad(x, 0, (config,)), [x])


def test_pad_keeps_infinity_out_of_gradients():
    """A mask by multiplication would make nan of an infinite padding value under vmap."""
    values = np.array([np.inf, 1], np.float32)
    got = gf.vmap(lambda v: slicing.pad(X[0], v, ((1, 0, 0),)))(values)
    assert np.array_equal(np.asarray(got)[:, 1:], np.stack([X[0]] * 2))


@pytest.mark.parametrize("dimensions", [(0,), (1,), (0, 1), ()])
def test_rev(dimensions):
    for dtype in DTYPES:
        x = random_array(GENERATOR, (5, 7), dtype)
        assert np.array_equal(np.asarray(rev.rev(x, dimensions)), np.flip(x, dimensions))
    if not dimensions:
        return
    check_derivatives(lambda x: rev.rev(x, dimensions), [X])
    check_vmap(lambda x: rev.rev(x, dimensions), [X])
    aval = ShapedArray(X.shape, X.dtype)
    links = rev.rev_p.lower.links(aval, aval, dimensions=dimensions)
    assert links == (None if dimensions else [(0, 0), (1, 1)])
    view = rev.rev_p.lower.view(views.contiguous(X.shape), aval, dimensions=dimensions)
    places = view.offset + sum(i * s for i, s in zip(np.indices(X.shape), view.strides))
    assert np.array_equal(X.ravel()[places], np.flip(X, dimensions))


@pytest.mark.parametrize(
    "dtype", ["int8", "int32", "uint8", "float32", "float16", ml_dtypes.bfloat16]
)
@pytest.mark.parametrize("shape,dimension", [((300,), 0), ((3, 4), 0), ((3, 4), 1), ((0, 2), 1)])
def test_iota(dtype, shape, dimension):
    got = iota.iota(dtype, shape, dimension)
    want = np.indices(shape)[dimension].astype(dtype)
    assert got.dtype == dtype and np.array_equal(np.asarray(got), want)
    params = {"dtype": np.dtype(dtype), "shape": shape, "dimension": dimension}
    assert np.array_equal(run_body(iota.iota_p, **params), want)


def test_iota_of_complex_and_of_one_size():
    assert np.asarray(iota.iota("complex64", 3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("dimension", [0, 1])
def test_concatenate(dimension):
    shapes = [(2, 3), (0, 3), (4, 3), (1, 3)]
    shapes = [shape if dimension == 0 else shape[::-1] for shape in shapes]
    for dtype in DTYPES:
        pieces = [random_array(GENERATOR, shape, dtype) for shape in shapes]
        got = concatenate.concatenate(pieces, dimension)
        assert got.dtype == pieces[0].dtype
        assert np.array_equal(np.asarray(got), np.concatenate(pieces, dimension))
    pieces = [random_array(GENERATOR, shape, "float32") for shape in shapes]

    def join(*pieces):
        return concatenate.concatenate(pieces, dimension)

    check_derivatives(join, pieces)
    check_vmap(join, [pieces[0], pieces[2]])
    body = run_body(concatenate.concatenate_p, *pieces, dimension=dimension)
    assert np.array_equal(body, np.concatenate(pieces, dimension))
    few = run_body(concatenate.concatenate_p, *pieces[:2], dimension=dimension)
    assert np.array_equal(few, pieces[0])


def test_concatenate_differentiates_one_piece():
    _, tangent = gf.jvp(lambda x: concatenate.concatenate([x, X], 0), (X,), (X,))
    assert np.array_equal(np.asarray(tangent), np.concatenate([X, np.zeros_like(X)]))
    _, pullback = gf.vjp(lambda x: concatenate.concatenate([X, x], 0), X)
    (pulled,) = pullback(np.concatenate([X, 2 * X]))
    assert np.array_equal(np.asarray(pulled), 2 * X)


def test_keys_move_like_any_element():
    """Typed keys are one element each, whatever is done with them."""
    seeded = keys.random_seed(np.arange(5))
    raw = np.asarray(keys.random_unwrap(seeded))

    def words(moved):
        assert moved.dtype is KEY_DTYPES["threefry2x32"]
        return np.asarray(keys.random_unwrap(moved))

    assert np.array_equal(words(slicing.slice_(seeded, (1,), (5,), (2,))), raw[1:5:2])
    assert np.array_equal(words(rev.rev(seeded, (0,))), raw[::-1])
    joined = concatenate.concatenate([seeded, seeded], 0)
    assert np.array_equal(words(joined), np.concatenate([raw, raw]))
    one = keys.random_seed(7)
    around = words(slicing.pad(seeded, one, ((1, 0, 0),)))
    assert np.array_equal(around[1:], raw) and around[0].tolist() == [0, 7]


ERRORS = [
    (lambda: slicing.slice_(X, (0,), (1,)), ValueError, r"\[slice\] .* one entry .* f32\[5,7\]"),
    (lambda: slicing.slice_(X, (0, 0), (6, 7)), TypeError, r"0 <= start <= limit <= size; got"),
    (lambda: slicing.slice_(X, (3, 0), (2, 7)), TypeError, r"0 <= start <= limit <= size; got"),
    (lambda: slicing.slice_(X, (0, 0), (1, 1), (0, 1)), TypeError, r"strides must be positive"),
    (lambda: slicing.slice_(X, (0, 0), (1, 1), (1,)), TypeError, r"must have one entry"),
    (lambda: slicing.pad(X, 0, ((0, 0, 0),)), ValueError, r"\[pad\] padding_config must have one"),
    (lambda: slicing.pad(X, 0, ((0, 0), (0, 0))), ValueError, r"must hold triples"),
    (lambda: slicing.pad(X, 0, ((0, 0, -1),) * 2), ValueError, r"interior padding must not be neg"),
    (lambda: slicing.pad(X, 0, ((-3, -3, 0),) * 2), ValueError, r"gives \(-1, 1\)"),
    (lambda: slicing.pad(X, X, ((0, 0, 0),) * 2), ValueError, r"must be a scalar; got f32\[5,7\]"),
    (lambda: slicing.pad(X, np.int32(0), ((0, 0, 0),) * 2), TypeError, r"one dtype; got f32.*i32"),
    (lambda: rev.rev(X, (0, 0)), TypeError, r"\[rev\] axes must be distinct"),
    (lambda: rev.rev(X, (2,)), TypeError, r"\[rev\] axes must be distinct"),
    (lambda: iota.iota(bool, (3,)), TypeError, r"\[iota\] the dtype must be a number"),
    (lambda: iota.iota(int, (3,), 1), ValueError, r"the dimension must exist; got shape"),
    (lambda: iota.iota(int, (-3,)), TypeError, r"sizes must not be negative"),
    (lambda: concatenate.concatenate([], 0), ValueError, r"\[concatenate\] at least one array"),
    (
        lambda: concatenate.concatenate([X, X], 2),
        TypeError,
        r"dimension must be in \[0, 2\); got 2",
    ),
    (
        lambda: concatenate.concatenate([X, X[:, 1:]], 0),
        TypeError,
        r"shapes must agree .*f32\[5,6\]",
    ),
    (lambda: concatenate.concatenate([X, X[0]], 0), TypeError, r"shapes must agree except"),
    (lambda: concatenate.concatenate([X, X > 0], 0), TypeError, r"one dtype; got f32.*bool"),
    # A short permutation that counts upwards was once taken for the identity.
    (
        lambda: transpose.transpose(gf.numpy.asarray(X), (0,)),
        TypeError,
        r"each dimension of f32\[5,7\]",
    ),
    (lambda: transpose.transpose(X, (0, 0)), TypeError, r"each dimension of f32\[5,7\] once; got"),
    (lambda: axes.reshape(X, (7, 5), (0,)), TypeError, r"\[transpose\] permutation must hold"),
    (lambda: axes.reshape(X, (-5, -7)), TypeError, r"\[reshape\] sizes must not be negative"),
    (lambda: axes.broadcast_in_dim(X, (5, -1), (0, 1)), TypeError, r"must not be negative"),
    (lambda: axes.broadcast_in_dim(X, (5, 7), (0,)), TypeError, r"2 different dimensions"),
    (lambda: axes.broadcast_in_dim(X, (5, 8), (0, 1)), TypeError, r"operand sizes must be 1 or"),
]


def test_reshape_reads_dimensions_in_the_order_asked_for():
    got = axes.reshape(X, (35,), (1, 0))
    assert np.array_equal(np.asarray(got), X.T.reshape(35))
    gradient = gf.grad(lambda x: (axes.reshape(x, (35,), (1, 0)) * X.reshape(35)).sum())(X)
    assert np.array_equal(np.asarray(gradient), X.reshape(7, 5).T)


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, error, message = ERRORS[number]
    with pytest.raises(error, match=message):
        call()
