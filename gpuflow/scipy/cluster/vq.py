"""Vector quantization.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_arrays
from gpuflow.numpy.promotion import promote_dtypes_inexact


def vq(obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """Return the nearest entry of a code book for each observation.

    Args:
        obs: (n, features), or n scalars. code_book: (entries, features), or scalars.
        check_finite: accepted; no effect.

    Returns:
        (i32[n], distances): the index of the entry, and its distance.

    Raises:
        ValueError: if the ranks or numbers of features do not match.
    """
    del check_finite
    obs, code_book = promote_dtypes_inexact(*as_arrays("vq", obs, code_book))
    avals = aval_of(obs), aval_of(code_book)
    ranks_match = avals[0].ndim == avals[1].ndim and avals[0].ndim in (1, 2)
    check(
        ranks_match and (avals[0].ndim == 1 or avals[0].shape[1] == avals[1].shape[1]),
        lambda: (
            "[vq] observations and code book must be matrices with equal columns, or vectors; "
            f"got {avals[0]} and {avals[1]}. Fix: reshape them."
        ),
        ValueError,
    )
    if avals[0].ndim == 1:
        obs, code_book = obs[:, None], code_book[:, None]
    distance = jnp.linalg.norm(obs[:, None] - code_book[None], axis=-1)
    return jnp.argmin(distance, -1), jnp.min(distance, -1)


publish(globals(), "scipy.cluster.vq", public_names(globals(), __name__))
