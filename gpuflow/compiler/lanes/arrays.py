"""Small arrays of one lane: a kernel value for each element, and dimensions of lanes.

Arrays of a program that runs for each lane have three kinds of dimensions: those of lanes, with the
index of a kernel's point; small ones, with a value for each element; and repeated ones, along which
the array is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from gpuflow.base.records import record
from gpuflow.core import views
from gpuflow.core.jaxpr import Eqn
from gpuflow.kir.builder import Pair
from gpuflow.kir.nodes import Value

Element = Value | Pair

SMALL = -1
REPEATED = -2
MOST_ELEMENTS = 128  # of an array of one lane


class NotLanesError(Exception):
    """A program cannot be batched; the message is the reason, as "it ...".

    Args:
        message: why.
        fix: the suggested replacement, for users who requested one kernel.

    Attributes:
        eqn: the equation that is the reason; None: no single one.
    """

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix
        self.eqn: Eqn | None = None


@record(eq=False)
class LaneArray:
    """An array whose elements are values.

    Attributes:
        shape: with all dimensions.
        kinds: of each dimension the index of its lane, SMALL or REPEATED.
        items: an object array over the small dimensions.
    """

    shape: tuple[int, ...]
    kinds: tuple[int, ...]
    items: np.ndarray

    def __post_init__(self) -> None:
        lanes = [kind for kind in self.kinds if kind >= 0]
        if len(set(lanes)) != len(lanes):
            raise NotLanesError(f"two dimensions of {self.shape} go along one lane")

    @property
    def small(self) -> list[int]:
        """The small dimensions."""
        return [d for d, kind in enumerate(self.kinds) if kind == SMALL]

    def flat(self) -> list[Element]:
        """The elements in order."""
        return list(self.items.reshape(-1))

    def with_items(self, elements: Sequence[Element]) -> LaneArray:
        """The same array with other elements, in order."""
        return LaneArray(self.shape, self.kinds, object_array(elements, self.items.shape))


@record(eq=False)
class MemoryArray:
    """An operand that is read from memory on demand.

    Attributes:
        number: index of the operand.
        dtype: storage.
        shape: shape of the remaining dimensions.
        kinds: as of a LaneArray; SMALL for all dimensions that are not batch dimensions.
        dims: the operand's remaining dimensions.
        offset: elements from its start; None: 0.
    """

    number: int
    dtype: str
    shape: tuple[int, ...]
    kinds: tuple[int, ...]
    dims: tuple[int, ...]
    offset: Value | None = None


@record(eq=False)
class ComputedArray:
    """An array without lanes whose elements are computed on demand, such as a counter.

    Attributes:
        shape: shape of the remaining dimensions.
        element: ``indices, one for each dimension -> element``.
    """

    shape: tuple[int, ...]
    element: Callable[[Sequence[Value]], Element]

    @property
    def kinds(self) -> tuple[int, ...]:
        """As of a LaneArray."""
        return (SMALL,) * len(self.shape)


Array = LaneArray | MemoryArray | ComputedArray


def is_computed(operands: Sequence[Array]) -> bool:
    """Whether some arrays are computed on demand, and the others are scalars."""
    shaped = [operand for operand in operands if operand.shape]
    return bool(shaped) and all(isinstance(operand, ComputedArray) for operand in shaped)


def object_array(elements: Sequence[Element], shape: Sequence[int]) -> np.ndarray:
    """An array of objects with these elements."""
    result = np.empty(len(elements), object)
    for position, element in enumerate(elements):
        result[position] = element
    return result.reshape(tuple(shape))


def uniform(element: Element) -> LaneArray:
    """A scalar."""
    return LaneArray((), (), object_array([element], ()))


def small_kinds(shape: Sequence[int]) -> tuple[int, ...]:
    """The kinds of an array without lanes.

    Raises:
        NotLanesError: it has too many elements.
    """
    check_small(shape)
    return (SMALL,) * len(shape)


def check_small(sizes: Sequence[int]) -> None:
    """Raise NotLanesError for more elements than a lane may have."""
    if prod(sizes) > MOST_ELEMENTS:
        raise NotLanesError(
            f"it has arrays of more than {MOST_ELEMENTS} elements for each lane",
            f"let each index have at most {MOST_ELEMENTS} values of an array at a time: a long sum "
            "is a fori_loop that reads one element after the other, and x.at[i].set(v), which "
            "would make an array for each index, is v as the result of index i",
        )


def joined_kind(first: int, second: int) -> int:
    """Return the common kind of a dimension of two operands."""
    if first == second or second == REPEATED:
        return first
    if first == REPEATED:
        return second
    raise NotLanesError("it mixes lanes")


def viewed(array: LaneArray, out_shape: Sequence[int], view: views.View) -> LaneArray:
    """A rearrangement of an array, given as a view of its row-major elements.

    Raises:
        NotLanesError: elements go from one lane to another.
    """
    steps = views.contiguous(array.shape).strides
    kinds = []
    lanes: dict[int, int] = {}  # the operand's dimension of lanes: the output's
    for d, (size, stride, repeats) in enumerate(
        zip(view.shape, view.strides, view.broadcast, strict=True)
    ):
        if repeats or (stride == 0 and size > 1):
            kinds.append(REPEATED)
            continue
        same = [
            k
            for k, step in enumerate(steps)
            if step == stride and array.shape[k] == size and size > 1
        ]
        kind = array.kinds[same[0]] if same else SMALL
        if kind >= 0:
            lanes[same[0]] = d
        kinds.append(SMALL if size == 1 else kind)
    for k, kind in enumerate(array.kinds):
        if kind >= 0 and array.shape[k] != 1 and k not in lanes:
            raise NotLanesError("it moves elements between lanes")
    sizes = tuple(n for n, kind in zip(out_shape, kinds, strict=True) if kind == SMALL)
    check_small(sizes)
    small = [d for d, kind in enumerate(kinds) if kind == SMALL]
    items = np.empty(prod(sizes), object)
    for position, index in enumerate(np.ndindex(*sizes)):
        address = view.offset + sum(i * view.strides[d] for i, d in zip(index, small, strict=True))
        items[position] = array.items[_coordinates(array, address, steps)]
    return LaneArray(tuple(out_shape), tuple(kinds), items.reshape(sizes))


def _coordinates(array: LaneArray, address: int, steps: Sequence[int]) -> tuple[int, ...]:
    """The index in the items of an element, from its row-major index."""
    index = []
    for size, step, kind in zip(array.shape, steps, array.kinds, strict=True):
        coordinate = address // step % size if size else 0
        if kind == SMALL:
            index.append(coordinate)
        elif kind >= 0 and coordinate:
            raise NotLanesError("it moves elements between lanes")
    return tuple(index)


def broadcast(array: LaneArray, kinds: Sequence[int]) -> np.ndarray:
    """The items along all dimensions that are small in ``kinds``."""
    small = [d for d, kind in enumerate(kinds) if kind == SMALL]
    sizes = [array.shape[d] for d in small]
    check_small(sizes)
    index = tuple(slice(None) if array.kinds[d] == SMALL else None for d in small)
    return np.broadcast_to(array.items[index], sizes)


def with_kinds(array: LaneArray, other: LaneArray) -> LaneArray:
    """An array with the common kinds of it and another of its shape."""
    kinds = tuple(map(joined_kind, array.kinds, other.kinds))
    return array if kinds == array.kinds else LaneArray(array.shape, kinds, broadcast(array, kinds))
