"""``linear_solve_p``: a user's linear solver, differentiated implicitly.

With ``A x = b``: ``A dx = db - dA x``, and the cotangent of ``b`` solves the transposed equation.
An equation holds four programs: ``matvec``, ``vecmat`` (its transpose), ``solve`` and
``transpose_solve``. Its operands are the captured values of each program, then ``b``.

Tests: tests/control/test_implicit.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpuflow.base.util import safe_zip
from gpuflow.control.program_rules import result_types
from gpuflow.control.programs import execute_alone, with_inputs
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Var
from gpuflow.core.key_use import use_none
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.ops.elementwise.arithmetic import neg
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import add_tangents, instantiate
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.jvp import jvp_flat


class Solve(NamedTuple):
    """A tuple with one item for each of the four programs: the program, its consts, or a count."""

    matvec: Any
    vecmat: Any
    solve: Any
    transpose_solve: Any

    def transposed(self) -> Solve:
        """The items for the transposed equation: each is swapped with that of its transpose."""
        return Solve(self.vecmat, self.matvec, self.transpose_solve, self.solve)


def _split(values: Sequence[Any], counts: Solve) -> tuple[Solve, list[Any]]:
    """Split operands: the consts of each program, and ``b``."""
    groups, start = [], 0
    for count in counts:
        groups.append(list(values[start : start + count]))
        start += count
    return Solve(*groups), list(values[start:])


def _concatenated(groups: Solve) -> list[Any]:
    return [value for group in groups for value in group]


def bind_solve(programs: Solve, consts: Solve, b: Sequence[Any]) -> list[Any]:
    """Bind the equation; ``vecmat`` and ``transpose_solve`` may be None without reverse mode."""
    counts = Solve(*[len(values) for values in consts])
    return linear_solve_p.bind(*_concatenated(consts), *b, programs=programs, counts=counts)


def _shape(*avals: ShapedArray, programs: Solve, counts: Solve) -> list[ShapedArray]:
    consts, b = _split(avals, counts)
    return result_types("custom_linear_solve", [*consts.solve, *b], programs.solve)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, programs: Solve, counts: Solve
) -> tuple[list[Any], list[Any]]:
    params: dict[str, Any] = {"programs": programs, "counts": counts}
    outs = linear_solve_p.bind(*primals, **params)
    consts, b = _split(primals, counts)
    const_tangents, b_tangents = _split(tangents, counts)
    x, aux = outs[: len(b)], outs[len(b) :]
    zeros = [Zero(aval_of(value).tangent()) for value in x]
    _, matvec_tangents = jvp_flat(
        programs.matvec, [*consts.matvec, *x], [*const_tangents.matvec, *zeros]
    )
    rhs_tangents = [
        db if type(matvec_tangent) is Zero else add_tangents(db, neg(matvec_tangent))
        for db, matvec_tangent in safe_zip(b_tangents, matvec_tangents)
    ]
    aux_tangents = [Zero(aval_of(value).tangent()) for value in aux]
    if all(type(value) is Zero for value in rhs_tangents):
        return outs, [*zeros, *aux_tangents]
    instantiated = [instantiate(value) for value in rhs_tangents]
    x_tangents = linear_solve_p.bind(*_concatenated(consts), *instantiated, **params)[: len(b)]
    return outs, [*x_tangents, *aux_tangents]


def _partial_eval(unknowns: Sequence[bool], *operands: Any, **params: Any) -> tuple[Any, ...]:
    """The partial_eval rule: all outputs are unknown, so that the equation can be transposed."""

    def unknown_function(values: Sequence[Any], *unknown_operands: Any) -> list[Any]:
        known, unknown = iter(values), iter(unknown_operands)
        full = [next(unknown if flag else known) for flag in unknowns]
        return linear_solve_p.bind(*full, **params)

    outs = params["programs"].solve.out_avals
    known = [value for value, flag in safe_zip(operands, unknowns) if not flag]
    return [], (True,) * len(outs), known, unknown_function


def _transpose(
    cotangents: Sequence[Any], *operands: Any, programs: Solve, counts: Solve
) -> list[Any]:
    if programs.transpose_solve is None:
        raise TypeError(
            "[custom_linear_solve] reverse mode needs a solver of the transposed equation; got "
            "none. Fix: transpose_solve=..., or symmetric=True."
        )
    consts, b = _split(operands, counts)
    if any(is_undefined(value) for value in _concatenated(consts)):
        raise NotImplementedError(
            "[custom_linear_solve] the solution is not linear in the values that matvec and solve "
            "close over; got a transposition with respect to it. Fix: grad or vjp instead of "
            "linear_transpose."
        )
    instantiated = [instantiate(cotangent) for cotangent in cotangents[: len(b)]]
    results = bind_solve(programs.transposed(), consts.transposed(), instantiated)
    return [*[None] * sum(counts), *results[: len(b)]]


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    programs: Solve,
    counts: Solve,
) -> tuple[list[Any], list[int | None]]:
    flags = [dim is not None for dim in dims]
    const_flags, b_mapped = _split(flags, counts)
    num_x = len(b_mapped)
    num_outs = len(programs.solve.out_avals)
    x_flags, b_flags = [False] * num_outs, list(b_mapped)
    while True:
        batched, x_new, b_new = _batched(programs, axis, const_flags, x_flags, b_flags, num_x)
        if (x_new, b_new) == (x_flags, b_flags):
            break
        x_flags, b_flags = x_new, b_new
    operand_flags = [*_concatenated(const_flags), *b_flags]
    batched_operands = [
        batch_to_dim(value, dim, 0, axis.size) if flag else value
        for value, dim, flag in safe_zip(operands, dims, operand_flags)
    ]
    outs = linear_solve_p.bind(*batched_operands, programs=batched, counts=counts)
    return outs, [0 if flag else None for flag in x_flags]


def _batched(
    programs: Solve,
    axis: AxisData,
    consts: Solve,
    x_flags: list[bool],
    b_flags: list[bool],
    num_x: int,
) -> tuple[Solve, list[bool], list[bool]]:
    """One step of the fixed point of batching.

    Returns:
        The batched programs, and which leaves of x (with aux) and of b they map: at least those
        of ``x_flags`` and ``b_flags``.
    """

    def mapped(
        program: ClosedJaxpr | None,
        const_flags: list[bool],
        argument_flags: list[bool],
        forced: list[bool],
    ) -> tuple[ClosedJaxpr | None, list[bool]]:
        if program is None:
            return None, [False] * len(forced)
        batched, flags = batch_jaxpr(program, axis, (*const_flags, *argument_flags), tuple(forced))
        return batched, list(flags)

    x_only, aux_only = x_flags[:num_x], x_flags[num_x:]
    solve, from_solve = mapped(programs.solve, consts.solve, b_flags, x_flags)
    vecmat, from_vecmat = mapped(programs.vecmat, consts.vecmat, b_flags, x_only)
    x_new = [a or b for a, b in safe_zip(from_solve[:num_x], from_vecmat)]
    matvec, from_matvec = mapped(programs.matvec, consts.matvec, x_new, b_flags)
    transpose_forced = [*b_flags, *aux_only]
    transposed, from_transposed = mapped(
        programs.transpose_solve, consts.transpose_solve, x_new, transpose_forced
    )
    b_new = [a or b for a, b in safe_zip(from_matvec, from_transposed[:num_x])]
    aux_new = [a or b for a, b in safe_zip(from_solve[num_x:], from_transposed[num_x:])]
    return Solve(matvec, vecmat, solve, transposed), [*x_new, *aux_new], b_new


def _lowered(params: dict[str, Any]) -> ClosedJaxpr:
    """The program to inline: ``solve``, with unread inputs for consts of other programs."""
    programs, counts = params["programs"], params["counts"]
    solve: ClosedJaxpr = programs.solve

    def make() -> ClosedJaxpr:
        consts, b = solve.jaxpr.invars[: counts.solve], solve.jaxpr.invars[counts.solve :]
        unread = [
            [Var(aval) for aval in program.in_avals[:count]] if program is not None else []
            for program, count in safe_zip(programs, counts)
        ]
        unread[2] = list(consts)
        return with_inputs(solve, [*_concatenated(Solve(*unread)), *b])

    key = ("solve alone", tuple(p and p.jaxpr for p in programs), counts)
    return solve.jaxpr.memo(key, make)


linear_solve_p = register(
    make_primitive(
        "custom_linear_solve",
        shape=_shape,
        execute=execute_alone(lambda: linear_solve_p),
        jvp=_jvp,
        partial_eval=_partial_eval,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda _, params: _lowered(params), by_rule=True),
        multiple_results=True,
        effects=lambda params: params["programs"].solve.effects,
        subjaxprs=lambda params: [p for p in params["programs"] if p is not None],
        keys=use_none,
    )
)
