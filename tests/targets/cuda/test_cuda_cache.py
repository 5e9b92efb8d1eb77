"""CUDA kernels through the kernel cache: what is stored, what the key holds, spills."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cuda_zoo
import numpy as np
from cuda_harness import ANY, IN, OUT, PARALLEL, REDUCE, UNIT, ZERO, make, requires_cuda_tools
from plan_on_cuda import run_plan

import gpuflow
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.compiler.cache.kernel_cache import KernelCache, cache_key
from gpuflow.kir.nodes import Operand
from gpuflow.kir.text import kernel_text
from gpuflow.targets.cuda.codegen import cached_builds as cached
from gpuflow.targets.cuda.codegen.build import CudaObject
from gpuflow.targets.cuda.codegen.cached_builds import cache_key_inputs, compile_cuda
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    launch_shape,
    schedule_cuda,
    schedules_to_try,
)

FOLDER_OF_PACKAGE = os.path.dirname(os.path.dirname(gpuflow.__file__))
PARTS = cache_key_inputs((9, 0))


def test_the_key_depends_on_the_architecture_the_tools_and_the_variant():
    assert PARTS[:2] == ("cuda", "sm_90") and cache_key_inputs((10, 0))[1] == "sm_100"
    assert len(PARTS) == 4 + len(cached.PACKAGES)
    assert {"numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink"} <= set(cached.PACKAGES)


def test_kernels_of_another_machine_are_found_by_its_versions(monkeypatch):
    """Those that are not named are the versions of what is installed."""
    versions = (("numba", "0.1"), ("nvidia-nvvm", "13.9"))
    monkeypatch.setattr(
        config, "environment", replace(config.environment, kernel_versions=versions)
    )
    parts = cache_key_inputs.__wrapped__((9, 0))
    named = dict(zip(cached.PACKAGES, parts[3:-1], strict=True))
    assert named == {**dict(zip(cached.PACKAGES, PARTS[3:-1], strict=True)), **dict(versions)}
    assert (*parts[:3], parts[-1]) == (*PARTS[:3], PARTS[-1])


@requires_cuda_tools
def test_a_second_cache_loads_what_the_first_built(tmp_path):
    for name in ("map", "row", "full"):
        kernel = cuda_zoo.zoo()[name]
        built = compile_cuda(kernel, KernelCache(tmp_path))
        cache = KernelCache(tmp_path)
        found = compile_cuda(kernel, cache)
        assert found == built and found is compile_cuda(kernel, cache)
        assert (cache.stats.built, cache.stats.loaded) == (0, 1)
        assert found.source == print_cuda(kernel) and found.built.registers > 0
    folder = tmp_path / _key("map", "vectors")[:2]
    suffixes = {path.suffix for path in folder.glob(f"{_key('map', 'vectors')}.*")}
    assert suffixes == {".cubin", ".py", ".json"}


def _key(name, variant):
    return cache_key(kernel_text(cuda_zoo.zoo()[name]), (*PARTS, variant))


@requires_cuda_tools
def test_variants_and_architectures_are_kept_apart(tmp_path):
    cache, kernel = KernelCache(tmp_path), cuda_zoo.zoo()["map"]
    vectors, scalars = (compile_cuda(kernel, cache, vectorize=flag) for flag in (True, False))
    assert (vectors.source.launch.vector_width, scalars.source.launch.vector_width) == (4, 1)
    other = compile_cuda(kernel, cache, (8, 0))
    assert other.built.cubin != vectors.built.cubin and cache.stats.built == 3
    column = cuda_zoo.zoo()["column"]  # its text allows no vectors: one build serves for both
    assert compile_cuda(column, cache) is compile_cuda(column, cache, vectorize=False)
    assert cache.stats.built == 4


PROCESS = """
import sys
sys.path[:0] = {paths!r}
import cuda_zoo
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.targets.cuda.codegen.cached_builds import compile_cuda
from gpuflow.targets.cuda.codegen.schedules.launch_config import launch_shape
cache = KernelCache({folder!r})
found = compile_cuda(cuda_zoo.zoo()["row"], cache)
loaded = [name for name in ("numba", "cuda", "cupy") if name in sys.modules]
shape = launch_shape(found.source.launch, {{"i0": 100, "i1": 64}}, 10)
print(cache.stats.built, cache.stats.loaded, loaded, shape, ".entry" in found.built.ptx)
"""


@requires_cuda_tools
def test_a_second_process_needs_no_numba(tmp_path):
    compile_cuda(cuda_zoo.zoo()["row"], KernelCache(tmp_path))
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), FOLDER_OF_PACKAGE]
    text = PROCESS.format(paths=paths, folder=str(tmp_path))
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert found.stdout.strip() == "0 1 [] ((13, 1), (32, 8)) True", found.stderr


# --- spills --------------------------------------------------------------------------------


def greedy_columns(sums):
    """A column kernel that keeps ``sums`` float64 sums per thread: two registers for each."""

    def body(b):
        with b.for_axis("column"):
            zero = b.const("float64", 0.0)
            found = []
            for number in range(sums):

                def value(number=number):
                    return b.apply("mul", b.load("x"), b.const("float64", number + 0.5))

                found.append(b.reduce("row", zero, "add", value))
            total = found[0]
            for other in found[1:]:
                total = b.apply("mul", total, other)
            b.store("o", total)

    x, o = (
        Operand("x", "float64", IN, (ANY, UNIT)),
        Operand("o", "float64", OUT, (ZERO, UNIT)),
    )
    return make("greedy", {"row": REDUCE, "column": PARALLEL}, (x, o), body, kind="column")


def test_what_is_tried_after_a_spill():
    zoo = cuda_zoo.zoo()
    tried = {
        name: [
            (s.vector_width, s.register_vectors, s.is_small_block)
            for s in schedules_to_try(zoo[name], vectorize=True)
        ]
        for name in ("map", "row", "column", "full")
    }
    assert tried["map"] == tried["full"] == [(4, 0, False), (1, 0, False)]
    last = [(1, 0, False), (1, 0, True)]
    assert tried["row"] == [(4, 4, False), (4, 2, False), (4, 0, False), *last]
    assert tried["column"] == last


def test_blocks_of_a_small_tile():
    for name, extents in (("row", {"i0": 9, "i1": 10**6}), ("column", {"row": 5000, "column": 70})):
        launch = schedule_cuda(cuda_zoo.zoo()[name], vectorize=False, is_small_block=True)
        assert launch.max_threads == 256
        _, (x, y) = launch_shape(launch, extents, 10)
        assert x * y == 256


@requires_cuda_tools
def test_a_kernel_that_spills_gets_a_smaller_tile():
    """1024 threads leave 64 registers for each, and 28 sums of two registers do not fit."""
    kernel = greedy_columns(28)
    cache = KernelCache(None)
    wide = next(iter(schedules_to_try(kernel, vectorize=True)))
    compiled = compile_cuda(kernel, cache)
    assert wide.max_threads == 1024 and compiled.source.launch.is_small_block
    assert compiled.built.spill_bytes == 0 and compiled.built.registers > 64


def test_the_least_spill_wins_where_every_schedule_spills(monkeypatch, tmp_path):
    """It is reported, not hidden: the kernel is right, only slower."""
    spills = iter([80, 24])

    def build(source, entry, signature, compute_capability, bounds):
        return CudaObject("ptx", b"cubin", entry, 255, next(spills), 0)

    monkeypatch.setattr(cached, "build_cuda", build)
    cache = KernelCache(tmp_path)
    compiled = compile_cuda(cuda_zoo.zoo()["map"], cache)
    assert compiled.built.spill_bytes == 24 and compiled.source.launch.vector_width == 1
    again = compile_cuda(cuda_zoo.zoo()["map"], KernelCache(tmp_path))
    assert again == compiled and again.source.launch.vector_width == 1


@requires_cuda_tools
def test_a_small_tile_computes_the_same(monkeypatch):
    monkeypatch.setattr(
        cached,
        "schedules_to_try",
        lambda kernel, vectorize: [schedule_cuda(kernel, vectorize=False, is_small_block=True)],
    )
    x = np.random.default_rng(0).standard_normal((1100, 40)).astype(np.float32)
    ran = run_plan(lambda x: (jnp.cos(x).sum(0), jnp.sin(x.T).max(-1)), (x,))
    assert any(r.compiled.source.launch.is_small_block for r in ran)


def test_the_key_holds_the_variables_of_numba(tmp_path):
    """Some change the code that Numba makes: later processes would load it."""
    module = "gpuflow.targets.cuda.codegen.cached_builds"
    program = f"from {module} import cache_key_inputs as key; print(key((9, 0)))"
    keys = set()
    for settings in ({}, {"NUMBA_OPT": "0"}, {"NUMBA_CPU_NAME": "generic"}):
        environment = {**os.environ, "PYTHONPATH": FOLDER_OF_PACKAGE, **settings}
        finished = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        keys.add(finished.stdout)
    assert len(keys) == 3
