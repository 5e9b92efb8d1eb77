"""Meshes, shardings as data, arrays that have them, and how jit passes them on."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.experimental import mesh_utils
from gpuflow.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    PositionalSharding,
    SingleDeviceSharding,
)

X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def mesh():
    return gf.make_mesh((4, 2), ("x", "y"))


def spread(mesh, *spec):
    return gf.device_put(X, NamedSharding(mesh, P(*spec)))


def spec_of(x):
    return tuple(x.sharding.spec)


# --- data ----------------------------------------------------------------------------------


def test_meshes(mesh):
    assert mesh.shape == {"x": 4, "y": 2} and mesh.size == 8 and mesh.axis_names == ("x", "y")
    assert mesh.device_ids.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and not mesh.empty
    assert str(mesh) == f"Mesh('x': 4, 'y': 2, axis_types={mesh.axis_types})"
    same = Mesh(mesh_utils.create_device_mesh((4, 2)), ("x", "y"), (AxisType.Explicit,) * 2)
    assert same == mesh and hash(same) == hash(mesh) and same != Mesh(same.devices, ("x", "z"))
    assert Mesh(gf.devices(), "x").shape == {"x": 8}
    assert Mesh([gf.devices()[:4], gf.devices()[4:]], ("a", "b")).devices.shape == (2, 4)
    assert mesh.abstract_mesh == AbstractMesh((4, 2), ("x", "y"), same.axis_types)
    with pytest.raises(ValueError, match="read-only"):
        mesh.devices[0, 0] = None


def test_hybrid_meshes_have_their_slow_parts_outside():
    grid = mesh_utils.create_hybrid_device_mesh((2, 1), (2, 2))
    ids = np.vectorize(lambda device: device.id)(grid)
    assert ids.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_partition_specs():
    spec = P("x", ("y",), None, ("a", "b"))
    assert spec == PartitionSpec("x", "y", None, ("a", "b")) and P() != ()
    assert repr(P("x")) == "P('x',)" and pickle.loads(pickle.dumps(spec)) == spec
    assert gf.tree.leaves({"a": spec, "b": P()}) == [spec, P()]  # a leaf, not a tuple


def test_named_shardings(mesh):
    sharding = NamedSharding(mesh, P("x", "y"))
    assert sharding.shard_shape((8, 4)) == (2, 2)
    indices = sharding.devices_indices_map((8, 4))
    assert indices[gf.devices()[3]] == (slice(2, 4), slice(2, 4))  # JAX
    assert not sharding.is_fully_replicated and sharding.is_fully_addressable
    assert sharding.num_devices == 8 and sharding.device_set == set(gf.devices())
    rows = NamedSharding(mesh, P("x"))
    assert rows.devices_indices_map((8, 4))[gf.devices()[3]] == (slice(2, 4), slice(None))
    assert rows.is_equivalent_to(NamedSharding(mesh, P("x", None)), 2)
    assert not rows.is_equivalent_to(NamedSharding(mesh, P("y")), 2)
    assert NamedSharding(mesh, P()).is_fully_replicated
    both = NamedSharding(mesh, P(("y", "x")))
    assert both.devices_indices_map((8,))[gf.devices()[1]] == (slice(4, 5),)
    assert sharding.memory_kind == "device" and sharding.with_memory_kind("device") == sharding


def test_positional_shardings():
    sharding = PositionalSharding(gf.devices()).reshape(4, 2)
    assert sharding.shape == (4, 2) and sharding.T.shape == (2, 4)
    x = gf.device_put(X, sharding)
    np.testing.assert_array_equal(x.addressable_shards[3].data, X[2:4, 2:])
    x = gf.device_put(X, sharding.replicate(1))
    assert [shard.replica_id for shard in x.addressable_shards] == [0, 1] * 4
    np.testing.assert_array_equal(x.addressable_shards[3].data, X[2:4])
    x = gf.device_put(X, sharding.replicate())
    assert x.is_fully_replicated and x.addressable_shards[7].replica_id == 7
    x = gf.device_put(X[:, 0], sharding.replicate(0, keepdims=False))
    np.testing.assert_array_equal(x.addressable_shards[3].data, X[4:, 0])
    assert sharding == PositionalSharding(gf.devices()).reshape((4, 2)) != sharding.T
    assert len({sharding, PositionalSharding(gf.devices()).reshape(4, 2)}) == 1


def counted(monkeypatch, cls, name, calls):
    """Note each call of a method."""
    method = getattr(cls, name)

    def noting(self, *args):
        calls.append(name)
        return method(self, *args)

    monkeypatch.setattr(cls, name, noting)


@pytest.mark.parametrize("shape", [(1, 1), (4, 2)])
def test_a_warm_call_computes_nothing_of_a_mesh_again(monkeypatch, shape):
    """At 512 devices, to hash the devices of 873 leaves took two seconds at each call. Equal
    meshes and shardings are objects of their own here, as users make them."""

    def placed(x):
        mesh = gf.make_mesh(shape, ("x", "y"), devices=gf.devices()[: shape[0] * shape[1]])
        return gf.device_put(x, NamedSharding(mesh, P("x", "y")))

    f = gf.jit(lambda xs: {name: x + 1 for name, x in xs.items()})
    arrays = {name: placed(X) for name in "abc"}
    f(arrays)
    sharding, other = arrays["a"].sharding, arrays["b"].sharding
    assert len(sharding.device_set) == shape[0] * shape[1]
    calls = []
    counted(monkeypatch, type(gf.devices()[0]), "__hash__", calls)
    counted(monkeypatch, NamedSharding, "_counts", calls)
    counted(monkeypatch, NamedSharding, "_chunks", calls)
    np.testing.assert_array_equal(f(arrays)["c"], X + 1)
    assert sharding.device_set is sharding.device_set and hash(sharding) == hash(other)
    assert sharding.shard_shape(X.shape) == (8 // shape[0], 4 // shape[1])
    assert sharding.is_equivalent_to(other, 2) and calls == []


def test_pickled_shardings_hold_no_hashes(mesh):
    """Hashes of text differ between processes."""
    sharding = NamedSharding(mesh, P("x"))
    hash(sharding)
    for value in (mesh, sharding):
        data = pickle.dumps(value)
        assert b"_hash" not in data and pickle.loads(data) == value
        assert hash(pickle.loads(data)) == hash(value) and copy.deepcopy(value) == value


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m: Mesh(gf.devices(), ("x", "y")), ValueError, "name each axis"),
        (lambda m: Mesh([gf.devices()[0]] * 2, "x"), ValueError, "must differ"),
        (lambda m: Mesh(m.devices, ("x", "x")), ValueError, "must differ"),
        (lambda m: gf.make_mesh((3, 3), ("x", "y")), ValueError, "as many positions"),
        (lambda m: NamedSharding(m, P("z")), ValueError, "axes of the mesh"),
        (lambda m: NamedSharding(m, P("x", "x")), ValueError, "each once"),
        (lambda m: NamedSharding(m, P(), memory_kind="host"), ValueError, "memory kind"),
        (lambda m: NamedSharding(m, P("x")).shard_shape((7,)), ValueError, "divisible by 4"),
        (lambda m: NamedSharding(m, P(None, "x")).shard_shape((8,)), ValueError, "at most one"),
        (lambda m: gf.device_put(X[:7], NamedSharding(m, P("x"))), ValueError, "divisible by 4"),
        (lambda m: gf.device_put(X, P("x")), ValueError, "needs a mesh"),
        (lambda m: gf.device_put(X, "gpu"), ValueError, "must be a Device"),
        (lambda m: gf.device_put(X, PositionalSharding(gf.devices())), ValueError, "its rank"),
        (lambda m: PositionalSharding(gf.devices()).reshape(3, 3), ValueError, "have 8 cells"),
        (lambda m: gf.jit(jnp.sin, out_shardings=3)(X), TypeError, "must hold Shardings"),
        (
            lambda m: gf.jit(jnp.sin, in_shardings=NamedSharding(m, P("x")))(X[:3]),
            ValueError,
            "divisible by 4",
        ),
    ],
)
def test_errors(mesh, make, error, message):
    with pytest.raises(error, match=message):
        make(mesh)


# --- arrays --------------------------------------------------------------------------------


def test_a_plain_array_is_one_shard():
    x = jnp.ones((2, 3))
    assert x.sharding == SingleDeviceSharding(gf.devices()[0])
    (shard,) = x.addressable_shards
    assert shard.index == (slice(None), slice(None)) and shard.data.shape == (2, 3)
    assert x.is_fully_addressable and x.is_fully_replicated and len(x.global_shards) == 1


def test_a_sharded_array_is_an_array(mesh):
    x = spread(mesh, "x", "y")
    assert isinstance(x, gf.Array) and x.shape == (8, 4) and x.ndim == 2 and x.nbytes == 128
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(x.addressable_data(3), X[2:4, 2:])
    assert x.devices() == set(gf.devices()) and x.tolist() == X.tolist()
    assert x.is_fully_addressable and not x.is_fully_replicated
    assert spread(mesh).is_fully_replicated
    assert spec_of(copy.deepcopy(x)) == ("x", "y")
    assert type(pickle.loads(pickle.dumps(x))).__name__ == "Array"
    x.delete()
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1
    with pytest.raises(RuntimeError, match="deleted"):
        gf.jit(jnp.sin)(x)


def test_arrays_from_parts(mesh):
    sharding = NamedSharding(mesh, P("x"))
    asked = []

    def part(index):
        asked.append(index)
        return X[index]

    array = gf.make_array_from_callback((8, 4), sharding, part)
    np.testing.assert_array_equal(array, X)
    assert len(asked) == 4 and spec_of(array) == ("x",)
    again = gf.make_array_from_single_device_arrays(
        (8, 4), sharding, [shard.data for shard in array.addressable_shards]
    )
    np.testing.assert_array_equal(again, X)
    np.testing.assert_array_equal(gf.make_array_from_process_local_data(sharding, X), X)
    with pytest.raises(ValueError, match="parts of shape"):
        gf.make_array_from_callback((8, 4), sharding, lambda index: X)
    with pytest.raises(ValueError, match="a part for each"):
        gf.make_array_from_single_device_arrays((8, 4), sharding, [X])


def test_stacks_for_pmap():
    tree = gf.device_put_replicated({"a": np.arange(3)}, gf.devices())
    assert tree["a"].shape == (8, 3) and len(tree["a"].addressable_shards) == 8
    stacked = gf.device_put_sharded([np.float32(k) for k in range(4)], gf.devices()[:4])
    np.testing.assert_array_equal(stacked, np.arange(4))
    with pytest.raises(ValueError, match="a shard for each"):
        gf.device_put_sharded([1], gf.devices())


# --- what results have ---------------------------------------------------------------------

CASES = {
    "elementwise": (lambda a: jnp.sin(a) * 2 + 1, ("x", "y")),
    "sum over rows": (lambda a: a.sum(0), ("y",)),
    "sum of all": (lambda a: a.sum(), ()),
    "product": (lambda a: a @ a.T, ("x",)),
    "transpose": (lambda a: a.T, ("y", "x")),
    "new dimension": (lambda a: a[None], (None, "x", "y")),
    "one row": (lambda a: a[0], ("y",)),
    "rows by number": (lambda a: a[np.array([5, 1])], (None, "y")),
    "columns by number": (lambda a: a[:, np.array([3, 0, 1])], ("x",)),
    "sort": (lambda a: jnp.sort(a, axis=1), ("x", "y")),
    "running sum": (lambda a: jnp.cumsum(a, axis=0), ("x", "y")),
    "concatenate": (lambda a: jnp.concatenate([a, 2 * a], axis=1), ("x", "y")),
    "reverse": (lambda a: a[::-1], ("x", "y")),
    "where": (lambda a: jnp.where(a > 3, a, 0), ("x", "y")),
    "reshape": (lambda a: a.reshape(32), (("x", "y"),)),
    "softmax": (lambda a: gf.nn.softmax(a), ("x", "y")),
    "update": (lambda a: a.at[0].set(1), ("x", "y")),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jitted", [False, True])
def test_what_follows(mesh, name, jitted):
    function, expected = CASES[name]
    out = (gf.jit(function) if jitted else function)(spread(mesh, "x", "y"))
    assert spec_of(out) == expected
    np.testing.assert_allclose(out, function(jnp.asarray(X)), rtol=1e-6)


LOOPS = {
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1], (None, "y")),
    "while": (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x - 20), ("x", "y")),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda k, c: c * 2, x), ("x", "y")),
    "map": (lambda x: lax.map(lambda row: row + 1, x), (None, "y")),
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x, x), ("x", "y")),
    "checkpoint": (gf.checkpoint(jnp.sin), ("x", "y")),
    "jitted gradient": (gf.grad(gf.jit(lambda x: jnp.sum(x**2))), ("x", "y")),
    "jitted tangents": (lambda x: gf.jvp(gf.jit(jnp.sin), (x,), (x,))[1], ("x", "y")),
    "jitted rows": (gf.vmap(gf.jit(lambda row: row * 2)), ("x", "y")),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_programs_outside_of_jit_keep_shardings(mesh, name, jitted):
    """Loops, branches and derivatives of jitted functions gave plain arrays outside of jit."""
    function, expected = LOOPS[name]
    out = (gf.jit(function) if jitted else function)(spread(mesh, "x", "y"))
    assert spec_of(out) == expected
    np.testing.assert_allclose(out, function(jnp.asarray(X)), rtol=1e-6)


def test_loops_branches_and_derivatives(mesh):
    x = spread(mesh, None, "y")
    carry, ys = gf.jit(lambda x: lax.scan(lambda c, r: (c + r, r * 2), x[0] * 0, x))(x)
    assert spec_of(carry) == ("y",) or spec_of(carry) == ()
    assert spec_of(ys) == (None, "y")
    out = gf.jit(lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x, x))(x)
    assert spec_of(out) == (None, "y")
    w = gf.device_put(np.ones((4, 6), np.float32), NamedSharding(mesh, P(None, "y")))
    grad = gf.jit(gf.grad(lambda w, x: ((x @ w) ** 2).mean()))(w, spread(mesh, "x"))
    assert spec_of(grad) == (None, "y")


def test_what_was_asked_for(mesh):
    x = spread(mesh, "x", "y")
    wanted = NamedSharding(mesh, P("y"))
    assert gf.jit(lambda a: a + 1, out_shardings=wanted)(x).sharding == wanted
    plain = gf.jit(lambda a: a + 1, in_shardings=wanted)(X)
    assert plain.sharding == wanted
    pair = gf.jit(lambda a: (a, a.sum()), out_shardings=(wanted, None))(jnp.asarray(X))
    assert pair[0].sharding == wanted and pair[1].sharding == SingleDeviceSharding(gf.devices()[0])
    constrained = gf.jit(lambda a: lax.with_sharding_constraint(a * 1, wanted) + 1)(x)
    assert constrained.sharding == wanted
    assert spec_of(gf.reshard(x, wanted)) == ("y",)
    with mesh:
        assert spec_of(gf.jit(lambda a: lax.with_sharding_constraint(a + 1, P("y")))(x)) == ("y",)
        assert spec_of(gf.device_put(X, P("x"))) == ("x",)
        placed = gf.jit(lambda a: a, out_shardings=P(None, "x"))(jnp.asarray(X))
        assert spec_of(placed) == (None, "x")
    grad = gf.grad(lambda a: (lax.with_sharding_constraint(a, wanted) ** 2).sum())(x)
    np.testing.assert_array_equal(grad, 2 * X)
    np.testing.assert_array_equal(
        gf.vmap(lambda r: lax.with_sharding_constraint(r, NamedSharding(mesh, P("x"))))(X), X
    )


def test_the_mesh_in_force(mesh):
    assert gf.get_mesh().empty and gf.get_abstract_mesh().empty
    with gf.set_mesh(mesh):
        assert gf.get_mesh() == mesh and gf.get_abstract_mesh().shape == mesh.shape
    assert gf.get_mesh().empty
    with mesh, Mesh(mesh.devices, ("a", "b")) as inner:
        assert gf.get_mesh() == inner
    assert gf.get_mesh().empty


def test_training_with_shardings_equals_plain_training(mesh):
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(12, 16)) / 4, rng.normal(size=(16, 6)) / 4]
    inputs, labels = rng.normal(size=(32, 12)), rng.normal(size=(32, 6))

    @gf.jit
    def step(weights, inputs, labels):
        def loss(weights):
            return ((jnp.tanh(inputs @ weights[0]) @ weights[1] - labels) ** 2).mean()

        value, grads = gf.value_and_grad(loss)(weights)
        return value, [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    specs = [P(None, "y"), P("y")]
    with gf.enable_x64():
        parts = [
            gf.device_put(w, NamedSharding(mesh, spec))
            for w, spec in zip(weights, specs, strict=True)
        ]
        data = gf.device_put((inputs, labels), NamedSharding(mesh, P("x")))
        for _ in range(5):
            first, weights = step(weights, inputs, labels)
            second, parts = step(parts, *data)
            assert first == second
            assert [w.sharding.spec for w in parts] == specs


# --- pictures ------------------------------------------------------------------------------


def test_pictures(mesh, capsys):
    gf.debug.visualize_array_sharding(spread(mesh, "x", "y"))
    lines = capsys.readouterr().out.splitlines()
    rows = [line.replace("│", " ").split() for line in lines if "CPU" in line]
    assert rows == [["CPU", f"{k}", "CPU", f"{k + 1}"] for k in (0, 2, 4, 6)]
    assert lines[0].startswith("┌") and lines[0].count("┬") == 1 and lines[-1].endswith("┘")
    gf.debug.visualize_array_sharding(spread(mesh, "x")[:, 0] * 1)
    assert "CPU 0,1" in capsys.readouterr().out
    gf.debug.visualize_array_sharding(jnp.ones(3))
    assert "CPU 0" in capsys.readouterr().out
    with pytest.raises(ValueError, match="one or two dimensions"):
        gf.debug.visualize_array_sharding(jnp.ones((2, 2, 2)))
    with pytest.raises(TypeError, match="outside of transformations"):
        gf.jit(gf.debug.visualize_array_sharding)(jnp.ones(3))


def test_arrays_are_put_into_the_memory_of_devices_only():
    x = gf.device_put(np.arange(3), gf.devices("cpu")[0])
    assert gf.device_put(x, gf.memory.Space.Device).device == x.device
    tree = gf.device_put((x, 2.0), (gf.memory.Space.Device, None))
    assert tree[0].tolist() == [0, 1, 2] and tree[1].tolist() == 2.0
    assert gf.jit(lambda x: gf.device_put(2 * x, gf.memory.Space.Device))(x).tolist() == [0, 2, 4]
    assert gf.typeof(x).memory_space is gf.memory.Space.Device
    for space in (gf.memory.Space.Host, gf.memory.Space.Any):
        message = rf"\[device_put\] the memory must be .*Device.*; got {space}. Fix: jax.device_get"
        with pytest.raises(ValueError, match=message):
            gf.device_put(x, space)
