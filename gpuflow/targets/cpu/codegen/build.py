"""Compiles loop programs to machine code for this processor, and loads it.

``loop_compiler`` translates a program to LLVM IR, and ``machine_code`` runs LLVM. The result is an
image (``linker``), or a relocatable object file if an image is not supported. Loading an image
needs no compiler; loading an object file needs llvmlite's JIT linker.

All functions may be called by several threads at once.

Tests: tests/targets/cpu/test_builds.py, tests/targets/cpu/test_cpu_image.py.
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
from gpuflow.targets.cpu.codegen.host import require_llvm_memory
from gpuflow.targets.cpu.codegen.image.elf import UnsupportedObject
from gpuflow.targets.cpu.codegen.image.linker import link_image
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES, is_image, load_image, parse_image
from gpuflow.targets.cpu.codegen.loop_compiler import KernelModule, compile_module
from gpuflow.targets.cpu.codegen.loops.nodes import Branch, InfiniteLoop, Loop, statements_in
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.machine_code import (
    SIMPLIFY_ONLY,
    assembly_of,
    compile_ir,
    host_machine,
)
from gpuflow.targets.cpu.codegen.processor import cpu_target

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")

_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

# Statements, and counted loops that are not short, from which on level 2 is used instead of 3; see
# ``_optimization_level``.
_LONG_PROGRAM, _DEEP_NEST = 100, 8


@record
class KernelBinary:
    """A built kernel.

    Attributes:
        code: an image or an object file.
        entry: name of the kernel's function.
        imports: symbols that loading must resolve: functions of libm, of the process, or of the
            native runtime.
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


def build_cpu(source: LoopSource) -> KernelBinary:
    """Compile a loop program for this processor. Cost: 5 to 50 ms.

    Args:
        source: a program, such as the result of ``runtime.kernels.print_cpu``.

    Raises:
        InvalidProgram: if the program is invalid, by an error of its printer.
        RuntimeError: if LLVM cannot emit code for it.
        MemoryError: if a limit on address space leaves too little for LLVM.
    """
    module = compile_module(source)
    object_file = compile_ir(str(module), _optimization_level(source, module), libm.inline_variants)
    return KernelBinary(
        image_if_supported(object_file.code, (source.entry,)), source.entry, object_file.imports
    )


def _optimization_level(source: LoopSource, module: KernelModule) -> int:
    """LLVM's optimization level for a program: 2, 3, or SIMPLIFY_ONLY.

    Level 3 unswitches loops: without it, batched Mandelbrot loops take 1.3 times as long, and a
    transposed copy 1.8 times. But it compiles 1.5 times as long for long programs, and for deep
    loop nests, which it duplicates even without conditions.
    """
    if module.is_fully_vectorized:
        return SIMPLIFY_ONLY
    statements = list(statements_in(source.program.body))
    loop_count = sum(
        isinstance(statement, Loop) and not statement.is_short for statement in statements
    )
    statement_types = {type(statement) for statement in statements}
    is_long = len(statements) >= _LONG_PROGRAM and InfiniteLoop not in statement_types
    is_deep_nest = loop_count >= _DEEP_NEST and statement_types.isdisjoint((Branch, InfiniteLoop))
    return 2 if is_long or is_deep_nest else 3


def image_if_supported(code: bytes, symbols: Sequence[str]) -> bytes:
    """Link an object file to an image if that is supported; else return it unchanged.

    Args:
        code: the object file, as ``compile_ir`` returns it.
        symbols: the functions that the image exports; the object file must define them.

    Returns:
        Code for ``load_symbols``: an image, or ``code``.
    """
    if not HAS_IMAGES:
        return code
    try:
        return link_image(code, symbols).to_bytes()
    except UnsupportedObject:
        return code


def suffix_of(code: bytes) -> str:
    """The suffix of a cache file with the result of ``image_if_supported``."""
    return "image" if is_image(code) else "o"


def assembly(source: LoopSource) -> str:
    """The assembly text of a loop program, for tests and for reading."""
    module = compile_module(source)
    return assembly_of(str(module), _optimization_level(source, module), libm.inline_variants)


class _Linker:
    """llvmlite's LLJIT, which links object files. One per process, created lazily, locked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: llvm.LLJIT | None = None
        self._library_ids = itertools.count()

    def replace_lock(self) -> None:
        """In a forked child: replace the lock, since the thread that held it may be gone."""
        self._lock = threading.Lock()

    def link(
        self, code: bytes, symbols: Sequence[str], import_addresses: Mapping[str, int]
    ) -> tuple[llvm.ResourceTracker, dict[str, int]]:
        """Link an object file; returns the owner of the code, and its symbols' addresses.

        ``undisturbed``: an exception in llvmlite would leave its lock locked.
        """
        return undisturbed(lambda: self._link(code, symbols, import_addresses))

    def _link(
        self, code: bytes, symbols: Sequence[str], import_addresses: Mapping[str, int]
    ) -> tuple[llvm.ResourceTracker, dict[str, int]]:
        require_llvm_memory()
        with self._lock:
            if self._engine is None:
                # JITLink allocates the sections of an object together, and reports errors. LLVM's
                # older linker aborts the process.
                self._engine = llvm.create_lljit_compiler(host_machine(), use_jit_link=True)
            builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for symbol in symbols:
                builder.export_symbol(symbol)
            for symbol, address in import_addresses.items():
                builder.import_symbol(symbol, address)
            library = builder.link(self._engine, f"gpuflow_{next(self._library_ids)}")
            return library, {symbol: library[symbol] for symbol in symbols}


def load_symbols(
    code: bytes, symbols: Sequence[str], import_addresses: Mapping[str, int]
) -> tuple[object, dict[str, int]]:
    """Load the result of ``image_if_supported`` into this process.

    Args:
        code: an image or an object file.
        symbols: the requested functions.
        import_addresses: addresses of imported functions; others are resolved by ``libm.resolve``
            for images, and in the process for object files.

    Returns:
        The owner of the code, and the functions' addresses, which are valid while it lives.

    Raises:
        RuntimeError: if a symbol is missing, or the code is damaged.
        OSError: if the system refuses memory for code.
    """
    if is_image(code):
        return load_image(
            parse_image(code),
            symbols,
            lambda name: import_addresses.get(name) or libm.resolve(name),
        )
    return _linker.link(code, symbols, import_addresses)


_linker = _Linker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_linker.replace_lock)


def load_cpu(
    binary: KernelBinary, resolve_runtime: Callable[[str], int | None] | None = None
) -> LoadedKernel:
    """Load a built kernel into this process. Cost: below 1 ms.

    Args:
        binary: result of ``build_cpu``, of this process or of one with the same
            ``target_identity``. Its code is executed, so it must be trusted.
        resolve_runtime: returns the address of a function of the native runtime; None for other
            names.

    Returns:
        The kernel, which any thread may call. Its code lives as long as the result.

    Raises:
        RuntimeError: if a symbol is missing, or the code is damaged.
        OSError: if the system refuses memory for code.
    """
    runtime_address = resolve_runtime or (lambda name: None)
    resolved = {
        symbol: runtime_address(symbol) or libm.resolve(symbol) for symbol in binary.imports
    }
    imports = {symbol: address for symbol, address in resolved.items() if address is not None}
    library, addresses = load_symbols(binary.code, (binary.entry,), imports)
    address = addresses[binary.entry]
    call: Any = _PROTOTYPE(address)
    # ``call`` must keep the code alive even if the LoadedKernel is gone.
    call.keepalive = library
    return LoadedKernel(address, call, library, len(binary.code))


@cache
def target_identity() -> str:
    """The parts of a kernel's cache key besides text and compiler: processor, vector library."""
    target = cpu_target()
    return json.dumps([target.cpu, target.flags, libm.library_identity()])
