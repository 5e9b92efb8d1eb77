"""Wrap printed CUDA source as a Numba kernel whose body is one intrinsic, which emits all of it.

    text -> syntax tree -> instructions of the kernel, and an LLVM function for each signature of a
                           device function

Numba types every statement of a Python function, which takes most of the time of a build. Here
Numba types only the call of the intrinsic. See docs/design/0048-cuda-emitter.md.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.targets.cuda.codegen.function_emitter import FunctionEmitter, Types
from gpuflow.targets.cuda.codegen.intrinsics.namespace import source_namespace
from gpuflow.targets.cuda.codegen.numba_ops import NumbaOps, Operand, Typed, Unsupported
from gpuflow.targets.cuda.codegen.toolchain import CudaBuildError, NumbaCuda
from gpuflow.targets.parsing import parsed


def kernel_function(
    tools: NumbaCuda, source: str, entry: str, filename: str
) -> Callable[..., None]:
    """Return a function that Numba compiles to the kernel of a printed module.

    Args:
        tools: modules of numba-cuda.
        source: text of the module.
        entry: name of the kernel in the module.
        filename: file name for the line information of the PTX.
    """
    text = _SourceText(tools, source, filename)
    node = text.functions[entry]

    def define(typing: Any, *kinds: Any) -> Operand:
        def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Operand:
            values = [Typed(kind, value) for kind, value in zip(kinds, args, strict=True)]
            ops = NumbaOps(tools, typing, context, builder)
            try:
                _EmittedModule(text, ops).emit_kernel(node, values)
            except Unsupported as error:
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


class _SourceText:
    """The parsed text of a printed module.

    Attributes:
        functions: syntax trees of its functions by name.
        names: values of its other definitions, and of the names that all printed source may use.
    """

    def __init__(self, tools: NumbaCuda, source: str, filename: str) -> None:
        statements = parsed(source).body
        self.functions = {one.name: one for one in statements if isinstance(one, ast.FunctionDef)}
        self.names = source_namespace(tools)
        others: list[ast.stmt] = [x for x in statements if not isinstance(x, ast.FunctionDef)]
        exec(compile(ast.Module(others, []), filename, "exec"), self.names)


@record
class _DeviceFunction:
    """An LLVM function: one signature of a device function.

    Attributes:
        function: llvmlite's function.
        result: Numba type of the result, a tuple of types, or None.
    """

    function: Any
    result: Any


class _EmittedModule:
    """Emits the kernel of a module, and LLVM functions for the device functions it calls."""

    def __init__(self, text: _SourceText, ops: NumbaOps) -> None:
        self.names, self._functions, self._ops = text.names, text.functions, ops
        self._emitted: dict[Any, _DeviceFunction | None] = {}  # None: in progress

    def has_function(self, name: str) -> bool:
        """Whether the text defines a device function."""
        return name in self._functions

    def emit_kernel(self, node: ast.FunctionDef, arguments: Sequence[Typed]) -> None:
        """Emit a kernel into Numba's function, with line information if that function has any."""
        builder = self._ops.builder
        location, state = builder.debug_metadata, _State(builder)
        scope = None if location is None else dict(location.operands)["scope"]
        types: Types = {}
        merged: set[str] = set()
        while True:
            emitter = FunctionEmitter(self, self._ops, types, merged, scope)
            emitter.run(node, arguments)
            builder.debug_metadata = location
            if not emitter.must_repeat:
                return
            state.restore()

    def call(self, ops: NumbaOps, name: str, arguments: Sequence[Any]) -> Operand:
        """Emit a call of a device function, and the function before its first call.

        Python scalars are passed as typed constants. Types are part of the signature.
        """
        values = [_typed(ops, one) for one in arguments]
        key = name, tuple([_kinds(one) for one in values])
        if key not in self._emitted:
            self._emitted[key] = None
            self._emitted[key] = self._emit(name, values)
        called = self._emitted[key]
        if called is None:
            raise Unsupported(f"the function {name}, which calls itself")
        result = ops.builder.call(called.function, [one.value for one in _flat(values)])
        return _unpacked(ops, called.result, iter(_results(ops, called, result)))

    def _emit(self, name: str, values: Sequence[Any]) -> _DeviceFunction:
        ir, context, module = self._ops.ir, self._ops.context, self._ops.builder.module
        kinds = [context.get_value_type(one.kind) for one in _flat(values)]
        void = ir.FunctionType(ir.VoidType(), kinds)
        function = ir.Function(module, void, module.get_unique_name(name))
        function.linkage = "internal"
        parameters = iter(function.args)
        arguments = [_parameter(one, parameters) for one in values]
        types: Types = {}
        merged: set[str] = set()
        while True:
            function.blocks.clear()
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            ops = self._ops.at(builder)
            emitter = FunctionEmitter(self, ops, types, merged, None)
            result = emitter.run(self._functions[name], arguments)
            if not emitter.must_repeat:
                break
        result = _typed(ops, result)
        self._return(ops, function, result)
        return _DeviceFunction(function, _kinds(result))

    def _return(self, ops: NumbaOps, function: Any, result: Any) -> None:
        """Return ``result`` from a function, and set its return type, unknown until then."""
        values = [one.value for one in _flat([result])]
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


class _State:
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


def _typed(ops: NumbaOps, value: Any) -> Operand:
    """The value with its Python scalars as Typed constants."""
    if isinstance(value, tuple):
        return tuple([_typed(ops, one) for one in value])
    return ops.typed(value) if isinstance(value, int | float) else value


def _kinds(value: Any) -> Operand:
    if isinstance(value, tuple):
        return tuple([_kinds(one) for one in value])
    return value.kind if isinstance(value, Typed) else value


def _flat(values: Sequence[Any]) -> list[Typed]:
    """The Typed leaves of nested tuples."""
    found: list[Typed] = []
    for one in values:
        if isinstance(one, tuple):
            found += _flat(one)
        elif isinstance(one, Typed):
            found.append(one)
    return found


def _parameter(value: Any, parameters: Any) -> Operand:
    """The value with each Typed replaced by the next parameter of the function."""
    if isinstance(value, tuple):
        return tuple([_parameter(one, parameters) for one in value])
    return Typed(value.kind, next(parameters)) if isinstance(value, Typed) else value


def _results(ops: NumbaOps, called: _DeviceFunction, result: Any) -> list[Any]:
    kind = called.function.ftype.return_type
    if isinstance(kind, ops.ir.VoidType):
        return []
    return [ops.builder.extract_value(result, k) for k in range(len(kind.elements))]


def _unpacked(ops: NumbaOps, kinds: Any, results: Any) -> Operand:
    """Results of a call, nested as ``kinds`` are."""
    if kinds is None:
        return None
    if isinstance(kinds, tuple):
        return tuple([_unpacked(ops, one, results) for one in kinds])
    return Typed(kinds, next(results))
