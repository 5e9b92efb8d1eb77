"""Where the time of a CI run goes, from the junit files that `.ci/run` leaves.

    python perf/ci_times.py FOLDER                 prints Markdown, for perf/results/ci-DATE.md

A step is one call of pytest: `<step>.xml`. Its seconds are those of all workers together, as the
clock shows them while they share the cores; what pytest needs for itself (collecting, reports
between processes) is the wall time times the workers less that. Phases are those of pytest: set-up
and teardown are fixtures, the call is the test.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

PHASES = ("setup", "call", "teardown")
ROWS = 25


@dataclass(frozen=True)
class Item:
    """One test: its file, its name, and the seconds of each phase."""

    file: str
    name: str
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass
class Step:
    """One call of pytest."""

    name: str
    wall: float
    items: list[Item] = field(default_factory=list)

    def by_phase(self) -> dict[str, float]:
        return {phase: sum(item.seconds[phase] for item in self.items) for phase in PHASES}


def read_step(path: Path) -> Step:
    """A step from its junit file.

    Raises:
        SystemExit: the file holds no phases, for tests/conftest.py did not write them.
    """
    suite = ElementTree.parse(path).getroot().find("testsuite")
    step = Step(path.stem, float(suite.get("time", 0.0)))
    for case in suite.iter("testcase"):
        found = {one.get("name"): float(one.get("value")) for one in case.iter("property")}
        if not found and case.find("skipped") is not None:
            continue  # a file that is skipped whole
        if not found:
            raise SystemExit(f"{path}: {case.get('name')} has no phases; run it by .ci/run")
        # tests.ops.test_x.TestClass: a file's name begins with test_, a class's with Test.
        names = case.get("classname", "").split(".")
        parts = [name for name in names if not name.startswith("Test")]
        seconds = {phase: found.get(phase, 0.0) for phase in PHASES}
        step.items.append(Item("/".join(parts) + ".py", case.get("name", ""), seconds))
    return step


def table(title: str, seconds: dict[str, float], counts: dict[str, int]) -> Iterator[str]:
    """The longest rows of a grouping."""
    yield f"| {title} | tests | s |"
    yield "| --- | --- | --- |"
    longest = sorted(seconds.items(), key=lambda row: -row[1])
    for name, total in longest[:ROWS]:
        yield f"| {name} | {counts[name]} | {total:.1f} |"
    if rest := longest[ROWS:]:
        tests, total = sum(counts[name] for name, _ in rest), sum(spent for _, spent in rest)
        yield f"| {len(rest)} more | {tests} | {total:.1f} |"


def grouped(items: list[Item], depth: int | None) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds and numbers of tests by folder (of so many parts), or by file for None."""
    seconds: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for item in items:
        folders = item.file.split("/")
        name = item.file if depth is None else "/".join(folders[: min(depth, len(folders) - 1)])
        seconds[name] += item.total
        counts[name] += 1
    return seconds, counts


def report(steps: list[Step]) -> Iterator[str]:
    """The page."""
    yield "| step | tests | wall, s | set-up, s | call, s | teardown, s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for step in steps:
        phases = " | ".join(f"{seconds:.0f}" for seconds in step.by_phase().values())
        yield f"| {step.name} | {len(step.items)} | {step.wall:.0f} | {phases} |"
    for step in steps:
        if len(step.items) < ROWS:
            continue
        yield f"\n## {step.name}\n"
        yield from table("folder", *grouped(step.items, 3))
        yield ""
        yield from table("file", *grouped(step.items, None))
        yield "\n| test | s |\n| --- | --- |"
        for item in sorted(step.items, key=lambda item: -item.total)[:ROWS]:
            yield f"| `{item.file}::{item.name[:80]}` | {item.total:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    found = sorted(parser.parse_args().folder.glob("*.xml"))
    if not found:
        raise SystemExit("no *.xml there: .ci/run writes them into the folder CI_TIMES")
    print("\n".join(report([read_step(path) for path in found])))


if __name__ == "__main__":
    main()
