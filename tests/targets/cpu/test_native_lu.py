"""Compiled LU decompositions, by our own LAPACK, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.lax.linalg import lu
from gpuflow.targets.cpu.library import lu as provider
from gpuflow.targets.cpu.library.blas import private_blas
from gpuflow.targets.cpu.library.lu import MAX_ROWS
from gpuflow.targets.cpu.target import NATIVE_TARGET

needs_blas = pytest.mark.skipif(private_blas() is None, reason="NumPy came without OpenBLAS")
SHAPES = [
    (1, 1),
    (5, 5),
    (40, 70),
    (70, 40),
    (3, 30, 30),
    (2, 3, 20, 9),
    (MAX_ROWS + 1, 3),
    (4, 0, 0),
]
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def numbers(shape, dtype):
    random = np.random.default_rng(0)
    x = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * random.standard_normal(shape)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_scipy(shape, dtype):
    """In order, and transposed: random matrices have no equal candidates for a pivot."""
    limit = 1e-3 if np.finfo(dtype).eps > 1e-10 else 1e-10
    with gf.enable_x64(True):
        for turn in (lambda x: x, lambda x: x.swapaxes(-1, -2)):
            a = numbers(shape, dtype)
            found = [np.asarray(x) for x in gf.jit(lambda a, f=turn: lu(f(a)))(a)]
            eager = [np.asarray(x) for x in lu(np.ascontiguousarray(turn(a)))]
            for one, other in zip(found, eager, strict=True):
                assert one.dtype == other.dtype and one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=limit, atol=limit)
            for place in np.ndindex(*shape[:-2]) if a.size else ():
                factors, pivots = scipy.linalg.lu_factor(turn(a)[place])
                np.testing.assert_allclose(found[0][place], factors, rtol=limit, atol=limit)
                np.testing.assert_array_equal(found[1][place], pivots)


def test_singular_and_not_finite():
    """Zeros stay; nan and infinities spread, and every permutation is one of rows."""
    zeros = [np.asarray(x) for x in gf.jit(lu)(np.zeros((3, 3), np.float32))]
    np.testing.assert_array_equal(zeros[0], np.zeros((3, 3)))
    random = np.random.default_rng(1)
    for value in (np.nan, np.inf):
        a = numbers((50, 12, 12), np.float32)
        a[random.uniform(size=a.shape) < 0.2] = value
        factors, pivots, permutation = (np.asarray(x) for x in gf.jit(lu)(a))
        assert not np.isfinite(factors).all(axis=(1, 2)).any()
        assert ((pivots >= 0) & (pivots < 12)).all()
        np.testing.assert_array_equal(np.sort(permutation, 1), np.tile(np.arange(12), (50, 1)))


def test_solve_and_its_gradient():
    a, b = numbers((30, 30), np.float64) + 9 * np.eye(30), numbers((30, 4), np.float64)
    with gf.enable_x64(True):
        x = np.asarray(gf.jit(jnp.linalg.solve)(a, b))
        np.testing.assert_allclose(a @ x, b, atol=1e-12)
        gradient = gf.jit(gf.grad(lambda b: jnp.linalg.solve(a, b).sum()))(b)
        wanted = np.linalg.solve(a.T, np.ones((30, 4)))
        np.testing.assert_allclose(np.asarray(gradient), wanted, atol=1e-12)


def test_the_operand_stays():
    a = jnp.asarray(numbers((40, 40), np.float32))
    before = np.array(a)
    gf.jit(lu)(a)
    np.testing.assert_array_equal(np.asarray(a), before)


@needs_blas
def test_what_is_native(monkeypatch):
    def is_native(shape):
        jaxpr = gf.jit(lu).lower(numbers(shape, np.complex64)).jaxpr
        (step,) = compile_plan(jaxpr, target=NATIVE_TARGET)[0].steps
        return step.implementation is not None

    assert is_native((40, 40)) and is_native((MAX_ROWS, 1))
    assert not is_native((MAX_ROWS + 1, 3)) and not is_native((4, 0, 0))
    monkeypatch.setattr(provider, "private_blas", lambda: None)
    assert not is_native((40, 40))
