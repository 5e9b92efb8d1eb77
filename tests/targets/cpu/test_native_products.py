"""Products of matrices, in place from any views, by the private BLAS and without it."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.blocks import Product
from gpuflow.core.views import View, contiguous
from gpuflow.targets.cpu.library import blas, products
from gpuflow.targets.cpu.library.products import product_call

SIZES = [1, 2, 7, 16, 33, 130]
PLAIN = Product(((), (0,), (1,)), ((), (0,), (1,)))
STACK = Product(((0,), (1,), (2,)), ((0,), (1,), (2,)))


def tolerance(dtype, depth):
    """Each of ``depth`` sums rounds once; the constant covers products and their order."""
    return 4 * max(depth, 1) * np.finfo(dtype).eps


def check(spec, left, right):
    compare(spec, left, right, gf.jit(lambda a, b: jnp.einsum(spec, a, b))(left, right))


def check_eager(spec, left, right):
    compare(spec, left, right, jnp.einsum(spec, jnp.asarray(left), jnp.asarray(right)))


def compare(spec, left, right, made):
    wide = np.complex128 if np.iscomplexobj(left) else np.float64
    expected = np.einsum(spec, left.astype(wide), right.astype(wide))
    size = np.einsum(spec, abs(left.astype(wide)), abs(right.astype(wide)))
    assert made.shape == expected.shape
    error = np.max(abs(np.asarray(made) - expected) / (size + 1e-30), initial=0.0)
    assert error < tolerance(np.asarray(made).dtype, left.size)


SPECS = [
    "mk,kn->mn",
    "km,kn->mn",
    "mk,nk->mn",
    "km,nk->mn",
    "bmk,bkn->bmn",
    "mbk,bkn->bmn",
    "bmk,nbk->bmn",
    "bthd,bshd->bhts",
    "bhts,bshd->bthd",
    "mk,k->m",
    "k,kn->n",
    "k,k->",
    "m,n->mn",
    "bk,bk->b",
    "abmk,abkn->abmn",
    "mab,abn->mn",
    "mab,nba->mn",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(4))
def test_einsum_of_views(spec, seed):
    rng = np.random.default_rng(seed)
    left, right = spec.split("->")[0].split(",")
    sizes = {c: int(rng.choice(SIZES[:5] if len(spec) > 14 else SIZES)) for c in left + right}
    operands = [
        rng.standard_normal([sizes[c] for c in own]).astype(np.float32) for own in (left, right)
    ]
    check(spec, *operands)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("shape", [(300, 40, 200), (20, 300, 700), (512, 512, 512), (3, 2, 4)])
def test_large_ones_are_split_among_threads(dtype, shape):
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s) for s in ((m, k), (k, n)))
    if dtype == "complex64":
        a, b = a + 1j * a[::-1], b - 1j * b[::-1]
    check("mk,kn->mn", a.astype(dtype), b.astype(dtype))


def test_float64_and_complex128():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((70, 50))
    with gf.enable_x64(True):
        check("mk,kn->mn", a, a.T.copy())
        check("mk,kn->mn", a + 1j, a.T.copy() - 2j)


def test_views_that_blas_cannot_read_are_copied():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 30, 2)).astype(np.float32)
    f = gf.jit(lambda x: (x[::2, ::2, 0] @ x[::2, ::2, 1].T, x[::-1, :, 0] @ x[..., 1].T))
    for made, expected in zip(
        f(x), (x[::2, ::2, 0] @ x[::2, ::2, 1].T, x[::-1, :, 0] @ x[..., 1].T), strict=True
    ):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0))])
def test_empty_operands(shapes):
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    made = gf.jit(lambda a, b: a @ b)(a, b)
    assert made.shape == (shapes[0][0], shapes[1][1]) and not np.asarray(made).any()


@pytest.mark.parametrize("spec", ["mk,k->m", "k,kn->n", "km,k->m", "bmk,bk->bm", "abmk,k->abm"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_products_with_vectors_outside_of_jit(spec, dtype):
    rng = np.random.default_rng(0)
    sizes = dict(zip("mnkab", (190, 170, 300, 3, 5)))
    left, right = (
        rng.standard_normal([sizes[d] for d in dims]).astype(dtype)
        for dims in spec.split("->")[0].split(",")
    )
    check_eager(spec, left, right)
    for jit in (True, False):  # with a dimension of size 1, which the compiler sums as well
        spec_1, operand = spec.replace("->", "z->") + "z", right[..., None]
        (check if jit else check_eager)(spec_1, left, operand)


def test_vectors_with_gaps_are_read_where_they_lie():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, 60, 3)).astype(np.float32)
    made = gf.jit(lambda x: (x[:, :, 0] @ x[0, :, 1:2], x[3:4, ::-1, 0] @ x[..., 1].T))(x)
    for one, pair in zip(
        made, ((x[:, :, 0], x[0, :, 1:2]), (x[3:4, ::-1, 0], x[..., 1].T)), strict=True
    ):
        np.testing.assert_allclose(one, pair[0] @ pair[1], rtol=1e-4, atol=1e-4)


def test_nan_in_unused_memory_does_not_matter_and_in_operands_does():
    a = np.full((5, 5), np.nan, np.float32)
    f = gf.jit(lambda a, b: (a @ b) @ b)
    assert np.isnan(f(a, np.zeros((5, 5), np.float32))).all()
    np.testing.assert_array_equal(
        f(np.eye(5, dtype=np.float32), np.eye(5, dtype=np.float32)), np.eye(5)
    )


def test_without_a_private_blas_numpy_multiplies(monkeypatch):
    monkeypatch.setattr(products, "private_blas", lambda: None)
    rng = np.random.default_rng(0)
    check("bmk,bkn->bmn", *(rng.standard_normal(s).astype("f4") for s in ((3, 4, 5), (3, 5, 6))))


def test_a_missing_library_is_no_error(monkeypatch):
    monkeypatch.setattr(blas, "_numpy_openblas", lambda: None)
    assert blas.private_blas.__wrapped__() is None


def test_a_library_that_does_not_load_is_no_error(monkeypatch, tmp_path):
    broken = tmp_path / "libscipy_openblas64_-x.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(blas, "_numpy_openblas", lambda: broken)
    monkeypatch.setattr(blas, "cache_folder", lambda: None)
    assert blas.private_blas.__wrapped__() is None


def test_the_private_blas_uses_one_thread():
    own = blas.private_blas()
    if own is None:
        pytest.skip("NumPy has no OpenBLAS of its own here")
    assert own.library.scipy_openblas_get_num_threads64_() == 1


def test_stacks_of_small_products_are_shared_by_whole_products():
    view = contiguous((64, 8, 8))
    call = product_call(STACK, view, view, np.dtype(np.float32), 4)
    assert call.extent == 64
    large = contiguous((64, 64, 64))
    assert product_call(STACK, large, large, np.dtype(np.float32), 4).chunk == 4


def test_a_broadcast_operand_is_no_matrix():
    repeated = View((8, 8), (0, 1), 0, (True, False))
    whole = contiguous((8, 8))
    assert product_call(PLAIN, repeated, whole, np.dtype(np.float32), 1) is None
    stack = View((5, 8, 8), (0, 8, 1), 0, (True, False, False))
    call = product_call(STACK, stack, contiguous((5, 8, 8)), np.dtype(np.float32), 1)
    assert call is not None and call.arguments[16:18] == (0, 0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_empty_operand_that_is_no_matrix_is_not_copied(dtype):
    """It would be copied into a workspace, and without a byte to copy there was none."""

    def product(x):
        stack = jnp.broadcast_to(x, (2, 2, 0))
        return jnp.arctan(x), jnp.einsum("abk,ck->abc", stack, x.sum(0).reshape(1, 0))

    kept, result = gf.jit(product)(jnp.ones((2, 0), dtype))
    assert kept.shape == (2, 0) and result.dtype == dtype
    np.testing.assert_array_equal(result, np.zeros((2, 2, 1)))
