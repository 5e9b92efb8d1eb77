"""Attention: a definition in float64, gradients, masks without keys, one kernel, errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import nn

pytestmark = pytest.mark.simulated_gpu


def operands(query, key, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(dtype) for shape in (query, key, key)]


def defined(q, k, v, seen=None):
    """One head after the other, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros(q.shape)
    each = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for n in range(q.shape[2]):
            scores = q[b, :, n] @ k[b, :, n // each].T / np.sqrt(q.shape[3])
            if seen is not None:
                scores = np.where(seen, scores, -np.inf)
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            out[b, :, n] = powers / powers.sum(-1, keepdims=True) @ v[b, :, n // each]
    return out


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_against_the_definition(heads, causal):
    q, k, v = operands((2, 7, heads[0], 5), (2, 9, heads[1], 5))
    seen = np.tril(np.ones((7, 9), bool)) if causal else None
    out = gpuflow.jit(lambda *xs: nn.dot_product_attention(*xs, is_causal=causal))(q, k, v)
    np.testing.assert_allclose(np.asarray(out), defined(q, k, v, seen), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_have_scores_in_float32(dtype):
    q, k, v = (jnp.asarray(x, dtype) for x in operands((2, 7, 2, 16), (2, 9, 2, 16)))
    out = nn.dot_product_attention(q, k, v)
    assert out.dtype == q.dtype
    tolerance = 2e-2 if dtype == "bfloat16" else 2e-3
    want = defined(*(np.asarray(x, np.float32) for x in (q, k, v)))
    np.testing.assert_allclose(np.asarray(out, np.float32), want, rtol=tolerance, atol=tolerance)


def test_float64_keeps_its_digits():
    with gpuflow.enable_x64():
        q, k, v = operands((1, 4, 2, 3), (1, 5, 2, 3), np.float64)
        out = nn.dot_product_attention(q, k, v)
        np.testing.assert_allclose(np.asarray(out), defined(q, k, v), rtol=1e-12)


def test_gradients_against_differences():
    with gpuflow.enable_x64():
        arrays = operands((2, 4, 4, 3), (2, 5, 2, 3), np.float64)
        bias = np.random.default_rng(1).normal(size=(4, 4, 5))

        def total(*xs):
            out = nn.dot_product_attention(*xs, is_causal=True, local_window_size=3)
            return jnp.sum(jnp.sin(out))

        primals = (*arrays, bias)
        got = gpuflow.jit(gpuflow.grad(total, argnums=(0, 1, 2, 3)))(*primals)
        for position, (x, gradient) in enumerate(zip(primals, got, strict=True)):
            direction = np.random.default_rng(position).normal(size=x.shape)
            ends = []
            for step in (1e-6, -1e-6):
                moved = [
                    y + step * direction if k == position else y for k, y in enumerate(primals)
                ]
                ends.append(float(total(*moved)))
            want = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(
                (np.asarray(gradient) * direction).sum(), want, rtol=1e-7, atol=1e-8
            )


def test_queries_without_keys_get_the_mean():
    q, k, v = operands((1, 3, 1, 4), (1, 5, 1, 4))
    mask = np.array([[True] * 5, [False] * 5, [True] * 5])
    out = np.asarray(nn.dot_product_attention(q, k, v, mask=mask))
    np.testing.assert_allclose(out[0, 1, 0], v[0, :, 0].mean(0), rtol=1e-6, atol=2e-7)


def test_under_vmap():
    q, k, v = operands((3, 4, 2, 5), (3, 6, 2, 5))
    out = gpuflow.vmap(nn.dot_product_attention)(q, k, v)
    np.testing.assert_allclose(
        np.asarray(out), np.asarray(nn.dot_product_attention(q, k, v)), rtol=1e-6, atol=2e-7
    )


def test_softmax_is_one_kernel_between_two_products():
    arrays = operands((2, 16, 4, 8), (2, 16, 4, 8))
    attention = gpuflow.jit(lambda *xs: nn.dot_product_attention(*xs, is_causal=True))
    text = attention.lower(*arrays).compile().as_text()
    kernels = re.findall(r"^kernel (\w+?)_", text, re.MULTILINE)
    assert kernels == ["row", "map"]  # the latter gives the result its layout
    assert text.count("library") == 2


def test_lengths_may_be_traced():
    q, k, v = operands((2, 3, 2, 4), (2, 5, 2, 4))
    lengths = jnp.array([2, 5], jnp.int32)

    def function(n):
        return nn.dot_product_attention(q, k, v, key_value_seq_lengths=n)

    out = np.asarray(gpuflow.jit(function)(lengths))
    np.testing.assert_allclose(out[:1], defined(q[:1], k[:1, :2], v[:1, :2]), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(out[1:], defined(q[1:], k[1:], v[1:]), rtol=2e-5, atol=2e-6)


def check_error(match, *arrays, **options):
    with pytest.raises(ValueError, match=r"\[dot_product_attention\] .*" + match + r".*Fix: "):
        nn.dot_product_attention(*arrays, **options)


def test_errors():
    q, k, v = operands((2, 3, 4, 5), (2, 6, 2, 5))
    check_error("implementation must be one of", q, k, v, implementation="flash")
    with pytest.raises(NotImplementedError, match=r"must be 'xla' .*got 'cudnn'.*Fix: "):
        nn.dot_product_attention(q, k, v, implementation="cudnn")
    check_error("query must have 3 or 4 axes", q[None], k, v)
    check_error("key and value must have one shape", q, k, v[:, :5])
    check_error("one float dtype", q, k.astype(np.float16), v)
    check_error("a multiple of those of key", q[:, :, :3], k, v)
    check_error("mask must be bool", q, k, v, mask=np.ones((3, 6), np.float32))
    check_error("bias must broadcast", q, k, v, bias=np.ones((3, 5), np.float32))
    check_error("local_window_size must be", q, k, v, local_window_size=(1, 2, 3))
    check_error("key_value_seq_lengths must be int32", q, k, v, key_value_seq_lengths=[1.0, 2.0])
