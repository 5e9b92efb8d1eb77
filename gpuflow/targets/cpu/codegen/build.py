"""Builds printed CPU kernels, and loads built ones.

A build gives code for this processor: an image (``linker``), or a relocatable object file if images
are not supported. ``loop_compiler`` makes LLVM instructions of loop programs. Loading an image
needs no compiler; an object file needs llvmlite's linker.
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

_MANY_STATEMENTS, _MANY_LOOPS = 100, 8


@record
class Object:
    """A built kernel: an image or an object file, its function, and the symbols it needs."""

    code: bytes
    entry: str
    imports: tuple[str, ...]

    @property
    def suffix(self) -> str:
        """Of its file in the kernel cache."""
        return suffix_of(self.code)


@record
class LoadedKernel:
    """A kernel in memory.

    Attributes:
        address: of ``void kernel(int64 *words, int64 lo, int64 hi)``.
        call: the same through ctypes, ``call(address_of_words, lo, hi)``; releases the GIL.
            It owns the code.
        keepalive: owns the code; the address is valid while this or ``call`` lives.
        size: of the code in bytes.
    """

    address: int
    call: Callable[[int, int, int], None]
    keepalive: object = field(repr=False)
    size: int


def build_cpu(source: LoopSource) -> Object:
    """Compile a printed kernel for this processor.

    Args:
        source: the result of ``cpu.print_cpu``.

    Returns:
        The code. Cost: 5 to 50 ms.

    Raises:
        Unsupported: if the program has something that its compiler does not know: an error of a
            printer.
    """
    written = module_of(source)
    built = compiled(str(written), _level(source, written), libm.inline_variants)
    return Object(linkable(built.code, (source.entry,)), source.entry, built.imports)


def _level(source: LoopSource, written: Written) -> int:
    """The optimization level of LLVM.

    The highest level unswitches loops: without it batched Mandelbrot loops take 1.3 times as long,
    a transposed copy 1.8 times. It takes half as long again for a long program, and for deeply
    nested loops, which it copies even without conditions.
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
    """The cached form of an object file: its image, or itself.

    Args:
        code: the object file.
        symbols: the requested functions.
    """
    if not HAS_IMAGES:
        return code
    try:
        return image_of(code, symbols).to_bytes()
    except NoImage:
        return code


def suffix_of(code: bytes) -> str:
    """The suffix of a file with the result of ``linkable``."""
    return "image" if is_image(code) else "o"


def assembly(source: LoopSource) -> str:
    """The assembly text of a printed kernel, for tests and for a person to read."""
    written = module_of(source)
    return assembly_of(str(written), _level(source, written), libm.inline_variants)


class _Linker:
    """llvmlite's LLJIT, made at first use: one for the process, used under a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: llvm.LLJIT | None = None
        self._numbers = itertools.count()

    def forget_lock(self) -> None:
        """In a forked child: the thread that held the lock is gone."""
        self._lock = threading.Lock()

    def link(
        self, code: bytes, symbols: Sequence[str], imports: Mapping[str, int]
    ) -> tuple[llvm.ResourceTracker, dict[str, int]]:
        """The library that owns the code, and the addresses of its symbols."""
        return undisturbed(lambda: self._link(code, symbols, imports))

    def _link(
        self, code: bytes, symbols: Sequence[str], imports: Mapping[str, int]
    ) -> tuple[llvm.ResourceTracker, dict[str, int]]:
        ensure_room()
        with self._lock:
            if self._engine is None:
                # JITLink keeps the sections of an object close and reports errors; LLVM's older
                # linker aborts.
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
        imports: addresses of functions that it calls; others are looked up in the process.

    Returns:
        The owner of the code, and the functions' addresses, which are valid while it lives.

    Raises:
        RuntimeError: a symbol is missing, or the code is damaged.
        OSError: the system gives no memory for code.
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
    """Put a built kernel into this process.

    Args:
        built: from ``build_cpu``, in this or another process on an equal processor.
        runtime: the address of a function of the native runtime, by name; None for other names.

    Returns:
        The kernel, ready to be called from any thread. Cost: below 1 ms.

    Raises:
        RuntimeError: a symbol is missing, or the code is damaged.
        OSError: the system gives no memory for code.
    """
    resolve = runtime or (lambda name: None)
    resolved = {symbol: resolve(symbol) or libm.resolve(symbol) for symbol in built.imports}
    imports = {symbol: address for symbol, address in resolved.items() if address is not None}
    library, addresses = link_symbols(built.code, (built.entry,), imports)
    address = addresses[built.entry]
    call: Any = _PROTOTYPE(address)
    # A reference to the function alone must own the code as well.
    call.keepalive = library
    return LoadedKernel(address, call, library, len(built.code))


@cache
def target_identity() -> str:
    """Inputs of the object code besides the text and the compilers' versions."""
    target = cpu_target()
    return json.dumps([target.cpu, target.flags, libm.library_identity()])
