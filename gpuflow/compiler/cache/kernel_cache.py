"""The kernel cache: compiled kernels on disk, keyed by all inputs of code generation.

    <folder>/<2 hex>/<key>.<suffix>       the code: .image or .o, .cubin
    <folder>/<2 hex>/<key>.py             the readable source
    <folder>/<2 hex>/<key>.json           entry symbol, imports, checksum of all this

Files are written under a temporary name and renamed, the json last. So an entry with its json is
complete, unless the disk damaged it, which the checksum detects. Files that another user may have
written are not read. Processes that build the same kernel at once write equal content, and the last
one wins. The cache never fails a program: a problem with the folder costs one warning and a build
in memory.

Tests: tests/targets/cpu/test_cpu_cache.py, tests/targets/cuda/test_cuda_cache.py.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuflow.base.caches import CacheSize, cache_sizes
from gpuflow.base.errors import CacheWarning
from gpuflow.base.lazy import LazyModule
from gpuflow.base.private_files import parse_json, read_private, replace_file
from gpuflow.base.progress import kernel_built
from gpuflow.base.recording import clock, state
from gpuflow.base.records import record
from gpuflow.compiler.cache.size import trim

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")

# A process measures the folder each time it has written this fraction of the limit. A folder of
# 1 GiB has some 300,000 files, so measuring it takes a second.
_CHECKS_PER_LIMIT = 16

Loaded = TypeVar("Loaded")


@record
class CacheEntry:
    """One compiled kernel.

    Attributes:
        code: machine code. The process executes it, so it must come from a trusted source.
        suffix: the kind of code: "image", "o" or "cubin"; also the suffix of its file, which must
            match ``size._CACHE_FILE``.
        source: the readable text from which it was built; may be empty.
        entry: the symbol of the kernel's function.
        imports: external symbols that the loader must resolve.
        metadata: further data of the target; only values that JSON can represent.
    """

    code: bytes
    suffix: str
    source: str
    entry: str
    imports: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


@record(frozen=False)
class CacheStats:
    """Statistics of the caches of this process.

    Attributes:
        built, loaded: counts of kernels that were compiled, and read from the disk.
        build_seconds: the time of compiling, in seconds.
    """

    built: int = 0
    loaded: int = 0
    build_seconds: float = 0.0

    @property
    def caches(self) -> list[CacheSize]:
        """The caches in memory that are not empty, the largest first: name, entries and bound."""
        return cache_sizes()


def source_digest(modules: Iterable[ModuleType]) -> str:
    """Return a digest of the source files of modules.

    In a key, the digest of the code generator replaces a version number that would have to be
    raised by hand.

    Args:
        modules: the modules that translate a kernel's text to code; a package includes every
            module in its folder.

    Returns:
        Hexadecimal digits. Cost: reads the files, about 1 ms for a target.
    """
    digest = hashlib.sha256()
    for module in modules:
        for file in _files_of(module):
            with open(file, "rb") as stream:
                digest.update(stream.read())
    return digest.hexdigest()


def _files_of(module: ModuleType) -> list[str]:
    file = module.__file__
    assert file is not None
    folder, file_name = os.path.split(file)
    if file_name != "__init__.py":
        return [file]
    return [
        f"{folder}/{file_name}"
        for file_name in sorted(os.listdir(folder))
        if file_name.endswith(".py")
    ]


def cache_key(text: str, inputs: tuple[str, ...]) -> str:
    """The key of a kernel.

    Args:
        text: the canonical text of the kernel.
        inputs: target, versions, processor and any other input that the code depends on.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(json.dumps([text, *inputs]).encode()).hexdigest()


@record(frozen=False)
class _Slot:
    """A value of ``KernelCache.load_once``; valid only if ``ready``.

    Concurrent callers wait at the lock for the first one. ``ready`` is set last, so that it may be
    read without the lock.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: bool = False
    value: Any = None


class KernelCache:
    """Compiled kernels in a folder and in memory; safe for threads and concurrent processes.

    A key is 64 hexadecimal digits from ``cache_key``. It must determine the code: an entry is never
    compared with the kernel that requests it. Only ``load_once`` waits for other threads; ``get``
    outside of it may build an entry in several threads, and the last one is stored.

    Args:
        folder: the folder, which is created with the first kernel; None to store nothing.
        limit: bytes above which the least recently used entries are deleted; 0 for no limit.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, limit: int = 0) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.limit = limit
        # Bytes to write before the folder is measured. Random at first, so that only few of many
        # short processes measure it.
        self._bytes_until_check = int.from_bytes(os.urandom(8)) % (limit // _CHECKS_PER_LIMIT + 1)
        self.stats = CacheStats()
        self._lock = threading.Lock()
        self._warned = False
        self._slots: dict[str, _Slot] = {}
        self._in_memory: dict[str, CacheEntry] = {}
        self._prebuilt: dict[str, CacheEntry] = {}
        self._key_recorders: list[set[str]] = []

    def preload(self, entries: Mapping[str, CacheEntry]) -> None:
        """Add kernels that were built elsewhere, in memory, until the process ends.

        Args:
            entries: entries by key. Their code is executed, so their source must be trusted.
        """
        self._in_memory.update(entries)

    @contextmanager
    def record_keys(self) -> Iterator[set[str]]:
        """Collect the keys that any thread gives to ``load_once`` inside the block."""
        keys: set[str] = set()
        self._key_recorders.append(keys)
        try:
            yield keys
        finally:
            self._key_recorders.remove(keys)

    def lookup(self, key: str) -> CacheEntry | None:
        """The entry of ``key`` in memory or in the folder; None if there is none."""
        return self._in_memory.get(key) or self._read(key)

    def load_once(self, key: str, load: Callable[[], Loaded]) -> Loaded:
        """Return the loaded object of ``key``, from the first ``load()`` that succeeds.

        Args:
            key: a key from ``cache_key``.
            load: loads the kernel; if it raises, the next call tries again. It must not request
                ``key`` itself, because it runs under the lock of the key.

        Returns:
            The same object for every call with ``key``.
        """
        for keys in self._key_recorders:
            keys.add(key)
        slot = self._slots.setdefault(key, _Slot())
        if not slot.ready:
            with slot.lock:
                if not slot.ready:
                    slot.value = load()
                    slot.ready = True
        return slot.value

    def loaded_keys(self, kind: type = object) -> list[str]:
        """The keys of all loaded objects of a class, in the order of first use."""
        slots = list(self._slots.items())
        return [key for key, slot in slots if slot.ready and isinstance(slot.value, kind)]

    def is_loaded(self, key: str) -> bool:
        """Whether ``once`` has a result for ``key``."""
        slot = self._slots.get(key)
        return slot is not None and slot.ready

    def is_stored(self, key: str) -> bool:
        """Whether there is an entry of ``key``; one in the folder may be damaged."""
        json_path = self.path(key, "json")
        return key in self._in_memory or (json_path is not None and json_path.exists())

    def get(self, key: str, build: Callable[[], CacheEntry]) -> CacheEntry:
        """The stored entry of ``key``; if there is none, build one and store it.

        Args:
            key: a key from ``cache_key``.
            build: builds the entry; its exceptions propagate. It runs without locks.

        Returns:
            The entry.
        """
        entry = self._prebuilt.pop(key, None)
        if entry is not None:
            return entry
        entry = self.lookup(key)
        if entry is not None:
            with self._lock:
                self.stats.loaded += 1
            return entry
        return self._build(key, build)

    def prebuild(self, key: str, build: Callable[[], CacheEntry]) -> None:
        """Build an entry and store it; the next ``get`` returns it without counting it as loaded.

        Until then the entry stays in memory.

        Args:
            key, build: as for ``get``.
        """
        self._prebuilt[key] = self._build(key, build)

    def _build(self, key: str, build: Callable[[], CacheEntry]) -> CacheEntry:
        """Build an entry, count and record the time, and write it."""
        start = clock()
        entry = build()
        seconds = (clock() - start) / 1e9
        if state.recording is not None:
            state.recording.add("builds", f"build {entry.entry}", start, {"key": key})
        with self._lock:
            self.stats.built += 1
            self.stats.build_seconds += seconds
        kernel_built()
        self._write(key, entry)
        return entry

    def reset_locks_after_fork(self) -> None:
        """Reset locks in a forked child, where their owners are gone; loaded code remains.

        Call it only while the child has one thread.
        """
        self._lock = threading.Lock()
        self._slots = {key: slot for key, slot in self._slots.items() if slot.ready}

    def rebuild(self, key: str, build: Callable[[], CacheEntry], error: Exception) -> CacheEntry:
        """Rebuild an entry that could not be loaded, and warn.

        Args:
            key: a key from ``cache_key``.
            build: builds the entry; its exceptions propagate.
            error: the reason, for the warning.

        Returns:
            The new entry.
        """
        self._warn(f"holds a kernel that does not load, {key[:12]} ({error})")
        self._in_memory.pop(key, None)
        return self._build(key, build)

    def path(self, key: str, suffix: str) -> Path | None:
        """The path of an entry's file, which may not exist."""
        if self.folder is None:
            return None
        return self.folder / key[:2] / f"{key}.{suffix}"

    def _read(self, key: str) -> CacheEntry | None:
        """Read an entry from the folder; None if it is missing or damaged."""
        json_path = self.path(key, "json")
        if json_path is None:
            return None
        try:
            text = read_private(json_path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"cannot be read ({error})")
            return None
        try:
            return self._parse(key, parse_json(text))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if not json_path.exists():
                return None  # another process has just deleted the entry
            self._warn(f"holds a damaged kernel {key[:12]} ({type(error).__name__}: {error})")
            return None

    def _parse(self, key: str, json_fields: dict[str, Any]) -> CacheEntry:
        """Build an entry from its json and its files; raises ValueError if the checksum differs.

        Nothing in ``json_fields`` is trusted: missing and wrong fields raise.
        """
        code_path, source_path = self.path(key, json_fields["suffix"]), self.path(key, "py")
        assert code_path is not None and source_path is not None
        code = read_private(code_path)
        if json_fields["checksum"] != _checksum(key, json_fields, code):
            raise ValueError("the checksum differs")
        try:
            source = read_private(source_path).decode()
        except FileNotFoundError:
            source = ""  # only for readers; the kernel runs without it
        return CacheEntry(
            code,
            str(json_fields["suffix"]),
            source,
            str(json_fields["entry"]),
            tuple(str(name) for name in json_fields["imports"]),
            dict(json_fields["info"]),
        )

    def _write(self, key: str, entry: CacheEntry) -> None:
        """Write an entry, the json last; without a folder, retain it in memory."""
        if self.folder is None:
            self._in_memory[key] = entry
            return
        json_fields: dict[str, Any] = {
            "entry": entry.entry,
            "imports": list(entry.imports),
            "info": entry.metadata,
            "suffix": entry.suffix,
        }
        json_fields["checksum"] = _checksum(key, json_fields, entry.code)
        contents = {
            entry.suffix: entry.code,
            "py": entry.source.encode(),
            "json": json.dumps(json_fields, indent=1).encode(),
        }
        try:
            for suffix, content in contents.items():
                path = self.path(key, suffix)
                assert path is not None
                replace_file(path, content)
            self._trim_if_due(sum(map(len, contents.values())))
        except OSError as error:
            self._warn(f"cannot be written ({error})")

    def _trim_if_due(self, written: int) -> None:
        """Trim the folder if the files written since the last check may exceed the limit."""
        if not self.limit or self.folder is None:
            return
        with self._lock:
            self._bytes_until_check -= written
            is_due = self._bytes_until_check < 0
        if is_due:
            free_bytes = self.limit - trim(self.folder, self.limit)
            self._bytes_until_check = max(free_bytes, self.limit // _CHECKS_PER_LIMIT)

    def _warn(self, problem: str) -> None:
        with self._lock:
            if self._warned:
                return
            self._warned = True
        warnings.warn(
            f"[cache] the kernel cache folder must be usable; {self.folder} {problem}. Kernels are "
            "built again. Fix: delete the folder or set GPUFLOW_CACHE_DIR to another.",
            CacheWarning,
            stacklevel=4,
        )


def _checksum(key: str, json_fields: dict[str, Any], code: bytes) -> str:
    """The checksum of an entry, including its key."""
    checksummed = [key, *(json_fields[name] for name in ("suffix", "entry", "imports", "info"))]
    digest = hashlib.sha256(json.dumps(checksummed, sort_keys=True).encode())
    digest.update(code)
    return digest.hexdigest()
