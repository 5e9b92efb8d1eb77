"""`gpuflow smi`: processes of this user that run gpuflow, their arrays, and their origins.

Tests: tests/cli/test_smi.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuflow.base.tables import Table, scaled
from gpuflow.cli.problems import CommandError, positive_seconds
from gpuflow.profiler import publishing

_CLEAR = "\x1b[H\x1b[J"
_PATIENCE = 3 * publishing.PERIOD  # after a request every process has written


def add_parser(commands: Any) -> None:
    """Adds the subcommand to `commands`."""
    parser = commands.add_parser(
        "smi",
        help="show processes that run gpuflow, their arrays, and the lines that made them",
        description="Shows, live, the processes of this user that were started with GPUFLOW_SMI=1.",
    )
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument(
        "--top", type=int, default=5, help="groups of arrays to show of each process (default: 5)"
    )
    parser.add_argument(
        "--interval", type=positive_seconds, default=1.0, help="seconds between updates"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Shows all processes, until Ctrl-C on a terminal."""
    try:
        folder = publishing.runtime_folder()
        publishing.request(folder)
    except (publishing.FolderError, OSError) as error:
        raise CommandError(str(error)) from error
    time.sleep(_PATIENCE)
    if options.once or not sys.stdout.isatty():
        print(report(publishing.processes(folder), options.top))
        return 0
    try:
        while True:
            text = report(publishing.processes(folder), options.top)
            print(f"{_CLEAR}{text}\n\nCtrl-C ends", flush=True)
            time.sleep(max(options.interval, 0.1))
            publishing.request(folder)
    except KeyboardInterrupt:
        return 0


def report(states: Sequence[Mapping[str, Any]], top: int) -> str:
    """Return the text for the records that processes have written.

    Args:
        states: of the processes, as `publishing.state_of_process` gives them.
        top: how many groups of arrays of each are shown.
    """
    if not states:
        return (
            "No gpuflow processes found. Fix: start yours with GPUFLOW_SMI=1 (docs/profiling.md)."
        )
    return "\n\n".join(_process(state, top) for state in states)


def _process(state: Mapping[str, Any], top: int) -> str:
    devices = [
        f"{_plain(name)} {_bytes(stats.get('bytes_in_use'))} in use, at most "
        f"{_bytes(stats.get('peak_bytes_in_use'))}"
        for name, stats in _items(state.get("devices"))
    ]
    age = max(0.0, time.time() - _number(state.get("time")))
    late = f" ({age:.0f} s ago)" if age > 5 * publishing.PERIOD else ""
    head = f"process {state['pid']}: {_plain(state.get('command'))}{late}"
    total = f"{_number(state.get('arrays')):.0f} arrays, {_bytes(state.get('bytes'))}"
    groups = state.get("groups")
    rows = [
        (
            _bytes(group.get("bytes")),
            f"{_number(group.get('count')):.0f}",
            _plain(group.get("type")),
            _plain(group.get("device")),
            _plain(group.get("line")) or "not known",
        )
        for group in (groups if isinstance(groups, list) else [])[:top]
        if isinstance(group, dict)
    ]
    sections = [head, *devices, total]
    if rows:
        columns = ("bytes", "arrays", "each", "device", "made at")
        sections.append(str(Table("", columns, tuple(rows), (2, 3, 4))))
    return "\n".join(sections)


def _items(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return [(name, stats) for name, stats in pairs if isinstance(stats, dict)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _bytes(value: Any) -> str:
    return scaled(_number(value), "B")


def _plain(value: Any) -> str:
    """Text from another process, without terminal control sequences."""
    return "".join(c if c.isprintable() else "?" for c in str(value or ""))
