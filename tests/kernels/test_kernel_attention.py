"""Fused attention and its gradients, in the PTX interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import gpu_device, run_schedule

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.base import dtypes
from gpuflow.core.blocks import Attention
from gpuflow.core.jaxpr import all_eqns
from gpuflow.kernels import attention_reference as reference
from gpuflow.ops.contractions.precision import Precision
from gpuflow.targets.cuda.library.attention import add_attention
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence

pytestmark = requires_cuda_tools

# Weights and slopes of scores are rounded to the operands' dtype; sums of them are in float32.
F32 = np.dtype(np.float32)
TOLERANCES = {"float32": 3e-6, "tensorfloat32": 2e-3, "bfloat16": 2e-2, "float16": 2e-3}


def attention_of(batch, queries, keys, heads, key_heads, size, gradient=False, **more):
    """What the kernels are told; by default without mask, bias and lengths."""
    options = {
        "causal": False,
        "window": None,
        "bias": None,
        "mask": None,
        "query_lengths": False,
        "key_lengths": False,
        **more,
    }
    return Attention(
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        key_heads=key_heads,
        size=size,
        scale=size**-0.5,
        gradient=gradient,
        **options,
    )


def schedule_of(what, kinds, outs):
    sequence = LaunchSequence(len(kinds) + outs)
    places = [ArrayLocation(number) for number in range(len(kinds) + outs)]
    assert add_attention(sequence, what, places[: len(kinds)], places[len(kinds) :], kinds)
    return sequence


def run(what, operands, outs):
    """Outputs of the kernels."""
    sequence = schedule_of(what, [x.dtype for x in operands], len(outs))
    arrays = [*operands, *[np.full(shape, 7, kind) for shape, kind in outs]]
    return run_schedule(sequence, arrays)[len(operands) :]


def assert_near(got, want, dtype):
    got = got.astype(np.float64)
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1)
    assert error < TOLERANCES[dtype], error


def check(dtype, shape, seed=0, query_lengths=None, key_lengths=None, **more):
    """Compare out, sums and gradients with the reference; shape is (B, T, S, N, K, D)."""
    batch, queries, keys, heads, key_heads, size = shape
    more["reduced"] = dtype == "tensorfloat32"
    kind = np.dtype(np.float32 if more["reduced"] else getattr(dtypes, dtype))
    rng = np.random.default_rng(seed)
    of_queries, of_keys = (batch, queries, heads, size), (batch, keys, key_heads, size)
    query, key, value, dout = (
        rng.normal(size=own).astype(kind) for own in (of_queries, of_keys, of_keys, of_queries)
    )
    bias = rng.normal(size=more["bias"]).astype(np.float32) if "bias" in more else None
    mask = rng.random(more["mask"]) < 0.7 if "mask" in more else None
    lengths = [None if x is None else np.array(x, np.int32) for x in (query_lengths, key_lengths)]
    extras = [x for x in (bias, mask, *lengths) if x is not None]
    more.update(query_lengths=query_lengths is not None, key_lengths=key_lengths is not None)
    what = attention_of(*shape, **more)
    seen = reference.seen_keys(
        queries,
        keys,
        batch,
        heads,
        causal=what.causal,
        window=what.window,
        mask=mask,
        query_lengths=lengths[0],
        key_lengths=lengths[1],
    )
    want = reference.attention(query, key, value, seen, what.scale, bias, lengths[0])
    of_sums = ((batch, heads, queries), np.dtype(np.float32))
    out, sums = run(what, [query, key, value, *extras], [(of_queries, kind), of_sums])
    assert_near(out, want[0], dtype)
    near = TOLERANCES[dtype] if more["reduced"] else 1e-5
    np.testing.assert_allclose(sums, want[1], rtol=near, atol=near)
    dots = np.einsum("btnd,btnd->bnt", dout.astype(np.float64), want[0]).astype(np.float32)
    operands = [query, key, value, dout, want[1].astype(np.float32), dots, out, *extras]
    what = attention_of(*shape, gradient=True, **more)
    outs = [(of_queries, kind), (of_keys, kind), (of_keys, kind)]
    gradients = reference.attention_gradients(
        query, key, value, dout, seen, what.scale, bias, lengths[0]
    )
    for got, own in zip(run(what, operands, outs), gradients, strict=True):
        assert_near(got, own, dtype)


@pytest.mark.parametrize("queries, keys", [(1, 1), (31, 33), (65, 131), (67, 1), (1, 65)])
def test_causal_in_half_precision(queries, keys):
    check("bfloat16", (1, queries, keys, 2, 1, 64), causal=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "tensorfloat32"])
def test_everything_at_once(dtype):
    """Grouped heads, queries that see nothing, tiles without any key, batches of other lengths."""
    check(
        dtype,
        (2, 67, 70, 4, 2, 32),
        causal=True,
        window=(20, 7),
        bias=(1, 4, 67, 70),
        mask=(2, 1, 67, 70),
        query_lengths=[67, 30],
        key_lengths=[70, 9],
    )
    check(
        dtype,
        (2, 3, 37, 2, 1, 32),
        seed=1,
        causal=True,
        window=(1, 0),
        bias=(2, 1, 1, 37),
        mask=(1, 2, 3, 1),
        query_lengths=[0, 3],
        key_lengths=[0, 2],
    )
    check(
        dtype,
        (1, 1, 31, 1, 1, 32),
        seed=2,
        causal=True,
        window=(9, 40),
        bias=(1, 1, 1, 1),
        mask=(1, 1, 1, 31),
        query_lengths=[1],
        key_lengths=[31],
    )


@pytest.mark.parametrize("size", [16, 128])
def test_tensorfloat32(size):
    """Against the reference, which shows that operands are rounded, and of rounded ones."""
    rng = np.random.default_rng(6)
    shapes = ((1, 35, 2, size), (1, 70, 1, size), (1, 70, 1, size))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    what = attention_of(1, 35, 70, 2, 1, size, causal=True, reduced=True)
    outs = [(shapes[0], F32), ((1, 2, 35), F32)]
    out, sums = run(what, arrays, outs)
    rounded = [
        ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
        for x in arrays
    ]
    seen = reference.seen_keys(35, 70, 1, 2, causal=True)
    exact, near = (reference.attention(*xs, seen, what.scale) for xs in (arrays, rounded))
    assert_near(out, exact[0], "tensorfloat32")
    assert np.abs(out - exact[0]).max() > 1e-5
    # Scores are those of rounded operands; weights are rounded once more.
    np.testing.assert_allclose(sums, near[1], rtol=1e-5, atol=1e-5)
    assert np.abs(sums - exact[1]).max() > 1e-5
    assert np.abs(out - near[0]).max() < 2.0**-10 * np.abs(arrays[2]).max()


def test_long_vectors():
    rng = np.random.default_rng(2)
    shapes = ((1, 131, 1, 128), (1, 37, 1, 128), (1, 37, 1, 128))
    arrays = [rng.normal(size=shape).astype(dtypes.bfloat16) for shape in shapes]
    what = attention_of(1, 131, 37, 1, 1, 128, causal=True)
    outs = [(shapes[0], arrays[0].dtype), ((1, 1, 131), np.dtype(np.float32))]
    seen = reference.seen_keys(131, 37, 1, 1, causal=True)
    want = reference.attention(*arrays, seen, what.scale)[0]
    assert_near(run(what, arrays, outs)[0], want, "bfloat16")


def test_the_same_in_every_run():
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=(1, 65, 2, 64)).astype(dtypes.bfloat16) for _ in range(3)]
    what = attention_of(1, 65, 65, 2, 2, 64, causal=True)
    outs = [(arrays[0].shape, arrays[0].dtype), ((1, 2, 65), np.dtype(np.float32))]
    one, two = run(what, arrays, outs), run(what, arrays, outs)
    assert [x.tobytes() for x in one] == [x.tobytes() for x in two]


def test_operands_at_any_address():
    """A view that begins in the middle of 16 bytes is read element by element.

    The length of vectors is no power of two.
    """
    rng = np.random.default_rng(4)
    whole = [rng.normal(size=37 * 48 + 1).astype(np.float16) for _ in range(3)]
    parts = [x[1:].reshape(1, 37, 1, 48) for x in whole]
    what = attention_of(1, 37, 37, 1, 1, 48)
    sequence = LaunchSequence(5)
    places = [ArrayLocation(k, 2) for k in range(3)]
    add_attention(
        sequence, what, places, [ArrayLocation(3), ArrayLocation(4)], [x.dtype for x in whole]
    )
    outs = [np.zeros_like(parts[0]), np.zeros((1, 1, 37), np.float32)]
    out = run_schedule(sequence, [*whole, *outs])[3]
    seen = reference.seen_keys(37, 37, 1, 1)
    assert_near(out, reference.attention(*parts, seen, what.scale)[0], "float16")


# --- nn.dot_product_attention ------------------------------------------------------------------


def on_sim(function, *operands):
    with gf.default_device(gpu_device()):
        return gf.tree.map(np.asarray, gf.jit(function)(*operands))


def attention_operands():
    """Query, key and value, and everything else: the builds of test_everything_at_once."""
    rng = np.random.default_rng(5)
    shapes = ((2, 17, 4, 32), (2, 19, 2, 32), (2, 19, 2, 32))
    more = {
        "bias": rng.normal(size=(4, 17, 19)).astype(np.float32),
        "mask": rng.random((2, 1, 17, 19)) < 0.8,
        "is_causal": True,
        "local_window_size": (9, 3),
        "query_seq_lengths": np.array([17, 11], np.int32),
        "key_value_seq_lengths": np.array([0, 19], np.int32),
    }
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes], more


def assert_same(got, want):
    """Both are float32; sums are in another order."""
    for mine, own in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, own, rtol=2e-5, atol=2e-6)


def test_nn_attention_and_its_gradient_are_what_the_cpu_computes():
    arrays, more = attention_operands()

    def total(*xs):
        return jnp.sum(jnp.sin(nn.dot_product_attention(*xs, **more)))

    function = gf.value_and_grad(total, argnums=(0, 1, 2))
    with gf.default_device(gpu_device()):
        jaxpr = str(gf.make_jaxpr(function)(*arrays))
    assert " attention[" in jaxpr and " attention_gradients[" in jaxpr
    assert " attention[" not in str(gf.make_jaxpr(function)(*arrays))
    assert_same(on_sim(function, *arrays), gf.jit(function)(*arrays))


def test_nn_attention_is_rounded_by_default():
    """As products of matrices are; the setting holds for its gradients too."""
    arrays, _ = attention_operands()

    def precisions():
        gradient = gf.grad(lambda *xs: nn.dot_product_attention(*xs).sum())
        with gf.default_device(gpu_device()):
            program = gf.make_jaxpr(gradient)(*arrays)
        kernels = [e for e in all_eqns(program.jaxpr) if e.primitive.name.startswith("attention")]
        assert {eqn.primitive.name for eqn in kernels} == {"attention", "attention_gradients"}
        return {eqn.params["precision"] for eqn in kernels}

    assert precisions() == {(Precision.HIGHEST, Precision.HIGHEST)}
    exact = on_sim(nn.dot_product_attention, *arrays)
    with gf.default_matmul_precision(None):
        assert precisions() == {None}
        rounded = on_sim(nn.dot_product_attention, *arrays)
    assert 1e-6 < np.abs(rounded - exact).max() < 2e-3


def test_residuals_of_queries_that_see_nothing():
    arrays, more = attention_operands()

    def function(*xs):
        return nn.dot_product_attention(*xs, **more, return_residual=True)

    assert_same(on_sim(function, *arrays), gf.jit(function)(*arrays))


@pytest.mark.parametrize("size", [31, 40, 144])
def test_other_lengths_are_products_and_a_softmax(size):
    x = np.ones((1, 3, 1, size), np.float32)
    with gf.default_device(gpu_device()):
        assert "attention[" not in str(gf.make_jaxpr(nn.dot_product_attention)(x, x, x))


@pytest.mark.parametrize("queries, keys", [(0, 3), (3, 0)])
def test_nothing_to_attend(queries, keys):
    query, key = np.ones((1, queries, 1, 32), np.float32), np.ones((1, keys, 1, 32), np.float32)
    out = on_sim(nn.dot_product_attention, query, key, key)
    assert out.shape == query.shape and not out.any()
