"""Disassemble built kernels with NVIDIA's nvdisasm; only tests and reports use it.

Tests: tests/perf/test_sass.py.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpuflow.base.caches import cache

# The command that installs nvdisasm.
INSTALL = "pip install nvidia-cuda-nvdisasm"


@cache
def disassembler() -> str | None:
    """Path of nvdisasm, from its wheel or a CUDA toolkit; None if it is not installed."""
    packages = importlib.util.find_spec("nvidia")
    folders = None if packages is None else packages.submodule_search_locations
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*/bin/nvdisasm")):
            return str(path)
    return shutil.which("nvdisasm")


def disassemble(cubin: bytes) -> list[str]:
    """The SASS instructions of a cubin, with their operands, in order.

    Raises:
        FileNotFoundError: if nvdisasm is not installed.
        subprocess.CalledProcessError: if it rejects the cubin.
    """
    tool = disassembler()
    if tool is None:
        raise FileNotFoundError(
            f"[cuda build] nvdisasm must be installed to read machine code. Fix: {INSTALL}."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        completed = subprocess.run(
            [tool, "-c", str(path)], capture_output=True, text=True, check=True
        )
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", completed.stdout)
