"""``jax._src.util``: functions of sequences."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from gpuflow.as_jax.internals.api_util import safe_map as safe_map
from gpuflow.base.arguments import canonicalize_axis as _canonicalize_axis
from gpuflow.base.util import safe_zip as safe_zip

wraps = functools.wraps


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first and the second items of pairs."""
    listed = list(pairs)
    return tuple(first for first, _ in listed), tuple(second for _, second in listed)


def canonicalize_axis(axis: int, num_dims: int) -> int:
    """An axis counted from the front."""
    return _canonicalize_axis(axis, num_dims, "canonicalize_axis")
