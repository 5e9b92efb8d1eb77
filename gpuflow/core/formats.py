"""Formats of arrays: shardings, and dimension order. Arrays are row-major.

Tests: tests/experimental/test_older_names.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.sharding import Sharding


@record
class Layout:
    """The order of an array's dimensions in memory.

    Args:
        major_to_minor: the dimensions, slowest first; always (0, 1, ...).
        tiling: None.
        sub_byte_element_size_in_bits: 0.

    Raises:
        NotImplementedError: if the order is not row-major, or tiles are given.

    Example:
        >>> from gpuflow.experimental.layout import Layout
        >>> Layout((0, 1)).major_to_minor
        (0, 1)
    """

    major_to_minor: tuple[int, ...]
    tiling: Sequence[Sequence[int]] | None = None
    sub_byte_element_size_in_bits: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "major_to_minor", tuple(self.major_to_minor))
        check(
            self.major_to_minor == tuple(range(len(self.major_to_minor))) and not self.tiling,
            lambda: (
                "[Layout] an array must be dense and row-major, for gpuflow chooses no "
                f"layouts; got {self.major_to_minor} with tiles {self.tiling}. Fix: leave it out."
            ),
            NotImplementedError,
        )


@record
class Format:
    """A layout and a sharding, for ``device_put`` and as an attribute of arrays.

    Args:
        layout: a Layout; None means row-major.
        sharding: a Sharding; None keeps the sharding.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> x = jnp.ones((2, 3))
        >>> gf.device_put(x, x.format).shape
        (2, 3)
    """

    layout: Layout | None = None
    sharding: Sharding | None = None


def format_of(ndim: int, sharding: Sharding | None) -> Format:
    """The format of an array with ``ndim`` dimensions."""
    return Format(Layout(tuple(range(ndim))), sharding)
