"""PartedArray: an Array with shards in several memories, of this process and of others.

Each memory holds the shards of its devices as one array. Operations run in every memory, on its
shards: parallel/partition/programs.py makes them, and wiring.py installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn, cast

import numpy as np

from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.compiler.shardings import asked_shardings
from gpuflow.core.aval import ShapedArray, aval_of, register_value_type, storage_dtype
from gpuflow.core.jaxpr import ClosedJaxpr, all_eqns
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import Index, Sharding
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device, in_use
from gpuflow.runtime.memories import Holding, holdings, in_order, is_in_one_memory


class PartedArray(Array):
    """An Array in several memories.

    Args:
        parts: the shards of each memory of this process, in the order of ``local_memories``.
        aval: of the whole array.
        sharding: the sharding, which assigns shards to devices.
    """

    __slots__ = ("_sharding", "parts")

    def __init__(self, parts: Sequence[Array], aval: ShapedArray, sharding: Sharding) -> None:
        # The slot of the data stays empty: what trusts it is for arrays in one memory.
        self.parts, self.aval, self.device = tuple(parts), aval, parts[0].device
        self._sharding = sharding
        in_use.parted = True

    @property
    def data(self) -> Any:
        """All elements, gathered by the first device; see ``Array.data``."""
        return self.device.driver.from_host(self.host())

    def host(self) -> np.ndarray:
        """The values as a NumPy array.

        Raises:
            RuntimeError: other processes have some of them.
        """
        held = self._held()
        for part, holding in held:
            if holding.is_whole:
                return part.host()
        check(
            self._sharding.is_fully_addressable,
            lambda: (
                f"[array] values must be in this process; got {self.aval} with parts in others: "
                f"{self._sharding}. Fix: x.addressable_shards, or "
                "multihost_utils.process_allgather(x, tiled=True)."
            ),
            RuntimeError,
        )
        whole = np.empty(self.aval.shape, storage_dtype(self.aval.dtype))
        for part, holding in held:
            holding.put(whole, part.host())
        return whole

    def _held(self) -> list[tuple[Array, Holding]]:
        """This process's shards, and their positions in the whole."""
        holding_of = holdings(self._sharding, self.aval.ndim)
        return [(part, holding_of[part.device.memory]) for part in self.parts]

    @property
    def sharding(self) -> Sharding:
        """Which device has which part."""
        return self._sharding

    def devices(self) -> set[Device]:
        """Return the devices that hold shards of the array."""
        return set(self._sharding.device_set)

    def is_deleted(self) -> bool:
        """Return whether the array was donated or deleted."""
        return any(part.is_deleted() for part in self.parts)

    def delete(self) -> None:
        """Free the memory immediately; later use raises an error."""
        for part in self.parts:
            part.delete()

    def block_until_ready(self) -> Array:
        """Wait until the values are computed, and return the array."""
        for part in self.parts:
            part.block_until_ready()
        return self

    def _part(self, device: Device, index: Index) -> Array:
        """The part of a device of this process, a copy."""
        ((part, holding),) = [
            pair for pair in self._held() if pair[0].device.memory == device.memory
        ]
        piece = np.array(part.host()[holding.place(index, self.aval.shape)], order="C")
        aval = ShapedArray(piece.shape, self.aval.dtype, self.aval.weak_type)
        return Array(device.driver.from_host(piece), aval, device.committed)

    def __deepcopy__(self, memo: Any) -> Array:
        return PartedArray(
            [part.__deepcopy__(memo) for part in self.parts], self.aval, self._sharding
        )

    def __repr__(self) -> str:
        if self.is_deleted() or self._sharding.is_fully_addressable:
            return super().__repr__()
        if any(holding.is_whole for _, holding in self._held()):
            return super().__repr__()
        return f"Array({self.aval}, parts in several processes: {self._sharding})"

    def __str__(self) -> str:
        return repr(self) if not self._sharding.is_fully_addressable else super().__str__()


def _parted_aval(array: PartedArray) -> ShapedArray:
    return array.aval


register_value_type(PartedArray, _parted_aval)


@cache
def local_memories(sharding: Sharding) -> tuple[Device, ...]:
    """A device of each of this process's memories, in the order of parts."""
    return in_order(device.committed for device in sharding._devices if device.is_local)


def in_parts(value: Any, sharding: Sharding) -> PartedArray:
    """An array that each process has all of, cut for the memories of its devices.

    Raises:
        ValueError: the sharding does not divide it.
    """
    aval = aval_of(value)
    sharding.shard_shape(aval.shape)
    held = holdings(sharding, aval.ndim)
    devices = local_memories(sharding)
    blocks = [held[device.memory].block(aval.shape) for device in devices]
    if type(value) is Array and type(value.data) is not np.ndarray and None not in blocks:
        pieces = [_moved(value, cast(Index, block), device)
                  for block, device in zip(blocks, devices, strict=True)]  # fmt: skip
    else:
        host = value.host() if isinstance(value, Array) else as_numpy(value, aval)
        pieces = [
            device.driver.from_host(np.array(held[device.memory].take(host), order="C"))
            for device in devices
        ]
    parts = [
        Array(piece, aval.update(shape=piece.shape), device)
        for piece, device in zip(pieces, devices, strict=True)
    ]
    return PartedArray(parts, aval, sharding)


def _moved(value: Array, block: Index, device: Device) -> Any:
    """Data of a device with a block of an array of a GPU, which need not go through the host."""
    data, source = value.data, value.device.driver
    shape = tuple(part.stop - part.start for part in block)
    steps = data.byte_strides
    offset = sum(part.start * step for part, step in zip(block, steps, strict=True))
    view = source.strided(shape, data.dtype, data, offset, steps)
    same = device.driver is source
    return source.copy(view) if same else device.driver.from_driver(view, source)


def delete_donated(operands: Sequence[Any], donated: Sequence[bool]) -> None:
    """Delete the arrays that were donated to a program that used copies or shards of them."""
    for value, flag in zip(operands, donated, strict=False):
        if flag and isinstance(value, Array):
            value.delete()


def gathered(array: PartedArray) -> Array:
    """The array in the memory of its first device.

    Raises:
        RuntimeError: other processes have some of the elements.
    """
    return Array(array.data, array.aval, array.device)


def goes_over_memories(jaxpr: ClosedJaxpr) -> bool:
    """Whether a program holds programs that run in several memories, or wants values there."""

    def goes() -> bool:
        program = jaxpr.jaxpr
        if not all(map(is_in_one_memory, asked_shardings(program))):
            return True
        return any(eqn.primitive.lower.is_split for eqn in all_eqns(program))

    return jaxpr.jaxpr.memo("goes over memories", goes)


def needs_parts(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether an op has to run in several memories; only called once there are such arrays."""
    if primitive.lower.is_split:
        return False  # it knows how
    held = () if primitive.subjaxprs is None else primitive.subjaxprs(params)
    if any(type(program) is not ClosedJaxpr for program in held):
        return False  # a function that is not traced yet: it binds ops, which are asked each
    if any(type(value) is PartedArray for value in operands):
        return True
    return any(map(goes_over_memories, held))


def _unplugged(*arguments: Any) -> NoReturn:
    raise RuntimeError("[array] gpuflow must be imported as a whole. Fix: import gpuflow.")


@record(frozen=False)
class _Programs:
    """Runner of programs in several memories; set by wiring.py.

    Attributes:
        evaluate: ``(primitive, operands, params) -> results``, where an operand is in parts.
        run: ``(jaxpr, operands, wanted shardings of results or None, donated) -> results``.
        place: ``(value, sharding) -> array`` with another sharding.
    """

    evaluate: Callable[..., Any] = _unplugged
    run: Callable[..., Any] = _unplugged
    place: Callable[..., Any] = _unplugged


programs = _Programs()
