"""Run a program on the stand-in for CUDA: ``python start.py LIBRARY program.py arguments...``

``-m module arguments...`` in the place of a program runs a module. ``stand_in.kernels`` is what
runs the kernels; ``FAKE_CUDA_RUNS=0`` lets launches do nothing.
"""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import elf_patch

if __name__ == "__main__":
    library, program, *arguments = sys.argv[1:]
    fake = elf_patch.install(Path(library))
    import stand_in  # gpuflow, which must find CUDA as it will be

    stand_in.kernels = stand_in.Kernels(fake, os.environ.get("FAKE_CUDA_RUNS", "1") == "1")
    if program == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
