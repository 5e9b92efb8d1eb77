"""Calls of the C math library, with the vector variants of glibc's libmvec.

A scalar call is declared under a name of ours (``gpuflow_expf``), so that LLVM does not take it for
the C function and fold or rename it. The attribute ``vector-function-abi-variant`` lists its
vector variants; LoopVectorize calls those. Without libmvec, or where a function is missing there,
the loop calls the scalar function and stays correct.

Source: LLVM Language Reference, "vector-function-abi-variant"; x86 vector function ABI of glibc.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

import llvmlite.ir as ir

from gpuflow.compiler.cpu_emit import Lane

# Functions of kir.scalar (and fmod): the C name and the number of arguments.
FUNCTIONS = {
    "exp": ("exp", 1),
    "exp2": ("exp2", 1),
    "expm1": ("expm1", 1),
    "log": ("log", 1),
    "log1p": ("log1p", 1),
    "log2": ("log2", 1),
    "sin": ("sin", 1),
    "cos": ("cos", 1),
    "tan": ("tan", 1),
    "asin": ("asin", 1),
    "acos": ("acos", 1),
    "atan": ("atan", 1),
    "sinh": ("sinh", 1),
    "cosh": ("cosh", 1),
    "tanh": ("tanh", 1),
    "asinh": ("asinh", 1),
    "acosh": ("acosh", 1),
    "atanh": ("atanh", 1),
    "cbrt": ("cbrt", 1),
    "erf": ("erf", 1),
    "erfc": ("erfc", 1),
    "atan2": ("atan2", 2),
    "pow": ("pow", 2),
    "hypot": ("hypot", 2),
    "fmod": ("fmod", 2),
    "nextafter": ("nextafter", 2),
    "lgamma": ("lgamma", 1),
}
_PREFIX = "gpuflow_"

# Letter of the vector function ABI and the width of its registers in bits, by machine.
_VARIANTS = {
    "x86_64": (("e", 512), ("d", 256), ("c", 256), ("b", 128)),
    "aarch64": (("n", 128),),
}


@cache
def _library(*names: str) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _address(library: ctypes.CDLL | None, symbol: str) -> int | None:
    function = getattr(library, symbol, None)
    return ctypes.cast(function, ctypes.c_void_p).value if function is not None else None


def resolve(symbol: str) -> int | None:
    """The address of a function that a kernel's object file imports, or None.

    Args:
        symbol: a scalar function under our name, a vector variant (``_ZGV...``), or a helper of
            the compiler's run-time library.

    Returns:
        The address in this process.
    """
    if symbol.startswith("_ZGV"):
        return _address(_library("libmvec.so.1"), symbol)
    if symbol.startswith(_PREFIX):
        mathematics = _library("libm.so.6", "libm.dylib", "ucrtbase.dll")
        return _address(mathematics, symbol.removeprefix(_PREFIX))
    return _address(_library("libgcc_s.so.1"), symbol)


@cache
def vector_variants(function: str, arguments: int, is_double: bool) -> tuple[tuple[str, int], ...]:
    """The vector variants of a C function that this process has, as (symbol, lanes)."""
    found = []
    for letter, register_bits in _VARIANTS.get(platform.machine(), ()):
        lanes = register_bits // (64 if is_double else 32)
        symbol = f"_ZGV{letter}N{lanes}{'v' * arguments}_{function}"
        if resolve(symbol) is not None:
            found.append((symbol, lanes))
    return tuple(found)


@cache
def all_symbols() -> tuple[str, ...]:
    """Every scalar and vector function that a kernel may call in this process."""
    symbols = []
    for name, arguments in FUNCTIONS.values():
        for suffix in ("f", ""):
            variants = vector_variants(name + suffix, arguments, not suffix)
            symbols += [_PREFIX + name + suffix, *(symbol for symbol, _ in variants)]
    return tuple(symbols)


@cache
def library_identity() -> str:
    """What decides which vector functions a build can use; part of the cache key."""
    vectors = (symbol for symbol in all_symbols() if not symbol.startswith(_PREFIX))
    return f"{platform.machine()} {' '.join(vectors)}"


def call(fn: str, *arguments: Lane) -> Lane:
    """Emit a call of a function of ``FUNCTIONS``."""
    first = arguments[0]
    name, arity = FUNCTIONS[fn]
    is_double = first.dtype == "float64"
    symbol = name if is_double else name + "f"
    function = _declare(first.builder.module, symbol, arity, is_double)
    return first.like(first.builder.call(function, [a.value for a in arguments]))


def _declare(module: ir.Module, symbol: str, arity: int, is_double: bool) -> ir.Function:
    own_name = _PREFIX + symbol
    if own_name in module.globals:
        return module.globals[own_name]
    kind = ir.DoubleType() if is_double else ir.FloatType()
    function = _pure_function(module, own_name, kind, arity)
    variants = vector_variants(symbol, arity, is_double)
    if variants:
        # A variant's name in the list repeats our scalar name, then the symbol in parentheses.
        mapping = ",".join(f"{v.rsplit('_', 1)[0]}_{own_name}({v})" for v, _ in variants)
        # llvmlite refuses attributes that it does not know; a plain set accepts them.
        set.add(function.attributes, f'"vector-function-abi-variant"="{mapping}"')
        vectors = [
            _pure_function(module, v, ir.VectorType(kind, lanes), arity) for v, lanes in variants
        ]
        _keep_declared(module, vectors)
    return function


def _pure_function(module: ir.Module, name: str, kind: ir.Type, arity: int) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(kind, [kind] * arity), name)
    function.attributes.add("nounwind")
    function.attributes.add("readnone")
    set.add(function.attributes, "willreturn")
    return function


def _keep_declared(module: ir.Module, functions: list[ir.Function]) -> None:
    """Add functions to ``llvm.compiler.used``: a module may have only one such list."""
    pointer = ir.IntType(8).as_pointer()
    name = "llvm.compiler.used"
    kept = module.globals.get(name)
    entries = list(kept.initializer.constant) if kept is not None else []
    entries += [function.bitcast(pointer) for function in functions]
    kind = ir.ArrayType(pointer, len(entries))
    if kept is None:
        kept = ir.GlobalVariable(module, kind, name)
        kept.linkage = "appending"
        kept.section = "llvm.metadata"
    kept.value_type = kind
    kept.type = kind.as_pointer()
    # llvmlite has no type hints; its None is inferred to be the only initializer.
    kept.initializer = ir.Constant(kind, entries)  # pyright: ignore[reportAttributeAccessIssue]
