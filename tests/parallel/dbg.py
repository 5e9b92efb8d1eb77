import sys, numpy as np, gpuflow as gf, gpuflow.numpy as jnp, warnings
from gpuflow import NamedSharding, P, lax
from gpuflow.experimental import multihost_utils
rank, size, port = map(int, sys.argv[1:4])
gf.distributed.initialize(f"127.0.0.1:{port}", size, rank)
mesh=gf.make_mesh((2,2),("x","y"))
def f(x):
    a=lax.slice_in_dim(x,12,None,axis=1); b=lax.slice_in_dim(x,6,None,axis=1)
    return a,b,jnp.concatenate([x,b],1),jnp.concatenate([x,a,b],1)
x=np.arange(48.).reshape(4,12).astype(np.float32)+1
for got,want in zip(gf.jit(f)(gf.device_put(x,NamedSharding(mesh,P("y","x")))), f(x)):
    got=np.asarray(multihost_utils.process_allgather(got, tiled=True))
    print(got.shape,np.array_equal(got,want)); 
    if not np.array_equal(got,want): print(got[0],want[0])
