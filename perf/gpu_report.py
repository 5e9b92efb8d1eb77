"""The GPU acceptance's report as Markdown."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_rows import Row, all_rows

TIMES = "times: "


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    by_name = {section["name"]: section for section in report["sections"]}
    where = report["platform"] + (", tiny sizes: no measurement" if report["tiny"] else "")
    parts = [f"# GPU acceptance, {report['date']}", f"Platform: {where}.", _overview(report)]
    parts += [
        _programs(by_name.get("programs")),
        _ceilings(by_name.get("ceilings")),
        _times(by_name),
        *[_log(section) for section in report["sections"] if not section.get("records")],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *["| " + " | ".join(row) + " |" for row in rows]])


def _overview(report: dict[str, Any]) -> str:
    rows = [
        [s["name"], "killed at its limit" if s["status"] is None else str(s["status"]),
         f"{s['seconds']:.1f}"]
        for s in report["sections"]
    ]  # fmt: skip
    return _table(["section", "exit status", "seconds"], rows)


def _programs(section: dict[str, Any] | None) -> str:
    if section is None or not section.get("records"):
        return ""
    rows = []
    for record in section["records"]:
        if "program" in record:
            sides = [_side(record.get(side)) for side in ("cpu", "simulator")]
            verdict = "ok" if record["passed"] else f"FAILED {record.get('error', '')}"
            rows.append([record["program"], *sides, verdict.replace("|", "/").replace("\n", " ")])
    rest = [record for record in section["records"] if "program" not in record]
    notes = "\n".join(f"- {key}: {value}" for record in rest for key, value in record.items())
    head = ["program", "from the CPU's", "from the simulator's", ""]
    return f"## Programs\n\n{_table(head, rows)}\n\n{notes}"


def _side(side: dict[str, Any] | None) -> str:
    if side is None:
        return ""
    if "error" in side:
        return side["error"]
    return "same bits" if side["bits_equal"] else f"{side['difference']:.2g}"


def _ceilings(section: dict[str, Any] | None) -> str:
    if section is None or not section.get("records"):
        return ""
    rows = []
    for record in section["records"]:
        rate = record.get("per_second")
        unit = "TFLOP/s" if "n" in record else "GB/s"
        text = record.get("error", "") if rate is None else f"{rate / _SCALE[unit]:.1f} {unit}"
        rows.append([record.get("ceiling", ""), text])
    return "## Ceilings\n\n" + _table(["what", "at most"], rows)


_SCALE = {"TFLOP/s": 1e12, "GB/s": 1e9}


def _times(by_name: dict[str, Any]) -> str:
    found = {
        name.removeprefix(TIMES): {record["row"]: record for record in section.get("records", [])}
        for name, section in by_name.items()
        if name.startswith(TIMES)
    }
    if not found:
        return ""
    rows_of = {row.name: row for row in all_rows()}
    names = list(dict.fromkeys(name for records in found.values() for name in records))
    copy = _copy_rate(by_name.get("ceilings"))
    lines = []
    for name in names:
        if name == "version":
            continue
        row = rows_of.get(name)
        ours = found.get("gpuflow", {}).get(name, {})
        cells = [_time(records.get(name, {}), ours, row) for records in found.values()]
        lines.append([name, *cells, _rate(row, ours, copy), row.goal if row else ""])
    versions = [f"{k} {v['version'].get('version')}" for k, v in found.items() if "version" in v]
    head = ["row", *found, "gpuflow's rate", "goal"]
    return f"## Times per call\n\n{', '.join(versions)}\n\n{_table(head, lines)}"


def _time(record: dict[str, Any], ours: dict[str, Any], row: Row | None) -> str:
    if "error" in record:
        return "failed: " + record["error"].replace("|", "/").replace("\n", " ")[:80]
    if "seconds" not in record:
        return record.get("skipped", "")
    text = _seconds(record["seconds"])
    if record is not ours and ours.get("seconds"):
        text += f" ({ours['seconds'] / record['seconds']:.2f}x)"
    if row is not None and not _agree(record, ours, row.tolerance):
        text += " RESULTS DIFFER"
    return text


def _agree(record: dict[str, Any], ours: dict[str, Any], tolerance: float) -> bool:
    """Whether samples of the results are equal; random numbers of others need not be."""
    one, two = record.get("check"), ours.get("check")
    if not one or not two:
        return True
    if len(one) != len(two):
        return False
    a, b = np.array(one), np.array(two)
    scale = max(float(np.abs(b).max()), 1e-30)
    return bool(np.all(np.abs(a - b) <= tolerance * scale))


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"


def _copy_rate(section: dict[str, Any] | None) -> float | None:
    records = section.get("records", []) if section else []
    rates = [record["per_second"] for record in records if record.get("ceiling") == "copy"]
    return rates[0] if rates else None


def _rate(row: Row | None, record: dict[str, Any], copy: float | None) -> str:
    if row is None or "seconds" not in record or "size" not in record:
        return ""
    if row.traffic is not None:
        rate = row.traffic(record["size"]) / record["seconds"]
        share = f" ({100 * rate / copy:.0f} % of a copy)" if copy else ""
        return f"{rate / 1e9:.0f} GB/s{share}"
    if row.flops is not None:
        return f"{row.flops(record['size']) / record['seconds'] / 1e12:.1f} TFLOP/s"
    return ""


def _log(section: dict[str, Any]) -> str:
    text = (section.get("tail") or "").strip()[-1800:]
    errors = (section.get("errors") or "").strip()[-800:] if section["status"] != 0 else ""
    if not text and not errors:
        return ""
    return f"## {section['name']}\n\n```\n{text}\n{errors}\n```"
