"""The schedules of the CPU, in the order in which they are tried, and its kernel rewrites.

Tests: tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from gpuflow.compiler.schedules.schedule import KernelRewrite
from gpuflow.targets.cpu.codegen.schedules.full_memory_order import FULL_MEMORY_ORDER
from gpuflow.targets.cpu.codegen.schedules.interchange import columns_in_rows
from gpuflow.targets.cpu.codegen.schedules.known_strides import KNOWN_STRIDES
from gpuflow.targets.cpu.codegen.schedules.lane_blocks import FEW_LANES, lanes_in_blocks
from gpuflow.targets.cpu.codegen.schedules.memory_order import MEMORY_ORDER
from gpuflow.targets.cpu.codegen.schedules.row_phases import ROW_PHASES
from gpuflow.targets.cpu.codegen.schedules.row_values import cache_row_values
from gpuflow.targets.cpu.codegen.schedules.rows_across_lanes import ROWS_ACROSS_LANES
from gpuflow.targets.cpu.codegen.schedules.short_rows import SHORT_ROW_LOOPS
from gpuflow.targets.cpu.codegen.schedules.split_reductions import SPLIT_REDUCTIONS
from gpuflow.targets.cpu.codegen.schedules.tiled_maps import TILED_MAPS

# Later schedules are tried on the results of earlier ones. MEMORY_ORDER comes before ROW_PHASES,
# because phases are maps and full reductions, not rows.
CPU_SCHEDULES = (
    MEMORY_ORDER,
    ROW_PHASES,
    FULL_MEMORY_ORDER,
    SPLIT_REDUCTIONS,
    SHORT_ROW_LOOPS,
    FEW_LANES,
    ROWS_ACROSS_LANES,
    TILED_MAPS,
    KNOWN_STRIDES,
)

CPU_REWRITES = (
    KernelRewrite("row values kept", cache_row_values),
    KernelRewrite("columns in rows", columns_in_rows),
    KernelRewrite("lanes in blocks", lanes_in_blocks),
)
