"""The table of gpuflow's environment variables: values, default and meaning of each.

Nothing here touches the environment: config.py and launchers pass in its text. The tables of
docs/env_vars.md are written from this one (docs/make_env_vars.py).

Tests: tests/base/test_environment.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

PREFIX = "GPUFLOW_"
CPU_TARGETS = ("native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
TRACEBACK_FILTERING = ("auto", "off", "tracebackhide", "remove_frames", "quiet_remove_frames")
# Far beyond any machine and mesh; a larger count is a typing error that would take the
# machine's processes or memory.
MAX_THREADS = 4096
MAX_DEVICES = 65536
_MAX_WAIT = 365 * 24 * 3600.0  # seconds


@record
class Kind:
    """The values that a variable takes.

    Attributes:
        requirement: completes "NAME must be ...".
        parse: from the text to the value; ValueError if the text is not of this kind.
        example: a text that ``parse`` takes.
    """

    requirement: str
    parse: Callable[[str], Any]
    example: str


def value_of(kind: Kind, name: str, text: str) -> Any:
    """The value of the text of a variable.

    Raises:
        ValueError: if the text is not of the kind; the message names the variable.
    """
    try:
        return kind.parse(text)
    except ValueError:
        raise ValueError(
            f"[config] {name} must be {kind.requirement}; got {text!r}. "
            f"Fix: export {name}={kind.example}."
        ) from None


def _parse_flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "t", "yes", "y", "on"):
        return True
    if lowered in ("0", "false", "f", "no", "n", "off"):
        return False
    raise ValueError


FLAG = Kind("0 or 1", _parse_flag, "1")
TEXT = Kind("text", str, "text")


def integer(minimum: int, maximum: int | None = None, example: int | None = None) -> Kind:
    """Parse an integer of at least ``minimum``, and at most ``maximum`` unless it is None."""

    def parse(text: str) -> int:
        # Without the second test `int` itself refuses texts of several thousand digits.
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ValueError
        if int(text) < minimum or (maximum is not None and int(text) > maximum):
            raise ValueError
        return int(text)

    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return Kind(f"an integer {limits}", parse, str(minimum if example is None else example))


def _parse_share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 < value <= _MAX_WAIT):
        raise ValueError
    return value


SHARE = Kind("a number from 0 to 1", _parse_share, "0.5")
SECONDS = Kind("a number of seconds above 0, at most a year", _parse_seconds, "300")


def _parse_versions(text: str) -> tuple[tuple[str, str], ...]:
    versions = []
    for pair in text.split():
        package, _, version = pair.partition("=")
        if not package or not version or "=" in version:
            raise ValueError
        versions.append((package, version))
    return tuple(versions)


VERSIONS = Kind("packages with versions", _parse_versions, '"numba=0.68.1 llvmlite=0.50.0"')


def one_of(*choices: str) -> Kind:
    """One of several texts."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return Kind(f"one of {', '.join(choices)}", parse, choices[0])


@record
class Variable:
    """An environment variable.

    Attributes:
        name: with its prefix.
        kind: the values that it takes.
        default: the default as the documentation shows it.
        meaning: a sentence or two of Markdown, for docs/env_vars.md.
    """

    name: str
    kind: Kind
    default: str
    meaning: str


_USERS = (
    Variable(
        "GPUFLOW_PLATFORM", TEXT, "the best available",
        "The platform that runs programs: `cuda` (also `gpu`; the default if CuPy and a GPU are "
        "present), `cpu`, or `cuda_sim`, a simulated GPU for tests and debugging "
        "([design/0012-platforms.md](design/0012-platforms.md)). The simulated GPU is slow, needs "
        "only the toolkit wheels of the README, and reports errors that a GPU would hide, such as "
        "a load out of bounds.",
    ),
    Variable(
        "GPUFLOW_CPU_DEVICES", integer(1, MAX_DEVICES, 8), "1",
        "The number of virtual CPU devices. If it is not set, "
        "`XLA_FLAGS=--xla_force_host_platform_device_count=N` counts.",
    ),
    Variable(
        "GPUFLOW_SEPARATE_MEMORIES", FLAG, "0",
        "Virtual CPU devices have memories of their own: programs over a mesh of them are "
        "partitioned and communicate as on GPUs. For tests of shardings; they share the cores, so "
        "programs of whole arrays are faster.",
    ),
    Variable(
        "GPUFLOW_SIM_DEVICES", integer(1, MAX_DEVICES, 2), "1",
        "The number of simulated GPUs (`cuda_sim`). Each has its own memory.",
    ),
    Variable(
        "GPUFLOW_NUM_THREADS", integer(1, MAX_THREADS, 8), "the cores of this process",
        "The number of threads for CPU kernels and matrix products. NumPy's linear algebra has "
        "its own setting (`OPENBLAS_NUM_THREADS`).",
    ),
    Variable(
        "GPUFLOW_BUILD_PROCESSES", integer(1, MAX_THREADS, 4), "the cores, at most 8",
        "The number of processes that build the CUDA kernels of a program at the same time, this "
        "one included. A program of few new kernels uses fewer.",
    ),
    Variable(
        "GPUFLOW_CPU_TARGET", one_of(*CPU_TARGETS), "native",
        "The processor that CPU kernels are built for: `native`, or a level of the x86-64 psABI "
        "that this processor supports: `x86-64` (SSE2), `x86-64-v2`, `x86-64-v3` (AVX2) or "
        "`x86-64-v4` (AVX-512). NumPy and the parts of it that gpuflow calls select their own "
        "code, except for the private copy of OpenBLAS. Without fused multiply-add the last bits "
        "of results differ; special values do not. Kernels of different targets have different "
        "keys in the cache.",
    ),
    Variable(
        "GPUFLOW_CACHE_DIR", TEXT, "`$XDG_CACHE_HOME/gpuflow`, else `~/.cache/gpuflow`",
        "The folder of built kernels, of LLVM's description of the processor, and of the private "
        "copy of OpenBLAS. Only this user may be able to write to it "
        "([security.md](security.md)); otherwise gpuflow warns and uses a temporary folder.",
    ),
    Variable(
        "GPUFLOW_CACHE_LIMIT", integer(0, None, 1 << 30), "1073741824",
        "The size of that folder in bytes. Above it, gpuflow deletes the files that were unused "
        "longest, the copy of OpenBLAS (25 MB) included. 0 means no limit.",
    ),
    Variable(
        "GPUFLOW_KERNEL_VERSIONS", VERSIONS, "the installed ones",
        "Packages and versions with which another machine built the CUDA kernels of that folder, "
        "such as `numba=0.68.1 llvmlite=0.50.0`. Kernels are looked up by these versions, and need "
        "no numba here.",
    ),
    Variable(
        "GPUFLOW_ENABLE_X64", FLAG, "0",
        "Use 64-bit default dtypes, as `config.update(\"enable_x64\", True)`.",
    ),
    Variable(
        "GPUFLOW_LANE_LOOPS", FLAG, "1",
        "Compile loops with independent elements (scalar loops, elementwise loops, loops under "
        "`vmap`) as statements of a kernel ([design/0029-lanes.md](design/0029-lanes.md)). 0 "
        "keeps them as loops of steps.",
    ),
    Variable(
        "GPUFLOW_BLOCK_PROGRAMS", FLAG, "1",
        "On GPUs, let thread blocks run short loops, and iterations of loops without carried "
        "values, if that is estimated to take half the time "
        "([design/0034-programs-of-one-block.md](design/0034-programs-of-one-block.md)). 0 lets "
        "Python drive them.",
    ),
    Variable(
        "GPUFLOW_EXCESS_PRECISION", FLAG, "1",
        "0 makes CUDA kernels round each bfloat16 and float16 result, as "
        "`config.update(\"excess_precision\", False)` ([settings.md](settings.md)). If it is not "
        "set, `--xla_allow_excess_precision=false` in XLA_FLAGS counts.",
    ),
    Variable(
        "GPUFLOW_ATOMIC_SUMS", FLAG, "0",
        "Allow sums on GPUs to differ from run to run, as `config.update(\"atomic_sums\", True)` "
        "([settings.md](settings.md)).",
    ),
    Variable(
        "GPUFLOW_TRACEBACK_FILTERING", one_of(*TRACEBACK_FILTERING), "auto",
        "`off` shows gpuflow's own frames in tracebacks, as "
        "`config.update(\"traceback_filtering\", \"off\")` ([settings.md](settings.md)).",
    ),
    Variable(
        "GPUFLOW_DEBUG", integer(0), "0",
        "Print to stderr: 1 builds and cache misses, 2 jaxprs after each pass, 3 KernelIR, 4 "
        "generated source, 5 driver programs. Each level includes those below it. Levels 3 and 4 "
        "show kernels as they are built, not those loaded from the cache.",
    ),
    Variable(
        "GPUFLOW_DUMP", TEXT, "not set",
        "A folder that receives the output of all levels as new files, independent of "
        "`GPUFLOW_DEBUG`. Existing files are never overwritten.",
    ),
    Variable(
        "GPUFLOW_CHECK", FLAG, "0",
        "Verify both program representations after every pass. On a GPU, wait after each kernel, "
        "so that an error names it.",
    ),
    Variable(
        "GPUFLOW_SMI", FLAG, "0",
        "Let `gpuflow smi` inspect this process: a thread reports its arrays on request, and the "
        "lines that made large arrays are recorded "
        "([profiling.md](profiling.md#what-other-processes-do)).",
    ),
    Variable(
        "GPUFLOW_SIM_CHECK", FLAG, "0",
        "Simulated GPUs also look for races in global memory, accesses that run from one array "
        "exactly into another, registers that were never set, `bar.sync` in divergent branches, "
        "and `ld.global.nc` of memory that the kernel writes. Launches take about twice as long. "
        "Limits: [design/0013-ptx-interpreter.md](design/0013-ptx-interpreter.md).",
    ),
    Variable(
        "GPUFLOW_PREALLOCATE", SHARE, "0",
        "The share of GPU memory to allocate at the start. If it is not set, JAX's variables "
        "count: `XLA_PYTHON_CLIENT_MEM_FRACTION` is the share, and "
        "`XLA_PYTHON_CLIENT_PREALLOCATE=true` alone means 0.75. Unlike JAX, gpuflow allocates "
        "nothing in advance if none of them is set.",
    ),
    Variable(
        "GPUFLOW_CUDA_EPILOGUES", FLAG, "1",
        "Let matrix products on GPUs include biases, relu, gelu and their derivatives "
        "([design/0050-epilogues.md](design/0050-epilogues.md)).",
    ),
    Variable(
        "GPUFLOW_CUDNN", FLAG, "1",
        "Use cuDNN, if it is installed, for convolutions and attention on GPUs "
        "([gpu.md](gpu.md#convolutions)). 0 selects gpuflow's kernels.",
    ),
    Variable(
        "GPUFLOW_CUDA_GRAPHS", FLAG, "1",
        "Replay repeated launches as CUDA graphs "
        "([design/0015-cuda-driver.md](design/0015-cuda-driver.md)). Results are the same.",
    ),
)  # fmt: skip

_LAUNCHED = (
    Variable(
        "GPUFLOW_COORDINATOR",
        TEXT,
        "",
        "`host:port` at which the processes meet. Process 0 listens there.",
    ),
    Variable("GPUFLOW_NUM_PROCESSES", integer(1, None, 2), "", "The number of processes."),
    Variable("GPUFLOW_PROCESS_ID", integer(0), "", "The rank of this process, from 0."),
    Variable(
        "GPUFLOW_LOCAL_SIZE", integer(0), "0", "The number of processes of its machine; 0: unknown."
    ),
    Variable("GPUFLOW_LOCAL_ID", integer(0), "0", "The rank of this process on its machine."),
    Variable(
        "GPUFLOW_TOKEN",
        TEXT,
        "empty; `gpuflow launch` draws one",
        "The secret that all processes of a group share. Processes without it cannot join.",
    ),
    Variable(
        "GPUFLOW_COLLECTIVE_TIMEOUT",
        SECONDS,
        "300",
        "Seconds for which a collective waits for a process that does not come.",
    ),
    Variable(
        "GPUFLOW_RESTART",
        integer(0),
        "",
        "How often the group was restarted. `--max-restarts` sets it.",
    ),
    Variable(
        "GPUFLOW_LAUNCHER_PID",
        integer(1),
        "",
        "Internal: the process id of the launcher, with which its ranks end.",
    ),
    Variable("GPUFLOW_WATCHDOG", TEXT, "", "Internal: the folder of progress reports."),
)

TABLES = {"user": _USERS, "launcher": _LAUNCHED}
VARIABLES = {variable.name: variable for table in TABLES.values() for variable in table}


def read(variables: Mapping[str, str], name: str, default: Any) -> Any:
    """The value of a variable of the table; ``default`` if it is not set, or empty.

    Raises:
        ValueError: if its text is not of its kind.
    """
    text = variables.get(name, "")
    return value_of(VARIABLES[name].kind, name, text) if text else default


def unknown_variables(names: Iterable[str]) -> list[str]:
    """A message for each name with gpuflow's prefix that is not in the table."""
    return [_unknown(name) for name in names if name.startswith(PREFIX) and name not in VARIABLES]


def _unknown(name: str) -> str:
    known = [known.removeprefix(PREFIX) for known in VARIABLES]
    close = difflib.get_close_matches(name.removeprefix(PREFIX), known, 3, 0.6)
    fix = " or ".join(PREFIX + one for one in close) or "a name of docs/env_vars.md"
    return (
        f"[config] variables that begin with {PREFIX} must be known ones; got {name}, which has "
        f"no effect. Fix: {fix}."
    )
