"""Numba builds CUDA kernels; everything on CPUs runs where it cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "numba_cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import numpy as np
import gpuflow as gf, gpuflow.numpy as jnp
"""
PROGRAMS = {
    "training": (
        "def loss(w, x): return jnp.mean(jnp.tanh(x @ w) ** 2)\n"
        "step = gf.jit(lambda w, x: w - 0.1 * gf.grad(loss)(w, x))\n"
        "w = step(jnp.ones((8, 4)), gf.random.normal(gf.random.key(0), (16, 8)))\n"
        "assert w.shape == (8, 4) and bool(jnp.isfinite(w).all())"
    ),
    "loops, sorts, transforms": (
        "f = gf.jit(lambda x: gf.lax.fori_loop(0, 9, lambda i, y: jnp.sort(y * 0.5 + i), x))\n"
        "g = gf.jit(lambda x: jnp.fft.ifft(jnp.fft.fft(x)).real + jnp.linalg.norm(x))\n"
        "assert np.isfinite(np.asarray(g(f(jnp.arange(33.0))))).all()"
    ),
    "several devices": (
        "f = gf.pmap(lambda x: gf.lax.psum(x, 'i'), axis_name='i')\n"
        "np.testing.assert_array_equal(f(jnp.arange(2.0)), [1, 1])"
    ),
    "the command line": (
        "from gpuflow.cli.main import main\n"
        "assert main(['demo', '--steps', '2', '--no-progress']) == 0"
    ),
}


def run(program, folder):
    environment = {**os.environ, "GPUFLOW_CPU_DEVICES": "2", "GPUFLOW_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", HIDE + program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_cpus(name, tmp_path):
    """Nothing is in the cache, so that all kernels are built."""
    ended = run(PROGRAMS[name], tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_cuda_says_what_is_missing(tmp_path):
    """One sentence and no traceback from the command line."""
    program = (
        "from gpuflow.cli.main import main\n"
        "sys.exit(main(['demo', '--platform', 'cuda_sim', '--steps', '2', '--no-progress']))"
    )
    ended = run(program, tmp_path)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "numba" in ended.stderr and "Fix: pip install" in ended.stderr
