"""The static reference: a page for each public namespace, beside the pages of docs/.

    pip install ".[docs]" && mkdocs build --strict       # writes site/, which needs no server

mkdocs.yml names this file as a hook. reference_sources.py writes down what the imported modules
say of themselves; mkdocstrings reads that. Nothing is fetched, neither when pages are built nor
when they are read, and nothing is left in the tree but site/.
"""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from reference_families import FAMILIES, family_of  # noqa: E402
from reference_sources import (  # noqa: E402
    members_of,
    names_of,
    namespaces,
    summary_of,
    write_sources,
)

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
FILE_LABEL = re.compile(r"\[(?:docs/)?[\w/]+\.md\](?=\(([\w/.]+\.md)[)#])")
CODE = re.compile(r"`[^`\n]*`")
NAME = re.compile(r"(?<!`)`(gpuflow[\w.]*)`(?!`)")
INTRODUCTION = """# Reference

The public names, module by module, with signatures, arguments, results, errors and examples.
[Names of JAX](../api.md) lists the names of JAX and where gpuflow has them.

| module | names | contents |
| --- | --- | --- |
"""
MODULE = "---\ntitle: {0}\n---\n::: {0}\n    options:\n      members: false\n"
FAMILY = "---\ntitle: {0}\n---\n# {0}\n\nPart of [`{1}`][].\n"
ENTRY = "\n::: {}\n    options:\n      heading_level: 2\n      show_root_full_path: false\n"
# How much the search prefers the pages of a tab, or those whose path begins so; else 1.
TABS = {"Get started": 2, "Guides": 2, "Coming from": 1.5, "Internals": 0.5}
RARE = ("gpuflow.example_libraries", "gpuflow.experimental", "gpuflow/settings")
_folder = tempfile.TemporaryDirectory(prefix="gpuflow_reference")


def line_of(text: str) -> str:
    """A line as the cell of a table."""
    return text.replace("|", r"\|").replace("``", "`")


def home_page() -> str:
    """The README, with links and line breaks as Python-Markdown knows them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(?<=\.)\\\n", "<br>\n", text).replace("](docs/", "](")


def first_line(module: ModuleType) -> str:
    """The first line of a module's docstring."""
    return (inspect.getdoc(module) or "").partition("\n")[0]


def overview(modules: list[ModuleType]) -> str:
    """The page that lists the modules."""
    rows = []
    for module in modules:
        path = path_of(module.__name__, modules).removeprefix("reference/")
        link = f"[{module.__name__}]({path})"
        rows.append(f"| {link} | {len(names_of(module))} | {line_of(first_line(module))} |\n")
    return INTRODUCTION + "".join(rows)


def path_of(name: str, modules: list[ModuleType]) -> str:
    """The page of a module: the first one of a folder if there are pages below it."""
    is_section = name in FAMILIES or any(one.__name__.startswith(f"{name}.") for one in modules)
    return f"reference/{name}/index.md" if is_section else f"reference/{name}.md"


def summary(module: ModuleType, names: list[tuple[str, Any]]) -> str:
    """A table of names, each with a link to its entry and its first line."""
    rows = [
        f"| [`{name}`][{module.__name__}.{name}] | {line_of(summary_of(value))} |\n"
        for name, value in names
    ]
    return "\n| name | description |\n| --- | --- |\n" + "".join(rows) if rows else ""


def module_pages(module: ModuleType, path: str) -> dict[str, str]:
    """The pages of a module: one, or one that lists the families and one for each of them."""
    families: dict[str, list[tuple[str, Any]]] = {}
    for name, value in members_of(module):
        families.setdefault(family_of(module.__name__, name, value), []).append((name, value))
    text = MODULE.format(module.__name__)
    if module.__name__ not in FAMILIES:
        (members,) = families.values() or ([],)
        return {path: text + summary(module, members) + entries(module, members)}
    pages = {path: text}
    for title in FAMILIES[module.__name__]:
        members = families[title]
        page = title.lower().replace(",", "").replace(" ", "_") + ".md"
        pages[path] += f"\n## [{title}]({page})\n{summary(module, members)}"
        heading = FAMILY.format(title, module.__name__)
        content = summary(module, members) + entries(module, members)
        pages[posixpath.join(posixpath.dirname(path), page)] = heading + content
    return pages


def entries(module: ModuleType, members: list[tuple[str, Any]]) -> str:
    """What mkdocstrings replaces by signatures and docstrings."""
    return "".join(ENTRY.format(f"{module.__name__}.{name}") for name, _ in members)


def reference_pages() -> dict[str, str]:
    """The text of each page of the reference, by its path."""
    modules = list(namespaces())
    paths = {module.__name__: path_of(module.__name__, modules) for module in modules}
    pages = {"reference/index.md": overview(modules)}
    for module in modules:
        path = paths[module.__name__]
        pages |= module_pages(module, path)
        below = [one for one in modules if one.__name__.rpartition(".")[0] == module.__name__]
        if below and module.__name__ != "gpuflow":  # whose modules are those of the overview
            pages[path] += "\n## Modules\n\n| module | description |\n| --- | --- |\n"
            for one in below:
                link = f"[{one.__name__}](../{paths[one.__name__].removeprefix('reference/')})"
                pages[path] += f"| {link} | {line_of(first_line(one))} |\n"
    return pages


def navigation(paths: list[str]) -> list[Any]:
    """The pages of the reference as the entries of a navigation: a section for each folder."""
    entries: list[Any] = []
    sections: dict[str, list[Any]] = {}
    for path in paths:
        folder, name = posixpath.split(path.removeprefix("reference/"))
        section = folder or nearest(name.removesuffix(".md"), sections)
        if section and section not in sections:
            sections[section] = []
            entries.append({section: sections[section]})
        (sections[section] if section else entries).append(path)
    return entries


def nearest(name: str, sections: dict[str, list[Any]]) -> str:
    """The section of the closest package of a module, but gpuflow itself, which has them all."""
    packages = [one for one in sections if one != "gpuflow" and name.startswith(f"{one}.")]
    return max(packages, key=len, default="")


def without_outside_links(text: str, page: str, known: set[str]) -> str:
    """The text of a page, where links to files of the repository beside docs/ are plain text."""
    folder = posixpath.dirname(page)

    def replaced(match: re.Match[str]) -> str:
        label, target = match.groups()
        is_known = posixpath.normpath(posixpath.join(folder, target)) in known
        is_there = (ROOT / target).exists() or (ROOT / "docs" / folder / target).exists()
        return label if is_there and not is_known else match[0]

    return LINK.sub(replaced, text)


def with_titles(text: str, page: str) -> str:
    """The text of a page, where links that show the name of a file show the title of its page."""
    folder = posixpath.dirname(page)

    def replaced(match: re.Match[str]) -> str:
        path = ROOT / "docs" / folder / match[1]
        if not path.is_file():
            return match[0]
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        return f"[{title.removeprefix('# ')}]"

    return FILE_LABEL.sub(replaced, text)


def with_plain_bars(text: str) -> str:
    """The text of a page without backslashes before bars in the code of tables.

    GitHub needs them, and Python-Markdown shows them.
    """
    lines = [
        CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def with_inside_links(text: str, modules: list[ModuleType]) -> str:
    """The text of a page, where names of modules and of what is in them lead to the reference."""
    known = {module.__name__ for module in modules}
    known |= {f"{module.__name__}.{name}" for module in modules for name in names_of(module)}

    def replaced(match: re.Match[str]) -> str:
        return f"[{match[0]}][{match[1]}]" if match[1] in known else match[0]

    return NAME.sub(replaced, text)


def search_options(page: Page) -> dict[str, Any]:
    """How the search treats a page: design notes record decisions, and are left out."""
    path = page.file.src_uri
    if path.startswith("design/"):
        return {"exclude": True}
    if path.startswith(tuple(f"reference/{name}" for name in RARE)):
        return {"boost": 0.5}
    return {"boost": TABS.get(page.ancestors[-1].title, 1) if page.ancestors else 1}


# --- what mkdocs calls -----------------------------------------------------------------------


@event_priority(100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the sources and tell mkdocstrings where they are, before it begins."""
    write_sources(Path(_folder.name), namespaces())
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [_folder.name]
    for tab in config.nav or []:
        if "Reference" in tab:
            tab["Reference"] = navigation(list(reference_pages()))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, which is the README, and those of the reference."""
    for name, text in {"index.md": home_page(), **reference_pages()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Correct links, link the table of names to the reference, and weigh the page."""
    del config
    page.meta["search"] = search_options(page)
    if page.file.src_uri == "api.md":
        markdown = with_inside_links(markdown, list(namespaces()))
    markdown = with_titles(with_plain_bars(markdown), page.file.src_uri)
    return without_outside_links(markdown, page.file.src_uri, set(files.src_uris))
