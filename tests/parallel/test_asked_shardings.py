"""Programs that ask for shardings themselves give results that have them, for plain arguments too.

The specs are those that JAX 0.10.2 gives on eight devices of the host, but for ``device_put`` in a
program, which JAX takes as a transfer that its partitioner may forget.
"""

from __future__ import annotations

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.sharding import NamedSharding

X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def mesh():
    return gf.make_mesh((4, 2), ("a", "b"))


def doubled(mesh):
    """A shard_map over rows."""
    return gf.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("a"), out_specs=P("a"))


def wanted(mesh, *spec):
    """A function that wants its sine so."""
    return lambda x: lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P(*spec)))


PROGRAMS = {
    "constraint": (lambda m: gf.jit(wanted(m, "a", "b")), ("a", "b")),
    "and what follows": (lambda m: gf.jit(lambda x: wanted(m, "a", "b")(x).sum(0)), ("b",)),
    "in a jit": (lambda m: gf.jit(lambda x: gf.jit(wanted(m, "b"))(x) + 1), ("b",)),
    "gradient of a constraint": (
        lambda m: gf.jit(gf.grad(lambda x: wanted(m, "a", "b")(x).sum())),
        ("a", "b"),
    ),
    "vmap of a constraint": (lambda m: gf.jit(gf.vmap(wanted(m, "a"))), (None, "a")),
    "vmap over a mesh axis": (
        lambda m: gf.jit(gf.vmap(wanted(m, "a"), spmd_axis_name="b")),
        ("b", "a"),
    ),
    "jit of shard_map": (lambda m: gf.jit(doubled(m)), ("a",)),
    "transposed shard_map": (lambda m: gf.jit(lambda x: doubled(m)(x).T), (None, "a")),
    "gradient of shard_map": (lambda m: gf.grad(lambda x: doubled(m)(x).sum()), ("a",)),
    "jitted gradient of shard_map": (
        lambda m: gf.jit(gf.grad(lambda x: doubled(m)(x).sum())),
        ("a",),
    ),
    "vmap of shard_map": (lambda m: gf.vmap(doubled(m)), (None, "a")),
    "out_shardings inside": (
        lambda m: gf.jit(
            lambda x: gf.jit(lambda x: x + 1, out_shardings=NamedSharding(m, P("a", "b")))(x)
        ),
        ("a", "b"),
    ),
    "in_shardings inside": (
        lambda m: gf.jit(
            lambda x: gf.jit(lambda x: x + 1, in_shardings=NamedSharding(m, P("a", "b")))(x)
        ),
        ("a", "b"),
    ),
    "device_put inside": (
        lambda m: gf.jit(lambda x: gf.device_put(x, NamedSharding(m, P("b"))) + 1),
        ("b",),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray], ids=["numpy", "array"])
def test_plain_arguments(mesh, name, convert):
    make, spec = PROGRAMS[name]
    function = make(mesh)
    with gf.disable_jit():
        expected = np.asarray(function(X))
    for _ in range(2):  # the second call may take a shorter way
        result = function(convert(X))
        assert result.sharding.mesh == mesh and tuple(result.sharding.spec) == spec
        assert len(result.addressable_shards) == 8
        # Sines near -1 plus 1 have the error of what was added.
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6, atol=2e-7)


def test_a_jitted_pmap_gives_shards():
    result = gf.jit(gf.pmap(lambda x: x + 1, out_axes=1))(X)
    assert [shard.index for shard in result.addressable_shards] == [
        (slice(None), slice(k, k + 1)) for k in range(8)
    ]


def test_a_wish_inside_of_pmap_is_not_its_result(mesh):
    """The elements of a pmap lie where pmap says, whatever its function wants of them."""
    result = gf.pmap(wanted(mesh, "a"))(X)
    plain = gf.pmap(jnp.sin)(X)
    assert result.sharding == plain.sharding
    np.testing.assert_array_equal(np.asarray(result), np.asarray(plain))


def test_unconstrained_dimensions_stay(mesh):
    spec = P(P.UNCONSTRAINED, "b")
    rows = gf.device_put(X, NamedSharding(mesh, P("a")))

    def function(x):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    for run in (function, gf.jit(function)):
        assert tuple(run(rows).sharding.spec) == ("a", "b")
        assert tuple(run(X).sharding.spec) == (None, "b")
    taken = gf.device_put(X, NamedSharding(mesh, P("b")))  # an axis splits one dimension only
    assert tuple(gf.jit(function)(taken).sharding.spec) == (None, "b")


def test_shardings_inside_must_divide(mesh):
    """They were not looked at before."""
    inner = gf.jit(lambda x: x, out_shardings=NamedSharding(mesh, P("a")))
    with pytest.raises(ValueError, match=r"dimension 0 must be divisible by 4"):
        gf.jit(lambda x: inner(x[:3]))(X)
