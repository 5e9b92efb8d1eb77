"""Policies and loss scales: casts of trees, and factors that keep gradients finite."""

import doctest

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import mixed_precision as mp

F32, F16, BF16 = jnp.float32, jnp.float16, jnp.bfloat16
TREE = {
    "w": jnp.ones((2, 2)),
    "host": np.ones(2, np.float64),
    "n": jnp.arange(3),
    "z": jnp.ones(2, "c8"),
    "key": gf.random.key(0),
    "flag": True,
    "number": 2.0,
    "none": None,
}


def test_casts():
    policy = mp.Policy(F32, BF16, F16)
    for cast, dtype in (
        (policy.cast_to_param, "float32"),
        (policy.cast_to_compute, "bfloat16"),
        (policy.cast_to_output, "float16"),
    ):
        got = cast(TREE)
        assert got["w"].dtype.name == got["host"].dtype.name == dtype
        for name in ("n", "z", "key", "flag", "number", "none"):
            assert got[name] is TREE[name]
        traced = gf.jit(cast)({"w": TREE["w"], "n": TREE["n"]})
        assert traced["w"].dtype.name == dtype and traced["n"].dtype == np.int32
    assert policy.with_output_dtype(F32) == mp.Policy(F32, BF16, F32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f32", "p=f32,c=f32,o=f32"),
        ("c=bf16", "p=f32,c=bf16,o=bf16"),
        ("p=f16", "p=f16,c=f16,o=f16"),
        ("bfloat16",) * 2,
        ("params=float32, compute=float16, output=full", "p=f32,c=f16,o=f32"),
    ],
)
def test_policies_of_texts(text, said):
    policy = mp.get_policy(text)
    assert str(policy) == said.replace("bfloat16", "p=bf16,c=bf16,o=bf16")
    assert mp.get_policy(str(policy)) == policy


@pytest.mark.parametrize("text", ["half", "x=f32", "p=f33", "", "p=f32,p=bf16", "o=f16,output=f16"])
def test_wrong_texts(text):
    with pytest.raises(ValueError, match=r"\[get_policy\].*Fix:"):
        mp.get_policy(text)


def reference(scale, counter, finite, period, factor, least):
    """The rule of the paper, in Python's numbers."""
    if not finite:
        return max(least, scale / factor), 0
    if counter + 1 < period:
        return scale, counter + 1
    with np.errstate(over="ignore"):
        grown = np.float32(scale * factor)
    return (float(grown) if np.isfinite(grown) else scale), 0


@pytest.mark.parametrize("how", [lambda f: f, gf.jit], ids=["eager", "jit"])
def test_dynamic_scales_follow_the_rule(how):
    adjust = how(lambda scale, finite: scale.adjust(finite))
    rng = np.random.default_rng(0)
    cases = ((2.0**15, 3, 2, 1.0), (2.0**126, 1, 4, 8.0), (2.0, 2, 2, 1.5))
    for start, period, factor, least in cases:
        scale = mp.DynamicLossScale(
            jnp.float32(start), period=period, factor=factor, min_loss_scale=jnp.float32(least)
        )
        want = (start, 0)
        for finite in rng.random(40) < 0.6:
            want = reference(*want, finite, period, factor, least)
            scale = adjust(scale, jnp.asarray(finite))
            assert (float(scale.loss_scale), int(scale.counter)) == want
            assert float(scale.min_loss_scale) == least and scale.period == period
            assert scale.loss_scale.dtype == np.float32 and scale.counter.dtype == np.int32


def test_scaling_and_back():
    values = {"w": jnp.asarray([1.0, -3.0]), "n": jnp.arange(2), "half": jnp.asarray([0.5], F16)}
    dynamic = mp.DynamicLossScale(jnp.float32(8))
    for scale in (mp.NoOpLossScale(), mp.StaticLossScale(64.0), dynamic):
        factor = float(scale.loss_scale)
        scaled = gf.jit(lambda s, v: s.scale(v))(scale, values)
        np.testing.assert_array_equal(scaled["w"], np.asarray(values["w"]) * factor)
        np.testing.assert_array_equal(scaled["n"], values["n"])
        back = scale.unscale(scaled)
        np.testing.assert_array_equal(back["w"], values["w"])
        np.testing.assert_array_equal(back["half"], values["half"])
        assert scale.adjust(jnp.asarray(True)).scale(2.0) == 2.0 * factor
        assert len(gf.tree.leaves(scale)) == {1: 0, 64: 1, 8: 3}[int(factor)]


def test_finite_trees_and_choices():
    assert bool(mp.all_finite({})) and bool(mp.all_finite({"n": jnp.arange(3), "x": 1.0}))
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert not bool(gf.jit(mp.all_finite)([jnp.ones(3), jnp.asarray([0.0, bad], F16)]))
    new, old = {"w": jnp.ones(2), "n": 1}, {"w": jnp.zeros(2), "n": 0}
    assert int(mp.select_tree(jnp.asarray(True), new, old)["n"]) == 1
    assert float(gf.jit(mp.select_tree)(False, new, old)["w"].sum()) == 0
    with pytest.raises(TypeError, match=r"\[select_tree\] pred must be bool.*got f32\[2\].*Fix"):
        mp.select_tree(jnp.ones(2), new, old)


def test_a_step_in_float16_skips_what_overflows():
    """Least squares in float16 with too large a scale: it falls until gradients are finite."""
    policy = mp.get_policy("p=f32,c=f16,o=f32")
    x = np.random.default_rng(1).normal(size=(64, 3)).astype("f")
    y = x @ np.array([1.0, -2.0, 0.5], "f")

    @gf.jit
    def step(w, scale):
        def loss(w):
            w, inputs = policy.cast_to_compute((w, x))
            error = policy.cast_to_output(inputs @ w) - y
            return scale.scale(jnp.mean(error**2))

        grads = scale.unscale(policy.cast_to_param(gf.grad(loss)(w)))
        finite = mp.all_finite(grads)
        return mp.select_tree(finite, w - 0.1 * grads, w), scale.adjust(finite), finite

    w, scale, all_ = jnp.zeros(3), mp.DynamicLossScale(jnp.float32(2.0**24)), []
    for _ in range(120):
        w, scale, finite = step(w, scale)
        all_.append(bool(finite))
    assert not all_[0] and all(all_[20:]) and np.isfinite(np.asarray(w)).all()
    np.testing.assert_allclose(w, [1.0, -2.0, 0.5], atol=5e-3)  # 11 bits, 64 rows
    assert 1 < float(scale.loss_scale) < 2.0**24


def test_examples_of_docstrings():
    assert doctest.testmod(mp).attempted >= 6
    assert doctest.testmod(mp).failed == 0
