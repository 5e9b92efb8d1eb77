"""The user API of devices and processes, and transfers of arrays.

Tests: tests/runtime/test_devices.py, tests/test_api_config.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import as_truth
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.refs import Ref
from gpuflow.core.sharding import PartitionSpec
from gpuflow.core.trace import Tracer
from gpuflow.core.types import ArrayLike, DeviceLike
from gpuflow.parallel.placement import as_sharding, put
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, process
from gpuflow.runtime.device import devices as platform_devices
from gpuflow.runtime.device import local_devices as process_devices

_T = TypeVar("_T")


@explained
def devices(backend: str | None = None) -> list[Device]:
    """Return all devices of ``backend`` (by default, of the default platform).

    Args:
        backend: the name of a platform, such as ``"cpu"``.

    Returns:
        A list of Devices, of all processes.

    Raises:
        RuntimeError: if the platform is not available.

    Example:
        >>> len(gf.devices()) == gf.device_count()
        True
    """
    return list(platform_devices(backend))


@explained
def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """Return the devices of one process.

    Args:
        process_index: index of the process; this process by default.
        backend: the name of a platform; the default platform by default.
        host_id: an older name of ``process_index``.

    Returns:
        A list of Devices.

    Example:
        >>> gf.local_devices() == gf.devices()
        True
    """
    requested = host_id if process_index is None else process_index
    if requested is None:
        return list(process_devices(backend))
    return [device for device in devices(backend) if device.process_index == requested]


@explained
def device_count(backend: str | None = None) -> int:
    """Return the number of devices.

    Args:
        backend: the name of a platform; the default platform by default.

    Returns:
        int; of all processes.

    Example:
        >>> gf.device_count() == len(gf.devices())
        True
    """
    return len(devices(backend))


@explained
def local_device_count(backend: str | None = None) -> int:
    """Return the number of devices of this process.

    Args:
        backend: the name of a platform; the default platform by default.

    Returns:
        int.

    Example:
        >>> gf.local_device_count() == len(gf.local_devices())
        True
    """
    return len(process_devices(backend))


@explained
def process_count(backend: str | None = None) -> int:
    """Return the number of processes in the group; 1 in a single process.

    Args:
        backend: accepted as in JAX; no effect.

    Returns:
        int.

    Example:
        >>> gf.process_count()
        1
    """
    del backend
    return process.count


@explained
def process_index(backend: str | None = None) -> int:
    """Return the index of this process; 0 in a single process.

    Args:
        backend: accepted as in JAX; no effect.

    Returns:
        int.

    Example:
        >>> gf.process_index()
        0
    """
    del backend
    return process.index


def _check_device(name: str, device: Any) -> None:
    if device is not None and not isinstance(device, Device):
        raise TypeError(
            f"[{name}] device must be a Device or None; got {device!r}. Fix: gpuflow.devices()[0]."
        )


@contextmanager
def default_device(device: Device | str | None) -> Iterator[None]:
    """Create new arrays on ``device`` inside the block.

    Args:
        device: a device, the name of a platform, or None for the first device of the default
            platform.

    Returns:
        A context manager.

    Raises:
        TypeError, ValueError: if the argument is something else.

    Example:
        >>> with gf.default_device(gf.devices()[0]):
        ...     x = jnp.ones(3)
        >>> x.device == gf.devices()[0]
        True
    """
    if not isinstance(device, str):
        _check_device("default_device", device)
    with config.override("default_device", device):
        yield


@overload
def device_put(
    x: ArrayLike,
    device: DeviceLike | PartitionSpec = None,
    *,
    src: Any = None,
    donate: bool = False,
    may_alias: bool | None = None,
) -> Array: ...
@overload
def device_put(
    x: Any,
    device: Any = None,
    *,
    src: Any = None,
    donate: bool = False,
    may_alias: bool | None = None,
) -> Any: ...
def device_put(
    x: Any,
    device: Any = None,
    *,
    src: Any = None,
    donate: bool = False,
    may_alias: bool | None = None,
) -> Any:
    """Copy the leaves of ``x`` to a device or sharding, as Arrays.

    Args:
        x: an array, scalar or pytree.
        device: a Device, a Sharding, a PartitionSpec of the current mesh, or
            ``gf.memory.Space.Device``; or a tree prefix of them.
        src: accepted as in JAX; the source device is detected.
        donate: accepted as in JAX; ``x`` is always copied.
        may_alias: accepted as in JAX; the result never aliases ``x``.

    Returns:
        A pytree like ``x`` with Arrays as leaves, of the same shapes and dtypes.

    Raises:
        ValueError: if ``device`` is not a valid device or sharding, a sharding does not divide its
            array, or both ``donate`` and ``may_alias`` are set.

    Example:
        >>> gf.device_put({"a": np.arange(3)}, gf.devices()[0])
        {'a': Array([0, 1, 2], dtype=int32)}
    """
    del src
    check(
        not (as_truth("device_put", "donate", donate) and may_alias),
        lambda: (
            "[device_put] an array is donated or aliased; got donate and may_alias. Fix: "
            "leave one out."
        ),
        ValueError,
    )
    leaves, structure = tree.flatten(x)
    destinations = tree.broadcast_prefix(device, x, "device_put")
    pairs = zip(leaves, destinations, strict=True)
    results = [put(leaf, as_sharding(at, "device_put")) for leaf, at in pairs]
    return tree.unflatten(structure, results)


def device_get(x: Any) -> Any:
    """Copy arrays in ``x`` to the host as NumPy arrays; other leaves and keys are unchanged.

    Args:
        x: a pytree of arrays.

    Returns:
        A pytree like ``x``.

    Example:
        >>> gf.device_get({"a": jnp.arange(3)})
        {'a': array([0, 1, 2], dtype=int32)}
    """

    def get(leaf: Any) -> Any:
        opaque = isinstance(leaf, Ref | Tracer) or dtypes.is_extended(getattr(leaf, "dtype", None))
        return np.asarray(leaf) if hasattr(leaf, "__array__") and not opaque else leaf

    return tree.tree_map(get, x)


def block_until_ready(x: _T) -> _T:
    """Wait until every Array in ``x`` is computed, and return ``x``.

    Args:
        x: a pytree of arrays and other objects.

    Returns:
        ``x`` itself.

    Example:
        >>> gf.block_until_ready(jnp.ones(2) + 1)
        Array([2., 2.], dtype=float32)
    """
    if type(x) is Array:
        return x.block_until_ready()  # type: ignore[return-value]
    for leaf in tree.leaves(x):
        if isinstance(leaf, Array | Ref) and not isinstance(leaf, Tracer):
            leaf.block_until_ready()
    return x
