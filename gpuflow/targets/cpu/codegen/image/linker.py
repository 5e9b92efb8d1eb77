"""Links LLVM's object file into a kernel image (``loader``), for ELF on x86-64.

The object is position independent code of the small code model: functions, constants and data reach
one another relative to the instruction, so that a fixed layout resolves nearly everything at build
time. A function elsewhere in the process is called through a stub, which jumps to the address in a
slot of the image; the loader fills in the slots.

Whatever is not listed here is ``Unsupported``: the object then stays one, and LLVM links it.

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

# Kinds of relocations.
_NONE, _ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 0, 1, 2, 4, 24
_WORD_32 = (9, 41, 42)  # relative place of a word that holds the symbol's address

_STUB = b"\xff\x25"  # jmp *place(%rip)
_STUB_BYTES, _WORD_BYTES = 8, 8
_MOST_BYTES = 1 << 28


def image_of(code: bytes, symbols: Sequence[str]) -> Image:
    """The image of an object file.

    Args:
        code: a relocatable object file.
        symbols: its functions that are wanted.

    Raises:
        Unsupported: LLVM has to link it.
    """
    try:
        sections = sections_of(code)
        return _Layout(sections, symbols_of(sections), symbols).image()
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise Unsupported(f"a damaged object file: {error}") from error


class _Layout:
    """Gives everything a place, then resolves the relocations."""

    def __init__(
        self, sections: Sequence[Section], symbols: Sequence[Symbol], wanted: Sequence[str]
    ) -> None:
        self.sections, self.symbols, self.wanted = sections, symbols, wanted
        self.block = bytearray()
        self.size = 0
        self.starts: dict[int, int] = {}  # of sections, by number
        self.commons: dict[int, int] = {}  # places of zeros, by symbol number
        self.stubs: dict[int, int] = {}  # by symbol number
        self.words: dict[int, int] = {}
        self.imports: dict[str, list[int]] = {}
        self.fixups: list[int] = []

    def image(self) -> Image:
        relocations = self._relocations()
        self._place()
        called = {r.symbol for r in relocations if r.kind == _CALL_32 and self._is_far(r)}
        self._make_room(called, called | {r.symbol for r in relocations if r.kind in _WORD_32})
        read_only = self._place_data()
        for relocation in relocations:
            self._relocate(relocation)
        for number, place in self.words.items():
            self._write_word(place, number, 0)
        for number, place in self.stubs.items():
            self.block[place : place + len(_STUB)] = _STUB
            after = place + len(_STUB)
            self._write_32(after, self.words[number] - (after + 4))
        entries = {name: self._entry(name) for name in self.wanted}
        return Image(
            bytes(self.block), self.size, read_only, entries, self.imports, sorted(self.fixups)
        )

    def _relocations(self) -> list[Relocation]:
        """Relocations of data in memory."""
        tables = [section for section in self.sections if section.kind == RELOCATIONS]
        kept = [table for table in tables if self._is_kept(self.sections[table.info])]
        return [relocation for table in kept for relocation in relocations_of(table)]

    def _is_far(self, relocation: Relocation) -> bool:
        return self.symbols[relocation.symbol].is_elsewhere

    def _is_kept(self, section: Section) -> bool:
        """Whether a section is in memory. Nothing is thrown through kernels: no unwinding."""
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

    def _place(self) -> None:
        """Code, then constants; those that hold addresses are written before they are closed."""
        kept = [(k, s) for k, s in enumerate(self.sections) if self._is_kept(s)]
        code = [(k, s) for k, s in kept if s.flags & EXECUTABLE]
        constants = [(k, s) for k, s in kept if not s.flags & EXECUTABLE and not _is_data(s)]
        for number, section in code + constants:
            self._append(number, section)

    def _append(self, number: int, section: Section) -> None:
        self.starts[number] = start = self._room(section.size, section.align)
        if section.kind == BITS:
            self.block += bytes(start - len(self.block))
            self.block += section.content

    def _room(self, count: int, align: int) -> int:
        start = -(-self.size // align) * align
        self.size = start + count
        if self.size > _MOST_BYTES:
            raise Unsupported(f"{self.size} bytes")
        return start

    def _make_room(self, stubs: set[int], words: set[int]) -> None:
        """For stubs and words; where two symbols have one name, each has its own."""
        for number in sorted(stubs):
            self.stubs[number] = self._room(_STUB_BYTES, _STUB_BYTES)
        for number in sorted(words):
            self.words[number] = self._room(_WORD_BYTES, _WORD_BYTES)
        self.block += bytes(self.size - len(self.block))

    def _place_data(self) -> int:
        """Data and zeros, on pages of their own; returns the bytes before them."""
        data = [(k, s) for k, s in enumerate(self.sections) if self._is_kept(s) and _is_data(s)]
        commons = [(k, s) for k, s in enumerate(self.symbols) if s.section in COMMON]
        end = self.size
        if not data and not commons:
            return end
        start = self._room(0, PAGE)
        for number, section in sorted(data, key=lambda item: item[1].kind == ZEROS):
            self._append(number, section)
        for number, symbol in commons:
            # The value of such a symbol is its alignment.
            self.commons[number] = self._room(symbol.size, max(symbol.value, 1))
        if self.size == start:
            self.size = end
            return end
        return start

    # --- resolving -----------------------------------------------------------------------------

    def _relocate(self, relocation: Relocation) -> None:
        kind, number, addend = relocation.kind, relocation.symbol, relocation.addend
        place = self.starts[relocation.section] + relocation.offset
        if kind == _NONE:
            return
        if kind == _ABSOLUTE_64:
            self._write_word(place, number, addend)
        elif kind in _WORD_32:
            self._write_32(place, self.words[number] + addend - place)
        elif kind == _CALL_32 and self._is_far(relocation):
            self._write_32(place, self.stubs[number] + addend - place)
        elif kind in (_RELATIVE_32, _CALL_32):
            self._write_32(place, self._value(number) + addend - place)
        elif kind == _RELATIVE_64:
            self._write(place, "<q", self._value(number) + addend - place)
        else:
            raise Unsupported(f"relocation of kind {kind}")

    def _value(self, number: int) -> int:
        """Where a symbol of the block is."""
        symbol = self.symbols[number]
        if symbol.section in COMMON:
            return self.commons[number]
        if symbol.section >= RESERVED or symbol.section not in self.starts:
            raise Unsupported(f"symbol {symbol.name!r} is not in memory")
        return self.starts[symbol.section] + symbol.value

    def _write_word(self, place: int, number: int, addend: int) -> None:
        """A slot to which the loader adds an address."""
        symbol = self.symbols[number]
        if not symbol.is_elsewhere:
            self._write(place, "<q", self._value(number) + addend)
            self.fixups.append(place)
            return
        if symbol.binding != GLOBAL or not symbol.name:
            raise Unsupported(f"symbol {symbol.name!r} need not be anywhere")
        self._write(place, "<q", addend)
        self.imports.setdefault(symbol.name, []).append(place)

    def _write_32(self, place: int, value: int) -> None:
        self._write(place, "<i", value)

    def _write(self, place: int, form: str, value: int) -> None:
        if place + struct.calcsize(form) > len(self.block):
            raise Unsupported("a relocation is outside of its section")
        struct.pack_into(form, self.block, place, value)

    def _entry(self, name: str) -> int:
        for number, symbol in enumerate(self.symbols):
            if symbol.name == name and symbol.binding != LOCAL and not symbol.is_elsewhere:
                return self._value(number)
        raise Unsupported(f"no symbol {name}")


def _is_data(section: Section) -> bool:
    """Whether code may write to it."""
    return bool(section.flags & WRITE) and not section.name.startswith(".data.rel.ro")
