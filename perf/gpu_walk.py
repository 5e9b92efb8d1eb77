"""Calls rows of the GPU acceptance on a GPU that only plans, so that their kernels are built.

usage: python perf/gpu_walk.py gpuflow 9.0 8.0 [--rows TEXT,TEXT] [--tiny] [--programs]

With --programs it calls the programs that are compared with the CPU as well (gpu_checks.py). Prints
a JSON line for each row: whether the setting has it, and how many kernels were built and loaded for
it; last the keys of all of them. prebuild.py starts it, with the variables of a setting.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gpu_checks
from gpu_child import inputs_of
from gpu_frameworks import Framework, load_planned
from gpu_rows import Row, all_rows, chosen

import gpuflow
from gpuflow.compiler.cuda_cache import PACKAGES
from gpuflow.compiler.versions import version_of
from gpuflow.runtime.kernels import cache_stats, kernel_cache


def called(framework: Framework, row: Row, inputs: Sequence[Any]) -> bool:
    """Whether the row is for the framework; if so it is called once."""
    with framework.in_force():
        function = framework.function(row)
        if function is None:
            return False
        function(*[framework.array(x) for x in inputs])
    return True


def call_row(row: Row, frameworks: Sequence[Framework], tiny: bool) -> bool:
    """Whether a row is for the frameworks, which then have called it."""
    inputs = inputs_of(row, row.tiny if tiny else row.full, 0)
    return all([called(framework, row, inputs) for framework in frameworks])


def call_program(program: Any, frameworks: Sequence[Framework]) -> bool:
    """A program of the comparisons, jitted, for each framework."""
    function, *arguments = program
    for framework in frameworks:
        with framework.in_force():
            gpuflow.jit(function)(*arguments)
    return True


def walked(name: str, call: Callable[[], bool]) -> dict[str, Any]:
    """What a row or program gave."""
    before = cache_stats().built, cache_stats().loaded
    record: dict[str, Any] = {"row": name}
    try:
        record["called"] = call()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        record["error"] = f"{type(error).__name__}: {error}"[:500]
    record["built"] = cache_stats().built - before[0]
    record["loaded"] = cache_stats().loaded - before[1]
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Walks; returns 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("capability", nargs="+")
    parser.add_argument("--rows", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--programs", action="store_true")
    options = parser.parse_args(arguments)
    frameworks = []
    for text in options.capability:
        major, minor = map(int, text.split("."))
        frameworks.append(load_planned(options.framework, (major, minor)))
    tasks = {row.name: partial(call_row, row, frameworks, options.tiny) for row in all_rows()}
    if options.programs:
        for name, program in gpu_checks.programs().items():
            tasks[f"program: {name}"] = partial(call_program, program, frameworks)
    failed = 0
    for name, task in tasks.items():
        if chosen(name, options.rows):
            record = walked(name, task)
            failed += "error" in record
            print(json.dumps(record), flush=True)
    versions = {package: version_of(package) for package in PACKAGES}
    print(json.dumps({"row": "", "keys": kernel_cache().keys(), "versions": versions}), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
