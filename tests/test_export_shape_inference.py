"""Shapes of results where sizes are symbols, as Keras asks for them."""

import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import export


def test_eval_shape_of_symbolic_sizes():
    (d,) = export.symbolic_shape("(d)", constraints=["d>=2"])
    x = gf.ShapeDtypeStruct((d, 6), jnp.float32)
    out = gf.eval_shape(lambda x: {"a": x @ jnp.ones((6, 4)), "b": x.reshape(-1, 3)}, x)
    assert out["a"].shape == (d, 4) and out["b"].shape == (2 * d, 3)
    assert out["a"].dtype == jnp.float32 and not export.is_symbolic_dim(out["a"].shape[1])
    assert gf.eval_shape(lambda x: x.sum(), x).shape == ()
    (other,) = export.symbolic_shape("e")
    with pytest.raises(export.ExportError, match="must share a scope"):
        gf.eval_shape(lambda x, y: x, x, gf.ShapeDtypeStruct((other,), jnp.float32))
    with pytest.raises(export.ExportError, match="tree of results"):
        gf.eval_shape(lambda x: [x] * min(x.shape[0], 3), x)
