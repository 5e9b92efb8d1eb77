"""gf.kernel.block on the simulated GPU, where blocks are computed side by side."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cuda_sim.driver import SimApi

pytestmark = [requires_cuda_tools]


@pytest.fixture(scope="module")
def device():
    return gpu_devices("cuda_blocks_sim", SimApi())[0]


@gf.kernel.block(out=lambda a, b: gf.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
                 tile=lambda a, b: (3, 2))  # fmt: skip
def scaled_product(block, a, b):
    left = block.load(a, (block.start[0], 0), (3, None))
    left = left / jnp.abs(left).max(1, keepdims=True, initial=1e-3)
    return block.dot(left, block.load(b, (0, block.start[1]), (None, 2)))


def test_tiles(device):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((7, 4), (4, 5)))
    want = a / np.abs(a).max(1, keepdims=True) @ b
    with gf.default_device(device):
        got = scaled_product(a, b)
        assert got.device == device
        np.testing.assert_allclose(got, want, rtol=1e-5)
        gradient = gf.grad(lambda a: scaled_product(a, b).sum())(a)
    plain = lambda a: (a / jnp.abs(a).max(1, keepdims=True) @ b).sum()  # noqa: E731
    np.testing.assert_allclose(gradient, gf.grad(plain)(a), rtol=1e-4, atol=1e-5)
