"""Copies into row-major memory: of strided arrays, of rows in another order, of parts of space.

Contract: elements of SIZE bytes as unsigned integers, two for one of 16 bytes; at most four
dimensions, with strides in elements, of any sign.
Launch: a thread for each element. Neighboring threads write neighbors.
"""

from __future__ import annotations

from gpuflow.kernels.language import cuda, int32, int64

# Given for each build.
SIZE = 4  # bytes of an element
POSITIONS = 0  # take: store where each element was, too
SELECTED = 0  # take: the order has no elements but those that are taken


def copy_strided(source, target, count, size1, size2, size3, step0, step1, step2, step3):
    """Copy ``count`` elements of (any, size1, size2, size3) that lie ``step`` elements apart."""
    thread = cuda.grid(1)
    if thread >= count:
        return
    above = thread // size3
    place = (thread - above * size3) * step3
    rest = above // size2
    place += (above - rest * size2) * step2
    first = rest // size1
    place += (rest - first * size1) * step1 + first * step0
    if SIZE == 16:
        target[2 * thread] = source[2 * place]
        target[2 * thread + 1] = source[2 * place + 1]
    else:
        target[thread] = source[place]


def take(source, order, target, positions, count, length, inner, kept):
    """The first ``kept`` elements of each row, in an order.

    Args:
        source: (outer, length, inner) elements of SIZE bytes, as unsigned integers.
        order: uint32 (rows, length), or with SELECTED (rows, kept).
        target: (outer, kept, inner). positions: int32 of that shape, with POSITIONS.
        count: outer * kept * inner, a thread for each.
        length, inner, kept: sizes.
    """
    thread = cuda.grid(1)
    if thread >= count:
        return
    above = thread // inner
    column = thread - above * inner
    outer = above // kept
    position = above - outer * kept
    pitch = kept if SELECTED else length
    element = int64(order[(outer * inner + column) * pitch + position])
    place = (outer * length + element) * inner + column
    if SIZE == 16:
        target[2 * thread] = source[2 * place]
        target[2 * thread + 1] = source[2 * place + 1]
    else:
        target[thread] = source[place]
    if POSITIONS:
        positions[thread] = int32(element)


def copy_shifted(
    source, target, count, to1, to2, to3, inner, from1, from2, from3, low1, low2, low3
):
    """A part of space with margins of zeros, or without what lies behind its ends.

    Args:
        source: (any, from1, from2, from3, inner) elements of SIZE bytes, at most 8.
        target: (any, to1, to2, to3, inner); of ``count`` elements, a thread for each. An element is
            the one that is ``low`` places before its own in ``source``, or 0 if none is.
        to1, to2, to3, inner, from1, from2, from3: sizes.
        low1, low2, low3: of any sign.
    """
    thread = cuda.grid(1)
    if thread >= count:
        return
    above = thread // inner
    column = thread - above * inner
    rest = above // to3
    place3 = above - rest * to3 - low3
    above = rest // to2
    place2 = rest - above * to2 - low2
    outer = above // to1
    place1 = above - outer * to1 - low1
    is_inside = place1 >= 0 and place1 < from1 and place2 >= 0 and place2 < from2
    if is_inside and place3 >= 0 and place3 < from3:
        place = ((outer * from1 + place1) * from2 + place2) * from3 + place3
        target[thread] = source[place * inner + column]
    else:
        target[thread] = 0
