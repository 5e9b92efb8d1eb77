"""Emit LLVM instructions for a function of printed CUDA source, in one walk over its syntax tree.

A variable is a stack slot, which LLVM promotes to registers. A slot has one type, but Python names
may have several:

- If a branch or loop assigns to an earlier variable, its type is the one to which Numba unifies
  both types. If that is not the slot's type, the function must be emitted again.
- Otherwise, an assignment of another type creates a new variable of the same name.

Tests: tests/targets/cuda/test_source_kernel.py.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpuflow.base.records import record
from gpuflow.targets.cuda.codegen.numba_ops import (
    NumbaOps,
    NumbaType,
    Operand,
    TypedValue,
    UnsupportedConstruct,
)

if TYPE_CHECKING:
    from llvmlite.ir import Block, NamedValue

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.UAdd: operator.pos,
}
_RESULT = ".result"  # the variable of the result: not an identifier of Python


class ModuleDefinitions(Protocol):
    """The definitions that a function may use: names, and device functions of its module."""

    names: Mapping[str, Any]

    def has_function(self, name: str) -> bool:
        """Whether the module's text defines a device function."""

    def call(self, ops: NumbaOps, name: str, arguments: Sequence[Any]) -> Operand:
        """Emit a call of a device function; returns its result."""


# Key of a variable in all walks over a function: its name, and its first assignment (None: it is a
# parameter). Walks must use the same syntax tree, as statements are compared by identity.
VariableOrigin = tuple[str, ast.stmt | None]
VariableTypes = dict[VariableOrigin, NumbaType]


@record
class _Variable:
    """A stack slot.

    Attributes:
        numba_type: type of the variable.
        slot: address of the variable, an LLVM value.
        path: branches and loops around the first assignment, outermost first.
        origin: key of its type in the types that earlier walks found.
        has_predecessor: whether another variable of the name precedes it.
    """

    numba_type: NumbaType
    slot: Any
    path: tuple[Any, ...]
    origin: VariableOrigin
    has_predecessor: bool


class _LoopTargets(NamedTuple):
    """The basic blocks that ``continue`` and ``break`` of a loop branch to."""

    on_continue: Any
    on_break: Any


class FunctionEmitter:
    """Emits the body of one function.

    Args:
        module: definitions of the module that has the function.
        ops: operations, with a builder at the start of the function.
        types: types of variables that earlier walks found; this walk adds to them.
        merged: names that have one variable for all their types; this walk adds to them.
        debug_scope: scope for debug locations; None: emit none.

    Attributes:
        must_repeat: set by ``run`` if a type changed after its variable was used.
    """

    def __init__(
        self,
        module: ModuleDefinitions,
        ops: NumbaOps,
        types: VariableTypes,
        merged: set[str],
        debug_scope: Any,
    ) -> None:
        self._module, self._ops, self._builder = module, ops, ops.builder
        self._types, self._merged, self._debug_scope = types, merged, debug_scope
        self._entry = ops.builder.function.entry_basic_block
        # A tuple's value is its length; its elements are the variables "name.0", "name.1", ...
        self._variables: dict[str, _Variable | int] = {}
        self._path: list[Any] = []
        self._loops: list[_LoopTargets] = []  # of the loops around the statement
        # Names that are read outside of the branch or loop that assigns them.
        self._read_later: set[str] = set()
        self._exit_block: Any = None
        self._statement: ast.stmt | None = None
        self.must_repeat = False

    def run(self, node: ast.FunctionDef, arguments: Sequence[Any]) -> Operand:
        """Emit the whole body; returns the result: a TypedValue, a tuple or None.

        If ``must_repeat`` is set afterwards, the caller must discard the instructions and emit them
        again, with a new emitter and the same ``types`` and ``merged``.
        """
        for argument, value in zip(node.args.args, arguments, strict=True):
            self._assign(argument.arg, value)
        result = self._body(node.body)
        if self._exit_block is None:
            return result
        if not self._builder.block.is_terminated:
            self._builder.branch(self._exit_block)
        self._builder.position_at_end(self._exit_block)
        return self._load(_RESULT) if _RESULT in self._variables else None

    # --- statements ---

    def _body(self, body: Sequence[ast.stmt]) -> Operand:
        """Emit statements; returns the result of the last one, if that is a final return."""
        for statement in body:
            if self._builder.block.is_terminated:
                return None  # after a return or break
            self._statement = statement
            self._set_debug_location(statement)
            emit = getattr(self, f"_emit_{type(statement).__name__}", None)
            if emit is None:
                raise UnsupportedConstruct(f"the statement {ast.unparse(statement)}")
            result = emit(statement)
        return result

    def _set_debug_location(self, node: ast.stmt) -> None:
        if self._debug_scope is not None:
            location = {"line": node.lineno, "column": 1, "scope": self._debug_scope}
            module = self._builder.module
            self._builder.debug_metadata = module.add_debug_info("DILocation", location)

    def _emit_Assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for target in node.targets:
            self._store(target, value)

    def _emit_AugAssign(self, node: ast.AugAssign) -> None:
        old, value = self._read_target(node.target), self._value(node.value)
        self._store(node.target, self._ops.apply(_OPERATORS[type(node.op)], old, value))

    def _emit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value)

    def _emit_Pass(self, node: ast.Pass) -> None:
        """Emit nothing."""

    def _emit_Return(self, node: ast.Return) -> Operand:
        result = None if node.value is None else self._value(node.value)
        if not self._path and self._exit_block is None:
            return result
        if result is not None:
            self._assign(_RESULT, result, path=())
        if self._exit_block is None:
            self._exit_block = self._builder.append_basic_block("exit")
        self._builder.branch(self._exit_block)
        return None

    def _emit_Break(self, node: ast.Break) -> None:
        self._builder.branch(self._loops[-1].on_break)

    def _emit_Continue(self, node: ast.Continue) -> None:
        self._builder.branch(self._loops[-1].on_continue)

    def _emit_If(self, node: ast.If) -> None:
        then, end = self._block("then"), self._block("end")
        orelse = self._block("else") if node.orelse else end
        self._builder.cbranch(self._truth_value(node.test), then, orelse)
        self._branch(then, node.body, end, (node, "then"))
        if node.orelse:
            self._branch(orelse, node.orelse, end, (node, "else"))
        self._builder.position_at_end(end)

    def _branch(self, block: Any, body: Sequence[ast.stmt], end: Any, key: Any) -> None:
        """Emit one side of a branch into ``block``, then a branch to ``end``; ``key`` names it."""
        self._builder.position_at_end(block)
        with self._nested(key):
            self._body(body)
        if not self._builder.block.is_terminated:
            self._builder.branch(end)

    def _emit_While(self, node: ast.While) -> None:
        if node.orelse:
            raise UnsupportedConstruct("else after a loop")
        head, end = self._block("head"), self._block("end")
        self._loop(head, end, head, lambda: self._truth_value(node.test), node)

    def _emit_For(self, node: ast.For) -> None:
        """Emit a loop over a range; a step that is not constant may have either sign."""
        match node:
            case ast.For(
                target=ast.Name(id=name),
                orelse=[],
                iter=ast.Call(func=ast.Name(id="range"), args=args),
            ):
                bounds = [self._value(bound) for bound in args]
            case _:
                raise UnsupportedConstruct(f"the loop over {ast.unparse(node.iter)}")
        first, last, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        ops, numba_type = self._ops, self._ops.counter_type(bounds)
        counter = self._allocate(numba_type)
        self._builder.store(ops.cast(first, numba_type).value, counter)
        last = ops.cast(last, numba_type)
        head, following, end = self._block("head"), self._block("next"), self._block("end")

        def read() -> TypedValue:
            return TypedValue(numba_type, self._builder.load(counter))

        def test() -> NamedValue:
            index = read()
            if not isinstance(step, TypedValue):
                return ops.apply(operator.lt if step > 0 else operator.gt, index, last).value
            rises = ops.apply(operator.gt, step, 0).value
            tests = [
                ops.apply(compare, index, last).value for compare in (operator.lt, operator.gt)
            ]
            return self._builder.select(rises, *tests)

        self._loop(head, end, following, test, node, lambda: self._assign(name, read()))
        self._builder.position_at_end(following)
        added = ops.apply(operator.add, read(), step)
        self._builder.store(ops.cast(added, numba_type).value, counter)
        self._builder.branch(head)
        self._builder.position_at_end(end)

    def _loop(
        self,
        head: Any,
        end: Any,
        following: Any,
        test: Callable[[], Any],
        node: Any,
        begin: Callable[[], None] | None = None,
    ) -> None:
        """Emit a loop; afterwards the builder is at ``end``.

        Args:
            head: basic block that tests the condition.
            end: basic block after the loop, which ``break`` branches to.
            following: basic block that ``continue`` and the end of the body branch to.
            test: emits the condition; returns an i1.
            node: syntax tree of the loop.
            begin: emits the start of the body; None: there is none.
        """
        block = self._block("body")
        self._builder.branch(head)
        self._builder.position_at_end(head)
        self._builder.cbranch(test(), block, end)
        self._builder.position_at_end(block)
        self._loops.append(_LoopTargets(following, end))
        with self._nested(node):
            if begin is not None:
                begin()
            self._body(node.body)
        self._loops.pop()
        if not self._builder.block.is_terminated:
            self._builder.branch(following)
        self._builder.position_at_end(end)

    def _block(self, name: str) -> Block:
        return self._builder.append_basic_block(name)

    @contextmanager
    def _nested(self, key: Any) -> Iterator[None]:
        """Append a branch or loop to the path of the statements that are emitted meanwhile."""
        self._path.append(key)
        yield
        self._path.pop()

    # --- variables ---

    def _store(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._assign(name, value)
            case ast.Tuple(elts=targets):
                for element_target, element in zip(targets, value, strict=True):
                    self._store(element_target, element)
            case ast.Subscript(value=array, slice=index):
                self._ops.store(self._value(array), self._value(index), value)
            case _:
                raise UnsupportedConstruct(f"an assignment to {ast.unparse(target)}")

    def _read_target(self, target: ast.expr) -> Operand:
        if isinstance(target, ast.Name):
            return self._load(target.id)
        if isinstance(target, ast.Subscript):
            operands = [self._value(target.value), self._value(target.slice)]
            return self._ops.call(operator.getitem, operands)
        raise UnsupportedConstruct(f"an assignment to {ast.unparse(target)}")

    def _assign(self, name: str, value: Any, path: tuple[Any, ...] | None = None) -> None:
        """Emit the store of a scalar or tuple to a variable.

        Args:
            name: name of the variable.
            value: an operand.
            path: branches and loops around the assignment; None: those around this statement.
        """
        if isinstance(value, tuple):
            for k, element in enumerate(value):
                self._assign(f"{name}.{k}", element, path)
            self._variables[name] = len(value)
            return
        if not isinstance(value, TypedValue | int | float):
            raise UnsupportedConstruct(f"{name} = {value!r}")
        value = self._ops.typed(value)
        path = tuple(self._path) if path is None else path
        variable = self._variable(name, value.numba_type, path)
        self._builder.store(self._ops.cast(value, variable.numba_type).value, variable.slot)

    def _variable(self, name: str, numba_type: Any, path: tuple[Any, ...]) -> _Variable:
        """The variable that an assignment of a value of type ``numba_type`` stores to."""
        variable = self._variables.get(name)
        if not isinstance(variable, _Variable):
            return self._new_variable(name, numba_type, path, False)
        if variable.numba_type == numba_type:
            return variable
        is_outer = len(variable.path) < len(path) and path[: len(variable.path)] == variable.path
        if not (is_outer or name in self._merged or name.startswith(_RESULT)):
            if name in self._read_later:
                self._merge(name)
            return self._new_variable(name, numba_type, path, True)
        unified = self._unified_type(name, variable.numba_type, numba_type)
        if unified != variable.numba_type:
            self._types[variable.origin] = unified
            self.must_repeat = True
        return variable

    def _new_variable(
        self, name: str, numba_type: Any, path: tuple[Any, ...], has_predecessor: bool
    ) -> _Variable:
        origin = name, self._statement
        if origin in self._types:
            numba_type = self._unified_type(name, self._types[origin], numba_type)
        variable = _Variable(numba_type, self._allocate(numba_type), path, origin, has_predecessor)
        self._variables[name] = variable
        return variable

    def _unified_type(self, name: str, first_type: NumbaType, second_type: NumbaType) -> NumbaType:
        unified = self._ops.typing.unify_types(first_type, second_type)
        if unified is None:
            raise UnsupportedConstruct(
                f"the variable {name} of the types {first_type} and {second_type}"
            )
        return unified

    def _merge(self, name: str) -> None:
        """Give a name one variable for all types from the next walk on: any may reach a use."""
        if name not in self._merged:
            self._merged.add(name)
            self.must_repeat = True

    def _allocate(self, numba_type: NumbaType) -> NamedValue:
        with self._builder.goto_block(self._entry):
            return self._builder.alloca(self._ops.context.get_value_type(numba_type))

    def _load(self, name: str) -> Operand:
        variable = self._variables[name]
        if isinstance(variable, int):
            return tuple([self._load(f"{name}.{k}") for k in range(variable)])
        if tuple(self._path[: len(variable.path)]) != variable.path:
            self._read_later.add(name)
            if variable.has_predecessor:
                self._merge(name)
        return TypedValue(variable.numba_type, self._builder.load(variable.slot))

    # --- expressions ---

    def _value(self, node: ast.expr) -> Operand:
        """A TypedValue, a Python scalar, a tuple of these, or the object that a name refers to."""
        emit = getattr(self, f"_value_of_{type(node).__name__}", None)
        if emit is None:
            raise UnsupportedConstruct(f"the expression {ast.unparse(node)}")
        return emit(node)

    def _truth_value(self, node: ast.expr) -> NamedValue:
        return self._ops.truth(self._value(node))

    def _value_of_Constant(self, node: ast.Constant) -> Operand:
        return node.value

    def _value_of_Name(self, node: ast.Name) -> Operand:
        name = node.id
        if name in self._variables:
            return self._load(name)
        if name in self._module.names:
            return self._module.names[name]
        if not hasattr(builtins, name):
            raise UnsupportedConstruct(f"the undefined name {name}")
        return getattr(builtins, name)

    def _value_of_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple([self._value(element) for element in node.elts])

    def _value_of_Attribute(self, node: ast.Attribute) -> Operand:
        name = ast.unparse(node)
        if name.startswith("cuda.") and "cuda" not in self._variables:
            return self._ops.cuda_attribute(name.removeprefix("cuda."))
        owner = self._value(node.value)
        if not hasattr(owner, node.attr):
            raise UnsupportedConstruct(f"the attribute {name}")
        return getattr(owner, node.attr)

    def _value_of_BinOp(self, node: ast.BinOp) -> Operand:
        sides = self._value(node.left), self._value(node.right)
        return self._ops.apply(self._operator(node.op), *sides)

    def _value_of_UnaryOp(self, node: ast.UnaryOp) -> Operand:
        value = self._value(node.operand)
        if not isinstance(node.op, ast.Not):
            return self._ops.apply(self._operator(node.op), value)
        if not isinstance(value, TypedValue):
            return not value
        return TypedValue(self._ops.types.boolean, self._builder.not_(self._ops.truth(value)))

    def _operator(self, node: ast.AST) -> Callable[..., Any]:
        if type(node) not in _OPERATORS:
            raise UnsupportedConstruct(f"the operator {type(node).__name__}")
        return _OPERATORS[type(node)]

    def _value_of_Compare(self, node: ast.Compare) -> Operand:
        """Emit comparisons; inner operands of a chain, free of effects, are computed twice."""
        sides = [node.left, *node.comparators]
        if len(node.ops) == 1:
            left, right = map(self._value, sides)
            return self._ops.apply(self._operator(node.ops[0]), left, right)
        pairs = zip(sides, node.ops, node.comparators, strict=False)
        return self._short_circuit(ast.And(), [ast.Compare(a, [op], [b]) for a, op, b in pairs])

    def _value_of_BoolOp(self, node: ast.BoolOp) -> TypedValue:
        return self._short_circuit(node.op, node.values)

    def _short_circuit(self, op: ast.boolop, values: Sequence[ast.expr]) -> TypedValue:
        """Emit a short-circuit ``and`` or ``or``, whose result is a bool."""
        first, *others = values
        result = self._truth_value(first)
        if not others:
            return TypedValue(self._ops.types.boolean, result)
        evaluate_next, end, start = self._block("more"), self._block("end"), self._builder.block
        is_and = isinstance(op, ast.And)
        self._builder.cbranch(result, *((evaluate_next, end) if is_and else (end, evaluate_next)))
        self._builder.position_at_end(evaluate_next)
        second = self._short_circuit(op, others).value
        last = self._builder.block
        self._builder.branch(end)
        self._builder.position_at_end(end)
        phi = self._builder.phi(result.type)
        phi.add_incoming(self._ops.ir.Constant(result.type, int(not is_and)), start)
        phi.add_incoming(second, last)
        return TypedValue(self._ops.types.boolean, phi)

    def _value_of_IfExp(self, node: ast.IfExp) -> TypedValue:
        blocks = [self._block(name) for name in ("then", "else", "end")]
        self._builder.cbranch(self._truth_value(node.test), *blocks[:2])
        ends, values = [], []
        for block, value in zip(blocks, (node.body, node.orelse), strict=False):
            self._builder.position_at_end(block)
            values.append(self._ops.typed(self._value(value)))
            ends.append(self._builder.block)
        numba_type = self._ops.typing.unify_types(*[value.numba_type for value in values])
        if numba_type is None:
            raise UnsupportedConstruct(f"operands of two types in {ast.unparse(node)}")
        for k, end in enumerate(ends):
            self._builder.position_at_end(end)
            values[k] = self._ops.cast(values[k], numba_type)
            ends[k] = self._builder.block
            self._builder.branch(blocks[2])
        self._builder.position_at_end(blocks[2])
        phi = self._builder.phi(values[0].value.type)
        for value, end in zip(values, ends, strict=True):
            phi.add_incoming(value.value, end)
        return TypedValue(numba_type, phi)

    def _value_of_Subscript(self, node: ast.Subscript) -> Operand:
        array, index = self._value(node.value), self._value(node.slice)
        if isinstance(array, tuple):
            return self._ops.element(array, index)
        return self._ops.call(operator.getitem, [array, index])

    def _value_of_Call(self, node: ast.Call) -> Operand:
        if node.keywords:
            raise UnsupportedConstruct(f"keywords in {ast.unparse(node)}")
        arguments = [self._value(argument) for argument in node.args]
        if isinstance(node.func, ast.Name) and self._module.has_function(node.func.id):
            return self._module.call(self._ops, node.func.id, arguments)
        if ast.unparse(node.func) == "cuda.local.array":
            return self._ops.local_array(*arguments, self._entry)
        return self._ops.call(self._value(node.func), arguments)
