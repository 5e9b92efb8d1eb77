"""Reader of relocatable object files: 64-bit ELF for x86-64, as LLVM writes them.

Source: System V ABI, chapters 4 and 5; its AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from gpuflow.base.records import record

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62

# Section types (SHT_*), and section flags (SHF_*).
_NOTHING, BITS, SYMBOLS, _STRINGS, RELOCATIONS, NOTE, ZEROS = 0, 1, 2, 3, 4, 7, 8
_GROUP = 17
UNWIND = 0x70000001
_KINDS = {_NOTHING, BITS, SYMBOLS, _STRINGS, RELOCATIONS, NOTE, ZEROS, _GROUP, UNWIND}
WRITE, ALLOCATED, EXECUTABLE, THREAD_LOCAL = 1, 2, 4, 0x400

# Special section indices of symbols (SHN_*), bindings of symbols (STB_*) and types (STT_*).
UNDEFINED, RESERVED, COMMON = 0, 0xFF00, (0xFFF2, 0xFF02)
LOCAL, GLOBAL, WEAK = 0, 1, 2
_OBJECT_KINDS = range(5)  # larger types are thread-local, or resolved at run time


class Unsupported(Exception):
    """The object file has a feature that images do not support."""


@record
class Section:
    """A section: its header and contents.

    Attributes:
        name: name of the section.
        kind, flags: its type and flags.
        content: its bytes; empty if they are all zeros (ZEROS).
        size: its size in bytes, in memory.
        link, info: indices of related sections; their meaning depends on the type.
        align: alignment of its address.
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
        name: its name.
        binding: LOCAL, GLOBAL or WEAK.
        section: index of its section, or a special index.
        value: offset from the start of the section; the alignment of a COMMON symbol.
        size: size in bytes.
    """

    name: str
    binding: int
    section: int
    value: int
    size: int

    @property
    def is_elsewhere(self) -> bool:
        """Whether the object file does not define it, so that it is an import."""
        return self.section == UNDEFINED


@record
class Relocation:
    """A field that the linker sets from a symbol's address.

    Attributes:
        section, offset: position of the field.
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
        Unsupported: if it is not a relocatable file for x86-64, or has an unknown section type.
    """
    identity, kind, machine, *_, start, _, _, _, _, size, count, names = _HEADER.unpack_from(code)
    if not identity.startswith(_IDENTITY) or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise Unsupported("not an object file of x86-64")
    if size != _SECTION.size:
        raise Unsupported(f"section headers of {size} bytes")
    headers = [_SECTION.unpack_from(code, start + k * size) for k in range(count)]
    texts = code[headers[names][4] :][: headers[names][5]]
    sections = []
    for name, kind, flags, _, offset, length, link, info, align, _ in headers:
        content = b"" if kind == ZEROS else code[offset : offset + length]
        if kind not in _KINDS or (kind != ZEROS and len(content) != length):
            raise Unsupported(f"section {_text(texts, name)} of kind {kind}")
        section = Section(
            _text(texts, name), kind, flags, content, length, link, info, max(align, 1)
        )
        sections.append(section)
    return sections


def symbols_of(sections: Sequence[Section]) -> list[Symbol]:
    """Read the symbols, by index.

    Raises:
        Unsupported: if a symbol has an unknown type or binding; thread-local ones are unknown.
    """
    tables = [section for section in sections if section.kind == SYMBOLS]
    if len(tables) != 1:
        raise Unsupported(f"{len(tables)} tables of symbols")
    texts, symbols = sections[tables[0].link].content, []
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(tables[0].content):
        symbol = Symbol(_text(texts, name), info >> 4, section, value, size)
        if symbol.binding not in (LOCAL, GLOBAL, WEAK) or info & 15 not in _OBJECT_KINDS:
            raise Unsupported(f"symbol {symbol.name} of kind {info:#x}")
        symbols.append(symbol)
    return symbols


def relocations_of(section: Section) -> Iterator[Relocation]:
    """Yield the entries of a section of relocations."""
    for offset, kind, symbol, addend in _RELOCATION.iter_unpack(section.content):
        yield Relocation(section.info, offset, kind, symbol, addend)


def _text(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()
