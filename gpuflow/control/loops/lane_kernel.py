"""``kernel_p``: one program for each index of a grid, which must compile to one kernel.

``kernel_p`` holds the program of one batch element, ``(*operands, *indices) -> outs``. The indices
are int32 scalars at ``first_index`` among its inputs, and not operands of the equation. Each result
has leading batch dimensions: those of vmap, then the grid.

Forward derivatives and vmap bind ``kernel_p`` again. A reverse derivative sums over the lanes that
read an element, which no program of one lane can do. It is the derivative of the mapped program, as
with ``jit(vmap(f))``.

Tests: tests/control/test_kernel.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.util import safe_zip
from gpuflow.control import program_rules
from gpuflow.control.jit import bind_program
from gpuflow.control.loops.lanes import (
    Lane,
    Lanes,
    communicate,
    extend,
    lane_counts,
    lane_shape,
    over_lanes,
)
from gpuflow.control.programs import close, execute_alone
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.key_use import Flow, States, follow_program
from gpuflow.core.lowering import Inline, LaneForm, ProgramForm
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Uniform, Zero
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.checking import Categories, State, checked_jaxpr, split_state
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.linearize import linearize_jaxpr

INDEX = ShapedArray((), np.int32)


def bind_kernel(
    program: ClosedJaxpr,
    first_index: int,
    operands: Sequence[Any],
    grid: tuple[int, ...],
    name: str,
    lanes: Lanes = (),
) -> list[Any]:
    """Bind the program of one lane; its own constants become leading operands."""
    program, closed = close(program)
    flags = tuple(Lane(lane.axis, (*[False] * len(closed), *lane.mapped)) for lane in lanes)
    params: dict[str, Any] = {
        "program": program,
        "first_index": len(closed) + first_index,
        "grid": grid,
        "name": name,
        "lanes": flags,
    }
    if 0 in (*lane_shape(flags), *grid):
        return mapped_program(params)(*closed, *operands)  # all results are empty
    return kernel_p.bind(*closed, *operands, **params)


def _split(items: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Split a list with an item for each input of the program: operands, and indices."""
    first, count = params["first_index"], len(params["grid"])
    return [*items[:first], *items[first + count :]], [*items[first : first + count]]


def _with_indices(
    items: Sequence[Any], indices: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    first = params["first_index"]
    return [*items[:first], *indices, *items[first:]]


def mapped_program(params: dict[str, Any]) -> ClosedJaxpr:
    """``(*operands) -> outs``: the program over all lanes and the grid."""
    program, grid, lanes = params["program"], params["grid"], params["lanes"]
    inputs = len(program.in_avals)

    def make() -> ClosedJaxpr:
        avals, _ = _split(program.in_avals, params)
        rows = []
        for lane in lanes:
            flags = _with_indices(lane.mapped, [False] * len(grid), params)
            rows.append(Lane(lane.axis, tuple(flags)))
        for dim, size in enumerate(grid):
            own = [k == dim for k in range(len(grid))]
            flags = _with_indices([False] * len(avals), own, params)
            rows.append(Lane(AxisData(None, size), tuple(flags)))
        mapped = over_lanes(program, tuple(rows), range(inputs))

        def whole(*operands: Any) -> list[Any]:
            indices = [iota(np.int32, size) for size in grid]
            return mapped(*_with_indices(operands, indices, params))

        full = [
            aval.update(shape=(*[lane.axis.size for lane in lanes if lane.mapped[k]], *aval.shape))
            for k, aval in enumerate(avals)
        ]
        jaxpr, consts = trace_to_jaxpr(whole, full)
        return ClosedJaxpr(jaxpr, tuple(consts))

    key = ("kernel over lanes", params["first_index"], grid, lanes)
    return program.jaxpr.memo(key, make)


def _shape(*avals: ShapedArray, **params: Any) -> list[ShapedArray]:
    program, lanes = params["program"], params["lanes"]
    expected_avals, _ = _split(program.in_avals, params)
    for aval, one, count in safe_zip(avals, expected_avals, lane_counts(lanes, len(avals))):
        if (aval.shape[count:], aval.dtype) != (one.shape, one.dtype):
            raise TypeError(
                f"[kernel] operands must match the traced program; got {aval} for {one}. "
                "Fix: the rule that bound this kernel; programs cannot cause it."
            )
    front = (*lane_shape(lanes), *params["grid"])
    return [out.update(shape=(*front, *out.shape)) for out in program.out_avals]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    program, grid = params["program"], params["grid"]
    nonzeros = [type(tangent) is not Zero for tangent in tangents]
    flags = _with_indices(nonzeros, [False] * len(grid), params)
    derivative, out_nonzeros = jvp_jaxpr(program, tuple(flags), False)
    sources = [*range(len(primals)), *[k for k, flag in enumerate(nonzeros) if flag]]
    results = bind_kernel(
        derivative,
        params["first_index"],
        [*primals, *[tangent for tangent in tangents if type(tangent) is not Zero]],
        grid,
        f"jvp({params['name']})",
        extend(params["lanes"], sources),
    )
    count = len(program.out_avals)
    out_tangents = iter(results[count:])
    return results[:count], [
        next(out_tangents) if flag else Zero(aval_of(out).tangent())
        for out, flag in safe_zip(results[:count], out_nonzeros)
    ]


def _linearize(nonzeros: tuple[bool, ...], *primals: Any, **params: Any) -> tuple[Any, ...]:
    name = params["name"]
    known, linear, out_nonzeros, count = linearize_jaxpr(mapped_program(params), nonzeros)
    results = bind_program(known, name, primals)
    split = len(results) - count

    def tangent_function(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        return bind_program(ClosedJaxpr(linear), f"linear({name})", [*residuals, *tangents])

    return results[:split], out_nonzeros, results[split:], tangent_function


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    def bind(program: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        return bind_program(program, f"transpose({params['name']})", values)

    return program_rules.transpose(bind, mapped_program(params), cotangents, operands)


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], Sequence[int | Uniform | None]]:
    batched_operands = [
        x if dim is None else move_axis(x, dim, 0) for x, dim in safe_zip(operands, dims)
    ]
    mapped = tuple(dim is not None for dim in dims)
    if communicate([params["program"]]):
        count = len(params["program"].out_avals)
        whole, _ = batch_jaxpr(mapped_program(params), axis, mapped, (True,) * count)
        outs = whole(*batched_operands)
    else:
        lanes = (Lane(axis, mapped), *params["lanes"])
        outs = bind_kernel(
            params["program"],
            params["first_index"],
            batched_operands,
            params["grid"],
            params["name"],
            lanes,
        )
    return outs, [0] * len(outs)


def _checked(
    categories: Categories, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State | None]:
    program, sites = checked_jaxpr(mapped_program(params), categories)
    outs = bind_program(program, params["name"], operands)
    return split_state(outs, len(params["program"].out_avals), sites)


def _keys(flow: Flow) -> States | None:
    return follow_program(mapped_program(flow.params), flow.states)


def _lane_form(params: dict[str, Any]) -> LaneForm:
    lanes, grid = params["lanes"], params["grid"]
    count = len(params["program"].in_avals) - len(grid)
    flags = [lane.mapped for lane in lanes] + [(False,) * count] * len(grid)
    return LaneForm(
        ProgramForm(params["program"]),
        (*lane_shape(lanes), *grid),
        tuple(flags),
        params["first_index"],
        len(grid),
        params["name"],
    )


kernel_p = register(
    make_primitive(
        "kernel",
        shape=_shape,
        execute=execute_alone(lambda: kernel_p),
        jvp=_jvp,
        linearize=_linearize,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda _, params: mapped_program(params), _lane_form),
        multiple_results=True,
        effects=lambda params: params["program"].effects,
        checked=_checked,
        subjaxprs=lambda params: [params["program"]],
        keys=_keys,
    )
)
