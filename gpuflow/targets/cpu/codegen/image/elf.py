"""Reads relocatable object files: ELF of 64 bits for x86-64, as LLVM writes them.

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

# Kinds of sections, and their flags.
_NOTHING, BITS, SYMBOLS, _STRINGS, RELOCATIONS, NOTE, ZEROS = 0, 1, 2, 3, 4, 7, 8
_GROUP = 17
UNWIND = 0x70000001
_KINDS = {_NOTHING, BITS, SYMBOLS, _STRINGS, RELOCATIONS, NOTE, ZEROS, _GROUP, UNWIND}
WRITE, ALLOCATED, EXECUTABLE, THREAD_LOCAL = 1, 2, 4, 0x400

# Section indices of symbols that are in no section, bindings and kinds of symbols.
UNDEFINED, RESERVED, COMMON = 0, 0xFF00, (0xFFF2, 0xFF02)
LOCAL, GLOBAL, WEAK = 0, 1, 2
_OBJECT_KINDS = range(5)  # beyond: thread-local, or resolved at run time


class Unsupported(Exception):
    """The object file holds something that images do not have."""


@record
class Section:
    """A section: its bytes, and its header.

    Attributes:
        name: by convention.
        kind, flags: of the lists above.
        content: empty for zeros.
        size: in bytes.
        link, info: indices of other sections, by kind.
        align: its address is a multiple of that.
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
    """A name: in section ``section``, ``value`` bytes from its start."""

    name: str
    binding: int
    section: int
    value: int
    size: int

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has to be found in the process."""
        return self.section == UNDEFINED


@record
class Relocation:
    """A slot at ``offset`` in section ``section`` that depends on the address of ``symbol``."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


def sections_of(code: bytes) -> list[Section]:
    """The sections of an object file, by index.

    Raises:
        Unsupported: it is of another kind, or has sections of unknown ones.
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
    """The symbols, by index.

    Raises:
        Unsupported: one is of an unknown kind, as thread-local ones.
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
    """The entries of a section of relocations."""
    for offset, kind, symbol, addend in _RELOCATION.iter_unpack(section.content):
        yield Relocation(section.info, offset, kind, symbol, addend)


def _text(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()
