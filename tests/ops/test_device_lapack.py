"""Matrix ops on a device: which routines of CUDA's libraries they call, and what they make of it.

``stand_in_cupy.py`` stands for CuPy; nothing of this ran on a GPU.
"""

import numpy as np
import pytest
from device_calls import (
    BATCHES,
    DTYPES,
    LETTERS,
    RNG,
    call,
    close,
    numbers,
    positive,
    scattered,
    wide,
)
from stand_in_cupy import Waits, device

from gpuflow.core.lowering import OnHost
from gpuflow.ops.linalg import (
    cholesky,
    eig,
    eigh,
    lu,
    ormqr,
    qr,
    row_exchanges,
    svd,
    tridiagonal,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (40, 33), (33, 40), (1, 1), (1, 3)])
@pytest.mark.parametrize("batch", BATCHES)
def test_lu(batch, shape, dtype, cupy):
    a = numbers((*batch, *shape), dtype)
    factors, pivots = call(lu.lu_factors_p, cupy, scattered(a))
    again = call(lu.lu_p, cupy, a)
    assert pivots.dtype == again[2].dtype == np.int32
    np.testing.assert_array_equal(again[1], pivots)
    size = min(shape)
    lower = np.tril(wide(factors[..., :size]), -1) + np.eye(shape[0], size)
    upper = np.triu(wide(factors[..., :size, :]))
    moved = np.take_along_axis(a, again[2][..., None], -2)
    close((lower @ upper).astype(dtype), moved, dtype, shape[0])
    count = int(np.prod(batch))
    is_batched = count > 1 and shape[0] == shape[1]
    one = f"{LETTERS[dtype]}getrf"
    assert cupy.calls == ([f"{one}Batched"] if is_batched else [one] * count) * 2


def test_few_large_matrices_are_not_one_call(cupy):
    """A batch's routine has a block for each matrix."""
    a = np.broadcast_to(np.eye(300, dtype=np.float32), (2, 300, 300))
    factors, _ = call(lu.lu_factors_p, cupy, a)
    assert cupy.calls == ["sgetrf"] * 2
    np.testing.assert_array_equal(factors, a)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 4), (0, 3, 3), (2, 4, 0)])
def test_nothing_is_called_for_matrices_without_elements(shape, cupy):
    a = np.zeros(shape, np.float32)
    factors, pivots, order = call(lu.lu_p, cupy, a)
    assert factors.shape == shape and order.shape == shape[:-1]
    assert (pivots == np.arange(min(shape[-2:]))).all()
    if shape[-1] == shape[-2]:
        assert call(cholesky.cholesky_p, cupy, a).shape == shape
    reflectors, taus = call(qr.geqrf_p, cupy, a)
    assert reflectors.shape == shape and taus.shape == pivots.shape
    if shape[-2] >= shape[-1]:
        product = call(qr.householder_product_p, cupy, a, taus)
        assert (product == np.eye(*shape[-2:])).all() and product.shape == shape
    assert cupy.calls == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_singular_matrix_has_factors(dtype, cupy):
    a = numbers((40, 40), dtype)
    a[:, 7] = 0
    factors, pivots = call(lu.lu_factors_p, cupy, a)
    assert factors[7, 7] == 0 and ((pivots >= 0) & (pivots < 40)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 33, 40])
@pytest.mark.parametrize("batch", BATCHES)
def test_cholesky(batch, size, dtype, cupy):
    a = positive((*batch, size, size), dtype)
    factor = np.tril(call(cholesky.cholesky_p, cupy, scattered(np.tril(a))))
    close(factor, np.linalg.cholesky(wide(a)), dtype, size)
    assert cupy.calls == [f"{LETTERS[dtype]}potrf{'Batched' if batch else ''}"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_what_is_not_positive_definite_is_nan_alone(batch, dtype, cupy):
    """It ran on the host once more before, with its whole batch."""
    a = positive((*batch, 34, 34), dtype)
    bad = (1,) if batch else ()
    a[(*bad, 5, 5)] = -1
    got = np.tril(call(cholesky.cholesky_p, cupy, a))
    assert np.isnan(got[bad][np.tril_indices(34)]).all()
    if batch:
        close(got[::2], np.linalg.cholesky(wide(a[::2])), dtype, 34)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (40, 7), (7, 40), (1, 1)])
@pytest.mark.parametrize("batch", BATCHES)
def test_reflections(batch, shape, dtype, cupy):
    a, count = numbers((*batch, *shape), dtype), int(np.prod(batch))
    letter, unitary = LETTERS[dtype], "un" if np.dtype(dtype).kind == "c" else "or"
    reflectors, taus = call(qr.geqrf_p, cupy, scattered(a))
    assert cupy.calls == [f"{letter}geqrf"] * count
    size = min(shape)
    cupy.calls.clear()
    q = call(qr.householder_product_p, cupy, reflectors[..., :size], taus)
    assert cupy.calls == [f"{letter}{unitary}gqr"] * count
    close(q @ np.triu(reflectors)[..., :size, :], a, dtype, shape[0])
    cupy.calls.clear()
    for left in (True, False):
        for transpose in (True, False):
            c = numbers((*batch, shape[0], 3), dtype)
            params = {"left": left, "transpose": transpose}
            full = np.linalg.qr(wide(reflectors), mode="complete")[0]
            c = c if left else c.swapaxes(-1, -2)
            got = call(ormqr.ormqr_p, cupy, reflectors, taus, c, **params)
            full = _full_q(reflectors, taus)
            full = full.conj().swapaxes(-1, -2) if transpose else full
            close(got, full @ c if left else c @ full, dtype, shape[0])
    assert cupy.calls == [f"{letter}{unitary}mqr"] * count * 4


def _full_q(reflectors, taus):
    """The product of all reflections, by their definition."""
    m = reflectors.shape[-2]
    out = np.broadcast_to(np.eye(m), (*reflectors.shape[:-2], m, m)).astype(wide(taus).dtype)
    for k in range(taus.shape[-1]):
        v = wide(reflectors[..., :, k]).copy()
        v[..., :k], v[..., k] = 0, 1
        step = taus[..., k, None, None] * v[..., :, None] * v.conj()[..., None, :]
        out = out - out @ step
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("batch", BATCHES)
def test_tridiagonal_solve(batch, size, dtype, cupy):
    low, middle, high = (numbers((*batch, size), dtype) for _ in range(3))
    b = numbers((*batch, size, 2), dtype)
    middle = middle + 4
    a = np.zeros((*batch, size, size), dtype)
    for k in range(size):
        a[..., k, k] = middle[..., k]
        if k:
            a[..., k, k - 1], a[..., k - 1, k] = low[..., k], high[..., k - 1]
    params = {"perturb_singular": False}
    got = call(tridiagonal.tridiagonal_solve_p, cupy, low, middle, high, scattered(b), **params)
    close(got, np.linalg.solve(wide(a), wide(b)), dtype, 10)
    assert cupy.calls == [f"{LETTERS[dtype]}gtsv2"] * int(np.prod(batch))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vectors", [True, False])
def test_eigenvalues_are_cupys(vectors, dtype, cupy):
    a = numbers((3, 34, 34), dtype)
    a[1, 2, 2] = np.nan
    params = {"compute_left_eigenvectors": False, "enable_eigvec_derivs": False}
    values, *found = call(eig.eig_p, cupy, a, compute_right_eigenvectors=vectors, **params)
    assert cupy.calls == ["eig" if vectors else "eigvals"]
    assert values.dtype == np.result_type(dtype, np.complex64)
    assert np.isnan(values[1]).all() and np.isfinite(values[::2]).all()
    for v in found:
        np.testing.assert_allclose(a[0] @ v[0], v[0] * values[0], atol=1e-3)


@pytest.mark.parametrize("lower", [True, False])
def test_symmetric_matrices_are_not_looked_at(lower, cupy):
    """Whether all elements are finite decided what to do before, and the host waited for it."""
    a = positive((2, 34, 34), np.float32)
    half = (np.tril if lower else np.triu)(a)
    half = np.where(
        (np.triu if lower else np.tril)(np.ones_like(a), 1 if lower else -1) == 1, np.nan, half
    )
    params = {"lower": lower, "sort_eigenvalues": True, "subset_by_index": None}
    vectors, values = call(eigh.eigh_p, cupy, half, compute_vectors=True, **params)
    close(values, np.linalg.eigvalsh(wide(a)), np.float32, 400)
    assert cupy.calls == ["eigh"] and np.isfinite(vectors).all()
    options = {"full_matrices": False, "compute_uv": False, "subset_by_index": None}
    (values,) = call(svd.svd_p, cupy, a, **options)
    close(values, np.linalg.svd(wide(a), compute_uv=False), np.float32, 400)
    for full in (True, False):
        q, r = call(qr.qr_p, cupy, a, pivoting=False, full_matrices=full)
        close(q @ r, a, np.float32, 100)
    assert cupy.calls == ["eigh", "svd", "qr", "qr"]


@pytest.mark.parametrize("batch", [(), (5,)])
@pytest.mark.parametrize("rows", [4, 6])
def test_permutations(rows, batch, cupy):
    pivots = (np.arange(4) + RNG.integers(0, rows - np.arange(4), (*batch, 4))).astype(np.int32)
    got = call(row_exchanges.row_order_p, cupy, pivots, permutation_size=rows)
    for place in np.ndindex(*batch):
        order = list(range(rows))
        for k, other in enumerate(pivots[place]):
            order[k], order[other] = order[other], order[k]
        np.testing.assert_array_equal(got[place], order)


def test_what_no_routine_does_is_for_the_host(cupy):
    a = device(numbers((34, 34), np.float32))
    calls = {
        "left eigenvectors": lambda: eig.eig_p.impl(
            cupy.xp,
            a,
            compute_left_eigenvectors=True,
            compute_right_eigenvectors=False,
            enable_eigvec_derivs=False,
        ),
        "pivoting": lambda: qr.qr_p.impl(cupy.xp, a, pivoting=True, full_matrices=False),
        "perturb_singular": lambda: tridiagonal.tridiagonal_solve_p.impl(
            cupy.xp, a[0], a[1], a[2], a, perturb_singular=True
        ),
    }
    for which, function in calls.items():
        with pytest.raises(OnHost) as caught:
            function()
        assert which in caught.value.which


def test_the_stand_in_refuses_what_waits():
    x = device(np.ones(3))
    for read in (bool, float, int, list, lambda one: one.item()):
        with pytest.raises(Waits):
            read(x[:1])
