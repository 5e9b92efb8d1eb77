"""Programs on the simulated GPU: the path of a real one, with NumPy memory and our PTX."""

import os
import subprocess
import sys

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, random
from gpuflow.base.garbage import collect_garbage
from ptxsim.faults import PtxError

pytestmark = [requires_cuda_tools, pytest.mark.simulated_gpu]

X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(40, 8)).astype(np.float32)
LAYERS = [
    np.random.default_rng(2).normal(size=shape).astype(np.float32)
    for shape in [(12, 16), 16, (16, 10), (16, 12)]
]
LABELS = np.array([0, 3, 7, 1, 1, 5], np.int32)


def _loss(params, x, labels):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    chosen = jnp.take_along_axis(gf.nn.log_softmax(hidden), labels[:, None], 1)
    return -chosen.mean()


def _step(params, x, labels):
    loss, grads = gf.value_and_grad(_loss)(params, x, labels)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gf.tree.leaves(grads)))
    scale = jnp.minimum(1.0, 0.1 / norm)
    return gf.tree.map(lambda p, g: p - 0.5 * scale * g, params, grads), loss


def _params():
    return {"w": W, "b": np.linspace(-1, 1, 8).astype(np.float32)}


def _rnn(w, xs):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return jnp.sum(lax.scan(step, jnp.zeros(8), xs)[1] ** 2)


def _host_sorted(c):
    return jnp.sort(c * 2 + 1, 1)


def _two_layers(activation):
    def loss(w, bias, v, x):
        return jnp.sum(jnp.tanh(activation(x @ w + bias) @ v))

    return loss


PROGRAMS = {
    "elementwise": (lambda x: jnp.exp(-(x**2)) * 2 + jnp.where(x > 0, x, 0), X),
    "many outputs": (lambda x: (x + 1, x * 2, x.T, x[:, ::-1], x), X),
    "rows": (gf.nn.softmax, X),
    "long rows": (gf.nn.softmax, np.tile(X, (1, 60))),
    "columns": (lambda x: (x.mean(0), x.max(0), jnp.argmax(x, 0)), X),
    "full": (lambda x: (x.sum(), x.min(), jnp.argmax(x)), X),
    "several sums": (lambda x, w: x.sum() + w.sum() + (x @ w).sum(), X, W),
    "unaligned rows": (lambda x: jnp.sin(x[:, 1:]) + x[:, :-1], X),
    "transposed": (lambda x: jnp.cumsum(x.T, 0) + 1, X),
    "training step": (_step, _params(), X, LABELS),
    # Products keep their results before the activation until its way back; other steps between
    # them wrote there.
    **{
        f"gradient of {name}": (gf.grad(_two_layers(activation), (0, 1, 2)), *LAYERS)
        for name, activation in [("relu", gf.nn.relu), ("gelu", gf.nn.gelu), ("silu", gf.nn.silu)]
    },
    "recurrence": (gf.value_and_grad(_rnn), W[:8], X[:, :8]),
    "while": (lambda x: lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 2 + 1, abs(x)), X),
    "loop in the middle": (
        lambda x: jnp.sin(lax.while_loop(lambda c: c.sum() < 1e3, _host_sorted, abs(x)) * 2).sum(0),
        X,
    ),
    "branches": (lambda x, k: lax.switch(k, [jnp.sin, jnp.cos, lambda v: v * 2], x), X, LABELS[2]),
    "updates": (lambda x, k: x.at[k].add(1.0).at[0, 3].set(-1.0), X, LABELS % 6),
    "gather": (lambda x, k: x[k % 6, k], X, LABELS),
    "sort": (lambda x: jnp.sort(x, 1)[:, ::2] * 2, X),
    "bfloat16": (lambda x: (x.astype(jnp.bfloat16) * 3).sum(1), X),
    "integers": (lambda k: (k << 2) % 5 + k // 3, LABELS),
    "random": (lambda k: random.normal(random.wrap_key_data(k), (5, 7)), np.uint32([1, 2])),
    "empty": (lambda x: (x[:0].sum(0), x[:, :0] * 2, x[:, :0].sum()), X),
    "scalars": (lambda x: jnp.sqrt(x) + 1, np.float32(4)),
    "vmap": (gf.vmap(lambda row, k: row[k] * row.max()), X, LABELS),
}


@pytest.fixture
def device():
    (simulated,) = gf.devices("cuda_sim")
    return simulated


def _check_same(got, want):
    for a, b in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = np.float64 if "float" in a.dtype.name else a.dtype
        tolerance = 1e-2 if a.dtype.name == "bfloat16" else 2e-5
        np.testing.assert_allclose(
            np.asarray(a).astype(wide), np.asarray(b).astype(wide), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gpu_computes_what_the_cpu_computes(name, device):
    function, *args = PROGRAMS[name]
    want = gf.jit(function)(*args)
    with gf.default_device(device):
        step = gf.jit(function)
        first, again = step(*args), step(*args)
    for got in (first, again):
        assert all(leaf.device == device for leaf in gf.tree.leaves(got))
        _check_same(got, want)


def test_ops_one_by_one(device):
    with gf.default_device(device):
        x = jnp.asarray(X)
        got = jnp.sort(jnp.tanh(x) @ W, axis=0)[1:] * 2
        assert x.device == got.device == device
    _check_same(got, np.float32(np.sort(np.tanh(X) @ W, axis=0)[1:] * 2))


def test_donated_memory_is_reused(device):
    x = gf.device_put(X, device)
    before = x.data.address
    y = gf.jit(lambda v: v * 2 + 1, donate_argnums=0)(x)
    assert y.data.address == before and x.is_deleted()
    _check_same(y, X * 2 + 1)


def test_memory_goes_back(device):
    gf.jit(lambda v: v * 2)(gf.device_put(X, device))
    collect_garbage()  # arrays of earlier tests that stand in cycles
    used = device.driver.memory.used
    for _ in range(3):
        result = gf.jit(lambda v: v * 2)(gf.device_put(X, device))
        del result
    assert device.driver.memory.used == used


def test_memory_that_nobody_has_written_is_not_read(device):
    x = gf.device_put(X, device)
    device.driver.api.memory.find(x.data.address).written[:] = False
    with pytest.raises(PtxError, match=r"read of byte 0 of 960, which nobody has written"):
        gf.jit(lambda v: v * 2)(x)


def test_arrays_of_two_platforms_do_not_meet(device):
    (cpu, *_) = gf.devices("cpu")
    here, there = gf.device_put(X, cpu), gf.device_put(X, device)
    message = r"on the same ones; got .* on cpu:0, .* on cuda_sim:0.*Fix: move"
    add = gf.jit(lambda a, b: a + b)
    add(here, here), add(there, there)
    for call in (lambda: here + there, lambda: add(here, there)):
        with pytest.raises(ValueError, match=message):
            call()
    _check_same(gf.device_put(there, cpu) + here, X * 2)


def test_callbacks_see_numpy_arrays(device):
    seen = []

    def host(x):
        seen.append(type(x))
        return np.asarray(x) * 3

    with gf.default_device(device):
        shape = gf.ShapeDtypeStruct((4,), np.float32)
        out = gf.jit(lambda x: gf.pure_callback(host, shape, x * 2) + 1)(np.ones(4, np.float32))
    np.testing.assert_array_equal(out, 7)
    assert len(seen) == 1


def test_the_demo(tmp_path):
    command = [sys.executable, "-m", "gpuflow.cli.main", "demo", "--steps", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    completed = subprocess.run(
        [*command, "--platform", "cuda_sim"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    assert "cuda_sim:0" in completed.stdout
