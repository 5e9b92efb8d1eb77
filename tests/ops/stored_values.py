"""Expressions and their values from JAX 0.10, as make_sorting_values.py stored them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax

STORED = json.loads((Path(__file__).parents[1] / "data" / "sorting_values.json").read_text())
# A few roundings: JAX adds, multiplies and takes logarithms in the order of a tree.
TOLERANCE = {"float32": 1e-6, "complex64": 1e-6, "float16": 2e-3}


def check_expression(family: str, expression: str) -> None:
    """The expression, evaluated here, has the stored dtype, shape, values and signs of zeros."""
    space = {"jax": gpuflow, "jnp": jnp, "lax": lax}
    for name, text in STORED["operands"].items():
        space[name] = eval(text, dict(space))
    _compare(eval(expression, space), STORED[family][expression])


def _compare(got, want) -> None:
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, stored in zip(got, want, strict=True):
            _compare(one, stored)
        return
    assert (got.dtype.name, list(got.shape)) == (want["dtype"], want["shape"])
    kind = complex if got.dtype.kind == "c" else float
    expected = np.array([kind(v) for v in want["values"]], kind).reshape(got.shape)
    actual = np.asarray(got).astype(kind)
    limit = TOLERANCE.get(got.dtype.name, 0.0)
    np.testing.assert_allclose(actual, expected, rtol=limit, atol=limit)
    if kind is float:
        zeros = (actual == 0) & (expected == 0)
        np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros]))
