"""Find the op that produced a nan or an infinity, by running the program again step by step.

A step is an equation, an iteration of a loop, or the branch that was taken. The search goes
backward from the nonfinite results: the first step with finite operands is the origin. Steps inside
it are searched in the same way.

Tests: tests/runtime/test_replay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.config import Settings
from gpuflow.base.records import record
from gpuflow.base.util import SourceLocation, safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import COMMUNICATION
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import default_device
from gpuflow.runtime.eager import evaluate, is_finite, not_finite, unchecked

Compile = Callable[[ClosedJaxpr], Callable[[Sequence[Any]], list[Any]]]


@record
class _Replay:
    """The configuration of a replay.

    Attributes:
        settings: the settings that reject nan or infinities.
        compile: from a program to a function of its operands.
    """

    settings: Settings
    compile: Compile

    def is_rejected(self, value: Any) -> bool:
        aval = aval_of(value)
        return not is_finite(as_numpy(value, aval), aval, self.settings)


def check_results(
    closed: ClosedJaxpr,
    operands: Sequence[Any],
    results: Sequence[Array],
    settings: Settings,
    compile: Compile,
) -> None:
    """Check that the results of a program are finite.

    A program with collectives between memories is not run again: processes with finite results
    would not take part.

    Raises:
        FloatingPointError: if a result has values that the settings reject. The message names the
            op that computed them.
    """
    bad = [out for out in results if not is_finite(out.host(), out.aval, settings)]
    if not bad:
        return
    fault = None
    if COMMUNICATION not in closed.effects:
        with unchecked():
            fault = _find_in_program(_Replay(settings, compile), closed, operands, None, "")
    if fault is None:  # op by op all are finite: fused kernels may round intermediates less
        fault = not_finite("jit", bad[0].host(), bad[0].aval, settings)
    raise fault


def _find_in_program(
    replay: _Replay,
    closed: ClosedJaxpr,
    operands: Sequence[Any],
    source: SourceLocation | None,
    location: str,
) -> FloatingPointError | None:
    """Find the origin of nonfinite results by running a program op by op."""
    jaxpr = inline(closed.jaxpr)
    env = _values(jaxpr, closed.consts, operands)

    def read(atom: Any) -> Any:
        return atom.operand if type(atom) is Literal else env[atom]

    makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outputs}
    eqn = None
    bad = [var for var in jaxpr.outvars if var in makers and replay.is_rejected(env[var])]
    while bad:
        eqn = makers[bad[0]]
        bad = [var for var in eqn.inputs if var in makers and replay.is_rejected(env[var])]
    if eqn is None:
        return None
    values, source = [read(atom) for atom in eqn.inputs], eqn.source or source
    fault = _find_in_step(replay, eqn, values, source, location)
    if fault is not None:
        return fault
    out = next(env[var] for var in eqn.outputs if replay.is_rejected(env[var]))
    location = f"{location}, at {source}"
    name = eqn.primitive.name
    return not_finite(name, out.host(), out.aval, replay.settings, values, location)


def _values(jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any]) -> dict[Var, Any]:
    """All values of a program, run op by op; effects without outputs are skipped."""
    env: dict[Any, Any] = dict(safe_zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands)))
    for eqn in jaxpr.eqns:
        if eqn.effects and not eqn.outputs:
            continue
        values = [a.operand if type(a) is Literal else env[a] for a in eqn.inputs]
        outs = evaluate(eqn.primitive, tuple(values), eqn.params)
        env.update(safe_zip(eqn.outputs, outs if eqn.primitive.multiple_results else [outs]))
    return env


def _find_in_step(
    replay: _Replay, eqn: Eqn, values: list[Any], source: SourceLocation | None, location: str
) -> FloatingPointError | None:
    """Find the origin inside a loop or a branch; None for other ops."""
    rule = eqn.primitive.lower
    if rule.branches is not None:
        branch = int(as_numpy(values[0], aval_of(values[0])))
        programs = rule.branches(eqn.params)
        taken = min(max(branch, 0), len(programs) - 1)
        inner_location = f"{location}, in branch {taken} of {eqn.primitive.name}"
        return _find_in_program(replay, programs[taken], values[1:], source, inner_location)
    if rule.form is None:
        return None
    form = rule.form(eqn.params)
    if isinstance(form, ScanForm):
        iteration, operands = _find_in_scan(replay, form, values)
    else:
        iteration, operands = _find_in_while(replay, form, values)
    if iteration is None:
        return None
    inner_location = f"{location}, in turn {iteration} of {eqn.primitive.name}"
    return _find_in_program(replay, form.body, operands, source, inner_location)


def _find_in_scan(
    replay: _Replay, form: ScanForm, values: list[Any]
) -> tuple[int | None, list[Any]]:
    """The first iteration with a rejected result, and the inputs of its body."""
    split = form.num_consts + form.num_carry
    consts, carry, xs = values[: form.num_consts], values[form.num_consts : split], values[split:]
    rows = [_Rows(x) for x in xs]
    run = replay.compile(form.body)
    for iteration in range(form.length):
        index = form.length - 1 - iteration if form.reverse else iteration
        operands = [*consts, *carry, *[row.at(index) for row in rows]]
        outs = run(operands)
        if any(map(replay.is_rejected, outs)):
            return iteration, operands
        carry = outs[: form.num_carry]
    return None, []


def _find_in_while(
    replay: _Replay, form: WhileForm, values: list[Any]
) -> tuple[int | None, list[Any]]:
    first = form.num_condition_consts
    split = first + form.num_body_consts
    goes_on, run = replay.compile(form.condition), replay.compile(form.body)
    carry, iteration = values[split:], 0
    while goes_on([*values[:first], *carry])[0].host().item():
        operands = [*values[first:split], *carry]
        carry = run(operands)
        if any(map(replay.is_rejected, carry)):
            return iteration, operands
        iteration += 1
    return None, []


class _Rows:
    """The elements of an array along its first axis, as Arrays."""

    def __init__(self, value: Any) -> None:
        aval = aval_of(value)
        self._data = as_numpy(value, aval)
        self._aval = aval.update(shape=aval.shape[1:])

    def at(self, k: int) -> Array:
        return _array(self._data[k], self._aval)


def _array(data: np.ndarray, aval: ShapedArray) -> Array:
    device = default_device()
    return Array(device.driver.from_host(np.array(data, order="C")), aval, device)
