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

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from reference_sources import names_of, namespaces, write_sources  # noqa: E402

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
NAME = re.compile(r"(?<!`)`(gpuflow[\w.]*)`(?!`)")
INTRODUCTION = """# Reference

What `dir()` lists, module by module. [Names of JAX](../api.md) beside ours are a page of their own.

| | names | |
| --- | --- | --- |
"""
PAGE = "---\ntitle: {0}\n---\n::: {0}\n"
_folder = tempfile.TemporaryDirectory(prefix="gpuflow_reference")


def overview(modules: list[ModuleType]) -> str:
    """The page that lists the namespaces."""
    rows = []
    for module in modules:
        first_line = (inspect.getdoc(module) or "").partition("\n")[0].replace("|", r"\|")
        link = f"[{module.__name__}]({module.__name__}.md)"
        rows.append(f"| {link} | {len(names_of(module))} | {first_line} |\n")
    return INTRODUCTION + "".join(rows)


def without_outside_links(text: str, page: str, known: set[str]) -> str:
    """The text of a page, where links to files of the repository beside docs/ are plain text."""
    folder = posixpath.dirname(page)

    def replaced(match: re.Match[str]) -> str:
        label, target = match.groups()
        is_known = posixpath.normpath(posixpath.join(folder, target)) in known
        is_there = (ROOT / target).exists() or (ROOT / "docs" / folder / target).exists()
        return label if is_there and not is_known else match[0]

    return LINK.sub(replaced, text)


def with_inside_links(text: str, modules: list[ModuleType]) -> str:
    """The text of a page, where names of modules and of what is in them lead to the reference."""
    known = {module.__name__ for module in modules}
    known |= {f"{module.__name__}.{name}" for module in modules for name in names_of(module)}

    def replaced(match: re.Match[str]) -> str:
        return f"[{match[0]}][{match[1]}]" if match[1] in known else match[0]

    return NAME.sub(replaced, text)


# --- what mkdocs calls -----------------------------------------------------------------------


@event_priority(100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the sources and tell mkdocstrings where they are, before it begins."""
    write_sources(Path(_folder.name), namespaces())
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [_folder.name]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, which is the README, and those of the reference."""
    modules = list(namespaces())
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    pages = {"index.md": readme, "reference/index.md": overview(modules)}
    for module in modules:
        pages[f"reference/{module.__name__}.md"] = PAGE.format(module.__name__)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drop links out of docs/, and link the table of names to the reference."""
    del config
    if page.file.src_uri == "api.md":
        markdown = with_inside_links(markdown, list(namespaces()))
    return without_outside_links(markdown, page.file.src_uri, set(files.src_uris))
