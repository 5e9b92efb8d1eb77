"""Calls of the C math library, with the vector variants of glibc's libmvec.

A scalar function is declared with a prefix (``gpuflow_expf``), so that LLVM does not recognize the
C function and fold or rename it. The attribute ``vector-function-abi-variant`` lists its vector
variants, which LLVM's LoopVectorize calls. If libmvec or a variant is missing, a loop calls the
scalar function.

Source: LLVM Language Reference, "vector-function-abi-variant"; x86 vector function ABI of glibc.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, intrinsic

if TYPE_CHECKING:
    import llvmlite.binding as llvm
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")
    llvm = LazyModule("llvmlite.binding")

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
}
_PREFIX = "gpuflow_"

# By machine: letter of the vector function ABI, bits of its registers, and LLVM's feature for them.
# Without the feature, code would pass arguments in other registers than the variant expects.
_VARIANTS = {
    "x86_64": (("e", 512, "avx512f"), ("d", 256, "avx2"), ("c", 256, "avx"), ("b", 128, "sse2")),
    "aarch64": (("n", 128, ""),),
}


@cache
def _library(*names: str) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def _process() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if os.name == "posix" else None


def _address(library: ctypes.CDLL | None, symbol: str) -> int | None:
    function = getattr(library, symbol, None)
    return ctypes.cast(function, ctypes.c_void_p).value if function is not None else None


def resolve(symbol: str) -> int | None:
    """Resolve an import of a kernel's code to its address in this process, or None.

    Args:
        symbol: a scalar function with our prefix, a vector variant (``_ZGV...``), a function of the
            process (``memset``), or a helper of the compiler's run-time library.
    """
    if symbol.startswith("_ZGV"):
        return _address(_library("libmvec.so.1"), symbol)
    if symbol.startswith(_PREFIX):
        mathematics = _library("libm.so.6", "libm.dylib", "ucrtbase.dll")
        return _address(mathematics, symbol.removeprefix(_PREFIX))
    address = _address(_process(), symbol)
    return address if address is not None else _address(_library("libgcc_s.so.1"), symbol)


@cache
def _widths(is_double: bool) -> tuple[tuple[str, int], ...]:
    """Letter and number of lanes of each vector variant that the target supports."""
    features = cpu_target().features
    return tuple(
        (letter, register // (64 if is_double else 32))
        for letter, register, feature in _VARIANTS.get(platform.machine(), ())
        if not feature or feature in features
    )


@cache
def vector_variants(function: str, arguments: int, is_double: bool) -> tuple[tuple[str, int], ...]:
    """The vector variants of a C function that this process has, as (symbol, lanes)."""
    variants = []
    for letter, lanes in _widths(is_double):
        symbol = f"_ZGV{letter}N{lanes}{'v' * arguments}_{function}"
        if resolve(symbol) is not None:
            variants.append((symbol, lanes))
    return tuple(variants)


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
    """The vector functions that this process has; part of the cache key."""
    vectors = (symbol for symbol in all_symbols() if not symbol.startswith(_PREFIX))
    return f"{platform.machine()} {' '.join(vectors)}"


class NoVectors(Exception):
    """The C library has no variant of a function for vectors of that width."""


def call(fn: str, *arguments: IRValue) -> IRValue:
    """Emit a call of a function of ``FUNCTIONS``.

    Raises:
        NoVectors: if the arguments are vectors, and the function has no variant for them.
    """
    first = arguments[0]
    name, arity = FUNCTIONS[fn]
    is_double = first.dtype == "float64"
    symbol = name if is_double else name + "f"
    function = _declare(first.builder.module, symbol, arity, is_double, first.width)
    return first.like(first.builder.call(function, [a.value for a in arguments]))


def call_beyond(
    bound: float, fn: str, size: IRValue, arguments: Sequence[IRValue], near: IRValue
) -> IRValue:
    """Emit a call of a function that runs only for rare elements with ``|size| > bound``.

    LLVM does not vectorize a loop with a branch. So the branch is in a helper function. Its vector
    variants branch on whether any lane needs the call, and are inlined after vectorization, by
    ``inline_variants``. For vectors that this compiler writes, LLVM inlines the helper at once.

    Args:
        bound: the largest magnitude for which ``near`` is the result.
        fn: a name of ``FUNCTIONS``.
        size: the value that is compared; nan counts as near.
        arguments: arguments of the function, of the dtype of ``size``.
        near: the result of all other elements.

    Returns:
        The result.
    """
    module = size.builder.module
    is_double = size.dtype == "float64"
    symbol = FUNCTIONS[fn][0] + ("" if is_double else "f")
    arity = len(arguments)
    name = f"{_PREFIX}{symbol}_beyond"
    if size.width > 1:
        name += f"_{size.width}"
        if name not in module.globals:
            _define_vectors(module, name, symbol, arity, is_double, bound, size.width)
    elif name not in module.globals:
        _define_beyond(module, name, symbol, arity, is_double, bound)
    operands = [lane.value for lane in (size, *arguments, near)]
    return size.like(size.builder.call(module.globals[name], operands))


def _define_beyond(
    module: ir.Module, name: str, symbol: str, arity: int, is_double: bool, bound: float
) -> None:
    """Define the scalar helper of ``call_beyond``, and its vector variants."""
    kind = ir.DoubleType() if is_double else ir.FloatType()
    scalar = _declare(module, symbol, arity, is_double)
    variants = []
    # One variant for each number of lanes.
    letters = {lanes: letter for letter, lanes in reversed(_widths(is_double))}
    for lanes, letter in letters.items():
        variant = f"_ZGV{letter}N{lanes}{'v' * (arity + 2)}_{name}"
        variants.append(_define_vectors(module, variant, symbol, arity, is_double, bound, lanes))
    function = _pure_function(module, name, kind, arity + 2)
    # If it were inlined before vectorization, the loop would have a branch.
    function.attributes.add("noinline")
    _emit_beyond(function, scalar, bound, 1)
    _set_variants(function, variants)
    _retain_declarations(module, [function, *variants])


def _define_vectors(
    module: ir.Module, name: str, symbol: str, arity: int, is_double: bool, bound: float, lanes: int
) -> ir.Function:
    """Define the helper of ``call_beyond`` for vectors."""
    kind = ir.VectorType(ir.DoubleType() if is_double else ir.FloatType(), lanes)
    function = _pure_function(module, name, kind, arity + 2)
    function.attributes.add("alwaysinline")
    try:
        called = _declare(module, symbol, arity, is_double, lanes)
    except NoVectors:
        called = _declare(module, symbol, arity, is_double)
    _emit_beyond(function, called, bound, lanes)
    return function


def _emit_beyond(function: ir.Function, called: ir.Function, bound: float, lanes: int) -> None:
    function.linkage = "internal"
    size, *arguments, near = function.args
    entry, rare, done = (function.append_basic_block(name) for name in ("entry", "rare", "done"))
    builder = ir.IRBuilder(entry)
    limit = ir.Constant(size.type, bound if lanes == 1 else [bound] * lanes)
    absolute = builder.call(intrinsic(function.module, "fabs", size.type, [size.type]), [size])
    beyond = builder.fcmp_ordered(">", absolute, limit)
    mask_type = ir.IntType(lanes)
    mask = builder.bitcast(beyond, mask_type)
    any_beyond = builder.icmp_unsigned("!=", mask, ir.Constant(mask_type, 0))
    builder.cbranch(any_beyond, rare, done).set_weights([1, 1 << 20])
    builder = ir.IRBuilder(rare)
    result = builder.select(beyond, _called(builder, called, arguments, lanes), near)
    builder.branch(done)
    builder = ir.IRBuilder(done)
    phi = builder.phi(size.type)
    phi.add_incoming(near, entry)
    phi.add_incoming(result, rare)
    builder.ret(phi)


def _called(
    builder: ir.IRBuilder, called: ir.Function, arguments: Sequence[Instruction], lanes: int
) -> Instruction:
    """Emit a call for vectors; if the function is scalar, one call per lane."""
    if called.args[0].type == arguments[0].type:
        return builder.call(called, arguments)
    result = arguments[0]
    for lane in range(lanes):
        index = ir.Constant(ir.IntType(32), lane)
        one = builder.call(called, [builder.extract_element(x, index) for x in arguments])
        result = builder.insert_element(result, one, index)
    return result


def inline_variants(module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    """Inline the vector helpers of ``call_beyond``, after vectorization.

    Args:
        module: the module, after its passes.
        builder: the pass builder.
    """
    if not any(f"{_PREFIX}" in f.name and not f.is_declaration for f in module.functions):
        return
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)


def _declare(
    module: ir.Module, symbol: str, arity: int, is_double: bool, lanes: int = 1
) -> ir.Function:
    """Declare a function of the C library, or its variant for ``lanes`` elements.

    Raises:
        NoVectors: if there is no such variant.
    """
    kind = ir.DoubleType() if is_double else ir.FloatType()
    variants = vector_variants(symbol, arity, is_double)
    if lanes > 1:
        matching = [name for name, width in variants if width == lanes]
        if not matching:
            raise NoVectors(symbol)
        declared = module.globals.get(matching[0])
        vector = ir.VectorType(kind, lanes)
        return declared or _pure_function(module, matching[0], vector, arity)
    prefixed = _PREFIX + symbol
    if prefixed in module.globals:
        return module.globals[prefixed]
    function = _pure_function(module, prefixed, kind, arity)
    widths = dict.fromkeys(width for _, width in variants)
    functions = [_declare(module, symbol, arity, is_double, width) for width in widths]
    if functions:
        _set_variants(function, functions)
        _retain_declarations(module, functions)
    return function


def _set_variants(function: ir.Function, variants: list[ir.Function]) -> None:
    # A variant's name in the list repeats the scalar name, then the symbol in parentheses.
    pairs = [(variant.name.split("_", 2)[1], variant.name) for variant in variants]
    mapping = ",".join(f"_{shape}_{function.name}({name})" for shape, name in pairs)
    # llvmlite's add() rejects attributes that it does not know; that of set does not.
    set.add(function.attributes, f'"vector-function-abi-variant"="{mapping}"')


def _pure_function(module: ir.Module, name: str, kind: ir.Type, arity: int) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(kind, [kind] * arity), name)
    function.attributes.add("nounwind")
    function.attributes.add("readnone")
    set.add(function.attributes, "willreturn")
    return function


def _retain_declarations(module: ir.Module, functions: list[ir.Function]) -> None:
    """Add functions to the module's only list ``llvm.compiler.used``, so that LLVM keeps them."""
    pointer = ir.IntType(8).as_pointer()
    name = "llvm.compiler.used"
    used = module.globals.get(name)
    entries = list(used.initializer.constant) if used is not None else []
    entries += [function.bitcast(pointer) for function in functions]
    kind = ir.ArrayType(pointer, len(entries))
    if used is None:
        used = ir.GlobalVariable(module, kind, name)
        used.linkage = "appending"
        used.section = "llvm.metadata"
    used.value_type = kind
    used.type = kind.as_pointer()
    # llvmlite has no type hints; its None is inferred to be the only initializer.
    used.initializer = ir.Constant(kind, entries)  # pyright: ignore[reportAttributeAccessIssue]
