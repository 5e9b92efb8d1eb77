"""pmap over virtual devices: values, collectives, axes, shardings, nesting, errors."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)


def test_each_device_has_its_row():
    out = gf.pmap(lambda x: x * 2)(X)
    np.testing.assert_array_equal(out, X * 2)
    assert out.sharding.spec == gf.P("<pmap>") and len(out.devices()) == 8
    shards = out.addressable_shards
    assert [shard.device.id for shard in shards] == list(range(8))
    np.testing.assert_array_equal(shards[5].data, X[5:6] * 2)
    assert shards[5].index == (slice(5, 6), slice(None)) and shards[5].replica_id == 0
    assert shards[5].data.device == gf.devices()[5]


def test_fewer_elements_than_devices_use_the_first_ones():
    out = gf.pmap(jnp.sin)(X[:3])
    assert out.sharding.device_set == set(gf.devices()[:3])
    # So do those of a named platform: they are no list that somebody chose.
    out = gf.pmap(jnp.sin, backend="cpu")(X[:3])
    assert out.sharding.device_set == set(gf.devices("cpu")[:3])


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        (lambda x: lax.psum(x, "i"), np.broadcast_to(X.sum(0), X.shape)),
        (lambda x: lax.pmean(x, "i"), np.broadcast_to(X.mean(0), X.shape)),
        (lambda x: lax.pmax(x, "i"), np.broadcast_to(X.max(0), X.shape)),
        (lambda x: lax.pmin(x, "i"), np.broadcast_to(X.min(0), X.shape)),
        (lambda x: lax.all_gather(x, "i"), np.broadcast_to(X, (8, 8, 3))),
        (lambda x: lax.all_gather(x, "i", tiled=True), np.broadcast_to(X.ravel(), (8, 24))),
        (lambda x: lax.ppermute(x, "i", [(k, (k + 1) % 8) for k in range(8)]), np.roll(X, 1, 0)),
        (lambda x: lax.ppermute(x, "i", [(0, 3)]), np.eye(8)[:, [3]] * X[0]),
        (lambda x: x + lax.axis_index("i"), X + np.arange(8)[:, None]),
        (lambda x: x * lax.axis_size("i"), X * 8),
        (
            lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]),
            np.repeat(X.reshape(2, 4, 3).sum(1), 4, 0),
        ),
    ],
)
def test_collectives(collective, expected):
    out = gf.pmap(collective, axis_name="i")(X)
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-6)  # sums of 8 float32


def test_exchanges():
    blocks = RNG.normal(size=(8, 8, 2)).astype(np.float32)
    out = gf.pmap(lambda x: lax.all_to_all(x, "i", 0, 0), axis_name="i")(blocks)
    np.testing.assert_array_equal(out, blocks.swapaxes(0, 1))
    out = gf.pmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(blocks)
    np.testing.assert_allclose(out, blocks.sum(0), rtol=2e-6, atol=1e-6)


def test_axes_in_and_out():
    def f(x, y, *, z):
        return x + y, lax.psum(x, "i"), {"z": z}

    out, total, kept = gf.pmap(f, "i", in_axes=(1, None), out_axes=(1, None, 0))(
        X.T, np.float32(2), z=np.arange(8)
    )
    np.testing.assert_array_equal(out, X.T + 2)
    np.testing.assert_allclose(total, X.sum(0), rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(kept["z"], np.arange(8))
    assert out.sharding.spec == gf.P(None, "i") and total.sharding.is_fully_replicated
    assert len(total.addressable_shards) == 8


def test_static_arguments_and_keywords():
    calls = []

    def f(x, power, scale):
        calls.append(power)
        return scale * x**power

    mapped = gf.pmap(f, static_broadcasted_argnums=1, in_axes=(0, None, None))
    np.testing.assert_allclose(mapped(X, 2, 3.0), 3 * X**2, rtol=1e-6)
    np.testing.assert_allclose(mapped(X, 2, 4.0), 4 * X**2, rtol=1e-6)
    np.testing.assert_allclose(mapped(X, 3, 4.0), 4 * X**3, rtol=1e-6)
    assert calls == [2, 3]


def test_an_output_of_another_structure_for_another_shape():
    f = gf.pmap(lambda x: x if x.ndim else (x, x))
    assert f(X).shape == (8, 3)
    assert len(f(X[:, 0])) == 2
    assert f(X).shape == (8, 3)


def test_results_go_in_again_and_donated_ones_are_gone():
    step = gf.pmap(lambda x: x + 1, donate_argnums=0)
    first = step(X)
    second = step(first)
    np.testing.assert_array_equal(second, X + 2)
    assert first.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(first)
    with pytest.raises(RuntimeError, match="deleted"):
        first + 1


def test_under_jit_grad_vmap_and_pmap():
    f = gf.pmap(lambda x: lax.psum(x * x, "i"), "i")
    totals = np.tile((X * X).sum(0), (8, 1))
    np.testing.assert_allclose(gf.jit(lambda x: f(x) + 1)(X), totals + 1, rtol=1e-5)
    np.testing.assert_allclose(gf.grad(lambda x: f(x).sum())(X), 16 * X, rtol=1e-5)
    np.testing.assert_allclose(
        gf.vmap(f, in_axes=1, out_axes=1)(X), np.tile((X * X).sum(0), (8, 1)), rtol=1e-5
    )
    both = gf.pmap(gf.pmap(lambda x: lax.psum(x, ("i", "j")), "j"), "i")
    np.testing.assert_allclose(both(X[:4, :2]), np.full((4, 2), X[:4, :2].sum()), rtol=1e-5)
    # As in JAX, psum is its own transpose here.
    inner = gf.pmap(gf.grad(lambda x: lax.psum(x, "i")), "i")
    np.testing.assert_array_equal(inner(X[:, 0]), np.full(8, 8.0))


def test_loops_branches_and_random_numbers_differ_between_devices():
    def f(x, key):
        steps = lax.axis_index("i")
        grown = lax.while_loop(lambda s: s[0] < steps, lambda s: (s[0] + 1, s[1] * 2), (0, x))[1]
        chosen = lax.cond(steps % 2 == 0, lambda: grown, lambda: -grown)
        total, _ = lax.scan(lambda c, _: (c + lax.psum(x, "i"), None), 0.0, length=3)
        return chosen, total, gf.random.normal(key)

    keys = gf.random.split(gf.random.key(1), 8)
    chosen, total, noise = gf.pmap(f, "i")(X[:, 0], keys)
    sign = np.where(np.arange(8) % 2 == 0, 1, -1)
    np.testing.assert_allclose(chosen, X[:, 0] * 2.0 ** np.arange(8) * sign, rtol=1e-6)
    np.testing.assert_allclose(total, np.full(8, 3 * X[:, 0].sum()), rtol=1e-5)
    # Op by op and fused, log and sqrt round differently in the last bits.
    np.testing.assert_allclose(noise, [gf.random.normal(key) for key in keys], rtol=1e-6)


def test_a_result_works_as_any_array():
    out = gf.pmap(lambda x: x)(X)
    assert isinstance(out, gf.Array) and out.shape == (8, 3) and out.dtype == np.float32
    np.testing.assert_allclose(out.sum(), X.sum(), rtol=1e-5)
    np.testing.assert_array_equal(out[2], X[2])
    np.testing.assert_array_equal(gf.device_get(out), X)
    np.testing.assert_array_equal(gf.jit(lambda x: x + 1)(out), X + 1)
    assert f"{out!r}" == f"{jnp.asarray(X)!r}"
    assert gf.tree.map(lambda x: x * 2, {"a": out})["a"].shape == (8, 3)


def test_the_same_bits_as_vmap():
    def f(x):
        return jnp.tanh(x @ x.T) - lax.pmean(x.sum(), "i")

    batch = RNG.normal(size=(8, 20, 20)).astype(np.float32)
    np.testing.assert_array_equal(gf.pmap(f, "i")(batch), gf.jit(gf.vmap(f, axis_name="i"))(batch))


def test_empty_and_scalar_elements():
    assert gf.pmap(lambda x: x + 1)(np.zeros((8, 0))).shape == (8, 0)
    assert gf.pmap(lambda: 1.0, axis_size=8)().shape == (8,)


def test_callbacks_see_one_element_each():
    seen = []

    def f(x):
        gf.debug.callback(lambda x: seen.append(float(x)), x)
        return x

    gf.pmap(f)(np.arange(8.0)).block_until_ready()
    assert sorted(seen) == list(range(8))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gf.pmap(3), TypeError, "must be a function"),
        (lambda: gf.pmap(jnp.sin)(np.zeros(9)), ValueError, "got size 9 for 8 devices"),
        (lambda: gf.pmap(jnp.add)(np.zeros(8), np.zeros(4)), ValueError, "must have one size"),
        (lambda: gf.pmap(jnp.sin, in_axes=None)(1.0), ValueError, "at least one argument"),
        (lambda: gf.pmap(jnp.sin, in_axes="x"), TypeError, "ints and None"),
        (lambda: gf.pmap(jnp.sin, axis_name=[])(X), TypeError, "hashable"),
        (lambda: gf.pmap(jnp.sin)(np.float32(1)), ValueError, "in_axes must name an axis"),
        (lambda: gf.pmap(lambda x: lax.psum(x, "j"), "i")(X), NameError, "'j' must be bound"),
        (
            lambda: gf.pmap(jnp.sin, devices=gf.devices()[:2])(X),
            ValueError,
            "one element for each given device",
        ),
        (
            lambda: gf.pmap(jnp.add, static_broadcasted_argnums=1)(X, [1]),
            ValueError,
            "must be hashable",
        ),
        (
            lambda: gf.pmap(jnp.add, static_broadcasted_argnums=1, donate_argnums=1),
            ValueError,
            "cannot be donated",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_outputs_of_no_axis_are_compared_where_checks_are_on(monkeypatch):
    from dataclasses import replace

    f = gf.pmap(lambda x: x, out_axes=None)
    monkeypatch.setattr(config, "environment", replace(config.environment, check=False))
    np.testing.assert_array_equal(f(X), X[0])
    monkeypatch.setattr(config, "environment", replace(config.environment, check=True))
    with pytest.raises(ValueError, match="equal on all devices"):
        f(X)
    np.testing.assert_array_equal(gf.jit(f)(X), X[0])  # values are not known while tracing
    np.testing.assert_array_equal(f(np.ones((8, 2))), np.ones(2))
    np.testing.assert_array_equal(f(np.full((8, 1), np.nan)), [np.nan])


def test_flags_for_jax_name_the_number_of_devices(monkeypatch):
    from gpuflow.base.config import Config, read_environment

    monkeypatch.setenv("XLA_FLAGS", "--a=1 --xla_force_host_platform_device_count=6 --b")
    assert read_environment().cpu_devices == 6
    monkeypatch.setenv("GPUFLOW_CPU_DEVICES", "2")
    assert read_environment().cpu_devices == 2
    monkeypatch.delenv("GPUFLOW_CPU_DEVICES")
    config, device_count = Config(), "--xla_force_host_platform_device_count"
    monkeypatch.setenv("XLA_FLAGS", f"{device_count}=3")
    config.before_devices()
    assert config.environment.cpu_devices == 3  # set after the import, before devices are used
    config.update("num_cpu_devices", 5)
    config.before_devices()
    assert config.environment.cpu_devices == 5  # the flags did not change since
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=many")
    with pytest.raises(ValueError, match=r"\[config\] --xla_force.* an integer .* got 'many'"):
        read_environment()


def test_lowering_without_running():
    lowered = gf.pmap(lambda x: lax.psum(x, "i"), "i").lower(X)
    assert "reduce_sum" in lowered.as_text()


def test_what_is_compiled_has_the_trees_of_the_function():
    f = gf.pmap(lambda x, scale, *, shift: {"a": x * scale + shift}, in_axes=(0, None))
    compiled = f.lower(X, 2.0, shift=X).compile()
    result, wanted = compiled(X, 2.0, shift=X), f(X, 2.0, shift=X)
    np.testing.assert_array_equal(result["a"], wanted["a"])
    assert result["a"].sharding == wanted["a"].sharding
    with pytest.raises(TypeError, match=r"\[compiled\] arguments of .* must form the tree"):
        compiled(X, 2.0)
    static = gf.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)
    np.testing.assert_array_equal(static.lower(X, 3).compile()(X), 3 * X)


def test_devices_and_static_arguments_that_are_not_there():
    with pytest.raises(ValueError, match=r"devices must not be empty; got none. Fix:"):
        gf.pmap(lambda x: x, devices=[])
    with pytest.raises(ValueError, match=r"must be positions of arguments; got \(3,\) for 1 of"):
        gf.pmap(lambda x: x, static_broadcasted_argnums=3)(np.ones(8))
