"""Kernel images: machine code that is loaded by copying it, without a linker.

An image is one block of memory, which ``linker`` has laid out and linked at build time. Code and
constants come first. They address each other, and the data after them, relative to their position.
The loader only fills in 64-bit slots with absolute addresses: of imported functions, and of offsets
in the block.

    read-only: text, stubs, constants, slots | from the next page on, if any: data, zeros

The bytes of an image are ``MAGIC``, the length of a header in 4 bytes (little-endian), the header
as JSON, and the block without its last zeros. A change of this format needs a new ``MAGIC``.

Tests: tests/targets/cpu/test_cpu_image.py, tests/test_exit.py.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Mapping, Sequence

from gpuflow.base.caches import cache
from gpuflow.base.private_files import parse_json
from gpuflow.base.records import record

# Whether LLVM's object files have the format that ``linker`` reads.
HAS_IMAGES = sys.platform == "linux" and platform.machine() == "x86_64"
MAGIC = b"gpuflow image 1\n"
PAGE = 4096  # of x86-64
_HEADER_LENGTH = struct.Struct("<I")
_SLOT_BYTES = 8
_MAP_FAILED = ctypes.c_void_p(-1).value


@record
class Image:
    """Code that is ready to be copied into memory. Offsets are in bytes from the block's start.

    The names of the fields are keys of the file's header.

    Attributes:
        block: initial contents of the memory; zeros follow.
        size: bytes of memory, at least the length of ``block``.
        read_only: bytes at its start that become executable and read-only: a multiple of pages, or
            all.
        entries: offsets of the exported functions.
        imports: for each imported function, offsets of the slots to which its address is added.
        fixups: offsets of the slots to which the block's own address is added.
    """

    block: bytes
    size: int
    read_only: int
    entries: Mapping[str, int]
    imports: Mapping[str, Sequence[int]]
    fixups: Sequence[int]

    def to_bytes(self) -> bytes:
        """Serialize the image to its file format."""
        header = json.dumps(
            {
                "stored": len(self.block),
                "size": self.size,
                "read_only": self.read_only,
                "entries": dict(self.entries),
                "imports": {name: list(offsets) for name, offsets in self.imports.items()},
                "fixups": list(self.fixups),
            }
        ).encode()
        return b"".join([MAGIC, _HEADER_LENGTH.pack(len(header)), header, self.block])


def is_image(code: bytes) -> bool:
    """Whether cached code is an image; else it is an object file."""
    return code.startswith(MAGIC)


def parse_image(code: bytes) -> Image:
    """Parse and check the bytes of an image.

    Raises:
        RuntimeError: if they are not a complete image.
    """
    header_start = len(MAGIC) + _HEADER_LENGTH.size
    try:
        if not is_image(code):
            raise ValueError("it starts with other bytes")
        (length,) = _HEADER_LENGTH.unpack_from(code, len(MAGIC))
        header = parse_json(code[header_start : header_start + length])
        block = code[header_start + length :]
        if header.pop("stored") != len(block):
            raise ValueError("it is cut off")
        image = Image(block, **header)
        _check(image)
    except (struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RuntimeError(f"the code is no kernel image: {error}") from error
    return image


def _check(image: Image) -> None:
    """Check that slots and functions are in bounds.

    Raises:
        ValueError: if one is not.
    """
    slots = [*image.fixups, *(offset for offsets in image.imports.values() for offset in offsets)]
    entries = list(image.entries.values())
    if not all(isinstance(n, int) for n in (image.size, image.read_only, *slots, *entries)):
        raise ValueError("an offset is not an integer")
    if not 0 < len(image.block) <= image.size:
        raise ValueError("the block is longer than its memory")
    if image.read_only != image.size and (
        image.read_only % PAGE or not 0 < image.read_only < image.size
    ):
        raise ValueError("the read-only size is not a number of pages in the block")
    if not all(0 <= offset <= image.size - _SLOT_BYTES for offset in slots):
        raise ValueError("a slot is out of bounds")
    if not all(0 <= offset < min(len(image.block), image.read_only) for offset in entries):
        raise ValueError("a function is out of bounds of the code")


def load_image(
    image: Image, symbols: Sequence[str], resolve: Callable[[str], int | None]
) -> tuple[_Memory, dict[str, int]]:
    """Load an image into this process.

    Args:
        image: an image that ``parse_image`` has checked, or that ``link_image`` returned. Its code
            is executed, so it must be trusted.
        symbols: the requested functions.
        resolve: returns the address of an imported function, or None.

    Returns:
        The owner of the memory, which must outlive all calls, and the functions' addresses.

    Raises:
        RuntimeError: if a symbol is missing.
        OSError: if the system refuses memory, or does not let it be executable.
    """
    missing = [symbol for symbol in symbols if symbol not in image.entries]
    addresses = {name: resolve(name) for name in image.imports}
    missing += [name for name, address in addresses.items() if address is None]
    if missing:
        raise RuntimeError(f"a kernel needs {', '.join(missing)}, which is nowhere")
    memory = _Memory(image.size)
    ctypes.memmove(memory.address, image.block, len(image.block))
    for offset in image.fixups:
        _add_to_slot(memory, offset, memory.address)
    for name, offsets in image.imports.items():
        for offset in offsets:
            _add_to_slot(memory, offset, addresses[name] or 0)
    # Memory is never writable and executable at once.
    memory.protect(image.read_only, mmap.PROT_READ | mmap.PROT_EXEC)
    return memory, {symbol: memory.address + image.entries[symbol] for symbol in symbols}


def _add_to_slot(memory: _Memory, offset: int, address: int) -> None:
    """Add an address to the 64-bit slot at an offset, which must be inside of the memory."""
    slot = ctypes.c_uint64.from_address(memory.address + offset)
    slot.value += address  # wraps


class _Memory:
    """Anonymous pages, initially zero, which the destructor of this object unmaps.

    At the end of the process they stay mapped, because a user's thread may still run their code.
    """

    def __init__(self, size: int) -> None:
        self.size = 0
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = _libc().mmap(None, size, protection, flags, -1, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), f"[cpu] the system has no {size} bytes for code")
        self.address, self.size = address, size

    def protect(self, size: int, protection: int) -> None:
        """Set the protection of the first ``size`` bytes."""
        if _libc().mprotect(self.address, size, protection) != 0:
            errno = ctypes.get_errno()
            # Not a RuntimeError, after which the caller would build the kernel again.
            raise OSError(
                errno,
                "[cpu] the system must let this process make memory executable; mprotect failed: "
                f"{os.strerror(errno)}. Fix: allow it (on SELinux execmem, in systemd "
                "MemoryDenyWriteExecute=no); run-time compilers need it.",
            )

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "size", 0) and not is_finalizing():
            _libc().munmap(self.address, self.size)


@record
class _LibcFunctions:
    """Functions of the C library, with their prototypes set."""

    mmap: Callable[[None, int, int, int, int, int], int]
    mprotect: Callable[[int, int, int], int]
    munmap: Callable[[int, int], int]


@cache
def _libc() -> _LibcFunctions:
    library = ctypes.CDLL(None, use_errno=True)
    address, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = address
    library.mmap.argtypes = (address, size, integer, integer, integer, ctypes.c_int64)
    library.mprotect.argtypes = (address, size, integer)
    library.munmap.argtypes = (address, size)
    return _LibcFunctions(library.mmap, library.mprotect, library.munmap)
