"""Compiles and loads the native runtime: thread pool, interpreter of native programs, products.

Its source is LLVM IR, in the ``*.ll`` files of this folder. llvmlite compiles each module when it
is first needed. The object code is stored in the kernel cache, as that of kernels.

Functions that share indices among threads have the signature of kernels, ``void name(int64
*arguments, int64 lo, int64 hi)``. No function checks its arguments, which the comment before it
lists.

Tests: tests/targets/cpu/test_cpu_pool.py, tests/targets/test_kernel_keys.py.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache, cache_key, source_digest
from gpuflow.compiler.cache.versions import version_of
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu import codegen
from gpuflow.targets.cpu.codegen import image
from gpuflow.targets.cpu.codegen.build import (
    image_if_supported,
    load_symbols,
    suffix_of,
    target_identity,
)
from gpuflow.targets.cpu.codegen.machine_code import SIMPLIFY_ONLY, compile_ir

_FOLDER = Path(__file__).parent
_CORE_FILES = ("locations.ll", "pool.ll", "execute.ll", "copy.ll")
_CORE_SYMBOLS = (
    "gf_pool_reset",
    "gf_dispatch",
    "gf_worker",
    "gf_stop",
    "gf_execute",
    "gf_call",
    "gf_copy",
    "gf_interrupted",
    "gf_signals",
)
# Functions that only some programs need, each in a separate module, and their imports.
_ON_DEMAND = {
    "scan": ("gf_execute", "gf_signals"),
    "while": ("gf_execute", "gf_signals"),
    "branch": ("gf_execute",),
    "parallel_loop": ("gf_scan", "gf_dispatch"),
    "segments": (),
}
# By BLAS letter: LLVM type of the arguments alpha and beta, and their values. BLAS takes complex
# ones by address.
_BLAS_SCALARS = {
    "s": ("float", "1.0", "0.0"),
    "d": ("double", "1.0", "0.0"),
    "c": ("ptr", "@one", "@zero"),
    "z": ("ptr", "@one", "@zero"),
}
_COMPLEX_COMPONENTS = {"c": "float", "z": "double"}
# By BLAS letter: LLVM type and bytes of an element, and elements of a vector.
_CONVOLUTION_TYPES = {"s": ("float", 4, 16), "d": ("double", 8, 8)}
_PAUSE_INTRINSICS = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}
_CORE_IMPORTS = (
    "PyErr_CheckSignals",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "Py_IncRef",
    "Py_DecRef",
    "PyObject_CallNoArgs",
    "_Py_NoneStruct",
    "gf_do_nothing",
)
_INTRINSICS = (
    "declare i64 @llvm.smin.i64(i64, i64)",
    "declare i64 @llvm.smax.i64(i64, i64)",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
)

# LLVM functions that read the k-th slot of an argument block.
READ_ARGUMENTS = """
define internal i64 @integer(ptr %arguments, i64 %k) alwaysinline {
  %at = getelementptr i64, ptr %arguments, i64 %k
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @pointer(ptr %arguments, i64 %k) alwaysinline {
  %at = getelementptr i64, ptr %arguments, i64 %k
  %value = load ptr, ptr %at
  ret ptr %value
}
"""


@record
class NativeModule:
    """A module of the native runtime, not yet compiled.

    Attributes:
        text: LLVM IR.
        symbols: functions that it exports.
        imports: functions of other modules of the runtime, and symbols of Python.
        level: LLVM's optimization level: SIMPLIFY_ONLY, or 2 if LLVM should optimize its loops.
    """

    text: str
    symbols: tuple[str, ...]
    imports: tuple[str, ...] = ()
    level: int = 2


@record
class LoadedModule:
    """A loaded module of the runtime. The kernel cache of the process owns it.

    Attributes:
        addresses: addresses of its functions, by symbol.
        keepalive: owner of the code, which must outlive all calls.
    """

    addresses: Mapping[str, int]
    keepalive: object


def core_module() -> NativeModule:
    """The thread pool and the interpreter of native programs; every process needs them."""
    return NativeModule(_read_sources(*_CORE_FILES), _CORE_SYMBOLS, _CORE_IMPORTS, SIMPLIFY_ONLY)


def product_module(letter: str) -> NativeModule:
    """Products of stacks of matrices, for the dtype of a BLAS letter."""
    return _blas_module("product", letter)


def vector_product_module(letter: str) -> NativeModule:
    """Products of stacks of matrices and vectors, for the dtype of a BLAS letter."""
    return _blas_module("vector_product", letter)


def _blas_module(name: str, letter: str) -> NativeModule:
    scalar, one, zero = _BLAS_SCALARS[letter]
    constants = []
    if letter in _COMPLEX_COMPONENTS:
        part = _COMPLEX_COMPONENTS[letter]
        constants = [
            f"@{constant} = internal constant [2 x {part}] [{part} {value}, {part} 0.0]"
            for constant, value in (("one", "1.0"), ("zero", "0.0"))
        ]
    replacements = {
        "TYPE": letter,
        "SCALAR ONE": f"{scalar} {one}",
        "SCALAR ZERO": f"{scalar} {zero}",
    }
    source = _read_sources(f"{name}.ll", replacements=replacements)
    text = "\n".join([*constants, READ_ARGUMENTS, source])
    return NativeModule(text, (f"gf_{name}_{letter}",), level=SIMPLIFY_ONLY)


def strided_module(itemsize: str) -> NativeModule:
    """Copies of strided views with elements of ``itemsize`` bytes: "1", "2", "4", "8" or "16"."""
    replacements = {"BYTES": itemsize, "BITS": str(8 * int(itemsize))}
    return NativeModule(
        _read_sources("strided.ll", replacements=replacements), (f"gf_strided_{itemsize}",)
    )


def convolution_module(letter: str) -> NativeModule:
    """Convolutions, for the dtype of a BLAS letter."""
    element_type, itemsize, lanes = _CONVOLUTION_TYPES[letter]
    iota = ", ".join(f"i32 {k}" for k in range(lanes))
    replacements = {
        "TYPE": letter,
        "ELEMENT": element_type,
        "BYTES": str(itemsize),
        "LANES": str(lanes),
        "IOTA": f"<{iota}>",
        "SUFFIX": f"v{lanes}f{8 * itemsize}",
    }
    symbols = tuple(f"gf_{name}_{letter}" for name in ("convolution", "sum_partials", "zero"))
    text = _read_sources("slots.ll", "convolution.ll", replacements=replacements)
    return NativeModule(text + "\n!0 = !{}", symbols)


def slots_text() -> str:
    """LLVM functions that claim and release slots of scratch memory, and common declarations."""
    return _read_sources("slots.ll")


_MODULE_BUILDERS: dict[str, Callable[[str], NativeModule]] = {
    "product": product_module,
    "vector_product": vector_product_module,
    "strided": strided_module,
    "convolution": convolution_module,
    "sum_partials": convolution_module,
    "zero": convolution_module,
}


def module_defining(symbol: str) -> NativeModule:
    """Return the module that defines a function of the runtime.

    The symbol is one of the core module, ``gf_<name>``, or ``gf_<kind>_<letter or bytes>``.
    """
    if symbol in _CORE_SYMBOLS:
        return core_module()
    name = symbol.removeprefix("gf_")
    if name in _ON_DEMAND:
        text = _read_sources("locations.ll", f"{name}.ll")
        return NativeModule(text, (symbol,), _ON_DEMAND[name], SIMPLIFY_ONLY)
    kind, _, variant = name.rpartition("_")
    return _MODULE_BUILDERS[kind](variant)


def _read_sources(*names: str, replacements: Mapping[str, str] | None = None) -> str:
    """Concatenate files of this folder after common declarations, and replace placeholders.

    Replacements are made in order, also inside of longer words.
    """
    sources = [(_FOLDER / name).read_text() for name in names]
    text = "\n".join([_pause(), *_INTRINSICS, *sources])
    for name, value in (replacements or {}).items():
        text = text.replace(name, value)
    return text


def _pause() -> str:
    """The LLVM function that a spinning thread calls between two polls."""
    instruction = _PAUSE_INTRINSICS.get(platform.machine())
    if instruction is None:
        return "define internal void @pause() {\n  ret void\n}\n"
    body = f"define internal void @pause() {{\n  call void @{instruction}()\n  ret void\n}}\n"
    return f"declare void @{instruction}()\n{body}"


@cache
def _cache_key_inputs() -> tuple[str, ...]:
    """Inputs of a module's cache key besides its text and level."""
    digest = source_digest((codegen, image))
    return ("native", digest, version_of("llvmlite"), target_identity())


def load_native(module: NativeModule, cache: KernelCache) -> LoadedModule:
    """Return a module of the runtime, loaded from the cache or built.

    Args:
        module: the module.
        cache: stores the object code. It loads a module once: the pool's state is in that copy.
    """
    key = cache_key(module.text, (f"level {module.level}", *_cache_key_inputs()))

    def build() -> CacheEntry:
        code = image_if_supported(compile_ir(module.text, module.level).code, module.symbols)
        return CacheEntry(code, suffix_of(code), module.text, "native", module.imports)

    def load() -> LoadedModule:
        entry = cache.get(key, build)
        imported = _import_addresses(entry.imports, cache)
        try:
            library, addresses = load_symbols(entry.code, module.symbols, imported)
        except RuntimeError as error:
            entry = cache.rebuild(key, build, error)
            library, addresses = load_symbols(entry.code, module.symbols, imported)
        return LoadedModule(addresses, library)

    return cache.load_once(key, load)


def _do_nothing() -> None:
    """Called by long loops: a Python call raises asynchronous exceptions of other threads."""


_PYTHON_OBJECTS = {"gf_do_nothing": _do_nothing}


def _import_addresses(imports: Iterable[str], cache: KernelCache) -> dict[str, int]:
    """The addresses of imports: Python objects, functions of other modules, the C API."""
    imported = {}
    for name in imports:
        if name in _PYTHON_OBJECTS:
            imported[name] = id(_PYTHON_OBJECTS[name])
        elif name.startswith("gf_"):
            imported[name] = load_native(module_defining(name), cache).addresses[name]
        else:
            symbol = getattr(ctypes.pythonapi, name)
            imported[name] = ctypes.cast(symbol, ctypes.c_void_p).value or 0
    return imported


@cache
def native_function(symbol: str) -> int:
    """The address of a function of the runtime; loads its module into the process."""
    return load_native(module_defining(symbol), kernel_cache()).addresses[symbol]
