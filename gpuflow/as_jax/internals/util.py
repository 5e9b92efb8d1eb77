"""``jax._src.util``: functions of sequences and integers.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuflow.base import arguments


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first and the second items of pairs."""
    listed = list(pairs)
    return tuple(first for first, _ in listed), tuple(second for _, second in listed)


def canonicalize_axis(axis: int, num_dims: int) -> int:
    """An axis counted from the front."""
    return arguments.canonicalize_axis(axis, num_dims, "canonicalize_axis")


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return (a + b - 1) // b


def next_power_of_2(x: int) -> int:
    """The least power of two that is not less than ``x``."""
    return 1 << max(0, x - 1).bit_length()
