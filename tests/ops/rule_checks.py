"""Properties that the rules of any op must have."""

import itertools

import numpy as np
from op_kernels import run_kernel

import gpuflow as gf
from gpuflow.core.aval import ShapedArray


def random_array(generator, shape, dtype):
    """Numbers of moderate size; complex ones get an imaginary part."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return generator.integers(0, 100, shape).astype(dtype)
    numbers = generator.standard_normal(shape)
    if dtype.kind == "c":
        numbers = numbers + 1j * generator.standard_normal(shape)
    return np.asarray(numbers).astype(dtype)


def check_derivatives(function, operands, seed=0, tolerance=1e-5):
    """Multilinear functions: jvp is the sum of swaps, and vjp is its adjoint.

    Args:
        function: linear in each operand by itself, or in all together.
        operands: NumPy arrays of one inexact dtype.
        tolerance: relative, for sums of float32.
    """
    generator = np.random.default_rng(seed)
    tangents = [random_array(generator, x.shape, x.dtype) for x in operands]
    out, tangent = gf.jvp(function, tuple(operands), tuple(tangents))
    step = 1e-3
    ahead, behind = (
        np.asarray(function(*[_moved(x, t, s * step) for x, t in zip(operands, tangents)]))
        for s in (1, -1)
    )
    # Central differences of functions of degree two are exact up to rounding of the inputs.
    numeric = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(np.asarray(tangent), numeric, rtol=5e-3, atol=5e-3)
    cotangent = random_array(generator, np.shape(out), out.dtype)
    _, pullback = gf.vjp(function, *operands)
    pulled = pullback(cotangent)
    left = np.sum(cotangent * np.asarray(tangent))
    right = sum(np.sum(np.asarray(p) * t) for p, t in zip(pulled, tangents))
    scale = max(1.0, float(np.sum(np.abs(cotangent * np.asarray(tangent)))))
    assert abs(left - right) <= tolerance * scale
    for part, x in zip(pulled, operands):
        assert part.shape == x.shape and part.dtype == x.dtype


def _moved(x, tangent, step):
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    return (x.astype(wide) + step * tangent.astype(wide)).astype(x.dtype)


def check_vmap(function, operands, size=3, seed=0, tolerance=0.0):
    """vmap over every choice of mapped operands and of axes equals a Python loop.

    Args:
        function: takes arrays of the shapes of ``operands``.
        operands: unmapped NumPy arrays; mapped versions are made by changing their numbers.
        tolerance: relative; 0 for ops that only move elements.
    """
    generator = np.random.default_rng(seed)
    choices = [[None, *{0, x.ndim}] for x in operands]
    for axes in itertools.product(*choices):
        if all(axis is None for axis in axes):
            continue
        stacked = [
            x if axis is None else np.stack(_variants(generator, x, size), axis)
            for x, axis in zip(operands, axes)
        ]
        mapped = gf.vmap(function, in_axes=axes)(*stacked)
        rows = [
            np.asarray(function(*[_pick(x, axis, k) for x, axis in zip(stacked, axes)]))
            for k in range(size)
        ]
        expected = np.stack(rows)
        assert mapped.shape == expected.shape and mapped.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(mapped), expected, rtol=tolerance, atol=tolerance)


def _variants(generator, x, size):
    """``size`` arrays like ``x``: its numbers in other orders, so that index arrays stay valid."""
    flat = x.reshape(-1)
    return [generator.permutation(flat).reshape(x.shape) for _ in range(size)]


def _pick(x, axis, number):
    return x if axis is None else np.array(np.take(x, number, axis))


def run_body(primitive, *arrays, avals=None, **params):
    """The output of an op with one result, computed by its kernel body."""
    arrays = [np.asarray(array) for array in arrays]
    avals = avals or [ShapedArray(array.shape, array.dtype) for array in arrays]
    return run_kernel(primitive, arrays, avals, [primitive.shape(*avals, **params)], params)[0]
