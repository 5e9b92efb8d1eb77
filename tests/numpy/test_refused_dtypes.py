"""What no device computes with is refused wherever it could come in.

float128 was taken once, and failed later in a compiler that knows nothing of it.
"""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

DTYPES = (
    np.longdouble,
    np.clongdouble,
    np.dtype(object),
    np.dtype("U3"),
    np.dtype("S3"),
    np.dtype("M8[s]"),
    np.dtype("m8[D]"),
    np.dtype([("field", "f4")]),
)

X = np.ones(2, np.float32)

# Of an array of the dtype.
OPERANDS = {
    "asarray": jnp.asarray,
    "device_put": gf.device_put,
    "operator": lambda a: jnp.asarray(X) + a,
    "reflected operator": lambda a: a + jnp.asarray(X),
    "function": jnp.sin,
    "where": lambda a: jnp.where(True, X, a),
    "lax": lambda a: lax.neg(a),
    "jit": lambda a: gf.jit(lambda y: y)(a),
    "grad": lambda a: gf.grad(lambda y: y.sum())(a),
    "vmap": lambda a: gf.vmap(lambda y: y)(a),
    "scan": lambda a: lax.scan(lambda carry, y: (carry, y), 0.0, a),
}

# Of the dtype.
NAMES = {
    "zeros": lambda dtype: jnp.zeros(2, dtype),
    "array": lambda dtype: jnp.array([1, 2], dtype),
    "astype": lambda dtype: jnp.asarray(X).astype(dtype),
    "view": lambda dtype: jnp.asarray(X).view(dtype),
    "sum": lambda dtype: jnp.sum(X, dtype=dtype),
    "convert_element_type": lambda dtype: lax.convert_element_type(X, dtype),
    "bitcast": lambda dtype: lax.bitcast_convert_type(X, dtype),
    "full": lambda dtype: lax.full((2,), 1, dtype),
    "iota": lambda dtype: lax.iota(dtype, 3),
    "promote_types": lambda dtype: jnp.promote_types(dtype, "float32"),
    "eval_shape": lambda dtype: gf.eval_shape(lambda y: y, gf.ShapeDtypeStruct((2,), dtype)),
    "random": lambda dtype: gf.random.normal(gf.random.key(0), (2,), dtype),
}


@together()
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", OPERANDS)
def test_arrays_are_refused(name, dtype):
    with pytest.raises(TypeError, match="Fix: "):
        OPERANDS[name](np.zeros(2, dtype))


@together()
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", NAMES)
def test_names_are_refused(name, dtype):
    with pytest.raises((TypeError, ValueError), match="Fix: "):
        NAMES[name](dtype)
