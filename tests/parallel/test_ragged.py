"""ragged_all_to_all over virtual devices: the same as under vmap."""

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

SIZE = 8
ROWS = np.random.default_rng(0).normal(size=(SIZE, 12, 2)).astype(np.float32)


def send(rows):
    """Index k sends rows k, k + 1, ... to the indices behind it: 0, 1, 2, 0, 1, 2, ... of them."""
    rank, others = lax.axis_index("i"), jnp.arange(SIZE)
    sizes = (others - rank) % SIZE % 3
    received = (rank - others) % SIZE % 3
    output = jnp.full((3 * SIZE, 2), -1.0)
    return lax.ragged_all_to_all(
        rows, output, others // 2, sizes, others * 0 + 3 * rank, received, axis_name="i"
    )


def loop():
    out = np.full((SIZE, 3 * SIZE, 2), -1, np.float32)
    for sender in range(SIZE):
        for receiver in range(SIZE):
            size = (receiver - sender) % SIZE % 3
            part = ROWS[sender, receiver // 2 : receiver // 2 + size]
            out[receiver, 3 * sender : 3 * sender + size] = part
    return out


def over_shards(rows):
    mesh = gf.make_mesh((SIZE,), ("i",))
    spec = gf.P("i")
    f = gf.shard_map(lambda x: send(x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
    return f(rows)


MAPPED = {
    "vmap": gf.vmap(send, axis_name="i"),
    "pmap": lambda rows: gf.pmap(send, axis_name="i")(rows),
    "shard_map": over_shards,
    "jit of shard_map": gf.jit(over_shards),
}


@pytest.mark.parametrize("name", MAPPED)
def test_values_and_derivatives(name):
    np.testing.assert_array_equal(MAPPED[name](ROWS), loop())
    gradient = gf.grad(lambda rows: jnp.sum(MAPPED[name](rows) ** 2))(ROWS)
    counts = np.zeros((SIZE, 12, 1))
    for sender in range(SIZE):
        for receiver in range(SIZE):
            size = (receiver - sender) % SIZE % 3
            counts[sender, receiver // 2 : receiver // 2 + size] += 1
    np.testing.assert_allclose(gradient, 2 * ROWS * counts, rtol=1e-5)
