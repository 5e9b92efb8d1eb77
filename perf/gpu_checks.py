"""Whether a GPU computes what the CPU computes: one JSON line per program.

usage: python perf/gpu_checks.py [--platform cuda] [--names NAME NAME] [--part 0/4] [--tiny]

The programs are those of tests/targets/cuda_sim/test_cuda_sim.py, the training steps of
gpu_models.py, and, if named, those of gpu_faults.py, which must run on the device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_faults
import numpy as np
from gpu_child import inputs_of
from gpu_environment import FIRST_PROGRAM
from gpu_models import model_rows
from gpu_processes import DEVICE_LOST

import gpuflow as gf

ROOT = Path(__file__).resolve().parents[1]
# Large enough for the kernels that real sizes have, small enough for the CPU; else the tiny size.
MODEL_SIZES = {"MLP Adam step": 128, "transformer block step bf16": 256, "CNN step": 16}
PROGRAMS = ROOT / "tests" / "targets" / "cuda_sim" / "test_cuda_sim.py"


def programs(tiny: bool = False) -> dict[str, Any]:
    """Functions and arguments by name.

    Args:
        tiny: whether sizes are those for a machine without a GPU.
    """
    sys.path.insert(0, str(ROOT / "tests"))  # the file imports a helper from there
    spec = importlib.util.spec_from_file_location("programs_of_the_tests", PROGRAMS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {} if tiny else MODEL_SIZES
    models = {
        row.name: (row.make(gf), *inputs_of(row, sizes.get(row.name, row.tiny), 0))
        for row in model_rows()
    }
    found = {**module.PROGRAMS, **models, **gpu_faults.programs(tiny)}
    return {name: (exact(function), *operands) for name, (function, *operands) in found.items()}


def exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with products of float32, which GPUs round to TF32 by default."""

    def with_all_digits(*operands: Any) -> Any:
        with gf.default_matmul_precision("highest"):
            return function(*operands)

    return with_all_digits


def run_on(platform: str, function: Any, arguments: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of the second call."""
    (device, *_) = gf.devices(platform)
    with gf.default_device(device):
        step = gf.jit(function)
        step(*arguments)
        return [np.asarray(leaf) for leaf in gf.tree.leaves(step(*arguments))]


def difference(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> dict[str, Any]:
    """The largest difference relative to the largest value, and whether all bits are equal."""
    largest, equal = 0.0, True
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return {"error": f"{a.dtype}{a.shape} is not {b.dtype}{b.shape}"}
        equal = equal and a.tobytes() == b.tobytes()
        if a.size:
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            x, y = a.astype(wide), b.astype(wide)
            off = np.abs(x - y)[~(np.isnan(x) & np.isnan(y))]
            scale = max(float(np.abs(y[np.isfinite(y)]).max(initial=0.0)), 1e-30)
            largest = max(largest, float(off.max(initial=0.0)) / scale)
    return {"difference": largest, "bits_equal": equal}


def check(program: Any, platform: str) -> dict[str, Any]:
    """The difference between a GPU's results and the CPU's, and the calls that the host made."""
    function, *arguments = program
    host_calls: Any = gf.devices(platform)[0].driver.host_calls  # pyright: ignore
    before = set(host_calls)
    start = time.perf_counter()
    got = run_on(platform, function, arguments)
    seconds = time.perf_counter() - start
    host = {call: why for call, why in host_calls.items() if call not in before}
    return {
        "seconds": seconds,
        "cpu": difference(got, run_on("cpu", function, arguments)),
        "host": host,
    }


def has_passed(name: str, found: dict[str, Any]) -> bool:
    """Whether the results of a program are the CPU's, and where they must be from."""
    is_narrow = "bfloat16" in name or "bf16" in name
    tolerance = 2e-2 if is_narrow else 1e-3 if "step" in name else 1e-4
    is_there = not found["host"] or name not in gpu_faults.names()
    return is_there and found["cpu"].get("difference", 1.0) <= tolerance


def works(platform: str) -> bool:
    """Whether the device still computes, with a kernel that was built before."""
    function, x = FIRST_PROGRAM
    try:
        run_on(platform, function, [x])
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks all programs; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--names", nargs="*", default=[], help="programs; else all but faults")
    parser.add_argument("--part", default="0/1", help="k/n: each nth program, from the kth on")
    parser.add_argument("--most", type=int, default=1000, help="only so many programs")
    parser.add_argument("--after", default="", help="only programs behind the one of this name")
    options = parser.parse_args(arguments)
    part, parts = map(int, options.part.split("/"))
    failed, known, faults = 0, programs(options.tiny), gpu_faults.names()
    names = options.names or [name for name in known if name not in faults]
    names = names[part::parts][: options.most]
    behind = names.index(options.after) + 1 if options.after in names else 0
    for name in names[behind:]:
        print(json.dumps({"begin": name}), flush=True)
        try:
            found = check(known[name], options.platform)
            found["passed"] = has_passed(name, found)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            found = {"error": f"{type(error).__name__}: {error}"[:1000], "passed": False}
        failed += not found["passed"]
        print(json.dumps({"program": name, **found}), flush=True)
        print(json.dumps({"end": name}), flush=True)
        if "error" in found and not works(options.platform):
            return DEVICE_LOST
    memory: Any = gf.devices(options.platform)[0].driver.memory_stats
    print(json.dumps({"memory_stats": memory()}), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
