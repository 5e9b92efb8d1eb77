"""A data- and tensor-parallel MLP on a mesh of 4 x 2 devices, wherever these are.

``network_program.py rank size port``, run by test_memories.py: ``jit`` of arrays with shardings
trains it with the losses of one device, to 1e-5, and partitions all of it.
"""

import functools
import sys
import warnings

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P
from gpuflow.parallel.partition import programs

programs.QUIET_BYTES = 0  # warn of small arrays too

STEPS = 20
SPECS = {
    "inner": P(None, "model"),
    "bias": P("model"),
    "outer": P("model", None),
    "last": P(),
}


def example():
    """Numbers for a network, and a batch."""
    rng = np.random.default_rng(0)
    weights = {
        "inner": rng.normal(size=(12, 32)) / 3,
        "bias": np.zeros(32),
        "outer": rng.normal(size=(32, 10)) / 5,
        "last": np.zeros(10),
    }
    images = rng.normal(size=(64, 12)).astype(np.float32)
    return (
        {name: value.astype(np.float32) for name, value in weights.items()},
        images,
        np.argmax(images[:, :10], axis=1).astype(np.int32),
    )


def loss(weights, images, labels):
    """The mean cross-entropy."""
    hidden = gf.nn.gelu(images @ weights["inner"] + weights["bias"])
    scores = gf.nn.log_softmax(hidden @ weights["outer"] + weights["last"])
    return -jnp.mean(jnp.sum(scores * gf.nn.one_hot(labels, 10), axis=1))


@functools.partial(gf.jit, donate_argnums=(0, 1))
def step(weights, speeds, images, labels):
    """A step of gradient descent with momentum."""
    value, slopes = gf.value_and_grad(loss)(weights, images, labels)
    speeds = gf.tree.map(lambda v, slope: 0.9 * v + slope, speeds, slopes)
    return gf.tree.map(lambda w, v: w - 0.1 * v, weights, speeds), speeds, value


def losses(put):
    """Of all steps, with arrays that ``put(tree, spec or dict of them)`` places."""
    weights, images, labels = example()
    speeds = put({name: np.zeros_like(value) for name, value in weights.items()}, SPECS)
    weights = put(weights, SPECS)
    images, labels = put(images, P("data")), put(labels, P("data"))
    values = []
    for _ in range(STEPS):
        before = gf.tree.leaves((weights, speeds))
        weights, speeds, value = step(weights, speeds, images, labels)
        assert all(x.is_deleted() for x in before if isinstance(x, gf.Array))
        values.append(float(value))
    return np.array(values), weights


def main():
    rank, size, port = map(int, sys.argv[1:4])
    if size > 1:
        gf.distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=30)
    mesh = gf.make_mesh((4, 2), ("data", "model"))

    def put(values, specs):
        return gf.tree.map(
            lambda spec, value: gf.device_put(value, gf.NamedSharding(mesh, spec)),
            specs,
            values,
            is_leaf=lambda one: isinstance(one, P),
        )

    expected, _ = losses(lambda values, specs: values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is not partitioned is told
        result, weights = losses(put)
    assert expected[-1] < 0.5 * expected[0], expected
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    for name, spec in SPECS.items():
        per_device = gf.NamedSharding(mesh, spec)
        assert weights[name].sharding.is_equivalent_to(per_device, weights[name].ndim), name
        shapes = {shard.data.shape for shard in weights[name].addressable_shards}
        assert shapes == {per_device.shard_shape(weights[name].shape)}, name
    print(f"rank {rank} of {size} passed")


if __name__ == "__main__":
    main()
