"""Eager evaluation: results own their memory, shape rules are remembered, finite checks."""

import threading
import warnings

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.primitive import Primitive, registry
from gpuflow.runtime.eager import cached_call


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.T,
        lambda x: x.reshape(-1),
        lambda x: x[0],
        lambda x: x[:],
        lambda x: x[::-1],
        lambda x: jnp.broadcast_to(x, (2, 2, 3)),
        lambda x: x.astype("float32"),
        lambda x: jnp.real(x),
        lambda x: lax.copy(x),
        jnp.squeeze,
        jnp.ravel,
    ],
)
def test_results_do_not_share_memory(f):
    x = jnp.arange(6.0).reshape(2, 3)
    out = f(x)
    if out is not x:
        assert not np.shares_memory(np.asarray(out), np.asarray(x))
        assert out.data.flags.c_contiguous


def test_numpy_operands_are_read_where_they_are_and_never_kept():
    x = np.arange(4, dtype="f")
    out = lax.copy(x)
    x[:] = 7
    np.testing.assert_array_equal(out, [0, 1, 2, 3])


def test_no_numpy_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = jnp.asarray([0.0, -1.0, 1e38])
        jnp.log(x), x / 0, jnp.exp(x), x * 1e10, jnp.sqrt(x), jnp.arange(3) // 0
        assert np.isinf(jnp.add(np.array([1e300]), 1)[0].item())


def test_shape_rules_are_remembered():
    add = registry()["add"]
    avals = (jnp.ones(3).aval, jnp.ones(3).aval)
    driver = gf.devices("cpu")[0].driver
    assert cached_call(add, avals, {}, driver) is cached_call(add, avals, {}, driver)
    calls = []

    def shape(x, *, table):
        calls.append(table)
        return x

    odd = Primitive("odd", shape=shape, impl=lambda xp, x, table: x)
    for _ in range(2):
        odd.bind(jnp.ones(2), table={"not": "hashable"})
    assert len(calls) == 2


def test_an_impl_that_breaks_its_shape_rule_is_named():
    odd = Primitive("odd", shape=lambda x: x, impl=lambda xp, x: x[:1])
    with pytest.raises(RuntimeError, match=r"\[odd\] impl must give shape \(3,\); got \(1,\)"):
        odd.bind(jnp.ones(3))


@pytest.mark.parametrize(
    ("setting", "f"), [("debug_nans", jnp.log), ("debug_infs", jnp.reciprocal)]
)
def test_finite_checks(setting, f):
    x = jnp.asarray([-1.0, 0.0])
    f(x)
    with gf.config.override(setting, True), pytest.raises(FloatingPointError, match="Fix: check"):
        f(x)


@pytest.mark.parametrize(
    ("setting", "f", "op"),
    [("debug_nans", jnp.log, "log"), ("debug_infs", jnp.reciprocal, "div")],
)
def test_finite_checks_in_compiled_programs(setting, f, op):
    """debug_nans was silent under jit, where most programs run. It names the op inside."""
    x = jnp.asarray([-1.0, 0.0])
    compiled = gf.jit(f)
    compiled(x)
    with gf.config.override(setting, True), pytest.raises(FloatingPointError, match=rf"\[{op}\]"):
        compiled(x)
    compiled(x)


def test_default_device():
    device = gf.devices()[0]
    with gf.default_device(device):
        assert jnp.ones(2).device == device


def test_threads():
    failures = []

    def work(seed):
        x = np.random.default_rng(seed).normal(size=100).astype("f")
        for _ in range(30):
            if not np.allclose(jnp.sum(jnp.sin(x) * 2), np.sum(np.sin(x) * 2), atol=1e-3):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
