"""pmap, meshes and shardings."""

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax
from gpuflow.sharding import Mesh, NamedSharding, PartitionSpec


def mean_gradient(w: Array, x: Array) -> Array:
    gradient: Array = gf.grad(loss)(w, x)
    return lax.pmean(gradient, "devices")


def loss(w: Array, x: Array) -> Array:
    return jnp.square(x @ w).mean()


count = gf.local_device_count()
parallel = gf.pmap(mean_gradient, axis_name="devices", in_axes=(None, 0))
print(parallel(jnp.ones(3), jnp.ones((count, 2, 3))).shape)

mesh: Mesh = gf.make_mesh((count,), ("x",))
sharding = NamedSharding(mesh, PartitionSpec("x"))
x = gf.device_put(jnp.arange(4.0 * count), sharding)
print(x.sharding, x.devices(), [shard.data for shard in x.addressable_shards])


@gf.jit
def doubled(x: Array) -> Array:
    return lax.with_sharding_constraint(2 * x, sharding)


def block(x: Array) -> Array:
    return lax.psum(x, "x")


print(doubled(x).sum())
print(gf.shard_map(block, mesh=mesh, in_specs=gf.P("x"), out_specs=gf.P())(x).shape)
for device in gf.devices():
    print(device.platform, device.id)
