"""dynamic_slice and dynamic_update_slice: against slices, with all their rules and bodies."""

import numpy as np
import pytest
from rule_checks import check_derivatives, check_vmap, random_array, run_body

import gpuflow as gf
from gpuflow.ops.indexing.dynamic_slices import (
    dynamic_slice,
    dynamic_slice_p,
    dynamic_update_slice,
    dynamic_update_slice_p,
)

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((5, 7)).astype(np.float32)
STARTS = [(0, 0), (2, 3), (9, 9), (-1, -7), (3, 0)]


def window(starts, sizes, shape):
    firsts = [min(max(s, 0), n - k) for s, k, n in zip(starts, sizes, shape)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes))


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("sizes", [(2, 3), (5, 1), (0, 2)])
def test_slice_and_update(starts, sizes):
    place = window(starts, sizes, X.shape)
    starts_32 = [np.int32(start) for start in starts]
    for dtype in ("float32", "int8", "bool", "complex64"):
        x = random_array(GENERATOR, X.shape, dtype)
        update = random_array(GENERATOR, sizes, dtype)
        assert np.array_equal(np.asarray(dynamic_slice(x, starts_32, sizes)), x[place])
        want = x.copy()
        want[place] = update
        assert np.array_equal(np.asarray(dynamic_update_slice(x, update, starts_32)), want)
        if dtype != "complex64":
            body = run_body(dynamic_slice_p, x, *starts_32, slice_sizes=sizes, batch_dims=0)
            assert np.array_equal(body, x[place])
            body = run_body(dynamic_update_slice_p, x, update, *starts_32, batch_dims=0)
            assert np.array_equal(body, want)
    update = random_array(GENERATOR, sizes, "float32")
    check_derivatives(lambda x: dynamic_slice(x, starts_32, sizes), [X])
    check_derivatives(lambda x, u: dynamic_update_slice(x, u, starts_32), [X, update])


def test_vmap():
    start = np.asarray(np.int32(2))

    def cut(x, first, second):
        return dynamic_slice(x, (first, second), (2, 3))

    def put(x, update, first):
        return dynamic_update_slice(x, update, (first, 4))

    check_vmap(cut, [X, start, start])
    check_vmap(put, [X, random_array(GENERATOR, (2, 3), "float32"), start])


def test_each_lane_has_its_own_window():
    """x mapped or not; the kernel body of the batched op does the same."""
    starts = np.array([0, 9, -3], np.int32)
    many = GENERATOR.standard_normal((3, 5, 7)).astype(np.float32)
    for x, axis in ((X, None), (many, 0)):
        got = gf.vmap(lambda x, s: dynamic_slice(x, (s, 1), (2, 3)), in_axes=(axis, 0))(x, starts)
        rows = [X if axis is None else many[k] for k in range(3)]
        want = [row[window((s, 1), (2, 3), (5, 7))] for row, s in zip(rows, starts.tolist())]
        assert np.array_equal(np.asarray(got), np.stack(want))
        operand = X[None] if axis is None else many
        one = np.ones((1,), np.int32)
        body = run_body(dynamic_slice_p, operand, starts, one, slice_sizes=(2, 3), batch_dims=1)
        assert np.array_equal(body, np.stack(want))
        updates = GENERATOR.standard_normal((3, 2, 3)).astype(np.float32)
        whole = dynamic_update_slice(operand, updates, (starts, one), batch_dims=1)
        body = run_body(dynamic_update_slice_p, operand, updates, starts, one, batch_dims=1)
        assert np.array_equal(body, np.asarray(whole))


def test_batched_derivatives():
    starts = np.array([0, 3, 3], np.int32)
    update = GENERATOR.standard_normal((3, 2, 3)).astype(np.float32)

    def cut(x):
        return gf.vmap(lambda s: dynamic_slice(x, (s, 1), (2, 3)))(starts)

    def put(x, update):
        return gf.vmap(lambda u, s: dynamic_update_slice(x, u, (s, 1)))(update, starts)

    check_derivatives(cut, [X])
    check_derivatives(put, [X, update])

    # vmap of the derivative, with mapped starts in the transpose.
    def derivative(start):
        _, pullback = gf.vjp(lambda x: dynamic_slice(x, (start, 1), (2, 3)), X)
        return pullback(update[0])[0]

    grads = gf.vmap(derivative)(starts)
    want = np.zeros((3, 5, 7), np.float32)
    for k, start in enumerate(starts):
        want[k][window((start, 1), (2, 3), (5, 7))] = update[0]
    assert np.array_equal(np.asarray(grads), want)


def test_unsigned_starts():
    start = np.uint64(2**63 + 1)
    body = run_body(dynamic_slice_p, X[0], start, slice_sizes=(2,), batch_dims=0)
    assert np.array_equal(body, X[0, -2:])
    assert np.array_equal(np.asarray(dynamic_slice(X[0], (np.uint8(200),), (2,))), X[0, -2:])


ERRORS = [
    (lambda: dynamic_slice(X, (0,), (1,)), ValueError, r"one start and one size .* f32\[5,7\]"),
    (lambda: dynamic_slice(X, (0, 0), (6, 1)), TypeError, r"the window must fit .*\(6, 1\)"),
    (lambda: dynamic_slice(X, (0.5, 0), (1, 1)), TypeError, r"integer starts; got f32"),
    (lambda: dynamic_slice(X[0], (np.zeros(2, int),), (1,)), TypeError, r"starts must be scal"),
    (lambda: dynamic_update_slice(X, X > 0, (0, 0)), TypeError, r"one dtype; got f32.*bool"),
    (lambda: dynamic_update_slice(X[:3], X, (0, 0)), TypeError, r"must fit .*f32\[3,7\]"),
    (
        lambda: dynamic_slice(X, (np.zeros(3, int),), (1,), 1),
        ValueError,
        r"batch sizes must agree; got f32\[5,7\], i32\[3\]",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, error, message = ERRORS[number]
    with pytest.raises(error, match=r"\[dynamic_(update_)?slice\] .*" + message):
        call()
