"""Prose has few retired words and short sentences, and each count may only fall.

Ceilings are in ``data/writing_ceilings.json``: for README.md, CHANGELOG.md and each page of
docs/, for the docstrings of each public module and of each folder of the package, for the error
messages of each folder, and for the texts of the CLI. ``python tests/test_writing.py`` lowers them
to the counts or the goal, and raises none.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = Path(__file__).with_name("data") / "writing_ceilings.json"
# Ceilings fall to these and no further: per 1,000 words, and words of a sentence.
GOAL = {"what": 1, "retired": 2, "sentence": 28}
SLACK = 4  # so far below its ceiling a count may be without lowering it
KINDS = ("pages", "docstrings", "sources", "messages")
# Of Keep a Changelog; the page has the one version that is not released yet.
KINDS_OF_CHANGES = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
MAX_WORDS, MAX_LINES = 15, 150


def load(path: Path) -> ModuleType:
    """A script outside of the package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for annotations
    spec.loader.exec_module(module)
    return module


prose = load(ROOT / "perf" / "prose.py")


def docstrings_of(value: object) -> Iterator[str]:
    """The docstring of a function, or of a class and its public members, inherited ones too."""
    yield inspect.getdoc(value) or ""
    names = dir(value) if isinstance(value, type) else ()
    for member in (inspect.getattr_static(value, name) for name in names if name[:1] != "_"):
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        home = str(getattr(function, "__module__", type(function).__module__))
        if home.startswith("gpuflow"):
            yield inspect.getdoc(function) or ""


def docstrings() -> dict[str, Any]:
    """The counts of the docstrings of each public module; a name counts where it is first."""
    sources = load(ROOT / "docs" / "reference_sources.py")
    counts, seen = {}, set()
    for module in sources.namespaces():
        texts = [inspect.getdoc(module) or ""]
        for value in (getattr(module, name) for name in sources.names_of(module)):
            is_ours = str(getattr(value, "__module__", "")).startswith("gpuflow")
            if callable(value) and is_ours and id(value) not in seen:
                seen.add(id(value))
                texts += docstrings_of(value)
        blocks = [block for text in texts for block in prose.blocks_of_docstring(text)]
        counts[f"docstrings of {module.__name__}"] = prose.counts_of(blocks)
    return counts


def current(kind: str) -> dict[str, Any]:
    """The counts of one kind."""
    return docstrings() if kind == "docstrings" else getattr(prose, kind)(ROOT)


def goal_of(counts: Any) -> dict[str, int]:
    """The ceilings of a text that has none in the file."""
    thousands = counts.words / 1000
    return {
        name: GOAL[name] if name == "sentence" else round(GOAL[name] * thousands) for name in GOAL
    }


def complaints(counts: dict[str, Any], ceilings: dict[str, dict[str, int]]) -> list[str]:
    """The counts above their ceilings, and the ceilings far above their counts."""
    found = []
    for text, count in counts.items():
        goal = goal_of(count)
        for name, ceiling in ceilings.get(text, goal).items():
            number, most = getattr(count, name), max(ceiling, goal[name])
            if number > most:
                found.append(f"{text}: {name} is {number}, at most {most}. Fix: rewrite the text.")
            elif most > goal[name] and number < most - SLACK - most // 5:
                found.append(
                    f"{text}: {name} is {number}, far below {most}. "
                    "Fix: python tests/test_writing.py"
                )
    return found


def lowered(
    counts: dict[str, Any], ceilings: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Ceilings at the counts or the goal, never above those that were; of texts that exist."""
    result = {}
    for text, count in sorted(counts.items()):
        goal = goal_of(count)
        result[text] = {
            name: max(goal[name], min(ceiling, getattr(count, name)))
            for name, ceiling in ceilings.get(text, goal).items()
        }
    return result


def read_ceilings() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads(CEILINGS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_below_their_ceilings(kind):
    counts, ceilings = current(kind), read_ceilings()[kind]
    assert not sorted(set(ceilings) - set(counts)), "Fix: python tests/test_writing.py"
    found = complaints(counts, ceilings)
    assert not found, "\n".join(found)


def counts(what=0, retired=0, sentence=0, words=1000):
    return prose.Counts(what, retired, sentence, words)


def test_ceilings_fall_and_never_rise():
    ceilings = {"a": {"what": 3, "retired": 30, "sentence": 28}}
    assert not complaints({"a": counts(3, 28, 12)}, ceilings)
    (above,) = complaints({"a": counts(4, 28, 27)}, ceilings)
    assert above == "a: what is 4, at most 3. Fix: rewrite the text."
    (below,) = complaints({"a": counts(3, 10, 27)}, ceilings)
    assert below == "a: retired is 10, far below 30. Fix: python tests/test_writing.py"
    assert lowered({"a": counts(9, 10, 27)}, ceilings) == {
        "a": {"what": 3, "retired": 10, "sentence": 28}
    }


def test_a_new_page_has_the_ceilings_of_the_goal():
    assert not complaints({"new": counts(1, 2, 28)}, {})
    assert len(complaints({"new": counts(2, 3, 29)}, {})) == 3
    assert lowered({"new": counts(9, 0, 20)}, {}) == {
        "new": {"what": 1, "retired": 2, "sentence": 28}
    }


def test_words_and_sentences_of_a_page():
    page = (
        "# What it is\n\nIt stands behind `what` [it](what.md). Four short words here.\n"
        "One sentence of seven words goes here.\n\n```python\nwhat = 'beside'\n```\n"
        "- updated in place, in place of a copy\n\n| what | a stand-in |\n| --- | --- |\n"
    )
    count = prose.counts_of(prose.blocks_of_markdown(page))
    # stands, behind, words (twice), and "in place of".
    assert (count.what, count.retired, count.sentence) == (2, 5, 7)


def test_docstrings_of_all_members_are_counted():
    class Base:
        def inherited(self):
            """One."""

    class Derived(Base):
        """Two."""

        @property
        def read(self):
            """Three."""

        @classmethod
        def made(cls):
            """Four."""

        @staticmethod
        def plain():
            """Five."""

        def _hidden(self):
            """Six."""

    members = (Base.inherited, Derived.read.fget, Derived.made.__func__, Derived.plain)
    for member in (*members, Derived._hidden):
        member.__module__ = "gpuflow"
    assert sorted(docstrings_of(Derived)) == ["Five.", "Four.", "One.", "Three.", "Two."]


def test_examples_of_docstrings_are_left_out():
    text = "Return what it says.\n\nArgs:\n    x: what.\n\nExample:\n    >>> what\n    says\n"
    count = prose.counts_of(prose.blocks_of_docstring(text))
    assert (count.what, count.retired) == (2, 1)


def faults_of_changelog(page: str) -> list[str]:
    """Unknown kinds of changes, items that are not one short line, and a page that is too long."""
    lines = page.splitlines()
    kinds = {line[4:] for line in lines if line.startswith("### ")}
    faults = [f"### {kind}" for kind in sorted(kinds - KINDS_OF_CHANGES)]
    for line in lines:
        is_item = line.startswith("- ")
        if (is_item and len(line[2:].split()) > MAX_WORDS) or line.startswith((" ", "* ")):
            faults.append(line)
    return faults + [f"{len(lines)} lines"] * (len(lines) > MAX_LINES)


def test_changelog_is_one_page_of_short_lines():
    assert not faults_of_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    long = f"- {'word ' * MAX_WORDS}more"
    page = f"### Added\n- short\n{long}\n  continued\n### News\n"
    assert faults_of_changelog(page) == ["### News", long, "  continued"]
    assert faults_of_changelog("\n" * 151) == ["151 lines"]


def test_docstrings_of_internal_functions_are_found_in_source():
    source = '"""One."""\nclass A:\n    """Two."""\n    def _f(self):\n        """Three."""\n'
    assert list(prose.docstrings_in(source)) == ["One.", "Two.", "Three."]


def test_messages_are_found_in_source():
    source = 'def f():\n    """Fix: no."""\n    raise E(f"[op] must {x}; got what. Fix: y", "z")\n'
    assert prose.messages_of(source) == ["[op] must code; got what. Fix: y"]


if __name__ == "__main__":
    before = read_ceilings()
    after = {kind: lowered(current(kind), before[kind]) for kind in KINDS}
    CEILINGS.write_text(json.dumps(after, indent=1) + "\n", encoding="utf-8")
