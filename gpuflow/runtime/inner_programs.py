"""Loops and branches that call Python: the control flow runs in Python too.

Other loops and branches are part of native programs. A body gets its output arrays after its
inputs. These are elements of stacked results, and carries, which are double buffered: iterations
write alternately to the step's outputs and to spare arrays. An operand that is updated in place is
an output too, and is passed once.

Tests: tests/ops/test_between_memories.py, tests/control/test_control_flow.py.
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
    eqn: Eqn,
    bodies: Sequence[Body],
    values: Sequence[Arrays],
    aliased: Sequence[bool],
    spare: Arrays,
    driver: Driver,
    is_speculative: bool,
) -> Runner:
    """The function ``(outs, operands)`` that runs a loop or branch.

    Args:
        eqn: the loop or branch.
        bodies: drivers of its programs.
        values: for each program the constant arrays that follow its operands.
        aliased: for each output whether it is an operand that is updated in place: then the array
            of the output is that of the operand.
        spare: the second array of each double-buffered carry.
        driver: the device's driver.
        is_speculative: whether the body may run one iteration too many, see ``InnerProgram``.
    """
    rule = eqn.primitive.lower
    if rule.branches is not None:
        return _branch_runner(bodies, values, aliased)
    form = rule.form(eqn.params)
    if isinstance(form, ScanForm):
        return _scan_runner(form, bodies[0], values[0], aliased[: form.num_carry], spare, driver)
    make = _speculative_runner if is_speculative else _while_runner
    return make(form, bodies, values, aliased, spare, driver)


def _second_arrays(outs: Arrays, aliased: Sequence[bool], spare: Arrays) -> Arrays:
    """The second array of each carry; a carry that is updated in place has only one."""
    free = iter(spare)
    return [out if same else next(free) for out, same in zip(outs, aliased, strict=True)]


def _alternating(arrays: Arrays, aliased: Sequence[bool]) -> Arrays:
    return [array for array, same in zip(arrays, aliased, strict=True) if not same]


def _branch_runner(
    bodies: Sequence[Body], values: Sequence[Arrays], aliased: Sequence[bool]
) -> Runner:
    last = len(bodies) - 1

    def run(outs: Arrays, operands: Arrays) -> None:
        index = min(max(operands[0].item(), 0), last)
        bodies[index]([*operands[1:], *values[index], *_alternating(outs, aliased)])

    return run


def _scan_runner(
    form: ScanForm,
    body: Body,
    values: Arrays,
    aliased: Sequence[bool],
    spare: Arrays,
    driver: Driver,
) -> Runner:
    """A scan; the parity of its length selects the first target of double-buffered carries."""
    num_consts, split = form.num_consts, form.num_consts + form.num_carry
    length = form.length
    order = range(length - 1, -1, -1) if form.reverse else range(length)

    def run(outs: Arrays, operands: Arrays) -> None:
        consts, carry, xs = operands[:num_consts], operands[num_consts:split], operands[split:]
        final, ys = outs[: form.num_carry], outs[form.num_carry :]
        if length == 0:
            _copy(_alternating(carry, aliased), _alternating(final, aliased), driver)
            return
        second = _second_arrays(final, aliased, spare)
        # The last iteration must write into the outputs.
        target, other = (final, second) if length % 2 else (second, final)
        for k in order:
            body(
                [
                    *consts,
                    *carry,
                    *[x[k, ...] for x in xs],
                    *values,
                    *_alternating(target, aliased),
                    *[y[k, ...] for y in ys],
                ]
            )
            carry = target
            target, other = other, target

    return run


def _while_runner(
    form: WhileForm,
    bodies: Sequence[Body],
    values: Sequence[Arrays],
    aliased: Sequence[bool],
    spare: Arrays,
    driver: Driver,
) -> Runner:
    """A while loop that reads each condition before it launches the iteration.

    The trip count is unknown, so carries that end in the spare arrays are copied to the outputs.
    """
    first = form.num_condition_consts
    split = first + form.num_body_consts
    condition, body = bodies
    read = driver.flag_reader()

    def run(outs: Arrays, operands: Arrays) -> None:
        consts, carry = operands[:split], operands[split:]
        going = driver.empty((), np.dtype(np.bool_))
        condition([*operands[:first], *carry, *values[0], going])
        target, other = outs, _second_arrays(outs, aliased, spare)
        while read(going)():
            body([*consts, *carry, *values[1], *_alternating(target, aliased), going])
            carry = target
            target, other = other, target
        if carry is not outs:
            _copy(_alternating(carry, aliased), _alternating(outs, aliased), driver)

    return run


def _speculative_runner(
    form: WhileForm,
    bodies: Sequence[Body],
    values: Sequence[Arrays],
    aliased: Sequence[bool],
    spare: Arrays,
    driver: Driver,
) -> Runner:
    """A while loop that launches each iteration before its condition is read from the device.

    Reading a flag waits for the device, so this keeps its queue filled. The last launch is one
    iteration too many. It writes to the arrays of the second last iteration, which are dead.
    For carries that are updated in place, the body checks the flag that it gets.
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
        target, other = outs, _second_arrays(outs, aliased, spare)
        while True:
            body([*consts, *carry, going, *values[1], *_alternating(target, aliased), later])
            next_flag = read(later)
            if not goes_on():
                break
            goes_on = next_flag
            carry, target, other = target, other, target
            going, later = later, going
        if carry is not outs:
            _copy(_alternating(carry, aliased), _alternating(outs, aliased), driver)

    return run


def _copy(sources: Arrays, targets: Arrays, driver: Driver) -> None:
    for source, target in zip(sources, targets, strict=True):
        driver.xp.copyto(target, source)
