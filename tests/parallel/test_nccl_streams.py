"""The stream of NCCL's collectives: who waits for whom, on GPUs that do everything late."""

import sys
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from communicator_suite import check_all
from cuda_tools import requires_cuda_tools
from fake_nccl import (
    CODES,
    COMPUTE,
    FakeApi,
    FakeComm,
    FakeCupy,
    FakeNccl,
    NcclError,
    Waiting,
    device,
    fake_cupy,
    late_device,
    wait,
)
from late_gpu import gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.errors import CommunicationError
from gpuflow.cli import doctor_trials
from gpuflow.core.communicator import PROCESSES, Across, serving
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.parallel.collectives import memory_threads, nccl_connect
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator, Meeting
from gpuflow.parallel.collectives.nccl import NcclCommunicator
from gpuflow.parallel.partition import memory_programs
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream

X = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


class Doubled(LoopbackCommunicator):
    """Two ranks with equal data."""

    def all_reduce(self, data, op, out=None):
        return super().all_reduce(data, op, out) * 2


class DoubledComm(FakeComm):
    """The same where NCCL adds by itself."""

    def rows(self, view):
        return np.concatenate([super().rows(view)] * 2)


def single(where=None):
    """A communicator of a late device, and what its library has done."""
    nccl = FakeNccl()
    comm = DoubledComm(nccl, Doubled(Meeting(1, 20), 0))
    return NcclCommunicator(comm, nccl, FakeCupy, SideStream(where or late_device())), nccl.done


def later(done, name, work=lambda: None):
    """Give the compute stream of the current device something to do."""
    api = sys.modules["fake_nccl"].current.device

    def run():
        work()
        done.append(name)

    api.queues[COMPUTE].append(run)
    return api


def written(done, dtype=np.float32):
    """An operand that a kernel will have written, and a place for its sum."""
    x, out = device(np.zeros(5, dtype)), device(np.zeros(5, dtype))
    api = later(done, "operand", lambda: x.view(np.ndarray).fill(3))
    return api, x, out


# --- the order -----------------------------------------------------------------------------


def test_a_collective_waits_for_its_operand_and_later_work_for_the_collective():
    comm, done = single()
    _, x, out = written(done)
    assert comm.all_reduce(x, "sum", out) is out
    seen = []
    later(done, "reader", lambda: seen.append(np.array(out)))
    assert not done  # nothing was waited for
    wait()
    assert done == ["operand", "allReduce", "reader"]
    np.testing.assert_array_equal(seen[0], np.full(5, 6, np.float32))


def test_a_begun_sum_needs_the_operand_and_is_needed_by_the_end_alone():
    comm, done = single()
    api, x, out = written(done)
    comm.begin(x, "sum", out)
    later(done, "work")
    comm.end(out)
    later(done, "reader")
    assert not done
    wait()  # as late as possible: work between does not wait for the sum
    assert done == ["operand", "work", "allReduce", "reader"]

    done.clear()
    _, x, out = written(done)
    comm.begin(x, "sum", out)
    later(done, "work")
    api.synchronize(comm._side.address)  # as early as possible: the sum does not wait for work
    assert done == ["operand", "allReduce"]
    comm.end(out)
    wait()
    np.testing.assert_array_equal(out, np.full(5, 6, np.float32))


def test_sums_and_other_collectives_run_in_the_order_of_the_program():
    comm, done = single()
    _, x, out = written(done)
    half = comm.split(((0,),))
    other = device(np.zeros(5, np.float32))
    comm.begin(x, "sum", out)
    half.begin(x, "max", other)
    gathered = comm.all_gather(x)  # behind both, as on all ranks
    wait()
    assert done == ["operand", "allReduce", "allReduce", "allGather"]
    np.testing.assert_array_equal(gathered, np.full((1, 5), 3, np.float32))
    half.end(other)
    comm.end(out)
    wait()
    assert len({half._side.address, comm._side.address}) == 1


@pytest.mark.parametrize("missing", ["follow", "join"])
def test_the_fake_notices_what_is_not_waited_for(missing, monkeypatch):
    monkeypatch.setattr(SideStream, missing, lambda self, *mark: None)
    comm, done = single()
    api, x, out = written(done)
    comm.begin(x, "sum", out)
    if missing == "follow":
        api.synchronize(comm._side.address)
    comm.end(out)
    wait()
    assert np.array(out).tolist() != [6] * 5


# --- what must live, and what is left behind -----------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_arrays_live_until_the_compute_stream_waits(dtype):
    """What the pool gets back is written over in the compute stream at once."""
    comm, done = single()
    _, x, out = written(done, dtype)
    wait()
    comm.begin(x, "sum", out)
    del x
    later(done, "work")
    wait()
    assert "allReduce" not in done
    comm.end(out)
    wait()
    assert np.asarray(out).astype(np.float32).tolist() == [6.0] * 5 and not comm._started


def test_a_failed_program_of_this_thread_is_waited_for_and_no_other():
    comm, done = single()
    _, x, out = written(done)
    comm.begin(x, "sum", out)
    thread = threading.Thread(target=comm.settle)
    thread.start()
    thread.join()
    assert comm._started  # another thread's program goes on
    comm.settle()
    later(done, "next program")
    assert not comm._started
    wait()
    assert done == ["operand", "allReduce", "next program"]


def test_errors_are_named():
    comm, _ = single()
    x = device(X)
    with pytest.raises(CommunicationError, match=r"must follow begin.*got float32\[8, 8\]"):
        comm.end(x)
    comm._comm.error = "NCCL_ERROR_REMOTE_ERROR"
    calls = {
        "all_reduce": lambda: comm.all_reduce(x, "sum"),
        "all_gather": lambda: comm.all_gather(x),
        "reduce_scatter": lambda: comm.reduce_scatter(x[:1]),
        "broadcast": lambda: comm.broadcast(x, 0),
        "permute": lambda: comm.permute(x, [(0, 0)]),
        "all_to_all": lambda: comm.all_to_all(x[:1]),
    }
    for name, call in calls.items():
        pattern = rf"\[{name}\] NCCL must run {name} on rank 0 of 1 .*REMOTE_ERROR. Fix: look for"
        with pytest.raises(CommunicationError, match=pattern):
            call()


# --- GPUs of one process -------------------------------------------------------------------


@pytest.fixture
def two(monkeypatch):
    """Two late devices, which communicate over the fake."""
    cupy = fake_cupy()
    monkeypatch.setattr(nccl_connect, "load_cupy", lambda: cupy)
    apis = FakeApi(), FakeApi()
    devices = gpu_devices(f"late_nccl_{id(apis[0])}", *apis)
    return SimpleNamespace(devices=devices, nccl=cupy.cuda.nccl)


def test_the_suite_of_all_communicators_on_gpus_of_one_process(two):
    comms, errors = nccl_connect.connect_gpus(two.devices), []
    assert two.nccl.numbers == [0, 1]

    def run(own, comm):
        own.driver.api.activate()
        try:
            check_all(Waiting(comm), device, rounds=True)
        except BaseException as error:
            errors.append(error)

    pairs = zip(two.devices, comms, strict=True)
    own = [threading.Thread(target=run, args=pair, daemon=True) for pair in pairs]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    assert two.devices[0].driver.api is not two.devices[1].driver.api


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_sums_of_halves_are_nccls_own(size, dtype, monkeypatch):
    """They were made float32 before, which is twice the traffic and two kernels more."""
    cupy = fake_cupy()
    monkeypatch.setattr(nccl_connect, "load_cupy", lambda: cupy)
    apis = [FakeApi() for _ in range(size)]
    devices = gpu_devices(f"late_halves_{size}_{np.dtype(dtype)}", *apis)
    given, sums, errors = [], {}, []
    inner = FakeComm.allReduce

    def noted(self, source, target, count, code, *rest):
        given.append((count, code))
        inner(self, source, target, count, code, *rest)

    monkeypatch.setattr(FakeComm, "allReduce", noted)
    rows = np.random.default_rng(size).standard_normal((size, 257)).astype(dtype)

    def run(own, comm):
        own.driver.api.activate()
        try:
            x, out = device(rows[comm.rank]), device(np.zeros(257, dtype))
            comm.begin(x, "sum", out)
            comm.end(out)
            most = comm.all_reduce(x, "max")
            sums[comm.rank] = out.get(), most.get()
        except BaseException as error:
            errors.append(error)

    pairs = zip(devices, nccl_connect.connect_gpus(devices), strict=True)
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors
    code = CODES[np.dtype(dtype).name.upper()]
    assert given == [(257, code)] * 2 * size
    wide, eps = rows.astype(np.float64), float(ml_dtypes.finfo(dtype).eps)
    bound = (size - 1) * eps / 2 * np.abs(wide).sum(0) * (1 + eps) ** size
    for summed, most in sums.values():
        assert summed.dtype == most.dtype == np.dtype(dtype)
        assert summed.tobytes() == sums[0][0].tobytes()
        assert (np.abs(summed.astype(np.float64) - wide.sum(0)) <= bound).all()
        np.testing.assert_array_equal(most.astype(np.float64), wide.max(0))
    one = np.zeros(257, dtype)
    for row in rows:
        one = one + row
    assert sums[0][0].tobytes() == one.tobytes()  # the stand-in's order is that of the ranks


def total(x):
    return psum_p.bind(x, axes=(Across("i"),), axis_index_groups=None)


@requires_cuda_tools
def test_gradients_are_summed_beside_the_backward_pass(two, monkeypatch):
    comms = tuple(nccl_connect.connect_gpus(two.devices))
    monkeypatch.setattr(
        memory_threads, "_make", lambda devices: memory_threads.Team(comms, lambda reason: None)
    )

    def in_threads(run, devices, ranks):
        def run_and_wait(device):  # a late device does nothing while nobody waits
            result = run(device)
            device.driver.synchronize()
            return result

        return memory_threads.in_threads(run_and_wait, devices, ranks)

    monkeypatch.setattr(memory_programs, "in_threads", in_threads)
    begun, begin = [], NcclCommunicator.begin
    monkeypatch.setattr(
        NcclCommunicator, "begin", lambda self, *args: (begun.append(self.rank), begin(self, *args))
    )

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return (x * x).sum()

    def step(weights, x):
        return gf.tree.map(lambda g: gf.lax.psum(g, "i"), gf.grad(loss)(weights, x))

    # Sums of more than 64 KiB: smaller ones are joined, and made when the last one can be.
    wide = np.random.default_rng(1).standard_normal((136, 136)).astype(np.float32) / 12
    weights = [wide, wide.T, wide[::-1]]
    parts = np.stack([wide[:8], 2 * wide[:8]])
    mapped = gf.pmap(step, axis_name="i", in_axes=(None, 0), devices=two.devices)
    for _ in range(3):
        gradients = mapped(weights, parts)
    want = [gf.jit(gf.grad(loss))(weights, part) for part in parts]
    for got, one, other in zip(gradients, *want, strict=True):
        for k in range(2):
            np.testing.assert_allclose(np.asarray(got)[k], one + other, rtol=1e-4, atol=1e-4)
    assert begun.count(0) == begun.count(1) >= 3 and not any(comm._started for comm in comms)


@requires_cuda_tools
def test_a_program_that_fails_leaves_no_sum_behind(two):
    where = two.devices[0]
    where.driver.api.activate()
    comm, done = single(where)

    def fails(x):
        assert comm._started
        raise ValueError("of the host")

    def step(x):
        first = x @ x
        begun = total(first)
        between = gf.pure_callback(fails, x, first @ x)
        return begun, between @ x

    operand = gf.device_put(X, where)
    with serving(PROCESSES, comm), pytest.raises(Exception, match="of the host"):
        gf.jit(step)(operand)
    assert not comm._started
    where.driver.synchronize()
    assert done == ["allReduce"]


@requires_cuda_tools
def test_an_error_of_nccl_does_not_move_the_call_to_the_host(two):
    where = two.devices[0]
    where.driver.api.activate()
    comm, _ = single(where)
    comm._comm.error = "NCCL_ERROR_SYSTEM_ERROR"
    with serving(PROCESSES, comm), pytest.raises(CommunicationError, match="SYSTEM_ERROR"):
        gf.jit(total)(gf.device_put(X, where))
    assert not where.driver.host_calls


@requires_cuda_tools
def test_doctor_tries_nccl(two, monkeypatch):
    """The whole trial, over a communicator of one rank; what NCCL says is the line."""
    where = two.devices[1]
    assert doctor_trials.try_on(where, "NCCL all-reduce") == "right, on the device"
    done = two.nccl.done
    assert done == ["allReduce", "allReduce"]  # of the matrix, and the barrier's
    assert two.nccl.numbers == [where.local_hardware_id]
    assert not nccl_connect._process.watches and where.driver.broken is None

    monkeypatch.setattr(NcclCommunicator, "all_reduce", lambda self, data, op, out=None: data * 2)
    with pytest.raises(doctor_trials.TrialError, match=r"differs from NumPy by 1\.0e"):
        doctor_trials.try_on(where, "NCCL all-reduce")


@requires_cuda_tools
def test_doctor_says_what_nccl_says(two, monkeypatch, capsys):
    def refuse(size, unique, rank):
        raise NcclError("NCCL_ERROR_SYSTEM_ERROR: no socket")

    monkeypatch.setattr(two.nccl, "NcclCommunicator", refuse)
    monkeypatch.setattr(doctor_trials.gf, "devices", lambda platform: two.devices)
    assert doctor_trials.main(["NCCL all-reduce"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("failed: CommunicationError: [nccl] NCCL must connect ")
    assert "NCCL_ERROR_SYSTEM_ERROR: no socket" in out
