"""The two parts of the GPU acceptance: stages in order, each with its share of the part's time."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gpu_faults
from gpu_processes import ROOT, Section
from gpu_rows import COMPILED, CUPY, JAX, MANY_SIZES, OFF, TORCH, all_rows

OURS = "gpuflow"
HERE = Path(__file__).resolve().parent
FIRST, SECOND = PARTS = ("first", "second")
SECONDS = {FIRST: 480.0, SECOND: 300.0}
# Of the second part: 40 s for each of doctor's four trials, and 15 s for the rest of it.
DOCTOR_SECONDS = 175.0
ROWS_BESIDE_TORCH = 25
GRAPH_COSTS = "graph costs"
PROGRAM_PROCESSES = 4
# The packages of the rivals.
RIVALS = {JAX: "jax", COMPILED: "torch", TORCH: "torch", CUPY: "cupy"}
# Processes that call rows once before any is timed: these compilers keep their output on disk.
WARMED = {COMPILED: 4, JAX: 3}
# Programs for the sanitizer: a row reduction, a sort, a training step; a sum of all elements.
MEMCHECKED, RACECHECKED = ("rows", "sort", "training step"), ("full",)
PROFILED = (
    "chain float32",
    "softmax rows of 4096",
    "layernorm rows of 4096",
    "column sum",
    "attention bf16 D=64",
)
_METRICS = (
    "gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,"
    "sm__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,"
    "sm__warps_active.avg.pct_of_peak_sustained_active,"
    "l1tex__data_bank_conflicts_pipe_lsu.sum,smsp__inst_executed.sum"
)
_PYTEST = ["-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
# Folders of NVIDIA's tools that are not on the path.
_TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")


@dataclass(frozen=True)
class Stage:
    """A stage of a part: sections that run at the same time, or rows that are timed.

    Attributes:
        name: in the output.
        seconds: its share. Time that earlier stages left over is added.
        sections: to run.
        most: how many sections run at once; 0: as many as there are workers.
        rows: names of rows to time, in order.
        frameworks: that the rows are timed in, gpuflow first.
    """

    name: str
    seconds: float
    sections: tuple[Section, ...] = ()
    most: int = 0
    rows: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()


def stages(part: str, platform: str, tiny: bool) -> list[Stage]:
    """The stages of a part, in order; their shares fill its time."""
    return {FIRST: first_stages, SECOND: second_stages}[part](platform, tiny)


def first_stages(platform: str, tiny: bool) -> list[Stage]:
    """The most important results: does it run, how fast is the card, is it right, rows, tools."""
    where = ["--platform", platform, *(["--tiny"] if tiny else [])]
    environment = Section("environment", [str(HERE / "gpu_environment.py"), *where], 20)
    ceilings = Section("ceilings", [str(HERE / "gpu_ceilings.py"), *where], 25)
    return [
        Stage("environment", 20, (environment,)),
        Stage("ceilings", 25, (ceilings,)),
        Stage("programs", 100, program_sections(where, tiny)),
        Stage("faults", 15, fault_sections(where)),
        Stage(
            "rows beside torch",
            240,
            rows=rows_beside_torch(),
            frameworks=frameworks(tiny, (COMPILED, TORCH)),
        ),
        Stage("sanitizer", 40, sanitizer_sections(platform)),
        Stage("profiler", 40, profiler_sections(platform), most=1),
    ]


def second_stages(platform: str, tiny: bool) -> list[Stage]:
    """Tests, and the other rows."""
    doctor = Section("doctor", ["-m", "gpuflow.cli.main", "doctor", "--cuda"], DOCTOR_SECONDS)
    where = ["--platform", platform, *(["--tiny"] if tiny else [])]
    costs = Section(GRAPH_COSTS, [str(HERE / "gpu_graph_costs.py"), *where], 10)
    first, rows = rows_beside_torch(), all_rows()
    further = tuple(row.name for row in rows if row.name not in first)
    compared = tuple(row.name for row in rows if JAX in row.goal.rivals)
    return [
        Stage("tests", 175, (doctor, *test_sections(platform))),
        Stage(GRAPH_COSTS, 10, (costs,)),
        Stage("further rows", 60, rows=further, frameworks=frameworks(tiny, (*OFF, TORCH, CUPY))),
        Stage("JAX rows", 55, rows=(*compared, MANY_SIZES), frameworks=frameworks(tiny, (JAX,))),
    ]


def rows_beside_torch() -> tuple[str, ...]:
    """The most important rows that torch has too."""
    names = [row.name for row in all_rows() if row.torch is not None]
    return tuple(names[:ROWS_BESIDE_TORCH])


def frameworks(tiny: bool, others: Sequence[str]) -> tuple[str, ...]:
    """gpuflow, and those of the others that are settings of it or installed; alone if tiny."""
    if tiny:
        return (OURS,)
    found = [
        name for name in others if name in OFF or importlib.util.find_spec(RIVALS[name]) is not None
    ]
    return (OURS, *found)


def warm_sections(
    stage: Stage, rows: Sequence[str], platform: str, seconds: float
) -> list[Section]:
    """First calls of rows in other frameworks, before anything is timed."""
    calls = [name for name in rows if name != MANY_SIZES]
    return [
        Section(
            f"first calls: {name} {k}",
            [
                str(HERE / "gpu_child.py"),
                name,
                "--platform",
                platform,
                "--first",
                "--part",
                f"{k}/{count}",
                "--names",
                *calls,
            ],
            seconds,
            task_seconds=40,
        )
        for name, count in WARMED.items()
        if name in stage.frameworks and calls
        for k in range(count)
    ]


def program_sections(where: Sequence[str], tiny: bool) -> tuple[Section, ...]:
    """Programs compared with the CPU, in a few processes that share them."""
    count = 1 if tiny else PROGRAM_PROCESSES
    most = ["--most", "3"] if tiny else []
    return tuple(
        Section(
            f"programs {k}",
            [str(HERE / "gpu_checks.py"), *where, "--part", f"{k}/{count}", *most],
            100,
            task_seconds=25,
            task_key="program",
        )
        for k in range(count)
    )


def fault_sections(where: Sequence[str]) -> tuple[Section, ...]:
    """Programs that may end their process, each in a fresh one."""
    return tuple(
        Section(
            f"fault: {name}",
            [str(HERE / "gpu_checks.py"), *where, "--names", name],
            15,
            task_seconds=15,
            task_key="program",
        )
        for name in gpu_faults.names()
    )


def test_sections(platform: str) -> list[Section]:
    """The tests marked gpu, and those of handwritten kernels; a process for each file."""
    marked = [
        Section(f"tests: {Path(name).stem}", [*_PYTEST, *_stopping(), "-m", "gpu", name], 120)
        for name in marked_files()
    ]
    kernels = [
        Section(
            f"kernels: {Path(name).stem}",
            [*_PYTEST, *_stopping(), "--maxfail=40", name],
            120,
            {"KERNEL_TESTS": platform},
        )
        for name in kernel_files()
    ]
    return [*marked, *kernels]


def _stopping() -> list[str]:
    """A time for each test, where pytest can: it then says where a test hangs in a library."""
    if importlib.util.find_spec("pytest_timeout") is None:
        return []
    return ["--timeout=60", "--timeout-method=thread"]


def sanitizer_sections(platform: str) -> tuple[Section, ...]:
    """Programs under compute-sanitizer."""
    path, absent = tool("compute-sanitizer", platform)
    checked = [("memcheck", name) for name in MEMCHECKED]
    checked += [("racecheck", name) for name in RACECHECKED]
    return tuple(
        Section(
            f"{kind}: {name}",
            [
                "--tool",
                kind,
                "--error-exitcode",
                "9",
                "--print-limit",
                "20",
                sys.executable,
                str(HERE / "gpu_checks.py"),
                "--platform",
                platform,
                "--names",
                name,
            ],
            40,
            tool=path,
            absent=absent,
        )
        for kind, name in checked
    )


def profiler_sections(platform: str) -> tuple[Section, ...]:
    """Kernels under ncu, which leaves the clocks alone."""
    path, absent = tool("ncu", platform)
    return tuple(
        Section(
            f"ncu: {row}",
            ["--clock-control", "none", "--launch-count", "8", "--metrics", _METRICS,
             sys.executable, str(HERE / "gpu_child.py"), OURS, "--platform", platform, "--first",
             "--names", row],
            30, tool=path, absent=absent,
        )
        for row in PROFILED
    )  # fmt: skip


def tool(name: str, platform: str) -> tuple[str, str]:
    """The path of a tool, and the reason if it cannot be used."""
    if platform != "cuda":
        return "", f"{name} is for real GPUs"
    folders = [str(found) for text in _TOOL_FOLDERS for found in Path("/").glob(text[1:])]
    path = shutil.which(name) or shutil.which(name, path=":".join(folders))
    return path or "", "" if path else f"{name} is not on this machine"


def marked_files() -> list[str]:
    """The test files with tests marked gpu: to collect all others takes long."""
    return _files_with("mark.gpu", ROOT / "tests")


def kernel_files() -> list[str]:
    """The test files of handwritten kernels that run them; the others need no GPU."""
    return [
        name
        for name in _files_with("schedule_run", ROOT / "tests" / "kernels")
        if Path(name).stem.startswith("test_kernel_")
    ]


def _files_with(text: str, folder: Path) -> list[str]:
    paths = sorted(folder.rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if text in path.read_text()]
