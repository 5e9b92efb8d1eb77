"""Handwritten kernels are built for every architecture, without a GPU and without spills."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import ARCHITECTURES

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import AtomicSums, Convolution, Eig, Eigh, Qr, Runs, Scan, Sort
from gpuflow.core.views import contiguous
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.build import link_ptx, read_link_report
from gpuflow.targets.cuda.codegen.handwritten import build_handwritten
from gpuflow.targets.cuda.library.convolutions import add_convolution
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence
from gpuflow.targets.cuda.library.prefix_scans import add_cumulative
from gpuflow.targets.cuda.library.runs import add_runs
from gpuflow.targets.cuda.library.scatter_add import add_atomic_sums
from gpuflow.targets.cuda.library.small_matrices import add_matrices
from gpuflow.targets.cuda.library.sorts import add_sort

pytestmark = requires_cuda_tools

FLOAT, INDEX, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
BYTE, DOUBLE = np.dtype(np.uint8), np.dtype(np.float64)
EIGH = {"subset_by_index": None, "lower": True, "compute_vectors": True}
LARGE = 1 << 20  # elements: what runs in several launches

# What is built: the maker, what to do, the operands' dtypes, and how many outputs there are.
CALLS = {
    "scan": (add_cumulative, Scan("add", 1, LARGE, 1, False), [FLOAT], 1),
    "sort": (add_sort, Sort(1, LARGE, 1, 1, LARGE), [BYTE, FLOAT], 2),  # in one pass
    "sort in passes": (add_sort, Sort(1, LARGE, 1, 1, LARGE), [FLOAT, FLOAT], 2),
    "wide keys": (add_sort, Sort(1, LARGE, 1, 1, LARGE), [DOUBLE], 1),
    "wide sort": (add_sort, Sort(1, LARGE, 1, 1, LARGE), [DOUBLE, FLOAT], 2),
    "keys": (add_sort, Sort(1, LARGE, 1, 1, LARGE), [FLOAT], 1),
    "short keys": (add_sort, Sort(99, 2048, 1, 1, 2048), [FLOAT], 1),
    "runs": (add_runs, Runs("add", LARGE, 1, 100), [INDEX, BOOL, FLOAT], 3),
    "qr": (add_matrices, Qr(9, 32, 32, FLOAT, {"full_matrices": True}), [FLOAT], 2),
    "eigh": (add_matrices, Eigh(9, 32, 32, FLOAT, EIGH), [FLOAT], 2),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CALLS)
def test_no_kernel_spills(name, architecture):
    add, what, kinds, outputs = CALLS[name]
    sequence = LaunchSequence(len(kinds) + outputs)
    sources = [ArrayLocation(k) for k in range(len(kinds))]
    outs = [ArrayLocation(len(kinds) + k) for k in range(outputs)]
    assert add(sequence, what, sources, outs, kinds)
    for one in sequence.launches:
        built = build_handwritten(
            one.kernel,
            one.signature,
            dict(one.constants),
            one.bounds,
            kernel_cache(),
            architecture,
        ).built
        assert built.spill_bytes == 0, one.kernel
        assert built.shared_bytes <= 48 << 10, one.kernel
        # A depot would mean that what was meant for registers lies in memory.
        assert "__local_depot" not in built.ptx, one.kernel


EIG = {"compute_left_eigenvectors": True, "compute_right_eigenvectors": True}
COMPLEX = np.dtype(np.complex128)

# The same for large kernels, or many: their PTX for sm_80 is linked for all.
LINKED = {
    "eig": (add_matrices, Eig(9, 32, 32, FLOAT, EIG), [FLOAT], 3),
    "complex eig": (add_matrices, Eig(9, 32, 32, COMPLEX, EIG), [COMPLEX], 3),
    "top_k": (add_sort, Sort(1, LARGE, 1, 1, 4096, True, True), [FLOAT], 2),
    "atomic sums": (
        add_atomic_sums,
        AtomicSums(9, False, LARGE, ((3, 1),)),
        [FLOAT, INDEX, BOOL, FLOAT],
        1,
    ),
}


@pytest.mark.parametrize("name", LINKED)
def test_no_linked_kernel_spills(name):
    add, what, kinds, outputs = LINKED[name]
    sequence = LaunchSequence(len(kinds) + outputs)
    sources = [ArrayLocation(k) for k in range(len(kinds))]
    outs = [ArrayLocation(len(kinds) + k) for k in range(outputs)]
    assert add(sequence, what, sources, outs, kinds)
    for one in {(one.kernel, one.constants): one for one in sequence.launches}.values():
        built = build_handwritten(
            one.kernel, one.signature, dict(one.constants), one.bounds, kernel_cache(), (8, 0)
        ).built
        assert built.shared_bytes <= 48 << 10, one.kernel
        assert "__local_depot" not in built.ptx, one.kernel
        for major, minor in ARCHITECTURES:
            log = link_ptx(built.ptx, f"sm_{major}{minor}").log
            assert read_link_report(log).spill_bytes == 0, (one.kernel, major)


# Shapes of lhs, rhs and result, roles of their dimensions, margins, and the dtype.
_CHANNELS_LAST = (
    ((), (0,), (3,), (1, 2)),
    ((), (3,), (2,), (0, 1)),
    ((), (0,), (3,), (1, 2)),
)
_BY_KERNEL = (
    ((), (1,), (0,), (2, 3)),
    ((), (1,), (0,), (2, 3)),
    ((), (1,), (0,), (2, 3)),
)
_DEPTHWISE = (
    ((1,), (0,), (2,), (3, 4)),
    ((0,), (1,), (2,), (3, 4)),
    ((1,), (0,), (2,), (3, 4)),
)
_CHANNELS_FIRST = (((), (0,), (1,), (2, 3)), ((), (0,), (1,), (2, 3)), ((), (0,), (1,), (2, 3)))
CONVOLUTIONS = {
    "tensorfloat32": (
        (8, 56, 56, 64), (3, 3, 64, 64), (8, 56, 56, 64), _CHANNELS_LAST, 1, np.float32
    ),
    "tensorfloat32, by the kernel": (
        (8, 64, 56, 56), (8, 64, 56, 56), (64, 64, 3, 3), _BY_KERNEL, 1, np.float32
    ),
    "points of halves": (
        (8, 64, 56, 56), (64, 64, 1, 1), (8, 64, 56, 56), _CHANNELS_FIRST, 0, dtypes.bfloat16
    ),
    "channels in front": (
        (64, 128, 56, 56), (128, 128, 3, 3), (64, 128, 56, 56), _CHANNELS_FIRST, 1, np.float16
    ),
    "halves by the kernel, channels in front": (
        (64, 128, 56, 56), (64, 128, 56, 56), (128, 128, 3, 3), _BY_KERNEL, 1, dtypes.bfloat16
    ),
    "64 bits": (
        (2048, 56, 56, 512), (3, 3, 512, 64), (2048, 56, 56, 64), _CHANNELS_LAST, 1, np.float32
    ),
    "64 bits, halves by the kernel": (
        (2048, 512, 56, 56), (2048, 64, 56, 56), (512, 64, 3, 3), _BY_KERNEL, 1, dtypes.bfloat16
    ),
    "64 bits, depthwise": (
        (2048, 512, 1, 56, 56), (512, 1, 1, 3, 3), (2048, 512, 1, 54, 54), _DEPTHWISE, 0,
        np.float32,
    ),
    "halves one by one": (
        (8, 13, 56, 56), (31, 13, 3, 3), (8, 31, 56, 56), _CHANNELS_FIRST, 1, dtypes.bfloat16
    ),
    "forward": (
        (8, 56, 56, 64), (3, 3, 64, 64), (8, 56, 56, 64), _CHANNELS_LAST, 1, dtypes.bfloat16
    ),
    "by the kernel": (
        (8, 64, 56, 56), (8, 64, 56, 56), (64, 64, 3, 3), _BY_KERNEL, 1, np.float32
    ),
    "depthwise": (
        (8, 64, 1, 56, 56), (64, 1, 1, 3, 3), (8, 64, 1, 54, 54), _DEPTHWISE, 0, np.float32
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_no_convolution_spills(name):
    lhs, rhs, out, roles, margin, dtype = CONVOLUTIONS[name]
    reduced = name.startswith("tensorfloat32")
    what = Convolution(*roles, (1, 1), ((margin, margin),) * 2, (1, 1), (1, 1), reduced)
    kind, sequence = np.dtype(dtype), LaunchSequence(3)
    target = (ArrayLocation(2), ShapedArray(out, kind))
    views = [contiguous(lhs), contiguous(rhs)]
    assert add_convolution(
        sequence, what, [ArrayLocation(0), ArrayLocation(1)], views, [kind, kind], target
    )
    for one in sequence.launches:
        if one.kernel.__name__.startswith("convolve"):
            assert dict(one.constants)["LONG"] == name.startswith("64 bits")
        built = build_handwritten(
            one.kernel, one.signature, dict(one.constants), one.bounds, kernel_cache(), (8, 0)
        ).built
        assert built.spill_bytes == 0 and "__local_depot" not in built.ptx, one.kernel
        assert ".f64" not in built.ptx, one.kernel
        if kind.itemsize == 2 and one.kernel.__name__ == "convolve_tiles":
            assert "mma.sync.aligned.m16n8k16" in built.ptx
        if reduced and one.kernel.__name__ == "convolve_tiles":
            assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32" in built.ptx
            assert "cvt.rna.tf32.f32" in built.ptx
        for major, minor in ARCHITECTURES:
            log = link_ptx(built.ptx, f"sm_{major}{minor}").log
            assert read_link_report(log).spill_bytes == 0, (one.kernel, major)
