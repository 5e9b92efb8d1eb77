"""cuBLAS's calls, answered by a library that does in NumPy what cuBLAS's documentation says."""

import ctypes
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from gpuflow.targets.cuda.library.blas.gemm import (
    _SIGNATURES,
    CuBlas,
    find_cublas,
    load_cublas,
    workspace_bytes,
)
from gpuflow.targets.cuda.runtime.driver.api import Gemm

KINDS = {0: "float32", 1: "float64", 2: "float16", 4: "complex64", 5: "complex128", 14: "bfloat16"}
ALPHA = {68: np.float32, 69: np.float32, 77: np.float32, 70: np.float64}


def _column_major(address, kind, rows, columns, leading):
    """The matrix that cuBLAS sees: column by column, ``leading`` elements apart."""
    dtype = np.dtype(getattr(ml_dtypes, KINDS[kind], None) or KINDS[kind])
    count = (columns - 1) * leading + rows
    memory = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    return np.ndarray((rows, columns), dtype, memory, 0, (dtype.itemsize, leading * dtype.itemsize))


class FakeCuBlas:
    """The C interface, with the arguments in cuBLAS's order."""

    def __init__(self):
        self.order, self.computes = [], []

    def cublasCreate_v2(self, place):
        place._obj.value = 1234
        self.order.append("create")
        return 0

    def cublasSetStream_v2(self, handle, stream):
        self.order.append("stream")
        return 0

    def cublasSetWorkspace_v2(self, handle, place, count):
        self.order.append("workspace")
        return 0

    def cublasSetMathMode(self, handle, mode):
        assert mode == 16
        return 0

    def cublasGemmEx(self, *given):
        assert len(given) == len(_SIGNATURES["cublasGemmEx"])
        (handle, ta, tb, m, n, k, alpha, a, akind, lda, b, bkind, ldb, beta, c, ckind, ldc,
         compute, algorithm) = given  # fmt: skip
        assert (handle, algorithm) == (1234, -1)
        self._multiply(
            ta, tb, m, n, k, alpha, a, akind, lda, b, bkind, ldb, beta, c, ckind, ldc, compute
        )
        return 0

    def cublasGemmStridedBatchedEx(self, *given):
        assert len(given) == len(_SIGNATURES["cublasGemmStridedBatchedEx"])
        (_, ta, tb, m, n, k, alpha, a, akind, lda, sa, b, bkind, ldb, sb, beta, c, ckind, ldc, sc,
         count, compute, _) = given  # fmt: skip
        sizes = [
            np.dtype(getattr(ml_dtypes, KINDS[q], None) or KINDS[q]).itemsize
            for q in (akind, bkind, ckind)
        ]
        for number in range(count):
            places = [
                start + number * step * size
                for start, step, size in zip((a, b, c), (sa, sb, sc), sizes, strict=True)
            ]
            self._multiply(ta, tb, m, n, k, alpha, places[0], akind, lda, places[1], bkind, ldb,
                           beta, places[2], ckind, ldc, compute)  # fmt: skip
        return 0

    def _multiply(
        self, ta, tb, m, n, k, alpha, a, akind, lda, b, bkind, ldb, beta, c, ckind, ldc, compute
    ):
        self.computes.append(compute)
        is_complex = akind in (4, 5)
        real = np.dtype(ALPHA[compute])
        scale = np.dtype(f"c{real.itemsize * 2}") if is_complex else real
        for place, want in ((alpha, 1), (beta, 0)):
            value = np.frombuffer(place._obj, scale)
            assert value[0] == want
        assert lda >= max(1, k if ta else m) and ldb >= max(1, n if tb else k) and ldc >= m
        left = _column_major(a, akind, *((k, m) if ta else (m, k)), lda)
        right = _column_major(b, bkind, *((n, k) if tb else (k, n)), ldb)
        left, right = left.T if ta else left, right.T if tb else right
        wide = np.complex128 if is_complex else np.float64
        out = _column_major(c, ckind, m, n, ldc)
        out[...] = (left.astype(wide) @ right.astype(wide)).astype(out.dtype)


class _Pool:
    def malloc(self, count):
        return SimpleNamespace(ptr=4096)


@pytest.fixture
def blas():
    return CuBlas(FakeCuBlas(), 77, _Pool(), 9, nullcontext())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("right_transposed", [False, True])
@pytest.mark.parametrize("left_transposed", [False, True])
@pytest.mark.parametrize(
    "dtype, out_dtype",
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float16", "float16"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
    ],
)
def test_row_major_products(dtype, out_dtype, left_transposed, right_transposed, count, blas):
    rng = np.random.default_rng(0)
    kinds = [np.dtype(getattr(ml_dtypes, name, None) or name) for name in (dtype, out_dtype)]
    m, n, k = 4, 5, 6
    shapes = [(k, m) if left_transposed else (m, k), (n, k) if right_transposed else (k, n)]
    left, right = (
        np.ascontiguousarray(rng.integers(-4, 5, (count, *shape))).astype(kinds[0])
        for shape in shapes
    )
    out = np.full((count, m, n), 99).astype(kinds[1])
    gemm = Gemm(
        m,
        n,
        k,
        left_transposed,
        right_transposed,
        shapes[0][1],
        shapes[1][1],
        count,
        m * k,
        n * k,
        m * n,
        *kinds,
    )
    blas.gemm(gemm)(*[x.ctypes.data for x in (left, right, out)])
    wide = np.complex128 if kinds[0].kind == "c" else np.float64
    a, b = left.astype(wide), right.astype(wide)
    a = a.swapaxes(1, 2) if left_transposed else a
    b = b.swapaxes(1, 2) if right_transposed else b
    np.testing.assert_array_equal(out.astype(wide), (a @ b).astype(kinds[1]).astype(wide))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_tensorfloat32_only_where_that_may_be(dtype, blas):
    kind = np.dtype(dtype)
    x = np.ones((2, 2), kind)
    for reduced in (False, True):
        gemm = Gemm(2, 2, 2, False, False, 2, 2, 1, 0, 0, 4, kind, kind, reduced)
        blas.gemm(gemm)(*[x.ctypes.data] * 2, np.empty_like(x).ctypes.data)
    assert blas._library.computes == [68, 77]


def test_sizes_beyond_32_bits_are_left_to_others(blas):
    f32 = np.dtype(np.float32)
    assert blas.gemm(Gemm(1 << 31, 1, 1, False, False, 1, 1, 1, 0, 0, 1, f32, f32)) is None


@pytest.mark.parametrize("major, mebibytes", [(8, 4), (9, 32), (10, 32), (12, 12)])
def test_the_workspace_is_what_nvidia_recommends(major, mebibytes):
    """By the table at cublasSetWorkspace: Hopper and sm_100 32 MiB, sm_120 12 MiB, others 4 MiB."""
    assert workspace_bytes(major) == mebibytes << 20


def test_the_workspace_is_set_after_the_stream(blas):
    assert blas._library.order == ["create", "stream", "workspace"]


def test_a_status_is_an_error(blas):
    blas._library.cublasGemmEx = lambda *given: 13
    f32 = np.dtype(np.float32)
    multiply = blas.gemm(Gemm(1, 1, 1, False, False, 1, 1, 1, 0, 0, 1, f32, f32))
    with pytest.raises(RuntimeError, match=r"\[cublas\] .* got status 13 .*Fix:"):
        multiply(0, 0, 0)


def test_a_library_that_is_none_of_cublas():
    with pytest.raises((OSError, AttributeError)):
        load_cublas("libm.so.6")


def test_where_no_library_is_found_the_error_names_what_to_install(monkeypatch):
    """For each CUDA its extra; also where NVIDIA's own finder has an error of its own."""

    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    finder = SimpleNamespace(load_nvidia_dynamic_lib=absent)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=finder))
    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(OSError, match=r"libcublasLt\.so\.13, libcublasLt\.so\.12 must be") as seen:
        find_cublas("cublasLt")
    assert str(seen.value).startswith("[cublaslt] ")
    assert '[cuda13]", or its cuda12 where CUDA' in str(seen.value)
