"""Builds kernels for aarch64 on another machine, and looks at the code: tests/aarch64/run.sh.

    python cross.py LIBRARIES [KERNELS [EACH]]

LIBRARIES is a folder with aarch64's libc.so.6, libm.so.6 and libgcc_s.so.1, as Debian's packages
libc6-arm64-cross and libgcc-s1-arm64-cross have them. KERNELS is a kernel cache: of its printed
kernels every EACH-th is built, and all of the native runtime. Each build must succeed and call
nothing that those libraries lack; kernels with NEON's vectors are counted. The texts of kernels are
as printed for the machine that filled the cache; nothing is run.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Before gpuflow is imported, which decides by the machine.
platform.machine = lambda: "aarch64"

import llvmlite.binding as llvm  # noqa: E402

from gpuflow.targets.cpu.codegen import build, host, libm, machine_code  # noqa: E402
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source  # noqa: E402
from gpuflow.targets.cpu.codegen.loops.text import LoopSource  # noqa: E402
from gpuflow.targets.cpu.runtime.native import object_code  # noqa: E402

TRIPLE, PROCESSOR = "aarch64-linux-gnu", "neoverse-n1"  # Graviton 2; Grace has more
# Registers of NEON with several elements, as in "fadd v0.4s, v1.4s, v2.4s".
_NEON = re.compile(r"\bv\d+\.(?:16b|8h|4s|2d)\b")


def symbols_of(library: Path) -> set[str]:
    """The names in the dynamic symbol table of a 64-bit ELF file."""
    data = library.read_bytes()
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + k * size) for k in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for place in range(section[4], section[4] + section[5], 24):
            name, _, _, defined = struct.unpack_from("<IBBH", data, place)
            if defined:
                begin = strings + name
                names.add(data[begin : data.index(b"\0", begin)].decode())
    return names


def pretend(libraries: Path) -> None:
    """Let this process build for aarch64, and find the functions of its libraries."""
    tables = {path.name: symbols_of(path) for path in libraries.glob("lib*.so*") if path.is_file()}

    def library(*names: str) -> set[str] | None:
        return next((tables[name] for name in names if name in tables), None)

    def machine() -> llvm.TargetMachine:
        return llvm.Target.from_triple(TRIPLE).create_target_machine(
            cpu=PROCESSOR, opt=1, reloc="default", codemodel="jitdefault", jit=True
        )

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine_code.host_machine = machine
    host._query_llvm = lambda: host.HostProcessor(PROCESSOR, "", ("neon", "fp-armv8"))
    libm._library = library
    libm._process = lambda: library("libc.so.6")
    libm._address = lambda table, symbol: 1 if table and symbol in table else None


def sources(folder: Path, each: int) -> Iterator[tuple[LoopSource, Path]]:
    """Printed kernels of a cache, and the file of what was built for this machine."""
    images = sorted(path for suffix in ("image", "o") for path in folder.glob(f"??/*.{suffix}"))
    for path in images[::each]:
        entry = json.loads(path.with_suffix(".json").read_text())["entry"]
        if entry != "native":
            yield parsed_source(path.with_suffix(".py").read_text(), entry), path


def native_modules() -> Iterator[object_code.NativeModule]:
    """All of the native runtime."""
    yield object_code.core_module()
    for name in object_code._ON_DEMAND:
        yield object_code.module_defining(f"gf_{name}")
    for letter in object_code._BLAS_SCALARS:
        yield object_code.product_module(letter)
        yield object_code.vector_product_module(letter)
    for count in ("1", "2", "4", "8", "16"):
        yield object_code.strided_module(count)
    for letter in object_code._CONVOLUTION_TYPES:
        yield object_code.convolution_module(letter)


def undefined(code: bytes) -> set[str]:
    """The names that an object file asks the linker for, helpers of the compiler included."""
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + k * size) for k in range(count)]
    names = set()
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        strings = sections[section[6]][4]
        for place in range(section[4] + 24, section[4] + section[5], 24):
            name, _, _, defined = struct.unpack_from("<IBBH", code, place)
            if not defined:
                begin = strings + name
                names.add(code[begin : code.index(b"\0", begin)].decode())
    return names


def machine_of(code: bytes) -> int:
    """The machine of an ELF file; 183 is aarch64."""
    return struct.unpack_from("<H", code, 18)[0]


def main() -> int:
    """Build, and print what was seen; the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("libraries", type=Path)
    parser.add_argument("kernels", type=Path, nargs="?")
    parser.add_argument("each", type=int, nargs="?", default=1)
    arguments = parser.parse_args()
    pretend(arguments.libraries)
    seen: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    failures: list[str] = []

    def look(name: str, code: bytes, known: set[str]) -> None:
        if machine_of(code) != 183:
            failures.append(f"{name}: no code for aarch64")
        for symbol in undefined(code) - known:
            seen["calls"] += 1
            if libm.resolve(symbol) is None:
                missing[symbol] += 1

    for module in native_modules():
        built = machine_code.compile_ir(module.text, module.level)
        seen["native modules"] += 1
        look(str(module.symbols), built.code, set(module.imports))
    kernels = sources(arguments.kernels, arguments.each) if arguments.kernels else ()
    for source, path in kernels:
        seen["kernels"] += 1
        try:
            built = build.build_cpu(source)
            text = build.assembly(source)
        except Exception as error:
            failures.append(f"{path.name} {source.entry}: {type(error).__name__}: {error}")
            continue
        seen["with NEON"] += bool(_NEON.search(text))
        seen["no instruction on vectors"] += not _NEON.search(text)
        look(path.name, built.code, {"gf_interrupted"})
    print(*[f"{count:6} {what}" for what, count in sorted(seen.items())], sep="\n")
    print(*[f"missing: {name} ({count} calls)" for name, count in missing.items()], sep="\n")
    print(*failures[:20], sep="\n")
    return len(failures) + len(missing)


if __name__ == "__main__":
    sys.exit(min(main(), 100))
