"""Settings: environment variables, process-wide values and context managers.

This file is the only one that reads environment variables of gpuflow; base/variables.py is the
table of them. Settings that change the meaning of a traced program are fields of ``Settings``. The
current ``Settings`` object is interned, so ``trace_context()`` is a cheap and exact part of a jit
key.

Tests: tests/base/test_environment.py, tests/test_api_config.py.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuflow.base import variables
from gpuflow.base.config_flags import FlagsAndValues
from gpuflow.base.config_names import WITHOUT_EFFECT, name_in_jax, unknown_setting
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.base.variables import MAX_DEVICES, Kind


def read_variable(name: str, default: Any) -> Any:
    """The value of one of gpuflow's variables; ``default`` if it is not set, or empty.

    Raises:
        ValueError: if its text is not of its kind.
    """
    return variables.read(os.environ, name, default)


def _foreign(kind: Kind, name: str, default: Any) -> Any:
    """The value of another project's variable."""
    text = os.environ.get(name, "")
    return variables.value_of(kind, name, text) if text else default


def _preallocated() -> float:
    """The share of a GPU's memory to take at the start: gpuflow's variable, else JAX's two.

    JAX takes memory by default; gpuflow takes it only if a variable requests it.
    """
    share = _foreign(variables.SHARE, "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.0)
    preallocates = _foreign(variables.FLAG, "XLA_PYTHON_CLIENT_PREALLOCATE", bool(share))
    return read_variable("GPUFLOW_PREALLOCATE", (share or 0.75) if preallocates else 0.0)


def _xla_device_count() -> int:
    """The number of CPU devices that scripts for JAX request in XLA_FLAGS, or 1."""
    flags = os.environ.get("XLA_FLAGS", "")
    match = re.search(r"--xla_force_host_platform_device_count=(\S*)", flags)
    if match is None:
        return 1
    try:
        return max(variables.integer(0, MAX_DEVICES).parse(match[1]), 1)
    except ValueError:
        raise ValueError(
            "[config] --xla_force_host_platform_device_count in XLA_FLAGS must be an integer from "
            f"0 to {MAX_DEVICES}; got {match[1]!r}. Fix: export GPUFLOW_CPU_DEVICES=8."
        ) from None


def _xla_excess_precision() -> bool:
    """The setting that scripts for JAX request in XLA_FLAGS, or True, XLA's default."""
    flags = os.environ.get("XLA_FLAGS", "")
    match = re.search(r"--xla_allow_excess_precision(?:=(\S*))?(?:\s|$)", flags)
    return match is None or (match[1] or "true").lower() not in ("false", "0")


def cpu_count() -> int:
    """The number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _default_cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "gpuflow"


def _runtime_folder() -> Path:
    """The folder in which running processes of this user publish their state."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "gpuflow"
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "")
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"gpuflow-{user}"


@record
class Environment:
    """Environment variables of the process, read once at import."""

    platform: str = ""
    cpu_devices: int = 1
    separate_memories: bool = False
    sim_devices: int = 1
    num_threads: int = 1
    build_processes: int = 1
    cpu_target: str = "native"
    cache_folder: Path = Path()
    cache_limit: int = 1 << 30
    kernel_versions: tuple[tuple[str, str], ...] = ()  # packages that built the cached CUDA kernels
    debug: int = 0
    dump: str = ""
    check: bool = False
    sim_check: bool = False
    preallocate: float = 0.0
    cuda_graphs: bool = True
    cuda_epilogues: bool = True
    cudnn: bool = True
    lane_loops: bool = True
    block_programs: bool = True
    smi: bool = False
    runtime_folder: Path = Path()
    numba: tuple[str, ...] = ()  # Numba's own variables: some change the code that it makes


class _Reader:
    """Reads variables; a bad value raises, or is added to ``problems`` and counts as not set."""

    def __init__(self, problems: list[str] | None = None) -> None:
        self._problems = problems

    def attempt(self, get: Callable[[], Any], default: Any) -> Any:
        """``get()``, or ``default`` where a variable that it reads has a bad value."""
        if self._problems is None:
            return get()
        try:
            return get()
        except ValueError as error:
            self._problems.append(str(error))
            return default

    def __call__(self, name: str, default: Any) -> Any:
        return self.attempt(lambda: read_variable(name, default), default)


def read_environment(problems: list[str] | None = None) -> Environment:
    """Read all environment variables.

    Args:
        problems: receives the messages about bad values, which then count as not set; None: the
            first one raises ValueError.
    """
    read = _Reader(problems)
    folder = read("GPUFLOW_CACHE_DIR", "")
    return Environment(
        platform=read("GPUFLOW_PLATFORM", ""),
        cpu_devices=read("GPUFLOW_CPU_DEVICES", read.attempt(_xla_device_count, 1)),
        separate_memories=read("GPUFLOW_SEPARATE_MEMORIES", False),
        sim_devices=read("GPUFLOW_SIM_DEVICES", 1),
        num_threads=read("GPUFLOW_NUM_THREADS", cpu_count()),
        build_processes=read("GPUFLOW_BUILD_PROCESSES", min(cpu_count(), 8)),
        cpu_target=read("GPUFLOW_CPU_TARGET", "native"),
        cache_folder=Path(folder) if folder else _default_cache_folder(),
        cache_limit=read("GPUFLOW_CACHE_LIMIT", 1 << 30),
        kernel_versions=read("GPUFLOW_KERNEL_VERSIONS", ()),
        debug=read("GPUFLOW_DEBUG", 0),
        dump=read("GPUFLOW_DUMP", ""),
        check=read("GPUFLOW_CHECK", False),
        sim_check=read("GPUFLOW_SIM_CHECK", False),
        preallocate=read.attempt(_preallocated, 0.0),
        cuda_graphs=read("GPUFLOW_CUDA_GRAPHS", True),
        cuda_epilogues=read("GPUFLOW_CUDA_EPILOGUES", True),
        cudnn=read("GPUFLOW_CUDNN", True),
        lane_loops=read("GPUFLOW_LANE_LOOPS", True),
        block_programs=read("GPUFLOW_BLOCK_PROGRAMS", True),
        smi=read("GPUFLOW_SMI", False),
        runtime_folder=_runtime_folder(),
        numba=tuple(sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_"))),
    )


@record(eq=False)
class Settings:
    """Settings that change the meaning of a program. Interned: equal settings are one object."""

    enable_x64: bool = False
    numpy_dtype_promotion: str = "standard"
    numpy_rank_promotion: str = "allow"
    default_matmul_precision: str | None = None
    default_prng_impl: str = "threefry2x32"
    enable_custom_prng: bool = False  # whether PRNGKey makes typed keys
    random_seed_offset: int = 0  # added to seeds
    high_dynamic_range_gumbel: bool = False
    threefry_partitionable: bool = True
    debug_nans: bool = False
    debug_infs: bool = False
    debug_key_reuse: bool = False
    check_indices: bool = False  # whether indexing records out of bounds indices, for checkify
    disable_jit: bool = False
    default_device: Any = None
    axis_env: tuple[tuple[Any, int], ...] = ()  # named axes in scope with sizes, innermost last
    axis_aliases: tuple[tuple[Any, tuple[Any, ...]], ...] = ()  # names of several axes
    varying_axes: tuple[Any, ...] = ()  # named axes along which types of values vary
    mesh: Any = None  # the mesh of set_mesh
    user_contexts: tuple[tuple[Any, Any], ...] = ()  # of make_user_context, with their values
    atomic_sums: bool = False  # GPUs may add updates of one element in any order
    excess_precision: bool = True  # CUDA kernels may leave out roundings to 16 bits


_CHOICES = {
    "numpy_dtype_promotion": ("standard", "strict"),
    "numpy_rank_promotion": ("allow", "warn", "raise"),
    "default_prng_impl": ("threefry2x32", "rbg", "unsafe_rbg"),
    "traceback_filtering": variables.TRACEBACK_FILTERING,
}


@record
class Switches:
    """Settings of diagnostics and checks, which do not change programs."""

    log_compiles: bool = False
    explain_cache_misses: bool = False
    no_tracing: bool = False
    check_tracer_leaks: bool = False  # whether a trace looks for tracers that outlive it
    traceback_filtering: str = "auto"  # whose frames tracebacks show; see base/tracebacks.py
    # Traces of one function after its first one that take this long get a warning; None: never.
    # Below it a reader of the warning has little to save.
    retrace_warning_seconds: float | None = 3.0


_NAMES = tuple(field.name for field in fields(Settings))
_SWITCHES = tuple(field.name for field in fields(Switches))
_FLAGS = frozenset(
    field.name
    for record in (Settings, Switches)
    for field in fields(record)
    if isinstance(field.default, bool)
)
# Settings of the start of a process, which can be changed before its first array.
_STARTING = {"platforms": "platform", "platform_name": "platform", "num_cpu_devices": "cpu_devices"}
# Settings for users; the internal ones belong to transformations and to meshes.
_INTERNAL = ("check_indices", "axis_env", "axis_aliases", "varying_axes", "mesh", "user_contexts")
_PUBLIC = (*(name for name in _NAMES if name not in _INTERNAL), *_SWITCHES, *_STARTING)
_interned: dict[tuple[Any, ...], Settings] = {}


def _gpuflow_variable(short: str) -> str:
    """gpuflow's environment variable for a setting."""
    return f"GPUFLOW_{_STARTING.get(short, short).upper()}"


def _value_of(variable: str, short: str) -> Any:
    """The value that an environment variable gives to a setting."""
    if short in _FLAGS:
        return _foreign(variables.FLAG, variable, False)
    if short == "num_cpu_devices":
        return _foreign(variables.integer(1, MAX_DEVICES), variable, 1)
    return os.environ[variable]


def _intern(settings: Settings) -> Settings:
    key = tuple(getattr(settings, name) for name in _NAMES)
    return _interned.setdefault(key, settings)


_NOTHING: Mapping[str, Any] = MappingProxyType({})
Blocks = tuple[Mapping[str, Any], Mapping[str, Any]]  # values of settings and of switches


class _Local(threading.local):
    """Settings of the blocks around a thread's code; others are those of the process.

    Attributes:
        changed, switched: values of settings and of switches, by name.
        settings: ``changed`` on top of ``process``; None: no block changes a setting.
        process: the settings of the process when ``settings`` was made.
    """

    changed: Mapping[str, Any] = _NOTHING
    switched: Mapping[str, Any] = _NOTHING
    settings: Settings | None = None
    process: Settings | None = None


class Config(FlagsAndValues):
    """Current settings: those of the process, overridden by blocks of a thread.

    Attributes:
        environment: environment variables of the process at its start.
        problems: messages about environment variables with bad values.
        may_check: whether any setting of this process ever enabled checks of values. If each op has
            to read the settings, an eager sum takes 10 % longer and ``x[1:3]`` 14 %
            (perf/bench_flags.py).
    """

    def __init__(self) -> None:
        self.may_check = False
        self.problems: list[str] = []
        self.environment = read_environment(self.problems)
        self._xla_devices = self.environment.cpu_devices  # as far as nothing else gave it
        read = _Reader(self.problems)
        self._local = _Local()
        self._process = _intern(
            Settings(
                enable_x64=read("GPUFLOW_ENABLE_X64", False),
                atomic_sums=read("GPUFLOW_ATOMIC_SUMS", False),
                excess_precision=read("GPUFLOW_EXCESS_PRECISION", _xla_excess_precision()),
            )
        )
        self._process_switches = Switches(
            traceback_filtering=read("GPUFLOW_TRACEBACK_FILTERING", "auto")
        )
        self._checks: dict[str, Callable[[Any], Any]] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._ignored: dict[str, Any] = {}

    def trace_context(self) -> Settings:
        """The current settings; identical objects mean identical settings."""
        local = self._local
        settings = local.settings
        if settings is None:
            return self._process
        if local.process is not self._process:  # it was updated inside of a block
            settings = self._on_top(local.changed)
        return settings

    def _on_top(self, changed: Mapping[str, Any]) -> Settings:
        """Make the values that blocks set, on top of the process's, this thread's settings."""
        local, process = self._local, self._process
        settings = _intern(replace(process, **changed))
        self._note_checks(settings)
        local.changed, local.settings, local.process = changed, settings, process
        return settings

    def switches(self) -> Switches:
        """The current switches."""
        switched = self._local.switched
        return replace(self._process_switches, **switched) if switched else self._process_switches

    def register_check(self, name: str, check: Callable[[Any], Any]) -> None:
        """Have ``check(value)`` raise ValueError for values that a setting does not take."""
        self._checks[name] = check

    def register_start(self, name: str, start: Callable[[], None]) -> None:
        """Have ``start()`` called before a flag is on for the first time in this process."""
        self._starts[name] = start

    def update(self, name: str, value: Any) -> None:
        """Set a process-wide setting, by its own name or JAX's (``jax_enable_x64``).

        Raises:
            AttributeError: no such setting.
            ValueError: a value that the setting does not take.

        Warns:
            UserWarning: a setting of JAX's that means nothing here.
        """
        short = self._known(name)
        if short in _NAMES:
            self._check(short, value)
            self._process = _intern(replace(self._process, **{short: value}))
            self._note_checks(self._process)
        elif short in _SWITCHES:
            self._check(short, value)
            self._process_switches = replace(self._process_switches, **{short: value})
        elif short in _STARTING:
            self._check(short, value)
            if isinstance(value, str) or value is None:
                value = (value or "").split(",")[0]  # of those in a list the first counts
            self.environment = replace(self.environment, **{_STARTING[short]: value})
        else:
            self._ignore(name, short, getattr(value, "value", value))

    def _ignore(self, name: str, short: str, value: Any) -> None:
        idle = WITHOUT_EFFECT[short]
        if value != idle.default and idle.is_refused:
            raise NotImplementedError(
                f"[config] {name} must be {idle.default!r} in gpuflow: {idle.reason}; got "
                f"{value!r}. Fix: leave it out."
            )
        if value != idle.default:
            warn(f"[config] {name} has no effect in gpuflow: {idle.reason}.")
        self._ignored[short] = value

    def before_devices(self) -> None:
        """Read XLA_FLAGS once more: programs may set them until devices are first used.

        Raises:
            ValueError: if any environment variable has a bad value.
        """
        if self.problems:
            raise ValueError("\n".join(self.problems))
        count = _xla_device_count()
        if count != self._xla_devices and not os.environ.get("GPUFLOW_CPU_DEVICES"):
            self.environment = replace(self.environment, cpu_devices=count)
        self._xla_devices = count

    def names(self) -> dict[str, str]:
        """All settings: from their names in JAX to their own names."""
        return {name_in_jax(short): short for short in (*_PUBLIC, *WITHOUT_EFFECT)}

    def choices_of(self, short: str) -> tuple[Any, ...]:
        """The allowed values of a setting; empty if any value is allowed."""
        return _CHOICES.get(short, ())

    @contextmanager
    def override(self, name: str, value: Any) -> Iterator[None]:
        """Set a setting for this thread inside a ``with`` block; other settings are unchanged."""
        local, short = self._local, self._known(name)
        before = local.changed, local.switched, local.settings, local.process
        self._check(short, value)
        if short in _SWITCHES:
            local.switched = {**local.switched, short: value}
        elif short in _NAMES:
            self._on_top({**local.changed, short: value})
        try:
            yield
        finally:
            local.changed, local.switched, local.settings, local.process = before

    def blocks(self) -> Blocks:
        """Return the settings of this thread's blocks, for a thread that works on its behalf."""
        return self._local.changed, self._local.switched

    @contextmanager
    def within(self, blocks: Blocks) -> Iterator[None]:
        """Apply the settings of another thread's ``blocks()``."""
        local = self._local
        before = local.changed, local.switched, local.settings, local.process
        local.switched = blocks[1]
        if blocks[0]:
            self._on_top(blocks[0])
        try:
            yield
        finally:
            local.changed, local.switched, local.settings, local.process = before

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not attributes of the object itself.
        if name.startswith("_"):
            raise AttributeError(name)
        short = self._known(name, _METHODS)
        if short in _NAMES:
            return getattr(self.trace_context(), short)
        if short in _SWITCHES:
            return getattr(self.switches(), short)
        if short in _STARTING:
            return getattr(self.environment, _STARTING[short])
        return self._ignored.get(short, WITHOUT_EFFECT[short].default)

    def adopt_jax_variables(self) -> None:
        """Apply JAX's own environment variables, as ``import jax`` does.

        Those of gpuflow's that are set win.

        Raises:
            ValueError: a value that cannot be read, or that the setting does not take.

        Warns:
            UserWarning: variables of JAX's without effect in gpuflow, all at once.
        """
        idle = []
        for variable in sorted(os.environ):
            short = variable.removeprefix("JAX_").lower()
            if not variable.startswith("JAX_") or os.environ.get(_gpuflow_variable(short)):
                continue
            if short not in _PUBLIC:
                idle.append(variable)
            elif os.environ[variable]:
                self.update(short, _value_of(variable, short))
        if idle:
            warn(f"[config] {', '.join(idle)} of the environment have no effect in gpuflow.")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("may_check", "environment", "problems"):
            object.__setattr__(self, name, value)
        else:
            self.update(name, value)

    def _known(self, name: str, methods: tuple[str, ...] = ()) -> str:
        short = name.removeprefix("jax_")
        if short in _NAMES or short in _PUBLIC or short in WITHOUT_EFFECT:
            return short
        raise AttributeError(unknown_setting(name, _PUBLIC, methods))

    def _check(self, name: str, value: Any) -> None:
        choices = (True, False) if name in _FLAGS else _CHOICES.get(name)
        if choices is not None and value not in choices:
            raise ValueError(
                f"[config] {name} must be one of {choices}; got {value!r}. "
                f"Fix: config.update({name!r}, {choices[0]!r})."
            )
        if name in self._checks and value is not None:
            self._checks[name](value)
        if value and name in self._starts:
            self._starts.pop(name)()

    def _note_checks(self, settings: Settings) -> None:
        asked = settings.debug_nans or settings.debug_infs or settings.check_indices
        self.may_check = self.may_check or asked


_METHODS = tuple(name for name in dir(Config) if not name.startswith("_"))
config = Config()
for _message in variables.unknown_variables(os.environ):
    warn(_message)


@contextmanager
def extend_axes(
    *axes: tuple[Any, int], aliases: Mapping[Any, tuple[Any, ...]] | None = None
) -> Iterator[None]:
    """Inside the block, these named axes are in scope as well: pairs of a name and a size.

    Args:
        axes: names with sizes; a name hides an outer one that is equal.
        aliases: names of several axes that form one row-major axis.
    """
    added = dict(aliases or {})
    hidden = {*added, *[name for name, _ in axes]}
    outer = [(name, size) for name, size in config.axis_env if name not in hidden]
    remaining = [(name, members) for name, members in config.axis_aliases if name not in hidden]
    with config.override("axis_env", (*outer, *axes)):
        if not remaining and not added and not config.axis_aliases:
            yield
            return
        with config.override("axis_aliases", (*remaining, *added.items())):
            yield


def expand_names(names: Iterable[Any]) -> tuple[Any, ...]:
    """Replace aliases in names of axes by the axes."""
    aliases = config.axis_aliases
    if not aliases:
        return tuple(names)
    table = dict(aliases)
    return tuple(component for name in names for component in table.get(name, (name,)))


# Prefixes of the variables that launchers set for their processes.
_LAUNCHERS = (
    "GPUFLOW_", "SLURM_", "OMPI_COMM_", "PMI_", "PMIX_", "MPI_", "HYDRA_", "TORCHELASTIC_",
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


def environment_names() -> list[str]:
    """The names of all environment variables, sorted."""
    return sorted(os.environ)


def collective_timeout() -> float:
    """Seconds for which a collective waits for a missing process.

    Raises:
        ValueError: if GPUFLOW_COLLECTIVE_TIMEOUT is not a number of seconds.
    """
    return read_variable("GPUFLOW_COLLECTIVE_TIMEOUT", 300.0)


def launcher_variables() -> dict[str, str]:
    """The environment variables with which launchers identify this process."""
    return {name: value for name, value in os.environ.items() if name.startswith(_LAUNCHERS)}


def choose_gpus(names: Iterable[str]) -> None:
    """Let this process see these GPUs only; CUDA reads it when it is first used."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)


def child_environment(
    values: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment for a child process: ours, with ``values``, and ``defaults`` if not set."""
    return {**(defaults or {}), **os.environ, **values}


_environment_lock = threading.Lock()


@contextmanager
def library_environment(**values: str | None) -> Iterator[None]:
    """Set environment variables while a library loads that reads them; None: unset."""
    with _environment_lock:
        saved = {name: os.environ.pop(name, None) for name in values}
        os.environ.update({name: value for name, value in values.items() if value is not None})
        try:
            yield
        finally:
            for name in values:
                os.environ.pop(name, None)
            os.environ.update({k: v for k, v in saved.items() if v is not None})
