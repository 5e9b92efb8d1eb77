"""Provider of attention by cuDNN, for calls with the same semantics; our kernels do all others.

Not supported are biases, masks, windows and lengths: gpuflow averages all values of fully masked
rows, which cuDNN does not. Nor is float32, for which cuDNN has no kernels. For gradients, cuDNN
takes the result of the forward pass as an operand, which our kernels do not need.
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
from gpuflow.targets.cuda.library.launch_sequence import NOT_IN_USE, At, LaunchSequence, on_rows

_DTYPES = (np.dtype(np.float16), bfloat16)
_STEP = 8  # sizes of vectors must be multiples of it
_ALIGNED = 16  # bytes that addresses must be multiples of
_LONGEST = (1 << 31) - 1  # most elements of an array


def refusal(what: Attention, dtype: Any) -> str:
    """Why cuDNN has no equivalent call, for ``explain``; "" if it has one."""
    if dtype not in _DTYPES:
        return "it takes float16 and bfloat16"
    if what.size % _STEP:
        return f"it takes vectors whose sizes are multiples of {_STEP}"
    extras = (what.bias, what.mask, what.window)
    if any(one is not None for one in extras) or what.query_lengths or what.key_lengths:
        return "it is not used with a bias, a mask, a window or lengths"
    scores = (what.batch, what.heads, what.queries, max(what.keys, what.size))
    if not 0 < prod(scores) <= _LONGEST:
        return f"it takes 1 to {_LONGEST} elements"
    return ""


def call_of(what: Attention, dtype: Any) -> AttentionCall | None:
    """The equivalent call, or None."""
    if refusal(what, dtype):
        return None
    return AttentionCall(
        what.batch,
        what.queries,
        what.keys,
        what.heads,
        what.key_heads,
        what.size,
        what.scale,
        what.causal,
        dtype,
        what.gradient,
    )


def _choose(block: Attention, step: CallStep, target: Any) -> LaunchSequence | None:
    call = call_of(block, step.operands[0].aval.dtype)
    if call is None or target.deep_library is None:
        return None
    chosen: PlannedCall | None = target.deep_library.choose(call, not target.atomic_sums)
    if chosen is None:
        return None

    def add(
        sequence: LaunchSequence,
        what: Attention,
        sources: Sequence[At],
        outs: Sequence[At],
        kinds: Sequence[Any],
    ) -> bool:
        if any(location.offset % _ALIGNED for location in sources):
            return False
        plain = sequence.instead()
        add_attention(plain, what, sources, outs, kinds)
        operands = sources
        if what.gradient:
            query, key, value, cotangent, sums, _, result = sources
            operands = (query, key, value, result, cotangent, sums)
        sequence.call(chosen, (*operands, *outs), plain)
        return True

    rows: LaunchSequence | None = on_rows("cuDNN", add).choose(block, step, target)
    return rows


def _why_not(block: Attention, step: CallStep, target: Any) -> str:
    if target.deep_library is None:
        return NOT_IN_USE
    dtype = step.operands[0].aval.dtype
    call = call_of(block, dtype)
    if call is None:
        return refusal(block, dtype)
    reason = target.deep_library.why_not(call, not target.atomic_sums)
    return reason or f"an operand does not begin at a multiple of {_ALIGNED} bytes"


PROVIDER = Provider("cuDNN", _choose, _why_not, lambda target: target.deep_library.version())
