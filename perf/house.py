"""The state of the house: rooms and files, what a cold call passes, what binding costs.

usage: python perf/house.py [TREE ...] [--repeats N] [--source-only]

Each TREE is a checkout, a column of the table (default: this one). Cold calls and binds run in
fresh processes, those of all trees in turn, so that columns of one run may be compared; cold calls
with an empty folder of kernels. Lists of what the figures count follow, for the last tree.
docs/design/0026-the-house.md says where the figures are to go.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import prose

HERE = Path(__file__).resolve().parent
SOURCES = ("gpuflow", "kernels", "ptxsim")
MAX_FILES = 45  # of a room
PREFIXES = ("cpu_", "cuda_", "gpu_")
# Words that say nothing of the value that they name.
EMPTY_NAMES = ("found", "own", "given", "made")
# Words of our own for which the field has a term, where they name what is defined.
RETIRED = frozenset({
    "alike", "anew", "apart", "asked", "began", "begun", "behind", "beside", "border", "borders",
    "bulk", "carried", "choice", "choices", "chosen", "fit", "fits", "fitting", "gaps", "hidden",
    "holes", "inside", "joined", "keep", "kept", "known", "lay", "left", "lie", "lies", "line",
    "lines", "margins", "marks", "mend", "moved", "moves", "number", "numbers", "outside", "part",
    "parted", "parts", "piece", "pieces", "place", "places", "rest", "said", "says", "spread",
    "stand", "stands", "together", "told", "turn", "turned", "turns", "unfit", "wanted", "way",
    "word", "words",
})  # fmt: skip
HOW_IT_RUNS = ("gpuflow/compiler", "gpuflow/targets", "gpuflow/runtime")
TARGETS = "gpuflow/targets/"
# Below the surface, whose names are JAX's.
BELOW = tuple(
    f"gpuflow/{room}"
    for room in (
        "base",
        "kir",
        "core",
        "ops",
        "compiler",
        "runtime",
        "targets",
        "transforms",
        "control",
        "parallel",
        "api",
    )
)
NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)

# The forms that a program has on its way, each with the function that makes it.
FORMS = {
    "jaxpr": "_trace",
    "group": "fuse",
    "KernelIR": "lower_group",
    "symbolic plan": "specialize",
    "plan": "bound_plan",
    "loop program": "print_cpu",
    "LLVM module": "compile_module",
    "LLVM text": "_optimized",
    "object file": "_object_code",
    "image": "link_image",
    "code words": "callable_program",
    "driver text": "build_driver_function",
}


# --- the source ---------------------------------------------------------------------------------


@dataclass
class Source:
    """What the files of a tree say.

    Attributes:
        rooms: the number of files that are directly in each folder.
        lines: by kind: code, docstrings, comments, blank ones, LLVM.
        empty_names: how often each name that says nothing occurs.
        returns_any: functions of compiler, targets and runtime that return Any.
        text_keys: places where what is kept with a kernel has a key with text in it.
        lowering_checks: files with questions for the class of an op's lowering, and how many.
        code_of: lines of code of each top room: of gpuflow's folders, and of kernels.
        retired: how often each retired word occurs in a name that is defined.
        prose: counts of retired words by page, and by folder of error messages.
    """

    paths: list[str] = field(default_factory=list)
    rooms: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    empty_names: Counter[str] = field(default_factory=Counter)
    returns_any: list[str] = field(default_factory=list)
    text_keys: list[str] = field(default_factory=list)
    lowering_checks: Counter[str] = field(default_factory=Counter)
    code_of: Counter[str] = field(default_factory=Counter)
    retired: Counter[str] = field(default_factory=Counter)
    prose: dict[str, prose.Counts] = field(default_factory=dict)

    @property
    def full_rooms(self) -> list[str]:
        return [f"{room}: {n}" for room, n in self.rooms.most_common() if n > MAX_FILES]

    @property
    def prefixed(self) -> list[str]:
        return [path for path in self.paths if Path(path).name.startswith(PREFIXES)]

    @property
    def twins(self) -> list[str]:
        """Files of one name in neighboring rooms below the surface, unless of two targets."""
        by_name: dict[str, list[str]] = {}
        for path in self.paths:
            if path.startswith(BELOW) and not path.endswith("__init__.py"):
                by_name.setdefault(Path(path).name, []).append(str(Path(path).parent))
        return [
            f"{name}: {one}, {other}"
            for name, rooms in by_name.items()
            for one, other in combinations(rooms, 2)
            if _are_neighbors(one, other) and not _are_of_two_targets(one, other)
        ]


def _are_neighbors(one: str, other: str) -> bool:
    """Whether rooms stand in one room, or one in the other."""
    first, second = Path(one).parent, Path(other).parent
    return first == second or str(first) == other or str(second) == one


def _are_of_two_targets(one: str, other: str) -> bool:
    return one.startswith(TARGETS) and other.startswith(TARGETS)


def read_source(tree: Path) -> Source:
    """Reads the source files of a checkout."""
    source = Source(prose={**prose.pages(tree), **prose.messages(tree)})
    texts = {}
    for folder in SOURCES:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in (".py", ".ll"):
                texts[path.relative_to(tree).as_posix()] = path.read_text(encoding="utf-8")
    classes = lowering_classes(texts)
    for path, text in texts.items():
        source.paths.append(path)
        source.rooms[str(Path(path).parent)] += 1
        if path.endswith(".ll"):
            source.lines["LLVM"] += len(text.splitlines())
        else:
            read_file(source, path, text, classes)
    return source


def lowering_classes(texts: Mapping[str, str]) -> frozenset[str]:
    """The classes that say how ops reach kernels."""
    trees = [ast.parse(text) for path, text in texts.items() if "core/lowering" in path]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return frozenset(node.name for node in nodes if isinstance(node, ast.ClassDef))


def read_file(source: Source, path: str, text: str, classes: frozenset[str]) -> None:
    """Adds what one Python file says."""
    nodes = list(ast.walk(ast.parse(text)))
    before = source.lines["code"]
    count_lines(source, nodes, text)
    classes -= imported_from_others("core.lowering", nodes)
    source.code_of[top_room(path)] += source.lines["code"] - before
    for node in nodes:
        if name := defined_name(node):
            source.retired.update(RETIRED.intersection(words_of(name)))
        place = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.FunctionDef) and path.startswith(HOW_IT_RUNS):
            if isinstance(node.returns, ast.Name) and node.returns.id == "Any":
                source.returns_any.append(f"{place} {node.name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "memoized" and has_text(node.args[1]):
                source.text_keys.append(place)
            elif node.func.id == "isinstance" and path.startswith(HOW_IT_RUNS):
                names = set(names_in(node.args[1]))
                source.lowering_checks[path] += bool(classes & names)
    source.lowering_checks += Counter()  # drops files without any


def imported_from_others(room: str, nodes: Sequence[ast.AST]) -> frozenset[str]:
    """The names that a file imports from other rooms."""
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    return frozenset(
        alias.asname or alias.name
        for node in imports
        if room not in (node.module or "")
        for alias in node.names
    )


def count_lines(source: Source, nodes: Sequence[ast.AST], text: str) -> None:
    """Adds the lines of a file by kind, and its names that say nothing."""
    code, comments, docs = set(), set(), docstring_lines(nodes)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments.update(lines)
        elif token.type not in NO_CODE:
            code.update(lines)
        if token.type == tokenize.NAME and token.string in EMPTY_NAMES:
            source.empty_names[token.string] += 1
    code -= docs
    comments -= code
    source.lines["code"] += len(code)
    source.lines["docstrings"] += len(docs)
    source.lines["comments"] += len(comments)
    source.lines["blank"] += len(text.splitlines()) - len(code | docs | comments)


def docstring_lines(nodes: Sequence[ast.AST]) -> set[int]:
    """The lines of the docstrings of a file."""
    lines: set[int] = set()
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def has_text(node: ast.AST) -> bool:
    """Whether an expression has text in it."""
    constants = (child for child in ast.walk(node) if isinstance(child, ast.Constant))
    return any(isinstance(constant.value, str) for constant in constants)


def top_room(path: str) -> str:
    """The folder of a file that is directly in gpuflow, or the first one."""
    room = Path(path).parent.parts
    return "/".join(room[:2] if room[0] == "gpuflow" else room[:1])


def defined_name(node: ast.AST) -> str:
    """The name that a function, class, parameter, variable or attribute is defined by; or none."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return ""


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case, of ``snake_case`` and ``CamelCase``."""
    return re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())


def names_in(node: ast.AST) -> Iterator[str]:
    """The names in an expression, those behind dots too."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


# --- calls --------------------------------------------------------------------------------------


def measured(tree: Path, what: str) -> dict[str, Any]:
    """What house_child.py measures of a checkout, in a fresh process without built kernels."""
    with tempfile.TemporaryDirectory() as folder:
        added = {"PYTHONPATH": str(tree), "GPUFLOW_CACHE_DIR": f"{folder}/kernels"}
        run = subprocess.run(
            [sys.executable, HERE / "house_child.py", what],
            cwd=folder,
            check=False,
            env={**os.environ, "GPUFLOW_PLATFORM": "cpu", **added},
            capture_output=True,
            text=True,
        )
    if run.returncode:
        raise RuntimeError(f"[house] {what} must run in {tree}; got\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)


@dataclass
class Calls:
    """What calls of a tree pass and take: of cold calls their milliseconds, one for each."""

    passed: dict[str, Any] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def forms(self) -> list[str]:
        return [form for form, maker in FORMS.items() if maker in self.passed["names"]]


def measure_calls(trees: Sequence[Path], repeats: int) -> list[Calls]:
    """Measures the calls of all trees, in turn."""
    all_calls = [Calls(measured(tree, "passed")) for tree in trees]
    for _ in range(repeats):
        for tree, calls in zip(trees, all_calls, strict=True):
            calls.milliseconds.append(measured(tree, "milliseconds")["milliseconds"])
            costs = measured(tree, "binding")
            calls.again.append(costs["again"])
            calls.new.append(costs["new"])
    return all_calls


# --- the table ----------------------------------------------------------------------------------


def source_rows(source: Source) -> dict[str, str]:
    """The rows that follow from the source."""
    lines, names = source.lines, source.empty_names
    checks, fullest = source.lowering_checks, source.rooms.most_common(1)[0]
    empty = ", ".join(f"{name} {names[name]}" for name in EMPTY_NAMES)
    return {
        "files; rooms": f"{len(source.paths)}; {len(source.rooms)}",
        f"rooms of more than {MAX_FILES} files": f"{len(source.full_rooms)}",
        "the fullest room": f"{fullest[0]}, {fullest[1]}",
        "files named cpu_, cuda_, gpu_": f"{len(source.prefixed)}",
        "one name in neighboring rooms": f"{len(source.twins)}",
        "lines of Python": f"{lines.total() - lines['LLVM']:,}",
        "of these code": f"{lines['code']:,}",
        "docstrings; comments; blank": (
            f"{lines['docstrings']:,}; {lines['comments']:,}; {lines['blank']:,}"
        ),
        "lines of LLVM by hand": f"{lines['LLVM']:,}",
        "retired words in definitions": f"{source.retired.total():,}",
        "names that say nothing": f"{names.total():,} ({empty})",
        "`-> Any` in compiler, targets, runtime": f"{len(source.returns_any)}",
        "keys of `memoized` with text": f"{len(source.text_keys)}",
        "isinstance of lowering classes there": f"{checks.total()} in {len(checks)} files",
        '"what"; retired words, in docs and messages': "; ".join(
            f"{sum(getattr(count, name) for count in source.prose.values()):,}"
            for name in ("what", "retired")
        ),
    }


def call_rows(calls: Calls) -> dict[str, str]:
    """The rows that follow from calls."""
    passed = calls.passed
    return {
        "cold `jit(sin)(x)`: functions in files": f"{passed['functions']} in {passed['files']}",
        "rooms passed": f"{passed['rooms']}",
        "compile_plan: times back to a file; a room": (
            f"{passed['back to files']}; {passed['back to rooms']}"
        ),
        "forms": f"{len(calls.forms)}",
        "ms of that call, median (least)": (
            f"{statistics.median(calls.milliseconds):.0f} ({min(calls.milliseconds):.0f})"
        ),
        "us a step to bind again, least": f"{min(calls.again):.1f}",
        "us a step to bind new sizes, median": f"{statistics.median(calls.new):.1f}",
    }


def table(names: Sequence[str], columns: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table with a column for each tree."""
    lines = [f"| | {' | '.join(names)} |", f"| --- | {' | '.join('---' for _ in names)} |"]
    lines += [f"| {row} | {' | '.join(c[row] for c in columns)} |" for row in columns[0]]
    return "\n".join(lines)


def lists(source: Source, calls: Calls | None) -> str:
    """What the figures count, one after the other."""
    rooms = [f"{room}: {count}" for room, count in source.rooms.most_common()]
    listed = {
        "rooms": rooms,
        "files named cpu_, cuda_, gpu_": source.prefixed,
        "one name in neighboring rooms": source.twins,
        "functions that return Any": source.returns_any,
        "keys with text": source.text_keys,
    }
    if calls is not None:
        listed["forms"] = calls.forms
    return "\n\n".join("\n  ".join([title, *lines]) for title, lines in listed.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[HERE.parent])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--source-only", action="store_true", help="run nothing")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    sources = [read_source(tree) for tree in trees]
    columns = [source_rows(source) for source in sources]
    calls = None
    if not options.source_only:
        all_calls = measure_calls(trees, options.repeats)
        columns = [{**c, **call_rows(a)} for c, a in zip(columns, all_calls, strict=True)]
        calls = all_calls[-1]
    print(table([tree.name for tree in trees], columns))
    print(f"\n{lists(sources[-1], calls)}")


if __name__ == "__main__":
    main()
