"""``jax._src.numpy.einsum``: sums of products by subscripts.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opt_einsum.parser import get_symbol

from gpuflow.core.types import Array
from gpuflow.lax import dot_general
from gpuflow.numpy import einsum as einsum
from gpuflow.numpy import einsum_path as einsum_path


def _einsum(
    operands: Sequence[Any],
    contractions: Sequence[Any],
    precision: Any,
    preferred_element_type: Any,
    _dot_general: Any = dot_general,
    out_sharding: Any = None,
) -> Array:
    """Sums of products in the order of a path of opt_einsum's."""
    remaining = list(operands)
    for positions, _, subscripts, *_ in contractions:
        factors = [remaining.pop(position) for position in positions]
        # Axes may have any symbols in a path, such as digits.
        symbols = sorted({*subscripts} - {*",->"})
        letters = str.maketrans({one: get_symbol(k) for k, one in enumerate(symbols)})
        remaining.append(
            einsum(
                subscripts.translate(letters),
                *factors,
                precision=precision,
                _dot_general=_dot_general,
                preferred_element_type=preferred_element_type,
                out_sharding=out_sharding,
            )
        )
    return remaining[0]
