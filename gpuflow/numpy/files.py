"""Arrays from and to files, buffers and strings.

Tests: tests/numpy/test_numpy_files.py.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.base.private_files import kind_of
from gpuflow.base.util import warn
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import HasAval
from gpuflow.core.types import Array, DTypeLike, FileLike
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.creation import asarray


@explained
def save(file: FileLike, arr: Any, allow_pickle: bool = True) -> None:
    """Save an array in NumPy's format; ``.npy`` is appended to a path.

    Args:
        file: path, or open binary file.
        arr: array. bfloat16 is stored too, and ``load`` recognizes it by its width.
        allow_pickle: no effect: numeric arrays need no pickle.

    Returns:
        None.

    Raises:
        TypeError: if an argument is not array-like.

    Warns:
        UserWarning: if the file format has no name for a dtype of at most 8 bits.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> jnp.save(file, jnp.array([1.5, 2.5], jnp.bfloat16))
        >>> _ = file.seek(0)
        >>> jnp.load(file)
        Array([1.5, 2.5], dtype=bfloat16)
    """
    np.save(file, _named("save", arr), allow_pickle=allow_pickle)


def _named(op: str, x: Any) -> np.ndarray:
    """An array to save, with a warning if ``load`` cannot restore its dtype."""
    host = np.asarray(as_array(op, x))
    if host.dtype in (*dtypes.NARROW_FLOATS, *dtypes.NARROW_INTEGERS):
        warn(
            f"[{op}] NumPy's format must have a name for the dtype, or load gives bytes; got "
            f"{host.dtype.name}. Fix: gpuflow.checkpointing.save, or x.view(jnp.uint8)."
        )
    return host


@explained
def savez(file: FileLike, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Save several arrays to one file in NumPy's format.

    Args:
        file: path, or open binary file.
        args: arrays, stored as ``arr_0``, ``arr_1``, ...
        allow_pickle: no effect.
        kwds: arrays, stored under their names.

    Returns:
        None.

    Raises:
        TypeError: if an argument is not array-like.

    Warns:
        UserWarning: if the file format has no name for a dtype of at most 8 bits.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> jnp.savez(file, weights=jnp.ones((2, 3)), bias=jnp.zeros(2))
        >>> _ = file.seek(0)
        >>> {name: array.shape for name, array in jnp.load(file).items()}
        {'weights': (2, 3), 'bias': (2,)}
    """
    del allow_pickle
    hosts = [_named("savez", x) for x in args]
    named: Any = {k: _named("savez", x) for k, x in kwds.items()}
    np.savez(file, *hosts, **named)


class Archive(Mapping[str, np.ndarray]):
    """The content of a file of ``savez``: NumPy arrays by name, read on access.

    Attributes:
        files: the names.

    Raises:
        KeyError: if a name is not one of ``files``.
        ValueError: if a member is not an array, is damaged, or holds pickled objects.
    """

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self.files: list[str] = opened.files

    def __getitem__(self, name: str) -> np.ndarray:
        check(
            name in self._opened,
            lambda: (
                f"[load] the name must be one of the archive's; got {name!r}. "
                f"Fix: one of {self.files[:10]}."
            ),
            KeyError,
        )
        with _reading(f"{name!r} of an archive"):
            member = self._opened[name]
        check(
            isinstance(member, np.ndarray),
            lambda: (
                f"[load] members of an archive must be arrays in NumPy's format; got {name!r}, "
                f"which is another file of {len(member)} bytes. "
                f"Fix: zipfile.ZipFile(file).read({name!r})."
            ),
            ValueError,
        )
        return _with_bfloat16(member)

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
    """Restore bfloat16, the only 2-byte dtype without a name in NumPy's format."""
    return array.view(dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a file of ``save`` or ``savez``.

    Args:
        file: path, or open binary file.
        args, kwargs: as for ``np.load``. Pickled objects raise an error unless
            ``allow_pickle=True``, because reading them runs code of the file.

    Returns:
        An array, or for several arrays a mapping from names to NumPy arrays.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has another format, is damaged or not a regular file, or holds
            pickled objects.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> jnp.save(file, jnp.arange(3))
        >>> _ = file.seek(0)
        >>> jnp.load(file)
        Array([0, 1, 2], dtype=int32)
    """
    if isinstance(file, str | bytes | os.PathLike):
        mode = os.stat(file).st_mode
        check(
            stat.S_ISREG(mode),
            lambda: (
                f"[load] the file must be a regular one; got {kind_of(mode)} at {file!r}. "
                "Fix: give the path of a file that jnp.save or jnp.savez wrote."
            ),
            ValueError,
        )
    with _reading("a file"):
        out = np.load(file, *args, **kwargs)
    if isinstance(out, np.lib.npyio.NpzFile):
        return Archive(out)
    return asarray(_with_bfloat16(out)) if isinstance(out, np.ndarray) else out


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Convert errors of NumPy's reader, except for wrong arguments and paths.

    Raises:
        ValueError: if the content cannot be read, or holds pickled objects.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, TypeError):
        raise
    except Exception as error:
        text = str(error)
        is_pickled = "allow_pickle" in text and "header" not in text
        fix = "export the arrays again with jnp.save or jnp.savez"
        if is_pickled:
            text = "pickled objects, which run code when they are read"
            fix = "np.load(file, allow_pickle=True), if you trust who wrote it"
        raise ValueError(
            "[load] files must hold arrays of numbers in NumPy's format, complete; got "
            f"{what} with {text or type(error).__name__}. Fix: {fix}."
        ) from error


@explained
def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0) -> Array:
    """Read numbers from the bytes of a buffer or array.

    Args:
        buffer: an object with the buffer protocol, or an array.
        dtype: dtype of the bytes; float64 by default, which is then narrowed.
        count: number of elements to read; -1 reads all.
        offset: number of bytes to skip.

    Returns:
        A vector, narrowed to 32 bits unless x64 is enabled.

    Raises:
        ValueError: if the number of bytes is not a multiple of the item size, or is too small for
            ``count``.

    Example:
        >>> jnp.frombuffer(bytes([1, 0, 2, 0]), dtype=jnp.int16)
        Array([1, 2], dtype=int16)
    """
    buffer = np.asarray(buffer) if isinstance(buffer, HasAval) else buffer
    try:
        memoryview(buffer)
    except TypeError:
        raise TypeError(
            f"[frombuffer] buffer must be an object with bytes; got {brief(buffer)}. "
            "Fix: jnp.frombuffer(bytes(...))."
        ) from None
    return asarray(np.frombuffer(buffer, np.dtype(dtype), count, offset))


@explained
def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Array:
    """Read numbers from a string with separators.

    Args:
        string: text.
        dtype: dtype of the numbers; float64 by default, which is then narrowed.
        count: number of elements to read; -1 reads all.
        sep: separator of the numbers; surrounding white space is ignored.

    Returns:
        A vector, narrowed to 32 bits unless x64 is enabled.

    Raises:
        ValueError: if ``sep`` is empty.

    Example:
        >>> jnp.fromstring("1, 2, 3", dtype=int, sep=",")
        Array([1, 2, 3], dtype=int32)
    """
    return asarray(np.fromstring(string, np.dtype(dtype), count, sep=sep))


@explained
def fromfile(*args: Any, **kwargs: Any) -> NoReturn:
    """Not there, because a file may change; use ``jnp.asarray(np.fromfile(...))``.

    Args:
        args, kwargs: any arguments.

    Returns:
        Never; it raises.

    Raises:
        NotImplementedError: always.

    Example:
        >>> jnp.fromfile("numbers.bin")
        Traceback (most recent call last):
            ...
        NotImplementedError: [fromfile] functions must be pure, to be traced; ...
    """
    _not_pure("fromfile", args, kwargs)


@explained
def fromiter(*args: Any, **kwargs: Any) -> NoReturn:
    """Not there, because an iterator can be read only once; use ``jnp.asarray(np.fromiter(...))``.

    Args:
        args, kwargs: any arguments.

    Returns:
        Never; it raises.

    Raises:
        NotImplementedError: always.

    Example:
        >>> jnp.fromiter(iter([1, 2]), int)
        Traceback (most recent call last):
            ...
        NotImplementedError: [fromiter] functions must be pure, to be traced; ...
    """
    _not_pure("fromiter", args, kwargs)


def _not_pure(name: str, args: Any, kwargs: Any) -> NoReturn:
    del args, kwargs
    raise NotImplementedError(
        f"[{name}] functions must be pure, to be traced; got one that reads from outside. "
        f"Fix: jnp.asarray(np.{name}(...))."
    )
