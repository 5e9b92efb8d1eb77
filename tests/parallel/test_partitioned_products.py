"""Products and reductions that jit partitions over simulated GPUs, against those of one device."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.base.config import config
from gpuflow.errors import UnpartitionedWarning
from gpuflow.parallel.partition import programs
from gpuflow.runtime.device import devices, local_devices

pytestmark = requires_cuda_tools


@pytest.fixture(autouse=True)
def four_simulated(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, sim_devices=4))
    monkeypatch.setattr(programs, "QUIET_BYTES", 0)  # warn of small arrays too
    devices.cache_clear()
    local_devices.cache_clear()
    yield
    monkeypatch.undo()
    devices.cache_clear()
    local_devices.cache_clear()


def partitioned(f, specs, *arrays):
    """The result on a 2 x 2 mesh, where nothing may be gathered."""
    mesh = gf.make_mesh((2, 2), ("x", "y"), devices=devices("cuda_sim"))
    placed = [
        gf.device_put(x, gf.NamedSharding(mesh, spec))
        for x, spec in zip(arrays, specs, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnpartitionedWarning)
        return gf.jit(f)(*placed)


def on_one(f, *arrays):
    return gf.jit(f)(*[gf.device_put(x, devices("cuda_sim")[0]) for x in arrays])


def operands(dtype, *shapes):
    """Small integers, whose products and sums all these dtypes hold exactly."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.integers(-2, 3, shape)).astype(dtype) for shape in shapes]


# Of a stack [b, m, k] and a stack [b, k, n]; then of the result.
WHOLE_SUMS = [
    (P("x"), P("x"), P("x")),
    (P("x", "y"), P("x"), P("x", "y")),
    (P(None, "x"), P(), P(None, "x")),
    (P(), P(None, None, "y"), P(None, None, "y")),
    (P("y", "x"), P("y"), P("y", "x")),
    (P(None, "x"), P(None, None, "y"), P(None, "x", "y")),
]
SPLIT_SUMS = [
    (P(None, None, "x"), P(None, "x"), P()),
    (P(None, None, "x"), P(), P()),
    (P("y", None, "x"), P("y", "x"), P("y")),
    (P(None, "x", "y"), P(None, "y"), P(None, "x")),
]


@pytest.mark.parametrize("specs", WHOLE_SUMS + SPLIT_SUMS, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8", "bool"])
def test_products(dtype, specs):
    """Products of 16-bit floats were computed on all devices, and those of bools failed."""
    a, b = operands(dtype, (2, 8, 4), (2, 4, 6))
    out = partitioned(jnp.matmul, specs[:2], a, b)
    assert out.sharding.spec == specs[2] and out.dtype == a.dtype
    np.testing.assert_array_equal(out, on_one(jnp.matmul, a, b))


@pytest.mark.parametrize("specs", WHOLE_SUMS, ids=str)
def test_whole_sums_have_equal_bits(specs):
    rng = np.random.default_rng(1)
    shapes = (2, 8, 4), (2, 4, 6)
    a, b = (jnp.asarray(rng.standard_normal(shape)).astype("bfloat16") for shape in shapes)
    np.testing.assert_array_equal(
        partitioned(jnp.matmul, specs[:2], a, b), on_one(jnp.matmul, a, b)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["product", "convolution"])
def test_split_sums_are_rounded_once(name, dtype):
    """The partial sums large + 1 and -large: rounded each to 16 bits they would add up to 0."""
    large = {"bfloat16": 256, "float16": 2048}[dtype]
    a = jnp.asarray([[large, 1, -large, 0]] * 2, dtype)
    b = jnp.ones((4, 2), dtype)

    def convolved(a, b):
        return lax.conv_general_dilated(a[:, :, None], b.T[:, :, None], (1,), "VALID")[:, :, 0]

    f = {"product": jnp.matmul, "convolution": convolved}[name]
    out = partitioned(f, (P(None, "x"), P("x")), a, b)
    assert out.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(out, np.float32), np.ones((2, 2)))


@pytest.mark.parametrize(
    ("dtype", "preferred"), [("bfloat16", "float32"), ("int8", "int32"), ("float32", "bfloat16")]
)
@pytest.mark.parametrize("specs", [WHOLE_SUMS[1], SPLIT_SUMS[0]], ids=str)
def test_products_with_a_preferred_dtype(dtype, preferred, specs):
    def f(a, b):
        numbers = (((2,), (1,)), ((0,), (0,)))
        return lax.dot_general(a, b, numbers, preferred_element_type=preferred)

    a, b = operands(dtype, (2, 8, 4), (2, 4, 6))
    out = partitioned(f, specs[:2], a, b)
    assert out.dtype == np.dtype(preferred)
    np.testing.assert_array_equal(out, on_one(f, a, b))


@pytest.mark.parametrize("name", ["any", "all", "max", "min"])
def test_reductions_of_bools(name):
    """``all`` over split dimensions was computed on all devices."""
    x = operands("int32", (8, 4))[0] > 0
    for axis in (None, 0, 1):
        f = lambda x, axis=axis: getattr(jnp, name)(x, axis)  # noqa: E731
        np.testing.assert_array_equal(partitioned(f, [P("x", "y")], x), on_one(f, x))


def test_a_step_in_bfloat16_is_partitioned():
    """The gradient of the weights sums over the batch, which is split."""
    rng = np.random.default_rng(2)
    x, w = (
        jnp.asarray(rng.standard_normal(shape)).astype("bfloat16") for shape in [(8, 4), (4, 6)]
    )

    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    step = gf.value_and_grad(loss)
    value, slope = partitioned(step, (P(None, "y"), P("x")), w, x)
    expected, expected_slope = on_one(step, w, x)
    # Two additions of bfloat16 that round otherwise: 2**-8 each.
    np.testing.assert_allclose(np.float32(value), np.float32(expected), rtol=2**-7)
    np.testing.assert_allclose(
        np.asarray(slope, np.float32), np.asarray(expected_slope, np.float32), rtol=2**-7, atol=1e-3
    )
    assert slope.sharding.spec == P(None, "y")
