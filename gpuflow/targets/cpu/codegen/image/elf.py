"""Reader of relocatable object files: 64-bit ELF for x86-64, as LLVM writes them.

Names follow those of the format: PROGBITS is SHT_PROGBITS, and so on.

Source: System V ABI, chapters 4 and 5; its AMD64 supplement.

Tests: tests/targets/cpu/test_cpu_image.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpuflow.base.records import record

# Elf64_Ehdr, Elf64_Shdr, Elf64_Sym and Elf64_Rela.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_IDENT_64_BIT_LITTLE_ENDIAN = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62  # ET_REL, EM_X86_64

# Section types (SHT_*), and section flags (SHF_*).
_NULL, PROGBITS, SYMTAB, _STRTAB, RELA, NOTE, NOBITS = 0, 1, 2, 3, 4, 7, 8
_GROUP = 17
X86_64_UNWIND = 0x70000001
_SUPPORTED_SECTION_TYPES = {
    _NULL,
    PROGBITS,
    SYMTAB,
    _STRTAB,
    RELA,
    NOTE,
    NOBITS,
    _GROUP,
    X86_64_UNWIND,
}
WRITE, ALLOCATED, EXECUTABLE, THREAD_LOCAL = 1, 2, 4, 0x400

# Special section indices of symbols (SHN_*): COMMON_INDICES are those of SHN_COMMON and of
# SHN_X86_64_LCOMMON. Bindings of symbols (STB_*), and symbol types (STT_*).
UNDEFINED, FIRST_RESERVED, COMMON_INDICES = 0, 0xFF00, (0xFFF2, 0xFF02)
LOCAL, GLOBAL, WEAK = 0, 1, 2
_SUPPORTED_SYMBOL_TYPES = range(5)  # larger types are thread-local, or resolved at run time


class _SectionHeader(NamedTuple):
    """The fields of Elf64_Shdr, in order; offsets and sizes are in bytes."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class UnsupportedObject(Exception):
    """The object file has a feature that images do not support."""


@record
class Section:
    """A section: its header and contents.

    Attributes:
        name: name of the section.
        kind: section type (SHT_*).
        flags: section flags (SHF_*).
        content: its bytes; empty if they are all zeros (ZEROS).
        size: its size in bytes, in memory.
        link, info: indices of related sections; their meaning depends on the type.
        align: alignment of its address in bytes, at least 1.
    """

    name: str
    kind: int
    flags: int
    content: bytes
    size: int
    link: int
    info: int
    align: int


@record
class Symbol:
    """A symbol.

    Attributes:
        name: its name; empty for the symbol of a section.
        binding: LOCAL, GLOBAL or WEAK.
        section: index of its section, or a special index (SHN_*).
        value: offset in bytes from the start of the section; for COMMON_INDICES, the alignment.
        size: size in bytes.
    """

    name: str
    binding: int
    section: int
    value: int
    size: int

    @property
    def is_undefined(self) -> bool:
        """Whether the object file does not define it, so that it is an import."""
        return self.section == UNDEFINED


@record
class Relocation:
    """A field that the linker sets from a symbol's address.

    Attributes:
        section: index of the section with the field.
        offset: offset of the field in that section, in bytes.
        kind: type of the relocation (R_X86_64_*).
        symbol: index of the symbol.
        addend: constant that is added to the address.
    """

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


def sections_of(code: bytes) -> list[Section]:
    """Read the sections of an object file, by index.

    Raises:
        UnsupportedObject: if it is not a relocatable file for x86-64, or has an unknown section
            type. Damaged files may also raise struct.error, LookupError or ValueError.
    """
    identity, file_type, machine, *_, start, _, _, _, _, header_size, count, names_index = (
        _HEADER.unpack_from(code)
    )
    is_relocatable = (file_type, machine) == (_RELOCATABLE, _X86_64)
    if not identity.startswith(_IDENT_64_BIT_LITTLE_ENDIAN) or not is_relocatable:
        raise UnsupportedObject("not an object file of x86-64")
    if header_size != _SECTION.size:
        raise UnsupportedObject(f"section headers of {header_size} bytes")
    headers = [
        _SectionHeader(*_SECTION.unpack_from(code, start + k * header_size)) for k in range(count)
    ]
    name_section = headers[names_index]
    section_names = code[name_section.offset :][: name_section.size]
    sections = []
    for name, kind, flags, _, offset, size, link, info, align, _ in headers:
        content = b"" if kind == NOBITS else code[offset : offset + size]
        if kind not in _SUPPORTED_SECTION_TYPES or (kind != NOBITS and len(content) != size):
            raise UnsupportedObject(f"section {_string_at(section_names, name)} of kind {kind}")
        section_name = _string_at(section_names, name)
        sections.append(
            Section(section_name, kind, flags, content, size, link, info, max(align, 1))
        )
    return sections


def symbols_of(sections: Sequence[Section]) -> list[Symbol]:
    """Read the symbols, by index.

    Raises:
        UnsupportedObject: if a symbol has an unknown type or binding; thread-local ones are
            unknown.
    """
    tables = [section for section in sections if section.kind == SYMTAB]
    if len(tables) != 1:
        raise UnsupportedObject(f"{len(tables)} tables of symbols")
    string_table, symbols = sections[tables[0].link].content, []
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(tables[0].content):
        symbol = Symbol(_string_at(string_table, name), info >> 4, section, value, size)
        has_binding = symbol.binding in (LOCAL, GLOBAL, WEAK)
        if not has_binding or info & 15 not in _SUPPORTED_SYMBOL_TYPES:
            raise UnsupportedObject(f"symbol {symbol.name} of kind {info:#x}")
        symbols.append(symbol)
    return symbols


def relocations_of(section: Section) -> Iterator[Relocation]:
    """Yield the entries of a section of type RELA; ``info`` is the section that they change."""
    for offset, kind, symbol, addend in _RELOCATION.iter_unpack(section.content):
        yield Relocation(section.info, offset, kind, symbol, addend)


def _string_at(string_table: bytes, start: int) -> str:
    """The string at an offset of a string table, which a zero byte ends."""
    return string_table[start : string_table.index(b"\0", start)].decode()
