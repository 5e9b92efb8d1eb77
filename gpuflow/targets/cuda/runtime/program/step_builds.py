"""Lists the kernel builds of a plan's steps, for ``build_processes``.

Tests: tests/targets/cuda/test_build_processes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuflow.compiler.planning.plan import CallStep, CopyStep, KernelStep, Step
from gpuflow.targets.cuda.codegen.cached_builds import GeneratedBuild, generated_build
from gpuflow.targets.cuda.codegen.handwritten import TextBuild, handwritten_build
from gpuflow.targets.cuda.library.launch_binding import copy_sequence
from gpuflow.targets.cuda.library.launch_sequence import BlockLaunch, LaunchSequence
from gpuflow.targets.cuda.runtime.driver.launch import launched_kernel


def builds_of(
    steps: Iterable[Step], compute_capability: tuple[int, int]
) -> Iterator[TextBuild | GeneratedBuild]:
    """The builds of steps, without nested programs; first handwritten kernels, which take longest.

    Args:
        steps: steps of a plan.
        compute_capability: architecture of the GPU.
    """
    steps = list(steps)
    for step in steps:
        sequence: LaunchSequence | None = None
        if isinstance(step, CallStep):
            sequence = step.implementation
        elif isinstance(step, CopyStep) and step.source.aval.size:
            sequence = copy_sequence(step)
        for launch in [] if sequence is None else sequence.launches:
            if isinstance(launch, BlockLaunch):
                yield handwritten_build(
                    launch.kernel,
                    launch.signature,
                    dict(launch.constants),
                    launch.bounds,
                    compute_capability,
                )
    for step in steps:
        if isinstance(step, KernelStep):
            for calls in step.launches:
                kernel, vectorize = launched_kernel(step, calls)
                yield generated_build(kernel, compute_capability, vectorize)
