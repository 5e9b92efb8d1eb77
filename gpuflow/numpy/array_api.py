"""The Python array API standard: the supported version, and capabilities.

Source: https://data-apis.org/array-api/2024.12

Tests: tests/numpy/test_numpy_array_api.py.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.numpy.scalar_types import isdtype
from gpuflow.runtime.device import Device, devices

VERSION = "2024.12"

_NAMES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "float32",
    "complex64",
)
_WIDE_NAMES = ("int64", "uint64", "float64", "complex128")


def array_namespace(self: Any, *, api_version: str | None = None) -> ModuleType:
    """The module with the functions of the array API standard: ``gpuflow.numpy``.

    Args:
        api_version: the version of the standard.

    Raises:
        ValueError: another version.
    """
    del self
    check(
        api_version in (None, VERSION),
        lambda: (
            f"[array_namespace] api_version must be {VERSION!r}; got {api_version!r}. "
            "Fix: leave it out."
        ),
        ValueError,
    )
    return sys.modules[__name__.rpartition(".")[0]]


class ArrayNamespaceInfo:
    """Result of ``__array_namespace_info__()``: capabilities, devices and dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """Whether boolean masks and shapes that depend on values work under jit: no."""
        return {
            "boolean indexing": False,
            "data-dependent shapes": False,
            "max dimensions": 64,
        }

    def default_device(self) -> Device | None:
        """None: the device on which functions create arrays is a setting."""
        return None

    def devices(self) -> list[Device | None]:
        """The devices that functions accept; None for the default device."""
        return [None, *devices()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of Python scalars and of indices."""
        del device
        return {
            "real floating": dtypes.default_float(),
            "complex floating": dtypes.canonicalize(dtypes.complex128),
            "integral": dtypes.default_int(),
            "indexing": dtypes.default_int(),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The dtypes of the standard by name.

        Args:
            device: no effect.
            kind: one kind as for ``isdtype``, or a tuple of them.
        """
        del device
        names = _NAMES + (_WIDE_NAMES if config.trace_context().enable_x64 else ())
        dtypes_by_name = {name: _dtype(name) for name in names}
        return {n: d for n, d in dtypes_by_name.items() if kind is None or isdtype(d, kind)}


def _dtype(name: str) -> Any:
    return dtypes.canonicalize(name)


def array_namespace_info() -> ArrayNamespaceInfo:
    """Capabilities, devices and dtypes, as the array API standard describes them."""
    return ArrayNamespaceInfo()
