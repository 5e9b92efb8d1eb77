"""What the parts of the GPU acceptance run: sections, in the order of what to know first."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_processes import ROOT, Section
from gpu_rows import COMPILED, CUPY, JAX, OFF, TORCH

OURS = "gpuflow"
HERE = Path(__file__).resolve().parent
CHECK, TIMES, PROGRAMS = PARTS = ("check", "times", "programs")
# Each of doctor's trials may take its time, and the rest of it this much besides.
DOCTOR_SECONDS = 180.0
GRAPH_COSTS = "graph costs"
# Which package each rival needs.
RIVALS = {JAX: "jax", COMPILED: "torch", TORCH: "torch", CUPY: "cupy"}
# Processes that call rows once before any is timed: these compilers keep what they made on disk.
WARMED = {COMPILED: 4, JAX: 3}
# The sweep has one case for each way an op is lowered, and on a GPU the dtypes of the simulator's.
SWEEP_SAMPLE = "test_values and jit"
TINY_SWEEP = "sin-2 and test_values"
# Programs for the sanitizer: maps, sums along each axis, a sort, and a whole step.
SANITIZED = ("elementwise", "rows", "columns", "full", "sort", "training step")
PROFILED = (
    "chain float32", "softmax rows of 4096", "layernorm rows of 4096", "column sum",
    "attention bf16 D=64",
)  # fmt: skip
_METRICS = (
    "gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,"
    "sm__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,"
    "sm__warps_active.avg.pct_of_peak_sustained_active,"
    "l1tex__data_bank_conflicts_pipe_lsu.sum,smsp__inst_executed.sum"
)
_PYTEST = ["-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
# Where NVIDIA's tools lie when they are not on the path.
_TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")

Group = Sequence[Section]


def frameworks(tiny: bool) -> list[str]:
    """What rows are timed in, gpuflow first: the rivals that are installed, and settings."""
    if tiny:
        return [OURS]
    there = [name for name, package in RIVALS.items() if importlib.util.find_spec(package)]
    return [OURS, *there, *OFF]


def check_groups(platform: str, tiny: bool) -> list[Group]:
    """The environment first, then bandwidth and launches, then the tests that need a GPU."""
    on = "cuda_sim" if tiny else platform
    where = ["--platform", on, *(["--tiny"] if tiny else [])]
    environment = [str(HERE / "gpu_environment.py")]
    tests = [
        Section(f"tests: {Path(name).stem}", [*_PYTEST, *_stopping(), "-m", "gpu", name], 150)
        for name in marked_files()
    ]
    return [
        [Section("environment", [*environment, *where], 60)],
        [Section("doctor", ["-m", "gpuflow.cli.main", "doctor"], DOCTOR_SECONDS)],
        [Section("ceilings", [str(HERE / "gpu_ceilings.py"), *where], 60)],
        tests,
        # Kernels that were not brought are built here; last, as the others need it for little.
        [Section("toolchain", [*environment, "--toolchain"], 60)],
        [Section(GRAPH_COSTS, [str(HERE / "gpu_graph_costs.py"), *where], 30)],
    ]


def warm_group(platform: str, tiny: bool, only: str) -> Group:
    """First calls in other frameworks, before anything is timed."""
    if tiny:
        return []
    return [
        Section(
            f"first calls: {name} {k}",
            [str(HERE / "gpu_child.py"), name, "--platform", platform, "--first",
             "--part", f"{k}/{count}", "--rows", only],
            100, task_seconds=60,
        )
        for name, count in WARMED.items()
        if name in frameworks(tiny)
        for k in range(count)
    ]  # fmt: skip


def program_groups(platform: str, tiny: bool, workers: int, records: Path) -> list[Group]:
    """Whether results are right; then what NVIDIA's tools say of a few programs and kernels."""
    checks = [str(HERE / "gpu_checks.py"), "--platform", platform]
    if tiny:
        sweep = [*_PYTEST, "-k", TINY_SWEEP, "tests/ops/test_every_op.py"]
        return [
            [Section("programs", [*checks, "--most", "3"], 60, task_seconds=60, task_key="program"),
             Section("op sweep", sweep, 60, {"GPUFLOW_PLATFORM": platform})],
            [*sanitizer_sections(platform), *profiler_sections(platform)],
        ]  # fmt: skip
    several = ["-n", str(workers)] if workers > 1 else []
    kernels = [
        Section(
            f"kernels: {path.stem}", [*_PYTEST, *_stopping(), "--maxfail=40", str(path)], 200,
            {"GPUFLOW_KERNEL_TESTS": platform,
             "GPUFLOW_KERNEL_RECORDS": str(records.with_name(f"{path.stem}.records"))},
            records=records.with_name(f"{path.stem}.records"),
        )
        for path in sorted((ROOT / "tests" / "kernels").glob("test_*.py"))
    ]  # fmt: skip
    sweep = [*_PYTEST, *several, "-k", SWEEP_SAMPLE, "--maxfail=200", "tests/ops/test_every_op.py"]
    demo = ["-m", "gpuflow.cli.main", "demo", "--platform", platform, "--no-progress"]
    simulated = Section(
        "programs, simulated", [*checks, "--simulator"], 170, task_seconds=60, task_key="program"
    )
    return [
        [Section("programs", checks, 170, task_seconds=60, task_key="program"), *kernels,
         Section("op sweep", sweep, 190, {"GPUFLOW_PLATFORM": platform}),
         Section("demo", [*demo, "--steps", "200"], 60)],
        sanitizer_sections(platform),
        *[[one] for one in profiler_sections(platform)],
        [simulated],
    ]  # fmt: skip


def _stopping() -> list[str]:
    """A time for each test, where pytest can: it then says where a test hangs in a library."""
    if importlib.util.find_spec("pytest_timeout") is None:
        return []
    return ["--timeout=60", "--timeout-method=thread"]


def sanitizer_sections(platform: str) -> Group:
    """Programs under compute-sanitizer."""
    path, absent = tool("compute-sanitizer", platform)
    return [
        Section(
            f"{kind}: {name}",
            ["--tool", kind, "--error-exitcode", "9", "--print-limit", "20", sys.executable,
             str(HERE / "gpu_checks.py"), "--platform", platform, "--only", name, "--most", "1"],
            90, tool=path, absent=absent,
        )
        for kind in ("memcheck", "racecheck")
        for name in SANITIZED
    ]  # fmt: skip


def profiler_sections(platform: str) -> Group:
    """Kernels under ncu, which leaves the clocks alone."""
    path, absent = tool("ncu", platform)
    return [
        Section(
            f"ncu: {row}",
            ["--clock-control", "none", "--launch-count", "8", "--metrics", _METRICS,
             sys.executable, str(HERE / "gpu_child.py"), OURS, "--platform", platform, "--first",
             "--rows", row, "--part", "0/999"],
            60, tool=path, absent=absent,
        )
        for row in PROFILED
    ]  # fmt: skip


def tool(name: str, platform: str) -> tuple[str, str]:
    """Where a tool is, and why it cannot be used."""
    if platform != "cuda":
        return "", f"{name} is for real GPUs"
    folders = [str(found) for text in _TOOL_FOLDERS for found in Path("/").glob(text[1:])]
    path = shutil.which(name) or shutil.which(name, path=":".join(folders))
    return path or "", "" if path else f"{name} is not on this machine"


def marked_files() -> list[str]:
    """The test files that have tests marked gpu: to collect all others takes long."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text()
    ]
    return found or ["tests/targets/cuda"]
