"""``out_sharding=``: where results are wanted."""

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax, random
from gpuflow.sharding import NamedSharding, SingleDeviceSharding

X = np.arange(64, dtype=np.float32).reshape(8, 8)
KEY = random.key(0)

CALLS = {
    "zeros": lambda **k: jnp.zeros((8, 8), **k),
    "ones": lambda **k: jnp.ones((8, 8), **k),
    "full": lambda **k: jnp.full((8, 8), 3.0, **k),
    "empty": lambda **k: jnp.empty((8, 8), **k),
    "zeros_like": lambda **k: jnp.zeros_like(X, **k),
    "ones_like": lambda **k: jnp.ones_like(X, **k),
    "full_like": lambda **k: jnp.full_like(X, 2, **k),
    "array": lambda **k: jnp.array(X, **k),
    "asarray": lambda **k: jnp.asarray(X, **k),
    "arange": lambda **k: jnp.arange(8, **k),
    "reshape": lambda **k: jnp.reshape(X, (8, 2, 4), **k),
    "method reshape": lambda **k: jnp.asarray(X).reshape(8, 2, 4, **k),
    "ravel": lambda **k: jnp.ravel(X, **k),
    "broadcast_to": lambda **k: jnp.broadcast_to(X[0], (8, 8), **k),
    "repeat": lambda **k: jnp.repeat(X, 2, 0, **k),
    "dot": lambda **k: jnp.dot(X, X, **k),
    "matmul": lambda **k: jnp.matmul(X, X, **k),
    "tensordot": lambda **k: jnp.tensordot(X, X, 1, **k),
    "einsum": lambda **k: jnp.einsum("ij,jk", X, X, **k),
    "bincount": lambda **k: jnp.bincount(np.arange(8), **k),
    "lax.reshape": lambda **k: lax.reshape(X, (64,), **k),
    "lax.broadcast": lambda **k: lax.broadcast(X, (8,), **k),
    "lax.broadcasted_iota": lambda **k: lax.broadcasted_iota(np.int32, (8, 2), 1, **k),
    "lax.dot_general": lambda **k: lax.dot_general(X, X, (((1,), (0,)), ((), ())), **k),
    "lax.reduce_sum": lambda **k: lax.reduce_sum(X, (0,), **k),
    "bits": lambda **k: random.bits(KEY, (8,), **k),
    "normal": lambda **k: random.normal(KEY, (8, 2), **k),
    "uniform": lambda **k: random.uniform(KEY, (8, 2), **k),
    "randint": lambda **k: random.randint(KEY, (8,), 0, 9, **k),
    "permutation": lambda **k: random.permutation(KEY, 8, **k),
    "gamma": lambda **k: random.gamma(KEY, 2.0, (8,), **k),
    "categorical": lambda **k: random.categorical(KEY, X, **k),
    "at set": lambda **k: jnp.asarray(X).at[1].set(2.0, **k),
    "at add": lambda **k: jnp.asarray(X).at[jnp.array([1, 1])].add(2.0, **k),
    "at divide": lambda **k: jnp.arange(8).at[1].divide(2, **k),
    "at get": lambda **k: jnp.asarray(X).at[jnp.arange(4)].get(**k),
    "at get fill": lambda **k: jnp.asarray(X).at[jnp.arange(8)].get(mode="fill", **k),
    "at apply": lambda **k: jnp.asarray(X).at[1].apply(jnp.sin, **k),
    "segment_sum": lambda **k: gf.ops.segment_sum(X[0], np.arange(8), 8, **k),
    "initializers": lambda **k: gf.nn.initializers.he_normal()(KEY, (8, 8), **k),
    "poisson": lambda **k: random.poisson(KEY, 2.0, (8,), **k),
}


@pytest.fixture
def mesh():
    return gf.make_mesh((4, 2), ("x", "y"))


@pytest.mark.parametrize("name", CALLS)
def test_results_have_it_and_the_same_values(name, mesh):
    call = CALLS[name]
    sharding = NamedSharding(mesh, P("x"))
    out, plain = call(out_sharding=sharding), call()
    assert out.sharding == sharding and out.dtype == plain.dtype
    np.testing.assert_array_equal(np.asarray(out), np.asarray(plain))


def test_a_spec_means_the_mesh_in_force(mesh):
    with gf.set_mesh(mesh):
        out = jnp.ones((8, 4), out_sharding=P("x", "y"))
    assert out.sharding == NamedSharding(mesh, P("x", "y"))


def test_under_transformations(mesh):
    sharding = NamedSharding(mesh, P("x"))

    def f(x):
        return (jnp.reshape(x, (8, 8), out_sharding=sharding) ** 2).sum()

    want = 2 * X.ravel()
    np.testing.assert_allclose(gf.grad(f)(X.ravel()), want)
    np.testing.assert_allclose(gf.jit(gf.grad(f))(X.ravel()), want)
    np.testing.assert_allclose(gf.vmap(f)(X.reshape(1, 64)), [(X**2).sum()], rtol=1e-6)


def test_pairs_of_results(mesh):
    sharding = NamedSharding(mesh, P("x"))
    _, bits = lax.rng_bit_generator(np.zeros(4, np.uint32), (8,), out_sharding=sharding)
    assert bits.sharding == sharding


def test_full_of_lax_and_devices_that_are_shardings(mesh):
    sharding = NamedSharding(mesh, P("x"))
    assert lax.full((8,), 1.0, sharding=sharding).sharding == sharding
    assert lax.full_like(X, 1.0, sharding=sharding).sharding == sharding
    assert jnp.zeros(8, device=sharding).sharding == sharding
    one = gf.devices()[3]
    assert jnp.zeros(8, device=SingleDeviceSharding(one)).device == one


def test_errors(mesh):
    sharding = NamedSharding(mesh, P("x"))
    with pytest.raises(ValueError, match=r"\[zeros\] a PartitionSpec needs a mesh.*set_mesh"):
        jnp.zeros(8, out_sharding=P("x"))
    with pytest.raises(TypeError, match=r"\[normal\] out_sharding must be a N.*got 'x'"):
        random.normal(KEY, (8,), out_sharding="x")
    with pytest.raises(TypeError, match=r"out_sharding must be a NamedSharding.*device="):
        jnp.ravel(X, out_sharding=gf.devices()[0])
    with pytest.raises(ValueError, match="dimension 0 must be divisible by 4"):
        jnp.zeros(7, out_sharding=sharding)
    with pytest.raises(ValueError, match=r"\[ones\] only one of device and out_sharding"):
        jnp.ones(8, device=gf.devices()[0], out_sharding=sharding)
    with pytest.raises(ValueError, match=r"\[ones\] device must be a Device or None"):
        jnp.ones(8, device="x")
    with pytest.raises(ValueError, match=r"\[full\] the device must be"):
        lax.full((8,), 1.0, sharding="x")


def test_the_sharding_of_one_device():
    device = gf.devices()[2]
    sharding = gf.sharding.make_single_device_sharding(device)
    assert sharding == SingleDeviceSharding(device)
    assert gf.device_put(X, sharding).device == device


@pytest.mark.parametrize(
    "update",
    [
        lambda x, **k: x.at[gf.ds(1, 3)].set(7.0, **k),
        lambda x, **k: x.at[True, 1:3].set(7.0, **k),
        lambda x, **k: x.at[1:3].add(7.0, **k),
    ],
)
def test_updates_give_the_whole_array_its_sharding(eight_devices, update):
    """Not the window that they write."""
    del eight_devices
    sharding = NamedSharding(gf.make_mesh((8,), ("x",)), P("x"))
    out = update(jnp.arange(8.0), out_sharding=sharding)
    assert out.sharding.is_equivalent_to(sharding, 1)
    np.testing.assert_array_equal(out, update(jnp.arange(8.0)))
