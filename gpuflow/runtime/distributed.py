"""``DistributedArray``: an Array with shards in several memories, of this and other processes.

Each memory holds the shards of its devices as one array. An operation runs in every memory, on its
shards (SPMD). ``parallel/partition/programs.py`` creates these programs; ``wiring.py`` installs it.

Tests: tests/parallel/test_sharded_arrays.py, tests/checkpointing/test_shards.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.compiler.shardings import requested_shardings
from gpuflow.core.aval import ShapedArray, aval_of, register_value_type, storage_dtype
from gpuflow.core.jaxpr import ClosedJaxpr, all_eqns
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import Index, Sharding
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device, in_use
from gpuflow.runtime.memories import Holding, holdings, in_order, is_in_one_memory


class DistributedArray(Array):
    """An Array in several memories.

    Args:
        arrays: one Array for each memory of this process, in the order of ``local_memories``.
        aval: the type of the whole array.
        sharding: the assignment of shards to devices.
    """

    __slots__ = ("_sharding", "arrays")

    def __init__(self, arrays: Sequence[Array], aval: ShapedArray, sharding: Sharding) -> None:
        # The slot _data stays empty: fast paths that read it raise, and take the general path.
        self.arrays, self.aval, self.device = tuple(arrays), aval, arrays[0].device
        self._sharding = sharding
        in_use.distributed = True

    @property
    def data(self) -> Any:
        """All elements, gathered by the first device; see ``Array.data``."""
        return self.device.driver.from_host(self.host())

    def host(self) -> np.ndarray:
        """The values as a NumPy array.

        Raises:
            RuntimeError: if other processes have some of the elements.
        """
        held = self._held()
        for array, holding in held:
            if holding.is_whole:
                return array.host()
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
        for array, holding in held:
            holding.put(whole, array.host())
        return whole

    def _held(self) -> list[tuple[Array, Holding]]:
        """This process's arrays, each with the chunks of the whole that it holds."""
        holding_of = holdings(self._sharding, self.aval.ndim)
        return [(array, holding_of[array.device.memory]) for array in self.arrays]

    @property
    def sharding(self) -> Sharding:
        """The assignment of shards to devices."""
        return self._sharding

    def devices(self) -> set[Device]:
        """Return the devices that hold shards of the array."""
        return set(self._sharding.device_set)

    def is_deleted(self) -> bool:
        """Return whether the array was donated or deleted."""
        return any(array.is_deleted() for array in self.arrays)

    def delete(self) -> None:
        """Free the memory immediately; later use raises an error."""
        for array in self.arrays:
            array.delete()

    def block_until_ready(self) -> Array:
        """Wait until the values are computed, and return the array."""
        for array in self.arrays:
            array.block_until_ready()
        return self

    def _device_shard(self, device: Device, index: Index) -> Array:
        """A copy of the shard of a device of this process."""
        ((array, holding),) = [
            pair for pair in self._held() if pair[0].device.memory == device.memory
        ]
        shard = np.array(array.host()[holding.local_index(index, self.aval.shape)], order="C")
        aval = ShapedArray(shard.shape, self.aval.dtype, self.aval.weak_type)
        return Array(device.driver.from_host(shard), aval, device.committed)

    def __deepcopy__(self, memo: Any) -> Array:
        return DistributedArray(
            [array.__deepcopy__(memo) for array in self.arrays], self.aval, self._sharding
        )

    def __repr__(self) -> str:
        if self.is_deleted() or self._sharding.is_fully_addressable:
            return super().__repr__()
        if any(holding.is_whole for _, holding in self._held()):
            return super().__repr__()
        return f"Array({self.aval}, parts in several processes: {self._sharding})"

    def __str__(self) -> str:
        return repr(self) if not self._sharding.is_fully_addressable else super().__str__()


def _distributed_aval(array: DistributedArray) -> ShapedArray:
    return array.aval


register_value_type(DistributedArray, _distributed_aval)


@cache
def local_memories(sharding: Sharding) -> tuple[Device, ...]:
    """One device for each memory of this process, in the order of ``DistributedArray.arrays``."""
    return in_order(device.committed for device in sharding._devices if device.is_local)


def distribute(value: Any, sharding: Sharding) -> DistributedArray:
    """Shard a value over memories; every process must hold the whole value.

    Raises:
        ValueError: if the sharding does not divide it.
    """
    aval = aval_of(value)
    sharding.shard_shape(aval.shape)
    holding_of = holdings(sharding, aval.ndim)
    devices = local_memories(sharding)
    blocks = [holding_of[device.memory].block(aval.shape) for device in devices]
    if type(value) is Array and type(value.data) is not np.ndarray and None not in blocks:
        buffers = [
            _copied_block(value, cast(Index, block), device)
            for block, device in zip(blocks, devices, strict=True)
        ]
    else:
        host = value.host() if isinstance(value, Array) else as_numpy(value, aval)
        buffers = [
            device.driver.from_host(np.array(holding_of[device.memory].take(host), order="C"))
            for device in devices
        ]
    arrays = [
        Array(buffer, aval.update(shape=buffer.shape), device)
        for buffer, device in zip(buffers, devices, strict=True)
    ]
    return DistributedArray(arrays, aval, sharding)


def _copied_block(value: Array, block: Index, device: Device) -> Any:
    """Copy a block of an array on a GPU to a device, without the host if possible."""
    data, source = value.data, value.device.driver
    shape = tuple(bounds.stop - bounds.start for bounds in block)
    steps = data.byte_strides
    offset = sum(bounds.start * step for bounds, step in zip(block, steps, strict=True))
    view = source.strided(shape, data.dtype, data, offset, steps)
    same = device.driver is source
    return source.copy(view) if same else device.driver.from_driver(view, source)


def delete_donated(operands: Sequence[Any], donated: Sequence[bool]) -> None:
    """Delete donated arrays after a program that ran on copies or shards of them."""
    for value, flag in zip(operands, donated, strict=False):
        if flag and isinstance(value, Array):
            value.delete()


def gathered(array: DistributedArray) -> Array:
    """Gather an array in the memory of its first device.

    Raises:
        RuntimeError: if other processes have some of the elements.
    """
    return Array(array.data, array.aval, array.device)


def spans_memories(jaxpr: ClosedJaxpr) -> bool:
    """Whether a program contains equations that run in several memories, or such shardings."""

    def goes() -> bool:
        program = jaxpr.jaxpr
        if not all(map(is_in_one_memory, requested_shardings(program))):
            return True
        return any(eqn.primitive.lower.is_split for eqn in all_eqns(program))

    return jaxpr.jaxpr.memo("goes over memories", goes)


def runs_distributed(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether an op must run in several memories; called only after ``in_use.distributed``."""
    if primitive.lower.is_split:
        return False  # its own execute rule distributes it
    inner_programs = () if primitive.subjaxprs is None else primitive.subjaxprs(params)
    if any(type(program) is not ClosedJaxpr for program in inner_programs):
        return False  # a Python function: each op that it binds is checked separately
    if any(type(value) is DistributedArray for value in operands):
        return True
    return any(map(spans_memories, inner_programs))


def _unplugged(*arguments: Any) -> NoReturn:
    raise RuntimeError("[array] gpuflow must be imported as a whole. Fix: import gpuflow.")


@record(frozen=False)
class _Programs:
    """Hooks to run programs in several memories; ``wiring.py`` sets them.

    Attributes:
        evaluate: ``(primitive, operands, params) -> results``, for distributed operands.
        run: ``(jaxpr, operands, requested result shardings or None, donated) -> results``.
        reshard: ``(value, sharding) -> array`` with another sharding.
        local: ``(jaxpr, shardings of operands, requested result shardings) -> LocalProgram | None``
            that each memory runs; None if all is in one memory.
    """

    evaluate: Callable[..., Any] = _unplugged
    run: Callable[..., Any] = _unplugged
    reshard: Callable[..., Any] = _unplugged
    local: Callable[..., Any] = _unplugged


programs = _Programs()
