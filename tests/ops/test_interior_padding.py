"""Padding between elements, which compiled code makes of rows with borders."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline


def padded(x, value, config):
    """By NumPy, element by element of one axis after the other."""
    for d, (low, high, interior) in enumerate(config):
        size = x.shape[d]
        inner = size + max(size - 1, 0) * interior
        shape = list(x.shape)
        shape[d] = max(low, 0) + inner + max(high, 0)
        out = np.full(shape, value, x.dtype)
        at = [slice(None)] * x.ndim
        at[d] = slice(max(low, 0), max(low, 0) + inner, interior + 1)
        out[tuple(at)] = x
        at[d] = slice(max(-low, 0), shape[d] - max(-high, 0))
        x = out[tuple(at)]
    return x


@pytest.mark.parametrize("seed", range(8))
def test_random_configurations(seed):
    chosen = np.random.default_rng(seed)
    for _ in range(12):
        rank = int(chosen.integers(1, 4))
        shape = tuple(int(n) for n in chosen.integers(0 if rank < 3 else 1, 7, rank))
        config = []
        for size in shape:
            interior = int(chosen.integers(0, 4))
            room = size + max(size - 1, 0) * interior
            low = int(chosen.integers(-(room // 2), 6))
            config.append((low, int(chosen.integers(-((room + min(low, 0)) // 2), 6)), interior))
        x = chosen.normal(size=shape).astype(np.float32)
        got = gf.jit(lambda x, v, config=config: lax.pad(x, v, config))(x, np.float32(7))
        np.testing.assert_array_equal(got, padded(x, 7, config), str((shape, config)))


@pytest.mark.parametrize("dtype", ["int8", "bool", "bfloat16", "float64", "complex64"])
def test_dtypes(dtype):
    with gf.enable_x64():
        x = jnp.asarray(np.arange(-20, 20)).astype(dtype)
        value = jnp.asarray(1).astype(dtype)
        config = ((1, 2, 2),)
        got = gf.jit(lambda x: lax.pad(x, value, config))(x)
        np.testing.assert_array_equal(got, padded(np.asarray(x), np.asarray(value), config))


@pytest.mark.parametrize("step", [2, 3, 5, 17])
@pytest.mark.parametrize("size", [1, 2, 29, 30, 6000])
def test_gradients_of_slices_with_steps(step, size):
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    for start in range(min(step, size)):
        got = gf.jit(gf.grad(lambda x, start=start: (x[start::step] ** 2).sum()))(x)
        expected = np.zeros_like(x)
        expected[start::step] = 2 * x[start::step]
        np.testing.assert_array_equal(got, expected)


def test_gradients_of_slices_of_both_axes():
    x = np.random.default_rng(0).normal(size=(81, 122)).astype(np.float32)
    got = gf.jit(gf.grad(lambda x: (x[1::2, ::3] ** 2).sum() + x[::2, 1::3].sum()))(x)
    expected = np.zeros_like(x)
    expected[1::2, ::3] = 2 * x[1::2, ::3]
    expected[::2, 1::3] += 1
    np.testing.assert_array_equal(got, expected)


def test_neighbors_that_are_put_back_are_one_kernel():
    """Both halves are columns of the result: nothing is padded or added."""
    x = np.arange(5000, dtype=np.float32)
    function = gf.grad(lambda x: (x[1::2] * x[::2]).sum())
    plan = pipeline.compile_plan(gf.jit(function).lower(x).jaxpr)[0]
    steps = [[e.primitive.name for e in s.eqns] for s in plan.steps if s.kind == "kernel"]
    assert not any({"pad", "add_any"} & set(names) for names in steps)
    got = np.asarray(gf.jit(function)(x))
    np.testing.assert_array_equal(got[::2], x[1::2])
    np.testing.assert_array_equal(got[1::2], x[::2])


def test_slices_of_what_was_padded_are_the_operand():
    x = np.arange(10, dtype=np.float32)
    function = lambda x: lax.pad(x, 0.0, ((0, 0, 1),))[::2] + 1  # noqa: E731
    plan = pipeline.compile_plan(gf.jit(function).lower(x).jaxpr)[0]
    assert all(e.primitive.name != "pad" for s in plan.steps for e in getattr(s, "eqns", ()))
    np.testing.assert_array_equal(gf.jit(function)(x), x + 1)
