"""Arrays made by indexing: ``mgrid``, ``ogrid``, ``r_``, ``c_``, and index expressions.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.numpy.arguments import known
from gpuflow.numpy.creation import array
from gpuflow.numpy.grids import meshgrid
from gpuflow.numpy.joining import concatenate, stack
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.ranges import arange, linspace
from gpuflow.numpy.shaping import expand_dims, transpose


def _range(name: str, entry: slice) -> Any:
    """The values of a slice's range; an imaginary step is their count."""
    bounds = []
    for what, value in (("start", entry.start), ("stop", entry.stop), ("step", entry.step)):
        text = f"the {what} of a slice"
        bounds.append(None if value is None else known(name, text, value, "jnp.linspace.").item())
    start, stop, step = bounds
    step = 1 if step is None else step
    if isinstance(step, complex):
        return linspace(start or 0, stop, int(abs(step)))
    return arange(start or 0, stop, step)


class Grid:
    """``jnp.mgrid`` and ``jnp.ogrid``: coordinates of the points of a grid.

    Args:
        name: the name of the option.
        sparse: whether coordinates have size 1 along the axes of the other coordinates.
    """

    def __init__(self, name: str, sparse: bool) -> None:
        self._name = name
        self._sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _range(self._name, key)
        coordinates = [_range(self._name, entry) for entry in key]
        if not coordinates:
            return [] if self._sparse else arange(0)
        is_real = any(dtypes.is_inexact(aval_of(values).dtype) for values in coordinates)
        dtype = dtypes.default_float() if is_real else dtypes.default_int()
        coordinates = [convert(values, dtype) for values in coordinates]
        grids = meshgrid(*coordinates, indexing="ij", sparse=self._sparse)
        return grids if self._sparse else stack(grids, 0)

    def __repr__(self) -> str:
        return f"jnp.{self._name}"


mgrid = Grid("mgrid", False)
ogrid = Grid("ogrid", True)


class Joiner:
    """``jnp.r_`` and ``jnp.c_``: slices, numbers and arrays concatenated along an axis.

    Args:
        name: the name of the option.
        axis: the axis along which to concatenate.
        rank: minimum rank of each operand.
        trans1d: position of the axes of an operand of lower rank; -1: last.
    """

    def __init__(self, name: str, axis: int, rank: int, trans1d: int) -> None:
        self._name = name
        self._settings = (axis, rank, trans1d)

    def __getitem__(self, key: Any) -> Any:
        entries = key if isinstance(key, tuple) else (key,)
        (axis, rank, trans1d), matrix = self._settings, -1
        if entries and isinstance(entries[0], str):
            (axis, rank, trans1d), matrix = self._directive(entries[0])
            entries = entries[1:]
        out = concatenate([self._entry_array(entry, rank, trans1d) for entry in entries], axis)
        return expand_dims(out, matrix) if matrix != -1 and aval_of(out).ndim == 1 else out

    def _directive(self, text: str) -> tuple[tuple[int, ...], int]:
        """Parse a directive: ``"axis,ndmin,trans1d"``, or ``"r"`` and ``"c"`` for a matrix."""
        if text in ("r", "c"):
            return self._settings, 0 if text == "r" else 1
        fields = text.split(",")
        try:
            settings = [int(field) for field in fields[:3]]
        except ValueError:
            raise ValueError(
                f"[{self._name}] a text must be 'r', 'c' or up to three ints; got {text!r}. "
                "Fix: '0,2'."
            ) from None
        return (*settings, *self._settings[len(settings) :]), -1

    def _entry_array(self, entry: Any, rank: int, trans1d: int) -> Any:
        check(
            not isinstance(entry, str),
            lambda: f"[{self._name}] a text must come first; got {entry!r} later. Fix: move it.",
            ValueError,
        )
        x = _range(self._name, entry) if isinstance(entry, slice) else array(entry, copy=False)
        rank_before = 0 if isinstance(entry, slice) else aval_of(x).ndim
        x = array(x, copy=False, ndmin=rank)
        if trans1d == -1 or rank <= rank_before:
            return x
        order = list(range(rank))
        shift = rank - abs(rank + trans1d + 1) % rank
        return transpose(x, order[shift:] + order[:shift])

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"jnp.{self._name}"


r_ = Joiner("r_", 0, 1, -1)
c_ = Joiner("c_", -1, 2, 0)
s_ = np.s_
index_exp = np.index_exp
