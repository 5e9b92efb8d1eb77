"""The native runtime of the CPU: thread pool, native programs and products, as object code.

Its text is LLVM IR, in ``native/*.ll``. It is compiled by llvmlite alone, in 50 ms, and kept in the
kernel cache like a kernel.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuflow.compiler.cache import Entry, KernelCache, cache_key, version_of
from gpuflow.compiler.cpu_build import host_identity, link_symbols
from gpuflow.compiler.cpu_llvm import host_machine, object_code, optimized

_FOLDER = Path(__file__).parent / "native"
_FILES = ("pool.ll", "execute.ll", "blocks.ll")
# How BLAS takes alpha and beta for each letter: complex ones by address.
_PRODUCTS = {
    "s": ("float", "1.0", "0.0"),
    "d": ("double", "1.0", "0.0"),
    "c": ("ptr", "@complex_one_c", "@complex_zero_c"),
    "z": ("ptr", "@complex_one_z", "@complex_zero_z"),
}
# For each letter that convolutions know: its type, bytes, and elements of a vector.
_CONVOLUTIONS = {"s": ("float", 4, 16), "d": ("double", 8, 8)}
_ITEM_BYTES = (1, 2, 4, 8, 16)
_PAUSES = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}
_SYMBOLS = (
    "gf_pool_reset", "gf_dispatch", "gf_worker", "gf_stop", "gf_execute", "gf_call", "gf_copy",
    *(f"gf_product_{letter}" for letter in _PRODUCTS),
    *(f"gf_strided_{count}" for count in _ITEM_BYTES),
)  # fmt: skip
_PYTHON = (
    "PyErr_CheckSignals", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef",
    "_Py_NoneStruct",
)  # fmt: skip


@dataclass(frozen=True)
class NativeRuntime:
    """The runtime in memory.

    Attributes:
        addresses: of its functions, by symbol.
        keepalive: owns the code.
    """

    addresses: Mapping[str, int]
    keepalive: Any


def native_text() -> str:
    """The module's text for this processor's architecture."""
    parts = [_pause()]
    parts += [(_FOLDER / name).read_text() for name in _FILES]
    for letter, kind in (("c", "float"), ("z", "double")):
        for name, value in (("one", "1.0"), ("zero", "0.0")):
            parts.append(
                f"@complex_{name}_{letter} = internal constant "
                f"[2 x {kind}] [{kind} {value}, {kind} 0.0]"
            )
    product = (_FOLDER / "product.ll").read_text()
    for letter, (scalar, one, zero) in _PRODUCTS.items():
        text = product.replace("TYPE", letter).replace("SCALAR ONE", f"{scalar} {one}")
        parts.append(text.replace("SCALAR ZERO", f"{scalar} {zero}"))
    strided = (_FOLDER / "strided.ll").read_text()
    parts += [
        strided.replace("BYTES", str(count)).replace("BITS", str(8 * count))
        for count in _ITEM_BYTES
    ]
    return "\n".join(parts)


def convolution_text(letter: str) -> str:
    """The text of a module for convolutions of one type, built when the first one is met."""
    declarations = (
        "declare i64 @llvm.smin.i64(i64, i64)", "declare i64 @llvm.smax.i64(i64, i64)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    )  # fmt: skip
    kind, count, lanes = _CONVOLUTIONS[letter]
    iota = ", ".join(f"i32 {k}" for k in range(lanes))
    values = {
        "TYPE": letter, "ELEMENT": kind, "BYTES": str(count), "LANES": str(lanes),
        "IOTA": f"<{iota}>", "SUFFIX": f"v{lanes}f{8 * count}",
    }  # fmt: skip
    text = (_FOLDER / "convolution.ll").read_text()
    for name, value in values.items():
        text = text.replace(name, value)
    return "\n".join([_pause(), *declarations, text, "!0 = !{}"])


def _pause() -> str:
    """What a waiting thread does between two looks, as a function."""
    instruction = _PAUSES.get(platform.machine())
    if instruction is None:
        return "define internal void @pause() {\n  ret void\n}\n"
    body = f"define internal void @pause() {{\n  call void @{instruction}()\n  ret void\n}}\n"
    return f"declare void @{instruction}()\n{body}"


def load_native(cache: KernelCache) -> NativeRuntime:
    """The runtime, from the cache or built.

    Args:
        cache: keeps the object code; the runtime itself is one for each cache.

    Returns:
        The addresses of its functions.
    """
    return _loaded(cache, native_text(), _SYMBOLS, _PYTHON)


def load_convolutions(cache: KernelCache, letter: str) -> NativeRuntime:
    """The module for convolutions of the type with BLAS's ``letter``; see ``load_native``."""
    symbols = tuple(f"gf_{name}_{letter}" for name in ("convolution", "sum_parts", "zero"))
    return _loaded(cache, convolution_text(letter), symbols, ())


def _loaded(
    cache: KernelCache, text: str, symbols: tuple[str, ...], imports: tuple[str, ...]
) -> NativeRuntime:
    key = cache_key(text, ("native", version_of("llvmlite"), host_identity()))

    def build() -> Entry:
        return Entry(_compile(text), "o", text, "native", imports)

    def load() -> NativeRuntime:
        entry = cache.get(key, build)
        try:
            library, addresses = _link(entry, symbols)
        except RuntimeError as error:
            library, addresses = _link(cache.replace(key, build, error), symbols)
        return NativeRuntime(addresses, library)

    return cache.once(key, load)


def _compile(text: str) -> bytes:
    machine = host_machine()
    return object_code(optimized(text, machine, level=2), machine)


def _link(entry: Entry, symbols: tuple[str, ...]) -> tuple[Any, dict[str, int]]:
    imports = {}
    for name in entry.imports:
        symbol = getattr(ctypes.pythonapi, name)
        imports[name] = ctypes.cast(symbol, ctypes.c_void_p).value or 0
    return link_symbols(entry.code, symbols, imports)
