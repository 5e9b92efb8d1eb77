"""Primitives of JAX for which gpuflow's functions use other ops: split, stack, unstack and tile.

``lax.split`` and similar functions are slices, concatenations and broadcasts. Programs that bind
JAX's primitives get equations of these names, with the rules of the functions.

Tests: tests/ops/test_linalg_rest.py.
"""

from __future__ import annotations

from gpuflow.control.custom.external_primitives import define_primitive
from gpuflow.lax import shapes, windows

split_p = define_primitive(
    "split", lambda x, *, sizes, axis: shapes.split(x, sizes, axis), multiple_results=True
)
stack_p = define_primitive("stack", lambda *operands, axis: shapes.stack(operands, axis))
unstack_p = define_primitive(
    "unstack", lambda x, *, axis: windows.unstack(x, axis), multiple_results=True
)
tile_p = define_primitive("tile", lambda x, *, reps: shapes.tile(x, reps))
