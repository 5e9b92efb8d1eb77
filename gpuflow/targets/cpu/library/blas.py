"""A private copy of NumPy's OpenBLAS that uses one thread.

The pool splits products among threads. An OpenBLAS with its own threads would compete with them:
its idle threads spin, and it waits for all of them while another process holds a core. If NumPy
came without an OpenBLAS of the expected name, products go through NumPy.
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
_CHUNK_BYTES = 1 << 18  # stays in the processor's caches
BLAS_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
# Of Blas, in order; LAPACK calls real matrices orthogonal where complex ones are unitary.
_KINDS = {"s": "or", "d": "or", "c": "un", "z": "un"}
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
    """A loaded BLAS.

    Attributes:
        gemm, gemv, trsm: addresses of cblas_?gemm and its like with 64-bit integers, by dtype.
        getrf, geqrf: those of LAPACK's functions.
        orgqr: those of LAPACK's ?orgqr, or ?ungqr of complex numbers.
        library: owns the code.
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
    """Load a copy; by its original path the system would return the loaded library again."""
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
    """Load the copy in the cache folder if it equals the original, else a new one.

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
            raise  # no file of this folder can be loaded
        problem = f"cannot be read ({error})"
    if is_there:
        warn(
            f"[cache] the copy of OpenBLAS in the kernel cache folder must be unchanged; {copy} "
            f"{problem}. It is replaced. Fix: check the disk, and which users may write to the "
            "folder.",
            CacheWarning,
        )
    with open(original, "rb", buffering=0) as source:
        # In chunks that stay in caches: writing all of it from memory takes four times as long.
        replace_file(copy, iter(partial(source.read, _CHUNK_BYTES), b""))
    with opened(copy) as descriptor:
        if not _holds(descriptor, original):
            raise OSError(f"{copy} does not keep what is written to it")
        return _open(descriptor)


def _holds(descriptor: int, original: Path) -> bool:
    """Whether an open file holds the bytes of another; 0.1 ms a MB, an eighth of a checksum's."""
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
# the heap that malloc reserves, 64 MB each. Without it OpenBLAS ends the process.
_LIBRARY_BYTES, _THREAD_BYTES = 64 << 20, 128 << 20


def _open(descriptor: int) -> ctypes.CDLL:
    # By its descriptor: the file at a path may have changed since it was compared. The system
    # returns the same library for a known name, so each name is used once.
    name = f"/proc/self/fd/{'./' * next(_numbers)}{descriptor}"
    threads = config.environment.num_threads
    require_address_space(_LIBRARY_BYTES + threads * _THREAD_BYTES, "OpenBLAS")
    # Read when it loads: number of threads, and processor.
    core = cpu_target().blas
    with library_environment(OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE=core):
        return ctypes.CDLL(name)
