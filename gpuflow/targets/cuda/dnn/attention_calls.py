"""Attention as libraries know it: one call on row-major arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from gpuflow.base.records import record


@record
class AttentionCall:
    """``softmax(query @ key.T * scale) @ value`` for each head, and the logarithms of its sums.

    Arrays are row-major: query and the result ``[batch, queries, heads, size]``, key and value
    ``[batch, keys, key_heads, size]``, logarithms ``f32[batch, heads, queries]``.

    Attributes:
        batch, queries, keys, heads, key_heads, size: of the arrays.
        scale: of the products of queries and keys.
        causal: query ``t`` sees keys up to ``t`` only.
        dtype: of all but the logarithms.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    size: int
    scale: float
    causal: bool
    dtype: np.dtype

    def __str__(self) -> str:
        mask = "causal " if self.causal else ""
        return (
            f"{mask}attention of {self.dtype.name} query "
            f"{[self.batch, self.queries, self.heads, self.size]} and key "
            f"{[self.batch, self.keys, self.key_heads, self.size]}"
        )


@record
class ChosenAttention:
    """A call with the library's choice for it.

    Attributes:
        call: the operation.
        rank: of the plan among those that the library's heuristic names.
        workspace_bytes: memory that it needs besides.
    """

    call: AttentionCall
    rank: int
    workspace_bytes: int


# Of the addresses of query, key, value, the result, the logarithms and the workspace; a seventh
# argument is the stream that is recorded, in place of the one that it was made for.
Attend = Callable[..., None]


class Attentions(Protocol):
    """A library of attention on one device."""

    def choose(self, call: AttentionCall, deterministic: bool) -> ChosenAttention | None:
        """The library's choice; None if it does not support the call, or is missing.

        Args:
            call: the operation.
            deterministic: results must have the same bits in every run.
        """
        ...

    def why_not(self, call: AttentionCall, deterministic: bool) -> str:
        """Why ``choose`` gave None for a call; for ``gpuflow.explain``."""
        ...

    def version(self) -> str:
        """The library's version, where ``choose`` gave something."""
        ...

    def bind(self, chosen: ChosenAttention, stream: int) -> Attend:
        """The bound operation; it allocates nothing on the device."""
        ...
