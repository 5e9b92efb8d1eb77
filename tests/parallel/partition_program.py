"""The programs of perf/mesh_programs.py over real processes, compared with one device.

``partition_program.py rank size port``; each process has devices enough for 8 in all.
"""

import sys
import warnings
from pathlib import Path

import numpy as np

import gpuflow as gf
from gpuflow import NamedSharding, P, lax
from gpuflow.experimental import multihost_utils

sys.path.append(str(Path(__file__).resolve().parents[2] / "perf"))

from mesh_programs import Programs

rank, size, port = (int(argument) for argument in sys.argv[1:4])
gf.distributed.initialize(f"127.0.0.1:{port}", size, rank)
over = []


def constrained(x, spec):
    return lax.with_sharding_constraint(x, NamedSharding(over[0], spec))


def compare(one, whole):
    mesh = over[0]
    leaves, tree = gf.tree.flatten(one.args)
    specs = gf.tree.leaves(one.specs, is_leaf=lambda x: isinstance(x, P))
    pairs = zip(leaves, specs, strict=True)
    args = gf.tree.unflatten(tree, [gf.device_put(x, NamedSharding(mesh, s)) for x, s in pairs])
    options = {}
    if one.outs is not None:
        placed = gf.tree.map(
            lambda s: NamedSharding(mesh, s), one.outs, is_leaf=lambda x: isinstance(x, P)
        )
        options = {"out_shardings": placed}
    outs = gf.tree.leaves(gf.jit(one.function, **options)(*args))
    expected = gf.tree.leaves(gf.jit(whole.function)(*one.args))
    for out, want in zip(outs, expected, strict=True):
        got = np.asarray(multihost_utils.process_allgather(out, tiled=True))
        want = np.asarray(want)
        assert got.dtype == want.dtype, one.name
        scale = float(np.nanmax(np.abs(want.astype(np.float64)), initial=1e-30))
        # Sums of 4 layers whose weights are large have errors of 3e-6 on one device, too.
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * scale, err_msg=one.name)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    partitioned = Programs(gf, constrained, small=True).all()
    plain = Programs(gf, lambda x, spec: x, small=True).all()
    number = 0
    for one, whole in zip(partitioned, plain, strict=True):
        over[:] = [gf.make_mesh(one.shape, one.names)]
        compare(one, whole)
        number += 1
print(f"rank {rank} of {size}: {number} programs agree")
