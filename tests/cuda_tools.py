"""For tests that compile for CUDA, which needs wheels but no GPU: see optional_packages.py."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

requires_cuda_tools = pytest.mark.cuda_toolchain


def disassembler() -> str | None:
    """NVIDIA's disassembler, of its wheel (nvidia-cuda-nvdisasm) or of a toolkit."""
    found = importlib.util.find_spec("nvidia")
    for folder in [] if found is None else found.submodule_search_locations:
        for path in sorted(Path(folder).glob("*/bin/nvdisasm")):
            return str(path)
    return shutil.which("nvdisasm")


def sass(cubin: bytes, folder: Path) -> list[str]:
    """The instructions of a cubin, with their operands, in order."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = disassembler()
    if tool is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=True)
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", done.stdout)
