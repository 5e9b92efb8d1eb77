"""Programs over arrays, dtypes and lax, as new users write them: what JAX 0.10 gives or refuses.

The expressions stand in tests/data/array_programs.txt by their subject, the values beside them.
"""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import Array, lax

STORED = json.loads((Path(__file__).parents[1] / "data" / "array_programs.json").read_text())
SPACE = {"jax": gpuflow, "jnp": jnp, "np": np, "lax": lax, "ml_dtypes": ml_dtypes}
# Functions of float32 and sums may differ in the last place; nothing here cancels.
TOLERANCE = 3e-7


def check(got, want):
    if isinstance(want, list):
        assert isinstance(got, tuple | list) and len(got) == len(want)
        for one, stored in zip(got, want, strict=True):
            check(one, stored)
        return
    if isinstance(want, str):
        assert str(got) == want
        return
    assert isinstance(got, Array | np.ndarray)
    host = np.asarray(got)
    assert [host.dtype.name, list(host.shape)] == [want["dtype"], want["shape"]]
    kind = complex if host.dtype.kind == "c" else float
    expected = np.array([kind(v) for v in want["values"]]).reshape(host.shape)
    actual = host.astype(expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE)
    if kind is float:
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(actual)[zeros], np.signbit(expected)[zeros])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", list(STORED))
def test_expression(expression):
    want = STORED[expression]
    if isinstance(want, dict) and "error" in want:
        with pytest.raises(getattr(builtins, want["error"])):
            eval(expression, dict(SPACE))
        return
    check(eval(expression, dict(SPACE)), want)
