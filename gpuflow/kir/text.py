"""The readable text of a kernel, which is also its cache key.

The text is canonical: values are numbered by order of appearance, so that two kernels with equal
text are the same kernel, whatever numbers their builder gave. It holds all that matters to code:

    kernel row_softmax(x: f32 in [i0:s, i1:1], o: f32 out [i0:s, i1:1]) kind=row index=64
      axes i0 parallel, i1 row
      for i0:
        %0: f32 = const -inf
        %1: f32 = reduce i1 (%0) { %2: f32 = load x; yield %2 } combine max

A block of few flat statements is in braces after its owner, others are indented.

A change of the text invalidates all cached kernels; nothing that determines the code may be left
out of it, or two kernels share an entry of the cache.

Tests: tests/kir/test_kir_builder_text.py, tests/compiler/test_program_keys.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.kir import nodes
from gpuflow.kir.builder import simple_combine
from gpuflow.kir.nodes import Block, Kernel, Mode, Operand, Value, memoized

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")

_SHORT_KINDS = {
    "float": "f",
    "bfloat": "bf",
    "complex": "c",
    "int": "i",
    "uint": "u",
    "bool": "bool",
}

# Blocks of at most this many statements without nested blocks are written in braces.
_MAX_INLINE_STATEMENTS = 4


def short_dtype(dtype: str) -> str:
    """The short name of a dtype: f32, bf16, i64, u8, bool, f8_e4m3fn."""
    kind = dtype.partition("_")[0].rstrip("0123456789")
    return _SHORT_KINDS[kind] + dtype[len(kind) :]


def kernel_text(kernel: Kernel) -> str:
    """The canonical text of ``kernel``: equal for kernels with the same code.

    Args:
        kernel: a kernel that ``verify`` accepts.

    Returns:
        Lines as in the head of this module, ending in a newline.
    """
    return memoized(kernel, _kernel_text)


def _kernel_text(kernel: Kernel) -> str:
    operands = ", ".join(_operand_text(operand, kernel) for operand in kernel.operands)
    segmented = " segmented" if kernel.segmented else ""
    head = f"kernel {kernel.name}({operands}) kind={kernel.kind} index={kernel.index_bits}"
    lines = [head + segmented]
    if kernel.axes:
        lines.append("  axes " + ", ".join(_axis_text(axis) for axis in kernel.axes))
    writer = _Writer()
    for local in kernel.locals:
        sizes = ", ".join(f"{axis}:{size}" for axis, size in local.axes)
        rows = f" rows {local.rows}" if local.rows > 1 else ""
        lines.append(f"  local {local.name}: {short_dtype(local.dtype)} [{sizes}]{rows}")
    for statement in kernel.body.body:
        lines += ("  " + line for line in writer.statement(statement))
    return "\n".join(lines) + "\n"


def kernel_key(kernel: Kernel) -> str:
    """The sha256 of ``kernel_text(kernel)`` in hexadecimal."""
    return hashlib.sha256(kernel_text(kernel).encode()).hexdigest()


def _operand_text(operand: Operand, kernel: Kernel) -> str:
    dtype = "" if operand.mode is Mode.INDEX else short_dtype(operand.dtype) + " "
    text = f"{operand.name}: {dtype}{operand.mode.value}"
    if not operand.strides:
        return text
    pairs = zip(kernel.axes, operand.strides, strict=True)
    return f"{text} [{', '.join(f'{axis.name}:{stride.value}' for axis, stride in pairs)}]"


def _axis_text(axis: nodes.Axis) -> str:
    exact = "" if axis.exact is None else f"={axis.exact}"
    return f"{axis.name} {axis.role.value}{exact}{' short' if axis.is_short else ''}"


class _Writer:
    """Writes statements and numbers values as they appear; one for each kernel."""

    def __init__(self) -> None:
        self._number_of: dict[int, int] = {}

    def statement(self, statement: nodes.Statement) -> list[str]:
        """The lines of one statement, without the indentation of its block."""
        if isinstance(statement, nodes.Store):
            suffix = self._access_suffix(statement)
            return [f"store {statement.operand} {self._use_text(statement.value)}{suffix}"]
        if isinstance(statement, nodes.For) and statement.axis is not None:
            padded = " padded" if statement.padded else ""
            return [f"for {statement.axis}{padded}:", *self._indented_lines(statement.body)]
        if isinstance(statement, nodes.Strip):
            head = f"strip {statement.axis} by {statement.size}:"
            return [head, *self._indented_lines(statement.body)]
        if isinstance(statement, nodes.Copy):
            return self._copy(statement)
        writers = {
            nodes.Reduce: self._reduce,
            nodes.For: self._for_count,
            nodes.While: self._while,
            nodes.If: self._if,
        }
        if type(statement) in writers:
            return writers[type(statement)](statement)
        return [self._flat(statement)]

    def _flat(self, statement: nodes.Statement) -> str:
        # Uses come before definitions, so that the numbering follows the order of definition.
        match statement:
            case nodes.Const(out, value):
                return f"{self._definition_text((out,))}const {constant_text(out.dtype, value)}"
            case nodes.Load(out, operand):
                suffix = self._access_suffix(statement)
                return f"{self._definition_text((out,))}load {operand}{suffix}"
            case nodes.Apply(outs, fn, args):
                operands_text = self._uses_text(args)
                return f"{self._definition_text(outs)}{fn} {operands_text}"
            case nodes.Select(out, predicate, on_true, on_false):
                operands_text = self._uses_text((predicate, on_true, on_false))
                return f"{self._definition_text((out,))}select {operands_text}"
            case nodes.Cast(out, arg):
                operands_text = self._use_text(arg)
                return f"{self._definition_text((out,))}cast {operands_text}"
        raise TypeError(f"[kir] statement must be a node of kir.nodes; got {statement!r}.")

    def _reduce(self, statement: nodes.Reduce) -> list[str]:
        init = self._uses_text(statement.init)
        axes = " ".join((*statement.axes, *(["padded"] if statement.padded else [])))
        head = f"{self._definition_text(statement.outs)}reduce {axes} ({init})"
        body = self._block_lines(head, statement.body)
        function = simple_combine(statement.combine)
        if function is not None:
            return [*body[:-1], f"{body[-1]} combine {function}"]
        params = self._params_text(statement.combine)
        combine = self._block_lines(f" combine ({params})", statement.combine)
        return [*body[:-1], body[-1] + combine[0], *combine[1:]]

    def _for_count(self, statement: nodes.For) -> list[str]:
        count = self._use_text(statement.count) if statement.count is not None else "?"
        init = self._uses_text(statement.init)
        count += " long" if statement.is_long else ""
        head = f"{self._definition_text(statement.outs)}for {count} ({init})"
        return self._block_lines(f"{head} do ({self._params_text(statement.body)})", statement.body)

    def _copy(self, statement: nodes.Copy) -> list[str]:
        k = statement.component
        component = "" if k is None else (" real", " imaginary")[k]
        head = f"copy {statement.target} {statement.source}{component}"
        if statement.count is None:
            return [head]
        params = self._params_text(statement.row_offsets)
        head = f"{head} rows {self._use_text(statement.count)} at ({params})"
        return self._block_lines(head, statement.row_offsets)

    def _while(self, statement: nodes.While) -> list[str]:
        init = self._uses_text(statement.init)
        head = f"{self._definition_text(statement.outs)}while ({init})"
        cond = self._block_lines(
            f"{head} cond ({self._params_text(statement.cond)})", statement.cond
        )
        body = self._block_lines(f" do ({self._params_text(statement.body)})", statement.body)
        return [*cond[:-1], cond[-1] + body[0], *body[1:]]

    def _if(self, statement: nodes.If) -> list[str]:
        predicate = self._use_text(statement.predicate)
        head = f"{self._definition_text(statement.outs)}if {predicate}"
        then = self._block_lines(head, statement.then)
        orelse = self._block_lines(" else", statement.orelse)
        return [*then[:-1], then[-1] + orelse[0], *orelse[1:]]

    def _block_lines(self, head: str, block: Block) -> list[str]:
        """``head { ... }`` on one line where the block is small and flat, else on several."""
        owners = (nodes.Reduce, nodes.For, nodes.Strip, nodes.While, nodes.If)
        is_flat = not any(isinstance(statement, owners) for statement in block.body)
        body = self._indented_lines(block)
        if is_flat and len(block.body) <= _MAX_INLINE_STATEMENTS:
            inline = "; ".join(line.strip() for line in body)
            return [f"{head} {{ {inline} }}" if inline else f"{head} {{ }}"]
        return [head + " {", *body, "}"]

    def _indented_lines(self, block: Block) -> list[str]:
        lines = [line for statement in block.body for line in self.statement(statement)]
        if block.results:
            lines.append(f"yield {self._uses_text(block.results)}")
        return ["  " + line for line in lines]

    def _access_suffix(self, statement: nodes.Load | nodes.Store) -> str:
        text = "" if statement.component is None else (" real", " imaginary")[statement.component]
        if statement.offset is not None:
            text += f" at {self._use_text(statement.offset)}"
        if statement.where is not None:
            text += f" where {self._use_text(statement.where)}"
        return text

    def _params_text(self, block: Block) -> str:
        return ", ".join(self._typed_name(value) for value in block.params)

    def _definition_text(self, outs: Iterable[Value]) -> str:
        names = ", ".join(self._typed_name(value) for value in outs)
        return f"{names} = " if names else ""

    def _typed_name(self, value: Value) -> str:
        number = self._number_of.setdefault(value.number, len(self._number_of))
        return f"%{number}: {short_dtype(value.dtype)}"

    def _use_text(self, value: Value) -> str:
        return f"%{self._number_of.setdefault(value.number, len(self._number_of))}"

    def _uses_text(self, values: Iterable[Value]) -> str:
        return " ".join(self._use_text(value) for value in values)


def constant_text(dtype: str, value: bool | int | float) -> str:
    """A constant in full: bool true or false, floats with the fewest digits that round-trip."""
    if dtype == "bool":
        return "true" if value else "false"
    return repr(float(value)) if dtype.startswith("float") else str(int(value))
