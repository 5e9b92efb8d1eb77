"""Sparse arrays against dense ones of NumPy and matrices of SciPy, in float64."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, random
from gpuflow.errors import ConcretizationTypeError
from gpuflow.experimental import sparse
from gpuflow.experimental.sparse import BCOO, BCSR

RTOL = 1e-12


@pytest.fixture(autouse=True)
def wide():
    with gf.enable_x64(True):
        yield


def dense_array(shape, seed=0, density=0.4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) * (rng.random(shape) < density)


def close(got, wanted):
    got = got.todense() if isinstance(got, sparse.JAXSparse) else got
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=RTOL, atol=1e-12)


LAYOUTS = [
    ((5, 7), 0, 0),
    ((5, 7), 1, 0),
    ((5, 7), 0, 1),
    ((3, 5, 7), 0, 0),
    ((3, 5, 7), 1, 0),
    ((3, 5, 7), 0, 1),
    ((3, 5, 7), 1, 1),
    ((2, 3, 4, 5), 2, 0),
    ((2, 3, 4, 5), 1, 1),
    ((6,), 0, 0),
    ((0, 4), 0, 0),
    ((4, 0), 0, 0),
    ((), 0, 0),
    ((3,), 1, 0),
    ((3,), 0, 1),
]


@pytest.mark.parametrize(("shape", "n_batch", "n_dense"), LAYOUTS)
def test_a_dense_array_and_back(shape, n_batch, n_dense):
    dense = dense_array(shape)
    mat = BCOO.fromdense(dense, n_batch=n_batch, n_dense=n_dense)
    assert (mat.shape, mat.n_batch, mat.n_dense) == (shape, n_batch, n_dense)
    assert mat.n_sparse == len(shape) - n_batch - n_dense
    assert mat.dtype == np.float64
    close(mat, dense)
    close(BCOO.fromdense(dense, nse=mat.nse + 3, n_batch=n_batch, n_dense=n_dense), dense)
    jitted = gf.jit(lambda x: BCOO.fromdense(x, nse=mat.nse, n_batch=n_batch, n_dense=n_dense))
    close(jitted(dense), dense)


@pytest.mark.parametrize(("shape", "n_batch", "n_dense"), [LAYOUTS[k] for k in (0, 4, 6, 9, 10)])
def test_what_is_done_with_all_layouts(shape, n_batch, n_dense):
    dense = dense_array(shape)
    mat = BCOO.fromdense(dense, n_batch=n_batch, n_dense=n_dense)
    twice = mat + BCOO((mat.data, mat.indices), shape=mat.shape)
    close(twice, 2 * dense)
    close(twice.sum_duplicates(), 2 * dense)
    close(twice.sum_duplicates(nse=twice.nse), 2 * dense)
    close(twice.sort_indices(), 2 * dense)
    close(-mat * 3.0 / 2.0, -dense * 3.0 / 2.0)
    close(abs(twice), abs(2 * dense))
    close(twice**2, (2 * dense) ** 2)
    close(mat * twice, 2 * dense * dense)
    other = dense_array(shape, seed=1, density=1.0)
    close(mat * other, dense * other)
    close(mat + other, dense + other)
    close(mat.update_layout(n_batch=0, n_dense=0), dense)
    close(mat.sum(), dense.sum())
    for axis in range(len(shape)):
        close(mat.sum(axis), dense.sum(axis))
        close(twice.sum(axis, keepdims=True), 2 * dense.sum(axis, keepdims=True))
        close(sparse.bcoo_rev(mat, dimensions=(axis,)), np.flip(dense, axis))
        sizes = tuple(2 if d == axis else size for d, size in enumerate(shape))
        if n_dense == 0 and shape[axis] > 2:
            starts = [jnp.int32(1 if d == axis else 0) for d in range(len(shape))]
            part = gf.jit(lambda *s: sparse.bcoo_dynamic_slice(mat, s, sizes))(*starts)  # noqa: B023
            close(part, np.take(dense, [1, 2], axis))
            both = sparse.bcoo_concatenate([mat, mat], dimension=axis)
            close(both, np.concatenate([dense, dense], axis))
    if dense.size:
        key = tuple(slice(size // 2, None, 2) for size in shape)
        close(mat[key], dense[key])
    if shape and shape[0] > 1:
        close(mat[1], dense[1])
        close(mat[-1:], dense[-1:])


def test_subscripts():
    dense = dense_array((4, 6, 3))
    keys = [1, -1, 9, (1, 2), (1, 2, 0), (..., 0), np.s_[::-1], np.s_[1:3, ::-2], np.s_[3:1], None]
    keys += [(0, None), (None, ..., 1), (slice(None), 2), np.s_[-1::-3]]
    for n_batch in (0, 1):
        mat = BCOO.fromdense(dense, n_batch=n_batch)
        for key in keys:
            close(mat[key], dense[3 if key == 9 else key])
    assert [part.shape for part in mat] == [(6, 3)] * 4


def test_padding_counts_for_nothing():
    data, indices = np.array([1.0, 2.0, 7.0, 9.0]), np.array([[0, 1], [2, 0], [3, 0], [1, 3]])
    mat, wanted = BCOO((data, indices), shape=(3, 3)), np.zeros((3, 3))
    wanted[0, 1], wanted[2, 0] = 1, 2
    close(mat, wanted)
    x = np.arange(1.0, 4)
    close(mat @ x, wanted @ x)
    close(x @ mat, x @ wanted)
    close(mat.sum(), 3.0)
    close(mat.sum(0), wanted.sum(0))
    close(mat.T, wanted.T)
    close(mat @ mat, wanted @ wanted)
    close(mat * mat, wanted * wanted)
    close(BCSR.from_bcoo(mat), wanted)
    close(BCSR.from_bcoo(mat) @ x, wanted @ x)
    close(mat[:2], wanted[:2])
    close(mat.reshape(9), wanted.reshape(9))
    close(sparse.bcoo_concatenate([mat, mat], dimension=0), np.concatenate([wanted, wanted]))
    close(sparse.bcoo_rev(mat, dimensions=(0,)), wanted[::-1])
    summed = mat.sum_duplicates()
    assert summed.nse == 2 and summed.indices.tolist() == [[0, 1], [2, 0]]
    room = mat.sum_duplicates(nse=3)
    assert room.indices.tolist() == [[0, 1], [2, 0], [3, 3]] and room.data.tolist() == [1, 2, 0]
    more = mat.sum_duplicates(nse=6)
    assert more.data.tolist() == [1, 2, 0, 0, 0, 0] and more.indices.tolist()[2:] == [[3, 3]] * 4
    grads = gf.grad(lambda d: ((BCOO((d, indices), shape=(3, 3)) @ x) ** 2).sum())(data)
    close(grads, [2 * 2 * 2, 2 * 2, 0, 0])


def test_places_that_do_not_fit_one_number_sort_too():
    mat = BCOO((np.ones(3), np.array([[9, 1, 4], [2, 9, 9], [2, 5, 1]])), shape=(10**5,) * 3)
    assert mat.sort_indices().indices.tolist() == [[2, 5, 1], [2, 9, 9], [9, 1, 4]]


@pytest.mark.parametrize("kind", [BCOO, BCSR])
def test_products_agree_with_scipy(kind):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.random(40, 30, 0.1, random_state=0, dtype=np.float64).tocoo()
    mat = kind.from_scipy_sparse(matrix)
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=30), rng.normal(size=(30, 6)), rng.normal(size=(5, 40))
    close(mat, matrix.toarray())
    close(mat @ x, matrix @ x)
    close(mat @ y, matrix @ y)
    close(z @ mat, z @ matrix)
    close(jnp.asarray(z[0]) @ mat, z[0] @ matrix)
    close(gf.jit(lambda m, v: m @ v)(mat, x), matrix @ x)
    close(mat.T, matrix.T.toarray())
    close(mat @ mat.T, (matrix @ matrix.T).toarray())


@pytest.mark.parametrize(("shape", "n_batch", "n_dense"), LAYOUTS)
def test_dot_general_is_that_of_dense_arrays(shape, n_batch, n_dense):
    dense = dense_array(shape)
    mat = BCOO.fromdense(dense, n_batch=n_batch, n_dense=n_dense)
    other = dense_array((*shape[::-1], 2), seed=1, density=1.0)
    last = len(shape) - 1
    cases = [(((), ()), ((), ()))]
    for d in range(len(shape)):
        cases.append((((d,), (last - d,)), ((), ())))
        if d < len(shape) - n_dense:
            cases.append((((), ()), ((d,), (last - d,))))
        if d and d < len(shape):
            cases.append((((d,), (last - d,)), ((0,), (last,))))
    for numbers in cases:
        (lc, rc), (lb, rb) = numbers
        if lb and lb[0] >= len(shape) - n_dense:
            continue
        wanted = lax.dot_general(dense, other, numbers)
        close(sparse.bcoo_dot_general(mat, other, dimension_numbers=numbers), wanted)
        turned = ((rc, lc), (rb, lb))
        wanted = lax.dot_general(other, dense, turned)
        close(sparse.bcoo_dot_general(other, mat, dimension_numbers=turned), wanted)


def test_dtypes_are_those_of_arrays():
    x, rows = np.arange(5, dtype=np.float32), np.arange(1, 6)
    for kind in (np.float32, np.int32, np.complex128):
        dense = (3 * dense_array((4, 5), density=0.6)).astype(kind)
        mat, array = BCOO.fromdense(dense), jnp.asarray(dense)
        for f in (
            lambda m: m * 2,
            lambda m: 2.5 * m,
            lambda m: m / 2,
            lambda m: m / rows,
            lambda m: m @ x,
            lambda m: m @ rows,
            lambda m: x @ m.T,
            lambda m: m.sum(),
        ):
            got, wanted = f(mat), f(array)
            assert got.dtype == wanted.dtype
            got = got.todense() if isinstance(got, BCOO) else got
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6, atol=1e-6)


def test_matmul_of_batches():
    a, b = dense_array((3, 4, 5)), dense_array((3, 5, 2), 1, 1.0)
    for n_batch in (0, 1):
        mat = BCOO.fromdense(a, n_batch=n_batch)
        close(mat @ b, a @ b)
        close(mat @ b[0], a @ b[0])
        close(np.swapaxes(b, 1, 2) @ np.swapaxes(a, 1, 2), np.swapaxes(a @ b, 1, 2))
        close(b[0].T @ mat.transpose((0, 2, 1)), b[0].T @ np.swapaxes(a, 1, 2))
        close(mat @ b[0][:, 0], a @ b[0][:, 0])


def test_gradients_are_those_of_dense_arrays():
    dense, x = dense_array((6, 5)), dense_array((5, 3), 1, 1.0)
    mat = BCOO.fromdense(dense)

    def loss(m, x):
        return jnp.sum(jnp.sin(m @ x))

    wanted = gf.grad(loss, (0, 1))(dense, x)
    places = tuple(np.asarray(mat.indices).T)
    for kind in (mat, BCSR.from_bcoo(mat)):
        got = gf.jit(sparse.grad(loss, (0, 1)))(kind, x)
        assert type(got[0]) is type(kind)
        close(got[0].data, np.asarray(wanted[0])[places])
        close(got[1], wanted[1])
    value, got = sparse.value_and_grad(loss)(mat, x)
    close(value, loss(dense, x))
    close(got.data, np.asarray(wanted[0])[places])
    for take in (sparse.jacfwd, sparse.jacrev):
        jacobian = take(lambda m: m @ x[:, 0])(mat)
        assert jacobian.shape == (6, 6, 5)
        full = np.asarray(gf.jacrev(lambda m: m @ x[:, 0])(dense))
        close(jacobian, full * (dense != 0))
    gf.test_util.check_grads(lambda d: (mat.with_data(d) @ mat.T).todense(), (mat.data,), 2)
    gf.test_util.check_grads(
        lambda d: mat.with_data(d).sum_duplicates(nse=4, remove_zeros=False).data, (mat.data,), 2
    )


def test_vmap_maps_over_batch_dimensions():
    dense, x = dense_array((4, 6, 5)), dense_array((4, 5), 1, 1.0)
    mat = BCOO.fromdense(dense, n_batch=1)

    def product(m, v):
        assert m.shape == (6, 5) and m.n_batch == 0
        return m @ v

    wanted = np.einsum("bij,bj->bi", dense, x)
    close(gf.vmap(product)(mat, x), wanted)
    close(gf.jit(gf.vmap(product))(mat, x), wanted)
    rows = BCSR.fromdense(dense, n_batch=1)
    close(gf.vmap(product)(rows, x), wanted)
    back = gf.vmap(lambda d: BCOO.fromdense(d, nse=mat.nse))(dense)
    assert back.n_batch == 1 and back.shape == dense.shape
    close(back, dense)
    data = gf.vmap(lambda d, v: mat[0].with_data(d) @ v)(jnp.stack([mat[0].data] * 4), x)
    close(data, np.einsum("ij,bj->bi", dense[0], x))
    grads = gf.vmap(gf.grad(lambda d, v: ((mat[0].with_data(d) @ v) ** 2).sum()), (None, 0))
    assert grads(mat[0].data, x).shape == (4, mat[0].nse)


@pytest.mark.parametrize("form", [BCOO, BCSR])
@pytest.mark.parametrize("n_batch", [0, 1, 2])
def test_only_batch_dimensions_are_mapped(form, n_batch):
    """An axis behind them was one of the stored elements, and gave another array."""
    dense = dense_array((3, 2, 4, 5)[2 - n_batch :] if n_batch else (4, 5))
    mat = form.fromdense(dense, n_batch=n_batch)
    x = jnp.arange(3.0)

    def element(m, v=0.0):
        return m.todense() + v

    for axis in range(-dense.ndim, dense.ndim):
        wrapped = {"m": (mat, x)}
        axes = ({"m": (axis, None)},)
        if 0 <= axis < n_batch:
            close(gf.vmap(element, axis)(mat), np.moveaxis(dense, axis, 0))
            close(gf.vmap(lambda t: element(t["m"][0]), axes)(wrapped), np.moveaxis(dense, axis, 0))
            continue
        text = f"in_axes of a {form.__name__} must be one of its batch dimensions.*got {axis} for"
        with pytest.raises(ValueError, match=text):
            gf.vmap(element, axis)(mat)
        with pytest.raises(ValueError, match=text):
            gf.vmap(lambda t: element(t["m"][0]), axes)(wrapped)
        with pytest.raises(ValueError, match=text):
            gf.jit(gf.vmap(element, axis))(mat)
    for axis in range(-dense.ndim, dense.ndim + 1):
        for make, args in (
            (lambda v: mat, ()),
            (lambda v: form((mat.data * v, *mat.tree_flatten()[0][1:]), shape=mat.shape), (x,)),
        ):
            mapped = gf.vmap(lambda v=0.0, make=make: [make(v)], out_axes=[axis], axis_size=3)
            if 0 <= axis <= n_batch:
                got = mapped(*args)[0]
                factor = x if args else np.ones(3)
                assert got.n_batch == n_batch + 1
                close(got, np.stack([dense * f for f in np.asarray(factor)], axis))
                continue
            text = f"out_axes of a {form.__name__} must be one of its batch dimensions.*got {axis}"
            with pytest.raises(ValueError, match=text):
                mapped(*args)
    # What is not mapped may be anything, and keyword arguments are mapped over axis 0.
    close(gf.vmap(element, (None, 0))(mat, x), dense + np.asarray(x).reshape(3, *[1] * dense.ndim))
    if n_batch:
        close(gf.vmap(lambda v, m: element(m, v), (None,))(1.0, m=mat), dense + 1)
    else:
        with pytest.raises(ValueError, match="in_axes of a"):
            gf.vmap(lambda v, m: element(m, v), (None,))(1.0, m=mat)


def test_rows_and_places_into_each_other():
    for shape, n_batch, n_dense in (((5, 7), 0, 0), ((3, 5, 7), 1, 0), ((5, 7, 2), 0, 1)):
        dense = dense_array(shape)
        rows = BCSR.fromdense(dense, n_batch=n_batch, n_dense=n_dense)
        close(rows, dense)
        close(rows.to_bcoo(), dense)
        close(BCSR.from_bcoo(rows.to_bcoo()), dense)
        assert (rows.shape, rows.n_batch, rows.n_dense) == (shape, n_batch, n_dense)
    flat = BCSR.fromdense(dense_array((5, 7)))
    scipy_sparse = pytest.importorskip("scipy.sparse")
    wanted = scipy_sparse.csr_matrix(dense_array((5, 7)))
    assert flat.indptr.tolist() == wanted.indptr.tolist()
    assert flat.indices.tolist() == wanted.indices.tolist()
    close(BCSR.fromdense(dense_array((5, 7)), nse=33), dense_array((5, 7)))
    with pytest.raises(NotImplementedError, match="two sparse dimensions"):
        BCSR.from_bcoo(BCOO.fromdense(np.ones(3)))


def test_shapes_of_the_same_elements():
    dense = dense_array((2, 6, 4, 3))
    for n_batch, n_dense in ((0, 0), (1, 0), (1, 1), (0, 1)):
        mat = BCOO.fromdense(dense, n_batch=n_batch, n_dense=n_dense)
        close(mat.reshape(2, 24, 3), dense.reshape(2, 24, 3))
        close(mat.reshape((2, 3, -1, 3)), dense.reshape(2, 3, 8, 3))
        close(mat.transpose((0, 2, 1, 3)), dense.transpose(0, 2, 1, 3))
        wide = sparse.bcoo_broadcast_in_dim(
            mat, shape=(5, 2, 6, 4, 3), broadcast_dimensions=(1, 2, 3, 4)
        )
        close(wide, np.broadcast_to(dense, (5, 2, 6, 4, 3)))
        close(sparse.bcoo_squeeze(wide[:1], dimensions=(0,)), dense)
    mat = BCOO.fromdense(dense[0, 0])
    assert mat.update_layout(n_batch=1, on_inefficient=None).n_batch == 1
    close(mat.update_layout(n_batch=1, on_inefficient=None), dense[0, 0])
    close(mat.update_layout(n_dense=1, on_inefficient=None), dense[0, 0])
    close(mat.update_layout(n_dense=1, n_batch=1, on_inefficient=None), dense[0, 0])
    with pytest.raises(sparse.SparseEfficiencyError):
        mat.update_layout(n_batch=1)
    with pytest.warns(sparse.SparseEfficiencyWarning):
        mat.update_layout(n_dense=1, on_inefficient="warn")


def test_extraction_and_sampling():
    a, b = dense_array((6, 5), 1, 1.0), dense_array((5, 7), 2, 1.0)
    mat = BCOO.fromdense(dense_array((6, 7)))
    mask = dense_array((6, 7)) != 0
    close(sparse.bcoo_extract(mat, a @ b), (a @ b) * mask)
    twice = mat + BCOO((mat.data, mat.indices), shape=mat.shape)
    close(sparse.bcoo_extract(twice, a @ b), (a @ b) * mask)
    numbers = (((1,), (0,)), ((), ()))
    sampled = sparse.bcoo_dot_general_sampled(a, b, mat.indices, dimension_numbers=numbers)
    close(mat.with_data(sampled), (a @ b) * mask)
    close(sparse.bcoo_multiply_dense(mat, 2.0), mat.data * 2)


def test_made_from_nothing():
    for k in (-2, 0, 1, 9):
        for layout in ({}, {"n_batch": 1}, {"n_dense": 1}, {"n_batch": 1, "n_dense": 1}):
            close(sparse.eye(4, 5, k, **layout), np.eye(4, 5, k))
    close(sparse.eye(4, sparse_format="bcsr"), np.eye(4))
    empty = sparse.empty((3, 4), np.float32, nse=2)
    assert empty.nse == 2 and empty.dtype == np.float32
    close(empty, np.zeros((3, 4)))
    close(sparse.empty((3, 4), sparse_format="bcsr") @ np.ones(4), np.zeros(3))
    mat = sparse.random_bcoo(random.key(0), (3, 20, 30), nse=0.1, n_batch=1, sorted_indices=True)
    assert mat.nse == 60 and mat.shape == (3, 20, 30)
    for part in np.asarray(mat.indices):
        flat = part[:, 0] * 30 + part[:, 1]
        assert (np.diff(flat) > 0).all()
    close(sparse.todense(np.ones(2)), np.ones(2))
    assert repr(mat) == "BCOO(float64[3, 20, 30], nse=60, n_batch=1)"
    assert len(mat) == 3 and mat.size == 1800


def test_sparsify():
    dense, x = dense_array((3, 6, 5)), dense_array((6,), 1, 1.0)
    for n_batch in (0, 1):
        mat = BCOO.fromdense(dense, n_batch=n_batch)
        for f in (
            lambda m: jnp.mean(m, 0),
            lambda m: jnp.sum(m, (0, 1)),
            lambda m: jnp.sin(m * 2.0) + m,
            lambda m: x @ m[0],
            lambda m: gf.jit(lambda m: jnp.sqrt(jnp.abs(m)))(m) - m,
            lambda m: m.reshape(3, 30).T if n_batch == 0 else m,  # noqa: B023
            lambda m: gf.nn.relu(m)[1:],
            lambda m: jnp.concatenate([m, m], 1),
        ):
            close(sparse.sparsify(f)(mat), f(dense))
    mat = BCOO.fromdense(dense[0])
    close(gf.jit(sparse.sparsify(lambda v: v @ mat))(x), x @ dense[0])
    with pytest.raises(NotImplementedError, match="got cos of"):
        sparse.sparsify(jnp.cos)(mat)
    with pytest.raises(NotImplementedError, match="divisor must be dense"):
        sparse.sparsify(lambda m: 1.0 / m)(mat)


def test_a_sparse_system():
    pytest.importorskip("scipy.sparse")
    dense = dense_array((8, 8), density=0.3) + 3 * np.eye(8)
    mat, b = BCSR.fromdense(dense), np.arange(1.0, 9)

    def solve(data, b):
        return sparse.linalg.spsolve(data, mat.indices, mat.indptr, b)

    close(gf.jit(solve)(mat.data, b), np.linalg.solve(dense, b))
    gf.test_util.check_grads(solve, (mat.data, jnp.asarray(b)), 1)
    several = np.stack([b, 2 * b])
    close(gf.vmap(solve, (None, 0))(mat.data, several), np.linalg.solve(dense, several.T).T)


def test_the_largest_eigenvalues():
    dense = dense_array((40, 40))
    dense = dense + dense.T
    start = np.random.default_rng(1).normal(size=(40, 2))
    mat = BCOO.fromdense(dense)
    wanted = np.linalg.eigvalsh(dense)[:-3:-1]
    for matrix in (dense, mat, lambda x: mat @ x):
        values, vectors, turns = sparse.linalg.lobpcg_standard(matrix, start)
        close(values, wanted)
        assert 0 < turns < 100
        np.testing.assert_allclose(dense @ vectors, vectors * values, atol=1e-8)
    with pytest.raises(ValueError, match="five times as many"):
        sparse.linalg.lobpcg_standard(dense, np.ones((40, 8)))
    with pytest.raises(ValueError, match="in the dtype of X"):
        sparse.linalg.lobpcg_standard(dense, start.astype(np.float32))


def test_shapes_of_what_is_no_array():
    mat = BCOO.fromdense(dense_array((3, 4)))
    assert jnp.shape(mat) == (3, 4) and jnp.ndim(mat) == 2 and jnp.size(mat) == 12


def test_what_is_refused():
    mat = BCOO.fromdense(dense_array((3, 4)))
    with pytest.raises(ValueError, match=r"\[BCOO\] data must be"):
        BCOO((np.ones(3), np.zeros((2, 2), int)), shape=(3, 4))
    with pytest.raises(ValueError, match=r"\[BCSR\] data must be"):
        BCSR((np.ones(3), np.zeros(3, int), np.zeros(3, int)), shape=(3, 4))
    with pytest.raises(ConcretizationTypeError, match="nse must be given"):
        gf.jit(lambda x: BCOO.fromdense(x).todense())(np.ones((2, 2)))
    with pytest.raises(ValueError, match="nse must be given"):
        gf.jit(lambda m: m.sum_duplicates())(mat)
    with pytest.raises(TypeError, match=r"\[matmul\]"):
        mat @ np.ones(3)
    with pytest.raises(NotImplementedError, match="shape of the sum"):
        mat + 1.0
    with pytest.raises(NotImplementedError, match="both sides of a difference"):
        mat - np.ones((3, 4))
    with pytest.raises(NotImplementedError, match="equal shapes"):
        mat + BCOO.fromdense(np.ones((1, 4)))
    with pytest.raises(NotImplementedError, match="stay among their own"):
        BCOO.fromdense(np.ones((3, 4)), n_batch=1).transpose()
    with pytest.raises(ValueError, match="must not mix"):
        BCOO.fromdense(np.ones((3, 4)), n_batch=1).reshape(12)
    with pytest.raises(NotImplementedError, match="keep their sizes"):
        sparse.bcoo_broadcast_in_dim(mat[:1], shape=(3, 4), broadcast_dimensions=(0, 1))
    with pytest.raises(NotImplementedError, match="subscripts must be integers"):
        mat[np.array([0, 1])]
    with pytest.raises(IndexError, match="size 0"):
        sparse.empty((0, 3))[0]
    with pytest.raises(NotImplementedError, match="== must have dense operands"):
        mat == mat  # noqa: B015
    with pytest.raises(NotImplementedError, match="/ must have dense operands"):
        1.0 / mat
    with pytest.raises(ValueError, match="loops and tree maps may take batch dimensions only"):
        gf.lax.map(lambda m: m.todense(), mat)
    with pytest.raises(TypeError, match="each dimension once"):
        sparse.bcoo_transpose(mat, permutation=(0, 0))
    with pytest.raises(ValueError, match="sparse_format must be"):
        sparse.eye(3, sparse_format="dok")
    with pytest.raises(ValueError, match="nse must be at least 0"):
        sparse.random_bcoo(random.key(0), (2, 2), nse=9)


_WRONG_KINDS = {
    "eye": lambda v: sparse.eye(v),
    "empty": lambda v: sparse.empty((v,)),
    "random_bcoo": lambda v: sparse.random_bcoo(gf.random.key(0), (v, 3)),
    "bcoo_update_layout": lambda v: sparse.bcoo_update_layout(_square(), n_dense=v),
    "bcoo_transpose": lambda v: sparse.bcoo_transpose(_square(), permutation=(v, 0)),
    "bcoo_reshape": lambda v: sparse.bcoo_reshape(_square(), new_sizes=(v, 2)),
    "bcoo_squeeze": lambda v: sparse.bcoo_squeeze(_square(), dimensions=(v,)),
    "bcoo_rev": lambda v: sparse.bcoo_rev(_square(), dimensions=(v,)),
    "bcoo_concatenate": lambda v: sparse.bcoo_concatenate([_square()], dimension=v),
    "bcoo_slice": lambda v: sparse.bcoo_slice(
        _square(), start_indices=(v, 0), limit_indices=(1, 1)
    ),
    "bcoo_dynamic_slice": lambda v: sparse.bcoo_dynamic_slice(_square(), (0, 0), (v, 1)),
    "bcoo_reduce_sum": lambda v: sparse.bcoo_reduce_sum(_square(), axes=(v,)),
    "BCOO": lambda v: sparse.BCOO((_square().data, _square().indices), shape=(v, 2)),
    "bcoo_fromdense": lambda v: sparse.BCOO.fromdense(jnp.eye(2), nse=v),
    "sum": lambda v: _square().sum(v),
}


def _square():
    return sparse.BCOO.fromdense(jnp.eye(2))


@pytest.mark.parametrize("name", _WRONG_KINDS)
@pytest.mark.parametrize("value", [1.5, "a", {}], ids=str)
def test_arguments_of_the_wrong_kind(name, value):
    """Functions of sparse arrays name the argument, as others do."""
    with pytest.raises(TypeError, match=rf"^\[{name}\] .* must be .*; got .*Fix: "):
        _WRONG_KINDS[name](value)


def test_dimensions_that_do_not_exist():
    """They were taken modulo the rank."""
    for call in (
        lambda: sparse.bcoo_rev(_square(), dimensions=(7,)),
        lambda: sparse.bcoo_concatenate([_square()], dimension=-3),
        lambda: _square().sum(5),
        lambda: sparse.bcoo_fromdense(jnp.eye(2), n_batch=2**70),
    ):
        with pytest.raises(ValueError, match=r"^\[\w+\] .*must .*; got .*Fix: "):
            call()
