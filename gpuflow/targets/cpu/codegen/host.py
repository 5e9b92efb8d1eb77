"""LLVM's description of the processor of this machine, cached in the cache folder.

Loading LLVM to query it takes 40 MB and 20 ms. Its answer depends only on the results of the
instructions CPUID and XGETBV. A digest of these names a small file with the answer, so that
machines with different processors can share the folder.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID and XGETBV.

Tests: tests/targets/cpu/test_cpu_host.py.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

# Functions ``void f(uint32 registers[4])`` of the System V calling convention. CPUID reads leaf and
# subleaf from elements 0 and 1, and writes eax, ebx, ecx and edx; XGETBV writes eax and edx.
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
_LLVM_ADDRESS_SPACE = 640 << 20
_OSXSAVE = 1 << 27  # bit of leaf 1's ecx (OSXSAVE): XGETBV is available


class _Leaf(NamedTuple):
    """A query of CPUID.

    Attributes:
        leaf, subleaf: inputs of the instruction, in eax and ecx.
        registers: letters of the results among eax, ebx, ecx and edx that are the same for all
            cores, so that the digest does not depend on the core.
    """

    leaf: int
    subleaf: int
    registers: str


_LEAVES = (
    _Leaf(0x0, 0, "abcd"),
    _Leaf(0x1, 0, "acd"),
    _Leaf(0x7, 0, "abcd"),
    _Leaf(0x7, 1, "abcd"),
    _Leaf(0x7, 2, "abcd"),
    _Leaf(0xD, 1, "a"),
    _Leaf(0x14, 0, "b"),
    _Leaf(0x19, 0, "b"),
    _Leaf(0x1E, 1, "a"),
    _Leaf(0x24, 0, "b"),
    _Leaf(0x80000000, 0, "abcd"),
    _Leaf(0x80000001, 0, "acd"),
    _Leaf(0x80000008, 0, "b"),
    _Leaf(0x80000021, 0, "a"),
)


@record
class HostProcessor:
    """A processor as LLVM describes it.

    Attributes:
        cpu: its name in LLVM.
        flags: LLVM's feature flags, separated by commas: ``+`` for present, ``-`` for missing ones.
        features: names of the features that are present, sorted.
    """

    cpu: str
    flags: str
    features: tuple[str, ...]


@cache
def host_processor() -> HostProcessor:
    """The processor of this machine. LLVM is queried once per cache folder and processor."""
    file = _cache_file()
    if file is None:
        return undisturbed(_query_llvm)
    processor = _processors_by_digest.get(file.stem) or _read_processor(file)
    if processor is None:
        processor = undisturbed(_query_llvm)
        with suppress(OSError):
            _write_processor(file, processor)
    return processor


def require_llvm_memory() -> None:
    """Check for address space before LLVM is loaded. Without enough, LLVM ends the process.

    Raises:
        MemoryError: if a limit on address space leaves too little.
    """
    if "llvmlite.binding" not in sys.modules:
        require_address_space(_LLVM_ADDRESS_SPACE, "building kernels with LLVM")


_processors_by_digest: dict[str, HostProcessor] = {}  # from exported functions


def cached_processor() -> tuple[str, HostProcessor] | None:
    """The digest of the processor's registers, and the processor; None if it cannot be cached."""
    file = _cache_file()
    return None if file is None else (file.stem, host_processor())


def provide_processor(digest: str, processor: HostProcessor) -> None:
    """Let ``host_processor`` return this description if the machine has that digest.

    It has no effect after the first call of ``host_processor``, whose result is cached.
    """
    _processors_by_digest[digest] = processor


def _query_llvm() -> HostProcessor:
    require_llvm_memory()
    features = llvm.get_host_cpu_features()
    present = tuple(sorted(name for name, is_present in features.items() if is_present))
    return HostProcessor(llvm.get_host_cpu_name(), features.flatten(), present)


def _cache_file() -> Path | None:
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

    def query(function: Any, leaf: int, subleaf: int) -> tuple[int, ...]:
        """The registers eax, ebx, ecx and edx after an instruction."""
        registers = (ctypes.c_uint32 * 4)(leaf, subleaf, 0, 0)
        function(ctypes.addressof(registers))
        return tuple(registers)

    highest = {base: query(cpuid, base, 0)[0] for base in (0, 0x80000000)}
    registers = []
    for leaf, subleaf, letters in _LEAVES:
        # CPUID of a leaf above the highest returns another leaf's data.
        if leaf <= highest[leaf & 0x80000000]:
            values = query(cpuid, leaf, subleaf)
            registers.append([leaf, subleaf, *(values["abcd".index(letter)] for letter in letters)])
    if query(cpuid, 1, 0)[2] & _OSXSAVE:
        registers.append(list(query(xgetbv, 0, 0)[:2]))
    del memory
    return registers


def _read_processor(file: Path) -> HostProcessor | None:
    """Read a processor from a file; None if the file is missing or damaged."""
    try:
        contents = parse_json(read_private(file))
        checksum, fields = contents["checksum"], contents["processor"]
        if checksum != _checksum(fields):
            return None
        return HostProcessor(fields["cpu"], fields["flags"], tuple(fields["features"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_processor(file: Path, processor: HostProcessor) -> None:
    fields = asdict(processor)
    contents = {"processor": fields, "checksum": _checksum(fields)}
    replace_file(file, json.dumps(contents, indent=1).encode())


def _checksum(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
