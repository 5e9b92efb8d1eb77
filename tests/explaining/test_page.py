"""The page of an explanation: links, escaping, and that a browser runs it."""

from __future__ import annotations

import builtins
import linecache
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.explaining import page as page_module

X = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def layer(x):
    h = jnp.tanh(x @ x.T)
    return h - h.mean(0)


class Page(HTMLParser):
    """What a test asks of a page: identifiers, links, tags, and which lines belong to steps."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.steps: list[str] = []
        self.lines: dict[str, list[str]] = {}
        self.on: list[str] = []
        self.outside: list[str] = []
        self._steps_of_line: list[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        self.outside += [values[key] for key in ("src", "srcset") if key in values]
        if tag == "link":
            self.outside.append(values["href"])
        classes = (values.get("class") or "").split()
        if "data-step" in values:
            self.steps.append(values["data-step"])
            if "on" in classes:
                self.on.append(values["data-step"])
        if tag == "span" and "data-steps" in values:
            self._steps_of_line = values["data-steps"].split()
            if "on" in classes:
                self.on.append("line")

    def handle_data(self, data):
        if self._steps_of_line is not None and data.strip().isdigit():
            self.lines[data.strip()] = self._steps_of_line
            self._steps_of_line = None


def written(tmp_path, function, *args, **kwargs):
    path = gf.explain(function, *args, **kwargs).to_html(tmp_path / "page.html")
    return path.read_text(encoding="utf-8")


def check_links(page):
    assert len(page.ids) == len(set(page.ids))
    assert page.links and all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert not page.outside


def test_lines_and_steps_belong_together(tmp_path):
    text = written(tmp_path, layer, X)
    page = Page(text)
    check_links(page)
    assert page.steps == [str(step.number) for step in gf.explain(layer, X).steps]
    first = layer.__code__.co_firstlineno
    assert set(page.lines) == {str(first + 1), str(first + 2)}
    assert "1" in page.lines[str(first + 1)] and "1" not in page.lines[str(first + 2)]
    assert all(set(steps) <= set(page.steps) for steps in page.lines.values())
    shown = re.sub(r"<[^>]+>", "", text)
    assert "def layer(x):" in shown and "def written" not in shown
    assert "generated text" in shown and "def kernel_" in shown and "# kernel" in shown
    assert "dot_general is a library call" in shown
    assert text.count("<rect ") == len(page.steps)


@pytest.mark.usefixtures("loops_of_steps")
def test_steps_inside_of_loops_are_there(tmp_path):
    def f(x):
        return lax.scan(lambda c, r: (jnp.sort(c + r), r.sum()), x[0], x)

    page = Page(written(tmp_path, f, X))
    check_links(page)
    assert "1" in page.steps and {"1.1.1", "1.1.2"} <= set(page.steps)
    assert any("1.1.1" in steps for steps in page.lines.values())


def test_equal_texts_are_shown_once(tmp_path):
    def f(x):
        for _ in range(3):
            x = jnp.tanh(jnp.sort(x, 1))
        return jnp.sort(x, 1)  # what stands last may lie in place

    text = written(tmp_path, f, X)
    assert text.count("<summary>generated text") == 1 and text.count("text: as <a") == 2
    check_links(Page(text))


def test_hostile_names_are_text(tmp_path):
    attack = "<script>alert(1)</script>"
    file = f"x{attack}\"'>&.py"
    source = f"def f(x):\n    return jnp.sin(x) + 1  # {attack} </pre></style> \" '\n"
    names = {"jnp": jnp}
    exec(compile(source, file, "exec"), names)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    function = names["f"]
    function.__name__ = function.__qualname__ = attack
    try:
        text = written(tmp_path, function, X)
    finally:
        del linecache.cache[file]
    page = Page(text)
    assert attack not in text.replace('<script>"use strict"', "")
    assert page.tags.count("script") == 1 and page.tags.count("style") == 1
    check_links(page)
    stage = written(tmp_path, function, X, stage="jaxpr")
    assert attack not in stage and Page(stage).tags.count("script") == 0


def test_sources_that_cannot_be_read(tmp_path):
    names = {"jnp": jnp}
    exec(compile("def f(x):\n    return jnp.sin(x)\n", "<gone>", "exec"), names)
    text = written(tmp_path, names["f"], X)
    assert "(not to be read)" in text and "&lt;gone&gt;" in text


def test_pygments_is_optional(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pygments"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    text = written(tmp_path, layer, X)
    check_links(Page(text))
    assert "def layer(x):" in re.sub(r"<[^>]+>", "", text)


def dom_of(path, fragment=""):
    """The document after its script has run in a browser, and what it complained of."""
    run = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={path.parent / 'browser'}",
            "--dump-dom",
            f"{path.as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return Page(run.stdout), [line for line in run.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt install chromium)")
def test_a_browser_marks_what_belongs_together(tmp_path):
    path = gf.explain(layer, X).to_html(tmp_path / "page.html")
    page, complaints = dom_of(path)
    assert not page.on and not complaints
    page, complaints = dom_of(path, "#step-1")
    # The first step, and the line that it comes from.
    assert page.on == ["line", "1"] and not complaints


def test_there_is_a_legend_and_a_dark_mode(tmp_path):
    text = written(tmp_path, layer, X)
    assert "prefers-color-scheme: dark" in text and "color-scheme: light dark" in text
    legend = re.search(r'<p class="legend">(.*?)</p>', text)[1]
    assert re.findall(r'<i class="(\w+)">', legend) == ["heat", "mark", "end"]
    sheet = (Path(page_module.__file__).parent / "page.css").read_text(encoding="utf-8")
    rules = re.sub(r":root \{.*?\}", "", sheet, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-f]{3,6}\b", rules), "colors of one mode only"
