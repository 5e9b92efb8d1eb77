"""What runs of the GPU acceptance found, in a file that grows by a line with each result.

    {"run": {...}}                            a run began: tree, platform, device, versions
    {"row": NAME, "framework": F, ...}        a row was timed
    {"section": {...}}                        a section of another kind has ended

A run reads what earlier ones left, in its own folder and in others, as long as it is about the same
tree; it goes on with what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_processes import ROOT, records_of

FILE = "gpu-records.jsonl"
# What decides about kernels, rows and results, as patterns in the tree.
_SOURCES = (
    "gpuflow/**/*.py",
    "gpuflow/**/*.ll",
    "kernels/*.py",
    "perf/gpu_*rows.py",
    "perf/gpu_models.py",
    "perf/gpu_child.py",
    "perf/gpu_checks.py",
    "perf/gpu_faults.py",
)
_MUST_AGREE = ("tree", "platform", "tiny")
DONE = (0, 5, "skipped")  # 5: pytest found no test


def tree_digest(root: Path = ROOT) -> str:
    """A digest of everything in the tree that kernels, rows and results depend on."""
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Records:
    """The results so far.

    Args:
        folder: whose file grows.
        head: of this run.
        earlier: folders with files of runs before.

    Attributes:
        sections: entries by name.
        rows: by framework and row, what was measured.
    """

    def __init__(self, folder: Path, head: dict[str, Any], earlier: Iterable[Path] = ()) -> None:
        self.head = head
        self.sections: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._path = folder / FILE
        for place in dict.fromkeys([*(place / FILE for place in earlier), self._path]):
            self._read(place)
        self._append({"run": head})

    def _read(self, path: Path) -> None:
        """What a file holds of this tree."""
        is_ours = False
        for line in records_of(path.read_text(errors="replace")) if path.exists() else []:
            if "run" in line:
                is_ours = all(line["run"].get(key) == self.head.get(key) for key in _MUST_AGREE)
            elif is_ours:
                self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        if "section" in line:
            self.sections[line["section"]["name"]] = line["section"]
        else:
            found = {key: value for key, value in line.items() if key != "framework"}
            self.rows.setdefault(line["framework"], {})[line["row"]] = found

    def _append(self, line: Mapping[str, Any]) -> None:
        """Write a line at once: whatever comes next may be the end of the machine."""
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add_section(self, entry: dict[str, Any]) -> None:
        """Note the entry of a section."""
        self._take({"section": entry})
        self._append({"section": entry})

    def add_row(self, row: str, framework: str, found: Mapping[str, Any]) -> None:
        """Note what a framework gave for a row."""
        line = {"row": row, "framework": framework, **found}
        self._take(line)
        self._append(line)

    def has_section(self, name: str) -> bool:
        """Whether a section has ended well, or cannot run."""
        return self.sections.get(name, {}).get("status") in DONE

    def has_row(self, row: str, framework: str) -> bool:
        """Whether a row was timed."""
        return "seconds" in self.rows.get(framework, {}).get(row, {})

    def begun(self) -> dict[str, list[dict[str, Any]]]:
        """By name, the records of sections that did not end."""
        return {
            name: entry.get("records", [])
            for name, entry in self.sections.items()
            if entry["status"] is None
        }

    def report(self) -> dict[str, Any]:
        """Everything, as ``gpu_report`` takes it."""
        times = [
            {
                "name": f"times: {name}",
                "status": int(any("error" in r for r in rows.values())),
                "seconds": sum(sum(r.get("samples", ())) for r in rows.values()),
                "records": list(rows.values()),
            }
            for name, rows in self.rows.items()
        ]
        return {**self.head, "sections": [*self.sections.values(), *times]}
