"""Loads a private copy of NumPy's OpenBLAS that uses one thread.

The thread pool of gpuflow splits products among its workers. OpenBLAS's own threads would compete
with them: idle ones spin, and OpenBLAS waits for all of them even if another process holds a core.
If NumPy has no OpenBLAS of the expected name, NumPy computes the products.

The addresses of ``Blas`` are valid until the process ends. Any thread may call the functions; a
call runs on that thread alone. They do not check their arguments: callers ensure that matrices are
in bounds, of the function's dtype and aligned to it, and that results do not overlap operands.

Tests: tests/targets/cpu/test_private_blas.py, tests/targets/cpu/test_native_products.py.
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

_LIBRARY_PATTERN = "libscipy_openblas64_*"
_load_ids = itertools.count(1)
_CHUNK_BYTES = 1 << 18  # of a copy or comparison: fits the processor's caches
BLAS_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
# In LAPACK's names: "or" for orthogonal (real) matrices, "un" for unitary (complex) ones.
_ORTHOGONAL_PREFIXES = {"s": "or", "d": "or", "c": "un", "z": "un"}
# Symbols of the fields of ``Blas``, in order, for a BLAS letter and an orthogonal prefix.
_SYMBOL_TEMPLATES = (
    "scipy_cblas_{0}gemm64_",
    "scipy_cblas_{0}gemv64_",
    "scipy_cblas_{0}trsm64_",
    "scipy_{0}getrf_64_",
    "scipy_{0}geqrf_64_",
    "scipy_{0}{1}gqr_64_",
)


@record
class Blas:
    """Addresses of functions of a loaded OpenBLAS with 64-bit integers, by dtype name.

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
    numpy_library = _numpy_openblas()
    if numpy_library is None:
        return None
    try:
        library = _load_copy(numpy_library)
        library.scipy_openblas_set_num_threads64_(1)
        addresses = [_addresses_by_dtype(library, template) for template in _SYMBOL_TEMPLATES]
    except (OSError, AttributeError):
        return None
    return Blas(*addresses, library)


def _addresses_by_dtype(library: ctypes.CDLL, template: str) -> dict[str, int]:
    """Addresses of a function by dtype name.

    Raises:
        AttributeError: if the library has no such symbol.
    """
    addresses = {}
    for dtype, letter in BLAS_LETTERS.items():
        function = getattr(library, template.format(letter, _ORTHOGONAL_PREFIXES[letter]))
        addresses[dtype] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return addresses


def _numpy_openblas() -> Path | None:
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    libraries = sorted(folder.glob(_LIBRARY_PATTERN))
    return libraries[0] if libraries else None


def _load_copy(numpy_library: Path) -> ctypes.CDLL:
    """Load a copy. At the original path, the loader would return NumPy's loaded library."""
    folder = cache_folder()
    limit = config.environment.cache_limit
    if folder is not None and not 0 < limit < numpy_library.stat().st_size:
        with suppress(OSError):
            return _load_cached(numpy_library, folder / "blas" / numpy_library.name)
    with tempfile.NamedTemporaryFile(suffix=".so") as file, open(numpy_library, "rb") as source:
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
        file.flush()
        return _load_descriptor(file.fileno())


def _load_cached(numpy_library: Path, cached_copy: Path) -> ctypes.CDLL:
    """Load the copy in the cache folder; if it differs from the original, replace it first.

    Raises:
        OSError: if the copy cannot be stored or loaded.
    """
    exists, is_unchanged = cached_copy.is_symlink() or cached_copy.exists(), False
    problem = "differs from NumPy's library"
    try:
        with opened(cached_copy) as descriptor:
            is_unchanged = _has_bytes_of(descriptor, numpy_library)
            if is_unchanged:
                return _load_descriptor(descriptor)
    except OSError as error:
        if is_unchanged:
            raise  # the copy is good, so the folder does not allow loading (noexec)
        problem = f"cannot be read ({error})"
    if exists:
        warn(
            "[cache] the copy of OpenBLAS in the kernel cache folder must be unchanged; "
            f"{cached_copy} {problem}. It is replaced. Fix: check the disk, and which users may "
            "write to the folder.",
            CacheWarning,
        )
    with open(numpy_library, "rb", buffering=0) as source:
        # In chunks that stay in caches: writing all of it at once takes four times as long.
        replace_file(cached_copy, iter(partial(source.read, _CHUNK_BYTES), b""))
    with opened(cached_copy) as descriptor:
        if not _has_bytes_of(descriptor, numpy_library):
            raise OSError(f"{cached_copy} does not keep what is written to it")
        return _load_descriptor(descriptor)


def _has_bytes_of(descriptor: int, numpy_library: Path) -> bool:
    """Whether an open file has the same bytes as ``numpy_library``.

    A comparison takes 0.1 ms per MB, an eighth of the time of a checksum.
    """
    copy_bytes, source_bytes = bytearray(_CHUNK_BYTES), bytearray(_CHUNK_BYTES)
    with (
        open(descriptor, "rb", buffering=0, closefd=False) as cached_copy,
        open(numpy_library, "rb", buffering=0) as source,
    ):
        while True:
            count, expected = cached_copy.readinto(copy_bytes), source.readinto(source_bytes)
            if count != expected or copy_bytes != source_bytes:
                return False
            if not count:
                return True


# Address space for the library, and for each calling thread: the buffer that OpenBLAS allocates and
# the heap that malloc reserves, 64 MB each. OpenBLAS ends the process if it cannot get them.
_LIBRARY_BYTES, _THREAD_BYTES = 64 << 20, 128 << 20


def _load_descriptor(descriptor: int) -> ctypes.CDLL:
    """Load the library of an open file.

    Raises:
        OSError: if the loader cannot load it.
    """
    # By its descriptor, since the file at the path may have changed after the comparison. The
    # loader returns the same library for a name it has seen, so each name is used once.
    name = f"/proc/self/fd/{'./' * next(_load_ids)}{descriptor}"
    threads = config.environment.num_threads
    require_address_space(_LIBRARY_BYTES + threads * _THREAD_BYTES, "OpenBLAS")
    # OpenBLAS reads the number of threads and the processor when it is loaded.
    core = cpu_target().openblas_core_type
    with library_environment(OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE=core):
        return ctypes.CDLL(name)
