"""Eigenvalues of general matrices by handwritten kernels, in the PTX interpreter."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import on_gpu

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.targets.cuda.library import small_matrices

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(19)


def matrices(count, size, dtype):
    a = RNG.normal(size=(count, size, size))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * RNG.normal(size=a.shape)
    return a.astype(dtype)


def some(size):
    """How many matrices: warps that do different things take turns in the interpreter."""
    return 3 if size < 10 else 1


def values_of(a):
    with gf.enable_x64():
        return on_gpu(jnp.linalg.eigvals, a)


def decomposed(a):
    """Values, left vectors and right vectors."""
    with gf.enable_x64():
        return on_gpu(lambda a: tuple(lax.linalg.eig(a)), a)


def units(a):
    """A backward error of one unit of rounding for each row of a matrix."""
    return np.finfo(a.dtype).eps * max(a.shape[-1], 1) * max(np.abs(a).max(initial=0), 1e-300)


def assert_near(got, want, tolerance):
    """The same numbers, in whatever order."""
    assert len(got) == len(want)
    gaps = np.abs(got[:, None].astype(complex) - want[None].astype(complex))
    assert not gaps.size or gaps.min(0).max() <= tolerance
    assert not gaps.size or gaps.min(1).max() <= tolerance


def assert_decomposed(a, values, left, right):
    """A V = V W and U^H A = W U^H up to a few units of rounding, and vectors as LAPACK's."""
    limit = 8 * units(a)
    a, values, left, right = (x.astype(complex) for x in (a, values, left, right))
    assert np.abs(a @ right - right * values).max() <= limit
    adjoint = left.conj().T
    assert np.abs(adjoint @ a - values[:, None] * adjoint).max() <= limit
    for vectors in (left, right):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), 1, rtol=1e-5)
        sizes = np.abs(vectors)  # there may be several that are largest but for rounding
        assert ((vectors.imag == 0) & (sizes >= sizes.max(0) * (1 - 1e-6))).any(0).all()


@pytest.mark.parametrize(
    "dtype, size",
    [("float64", n) for n in (0, 1, 2, 3, 4, 31)] + [("complex64", n) for n in (1, 2, 3, 4)],
)
def test_values(dtype, size):
    a = matrices(some(size), size, dtype)
    values = values_of(a)
    assert values.shape == a.shape[:2]
    assert values.dtype == (np.complex64 if dtype == "complex64" else np.complex128)
    for k in range(len(a)):
        # Matrices of random numbers have conditions of eigenvalues of some tens.
        want = np.linalg.eigvals(a[k].astype(np.complex128)) if size else np.zeros(0)
        assert_near(values[k], want, 100 * units(a[k]))


@pytest.mark.parametrize("count", [0, 1, 33])
def test_batches(count):
    a = matrices(count, 4, "float64")
    values = values_of(a)
    assert values.shape == (count, 4)
    for k in range(count):
        assert_near(values[k], np.linalg.eigvals(a[k]), 100 * units(a[k]))


@pytest.mark.parametrize(
    "dtype, size",
    [("float32", n) for n in (1, 2, 3, 4, 7, 32)]
    + [("complex128", n) for n in (1, 2, 3, 4, 7, 31)],
)
def test_vectors(dtype, size):
    a = matrices(some(size), size, dtype)
    for parts in zip(a, *decomposed(a), strict=True):
        assert_decomposed(*parts)


def test_real_matrices_have_real_values_and_conjugate_pairs():
    a = matrices(5, 7, "float32")
    values, _, right = decomposed(a)
    for w, v in zip(values, right, strict=True):
        real = w.imag == 0
        assert real.any()  # of seven values one must be real
        np.testing.assert_array_equal(v[:, real].imag, 0)
        (places,) = np.nonzero(~real)
        first, second = places[::2], places[1::2]
        assert (w[first].imag > 0).all()
        np.testing.assert_array_equal(w[first], w[second].conj())
        np.testing.assert_array_equal(v[:, first], v[:, second].conj())


def special(size):
    """What iterations and substitutions find hard."""
    a, shifted = RNG.normal(size=(size, size)), np.eye(size, k=1)
    cyclic = shifted.copy()
    cyclic[-1, 0] = 1
    scales = 10.0 ** np.linspace(-8, 8, size)
    return {
        "jordan": shifted + 2 * np.eye(size),
        "nilpotent": shifted,
        "cyclic": cyclic,
        "zero": np.zeros((size, size)),
        "one": np.eye(size),
        "ones": np.ones((size, size)),
        "skew": a - a.T,
        "symmetric": a + a.T,
        "orthogonal": np.linalg.qr(a)[0],
        "large": a * 1e30,
        "small": a * 1e-30,
        "unbalanced": scales[:, None] * a / scales,
        "triangular": np.triu(a),
        "lower": np.tril(a),
    }


@pytest.mark.parametrize("dtype, factor", [("float32", 1), ("complex128", 1 + 0.5j)])
def test_hard_matrices(dtype, factor):
    names = special(8)
    a = np.stack([x * factor for x in names.values()]).astype(dtype)
    result = decomposed(a)
    for name, *parts in zip(names, a, *result, strict=True):
        assert_decomposed(*parts)
        if name in ("jordan", "nilpotent", "zero", "one", "triangular", "lower"):
            # Rows that stand alone are set aside, so that these are exact, defective or not.
            want = np.sort_complex(np.diagonal(parts[0]))
            np.testing.assert_array_equal(np.sort_complex(parts[1]), want.astype(parts[1].dtype))


def test_balancing_finds_small_values_of_unbalanced_matrices():
    scales = 2.0 ** np.arange(-24, 25, 8)
    a = matrices(1, 7, "float64")
    values = values_of(scales[:, None] * a / scales)
    assert_near(values[0], np.linalg.eigvals(a[0]), 1000 * units(a))


def test_defective_values_spread_by_a_root_of_rounding():
    """A Jordan block of 4 rows in another basis: values lie within eps ** (1 / 4)."""
    basis = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
    a = basis @ (np.eye(4, k=1) + 2 * np.eye(4)) @ basis.T
    assert_near(values_of(a[None])[0], np.full(4, 2.0), 10 * np.finfo(np.float64).eps ** 0.25)


def test_what_is_not_finite_is_nan_and_harms_no_other():
    a = matrices(4, 5, "float32")
    a[0, 2, 3], a[2, 4, 0] = np.nan, -np.inf
    values, left, right = decomposed(a)
    for k in (0, 2):
        assert np.isnan(values[k]).all() and np.isnan(left[k]).all() and np.isnan(right[k]).all()
    for k in (1, 3):
        assert_decomposed(a[k], values[k], left[k], right[k])


def test_what_does_not_converge_is_nan(monkeypatch):
    monkeypatch.setattr(small_matrices, "ITERATIONS_PER_ROW", 0)
    assert np.isnan(values_of(matrices(2, 6, "complex64"))).all()
