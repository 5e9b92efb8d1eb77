"""The GPU acceptance's report as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_frameworks import OURS
from gpu_goals import MANY_SIZES_GOAL, agree, groups, verdict, wanted
from gpu_parts import GRAPH_COSTS
from gpu_rows import MANY_SIZES, Row, all_rows

TIMES = "times: "
PROGRAMS = ("programs ", "fault: ")  # how the names of such sections begin


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    by_name = {section["name"]: section for section in report["sections"]}
    where = report["platform"] + (", tiny sizes: no measurement" if report["tiny"] else "")
    head = [f"# GPU acceptance, {report['date']}", f"Platform: {where}. {_versions(report)}"]
    parts = [
        *head,
        _overview(report),
        _ceilings("Ceilings", by_name.get("ceilings")),
        _times(by_name),
        _ceilings("Graph costs", by_name.get(GRAPH_COSTS)),
        _limits(by_name.get(GRAPH_COSTS)),
        _programs([one for name, one in by_name.items() if name.startswith(PROGRAMS)]),
        *[_log(section) for section in report["sections"] if _has_log(section)],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _versions(report: dict[str, Any]) -> str:
    named = [f"{name} {version}" for name, version in report.get("versions", {}).items()]
    commit = report.get("commit", "unknown")
    return f"Device: {report.get('device', 'unknown')}. Commit {commit}. {', '.join(named)}."


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    cells = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join([*lines, *["| " + " | ".join(row) + " |" for row in cells]])


def _overview(report: dict[str, Any]) -> str:
    rows = [
        [
            section["name"],
            _status(section["status"]),
            f"{section['seconds']:.1f}",
            section.get("note", ""),
        ]
        for section in report["sections"]
    ]
    return _table(["section", "exit status", "seconds", ""], rows)


def _status(status: Any) -> str:
    return "killed at its limit" if status is None else str(status)


def _programs(sections: list[dict[str, Any]]) -> str:
    records = [r for one in sections for r in one.get("records", ()) if "program" in r]
    rows = [
        [
            r["program"],
            _side(r.get("cpu")),
            "; ".join(r.get("host", {})),
            "ok" if r["passed"] else f"FAILED {r.get('error', '')}",
        ]
        for r in records
    ]
    head = ["program", "difference from the CPU's result", "calls on the host", ""]
    return f"## Programs\n\n{_table(head, rows)}" if rows else ""


def _side(side: dict[str, Any] | None) -> str:
    if side is None:
        return ""
    if "error" in side:
        return side["error"]
    return "same bits" if side["bits_equal"] else f"{side['difference']:.2g}"


def _limits(section: dict[str, Any] | None) -> str:
    """What limits of graphs are, beside what was measured."""
    found = [r for r in section.get("records", []) if "limit" in r] if section else []
    rows = [
        [
            r["limit"],
            str(r["is"]),
            r["what"],
            "never" if r["measured"] is None else f"{r['measured']:.3g}",
        ]
        for r in found
    ]
    return _table(["limit", "is", "what", "measured"], rows) if rows else ""


def _ceilings(title: str, section: dict[str, Any] | None) -> str:
    records = [r for r in section.get("records", []) if "limit" not in r] if section else []
    if not records:
        return ""
    rows = []
    for record in records:
        rate, seconds = record.get("per_second"), record.get("seconds")
        unit = "TFLOP/s" if "n" in record else "GB/s"
        text = record.get("error", "") if rate is None else f"{rate / _SCALE[unit]:.1f} {unit}"
        text = text if seconds is None else _seconds(seconds)
        rows.append([record.get("ceiling", ""), text])
    return f"## {title}\n\n" + _table(["what", "measured"], rows)


_SCALE = {"TFLOP/s": 1e12, "GB/s": 1e9}


def _times(by_name: Mapping[str, Any]) -> str:
    found = {
        name.removeprefix(TIMES): {r["row"]: r for r in section.get("records", []) if "row" in r}
        for name, section in by_name.items()
        if name.startswith(TIMES)
    }
    if not found:
        return ""
    rows_of: dict[str, Row] = {row.name: row for row in all_rows()}
    ceilings = ceilings_of(by_name.get("ceilings"))
    lines = []
    names = [*rows_of, MANY_SIZES]
    measured = [name for name in names if any(name in records for records in found.values())]
    for name in measured:
        row = rows_of.get(name)
        goal = row.goal if row is not None else MANY_SIZES_GOAL
        ours = found.get(OURS, {}).get(name, {})
        cells = [_time(records.get(name, {}), ours, row) for records in found.values()]
        result = verdict(goal, row, name, found, ceilings.get("copy"))
        lines.append([name, *cells, _rate(row, ours, ceilings), wanted(goal), result])
    versions = [f"{k} {v['version'].get('version')}" for k, v in found.items() if "version" in v]
    table = _table(["row", *found, "gpuflow's rate", "goal", "reached"], lines)
    more = _table(["rows", "goal", "measured", "reached"], groups(rows_of.values(), found))
    note = "Behind a time in brackets: gpuflow's time as a part of it; below 1 gpuflow is faster."
    note += " Nobody's first call counts; where sizes change, gpuflow finds kernels in its cache."
    note += f" Not measured: {len(names) - len(measured)} rows."
    return f"## Times per call\n\n{', '.join(versions)}. {note}\n\n{table}\n\n{more}"


def row_line(row: str, framework: str, found: Mapping[str, Any]) -> str:
    """One result, for whoever watches."""
    text = found.get("error") or found.get("version") or _seconds(found["seconds"])
    return f"{row}: {framework} {text}{_built(found)}"


def _built(record: Mapping[str, Any]) -> str:
    """What was not brought along."""
    return f" ({record['built']} kernels built here)" if record.get("built") else ""


def _time(record: Mapping[str, Any], ours: Mapping[str, Any], row: Row | None) -> str:
    if "error" in record:
        return "failed: " + record["error"][:80]
    if "seconds" not in record:
        return ""
    text = _seconds(record["seconds"])
    if record is not ours and ours.get("seconds"):
        text += f" ({ours['seconds'] / record['seconds']:.2f}x)"
    text += _built(record)
    if record.get("note"):
        text += f" ({record['note']})"
    if row is not None and not agree(record, ours, row.tolerance):
        text += " RESULTS DIFFER"
    return text


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"


def ceilings_of(section: Mapping[str, Any] | None) -> dict[str, float]:
    """What was measured of the machine, by name."""
    records = section.get("records", []) if section else []
    return {r["ceiling"]: r["per_second"] for r in records if r.get("per_second")}


def _rate(row: Row | None, record: Mapping[str, Any], ceilings: Mapping[str, float]) -> str:
    """Bytes or operations per second, and the part of the roofline that they are."""
    if row is None or "seconds" not in record or "size" not in record:
        return ""
    if row.traffic is not None:
        rate = row.traffic(record["size"]) / record["seconds"]
        return f"{rate / 1e9:.0f} GB/s" + _part(rate, ceilings.get("copy"), "a copy")
    if row.flops is not None:
        rate = row.flops(record["size"]) / record["seconds"]
        most = ceilings.get(f"product {row.unit}")
        return f"{rate / 1e12:.1f} TFLOP/s" + _part(rate, most, "a product")
    return ""


def _part(rate: float, most: float | None, of: str) -> str:
    return f" ({100 * rate / most:.0f} % of {of})" if most else ""


def _has_log(section: Mapping[str, Any]) -> bool:
    return not section.get("records") or section["status"] != 0


def _log(section: Mapping[str, Any]) -> str:
    text = (section.get("tail") or "").strip()[-1800:]
    errors = (section.get("errors") or "").strip()[-800:] if section["status"] != 0 else ""
    if not text and not errors:
        return ""
    return f"## {section['name']}\n\n```\n{text}\n{errors}\n```"
