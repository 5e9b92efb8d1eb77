"""Read PTX text: a module's variables and functions, each a list of instructions and labels.

Line numbers: ``.loc`` lines name the line of the kernel's source for the following instructions;
without them, instructions have their line of the PTX.

Tests: tests/ptxsim/test_ptx_memory.py, tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from ptxsim.faults import unreadable
from ptxsim.syntax import Function, Instruction, Label, Module, Variable
from ptxsim.types import TYPES

_NAME = r"[\w$%]+"
_LABEL = re.compile(rf"({_NAME})\s*:(?!:)")
_OPERANDS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s]+")
_HEADER = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\s*(?:\(([^)]*)\)\s*)?"
    rf"({_NAME})\s*(?:\(([^)]*)\))?([^{{;]*)([{{;])"
)
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|local|global|const|param)\s+"
    r"(?:\.attribute\s*\([^)]*\)\s*)?(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    rf"(?:\.ptr[^,]*?\s)?({_NAME})\s*((?:\[\d*\]\s*)*)(?:=\s*(.*))?$",
    re.DOTALL,
)

# NVVM's pragma for a load that it has widened over unused bytes.
_USED_BYTES = re.compile(r'"used_bytes_mask\s+(\d+)"')
_WIDE_LOAD = re.compile(
    r"(ld[\w.:]*)\.v\d(\.\w*?(\d+))\s+\{([^}]*)\}\s*,\s*"
    rf"\[\s*({_NAME})\s*(?:\+\s*(-?\d+)\s*)?\]$"
)


class _Text:
    """The text without comments, and the row (from 1) of any position in it."""

    def __init__(self, ptx: str) -> None:
        blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
        self.text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, ptx, flags=re.DOTALL)
        self.starts = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def row(self, position: int) -> int:
        return bisect_right(self.starts, position)


def parse(ptx: str) -> Module:
    """Read a module.

    Raises:
        PtxError: if the text cannot be parsed; the error names its row.
    """
    text, module, at = _Text(ptx), Module(), 0
    for number, path in re.findall(r"^\s*\.file\s+(\d+)\s+\"([^\"]*)\"", ptx, re.MULTILINE):
        module.files[number] = path
    end = len(text.text)
    while (at := _skip_space(text.text, at)) < end:
        header = _HEADER.match(text.text, at)
        if header:
            at = _function(text, header, module)
        elif re.match(r"\.(version|target|address_size|file|loc)\b", text.text[at : at + 20]):
            at = _next_newline(text.text, at)
        elif text.text.startswith(".section", at):
            at = _closing(text.text, text.text.index("{", at)) + 1
        else:
            stop = text.text.find(";", at)
            stop = end if stop < 0 else stop
            _module_variable(" ".join(text.text[at:stop].split()), text.row(at), module)
            at = stop + 1
    return module


def _skip_space(text: str, at: int) -> int:
    match = re.compile(r"[\s;]*").match(text, at)
    return match.end() if match else at


def _next_newline(text: str, at: int) -> int:
    stop = text.find("\n", at)
    return len(text) if stop < 0 else stop


def _closing(text: str, at: int) -> int:
    """The position of the brace that closes the one at ``at``."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise unreadable("braces must be balanced; got one that stays open", "the end", "close it")


def _module_variable(statement: str, row: int, module: Module) -> None:
    if statement.startswith((".alias", ".pragma")):
        return
    variable = _variable(statement)
    if variable is None:
        raise unreadable(
            f"a module must hold variables and functions; got `{statement[:60]}`",
            f"line {row} of the PTX",
            "spell the kernel without it",
        )
    module.variables[variable.name] = variable


def _variable(statement: str) -> Variable | None:
    match = _VARIABLE.match(statement.strip())
    if match is None or match[3] not in TYPES:
        return None
    space, align, dtype, name, extents, values = match.groups()
    counts = [int(extent or 0) for extent in re.findall(r"\[(\d*)\]", extents)]
    total = 1
    for count in counts:
        total *= count
    initial = tuple(re.findall(r"[^\s,{}]+", values)) if values else ()
    return Variable(name, space, dtype, total, int(align or TYPES[dtype].itemsize), initial)


def _function(text: _Text, header: re.Match[str], module: Module) -> int:
    """Read one function; gives the position after it."""
    kind, results, name, parameters, directives, opened = header.groups()
    function = Function(name, kind == "entry", _parameters(parameters), _parameters(results))
    most = re.search(r"\.(?:maxntid|reqntid)\s+([\d\s,]+)", directives)
    if most:
        function.max_threads = 1
        for extent in most[1].split(","):
            function.max_threads *= int(extent)
    if opened == ";":  # a declaration; the definition follows, or is missing when it is called
        return header.end()
    stop = _closing(text.text, header.end() - 1)
    _Body(text, function, module.files).read(header.end(), stop)
    module.functions[name] = function
    return stop + 1


def _used_loads(statement: str, used: int) -> list[str]:
    """Scalar loads of the elements of a vector load that are used, by a mask of its bytes.

    The other elements may be unallocated or unset.
    """
    wide = _WIDE_LOAD.search(statement)
    if wide is None:
        return [statement]
    name, dtype, bits, targets, base, offset = wide.groups()
    size, head = int(bits) // 8, statement[: wide.start()]
    loads = []
    for index, target in enumerate(targets.split(",")):
        if used >> (index * size) & ((1 << size) - 1):
            at = int(offset or 0) + index * size
            loads.append(f"{head}{name}{dtype} {target.strip()}, [{base}+{at}]")
    return loads


def _parameters(text: str | None) -> list[Variable]:
    parameters = []
    for declaration in filter(None, (item.strip() for item in (text or "").split(","))):
        if declaration.startswith(".reg"):
            declaration = declaration.replace(".reg", ".param", 1)
        variable = _variable(declaration)
        if variable is None:
            raise unreadable(
                f"a parameter must have a type and a name; got `{declaration}`",
                "a function's head",
                "declare it as .param .u64 name",
            )
        parameters.append(variable)
    return parameters


class _Body:
    """Reads a function's body; names declared in an inner scope are renamed."""

    def __init__(self, text: _Text, function: Function, files: dict[str, str]) -> None:
        self.text = text
        self.function = function
        self.files = files
        self.scopes: list[dict[str, str]] = [{}]
        self.scope_count = 0
        self.source = ""

    def read(self, at: int, stop: int) -> None:
        """Read the statements between two positions."""
        used = None  # mask of the bytes of the next load that are used
        for statement, position in self._statements(at, stop):
            if statement.startswith(".pragma"):
                mask = _USED_BYTES.search(statement)
                used = used if mask is None else int(mask[1])
            elif used is not None:
                for load in _used_loads(statement, used):
                    self._instruction(load, position)
                used = None
            elif statement.startswith(".reg"):
                self._registers(statement)
            elif statement.startswith((".shared", ".local", ".param", ".const", ".global")):
                self._memory(statement, position)
            elif statement.startswith(".extern") or not statement.startswith("."):
                self._instruction(statement, position)

    def _statements(self, at: int, stop: int) -> Iterator[tuple[str, int]]:
        text = self.text.text
        while (at := _skip_space(text, at)) < stop:
            label = _LABEL.match(text, at)
            if text[at] == "{":
                self.scope_count += 1
                self.scopes.append({})
                at += 1
            elif text[at] == "}":
                self.scopes.pop()
                at += 1
            elif text.startswith((".loc\t", ".loc ", ".file"), at):
                after = _next_newline(text, at)
                self._location(text[at:after])
                at = after
            elif label:
                at = self._label(label, stop)
            else:
                after = text.find(";", at, stop)
                after = stop if after < 0 else after
                yield " ".join(text[at:after].split()), at
                at = after + 1

    def _location(self, directive: str) -> None:
        match = re.match(r"\.loc\s+(\d+)\s+(\d+)", directive)
        if match and match[2] != "0":  # line 0 is code of no line
            self.source = f"{self.files.get(match[1], 'file ' + match[1])}:{match[2]}"

    def _label(self, label: re.Match[str], stop: int) -> int:
        """A label, or the name of a table of branch targets; gives the position after it."""
        text = self.text.text
        after = _skip_space(text, label.end())
        if text.startswith((".branchtargets", ".calltargets", ".callprototype"), after):
            end = text.index(";", after, stop)
            self.function.branch_tables[label[1]] = tuple(re.findall(_NAME, text[after:end]))[1:]
            return end + 1
        self.function.body.append(Label(label[1]))
        return label.end()

    def _declare(self, name: str) -> str:
        if len(self.scopes) == 1:
            return name
        self.scopes[-1][name] = f"{name}_s{self.scope_count}_"
        return self.scopes[-1][name]

    def _registers(self, statement: str) -> None:
        _, dtype, names = statement.split(None, 2)
        dtype = dtype[1:]
        if dtype not in TYPES:
            raise unreadable(
                f"a register must have a known type; got .{dtype}",
                f"function {self.function.name}",
                "spell the kernel without it",
            )
        for name in (item.strip() for item in names.split(",")):
            family, _, count = name.partition("<")
            if not count:
                self.function.registers[self._declare(name)] = dtype
            elif len(self.scopes) == 1:
                self.function.register_families[family] = dtype
            else:
                for number in range(int(count.rstrip(">"))):
                    self.function.registers[self._declare(f"{family}{number}")] = dtype

    def _memory(self, statement: str, position: int) -> None:
        variable = _variable(statement)
        if variable is None:
            where = f"line {self.text.row(position)} of the PTX"
            fix = "spell the kernel without it"
            raise unreadable(f"a declaration must be known; got `{statement}`", where, fix)
        renamed = self._declare(variable.name)
        declared = Variable(renamed, variable.space, variable.dtype, variable.count, variable.align)
        self.function.variables[renamed] = declared

    def _instruction(self, statement: str, position: int) -> None:
        where = self.source or f"line {self.text.row(position)} of the PTX"
        match = re.match(rf"(?:@\s*(!?)\s*({_NAME})\s+)?([\w.:]+)\s*(.*)$", statement)
        if match is None:
            raise unreadable(
                f"a statement must be an instruction; got `{statement}`", where, "correct the text"
            )
        negated, guard, name, operand_text = match.groups()
        operand_text, guard = self._renamed(operand_text), self._renamed(guard or "")
        opcode, *modifiers = name.split(".")
        operands = tuple(operand.replace(" ", "") for operand in _OPERANDS.findall(operand_text))
        self.function.body.append(
            Instruction(opcode, tuple(modifiers), operands, guard, bool(negated), statement, where)
        )

    def _renamed(self, text: str) -> str:
        for scope in reversed(self.scopes[1:]):
            if scope and text:
                text = re.sub(_NAME, lambda match, scope=scope: scope.get(match[0], match[0]), text)
        return text
