"""Programs over 8 virtual devices with separate memories, compared with one device and with plans.

Each collective of the loopback communicator is counted: calls and bytes of all ranks must be those
that ``explain`` lists. Results must be those of one device.
"""

import sys
import threading
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "perf"))
warnings.simplefilter("ignore")

from mesh_programs import Programs  # noqa: E402

import gpuflow as gf  # noqa: E402
from gpuflow import P, lax  # noqa: E402
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator  # noqa: E402
from gpuflow.sharding import AxisType, NamedSharding  # noqa: E402

RINGS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
# Plans count one iteration of a loop of unknown length, and all branches.
UNKNOWN = ("while_loop with a split carry", "branches")
calls: Counter[str] = Counter()
sent = 0.0
lock = threading.Lock()


def counted(method):
    original = getattr(LoopbackCommunicator, method)

    def call(self, data, *rest, **options):
        global sent
        if method == "permute":
            factor = sum(source == self.rank != target for source, target in rest[0])
        else:
            factor = RINGS[method](self.size)
        with lock:
            calls[method] += 1
            sent += factor * np.asarray(data).nbytes
        return original(self, data, *rest, **options)

    setattr(LoopbackCommunicator, method, call)


for name in (*RINGS, "permute"):
    counted(name)

over = []


def constrained(x, spec):
    return lax.with_sharding_constraint(x, NamedSharding(over[0], spec))


def is_spec(leaf):
    return isinstance(leaf, P)


def check(one, whole):
    global sent
    mesh = over[0] = gf.make_mesh(
        one.shape, one.names, axis_types=(AxisType.Auto,) * len(one.shape)
    )
    leaves, structure = gf.tree.flatten(one.args)
    pairs = zip(leaves, gf.tree.leaves(one.specs, is_leaf=is_spec), strict=True)
    placed = [gf.device_put(x, NamedSharding(mesh, spec)) for x, spec in pairs]
    args, options = gf.tree.unflatten(structure, placed), {}
    if one.outs is not None:
        outs = gf.tree.map(lambda spec: NamedSharding(mesh, spec), one.outs, is_leaf=is_spec)
        options = {"out_shardings": outs}
    function = gf.jit(one.function, **options)
    calls.clear()
    sent = 0.0
    outs = function(*args)
    made, total = sum(calls.values()), sent
    found = gf.explain(function, *args)
    if one.name not in UNKNOWN:
        planned = found.collectives
        count = sum(c.times for c in planned) * mesh.size
        assert made == count, (one.name, dict(calls), count)
        expected = sum(c.times * sum(c.communication.sent_by_rank().values()) for c in planned)
        assert abs(total - expected) <= count, (one.name, total, expected)  # bytes are rounded down
    expected = gf.tree.leaves(gf.jit(whole.function)(*one.args))
    for out, want in zip(gf.tree.leaves(outs), expected, strict=True):
        got, want = np.asarray(out), np.asarray(want)
        assert got.dtype == want.dtype, one.name
        scale = float(np.nanmax(np.abs(want.astype(np.float64)), initial=1e-30))
        # As in tests/parallel/partition_program.py.
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * scale, err_msg=one.name)
    print(one.name, made, round(total))


partitioned = Programs(gf, constrained, small=True).all()
plain = Programs(gf, lambda x, spec: x, small=True).all()
over.append(None)
for one, whole in zip(partitioned, plain, strict=True):
    check(one, whole)
print("all agree")
