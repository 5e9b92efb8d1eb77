"""All modules that fill the table of instructions.

Tests: tests/ptxsim/test_ptx_data.py.
"""

from __future__ import annotations

from ptxsim import (
    access,
    atomics,
    compare,
    convert,
    copies,
    floats,
    integers,
    logic,
    matrix,
    moves,
    video,
    warp,
)

MODULES = (
    access,
    atomics,
    compare,
    convert,
    copies,
    floats,
    integers,
    logic,
    matrix,
    moves,
    video,
    warp,
)
