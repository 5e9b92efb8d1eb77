"""Views: arrays described as an offset and strides into a buffer, in elements.

Tests: tests/ops/test_layout.py, tests/ops/test_scan_kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuflow.base.caches import lru_cache
from gpuflow.base.util import row_major_strides


class View(NamedTuple):
    """``element(i, j, ...) = buffer[offset + i * strides[0] + j * strides[1] + ...]``.

    Attributes:
        shape: the shape of the view.
        strides: in elements, for each dimension; they may be 0 or negative.
        offset: the buffer's element at index (0, 0, ...).
        broadcast: for each dimension whether the view repeats itself along it (stride 0).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    broadcast: tuple[bool, ...] = ()

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are row-major from the offset on, without gaps."""
        if True in self.broadcast:
            return False
        expected = contiguous(self.shape).strides
        if self.strides == expected:
            return True
        sizes = zip(self.shape, self.strides, expected, strict=True)
        return all([size == 1 or stride == want for size, stride, want in sizes])


def contiguous(shape: Sequence[int]) -> View:
    """The view of a whole row-major buffer."""
    return _contiguous(tuple(shape))


@lru_cache(4096)
def _contiguous(shape: tuple[int, ...]) -> View:
    return View(shape, row_major_strides(shape), 0, (False,) * len(shape))


def transpose(view: View, permutation: Sequence[int]) -> View:
    """Permute the dimensions."""
    shape, strides, offset, broadcast = view
    return View(
        tuple([shape[d] for d in permutation]),
        tuple([strides[d] for d in permutation]),
        offset,
        tuple([broadcast[d] for d in permutation]),
    )


def broadcast_in_dim(view: View, shape: Sequence[int], dimensions: Sequence[int]) -> View:
    """Dimension ``d`` of the view becomes dimension ``dimensions[d]`` of ``shape``."""
    strides, repeats = [0] * len(shape), [True] * len(shape)
    for d, target in enumerate(dimensions):
        if view.shape[d] == shape[target]:
            strides[target], repeats[target] = view.strides[d], view.broadcast[d]
    return View(tuple(shape), tuple(strides), view.offset, tuple(repeats))


def slice_view(
    view: View, start: Sequence[int], limit: Sequence[int], steps: Sequence[int]
) -> View:
    """``x[start:limit:step]`` in each dimension, with positive steps."""
    shape = tuple(
        max(0, -(-(stop - first) // step))
        for first, stop, step in zip(start, limit, steps, strict=True)
    )
    offset = view.offset + sum(a * s for a, s in zip(start, view.strides, strict=True))
    strides = tuple(s * step for s, step in zip(view.strides, steps, strict=True))
    return View(shape, strides, offset, view.broadcast)


def reverse(view: View, dimensions: Sequence[int]) -> View:
    """Reverse the order along ``dimensions``."""
    offset, strides = view.offset, list(view.strides)
    for d in dimensions:
        offset += max(view.shape[d] - 1, 0) * strides[d]
        strides[d] = -strides[d]
    return View(view.shape, tuple(strides), offset, view.broadcast)


def squeeze(view: View, dimensions: Sequence[int]) -> View:
    """Remove dimensions of size 1."""
    keep = [d for d in range(len(view.shape)) if d not in dimensions]
    return View(
        tuple(view.shape[d] for d in keep),
        tuple(view.strides[d] for d in keep),
        view.offset,
        tuple(view.broadcast[d] for d in keep),
    )


def reshape(view: View, shape: Sequence[int]) -> View | None:
    """The view with another shape, or None where that needs a copy (anything not contiguous)."""
    if not view.is_contiguous:
        return None
    whole = contiguous(shape)
    return whole._replace(offset=view.offset) if view.offset else whole


def preserved_dimensions(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]] | None:
    """Pairs (old dimension, new dimension) of a reshape that only adds or drops sizes of 1.

    Returns None when the reshape merges or splits dimensions.
    """
    pairs, d = [], 0
    old_dims = [k for k, size in enumerate(old) if size != 1]
    new_dims = [k for k, size in enumerate(new) if size != 1]
    if [old[k] for k in old_dims] != [new[k] for k in new_dims]:
        return None
    for d, old_dim in enumerate(old_dims):
        pairs.append((old_dim, new_dims[d]))
    return pairs


def leading_dimensions(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs (old dimension, new dimension) of a reshape that can be split alike into chunks.

    A reshape regroups dimensions: (8, 64) to (8, 4, 16) has the groups 8 to 8, and 64 to (4, 16).
    The chunks of the first dimension of a group, those of size 1 aside, are the same elements on
    both sides if their number divides both sizes.
    """
    pairs, old_dim, new_dim = [], 0, 0
    while old_dim < len(old) and new_dim < len(new):
        if old[old_dim] == 1 or new[new_dim] == 1:
            old_dim, new_dim = old_dim + (old[old_dim] == 1), new_dim + (old[old_dim] != 1)
            continue
        if 0 in (old[old_dim], new[new_dim]):
            break
        pairs.append((old_dim, new_dim))
        old_size, new_size = old[old_dim], new[new_dim]
        old_dim, new_dim = old_dim + 1, new_dim + 1
        while old_size != new_size:
            if old_size < new_size:
                old_size, old_dim = old_size * old[old_dim], old_dim + 1
            else:
                new_size, new_dim = new_size * new[new_dim], new_dim + 1
    return pairs
