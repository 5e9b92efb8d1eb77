"""Compiles and loads the native runtime: thread pool, interpreter of native programs, products.

Its source is LLVM IR, in the ``*.ll`` files of this folder. llvmlite compiles each module when it
is first needed. The object code is stored in the kernel cache, as that of kernels.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import Entry, KernelCache, cache_key, source_digest
from gpuflow.compiler.cache.versions import version_of
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu import codegen
from gpuflow.targets.cpu.codegen import image
from gpuflow.targets.cpu.codegen.build import link_symbols, linkable, suffix_of, target_identity
from gpuflow.targets.cpu.codegen.machine_code import AS_WRITTEN, compiled

_FOLDER = Path(__file__).parent
_CORE = ("locations.ll", "pool.ll", "execute.ll", "copy.ll")
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
# By BLAS letter: type of the arguments alpha and beta, and their values. BLAS takes complex ones
# by address.
_PRODUCTS = {
    "s": ("float", "1.0", "0.0"),
    "d": ("double", "1.0", "0.0"),
    "c": ("ptr", "@one", "@zero"),
    "z": ("ptr", "@one", "@zero"),
}
_COMPLEX_COMPONENTS = {"c": "float", "z": "double"}
# By BLAS letter: type, bytes of an element, and elements of a vector.
_CONVOLUTIONS = {"s": ("float", 4, 16), "d": ("double", 8, 8)}
_PAUSES = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}
_PYTHON = (
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
class Module:
    """A module of the native runtime.

    Attributes:
        text: LLVM IR.
        symbols: functions that it defines.
        imports: functions of other modules of the runtime, and symbols of Python.
        level: LLVM's optimization level; 2 if LLVM should optimize its loops.
    """

    text: str
    symbols: tuple[str, ...]
    imports: tuple[str, ...] = ()
    level: int = 2


@record
class NativeRuntime:
    """A loaded module of the runtime.

    Attributes:
        addresses: addresses of its functions, by symbol.
        keepalive: owner of the code, which must outlive all calls.
    """

    addresses: Mapping[str, int]
    keepalive: object


def core_module() -> Module:
    """The thread pool and the interpreter of native programs; every process needs them."""
    return Module(_text(*_CORE), _CORE_SYMBOLS, _PYTHON, AS_WRITTEN)


def product_module(letter: str) -> Module:
    """Products of stacks of matrices, for the dtype of a BLAS letter."""
    return _blas_module("product", letter)


def vector_product_module(letter: str) -> Module:
    """Products of stacks of matrices and vectors, for the dtype of a BLAS letter."""
    return _blas_module("vector_product", letter)


def _blas_module(name: str, letter: str) -> Module:
    scalar, one, zero = _PRODUCTS[letter]
    constants = []
    if letter in _COMPLEX_COMPONENTS:
        kind = _COMPLEX_COMPONENTS[letter]
        constants = [
            f"@{name} = internal constant [2 x {kind}] [{kind} {value}, {kind} 0.0]"
            for name, value in (("one", "1.0"), ("zero", "0.0"))
        ]
    values = {"TYPE": letter, "SCALAR ONE": f"{scalar} {one}", "SCALAR ZERO": f"{scalar} {zero}"}
    text = "\n".join([*constants, READ_ARGUMENTS, _text(f"{name}.ll", values=values)])
    return Module(text, (f"gf_{name}_{letter}",), level=AS_WRITTEN)


def strided_module(count: str) -> Module:
    """Copies of strided views with elements of ``count`` bytes."""
    values = {"BYTES": count, "BITS": str(8 * int(count))}
    return Module(_text("strided.ll", values=values), (f"gf_strided_{count}",))


def convolution_module(letter: str) -> Module:
    """Convolutions, for the dtype of a BLAS letter."""
    kind, count, lanes = _CONVOLUTIONS[letter]
    iota = ", ".join(f"i32 {k}" for k in range(lanes))
    values = {
        "TYPE": letter,
        "ELEMENT": kind,
        "BYTES": str(count),
        "LANES": str(lanes),
        "IOTA": f"<{iota}>",
        "SUFFIX": f"v{lanes}f{8 * count}",
    }
    symbols = tuple(f"gf_{name}_{letter}" for name in ("convolution", "sum_partials", "zero"))
    return Module(_text("slots.ll", "convolution.ll", values=values) + "\n!0 = !{}", symbols)


def slots_text() -> str:
    """LLVM functions that claim and release slots of scratch memory, and common declarations."""
    return _text("slots.ll")


_MODULES: dict[str, Callable[[str], Module]] = {
    "product": product_module,
    "vector_product": vector_product_module,
    "strided": strided_module,
    "convolution": convolution_module,
    "sum_partials": convolution_module,
    "zero": convolution_module,
}


def module_with(symbol: str) -> Module:
    """Return the module that defines a function of the runtime.

    The symbol is one of the core module, ``gf_<name>``, or ``gf_<kind>_<letter or bytes>``.
    """
    if symbol in _CORE_SYMBOLS:
        return core_module()
    name = symbol.removeprefix("gf_")
    if name in _ON_DEMAND:
        text = _text("locations.ll", f"{name}.ll")
        return Module(text, (symbol,), _ON_DEMAND[name], AS_WRITTEN)
    kind, _, variant = name.rpartition("_")
    return _MODULES[kind](variant)


def _text(*names: str, values: Mapping[str, str] | None = None) -> str:
    sources = [(_FOLDER / name).read_text() for name in names]
    text = "\n".join([_pause(), *_INTRINSICS, *sources])
    for name, value in (values or {}).items():
        text = text.replace(name, value)
    return text


def _pause() -> str:
    """The LLVM function that a spinning thread calls between two polls."""
    instruction = _PAUSES.get(platform.machine())
    if instruction is None:
        return "define internal void @pause() {\n  ret void\n}\n"
    body = f"define internal void @pause() {{\n  call void @{instruction}()\n  ret void\n}}\n"
    return f"declare void @{instruction}()\n{body}"


@cache
def _key_fields() -> tuple[str, ...]:
    """Inputs of a module's cache key besides its text and level."""
    digest = source_digest((codegen, image))
    return ("native", digest, version_of("llvmlite"), target_identity())


def load_native(module: Module, cache: KernelCache) -> NativeRuntime:
    """Return a module of the runtime, loaded from the cache or built.

    Args:
        module: the module.
        cache: stores the object code. It loads a module once: the pool's state is in that copy.
    """
    key = cache_key(module.text, (f"level {module.level}", *_key_fields()))

    def build() -> Entry:
        code = linkable(compiled(module.text, module.level).code, module.symbols)
        return Entry(code, suffix_of(code), module.text, "native", module.imports)

    def load() -> NativeRuntime:
        entry = cache.get(key, build)
        imported = _import_addresses(entry.imports, cache)
        try:
            library, addresses = link_symbols(entry.code, module.symbols, imported)
        except RuntimeError as error:
            entry = cache.replace(key, build, error)
            library, addresses = link_symbols(entry.code, module.symbols, imported)
        return NativeRuntime(addresses, library)

    return cache.once(key, load)


def _do_nothing() -> None:
    """Called by long loops: a Python call raises asynchronous exceptions of other threads."""


_OBJECTS = {"gf_do_nothing": _do_nothing}


def _import_addresses(imports: Iterable[str], cache: KernelCache) -> dict[str, int]:
    """The addresses of imports: Python objects, functions of other modules, the C API."""
    imported = {}
    for name in imports:
        if name in _OBJECTS:
            imported[name] = id(_OBJECTS[name])
        elif name.startswith("gf_"):
            imported[name] = load_native(module_with(name), cache).addresses[name]
        else:
            symbol = getattr(ctypes.pythonapi, name)
            imported[name] = ctypes.cast(symbol, ctypes.c_void_p).value or 0
    return imported


@cache
def native_function(symbol: str) -> int:
    """The address of a function of the runtime; loads its module into the process."""
    return load_native(module_with(symbol), kernel_cache()).addresses[symbol]
