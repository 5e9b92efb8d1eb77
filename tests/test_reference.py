"""The static reference: sources of what users see, and pages that are built without a warning."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuflow as gf

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers", "ruff")
# What a browser gets besides a page: pictures, scripts and styles.
FETCHED = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="([^"]+)"')


def loaded(name):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sources():
    return loaded("reference_sources")


def test_namespaces_are_those_that_dir_lists(sources):
    names = [module.__name__ for module in sources.namespaces()]
    assert len(names) == len(set(names)) > 80
    assert {
        "gpuflow",
        "gpuflow.numpy",
        "gpuflow.numpy.linalg",
        "gpuflow.numpy.fft",
        "gpuflow.lax",
        "gpuflow.lax.linalg",
        "gpuflow.nn",
        "gpuflow.nn.initializers",
        "gpuflow.random",
        "gpuflow.scipy.special",
        "gpuflow.scipy.stats.norm",
        "gpuflow.tree",
        "gpuflow.sharding",
        "gpuflow.profiler",
        "gpuflow.checkpointing",
        "gpuflow.data",
        "gpuflow.export",
        "gpuflow.mixed_precision",
        "gpuflow.experimental.ensemble",
    } <= set(names)
    # What modules import for their own use is nobody's business.
    assert "gpuflow.checkpointing.files" not in names
    assert sources.names_of(gf.data) == ["Batches", "Prefetched", "batches", "prefetch_to_device"]


def test_sources_have_the_names_signatures_and_docstrings(sources):
    """Of every public function of five modules; methods of Array, which a table makes, too."""
    for module in (gf.numpy, gf.nn, gf.random, gf.lax, gf):
        tree = ast.parse(sources.module_source(module))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for name in sources.names_of(module):
            value = getattr(module, name)
            if callable(value) and not isinstance(value, type) and not sources.is_alias(value):
                # In the sources, the section of examples has the name that mkdocstrings knows.
                plain = inspect.cleandoc(value.__doc__ or "")
                doc = re.sub(r"^Example:$", "Examples:", plain, flags=re.MULTILINE)
                written = (ast.get_docstring(functions[name]) or "").replace("    : ", "")
                assert " ".join(written.split())[:200] in " ".join(doc.split()), name
    (array,) = (node for node in tree.body if getattr(node, "name", "") == "Array")
    assert {"sum", "T", "at", "block_until_ready"} <= {getattr(n, "name", "") for n in array.body}
    assert sources.source_of("Options", dict, gf.stages) == "Options = dict\n"
    assert sources.source_of("Dims", tuple[int, str], gf.lax) == "Dims = tuple[int, str]\n"
    assert not sources.is_documented(tuple[int, str])
    text = sources.function_source("softmax", gf.nn.softmax)
    assert text.startswith("def softmax(x: ArrayLike, axis: ")


def test_entries_with_docstrings_come_first(sources):
    """And names of Python's standard library are no entries."""
    for module in sources.namespaces():
        members = sources.members_of(module)
        documented = [sources.is_documented(value) for _, value in members]
        assert documented == sorted(documented, reverse=True), module.__name__
        assert not {"Any", "Callable", "Sequence", "publish"} & {name for name, _ in members}


def test_every_name_of_a_large_module_has_a_family():
    families = loaded("reference_families")
    with pytest.raises(LookupError, match=r"add 'gpuflow\.numpy\.new', which"):
        families.family_of("gpuflow.numpy", "f", SimpleNamespace(__module__="gpuflow.numpy.new"))
    for module in map(importlib.import_module, families.FAMILIES):
        found = {
            families.family_of(module.__name__, name, value)
            for name, value in loaded("reference_sources").members_of(module)
        }
        assert found == set(families.FAMILIES[module.__name__])


def test_array_has_no_internals(sources):
    text = sources.class_source("Array", gf.Array)
    (array,) = ast.parse(text).body
    members = {node.name: node for node in array.body if isinstance(node, ast.FunctionDef)}
    assert not {"data", "host", "rows"} & set(members)
    assert all(ast.get_docstring(node) for node in members.values())
    assert "driver" not in ast.get_docstring(array)
    assert len(sources.source_of("ndarray", gf.numpy.ndarray, gf.numpy)) < 100


def test_results_are_not_torn(sources):
    griffe = pytest.importorskip("griffe", reason='needs pip install ".[docs]"')
    for module in sources.namespaces():
        for name, value in sources.members_of(module):
            doc = inspect.getdoc(value) or ""
            result = re.search(r"^Returns:\n((?:    .*\n?|\n)+)", doc, re.MULTILINE)
            if result and sources.is_documented(value) and not isinstance(value, type):
                text = ast.literal_eval(sources.docstring_of(value, "").strip())
                sections = griffe.Docstring(text).parse(
                    "google", returns_multiple_items=False, warnings=False
                )
                (section,) = (one for one in sections if one.kind.value == "returns")
                (returned,) = section.value
                assert returned.description.split() == result[1].split(), name


def test_tests_of_modules_are_not_shown(sources):
    module = SimpleNamespace(__doc__="Sums.\n\nOf arrays.\n\nTests: tests/a.py,\ntests/b.py.\n")
    assert ast.literal_eval(sources.docstring_of(module, "").strip()) == "Sums.\n\nOf arrays."
    for module in sources.namespaces():
        assert "Tests: tests/" not in sources.module_source(module), module.__name__


def test_defaults_that_are_no_python_are_dots(sources):
    def f(x: int, mode=sources, *, n: float = 2.0) -> list[int]:
        r"""Has a backslash \n and quotes \"""."""

    text = sources.function_source("f", f)
    assert text.startswith("def f(x: int, mode=..., *, n: float = 2.0) -> list[int]:")
    assert ast.get_docstring(ast.parse(text).body[0]) == f.__doc__


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason='needs pip install ".[docs]"')
def test_pages_are_built_without_a_warning(tmp_path, sources):
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=variables,
    )
    assert run.returncode == 0 and "WARNING" not in run.stderr, run.stderr
    for module in sources.namespaces():
        folder = tmp_path / "reference"
        pages = [folder / f"{module.__name__}.html", *folder.glob(f"{module.__name__}/*.html")]
        text = "".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())
        for name in sources.names_of(module):
            is_there = f'id="{module.__name__}.{name}"' in text
            assert is_there or type(getattr(module, name)).__name__ == "module", name
    cell = re.compile(r"<td>[^\n]*<code>[^<]*\\\|")  # the bar of code in a table
    assert not [page for page in tmp_path.rglob("*.html") if cell.search(page.read_text("utf-8"))]
    assert max(page.stat().st_size for page in folder.rglob("*.html")) < 500_000
    for name in ("index", "api", "reference/gpuflow.nn/index"):
        text = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        fetched = FETCHED.findall(text)
        assert fetched and not [source for source in fetched if "//" in source]
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 1e6
