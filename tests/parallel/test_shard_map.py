"""shard_map over virtual devices. Numbers marked JAX are those of jax 0.10.2 on 8 CPU devices."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax

X = np.arange(32, dtype=np.float32).reshape(8, 4)
ONES = np.ones(4, np.float32)


@pytest.fixture
def mesh():
    return gf.make_mesh((4, 2), ("x", "y"))


def test_blocks_and_back(mesh):
    seen = []

    def f(block):
        seen.append(block.shape)
        return block + 1

    for spec, shape in [
        (P("x", "y"), (2, 2)),
        (P("y"), (4, 4)),
        (P(("x", "y")), (1, 4)),
        (P(("y", "x")), (1, 4)),
        (P(None, "y"), (8, 2)),
        (P(), (8, 4)),
        (P(None, ("x",)), (8, 1)),
    ]:
        out = gf.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)(X)
        np.testing.assert_array_equal(out, X + 1)
        assert seen[-1] == shape
        assert out.sharding == gf.NamedSharding(mesh, spec)


def test_which_device_has_which_block(mesh):
    def f(block):
        return block * 0 + lax.axis_index(("x", "y"))

    out = gf.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))(X)
    np.testing.assert_array_equal(out, np.kron(np.arange(8).reshape(4, 2), np.ones((2, 2))))
    for shard in out.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.full((2, 2), shard.device.id))
    # The slower of two axes over one dimension is the first one.
    out = gf.shard_map(f, mesh=mesh, in_specs=P(("y", "x")), out_specs=P(("y", "x")))(X)
    np.testing.assert_array_equal(out[:, 0], [0, 2, 4, 6, 1, 3, 5, 7])
    for shard in out.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.full((1, 4), shard.device.id))


def test_collectives_over_one_axis_and_both(mesh):
    def f(block):
        rows = lax.psum(block, "x")
        total = lax.psum(block.sum(), ("x", "y"))
        turned = lax.ppermute(block, "y", [(0, 1), (1, 0)])
        gathered = lax.all_gather(block, "y", axis=1, tiled=True, to="invarying")
        return rows, total, turned, gathered

    specs = (P(None, "y"), P(), P("x", "y"), P("x"))
    rows, total, turned, gathered = gf.shard_map(
        f, mesh=mesh, in_specs=P("x", "y"), out_specs=specs
    )(X)
    np.testing.assert_array_equal(rows, X.reshape(4, 2, 4).sum(0))
    assert total == X.sum()
    np.testing.assert_array_equal(turned, np.roll(X, 2, 1))
    np.testing.assert_array_equal(gathered, X)


def test_a_distributed_product_equals_the_plain_one(mesh):
    a, b = np.random.default_rng(0).normal(size=(2, 16, 16))

    def f(a, b):
        return lax.psum(a @ b, "y")

    product = gf.shard_map(
        f, mesh=mesh, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None)
    )
    with gf.enable_x64():
        np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12)


def loss(w, a):
    return lax.psum((a @ w).sum(), "x")


# JAX: derivatives inside know which values vary. (function, expected)
GRADIENTS = {
    "of a sum over devices": (loss, [112, 120, 128, 136]),
    "of each device's own loss": (lambda w, a: (a @ w).sum(), [112, 120, 128, 136]),
    "of a mean": (lambda w, a: lax.pmean((a @ w).sum(), "x"), [28, 30, 32, 34]),
    "of what does not vary": (lambda w, a: lax.psum((w**2).sum(), "x"), [8, 8, 8, 8]),
    "of both": (lambda w, a: lax.psum((a @ w).sum() + (w**2).sum(), "x"), [120, 128, 136, 144]),
    "under jit": (lambda w, a: gf.jit(loss)(w, a), [112, 120, 128, 136]),
    "of a maximum": (lambda w, a: lax.psum((a @ w).max(), "x"), [64, 68, 72, 76]),
    "of a sum of a sum": (
        lambda w, a: lax.psum(lax.psum((a @ w).sum(), "x") ** 2, "x") / 1e3,
        [444.416, 476.16, 507.904, 539.648],
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_inside(mesh, name):
    function, expected = GRADIENTS[name]
    f = gf.shard_map(gf.grad(function), mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P())
    np.testing.assert_allclose(f(ONES, X), expected, rtol=1e-6)
    np.testing.assert_allclose(gf.jit(f)(ONES, X), expected, rtol=1e-6)


def test_second_derivatives_inside(mesh):
    def f(w, a):
        return gf.hessian(lambda w: lax.pmean(((a @ w) ** 2).sum(), "x"))(w)

    out = gf.shard_map(f, mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P())(ONES, X)
    np.testing.assert_allclose(out, 2 * X.T @ X / 4, rtol=1e-6)


def test_gradients_from_outside_are_those_of_the_whole_program(mesh):
    f = gf.shard_map(loss, mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P())
    np.testing.assert_array_equal(gf.grad(f)(ONES, X), X.sum(0))
    np.testing.assert_array_equal(gf.grad(f, 1)(ONES, X), np.ones_like(X))

    def inner(w, a):
        return gf.grad(lambda w: lax.psum(((a @ w) ** 2).sum(), "x"))(w).sum()

    g = gf.shard_map(inner, mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P())
    np.testing.assert_allclose(gf.grad(g)(ONES, X), 2 * (X.T @ X).sum(0), rtol=1e-6)


def test_gradients_without_the_check_are_those_of_pmap(mesh):
    def f(w, a):
        return gf.grad(loss)(w, a)[None]

    out = gf.shard_map(
        f, mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P("x"), check_vma=False
    )(ONES, X)
    np.testing.assert_array_equal(out, 4 * X.reshape(4, 2, 4).sum(1))  # JAX


def test_copies_that_vary_have_their_own_cotangents(mesh):
    def f(w, a):
        return gf.grad(lambda w: (a @ w).sum())(lax.pcast(w, "x", to="varying"))[None]

    out = gf.shard_map(f, mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P("x"))(ONES, X)
    np.testing.assert_array_equal(out, X.reshape(4, 2, 4).sum(1))

    def through(w, a):
        return gf.grad(lambda w: (a @ lax.pvary(w, "x")).sum())(w)

    out = gf.shard_map(through, mesh=mesh, in_specs=(P(), P("x", None)), out_specs=P())(ONES, X)
    np.testing.assert_array_equal(out, X.sum(0))
    with pytest.raises(NotImplementedError, match="must be 'varying'"):
        lax.pcast(ONES, "x", to="unreduced")


def test_trees_prefixes_none_and_the_decorator(mesh):
    @gf.shard_map(mesh=mesh, in_specs=(P("x"), None), out_specs=P("x"))
    def f(tree, scale):
        return {"a": tree["a"] * scale, "b": tree["b"].sum()[None]}

    out = f({"a": ONES, "b": np.ones((4, 2))}, 3.0)
    np.testing.assert_array_equal(out["a"], [3, 3, 3, 3])
    np.testing.assert_array_equal(out["b"], [2, 2, 2, 2])


def test_some_axes_only(mesh):
    f = gf.shard_map(
        lambda a: lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"}
    )
    np.testing.assert_array_equal(f(X), X.reshape(4, 2, 4).sum(0))
    with pytest.raises(ValueError, match="axis_names must be axes of the mesh"):
        gf.shard_map(lambda a: a, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"z"})


def test_under_vmap_and_the_mesh_in_force(mesh):
    f = gf.shard_map(lambda a: lax.psum(a, "x"), in_specs=P("x"), out_specs=P())
    batch = np.stack([X, 2 * X], 1)
    with gf.set_mesh(mesh):
        out = gf.vmap(f, in_axes=1)(batch)
    np.testing.assert_array_equal(out[1], 2 * X.reshape(4, 2, 4).sum(0))


def unknown(a):
    return lax.psum(a, "z")


@pytest.mark.parametrize(
    ("options", "args", "error", "message"),
    [
        ({"in_specs": P("x")}, (np.ones(7),), ValueError, "dimension 0 of a must be divisible"),
        ({"in_specs": P("q")}, (np.ones(8),), ValueError, "must hold axes of the mesh"),
        ({"in_specs": P("x", "x")}, (X,), ValueError, "each once"),
        ({"in_specs": P("x", "y")}, (np.ones(8),), ValueError, "at most one item"),
        ({"in_specs": "x"}, (np.ones(8),), TypeError, "must hold PartitionSpecs"),
        ({"in_specs": P("x"), "out_specs": P()}, (np.ones(8),), ValueError, "must be equal"),
        ({"in_specs": (P(), P())}, (np.ones(8),), ValueError, "tree prefix"),
        ({"in_specs": P("x"), "mesh": None}, (np.ones(8),), ValueError, "must be a Mesh"),
        ({"in_specs": P("x")}, ("text",), TypeError, "must be arrays or numbers"),
        ({"in_specs": P("x"), "f": unknown}, (np.ones(8),), NameError, "'z' must be bound"),
    ],
)
def test_errors(mesh, options, args, error, message):
    options = {"f": lambda a: a, "mesh": mesh, "out_specs": P("x"), **options}
    with pytest.raises(error, match=message):
        gf.shard_map(**options)(*args)


def test_the_older_name(mesh):
    from gpuflow.experimental.shard_map import shard_map

    f = shard_map(lambda a: a, mesh, P("x"), P(), check_rep=False)
    np.testing.assert_array_equal(f(np.arange(8.0)), [0, 1])


def test_data_and_tensor_parallel_training_equals_plain_training(mesh):
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(12, 16)) / 4, rng.normal(size=(16, 6)) / 4]
    inputs, labels = rng.normal(size=(32, 12)), rng.normal(size=(32, 6))

    def local_loss(weights, inputs, labels):
        hidden = jnp.tanh(inputs @ weights[0])  # columns over y
        out = lax.psum(hidden @ weights[1], "y")  # rows over y
        return lax.pmean(((out - labels) ** 2).mean(), "x")

    def plain_loss(weights, inputs, labels):
        return ((jnp.tanh(inputs @ weights[0]) @ weights[1] - labels) ** 2).mean()

    specs = [P(None, "y"), P("y", None)]
    step = gf.shard_map(
        gf.value_and_grad(local_loss),
        mesh=mesh,
        in_specs=(specs, P("x"), P("x")),
        out_specs=(P(), specs),
    )
    with gf.enable_x64():
        mine, plain = list(weights), list(weights)
        for _ in range(10):
            first, grads = gf.jit(step)(mine, inputs, labels)
            mine = [w - 0.1 * g for w, g in zip(mine, grads, strict=True)]
            second, grads = gf.jit(gf.value_and_grad(plain_loss))(plain, inputs, labels)
            plain = [w - 0.1 * g for w, g in zip(plain, grads, strict=True)]
            np.testing.assert_allclose(first, second, rtol=1e-12)
