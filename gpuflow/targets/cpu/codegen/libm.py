"""Calls of the C math library, with the vector variants of glibc's libmvec.

A scalar function is declared with a prefix (``gpuflow_expf``), so that LLVM does not recognize the
C function and fold or rename it. The attribute ``vector-function-abi-variant`` lists its vector
variants, which LLVM's LoopVectorize calls. If libmvec or a variant is missing, a loop calls the
scalar function.

Source: LLVM Language Reference, "vector-function-abi-variant"; x86 vector function ABI of glibc.

Tests: tests/targets/cpu/test_cpu_kernels.py, tests/targets/cpu/test_cpu_polynomials.py.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, intrinsic

if TYPE_CHECKING:
    import llvmlite.binding as llvm
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")
    llvm = LazyModule("llvmlite.binding")

# By function of kir.scalar, and fmod: number of arguments. The C function has the same name, for
# float32 with the suffix f.
C_FUNCTION_ARITY = {
    "exp": 1,
    "exp2": 1,
    "expm1": 1,
    "log": 1,
    "log1p": 1,
    "log2": 1,
    "sin": 1,
    "cos": 1,
    "tan": 1,
    "asin": 1,
    "acos": 1,
    "atan": 1,
    "sinh": 1,
    "cosh": 1,
    "tanh": 1,
    "asinh": 1,
    "acosh": 1,
    "atanh": 1,
    "cbrt": 1,
    "erf": 1,
    "erfc": 1,
    "atan2": 2,
    "pow": 2,
    "hypot": 2,
    "fmod": 2,
    "nextafter": 2,
}
_PREFIX = "gpuflow_"


class _VectorAbi(NamedTuple):
    """A calling convention of vector functions.

    Attributes:
        letter: its letter in mangled names.
        register_bits: bits of the registers that pass arguments.
        feature: LLVM's feature for such registers, or "" if all processors have them. Without it,
            code would pass arguments in other registers than the variant expects.
    """

    letter: str
    register_bits: int
    feature: str


class VectorVariant(NamedTuple):
    """A vector variant of a C function, and the number of elements that it computes."""

    symbol: str
    lanes: int


# By machine, the widest first.
_VECTOR_ABIS = {
    "x86_64": (
        _VectorAbi("e", 512, "avx512f"),
        _VectorAbi("d", 256, "avx2"),
        _VectorAbi("c", 256, "avx"),
        _VectorAbi("b", 128, "sse2"),
    ),
    "aarch64": (_VectorAbi("n", 128, ""),),
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
        math_library = _library("libm.so.6", "libm.dylib", "ucrtbase.dll")
        return _address(math_library, symbol.removeprefix(_PREFIX))
    address = _address(_process(), symbol)
    return address if address is not None else _address(_library("libgcc_s.so.1"), symbol)


@cache
def _supported_vector_abis(is_double: bool) -> tuple[tuple[str, int], ...]:
    """Letter and number of lanes of each vector ABI that the target supports, the widest first."""
    features = cpu_target().features
    return tuple(
        (letter, register_bits // (64 if is_double else 32))
        for letter, register_bits, feature in _VECTOR_ABIS.get(platform.machine(), ())
        if not feature or feature in features
    )


@cache
def vector_variants(function: str, arity: int, is_double: bool) -> tuple[VectorVariant, ...]:
    """The vector variants of a C function that this process has and the target supports.

    Args:
        function: name in C, such as "expf".
        arity: number of arguments.
        is_double: whether they are float64; else float32.
    """
    variants = []
    for letter, lanes in _supported_vector_abis(is_double):
        symbol = f"_ZGV{letter}N{lanes}{'v' * arity}_{function}"
        if resolve(symbol) is not None:
            variants.append(VectorVariant(symbol, lanes))
    return tuple(variants)


@cache
def all_symbols() -> tuple[str, ...]:
    """Every scalar and vector function that a kernel may call in this process."""
    symbols = []
    for name, arity in C_FUNCTION_ARITY.items():
        for suffix in ("f", ""):
            variants = vector_variants(name + suffix, arity, not suffix)
            symbols += [_PREFIX + name + suffix, *(variant.symbol for variant in variants)]
    return tuple(symbols)


@cache
def library_identity() -> str:
    """The vector functions that this process has; part of the cache key."""
    vectors = (symbol for symbol in all_symbols() if not symbol.startswith(_PREFIX))
    return f"{platform.machine()} {' '.join(vectors)}"


class NoVectorVariant(Exception):
    """The C library has no variant of a function for vectors of that width."""


def call(fn: str, *arguments: IRValue) -> IRValue:
    """Emit a call of a function of ``C_FUNCTION_ARITY``.

    Args:
        fn: name of the function.
        arguments: float32 or float64, all of one dtype and one width.

    Raises:
        NoVectorVariant: if the arguments are vectors, and the function has no variant for them.
    """
    first_argument = arguments[0]
    is_double = first_argument.dtype == "float64"
    function = _declare(
        first_argument.builder.module,
        _c_symbol(fn, is_double),
        C_FUNCTION_ARITY[fn],
        is_double,
        first_argument.width,
    )
    operands = [argument.value for argument in arguments]
    return first_argument.like(first_argument.builder.call(function, operands))


def _c_symbol(fn: str, is_double: bool) -> str:
    """The name in C of a function of ``C_FUNCTION_ARITY``."""
    return fn if is_double else fn + "f"


@record
class _RareCall:
    """A call that runs only for rare elements.

    Attributes:
        symbol: name of the function in C.
        arity: its number of arguments.
        is_double: whether they are float64; else float32.
        bound: the call runs for elements whose tested value has a larger magnitude.
    """

    symbol: str
    arity: int
    is_double: bool
    bound: float

    @property
    def element_type(self) -> ir.Type:
        """The type of one element of arguments and result."""
        return ir.DoubleType() if self.is_double else ir.FloatType()


def call_beyond(
    bound: float, fn: str, tested: IRValue, arguments: Sequence[IRValue], common: IRValue
) -> IRValue:
    """Emit a call of a function that runs only for rare elements with ``|tested| > bound``.

    LLVM does not vectorize a loop with a branch. So the branch is in a helper function. Its vector
    variants branch on whether any lane needs the call, and are inlined after vectorization, by
    ``inline_variants``. For vectors that this compiler writes, LLVM inlines the helper at once.

    All calls of one function must have the same bound: helpers are shared by name in a module.

    Args:
        bound: the largest magnitude for which ``common`` is the result.
        fn: a name of ``C_FUNCTION_ARITY``.
        tested: the value that is compared, float32 or float64; nan is not beyond the bound.
        arguments: arguments of the function, of the dtype and width of ``tested``.
        common: the result of all other elements, of the same dtype and width.

    Returns:
        The result.
    """
    module = tested.builder.module
    is_double = tested.dtype == "float64"
    rare_call = _RareCall(_c_symbol(fn, is_double), len(arguments), is_double, bound)
    name = f"{_PREFIX}{rare_call.symbol}_beyond"
    if tested.width > 1:
        name += f"_{tested.width}"
        if name not in module.globals:
            _define_vector_helper(module, name, rare_call, tested.width)
    elif name not in module.globals:
        _define_helpers(module, name, rare_call)
    operands = [operand.value for operand in (tested, *arguments, common)]
    return tested.like(tested.builder.call(module.globals[name], operands))


def _define_helpers(module: ir.Module, name: str, rare_call: _RareCall) -> None:
    """Define the scalar helper of ``call_beyond``, and its vector variants."""
    is_double, arity = rare_call.is_double, rare_call.arity
    scalar = _declare(module, rare_call.symbol, arity, is_double)
    variants = []
    # One variant for each number of lanes.
    letters = {lanes: letter for letter, lanes in reversed(_supported_vector_abis(is_double))}
    for lanes, letter in letters.items():
        variant = f"_ZGV{letter}N{lanes}{'v' * (arity + 2)}_{name}"
        variants.append(_define_vector_helper(module, variant, rare_call, lanes))
    function = _pure_function(module, name, rare_call.element_type, arity + 2)
    # If it were inlined before vectorization, the loop would have a branch.
    function.attributes.add("noinline")
    _emit_helper(function, scalar, rare_call.bound, 1)
    _set_variants(function, variants)
    _retain_declarations(module, [function, *variants])


def _define_vector_helper(
    module: ir.Module, name: str, rare_call: _RareCall, lanes: int
) -> ir.Function:
    """Define the helper of ``call_beyond`` for vectors."""
    symbol, arity, is_double = rare_call.symbol, rare_call.arity, rare_call.is_double
    function = _pure_function(module, name, ir.VectorType(rare_call.element_type, lanes), arity + 2)
    function.attributes.add("alwaysinline")
    try:
        callee = _declare(module, symbol, arity, is_double, lanes)
    except NoVectorVariant:
        callee = _declare(module, symbol, arity, is_double)
    _emit_helper(function, callee, rare_call.bound, lanes)
    return function


def _emit_helper(function: ir.Function, callee: ir.Function, bound: float, lanes: int) -> None:
    """Emit ``(tested, *arguments, common) -> select(|tested| > bound, callee(...), common)``.

    The call is in a branch that is taken if any lane needs it.
    """
    function.linkage = "internal"
    tested, *arguments, common = function.args
    entry, rare, done = (function.append_basic_block(name) for name in ("entry", "rare", "done"))
    builder = ir.IRBuilder(entry)
    limit = ir.Constant(tested.type, bound if lanes == 1 else [bound] * lanes)
    fabs = intrinsic(function.module, "fabs", tested.type, [tested.type])
    beyond = builder.fcmp_ordered(">", builder.call(fabs, [tested]), limit)
    mask_type = ir.IntType(lanes)
    mask = builder.bitcast(beyond, mask_type)
    any_beyond = builder.icmp_unsigned("!=", mask, ir.Constant(mask_type, 0))
    builder.cbranch(any_beyond, rare, done).set_weights([1, 1 << 20])  # the branch is rare
    builder = ir.IRBuilder(rare)
    result = builder.select(beyond, _call_per_lane(builder, callee, arguments, lanes), common)
    builder.branch(done)
    builder = ir.IRBuilder(done)
    phi = builder.phi(tested.type)
    phi.add_incoming(common, entry)
    phi.add_incoming(result, rare)
    builder.ret(phi)


def _call_per_lane(
    builder: ir.IRBuilder, callee: ir.Function, arguments: Sequence[LlvmValue], lanes: int
) -> LlvmValue:
    """Emit a call for vectors; if the function is scalar, one call per lane."""
    if callee.args[0].type == arguments[0].type:
        return builder.call(callee, arguments)
    result = arguments[0]
    for lane in range(lanes):
        index = ir.Constant(ir.IntType(32), lane)
        element = builder.call(callee, [builder.extract_element(x, index) for x in arguments])
        result = builder.insert_element(result, element, index)
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
        NoVectorVariant: if there is no such variant.
    """
    element_type = ir.DoubleType() if is_double else ir.FloatType()
    variants = vector_variants(symbol, arity, is_double)
    if lanes > 1:
        matching = [variant.symbol for variant in variants if variant.lanes == lanes]
        if not matching:
            raise NoVectorVariant(symbol)
        declared = module.globals.get(matching[0])
        vector = ir.VectorType(element_type, lanes)
        return declared or _pure_function(module, matching[0], vector, arity)
    prefixed = _PREFIX + symbol
    if prefixed in module.globals:
        return module.globals[prefixed]
    function = _pure_function(module, prefixed, element_type, arity)
    widths = dict.fromkeys(variant.lanes for variant in variants)
    functions = [_declare(module, symbol, arity, is_double, width) for width in widths]
    if functions:
        _set_variants(function, functions)
        _retain_declarations(module, functions)
    return function


def _set_variants(function: ir.Function, variants: list[ir.Function]) -> None:
    """List the vector variants of a function in its attribute; their names are mangled."""
    # A variant's name in the list repeats the scalar name, then the symbol in parentheses.
    mangled_names = [(variant.name.split("_", 2)[1], variant.name) for variant in variants]
    mapping = ",".join(
        f"_{lanes_and_types}_{function.name}({name})" for lanes_and_types, name in mangled_names
    )
    # llvmlite's add() rejects attributes that it does not know; that of set does not.
    set.add(function.attributes, f'"vector-function-abi-variant"="{mapping}"')


def _pure_function(module: ir.Module, name: str, value_type: ir.Type, arity: int) -> ir.Function:
    """Declare a function without side effects; arguments and result have one type."""
    function = ir.Function(module, ir.FunctionType(value_type, [value_type] * arity), name)
    function.attributes.add("nounwind")
    function.attributes.add("readnone")
    set.add(function.attributes, "willreturn")
    return function


def _retain_declarations(module: ir.Module, functions: list[ir.Function]) -> None:
    """Add functions to the module's only list ``llvm.compiler.used``, so that LLVM keeps them."""
    pointer = ir.IntType(8).as_pointer()
    name = "llvm.compiler.used"
    used_list = module.globals.get(name)
    entries = list(used_list.initializer.constant) if used_list is not None else []
    entries += [function.bitcast(pointer) for function in functions]
    list_type = ir.ArrayType(pointer, len(entries))
    if used_list is None:
        used_list = ir.GlobalVariable(module, list_type, name)
        used_list.linkage = "appending"
        used_list.section = "llvm.metadata"
    used_list.value_type = list_type
    used_list.type = list_type.as_pointer()
    # llvmlite has no type hints; its None is inferred to be the only initializer.
    used_list.initializer = ir.Constant(list_type, entries)  # pyright: ignore[reportAttributeAccessIssue]
