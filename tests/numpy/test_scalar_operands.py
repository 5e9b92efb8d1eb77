"""Scalars of Python and NumPy as operands: results are Arrays; bools count as JAX counts them."""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

SCALARS = [
    True,
    np.bool_(True),
    np.array(True),
    2,
    np.int8(2),
    np.int64(2),
    1.5,
    np.float64(1.5),
    np.float16(1.5),
    1j,
]
# Functions that leave some operands as they are.
UNCHANGED = ["abs", "floor", "ceil", "real", "conj", "squeeze", "flip", "positive", "ravel",
             "asarray", "atleast_1d", "nan_to_num", "round", "trunc", "negative"]  # fmt: skip


@together(size=30)
@pytest.mark.parametrize("name", UNCHANGED)
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda x: f"{type(x).__name__}-{x}")
def test_results_are_arrays(name, scalar):
    """abs(np.bool_) was an np.bool_, real(np.float64) a float64 without 64-bit dtypes."""
    function = getattr(jnp, name)
    try:
        compiled = gf.jit(function)(scalar)
    except TypeError:
        with pytest.raises(TypeError):
            function(scalar)
        return
    out = function(scalar)
    assert isinstance(out, gf.Array)
    assert (out.dtype, out.weak_type) == (compiled.dtype, compiled.weak_type)
    np.testing.assert_array_equal(out, compiled)
    if name != "real" or np.isrealobj(scalar):
        numpy_name = "positive" if name == "asarray" else name
        if np.result_type(scalar).kind != "b" or numpy_name not in ("positive", "negative"):
            expected = getattr(np, numpy_name)(scalar)
            np.testing.assert_array_equal(np.ravel(out), np.ravel(expected))


def test_numpy_arrays_that_stay_as_they_are_become_arrays():
    for out in (
        jnp.atleast_1d(np.ones(2)),
        jnp.atleast_2d(np.ones((2, 2))),
        jnp.real(np.ones(2)),
        jnp.conj(np.ones(2)),
        jnp.abs(np.ones(2, bool)),
    ):
        assert isinstance(out, gf.Array)


@pytest.mark.parametrize("true", [True, np.bool_(True), np.array(True)], ids=repr)
def test_bools_as_numbers(true):
    """Results of JAX 0.10.2."""
    x, ones = jnp.arange(3), jnp.ones((2, 2))
    for wrap in (lambda f: f, gf.jit):
        assert int(wrap(lambda: jnp.take(x, true))()) == 1
        np.testing.assert_array_equal(wrap(lambda: jnp.eye(2, k=true))(), [[0, 1], [0, 0]])
        np.testing.assert_array_equal(wrap(lambda: jnp.triu(ones, k=true))(), [[0, 1], [0, 0]])
        assert int(wrap(lambda: lax.fori_loop(False, true, lambda k, n: n + 1, 0))()) == 1
        assert int(wrap(lambda: lax.fori_loop(true, true, lambda k, n: n + 1, 0))()) == 0
        assert wrap(lambda: x + true)().dtype == "int32"
        assert wrap(lambda: jnp.ones(2) * true)().dtype == "float32"
        assert wrap(lambda: jnp.add(true, np.int8(1)))().dtype == "int8"
    np.testing.assert_array_equal(jnp.take(x, jnp.array([True, False, True])), [1, 0, 1])
    if not isinstance(true, np.ndarray):  # which has no hash
        assert int(gf.jit(lambda flag: 1 if flag else 2, static_argnums=0)(true)) == 1
    with pytest.raises(gf.errors.TracerBoolConversionError):
        gf.jit(lambda flag: 1 if flag else 2)(true)
