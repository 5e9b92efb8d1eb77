"""docs/api.md is what docs/make_api.py writes, and the names that it lists are there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import gpuflow

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROW = re.compile(r"^\| (\S+) \| `(gpuflow\.[\w.]+)` \|", re.MULTILINE)


@pytest.fixture(scope="module")
def make_api():
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_api"] = module  # where its dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


def value_at(path):
    """What stands at a dotted path, with the imports that it needs."""
    value, parts = gpuflow, path.split(".")[1:]
    for place, part in enumerate(parts):
        if not hasattr(value, part):
            importlib.import_module(".".join(["gpuflow", *parts[: place + 1]]))
        value = getattr(value, part)
    return value


def test_the_page_is_up_to_date(make_api):
    assert make_api.page() == make_api.OUTPUT.read_text(encoding="utf-8"), (
        "names or differences have changed. Fix: python docs/make_api.py"
    )


def test_names_are_there():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    rows = [row for row in ROW.findall(page) if not row[0].startswith("[")]
    assert len(rows) > 1000
    for name, path in rows:
        assert path.endswith(f".{name}")
        value_at(path)


def test_pages_must_say_what_is_so(make_api):
    _, modules = make_api.read_modules()
    with pytest.raises(ValueError, match=r"page\.md: nosuch must be a name of \['jax\.lax'\]"):
        make_api.read_row([modules["jax.lax"]], "`nosuch`", "text", False, "page.md")
    make_api.read_row([modules["jax.lax"]], "`tanh`", "text", True, "page.md")
    with pytest.raises(ValueError, match=r"brought up to date: jax\.lax \['tanh'\]"):
        make_api.section(modules["jax.lax"])


def test_rows_find_their_names(make_api):
    names = dict.fromkeys(["beta.pdf", "beta.cdf", "norm.pdf", "mode"])
    module = make_api.Module("jax.scipy.stats", names)
    make_api.read_row([module], "`beta`, `stats.mode(axis=)`", "one", False, "page.md")
    make_api.read_row([module], "`pdf`", "two", False, "page.md")
    make_api.read_row([module], "all of them", "three", False, "page.md")
    assert module.remarks == {
        "beta.pdf": ["one", "two"],
        "beta.cdf": ["one"],
        "norm.pdf": ["two"],
        "mode": ["`axis=`: one"],
    }
    assert module.notes == ["all of them: three"]


def test_keywords_that_are_not_taken(make_api):
    def function(x, /, y, *, z=0):
        del x, y, z

    assert make_api.not_taken(function, ["x", "y", "z", "new_val"]) == ["x"]
    assert make_api.not_taken(lambda **options: options, ["x"]) == []
    assert make_api.not_taken(float, ["x"]) == []
    assert make_api.not_taken(function, None) == []
