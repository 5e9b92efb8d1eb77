"""Several GPUs in one process: each has its own memory, kernels and programs."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.errors import CommunicationError
from gpuflow.base.garbage import collect_garbage
from gpuflow.core.communicator import dispatch_lock
from gpuflow.targets.cuda_sim.driver import SimApi

pytestmark = requires_cuda_tools
X = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)


@pytest.fixture(scope="module", params=[SimApi, LateApi])
def two(request):
    name = f"cuda_two_{request.param.__name__.lower()}"
    return gpu_devices(name, request.param(), request.param())


def work(x):
    for k in range(3):
        x = jnp.sin(x + x.sum(k % 2, keepdims=True)) @ jnp.eye(x.shape[1])
    return jnp.sort(x, axis=1), x.sum()


def test_programs_run_where_their_operands_are(two):
    step, want = gf.jit(work), [gf.jit(work)(X + k) for k in range(2)]
    operands = [gf.device_put(X + k, device) for k, device in enumerate(two)]
    for _ in range(4):  # in turn, so that each call makes its device the current one
        results = [step(x) for x in operands]
    for device, got, expected in zip(two, results, want, strict=True):
        assert all(leaf.device == device for leaf in got)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_devices_share_the_plan_and_nothing_that_runs(two):
    step = gf.jit(lambda x: jnp.tanh(x) * 3 + x.sum())
    for device in two:
        step(gf.device_put(X, device)).block_until_ready()
    one, other = (device.driver for device in two)
    assert one is not other and one.memory is not other.memory and one.api is not other.api
    assert one.loaded_kernels() & other.loaded_kernels()  # loaded by each, built once


def test_arrays_of_two_devices_do_not_meet(two):
    here, there = (gf.device_put(X, device) for device in two)
    message = r"must be on the same ones; got .*:0.*:1.*Fix: move"
    with pytest.raises(ValueError, match=message):
        here + there
    np.testing.assert_array_equal(here + gf.device_put(there, two[0]), X + X)
    moved = gf.device_put(here, two[1])
    assert moved.device == two[1]
    np.testing.assert_array_equal(moved, X)


def test_eager_ops_and_statistics_are_the_devices_own(two):
    collect_garbage()
    before = [device.memory_stats()["bytes_in_use"] for device in two]
    with gf.default_device(two[1]):
        x = jnp.ones((1 << 18,)) + 1
    after = [device.memory_stats()["bytes_in_use"] for device in two]
    assert x.device == two[1]
    assert after[0] == before[0] and after[1] >= before[1] + x.nbytes


def test_a_host_function_may_use_another_device(two):
    def host(x):
        return np.asarray(gf.device_put(np.asarray(x), two[1]) * 2)

    shape = gf.ShapeDtypeStruct(X.shape, np.float32)
    step = gf.jit(lambda x: jnp.sin(gf.pure_callback(host, shape, x + 1)).sum(0))
    got = step(gf.device_put(X, two[0]))
    assert got.device == two[0]
    np.testing.assert_allclose(got, np.sin((X + 1) * 2).sum(0), rtol=1e-4, atol=1e-5)


def test_arrays_may_die_while_another_device_is_current(two):
    big = np.zeros(1 << 18, np.float32)
    add, kept = gf.jit(lambda x: x + 1), []
    for k in range(6):
        x = gf.device_put(big + k, two[k % 2])
        kept.append(add(x))
        other = gf.device_put(X, two[(k + 1) % 2])
        del x  # its memory waits for an event of its own device
        add(other).block_until_ready()
    for k, result in enumerate(kept):
        assert result.device == two[k % 2] and float(result[0]) == k + 1


def test_threads_have_current_devices_of_their_own(two):
    step, results = gf.jit(work), {}
    for device in two:
        step(gf.device_put(X, device))

    def run(number):
        x = gf.device_put(X, two[number])
        results[number] = [np.asarray(step(x)[1]) for _ in range(8)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({value.tobytes() for values in results.values() for value in values}) == 1


# --- from one device to another ---


@pytest.fixture
def late():
    apis = LateApi(), LateApi()
    return gpu_devices(f"cuda_moves_{id(apis[0])}", *apis)


def logs(devices, *names):
    return [device.driver.api.log[name] for device in devices for name in names]


BIG = np.random.default_rng(1).normal(size=(1 << 16)).astype(np.float32)


@pytest.mark.parametrize("values", [X, BIG])
def test_moves_wait_for_neither_device(late, values):
    """They went through pageable memory of the host, which waited for the first device."""
    x = gf.device_put(values, late[0])
    y = gf.jit(lambda v: jnp.sin(v) * 2)(x)  # nothing has run yet
    before = logs(late, "copy_out", "wait", "synchronize")
    moved = gf.device_put(y, late[1])
    result = moved + 1
    assert moved.device == result.device == late[1]
    assert logs(late, "copy_out", "wait", "synchronize") == before
    assert logs(late, "copy_peer") == [0, 1]
    np.testing.assert_allclose(result, np.sin(values) * 2 + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["freed", "donated"])
def test_the_memory_of_what_is_moved_is_used_again_behind_the_copy(late, how):
    step = gf.jit(lambda v: v * 2, donate_argnums=(0,) if how == "donated" else ())
    for k in range(3):
        x = gf.device_put(BIG + k, late[0]) * 1  # in the pool of the compute stream
        moved = gf.device_put(x, late[1])
        if how == "donated":
            other = step(x)
            other.block_until_ready()  # the first device goes on, nobody waits for the second
        else:
            del x
            other = step(gf.device_put(BIG, late[0]) * 0)
            other.block_until_ready()
        np.testing.assert_array_equal(moved, BIG + k)


def test_the_memory_of_a_moved_array_waits_for_its_readers(late):
    total = []
    for k in range(4):
        moved = gf.device_put(gf.device_put(X + k, late[0]), late[1])
        total.append(moved.sum())
        del moved  # its memory is the next one's
    late[0].driver.synchronize()  # which lets all copies run that may run by now
    np.testing.assert_allclose(total, [(X + k).sum() for k in range(4)], rtol=1e-4)


def test_moves_and_programs_over_several_devices_take_turns(two):
    """A device would wait for the other one, in front of its half of a collective."""
    x, done = gf.device_put(X, two[0]), threading.Event()

    def move():
        gf.device_put(x, two[1]).block_until_ready()
        done.set()

    thread = threading.Thread(target=move, daemon=True)
    with dispatch_lock():
        thread.start()
        assert not done.wait(0.3)
    assert done.wait(30)


def test_a_host_function_of_a_program_over_several_devices_may_move_arrays(two):
    def host(x):
        return np.asarray(gf.device_put(gf.device_put(x, two[0]), two[1])) * 2

    shape = gf.ShapeDtypeStruct((4,), np.float32)
    mapped = gf.pmap(lambda v: gf.pure_callback(host, shape, v), devices=two)
    results = []
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    thread = threading.Thread(target=lambda: results.append(np.asarray(mapped(x))), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    np.testing.assert_array_equal(results[0], x * 2)


@pytest.mark.parametrize("spec", [(), ("i",), (None, "i")])
def test_arrays_of_a_gpu_are_cut_for_others_without_the_host(late, spec):
    values = np.random.default_rng(2).normal(size=(6, 8)).astype(np.float32)
    sharding = gf.sharding.NamedSharding(
        gf.sharding.Mesh(np.array(late), ("i",)), gf.sharding.PartitionSpec(*spec)
    )
    x = gf.jit(lambda v: v + 1)(gf.device_put(values, late[0]))
    before = logs(late, "copy_out")
    parted = gf.device_put(x, sharding)
    assert logs(late, "copy_out") == before and logs(late, "copy_peer") == [0, 1]
    x.delete()
    shards = [shard.data for shard in parted.addressable_shards]
    assert [shard.device for shard in shards] == list(late)
    np.testing.assert_array_equal(parted, values + 1)


def test_what_is_worth_nothing_is_not_moved(late):
    x = gf.device_put(X, late[0])
    late[0].driver.broken = "[all_reduce] rank 1 is gone. Fix: start again."
    with pytest.raises(CommunicationError, match="rank 1 is gone"):
        gf.device_put(x, late[1])


PROGRAM = """
import numpy as np, gpuflow as gf
assert [str(d) for d in gf.devices()] == ["cuda_sim:0", "cuda_sim:1"]
assert gf.local_device_count() == 2 and len({d.driver for d in gf.devices()}) == 2
x = np.arange(8, dtype=np.float32).reshape(2, 4)
y = gf.pmap(lambda v: v * 2 + gf.lax.psum(v, "i"), axis_name="i")(x)
np.testing.assert_array_equal(y, x * 2 + x.sum(0))
print("passed")
"""


def test_the_number_of_simulated_devices_is_a_setting():
    environment = {
        **os.environ,
        "GPUFLOW_SIM_DEVICES": "2",
        "GPUFLOW_PLATFORM": "cuda_sim",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0 and "passed" in ended.stdout, ended.stderr
