"""Random numbers against values stored from JAX 0.10, bit for bit where the ops are exact."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import random
from gpuflow.base.config import config
from gpuflow.random import base

STORED = json.loads((Path(__file__).parent / "data" / "random_values.json").read_text())
# Samplers that end in a logarithm, tangent or inverse error function, which libraries round
# differently: relative to the larger of the value and 1.
ROUNDED = {"normal", "exponential", "gumbel", "laplace", "logistic", "cauchy", "truncated_normal"}
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-14}


def stored_array(entry):
    dtype = entry["dtype"]
    if dtype == "complex64":
        pairs = np.array(entry["bits"], "u4" if max(entry["bits"]) < 2**32 else "u8")
        return pairs.view(np.float32).reshape(entry["shape"]) if pairs.itemsize == 4 else pairs
    if dtype == "bool":
        return np.array(entry["bits"], bool).reshape(entry["shape"])
    dtype = np.dtype(getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else dtype)
    bits = np.array(entry["bits"], f"u{dtype.itemsize}")
    return bits.view(dtype).reshape(entry["shape"])


def call(case, key):
    options = {
        k: tuple(v) if k in ("shape", "num") and v is not None and isinstance(v, list) else v
        for k, v in case["options"].items()
    }
    for field in ("logits", "p", "a", "x"):
        if isinstance(options.get(field), list):
            options[field] = jnp.array(options[field])
    return getattr(random, case["name"])(key, **options)


def check(case, got):
    want = stored_array(case["out"])
    got = np.asarray(got)
    if got.dtype.kind == "c":
        got = np.stack([got.real, got.imag], -1)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if case["name"] not in ROUNDED:
        np.testing.assert_array_equal(got, want)
        return
    limit = TOLERANCE[got.dtype.name]
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


def identify(case):
    return f"{case['name']}-{case['options']}"


@pytest.mark.parametrize("entry", STORED["seeds"], ids=lambda entry: str(entry["seed"]))
def test_seed(entry):
    raw = random.PRNGKey(entry["seed"])
    np.testing.assert_array_equal(np.asarray(raw), stored_array(entry["key"]))
    np.testing.assert_array_equal(
        np.asarray(random.key_data(random.key(entry["seed"]))), np.asarray(raw)
    )


@pytest.mark.parametrize("case", STORED["default"], ids=identify)
def test_default_layout(case):
    check(case, call(case, random.PRNGKey(1337)))


@pytest.mark.parametrize("case", STORED["default"], ids=identify)
def test_typed_keys_give_the_same(case):
    out = call(case, random.key(1337))
    check(case, random.key_data(out) if case["name"] in ("split", "fold_in") else out)


@pytest.mark.parametrize("case", STORED["legacy"], ids=identify)
def test_legacy_layout(case):
    with config.override("threefry_partitionable", False):
        check(case, call(case, random.PRNGKey(1337)))


@pytest.mark.parametrize("case", STORED["x64"], ids=identify)
def test_64_bits(case):
    with config.override("enable_x64", True):
        check(case, call(case, random.PRNGKey(1337)))


@pytest.mark.parametrize("sampler", ["uniform", "normal", "gumbel", "bits", "bernoulli"])
def test_jit_and_vmap_give_the_eager_numbers(sampler):
    keys = random.split(random.key(3), 4)

    def draw(key):
        function = getattr(random, sampler)
        return function(key, shape=(5,))

    one_by_one = np.stack([np.asarray(draw(keys[k])) for k in range(4)])
    np.testing.assert_allclose(np.asarray(gpuflow.vmap(draw)(keys)), one_by_one, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(gpuflow.jit(draw)(keys[1])), one_by_one[1], rtol=1e-6)


def test_truncated_normal_stays_inside():
    out = np.asarray(random.truncated_normal(random.key(0), jnp.zeros(()), 1e-6, (1000,)))
    assert (out > 0).all() and (out < 1e-6).all()


def test_next_after_agrees_with_numpy():
    x = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, np.inf, -np.inf, 3.4e38], np.float32)
    for towards in (np.inf, -np.inf):
        got = base._next_after(jnp.asarray(x), towards)
        np.testing.assert_array_equal(np.asarray(got), np.nextafter(x, np.float32(towards)))


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: random.uniform(random.split(random.key(0))), ValueError, "single one"),
        (lambda: random.uniform(3), TypeError, r"\[uniform\] the key .* of u32\[2\]; got i32"),
        (lambda: random.uniform("key"), TypeError, r"random\.key\(0\)"),
        (lambda: random.uniform(random.key(0), dtype=int), ValueError, "float dtype"),
        (lambda: random.key(jnp.arange(2)), TypeError, "one integer"),
        (lambda: random.key(1.5), TypeError, "integer seeds"),
        (lambda: random.key(0, impl="mt"), ValueError, "implementation"),
        (lambda: random.fold_in(random.key(0), jnp.arange(2)), TypeError, "vmap"),
        (lambda: random.bernoulli(random.key(0), 1), TypeError, "must be a float"),
        (lambda: random.uniform(random.key(0), (2,), minval=jnp.zeros(3)), ValueError, "broadcast"),
        (lambda: random.choice(random.key(0), 5, (6,), replace=False), ValueError, "at most 5"),
        (lambda: random.choice(random.key(0), 5, p=jnp.ones(4)), ValueError, "each of 5"),
        (lambda: random.choice(random.key(0), jnp.ones(0)), ValueError, "something to choose"),
        (lambda: random.permutation(random.key(0), 2.5), TypeError, "must be an integer"),
        (lambda: random.permutation(random.key(0), jnp.ones(3), 1), ValueError, "axis"),
        (lambda: random.randint(random.key(0), (2,), 0, 5, float), TypeError, "integer dtype"),
        (lambda: random.bits(random.key(0), dtype=int), ValueError, "unsigned"),
        (lambda: random.unifrom, AttributeError, r"random\.uniform"),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()
