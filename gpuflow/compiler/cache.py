"""The kernel cache: built kernels on disk, keyed by everything that decides about their code.

    <folder>/<2 hex>/<key>.<suffix>       the code: .image or .o, .cubin
    <folder>/<2 hex>/<key>.py             the readable source
    <folder>/<2 hex>/<key>.json           entry symbol, imports, checksum of the code

Files are written under a temporary name and moved into place, the json last: an entry whose json
is there is complete, unless the disk damaged it, which the checksum tells. Processes that build
the same kernel at once write equal content, and the last one stays. The cache never fails a
program: whatever is wrong with the folder costs one warning and a build in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from gpuflow.base.errors import CacheWarning
from gpuflow.base.recording import clock, state
from gpuflow.base.records import record
from gpuflow.compiler.cache_size import trim

_WRITES_BETWEEN_LOOKS = 256  # at the folder's size; a process looks after its first write

Loaded = TypeVar("Loaded")


@record
class Entry:
    """One built kernel.

    Attributes:
        code: Object code.
        suffix: The kind of code: "image", "o" or "cubin".
        source: The readable text it was built from.
        entry: The symbol of the kernel's function.
        imports: Symbols that the loader has to find.
        info: Anything else of the target, as JSON.
    """

    code: bytes
    suffix: str
    source: str
    entry: str
    imports: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)


@record(frozen=False)
class CacheStats:
    """What a cache did in this process."""

    built: int = 0
    loaded: int = 0
    build_seconds: float = 0.0


def source_digest(modules: Iterable[ModuleType]) -> str:
    """A digest of the texts of modules: what they print or emit changes only with their text.

    Args:
        modules: The modules that turn a kernel's text into code. In a key, this takes the place
            of a version number that somebody would have to raise.

    Returns:
        Hexadecimal digits. Cost: reads the files, below 1 ms.
    """
    digest = hashlib.sha256()
    for module in modules:
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()


def cache_key(text: str, parts: tuple[str, ...]) -> str:
    """The key of a kernel.

    Args:
        text: The kernel's canonical text.
        parts: Target, versions and processor: what else decides about the code.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(json.dumps([text, *parts]).encode()).hexdigest()


@record(frozen=False)
class _Slot:
    """What ``KernelCache.once`` keeps; the lock makes concurrent callers wait for the first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: bool = False
    value: Any = None


class KernelCache:
    """Keeps built kernels in a folder; any thread and any number of processes may use it.

    Args:
        folder: Where the files go; made when the first kernel is stored. None: nothing is stored.
        limit: Bytes above which entries that lay unused longest are deleted; 0: none.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, limit: int = 0) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.limit = limit
        self._written = 0
        self.stats = CacheStats()
        self._lock = threading.Lock()
        self._warned = False
        self._slots: dict[str, _Slot] = {}

    def once(self, key: str, load: Callable[[], Loaded]) -> Loaded:
        """The result of ``load()`` of the first call with ``key``, kept with this cache.

        Args:
            key: From ``cache_key``.
            load: Makes the loaded kernel; where it raises, the next call tries again.

        Returns:
            The same object for every call with ``key``.
        """
        slot = self._slots.setdefault(key, _Slot())
        if not slot.ready:
            with slot.lock:
                if not slot.ready:
                    slot.value = load()
                    slot.ready = True
        return slot.value

    def has(self, key: str) -> bool:
        """Whether ``once`` has a result for ``key``."""
        slot = self._slots.get(key)
        return slot is not None and slot.ready

    def is_stored(self, key: str) -> bool:
        """Whether the folder has an entry of ``key``, which may be damaged."""
        description = self.path(key, "json")
        return description is not None and description.exists()

    def get(self, key: str, build: Callable[[], Entry]) -> Entry:
        """The entry of ``key`` from the folder, or a new one from ``build``, which is stored.

        Args:
            key: From ``cache_key``.
            build: Makes the entry; its exceptions pass through.

        Returns:
            The entry.
        """
        found = self._read(key)
        if found is not None:
            with self._lock:
                self.stats.loaded += 1
            return found
        return self._build(key, build)

    def _build(self, key: str, build: Callable[[], Entry]) -> Entry:
        start = clock()
        entry = build()
        seconds = (clock() - start) / 1e9
        if state.recording is not None:
            state.recording.add("builds", f"build {entry.entry}", start, {"key": key})
        with self._lock:
            self.stats.built += 1
            self.stats.build_seconds += seconds
        self._write(key, entry)
        return entry

    def forget_locks(self) -> None:
        """In a forked child: threads that held locks are gone, and what they loaded is not."""
        self._lock = threading.Lock()
        self._slots = {key: slot for key, slot in self._slots.items() if slot.ready}

    def replace(self, key: str, build: Callable[[], Entry], error: Exception) -> Entry:
        """A new entry in place of one that could not be loaded because of ``error``.

        Args:
            key: From ``cache_key``.
            build: Makes the entry; its exceptions pass through.
            error: Why; it stands in the warning.

        Returns:
            The new entry.
        """
        self._warn(f"holds a kernel that does not load, {key[:12]} ({error})")
        return self._build(key, build)

    def path(self, key: str, suffix: str) -> Path | None:
        """Where the file of an entry is, or would be."""
        if self.folder is None:
            return None
        return self.folder / key[:2] / f"{key}.{suffix}"

    def _read(self, key: str) -> Entry | None:
        description = self.path(key, "json")
        if description is None:
            return None
        try:
            text = description.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"cannot be read ({error})")
            return None
        try:
            return self._parse(key, json.loads(text))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if not description.exists():
                return None  # another process has just deleted the entry
            self._warn(f"holds a damaged kernel {key[:12]} ({type(error).__name__}: {error})")
            return None

    def _parse(self, key: str, record: dict[str, Any]) -> Entry:
        code_path, source_path = self.path(key, record["suffix"]), self.path(key, "py")
        assert code_path is not None and source_path is not None
        code = code_path.read_bytes()
        checksum = hashlib.sha256(code).hexdigest()
        if checksum != record["checksum"]:
            raise ValueError("the checksum of the code differs")
        # The source is for people: a kernel without it still runs.
        source = source_path.read_text() if source_path.exists() else ""
        return Entry(
            code,
            str(record["suffix"]),
            source,
            str(record["entry"]),
            tuple(str(name) for name in record["imports"]),
            dict(record["info"]),
        )

    def _write(self, key: str, entry: Entry) -> None:
        if self.folder is None:
            return
        record = {
            "entry": entry.entry,
            "imports": list(entry.imports),
            "info": entry.info,
            "suffix": entry.suffix,
            "checksum": hashlib.sha256(entry.code).hexdigest(),
        }
        files = {
            entry.suffix: entry.code,
            "py": entry.source.encode(),
            "json": json.dumps(record, indent=1).encode(),
        }
        try:
            for suffix, content in files.items():
                path = self.path(key, suffix)
                assert path is not None
                replace_file(path, content)
            if self.limit and self._written % _WRITES_BETWEEN_LOOKS == 0:
                trim(self.folder, self.limit)
            self._written += 1
        except OSError as error:
            self._warn(f"cannot be written ({error})")

    def _warn(self, what: str) -> None:
        with self._lock:
            if self._warned:
                return
            self._warned = True
        warnings.warn(
            f"[cache] the kernel cache folder must be usable; {self.folder} {what}. Kernels are "
            "built again. Fix: delete the folder or set GPUFLOW_CACHE_DIR to another.",
            CacheWarning,
            stacklevel=4,
        )


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that other processes see it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
