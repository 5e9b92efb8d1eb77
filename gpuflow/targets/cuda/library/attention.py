"""Provider of fused attention and its gradients: launches of kernels/attention*.py.

The forward pass is one launch. Gradients are two: for key and value, and for query.

Tests: tests/kernels/test_kernel_attention.py, tests/kernels/test_attention_builds.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    ArrayLocation,
    BlockLaunch,
    LaunchSequence,
    ScalarFormat,
    make_block_launch,
    on_rows,
)

# Format by dtype; must have the dtypes of ops.contractions.attention.may_fuse. Its KIND is that of
# kernels/tiles.py.
_FORMATS = {
    "float32": ScalarFormat(tiles.FLOAT32, "*float32"),
    "bfloat16": ScalarFormat(tiles.BFLOAT16, "*uint16"),
    "float16": ScalarFormat(tiles.FLOAT16, "*uint16"),
}
_NONE = 0  # address of an absent operand


@record
class TileShape:
    """Tile shape of a kernel: 16 * ``row_tiles`` rows per warp, times ``columns``."""

    row_tiles: int
    columns: int


class _TileCase(NamedTuple):
    """The properties of a call that determine its candidate tile shapes.

    Attributes:
        kernel: name of the kernel.
        is_float32: whether elements have 32 bits, not 16.
        is_long: whether vectors have more than 64 elements.
        has_extras: whether an optional operand or a window is present.
    """

    kernel: str
    is_float32: bool
    is_long: bool
    has_extras: bool


# Candidate tile shapes in order of preference. A launch uses the first one for which the device has
# registers and shared memory. With the toolkit of the tests, that is the first of each, except for
# float32 vectors of more than 64 elements on devices with 99 KB of shared memory.
_2X64_FIRST = (TileShape(2, 64), TileShape(1, 64), TileShape(1, 32))
_2X32_FIRST = (TileShape(2, 32), TileShape(1, 32))
_64_TO_16 = (TileShape(1, 64), TileShape(1, 32), TileShape(1, 16))
_32_TO_16 = (TileShape(1, 32), TileShape(1, 16))
_32_TO_8 = (TileShape(1, 32), TileShape(1, 16), TileShape(1, 8))
_16_TO_8 = (TileShape(1, 16), TileShape(1, 8))
_ONLY_16 = (TileShape(1, 16),)
_TILE_SHAPES: dict[_TileCase, tuple[TileShape, ...]] = {
    # kernel, float32, more than 64 elements, extras
    _TileCase("attention_forward", False, False, False): _2X64_FIRST,
    _TileCase("attention_forward", False, False, True): _64_TO_16,
    _TileCase("attention_forward", False, True, False): _2X32_FIRST,
    _TileCase("attention_forward", False, True, True): _64_TO_16,
    _TileCase("attention_forward", True, False, False): _32_TO_8,
    _TileCase("attention_forward", True, False, True): _32_TO_8,
    _TileCase("attention_forward", True, True, False): _16_TO_8,
    _TileCase("attention_forward", True, True, True): _16_TO_8,
    _TileCase("attention_keys", False, False, False): _64_TO_16,
    _TileCase("attention_keys", False, False, True): _32_TO_16,
    _TileCase("attention_keys", False, True, False): _32_TO_16,
    _TileCase("attention_keys", False, True, True): _ONLY_16,
    _TileCase("attention_keys", True, False, False): _32_TO_8,
    _TileCase("attention_keys", True, False, True): _16_TO_8,
    _TileCase("attention_keys", True, True, False): _16_TO_8,
    _TileCase("attention_keys", True, True, True): _16_TO_8,
    _TileCase("attention_queries", False, False, False): _64_TO_16,
    _TileCase("attention_queries", False, False, True): _64_TO_16,
    _TileCase("attention_queries", False, True, False): _32_TO_16,
    _TileCase("attention_queries", False, True, True): _32_TO_16,
    _TileCase("attention_queries", True, False, False): _32_TO_8,
    _TileCase("attention_queries", True, False, True): _32_TO_8,
    _TileCase("attention_queries", True, True, False): _16_TO_8,
    _TileCase("attention_queries", True, True, True): _16_TO_8,
}


def add_attention(
    sequence: LaunchSequence,
    attention: Attention,
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
    operand_dtypes: Sequence[Any],
) -> bool:
    """Add the launches of attention or of its gradients; always returns True.

    Args:
        sequence: receives the launches.
        attention: the operation; its dtype must have a format in ``_FORMATS``.
        sources: locations of row-major operands: query, key and value; for gradients also the
            cotangent, the sums of the forward pass (float32), the dot products of cotangent and
            result (float32), and the result; then the optional operands that are present.
        outs: locations of row-major outputs: the result and the sums (float32), or the gradients
            with respect to query, key and value.
        operand_dtypes: dtypes of the operands, in the order of ``sources``.
    """
    dtype = storage_dtype(operand_dtypes[0])
    extras = _extras(attention, sources, operand_dtypes)
    leading_operands = sources[: 6 if attention.gradient else 3]

    def add_launch(
        kernel: Callable[..., None], kernel_outs: Sequence[ArrayLocation], rows: int, heads: int
    ) -> None:
        """Add a launch with a block for each tile of ``rows``, batch element and head."""
        pointer = _FORMATS[dtype.name].pointer
        arguments = _arguments(attention, pointer, leading_operands, extras, kernel_outs)
        block_launch: BlockLaunch | None = None
        # From the least to the most preferred shape: each launch has the one before as ``smaller``.
        for shape in reversed(candidate_shapes(kernel.__name__, attention, dtype)):
            constants = attention_constants(shape, attention, dtype, extras.bias_format.kind)
            blocks = -(-rows // int(constants["ROWS"])) * attention.batch * heads
            block_launch = make_block_launch(
                kernel,
                arguments,
                (blocks, 1, 1),
                tiles.THREADS,
                constants,
                {**constants, "ALIGNED": False},
                block_launch,
            )
        assert block_launch is not None, kernel
        sequence.launches.append(block_launch)

    if not attention.gradient:
        add_launch(forward.attention_forward, outs, attention.queries, attention.heads)
    else:
        dquery, dkey, dvalue = outs
        add_launch(backward.attention_keys, [dkey, dvalue], attention.keys, attention.key_heads)
        add_launch(backward.attention_queries, [dquery], attention.queries, attention.heads)
    return True


def candidate_shapes(kernel: str, attention: Attention, dtype: np.dtype) -> tuple[TileShape, ...]:
    """The tile shapes of the kernel of a name, in order of preference."""
    has_extras = bool(
        attention.bias
        or attention.mask
        or attention.window
        or attention.query_lengths
        or attention.key_lengths
    )
    case = _TileCase(kernel, dtype.itemsize == 4, attention.size > 64, has_extras)
    return _TILE_SHAPES[case]


def attention_constants(
    shape: TileShape, attention: Attention, dtype: np.dtype, bias_kind: int
) -> dict[str, Scalar]:
    """The constants of a kernel's build: tile shape, dtypes, and which operands are present.

    Args:
        shape: tile shape, from ``candidate_shapes``.
        attention: the operation.
        dtype: dtype of query, key and value.
        bias_kind: KIND of the bias in kernels/tiles.py; that of float32 without a bias.
    """
    constants: dict[str, Scalar] = {
        **tiles.tile_constants(
            _FORMATS[dtype.name].kind, attention.size, shape.row_tiles, shape.columns, True
        ),
        # Tensor cores take 16 columns at a time; with fewer, float32 is not rounded.
        "REDUCED": attention.reduced and dtype == np.float32 and shape.columns % 16 == 0,
        "BIAS_KIND": bias_kind,
        "CAUSAL": attention.causal,
        "WINDOW": attention.window is not None,
        "HAS_BIAS": attention.bias is not None,
        "HAS_MASK": attention.mask is not None,
        "HAS_QUERY_LENGTHS": attention.query_lengths,
        "HAS_KEY_LENGTHS": attention.key_lengths,
    }
    # Rows of the block (of two operands for gradients), and two stages of two streamed tiles.
    rows = int(constants["ROWS"]) * (2 if attention.gradient else 1) + 4 * shape.columns
    constants[SHARED_BYTES] = rows * int(constants["PITCH"]) * dtype.itemsize
    return constants


@record
class _Extras:
    """Locations of the optional operands, ``_NONE`` if absent, and the format of the bias."""

    bias: ArrayLocation | int
    bias_format: ScalarFormat
    mask: ArrayLocation | int
    query_lengths: ArrayLocation | int
    key_lengths: ArrayLocation | int


def _extras(
    attention: Attention, sources: Sequence[ArrayLocation], operand_dtypes: Sequence[Any]
) -> _Extras:
    """The optional operands, which follow the required ones; see ``add_attention``."""
    index = 7 if attention.gradient else 3  # operand 6 is the result, which only cuDNN reads
    present = (
        attention.bias,
        attention.mask,
        attention.query_lengths or None,
        attention.key_lengths or None,
    )
    bias_format = _FORMATS["float32"]
    if attention.bias is not None:
        bias_format = _FORMATS[storage_dtype(operand_dtypes[index]).name]
    locations: list[ArrayLocation | int] = []
    for operand in present:
        if operand is None:
            locations.append(_NONE)
            continue
        locations.append(sources[index])
        index += 1
    bias, *others = locations
    return _Extras(bias, bias_format, *others)


def _arguments(
    attention: Attention,
    pointer: str,
    leading_operands: Sequence[ArrayLocation],
    extras: _Extras,
    outs: Sequence[ArrayLocation],
) -> list[tuple[str, ArrayLocation | int]]:
    """The (type, value) of each argument, in the order of the parameters of all three kernels."""
    left, right = attention.window or (0, 0)
    scale = int.from_bytes(struct.pack("<f", attention.scale), "little")
    sizes = [
        attention.heads,
        attention.heads // attention.key_heads,
        attention.queries,
        attention.keys,
        *_broadcast_strides(attention.bias),
        *_broadcast_strides(attention.mask),
        left,
        right,
    ]
    sums = "*float32"
    operands = [(pointer, location) for location in leading_operands[:4]]
    results: list[tuple[str, ArrayLocation | int]]
    if attention.gradient:
        results = [(sums, operand) for operand in leading_operands[4:]]
        results += [(pointer, out) for out in outs]
    else:
        results = [(pointer, outs[0]), (sums, outs[1])]
    return [
        *operands,
        (extras.bias_format.pointer, extras.bias),
        ("*uint8", extras.mask),
        ("*int32", extras.query_lengths),
        ("*int32", extras.key_lengths),
        *results,
        *[("int64", size) for size in sizes],
        ("float32", scale),
    ]


def _broadcast_strides(shape: tuple[int, ...] | None) -> list[int]:
    """Strides of a row-major bias or mask of four dimensions, in elements; 0 where it broadcasts.

    All are 0 for an absent operand (None).
    """
    if shape is None:
        return [0] * 4
    strides = row_major_strides(shape)
    return [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]


PROVIDER = on_rows("kernels of ours", add_attention)
