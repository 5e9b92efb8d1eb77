"""What tests of native programs share: whether a function needs Python, and loops around it."""

from __future__ import annotations

import numpy as np

import gpuflow as gf
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.targets.cpu.runtime.native.services import native_services
from gpuflow.targets.cpu.runtime.native.steps import native_step
from gpuflow.targets.cpu.target import NATIVE_TARGET


def is_native(function, *operands):
    """Whether no step of a function needs Python, at any depth."""
    plan = compile_plan(gf.jit(function).lower(*operands).jaxpr, target=NATIVE_TARGET)[0]
    services = native_services()
    return all(native_step(step, services) is not None for step in plan.steps)


def in_scan(function):
    """The function of an operand, in each turn of a scan; results of the last one."""

    def scanned(x):
        def step(shift, _):
            return shift, function(x + shift)

        return gf.lax.scan(step, np.zeros((), x.dtype), None, length=3)[1]

    return lambda x: gf.tree.map(lambda out: out[-1], scanned(x))


def in_while(function):
    """The same in turns of a while_loop, which carries the results."""

    def looped(x):
        def body(state):
            turn, _ = state
            return turn + 1, function(x + (0 * turn).astype(x.dtype))

        start = gf.tree.map(lambda out: np.zeros(out.shape, out.dtype), gf.eval_shape(function, x))
        return gf.lax.while_loop(lambda state: state[0] < 3, body, (np.int32(0), start))[1]

    return looped
