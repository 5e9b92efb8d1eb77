"""Many small cases as a few tests: each runs all of its cases and lists every one that fails.

    @together(by="family", size=50)
    @pytest.mark.parametrize(("family", "line"), CASES)
    def test_line(family, line, spaces):
        ...

is one test for each family, or several where a family has more than 50 cases. Without ``by`` the
cases are split in order. pytest needs 2 to 5 ms for an item (collecting, set-up, reports
between processes), more than such a case takes.

    CASE="jnp.add(x, y)" pytest tests/numpy/test_file.py::test_line

runs that case only, or, where no case has this name, those with this text in their names. A
failure prints the command. Fixtures are set up once for each test; generators of the file start
again for each case. Cases cannot have marks: give them a test of their own.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fresh_state import forget_traces, restart_generators

PARAMETER = "cases"
# Of a failure's text.
LINES = 8
_ParameterSet = type(pytest.param())


@dataclass(frozen=True)
class Case:
    """A name that no other case of the test has, and the arguments."""

    name: str
    values: dict[str, Any]


class Cases(tuple):
    """The cases of one test."""


def together(
    by: str | Callable[..., object] | None = None, size: int = 100
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the cases of the ``parametrize`` marks below in few tests.

    Args:
        by: the parameter, or a function of all parameters, whose value names the test of a case.
        size: at most so many cases in a test. A test should take at most five seconds, for
            processes share the tests.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        marks = list(getattr(test, "pytestmark", ()))
        parameters = [mark for mark in marks if mark.name == "parametrize"]
        parts = _parts(_wanted(_product(parameters)), by, size)
        taken = {name for mark in parameters for name in _argument_names(mark)}

        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            __tracebackhide__ = True
            cases = arguments.pop(PARAMETER)
            _run_all(test, cases, arguments)

        old = inspect.signature(test)
        fixtures = [own for name, own in old.parameters.items() if name not in taken]
        own = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = old.replace(parameters=[*fixtures, own])  # type: ignore[attr-defined]
        mark = pytest.mark.parametrize(PARAMETER, list(parts.values()), ids=list(parts))
        rest = [mark for mark in marks if mark.name != "parametrize"]
        run.pytestmark = [*rest, mark.mark]  # type: ignore[attr-defined]
        return run

    return decorate


def count_cases(item: pytest.Item) -> int:
    """The number of cases that a test runs: one, unless it is of :func:`together`."""
    cases = item.callspec.params.get(PARAMETER) if hasattr(item, "callspec") else None
    return len(cases) if isinstance(cases, Cases) else 1


# --- running ---------------------------------------------------------------------------------


def _run_all(test: Callable[..., None], cases: Cases, fixtures: dict[str, Any]) -> None:
    """Run all cases; fail with a list of those that failed."""
    __tracebackhide__ = True
    failed: dict[str, BaseException] = {}
    skipped = []
    for case in cases:
        restart_generators(test.__globals__)
        try:
            test(**case.values, **fixtures)
        except pytest.skip.Exception as reason:
            skipped.append(str(reason))
        except (Exception, pytest.fail.Exception) as error:
            failed[case.name] = error
        forget_traces()
    if failed:
        raise AssertionError(_report(failed, len(cases))) from next(iter(failed.values()))
    if skipped:
        pytest.skip(f"{len(skipped)} of {len(cases)} cases: {skipped[0]}")


def _report(failed: dict[str, BaseException], count: int) -> str:
    """All cases that failed, with the beginnings of their errors, and how to run one alone."""
    entries = [f"{len(failed)} of {count} cases failed:"]
    for name, error in failed.items():
        lines = [line for line in str(error).splitlines() if line.strip()]
        more = [f"... ({len(lines) - LINES} more lines)"] if len(lines) > LINES else []
        said = "\n".join([*lines[:LINES], *more])
        entries.append(f"{name}\n{textwrap.indent(f'{type(error).__name__}: {said}', '    ')}")
    where = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("[")[0]
    alone = f"CASE={shlex.quote(next(iter(failed)))} pytest {where}"
    return "\n".join([*entries, f"One alone: {alone}"])


# --- cases -----------------------------------------------------------------------------------


def _wanted(cases: list[Case]) -> list[Case]:
    """All cases, or those that CASE names."""
    text = os.environ.get("CASE")
    if not text:
        return cases
    named = [case for case in cases if case.name == text]
    return named or [case for case in cases if text in case.name]


def _parts(
    cases: list[Case], by: str | Callable[..., object] | None, size: int
) -> dict[str, Cases]:
    """The cases of each test, by its name."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        key = by(**case.values) if callable(by) else case.values[by] if by else ""
        groups.setdefault(_text(key, "group", 0), []).append(case)
    parts = {}
    for name, own in groups.items():
        count = -(-len(own) // size)
        for k in range(count):
            # As equal in size as can be.
            start, stop = k * len(own) // count, (k + 1) * len(own) // count
            label = "-".join([name] * bool(name) + [f"{k + 1}of{count}"] * (count > 1))
            parts[label or "all"] = Cases(own[start:stop])
    return parts


def _argument_names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _product(marks: list[pytest.Mark]) -> list[Case]:
    """The cases of all marks together, named and ordered as pytest does."""
    cases = [
        Case(
            "-".join(case.name for case in row),
            {name: value for case in row for name, value in case.values.items()},
        )
        for row in itertools.product(*map(_cases_of, marks))
    ]
    count = Counter(case.name for case in cases)
    return [
        case if count[case.name] == 1 else Case(f"{case.name} #{k}", case.values)
        for k, case in enumerate(cases)
    ]


def _cases_of(mark: pytest.Mark) -> Iterator[Case]:
    names, ids = _argument_names(mark), mark.kwargs.get("ids")
    if unknown := set(mark.kwargs) - {"ids"}:
        raise TypeError(f"[together] cases may have ids only; got {', '.join(sorted(unknown))}")
    listed = None if ids is None or callable(ids) else list(ids)
    for k, case in enumerate(mark.args[1]):
        is_set = isinstance(case, _ParameterSet)
        if is_set and case.marks:
            raise TypeError("[together] cases cannot have marks. Fix: give them their own test.")
        values = case.values if is_set else [case] if len(names) == 1 else case
        given = case.id if is_set else listed[k] if listed else None
        if given is None:
            label = ids if callable(ids) else lambda value: None
            texts = [label(value) for value in values]
            given = "-".join(
                _text(value if text is None else text, own, k)
                for text, value, own in zip(texts, values, names, strict=True)
            )
        name = str(given).replace("\n", "\\n")  # one line, as pytest does
        yield Case(name, dict(zip(names, values, strict=True)))


def _text(value: object, name: str, k: int) -> str:
    """What stands for a value in the name of a case."""
    if value is None or isinstance(value, str | int | float | complex):
        return str(value)
    return getattr(value, "__name__", None) or f"{name}{k}"
