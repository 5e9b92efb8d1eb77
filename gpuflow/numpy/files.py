"""Arrays from and to files, buffers, texts and other libraries."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import HasAval
from gpuflow.core.types import Array, DTypeLike
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.creation import asarray


def save(file: Any, arr: Any, allow_pickle: bool = True) -> None:
    """Write an array in NumPy's format; a path gets the ending ``.npy``.

    Args:
        file: path or open binary file.
        arr: array; of bfloat16 too, which ``load`` knows by its width.
        allow_pickle: it changes nothing: arrays of numbers need no pickle.
    """
    np.save(file, np.asarray(as_array("save", arr)), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Write several arrays into one file in NumPy's format.

    Args:
        file: path or open binary file.
        args: arrays, stored as ``arr_0``, ``arr_1``, ...
        allow_pickle: it changes nothing.
        kwds: arrays, stored under their names.
    """
    del allow_pickle
    hosts = [np.asarray(as_array("savez", x)) for x in args]
    named: Any = {k: np.asarray(as_array("savez", x)) for k, x in kwds.items()}
    np.savez(file, *hosts, **named)


def load(file: Any, *args: Any, **kwargs: Any) -> Array:
    """Read what ``save`` or ``savez`` wrote.

    Args:
        file: path or open binary file.
        args, kwargs: as for ``np.load``.

    Returns:
        An array, or for several arrays NumPy's mapping from names.
    """
    out = np.load(file, *args, **kwargs)
    if not isinstance(out, np.ndarray):
        return out
    if out.dtype == np.dtype("V2"):
        # NumPy's format has no name for bfloat16, the one dtype of 2 bytes that it lacks.
        out = out.view(dtypes.bfloat16)
    return asarray(out)


def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0) -> Array:
    """The numbers whose bytes a buffer holds, or an array; arguments as for ``np.frombuffer``."""
    buffer = np.asarray(buffer) if isinstance(buffer, HasAval) else buffer
    return asarray(np.frombuffer(buffer, np.dtype(dtype), count, offset))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Array:
    """The numbers in a text, between separators; arguments as for ``np.fromstring``."""
    return asarray(np.fromstring(string, np.dtype(dtype), count, sep=sep))


def fromfile(*args: Any, **kwargs: Any) -> NoReturn:
    """Not there, since what a file holds may change; use ``jnp.asarray(np.fromfile(...))``.

    Raises:
        NotImplementedError: always.
    """
    _not_pure("fromfile", args, kwargs)


def fromiter(*args: Any, **kwargs: Any) -> NoReturn:
    """Not there, since an iterator can be read only once; use ``jnp.asarray(np.fromiter(...))``.

    Raises:
        NotImplementedError: always.
    """
    _not_pure("fromiter", args, kwargs)


def _not_pure(name: str, args: Any, kwargs: Any) -> NoReturn:
    del args, kwargs
    raise NotImplementedError(
        f"[{name}] functions must be pure, to be traced; got one that reads from outside. "
        f"Fix: jnp.asarray(np.{name}(...))."
    )
