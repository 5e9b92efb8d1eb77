"""Loops inside kernels: what vmapped loops, scans and their gradients cost; run it with compare.py.

usage: python perf/compare.py perf/bench_loops.py --jax-python PATH

Every workload is written once for JAX's names, in float32, and its first result is compared with
NumPy in float64 before anything is timed. The workloads stand in loops_lanes.py (lanes that each
run a loop), loops_steps.py (one chain of steps; also beside a loop that cc compiles) and
loops_bodies.py (steps that sort, decompose, or transform).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import loops_bodies
import loops_lanes
import loops_steps

WORKLOADS = [*loops_lanes.ROWS, *loops_steps.ROWS, *loops_bodies.ROWS]
CHECKS = loops_steps.CHECKS
