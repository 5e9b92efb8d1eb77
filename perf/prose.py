"""Counts of retired words and of long sentences in the prose of a checkout.

tests/test_writing.py holds the counts below ceilings; house.py prints their sums.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
# Words of everyday English that each replaced several terms of the field.
RETIRED = (
    r"stands?(?!-)", r"stood", r"lies?", r"lay", r"behind", r"beside",
    r"(?<!-)turns?(?! (?:on|off|into)\b)",
    r"(?<!in )places?", r"in place of", r"words", r"says?(?! so\b)", r"said", r"tells?", r"told",
    r"believes?", r"believed", r"meets?", r"anew", r"apart", r"whole numbers?",
    r"(?<!there )(?:is|are|was|were) no(?! (?:longer|more)\b)", r"(?<!there )(?:is|are) none",
    r"of (?:its|their) own", r"of one's own", r"what there is", r"the like", r"mends?",
    r"as (?:it is|they are)(?! \w+(?:ed|en|ing|uilt)\b)",
    r"(?:is|are|was|were) there(?! (?:an?|any|no)\b)",
)  # fmt: skip
RETIRED_WORD = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b", re.IGNORECASE)
WORD = re.compile(r"\w[\w'./-]*")
SENTENCE_END = re.compile(r"[.!?][)\"'*_]*(?=\s|$)")
# Shorter runs of words are labels.
MIN_WORDS = 5
MANY = 0.9  # of the sentences are at most as long as the figure that is reported


@dataclass(frozen=True)
class Counts:
    """Counts of one text.

    Attributes:
        what: occurrences of "what".
        retired: occurrences of the other retired words.
        sentence: 90th percentile of the number of words of a sentence.
        words: number of words.
    """

    what: int
    retired: int
    sentence: int
    words: int


def counts_of(blocks: list[str]) -> Counts:
    """Count the words of paragraphs of plain prose."""
    text = "\n".join(blocks)
    lengths = [len(WORD.findall(part)) for block in blocks for part in SENTENCE_END.split(block)]
    lengths = sorted(length for length in lengths if length >= MIN_WORDS)
    longest = lengths[int(MANY * (len(lengths) - 1))] if lengths else 0
    return Counts(
        what=len(WHAT.findall(text)),
        retired=len(RETIRED_WORD.findall(text)),
        sentence=longest,
        words=len(WORD.findall(text)),
    )


# --- Markdown ----------------------------------------------------------------------------------

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ANCHOR = re.compile(r"<a id=\"[^\"]*\"></a>")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"``[^`]+``|`[^`]+`")
RULE = re.compile(r"^\|[ |:-]+$")
# A list item, a heading or an indented block begins a block.
BEGINS = re.compile(r"^(?:\s*(?:[-*]|\d+\.) |#)|^    \S")


def plain(text: str) -> str:
    """A text without code and link targets; inline code counts as one word."""
    for pattern, by in ((FENCE, ""), (COMMENT, ""), (ANCHOR, ""), (CODE, "code"), (LINK, r"\1")):
        text = pattern.sub(by, text)
    return text


def blocks_of_markdown(text: str) -> list[str]:
    """The paragraphs, list items, headings and table cells of a page, without code."""
    blocks: list[str] = [""]
    for line in plain(text).splitlines():
        if line.startswith("|"):
            blocks += [] if RULE.match(line) else [*re.split(r"(?<!\\)\|", line), ""]
        elif not line.strip() or BEGINS.match(line):
            blocks.append(line)
        else:
            blocks[-1] += f" {line}"
        if line.startswith("#"):
            blocks.append("")
    return [block for block in blocks if block.strip()]


# --- Python ------------------------------------------------------------------------------------

PROMPT = re.compile(r"^ *(?:>>>|\.\.\.).*\n(?:(?! *(?:>>>|\.\.\.)).*\S.*\n?)*", re.MULTILINE)
SECTION = re.compile(r"^ *[A-Z][a-z]+:$")
ARGUMENT = re.compile(r"^ *\*{0,2}\w+(?:, \*{0,2}\w+)*: ")


def blocks_of_docstring(text: str) -> list[str]:
    """The paragraphs and arguments of a docstring in Google's style, without examples."""
    blocks: list[str] = [""]
    for line in CODE.sub("code", PROMPT.sub("", text)).splitlines():
        if not line.strip() or SECTION.match(line):
            blocks.append("")
        elif ARGUMENT.match(line) or BEGINS.match(line.lstrip()):
            blocks.append(ARGUMENT.sub("", line))
        else:
            blocks[-1] += f" {line.strip()}"
    return [block for block in blocks if block.strip()]


def texts_in(tree: ast.AST) -> Iterator[str]:
    """The strings of a file with words in them, f-strings whole, without docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "code" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        else:
            yield from texts_in(node)


def messages_of(text: str) -> list[str]:
    """The error messages of a Python file, or pieces of them: strings with `[op]` or `Fix:`."""
    strings = texts_in(ast.parse(text))
    return [one for one in strings if "Fix:" in one or re.match(r"\[[\w. ]+\] ", one)]


def docstrings_in(text: str) -> Iterator[str]:
    """The docstrings of a Python file: of the module, and of all classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds):
            yield ast.get_docstring(node) or ""


# --- a checkout --------------------------------------------------------------------------------


def pages(tree: Path) -> dict[str, Counts]:
    """The counts of README.md, CHANGELOG.md and each page of docs/."""
    paths = [tree / "README.md", tree / "CHANGELOG.md", *sorted((tree / "docs").glob("*.md"))]
    return {
        path.relative_to(tree).as_posix(): counts_of(
            blocks_of_markdown(path.read_text(encoding="utf-8"))
        )
        for path in paths
        if path.exists()
    }


def folder_of(path: Path, tree: Path) -> str:
    """The folder of the package, or the module directly in it, that contains a file."""
    return path.relative_to(tree / "gpuflow").parts[0].removesuffix(".py")


def sources(tree: Path) -> dict[str, Counts]:
    """The counts of the docstrings in each folder of the package, also of internal functions."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted((tree / "gpuflow").rglob("*.py")):
        blocks = by_folder.setdefault(f"docstrings in {folder_of(path, tree)}", [])
        for text in docstrings_in(path.read_text(encoding="utf-8")):
            blocks += blocks_of_docstring(text)
    return {folder: counts_of(blocks) for folder, blocks in by_folder.items() if blocks}


def messages(tree: Path) -> dict[str, Counts]:
    """The counts of the error messages of each folder of the package, and of the CLI's texts."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted((tree / "gpuflow").rglob("*.py")):
        folder = folder_of(path, tree)
        text = path.read_text(encoding="utf-8")
        if folder == "cli":
            strings = [one for one in texts_in(ast.parse(text)) if one.count(" ") >= 2]
            by_folder.setdefault("CLI texts", []).extend(strings)
        else:
            by_folder.setdefault(f"messages of {folder}", []).extend(messages_of(text))
    return {folder: counts_of(blocks) for folder, blocks in by_folder.items() if blocks}
