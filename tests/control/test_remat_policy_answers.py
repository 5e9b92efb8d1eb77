"""Policies may answer with Saveable and Recompute, as in JAX."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow.ad_checkpoint import Offloadable, Recompute, Saveable


@pytest.mark.parametrize("answer", [Saveable, Recompute])
def test_answers(answer):
    function = gpuflow.checkpoint(
        lambda x: jnp.sum(jnp.sin(jnp.sin(x))), policy=lambda *args, **kwargs: answer
    )
    x = jnp.arange(3.0)
    want = np.cos(np.sin(np.arange(3.0))) * np.cos(np.arange(3.0))
    np.testing.assert_allclose(np.asarray(gpuflow.grad(function)(x)), want, rtol=2e-6)
    jaxpr = str(gpuflow.make_jaxpr(gpuflow.grad(function))(x))
    # What may be stored is not computed again.
    assert jaxpr.count("sin") == (2 if answer is Saveable else 3)


def test_other_memories():
    with pytest.raises(NotImplementedError, match=r"\[Offloadable\].*Fix: return Saveable"):
        Offloadable("device", "pinned_host")
