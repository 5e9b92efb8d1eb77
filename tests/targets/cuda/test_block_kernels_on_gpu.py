"""gf.kernel.block on the simulated GPU: blocks of one kernel, or a loop that Python drives."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import gpu_devices
from test_block_kernels import attention

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cuda.runtime.program import block_programs, driver_text
from gpuflow.targets.cuda_sim.driver import SimApi

pytestmark = [requires_cuda_tools]


@pytest.fixture(scope="module")
def device():
    return gpu_devices("cuda_blocks_sim", SimApi())[0]


@gf.kernel.block(
    out=lambda a, b: gf.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
    tile=lambda a, b: (3, 2),
)
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


def test_attention_by_tiles_and_by_hand(device, monkeypatch):
    """One kernel, of the numbers that the handwritten kernel gives."""
    launches = []
    ask = driver_text.bind_loop_launch
    monkeypatch.setattr(block_programs, "_LEAST_SECONDS", 0.0)  # its few turns pay for no compiling

    def spy(*args):
        launches.append(ask(*args))
        return launches[-1]

    monkeypatch.setattr(driver_text, "bind_loop_launch", spy)
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 40, 16)).astype(np.float32)
    with gf.default_device(device), gf.default_matmul_precision("highest"):
        tiles = attention(q, k, v)[0]
        heads = [jnp.asarray(x)[:, None] for x in (q, k, v)]
        by_hand = gf.nn.dot_product_attention(*heads)[:, 0]
        assert "attention" in str(gf.make_jaxpr(gf.nn.dot_product_attention)(*heads))
    assert len(launches) == 1 and launches[0] is not None
    np.testing.assert_allclose(tiles, by_hand, rtol=1e-5, atol=1e-6)
