"""The thread pool runs every chunk once, whoever calls it, and also in a fork's child."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from gpuflow.base.config import config
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.runtime.native import pool as pool_module
from gpuflow.targets.cpu.runtime.native import services
from gpuflow.targets.cpu.runtime.native.object_code import core_module, load_native
from gpuflow.targets.cpu.runtime.native.pool import ThreadPool

JOB = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


@pytest.fixture
def make_pool(folder):
    made = []

    def make(threads):
        # A cache of its own gives a runtime with a pool of its own.
        pool = ThreadPool(load_native(core_module(), KernelCache(folder)), threads)
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.stop()


def run(pool, call, extent, chunk):
    job = JOB(call)
    pool.run(ctypes.cast(job, ctypes.c_void_p).value, 0, extent, chunk)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(("extent", "chunk"), [(1, 5), (5, 5), (100, 7), (64, 1), (3000, 1)])
def test_every_index_runs_once(make_pool, threads, extent, chunk):
    pool, seen = make_pool(threads), []
    for _ in range(3):
        run(pool, lambda words, lo, hi: seen.extend(range(lo, hi)), extent, chunk)
    assert sorted(seen) == sorted(list(range(extent)) * 3)


def test_a_call_inside_a_call_runs_inline(make_pool):
    pool, seen = make_pool(2), []

    def inner(words, lo, hi):
        seen.append((lo, hi))

    run(pool, lambda words, lo, hi: run(pool, inner, 10, 1), 2, 1)
    assert seen == [(0, 10)] * 2


def test_jobs_run_alone_for_a_while_after_a_worker_was_late(make_pool):
    """A busy core: each job would wait for its worker, or do without it after waking it."""
    pool, caller, seen = make_pool(2), threading.get_ident(), []
    expected = [(0, 2)] * 3, [(0, 1), (1, 2)]

    def late(words, lo, hi):
        time.sleep(0.002 if threading.get_ident() == caller else 0.05)

    def noted(words, lo, hi):
        seen.append((lo, hi))

    for _ in range(50):  # a while is 20 ms at most, which may pass on a busy machine
        seen.clear()
        run(pool, late, 2, 1)
        for _ in range(3):
            run(pool, noted, 2, 1)
        alone = seen[:]
        run(pool, lambda words, lo, hi: time.sleep(0.03), 2, 1)  # longer than any such while
        run(pool, noted, 2, 1)
        found = alone, sorted(seen[3:])
        if found == expected:
            break
    assert found == expected


def test_callers_in_several_threads_all_get_their_work_done(make_pool):
    pool, count = make_pool(3), 200
    sums = [0] * 4

    def work(number):
        for _ in range(count):
            parts = []
            run(pool, lambda words, lo, hi, parts=parts: parts.append(hi - lo), 50, 3)
            sums[number] += sum(parts)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [count * 50] * 4


def test_many_short_jobs_write_everything_before_they_return(make_pool):
    """A late worker must not take a chunk of the next job, nor finish after the caller went on."""
    pool = make_pool(4)
    copy = pool.runtime.addresses["gf_copy"]
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 255, 4096, np.uint8), np.empty(4096, np.uint8)
    words = np.array([address(target), address(source)], np.int64)
    for turn in range(5000):
        target[:] = 0
        source[turn % 4096] ^= 1
        pool.run(copy, address(words), 4096, 1 + turn % 97 * 16)
        assert np.array_equal(source, target)


def test_it_works_alone_after_the_workers_have_gone(make_pool):
    pool, seen = make_pool(3), []
    run(pool, lambda words, lo, hi: None, 10, 1)
    pool.stop()
    assert not any(worker.is_alive() for worker in pool._workers)
    run(pool, lambda words, lo, hi: seen.extend(range(lo, hi)), 10, 1)
    assert sorted(seen) == list(range(10))


def test_threads_that_ask_first_get_one_pool(monkeypatch):
    made = []

    @cache
    def slowly():
        made.append(object())
        time.sleep(0.05)
        return made[-1]

    monkeypatch.setattr(pool_module, "_cached_pool", slowly)
    assert not pool_module.pool_exists()
    found = []
    threads = [threading.Thread(target=lambda: found.append(pool_module.pool())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == made * 4 and pool_module.pool_exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_wait_for_the_thread_that_makes_the_pool():
    with pool_module._creation_lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if pool_module._creation_lock.acquire(timeout=60) else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(config.environment.num_threads < 2, reason="one thread")
def test_the_runtime_is_built_beside_kernels(monkeypatch):
    asked = []
    monkeypatch.setattr(services, "load_stored", lambda *_: False)
    monkeypatch.setattr(services, "compile_cpu", lambda kernel, *_: asked.append(kernel))
    monkeypatch.setattr(services, "pool", lambda: asked.append("pool"))
    monkeypatch.setattr(services, "kernel_cache", lambda: None)
    kernel = SimpleNamespace(body=SimpleNamespace(body=()))
    for is_there, wanted in ((True, [kernel]), (False, ["pool", kernel])):
        asked.clear()
        monkeypatch.setattr(services, "pool_exists", lambda is_there=is_there: is_there)
        services.NativeServices().prepare([kernel])
        assert sorted(asked, key=str) == sorted(wanted, key=str)


def test_what_library_calls_use_is_built_once(monkeypatch):
    asked = []
    monkeypatch.setattr(services, "pool_exists", lambda: True)
    monkeypatch.setattr(services, "_built", set())
    builds = [services.Build(asked.append, (name,)) for name in ("lines", "pass", "lines")]
    for _ in range(2):
        services.NativeServices().prepare(builds)
    assert sorted(asked) == ["lines", "pass"]

    def fails():
        raise RuntimeError("not today")

    for _ in range(2):  # what failed is tried again
        with pytest.raises(RuntimeError, match="not today"):
            services.NativeServices().prepare([services.Build(fails)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_workers_of_its_own():
    text = """
        import os, sys
        import gpuflow as gf, gpuflow.numpy as jnp
        f = gf.jit(lambda x: jnp.sin(x) + 1)
        x = jnp.zeros(1 << 20)
        f(x).block_until_ready()
        child = os.fork()
        good = bool((f(x) == 1).all())
        if child == 0:
            import threading
            named = [t for t in threading.enumerate() if t.name == "gpuflow-worker"]
            os._exit(0 if good and all(t.is_alive() for t in named) and named else 1)
        assert good and os.waitpid(child, 0)[1] == 0
    """
    environment = {**os.environ, "GPUFLOW_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], check=True, env=environment, timeout=120
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("form", ["while", "scan"])
def test_an_interrupt_ends_a_loop_that_never_would(form):
    loops = {
        "while": "lax.while_loop(lambda s: s >= 0, lambda s: (s + 1) % 7, x)",
        "scan": "lax.scan(lambda s, _: (s * 0.5 + 1, None), x, None, length=1 << 40)[0]",
    }
    text = f"""
        import signal
        import sys
        import gpuflow as gf
        from gpuflow import lax
        # Whoever started the tests in the background made them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        f = gf.jit(lambda x: {loops[form]})
        gf.jit(lambda x: x + 1)(1.0)
        print("ready", flush=True)
        try:
            f(1.0)
        except KeyboardInterrupt:
            assert float(gf.jit(lambda x: x + 1)(1.0)) == 2
            sys.exit(0)
        sys.exit(1)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
