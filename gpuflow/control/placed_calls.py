"""Calls of programs whose operands or results have shardings, in one memory or in several.

Tests: tests/parallel/test_placed_calls.py, tests/parallel/test_memories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import requested_shardings
from gpuflow.control.entry import Entry
from gpuflow.core.sharding import Sharding
from gpuflow.runtime.device import in_use
from gpuflow.runtime.distributed import DistributedArray, delete_donated, programs, spans_memories
from gpuflow.runtime.memories import is_in_one_memory
from gpuflow.runtime.sharded import ShardedArray, check_same_devices, whole_of, with_sharding

WITH_SHARDINGS = frozenset({ShardedArray, DistributedArray})


def shardings_of(operands: Sequence[Any]) -> list[Sharding | None]:
    """The sharding of each operand that has one."""
    return [x.sharding if type(x) in WITH_SHARDINGS else None for x in operands]


def run_placed(
    entry: Entry,
    operands: list[Any],
    shardings: Sequence[Sharding | None],
    requested: Sequence[Sharding | None] | None,
    run: Callable[[list[Any]], list[Any]],
) -> tuple[list[Any], list[Sharding | None] | None]:
    """Run a program; results have shardings if operands have, or shardings are requested.

    Args:
        entry: the program.
        operands: its operands.
        shardings: for each operand the sharding that it has or shall have, or None.
        requested: for each output the requested sharding, or None; None: none is requested.
        run: runs the program on whole operands in one memory.

    Returns:
        The outputs, and the shardings that they were given in one memory; None if no operand or
        output has one, or if the program ran in several memories.

    Raises:
        ValueError: if shardings and committed operands are on different devices.
    """
    has_shardings = any(shardings) or entry.asks
    if has_shardings:
        every = [*shardings, *(requested or ()), *requested_shardings(entry.jaxpr.jaxpr)]
        used_shardings = [sharding for sharding in every if sharding]
        check_same_devices("jit", entry.counted(operands), used_shardings)
    if in_use.distributed or has_shardings:
        outs = _run_in_memories(entry, operands, shardings, requested)
        if outs is not None:
            return outs, None
    outs = run([whole_of(value) for value in operands])
    if not has_shardings and requested is None:
        return outs, None
    followed = entry.shardings(tuple(shardings)) if has_shardings else None
    out_shardings = followed or [None] * len(outs)
    if requested is not None:
        pairs = safe_zip(requested, out_shardings)
        out_shardings = [sharding or other for sharding, other in pairs]
    outs = [
        out if sharding is None else with_sharding(out, sharding)
        for out, sharding in safe_zip(outs, out_shardings)
    ]
    return outs, out_shardings if has_shardings else None


def _run_in_memories(
    entry: Entry,
    operands: list[Any],
    shardings: Sequence[Sharding | None],
    requested: Sequence[Sharding | None] | None,
) -> list[Any] | None:
    """Run the program across several memories; return None if one memory is enough."""
    known = [sharding for sharding in (*shardings, *(requested or ())) if sharding is not None]
    if all(map(is_in_one_memory, known)) and not spans_memories(entry.jaxpr):
        return None
    resharded = [
        x if sharding is None else programs.reshard(x, sharding)
        for x, sharding in safe_zip(operands, shardings)
    ]
    outs = programs.run(entry.jaxpr, resharded, requested, entry.donated)
    delete_donated(operands, entry.donated)
    return outs
