"""Loops and branches that call Python, driven from Python; others are native programs.

Programs write to given arrays, after their inputs: elements of stacked results, and two sets of
carries alternately, of which one is the step's output. Operands that are modified in place, and so
are outputs too, are given once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.runtime.driver import Driver

Arrays = list[Any]
Body = Callable[[Arrays], Any]
Runner = Callable[[Arrays, Arrays], None]


def runner(
    eqn: Eqn, bodies: Sequence[Body], values: Sequence[Arrays], kept: Sequence[bool],
    spare: Arrays, driver: Driver, ahead: bool,
) -> Runner:  # fmt: skip
    """A function of output and operand arrays.

    Args:
        eqn: the loop or branch.
        bodies: drivers of its programs.
        values: arrays that each program takes after its own inputs.
        kept: for each output whether it is an operand, which the programs change.
        spare: a second array for each carry that alternates.
        driver: the device's.
        ahead: whether the last program may run once more than the loop goes on, see ``Inner``.
    """
    rule = eqn.primitive.lower
    if rule.branches is not None:
        return _branch_runner(bodies, values, kept)
    form = rule.form(eqn.params)
    if isinstance(form, ScanForm):
        return _scan_runner(form, bodies[0], values[0], kept[: form.num_carry], spare, driver)
    make = _ahead_runner if ahead else _while_runner
    return make(form, bodies, values, kept, spare, driver)


def _seconds(outs: Arrays, kept: Sequence[bool], spare: Arrays) -> Arrays:
    """The second array of each carry: the same one where it is kept."""
    free = iter(spare)
    return [out if keeps else next(free) for out, keeps in zip(outs, kept, strict=True)]


def _moving(arrays: Arrays, kept: Sequence[bool]) -> Arrays:
    return [array for array, keeps in zip(arrays, kept, strict=True) if not keeps]


def _branch_runner(
    bodies: Sequence[Body], values: Sequence[Arrays], kept: Sequence[bool]
) -> Runner:
    last = len(bodies) - 1

    def run(outs: Arrays, operands: Arrays) -> None:
        number = min(max(operands[0].item(), 0), last)
        bodies[number]([*operands[1:], *values[number], *_moving(outs, kept)])

    return run


def _scan_runner(
    form: ScanForm, body: Body, values: Arrays, kept: Sequence[bool], spare: Arrays, driver: Driver
) -> Runner:
    num_consts, split = form.num_consts, form.num_consts + form.num_carry
    length = form.length
    order = range(length - 1, -1, -1) if form.reverse else range(length)

    def run(outs: Arrays, operands: Arrays) -> None:
        consts, carry, xs = operands[:num_consts], operands[num_consts:split], operands[split:]
        final, ys = outs[: form.num_carry], outs[form.num_carry :]
        if length == 0:
            _copy(_moving(carry, kept), _moving(final, kept), driver)
            return
        second = _seconds(final, kept, spare)
        # The last iteration writes into the outputs.
        target, other = (final, second) if length % 2 else (second, final)
        for k in order:
            body(
                [
                    *consts, *carry, *[x[k, ...] for x in xs], *values,
                    *_moving(target, kept), *[y[k, ...] for y in ys],
                ]
            )
            carry = target
            target, other = other, target

    return run


def _while_runner(
    form: WhileForm, bodies: Sequence[Body], values: Sequence[Arrays], kept: Sequence[bool],
    spare: Arrays, driver: Driver,
) -> Runner:  # fmt: skip
    first = form.num_condition_consts
    split = first + form.num_body_consts
    condition, body = bodies
    read = driver.flag_reader()

    def run(outs: Arrays, operands: Arrays) -> None:
        consts, carry = operands[:split], operands[split:]
        going = driver.empty((), np.dtype(np.bool_))
        condition([*operands[:first], *carry, *values[0], going])
        target, other = outs, _seconds(outs, kept, spare)
        while read(going)():
            body([*consts, *carry, *values[1], *_moving(target, kept), going])
            carry = target
            target, other = other, target
        if carry is not outs:
            _copy(_moving(carry, kept), _moving(outs, kept), driver)

    return run


def _ahead_runner(
    form: WhileForm, bodies: Sequence[Body], values: Sequence[Arrays], kept: Sequence[bool],
    spare: Arrays, driver: Driver,
) -> Runner:  # fmt: skip
    """A while_loop whose body is called before it is known whether there is such a turn.

    A turn too many writes into the arrays of the turn before the last, which nobody reads any more,
    and into none that is kept: for those the body asks the flag that it gets.
    """
    first = form.num_condition_consts
    split = first + form.num_body_consts
    condition, body = bodies
    read = driver.flag_reader()
    flags = [driver.empty((), np.dtype(np.bool_)) for _ in range(2)]

    def run(outs: Arrays, operands: Arrays) -> None:
        consts, carry = operands[:split], operands[split:]
        going, later = flags
        condition([*operands[:first], *carry, *values[0], going])
        goes_on = read(going)
        target, other = outs, _seconds(outs, kept, spare)
        while True:
            body([*consts, *carry, going, *values[1], *_moving(target, kept), later])
            begun = read(later)
            if not goes_on():
                break
            goes_on = begun
            carry, target, other = target, other, target
            going, later = later, going
        if carry is not outs:
            _copy(_moving(carry, kept), _moving(outs, kept), driver)

    return run


def _copy(sources: Arrays, targets: Arrays, driver: Driver) -> None:
    for source, target in zip(sources, targets, strict=True):
        driver.xp.copyto(target, source)
