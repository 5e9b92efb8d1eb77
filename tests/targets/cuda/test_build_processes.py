"""CUDA kernels that several processes build."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from cuda_harness import requires_cuda_tools
from late_gpu import LateApi, gpu_devices
from small_builds import SmallBuild

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen import cached_builds as cached
from gpuflow.targets.cuda.runtime.program import build_processes
from gpuflow.targets.cuda.runtime.program.build_processes import build_missing


@pytest.fixture(autouse=True)
def two_processes(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, build_processes=2))
    yield
    build_processes._workers.end()


@pytest.fixture
def done(tmp_path):
    """The file that another process makes when it has begun a build."""
    return str(tmp_path / "done")


def builds(count=10, done="", fails=""):
    return [SmallBuild(f"{k:064}", os.getpid(), fails, done) for k in range(count)]


def built_by(cache, some):
    return [cache.get(one.key, lambda: None).metadata["process"] for one in some]


@pytest.mark.parametrize("has_folder", [True, False])
def test_two_processes_share_the_builds(has_folder, tmp_path, done):
    cache, some = KernelCache(tmp_path if has_folder else None), builds(10, done)
    build_missing(some, cache)
    assert cache.stats.built == 10
    found = set(built_by(cache, some))
    assert len(found) == 2 and os.getpid() in found
    assert cache.stats.loaded == 0  # what was built here


def test_kernels_of_before_are_not_built_again(tmp_path):
    cache, some = KernelCache(tmp_path), builds()
    build_missing(some, cache)
    build_missing(some, other := KernelCache(tmp_path))
    assert other.stats.built == 0


def test_a_process_builds_for_several_programs(tmp_path):
    cache, found = KernelCache(tmp_path), set()
    for n in range(2):
        some = [one._replace(key=f"{n}{one.key[1:]}") for one in builds(10, str(tmp_path / f"{n}"))]
        build_missing(some, cache)
        now = set(built_by(cache, some))
        assert len(now) == 2
        found |= now
    assert len(found) == 2


def test_few_kernels_are_built_here(tmp_path):
    cache, some = KernelCache(tmp_path), builds(7)
    build_missing(some, cache)
    assert cache.stats.built == 0 and not build_processes._workers._idle


def test_no_other_process_where_one_is_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "environment", replace(config.environment, build_processes=1))
    build_missing(builds(), cache := KernelCache(tmp_path))
    assert cache.stats.built == 0


@pytest.mark.parametrize("fails", ["error", "end", "print"])
def test_what_fails_elsewhere_is_left_to_the_caller(fails, tmp_path, done):
    cache, some = KernelCache(tmp_path), builds(12, done, fails)
    build_missing(some, cache)
    assert cache.stats.built == (12 if fails == "print" else 11)
    for one in some:
        cache.get(one.key, one.entry)
    assert cache.stats.built == 12


def test_a_program_that_cannot_be_started(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    build_missing(builds(), cache := KernelCache(tmp_path))
    assert cache.stats.built == 10


def test_an_error_here_ends_the_builds(tmp_path, done):
    cache = KernelCache(tmp_path)
    some = [one._replace(fails="interrupt") for one in builds(200)]
    with pytest.raises(KeyboardInterrupt):
        build_missing(some, cache)
    for thread in threading.enumerate():
        if thread.name.endswith("(_build_elsewhere)"):
            thread.join(60)
    assert cache.stats.built < 200
    others = [one._replace(key=f"f{one.key[1:]}") for one in builds(10, done)]
    build_missing(others, cache)
    assert len(set(built_by(cache, others))) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_end_with_the_process_that_started_them(done):
    text = f"""
        import os, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from small_builds import SmallBuild
        from gpuflow.compiler.cache.kernel_cache import KernelCache
        from gpuflow.targets.cuda.runtime.program import build_processes

        cache = KernelCache(None)
        some = [SmallBuild(f"{{k:064}}", os.getpid(), "", {done!r}) for k in range(10)]
        build_processes.build_missing(some, cache)
        ids = {{cache.get(one.key, None).metadata["process"] for one in some}}
        child = os.fork()
        if not child:
            os._exit(len(build_processes._workers._idle))
        assert os.waitpid(child, 0)[1] == 0
        print(*ids - {{os.getpid()}})
    """
    environment = {**os.environ, "GPUFLOW_BUILD_PROCESSES": "2"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)


@requires_cuda_tools
def test_a_program_of_many_kernels(monkeypatch, tmp_path):
    here, real, before = [], cached.build_cuda, gf.cache_stats().built

    def build_here(*arguments, **options):
        deadline = time.monotonic() + 120
        while gf.cache_stats().built == before and time.monotonic() < deadline:
            time.sleep(0.05)  # until another process has built one
        here.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(cached, "build_cuda", build_here)
    monkeypatch.setattr(kernel_cache(), "folder", tmp_path)
    (device,) = gpu_devices("cuda_build_processes", LateApi())
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)

    functions = (jnp.sin, jnp.cos, jnp.exp, jnp.tanh, jnp.square, jnp.abs, jnp.sinh, jnp.floor)

    def steps(x):
        found = []
        for function in functions:
            x = function(x) @ jnp.full((4, 4), 0.1)
            found.append(function(x).sum(0))
        return found

    with gf.default_device(device):
        got = gf.jit(steps)(x)
    assert gf.cache_stats().built - before > len(here) > 0
    for one, other in zip(got, gf.jit(steps)(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
