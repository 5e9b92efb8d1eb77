"""``Array``: an immutable array on a device; its values may still be being computed.

Operators and methods come from one table, ``numpy/methods.py``, through ``wiring.py``.

Tests: tests/runtime/test_array.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import DeletedArrayError
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.records import record
from gpuflow.core.aval import HasAval, ShapedArray, check_fits, register_value_type, storage_dtype
from gpuflow.core.formats import Format, format_of
from gpuflow.core.rules import Zero
from gpuflow.core.sharding import Index, Sharding, SingleDeviceSharding, replica_ids
from gpuflow.core.trace import Tracer
from gpuflow.runtime.device import Device, default_device
from gpuflow.runtime.origins import MIN_RECORDED_BYTES, origins

if TYPE_CHECKING:
    from gpuflow.core.methods import ArrayMethods
else:
    ArrayMethods = HasAval


_REFUSAL = (
    "[Array] arrays must be made by functions; got a call of the class. Fix: jnp.array([1, 2])."
)


class _ArrayClass(type):
    """Metaclass for ``isinstance(x, Array)``, which holds for tracers too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type(instance) is cls or issubclass(type(instance), (cls, Tracer))


class Array(ArrayMethods, metaclass=_ArrayClass):
    """An immutable array on a device.

    Create arrays with functions: ``jnp.array([1, 2])``, ``jnp.zeros((2, 3))``. NumPy's operators,
    indexing and methods work on them. Instead of writing to an array, use
    ``x.at[index].set(value)``, which returns a new one.

    Example:
        >>> x = jnp.array([1.0, 2.0, 3.0])
        >>> x.shape, x.dtype
        ((3,), dtype('float32'))
        >>> x.at[0].set(5.0)
        Array([5., 2., 3.], dtype=float32)
    """

    # Invariants: _data is row-major, has the aval's shape and storage dtype, and is the driver's
    # representation of an array (a NumPy array on the CPU). No other code writes to it. Deleting
    # the array empties the slot, so that reading raises without a check. The aval has shape, dtype
    # and weak type.
    __slots__ = ("__weakref__", "_data", "aval", "device")
    __array_priority__: int = 100

    def __init__(self, data: Any = None, aval: Any = None, device: Device | None = None) -> None:
        if device is None:
            raise TypeError(_REFUSAL)
        self._data: Any = data
        self.aval: ShapedArray = aval
        self.device: Device = device

    @property
    def data(self) -> Any:
        """Internal: the driver's representation of the memory; do not write to it.

        Raises:
            DeletedArrayError: if the array was donated or deleted.
        """
        try:
            return self._data
        except AttributeError:
            raise_deleted(self)

    def host(self) -> np.ndarray:
        """Internal: the values as a NumPy array; do not write to it."""
        data = self.data
        return data if type(data) is np.ndarray else self.device.driver.to_host(data)

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        return self.aval.dtype.itemsize

    def devices(self) -> set[Device]:
        """Return the devices that hold shards of the array."""
        return {self.device}

    @property
    def sharding(self) -> Sharding:
        """The sharding of the array."""
        return SingleDeviceSharding(self.device)

    @property
    def format(self) -> Format:
        """The layout (always row-major) and the sharding."""
        return format_of(self.aval.ndim, self.sharding)

    @property
    def global_shards(self) -> list[Shard]:
        """The shards of all devices, each a copy; shards of other processes have no data."""
        indices = self.sharding.devices_indices_map(self.aval.shape)
        replicas = replica_ids(indices)
        return [
            Shard(
                device,
                index,
                replicas[device],
                self._device_shard(device, index) if device.is_local else None,
            )
            for device, index in indices.items()
        ]

    @property
    def addressable_shards(self) -> list[Shard]:
        """The shards of this process's devices."""
        return [shard for shard in self.global_shards if shard.device.is_local]

    def addressable_data(self, index: int) -> Array:
        """Return the shard of this process's device with this index."""
        data = self.addressable_shards[index].data
        assert data is not None
        return data

    def _device_shard(self, device: Device, index: Index) -> Array:
        shard = np.array(self.host()[index], order="C")
        aval = ShapedArray(shard.shape, self.aval.dtype, self.aval.weak_type)
        return Array(device.driver.from_host(shard), aval, device.committed)

    def rows(self, positions: Iterable[int]) -> Iterator[Array]:
        """Internal: yield the rows at ``positions`` along the first axis.

        Each is a separate copy on the array's device; the array is copied to the host once.

        Raises:
            DeletedArrayError: if the array was donated or deleted meanwhile.
        """
        host, device = self.host(), self.device
        aval = ShapedArray(self.aval.shape[1:], self.aval.dtype, self.aval.weak_type)
        put = device.driver.from_host
        for k in positions:
            if self.is_deleted():  # the program that it was donated to may overwrite the memory
                raise_deleted(self)
            yield Array(put(host[k, ...].copy()), aval, device)

    def block_until_ready(self) -> Array:
        """Wait until the values are computed, and return the array."""
        self.device.driver.wait(self.data)
        return self

    def unsafe_buffer_pointer(self) -> int:
        """Return the address of the first element in device memory: do not write to it."""
        data = self.data
        return data.ctypes.data if type(data) is np.ndarray else data.address

    def is_deleted(self) -> bool:
        """Return whether the array was donated or deleted."""
        return not hasattr(self, "_data")

    def delete(self) -> None:
        """Free the memory immediately; later use raises an error."""
        if hasattr(self, "_data"):
            del self._data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if dtypes.is_extended(self.aval.dtype):
            raise TypeError(
                f"[numpy] random keys have no NumPy form; got {self.aval}. "
                "Fix: np.asarray(random.key_data(key))."
            )
        view = self.host().view()
        view.flags.writeable = False
        if dtype is not None and np.dtype(dtype) != view.dtype:
            if copy is False:
                raise ValueError(
                    f"[numpy] another dtype needs a copy; got {dtype} for {self.aval} and "
                    "copy=False. Fix: copy=None."
                )
            return view.astype(dtype)
        return view.copy() if copy else view

    def __hash__(self) -> int:
        raise TypeError(
            f"[hash] arrays are not hashable; got {self.aval}. Fix: use a tuple, x.tobytes(), "
            "or an ordinary argument instead of a static one."
        )

    def _scalar(self, what: str) -> Any:
        if dtypes.is_extended(self.aval.dtype):
            raise TypeError(
                f"[{what}] the array must hold numbers, not random keys; got {self.aval}. Fix: "
                "random.key_data(key)."
            )
        if self.aval.size != 1 or (self.aval.shape and what != "item" and what != "bool"):
            raise TypeError(
                f"[{what}] only arrays of one element convert to a Python number; got {self.aval}. "
                "Fix: index or reduce the array first."
            )
        return self.host().reshape(())[()]

    def _real_scalar(self, what: str) -> Any:
        if dtypes.is_complex(self.aval.dtype):
            raise TypeError(
                f"[{what}] complex numbers do not convert; got {self.aval}. Fix: use x.real."
            )
        return self._scalar(what)

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise ValueError(
                "[bool] the truth value must be that of one element; "
                f"got {self.aval}. Fix: use x.any() or x.all()."
            )
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._real_scalar("int"))

    def __float__(self) -> float:
        return float(self._real_scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.aval.shape or not dtypes.is_integer(self.aval.dtype):
            raise TypeError(
                f"[index] only integer scalars can be indices; got {self.aval}. Fix: int(x)."
            )
        return int(self._scalar("index"))

    def item(self, *position: int) -> bool | int | float | complex:
        """Return an element as a Python scalar."""
        if dtypes.is_extended(self.aval.dtype):
            return self._scalar("item")
        return self.host().item(*position)

    def tolist(self) -> Any:
        """Return the values as nested lists of Python scalars."""
        return np.asarray(self).tolist()

    def tobytes(self, order: str | None = "C") -> bytes:
        """Return the elements as bytes, in row-major order; column-major for ``order="F"``."""
        return self.host().tobytes(order)

    def __bytes__(self) -> bytes:
        return self.tobytes()

    def __buffer__(self, flags: int) -> memoryview:
        """The elements as a read-only buffer (PEP 688), which Python calls from 3.12 on.

        Raises:
            BufferError: if the array is on a GPU, where a buffer would need a copy that it keeps
                alive; or if buffers do not support the dtype. NumPy then calls ``__array__``.
        """
        del flags
        if self.device.platform != "cpu":
            raise BufferError(
                "[buffer] the elements must be in the host's memory; got an array on "
                f"{self.device}. Fix: memoryview(np.asarray(x))."
            )
        try:
            return memoryview(self.__array__())
        except (ValueError, TypeError):
            raise BufferError(
                f"[buffer] the dtype must be one of NumPy's own; got {self.aval}. Fix: "
                "x.astype(jnp.float32), or x.tobytes()."
            ) from None

    if not TYPE_CHECKING:  # type checkers report it before

        def __setitem__(self, index: Any, value: Any) -> None:
            raise TypeError(
                f"[setitem] arrays are immutable; got an assignment to x[{index!r}]. "
                f"Fix: x = x.at[{index!r}].set(...)."
            )

    def __format__(self, specification: str) -> str:
        if not specification:
            return str(self)
        if self.aval.shape:
            raise TypeError(
                f"[format] only scalars have a format; got {specification!r} for {self.aval}. "
                "Fix: format its elements, or np.array2string(x)."
            )
        return format(self.item(), specification)

    def __repr__(self) -> str:
        if self.is_deleted():
            raise_deleted(self)
        if dtypes.is_extended(self.aval.dtype):
            key_data = self.aval.dtype.key_data(self.host())
            return f"Array({self.aval.shape}, dtype={self.aval.dtype}) overlaying:\n{key_data}"
        weak = ", weak_type=True" if self.aval.weak_type else ""
        body = np.array2string(self.host(), separator=", ", prefix="Array(")
        if self.aval.size == 0:
            body += f", shape={self.aval.shape}"
        return f"Array({body}, dtype={self.aval.dtype.name}{weak})"

    def __str__(self) -> str:
        return repr(self) if dtypes.is_extended(self.aval.dtype) else str(self.host())

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        del memo
        return Array(self.device.driver.copy(self.data), self.aval, self.device)

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[np.ndarray, ShapedArray]]:
        return _restore, (self.host(), self.aval)


# The key by which calls find their programs. For an Array it is the aval: one slot with two names.
# Subclasses with a sharding have a key of both.
Array._type_key = Array.aval  # type: ignore[attr-defined]


@record
class Shard:
    """The shard of an array on one device.

    Attributes:
        device: the device.
        index: the slices of the whole array that the shard holds.
        replica_id: number of preceding devices with the same shard.
        data: the shard, an Array on the device; None for a device of another process.
    """

    device: Device
    index: Index
    replica_id: int
    data: Any  # Array | None; declared Any, so that users need no check for local shards


def _restore(data: np.ndarray, aval: ShapedArray) -> Array:
    return from_numpy(data, aval)


def raise_deleted(array: Array) -> NoReturn:
    """Raise the error for use of a deleted array.

    Raises:
        DeletedArrayError: always.
    """
    raise DeletedArrayError(
        f"[array] the array must not have been donated or deleted; got a deleted {array.aval}. "
        "Fix: use the result of the function that it was donated to, or drop donate_argnums."
    )


def _array_aval(array: Array) -> ShapedArray:
    return array.aval


register_value_type(Array, _array_aval)


def from_numpy(value: Any, aval: ShapedArray, device: Device | None = None) -> Array:
    """Copy a value to a new Array, converted to the aval's storage dtype."""
    device = device or default_device()
    data = np.array(value, dtype=storage_dtype(aval.dtype), order="C", copy=True)
    data = data.reshape(aval.shape)
    if origins is not None and data.nbytes >= MIN_RECORDED_BYTES:
        origins.note(data)
    return Array(device.driver.from_host(data), aval, device)


def as_numpy(value: Any, aval: ShapedArray) -> np.ndarray:
    """Convert an operand of any value type to NumPy, in the aval's storage dtype.

    The result may share memory with the operand: do not write to it.
    """
    if type(value) is Array:
        return value.host()
    if type(value) is Zero:
        return np.zeros(aval.shape, storage_dtype(aval.dtype))
    array = np.asarray(value)
    dtype = storage_dtype(aval.dtype)
    if array.dtype == dtype and array.flags.aligned:
        return np.ascontiguousarray(array).reshape(aval.shape)
    if type(value) is int:
        check_fits(value, dtype)
    if array.dtype == object:
        raise TypeError(
            f"[array] operands must hold values; got {brief(value)}. "
            f"Fix: {fix_for(value, 'pass an array or a number')}."
        )
    with np.errstate(all="ignore"):  # a float64 may overflow in float32
        return np.array(array, dtype=dtype, order="C").reshape(aval.shape)
