"""Programs over a mesh of four devices, wherever these are; run by test_memories.py.

``memories_program.py rank size port file``: the results are stored in the file, and must be the
same for one process with four devices, two with two, four with one, and several simulated GPUs.
A size of 0 stands for what a launcher says.
"""

import sys
import warnings

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.experimental import multihost_utils
from gpuflow.ops.contractions.attention import attention_gradients_p, attention_p
from gpuflow.parallel.partition import programs

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)


def collectives(mesh):
    """Every collective over each axis, over both, and over an axis of a part of the array."""

    def f(block):
        whole = {
            "sum": lax.psum(block, "x"),
            "sum of both": lax.psum(block.sum(), ("x", "y")),
            "max": lax.pmax(block.max(), ("y", "x")),
        }
        parts = {
            "mean": lax.pmean(block, "y"),
            "index": block * 0 + lax.axis_index(("x", "y")),
            "gathered": lax.all_gather(block, "y", axis=1, tiled=True)[:, :2],
            "turned": lax.ppermute(block, "x", [(0, 1), (1, 0)]),
            "swapped": lax.all_to_all(block, "y", 0, 0, tiled=True),
            "scattered": jnp.tile(lax.psum_scatter(block, "x", tiled=True), (2, 1)),
        }
        return whole, parts

    whole = {"sum": P(None, "y"), "sum of both": P(), "max": P()}
    f = gf.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=(whole, P("x", "y")))
    return {"eager": f(X), "jitted": gf.jit(f)(X)}


def gradients(mesh):
    """Gradients inside, outside, and through jit, of values that vary and values that do not."""

    def local(w, x):
        def loss(w, x):
            return lax.pmean(jnp.sum(jnp.tanh(x @ w) ** 2), ("x", "y"))

        return gf.grad(loss, (0, 1))(w, x)

    rows = (P(), P(("x", "y")))
    inside = gf.shard_map(local, mesh=mesh, in_specs=rows, out_specs=rows)

    def loss(w, x):
        def f(w, x):
            hidden = jnp.tanh(x @ w)
            return lax.psum(jnp.sum(hidden**2), ("x", "y")), lax.pmean(hidden, "x")

        total, hidden = gf.shard_map(f, mesh=mesh, in_specs=rows, out_specs=(P(), P("y")))(w, x)
        return total + jnp.sum(jnp.sin(hidden))

    def scaled(w):
        """What a shard_map closes over has a gradient as well."""
        f = gf.shard_map(lambda x: x * w[0], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        return jnp.sum(f(X) ** 2)

    outside = gf.grad(loss, (0, 1))
    tangents = (np.ones_like(W), np.ones_like(X))
    return {
        "inside": inside(W, X),
        "jitted inside": gf.jit(inside)(W, X),
        "outside": outside(W, X),
        "jitted outside": gf.jit(outside)(W, X),
        "forward": gf.jvp(loss, (W, X), tangents),
        "closed over": gf.grad(scaled)(W),
        "mapped": gf.vmap(lambda s: inside(W, X * s)[0])(np.arange(3, dtype=np.float32)),
        "second": gf.jvp(lambda w: outside(w, X)[0], (W,), (np.ones_like(W),)),
    }


def arrays(mesh):
    """Arrays with parts, and operations on them."""
    x = gf.device_put(X, gf.NamedSharding(mesh, P("x", "y")))
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])
        assert shard.device.is_local
    assert len(x.addressable_shards) == gf.local_device_count()
    assert len(x.global_shards) == 4
    y = jnp.sin(x) + x.sum(0)
    assert y.sharding.spec == P("x", "y"), y.sharding
    again = gf.device_put(y, gf.NamedSharding(mesh, P(None, ("y", "x"))))
    per_device = gf.make_array_from_callback(
        (8, 4), gf.NamedSharding(mesh, P(("y", "x"))), lambda index: X[index]
    )
    for spec in [P(None, "x"), P(("y", "x")), P(None, ("y", "x")), P("x", "y"), P("y", "x")]:
        x = gf.device_put(x, gf.NamedSharding(mesh, spec))
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(shard.data, X[shard.index], err_msg=str(spec))
    product = x @ per_device.T
    return {"sum": y, "again": again, "made": per_device, "max": x.max(1), "product": product}


def network(mesh):
    """A step of an MLP whose batch is split over x and whose hidden layer over y: jit partitions it
    without any warning."""
    rng = np.random.default_rng(2)
    weights = {
        "inner": rng.standard_normal((4, 6)).astype(np.float32),
        "bias": np.zeros(6, np.float32),
        "outer": rng.standard_normal((6, 2)).astype(np.float32),
    }
    specs = {"inner": P(None, "y"), "bias": P("y"), "outer": P("y", None)}

    def put(arrays, specs):
        return gf.tree.map(
            lambda x, spec: gf.device_put(x, gf.NamedSharding(mesh, spec)), arrays, specs
        )

    weights = put(weights, specs)
    images, labels = put((X, X[:, :2]), (P("x"), P("x")))

    def loss(weights, images, labels):
        hidden = jnp.tanh(images @ weights["inner"] + weights["bias"])
        scores = gf.nn.log_softmax(hidden @ weights["outer"])
        return -jnp.mean(jnp.sum(scores * labels, axis=1))

    @gf.jit
    def step(weights, images, labels):
        value, slopes = gf.value_and_grad(loss)(weights, images, labels)
        return gf.tree.map(lambda w, s: w - 0.1 * s, weights, slopes), value

    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            weights, value = step(weights, images, labels)
            losses.append(float(value))
    for name, spec in specs.items():
        assert weights[name].sharding.is_equivalent_to(
            gf.NamedSharding(mesh, spec), weights[name].ndim
        ), (name, weights[name].sharding)
    return {"losses": np.array(losses), "weights": weights}


def chosen(mesh):
    """Operations that choose elements along dimensions that are not split: no warning either."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((4, 6, 8)).astype(np.float32)
    kernel = rng.standard_normal((3, 8, 4)).astype(np.float32)
    words = rng.integers(0, 6, (4, 3)).astype(np.int32)

    def pooled(x):
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")

    def convolved(x, kernel):
        numbers = ("NHC", "HIO", "NHC")
        return lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=numbers)

    def attended(x, at):
        lengths = jnp.full(4, 3, jnp.int32) + at
        kind = {
            "scale": 0.3,
            "causal": True,
            "window": None,
            "precision": None,
            "present": (False,) * 3 + (True,),
        }
        out, sums = attention_p.bind(x, x + 1, x * 2, lengths, **kind)
        dots = jnp.einsum("btnd,btnd->bnt", out, x)
        slopes = attention_gradients_p.bind(x, x + 1, x * 2, x, sums, dots, out, lengths, **kind)
        return out, sums, slopes

    def f(x, table, words, kernel, at):
        picked = np.array([5, 1, 1])
        scanned = lax.scan(lambda c, row: (c + row, c * row), x[:, 0], x.swapaxes(0, 1))
        return {
            "take": jnp.take(x, picked, axis=1),
            "along": jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1),
            "window": lax.dynamic_slice(x, (0, at, 0), (4, 2, 8)),
            "update": lax.dynamic_update_slice(x, x[:, :1] * 2, (0, at, 0)),
            "set": x.at[:, picked[:2]].set(0.0),
            "added": x.at[:, picked].add(x[:, :3]),
            "joined": jnp.concatenate([x, jnp.pad(x, ((0, 0), (1, 0), (0, 0)))], axis=1),
            "sorted": lax.top_k(jnp.sort(x, axis=1).swapaxes(1, 2), 2),
            "running": jnp.cumsum(x[:, ::-1], axis=1),
            "pooled": gf.grad(lambda x: jnp.sum(pooled(x) ** 2))(x),
            "words": table[words],
            "table": gf.grad(lambda table: jnp.sum(jnp.sin(table[words])))(table),
            "convolved": convolved(x, kernel),
            "kernel": gf.grad(lambda k: jnp.sum(convolved(x, k) ** 2))(kernel),
            "scanned": scanned,
            "attention": attended(x.reshape(4, 6, 8, 1).swapaxes(2, 3).repeat(2, axis=2), at),
            "spectrum": jnp.abs(jnp.fft.rfft(x, axis=1)),
            "branch": lax.cond(at > 2, lambda x: x * 2, lambda x: x - 1, x),
        }

    def put(x, *spec):
        return gf.device_put(x, gf.NamedSharding(mesh, P(*spec)))

    operands = put(rows, "x", None, "y"), put(rows[0], None, "y"), put(words, "x"), put(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = gf.jit(f)(*operands, np.int32(2))
    for name in ("take", "along", "window", "update", "set", "added", "joined", "running"):
        assert result[name].sharding.spec == P("x", None, "y"), (name, result[name].sharding)
    assert result["table"].sharding.spec == P(None, "y")
    return result


def unpartitioned(mesh):
    """What cannot be partitioned is gathered, with a warning that names it."""
    x = gf.device_put(X, gf.NamedSharding(mesh, P("x", "y")))
    rows = gf.device_put(X, gf.NamedSharding(mesh, P("x")))

    def f(x, rows):
        order = jnp.sort(rows, axis=0)

        def body(carry, row):
            return jnp.tanh(carry + row.sum()), carry * row.sum()

        last, rows = lax.scan(body, x[0], x)
        until = lax.while_loop(lambda c: jnp.sum(c) < 50.0, lambda c: jnp.abs(c) * 1.5 + 1, x)
        chosen = lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x)
        return order, last, rows, until, chosen

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = gf.jit(f)(x, rows)
    if type(x).__name__ == "PartedArray":
        texts = [str(one.message) for one in told]
        assert any("[jit] sort of f32[8,4] at" in t and "not partitioned" in t for t in texts)
    wanted = gf.jit(f, out_shardings=gf.NamedSharding(mesh, P()))(X, X)
    return {"followed": result, "wanted": wanted}


CASES = [collectives, gradients, arrays, network, chosen, unpartitioned]


def main():
    programs.QUIET_BYTES = 0  # warn of small arrays too
    rank, size, port = map(int, sys.argv[1:4])
    if size == 0:  # of a launcher
        gf.distributed.initialize()
        rank, size = gf.process_index(), gf.process_count()
    elif size > 1:
        gf.distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=30)
    mesh = gf.make_mesh((2, 2), ("x", "y"))
    names = sys.argv[5:] or [case.__name__ for case in CASES]
    results = {}
    for case in CASES:
        if case.__name__ not in names:
            continue
        for path, leaf in gf.tree.leaves_with_path(case(mesh)):
            is_here = not isinstance(leaf, gf.Array) or leaf.is_fully_addressable
            whole = leaf if is_here else multihost_utils.process_allgather(leaf, tiled=True)
            results[case.__name__ + gf.tree_util.keystr(path)] = np.asarray(whole)
    if rank == 0:
        np.savez(sys.argv[4], **results)
    print(f"rank {rank} of {size} passed")


if __name__ == "__main__":
    # Simulated GPUs are compared with CPUs, and would round products to TF32.
    gf.config.update("jax_default_matmul_precision", "highest")
    main()
