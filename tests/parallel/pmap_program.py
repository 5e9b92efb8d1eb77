"""pmap over several processes, each with two virtual devices; run by test_process_pmap.py.

``pmap_program.py rank size port [names of programs]``
"""

import sys

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental import multihost_utils

LOCAL = 2


def functions():
    """Programs of one device's slice, whose results must not depend on where the devices are."""

    def moved(x):
        size = lax.psum(1, "i")
        around = [(k, (k + 1) % size) for k in range(size)]
        tiled = jnp.tile(x, size)
        return {
            "sum": lax.psum(x, "i"),
            "mean": lax.pmean({"a": x, "b": x * 2}, "i"),
            "max": lax.pmax(x, "i"),
            "index": lax.axis_index("i"),
            "size": jnp.asarray(lax.axis_size("i")),
            "gathered": lax.all_gather(x, "i"),
            "tiled": lax.all_gather(x, "i", tiled=True),
            "scattered": lax.psum_scatter(tiled, "i", tiled=True),
            "swapped": lax.all_to_all(tiled, "i", 0, 0, tiled=True),
            "around": lax.ppermute(x, "i", around),
            "shuffled": lax.pshuffle(x, "i", list(range(size))[::-1]),
            "sent": lax.pbroadcast(x, "i", size - 1),
            "groups": lax.psum(x, "i", axis_index_groups=[[0, size - 1], [*range(1, size - 1)]]),
            "group rows": lax.all_gather(x, "i", axis_index_groups=[[0, 2], [1, 3]]),
        }

    def looped(x):
        def step(carry, number):
            carry = jnp.tanh(carry + lax.pmean(carry, "i") * number)
            return carry, lax.pmax(carry.sum(), "i")

        return lax.scan(step, x, jnp.arange(3.0))

    def until(x):
        return lax.while_loop(lambda c: lax.psum(c.sum(), "i") < 500.0, lambda c: c * 2, x)

    def slope(x):
        def loss(w):
            return lax.pmean(jnp.sum(jnp.sin(w * x) ** 2), "i")

        return gf.grad(loss)(x * 0.5), gf.jvp(loss, (x,), (x + 1,))

    def nested(x):
        inner = gf.vmap(lambda v: lax.psum(v, ("i", "j")), axis_name="j")
        return inner(x), gf.vmap(lambda v: lax.axis_index(("j", "i")), axis_name="j")(x)

    def ragged(x):
        """Every device sends 0, 1, 2, ... elements to the devices behind it."""
        size, rank = lax.axis_size("i"), lax.axis_index("i")
        sizes = (jnp.arange(size) - rank) % size
        received = (rank - jnp.arange(size)) % size
        places = jnp.arange(size) * 0 + rank * size
        starts = jnp.minimum(jnp.arange(size), 2)

        def sent(v):
            rows, out = jnp.tile(v, 2), jnp.zeros(size * size)
            numbers = starts, sizes, places, received
            return lax.ragged_all_to_all(rows, out, *numbers, axis_name="i")

        return sent(x), gf.grad(lambda v: jnp.sum(jnp.sin(sent(v))))(x)

    return {
        "moved": moved,
        "ragged": ragged,
        "looped": looped,
        "until": until,
        "slope": slope,
        "nested": nested,
    }


def main():
    rank, size, port = map(int, sys.argv[1:4])
    if size > 1:
        gf.distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=20)
    assert gf.device_count() == size * LOCAL and gf.local_device_count() == LOCAL
    assert [d.process_index for d in gf.devices()] == [k // LOCAL for k in range(size * LOCAL)]
    total = size * LOCAL
    data = np.random.default_rng(0).standard_normal((total, 3)).astype(np.float32) + 1
    rows = data[rank * LOCAL : (rank + 1) * LOCAL]
    programs = functions()
    for name in sys.argv[4:] or programs:
        function = programs[name]
        want = gf.vmap(function, axis_name="i")(data)
        got = gf.pmap(function, axis_name="i")(rows)
        for result, whole in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
            part = np.asarray(whole)[rank * LOCAL : (rank + 1) * LOCAL]
            np.testing.assert_allclose(result, part, rtol=2e-6, atol=1e-6, err_msg=name)
    # Eagerly: gradients through pmap, a value that nobody maps, and results on this process.
    slope = gf.grad(lambda x: gf.pmap(lambda v: lax.psum(v**2, "i"), "i")(x).sum())(rows)
    np.testing.assert_allclose(slope, 2 * total * rows, rtol=1e-6)
    ones = gf.pmap(lambda: lax.psum(jnp.ones(2), "i"), "i", axis_size=total)()
    np.testing.assert_array_equal(ones, np.full((LOCAL, 2), total))
    total_of_all = gf.pmap(lambda v: lax.psum(v, "i"), "i", out_axes=None)(rows)
    np.testing.assert_allclose(total_of_all, data.sum(0), rtol=1e-6)
    assert multihost_utils.process_allgather(rows, tiled=True).tolist() == data.tolist()
    multihost_utils.sync_global_devices("all is done")
    print(f"rank {rank} of {size} passed")


if __name__ == "__main__":
    main()
