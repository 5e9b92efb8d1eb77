"""What the compiler of gpuflow has to show; run it with compare.py.

usage: python perf/compare.py perf/bench_compiler.py --jax-python PATH --torch-python PATH \
           --rivals jax,numpy,torch

Every workload is written once for JAX's names, and its first result is compared with NumPy in
float64 before anything is timed. The workloads stand in compiler_arrays.py (functions of a few
arrays), compiler_calls.py (single calls, random numbers), compiler_steps.py (training steps of
models.py), compiler_processes.py (builds, warm starts, many sizes, memory) and compiler_builds.py
(further builds).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compiler_arrays
import compiler_builds
import compiler_calls
import compiler_processes
import compiler_steps

WORKLOADS = [*compiler_arrays.ROWS, *compiler_steps.ROWS, *compiler_calls.ROWS]
PROCESS_WORKLOADS = [*compiler_processes.PROCESS_ROWS, *compiler_builds.BUILD_ROWS]
CHECKS: list[Any] = []
