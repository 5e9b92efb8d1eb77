"""Provider of fused attention and its gradients: launches of kernels/attention*.py."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gpuflow.kernels.attention as forward
import gpuflow.kernels.attention_backward as backward
import gpuflow.kernels.tiles as tiles
from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Attention
from gpuflow.targets.cuda.codegen.handwritten import SHARED_BYTES, Scalar
from gpuflow.targets.cuda.library.launch_sequence import (
    At,
    BlockLaunch,
    LaunchSequence,
    on_rows,
    one_launch,
)

# KIND and pointer type by dtype; must have the dtypes of ops.contractions.attention.may_fuse.
_KINDS = {
    "float32": (tiles.FLOAT32, "*float32"),
    "bfloat16": (tiles.BFLOAT16, "*uint16"),
    "float16": (tiles.FLOAT16, "*uint16"),
}
_NONE = 0  # address of an absent operand


@record
class Shape:
    """Tile shape of a kernel: 16 * ``row_tiles`` rows per warp, times ``columns``."""

    row_tiles: int
    columns: int


# SHAPES[kernel][32-bit elements][vectors of more than 64 elements][optional operands]: shapes to
# try. A launch uses the first one for which the device has registers and shared memory. With the
# toolkit of the tests, that is the first of each, except for float32 vectors of more than 64
# elements on devices with 99 KB of shared memory.
_Tries = tuple[Shape, ...]
_Shapes = tuple[tuple[_Tries, _Tries], tuple[_Tries, _Tries]]
_TWO_OF_64, _TWO_OF_32 = (Shape(2, 64), Shape(1, 64), Shape(1, 32)), (Shape(2, 32), Shape(1, 32))
_64, _32 = (Shape(1, 64), Shape(1, 32), Shape(1, 16)), (Shape(1, 32), Shape(1, 16))
_16, _32_PLAIN = (Shape(1, 16), Shape(1, 8)), (Shape(1, 32), Shape(1, 16), Shape(1, 8))
SHAPES: dict[str, tuple[_Shapes, _Shapes]] = {
    "attention_forward": (
        ((_TWO_OF_64, _64), (_TWO_OF_32, _64)),
        ((_32_PLAIN, _32_PLAIN), (_16, _16)),
    ),
    "attention_keys": (
        ((_64, _32), (_32, (Shape(1, 16),))),
        ((_32_PLAIN, _16), (_16, _16)),
    ),
    "attention_queries": (
        ((_64, _64), (_32, _32)),
        ((_32_PLAIN, _32_PLAIN), (_16, _16)),
    ),
}


def add_attention(
    sequence: LaunchSequence,
    what: Attention,
    sources: Sequence[At],
    outs: Sequence[At],
    kinds: Sequence[Any],
) -> bool:
    """Add the launches of attention or of its gradients; always returns True.

    Args:
        sequence: receives the launches.
        what: the operation.
        sources, outs: locations of operands and outputs, row-major.
        kinds: dtypes of the operands.
    """
    dtype = storage_dtype(kinds[0])
    extras = _extras(what, sources, kinds)
    leading_operands = sources[: 6 if what.gradient else 3]

    def launch(
        kernel: Callable[..., None], kernel_outs: Sequence[At], rows: int, heads: int
    ) -> None:
        arguments = _arguments(what, _KINDS[dtype.name][1], leading_operands, extras, kernel_outs)
        one: BlockLaunch | None = None
        for shape in reversed(shapes_to_try(kernel.__name__, what, dtype)):
            constants = attention_constants(shape, what, dtype, extras.bias_kind)
            blocks = -(-rows // int(constants["ROWS"])) * what.batch * heads
            one = one_launch(
                kernel,
                arguments,
                (blocks, 1, 1),
                tiles.THREADS,
                constants,
                {**constants, "ALIGNED": False},
                one,
            )
        assert one is not None, kernel
        sequence.launches.append(one)

    if not what.gradient:
        launch(forward.attention_forward, outs, what.queries, what.heads)
    else:
        dquery, dkey, dvalue = outs
        launch(backward.attention_keys, [dkey, dvalue], what.keys, what.key_heads)
        launch(backward.attention_queries, [dquery], what.queries, what.heads)
    return True


def shapes_to_try(kernel: str, what: Attention, dtype: np.dtype) -> tuple[Shape, ...]:
    """The tile shapes of a kernel, in order of preference."""
    extras = what.bias or what.mask or what.window or what.query_lengths or what.key_lengths
    return SHAPES[kernel][dtype.itemsize == 4][what.size > 64][bool(extras)]


def attention_constants(
    shape: Shape, what: Attention, dtype: np.dtype, bias_kind: int
) -> dict[str, Scalar]:
    """The constants of a kernel's build: tile shape, dtypes, and which operands are present."""
    constants: dict[str, Scalar] = {
        **tiles.tile_constants(
            _KINDS[dtype.name][0], what.size, shape.row_tiles, shape.columns, True
        ),
        # Tensor cores take 16 columns at a time; with fewer, float32 is not rounded.
        "REDUCED": what.reduced and dtype == np.float32 and shape.columns % 16 == 0,
        "BIAS_KIND": bias_kind,
        "CAUSAL": what.causal,
        "WINDOW": what.window is not None,
        "HAS_BIAS": what.bias is not None,
        "HAS_MASK": what.mask is not None,
        "HAS_QUERY_LENGTHS": what.query_lengths,
        "HAS_KEY_LENGTHS": what.key_lengths,
    }
    # Rows of the block (of two operands for gradients), and two stages of two streamed tiles.
    rows = int(constants["ROWS"]) * (2 if what.gradient else 1) + 4 * shape.columns
    constants[SHARED_BYTES] = rows * int(constants["PITCH"]) * dtype.itemsize
    return constants


@record
class _Extras:
    """Locations and types of the optional operands; ``_NONE`` if absent."""

    bias: At | int
    bias_kind: int
    bias_pointer: str
    mask: At | int
    query_lengths: At | int
    key_lengths: At | int


def _extras(what: Attention, sources: Sequence[At], kinds: Sequence[Any]) -> _Extras:
    """The optional operands, which follow the required ones."""
    position = 7 if what.gradient else 3  # operand 6 is the result, which only cuDNN reads
    present = (what.bias, what.mask, what.query_lengths or None, what.key_lengths or None)
    extras: list[At | int] = []
    bias_kind, bias_pointer = _KINDS["float32"]
    for index, one in enumerate(present):
        if one is None:
            extras.append(_NONE)
            continue
        if index == 0:
            bias_kind, bias_pointer = _KINDS[storage_dtype(kinds[position]).name]
        extras.append(sources[position])
        position += 1
    bias, *others = extras
    return _Extras(bias, bias_kind, bias_pointer, *others)


def _arguments(
    what: Attention,
    pointer: str,
    leading_operands: Sequence[At],
    extras: _Extras,
    outs: Sequence[At],
) -> list[tuple[str, At | int]]:
    """The (type, value) of each argument, in the order of the parameters of all three kernels."""
    left, right = what.window or (0, 0)
    scale = int.from_bytes(struct.pack("<f", what.scale), "little")
    sizes = [
        what.heads,
        what.heads // what.key_heads,
        what.queries,
        what.keys,
        *_steps(what.bias),
        *_steps(what.mask),
        left,
        right,
    ]
    sums = "*float32"
    operands = [(pointer, location) for location in leading_operands[:4]]
    results: list[tuple[str, At | int]]
    if what.gradient:
        results = [(sums, operand) for operand in leading_operands[4:]]
        results += [(pointer, out) for out in outs]
    else:
        results = [(pointer, outs[0]), (sums, outs[1])]
    return [
        *operands,
        (extras.bias_pointer, extras.bias),
        ("*uint8", extras.mask),
        ("*int32", extras.query_lengths),
        ("*int32", extras.key_lengths),
        *results,
        *[("int64", size) for size in sizes],
        ("float32", scale),
    ]


def _steps(shape: tuple[int, ...] | None) -> list[int]:
    """Row-major strides in elements, 0 for broadcast dimensions."""
    if shape is None:
        return [0] * 4
    steps = row_major_strides(shape)
    return [0 if size == 1 else step for size, step in zip(shape, steps, strict=True)]


PROVIDER = on_rows("kernels of ours", add_attention)
