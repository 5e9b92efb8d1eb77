"""Compiles loop programs to machine code for this processor, and loads it.

``loop_compiler`` translates a program to LLVM IR, and ``machine_code`` runs LLVM. The result is an
image (``linker``), or a relocatable object file if an image is not supported. Loading an image
needs no compiler; loading an object file needs llvmlite's JIT linker.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.base.undisturbed import undisturbed
from gpuflow.targets.cpu.codegen import libm
from gpuflow.targets.cpu.codegen.host import ensure_room
from gpuflow.targets.cpu.codegen.image.elf import Unsupported as NoImage
from gpuflow.targets.cpu.codegen.image.linker import image_of
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES, image_from, is_image, load_image
from gpuflow.targets.cpu.codegen.loop_compiler import Written, module_of
from gpuflow.targets.cpu.codegen.loops.nodes import Branch, Forever, Loop, statements_in
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.machine_code import AS_WRITTEN, assembly_of, compiled, host_machine
from gpuflow.targets.cpu.codegen.processor import cpu_target

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")

_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

_MANY_STATEMENTS, _MANY_LOOPS = 100, 8  # see ``_level``


@record
class Object:
    """A built kernel.

    Attributes:
        code: an image or an object file.
        entry: name of the kernel's function.
        imports: symbols that loading must resolve.
    """

    code: bytes
    entry: str
    imports: tuple[str, ...]

    @property
    def suffix(self) -> str:
        """The suffix of its file in the kernel cache."""
        return suffix_of(self.code)


@record
class LoadedKernel:
    """A kernel in memory.

    Attributes:
        address: address of ``void kernel(int64 *words, int64 lo, int64 hi)``. It is valid while
            ``keepalive`` or ``call`` lives.
        call: the function through ctypes, ``call(address_of_words, lo, hi)``; releases the GIL.
        keepalive: owner of the code.
        size: bytes of the built code.
    """

    address: int
    call: Callable[[int, int, int], None]
    keepalive: object = field(repr=False)
    size: int


def build_cpu(source: LoopSource) -> Object:
    """Compile a loop program for this processor. Cost: 5 to 50 ms.

    Args:
        source: a program, such as the result of ``cpu.print_cpu``.

    Raises:
        Unsupported: if the program is invalid, by an error of its printer.
    """
    written = module_of(source)
    built = compiled(str(written), _level(source, written), libm.inline_variants)
    return Object(linkable(built.code, (source.entry,)), source.entry, built.imports)


def _level(source: LoopSource, written: Written) -> int:
    """LLVM's optimization level for a program.

    Level 3 unswitches loops: without it, batched Mandelbrot loops take 1.3 times as long, and a
    transposed copy 1.8 times. But it compiles 1.5 times as long for long programs, and for deep
    loop nests, which it duplicates even without conditions.
    """
    if written.is_final:
        return AS_WRITTEN
    statements = list(statements_in(source.program.body))
    loops = sum(isinstance(one, Loop) and not one.is_short for one in statements)
    kinds = {type(one) for one in statements}
    is_long = len(statements) >= _MANY_STATEMENTS and Forever not in kinds
    is_nest = loops >= _MANY_LOOPS and kinds.isdisjoint((Branch, Forever))
    return 2 if is_long or is_nest else 3


def linkable(code: bytes, symbols: Sequence[str]) -> bytes:
    """Link an object file to an image if that is supported; else return it unchanged.

    Args:
        code: the object file.
        symbols: the functions that the image exports.
    """
    if not HAS_IMAGES:
        return code
    try:
        return image_of(code, symbols).to_bytes()
    except NoImage:
        return code


def suffix_of(code: bytes) -> str:
    """The suffix of a cache file with the result of ``linkable``."""
    return "image" if is_image(code) else "o"


def assembly(source: LoopSource) -> str:
    """The assembly text of a loop program, for tests and for reading."""
    written = module_of(source)
    return assembly_of(str(written), _level(source, written), libm.inline_variants)


class _Linker:
    """llvmlite's LLJIT, which links object files. One per process, created lazily, locked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: llvm.LLJIT | None = None
        self._numbers = itertools.count()

    def forget_lock(self) -> None:
        """In a forked child: replace the lock, since the thread that held it may be gone."""
        self._lock = threading.Lock()

    def link(
        self, code: bytes, symbols: Sequence[str], imports: Mapping[str, int]
    ) -> tuple[llvm.ResourceTracker, dict[str, int]]:
        """Link an object file; returns the owner of the code, and its symbols' addresses."""
        return undisturbed(lambda: self._link(code, symbols, imports))

    def _link(
        self, code: bytes, symbols: Sequence[str], imports: Mapping[str, int]
    ) -> tuple[llvm.ResourceTracker, dict[str, int]]:
        ensure_room()
        with self._lock:
            if self._engine is None:
                # JITLink allocates the sections of an object together, and reports errors. LLVM's
                # older linker aborts the process.
                self._engine = llvm.create_lljit_compiler(host_machine(), use_jit_link=True)
            builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for symbol in symbols:
                builder.export_symbol(symbol)
            for symbol, address in imports.items():
                builder.import_symbol(symbol, address)
            library = builder.link(self._engine, f"gpuflow_{next(self._numbers)}")
            return library, {symbol: library[symbol] for symbol in symbols}


def link_symbols(
    code: bytes, symbols: Sequence[str], imports: Mapping[str, int]
) -> tuple[object, dict[str, int]]:
    """Load the result of ``linkable`` into this process.

    Args:
        code: an image or an object file.
        symbols: the requested functions.
        imports: addresses of imported functions; others are looked up in the process.

    Returns:
        The owner of the code, and the functions' addresses, which are valid while it lives.

    Raises:
        RuntimeError: if a symbol is missing, or the code is damaged.
        OSError: if the system refuses memory for code.
    """
    if is_image(code):
        return load_image(
            image_from(code), symbols, lambda name: imports.get(name) or libm.resolve(name)
        )
    return _linker.link(code, symbols, imports)


_linker = _Linker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_linker.forget_lock)


def load_cpu(built: Object, runtime: Callable[[str], int | None] | None = None) -> LoadedKernel:
    """Load a built kernel into this process. Cost: below 1 ms.

    Args:
        built: result of ``build_cpu``, of this or another process with an equal processor.
        runtime: returns the address of a function of the native runtime; None for other names.

    Returns:
        The kernel, which any thread may call.

    Raises:
        RuntimeError: if a symbol is missing, or the code is damaged.
        OSError: if the system refuses memory for code.
    """
    resolve = runtime or (lambda name: None)
    resolved = {symbol: resolve(symbol) or libm.resolve(symbol) for symbol in built.imports}
    imports = {symbol: address for symbol, address in resolved.items() if address is not None}
    library, addresses = link_symbols(built.code, (built.entry,), imports)
    address = addresses[built.entry]
    call: Any = _PROTOTYPE(address)
    # ``call`` must keep the code alive even if the LoadedKernel is gone.
    call.keepalive = library
    return LoadedKernel(address, call, library, len(built.code))


@cache
def target_identity() -> str:
    """Inputs of object code besides its text and the compiler: processor, and vector library."""
    target = cpu_target()
    return json.dumps([target.cpu, target.flags, libm.library_identity()])
