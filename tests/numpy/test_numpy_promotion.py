"""Promotion of every pair of dtypes and Python scalars, as stored from JAX 0.10."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import TypePromotionError
from gpuflow.core.aval import aval_of

STORED = json.loads((Path(__file__).parents[1] / "data" / "promotion.json").read_text())
SCALARS = {"int*": 1, "float*": 1.0, "complex*": 1j}
PAIRS = list(STORED["x32"])


def operand(name):
    if name in SCALARS:
        return SCALARS[name]
    return np.ones((2,), getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def described(dtype, weak):
    return dtype.name + ("*" if weak else "")


@together(by="width", size=400)
@pytest.mark.parametrize("width", ["x32", "x64"])
@pytest.mark.parametrize("pair", PAIRS)
def test_promote(pair, width):
    with config.override("enable_x64", width == "x64"):
        avals = [aval_of(operand(name)) for name in pair.split()]
        got = dtypes.promote(*[(aval.dtype, aval.weak_type) for aval in avals])
    assert described(*got) == STORED[width][pair]


@together(size=400)
@pytest.mark.parametrize("pair", PAIRS)
def test_add(pair):
    out = jnp.add(*[operand(name) for name in pair.split()])
    assert described(out.dtype, out.weak_type) == STORED["x32"][pair]


@together()
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "*" in pair])
def test_operators_promote_arrays_as_functions_do(pair):
    first, second = (jnp.asarray(operand(name)) for name in pair.split())
    out = first * second
    want = STORED["x32"][pair]
    assert described(out.dtype, out.weak_type) == want


def test_strict_promotion_refuses_mixtures():
    with config.override("numpy_dtype_promotion", "strict"):
        assert (jnp.ones(2) + 1).dtype == np.float32
        with pytest.raises(TypePromotionError, match="one dtype under strict promotion"):
            jnp.ones(2) + jnp.arange(2)


def test_float8_does_not_promote_implicitly():
    small = jnp.ones(2, jnp.float8_e5m2)
    with pytest.raises(TypePromotionError, match="astype"):
        small + jnp.ones(2)


@pytest.mark.parametrize("mode", ["warn", "raise"])
def test_rank_promotion_setting(mode):
    x, v = jnp.ones((2, 3)), jnp.ones(3)
    with config.override("numpy_rank_promotion", mode):
        assert (x + 1).shape == (2, 3)
        if mode == "raise":
            with pytest.raises(ValueError, match=r"one rank.*x\[None\]"):
                x + v
        else:
            with pytest.warns(UserWarning, match="one rank"):
                assert (x + v).shape == (2, 3)


def test_tangents_of_integers_are_no_numbers():
    """They raised a KeyError of the table."""
    for both in ((np.ones(2, "f"), np.zeros(2, dtypes.float0)), (np.zeros(2, dtypes.float0), 1)):
        with pytest.raises(TypeError, match=r"\[promote\] operands must hold numbers; got void"):
            jnp.multiply(*both)


def test_powers_of_traced_numbers():
    """A float to a traced Python int is weak, as of JAX: it does not widen float32."""
    with gf.enable_x64():
        x = jnp.ones(2, jnp.float32)
        assert gf.jit(lambda n: 2.0**n)(3).weak_type
        assert gf.jit(lambda n: jnp.maximum(0.5**n, 1.0) * x)(3).dtype == jnp.float32
        assert lax.fori_loop(0, 3, lambda n, x: x * 0.5**n, x).dtype == jnp.float32
        # Powers of integers are not.
        assert not gf.jit(lambda n: 2**n)(3).weak_type
        assert gf.jit(lambda n: 2**n * jnp.int8(1))(3).dtype == jnp.int64
