"""Translate CUDA's errors: after a kernel failed, name the programs that may have caused it.

Tests: tests/targets/cuda/test_gpu_trouble.py, tests/targets/cuda/test_cuda_driver.py.
"""

from __future__ import annotations

from collections.abc import Sequence

# Sticky errors: all later CUDA calls of the process fail, too (the CUDA Runtime's documentation on
# cudaError). Names of the runtime and of the driver.
_STICKY = (
    "cudaErrorIllegalAddress",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "cudaErrorMisalignedAddress",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "cudaErrorLaunchFailure",
    "CUDA_ERROR_LAUNCH_FAILED",
    "cudaErrorIllegalInstruction",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "cudaErrorInvalidPc",
    "CUDA_ERROR_INVALID_PC",
    "cudaErrorHardwareStackError",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "cudaErrorInvalidAddressSpace",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "cudaErrorAssert",
    "CUDA_ERROR_ASSERT",
    "cudaErrorLaunchTimeout",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "cudaErrorECCUncorrectable",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
)


class GpuFault(RuntimeError):
    """A kernel failed, such as by an illegal address; the process cannot use the GPU any more."""


class StatusError(RuntimeError):
    """A call of CUDA or of one of its libraries returned an error status without details."""


def is_fault(error: BaseException) -> bool:
    """Whether an error is a sticky one: a kernel has failed."""
    text = str(error)
    return any(name in text for name in _STICKY)


def fault(error: BaseException, suspects: Sequence[str], exactly: bool = False) -> RuntimeError:
    """The error to raise instead of one of CUDA.

    Args:
        error: the error of CUDA.
        suspects: descriptions of the work since the last successful wait, most recent last.
        exactly: whether ``suspects`` are instead the kernel that failed and, optionally, its
            program.
    """
    if not is_fault(error):
        return RuntimeError(f"[cuda] a kernel must be launched; got {error} for {suspects}.")
    if exactly:
        origin = " of ".join([f"in kernel {suspects[0]}", *suspects[1:2]])
        fix = "report the kernel: jit(f).lower(...).compile().as_text() shows its source"
    else:
        programs = "\n".join(f"  {text}" for text in suspects) or "  (unknown)"
        origin = (
            f"in one of the programs that ran since the last time that one waited:\n{programs}\n"
        )
        fix = "set GPUFLOW_CHECK=1, which waits after each kernel and names the one that fails"
    return GpuFault(
        f"[cuda] kernels must stay inside their arrays; got {error} {origin}. Fix: {fix}; the same "
        "program on GPUFLOW_PLATFORM=cuda_sim reports the index. CUDA's context is lost, so this "
        "process cannot use the GPU any more."
    )
