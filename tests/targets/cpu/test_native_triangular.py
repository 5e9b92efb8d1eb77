"""Compiled triangular systems, solved in the memory of the result."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gpuflow as gf
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.lax.linalg import triangular_solve
from gpuflow.targets.cpu.library import triangular
from gpuflow.targets.cpu.library.blas import private_blas
from gpuflow.targets.cpu.target import NATIVE_TARGET

needs_blas = pytest.mark.skipif(private_blas() is None, reason="NumPy came without OpenBLAS")
# Shapes of A and the number of right-hand sides: several blocks, one column, stacks, and nothing.
CASES = [((5, 5), 3), ((70, 70), 200), ((90, 90), 1), ((3, 20, 20), 7), ((1, 1), 1), ((4, 4), 0)]
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def case(shape, count, dtype, left_side):
    random = np.random.default_rng(count)

    def numbers(*shape):
        x = random.standard_normal(shape)
        return x + 1j * random.standard_normal(shape) if np.dtype(dtype).kind == "c" else x

    a = numbers(*shape) / shape[-1] + 2 * np.eye(shape[-1])
    size = shape[-1]
    b = numbers(*shape[:-2], *((size, count) if left_side else (count, size)))
    return a.astype(dtype), b.astype(dtype)


def applied(a, lower, transpose_a, conjugate_a, unit_diagonal):
    """op(A)."""
    part = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        each = np.arange(a.shape[-1])
        part[..., each, each] = 1
    part = part.conj() if conjugate_a else part
    return part.swapaxes(-1, -2) if transpose_a else part


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left_side", [False, True])
@pytest.mark.parametrize("shape, count", CASES)
def test_every_form(shape, count, left_side, dtype):
    """Compiled and eager; the residual is that of a well-conditioned matrix."""
    a, b = case(shape, count, dtype, left_side)
    limit = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-12
    names = ("lower", "transpose_a", "conjugate_a", "unit_diagonal")
    with gf.enable_x64(True):
        for flags in itertools.product([False, True], repeat=4):
            params = dict(zip(names, flags, strict=True), left_side=left_side)
            for call in (triangular_solve, gf.jit(triangular_solve, static_argnames=tuple(params))):
                x = np.asarray(call(a, b, **params))
                assert x.dtype == dtype and x.shape == b.shape
                matrix = applied(a, *flags)
                product = matrix @ x if left_side else x @ matrix
                np.testing.assert_allclose(product, b, rtol=0, atol=limit)


def test_right_hand_sides_that_do_not_lie_in_order():
    a, b = case((40, 40), 30, np.float32, False)
    for change in (lambda b: b.T, lambda b: b[::-1].T, lambda b: b[:7].T[:, ::2]):
        solve = gf.jit(lambda a, b, f=change: triangular_solve(a, f(b), left_side=True, lower=True))
        x = np.asarray(solve(a, b))
        np.testing.assert_allclose(np.tril(a) @ x, change(b), rtol=0, atol=1e-4)


def test_operands_stay():
    a, b = (gf.numpy.asarray(x) for x in case((40, 40), 30, np.float32, True))
    before = np.array(a), np.array(b)
    gf.jit(lambda a, b: triangular_solve(a, b, left_side=True))(a, b)
    np.testing.assert_array_equal(before[0], np.asarray(a))
    np.testing.assert_array_equal(before[1], np.asarray(b))


def test_a_zero_on_the_diagonal_divides():
    a, b = np.array([[1, 0], [2, 0]], np.float32), np.ones((2, 1), np.float32)
    for wrap in (lambda f: f, gf.jit):
        x = wrap(lambda a, b: triangular_solve(a, b, left_side=True, lower=True))(a, b)
        np.testing.assert_array_equal(np.asarray(x)[:, 0], [1, -np.inf])


def choice_of(*operands, **params):
    jaxpr = gf.jit(lambda a, b: triangular_solve(a, b, **params)).lower(*operands).jaxpr
    (step,) = compile_plan(jaxpr, target=NATIVE_TARGET)[0].steps
    return step.implementation


@needs_blas
def test_what_is_native(monkeypatch):
    a, b = case((40, 40), 30, np.complex64, True)
    assert choice_of(a, b, left_side=True) is not None
    assert choice_of(a, b, left_side=True, conjugate_a=True) is None
    assert choice_of(a, b[:, :0], left_side=True) is None
    monkeypatch.setattr(triangular, "private_blas", lambda: None)
    assert choice_of(a, b, left_side=True) is None
