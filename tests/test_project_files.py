"""Files around the package: metadata, citation, containers, and the cost of the pytest plugin.

Each module of the package says which tests cover it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from gpuflow.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PLUGIN_SECONDS = 0.02
# The end of a module's docstring: the test files that fail if its code breaks, the closest first.
TESTS = re.compile(r"(?:^|\n\n)Tests: (tests/\S+\.py(?:,\s+tests/\S+\.py)*)\.\Z")
CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_metadata():
    project = tomllib.loads(text_of("pyproject.toml"))
    metadata, groups = project["project"], project["dependency-groups"]
    assert metadata["license"] == "Apache-2.0" and metadata["license-files"] == ["LICENSE"]
    # PEP 639: setuptools refuses a classifier of the license next to an expression.
    assert not [name for name in metadata["classifiers"] if name.startswith("License")]
    minors = [name.rpartition(".")[2] for name in metadata["classifiers"] if ":: 3." in name]
    assert minors == ["11", "12", "13"] and metadata["requires-python"] == ">=3.11"
    assert metadata["authors"] and set(groups) == {"test_ray", "test_site"}
    assert set(groups).isdisjoint(metadata["optional-dependencies"])


# Extras of which CI installs the oldest versions; the others need a GPU or another compiler, or are
# tools for developers.
OLDEST_EXTRAS = ("demo", "plot", "checkpoint", "test")


def pinned(text):
    """The versions of a requirements file, by package."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return dict(line.split("==") for line in lines if line)


def release(version):
    """The numbers of a version: 2.0 and 2.0.0 are the same."""
    numbers = [int(number) for number in version.split(".")]
    return (*numbers, 0, 0)[:3]


def test_the_oldest_versions_are_tested():
    """gpuflow once named versions of optree, ml_dtypes and Numba with which no import worked."""
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = [project["optional-dependencies"][name] for name in OLDEST_EXTRAS]
    required = {r for group in [project["dependencies"], *extras] for r in group}
    minima = dict(requirement.split(">=") for requirement in required)
    assert len(minima) == len(required), "one package has two minima"
    oldest = pinned(text_of("tests/requirements-oldest.txt"))
    assert set(oldest) == set(minima)
    for package, minimum in minima.items():
        assert release(oldest[package]) == release(minimum), package
    assert "pip install --quiet -r tests/requirements-oldest.txt" in text_of(".ci/run")


def test_the_citation_has_the_version():
    assert f"\nversion: {__version__}\n" in text_of("CITATION.cff")


def test_containers_run_the_commands_of_the_readme():
    readme = text_of("README.md")
    for name in ("docker/cpu.Dockerfile", "docker/cuda.Dockerfile"):
        text = text_of(name)
        assert 'CMD ["gpuflow", "demo"]' in text and "pytest -n auto" in text
        assert "[demo" in text and "[test" in text and "python3 -m venv" in text
    for command in (
        "python3 -m venv",
        'pip install ".[demo]" && gpuflow demo',
        'pip install ".[test]" && pytest -n auto',
    ):
        assert command in readme


PLUGIN = """
import sys, time
import pytest
sys.path.insert(0, {folder!r})
start = time.process_time()
import gpuflow_pytest
print(time.process_time() - start)
assert "gpuflow" not in sys.modules
"""


def test_the_pytest_plugin_costs_little():
    """Every run of pytest loads it where gpuflow is installed; 0.5 ms were measured."""
    command = [sys.executable, "-c", PLUGIN.format(folder=str(ROOT))]
    seconds = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(seconds) < PLUGIN_SECONDS
    assert "gpuflow_pytest" in text_of("README.md")


def test_the_readme_is_short_and_its_first_screen_has_the_status():
    lines = text_of("README.md").splitlines()
    assert len(lines) < 120
    screen = "\n".join(lines[:12])
    assert "not released" in screen and "measured on a GPU yet" in screen
    pictures = [line for line in lines if line.startswith("![")]
    assert len(pictures) == 1 and lines.index(pictures[0]) < 12


def complaint_about_tests(source):
    """The tests that a module lacks; empty if it defines no function and no class."""
    tree = ast.parse(source)
    found = TESTS.search(ast.get_docstring(tree) or "")
    if found is None:
        has_code = any(isinstance(node, CODE) for node in ast.walk(tree))
        return "no tests" if has_code else ""
    gone = [name for name in re.split(r",\s+", found[1]) if not (ROOT / name).is_file()]
    return f"no file {', '.join(gone)}" if gone else ""


def test_modules_name_their_tests():
    """Modules without a function or class need no such line: they only re-export, or are data."""
    paths = [
        path
        for folder in ("gpuflow", "kernels", "ptxsim")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(paths) > 800
    found = [
        f"{path.relative_to(ROOT)}: {complaint}"
        for path in sorted(paths)
        if (complaint := complaint_about_tests(path.read_text(encoding="utf-8")))
    ]
    assert not found, (
        "\n".join(found) + "\nFix: end the module's docstring with a paragraph such as "
        "`Tests: tests/kir/test_argmax.py.`, the one to three files that fail if its code breaks"
    )


def test_complaints_about_tests():
    here, code = "Tests: tests/test_layers.py", "def f():\n    pass\n"
    assert not complaint_about_tests("from a import b\n__all__ = ['b']\n")
    assert complaint_about_tests(code) == "no tests"
    assert complaint_about_tests(f'"""Sums.\n\nTests: none.\n"""\n{code}') == "no tests"
    assert complaint_about_tests(f'"""Sums.\n{here}.\n"""\n{code}') == "no tests"
    assert complaint_about_tests(f'"""Sums.\n\n{here}.\n\nMore.\n"""\n{code}') == "no tests"
    assert not complaint_about_tests(f'"""Sums.\n\n{here}.\n"""\n{code}')
    assert not complaint_about_tests(f'"""Sums.\n\n{here},\ntests/test_docs.py.\n"""\n{code}')
    gone = f'"""Sums.\n\n{here}, tests/test_gone.py.\n"""\n'
    assert complaint_about_tests(gone) == "no file tests/test_gone.py"
