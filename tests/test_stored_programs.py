"""Programs as new users write them, by their subject: what JAX 0.10 gives or refuses.

They stand in tests/data/array_programs.txt and its siblings, with JAX's outcomes beside them.
"""

from __future__ import annotations

import importlib
import json

import ml_dtypes
import numpy as np
import pytest
from stored_programs import DATA, FILES, MODULES, check, outcome, space_of

from gpuflow import as_jax

STORED = {name: json.loads((DATA / f"{name}.json").read_text()) for name in FILES}
CASES = [
    pytest.param(name, source, id=source.partition("\n")[0])
    for name, stored in STORED.items()
    for source in stored
]
# Derivatives that JAX refuses, or gives as nan; these are the limits.
LIMITS = {
    "jax.grad(lambda x: jax.ops.segment_prod(x, jnp.array([0,0,1]), 2).sum())"
    "(jnp.array([1.,2,3]))": [2, 1, 1],
    "jax.jacrev(lambda z: (z ** jnp.arange(3.)))(0.)": [0, 1, 0],
}
# Functions of float32 and sums may differ in the last place; nothing here cancels.
TOLERANCE = 3e-7


@pytest.fixture(scope="module")
def spaces():
    """For each file the names that its programs use; ``jax`` is gpuflow."""
    as_jax.install()
    for module in MODULES:
        importlib.import_module(module)
    jax = importlib.import_module("jax")
    space = {"jax": jax, "jnp": jax.numpy, "np": np, "lax": jax.lax, "ml_dtypes": ml_dtypes}
    yield {name: space_of(name, space) for name in FILES}
    as_jax.uninstall()


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE)
    if expected.dtype.kind == "f":
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(actual)[zeros], np.signbit(expected)[zeros])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "source"), CASES)
def test_program(name, source, spaces):
    result = outcome(source, spaces[name])
    if source in LIMITS:
        assert list(map(float, result["values"])) == LIMITS[source]
    else:
        check(result, STORED[name][source], close)
