"""The Python blocks of README.md and of docs pages run, and print what the pages say.

A page's blocks run in order in one namespace, in a process of their own with eight virtual devices.
What a ``print`` prints stands in a comment behind it (``# about 0.5``: within a fifth); what a
whole block prints else, in a ``text`` block below it, where ``...`` stands for anything.

In tables, what stands as code in a column ``gpuflow`` is run too, row by row; where there is a
column ``NumPy`` as well, both sides must have the same value.

``python tests/test_docs.py --write docs/tour.md`` puts what blocks print now in the place of what
the page says, where it is something else. Times, addresses and paths become ``...``.
"""

from __future__ import annotations

import ast
import codeop
import contextlib
import doctest
import functools
import io
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/differences.md",
    "docs/settings.md",
    "docs/gpu.md",
    "docs/tour.md",
    "docs/loop_programs.md",
    "docs/ensembles.md",
    "docs/sparse.md",
    "docs/kernels.md",
    "docs/checkpoints.md",
    "docs/export.md",
    "docs/data.md",
    "docs/mixed_precision.md",
    "docs/from_numpy.md",
    "docs/glossary.md",
    "docs/from_pytorch.md",
    "docs/errors.md",
    "docs/faq.md",
    "docs/performance.md",
    "docs/profiling.md",
    pytest.param(
        "docs/sharded_training.md", marks=pytest.mark.jax_libraries("flax", "optax", "chex")
    ),
]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"(?<!\\)\|")  # what ends one
CODE = re.compile(r"`([^`]+)`")
COMMENT = re.compile(r"\)  # (.+)$")
# Rounding differs between processors, and training multiplies it.
ABOUT = 0.2
# What is different with each run, or where the page is edited.
MASKS = (
    (re.compile(r"\d[\d.]* (?:[num]?s|[kMGT]?(?:B|FLOP)/s)\b"), "..."),
    (re.compile(r"\d+\.\d%"), "..."),  # of times that a machine's own ceilings predict
    (re.compile(r"\d+ (?=runs\b)"), "... "),
    (re.compile(r"\b0x[0-9a-f]+"), "0x..."),
    (re.compile(r"(?<= )/\S+"), "..."),
    (re.compile(r"(?<=\.md:)\d+"), "..."),
)
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """One block of code, with the line of the page before its first one, and what it prints."""

    code: str
    line: int
    output: str | None


def blocks_of(page: str) -> list[Block]:
    """The Python blocks of a page's text, in order."""
    return [
        Block(match[1], page.count("\n", 0, match.start(1)), match[2])
        for match in BLOCK.finditer(page)
    ]


@dataclass(frozen=True)
class Row:
    """One row of a table with code: its line, and what the columns that are run say."""

    line: int
    columns: dict[str, str]


def rows_of(page: str) -> list[Row]:
    """The rows of a page's text that have code in a column ``gpuflow``, in order."""
    rows: list[Row] = []
    names: list[str] = []
    for line, text in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in CELL.split(text)[1:-1]] if text.startswith("|") else []
        if not names:
            names = cells
        codes = {
            name: "\n".join(CODE.findall(cell)).replace("\\|", "|")
            for name, cell in zip(names, cells)
            if name in ("NumPy", "gpuflow")
        }
        if cells and cells != names and codes.get("gpuflow"):
            rows.append(Row(line, codes))
        names = names if cells else []
    return rows


def value_of(code: str, namespace: dict[str, object], name: str) -> object:
    """What the last statement of a cell is, if it is an expression; all of them are run."""
    *before, last = ast.parse(code, name).body
    exec(compile(ast.Module(before, []), name, "exec"), namespace)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    exec(compile(ast.Module([last], []), name, "exec"), namespace)
    return None


def check_row(row: Row, namespace: dict[str, object], name: str) -> None:
    """Run the code of a row, and compare both sides where NumPy is one."""
    where = f"{name}:{row.line}"
    values = {side: value_of(code, namespace, where) for side, code in row.columns.items()}
    if "NumPy" in values:
        # Rounding of float32.
        np.testing.assert_allclose(values["gpuflow"], values["NumPy"], 1e-5, 1e-6, err_msg=where)


def is_same(want: str, got: str) -> bool:
    """Whether what was printed is what the page says."""
    if want.startswith("about "):
        number = float(want.removeprefix("about "))
        return abs(float(got) - number) <= ABOUT * abs(number)
    want, got = want.rstrip("\n") + "\n", got.rstrip() + "\n"
    return doctest.OutputChecker().check_output(want, got, LENIENT)


def check_output(want: str, got: str, where: str) -> None:
    """Raise AssertionError unless what was printed is what the page says."""
    if not is_same(want, got):
        raise AssertionError(f"{where}: the page says\n{want}\nand the block printed\n{got}")


def run_block(block: Block, namespace: dict[str, object], name: str) -> str:
    """Run one block, statement by statement, and compare what comments say.

    Returns:
        What it prints else.
    """
    lines = block.code.splitlines()
    rest = ""  # what was printed by statements without a comment
    for statement in ast.parse(block.code).body:
        comment = COMMENT.search(lines[statement.end_lineno - 1])
        ast.increment_lineno(statement, block.line)
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            exec(compile(ast.Module([statement], []), name, "exec"), namespace)
        # A block of `with` or `for` may end with a print and its comment too.
        if comment and stdout.getvalue():
            check_output(comment[1], stdout.getvalue(), f"{name}:{statement.end_lineno}")
        else:
            rest += stdout.getvalue()
    return rest


def check_block(block: Block, namespace: dict[str, object], name: str) -> None:
    """Run one block, and compare all that it prints."""
    rest = run_block(block, namespace, name)
    if block.output is not None:
        check_output(block.output.rstrip("\n"), rest, f"{name}:{block.line}")


def run_page(path: Path) -> int:
    """Run all blocks and rows of a page; returns the number of blocks."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    page = path.read_text(encoding="utf-8")
    blocks, rows = blocks_of(page), rows_of(page)
    for part in sorted([*blocks, *rows], key=lambda part: part.line):
        check = check_block if isinstance(part, Block) else check_row
        check(part, namespace, path.name)
    return len(blocks)


def rewritten(page: str, name: str) -> str:
    """The text of a page with what its blocks print, where that is not what it says."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    parts, end = [], 0
    for match, block in zip(BLOCK.finditer(page), blocks_of(page), strict=True):
        rest = run_block(block, namespace, name)
        if block.output is not None and not is_same(block.output, rest):
            parts += [page[end : match.start(2)], masked(rest)]
            end = match.end(2)
    return "".join([*parts, page[end:]])


def masked(text: str) -> str:
    """An output with ``...`` for what is different with each run."""
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page(page, tmp_path):
    environment = {**os.environ, "GPUFLOW_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, __file__, ROOT / page],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) >= 1


@pytest.mark.parametrize("page", PAGES)
def test_blocks_can_be_pasted_at_a_prompt(page):
    """The prompt of Python 3.11 wants an empty line behind a function, a loop or a `with`."""
    for block in blocks_of((ROOT / page).read_text(encoding="utf-8")):
        compiler, typed = codeop.CommandCompiler(), []
        for line in [*block.code.splitlines(), ""]:
            typed.append(line)
            if compiler("\n".join(typed), f"{page}:{block.line}") is not None:
                typed = []


HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK_TARGET = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@functools.cache
def anchors_of(path: Path) -> set[str]:
    """The anchors of a page: of its headings, as GitHub makes them, and its own."""
    page = path.read_text(encoding="utf-8")
    headings = [LINK_TARGET.sub(r"\1", heading).lower() for heading in HEADING.findall(page)]
    slugs = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"<a id=\"([^\"]+)\"", page))


def test_links_lead_somewhere():
    """To a file, and to an anchor in it."""
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")]:
        page = path.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page):
            target = path.parent / link if link else path
            assert target.exists(), f"{path.name} links to {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors_of(target), f"{path.name} links to {link}#{anchor}"


def test_a_wrong_output_is_found():
    page = "```python\nprint(1 + 1)  # 3\n```\n"
    with pytest.raises(AssertionError, match="page says\n3\nand the block printed\n2"):
        check_block(blocks_of(page)[0], {}, "page.md")
    page = "```python\nfor k in range(2):\n    print(k)\n```\n```text\n0\n2\n```\n"
    with pytest.raises(AssertionError, match="page says\n0\n2\nand the block printed\n0\n1"):
        check_block(blocks_of(page)[0], {}, "page.md")


def test_rows_of_tables_are_run():
    """Code with a bar, a row without code and a table without such columns."""
    page = "| do | NumPy | gpuflow |\n| --- | --- | --- |\n| or | `1 \\| 2` | `a = 2`, `a + 1` |\n"
    (row,) = rows_of(f"{page}| none | | nothing |\n\n| a | b |\n| --- | --- |\n| `1` | `2` |\n")
    assert row == Row(3, {"NumPy": "1 | 2", "gpuflow": "a = 2\na + 1"})
    check_row(row, {}, "page.md")
    (wrong,) = rows_of("| NumPy | gpuflow |\n| --- | --- |\n| `1 + 1` | `3` |\n")
    with pytest.raises(AssertionError, match=r"page\.md:3"):
        check_row(wrong, {}, "page.md")
    (fails,) = rows_of("| gpuflow |\n| --- |\n| `no_such_name` |\n")
    with pytest.raises(NameError):
        check_row(fails, {}, "page.md")


def test_outputs_are_written_where_they_are_not_the_same():
    page = "```python\nx = 5\nprint(x, id)\n```\n```text\n{}```\nand so on\n"
    same = page.format("5 <...>\n")
    assert rewritten(same, "page.md") == same
    other = page.format("4 <...>\n")
    assert rewritten(other, "page.md") == page.format("5 <built-in function id>\n")


def test_what_differs_with_each_run_is_masked():
    text = (
        "12.7 us ± 362 ns (1000 runs), 82.2%, 7.71 GB/s\n"
        "  source  /a/b.py\nat 0x7f00  # tour.md:4 (f)"
    )
    assert masked(text) == (
        "... ± ... (... runs), ..., ...\n  source  ...\nat 0x...  # tour.md:... (f)\n"
    )
    assert is_same(masked(text), text)


def test_versions_that_the_page_names_are_those_of_the_package():
    """docs/compatibility.md says what pyproject.toml asks for, and which JAX is followed."""
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {"Python": project["requires-python"].removeprefix(">=")}
    wanted |= dict(one.split(">=") for one in project["dependencies"])
    for name, version in wanted.items():
        row = rf"^\|[^|]*\b{name}\b[^|]*\|[^|]*(?<![\d.]){re.escape(version)}\b(?!\.)"
        assert re.search(row, page, re.MULTILINE | re.IGNORECASE), f"{name} {version}"
    followed = (ROOT / "gpuflow/as_jax/versions.py").read_text(encoding="utf-8")
    assert "".join(re.findall(r"follows \*\*JAX (.+?)\*\*", page)) == "".join(
        re.findall(r'^JAX_VERSION = "(.+)"$', followed, re.MULTILINE)
    )


# --- files ---------------------------------------------------------------------------------------

NAMED_FILE = re.compile(r"`((?:[\w.*]+/)+[\w.*]*)`")


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/tour.md"])
def test_files_that_pages_name_are_there(page):
    """Of `compiler/pipeline.py`, `ops/` or `control/scan*.py` there is at least one."""
    named = NAMED_FILE.findall((ROOT / page).read_text(encoding="utf-8"))
    assert named
    missing = [name for name in named if not any(map(list, map(ROOT.glob, places_of(name))))]
    assert not missing, f"{page} names {missing}"


def places_of(name: str) -> list[str]:
    """The patterns of the files that a page may mean."""
    inside = [f"gpuflow/**/{name}"] if name.endswith("/") else []  # a room, named in its room
    return [name, f"gpuflow/{name}", f"gpuflow/{name}.py", *inside]


if __name__ == "__main__":
    *options, page = sys.argv[1:]
    if options == ["--write"]:
        path = Path(page)
        path.write_text(rewritten(path.read_text(encoding="utf-8"), path.name), encoding="utf-8")
    else:
        print(run_page(Path(page)))
