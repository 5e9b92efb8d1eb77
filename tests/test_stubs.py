"""gpuflow/core/methods.pyi is what docs/make_stubs.py writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import gpuflow as gf

PATH = Path(__file__).resolve().parents[1] / "docs" / "make_stubs.py"


@pytest.fixture(scope="module")
def make_stubs():
    spec = importlib.util.spec_from_file_location("make_stubs", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stub_is_up_to_date(make_stubs):
    assert make_stubs.OUTPUT.read_text(encoding="utf-8") == make_stubs.stub(), (
        "the tables of methods have changed. Fix: python docs/make_stubs.py"
    )


def test_what_has_no_annotation_is_named(make_stubs):
    with pytest.raises(TypeError, match=r"functions of the tables must say what they take"):
        make_stubs.signature(lambda self, other: other, {})


def test_classes_do_not_change_at_run_time():
    """Type checkers see bases that programs never import."""
    assert [cls.__name__ for cls in gf.Array.__mro__] == ["Array", "HasAval", "HasShape", "object"]
    assert [cls.__name__ for cls in gf.Ref.__mro__] == ["Ref", "HasShape", "object"]
