"""Wrap printed CUDA source as a Numba kernel whose body is one intrinsic, which emits all of it.

    text -> syntax tree -> instructions of the kernel, and an LLVM function for each signature of a
                           device function

Numba types every statement of a Python function, which takes most of the time of a build. Here
Numba types only the call of the intrinsic. See docs/design/0048-cuda-emitter.md.

Tests: tests/targets/cuda/test_source_kernel.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.targets.cuda.codegen.function_emitter import FunctionEmitter, VariableTypes
from gpuflow.targets.cuda.codegen.intrinsics.namespace import source_namespace
from gpuflow.targets.cuda.codegen.numba_ops import (
    NumbaOps,
    Operand,
    TypedValue,
    UnsupportedConstruct,
)
from gpuflow.targets.cuda.codegen.toolchain import CudaBuildError, NumbaCuda
from gpuflow.targets.parsing import parsed


def kernel_function(
    tools: NumbaCuda, source: str, entry: str, filename: str
) -> Callable[..., None]:
    """Return a function that Numba compiles to the kernel of a printed module.

    Args:
        tools: modules of numba-cuda.
        source: text of the module.
        entry: name of the kernel in the module, which must define it.
        filename: file name for the line information of the PTX.

    Compiling the function raises CudaBuildError if the source has an unsupported construct.
    """
    module = _ParsedModule(tools, source, filename)
    node = module.functions[entry]

    def define(typing: Any, *kinds: Any) -> Operand:
        def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Operand:
            values = [TypedValue(kind, value) for kind, value in zip(kinds, args, strict=True)]
            ops = NumbaOps(tools, typing, context, builder)
            try:
                _ModuleEmitter(module, ops).emit_kernel(node, values)
            except UnsupportedConstruct as error:
                raise CudaBuildError(
                    f"[cuda build] {entry} must be of constructs that function_emitter.py emits; "
                    f"got {error}. Fix: report the printed source."
                ) from error
            return context.get_dummy_value()

        return tools.types.void(*kinds), emit

    parameters = ", ".join(argument.arg for argument in node.args.args)
    scope: dict[str, Any] = {"define": define}
    exec(f"def emitted(_typing, {parameters}):\n    return define(_typing, {parameters})\n", scope)
    scope["emitted"] = tools.intrinsic(scope["emitted"])
    call = ast.parse(f"def {entry}({parameters}):\n    emitted({parameters})\n")
    ast.increment_lineno(call, node.lineno - 1)
    exec(compile(call, filename, "exec"), scope)
    return scope[entry]


class _ParsedModule:
    """The parsed text of a printed module.

    Attributes:
        functions: syntax trees of its functions by name.
        names: values of its other definitions, and of the names that all printed source may use.
    """

    def __init__(self, tools: NumbaCuda, source: str, filename: str) -> None:
        statements = parsed(source).body
        functions = [node for node in statements if isinstance(node, ast.FunctionDef)]
        self.functions = {node.name: node for node in functions}
        self.names = source_namespace(tools)
        definitions: list[ast.stmt] = [node for node in statements if node not in functions]
        exec(compile(ast.Module(definitions, []), filename, "exec"), self.names)


@record
class _DeviceFunction:
    """An LLVM function: one signature of a device function.

    Attributes:
        function: llvmlite's function.
        result_types: Numba type of the result, a nested tuple of types, or None.
    """

    function: Any
    result_types: Any


class _ModuleEmitter:
    """Emits the kernel of a module, and LLVM functions for the device functions it calls."""

    def __init__(self, module: _ParsedModule, ops: NumbaOps) -> None:
        self.names, self._functions, self._ops = module.names, module.functions, ops
        self._emitted: dict[Any, _DeviceFunction | None] = {}  # None: in progress

    def has_function(self, name: str) -> bool:
        """Whether the text defines a device function."""
        return name in self._functions

    def emit_kernel(self, node: ast.FunctionDef, arguments: Sequence[TypedValue]) -> None:
        """Emit a kernel into Numba's function, with line information if that function has any."""
        builder = self._ops.builder
        location, checkpoint = builder.debug_metadata, _BuilderCheckpoint(builder)
        scope = None if location is None else dict(location.operands)["scope"]
        types: VariableTypes = {}
        merged: set[str] = set()
        while True:
            emitter = FunctionEmitter(self, self._ops, types, merged, scope)
            emitter.run(node, arguments)
            builder.debug_metadata = location
            if not emitter.must_repeat:
                return
            checkpoint.restore()

    def call(self, ops: NumbaOps, name: str, arguments: Sequence[Any]) -> Operand:
        """Emit a call of a device function, and the function before its first call.

        Python scalars are passed as typed constants. Types are part of the signature.
        """
        values = [_as_typed(ops, argument) for argument in arguments]
        key = name, tuple([_types_of(value) for value in values])
        if key not in self._emitted:
            self._emitted[key] = None
            self._emitted[key] = self._emit(name, values)
        callee = self._emitted[key]
        if callee is None:
            raise UnsupportedConstruct(f"the function {name}, which calls itself")
        result = ops.builder.call(callee.function, [leaf.value for leaf in _leaves(values)])
        returned = iter(_returned_values(ops, callee, result))
        return _nested_like(ops, callee.result_types, returned)

    def _emit(self, name: str, values: Sequence[Any]) -> _DeviceFunction:
        """Emit a device function for arguments of the types of ``values``."""
        ir, context, module = self._ops.ir, self._ops.context, self._ops.builder.module
        llvm_types = [context.get_value_type(leaf.numba_type) for leaf in _leaves(values)]
        function_type = ir.FunctionType(ir.VoidType(), llvm_types)  # ``_return`` sets the result
        function = ir.Function(module, function_type, module.get_unique_name(name))
        function.linkage = "internal"
        parameters = iter(function.args)
        arguments = [_as_parameters(value, parameters) for value in values]
        types: VariableTypes = {}
        merged: set[str] = set()
        while True:
            function.blocks.clear()
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            ops = self._ops.with_builder(builder)
            emitter = FunctionEmitter(self, ops, types, merged, None)
            result = emitter.run(self._functions[name], arguments)
            if not emitter.must_repeat:
                break
        result = _as_typed(ops, result)
        self._return(ops, function, result)
        return _DeviceFunction(function, _types_of(result))

    def _return(self, ops: NumbaOps, function: Any, result: Any) -> None:
        """Return ``result`` from a function, and set its return type, unknown until then."""
        values = [leaf.value for leaf in _leaves([result])]
        if not values:
            ops.builder.ret_void()
            return
        kind = ops.ir.LiteralStructType([value.type for value in values])
        packed = ops.ir.Constant(kind, ops.ir.Undefined)
        for k, value in enumerate(values):
            packed = ops.builder.insert_value(packed, value, k)
        ops.builder.ret(packed)
        function.ftype = ops.ir.FunctionType(kind, function.ftype.args)
        function.type = function.ftype.as_pointer()
        function.return_value = type(function.return_value)(function, kind)


class _BuilderCheckpoint:
    """A checkpoint of an IR builder, to which a repeated emission of the kernel returns."""

    def __init__(self, builder: Any) -> None:
        self._builder, self._block = builder, builder.block
        self._instructions = len(builder.block.instructions)
        self._blocks = len(builder.function.blocks)

    def restore(self) -> None:
        """Remove all instructions and basic blocks that were added since."""
        del self._builder.function.blocks[self._blocks :]
        del self._block.instructions[self._instructions :]
        self._block.terminator = None
        self._builder.position_at_end(self._block)


# --- values of nested tuples ------------------------------------------------------------------


def _as_typed(ops: NumbaOps, value: Any) -> Operand:
    """The value with its Python scalars as constant TypedValues."""
    if isinstance(value, tuple):
        return tuple([_as_typed(ops, element) for element in value])
    return ops.typed(value) if isinstance(value, int | float) else value


def _types_of(value: Any) -> Operand:
    """The value with each TypedValue replaced by its Numba type."""
    if isinstance(value, tuple):
        return tuple([_types_of(element) for element in value])
    return value.numba_type if isinstance(value, TypedValue) else value


def _leaves(values: Sequence[Any]) -> list[TypedValue]:
    """The TypedValues in nested tuples, in order."""
    leaves: list[TypedValue] = []
    for value in values:
        if isinstance(value, tuple):
            leaves += _leaves(value)
        elif isinstance(value, TypedValue):
            leaves.append(value)
    return leaves


def _as_parameters(value: Any, parameters: Any) -> Operand:
    """The value with each TypedValue replaced by the next parameter of the function."""
    if isinstance(value, tuple):
        return tuple([_as_parameters(element, parameters) for element in value])
    if not isinstance(value, TypedValue):
        return value
    return TypedValue(value.numba_type, next(parameters))


def _returned_values(ops: NumbaOps, callee: _DeviceFunction, result: Any) -> list[Any]:
    """The members of the struct that a call returned; empty if it returned nothing."""
    kind = callee.function.ftype.return_type
    if isinstance(kind, ops.ir.VoidType):
        return []
    return [ops.builder.extract_value(result, k) for k in range(len(kind.elements))]


def _nested_like(ops: NumbaOps, types: Any, results: Any) -> Operand:
    """Results of a call, nested as ``types`` are."""
    if types is None:
        return None
    if isinstance(types, tuple):
        return tuple([_nested_like(ops, element, results) for element in types])
    return TypedValue(types, next(results))
