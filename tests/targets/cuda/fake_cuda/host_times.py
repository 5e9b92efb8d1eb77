"""What calls cost the host with real CuPy, where CUDA's own calls do next to nothing.

    FAKE_CUDA_RUNS=0 GPUFLOW_PLATFORM=cuda python start.py LIBRARY host_times.py

The thread's own time, so that other programs on the machine count little: the least and the median
of many rounds, in microseconds for a call.
"""

import statistics
import time

import numpy as np
import stand_in

import gpuflow as gf
import gpuflow.numpy as jnp

CALLS, ROUNDS = 300, 80


def microseconds(call):
    for _ in range(50):
        call()
    found = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        found.append((time.thread_time() - start) / CALLS * 1e6)
    return min(found), statistics.median(found)


def launches(call):
    for _ in range(5):
        call()
    before = stand_in.kernels.counts()["launches"]
    call()
    return stand_in.kernels.counts()["launches"] - before


@gf.jit
def add(a, b):
    return a + b


@gf.jit
def plan(a):
    b = jnp.tanh(a) * a.sum(0)
    return (b - b.sum(1, keepdims=True)).sum(0)


if __name__ == "__main__":
    x, y = (gf.device_put(np.ones((128, 128), np.float32)) for _ in range(2))
    calls = {
        "eager x + y": lambda: x + y,
        "jitted x + y": lambda: add(x, y),
        "a plan": lambda: plan(x),
    }
    for name, call in calls.items():
        least, median = microseconds(call)
        print(f"{name:14s} {launches(call)} launches  {least:5.2f} us, median {median:.2f}")
