"""The order of complex numbers with nan in a component: NumPy's, everywhere that sorts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

COMPONENTS = [0.0, 1.0, -2.0, np.nan, np.inf, -np.inf]
VALUES = np.array([complex(*pair) for pair in product(COMPONENTS, COMPONENTS)], np.complex64)
X = np.random.default_rng(5).permutation(np.concatenate([VALUES, VALUES[::3]]))
SORTED = np.sort(X)

CASES = {
    "sort": (jnp.sort, np.sort, X),
    "sort columns": (
        lambda x: jnp.sort(x.reshape(6, -1), 0),
        lambda x: np.sort(x.reshape(6, -1), 0),
        X,
    ),
    "sort descending": (lambda x: jnp.sort(x, descending=True), lambda x: np.sort(x)[::-1], X),
    "sort_complex": (jnp.sort_complex, np.sort_complex, X),
    "method": (lambda x: jnp.asarray(x).sort(), np.sort, X),
    "argsort": (jnp.argsort, lambda x: np.argsort(x, kind="stable"), X),
    "lexsort": (lambda x: jnp.lexsort((x, x.real > 0)), lambda x: np.lexsort((x, x.real > 0)), X),
    "unique": (lambda x: jnp.unique(x, size=40), None, X),
    "max": (jnp.max, np.max, X),
    "min": (jnp.min, np.min, X),
    "nanmax": (jnp.nanmax, np.nanmax, X),
    "nanmin": (jnp.nanmin, np.nanmin, X),
    "maximum": (lambda x: jnp.maximum(x, x[::-1]), lambda x: np.maximum(x, x[::-1]), X),
    "minimum": (lambda x: jnp.minimum(x, x[::-1]), lambda x: np.minimum(x, x[::-1]), X),
}
for _side in ("left", "right"):
    for _method in ("scan", "scan_unrolled", "sort", "compare_all"):
        CASES[f"searchsorted {_side} {_method}"] = (
            lambda x, s=_side, m=_method: jnp.searchsorted(SORTED, x, side=s, method=m),
            lambda x, s=_side: np.searchsorted(SORTED, x, side=s),
            X,
        )


@pytest.mark.parametrize("name", CASES)
def test_complex_order_is_that_of_numpy(name):
    """2 + nan j came before 3: real components were compared first, whatever the other one is."""
    function, reference, x = CASES[name]
    if reference is None:
        distinct = np.unique(x)
        expected = np.concatenate([distinct, np.full(40 - len(distinct), distinct[0])])
    else:
        expected = reference(x)
    for call in (function, gf.jit(function)):
        np.testing.assert_array_equal(np.asarray(call(x)), expected)
    if name != "unique":
        mapped = np.asarray(gf.vmap(function)(np.stack([x, x[::-1]])))
        np.testing.assert_array_equal(mapped[0], expected)
        np.testing.assert_array_equal(mapped[1], reference(x[::-1]))


def test_derivatives_go_with_the_elements():
    x = np.array([complex(2, np.nan), 3 + 1j, 1 - 1j], np.complex64)
    _, tangent = gf.jvp(jnp.sort, (x,), (np.array([1, 2, 3], np.complex64),))
    np.testing.assert_array_equal(tangent, [3, 2, 1])
