"""jax.ffi registers compiled functions with XLA, which gpuflow does not use.

The names exist so that programs can be imported; their errors recommend a replacement.

Tests: tests/test_surface_modules.py.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gpuflow.base.names import public_names, publish

_MEND = (
    "Fix: gpuflow.pure_callback calls a function of the host, such as one of ctypes; inside it "
    "np.from_dlpack shares memory."
)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        "[ffi] functions must be traced or called on the host, as there is no XLA to register "
        f"them with; got a call of {name}. {_MEND}"
    )


def ffi_call(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError: use ``gpuflow.pure_callback`` to call host functions."""
    _refuse("ffi_call")


def ffi_lowering(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("ffi_lowering")


def build_ffi_lowering_function(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("build_ffi_lowering_function")


def register_ffi_target(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("register_ffi_target")


def register_ffi_target_as_batch_partitionable(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("register_ffi_target_as_batch_partitionable")


def register_ffi_type(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("register_ffi_type")


def register_ffi_type_id(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("register_ffi_type_id")


def include_dir(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("include_dir")


def pycapsule(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("pycapsule")


def abstract_token(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``ffi_call``."""
    _refuse("abstract_token")


publish(globals(), "ffi", public_names(globals(), __name__))
