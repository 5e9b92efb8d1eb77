"""Kernels of an exported function: from the kernel cache, and into that of another process.

A file has the entries of the cache on disk, under the same keys. A reader with another processor,
version or setting has other keys, finds nothing and builds.

Tests: tests/test_export_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gpuflow.base.errors import CacheWarning
from gpuflow.base.util import warn
from gpuflow.compiler.cache.kernel_cache import CacheEntry
from gpuflow.compiler.cache.versions import version_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.runtime.device import default_device
from gpuflow.runtime.execute import Executable
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.host import HostProcessor, cached_processor, provide_processor
from gpuflow.targets.cpu.runtime.kernels import cache_key_inputs
from gpuflow.targets.cpu.runtime.native.object_code import LoadedModule

Built = dict[str, CacheEntry]
# The driver around kernels is the same for all sizes, so none is built for large arenas.
_MAX_MEMORY = 1 << 26


def built_kernels(programs: Iterable[tuple[ClosedJaxpr, tuple[int, ...]]]) -> Built:
    """All kernels that programs need on the default device, which are built if they are new.

    Args:
        programs: each with the positions of its donated inputs.

    Returns:
        Entries by key, those of the native runtime included.
    """
    cache = kernel_cache()
    with cache.record_keys() as keys:
        for program, donated in programs:
            flags = tuple(k in donated for k in range(len(program.in_avals)))
            compiled = Executable(program, flags).compiled(default_device())
            compiled.program.build()
            if compiled.plan.arena_bytes <= _MAX_MEMORY:
                compiled.program.driver_text()
    # Which runtime kernels are requested again depends on earlier programs of this process.
    keys.update(cache.loaded_keys(LoadedModule))
    found = {key: cache.lookup(key) for key in sorted(keys)}
    return {key: entry for key, entry in found.items() if entry is not None}


def kernels_record(kernels: Built) -> tuple[dict[str, Any], bytes]:
    """Kernels as JSON, and their code; with the processor that they are for."""
    table, code, offset = [], [], 0
    for key, entry in kernels.items():
        byte_range = [offset, len(entry.code)]
        table.append(
            [key, entry.suffix, entry.entry, list(entry.imports), entry.metadata, byte_range]
        )
        code.append(entry.code)
        offset += len(entry.code)
    processor = cached_processor()
    processor_record = None if processor is None else [processor[0], asdict(processor[1])]
    return {"built": _built_for(), "processor": processor_record, "table": table}, b"".join(code)


def give_kernels(record: dict[str, Any], code: memoryview) -> None:
    """Add the kernels of a file to the kernel cache of this process.

    Warns:
        CacheWarning: they were built for something else, and those that it concerns are not used.
    """
    if record["processor"] is not None:
        digest, fields = record["processor"]
        host = HostProcessor(fields["cpu"], fields["flags"], tuple(fields["features"]))
        provide_processor(digest, host)
    here, there = _built_for(), record["built"]
    differing = [name for name in here if here[name] != there.get(name)]
    if differing:
        what = "; ".join(f"{name}: {there.get(name)}, here {here[name]}" for name in differing)
        warn(
            "[export] kernels of an exported function are for one processor and version; got "
            f"others ({what[:400]}). They are built again from the program. "
            "Fix: export it again on a machine like this one.",
            CacheWarning,
        )
    entries = {}
    for key, suffix, entry, imports, info, (offset, length) in record["table"]:
        taken = bytes(code[offset : offset + length])
        entries[key] = CacheEntry(taken, suffix, "", entry, tuple(imports), info)
    kernel_cache().preload(entries)


def _built_for() -> dict[str, str]:
    """Text of the compatibility of kernels, for errors; ``cache_key_inputs`` has all of it."""
    _, compiler, llvmlite, target = cache_key_inputs()
    processor, flags, library = json.loads(target)
    return {
        "processor": processor,
        "features of the processor": flags,
        "functions of the C library": str(library),
        "printer of kernels": compiler[:16],
        "llvmlite": llvmlite,
        "numba-cuda": version_of("numba-cuda"),
    }
