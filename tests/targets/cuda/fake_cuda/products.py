"""Graphs of kernels and products on real CuPy, while a second thread uses the device.

``test_on_cupy.py`` runs this with the stand-in for cuBLAS; queues run late.
"""

import sys
import threading

import numpy as np
import stand_in

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cuda.runtime.driver import on_cupy

on_cupy.find_cublas = lambda: sys.argv[1]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 24)).astype(np.float32)
W = (RNG.normal(size=(24, 24)) / 5).astype(np.float32)


def layers(x, w):
    for _ in range(3):
        x = jnp.tanh(x @ w) + x.sum(0)
    return x


def counted():
    return stand_in.kernels.counts()


def check(step, count, number):
    """A batch at another address in each call: nothing is freed."""
    w, kept = gf.device_put(W), []
    for k in range(count):
        x = gf.device_put(X + k + number)
        kept.append((x, step(x, w)))
    for k, (_, got) in enumerate(kept):
        want = X + k + number
        for _ in range(3):
            want = np.tanh(want @ W) + want.sum(0)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def busy(stop):
    """Launches, copies and memory that comes and goes, in another thread."""
    step, number = gf.jit(lambda v: (v * 2).sum()), 0
    while not stop.is_set():
        number += 1
        x = gf.device_put(np.full((3, 5), number, np.float32))
        assert float(step(x)) == 30 * number


check(gf.jit(lambda x, w: layers(x, w) * 1), 24, 0)
alone = counted()
assert 0 < alone["captures"] <= 5 * 3, alone  # of three products in each of at most five graphs
assert alone["replays"] >= 20 and alone["changes"] >= 10, alone

stop = threading.Event()
other = threading.Thread(target=busy, args=(stop,))
other.start()
errors = []
steps = [gf.jit(lambda x, w, n=n: layers(x, w) * (n + 2.0) / (n + 2.0)) for n in range(2)]
threads = [threading.Thread(target=check, args=(step, 16, n)) for n, step in enumerate(steps)]
threading.excepthook = lambda given: errors.append(given.exc_value)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stop.set()
other.join()
assert not errors, errors
beside = counted()
assert beside["captures"] > alone["captures"], beside  # other threads turn nothing off
assert beside["replays"] >= alone["replays"] + 20, beside
assert beside["refusals"] == 0, beside
assert not gf.devices("cuda")[0].driver.host_calls
print("ended")
