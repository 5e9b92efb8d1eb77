"""All modules that fill the table of instructions."""

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
