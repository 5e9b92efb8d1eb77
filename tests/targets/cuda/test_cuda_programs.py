"""Real plans on CUDA: every kernel is printed, built, linked, and its PTX compared with the CPU.

No GPU is involved: the PTX runs in the interpreter, with the argument words of the plan itself.
"""

import re

import numpy as np
import plan_on_cuda
import pytest
from cpu_harness import shared_cache
from cuda_harness import ARCHITECTURES, requires_cuda_tools
from cuda_programs import PROGRAMS
from plan_on_cuda import plan_of, run_plan

from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.nodes import Mode
from gpuflow.targets.cuda.codegen.cached_builds import cuda_kernels

pytestmark = requires_cuda_tools


def run(name, **how):
    program = PROGRAMS[name]
    return run_plan(program.function, program.args, program.donate, **how)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kernel_computes_what_the_cpu_computes(name):
    ran = run(name)
    assert ran, "a program without a kernel tests nothing"
    assert [r.step.kernel.name for r in ran if r.compiled.built.spill_bytes] == []


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a != (9, 0)])
@pytest.mark.parametrize("name", ["mlp with donation", "bfloat16 layernorm", "uniform"])
def test_other_architectures(name, architecture):
    """sm_100 has a PTX dialect of its own, and sm_80 is the oldest that is supported."""
    for r in run(name, architecture=architecture):
        assert f".target sm_{architecture[0]}{architecture[1]}" in r.compiled.built.ptx
        assert r.compiled.built.spill_bytes == 0


def strategies(name):
    return {r.compiled.source.launch.strategy for r in run(name)}


def widths(name):
    return {r.compiled.source.launch.vector_width for r in run(name)}


def test_the_programs_reach_what_they_are_for():
    """Fusion decides what kernels there are; if it changes, other programs must stand in."""
    assert strategies("softmax") == strategies("softmax of long rows") == {"row"}
    assert {"column", "full"} <= strategies("statistics") | strategies("bool logic")
    assert widths("float16 gelu") == {8} and 4 in widths("uniform")
    assert widths("narrow lengths that vectors divide") == {16}
    (adam,) = [r for r in run("adam") if r.step.kernel.segmented]
    assert len(adam.step.calls) == 4 and adam.compiled.source.launch.segmented
    norms, *_ = [r for r in run("clipping by a global norm") if r.step.kernel.kind == "full"]
    assert len(norms.step.calls) == 5 and norms.compiled.source.launch.strategy == "full"
    donated = [o for r in run("mlp with donation") for o in r.step.kernel.operands]
    assert any(operand.mode is Mode.INOUT for operand in donated)
    (reverse,) = [r.step.calls[0] for r in run("reversed row")]
    assert any(word < 0 for word in reverse.slots[len(reverse.buffers) :])


def test_wrong_code_is_noticed(monkeypatch):
    """The comparison itself: an addition that became a subtraction must not pass."""

    def broken(compiled):
        text, count = re.subn(r"add(\.rn)?\.f32", "sub.f32", compiled.built.ptx)
        assert count
        return text

    monkeypatch.setattr(plan_on_cuda, "_text", broken)
    with pytest.raises(AssertionError, match="map_add"):
        run("reversed row")


def test_the_kernels_of_a_plan_are_built_once():
    program = PROGRAMS["adam"]
    plan = plan_of(program.function, program.args)
    kernels = cuda_kernels(plan.steps, shared_cache())
    assert len(kernels) == sum(isinstance(step, KernelStep) for step in plan.steps)
    again = cuda_kernels(plan.steps, shared_cache())
    assert all(a is b for a, b in zip(kernels, again, strict=True))


def test_memory_that_is_not_aligned_takes_the_scalar_variant():
    """Rows of 21 floats do not start at multiples of 16 bytes, rows of 20 do."""
    function = PROGRAMS["broadcast"].function
    for columns, width in ((21, 1), (20, 4)):
        (only,) = run_plan(function, (np.ones(3, np.float32), np.ones(columns, np.float32)))
        assert only.compiled.source.launch.vector_width == width
