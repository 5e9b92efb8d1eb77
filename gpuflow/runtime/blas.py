"""A BLAS of our own: a private copy of NumPy's OpenBLAS that uses one thread.

The pool splits products among threads. An OpenBLAS with threads of its own would fight with them:
its idle threads spin, and it waits for all of them where another process holds a core. Where
NumPy came without an OpenBLAS of the expected name, products go through NumPy.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.config import config, library_environment
from gpuflow.base.records import record
from gpuflow.compiler.cpu_target import cpu_target

_PATTERN = "libscipy_openblas64_*"
BLAS_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


@record
class Blas:
    """A loaded BLAS.

    Attributes:
        gemm, trsm: addresses of cblas_?gemm and cblas_?trsm with 64-bit integers, by dtype.
        getrf: those of LAPACK's function.
        library: owns the code.
    """

    gemm: Mapping[str, int]
    trsm: Mapping[str, int]
    getrf: Mapping[str, int]
    library: Any = field(repr=False)


@cache
def private_blas() -> Blas | None:
    """The private BLAS, loaded at first use (some milliseconds); None where there is none."""
    original = _numpy_openblas()
    if original is None:
        return None
    try:
        library = _load(original)
        library.scipy_openblas_set_num_threads64_(1)
        gemm, trsm, getrf = (
            {
                dtype: _address(getattr(library, name.replace("?", letter)))
                for dtype, letter in BLAS_LETTERS.items()
            }
            for name in ("scipy_cblas_?gemm64_", "scipy_cblas_?trsm64_", "scipy_?getrf_64_")
        )
    except (OSError, AttributeError):
        return None
    return Blas(gemm, trsm, getrf, library)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _numpy_openblas() -> Path | None:
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    found = sorted(folder.glob(_PATTERN))
    return found[0] if found else None


def _load(original: Path) -> Any:
    """Load a copy: the system gives a library that is loaded already a second time otherwise."""
    kept = _kept_copy(original)
    if kept is not None:
        return _open(kept)
    handle, name = tempfile.mkstemp(suffix=".so")
    os.close(handle)
    try:
        shutil.copyfile(original, name)
        return _open(Path(name))
    finally:
        with suppress(OSError):
            os.unlink(name)


def _kept_copy(original: Path) -> Path | None:
    """The copy in the cache folder; None where it cannot be kept."""
    folder = config.environment.cache_folder
    if folder is None:
        return None
    copy = Path(folder) / "blas" / original.name
    try:
        if copy.exists() and copy.stat().st_size == original.stat().st_size:
            return copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=copy.parent, prefix=".new-")
        os.close(handle)
        try:
            shutil.copyfile(original, name)
            os.replace(name, copy)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError:
        return None
    return copy


def _open(path: Path) -> Any:
    # Read when it loads: its number of threads, and the processor that it believes in.
    core = cpu_target().blas
    with library_environment(OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE=core):
        return ctypes.CDLL(str(path))
