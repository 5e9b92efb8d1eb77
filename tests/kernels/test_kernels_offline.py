"""Handwritten kernels are built for every architecture, without a GPU and without spills."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import ARCHITECTURES

from gpuflow.compiler.handwritten import build_handwritten
from gpuflow.core.lowering import Matrices, Runs, Scan, Sort
from gpuflow.runtime.gpu_blocks import At, Schedule
from gpuflow.runtime.gpu_matrices import add_matrices
from gpuflow.runtime.gpu_runs import add_runs
from gpuflow.runtime.gpu_scans import add_running
from gpuflow.runtime.gpu_sorts import add_sort
from gpuflow.runtime.kernels import kernel_cache

pytestmark = requires_cuda_tools

FLOAT, INDEX, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
BYTE = np.dtype(np.uint8)
EIGH = {"subset_by_index": None, "lower": True, "compute_vectors": True}
LARGE = 1 << 20  # elements: what runs in several launches

# What is built: the maker, what to do, the operands' dtypes, and how many outputs there are.
CALLS = {
    "scan": (add_running, Scan("add", 1, LARGE, 1, False), [FLOAT], 1),
    "sort": (add_sort, Sort(1, LARGE, 1, 1, LARGE), [BYTE], 1),  # in one pass
    "runs": (add_runs, Runs("add", LARGE, 1, 100), [INDEX, BOOL, FLOAT], 3),
    "qr": (add_matrices, Matrices("qr", 9, 32, 32, 32, {"full_matrices": True}), [FLOAT], 2),
    "eigh": (add_matrices, Matrices("eigh", 9, 32, 32, 32, EIGH), [FLOAT], 2),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CALLS)
def test_no_kernel_spills(name, architecture):
    add, what, kinds, outputs = CALLS[name]
    schedule = Schedule(len(kinds) + outputs)
    sources = [At(k) for k in range(len(kinds))]
    outs = [At(len(kinds) + k) for k in range(outputs)]
    assert add(schedule, what, sources, outs, kinds)
    for one in schedule.launches:
        built = build_handwritten(
            one.kernel, one.signature, dict(one.constants), one.bounds, kernel_cache(),
            architecture,
        ).built  # fmt: skip
        assert built.spill_bytes == 0, one.kernel
        assert built.shared_bytes <= 48 << 10, one.kernel
        # A depot would mean that what was meant for registers lies in memory.
        assert "__local_depot" not in built.ptx, one.kernel
