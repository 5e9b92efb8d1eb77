"""A process that ends says nothing: not a finalizer raises, whatever lives until the last."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cuda_tools import requires_cuda_tools

from gpuflow.runtime import memory
from gpuflow.targets.cpu.codegen.image import loader
from gpuflow.targets.cuda.library.blas import gemm_lt
from gpuflow.targets.cuda.runtime.driver import device_memory, graph_api

ROOT = Path(__file__).resolve().parents[1]
OBJECTS = """
    import builtins, colorsys, gc, sys, threading
    import numpy as np
    import gpuflow as gf, gpuflow.numpy as jnp
    from gpuflow import lax

    gc.disable()
    big = jnp.ones((600, 700))
    f = gf.jit(lambda x: jnp.tanh(x @ x.T).sum(0) + 1)
    g = gf.jit(lambda x: lax.fori_loop(0, 3, lambda k, y: y * 2, x))
    shared = jnp.from_dlpack(np.ones((300, 300), np.float32))
    kept = [big, f, f(big), g, g(big), shared, shared + 1, gf.grad(lambda x: g(x).sum())(big),
            gf.random.key(0), jnp.linalg.inv(jnp.eye(3)), gf.vmap(f), big[3:], np.asarray(big),
            gf.jit(lambda x: x + 1).lower(big).compile(), threading.local()]
    kept += [kept, dict(sys.modules)]  # modules that live are emptied, the last first
"""
# Where they are when the interpreter takes itself apart: its last modules are cleared last.
PLACES = {
    "builtins": "builtins.kept = kept",
    "an older module": "colorsys.kept = kept",
    "a thread": "threading.local().kept = kept; threading.Thread(target=f, args=(big,)).start()",
    "a finalizer": "import weakref; one = jnp.ones(9); weakref.finalize(builtins, lambda: f(big))",
    "atexit": "import atexit; atexit.register(lambda: (f(big), f(jnp.ones((5, 6)))))",
    "an error": "sys.excepthook = lambda *error: None; builtins.kept = kept; raise ValueError",
}


CASES = [(place, "cpu") for place in PLACES]
CASES += [
    pytest.param(place, "cuda_sim", marks=requires_cuda_tools) for place in ("builtins", "atexit")
]


@pytest.mark.parametrize(("place", "platform"), CASES)
def test_the_end_is_silent(place, platform):
    program = textwrap.dedent(OBJECTS) + PLACES[place]
    if platform == "cuda_sim":
        # Python imports it no more when it is ending, and a kernel may be built there.
        toolchain = "gpuflow.targets.cuda.codegen.toolchain"
        loaded = f"from {toolchain} import load_numba_cuda; load_numba_cuda()"
        program = f"{loaded}\n{program}"
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "GPUFLOW_PLATFORM": platform, "GPUFLOW_NUM_THREADS": "2"},
    )
    assert ended.stderr == "" and ended.stdout == ""
    assert ended.returncode == (1 if place == "an error" else 0)


CLASSES = [
    loader._Memory,
    graph_api.LaunchGraph,
    gemm_lt.LtProduct,
    device_memory.MemoryBlock,
    memory._block_class(4096),
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_what_was_not_made_completely_goes_in_silence(kind):
    """An interrupt may come before the first line of ``__init__`` has run."""
    kind.__del__(kind.__new__(kind))


def test_a_block_goes_in_silence_when_its_module_is_empty(monkeypatch):
    block = memory._block_class(4096)()
    block.memory = memory.aligned_bytes(4096)
    monkeypatch.setattr(memory, "_pool", None)
    type(block).__del__(block)
