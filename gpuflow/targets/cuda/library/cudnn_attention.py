"""Provider of attention by cuDNN, for calls with the same semantics; our kernels do all others.

Not supported are biases, masks, windows and lengths: gpuflow averages all values of fully masked
rows, which cuDNN does not. Nor is float32, for which cuDNN has no kernels. For gradients, cuDNN
takes the result of the forward pass as an operand, which our kernels do not need.

Tests: tests/targets/cuda/test_cudnn_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.dtypes import bfloat16
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Attention
from gpuflow.targets.cuda.library.attention import add_attention
from gpuflow.targets.cuda.library.dnn.calls import AttentionCall, PlannedCall
from gpuflow.targets.cuda.library.launch_sequence import (
    NOT_IN_USE,
    ArrayLocation,
    LaunchSequence,
    on_rows,
)

_DTYPES = (np.dtype(np.float16), bfloat16)
_SIZE_MULTIPLE = 8  # sizes of vectors must be multiples of it
_ALIGNMENT_BYTES = 16  # addresses must be multiples of it
_MAX_ELEMENTS = (1 << 31) - 1  # of an array, so that offsets fit into 32 bits


def refusal_reason(attention: Attention, dtype: Any) -> str:
    """Why cuDNN has no equivalent call, for ``explain``; "" if it has one.

    Args:
        attention: the operation.
        dtype: dtype of query, key and value.
    """
    if dtype not in _DTYPES:
        return "it takes float16 and bfloat16"
    if attention.size % _SIZE_MULTIPLE:
        return f"it takes vectors whose sizes are multiples of {_SIZE_MULTIPLE}"
    extras = (attention.bias, attention.mask, attention.window)
    if (
        any(extra is not None for extra in extras)
        or attention.query_lengths
        or attention.key_lengths
    ):
        return "it is not used with a bias, a mask, a window or lengths"
    scores = (
        attention.batch,
        attention.heads,
        attention.queries,
        max(attention.keys, attention.size),
    )
    if not 0 < prod(scores) <= _MAX_ELEMENTS:
        return f"it takes 1 to {_MAX_ELEMENTS} elements"
    return ""


def call_of(attention: Attention, dtype: Any) -> AttentionCall | None:
    """The equivalent call of cuDNN; None if ``refusal_reason`` has one."""
    if refusal_reason(attention, dtype):
        return None
    return AttentionCall(
        attention.batch,
        attention.queries,
        attention.keys,
        attention.heads,
        attention.key_heads,
        attention.size,
        attention.scale,
        attention.causal,
        dtype,
        attention.gradient,
    )


def _choose(block: Attention, step: CallStep, target: Any) -> LaunchSequence | None:
    call = call_of(block, step.operands[0].aval.dtype)
    if call is None or target.dnn_library is None:
        return None
    planned_call: PlannedCall | None = target.dnn_library.plan_call(call, not target.atomic_sums)
    if planned_call is None:
        return None

    def add(
        sequence: LaunchSequence,
        attention: Attention,
        sources: Sequence[ArrayLocation],
        outs: Sequence[ArrayLocation],
        operand_dtypes: Sequence[Any],
    ) -> bool:
        """Add the call; False if the offset of an operand in its buffer is not aligned."""
        if any(location.offset % _ALIGNMENT_BYTES for location in sources):
            return False
        unaligned = sequence.unaligned_sequence()
        add_attention(unaligned, attention, sources, outs, operand_dtypes)
        operands = sources
        if attention.gradient:  # from the order of ``add_attention`` to that of ``AttentionCall``
            query, key, value, cotangent, sums, _, result = sources
            operands = (query, key, value, result, cotangent, sums)
        sequence.call(planned_call, (*operands, *outs), unaligned)
        return True

    sequence: Any = on_rows("cuDNN", add).choose(block, step, target)
    return sequence


def _why_not(block: Attention, step: CallStep, target: Any) -> str:
    if target.dnn_library is None:
        return NOT_IN_USE
    dtype = step.operands[0].aval.dtype
    call = call_of(block, dtype)
    if call is None:
        return refusal_reason(block, dtype)
    reason = target.dnn_library.why_not(call, not target.atomic_sums)
    return reason or f"an operand does not begin at a multiple of {_ALIGNMENT_BYTES} bytes"


PROVIDER = Provider("cuDNN", _choose, _why_not, lambda target: target.dnn_library.version())
