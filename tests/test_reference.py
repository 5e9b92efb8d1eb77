"""The static reference: sources of what users see, and pages that are built without a warning."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpuflow as gf

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")
# What a browser gets besides a page: pictures, scripts and styles.
FETCHED = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="([^"]+)"')


@pytest.fixture(scope="module")
def sources():
    path = ROOT / "docs" / "reference_sources.py"
    spec = importlib.util.spec_from_file_location("reference_sources", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_namespaces_are_those_that_dir_lists(sources):
    names = [module.__name__ for module in sources.namespaces()]
    assert len(names) == len(set(names)) > 80
    assert {
        "gpuflow", "gpuflow.numpy", "gpuflow.numpy.linalg", "gpuflow.numpy.fft", "gpuflow.lax",
        "gpuflow.lax.linalg", "gpuflow.nn", "gpuflow.nn.initializers", "gpuflow.random",
        "gpuflow.scipy.special", "gpuflow.scipy.stats.norm", "gpuflow.tree", "gpuflow.sharding",
        "gpuflow.profiler", "gpuflow.checkpointing", "gpuflow.data", "gpuflow.export",
        "gpuflow.mixed_precision", "gpuflow.experimental.ensemble",
    } <= set(names)  # fmt: skip
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
            if callable(value) and not isinstance(value, type):
                # In the sources, the section of examples has the name that mkdocstrings knows.
                plain = inspect.cleandoc(value.__doc__ or "")
                doc = re.sub(r"^Example:$", "Examples:", plain, flags=re.MULTILINE)
                written = (ast.get_docstring(functions[name]) or "").replace("    : ", "")
                assert " ".join(written.split())[:200] in " ".join(doc.split()), name
    (array,) = (node for node in tree.body if getattr(node, "name", "") == "Array")
    assert {"sum", "T", "at", "block_until_ready"} <= {getattr(n, "name", "") for n in array.body}
    text = sources.function_source("softmax", gf.nn.softmax)
    assert text.startswith("def softmax(x: ArrayLike, axis: ")


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
        cwd=ROOT, capture_output=True, text=True, env=variables,
    )  # fmt: skip
    assert run.returncode == 0 and "WARNING" not in run.stderr, run.stderr
    for module in sources.namespaces():
        text = (tmp_path / "reference" / f"{module.__name__}.html").read_text(encoding="utf-8")
        for name in sources.names_of(module):
            is_there = f'id="{module.__name__}.{name}"' in text
            assert is_there or type(getattr(module, name)).__name__ == "module", name
    for name in ("index", "api", "reference/gpuflow.nn"):
        text = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        fetched = FETCHED.findall(text)
        assert fetched and not [source for source in fetched if "//" in source]
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 1e6
