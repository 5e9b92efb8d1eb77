"""Loads a private copy of NumPy's OpenBLAS that uses one thread.

The thread pool of gpuflow splits products among its workers. OpenBLAS's own threads would compete
with them: idle ones spin, and OpenBLAS waits for all of them even if another process holds a core.
If NumPy has no OpenBLAS of the expected name, NumPy computes the products.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.address_space import require_address_space
from gpuflow.base.caches import cache
from gpuflow.base.config import config, library_environment
from gpuflow.base.errors import CacheWarning
from gpuflow.base.private_files import opened, replace_file
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.compiler.cache.folder import cache_folder
from gpuflow.targets.cpu.codegen.processor import cpu_target

_PATTERN = "libscipy_openblas64_*"
_numbers = itertools.count(1)
_CHUNK_BYTES = 1 << 18  # of a copy or comparison: fits the processor's caches
BLAS_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
# In LAPACK's names: "or" for orthogonal (real) matrices, "un" for unitary (complex) ones.
_KINDS = {"s": "or", "d": "or", "c": "un", "z": "un"}
# Symbols of the fields of ``Blas``, in order, for a letter and a kind.
_NAMES = (
    "scipy_cblas_{0}gemm64_",
    "scipy_cblas_{0}gemv64_",
    "scipy_cblas_{0}trsm64_",
    "scipy_{0}getrf_64_",
    "scipy_{0}geqrf_64_",
    "scipy_{0}{1}gqr_64_",
)


@record
class Blas:
    """Addresses of functions of a loaded OpenBLAS with 64-bit integers, by dtype.

    Attributes:
        gemm, gemv, trsm: CBLAS's functions.
        getrf, geqrf: LAPACK's functions.
        orgqr: LAPACK's ?orgqr, or ?ungqr for complex dtypes.
        library: owner of the code.
    """

    gemm: Mapping[str, int]
    gemv: Mapping[str, int]
    trsm: Mapping[str, int]
    getrf: Mapping[str, int]
    geqrf: Mapping[str, int]
    orgqr: Mapping[str, int]
    library: ctypes.CDLL = field(repr=False)


@cache
def private_blas() -> Blas | None:
    """The private BLAS, loaded at first use (some milliseconds); None if NumPy has no OpenBLAS."""
    original = _numpy_openblas()
    if original is None:
        return None
    try:
        library = _load(original)
        library.scipy_openblas_set_num_threads64_(1)
        gemm, gemv, trsm, getrf, geqrf, orgqr = (
            {
                dtype: _address(getattr(library, name.format(letter, _KINDS[letter])))
                for dtype, letter in BLAS_LETTERS.items()
            }
            for name in _NAMES
        )
    except (OSError, AttributeError):
        return None
    return Blas(gemm, gemv, trsm, getrf, geqrf, orgqr, library)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _numpy_openblas() -> Path | None:
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    libraries = sorted(folder.glob(_PATTERN))
    return libraries[0] if libraries else None


def _load(original: Path) -> ctypes.CDLL:
    """Load a copy. At the original path, the loader would return NumPy's loaded library."""
    folder = cache_folder()
    limit = config.environment.cache_limit
    if folder is not None and not 0 < limit < original.stat().st_size:
        with suppress(OSError):
            return _load_cached(original, folder / "blas" / original.name)
    with tempfile.NamedTemporaryFile(suffix=".so") as file, open(original, "rb") as source:
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
        file.flush()
        return _open(file.fileno())


def _load_cached(original: Path, copy: Path) -> ctypes.CDLL:
    """Load the copy in the cache folder; if it differs from the original, replace it first.

    Raises:
        OSError: if the copy cannot be stored or loaded.
    """
    is_there, is_good = copy.is_symlink() or copy.exists(), False
    problem = "differs from NumPy's library"
    try:
        with opened(copy) as descriptor:
            is_good = _holds(descriptor, original)
            if is_good:
                return _open(descriptor)
    except OSError as error:
        if is_good:
            raise  # the copy is good, so the folder does not allow loading (noexec)
        problem = f"cannot be read ({error})"
    if is_there:
        warn(
            f"[cache] the copy of OpenBLAS in the kernel cache folder must be unchanged; {copy} "
            f"{problem}. It is replaced. Fix: check the disk, and which users may write to the "
            "folder.",
            CacheWarning,
        )
    with open(original, "rb", buffering=0) as source:
        # In chunks that stay in caches: writing all of it at once takes four times as long.
        replace_file(copy, iter(partial(source.read, _CHUNK_BYTES), b""))
    with opened(copy) as descriptor:
        if not _holds(descriptor, original):
            raise OSError(f"{copy} does not keep what is written to it")
        return _open(descriptor)


def _holds(descriptor: int, original: Path) -> bool:
    """Whether an open file has the same bytes as ``original``.

    A comparison takes 0.1 ms per MB, an eighth of the time of a checksum.
    """
    copy_bytes, source_bytes = bytearray(_CHUNK_BYTES), bytearray(_CHUNK_BYTES)
    with (
        open(descriptor, "rb", buffering=0, closefd=False) as copy,
        open(original, "rb", buffering=0) as source,
    ):
        while True:
            count, expected = copy.readinto(copy_bytes), source.readinto(source_bytes)
            if count != expected or copy_bytes != source_bytes:
                return False
            if not count:
                return True


# Address space for the library, and for each calling thread: the buffer that OpenBLAS allocates and
# the heap that malloc reserves, 64 MB each. OpenBLAS ends the process if it cannot get them.
_LIBRARY_BYTES, _THREAD_BYTES = 64 << 20, 128 << 20


def _open(descriptor: int) -> ctypes.CDLL:
    # By its descriptor, since the file at the path may have changed after the comparison. The
    # loader returns the same library for a name it has seen, so each name is used once.
    name = f"/proc/self/fd/{'./' * next(_numbers)}{descriptor}"
    threads = config.environment.num_threads
    require_address_space(_LIBRARY_BYTES + threads * _THREAD_BYTES, "OpenBLAS")
    # OpenBLAS reads the number of threads and the processor when it is loaded.
    core = cpu_target().blas
    with library_environment(OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE=core):
        return ctypes.CDLL(name)
