"""Write api.md: every public name of JAX, ours, and what differs.

    python docs/make_api.py             # writes docs/api.md
    python docs/make_api.py --check     # fails if that would change it

JAX's names and keywords stand in data/jax_names.json. What differs stands in tables of the pages
``PAGES``, each behind a comment that says for which modules: ``<!-- modules: jax.lax jax.ffi -->``.
What is missing, and keywords that are not taken, are found by looking.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from generated_file import write_or_check

from gpuflow import Array
from gpuflow.as_jax.surfaces import module_of, target_of

DOCS = Path(__file__).resolve().parent
OUTPUT = DOCS / "api.md"
PAGES = ("numpy.md", "nn.md", "scipy.md", "scipy_special.md", "differences.md")
TABLE = re.compile(
    r"^<!-- modules: ([^\n]+) -->\n\n?\| (name|missing) \|[^\n]*\n\|[ -|]+\n((?:\|[^\n]*\n)+)",
    re.MULTILINE,
)
NAME = re.compile(r"[\w.*]+")
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# What JAX calls the argument of its settings when they are context managers; nobody writes it.
UNSPOKEN = ("new_val", "self")
# How docstrings begin of functions that are there so that programs can be imported.
IN_NAME_ONLY = ("Raises NotImplementedError", "Changes nothing", "Not there")
ABSENT = object()
INTRODUCTION = """# Names of JAX

<!-- Written by docs/make_api.py: change the pages that it reads. -->

You can look up each of the {names:,} public names of JAX {version} here: its name in gpuflow, and
the difference, if any. Each table starts with missing and differing names. A name without a remark
takes the same keywords as in JAX. A keyword listed as "without `keyword=`" raises a TypeError.

`pip install ".[docs]" && mkdocs build` writes the static reference, in which each name links to its
signature and docstring.

If a program imports `jax` through the alias, it finds all of them under the same names
([as_jax.md](as_jax.md)). The differences are from the tables of {pages}.
Settings are in [settings.md](settings.md), primitives without a derivative in
[missing_rules.md](missing_rules.md).

| JAX | gpuflow | available | missing | differing |
| --- | --- | --- | --- | --- |"""


@dataclass
class Module:
    """A module of JAX's, with what the pages say of it."""

    name: str
    keywords: dict[str, list[str] | None]
    remarks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[str, str] = field(default_factory=dict)  # of what is missing
    notes: list[str] = field(default_factory=list)  # of the whole module

    @property
    def ours(self) -> str:
        """Where its names are."""
        if self.name in ("jax", "jax.Array"):
            return self.name.replace("jax", "gpuflow")
        return target_of(self.name) or "gpuflow"

    def holder(self) -> Any:
        """Our module, or class; None if there is none."""
        return Array if self.name == "jax.Array" else module_of(self.name)

    def look_up(self, name: str) -> Any:
        """What stands under a name, or ``ABSENT``."""
        value = self.holder()
        for part in name.split("."):
            value = getattr(value, part, ABSENT)
        # Some names can be imported, and refuse to be used.
        return ABSENT if isinstance(value, type) and "is_absent" in vars(value) else value


def read_modules() -> tuple[str, dict[str, Module]]:
    """JAX's version and its modules."""
    stored = json.loads((DOCS / "data" / "jax_names.json").read_text(encoding="utf-8"))
    version = stored.pop("version")
    return version, {name: Module(name, names) for name, names in stored.items()}


def read_differences(modules: dict[str, Module]) -> None:
    """Put the tables of all pages where they belong."""
    for page in PAGES:
        for table in TABLE.finditer((DOCS / page).read_text(encoding="utf-8")):
            own = [modules[name] for name in table[1].split()]
            for line in table[3].splitlines():
                cells = [cell.strip() for cell in line.strip("|").split(" | ")]
                text = "; ".join(cell.strip(" |") for cell in cells[1:] if cell.strip(" |"))
                read_row(own, cells[0], text, table[2] == "missing", page)


def read_row(modules: list[Module], cell: str, text: str, missing: bool, page: str) -> None:
    """Give one row to the names that it is about, or to modules as a note.

    Raises:
        ValueError: it names something that no module has.
    """
    tokens = [token.partition("(") for token in re.findall(r"`([^`]+)`", cell)]
    tokens = [(name, arguments) for name, _, arguments in tokens if NAME.fullmatch(name)]
    if not tokens:
        for module in modules:
            module.notes.append(f"{cell}: {text}")
    for name, arguments in tokens:
        said = f"`{arguments[:-1]}`: {text}" if arguments else text
        whole = [module for module in modules if module.name.endswith(f".{name}")]
        for module in whole:
            module.notes.append(said)
        found = [(module, full) for module in modules for full in matches(module, name)]
        for module, full in found:
            if missing:
                module.reasons[full] = said
            else:
                module.remarks[full].append(said)
        if not found and not whole:
            raise ValueError(f"{page}: {name} must be a name of {[m.name for m in modules]}")


def matches(module: Module, name: str) -> list[str]:
    """The names of a module that a table means: itself, ``beta.pdf`` for ``pdf`` and ``beta``."""
    last = module.name.rpartition(".")[2]
    short = name.removeprefix("x." if last == "Array" else f"{last}.")
    return [
        full
        for full in module.keywords
        if fnmatchcase(full, short) or ("." in full and short in full.split("."))
    ]


def not_taken(value: Any, wanted: list[str] | None) -> list[str]:
    """The keywords of JAX's function that ours does not take."""
    if wanted is None or isinstance(value, type):
        return []
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    taken = {p.name for p in parameters if p.kind in KEYWORDS}
    return [name for name in wanted if name not in taken and name not in UNSPOKEN]


def remark_on(module: Module, name: str) -> str:
    """What differs in a name that is there."""
    value = module.look_up(name)
    said = [*module.remarks.get(name, [])]
    first_line = (inspect.getdoc(value) or "").partition("\n")[0]
    if first_line.startswith(IN_NAME_ONLY):
        said.append(first_line.rstrip(".").replace("``", "`"))
    lacking = [f"`{keyword}=`" for keyword in not_taken(value, module.keywords[name])]
    said += [f"without {', '.join(lacking)}"] if lacking else []
    return "; ".join(said)


def section(module: Module) -> tuple[str, list[str]]:
    """The row of the overview, and the lines of a module's own section.

    Raises:
        ValueError: a page calls something missing that is there, or the other way round.
    """
    there = [name for name in module.keywords if module.look_up(name) is not ABSENT]
    absent = [name for name in module.keywords if name not in there]
    check_pages(module, there, absent)
    primitives = [name for name in there if name.endswith("_p")]
    remarks = {name: remark_on(module, name) for name in there if name not in primitives}
    differing = [name for name, text in remarks.items() if text]
    ours = f"`{module.ours}`" if module.holder() else "not available"
    anchor = module.name.replace(".", "").lower()
    overview = (
        f"| [{module.name}](#{anchor}) | {ours} | {len(there)} | {len(absent) or ''} | "
        f"{len(differing) or ''} |"
    )
    lines = [f"## {module.name}", "", f"{ours}: {len(there)} of {len(module.keywords)} names.", ""]
    if module.notes:
        lines += [*(f"- {note}" for note in module.notes), ""]
    if not module.holder():
        return overview, [*lines, f"Missing: {listed(absent)}.", ""]
    lines += ["| JAX | gpuflow | difference |", "| --- | --- | --- |"]
    lines += missing_rows(module, absent)
    ordered = [*differing, *(name for name in remarks if name not in differing)]
    lines += [f"| {name} | `{module.ours}.{name}` | {remarks[name]} |" for name in ordered]
    if primitives:
        lines += ["", f"Primitives, under the same names: {listed(primitives)}."]
    if others := [name for name in absent if name.endswith("_p")]:
        lines += ["", f"Primitives of JAX that gpuflow does not have: {listed(others)}."]
    return overview, [*lines, ""]


def missing_rows(module: Module, absent: list[str]) -> list[str]:
    """A row for each reason, those without one first."""
    rows: dict[str, list[str]] = {"": []}
    for name in absent:
        if not name.endswith("_p"):
            rows.setdefault(module.reasons.get(name, ""), []).append(name)
    return [f"| {', '.join(names)} | missing | {why} |" for why, names in rows.items() if names]


def check_pages(module: Module, there: list[str], absent: list[str]) -> None:
    """Raise ValueError if a page calls something missing that is there, or says how it differs."""
    wrong = [name for name in there if name in module.reasons]
    wrong += [name for name in absent if name in module.remarks]
    if wrong:
        raise ValueError(f"{', '.join(PAGES)} must be brought up to date: {module.name} {wrong}")


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """The whole of api.md."""
    version, modules = read_modules()
    read_differences(modules)
    overview, sections = [], []
    for module in modules.values():
        row, lines = section(module)
        overview.append(row)
        sections += lines
    names = sum(len(module.keywords) for module in modules.values())
    pages = ", ".join(f"[{name}]({name})" for name in PAGES)
    intro = INTRODUCTION.format(names=names, version=version, pages=pages)
    return "\n".join([intro, *overview, "", *sections]).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(OUTPUT, page()))
