"""Arrays of two processes with two devices each, and back; run by test_host_arrays.py."""

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P
from gpuflow.experimental import multihost_utils as hosts
from gpuflow.sharding import NamedSharding

gf.distributed.initialize()
rank = gf.process_index()
mesh = gf.sharding.Mesh(np.array(gf.devices()).reshape(2, 2), ("host", "dev"))

rows = hosts.host_local_array_to_global_array(np.arange(4) + 10 * rank, mesh, P(("host", "dev")))
assert rows.shape == (8,) and not rows.is_fully_addressable
assert hosts.process_allgather(rows).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
doubled = gf.jit(lambda x: 2 * x)(rows)
back = hosts.global_array_to_host_local_array(doubled, mesh, P(("host", "dev")))
assert back.is_fully_addressable and back.tolist() == [20 * rank + 2 * k for k in range(4)]
assert hosts.host_local_array_to_global_array(rows, mesh, P()) is rows

# Along "dev" alone the arrays of the hosts are equal, and so is the shape.
tree = {"w": jnp.arange(6.0).reshape(2, 3), "step": np.int32(3)}
out = hosts.host_local_array_to_global_array(tree, mesh, {"w": P("dev"), "step": P()})
assert out["w"].shape == (2, 3) and out["step"].shape == ()
assert hosts.process_allgather(out["w"]).tolist() == [[0, 1, 2], [3, 4, 5]]
# Another sharding than the array has.
local = hosts.global_array_to_host_local_array(rows, mesh, P("dev"))
assert local.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
assert isinstance(local.sharding, NamedSharding) and local.sharding.mesh.shape["host"] == 1
try:
    gf.jit(lambda x: hosts.host_local_array_to_global_array(x, mesh, P("host")))(jnp.ones(2))
except NotImplementedError as error:
    assert "must be converted outside of jit" in str(error)
else:
    raise AssertionError
print(f"rank {rank} is done\n", end="", flush=True)
