"""Tests of many cases: all run, each one that fails is named, and each can be run alone."""

from __future__ import annotations

import numpy as np
import pytest
from together import PARAMETER, together

RANDOM = np.random.default_rng(0)


def small_test(**options):
    """A test of eight cases, of which one fails and one is skipped; and what its cases drew."""
    drawn = []

    @together(**options)
    @pytest.mark.parametrize(("kind", "value"), [("a", 1), ("a", 2), ("a", 3), ("b", 0)])
    @pytest.mark.parametrize("sign", [1, pytest.param(-1, id="minus")])
    def test_small(sign, kind, value, fixture):
        drawn.append(RANDOM.random())
        assert sign * value < fixture, f"{sign * value} is too large"
        if value == 2 and sign == -1:
            pytest.skip("not this one")

    return test_small, drawn


def parts_of(test):
    """The cases of each test, by its name."""
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return dict(zip(mark.kwargs["ids"], mark.args[1], strict=True))


def names_of(test):
    return {name: [case.name for case in cases] for name, cases in parts_of(test).items()}


def test_cases_are_named_and_ordered_as_pytest_does():
    assert names_of(small_test(by="kind", size=4)[0]) == {
        "a-1of2": ["1-a-1", "1-a-2", "1-a-3"],
        "a-2of2": ["minus-a-1", "minus-a-2", "minus-a-3"],
        "b": ["1-b-0", "minus-b-0"],
    }
    assert list(names_of(small_test(size=3)[0])) == ["1of3", "2of3", "3of3"]
    assert list(names_of(small_test()[0])) == ["all"]
    assert list(names_of(small_test(by=lambda value, **rest: value > 1)[0])) == ["False", "True"]


def test_all_cases_run_and_those_that_fail_are_listed():
    test, drawn = small_test()
    (cases,) = parts_of(test).values()
    with pytest.raises(AssertionError) as caught:
        test(**{PARAMETER: cases}, fixture=2)
    text = str(caught.value)
    assert text.startswith("2 of 8 cases failed:\n1-a-2\n    AssertionError: 2 is too large\n")
    assert "\n1-a-3\n    AssertionError: 3 is too large\n" in text
    assert text.splitlines()[-1].startswith("One alone: CASE=1-a-2 pytest tests/test_together.py::")
    assert "2 is too large" in str(caught.value.__cause__)
    assert len(drawn) == 8 and len(set(drawn)) == 1  # each started with the same numbers


def test_skips_are_counted_where_nothing_fails():
    test, _ = small_test()
    (cases,) = parts_of(test).values()
    with pytest.raises(pytest.skip.Exception, match=r"^1 of 8 cases: not this one$"):
        test(**{PARAMETER: cases}, fixture=4)


def test_one_alone(monkeypatch):
    monkeypatch.setenv("CASE", "minus-a-3")
    assert names_of(small_test(by="kind")[0]) == {"a": ["minus-a-3"]}
    monkeypatch.setenv("CASE", "minus")
    assert sum(map(len, names_of(small_test(by="kind")[0]).values())) == 4


def test_cases_of_one_name_are_told_apart():
    @together()
    @pytest.mark.parametrize("x", [np.ones(1), np.ones(2)], ids=["ones", "ones"])
    def test_small(x):
        del x

    assert names_of(test_small) == {"all": ["ones #0", "ones #1"]}


def test_names_are_one_line():
    @together()
    @pytest.mark.parametrize("x", ["one\ntwo"])
    def test_small(x):
        del x

    assert names_of(test_small) == {"all": ["one\\ntwo"]}


def test_what_cases_cannot_have():
    def test_small(x):
        del x

    marked = pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.gpu)])
    with pytest.raises(TypeError, match=r"\[together\] cases cannot have marks"):
        together()(marked(test_small))
    del test_small.pytestmark
    with pytest.raises(TypeError, match=r"\[together\] cases may have ids only; got indirect"):
        together()(pytest.mark.parametrize("x", [1], indirect=True)(test_small))
