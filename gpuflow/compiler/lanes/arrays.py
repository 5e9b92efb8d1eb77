"""Arrays in a lane program: a KernelIR value for each element that one lane holds.

The kind of a dimension is one of these:

- the index of a batch dimension (0 or more): the lane has the element at its batch index;
- SMALL: the lane has all elements;
- REPEATED: the array is broadcast along it.

No two dimensions of an array have the same batch dimension as their kind.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_maps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from gpuflow.base.records import record
from gpuflow.core import views
from gpuflow.core.jaxpr import Eqn
from gpuflow.kir.builder import ComplexPair
from gpuflow.kir.nodes import Value

Element = Value | ComplexPair

SMALL = -1
REPEATED = -2
MAX_ELEMENTS = 128  # elements of an array that one lane holds


class NotLanesError(Exception):
    """A program cannot become a lane program; the message is the reason, as "it ...".

    Args:
        message: the reason.
        fix: the suggested change, for users who requested one kernel.

    Attributes:
        eqn: the equation that is the reason; None if it is not a single one.
    """

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix
        self.eqn: Eqn | None = None


@record(eq=False)
class LaneArray:
    """An array whose elements are KernelIR values.

    Attributes:
        shape: sizes of all dimensions.
        dim_kinds: the kind of each dimension.
        items: the elements, as an object array over the SMALL dimensions, in their order.
    """

    shape: tuple[int, ...]
    dim_kinds: tuple[int, ...]
    items: np.ndarray

    def __post_init__(self) -> None:
        lanes = [kind for kind in self.dim_kinds if kind >= 0]
        if len(set(lanes)) != len(lanes):
            raise NotLanesError(f"two dimensions of {self.shape} go along one lane")

    @property
    def small(self) -> list[int]:
        """The small dimensions."""
        return [d for d, kind in enumerate(self.dim_kinds) if kind == SMALL]

    def flat(self) -> list[Element]:
        """The elements in row-major order."""
        return list(self.items.reshape(-1))

    def with_items(self, elements: Sequence[Element]) -> LaneArray:
        """The same array with other elements, given in row-major order."""
        return LaneArray(self.shape, self.dim_kinds, object_array(elements, self.items.shape))


@record(eq=False)
class MemoryArray:
    """An operand that is read from memory on demand.

    Attributes:
        operand: index of the operand among those of the lane program.
        dtype: storage dtype.
        shape: sizes of the dimensions that have not been indexed yet.
        dim_kinds: the kind of each of these; SMALL for all that are not batch dimensions.
        dims: the operand's dimension of each of these.
        offset: int64 offset of the indexed dimensions, in elements; None is 0.
    """

    operand: int
    dtype: str
    shape: tuple[int, ...]
    dim_kinds: tuple[int, ...]
    dims: tuple[int, ...]
    offset: Value | None = None


@record(eq=False)
class ComputedArray:
    """An array without batch dimensions whose elements are computed on demand, such as an iota.

    Attributes:
        shape: sizes of its dimensions.
        element: returns the element at some int64 indices, one for each dimension, in bounds.
    """

    shape: tuple[int, ...]
    element: Callable[[Sequence[Value]], Element]

    @property
    def dim_kinds(self) -> tuple[int, ...]:
        """The kind of each dimension."""
        return (SMALL,) * len(self.shape)


Array = LaneArray | MemoryArray | ComputedArray


def is_computed(operands: Sequence[Array]) -> bool:
    """Whether all arrays are computed on demand or scalars, and some are not scalars."""
    shaped = [operand for operand in operands if operand.shape]
    return bool(shaped) and all(isinstance(operand, ComputedArray) for operand in shaped)


def object_array(elements: Sequence[Element], shape: Sequence[int]) -> np.ndarray:
    """An object array with these elements, in row-major order."""
    result = np.empty(len(elements), object)
    for position, element in enumerate(elements):
        result[position] = element
    return result.reshape(tuple(shape))


def uniform_scalar(element: Element) -> LaneArray:
    """A scalar that is the same in all lanes."""
    return LaneArray((), (), object_array([element], ()))


def small_kinds(shape: Sequence[int]) -> tuple[int, ...]:
    """The kinds of an array without batch dimensions.

    Raises:
        NotLanesError: if it has more elements than a lane may hold.
    """
    check_small(shape)
    return (SMALL,) * len(shape)


def check_small(sizes: Sequence[int]) -> None:
    """Raise NotLanesError for more elements than a lane may hold."""
    if prod(sizes) > MAX_ELEMENTS:
        raise NotLanesError(
            f"it has arrays of more than {MAX_ELEMENTS} elements for each lane",
            f"let each index have at most {MAX_ELEMENTS} values of an array at a time: a long sum "
            "is a fori_loop that reads one element after the other, and x.at[i].set(v), which "
            "would make an array for each index, is v as the result of index i",
        )


def common_kind(first: int, second: int) -> int:
    """The common kind of a dimension of two operands; raises NotLanesError if they conflict."""
    if first == second or second == REPEATED:
        return first
    if first == REPEATED:
        return second
    raise NotLanesError("it mixes lanes")


def apply_view(array: LaneArray, out_shape: Sequence[int], view: views.View) -> LaneArray:
    """Apply a layout op to an array.

    Args:
        array: the operand.
        out_shape: the shape of the result.
        view: the result as a view of the row-major operand.

    Returns:
        The result; its dimensions of size 1 are SMALL, and broadcast ones REPEATED.

    Raises:
        NotLanesError: if elements move between lanes, or the result has too many elements.
    """
    strides = views.contiguous(array.shape).strides
    kinds = []
    output_dim_of: dict[
        int, int
    ] = {}  # batch dimensions: dimension of the operand -> of the output
    for d, (size, stride, is_broadcast) in enumerate(
        zip(view.shape, view.strides, view.broadcast, strict=True)
    ):
        if is_broadcast or (stride == 0 and size > 1):
            kinds.append(REPEATED)
            continue
        matching_dims = [
            k
            for k, stride_of_dim in enumerate(strides)
            if stride_of_dim == stride and array.shape[k] == size and size > 1
        ]
        kind = array.dim_kinds[matching_dims[0]] if matching_dims else SMALL
        if kind >= 0:
            output_dim_of[matching_dims[0]] = d
        kinds.append(SMALL if size == 1 else kind)
    for k, kind in enumerate(array.dim_kinds):
        if kind >= 0 and array.shape[k] != 1 and k not in output_dim_of:
            raise NotLanesError("it moves elements between lanes")
    sizes = tuple(n for n, kind in zip(out_shape, kinds, strict=True) if kind == SMALL)
    check_small(sizes)
    small = [d for d, kind in enumerate(kinds) if kind == SMALL]
    items = np.empty(prod(sizes), object)
    for position, small_index in enumerate(np.ndindex(*sizes)):
        address = view.offset + sum(
            i * view.strides[d] for i, d in zip(small_index, small, strict=True)
        )
        items[position] = array.items[_coordinates(array, address, strides)]
    return LaneArray(tuple(out_shape), tuple(kinds), items.reshape(sizes))


def _coordinates(array: LaneArray, address: int, strides: Sequence[int]) -> tuple[int, ...]:
    """The index in ``items`` of the element with a row-major index in the whole array."""
    index = []
    for size, stride, kind in zip(array.shape, strides, array.dim_kinds, strict=True):
        coordinate = address // stride % size if size else 0
        if kind == SMALL:
            index.append(coordinate)
        elif kind >= 0 and coordinate:
            raise NotLanesError("it moves elements between lanes")
    return tuple(index)


def broadcast(array: LaneArray, kinds: Sequence[int]) -> np.ndarray:
    """The items broadcast to all dimensions that are SMALL in ``kinds``."""
    small = [d for d, kind in enumerate(kinds) if kind == SMALL]
    sizes = [array.shape[d] for d in small]
    check_small(sizes)
    index = tuple(slice(None) if array.dim_kinds[d] == SMALL else None for d in small)
    return np.broadcast_to(array.items[index], sizes)


def with_kinds(array: LaneArray, other: LaneArray) -> LaneArray:
    """An array broadcast to the common kinds of it and another array of its shape."""
    kinds = tuple(map(common_kind, array.dim_kinds, other.dim_kinds))
    return (
        array
        if kinds == array.dim_kinds
        else LaneArray(array.shape, kinds, broadcast(array, kinds))
    )
