"""custom_partitioning runs a function's own rules on arrays that lie on a mesh."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental.custom_partitioning import (
    BATCHING,
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from gpuflow.experimental.sharding_rules import parse_rule
from gpuflow.sharding import NamedSharding
from gpuflow.sharding import PartitionSpec as P

X = np.arange(32, dtype=np.float32).reshape(8, 4)


def split_rows(values=X):
    mesh = gf.make_mesh((4,), ("x",), devices=gf.devices()[:4])
    return gf.device_put(values, NamedSharding(mesh, P("x")))


def make(seen, **rules):
    @custom_partitioning
    def centered(x):
        return x - x.sum(0)

    def partition(mesh, arguments, result):
        def part(x):
            seen.append(x.shape)
            return x - lax.psum(x.sum(0), "x")

        return mesh, part, result.sharding, (arguments[0].sharding,)

    centered.def_partition(partition, **rules)
    return centered


@pytest.mark.parametrize(
    "rules",
    [
        {"sharding_rule": "... j -> ... j"},
        {"sharding_rule": lambda mesh, arguments, result: "i j -> i j"},
        {"sharding_rule": SdyShardingRule(((BATCHING, "j"),), ((BATCHING, "j"),))},
        {"infer_sharding_from_operands": lambda mesh, arguments, result: arguments[0].sharding},
    ],
)
def test_each_device_runs_its_part(rules):
    seen = []
    out = make(seen, **rules)(split_rows())
    assert seen == [(2, 4)] and tuple(out.sharding.spec)[:1] == ("x",)
    np.testing.assert_array_equal(out, X - X.sum(0))


def test_elsewhere_it_is_the_function():
    seen = []
    function = make(seen, sharding_rule="i j -> i j")
    wanted = X - X.sum(0)
    np.testing.assert_array_equal(function(X), wanted)
    np.testing.assert_array_equal(gf.jit(function)(split_rows()), wanted)
    np.testing.assert_array_equal(gf.vmap(function)(X[None])[0], wanted)
    assert gf.grad(lambda x: function(x)[0, 0])(X).shape == X.shape
    assert seen == [] and function.__name__ == "centered"
    plain = custom_partitioning(jnp.sin)
    np.testing.assert_array_equal(plain(split_rows()), jnp.sin(X))


def test_static_arguments_come_first():
    @custom_partitioning
    def scaled(x, factor):
        return x * factor

    scaled.static_argnums = (1,)

    def partition(factor, mesh, arguments, result):
        return mesh, lambda x: x * factor, result.sharding, (arguments[0].sharding,)

    scaled.def_partition(partition, sharding_rule="i j -> i j")
    np.testing.assert_array_equal(scaled(split_rows(), factor=3), X * 3)


def test_specs_follow_factors():
    rule = parse_rule("... i, i j -> ... j", reduction_factors=("i",))
    assert rule.result_specs([("a", None, "b"), ("b", "c")], [3, 2], [3]) == [("a", None, "c")]
    assert rule.result_specs([(), ("b",)], [1, 2], [1]) == [(None,)]
    rule = parse_rule("i j -> j i", need_replication_factors=("j",))
    assert rule.result_specs([("a", "b")], [2], [2]) == [(None, "a")]
    assert parse_rule("i, j -> i j").result_specs([("a",), ("a",)], [1, 1], [2]) == [("a", None)]
    rule = parse_rule("(i k) j -> i j", k=2)
    assert rule.operand_mappings == (ArrayMapping(CompoundFactor("i", "k"), "j"),)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: parse_rule("i j"), "must have one arrow"),
        (lambda: parse_rule("i ( j -> i"), "names and brackets alone"),
        (lambda: parse_rule("i ... -> i"), "an ellipsis must be in front"),
        (lambda: parse_rule("(i k) -> i"), r"sizes must be those of .*\['k'\]"),
        (lambda: parse_rule("i -> i", reduction_factors=("j",)), "special factors"),
        (lambda: CompoundFactor("i"), "two factors at least"),
        (lambda: ArrayMapping(3), "must be a name or a CompoundFactor"),
        (lambda: parse_rule("i -> i").result_specs([()], [2], [1]), "must have the dimensions"),
        (
            lambda: custom_partitioning(abs).def_partition(None, reduction_factors=("i",)),
            "must come with a rule as text",
        ),
    ],
)
def test_wrong_rules(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_what_is_no_sharding_is_refused():
    function = custom_partitioning(lambda x: x)
    function.def_partition(lambda mesh, arguments, result: (mesh, abs, P("x"), (P("x"),)))
    with pytest.raises(TypeError, match="must give NamedShardings"):
        function(split_rows())
    with pytest.raises(TypeError, match="must have positions"):
        custom_partitioning(lambda *, x: x)(x=1)
