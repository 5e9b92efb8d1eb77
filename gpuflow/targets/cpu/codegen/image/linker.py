"""Static linker: LLVM's object file to a kernel image (``loader``), for ELF on x86-64.

The object must be position-independent code of the small code model. It addresses functions,
constants and data relative to the instruction, so a fixed layout resolves nearly all relocations at
build time. A call of an imported function goes through a stub, which jumps to the address in a slot
of the image (as a PLT and GOT). The loader fills in the slots.

All other features raise ``Unsupported``; the cache then stores the object file, and LLVM links it.

Source: System V ABI, AMD64 supplement, 4.2 to 4.4.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gpuflow.targets.cpu.codegen.image.elf import (
    ALLOCATED,
    BITS,
    COMMON,
    EXECUTABLE,
    GLOBAL,
    LOCAL,
    NOTE,
    RELOCATIONS,
    RESERVED,
    THREAD_LOCAL,
    UNWIND,
    WRITE,
    ZEROS,
    Relocation,
    Section,
    Symbol,
    Unsupported,
    relocations_of,
    sections_of,
    symbols_of,
)
from gpuflow.targets.cpu.codegen.image.loader import PAGE, Image

# R_X86_64_NONE, 64, PC32, PLT32, PC64.
_NONE, _ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 0, 1, 2, 4, 24
_SLOT_32 = (9, 41, 42)  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX: offset of a slot with the address

_STUB = b"\xff\x25"  # jmp *offset(%rip)
_STUB_BYTES, _SLOT_BYTES = 8, 8
_MOST_BYTES = 1 << 28


def image_of(code: bytes, symbols: Sequence[str]) -> Image:
    """Link an object file to an image.

    Args:
        code: a relocatable object file.
        symbols: the functions that the image exports.

    Raises:
        Unsupported: if only LLVM can link it.
    """
    try:
        sections = sections_of(code)
        return _Layout(sections, symbols_of(sections), symbols).image()
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise Unsupported(f"a damaged object file: {error}") from error


class _Layout:
    """Lays out the sections, then resolves the relocations.

    Attributes:
        block: contents of the image.
        size: bytes of the image in memory.
        starts: offsets of loaded sections, by index.
        commons: offsets of COMMON symbols, by index.
        stubs, slots: offsets of stubs and slots, by symbol index.
        imports: offsets of the slots for each imported name.
        fixups: offsets of the slots to which the loader adds the image's address.
    """

    def __init__(
        self, sections: Sequence[Section], symbols: Sequence[Symbol], requested: Sequence[str]
    ) -> None:
        self.sections, self.symbols, self.requested = sections, symbols, requested
        self.block = bytearray()
        self.size = 0
        self.starts: dict[int, int] = {}
        self.commons: dict[int, int] = {}
        self.stubs: dict[int, int] = {}
        self.slots: dict[int, int] = {}
        self.imports: dict[str, list[int]] = {}
        self.fixups: list[int] = []

    def image(self) -> Image:
        relocations = self._relocations()
        self._lay_out()
        called = {r.symbol for r in relocations if r.kind == _CALL_32 and self._is_import(r)}
        self._reserve(called, called | {r.symbol for r in relocations if r.kind in _SLOT_32})
        read_only = self._lay_out_data()
        for relocation in relocations:
            self._relocate(relocation)
        for number, offset in self.slots.items():
            self._write_slot(offset, number, 0)
        for number, offset in self.stubs.items():
            self.block[offset : offset + len(_STUB)] = _STUB
            after = offset + len(_STUB)
            self._write_32(after, self.slots[number] - (after + 4))
        entries = {name: self._entry(name) for name in self.requested}
        return Image(
            bytes(self.block), self.size, read_only, entries, self.imports, sorted(self.fixups)
        )

    def _relocations(self) -> list[Relocation]:
        """Relocations of loaded sections."""
        tables = [section for section in self.sections if section.kind == RELOCATIONS]
        loaded = [table for table in tables if self._is_loaded(self.sections[table.info])]
        return [relocation for table in loaded for relocation in relocations_of(table)]

    def _is_import(self, relocation: Relocation) -> bool:
        return self.symbols[relocation.symbol].is_elsewhere

    def _is_loaded(self, section: Section) -> bool:
        """Whether a section is loaded. Unwind tables are not: kernels throw no exceptions."""
        if not section.flags & ALLOCATED or section.kind in (NOTE, UNWIND):
            return False
        if section.name == ".eh_frame":
            return False
        if section.kind not in (BITS, ZEROS) or section.flags & THREAD_LOCAL:
            raise Unsupported(f"section {section.name} in memory")
        if section.align & (section.align - 1) or section.align > PAGE:
            raise Unsupported(f"section {section.name} at multiples of {section.align}")
        if section.flags & WRITE and section.flags & EXECUTABLE:
            raise Unsupported(f"section {section.name} is writable code")
        return True

    def _lay_out(self) -> None:
        """Assign offsets to code, then to constants.

        The loader writes addresses in constants before it makes them read-only.
        """
        loaded = [(k, s) for k, s in enumerate(self.sections) if self._is_loaded(s)]
        code = [(k, s) for k, s in loaded if s.flags & EXECUTABLE]
        constants = [(k, s) for k, s in loaded if not s.flags & EXECUTABLE and not _is_data(s)]
        for number, section in code + constants:
            self._append(number, section)

    def _append(self, number: int, section: Section) -> None:
        self.starts[number] = start = self._allocate(section.size, section.align)
        if section.kind == BITS:
            self.block += bytes(start - len(self.block))
            self.block += section.content

    def _allocate(self, count: int, align: int) -> int:
        start = -(-self.size // align) * align
        self.size = start + count
        if self.size > _MOST_BYTES:
            raise Unsupported(f"{self.size} bytes")
        return start

    def _reserve(self, stubs: set[int], slots: set[int]) -> None:
        """Reserve stubs and slots, by symbol: two symbols with one name have separate ones."""
        for number in sorted(stubs):
            self.stubs[number] = self._allocate(_STUB_BYTES, _STUB_BYTES)
        for number in sorted(slots):
            self.slots[number] = self._allocate(_SLOT_BYTES, _SLOT_BYTES)
        self.block += bytes(self.size - len(self.block))

    def _lay_out_data(self) -> int:
        """Assign offsets to data and zeros, on separate pages; returns the bytes before them."""
        data = [(k, s) for k, s in enumerate(self.sections) if self._is_loaded(s) and _is_data(s)]
        commons = [(k, s) for k, s in enumerate(self.symbols) if s.section in COMMON]
        end = self.size
        if not data and not commons:
            return end
        start = self._allocate(0, PAGE)
        for number, section in sorted(data, key=lambda item: item[1].kind == ZEROS):
            self._append(number, section)
        for number, symbol in commons:
            # The value of a COMMON symbol is its alignment.
            self.commons[number] = self._allocate(symbol.size, max(symbol.value, 1))
        if self.size == start:
            self.size = end
            return end
        return start

    # --- resolving -----------------------------------------------------------------------------

    def _relocate(self, relocation: Relocation) -> None:
        kind, number, addend = relocation.kind, relocation.symbol, relocation.addend
        offset = self.starts[relocation.section] + relocation.offset
        if kind == _NONE:
            return
        if kind == _ABSOLUTE_64:
            self._write_slot(offset, number, addend)
        elif kind in _SLOT_32:
            self._write_32(offset, self.slots[number] + addend - offset)
        elif kind == _CALL_32 and self._is_import(relocation):
            self._write_32(offset, self.stubs[number] + addend - offset)
        elif kind in (_RELATIVE_32, _CALL_32):
            self._write_32(offset, self._value(number) + addend - offset)
        elif kind == _RELATIVE_64:
            self._write(offset, "<q", self._value(number) + addend - offset)
        else:
            raise Unsupported(f"relocation of kind {kind}")

    def _value(self, number: int) -> int:
        """The offset of a symbol in the image."""
        symbol = self.symbols[number]
        if symbol.section in COMMON:
            return self.commons[number]
        if symbol.section >= RESERVED or symbol.section not in self.starts:
            raise Unsupported(f"symbol {symbol.name!r} is not in memory")
        return self.starts[symbol.section] + symbol.value

    def _write_slot(self, offset: int, number: int, addend: int) -> None:
        """Initialize a slot, and record which address the loader adds to it."""
        symbol = self.symbols[number]
        if not symbol.is_elsewhere:
            self._write(offset, "<q", self._value(number) + addend)
            self.fixups.append(offset)
            return
        if symbol.binding != GLOBAL or not symbol.name:
            raise Unsupported(f"symbol {symbol.name!r} need not be anywhere")
        self._write(offset, "<q", addend)
        self.imports.setdefault(symbol.name, []).append(offset)

    def _write_32(self, offset: int, value: int) -> None:
        self._write(offset, "<i", value)

    def _write(self, offset: int, format_: str, value: int) -> None:
        if offset + struct.calcsize(format_) > len(self.block):
            raise Unsupported("a relocation is outside of its section")
        struct.pack_into(format_, self.block, offset, value)

    def _entry(self, name: str) -> int:
        for number, symbol in enumerate(self.symbols):
            if symbol.name == name and symbol.binding != LOCAL and not symbol.is_elsewhere:
                return self._value(number)
        raise Unsupported(f"no symbol {name}")


def _is_data(section: Section) -> bool:
    """Whether code may write to a section; ``.data.rel.ro`` is read-only after relocation."""
    return bool(section.flags & WRITE) and not section.name.startswith(".data.rel.ro")
