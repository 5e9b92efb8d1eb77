"""Batches, and the thread that makes them ready: what they hold, errors, and how it ends."""

from __future__ import annotations

import doctest
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import NamedSharding, P, data
from gpuflow.base.config import config
from gpuflow.data import batching, prefetching
from gpuflow.runtime import host_exchange
from gpuflow.runtime.device import devices, local_devices

ROOT = Path(__file__).resolve().parents[1]
X = np.arange(22).reshape(11, 2)


class Tensor:
    """What a tensor of another library has that lies in the host's memory."""

    def __init__(self, host):
        self._host = host
        self.shape, self.dtype = host.shape, f"torch.{host.dtype.name}"

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        del stream, max_version, dl_device, copy
        return host_exchange.exported(self._host)

    def __dlpack_device__(self):
        return (1, 0)

    def __array__(self, dtype=None, copy=None):
        if self._host.dtype == ml_dtypes.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.asarray(self._host, dtype)


class OnlyArray:
    """An older library's array."""

    def __init__(self, host):
        self._host, self.shape = host, host.shape

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._host, dtype)


def workers():
    return [t for t in threading.enumerate() if t.name == "gpuflow-prefetch"]


def wait_for_their_end():
    deadline = time.monotonic() + 60
    while workers() and time.monotonic() < deadline:
        gc.collect()  # an error's traceback may hold an iterator
        time.sleep(0.01)
    assert not workers() and not prefetching._running


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    wait_for_their_end()


# --- batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 3]), (True, [4, 4])])
def test_rows_in_order(drop_last, sizes):
    tree = {"x": X, "y": (np.arange(11.0),)}
    batches = data.batches(tree, 4, drop_last=drop_last)
    got = list(batches)
    assert [len(batch["x"]) for batch in got] == sizes and len(batches) == len(sizes)
    rows = sum(sizes)
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in got]), X[:rows])
    np.testing.assert_array_equal(np.concatenate([b["y"][0] for b in got]), np.arange(rows))
    assert [b["x"].tolist() for b in batches] == [b["x"].tolist() for b in got]


def test_a_key_shuffles_as_documented():
    key = gf.random.key(3)
    orders = [np.asarray(gf.random.permutation(gf.random.fold_in(key, e), 11)) for e in range(3)]
    wanted = [X[order[k : k + 4]].tolist() for order in orders for k in (0, 4, 8)]
    got = [batch.tolist() for batch in data.batches(X, 4, key=key, epochs=3)]
    assert got == wanted and wanted[:3] != wanted[3:6]
    raw = data.batches(X, 4, key=gf.random.PRNGKey(3), epochs=3)
    assert [batch.tolist() for batch in raw] == wanted
    with gf.enable_x64(True):
        assert [b.tolist() for b in data.batches(X, 4, key=key, epochs=3)] == wanted
    for start in (0, 1, 3, 5, 8, 9, 20):
        rest = data.batches(X, 4, key=key, epochs=3, start=start)
        assert [batch.tolist() for batch in rest] == wanted[start:]
        assert len(rest) == len(wanted[start:])


def test_without_an_end():
    batches = data.batches(np.arange(3), 2, epochs=None, start=1)
    assert [next(it)[0] for it in [iter(batches)] for _ in range(4)] == [2, 0, 2, 0]
    assert batches.per_epoch == 2
    with pytest.raises(TypeError, match=r"\[batches\] without an end .*Fix: per_epoch"):
        len(batches)


def test_no_batch_has_enough_rows():
    assert list(data.batches(np.zeros((0, 2)), 2, epochs=3)) == []
    assert len(data.batches(np.zeros(3), 4, drop_last=True, epochs=3)) == 0
    for arrays, drop_last in ((np.zeros((0, 2)), False), (np.zeros(3), True)):
        with pytest.raises(ValueError, match=r"\[batches\] .*enough rows.*got \d rows.*Fix:"):
            data.batches(arrays, 4, drop_last=drop_last, epochs=None)


def test_counts_of_numpy():
    got = data.batches(np.arange(5), np.int64(2), epochs=np.int32(2), start=np.uint8(4))
    assert [batch.tolist() for batch in got] == [[2, 3], [4]]


def test_kinds_of_arrays_stay():
    key = gf.random.key(1)
    tree = [X, jnp.asarray(X), gf.random.split(key, 11), jnp.ones(11, jnp.bfloat16)]
    for shuffle in (None, key):
        got = next(iter(data.batches(tree, 3, key=shuffle)))
        assert isinstance(got[0], np.ndarray) and all(isinstance(x, gf.Array) for x in got[1:])
        assert [x.dtype for x in got] == [x.dtype for x in tree]
        np.testing.assert_array_equal(got[0], got[1])
    rows = np.asarray(gf.random.permutation(gf.random.fold_in(key, 0), 11))[:3]
    np.testing.assert_array_equal(got[2].host(), tree[2].host()[rows])


def test_batches_are_copies():
    source = X.copy()
    for batch in data.batches(source, 4):
        batch[:] = -1
    np.testing.assert_array_equal(source, X)
    array = jnp.asarray(X)
    donate = gf.jit(lambda x: x * 0, donate_argnums=0)
    for batch in data.batches(array, 4):
        donate(batch)
    np.testing.assert_array_equal(array, X)


def test_batches_may_be_donated():
    """The memory of a batch is its own, whether it was copied or not."""
    rows = np.random.default_rng(0).random((64, 300), np.float32)
    double = gf.jit(lambda x: x * 2, donate_argnums=0)
    for source in (rows, jnp.asarray(rows)):
        for key in (None, gf.random.key(2)):
            wanted = list(data.batches(rows, 16, key=key))
            made = list(map(double, data.prefetch_to_device(data.batches(source, 16, key=key))))
            np.testing.assert_array_equal(made, 2 * np.stack(wanted))
        np.testing.assert_array_equal(source, rows)


def test_other_libraries_arrays():
    host = np.arange(6, dtype=np.float32)
    narrow = host.astype(ml_dtypes.bfloat16)
    for x in (Tensor(host), OnlyArray(host), Tensor(narrow)):
        (first, second) = data.batches({"x": x}, 4)
        assert isinstance(first["x"], np.ndarray) and first["x"].dtype == x._host.dtype
        np.testing.assert_array_equal(np.concatenate([first["x"], second["x"]]), x._host)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: data.batches({"a": X, "b": X[1:]}, 2),
            r"\(11, 2\) at \['a'\], \(10, 2\) at \['b'\]\. Fix: x\.reshape",
        ),
        (lambda: data.batches({"a": np.float32(1)}, 2), r"got \(\) at \['a'\]"),
        (lambda: data.batches([X, "text"], 2), r"got \(11, 2\) at \[0\], str at \[1\]"),
        (lambda: data.batches({}, 2), "got none"),
        (lambda: data.batches(X, 0), r"batch_size must be an integer of at least 1; got 0\. Fix"),
        (lambda: data.batches(X, 2.0), r"batch_size must be .*got 2\.0"),
        (lambda: data.batches(X, True), "batch_size must be .*got True"),
        (lambda: data.batches(X, 2, start=-1), "start must be an integer of at least 0; got -1"),
        (lambda: data.batches(X, 2, epochs=-1), "epochs must be an integer of at least 0"),
    ],
)
def test_wrong_arguments_of_batches(call, said):
    with pytest.raises(ValueError, match=rf"\[batches\] .*{said}"):
        call()


# --- prefetching ---------------------------------------------------------------------------


def test_batches_come_in_order_as_arrays():
    key = gf.random.key(0)
    tree = {"x": X, "y": jnp.arange(11)}
    wanted = list(data.batches(tree, 3, key=key, epochs=4))
    for size in (1, 2, 5, 50):
        got = list(data.prefetch_to_device(data.batches(tree, 3, key=key, epochs=4), size))
        assert all(isinstance(leaf, gf.Array) for leaf in gf.tree.leaves(got))
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one["x"], other["x"])
            np.testing.assert_array_equal(one["y"], other["y"])
    assert got[0]["x"].dtype == jnp.int32  # as device_put has it


def test_output_of_a_data_loader():
    """Lists and dicts of tensors, numbers and texts; wide integers become narrow."""
    ids, images = np.arange(4), np.ones((4, 2), ml_dtypes.bfloat16)

    def loader():
        for _ in range(3):
            yield [
                Tensor(images),
                {"id": Tensor(ids), "old": OnlyArray(ids), "name": ["a", None]},
                3,
                np.array(["x"]),
            ]

    for one, rest, number, names in data.prefetch_to_device(loader()):
        assert one.dtype == jnp.bfloat16 and rest["id"].dtype == rest["old"].dtype == jnp.int32
        np.testing.assert_array_equal(rest["id"], ids)
        assert rest["name"] == ["a", None] and int(number) == 3 and names == np.array(["x"])


@pytest.mark.parametrize("wrap", [lambda x: x, Tensor, OnlyArray])
def test_an_iterator_may_use_its_memory_again(wrap):
    def loader():
        buffer = np.zeros(1000)
        for k in range(5):
            buffer[:] = k
            yield wrap(buffer)

    got = list(data.prefetch_to_device(loader(), 5))
    assert [float(x[0]) for x in got] == [float(x[-1]) for x in got] == [0, 1, 2, 3, 4]


def test_no_more_batches_than_asked_for():
    made = []

    def loader():
        for k in range(100):
            made.append(k)
            yield k

    with data.prefetch_to_device(loader(), 3) as ready:
        for k in range(4):
            assert int(next(ready)) == k
        deadline = time.monotonic() + 60
        while len(made) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert made == list(range(7))
    assert not workers() and list(ready) == []


def test_settings_of_the_thread_that_asks():
    with gf.enable_x64(True):
        ready = data.prefetch_to_device(np.arange(2.0) for _ in range(2))
        assert next(ready).dtype == np.float64
    assert next(ready).dtype == np.float64
    assert next(iter(data.prefetch_to_device([np.arange(2.0)]))).dtype == np.float32


def test_shardings(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, cpu_devices=4))
    devices.cache_clear()
    local_devices.cache_clear()
    try:
        mesh = gf.make_mesh((4,), ("x",))
        rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        loader = [{"x": X[:8], "scale": np.ones(3)}] * 2
        for batch in data.prefetch_to_device(loader, sharding={"x": rows, "scale": whole}):
            assert batch["x"].sharding == rows and batch["scale"].sharding == whole
            np.testing.assert_array_equal(batch["x"], X[:8])
        with gf.set_mesh(mesh):
            (batch, _) = data.prefetch_to_device([X[:8]] * 2, sharding=P("x"))
        assert batch.sharding == rows
        (one,) = data.prefetch_to_device([jnp.ones(3)], sharding=gf.devices()[2])
        assert one.devices() == {gf.devices()[2]}
        with pytest.raises(ValueError, match="must be divisible by 4"):
            list(data.prefetch_to_device([X], sharding=rows))
    finally:
        monkeypatch.undo()
        devices.cache_clear()
        local_devices.cache_clear()


def test_to_a_gpu_through_its_transfers():
    """Small arrays and large ones, of several pieces of pinned memory; simulated here."""
    (device,) = gf.devices("cuda_sim")
    sizes = [1, 100, 3_000_000]
    loader = ([np.full(n, k, np.float32) for n in sizes] for k in range(4))
    for k, batch in enumerate(data.prefetch_to_device(loader, sharding=device)):
        for x, n in zip(batch, sizes, strict=True):
            assert x.devices() == {device} and x.shape == (n,)
            np.testing.assert_array_equal(x, np.full(n, k))


def failing(after):
    yield from range(after)
    raise KeyError("in the worker")


def test_errors_come_behind_the_batches_before_with_their_traceback():
    ready, got = data.prefetch_to_device(failing(3), 2), []
    with pytest.raises(KeyError, match="in the worker") as caught:
        for batch in ready:
            got.append(int(batch))
    assert got == [0, 1, 2]
    text = "".join(traceback.format_exception(caught.value))
    assert 'raise KeyError("in the worker")' in text and "in failing" in text
    assert "raised in the thread that makes batches" in text
    assert list(ready) == [] and not workers()


def test_wrong_arguments_of_prefetch():
    with pytest.raises(ValueError, match=r"\[prefetch_to_device\] size .*got 0\. Fix: size=2"):
        data.prefetch_to_device([], 0)
    with pytest.raises(TypeError, match=r"\[prefetch_to_device\] iterator must .*got a int\. Fix"):
        data.prefetch_to_device(3)
    with pytest.raises(ValueError, match=r"\[prefetch_to_device\] the device must be a Device"):
        next(data.prefetch_to_device([X], sharding="gpu"))


def endless():
    while True:
        yield np.zeros(10)


def test_leaving_early_ends_the_thread():
    for _batch in data.prefetch_to_device(endless()):
        break  # and the iterator is forgotten
    wait_for_their_end()
    ready = data.prefetch_to_device(endless())
    next(ready)
    ready.close()
    ready.close()
    assert not workers()
    with pytest.raises(ZeroDivisionError), data.prefetch_to_device(endless()) as ready:
        next(ready)
        raise ZeroDivisionError
    assert not workers()
    data.prefetch_to_device(endless())  # never used


def test_generators_are_closed():
    closed = threading.Event()

    def loader():
        try:
            yield from endless()
        finally:
            closed.set()

    with data.prefetch_to_device(loader()) as ready:
        next(ready)
    assert closed.wait(60)


def test_a_closed_one_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(prefetching, "_PATIENCE", 0.05)
    stuck = threading.Event()

    def loader():
        yield 1
        stuck.wait(30)

    ready = data.prefetch_to_device(loader())
    next(ready)
    start = time.monotonic()
    ready.close()
    assert time.monotonic() - start < 5
    stuck.set()


def test_a_forked_child_is_told():
    ready = data.prefetch_to_device(endless(), 1)
    next(ready)
    ready._queue.close()
    ready._worker.join()
    ready._queue.is_closed = False
    child = os.fork()
    if child == 0:
        try:
            next(ready)
        except RuntimeError as error:
            os._exit(7 if "Fix: call prefetch_to_device in the child" in str(error) else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    ready._queue.is_closed = True


def test_the_interpreter_ends_in_silence():
    """Behind an error, with a worker that works, one that never comes back, and batches left."""
    code = """
        import builtins, sys, time
        import numpy as np
        from gpuflow import data
        from gpuflow.data import prefetching
        def endless():
            while True:
                yield np.zeros((300, 300))
        def sleeping():
            time.sleep(60)
            yield 1
        prefetching._PATIENCE = 0.1
        ready, stuck = map(data.prefetch_to_device, [endless(), sleeping()])
        next(ready)
        builtins.kept = ready, stuck  # which goes last
        sys.excepthook = lambda *error: None
        raise ValueError
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (ended.stderr, ended.stdout, ended.returncode) == ("", "", 1)


@pytest.mark.parametrize("module", [batching, prefetching], ids=lambda m: m.__name__)
def test_examples_of_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed
