"""LLVM's description of the processor of this machine, cached in the cache folder.

To query LLVM, it must be loaded: 40 MB and 20 ms, for an answer that follows from the registers of
the instructions CPUID and XGETBV. A digest of them names a small file with the answer, so that
machines that share the folder find their own.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID and XGETBV.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuflow.base.address_space import require_address_space
from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.private_files import parse_json, read_private, replace_file
from gpuflow.base.records import record
from gpuflow.base.undisturbed import undisturbed
from gpuflow.compiler.cache.folder import cache_folder
from gpuflow.compiler.cache.versions import version_of
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES, PAGE, Image, load_image

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")

# push rbx; mov eax, [rdi]; mov ecx, [rdi + 4]; cpuid; mov [rdi], eax; mov [rdi + 4], ebx;
# mov [rdi + 8], ecx; mov [rdi + 12], edx; pop rbx; ret
_CPUID = bytes.fromhex("53 8b07 8b4f04 0fa2 8907 895f04 894f08 89570c 5b c3")
# xor ecx, ecx; xgetbv; mov [rdi], eax; mov [rdi + 4], edx; ret
_XGETBV = bytes.fromhex("31c9 0f01d0 8907 895704 c3")
_PROBE = Image(
    _CPUID + _XGETBV, PAGE, PAGE, {"cpuid": 0, "xgetbv": len(_CPUID)}, imports={}, fixups=()
)
# Bytes of address space: LLVM's library takes 155 MB, each of the first threads that allocate 64,
# and a small program with products and Fourier transforms took 540 in all.
_ROOM = 640 << 20
_SAVES_STATE = 1 << 27  # of leaf 1's ecx: XGETBV is available
# Leaf, subleaf, and which of eax, ebx, ecx and edx count: the others depend on the core.
_LEAVES = (
    (0x0, 0, "abcd"),
    (0x1, 0, "acd"),
    (0x7, 0, "abcd"),
    (0x7, 1, "abcd"),
    (0x7, 2, "abcd"),
    (0xD, 1, "a"),
    (0x14, 0, "b"),
    (0x19, 0, "b"),
    (0x1E, 1, "a"),
    (0x24, 0, "b"),
    (0x80000000, 0, "abcd"),
    (0x80000001, 0, "acd"),
    (0x80000008, 0, "b"),
    (0x80000021, 0, "a"),
)


@record
class HostProcessor:
    """A processor as LLVM describes it.

    Attributes:
        cpu: its name.
        flags: its features in LLVM's form, present and missing.
        features: its features.
    """

    cpu: str
    flags: str
    features: tuple[str, ...]


@cache
def host_processor() -> HostProcessor:
    """The processor of this machine; LLVM is queried once for each kind and cache folder."""
    path = _path()
    if path is None:
        return undisturbed(_ask)
    processor = _provided.get(path.stem) or _read(path)
    if processor is None:
        processor = undisturbed(_ask)
        with suppress(OSError):
            _write(path, processor)
    return processor


def ensure_room() -> None:
    """Check for memory before LLVM is loaded: without memory, LLVM ends the process.

    Raises:
        MemoryError: if a limit of the address space leaves too little.
    """
    if "llvmlite.binding" not in sys.modules:
        require_address_space(_ROOM, "building kernels with LLVM")


_provided: dict[str, HostProcessor] = {}


def cached_processor() -> tuple[str, HostProcessor] | None:
    """The processor and the digest of its registers; None if nothing can be cached."""
    path = _path()
    return None if path is None else (path.stem, host_processor())


def provide_processor(digest: str, processor: HostProcessor) -> None:
    """Give ``host_processor`` LLVM's description, if this machine has that digest."""
    _provided[digest] = processor


def _ask() -> HostProcessor:
    ensure_room()
    features = llvm.get_host_cpu_features()
    present = tuple(sorted(name for name, is_present in features.items() if is_present))
    return HostProcessor(llvm.get_host_cpu_name(), features.flatten(), present)


def _path() -> Path | None:
    """The file of this kind of processor; None if nothing can be cached."""
    folder = cache_folder()
    if folder is None or not HAS_IMAGES:
        return None
    try:
        registers = processor_registers()
    except OSError:
        return None
    text = json.dumps([registers, version_of("llvmlite")])
    return folder / "processors" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def processor_registers() -> list[list[int]]:
    """CPUID and XGETBV registers, without bits that differ between cores.

    Raises:
        OSError: the system lets no code into memory.
    """
    memory, addresses = load_image(_PROBE, ("cpuid", "xgetbv"), lambda name: None)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    cpuid, xgetbv = (prototype(addresses[name]) for name in ("cpuid", "xgetbv"))

    def ask(function: Any, leaf: int, subleaf: int) -> tuple[int, ...]:
        registers = (ctypes.c_uint32 * 4)(leaf, subleaf, 0, 0)
        function(ctypes.addressof(registers))
        return tuple(registers)

    highest = {base: ask(cpuid, base, 0)[0] for base in (0, 0x80000000)}
    registers = []
    for leaf, subleaf, names in _LEAVES:
        # A missing leaf would repeat another one.
        if leaf <= highest[leaf & 0x80000000]:
            values = ask(cpuid, leaf, subleaf)
            registers.append([leaf, subleaf, *(values["abcd".index(name)] for name in names)])
    if ask(cpuid, 1, 0)[2] & _SAVES_STATE:
        registers.append(list(ask(xgetbv, 0, 0)[:2]))
    del memory
    return registers


def _read(path: Path) -> HostProcessor | None:
    """The contents of a file; None if it is missing or damaged."""
    try:
        record = parse_json(read_private(path))
        checksum, values = record["checksum"], record["processor"]
        if checksum != _checksum(values):
            return None
        return HostProcessor(values["cpu"], values["flags"], tuple(values["features"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, processor: HostProcessor) -> None:
    values = asdict(processor)
    record = {"processor": values, "checksum": _checksum(values)}
    replace_file(path, json.dumps(record, indent=1).encode())


def _checksum(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
