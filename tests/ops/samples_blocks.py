"""Ops that only the compiler for GPUs makes, from others."""

SAMPLES: dict = {}
TESTED_ELSEWHERE = {
    "combined_runs": "tests/kernels/test_kernel_runs.py",
    "atomic_sums": "tests/kernels/test_kernel_atomic_sums.py",
}
