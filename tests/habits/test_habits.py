"""Public functions take and refuse what JAX's do, one argument at a time.

Each template of data/habits.json is a call with one argument left open; it runs with the habits of
the argument's kind: other integers, arrays of one element, lists for tuples, strings for dtypes.
Results have JAX's types and weak types, and its values where they are stored. Each difference has
a reason in data/habits_reasons.txt: a regular expression of rows as ``differences`` writes them.

One template in four runs; ``HABITS=all`` runs all. ``python tests/habits/test_habits.py`` prints
the rows of those that run, without a reason first, and counts them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from habit_cases import REFUSED, habits, habits_of, names, outcome  # noqa: E402

import gpuflow  # noqa: E402

for _name in (
    "scipy.cluster.vq",
    "scipy.sparse.linalg",
    "scipy.spatial.transform",
    "experimental.ode",
):
    import_module(f"gpuflow.{_name}")

DATA = HERE.parent / "data"
STORED = json.loads((DATA / "habits.json").read_text())
TEMPLATES = STORED["templates"]
PARTS = 16  # tests, so that processes share them


@cache
def space(dtype: str) -> dict[str, object]:
    """The names of calls."""
    return names(gpuflow, dtype)


def agree(own: str, other: str) -> bool:
    """Whether two outcomes have the same types and close values, or both are refusals."""
    if REFUSED in (own[:1], other[:1]):
        return own[:1] == other[:1]
    ours, theirs = own.split(), other.split()
    return len(ours) == len(theirs) and all(map(_close, ours, theirs))


def _close(own: str, other: str) -> bool:
    """Whether two results agree; JAX's has no value where it was traced only."""
    (kind, _, number), (other_kind, _, other_number) = own.partition("="), other.partition("=")
    if kind != other_kind or own == other or not other_number:
        return kind == other_kind
    tolerance = 2e-2 if "float16" in kind else 2e-3  # sums have four digits, roundings differ
    return abs(float(number) - float(other_number)) <= tolerance * max(1, abs(float(other_number)))


def differences(row: list[str]) -> list[str]:
    """Where the calls of a template differ from JAX's, one line for each."""
    template, base, kind, dtype, codes = row
    lines = []
    for habit, text, code in zip(
        habits_of(template, kind), habits(template, base, kind), codes.split(), strict=True
    ):
        call = template.replace("HABIT", text)
        own, other = outcome(gpuflow, call, space(dtype)), STORED["legend"][int(code)]
        if not agree(own, other):
            how = "refused" if own[0] == REFUSED else "taken" if other[0] == REFUSED else "differs"
            lines.append(f"{how} | {kind} | {habit} | {call} | {own} | JAX {other}")
    return lines


@cache
def reasons() -> dict[str, list[re.Pattern[str]]]:
    """The patterns of rows, by the reason that they have."""
    by_words = {}
    for block in (DATA / "habits_reasons.txt").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        words = [line for line in lines if not line.startswith(" ")]
        patterns = [re.compile(line.strip()) for line in lines if line.startswith(" ")]
        if words:
            by_words[" ".join(words)] = patterns
    return by_words


def has_reason(line: str) -> bool:
    """Whether a difference is explained."""
    return any(pattern.match(line) for patterns in reasons().values() for pattern in patterns)


def chosen() -> list[list[str]]:
    """The templates that run."""
    if os.environ.get("HABITS") == "all":
        return TEMPLATES
    return [row for row in TEMPLATES if zlib.crc32(row[0].encode()) % 4 == 1]


@pytest.mark.parametrize("part", range(PARTS))
def test_habits(part):
    lines = [line for row in chosen()[part::PARTS] for line in differences(row)]
    assert [line for line in lines if not has_reason(line)] == []


def test_functions_of_all_modules_are_called():
    texts = " ".join(row[0] for row in TEMPLATES)
    assert len({row[0].partition("(")[0] for row in TEMPLATES}) > 400
    for module in ("jax.numpy.", "lax.", "jax.random.", "jax.nn.", "jax.scipy.", "jax.tree"):
        assert module in texts, module


def test_a_difference_is_found():
    assert agree("float32[3]=1.001", "float32[3]=1.002") and agree("!TypeError", "!ValueError")
    assert agree("int32[]=4 bool[]=1", "int32[] bool[]")
    for own, other in (
        ("float32[3]=1", "float32[3]=1.1"),
        ("float32*[3]=1", "float32[3]=1"),
        ("float32[3]=1", "!TypeError"),
        ("int32[]=1", "int32[] int32[]"),
    ):
        assert not agree(own, other) and not agree(other, own)


def main() -> None:
    """Print the differences of all templates and their counts."""
    counts = Counter()
    explained = []
    for row in chosen():
        lines = differences(row)
        counts["cases"] += len(habits_of(row[0], row[2]))
        counts.update(line.split()[0] for line in lines)
        explained += [line for line in lines if has_reason(line)]
        for line in lines:
            if not has_reason(line):
                print(line, flush=True)
    print("# with reasons")
    print(*explained, sep="\n")
    print("#", len(chosen()), "templates", dict(counts))


if __name__ == "__main__":
    main()
