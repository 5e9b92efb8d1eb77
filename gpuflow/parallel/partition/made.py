"""Arrays that are made where they are read: indices, random bits, repeated elements.

A dropout mask, a causal mask or zeros then cost each memory its shard.

Tests: tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.util import safe_zip
from gpuflow.compiler.correspondence import corresponding
from gpuflow.compiler.splits import operand_axes
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import Eqn
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.parallel.partition.iterated import applied
from gpuflow.parallel.partition.resharding import MeshAxes, is_even, local_shape
from gpuflow.parallel.partition.shards import Shards, Split

# Elements from which on an array is made where it is read, if it can be.
_LARGE = 1024


def deferred(shards: Shards, eqn: Eqn, operands: Sequence[Split]) -> Split | None:
    """An array that is made where it is read; None if the op is computed at once.

    These are blocks of indices and random bits, repeated elements, and what elementwise ops and
    layouts make of them.
    """
    rule, block = eqn.primitive.lower, eqn.primitive.placement.block
    if len(eqn.outputs) != 1 or eqn.effects or eqn.outputs[0].aval.size < _LARGE:
        return None
    is_repeated = rule.view is not None and operands[0].value is not None
    is_repeated = is_repeated and aval_of(operands[0].value).size == 1
    follows = rule.is_elementwise or rule.view is not None
    follows = follows and any(x.make is not None and x.value is None for x in operands)
    if block is None and not is_repeated and not follows:
        return None
    aval = eqn.outputs[0].aval

    def make(want: MeshAxes) -> Any:
        if not any(want):
            return shards.bound(eqn, shards.of(operands))[0].value
        if not all(is_even(*pair, shards.memories) for pair in safe_zip(aval.shape, want)):
            return None
        return (_shard if block is None else _block)(shards, eqn, operands, want)

    return Split(None, aval, ((),) * aval.ndim, make=make)


def _block(shards: Shards, eqn: Eqn, operands: Sequence[Split], want: MeshAxes) -> Any:
    """The block of an array that is made from indices; None if its chunks are not blocks."""
    memories = shards.memories
    if any(memories.within[name] > 1 for axes in want for name in axes):
        return None
    sizes = local_shape(eqn.outputs[0].aval, want, memories)
    starts = [mul(shards.number(axes), np.int32(n)) for axes, n in safe_zip(want, sizes)]
    assert eqn.primitive.placement.block is not None
    return eqn.primitive.placement.block(starts, sizes, *shards.of(operands), **eqn.params)


def _shard(shards: Shards, eqn: Eqn, operands: Sequence[Split], want: MeshAxes) -> Any:
    """The shard of an op on arrays that are made where they are read; None if it has none."""
    correspondence = corresponding(eqn)
    if correspondence is None:
        return None
    pairs = safe_zip(correspondence.outs[0], want)
    split = {axis: names for axis, names in pairs if axis is not None}
    goals = operand_axes(eqn, correspondence, split, shards.memories.counts)
    values = [shards.reshard(*pair) for pair in safe_zip(operands, goals)]
    outs = applied(eqn, values, [want], shards.memories)
    return None if outs is None else outs[0].value
