"""NCCL on real GPUs, as many as there are. Skipped where there is none, or no NCCL."""

import threading

import numpy as np
import pytest
from test_nccl_streams import total

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import PROCESSES, serving
from gpuflow.parallel.collectives import nccl_connect
from gpuflow.targets.platforms import seems_to_have_gpu


def _devices():
    """The GPUs, if NCCL is there."""
    if not seems_to_have_gpu():
        return ()
    try:
        nccl_connect.load_cupy()
        return gf.devices("cuda")
    except RuntimeError:
        return ()


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _devices(), reason="there are no GPUs with NCCL"),
]
X = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


@pytest.fixture
def connected():
    """The GPUs and their communicators."""
    devices = _devices()
    yield devices, nccl_connect.connect_gpus(devices)
    nccl_connect.leave_group(False)


def on_each(devices, comms, work):
    """``work(device, comm)`` in a thread for each GPU."""
    results, errors = [None] * len(devices), []

    def run(number):
        try:
            with serving(PROCESSES, comms[number]):
                results[number] = work(devices[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def backward(x):
    first = x @ x / 16
    second = jnp.tanh(first @ x) @ x
    return total(first), total(second)


def test_sums_beside_products_are_right(connected):
    devices, comms = connected
    step = gf.jit(backward)

    def work(device):
        x = gf.device_put(X, device)
        return [np.asarray(out) for _ in range(4) for out in step(x)]

    first = X @ X / 16
    want = first, np.tanh(first @ X) @ X
    for results in on_each(devices, comms, work):
        for k, got in enumerate(results):
            np.testing.assert_allclose(got, len(devices) * want[k % 2], rtol=2e-3, atol=2e-2)


def test_collectives_are_a_row_of_a_trace(connected, tmp_path):
    devices, comms = connected
    step = gf.jit(backward)
    on_each(devices, comms, lambda device: np.asarray(step(gf.device_put(X, device))[0]))
    with gf.profiler.trace(tmp_path):
        on_each(devices, comms, lambda device: np.asarray(step(gf.device_put(X, device))[0]))
    (path,) = tmp_path.glob("plugins/profile/*/*.trace.json.gz")
    (plane,) = gf.profiler.ProfileData.from_file(path).planes
    rows = [line for line in plane.lines if line.name.startswith("collectives")]
    assert len(rows) == len(devices)
    for row in rows:
        assert [event.name for event in row.events] == ["all_reduce"] * 2
        assert all(0 <= event.duration_ns < 1e9 for event in row.events)


def test_aborted_communicators_let_go_and_the_gpu_can_be_used_again(connected):
    devices, comms = connected
    x = gf.device_put(X, devices[0])
    comms[0].watch.fail("a test")
    with pytest.raises(CommunicationError, match="got a test"):
        np.asarray(x)
    with pytest.raises(CommunicationError, match="got a test"):
        comms[0].barrier()
    nccl_connect.leave_group(False)
    np.testing.assert_array_equal(x, X)


@pytest.mark.skipif(len(_devices()) < 2, reason="there is one GPU")
def test_a_gpu_that_does_not_come_ends_the_wait_of_the_other(connected):
    devices, comms = connected
    comms[0].watch.timeout = 2.0
    with serving(PROCESSES, comms[0]), pytest.raises(CommunicationError, match="collectives on"):
        np.asarray(gf.jit(backward)(gf.device_put(X, devices[0]))[0])
