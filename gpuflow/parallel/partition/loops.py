"""SPMD partitioning of loops and branches: their bodies are partitioned, and bound again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import mesh_axes_of_results
from gpuflow.control.loops.cond import bind_cond
from gpuflow.control.loops.scan import bind_scan
from gpuflow.control.loops.while_loop import bind_while
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.parallel.partition.resharding import DimAxes, needed

# The constructor of Split, ``(value, dim_axes) -> Split``; an import would be a cycle.
Make = Callable[[Any, DimAxes], Any]


def partition_loop(
    partitioner: Any, eqn: Eqn, operands: Sequence[Any], make_split: Make
) -> list[Any]:
    """Partition a loop; carries keep the mesh axes of their initial values.

    Args:
        partitioner: the Partitioner.
        eqn: the equation of a loop.
        operands: its operands, as Split.
        make_split: the constructor of Split.
    """
    rule = eqn.primitive.lower
    assert rule.form is not None
    form = rule.form(eqn.params)
    if isinstance(form, ScanForm):
        return _scan(partitioner, eqn, form, operands, make_split)
    return _while(partitioner, form, operands, make_split)


def _followed(partitioner: Any, eqn: Eqn, operands: Sequence[Any]) -> list[DimAxes]:
    """Propagate mesh axes from operands to results."""
    memories = partitioner.memories
    result_axes = mesh_axes_of_results(eqn, [x.dim_axes for x in operands], memories.mesh)
    return [tuple(needed(names, memories) for names in dim_axes) for dim_axes in result_axes]


def _scan(
    partitioner: Any, eqn: Eqn, form: ScanForm, operands: Sequence[Any], make_split: Make
) -> list[Any]:
    split = form.num_consts + form.num_carry
    consts, carries = operands[: form.num_consts], operands[form.num_consts : split]
    # The scanned axis is not split: every memory iterates over all elements.
    elements = [((), *x.dim_axes[1:]) for x in operands[split:]]
    inner = [x.dim_axes for x in (*consts, *carries)] + [dim_axes[1:] for dim_axes in elements]
    stacked = [dim_axes[1:] for dim_axes in _followed(partitioner, eqn, operands)[form.num_carry :]]
    ends = [*[x.dim_axes for x in carries], *stacked]
    body = partitioner.traced(_closed(form.body), inner, ends)
    outs = bind_scan(
        body,
        [x.value for x in consts],
        [x.value for x in carries],
        [partitioner.reshard(x, dim_axes) for x, dim_axes in safe_zip(operands[split:], elements)],
        length=form.length,
        reverse=form.reverse,
        unroll=eqn.params.get("unroll", 1),
    )
    rows = [((), *dim_axes) for dim_axes in stacked]
    return [make_split(*pair) for pair in safe_zip(outs, [*[x.dim_axes for x in carries], *rows])]


def _while(
    partitioner: Any, form: WhileForm, operands: Sequence[Any], make_split: Make
) -> list[Any]:
    first = form.num_condition_consts
    split = first + form.num_body_consts
    carries = [x.dim_axes for x in operands[split:]]
    const_axes = [x.dim_axes for x in operands[:first]]
    condition = partitioner.traced(_closed(form.condition), [*const_axes, *carries], [()])
    const_axes = [x.dim_axes for x in operands[first:split]]
    body = partitioner.traced(_closed(form.body), [*const_axes, *carries], carries)
    values = [x.value for x in operands]
    outs = bind_while(condition, body, values[:first], values[first:split], values[split:])
    return [make_split(*pair) for pair in safe_zip(outs, carries)]


def partition_branch(
    partitioner: Any, eqn: Eqn, operands: Sequence[Any], make_split: Make
) -> list[Any]:
    """Partition branches, whose results have the same mesh axes; Args as in ``partition_loop``."""
    rule = eqn.primitive.lower
    assert rule.branches is not None
    operand_axes = [x.dim_axes for x in operands[1:]]
    result_axes = _followed(partitioner, eqn, operands)
    branches = [
        partitioner.traced(_closed(branch), operand_axes, result_axes)
        for branch in rule.branches(eqn.params)
    ]
    outs = bind_cond(branches, operands[0].value, [x.value for x in operands[1:]])
    return [make_split(*pair) for pair in safe_zip(outs, result_axes)]


def _closed(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    assert not jaxpr.consts, "bodies hold no constants"
    return jaxpr
