"""Arrays with shards in several memories, which are simulated GPUs here, and meshes over them."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.base.config import config
from gpuflow.base.errors import CommunicationError
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import DRIVERS, PROCESSES, Across, Within, serving
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from gpuflow.errors import UnpartitionedWarning
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.parallel.partition.whole_programs import partition
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.device import Device, device_counts, devices, local_devices, set_process
from gpuflow.runtime.distributed import DistributedArray
from gpuflow.runtime.memories import holdings, memories_of

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
    assert type(x) is DistributedArray and isinstance(x, gf.Array)
    assert [part.device.id for part in x.arrays] == [0, 1, 2, 3]
    np.testing.assert_array_equal(x.arrays[1], X[:4, 2:])
    assert x.devices() == set(devices("cuda_sim")) and x.is_fully_addressable
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(copy.deepcopy(x), X)
    assert repr(x) == repr(gf.Array.__repr__(x)).strip("'").replace("\\n", "\n")
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])
    whole = sharded(mesh)
    assert [part.shape for part in whole.arrays] == [(8, 4)] * 4
    x.block_until_ready().delete()
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match="must not have been donated or deleted"):
        np.asarray(x)


@requires_cuda_tools
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
    array = gf.make_array_from_callback((8, 4), sharding, lambda index: X[index])
    np.testing.assert_array_equal(array, X)
    parts = [shard.data for shard in array.addressable_shards]
    again = gf.make_array_from_single_device_arrays((8, 4), sharding, parts)
    np.testing.assert_array_equal(again, X)
    with pytest.raises(ValueError, match="there must be a part for each of the 4 devices; got 1"):
        gf.make_array_from_single_device_arrays((8, 4), sharding, parts[:1])


def addresses(x):
    """Where the parts are."""
    return [part.data.address for part in x.arrays]


@requires_cuda_tools
def test_donated_parts_are_used_again_and_gone(mesh):
    def step(w, x):
        return w - 0.5 * x

    x, rows = sharded(mesh, "x", "y"), gf.NamedSharding(mesh, P("x"))
    w = jnp.sin(sharded(mesh, "x", "y"))
    was, expected = addresses(w), np.sin(X) - 0.5 * X
    out = gf.jit(step, donate_argnums=0)(w, x)
    assert addresses(out) == was and w.is_deleted() and not x.is_deleted()
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    with pytest.raises(RuntimeError, match="must not have been donated or deleted"):
        gf.jit(step, donate_argnums=0)(w, x)
    with pytest.raises(ValueError, match="a donated array must be passed once"):
        gf.jit(step, donate_argnums=0)(x, x)
    # One that is cut or moved first is gone as well, and what shares its memory is not changed.
    renamed = gf.make_mesh((2, 2), ("a", "b"), devices=devices("cuda_sim"))
    plain, other = jnp.asarray(X), gf.device_put(x, gf.NamedSharding(renamed, P("a", "b")))
    moved = gf.jit(step, donate_argnums=0, in_shardings=(rows, rows), out_shardings=rows)
    with pytest.raises(ValueError, match=r"must have the shardings of in_shardings; .* Fix: devic"):
        moved(x, plain)
    kept = gf.jit(step, donate_argnums=0, out_shardings=rows)
    np.testing.assert_array_equal(kept(x, plain), X - 0.5 * X)
    np.testing.assert_array_equal(moved(plain, X), X - 0.5 * X)
    assert x.is_deleted() and plain.is_deleted()
    np.testing.assert_array_equal(other, X)
    twice = gf.jit(lambda v: (v, v), donate_argnums=0)(other)
    assert other.is_deleted()
    for one in twice:
        np.testing.assert_array_equal(one, X)


@requires_cuda_tools
def test_a_pmap_over_memories_takes_what_is_donated():
    step = gf.pmap(lambda w, x: w - x, donate_argnums=0, devices=devices("cuda_sim"))
    data = X.reshape(4, 8)
    w = step(data, np.ones_like(data))
    was = addresses(w)
    out = step(w, data)
    assert addresses(out) == was and w.is_deleted()
    np.testing.assert_array_equal(out, -np.ones_like(data))
    with pytest.raises(RuntimeError, match="must not have been donated or deleted"):
        step(w, data)


@requires_cuda_tools
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


@requires_cuda_tools
def test_jit_puts_results_where_they_are_wanted(mesh):
    rows, whole = (gf.NamedSharding(mesh, spec) for spec in (P("x"), P()))
    double = gf.jit(lambda x: x * 2, in_shardings=rows, out_shardings=whole)
    out = double(X)
    assert out.sharding == whole
    np.testing.assert_array_equal(out, 2 * X)


def warned_by(f, mesh, shape=(512, 1024)):
    """The warnings of partitioning a function of an array whose rows are split."""
    rows = gf.NamedSharding(mesh, P("x"))
    program = gf.make_jaxpr(f)(gf.ShapeDtypeStruct(shape, np.float32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        partition(program, memories_of(mesh), [rows], [rows])
    return caught


def test_a_warning_names_what_is_not_partitioned(mesh):
    """Once for each line, and only of more than 1 MB: programs of small ones warned of each op."""

    def ranked(x):
        return lax.sort(lax.rev(lax.sort(x, dimension=0), (0,)), dimension=0) + jnp.cumsum(x, 0)

    line = ranked.__code__.co_firstlineno + 1
    assert warned_by(ranked, mesh, (512 * 256,)) == []
    (warning,) = warned_by(ranked, mesh, (512 * 1024,))
    assert warning.category is UnpartitionedWarning
    assert warning.filename == __file__ and warning.lineno == line
    assert str(warning.message) == (
        f"[jit] sort of f32[524288] at {__file__}:{line} (ranked) is not partitioned over 'x': "
        "operands of 2.1 MB are gathered, and each device computes the same result. Fix: split "
        "other dimensions, or compute it in shard_map."
    )
    assert warned_by(ranked, mesh, (512 * 1024,)) == []
    assert len(warned_by(lambda x: lax.sort(x, dimension=0), mesh, (512 * 1024,))) == 1
    assert warned_by(ranked, mesh) == []  # rows of a matrix are exchanged


def test_a_warning_that_is_an_error_is_raised_each_time(mesh):
    rows = gf.NamedSharding(mesh, P("x"))
    struct = gf.ShapeDtypeStruct((512 * 1024,), np.float32)
    program = gf.make_jaxpr(lambda x: lax.sort(x, dimension=0))(struct)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UnpartitionedWarning, match="sort of f32"):
                partition(program, memories_of(mesh), [rows], [rows])


SPREAD = {"in_specs": P("x"), "out_specs": P("x")}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: gf.device_put(X[:7], gf.NamedSharding(m, P("x"))), ValueError, "divisible by 2"),
        (lambda m: gf.NamedSharding(m, P("z")), ValueError, "axes of the mesh"),
        (
            lambda m: gf.shard_map(jnp.sin, mesh=m, **SPREAD)(X[:7]),
            ValueError,
            "dimension 0 of x must be divisible by 2",
        ),
        (
            lambda m: gf.shard_map(lambda x: lax.psum(x, "z"), mesh=m, **SPREAD)(X),
            NameError,
            "'z' must be bound",
        ),
        (
            lambda m: gf.shard_map(jnp.sin, mesh=m, in_specs=P("x"), out_specs=P())(X),
            ValueError,
            "must be equal along it",
        ),
        (
            lambda m: gf.jit(jnp.sin, in_shardings=gf.NamedSharding(m, P("x")))(X[:7]),
            ValueError,
            "divisible by 2",
        ),
        (lambda m: gf.pmap(jnp.sin, devices=devices("cuda_sim"))(X), ValueError, "size 8 for 4 d"),
        (
            lambda m: gf.pmap(lambda x: lax.psum(x, "j"), "i", devices=devices("cuda_sim"))(X[:4]),
            NameError,
            "'j' must be bound",
        ),
    ],
)
def test_bad_input_over_memories(mesh, call, error, message):
    with pytest.raises(error, match=message):
        call(mesh)


@requires_cuda_tools
def test_outputs_of_no_axis_are_compared_over_memories(monkeypatch):
    f = gf.pmap(lambda x: x, out_axes=None, devices=devices("cuda_sim"))
    monkeypatch.setattr(config, "environment", replace(config.environment, check=True))
    with pytest.raises(ValueError, match="out_axes of None needs an output that is equal on all"):
        f(X[:4])
    np.testing.assert_array_equal(f(np.ones((4, 3), np.float32)), np.ones(3))


def test_a_shard_map_over_memories_inside_of_a_pmap_over_them_is_refused(mesh):
    inner = gf.shard_map(jnp.sin, mesh=mesh, **SPREAD)
    with pytest.raises(NotImplementedError, match="must not be inside of another one"):
        gf.pmap(inner, devices=devices("cuda_sim"))(X.reshape(4, 2, 4))


def test_a_shard_map_inside_of_another_one_is_refused(mesh):
    def inner(x):
        return gf.shard_map(jnp.sin, mesh=mesh, in_specs=P("y"), out_specs=P("y"))(x)

    with pytest.raises(ValueError, match="must not be those of an enclosing shard_map"):
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
    assert memories.local_names("x") == (Across("x", PROCESSES, ((0, 1),)), Within("x"))
    assert memories.local_names("y") == ("y",) and memories.names == ("x",)
    held = holdings(gf.NamedSharding(mesh, P(("y", "x"))), 1)
    assert [one.chunks for one in held.values()] == [((0, 1, 4, 5),), ((2, 3, 6, 7),)]


class Noting:
    """A communicator of eight ranks, in groups that are noted; sums are nobody's."""

    rank, size, name = 5, 8, "noting"

    def __init__(self, sizes, groups=None):
        self.sizes, self.groups = sizes, groups

    def split(self, groups):
        return Noting(self.sizes, groups)

    def all_reduce(self, data, op, out=None):
        self.sizes.append((data.size, self.groups))
        return data


@pytest.mark.parametrize("axes", ["xy", "yx", "xz", "zyx", "xyz", "y"])
def test_a_sum_over_several_axes_is_one_call(axes):
    """It was one all-reduce after another, which sends up to half more."""
    grid = np.arange(8).reshape(2, 2, 2)
    gpus = [Device("cuda_sim", k) for k in range(8)]
    memories = memories_of(gf.make_mesh((2, 2, 2), ("x", "y", "z"), devices=gpus))
    names = tuple(memories.across(name) for name in axes)
    calls = []
    with serving(DRIVERS, Noting(calls)):
        psum_p.bind(jnp.ones(3), axes=names, axis_index_groups=None)
    order = ["xyz".index(name) for name in axes]
    others = [k for k in range(3) if k not in order]
    groups = grid.transpose(*others, *order).reshape(-1, 2 ** len(axes))
    ordered = None if axes == "xyz" else tuple(map(tuple, groups.tolist()))
    assert calls == [(3, ordered)]


def test_a_sum_over_axes_of_two_meshes_is_refused():
    with serving(DRIVERS, Noting([])), pytest.raises(CommunicationError, match="of one mesh"):
        names = Across("x", DRIVERS, ((0, 1),)), Across("y", PROCESSES, ((0, 1),))
        psum_p.bind(jnp.ones(3), axes=names, axis_index_groups=None)


def collectives_of(memories, before, after):
    """The collectives by which an array gets another sharding."""
    aval = ShapedArray((8, 4), X.dtype)
    x = Var(aval)
    program = ClosedJaxpr(Jaxpr((), (x,), (x,), ()))
    shardings = [gf.NamedSharding(memories.mesh, spec) for spec in (before, after)]
    split = partition(program, memories, shardings[:1], shardings[1:]).jaxpr.jaxpr
    return [eqn.primitive.name for eqn in split.eqns if eqn.primitive.name.startswith("all_")]


def test_an_axis_moves_to_another_dimension_without_gathering(first_of_two):
    mesh = gf.make_mesh((2, 4), ("x", "y"), devices=first_of_two)
    memories = memories_of(mesh)
    assert memories.between == {"x": 2, "y": 1}
    assert collectives_of(memories, P("x"), P(None, "x")) == ["all_to_all"]
    assert collectives_of(memories, P(None, "x"), P(("y", "x"))) == ["all_to_all"]
    assert collectives_of(memories, P("x"), P()) == ["all_gather"]
    assert collectives_of(memories, P("y"), P("x", "y")) == []
    gpus = [Device("cuda_sim", k, k // 2, k % 2) for k in range(4)]
    memories = memories_of(gf.make_mesh((2, 2), ("x", "y"), devices=gpus))
    assert collectives_of(memories, P(("x", "y")), P("x", "y")) == ["all_to_all"]
    assert collectives_of(memories, P(("x", "y")), P(None, "x")) == ["all_gather", "all_to_all"]
    assert collectives_of(memories, P("x", "y"), P("y", "x")) == ["all_gather", "all_to_all"]


def test_values_of_other_processes_are_not_here(first_of_two):
    mesh = gf.make_mesh((8,), ("x",), devices=first_of_two)
    sharding = gf.NamedSharding(mesh, P("x"))
    part = from_numpy(X[:4], ShapedArray((4, 4), X.dtype), first_of_two[0])
    x = DistributedArray([part], ShapedArray((8, 4), X.dtype), sharding)
    assert not x.is_fully_addressable and "parts in several processes" in repr(x)
    assert [shard.data is None for shard in x.global_shards] == [False] * 4 + [True] * 4
    with pytest.raises(RuntimeError, match=r"values must be in this process; got f32\[8,4\]"):
        np.asarray(x)
    array = gf.make_array_from_process_local_data(sharding, X[:4])
    assert array.shape == (8, 4) and array.arrays[0].shape == (4, 4)
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
    gpus = [Device("cuda_sim", k, k // 2, k % 2) for k in range(3)]
    with pytest.raises(NotImplementedError, match=r"as many memories of each; got \[2, 1\]"):
        memories_of(gf.make_mesh((3,), ("x",), devices=gpus))


def test_several_memories_in_each_of_several_processes(first_of_two):
    gpus = [Device("cuda_sim", k, k // 2, k % 2) for k in range(4)]
    mesh = gf.make_mesh((2, 2), ("x", "y"), devices=[gpus[k] for k in (3, 0, 1, 2)])
    memories = memories_of(mesh)
    # Ranks are in the order of processes, and of the mesh in each.
    assert memories.key == DRIVERS and [d.id for d in memories.team] == [0, 1, 3, 2]
    assert [device.id for device in memories.local] == [0, 1]
    assert memories.across("x").groups == ((0, 3), (2, 1))
    assert memories.across("y").groups == ((2, 0), (1, 3))
    # One memory of each is no reason to use the connections of all processes' first ones.
    seconds = memories_of(gf.make_mesh((2,), ("x",), devices=gpus[1::2]))
    assert seconds.key == DRIVERS and [device.id for device in seconds.team] == [1, 3]


@requires_cuda_tools
def test_drivers_of_one_process_are_ranks_in_the_order_of_the_mesh():
    turned = gf.make_mesh((2,), ("x",), devices=devices("cuda_sim")[1::-1])
    memories = memories_of(turned)
    assert memories.key == DRIVERS and [device.id for device in memories.devices] == [1, 0]
    assert [device.id for device in memories.local] == [0, 1]
    x = gf.device_put(X, gf.NamedSharding(turned, P("x")))
    np.testing.assert_array_equal(x.arrays[0], X[4:])
    index = gf.shard_map(
        lambda x: x * 0 + lax.axis_index("x"), mesh=turned, in_specs=P("x"), out_specs=P("x")
    )(x)
    np.testing.assert_array_equal(index[:, 0], [0] * 4 + [1] * 4)
