"""A GPU that waits for another one must not keep the other one's thread from giving it work.

``test_on_cupy.py`` runs this with two devices. The stand-in lets a call for device 0 wait until
device 1 is given a kernel, as a GPU that runs its half of a collective waits for its peer. A thread
for device 1 launches one as soon as it sees the call wait; it cannot if that call keeps Python's
lock.
"""

import ctypes
import sys
import threading
import time

import numpy as np
import stand_in

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cuda.runtime.driver import on_cupy

on_cupy.find_cublas = lambda: sys.argv[1]
# Calls that CuPy makes with Python's lock: they wait for no GPU, as the device's context is made
# before communicators are. A query of an event returns at once.
NEVER_WAIT = {"cudaSetDevice", "cudaMemGetInfo", "cudaEventQuery"}
CALLS = (
    "cuModuleLoadData",  # first: kernels are loaded once
    "cublasCreate_v2",
    "cublasGemmEx",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddChildGraphNode",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecDestroy",
    "cuLaunchKernel",
    "cudaMalloc",
    "cudaMemcpyAsync",
    "cudaEventRecord",
    "cudaStreamSynchronize",
)
MET = 2
WAIT_SECONDS = 60.0
W = (np.random.default_rng(0).normal(size=(24, 24)) / 5).astype(np.float32)
X = np.ones((8, 24), np.float32)
LARGE = np.zeros(1 << 15, np.float32)  # copied in a stream of its own
FIRST, SECOND = gf.devices("cuda")
fake = stand_in.kernels._fake
fake.fake_with_python.restype = ctypes.c_char_p


def train(number):
    """A program of kernels and products that is new, recorded, replayed, changed and dropped."""

    def layers(x, w):
        for _ in range(3):
            x = jnp.tanh(x @ w) + x.sum(0) * number
        return x

    step, w, kept = gf.jit(layers), gf.device_put(W, FIRST), []
    for k in range(24):
        x = gf.device_put(X + k, FIRST)
        kept.append((x, step(x, w)))
    np.asarray(kept[-1][1])
    np.asarray(gf.device_put(LARGE, FIRST))
    del step, kept
    gf.clear_caches()
    FIRST.driver.memory.free_unused()


def meets(call, number):
    """Whether a peer could launch while the call waited."""
    FIRST.driver.api._blas = None  # the next product makes a handle
    fake.fake_hold(call.encode())
    first = threading.Thread(target=train, args=(number,), daemon=True)
    first.start()
    until = time.monotonic() + WAIT_SECONDS
    while fake.fake_hold_state() == 0 and first.is_alive() and time.monotonic() < until:
        time.sleep(0.001)
    launch(peer)
    first.join(WAIT_SECONDS)
    assert not first.is_alive(), call
    return fake.fake_hold_state()


launch = gf.jit(lambda v: jnp.sort(v, axis=0))
peer = gf.device_put(X, SECOND)
launch(peer).block_until_ready()
states = {call: meets(call, number) for number, call in enumerate(CALLS)}
missed = [f"{call} {state}" for call, state in states.items() if state != MET]
with_python = {name.decode() for k in range(128) if (name := fake.fake_with_python(k)) is not None}
print("missed", *missed)
print("with Python's lock", *sorted(with_python - NEVER_WAIT))
