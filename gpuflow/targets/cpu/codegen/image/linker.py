"""Static linker: LLVM's object file to a kernel image (``loader``), for ELF on x86-64.

The object must be position-independent code of the small code model. It addresses functions,
constants and data relative to the instruction, so a fixed layout resolves nearly all relocations at
build time. A call of an imported function goes through a stub, which jumps to the address in a slot
of the image (as a PLT and GOT). The loader fills in the slots.

All other features raise ``UnsupportedObject``; the cache then stores the object file, and LLVM
links it. A feature must raise unless its semantics are implemented here: a wrong address would
crash the process that loads the image.

Source: System V ABI, AMD64 supplement, 4.2 to 4.4.

Tests: tests/targets/cpu/test_cpu_image.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gpuflow.targets.cpu.codegen.image.elf import (
    ALLOCATED,
    COMMON_INDICES,
    EXECUTABLE,
    FIRST_RESERVED,
    GLOBAL,
    LOCAL,
    NOBITS,
    NOTE,
    PROGBITS,
    RELA,
    THREAD_LOCAL,
    WRITE,
    X86_64_UNWIND,
    Relocation,
    Section,
    Symbol,
    UnsupportedObject,
    relocations_of,
    sections_of,
    symbols_of,
)
from gpuflow.targets.cpu.codegen.image.loader import PAGE, Image

# R_X86_64_NONE, 64, PC32, PLT32, PC64.
_R_NONE, _R_ABSOLUTE_64, _R_RELATIVE_32, _R_CALL_32, _R_RELATIVE_64 = 0, 1, 2, 4, 24
_R_SLOT_32 = (9, 41, 42)  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX: offset of a slot with the address

_STUB = b"\xff\x25"  # jmp *offset(%rip)
_STUB_BYTES, _SLOT_BYTES = 8, 8
_MAX_IMAGE = 1 << 28  # bytes; relative offsets are signed 32-bit integers


def link_image(code: bytes, symbols: Sequence[str]) -> Image:
    """Link an object file to an image.

    Args:
        code: a relocatable object file.
        symbols: the functions that the image exports.

    Raises:
        UnsupportedObject: if only LLVM can link it.
    """
    try:
        sections = sections_of(code)
        return _Layout(sections, symbols_of(sections), symbols).image()
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise UnsupportedObject(f"a damaged object file: {error}") from error


class _Layout:
    """Lays out the sections, then resolves the relocations. ``image`` may be called once.

    All offsets are in bytes from the start of the image.

    Attributes:
        sections, symbols: contents of the object file, by index.
        requested: names of the functions that the image exports.
        block: initial contents of the image, without its last zeros.
        size: bytes of the image in memory.
        section_offsets: offsets of loaded sections, by section index.
        common_offsets: offsets of symbols in COMMON_INDICES, by symbol index.
        stub_offsets, slot_offsets: offsets of stubs and slots, by symbol index. Each stub has a
            slot.
        imports: offsets of the slots for each imported name.
        fixups: offsets of the slots to which the loader adds the image's address.
    """

    def __init__(
        self, sections: Sequence[Section], symbols: Sequence[Symbol], requested: Sequence[str]
    ) -> None:
        self.sections, self.symbols, self.requested = sections, symbols, requested
        self.block = bytearray()
        self.size = 0
        self.section_offsets: dict[int, int] = {}
        self.common_offsets: dict[int, int] = {}
        self.stub_offsets: dict[int, int] = {}
        self.slot_offsets: dict[int, int] = {}
        self.imports: dict[str, list[int]] = {}
        self.fixups: list[int] = []

    def image(self) -> Image:
        relocations = self._relocations()
        self._lay_out_read_only()
        called = {r.symbol for r in relocations if r.kind == _R_CALL_32 and self._is_import(r)}
        addressed = {r.symbol for r in relocations if r.kind in _R_SLOT_32}
        self._reserve_stubs_and_slots(called, called | addressed)
        read_only = self._lay_out_data()
        for relocation in relocations:
            self._relocate(relocation)
        for symbol_index, offset in self.slot_offsets.items():
            self._write_slot(offset, symbol_index, 0)
        for symbol_index, offset in self.stub_offsets.items():
            self.block[offset : offset + len(_STUB)] = _STUB
            next_field = offset + len(_STUB)
            self._write_32(next_field, self.slot_offsets[symbol_index] - (next_field + 4))
        entries = {name: self._entry_offset(name) for name in self.requested}
        return Image(
            bytes(self.block), self.size, read_only, entries, self.imports, sorted(self.fixups)
        )

    def _relocations(self) -> list[Relocation]:
        """Relocations of loaded sections."""
        tables = [section for section in self.sections if section.kind == RELA]
        loaded = [table for table in tables if self._is_loaded(self.sections[table.info])]
        return [relocation for table in loaded for relocation in relocations_of(table)]

    def _is_import(self, relocation: Relocation) -> bool:
        return self.symbols[relocation.symbol].is_undefined

    def _is_loaded(self, section: Section) -> bool:
        """Whether a section is loaded. Unwind tables are not: kernels throw no exceptions."""
        if not section.flags & ALLOCATED or section.kind in (NOTE, X86_64_UNWIND):
            return False
        if section.name == ".eh_frame":
            return False
        if section.kind not in (PROGBITS, NOBITS) or section.flags & THREAD_LOCAL:
            raise UnsupportedObject(f"section {section.name} in memory")
        if section.align & (section.align - 1) or section.align > PAGE:
            raise UnsupportedObject(f"section {section.name} at multiples of {section.align}")
        if section.flags & WRITE and section.flags & EXECUTABLE:
            raise UnsupportedObject(f"section {section.name} is writable code")
        return True

    def _lay_out_read_only(self) -> None:
        """Assign offsets to code, then to constants.

        The loader writes addresses in constants before it makes them read-only.
        """
        loaded = [(k, s) for k, s in enumerate(self.sections) if self._is_loaded(s)]
        code = [(k, s) for k, s in loaded if s.flags & EXECUTABLE]
        constants = [(k, s) for k, s in loaded if not s.flags & EXECUTABLE and not _is_data(s)]
        for section_index, section in code + constants:
            self._append_section(section_index, section)

    def _append_section(self, section_index: int, section: Section) -> None:
        """Allocate a section, and copy its contents to the block, after padding."""
        self.section_offsets[section_index] = start = self._allocate(section.size, section.align)
        if section.kind == PROGBITS:
            self.block += bytes(start - len(self.block))
            self.block += section.content

    def _allocate(self, count: int, align: int) -> int:
        """Reserve ``count`` bytes at the end of the image; returns their aligned offset."""
        start = -(-self.size // align) * align
        self.size = start + count
        if self.size > _MAX_IMAGE:
            raise UnsupportedObject(f"{self.size} bytes")
        return start

    def _reserve_stubs_and_slots(self, stub_symbols: set[int], slot_symbols: set[int]) -> None:
        """Reserve stubs and slots, by symbol: two symbols with one name have separate ones."""
        for symbol_index in sorted(stub_symbols):
            self.stub_offsets[symbol_index] = self._allocate(_STUB_BYTES, _STUB_BYTES)
        for symbol_index in sorted(slot_symbols):
            self.slot_offsets[symbol_index] = self._allocate(_SLOT_BYTES, _SLOT_BYTES)
        self.block += bytes(self.size - len(self.block))

    def _lay_out_data(self) -> int:
        """Assign offsets to data and zeros, on separate pages; returns the bytes before them.

        Those bytes become read-only: a multiple of pages, or the whole image if there is no data.
        """
        data = [(k, s) for k, s in enumerate(self.sections) if self._is_loaded(s) and _is_data(s)]
        commons = [(k, s) for k, s in enumerate(self.symbols) if s.section in COMMON_INDICES]
        end = self.size
        if not data and not commons:
            return end
        start = self._allocate(0, PAGE)
        for number, section in sorted(data, key=lambda item: item[1].kind == NOBITS):
            self._append_section(number, section)
        for number, symbol in commons:
            # The value of a COMMON symbol is its alignment.
            self.common_offsets[number] = self._allocate(symbol.size, max(symbol.value, 1))
        if self.size == start:
            self.size = end
            return end
        return start

    # --- resolving -----------------------------------------------------------------------------

    def _relocate(self, relocation: Relocation) -> None:
        """Write the field of a relocation. Relative fields are relative to their own offset."""
        kind, symbol_index, addend = relocation.kind, relocation.symbol, relocation.addend
        offset = self.section_offsets[relocation.section] + relocation.offset
        if kind == _R_NONE:
            return
        if kind == _R_ABSOLUTE_64:
            self._write_slot(offset, symbol_index, addend)
        elif kind in _R_SLOT_32:
            self._write_32(offset, self.slot_offsets[symbol_index] + addend - offset)
        elif kind == _R_CALL_32 and self._is_import(relocation):
            self._write_32(offset, self.stub_offsets[symbol_index] + addend - offset)
        elif kind in (_R_RELATIVE_32, _R_CALL_32):
            self._write_32(offset, self._symbol_offset(symbol_index) + addend - offset)
        elif kind == _R_RELATIVE_64:
            self._write(offset, "<q", self._symbol_offset(symbol_index) + addend - offset)
        else:
            raise UnsupportedObject(f"relocation of kind {kind}")

    def _symbol_offset(self, symbol_index: int) -> int:
        """The offset of a symbol in the image."""
        symbol = self.symbols[symbol_index]
        if symbol.section in COMMON_INDICES:
            return self.common_offsets[symbol_index]
        if symbol.section >= FIRST_RESERVED or symbol.section not in self.section_offsets:
            raise UnsupportedObject(f"symbol {symbol.name!r} is not in memory")
        return self.section_offsets[symbol.section] + symbol.value

    def _write_slot(self, offset: int, symbol_index: int, addend: int) -> None:
        """Initialize a slot, and record which address the loader adds to it."""
        symbol = self.symbols[symbol_index]
        if not symbol.is_undefined:
            self._write(offset, "<q", self._symbol_offset(symbol_index) + addend)
            self.fixups.append(offset)
            return
        if symbol.binding != GLOBAL or not symbol.name:
            raise UnsupportedObject(f"symbol {symbol.name!r} need not be anywhere")
        self._write(offset, "<q", addend)
        self.imports.setdefault(symbol.name, []).append(offset)

    def _write_32(self, offset: int, value: int) -> None:
        self._write(offset, "<i", value)

    def _write(self, offset: int, struct_format: str, value: int) -> None:
        """Write a field; struct.error if the value does not fit, which ``link_image`` catches."""
        if offset + struct.calcsize(struct_format) > len(self.block):
            raise UnsupportedObject("a relocation is outside of its section")
        struct.pack_into(struct_format, self.block, offset, value)

    def _entry_offset(self, name: str) -> int:
        """The offset of an exported function."""
        for symbol_index, symbol in enumerate(self.symbols):
            if symbol.name == name and symbol.binding != LOCAL and not symbol.is_undefined:
                return self._symbol_offset(symbol_index)
        raise UnsupportedObject(f"no symbol {name}")


def _is_data(section: Section) -> bool:
    """Whether code may write to a section; ``.data.rel.ro`` is read-only after relocation."""
    return bool(section.flags & WRITE) and not section.name.startswith(".data.rel.ro")
