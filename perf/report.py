"""Rows of a comparison, their verdicts, and the result file in Markdown."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
OURS = "gpuflow"
# From base units, seconds and bytes, to the unit of a table.
SCALES = {"ms": 1e3, "MB": 1e-6}


@dataclass
class Row:
    """All rounds of one workload: seconds per call for each framework, or why there are none."""

    name: str
    target: float | Mapping[str, float] | None
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    rivals: tuple[str, ...] | None = None
    unit: str = "ms"

    def takes(self, framework: str) -> bool:
        """Whether the workload is meant for this framework."""
        return framework == OURS or self.rivals is None or framework in self.rivals

    def limit(self, rival: str) -> float | None:
        """The largest allowed ratio to this rival."""
        return self.target.get(rival) if isinstance(self.target, Mapping) else self.target

    def median(self, framework: str) -> float | None:
        samples = self.samples.get(framework)
        return statistics.median(samples) if samples and framework not in self.failures else None

    def ratios(self, rival: str) -> list[float]:
        """gpuflow's time over the rival's, round by round."""
        if self.median(OURS) is None or self.median(rival) is None:
            return []
        pairs = zip(self.samples[OURS], self.samples[rival], strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def verdict(self, rival: str) -> str:
        """PASS, MISS, FAILED with the reason, or nothing where there is no target."""
        for framework in (OURS, rival):
            if framework in self.failures:
                return f"FAILED {framework}: {self.failures[framework]}"
        limit = self.limit(rival)
        if limit is None:
            return ""
        return "PASS" if statistics.median(self.ratios(rival)) <= limit else "MISS"


def check_verdict(check: dict[str, Any]) -> str:
    if "failure" in check:
        return f"FAILED {check['failure']}"
    if check["skipped"]:
        return f"skipped: {check['skipped']}"
    return "PASS" if check["measured"] <= check["target"] else "MISS"


def processor() -> str:
    """Processor name and number of usable cores."""
    name = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def commit() -> str:
    """The commit of the measured tree, marked where files differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(FOLDER.parent), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD") or "no commit"
    return head + (" with local changes" if git("status", "--porcelain") else "")


def report(
    name: str,
    rows: Sequence[Row],
    checks: Sequence[dict[str, Any]],
    versions: dict[str, dict[str, str]],
    rivals: Sequence[str],
    today: str,
) -> str:
    """The result file, in Markdown."""
    lines = [f"# {name}, {today}", "", f"- processor: {processor()}", f"- commit: {commit()}"]
    for framework, facts in versions.items():
        rest = ", ".join(f"{k} {v}" for k, v in facts.items() if k in ("python", "numpy"))
        lines.append(f"- {framework} {facts['version']}" + (f" ({rest})" if rest else ""))
    lines += ["- OPENBLAS_CORETYPE unset for every framework", ""]
    for rival in rivals:
        shared = [row for row in rows if row.takes(rival)]
        if not shared:
            continue
        lines += [
            f"| workload | gpuflow | {rival} | ratio (spread) | of minima | at most | verdict |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [row_line(row, rival) for row in shared]
        lines.append("")
    if checks:
        lines += ["| property | measured | at most | verdict |", "| --- | --- | --- | --- |"]
        lines += [check_line(check) for check in checks]
        lines.append("")
    return "\n".join(lines)


def row_line(row: Row, rival: str) -> str:
    ratios = row.ratios(rival)
    ratio = minima = "-"
    if ratios:
        ratio = f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"
        minima = f"{min(row.samples[OURS]) / min(row.samples[rival]):.3g}"
    limit = row.limit(rival)
    target = "-" if limit is None else f"{limit:g}"
    cells = [row.name, cell(row, OURS), cell(row, rival), ratio, minima, target, row.verdict(rival)]
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(row: Row, framework: str) -> str:
    median = row.median(framework)
    if median is None:
        return "FAILED"
    scale = SCALES[row.unit]
    spread = max(row.samples[framework]) - min(row.samples[framework])
    return f"{scale * median:.4g} {row.unit} ± {scale * spread / 2:.2g}"


def check_line(check: dict[str, Any]) -> str:
    if "failure" in check:
        cells = [check["name"], "-", "-", check_verdict(check)]
    else:
        unit = f" {check['unit']}" if check["unit"] else ""
        note = f" ({check['note']})" if check["note"] else ""
        measured = "-" if check["skipped"] else f"{check['measured']:.4g}{unit}{note}"
        cells = [check["name"], measured, f"{check['target']:g}{unit}", check_verdict(check)]
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"
