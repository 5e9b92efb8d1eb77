"""Virtual devices that share a memory: ``explain`` shows the program of devices that do not."""

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.explaining.mesh_explanation import MeshExplanation
from gpuflow.sharding import NamedSharding

mesh = gf.make_mesh((4, 2), ("data", "model"))


def f(w, x):
    x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None)))
    mapped = gf.shard_map(
        lambda a: lax.psum(a, "model"),
        mesh=mesh,
        in_specs=P("data", "model"),
        out_specs=P("data", None),
    )
    return mapped(x @ w).sum()


w = gf.device_put(jnp.ones((64, 64)), NamedSharding(mesh, P(None, "model")))
x = gf.device_put(jnp.ones((32, 64)), NamedSharding(mesh, P("data")))
found = gf.explain(f, w, x)
assert isinstance(found, MeshExplanation)
assert [(c.operation, c.axes, c.cause) for c in found.collectives] == [
    ("all_reduce", ("model",), ""),
    ("all_reduce", ("data",), "sum of terms of reduce_sum"),
]
# Nothing of it reaches the programs that run.
assert float(gf.jit(f)(w, x)) == 64.0 * 64 * 32
assert type(gf.explain(f, w, x, measure=True)).__name__ == "Explanation"
compiled = gf.jit(lambda w, x: x @ w).lower(w, x).compile()
assert compiled(w, x).sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
print("ok")
