"""Programs on the simulated GPU count with 32 bits, and compute the bits that 64 would give."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cuda.runtime.driver import launch

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(7)
X = RNG.normal(size=(6, 40)).astype(np.float32)
LONG = RNG.normal(size=(3, 2400)).astype(np.float32)
TALL = RNG.normal(size=(1500, 5)).astype(np.float32)
PLACES = np.array([0, 3, -1, 1, 7, 5], np.int32)

# The strategies that must be reached, and a program with operands of it.
PROGRAMS = {
    "map": ({"point"}, lambda x: jnp.exp(-(x**2)) * 2 + jnp.where(x > 0, x, 0), X),
    "map of views": ({"point"}, lambda x: x.T[::-1, 1:] * 2 + x[:-1, ::-1].T, X),
    "gather": ({"point"}, lambda x, k: x[k, k % 6] * 2, X, PLACES),
    "scatter": ({"point"}, lambda x, k: x.at[k % 6].add(1.0).at[0, 3].set(-1.0), X, PLACES),
    "numbers of points": ({"point"}, lambda x: x + jnp.arange(40) * 2**20, X),
    "complex": ({"point"}, lambda x: jnp.conj(x + 1j * x[:, ::-1]) * 2, X),
    "complex gather": ({"point"}, lambda x, k: (x + 1j * x)[k % 6, ::-1] * 1j, X, PLACES),
    "masked": ({"point"}, lambda x: jnp.concatenate([jnp.pad(x, 2)[2:8], x[::-1] * 2], 1), X),
    "row": ({"row"}, gf.nn.softmax, X),
    "long row": ({"row"}, gf.nn.softmax, LONG),
    "row that is not aligned": ({"row"}, lambda x: gf.nn.softmax(x[:, 1:]), X),
    "bfloat16 row": ({"row"}, lambda x: (x.astype(jnp.bfloat16) * 3).sum(1), X),
    "column": ({"column"}, lambda x: (x.mean(0), x.max(0), jnp.argmax(x, 0)), TALL),
    "full": ({"full"}, lambda x: (x.sum(), jnp.argmax(x)), LONG),
    "joined maps": ({"segments"}, lambda x, y: (x * 2 + 1, y * 2 + 1), LONG, TALL),
    "joined sums": ({"full segments"}, lambda x, y: (x.sum(), y.sum()), LONG, TALL),
}


def run(function, args, monkeypatch):
    """The bytes of the results, and the kernels that were launched."""
    (device,) = gf.devices("cuda_sim")
    real, kernels = launch.compile_cuda, []

    def noting(kernel, *rest):
        kernels.append((kernel, real(kernel, *rest)))
        return kernels[-1][1]

    with monkeypatch.context() as patch, gf.default_device(device):
        patch.setattr(launch, "compile_cuda", noting)
        gf.clear_caches()
        result = gf.jit(function)(*args)
        return [np.asarray(leaf).tobytes() for leaf in gf.tree.leaves(result)], kernels


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_widths_give_the_same_bits(name, monkeypatch):
    wanted, function, *args = PROGRAMS[name]
    narrow, kernels = run(function, args, monkeypatch)
    strategies = set()
    for kernel, made in kernels:
        assert kernel.index_bits == 32
        if kernel.axes:  # or there is nothing to count
            assert "np.int32(" in made.source.text
            assert ("*int64" if kernel.segmented else "int32") in made.source.signature
        segments = {"point": "segments", "full": "full segments"}
        strategy = made.source.launch.strategy
        strategies.add(segments[strategy] if kernel.segmented else strategy)
    assert wanted <= strategies
    monkeypatch.setattr(launch, "with_narrowest_indices", lambda kernel, calls: kernel)
    wide, kernels = run(function, args, monkeypatch)
    assert kernels and all(kernel.index_bits == 64 for kernel, _ in kernels)
    assert narrow == wide
