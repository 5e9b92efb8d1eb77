"""Arrays that were put on devices stay there: operations on several of them want one place."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax, random
from gpuflow.sharding import Mesh, NamedSharding

X = np.arange(1.0, 9.0, dtype=np.float32)


def on(number, value=X):
    return gf.device_put(value, gf.devices()[number])


def over(devices, *spec):
    return gf.device_put(X, NamedSharding(Mesh(np.array(devices), ("x",)), P(*spec)))


def number_of(array):
    (device,) = array.devices()
    return device.id


# Each way for two arrays into one computation: sums stood on one of two devices without a word.
WAYS = {
    "operator": lambda a, b: a + b,
    "equality": lambda a, b: a == b,
    "after operations": lambda a, b: (a + 1) * jnp.sin(b),
    "lax": lax.sub,
    "where": lambda a, b: jnp.where(a > 2, a, b),
    "select": lambda a, b: lax.select(a > 2, a, b),
    "concatenate": lambda a, b: jnp.concatenate([a, b]),
    "stack": lambda a, b: jnp.stack([a, b]),
    "array of arrays": lambda a, b: jnp.array([a[0], b[0]]),
    "dot": jnp.dot,
    "einsum": lambda a, b: jnp.einsum("i,i->", a, b),
    "sort": lambda a, b: lax.sort((a, b)),
    "index": lambda a, b: a[b.astype(int)],
    "update": lambda a, b: a.at[0].set(b[0]),
    "builtin sum": lambda a, b: sum([a, b]),
    "jit": lambda a, b: gf.jit(lambda x, y: x + y)(a, b),
    "result of jit": lambda a, b: gf.jit(lambda x: x * 2)(a) + b,
    "donated": lambda a, b: gf.jit(lambda x, y: x + y, donate_argnums=0)(a, b),
    "scan": lambda a, b: lax.scan(lambda c, x: (c + x, x), a[0], b)[0],
    "loop over what it closes over": lambda a, b: lax.fori_loop(0, 2, lambda i, c: c + b, a),
    "cond": lambda a, b: lax.cond(True, lambda x, y: x, lambda x, y: y, a, b),
    "vmap": lambda a, b: gf.vmap(lambda x, y: x + y)(a, b),
    "vmap of jit": lambda a, b: gf.vmap(gf.jit(lambda x, y: x + y))(a, b),
    "grad": lambda a, b: gf.grad(lambda x: jnp.sum(x * b))(a),
    "jvp": lambda a, b: gf.jvp(jnp.sin, (a,), (b,)),
    "checkpoint": lambda a, b: gf.checkpoint(lambda x, y: x * y)(a, b),
    "random": lambda a, b: random.normal(on(1, random.key(0)), (8,)) + a,
}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_on_different_devices_do_not_meet(way):
    message = r"must be on the same ones; got .* on cpu:[01], .* on cpu:[01].*Fix: move them"
    with pytest.raises(ValueError, match=message):
        WAYS[way](on(0), on(1))


# Of these a result may not depend on both.
_ONE_SIDED = {"jvp", "grad", "random"}


@pytest.mark.parametrize("way", sorted(WAYS.keys() - _ONE_SIDED))
def test_other_arrays_follow(way):
    for first, second in ((on(1), jnp.array(X)), (jnp.array(X), on(1))):
        for leaf in gf.tree.leaves(WAYS[way](first, second)):
            assert leaf.committed and number_of(leaf) == 1


def test_what_nobody_put_runs_on_the_default_device():
    devices = gf.devices()
    with gf.default_device(devices[2]):
        there = jnp.asarray(X)
    assert number_of(there) == 2 and not there.committed
    assert [number_of(x) for x in (there + 1, there + X, gf.jit(jnp.sin)(there))] == [0, 0, 0]
    with gf.default_device(devices[3]):
        assert number_of(there + 1) == number_of(jnp.asarray(X) * 2) == 3
        assert number_of(on(0) + 1) == 0


def test_closures_and_unused_arguments_do_not_count():
    here, there = on(0), on(1)
    out = gf.jit(lambda x: x + there)(here)
    assert number_of(out) == 0
    assert number_of(gf.jit(lambda x: gf.jit(lambda y: y + there)(x))(here)) == 0
    assert number_of(gf.jit(lambda x, y: x + 1)(here, there)) == 0
    np.testing.assert_array_equal(out, 2 * X)


def test_what_is_made_like_an_array_is_beside_it():
    b = on(1)
    for out in (jnp.zeros_like(b), jnp.ones_like(b), jnp.full_like(b, 2), jnp.empty_like(b)):
        assert out.committed and number_of(out) == 1
    assert number_of(jnp.zeros_like(b, device=gf.devices()[2])) == 2
    assert jnp.zeros_like(over(gf.devices(), "x")).sharding.spec == P("x")
    assert number_of(gf.device_put(b)) == 1 and not gf.device_put(jnp.ones(2)).committed
    assert number_of(gf.device_put(b, gf.devices()[0]) + on(0)) == 0


def test_shardings_on_different_devices_do_not_meet():
    devices = gf.devices()
    whole, part, turned = over(devices, "x"), over(devices[:4], "x"), over(devices[::-1], "x")
    parts = [shard.data for shard in whole.addressable_shards]
    assert whole.committed and parts[1].committed
    pairs = [(whole, on(0)), (whole, part), (whole, turned), (parts[0], parts[1])]
    for a, b in pairs:
        for add in (lambda x, y: x + y, gf.jit(lambda x, y: x + y)):
            with pytest.raises(ValueError, match="must be on the same ones"):
                add(a, b)
    assert (whole + jnp.asarray(X)).sharding.device_set == set(devices)
    assert (gf.pmap(lambda x: x)(X) + whole).sharding.device_set == set(devices)
    single = over(devices[:1], "x")
    assert number_of(single + on(0)) == 0


def test_programs_over_a_mesh_take_what_is_there_or_nowhere():
    mesh = Mesh(np.array(gf.devices()), ("x",))
    rows, all_of_it = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    same = gf.shard_map(lambda x: x, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    programs = [
        same,
        gf.jit(same),
        gf.pmap(lambda x: x),
        gf.jit(lambda x: x + 1, out_shardings=rows),
        lambda x: lax.with_sharding_constraint(x, rows),
        gf.jit(lambda x: lax.with_sharding_constraint(x, rows)),
    ]
    for program in programs:
        assert program(jnp.asarray(X)).sharding.device_set == set(gf.devices())
        with pytest.raises(ValueError, match=r"must be on those that are asked for; got .*Fix: mo"):
            program(on(0))
    wanting = gf.jit(lambda x: x + 1, in_shardings=rows)
    assert wanting(gf.device_put(X, rows)).sharding.spec == P("x")
    for other in (on(0), gf.device_put(X, all_of_it)):
        with pytest.raises(ValueError, match="must have the shardings of in_shardings"):
            wanting(other)
