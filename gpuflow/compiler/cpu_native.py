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

import llvmlite.binding as llvm

from gpuflow.compiler.cache import Entry, KernelCache, cache_key, version_of
from gpuflow.compiler.cpu_build import host_identity, host_machine, link_symbols

_FOLDER = Path(__file__).parent / "native"
_FILES = ("pool.ll", "execute.ll", "blocks.ll")
# How BLAS takes alpha and beta for each letter: complex ones by address.
_PRODUCTS = {
    "s": ("float", "1.0", "0.0"),
    "d": ("double", "1.0", "0.0"),
    "c": ("ptr", "@complex_one_c", "@complex_zero_c"),
    "z": ("ptr", "@complex_one_z", "@complex_zero_z"),
}
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
    text = native_text()
    key = cache_key(text, ("native", version_of("llvmlite"), host_identity()))

    def build() -> Entry:
        return Entry(_compile(text), "o", text, "native", _PYTHON)

    def load() -> NativeRuntime:
        entry = cache.get(key, build)
        try:
            library, addresses = _link(entry)
        except RuntimeError as error:
            library, addresses = _link(cache.replace(key, build, error))
        return NativeRuntime(addresses, library)

    return cache.once(key, load)


def _compile(text: str) -> bytes:
    machine = host_machine()
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def _link(entry: Entry) -> tuple[Any, dict[str, int]]:
    imports = {}
    for name in entry.imports:
        symbol = getattr(ctypes.pythonapi, name)
        imports[name] = ctypes.cast(symbol, ctypes.c_void_p).value or 0
    return link_symbols(entry.code, _SYMBOLS, imports)
