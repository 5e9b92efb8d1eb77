"""Products with scales of blocks: the definition, rounding, gradients, errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax, nn

CONFIGS = [nn.get_scaled_dot_general_config("mxfp8")] * 3


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
def test_scaled_matmul_repeats_scales(dtype):
    a, b = random(2, 3, 8).astype(dtype), random(2, 5, 8, seed=1).astype(dtype)
    scales = 2.0 ** np.arange(12).reshape(2, 3, 2), 2.0 ** -np.arange(20).reshape(2, 5, 2)
    want = np.einsum(
        "bmk,bnk->bmn",
        np.float64(a) * np.repeat(scales[0], 4, -1),
        np.float64(b) * np.repeat(scales[1], 4, -1),
    )
    operands = [jnp.asarray(x) for x in (a, b, *(s.astype(np.float32) for s in scales))]
    out = gpuflow.jit(nn.scaled_matmul)(*operands)
    assert out.dtype == np.float32
    np.testing.assert_allclose(np.asarray(out), want, rtol=1e-5, atol=1e-3)
    assert nn.scaled_matmul(*operands, preferred_element_type=jnp.bfloat16).dtype == jnp.bfloat16


def rounded(x):
    """Blocks of 32 along the last axis as mxfp8 holds them, one block after the other."""
    x = np.asarray(x, np.float64)
    out = np.zeros(x.shape)
    for index in np.ndindex(*x.shape[:-1]):
        for start in range(0, x.shape[-1], 32):
            block = x[index][start : start + 32]
            top = np.abs(block).max() / 448
            scale = 2.0 ** np.ceil(np.log2(top)) if top else 2.0**-126
            small = (block / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
            out[index][start : start + 32] = small.astype(np.float64) * scale
    return out


def test_rounding_in_blocks():
    a, b = random(2, 3, 64), random(2, 5, 64, seed=1) * 1e4
    a[0, 0, :32] = 0
    want = np.einsum("bmk,bnk->bmn", rounded(a), rounded(b))
    numbers = (((2,), (2,)), ((0,), (0,)))
    out = nn.scaled_dot_general(a, b, numbers, configs=CONFIGS)
    np.testing.assert_allclose(np.asarray(out), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_any_axes_and_no_rounding():
    a, b = random(4, 32, 3), random(32, 2, 4, seed=1)
    numbers = (((1,), (0,)), ((0,), (2,)))
    exact = np.asarray(lax.dot_general(a, b, numbers))
    np.testing.assert_array_equal(np.asarray(nn.scaled_dot_general(a, b, numbers)), exact)
    out = np.asarray(nn.scaled_dot_general(a, b, numbers, configs=CONFIGS))
    assert out.shape == exact.shape
    # Three bits behind the leading one: each product is off by at most 1/8.
    assert np.abs(out - exact).max() < 0.125 * np.abs(exact).max()


@pytest.mark.parametrize("numbers", [(((1, 2), (2, 0)), ((), ())), (((2,), (0,)), ((), ()))])
def test_gradients_are_those_of_the_product(numbers):
    shapes = ((32, 2, 16), (16, 64, 2)) if len(numbers[0][0]) == 2 else ((32, 2, 32), (32, 64, 3))
    a, b = random(*shapes[0]), random(*shapes[1], seed=1)

    def total(x, y, configs):
        out = nn.scaled_dot_general(x, y, numbers, configs=configs)
        return jnp.sum(out * random(*out.shape, seed=2))

    want = gpuflow.grad(total, argnums=(0, 1))(a, b, None)
    if len(numbers[0][0]) == 1:
        a, b = a, b[:, :, :1]
        want = gpuflow.grad(total, argnums=(0, 1))(a, b, None)
    got = gpuflow.jit(gpuflow.grad(lambda x, y: total(x, y, CONFIGS), argnums=(0, 1)))(a, b)
    for gradient, exact in zip(got, want, strict=True):
        assert gradient.shape == exact.shape
        error = np.linalg.norm(np.asarray(gradient - exact)) / np.linalg.norm(np.asarray(exact))
        assert error < 0.06  # two roundings of 3 bits, of independent signs


def test_errors():
    a, b = random(2, 3, 8), random(2, 5, 8)
    scales = random(2, 3, 2), random(2, 5, 2)
    with pytest.raises(ValueError, match=r"\[scaled_matmul\] operands must be .* Fix:"):
        nn.scaled_matmul(a, b, scales[0], scales[1][:, :4])
    numbers = (((2,), (2,)), ((0,), (0,)))
    with pytest.raises(ValueError, match=r"must hold a multiple of 32 elements; got 8"):
        nn.scaled_dot_general(a, b, numbers, configs=CONFIGS)
    with pytest.raises(TypeError, match=r"must be float32, bfloat16 or float16; got int32"):
        nn.scaled_dot_general(a, b, numbers, np.int32, CONFIGS)
    with pytest.raises(ValueError, match=r"configs must be three"):
        nn.scaled_dot_general(a, b, numbers, configs=CONFIGS[:2])
    with pytest.raises(NotImplementedError, match=r"the only one that is written; got \['nvfp4'"):
        config = nn.get_scaled_dot_general_config("nvfp4")
        nn.scaled_dot_general(a, b, numbers, configs=[config] * 3)
    with pytest.raises(ValueError, match=r"mode must be 'mxfp8' or 'nvfp4'; got 'int8'"):
        nn.get_scaled_dot_general_config("int8")
    with pytest.warns(DeprecationWarning, match="implementation has no effect"):
        nn.scaled_dot_general(a, b, numbers, implementation="cudnn")
