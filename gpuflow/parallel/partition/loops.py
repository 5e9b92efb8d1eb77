"""SPMD partitioning of loops and branches: their bodies are partitioned, and bound again.

Tests: tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import mesh_axes_of_results
from gpuflow.control.loops.cond import bind_cond
from gpuflow.control.loops.scan import bind_scan
from gpuflow.control.loops.while_loop import bind_while
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.parallel.partition.resharding import MeshAxes, needed
from gpuflow.parallel.partition.shards import Split, splits_of


def partition_loop(
    partitioner: Any,
    eqn: Eqn,
    operands: Sequence[Split],
    wanted: Sequence[MeshAxes | None],
) -> list[Split]:
    """Partition a loop; carries have the mesh axes that its body gives them.

    Args:
        partitioner: the Partitioner.
        eqn: the equation of a loop.
        operands: its operands, as Split.
        wanted: the mesh axes with which its results are read, if known.
    """
    rule = eqn.primitive.lower
    assert rule.form is not None
    form = rule.form(eqn.params)
    if isinstance(form, ScanForm):
        return _scan(partitioner, eqn, form, operands, wanted)
    return _while(partitioner, eqn, form, operands)


def _followed(partitioner: Any, eqn: Eqn, operands: Sequence[Split]) -> list[MeshAxes]:
    """Propagate mesh axes from operands to results."""
    memories = partitioner.memories
    result_axes = mesh_axes_of_results(eqn, [x.dim_axes for x in operands], memories.mesh)
    return [tuple(needed(names, memories) for names in dim_axes) for dim_axes in result_axes]


def _either(first: Sequence[MeshAxes | None], second: Sequence[MeshAxes]) -> list[MeshAxes]:
    """The first mesh axes of each value that split it, else the second ones."""
    first = first or [None] * len(second)
    return [a if a is not None and any(a) else b for a, b in safe_zip(first, second)]


def _values(partitioner: Any, operands: Sequence[Split], dim_axes: Sequence[MeshAxes]) -> list[Any]:
    return [partitioner.reshard(*pair) for pair in safe_zip(operands, dim_axes)]


def _scan(
    partitioner: Any,
    eqn: Eqn,
    form: ScanForm,
    operands: Sequence[Split],
    wanted: Sequence[MeshAxes | None],
) -> list[Any]:
    first, split = form.num_consts, form.num_consts + form.num_carry
    consts = [x.dim_axes for x in operands[:first]]
    # The scanned axis is not split: every memory iterates over all elements.
    elements = [((), *x.dim_axes[1:]) for x in operands[split:]]
    followed = _followed(partitioner, eqn, operands)
    carries = _either(followed[: form.num_carry], [x.dim_axes for x in operands[first:split]])
    rows = [((), *dim_axes[1:]) for dim_axes in _either(wanted, followed)[form.num_carry :]]
    inner = [*consts, *carries, *[dim_axes[1:] for dim_axes in elements]]
    ends = [*carries, *[dim_axes[1:] for dim_axes in rows]]
    body = partitioner.traced(_closed(form.body), inner, ends)
    outs = bind_scan(
        body,
        _values(partitioner, operands[:first], consts),
        _values(partitioner, operands[first:split], carries),
        _values(partitioner, operands[split:], elements),
        length=form.length,
        reverse=form.reverse,
        unroll=eqn.params.get("unroll", 1),
    )
    return splits_of(eqn, outs, [*carries, *rows])


def _while(partitioner: Any, eqn: Eqn, form: WhileForm, operands: Sequence[Split]) -> list[Any]:
    first = form.num_condition_consts
    split = first + form.num_body_consts
    consts = [x.dim_axes for x in operands[:split]]
    initial = [x.dim_axes for x in operands[split:]]
    carries = _either(_followed(partitioner, eqn, operands), initial)
    condition = partitioner.traced(_closed(form.condition), [*consts[:first], *carries], [()])
    body = partitioner.traced(_closed(form.body), [*consts[first:], *carries], carries)
    values = _values(partitioner, operands, [*consts, *carries])
    outs = bind_while(condition, body, values[:first], values[first:split], values[split:])
    return splits_of(eqn, outs, carries)


def partition_branch(
    partitioner: Any,
    eqn: Eqn,
    operands: Sequence[Split],
    wanted: Sequence[MeshAxes | None],
) -> list[Split]:
    """Partition branches, whose results have the same mesh axes; Args as in ``partition_loop``."""
    rule = eqn.primitive.lower
    assert rule.branches is not None
    operand_axes = [x.dim_axes for x in operands]
    result_axes = _either(wanted, _followed(partitioner, eqn, operands))
    branches = [
        partitioner.traced(_closed(branch), operand_axes[1:], result_axes)
        for branch in rule.branches(eqn.params)
    ]
    index, *values = _values(partitioner, operands, operand_axes)
    outs = bind_cond(branches, index, values)
    return splits_of(eqn, outs, result_axes)


def _closed(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    assert not jaxpr.consts, "bodies hold no constants"
    return jaxpr
