"""A spike: printed CUDA source becomes LLVM instructions inside one Numba intrinsic.

    python perf/cuda_emitter.py             builds seven kernels both ways, and prints Markdown

Numba types and lowers every statement of a printed kernel, which is most of the time of a build.
Here one walk over the syntax tree emits the instructions. Numba still builds the kernel: it types
one call, and its own functions for operators, libdevice and our intrinsics emit what they always
emit. Device functions are emitted where they are called. See docs/design/0048-cuda-emitter.md.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuflow.targets.cuda.codegen import build as builds
from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda, load_numba_cuda
from gpuflow.targets.cuda.intrinsics.namespace import source_namespace

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.USub: operator.neg, ast.Invert: operator.invert, ast.UAdd: operator.pos,
}  # fmt: skip
_WHICH = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
REGISTERS = {
    f"{ours}.{dim}": f"{theirs}.{dim}" for ours, theirs in _WHICH.items() for dim in "xyz"
}


class Unsupported(Exception):
    """A form of statement or expression that this walk does not know."""


class _Retyped(Exception):
    """A variable has values of several types: its function is emitted again."""

    def __init__(self, name: str, kind: Any) -> None:
        super().__init__(name)
        self.name, self.kind = name, kind


class Typed:
    """A value of a known type."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: Any, value: Any) -> None:
        self.kind, self.value = kind, value


class _Emitter:
    """Emits a kernel's statements into the function that a builder is in."""

    def __init__(
        self, tools: NumbaCuda, names: dict[str, Any], functions: dict[str, ast.FunctionDef],
        typing: Any, context: Any, builder: Any,
    ) -> None:  # fmt: skip
        self.types, self.ir, self.names, self.functions = tools.types, tools.llvm, names, functions
        self.typing, self.context, self.builder = typing, context, builder
        self.entry = builder.function.entry_basic_block

    # --- functions ---

    def call_function(self, node: ast.FunctionDef, arguments: Sequence[Any]) -> Any:
        """The results of a function of the text, emitted here."""
        kinds: dict[str, Any] = {}
        state = _State(self)
        while True:
            scope = _Scope(kinds)
            for argument, value in zip(node.args.args, arguments, strict=True):
                self.assign(scope, argument.arg, value)
            try:
                self.statements(scope, node.body)
            except _Retyped as again:
                kinds[again.name] = again.kind
                state.restore()
                continue
            if scope.exit is None:
                return scope.result
            if not self.builder.block.is_terminated:
                self.builder.branch(scope.exit)
            self.builder.position_at_end(scope.exit)
            return scope.load(self, ".result") if scope.has(".result") else None

    def statements(self, scope: _Scope, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.statement(scope, statement)

    def statement(self, scope: _Scope, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target]):
                self.store(scope, target, self.expression(scope, node.value))
            case ast.AugAssign():
                old = self.expression(scope, _loaded(node.target))
                added = self.expression(scope, node.value)
                new = self.apply(OPERATORS[type(node.op)], [old, added])
                self.store(scope, node.target, new)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr():
                self.expression(scope, node.value)
            case ast.If():
                self.if_(scope, node)
            case ast.While():
                self.while_(
                    scope,
                    lambda: self.truth(scope, node.test),
                    lambda: self.statements(scope, node.body),
                )
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))):
                self.for_(scope, name, node)
            case ast.Return(value=value):
                self.return_(scope, value)
            case ast.Break():
                self.builder.branch(scope.loops[-1])
            case _:
                raise Unsupported(ast.unparse(node))

    def return_(self, scope: _Scope, value: ast.expr | None) -> None:
        result = None if value is None else self.expression(scope, value)
        if not scope.depth and scope.exit is None:
            scope.result = result
            return
        if result is not None:
            self.assign(scope, ".result", result)
        if scope.exit is None:
            scope.exit = self.builder.append_basic_block("exit")
        self.builder.branch(scope.exit)

    def if_(self, scope: _Scope, node: ast.If) -> None:
        test = self.truth(scope, node.test)
        then = self.builder.append_basic_block("then")
        end = self.builder.append_basic_block("end")
        orelse = self.builder.append_basic_block("else") if node.orelse else end
        self.builder.cbranch(test, then, orelse)
        for block, body in ((then, node.body), (orelse, node.orelse)):
            if block is end:
                continue
            self.builder.position_at_end(block)
            with scope.deeper():
                self.statements(scope, body)
            if not self.builder.block.is_terminated:
                self.builder.branch(end)
        self.builder.position_at_end(end)

    def while_(self, scope: _Scope, test: Callable[[], Any], body: Callable[[], None]) -> None:
        head = self.builder.append_basic_block("head")
        block = self.builder.append_basic_block("body")
        end = self.builder.append_basic_block("end")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self.builder.cbranch(test(), block, end)
        self.builder.position_at_end(block)
        with scope.deeper(end):
            body()
        if not self.builder.block.is_terminated:
            self.builder.branch(head)
        self.builder.position_at_end(end)

    def for_(self, scope: _Scope, name: str, node: ast.For) -> None:
        bounds = [self.expression(scope, bound) for bound in node.iter.args]
        first, last, step = {
            1: lambda: (0, bounds[0], 1), 2: lambda: (*bounds, 1), 3: lambda: bounds,
        }[len(bounds)]()  # fmt: skip
        counter = f".{name}{id(node)}"
        self.assign(scope, counter, self.cast(first, self.types.int64))
        last, step = self.cast(last, self.types.int64), self.cast(step, self.types.int64)

        def test() -> Any:
            return self.apply(operator.lt, [scope.load(self, counter), last]).value

        def iteration() -> None:
            self.assign(scope, name, scope.load(self, counter))
            self.statements(scope, node.body)
            new = self.apply(operator.add, [scope.load(self, counter), step])
            self.assign(scope, counter, new)

        self.while_(scope, test, iteration)

    # --- variables ---

    def store(self, scope: _Scope, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.assign(scope, name, value)
            case ast.Tuple(elts=targets):
                for one, element in zip(targets, value, strict=True):
                    self.store(scope, one, element)
            case ast.Subscript(value=array, slice=index):
                pointer, offset = self.expression(scope, array), self.expression(scope, index)
                element = self.cast(value, pointer.kind.dtype)
                self.call(operator.setitem, [pointer, offset, element])
            case _:
                raise Unsupported(ast.unparse(target))

    def assign(self, scope: _Scope, name: str, value: Any) -> None:
        if isinstance(value, tuple):
            scope.tuples[name] = len(value)
            for k, element in enumerate(value):
                self.assign(scope, f"{name}.{k}", element)
            return
        value = self.typed(value)
        kind = scope.kinds.setdefault(name, value.kind)
        if kind != value.kind:
            both = self.typing.unify_types(kind, value.kind)
            if both is None:  # a new variable of the same name
                kind = scope.kinds[name] = value.kind
                scope.slots.pop(name, None)
            elif both != kind:
                raise _Retyped(name, both)
            value = self.cast(value, kind)
        if name not in scope.slots:
            with self.builder.goto_block(self.entry):
                scope.slots[name] = self.builder.alloca(self.context.get_value_type(kind))
        self.builder.store(value.value, scope.slots[name])

    # --- expressions ---

    def expression(self, scope: _Scope, node: ast.expr) -> Any:
        """A Typed, a Python number, a tuple of these, or what a name means."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if scope.has(name):
                    return scope.load(self, name)
                return self.names[name] if name in self.names else getattr(builtins, name)
            case ast.Tuple(elts=elements):
                return tuple([self.expression(scope, one) for one in elements])
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="cuda"))):
                name = ast.unparse(node).removeprefix("cuda.")
                if name == "local.array":
                    return self.local_array
                if name not in REGISTERS:
                    raise Unsupported(ast.unparse(node))
                return Typed(self.types.int32, self.register(REGISTERS[name]))
            case ast.Attribute(value=ast.Name(id="cuda"), attr=name):
                module = self.types.Module(self.names["cuda"])
                return self.typing.resolve_getattr(module, name)
            case ast.Attribute(value=owner, attr=name):
                return getattr(self.expression(scope, owner), name)
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(
                left=left, ops=[op], comparators=[right]
            ):
                sides = [self.expression(scope, left), self.expression(scope, right)]
                return self.apply(OPERATORS[type(op)], sides)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Typed(self.types.boolean, self.builder.not_(self.truth(scope, operand)))
            case ast.UnaryOp(op=op, operand=operand):
                return self.apply(OPERATORS[type(op)], [self.expression(scope, operand)])
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                # What is in the middle is computed once for each comparison: it has no effects.
                sides = [left, *comparators]
                return self.bool_op(scope, ast.And(), [
                    ast.Compare(a, [op], [b])
                    for a, op, b in zip(sides, ops, comparators, strict=False)
                ])  # fmt: skip
            case ast.BoolOp(op=op, values=values):
                return self.bool_op(scope, op, values)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.if_expression(scope, test, body, orelse)
            case ast.Subscript(value=array, slice=index):
                array, index = self.expression(scope, array), self.expression(scope, index)
                if isinstance(array, tuple):
                    return array[index]
                return self.call(operator.getitem, [array, index])
            case ast.Call(func=function, args=args):
                return self.call_expression(scope, function, args)
        raise Unsupported(ast.unparse(node))

    def call_expression(self, scope: _Scope, function: ast.expr, args: Sequence[ast.expr]) -> Any:
        arguments = [self.expression(scope, one) for one in args]
        if isinstance(function, ast.Name) and function.id in self.functions:
            return self.call_function(self.functions[function.id], arguments)
        called = self.expression(scope, function)
        if called == self.local_array:
            return self.local_array(*arguments)
        dtype = self.dtype_of(called)
        if dtype is not None:
            return self.cast(arguments[0], dtype)
        return self.call(called, arguments)

    def local_array(self, count: int, dtype: Any) -> Typed:
        """Memory of a thread, as a pointer to its first element."""
        element = self.context.get_data_type(dtype)
        with self.builder.goto_block(self.entry):
            array = self.builder.alloca(self.ir.ArrayType(element, count))
            pointer = self.builder.bitcast(array, element.as_pointer())
        return Typed(self.types.CPointer(dtype), pointer)

    def bool_op(self, scope: _Scope, op: ast.boolop, values: Sequence[ast.expr]) -> Typed:
        first, *others = values
        result = self.truth(scope, first)
        if not others:
            return Typed(self.types.boolean, result)
        more = self.builder.append_basic_block("more")
        end = self.builder.append_basic_block("end")
        start = self.builder.block
        is_and = isinstance(op, ast.And)
        self.builder.cbranch(result, *((more, end) if is_and else (end, more)))
        self.builder.position_at_end(more)
        second = self.bool_op(scope, op, others).value
        last = self.builder.block
        self.builder.branch(end)
        self.builder.position_at_end(end)
        phi = self.builder.phi(result.type)
        phi.add_incoming(self.ir.Constant(result.type, int(not is_and)), start)
        phi.add_incoming(second, last)
        return Typed(self.types.boolean, phi)

    def if_expression(
        self, scope: _Scope, test: ast.expr, body: ast.expr, orelse: ast.expr
    ) -> Typed:
        condition = self.truth(scope, test)
        blocks = [self.builder.append_basic_block(name) for name in ("then", "else", "end")]
        self.builder.cbranch(condition, *blocks[:2])
        ends, values = [], []
        for block, node in zip(blocks, (body, orelse), strict=False):
            self.builder.position_at_end(block)
            values.append(self.typed(self.expression(scope, node)))
            ends.append(self.builder.block)
        kind = self.typing.unify_types(*[value.kind for value in values])
        for k, end in enumerate(ends):
            self.builder.position_at_end(end)
            values[k] = self.cast(values[k], kind)
            ends[k] = self.builder.block
            self.builder.branch(blocks[2])
        self.builder.position_at_end(blocks[2])
        phi = self.builder.phi(values[0].value.type)
        for value, end in zip(values, ends, strict=True):
            phi.add_incoming(value.value, end)
        return Typed(kind, phi)

    def truth(self, scope: _Scope, node: ast.expr) -> Any:
        value = self.expression(scope, node)
        return self.cast(value, self.types.boolean).value

    def register(self, name: str) -> Any:
        kind = self.ir.FunctionType(self.ir.IntType(32), [])
        full = f"llvm.nvvm.read.ptx.sreg.{name}"
        function = self.builder.module.globals.get(full)
        if function is None:
            function = self.ir.Function(self.builder.module, kind, full)
        return self.builder.call(function, [])

    # --- types, and what Numba emits ---

    def dtype_of(self, called: Any) -> Any:
        """The type that a call of a class of numbers converts to."""
        if isinstance(called, type) and issubclass(called, np.generic | int | float | bool):
            return _numba_type(self.types, called)
        return called if isinstance(called, self.types.Number | self.types.Boolean) else None

    def typed(self, value: Any) -> Typed:
        if isinstance(value, Typed):
            return value
        if isinstance(value, bool | np.bool_):
            kind = self.types.boolean
        elif isinstance(value, int):
            kind = self.types.int64
        elif isinstance(value, float):
            kind = self.types.float64
        else:
            raise Unsupported(repr(value))
        return Typed(kind, self.context.get_constant(kind, value))

    def cast(self, value: Any, kind: Any) -> Typed:
        if not isinstance(value, Typed) and isinstance(kind, self.types.Number):
            constant = float(value) if isinstance(kind, self.types.Float) else int(value)
            return Typed(kind, self.context.get_constant(kind, constant))
        value = self.typed(value)
        if value.kind == kind:
            return value
        return Typed(kind, self.context.cast(self.builder, value.value, value.kind, kind))

    def apply(self, function: Any, operands: Sequence[Any]) -> Any:
        if not any(isinstance(operand, Typed) for operand in operands):
            return function(*operands)
        return self.call(function, operands)

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """The result of a function that Numba knows: an operator, libdevice, one of our own."""
        arguments = list(arguments)
        kinds = tuple(self.kind_of(one) for one in arguments)
        key = (function, kinds)
        if key not in _calls:
            _calls[key] = self.resolve(function, kinds)
        signature, emit = _calls[key]
        values = []
        for one, parameter in zip(arguments, signature.args, strict=True):
            if isinstance(one, tuple):
                pairs = zip(one, parameter.types, strict=True)
                elements = [self.cast(element, kind).value for element, kind in pairs]
                values.append(self.context.make_tuple(self.builder, parameter, elements))
            elif isinstance(one, Typed | int | float):
                values.append(self.cast(one, self.types.unliteral(parameter)).value)
            else:
                values.append(self.context.get_dummy_value())
        result = emit(self.context, self.builder, signature, values)
        kind = signature.return_type
        if isinstance(kind, self.types.BaseTuple):
            kinds = enumerate(kind.types)
            return tuple([Typed(t, self.builder.extract_value(result, k)) for k, t in kinds])
        return Typed(kind, result)

    def kind_of(self, value: Any) -> Any:
        if isinstance(value, Typed):
            return value.kind
        if isinstance(value, bool):
            return self.types.boolean
        if isinstance(value, int):
            return self.types.literal(value)
        if isinstance(value, float):
            return self.types.float64
        if isinstance(value, tuple):
            return self.types.Tuple(tuple(self.types.unliteral(self.kind_of(v)) for v in value))
        dtype = self.dtype_of(value)
        if dtype is not None:
            return self.types.NumberClass(dtype)
        raise Unsupported(repr(value))

    def resolve(self, function: Any, kinds: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
        define = getattr(function, "_defn", None)
        if define is not None:
            found = define(self.typing, *kinds)
            if found is None:
                found = define(self.typing, *map(self.types.unliteral, kinds))
            return found
        plain = tuple(map(self.types.unliteral, kinds))
        try:
            is_type = isinstance(function, self.types.Type)
            callee = function if is_type else self.typing.resolve_value_type(function)
        except Exception as error:
            raise Unsupported(f"a call of {function!r}") from error
        try:
            signature = callee.get_call_type(self.typing, plain, {})
        except Exception:  # where literals are required
            signature = callee.get_call_type(self.typing, kinds, {})
        implementation = self.context.get_function(callee, signature)
        return signature, lambda context, builder, _, values: implementation(builder, values)


# By function and types of arguments: a signature, and what emits it.
_calls: dict[Any, tuple[Any, Callable[..., Any]]] = {}


class _Scope:
    """The variables of one call of a function."""

    def __init__(self, kinds: dict[str, Any]) -> None:
        self.kinds, self.slots, self.tuples = dict(kinds), dict[str, Any](), dict[str, int]()
        self.result: Any = None
        self.exit: Any = None
        self.depth, self.loops = 0, list[Any]()

    def has(self, name: str) -> bool:
        return name in self.slots or name in self.tuples

    def load(self, emitter: _Emitter, name: str) -> Any:
        if name in self.tuples and name not in self.slots:
            return tuple([self.load(emitter, f"{name}.{k}") for k in range(self.tuples[name])])
        return Typed(self.kinds[name], emitter.builder.load(self.slots[name]))

    @contextmanager
    def deeper(self, end: Any = None) -> Iterator[None]:
        self.depth += 1
        if end is not None:
            self.loops.append(end)
        yield
        if end is not None:
            self.loops.pop()
        self.depth -= 1


class _State:
    """What to go back to when a function is emitted again."""

    def __init__(self, emitter: _Emitter) -> None:
        self.builder, self.block = emitter.builder, emitter.builder.block
        self.count = len(self.block.instructions)
        self.blocks = len(emitter.builder.function.blocks)

    def restore(self) -> None:
        del self.builder.function.blocks[self.blocks :]
        del self.block.instructions[self.count :]
        self.block.terminator = None
        self.builder.position_at_end(self.block)


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _numba_type(types: Any, cls: type) -> Any:
    if cls is bool or cls is np.bool_:
        return types.boolean
    if cls is int:
        return types.int64
    return types.float64 if cls is float else getattr(types, np.dtype(cls).name)


def function_of(tools: NumbaCuda, source: str, entry: str) -> Callable[..., None]:
    """The kernel of a printed module, as a function of one call."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = source_namespace(tools)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            exec(compile(ast.Module([node], []), entry, "exec"), names)

    def emit_whole(typing: Any, *kinds: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
            emitter = _Emitter(tools, names, functions, typing, context, builder)
            values = [Typed(kind, value) for kind, value in zip(kinds, args, strict=True)]
            emitter.call_function(functions[entry], values)
            return context.get_dummy_value()

        return tools.types.void(*kinds), emit

    parameters = ", ".join(argument.arg for argument in functions[entry].args.args)
    scope: dict[str, Any] = {"_emit": emit_whole}
    exec(f"def _whole(_typing, {parameters}):\n    return _emit(_typing, {parameters})\n", scope)
    scope["_whole"] = tools.intrinsic(scope["_whole"])
    exec(f"def {entry}({parameters}):\n    _whole({parameters})\n", scope)
    return scope[entry]


def compile_ptx(
    source: str, entry: str, signature: Sequence[str], compute_capability: tuple[int, int],
    launch_bounds: Any = None, with_lines: bool = True,
) -> str:  # fmt: skip
    """As ``build.compile_ptx``, by the walk; without line information."""
    del with_lines
    tools = load_numba_cuda()
    types = tuple(builds._numba_type(tools.types, name) for name in signature)
    function = function_of(tools, source, entry)
    return builds.function_ptx(
        tools, function, types, compute_capability, launch_bounds, with_lines=False
    )


# --- measurement ------------------------------------------------------------------------------


def _printed() -> list[tuple[str, tuple[Any, ...]]]:
    """Names of kernels, and what ``build.compile_ptx`` gets for each."""
    import gpuflow as gf
    import gpuflow.numpy as jnp
    from gpuflow import lax, nn
    from gpuflow.targets.cuda.codegen import cached

    seen: list[tuple[Any, ...]] = []
    real = cached.build_cuda

    def noted(*arguments: Any) -> Any:
        seen.append(arguments)
        return real(*arguments)

    def chain(x: Any) -> Any:
        return nn.gelu(x * 2 + 1) * jnp.exp(-x)

    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    def newton(x: Any) -> Any:
        return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-3, lambda y: (y + x / y) / 2, x)

    x = np.abs(np.random.default_rng(0).normal(size=(64, 256))).astype(np.float32) + 1
    programs = {
        "chain, float32": (chain, x),
        "chain, bfloat16": (chain, x.astype(gf.numpy.bfloat16)),
        "row: softmax": (lambda x: nn.softmax(x, -1), x),
        "column: sum": (lambda x: x.sum(0), x),
        "full: sum": (lambda x: x.sum(), x),
        "Adam step": (adam, x, x, x, x),
        "loop of lanes": (gf.vmap(gf.vmap(newton)), x),
    }
    found = []
    (device, *_) = gf.devices("cuda_sim")
    cached.build_cuda = noted  # type: ignore[assignment]
    with gf.default_device(device):
        for name, (function, *operands) in programs.items():
            seen.clear()
            gf.jit(function)(*operands)
            found += [(name, arguments) for arguments in seen]
    cached.build_cuda = real
    return found


def _built(compile_text: Callable[..., str], arguments: tuple[Any, ...]) -> tuple[float, Any]:
    """Seconds of a build, and the kernel."""
    before, builds.compile_ptx = builds.compile_ptx, compile_text
    start = time.perf_counter()
    try:
        built = builds.build_cuda(*arguments)
    finally:
        builds.compile_ptx = before
    return time.perf_counter() - start, built


def _time_nvvm() -> list[float]:
    """A list that gets the seconds of each call of NVVM."""
    from numba.cuda.cudadrv import nvvm

    spent: list[float] = []
    real = nvvm.CompilationUnit.compile

    def timed(self: Any, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return real(self, *arguments, **options)
        finally:
            spent.append(time.perf_counter() - start)

    nvvm.CompilationUnit.compile = timed
    return spent


def main() -> None:
    """Print a table: seconds (median of builds in turn), registers, spills, vector accesses."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ways = {"Numba": builds.compile_ptx, "walk": compile_ptx}
    shared: dict[str, float] = {}
    spent = _time_nvvm()
    heads = "kernel | Numba, s | walk, s | ratio | NVVM, linker, s | registers | spills | vectors"
    print(f"| {heads} |\n|{' --- |' * 8}")
    for name, arguments in _printed():
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        figures: dict[str, tuple[int, int, int]] = {}
        for _ in range(repeats):
            for way, compile_text in ways.items():
                spent.clear()
                taken, built = _built(compile_text, arguments)
                seconds[way].append(taken)
                vectors = len(re.findall(r"\.v[24]\.", built.ptx))
                figures[way] = built.registers, built.spill_bytes, vectors
                if way == "walk":
                    start = time.perf_counter()
                    builds.linked(built.ptx, built.entry, (9, 0))
                    shared[name] = time.perf_counter() - start + sum(spent)
        old, new = (statistics.median(seconds[way]) for way in ways)
        both = [f"{a}, {b}" for a, b in zip(figures["Numba"], figures["walk"], strict=True)]
        print(f"| {name} | {old:.3f} | {new:.3f} | {old / new:.1f} | {shared[name]:.3f} |", *[
            f"{one} |" for one in both
        ])  # fmt: skip


if __name__ == "__main__":
    main()
