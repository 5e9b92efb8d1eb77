"""Arrays from and to files, buffers, texts and other libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.util import warn
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

    Warns:
        UserWarning: a dtype of at most 8 bits that the format has no name for.
    """
    np.save(file, _named("save", arr), allow_pickle=allow_pickle)


def _named(op: str, x: Any) -> np.ndarray:
    """An array for a file, with a warning where ``load`` will not know its dtype."""
    host = np.asarray(as_array(op, x))
    if host.dtype in (*dtypes.NARROW_FLOATS, *dtypes.NARROW_INTEGERS):
        warn(
            f"[{op}] NumPy's format must have a name for the dtype, or load gives bytes; got "
            f"{host.dtype.name}. Fix: gpuflow.checkpointing.save, or x.view(jnp.uint8)."
        )
    return host


def savez(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Write several arrays into one file in NumPy's format.

    Args:
        file: path or open binary file.
        args: arrays, stored as ``arr_0``, ``arr_1``, ...
        allow_pickle: it changes nothing.
        kwds: arrays, stored under their names.

    Warns:
        UserWarning: a dtype of at most 8 bits that the format has no name for.
    """
    del allow_pickle
    hosts = [_named("savez", x) for x in args]
    named: Any = {k: _named("savez", x) for k, x in kwds.items()}
    np.savez(file, *hosts, **named)


class Archive(Mapping[str, np.ndarray]):
    """What ``savez`` wrote: NumPy's arrays by name, read when they are asked for.

    Attributes:
        files: the names.
    """

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self.files: list[str] = opened.files

    def __getitem__(self, name: str) -> np.ndarray:
        return _with_bfloat16(self._opened[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


def _with_bfloat16(array: np.ndarray) -> np.ndarray:
    """NumPy's format has no name for bfloat16, the one dtype of 2 bytes that it lacks."""
    return array.view(dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Read what ``save`` or ``savez`` wrote.

    Args:
        file: path or open binary file.
        args, kwargs: as for ``np.load``.

    Returns:
        An array, or for several arrays a mapping from names to NumPy's.
    """
    out = np.load(file, *args, **kwargs)
    if isinstance(out, np.lib.npyio.NpzFile):
        return Archive(out)
    return asarray(_with_bfloat16(out)) if isinstance(out, np.ndarray) else out


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
