"""Calls rows of the GPU acceptance on a GPU that only plans, so that their kernels are built.

usage: python perf/gpu_walk.py gpuflow 9.0 8.0 [--rows TEXT,TEXT] [--tiny] [--programs] [--cudnn]
       [--part 0/2]

With --programs it calls the programs that are compared with the CPU (gpu_checks.py) and the trials
of ``gpuflow doctor`` as well. Prints a JSON line for each row: whether the setting has it, how many
kernels were built and loaded for it, and the processor's seconds; last the keys of all kernels.
prebuild.py starts it, with the variables of a setting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gpu_ceilings
import gpu_checks
from gpu_child import ManySizes, inputs_of
from gpu_environment import FIRST_PROGRAM
from gpu_frameworks import OURS, Framework, load_planned
from gpu_planned import planned_device
from gpu_rows import MANY_SIZES, Row, all_rows, chosen

import gpuflow
from gpuflow.cli import doctor_trials
from gpuflow.compiler.cache.versions import version_of
from gpuflow.runtime.kernel_cache import cache_stats, kernel_cache
from gpuflow.targets.cuda.codegen.cached_builds import PACKAGES


def call_row(row: Row, frameworks: Sequence[Framework], tiny: bool) -> bool:
    """Whether a row is for the frameworks, which then have called it."""
    if frameworks[0].function(row) is None:
        return False
    inputs = inputs_of(row, row.tiny if tiny else row.full, 0)
    for framework in frameworks:
        with framework.in_force():
            framework.function(row)(*[framework.array(x) for x in inputs])
    return True


def call_program(program: Any, frameworks: Sequence[Framework]) -> bool:
    """A program of the comparisons, jitted, for each framework."""
    function, *arguments = program
    for framework in frameworks:
        with framework.in_force():
            gpuflow.jit(function)(*arguments)
    return True


def call_trial(trial: Callable[[Any], Any], devices: Sequence[Any]) -> bool:
    """What ``gpuflow doctor`` tries, on each device."""
    for device in devices:
        trial(device)
    return True


def call_ceilings(devices: Sequence[Any]) -> bool:
    """The one kernel of the ceilings and of the costs of graphs, on each device."""
    for device in devices:
        gpu_ceilings.small_launch(device.driver)
    return True


def call_many_sizes(frameworks: Sequence[Framework], tiny: bool) -> bool:
    """The row of many batch sizes: some have kernels that others do not need."""
    for framework in frameworks:
        with framework.in_force():
            row = ManySizes(framework, tiny)
            for size in row.sizes:
                row.step(int(size))
    return True


def walked(name: str, call: Callable[[], bool]) -> dict[str, Any]:
    """What a row or program gave."""
    before, start = (cache_stats().built, cache_stats().loaded), time.process_time()
    record: dict[str, Any] = {"row": name}
    try:
        record["called"] = call()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        record["error"] = f"{type(error).__name__}: {error}"[:500]
    record["built"] = cache_stats().built - before[0]
    record["loaded"] = cache_stats().loaded - before[1]
    record["seconds"] = round(time.process_time() - start, 2)
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Walks; returns 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("capability", nargs="+")
    parser.add_argument("--rows", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--cudnn", action="store_true", help="as where cuDNN makes its calls")
    parser.add_argument("--part", default="0/1", help="k/n: each nth row, from the kth on")
    options = parser.parse_args(arguments)
    capabilities = [tuple(map(int, text.split("."))) for text in options.capability]
    frameworks = [load_planned(options.framework, each, options.cudnn) for each in capabilities]
    devices = [planned_device(each, options.cudnn) for each in capabilities]
    tasks = {row.name: partial(call_row, row, frameworks, options.tiny) for row in all_rows()}
    if options.framework == OURS:
        tasks[MANY_SIZES] = partial(call_many_sizes, frameworks, options.tiny)
    if options.programs:
        programs = {**gpu_checks.programs(options.tiny), "first result": FIRST_PROGRAM}
        for name, program in programs.items():
            tasks[f"program: {name}"] = partial(call_program, program, frameworks)
        tasks["ceilings"] = partial(call_ceilings, devices)
        for name, trial in doctor_trials.PROGRAMS.items():
            tasks[f"doctor: {name}"] = partial(call_trial, trial, devices)
    part, parts = map(int, options.part.split("/"))
    failed = 0
    for name in [name for name in tasks if chosen(name, options.rows)][part::parts]:
        record = walked(name, tasks[name])
        failed += "error" in record
        print(json.dumps(record), flush=True)
    versions = {package: version_of(package) for package in PACKAGES}
    print(
        json.dumps({"row": "", "keys": kernel_cache().loaded_keys(), "versions": versions}),
        flush=True,
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
