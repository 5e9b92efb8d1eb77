"""LLVM's description of the processor of this machine, cached in the cache folder.

Loading LLVM to query it takes 40 MB and 20 ms. Its answer depends only on the results of the
instructions CPUID and XGETBV. A digest of these names a small file with the answer, so that
machines with different processors can share the folder.

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
# Bytes of address space. LLVM's library takes 155 MB, and each of the first threads that allocate
# 64 MB. A small program with products and Fourier transforms took 540 MB in all.
_ADDRESS_SPACE = 640 << 20
_SAVES_STATE = 1 << 27  # bit of leaf 1's ecx (OSXSAVE): XGETBV is available
# Leaf, subleaf, and the registers of eax, ebx, ecx and edx that are the same for all cores.
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
        cpu: its name in LLVM.
        flags: LLVM's feature flags, ``+`` for present and ``-`` for missing ones.
        features: names of the features that are present.
    """

    cpu: str
    flags: str
    features: tuple[str, ...]


@cache
def host_processor() -> HostProcessor:
    """The processor of this machine. LLVM is queried once per cache folder and processor."""
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
    """Check for address space before LLVM is loaded. Without enough, LLVM ends the process.

    Raises:
        MemoryError: if a limit on address space leaves too little.
    """
    if "llvmlite.binding" not in sys.modules:
        require_address_space(_ADDRESS_SPACE, "building kernels with LLVM")


_provided: dict[str, HostProcessor] = {}


def cached_processor() -> tuple[str, HostProcessor] | None:
    """The digest of the processor's registers, and the processor; None if it cannot be cached."""
    path = _path()
    return None if path is None else (path.stem, host_processor())


def provide_processor(digest: str, processor: HostProcessor) -> None:
    """Let ``host_processor`` return this description if the machine has that digest."""
    _provided[digest] = processor


def _ask() -> HostProcessor:
    ensure_room()
    features = llvm.get_host_cpu_features()
    present = tuple(sorted(name for name, is_present in features.items() if is_present))
    return HostProcessor(llvm.get_host_cpu_name(), features.flatten(), present)


def _path() -> Path | None:
    """The file of this processor; None without a cache folder, or if CPUID cannot run."""
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
    """Read CPUID and XGETBV, without registers that differ between cores.

    Raises:
        OSError: if the system does not allow executable memory.
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
        # CPUID of a leaf above the highest returns another leaf's data.
        if leaf <= highest[leaf & 0x80000000]:
            values = ask(cpuid, leaf, subleaf)
            registers.append([leaf, subleaf, *(values["abcd".index(name)] for name in names)])
    if ask(cpuid, 1, 0)[2] & _SAVES_STATE:
        registers.append(list(ask(xgetbv, 0, 0)[:2]))
    del memory
    return registers


def _read(path: Path) -> HostProcessor | None:
    """Read a processor from a file; None if the file is missing or damaged."""
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
