"""Arrays with parts in several memories, which are simulated GPUs here, and meshes over them."""

import copy
from dataclasses import replace

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.base.config import config
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import DRIVERS, PROCESSES, Across, Within
from gpuflow.parallel.partition import UnpartitionedWarning
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.device import Device, device_counts, devices, local_devices, set_process
from gpuflow.runtime.memories import holdings, memories_of
from gpuflow.runtime.parted import PartedArray

X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(autouse=True)
def four_simulated(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, sim_devices=4))
    devices.cache_clear()
    local_devices.cache_clear()
    yield
    monkeypatch.undo()
    devices.cache_clear()
    local_devices.cache_clear()


@pytest.fixture
def mesh():
    return gf.make_mesh((2, 2), ("x", "y"), devices=devices("cuda_sim"))


def sharded(mesh, *spec):
    return gf.device_put(X, gf.NamedSharding(mesh, P(*spec)))


def test_each_memory_has_its_part(mesh):
    x = sharded(mesh, "x", "y")
    assert type(x) is PartedArray and isinstance(x, gf.Array)
    assert [part.device.id for part in x.parts] == [0, 1, 2, 3]
    np.testing.assert_array_equal(x.parts[1], X[:4, 2:])
    assert x.devices() == set(devices("cuda_sim")) and x.is_fully_addressable
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(copy.deepcopy(x), X)
    assert repr(x) == repr(gf.Array.__repr__(x)).strip("'").replace("\\n", "\n")
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])
    whole = sharded(mesh)
    assert [part.shape for part in whole.parts] == [(8, 4)] * 4
    x.block_until_ready().delete()
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match="must not have been donated or deleted"):
        np.asarray(x)


def test_arrays_move_between_shardings_and_devices(mesh):
    x = sharded(mesh, "x")
    for spec in [("y", "x"), (("y", "x"),), (None, ("x", "y")), ()]:
        moved = gf.device_put(x, gf.NamedSharding(mesh, P(*spec)))
        np.testing.assert_array_equal(moved, X)
        for shard in moved.addressable_shards:
            np.testing.assert_array_equal(shard.data, X[shard.index])
    here = gf.device_put(x, devices("cpu")[0])
    assert type(here) is Array and here.device.platform == "cpu"
    np.testing.assert_array_equal(here, X)
    other = gf.make_mesh((4,), ("z",), devices=devices("cuda_sim"))
    np.testing.assert_array_equal(gf.device_put(x, gf.NamedSharding(other, P("z"))), X)


def test_arrays_are_made_of_parts(mesh):
    sharding = gf.NamedSharding(mesh, P(("y", "x"), None))
    made = gf.make_array_from_callback((8, 4), sharding, lambda index: X[index])
    np.testing.assert_array_equal(made, X)
    parts = [shard.data for shard in made.addressable_shards]
    again = gf.make_array_from_single_device_arrays((8, 4), sharding, parts)
    np.testing.assert_array_equal(again, X)
    with pytest.raises(ValueError, match="there must be a part for each of the 4 devices; got 1"):
        gf.make_array_from_single_device_arrays((8, 4), sharding, parts[:1])


def test_functions_with_rules_of_their_own(mesh):
    """They hold functions that are not traced yet; ordinary arrays met them too, ever after."""

    @gf.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * 2 + 0 * x,))

    @gf.custom_batching.custom_vmap
    def shifted(x):
        return x + 1

    shifted.def_vmap(lambda axis_size, in_batched, x: (x + 1, True))

    for x in (sharded(mesh, "x", "y"), jnp.asarray(X)):
        np.testing.assert_array_equal(gf.nn.relu(x - 9), np.maximum(X - 9, 0))
        np.testing.assert_array_equal(doubled(x), 2 * X)
        np.testing.assert_array_equal(shifted(x), X + 1)
        slope = gf.grad(lambda x: (doubled(x) + gf.nn.relu(x - 9)).sum())(x)
        np.testing.assert_array_equal(slope, np.where(X > 9, 3, 2))


def test_jit_puts_results_where_they_are_wanted(mesh):
    rows, whole = (gf.NamedSharding(mesh, spec) for spec in (P("x"), P()))
    double = gf.jit(lambda x: x * 2, in_shardings=rows, out_shardings=whole)
    out = double(X)
    assert out.sharding == whole
    np.testing.assert_array_equal(out, 2 * X)


def test_a_warning_names_what_is_not_partitioned(mesh):
    with pytest.warns(UnpartitionedWarning, match=r"\[jit\] sort of f32\[8,4\] at .* is not part"):
        out = gf.jit(lambda x: lax.sort(x, dimension=0))(sharded(mesh, "x"))
    np.testing.assert_array_equal(out, X)


def test_a_shard_map_inside_of_another_one_is_refused(mesh):
    def inner(x):
        return gf.shard_map(jnp.sin, mesh=mesh, in_specs=P("y"), out_specs=P("y"))(x)

    with pytest.raises(NotImplementedError, match="must not be inside of another one"):
        gf.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(X)


# --- several processes, of which this is one -------------------------------------------------


@pytest.fixture
def first_of_two():
    counts = {**device_counts(), "cpu": 4}
    set_process(0, 2, (counts, counts))
    yield [Device("cpu", k, k // 4, k % 4) for k in range(8)]
    set_process(0, 1, ({},))


def test_axes_have_parts_between_memories_and_within(first_of_two):
    mesh = gf.make_mesh((4, 2), ("x", "y"), devices=first_of_two)
    memories = memories_of(mesh)
    assert memories.key == PROCESSES and [d.process_index for d in memories.devices] == [0, 1]
    assert memories.between == {"x": 2, "y": 1} and memories.within == {"x": 2, "y": 2}
    assert memories.parts("x") == (Across("x", PROCESSES, ((0, 1),)), Within("x"))
    assert memories.parts("y") == ("y",) and memories.names == ("x",)
    held = holdings(gf.NamedSharding(mesh, P(("y", "x"))), 1)
    assert [one.pieces for one in held.values()] == [((0, 1, 4, 5),), ((2, 3, 6, 7),)]


def test_values_of_other_processes_are_not_here(first_of_two):
    mesh = gf.make_mesh((8,), ("x",), devices=first_of_two)
    sharding = gf.NamedSharding(mesh, P("x"))
    own = from_numpy(X[:4], ShapedArray((4, 4), X.dtype), first_of_two[0])
    x = PartedArray([own], ShapedArray((8, 4), X.dtype), sharding)
    assert not x.is_fully_addressable and "parts in several processes" in repr(x)
    assert [shard.data is None for shard in x.global_shards] == [False] * 4 + [True] * 4
    with pytest.raises(RuntimeError, match=r"values must be in this process; got f32\[8,4\]"):
        np.asarray(x)
    made = gf.make_array_from_process_local_data(sharding, X[:4])
    assert made.shape == (8, 4) and made.parts[0].shape == (4, 4)
    with pytest.raises(ValueError, match=r"this process's part of global_shape, \(8, 4\); got"):
        gf.make_array_from_process_local_data(sharding, X[:4], (16, 4))


def test_meshes_that_nobody_joins(first_of_two):
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    mixed = gf.make_mesh((8,), ("x",), devices=[first_of_two[k] for k in order])
    with pytest.raises(ValueError, match="devices that share memory must form a block"):
        memories_of(mixed)
    others = gf.make_mesh((4,), ("x",), devices=first_of_two[4:])
    with pytest.raises(NotImplementedError, match="must have devices of all 2; got those of"):
        memories_of(others)
    gpus = [Device("cuda_sim", k, k // 2, k % 2) for k in range(4)]
    with pytest.raises(NotImplementedError, match="a process of several must have one memory"):
        memories_of(gf.make_mesh((4,), ("x",), devices=gpus))


def test_drivers_of_one_process_are_ranks_in_the_order_of_the_mesh():
    turned = gf.make_mesh((2,), ("x",), devices=devices("cuda_sim")[1::-1])
    memories = memories_of(turned)
    assert memories.key == DRIVERS and [device.id for device in memories.devices] == [1, 0]
    assert [device.id for device in memories.local] == [0, 1]
    x = gf.device_put(X, gf.NamedSharding(turned, P("x")))
    np.testing.assert_array_equal(x.parts[0], X[4:])
    index = gf.shard_map(
        lambda x: x * 0 + lax.axis_index("x"), mesh=turned, in_specs=P("x"), out_specs=P("x")
    )(x)
    np.testing.assert_array_equal(index[:, 0], [0] * 4 + [1] * 4)
