"""The whole surface under the settings that decide dtypes: results have the types of JAX's.

Each call of data/surface_dtypes.json runs with operands of all types, with x64 on and off, and
under strict promotion of dtypes and ranks. Where we differ from JAX stands in
data/surface_dtypes_differ.txt, which ``python tests/surface_settings/test_surface_dtypes.py``
writes anew; the test fails of a difference that is not there, and of one that is no more.

Each difference has a reason, in data/surface_dtypes_reasons.txt.

JAX was asked while it traces. What it traces and then cannot compute we may refuse at once; and
what it refuses for the tracing only we may take, with the type that it computes: both stand in
data/surface_runs.json.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from surface_dtype_cases import (  # noqa: E402
    REFUSED,
    SETTINGS,
    names_of,
    operand_types,
    outcomes,
)
from together import together  # noqa: E402

import gpuflow  # noqa: E402

for _name in (
    "scipy.cluster.vq",
    "scipy.sparse.linalg",
    "scipy.spatial.transform",
    "experimental.ode",
):
    import_module(f"gpuflow.{_name}")

DATA = TESTS / "data"
STORED = json.loads((DATA / "surface_dtypes.json").read_text())
RUNS = json.loads((DATA / "surface_runs.json").read_text())
CALLS = list(STORED["calls"])
DIFFERENCES = DATA / "surface_dtypes_differ.txt"
REASONS = DATA / "surface_dtypes_reasons.txt"
HEAD = """\
# Where types of results differ from JAX's, by reason: settings | call | operands | ours | JAX's;
# "!" is a refusal.
# Written by tests/surface_settings/test_surface_dtypes.py. What JAX traces and then cannot compute,
# and what it refuses for the tracing only, is no difference: see surface_runs.json.
"""
NO_REASON = "No reason yet: say one in surface_dtypes_reasons.txt, or mend it."


def plain(types: str) -> str:
    """Types without what has no effect: weak bools of JAX, and its class for some functions."""
    return types.replace("bool*", "bool").replace("HashablePartial", "function")


def is_as_computed(label: str, expression: str, kinds: str, own: str, traced: str) -> bool:
    """Whether JAX computes what it does not trace as we do, or cannot, as we."""
    computed = RUNS.get(label, {}).get(expression, {}).get(kinds, traced)
    return REFUSED in (own, traced) and plain(own) == plain(computed)


def differences(expression: str) -> list[str]:
    """Where results have other types than JAX's, one line for each case."""
    is_traced, *rows = STORED["calls"][expression]
    lines = []
    for (label, settings), row in zip(SETTINGS.items(), rows, strict=True):
        wanted = [STORED["legend"][ord(c) - 0x23] for c in STORED["rows"][row]]
        is_strict = "strict" in label
        with ExitStack() as stack:
            for name, value in settings.items():
                stack.enter_context(getattr(gpuflow, name)(value))
            got = list(outcomes(gpuflow, expression, is_traced, is_strict))
        types = operand_types(names_of(expression), is_strict)
        lines += [
            f"{label} | {expression} | {', '.join(kinds)} | {own} | JAX {other}"
            for kinds, own, other in zip(types, got, wanted, strict=True)
            if plain(own) != plain(other)
            and not is_as_computed(label, expression, ", ".join(kinds), own, other)
        ]
    return lines


def known_differences() -> list[str]:
    """The rows of the file, without headings."""
    lines = DIFFERENCES.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@cache
def _known_by_call() -> dict[str, set[str]]:
    by_call: dict[str, set[str]] = {}
    for line in known_differences():
        by_call.setdefault(line.split(" | ")[1], set()).add(line)
    return by_call


def known_of(call: str) -> set[str]:
    """The rows of a call."""
    return _known_by_call().get(call, set())


def reasons() -> dict[str, list[re.Pattern[str]]]:
    """The patterns of rows, by the reason that they have."""
    by_words = {}
    for block in REASONS.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        words = [line for line in lines if not line.startswith(" ")]
        patterns = [re.compile(line.strip()) for line in lines if line.startswith(" ")]
        if words:
            by_words[" ".join(words)] = patterns
    return by_words


def reason_of(line: str, known: dict[str, list[re.Pattern[str]]]) -> str:
    """Why a row is there; empty if nobody says."""
    for reason, patterns in known.items():
        if any(pattern.search(line) for pattern in patterns):
            return reason
    return ""


@together(size=25)
@pytest.mark.parametrize("call", CALLS)
def test_types_are_jaxs(call):
    known, lines = known_of(call), set(differences(call))
    assert sorted(lines - known) == []
    assert sorted(known - lines) == []


def test_each_difference_has_a_reason():
    rows, known = known_differences(), reasons()
    assert [line for line in rows if not reason_of(line, known)] == []
    unused = [
        pattern.pattern
        for patterns in known.values()
        for pattern in patterns
        if not any(pattern.search(line) for line in rows)
    ]
    assert unused == []


def test_most_of_the_surface_is_there():
    functions = {call.partition("(")[0] for call in CALLS}
    assert len(functions) > 500
    assert sum(call.startswith(("jnp.", "jax.numpy.")) for call in CALLS) > 500


if __name__ == "__main__":
    known = reasons()
    text = HEAD
    rows = {line: reason_of(line, known) for call in CALLS for line in differences(call)}
    for reason in (*known, ""):
        lines = [line for line, own in rows.items() if own == reason]
        text += f"\n# {reason or NO_REASON}\n" * bool(lines) + "".join(f"{k}\n" for k in lines)
    DIFFERENCES.write_text(text)
