"""Threads of the user's that call the same functions at the same time, also for the first time."""

import random
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.runtime import device
from gpuflow.targets.cuda.runtime.driver.device_memory import DeviceAllocator
from gpuflow.targets.cuda_sim.driver import SimApi

SHAPES = [(5, 7), (8, 8), (33, 3)]


@pytest.fixture(autouse=True)
def switch_often():
    """Threads take turns after every few steps of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def pauses(seed, rate=0.002):
    """What pauses now and then where a function of gpuflow is entered, for ``sys.setprofile``."""
    numbers = random.Random(seed)

    def pause(frame, event, argument):
        del argument
        inside = event == "call" and "gpuflow" in frame.f_code.co_filename
        if inside and numbers.random() < rate:
            time.sleep(numbers.random() * 1e-3)

    return pause


def at_once(count, work):
    """``work(number)`` in threads that start together; their results, or the first error."""
    results, errors, start = [None] * count, [], threading.Barrier(count)

    def run(number):
        start.wait()
        sys.setprofile(pauses(number))
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)
        finally:
            sys.setprofile(None)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread waits forever"
    if errors:
        raise errors[0]
    return results


def programs(factor):
    """Functions that no cache has seen: kernels, products, loops, branches, host functions."""

    def kernels(x):
        return jnp.sin(x) * factor + x.sum(0), jnp.cumsum(x, 0)

    def products(x):
        return gf.nn.softmax(x @ x.T) @ x

    def loops(x):
        y = gf.lax.fori_loop(0, 5, lambda k, v: v + jnp.cos(v) * factor, x)
        return gf.lax.scan(lambda s, row: (s + row, jnp.tanh(s) * row), y[0], y)

    def branches(x):
        return gf.lax.cond(x.sum() > factor, lambda v: v + 1, lambda v: v - 1, x)

    def gradients(x):
        return gf.grad(lambda v: (jnp.tanh(v @ v.T) ** 2).sum() * factor)(x)

    def host(x):
        like = gf.ShapeDtypeStruct(x.shape, x.dtype)
        return gf.pure_callback(lambda v: np.asarray(v) * 2, like, jnp.exp(x)) + factor

    return [kernels, products, loops, branches, gradients, host]


@pytest.mark.parametrize("donate", [False, True])
def test_threads_call_the_same_functions_for_the_first_time(donate):
    functions = [
        gf.jit(function, donate_argnums=(0,) if donate else ()) for function in programs(0.25)
    ]
    values = [np.random.default_rng(1).standard_normal(s).astype(np.float32) for s in SHAPES]

    def work(number):
        order = functions[:: -1 if number % 2 else 1]
        return {
            (function.__name__, x.shape): gf.tree.map(np.asarray, function(jnp.array(x)))
            for _ in range(2)
            for function in order
            for x in values
        }

    results = at_once(6, work)
    for name in results[0]:
        first = gf.tree.leaves(results[0][name])
        for other in results[1:]:
            for a, b in zip(first, gf.tree.leaves(other[name]), strict=True):
                np.testing.assert_array_equal(a, b, err_msg=str(name))


def test_two_threads_call_one_compiled_program():
    """Each call has its own arrays, for kernels and products, and loops of a native program."""
    kernels, products, loops, *_ = programs(0.75)
    values = [np.random.default_rng(k).standard_normal((33, 40)).astype(np.float32) for k in (1, 2)]
    compiled = gf.jit(lambda x: (kernels(x), products(x), loops(x))).lower(values[0]).compile()
    want = [gf.tree.map(np.array, compiled(x)) for x in values]

    def work(number):
        for _ in range(200):
            found = compiled(values[number])
            for a, b in zip(gf.tree.leaves(found), gf.tree.leaves(want[number]), strict=True):
                np.testing.assert_array_equal(a, b)

    at_once(2, work)


def test_caches_are_cleared_and_traces_taken_while_threads_call(tmp_path):
    """Functions are made and die meanwhile."""
    going, x = threading.Event(), np.arange(12, dtype=np.float32).reshape(3, 4)
    want = np.sin(x) * 2 + x.sum(0)

    def call(number):
        for k in range(12):
            function = gf.jit(lambda v, k=k: jnp.sin(v) * 2 + v.sum(0) + 0 * k)
            np.testing.assert_allclose(function(x), want, rtol=1e-5, atol=1e-5)

    def disturb(number):
        while not going.is_set():
            gf.clear_caches()
            with gf.profiler.trace(tmp_path):
                time.sleep(0.005)

    def work(number):
        if number == 0:
            return disturb(number)
        try:
            return call(number)
        finally:
            if number == 1:
                going.set()

    at_once(5, work)


@requires_cuda_tools
def test_threads_share_a_simulated_device_as_they_share_a_stream():
    """Whole reductions have scratch memory and counters in common, in the order of the stream."""
    (where,) = gpu_devices("cuda_shared_sim", SimApi())
    total = gf.jit(lambda x: (x * 2).sum())
    values = [np.full(12_000, k + 1, np.float32) for k in range(4)]
    total(gf.device_put(values[0], where)).block_until_ready()

    def work(number):
        x = gf.device_put(values[number], where)
        return [float(total(x)) for _ in range(4)]

    result = at_once(4, work)
    assert result == [[24_000.0 * (k + 1)] * 4 for k in range(4)]


def test_memory_that_a_stream_still_reads_is_not_released_by_another_thread():
    """Two threads that look at once: the second must not take the next block for the first."""
    looked = threading.Barrier(2)

    class Api:
        def pool(self):
            return SimpleNamespace(malloc=lambda count: SimpleNamespace(ptr=0))

        def is_done(self, mark):
            if mark == "done":  # both threads get here before either goes on
                with suppress(threading.BrokenBarrierError):
                    looked.wait(0.3)
                return True
            return False

    memory = DeviceAllocator(Api(), lambda: None)
    memory._held.extend([(["done"], "first"), (["reading"], "second")])
    threads = [threading.Thread(target=memory.allocate, args=(8, 1)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [handle for _, handle in memory._held] == ["second"]


def test_threads_get_one_driver_of_a_device():
    """Also where functools.cache and cached_property let two threads make a value (Python 3.12)."""
    drivers = []

    @cache
    def driver(number):
        time.sleep(0.01)
        drivers.append(object())
        return drivers[-1]

    device.register_platform(device.Platform("once", lambda: 1, driver))
    (where,) = gf.devices("once")
    before = set(device.in_use.drivers), device.in_use.several
    try:
        result = at_once(4, lambda number: where.driver)
    finally:
        device.in_use.drivers, device.in_use.several = before
    assert len(drivers) == 1 and all(one is drivers[0] for one in result)
