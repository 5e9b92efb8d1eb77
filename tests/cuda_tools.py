"""For tests that compile for CUDA, which needs wheels but no GPU: see optional_packages.py."""

import pytest

from gpuflow.targets.cuda.codegen.disassembly import INSTALL, disassemble, disassembler

requires_cuda_tools = pytest.mark.cuda_toolchain


def sass(cubin: bytes) -> list[str]:
    """The instructions of a cubin, with their operands, in order."""
    if disassembler() is None:
        pytest.skip(f"nvdisasm is not installed: {INSTALL}")
    return disassemble(cubin)
