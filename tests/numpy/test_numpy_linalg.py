"""jnp.linalg against NumPy in float64, and its derivatives. JAX's values: test_stored_values.py."""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp

linalg = jnp.linalg


@pytest.fixture(autouse=True)
def wide_dtypes():
    with gf.enable_x64(True):
        yield


def matrix(shape, dtype=np.float64, seed=0):
    random = np.random.default_rng([seed, *shape])
    values = random.uniform(-2.0, 2.0, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * random.uniform(-2.0, 2.0, shape)
    return values.astype(dtype)


def adjoint(x):
    return np.asarray(x).swapaxes(-1, -2).conj()


def compare(got, want, tolerance=1e-10):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


DTYPES = [np.float64, np.complex128]
both = pytest.mark.parametrize("dtype", DTYPES)


# --- the spectral radius -------------------------------------------------------------------


def spectral_radius(a):
    return jnp.max(jnp.abs(jnp.linalg.eigvals(a)))


def test_gradient_of_the_spectral_radius():
    real = gf.grad(spectral_radius)(jnp.array([[1.0, -1.0], [1.0, 1.0]]))
    np.testing.assert_allclose(real, [[0.354, -0.354], [0.354, 0.354]], atol=5e-4)
    result = gf.grad(spectral_radius)(jnp.array([[1 + 1j, -1], [1, 1]]))
    want = [[0.38 - 0.616j, -0.38 - 0.235j], [0.38 + 0.235j, 0.145 - 0.235j]]
    np.testing.assert_allclose(result, want, atol=1e-3)


def test_spectral_radius_of_many():
    a = matrix((128, 3, 3), np.float32)
    result = gf.jit(gf.vmap(spectral_radius))(a)
    np.testing.assert_allclose(result, np.abs(np.linalg.eigvals(a)).max(-1), rtol=1e-4)
    slopes = gf.jit(gf.vmap(gf.grad(spectral_radius)))(a)
    assert slopes.shape == a.shape
    np.testing.assert_allclose(slopes[5], gf.grad(spectral_radius)(a[5]), rtol=1e-3, atol=1e-4)


def test_eigenvalues_alone_compute_no_vectors(monkeypatch):
    def refuse(*args):
        raise AssertionError("vectors were computed")

    monkeypatch.setattr(np.linalg, "eig", refuse)
    monkeypatch.setattr(np.linalg, "eigh", refuse)
    a = matrix((4, 3, 3))
    linalg.eigvals(a)
    linalg.eigvalsh(a)


# --- against NumPy -------------------------------------------------------------------------

SAME_NAME = {
    "det": [((4, 4),), ((2, 1, 1),), ((2, 2),), ((3, 2, 3, 3),), ((0, 0),), ((0, 4, 4),)],
    "inv": [((4, 4),), ((2, 1, 1),), ((3, 2, 2),), ((0, 0),), ((0, 3, 3),), ((70, 70),)],
    "solve": [
        ((4, 4), (4,)),
        ((4, 4), (4, 2)),
        ((3, 4, 4), (3, 4, 2)),
        ((3, 4, 4), (4, 2)),
        ((4, 4), (3, 4, 2)),
        ((3, 1, 4, 4), (2, 4, 1)),
        ((2, 4, 4), (4,)),
        ((0, 0), (0, 2)),
    ],
    "pinv": [((4, 4),), ((2, 5, 3),), ((3, 5),), ((0, 3),), ((1, 1),)],
    "qr": [((4, 4),), ((2, 5, 3),), ((3, 5),)],
    "eigvals": [((4, 4),), ((3, 2, 2),), ((0, 0),)],
    "svdvals": [((4, 4),), ((2, 5, 3),), ((0, 3),)],
    "cond": [((4, 4),), ((2, 3, 3),)],
    "matrix_rank": [((4, 4),), ((2, 3, 5),), ((3,),)],
    "norm": [((4,),), ((4, 3),), ((2, 3, 4),), ((0,),)],
    "vector_norm": [((4,),), ((2, 3, 4),)],
    "matrix_norm": [((4, 3),), ((2, 3, 4),)],
    "slogdet": [((4, 4),), ((2, 1, 1),), ((3, 2, 2),), ((5, 3, 3),), ((0, 0),)],
    "outer": [((3,), (4,))],
    "cross": [((2, 3), (2, 3))],
    "vecdot": [((2, 3), (2, 3)), ((2, 1, 3), (4, 3))],
    "matrix_transpose": [((2, 3, 4),)],
    "trace": [((2, 3, 4),)],
    "diagonal": [((2, 3, 4),)],
    "matmul": [((2, 3, 4), (4, 2))],
    "tensordot": [((3, 4, 2), (4, 2, 5))],
}
CASES = [(name, shapes) for name, many in SAME_NAME.items() for shapes in many]


@together(size=31)
@both
@pytest.mark.parametrize("name, shapes", CASES, ids=str)
def test_against_numpy(name, shapes, dtype):
    operands = [matrix(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    if name == "solve" and len(shapes[1]) == 1 and len(shapes[0]) == 3:
        want = np.linalg.solve(operands[0], operands[1][:, None])[..., 0]
    else:
        want = getattr(np.linalg, name)(*operands)
    got = getattr(linalg, name)(*operands)
    for one, expected in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want))):
        compare(one, expected)


@both
def test_symmetric_matrices(dtype):
    x = matrix((3, 4, 4), dtype)
    h, p = x + adjoint(x), x @ adjoint(x) + np.eye(4)
    compare(linalg.cholesky(p), np.linalg.cholesky(p))
    compare(linalg.cholesky(p, upper=True), adjoint(np.linalg.cholesky(p)))
    for side in ("L", "U"):
        compare(linalg.eigvalsh(h, side), np.linalg.eigvalsh(h))
        values, vectors = linalg.eigh(h, side)
        compare(vectors * np.asarray(values)[:, None, :] @ adjoint(vectors), h)
    result = linalg.svd(h, hermitian=True)
    compare(result.S, np.linalg.svd(h, compute_uv=False))
    compare(result.U * np.asarray(result.S)[:, None, :] @ np.asarray(result.Vh), h)
    compare(linalg.svd(h, hermitian=True, compute_uv=False), result.S)
    compare(linalg.pinv(h, hermitian=True), np.linalg.inv(h), 1e-9)


def test_results_have_names():
    a = matrix((3, 3))
    assert linalg.eig(a)._fields == linalg.eigh(a)._fields == ("eigenvalues", "eigenvectors")
    assert linalg.qr(a)._fields == ("Q", "R") and linalg.svd(a)._fields == ("U", "S", "Vh")
    assert linalg.slogdet(a)._fields == ("sign", "logabsdet")


@both
@pytest.mark.parametrize("axis, keepdims", [((0, 2), False), ((2, 1), True), ((-2, -1), False)])
@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms(ord, axis, keepdims, dtype):
    x = matrix((2, 3, 4), dtype)
    compare(linalg.norm(x, ord, axis, keepdims), np.linalg.norm(x, ord, axis, keepdims))


@both
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, 0.5, -1, -2.5, np.inf, -np.inf])
def test_vector_norms(ord, keepdims, dtype):
    x = matrix((2, 3, 4), dtype)
    compare(linalg.norm(x, ord, 1, keepdims), np.linalg.norm(x, ord, 1, keepdims))
    order = 2 if ord is None else ord
    want = np.linalg.vector_norm(x, axis=(0, 2), keepdims=keepdims, ord=order)
    compare(linalg.vector_norm(x, axis=(0, 2), keepdims=keepdims, ord=order), want)


@pytest.mark.parametrize("p", [None, 2, -2, 1, -1, np.inf, "fro", "nuc"])
def test_condition_numbers(p):
    compare(linalg.cond(matrix((2, 3, 3)), p), np.linalg.cond(matrix((2, 3, 3)), p))
    assert np.isinf(linalg.cond(np.zeros((2, 2)), 1))


def test_ranks():
    a = matrix((2, 4, 4))
    a[0, 1] = a[0, 2]
    np.testing.assert_array_equal(linalg.matrix_rank(a), [3, 4])
    bound = np.array([0.5, 1.0])
    want = np.linalg.matrix_rank(a, tol=bound)
    np.testing.assert_array_equal(linalg.matrix_rank(a, rtol=bound), want)
    np.testing.assert_array_equal(linalg.matrix_rank(a, tol=bound), want)


@both
@pytest.mark.parametrize("mode", ["reduced", "complete", "r", "raw", "full"])
def test_qr_modes(mode, dtype):
    a = matrix((2, 4, 3), dtype)
    got, want = linalg.qr(a, mode), np.linalg.qr(a, "reduced" if mode == "full" else mode)
    for one, expected in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want))):
        compare(one, expected)


@both
@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 3, 7])
def test_powers(n, dtype):
    a = matrix((2, 3, 3), dtype)
    compare(linalg.matrix_power(a, n), np.linalg.matrix_power(a, n), 1e-8)


@both
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_least_squares(shape, columns, dtype):
    a, b = matrix(shape, dtype), matrix((shape[0], *columns), dtype, 1)
    got = linalg.lstsq(a, b, numpy_resid=True)
    want = np.linalg.lstsq(a, b)
    for one, expected in zip(got, want):
        compare(one if np.size(expected) != 1 else np.reshape(one, np.shape(expected)), expected)
    residual = np.abs(b - a @ np.asarray(got[0])) ** 2
    compare(np.ravel(linalg.lstsq(a, b)[1]), np.ravel(residual.sum(0)))


def test_least_squares_of_nothing_and_with_a_bound():
    x, residuals, rank, values = linalg.lstsq(np.zeros((0, 3)), np.zeros(0))
    assert (x.shape, residuals.shape, int(rank), values.shape) == ((3,), (1,), 0, (0,))
    a = np.diag([1.0, 1e-3])
    assert int(linalg.lstsq(a, np.ones(2), rcond=1e-2)[2]) == 1
    assert int(linalg.lstsq(a, np.ones(2), rcond=-1)[2]) == 2


def test_tensors():
    t = matrix((2, 3, 6))
    compare(linalg.tensorinv(t), np.linalg.tensorinv(t))
    compare(linalg.tensorsolve(t, t[..., 0]), np.linalg.tensorsolve(t, t[..., 0]))
    t = matrix((2, 3, 2, 3))
    want = np.linalg.tensorsolve(t, t[0, 0], axes=(0, 1))
    compare(linalg.tensorsolve(t, t[0, 0], axes=(0, 1)), want)


def test_chains():
    parts = [matrix((6,)), matrix((6, 2)), matrix((2, 5)), matrix((5,))]
    for start, stop in ((0, 4), (1, 3), (0, 3), (1, 4), (0, 2)):
        chosen = parts[start:stop]
        compare(linalg.multi_dot(chosen), np.linalg.multi_dot(chosen))


@pytest.mark.parametrize("offset", [-7, -2, -1, 0, 1, 2, 3, 9])
def test_diagonals(offset):
    x = matrix((2, 3, 4))
    for axes in ((0, 1), (2, 1), (-1, 0)):
        compare(jnp.diagonal(x, offset, *axes), np.diagonal(x, offset, *axes))
        compare(jnp.trace(x, offset, *axes), np.trace(x, offset, *axes))
    compare(linalg.diagonal(x, offset=offset), np.linalg.diagonal(x, offset=offset))
    compare(linalg.trace(x, offset=offset), np.linalg.trace(x, offset=offset))


def test_trace_dtypes():
    with gf.enable_x64(False):
        assert jnp.trace(np.ones((2, 2), np.int8)).dtype == np.int32
        assert jnp.trace(np.ones((2, 2), bool)).dtype == np.int32
        assert jnp.trace(np.ones((2, 2), np.float32), dtype=jnp.float16).dtype == np.float16


@pytest.mark.filterwarnings("ignore:Arrays of 2-dimensional vectors")
@pytest.mark.parametrize("sizes", [(3, 3), (2, 3), (3, 2), (2, 2)])
def test_cross_products(sizes):
    a, b = matrix((4, sizes[0])), matrix((4, sizes[1]), seed=1)
    # NumPy 2.5 takes vectors of three components only: a missing third one is zero.
    expected = np.cross(*(np.pad(x, ((0, 0), (0, 3 - x.shape[1]))) for x in (a, b)))
    if sizes == (2, 2):
        expected = expected[:, 2]
    compare(jnp.cross(a, b), expected)
    compare(jnp.cross(a.T, b, axisa=0), expected)
    if sizes != (2, 2):
        compare(jnp.cross(a, b, axisc=0), expected.T)


def test_other_products():
    a, b = matrix((2, 3)), matrix((2, 4, 1), seed=1)
    compare(jnp.kron(a, b), np.kron(a, b))
    compare(jnp.kron(b, a), np.kron(b, a))
    compare(jnp.vander(a[0], 4), np.vander(a[0], 4))
    powers = jnp.vander(np.arange(4), increasing=True)
    np.testing.assert_array_equal(powers, np.vander(np.arange(4), increasing=True))
    m, v = matrix((3, 2, 4), complex), matrix((4,), complex)
    compare(jnp.matvec(m, v), np.matvec(m, v))
    compare(jnp.vecmat(v[:2], m), np.vecmat(v[:2], m))
    assert linalg.vecdot(v, v, preferred_element_type=np.complex64).dtype == np.complex64


def test_single_precision_stays():
    a = matrix((3, 3), np.float32)
    for name in ("inv", "det", "pinv", "svdvals", "eigvalsh", "norm", "cond"):
        assert getattr(linalg, name)(a).dtype == np.float32, name
    assert linalg.eigvals(a).dtype == np.complex64
    with gf.enable_x64(False):
        assert linalg.inv(np.eye(2, dtype=np.int32)).dtype == np.float32


# --- derivatives ---------------------------------------------------------------------------

DIFFERENTIABLE = {
    "det": lambda x: linalg.det(x),
    "slogdet": lambda x: linalg.slogdet(x)[1],
    "slogdet by qr": lambda x: linalg.slogdet(x, method="qr")[1],
    "inv": linalg.inv,
    "solve": lambda x: linalg.solve(x, x[0] ** 2),
    "solve many": lambda x: linalg.solve(x, jnp.stack([x[:, :2], x[:, 2:]])),
    "pinv": lambda x: linalg.pinv(x[:, :2]),
    "pinv wide": lambda x: linalg.pinv(x[:2]),
    "lstsq": lambda x: linalg.lstsq(x[:, :2], x[:, 3])[0],
    "cond": linalg.cond,
    "spectral norm": lambda x: linalg.norm(x, 2),
    "cubic norm": lambda x: linalg.norm(x, 3, 0),
    "power": lambda x: linalg.matrix_power(x, 3),
    "tensorsolve": lambda x: linalg.tensorsolve(x.reshape(2, 2, 4), x[:2, :2]),
    "diagonal": lambda x: jnp.diagonal(x, 1) ** 2,
    "cross": lambda x: jnp.cross(x[:, :3], x[:, 1:]),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives(name):
    """First and second order, against central differences."""
    function, x = DIFFERENTIABLE[name], jnp.asarray(matrix((4, 4), seed=3))
    along, step = matrix((4, 4), seed=4), 1e-5

    def loss(x):
        out = function(x)
        return jnp.sum(out * np.cos(np.arange(out.size)).reshape(out.shape))

    for order in (loss, lambda x: jnp.sum(gf.grad(loss)(x) * along)):
        ahead, behind = (float(order(x + sign * step * along)) for sign in (1, -1))
        want = (ahead - behind) / (2 * step)
        result = float(jnp.sum(gf.grad(order)(x) * along))
        assert result == pytest.approx(want, rel=1e-5, abs=1e-5)
        assert float(gf.jvp(order, (x,), (along,))[1]) == pytest.approx(result, rel=1e-8)


@pytest.mark.parametrize("shape", [(300, 3), (3, 300)])
def test_no_matrix_of_a_derivative_is_larger_than_the_operand(shape):
    """Derivatives of pinv of 1000 x 10 made matrices of 1000 x 1000: ten times JAX's time."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    text = str(gf.make_jaxpr(gf.grad(lambda x: linalg.pinv(x).sum()))(x))
    assert "[300,300]" not in text and "[300,3]" in text


@pytest.mark.parametrize("name", ["inv", "det", "pinv"])
def test_vmap_is_the_batched_function(name):
    a = matrix((5, 4, 4))
    compare(
        gf.vmap(getattr(linalg, name), in_axes=2)(np.moveaxis(a, 0, 2)), getattr(linalg, name)(a)
    )


def test_gradient_of_det_of_singular_matrices():
    """The derivative is the transposed matrix of cofactors, also where there is no inverse."""
    a = matrix((4, 4))
    a[3] = a[0] + a[1]
    cofactors = np.empty((4, 4))
    for i in range(4):
        for j in range(4):
            minor = np.delete(np.delete(a, i, 0), j, 1)
            cofactors[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    compare(gf.grad(linalg.det)(a), cofactors, 1e-8)
    compare(gf.grad(linalg.det)(np.zeros((4, 4))), np.zeros((4, 4)))


# --- errors --------------------------------------------------------------------------------

E, R, V = np.eye(2), np.ones((2, 3)), np.ones(2)
ERRORS = {
    r"\[det\] matrices must have shape": lambda: linalg.det(R),
    r"\[inv\] matrices must have shape": lambda: linalg.inv(V),
    r"\[slogdet\] matrices must have shape": lambda: linalg.slogdet(R),
    r"\[slogdet\] method must be": lambda: linalg.slogdet(E, method="svd"),
    r"\[solve\] matrices must have shape": lambda: linalg.solve(R, V),
    r"\[solve\] b must be a vector": lambda: linalg.solve(E, np.ones(3)),
    r"\[solve\] operands must be arrays": lambda: linalg.solve([[1.0]], V),
    r"\[qr\] mode must be": lambda: linalg.qr(E, "economic"),
    r"\[eigh\] UPLO must be": lambda: linalg.eigh(E, "X"),
    r"\[norm\] ord must be": lambda: linalg.norm(E, 3),
    r"\[norm\] there must be one axis or two": lambda: linalg.norm(np.ones((2, 2, 2)), 2),
    r"\[vector_norm\] ord must be a number": lambda: linalg.norm(V, "inf"),
    r"\[cond\] matrices must not be empty": lambda: linalg.cond(np.ones((0, 2))),
    r"\[cond\] matrices must be square": lambda: linalg.cond(R, 1),
    r"\[matrix_rank\] only one of": lambda: linalg.matrix_rank(E, rtol=1.0, tol=1.0),
    r"\[pinv\] only one of": lambda: linalg.pinv(E, rtol=1.0, rcond=1.0),
    r"\[lstsq\] operands must be a matrix": lambda: linalg.lstsq(np.ones((2, 2, 2)), V),
    r"\[lstsq\] operands must have equally": lambda: linalg.lstsq(E, np.ones(3)),
    r"\[matrix_power\] matrices must be square": lambda: linalg.matrix_power(R, 2),
    r"\[matrix_power\] n must be an integer": lambda: linalg.matrix_power(E, 0.5),
    r"\[multi_dot\] there must be two": lambda: linalg.multi_dot([E]),
    r"\[multi_dot\] there must be": lambda: linalg.multi_dot([R, R]),
    r"\[tensorinv\] the first ind": lambda: linalg.tensorinv(R, 1),
    r"\[tensorsolve\] a must have": lambda: linalg.tensorsolve(R, V),
    r"\[outer\] operands must be vectors": lambda: linalg.outer(E, V),
    r"\[cross\] vectors must have three": lambda: linalg.cross(V, V),
    r"\[cross\] vectors must have two or three": lambda: jnp.cross(np.ones(4), np.ones(4)),
    r"\[diagonal\] the array must have": lambda: jnp.diagonal(V),
    r"\[diagonal\] the axes must differ": lambda: jnp.diagonal(E, 0, 1, 1),
    r"\[vander\] x must be a vector": lambda: jnp.vander(E),
    r"\[vander\] N must not": lambda: jnp.vander(V, -1),
    r"\[trace\] out must be None": lambda: jnp.trace(E, out=V),
    r"linalg\] the name must be one that exists": lambda: linalg.solv,
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    kinds = (TypeError, ValueError, NotImplementedError, AttributeError)
    with pytest.raises(kinds, match=message) as caught:
        ERRORS[message]()
    assert "Fix:" in str(caught.value)
