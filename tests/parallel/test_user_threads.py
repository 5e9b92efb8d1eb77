"""Threads of the user's that run programs over several memories at the same time."""

import sys
import threading

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import gpu_devices

import gpuflow as gf
from gpuflow.parallel.collectives import memory_threads
from gpuflow.targets.cuda_sim.driver import SimApi

pytestmark = requires_cuda_tools


@pytest.fixture(scope="module")
def two():
    return gpu_devices("cuda_user_threads", SimApi(), SimApi())


def test_threads_take_turns_with_the_devices(two):
    """Ranks of two programs at once would meet each other's, or wait in different orders."""
    mapped = gf.pmap(
        lambda v: v * gf.lax.psum(v.sum(), "i") + gf.lax.psum(v, "i"), axis_name="i", devices=two
    )
    values = [np.arange(6, dtype=np.float32).reshape(2, 3) + k for k in range(4)]
    want = [np.asarray(mapped(x)) for x in values]
    results, errors = [[] for _ in values], []

    def work(number):
        try:
            for _ in range(5):
                results[number].append(np.asarray(mapped(values[number])))
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    assert not errors, errors[0]
    for got, expected in zip(results, want, strict=True):
        for one in got:
            np.testing.assert_array_equal(one, expected)


def test_a_host_function_of_such_a_program_cannot_run_another(two):
    def again(device):
        return memory_threads.in_threads(lambda own: own, two, tuple(two))

    with pytest.raises(RuntimeError, match=r"must not run another one.*Fix: "):
        memory_threads.in_threads(again, two, tuple(two))
    assert memory_threads.in_threads(str, two, tuple(two)) == [str(device) for device in two]
