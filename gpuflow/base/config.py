"""Settings: environment variables, process-wide values and context managers.

Every environment variable of gpuflow is read in this file and nowhere else; docs/env_vars.md lists
them. Settings that change what a traced program means are fields of ``Settings``; the current
``Settings`` object is interned, so ``trace_context()`` is a cheap and exact part of a jit key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any


def _flag(name: str, default: bool) -> bool:
    text = os.environ.get(name)
    if text is None:
        return default
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(f"[config] {name} must be 0 or 1; got {text!r}. Fix: export {name}=1.")


def _integer(name: str, default: int, minimum: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdigit() or int(text) < minimum:
        raise ValueError(
            f"[config] {name} must be an integer of at least {minimum}; got {text!r}. "
            f"Fix: export {name}={max(minimum, default)}."
        )
    return int(text)


def _share(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(
            f"[config] {name} must be a number from 0 to 1; got {text!r}. Fix: export {name}=0.5."
        )
    return value


CPU_TARGETS = ("native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


def _choice(name: str, choices: tuple[str, ...]) -> str:
    """One of ``choices``; the first is the default."""
    text = os.environ.get(name) or choices[0]
    if text not in choices:
        raise ValueError(
            f"[config] {name} must be one of {', '.join(choices)}; got {text!r}. "
            f"Fix: export {name}={choices[0]}."
        )
    return text


def _cpu_count() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _default_cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "gpuflow"


@dataclass(frozen=True)
class Environment:
    """What the process was started with; read once at import."""

    platform: str = ""
    cpu_devices: int = 1
    num_threads: int = 1
    cpu_target: str = "native"
    cache_folder: Path = Path()
    cache_limit: int = 1 << 30
    debug: int = 0
    dump: str = ""
    check: bool = False
    preallocate: float = 0.0
    cuda_graphs: bool = True
    numba: tuple[str, ...] = ()  # Numba's own variables: some change the code that it makes


def read_environment() -> Environment:
    """Read all environment variables; a bad value raises ValueError naming it."""
    folder = os.environ.get("GPUFLOW_CACHE_DIR")
    return Environment(
        platform=os.environ.get("GPUFLOW_PLATFORM", ""),
        cpu_devices=_integer("GPUFLOW_CPU_DEVICES", 1, 1),
        num_threads=_integer("GPUFLOW_NUM_THREADS", _cpu_count(), 1),
        cpu_target=_choice("GPUFLOW_CPU_TARGET", CPU_TARGETS),
        cache_folder=Path(folder) if folder else _default_cache_folder(),
        cache_limit=_integer("GPUFLOW_CACHE_LIMIT", 1 << 30, 0),
        debug=_integer("GPUFLOW_DEBUG", 0, 0),
        dump=os.environ.get("GPUFLOW_DUMP", ""),
        check=_flag("GPUFLOW_CHECK", False),
        preallocate=_share("GPUFLOW_PREALLOCATE", 0.0),
        cuda_graphs=_flag("GPUFLOW_CUDA_GRAPHS", True),
        numba=tuple(sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_"))),
    )


@dataclass(frozen=True, eq=False)
class Settings:
    """Settings that change what a program means. Interned: equal settings are one object."""

    enable_x64: bool = False
    numpy_dtype_promotion: str = "standard"
    numpy_rank_promotion: str = "allow"
    default_matmul_precision: str | None = None
    default_prng_impl: str = "threefry2x32"
    threefry_partitionable: bool = True
    debug_nans: bool = False
    debug_infs: bool = False
    disable_jit: bool = False
    default_device: Any = None
    axis_env: tuple[tuple[Any, int], ...] = ()  # named axes in scope with sizes, innermost last


_CHOICES = {
    "numpy_dtype_promotion": ("standard", "strict"),
    "numpy_rank_promotion": ("allow", "warn", "raise"),
    "default_prng_impl": ("threefry2x32",),
}
_NAMES = tuple(field.name for field in fields(Settings))
_interned: dict[tuple[Any, ...], Settings] = {}


def _intern(settings: Settings) -> Settings:
    key = tuple(getattr(settings, name) for name in _NAMES)
    return _interned.setdefault(key, settings)


class _Local(threading.local):
    settings: Settings | None = None


class Config:
    """The settings in force: a process-wide object and a thread-local override of it.

    Attributes:
        environment: what the process was started with.
        may_check: whether any setting of this process ever asked for checks of values, so that
            each op need not look at the settings.
    """

    def __init__(self) -> None:
        self.may_check = False
        self.environment = read_environment()
        self._local = _Local()
        self._process = _intern(Settings(enable_x64=_flag("GPUFLOW_ENABLE_X64", False)))

    def trace_context(self) -> Settings:
        """The current settings; identical objects mean identical settings."""
        return self._local.settings or self._process

    def update(self, name: str, value: Any) -> None:
        """Set a process-wide setting, by its own name or JAX's (``jax_enable_x64``).

        Raises:
            AttributeError: no such setting.
            ValueError: a value that the setting does not take.
        """
        self._process = self._changed(self._process, self._known(name), value)

    @contextmanager
    def override(self, name: str, value: Any) -> Iterator[None]:
        """Set a setting for this thread inside a ``with`` block."""
        before = self._local.settings
        self._local.settings = self._changed(self.trace_context(), self._known(name), value)
        try:
            yield
        finally:
            self._local.settings = before

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not attributes of the object itself.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.trace_context(), self._known(name))

    def _known(self, name: str) -> str:
        short = name.removeprefix("jax_")
        if short not in _NAMES:
            raise AttributeError(
                f"[config] the setting must be one of {', '.join(_NAMES)}; got {name!r}. "
                "Fix: use one of these names, with or without the prefix jax_."
            )
        return short

    def _changed(self, settings: Settings, name: str, value: Any) -> Settings:
        choices = _CHOICES.get(name)
        if choices is not None and value not in choices:
            raise ValueError(
                f"[config] {name} must be one of {choices}; got {value!r}. "
                f"Fix: config.update({name!r}, {choices[0]!r})."
            )
        changed = _intern(replace(settings, **{name: value}))
        self.may_check = self.may_check or changed.debug_nans or changed.debug_infs
        return changed


config = Config()


@contextmanager
def extend_axes(*axes: tuple[Any, int]) -> Iterator[None]:
    """Inside the block, these named axes are in scope as well: pairs of a name and a size.

    A name hides an outer one that is equal.
    """
    names = [name for name, _ in axes]
    outer = [(name, size) for name, size in config.axis_env if name not in names]
    with config.override("axis_env", (*outer, *axes)):
        yield


_environment_lock = threading.Lock()


@contextmanager
def library_environment(**values: str | None) -> Iterator[None]:
    """Environment variables while a library loads that reads them then; None: not set."""
    with _environment_lock:
        saved = {name: os.environ.pop(name, None) for name in values}
        os.environ.update({name: value for name, value in values.items() if value is not None})
        try:
            yield
        finally:
            for name in values:
                os.environ.pop(name, None)
            os.environ.update({k: v for k, v in saved.items() if v is not None})
