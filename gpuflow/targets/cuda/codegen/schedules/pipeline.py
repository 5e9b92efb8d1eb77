"""Schedules that rewrite kernel calls for GPUs when a plan is bound, in the order of trial.

The launch configuration (``launch_config``) and the width of indices (``index_bits``) are no
schedules: they are selected when a kernel is printed or launched.

Tests: tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from gpuflow.targets.cuda.codegen.schedules.row_phases import ROW_PHASES
from gpuflow.targets.cuda.codegen.schedules.split_reductions import SPLIT_REDUCTIONS
from gpuflow.targets.cuda.codegen.schedules.tiled_maps import TILED_MAPS

CUDA_SCHEDULES = (ROW_PHASES, SPLIT_REDUCTIONS, TILED_MAPS)
