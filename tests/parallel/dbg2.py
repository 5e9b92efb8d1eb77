import sys, numpy as np, gpuflow as gf, gpuflow.numpy as jnp, warnings
from gpuflow import NamedSharding, P, lax
from gpuflow.experimental import multihost_utils
rank, size, port = map(int, sys.argv[1:4])
gf.distributed.initialize(f"127.0.0.1:{port}", size, rank)
mesh=gf.make_mesh((2,2),("x","y"))
x=np.zeros((4,0),np.float32)
y=np.arange(8.,dtype=np.float32).reshape(4,2)
for z in (y,x,y,x,y):
  for s in (P("y"),P("x","y"),P(None,"x")):
    got=gf.device_put(z,NamedSharding(mesh,s))
    got=np.asarray(multihost_utils.process_allgather(got, tiled=True))
    print(got.shape, np.array_equal(got,z))
