"""Write the benchmark tables of README.md and benchmarks.md from one file of results.

python docs/make_benchmarks.py              # writes both pages
python docs/make_benchmarks.py --check      # fails if that would change one
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "perf" / "results" / "cpu-2026-11-28.md"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
PLOTS = ROOT / "docs" / "pictures" / "benchmarks"  # docs/make_plots.py draws them
END = "<!-- end of benchmarks -->\n"
# The README's rows; benchmarks.md has all of them.
HEADLINES = (
    "jitted call of 2 arrays",
    "tanh(x*y)+exp(-x)+sin(y), 4M",
    "transformer block Adam step, d256 T128 B8, donated",
    "CNN step, 28 x 28, batch 64, donated",
    "vmap(while_loop): Mandelbrot, 512 x 512, at most 100 steps",
    "50 batch sizes through the MLP step, empty cache",
)
ABOUT_EQUAL = 1.05
_VALUE = re.compile(r"([\d.e+-]+) (ms|MB)")


class Row(NamedTuple):
    """One workload: medians as the pages show them, such as "1.4 ms"."""

    workload: str
    gpuflow: str
    jax: str

    @property
    def ratio(self) -> float:
        """JAX's time or memory over gpuflow's; both as shown, so that readers can check it."""
        return _amount(self.jax) / _amount(self.gpuflow)

    @property
    def comparison(self) -> str:
        """The ratio in words: "2.4x faster"."""
        better, worse = ("less", "more") if self.gpuflow.endswith("B") else ("faster", "slower")
        if self.ratio >= ABOUT_EQUAL:
            return f"{_two_digits(self.ratio)}x {better}"
        if self.ratio <= 1 / ABOUT_EQUAL:
            return f"{_two_digits(1 / self.ratio)}x {worse}"
        return "about equal"

    def __str__(self) -> str:
        workload = self.workload.replace("*", "\\*")
        return f"| {workload} | {self.gpuflow} | {self.jax} | {self.comparison} |\n"


class Section(NamedTuple):
    """One benchmark: its title with the date, facts such as the processor, and rows."""

    title: str
    facts: tuple[str, ...]
    rows: tuple[Row, ...]


_SCALES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "MB": 1e6}


def _amount(shown: str) -> float:
    number, unit = shown.split()
    return float(number) * _SCALES[unit]


def _two_digits(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _shown(cell: str) -> str:
    """A median such as "1365 ms ± 91" with three digits and the unit that fits: "1.36 s"."""
    match = _VALUE.match(cell)
    if match is None:
        raise ValueError(
            f"[benchmarks] a cell must start with a time or memory; got {cell!r}. "
            "Fix: a row of perf/compare.py"
        )
    value, unit = float(match[1]), match[2]
    if unit == "ms":
        factor, unit = (1e-3, "s") if value >= 1000 else (1e3, "µs") if value < 1 else (1.0, "ms")
        value *= factor
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def sections(text: str) -> list[Section]:
    """The sections of the file of results."""
    found = []
    for part in text.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        facts = tuple(line[2:] for line in lines if line.startswith("- "))
        cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
        rows = tuple(Row(row[0].strip(), _shown(row[1]), _shown(row[2])) for row in cells[2:])
        found.append(Section(title, facts, rows))
    return found


def _table(rows: Sequence[Row]) -> str:
    head = "| workload | gpuflow | JAX | gpuflow is |\n| --- | --- | --- | --- |\n"
    return head + "".join(map(str, rows))


def _link(page: Path) -> str:
    return "perf/results" if page.name == "README.md" else "../perf/results"


def _caption(section: Section, page: Path) -> str:
    run = section.facts[0].removeprefix("run: ").replace("](", f"]({_link(page)}/")
    processor, commit, versions, jax = section.facts[1:5]
    return (
        f"**{section.title}**: {processor.removeprefix('processor: ')}; {versions}, {commit}; "
        f"{jax.partition(' (')[0]}. Spreads: {run}.\n\n"
    )


def headlines(found: list[Section], page: Path) -> str:
    """The table of the README."""
    rows = {row.workload: row for section in found for row in section.rows}
    used = [section for section in found if any(row.workload in HEADLINES for row in section.rows)]
    dates = sorted(section.title.rpartition(" ")[2] for section in used)
    return (
        f"{_table([rows[name] for name in HEADLINES])}\nMedians on two cores of an AMD EPYC, "
        f"JAX 0.10.2, {dates[0]} to {dates[-1]} ([results]({_link(page)}/{RESULTS.name})).\n"
    )


def slower(found: list[Section], page: Path) -> str:
    """The workloads that JAX runs faster, in one sentence."""
    del page
    rows = [row for section in found for row in section.rows if row.ratio < 1 / ABOUT_EQUAL]
    named = [
        f"{row.workload} ({row.comparison}: {row.gpuflow} against {row.jax})"
        for row in sorted(rows, key=lambda row: row.ratio)
    ]
    return f"Slower than JAX in these benchmarks: {'; '.join(named)}.\n"


def every_row(found: list[Section], page: Path) -> str:
    """A table for each benchmark."""
    return "\n".join(_caption(section, page) + _table(section.rows) for section in found)


def not_faster(found: list[Section], page: Path) -> str:
    """The rows that gpuflow does not win."""
    del page
    rows = [row for section in found for row in section.rows if row.ratio < ABOUT_EQUAL]
    return _table(sorted(rows, key=lambda row: row.ratio))


def plot_name(section: Section) -> str:
    """The file of the plot of a benchmark."""
    return f"{section.title.partition(',')[0]}.svg"


def every_plot(found: list[Section], page: Path) -> str:
    """A plot of each benchmark."""
    del page
    return "\n".join(
        f"![{section.title}: a bar for each workload, its time or memory compared with JAX]"
        f"({PLOTS.parent.name}/{PLOTS.name}/{plot_name(section)})\n"
        for section in found
    )


BLOCKS: dict[str, Callable[[list[Section], Path], str]] = {
    "headlines": headlines,
    "slower": slower,
    "every row": every_row,
    "not faster": not_faster,
    "plots": every_plot,
}


def begin(name: str) -> str:
    """The line before a generated block."""
    return f"<!-- benchmarks ({name}): written by docs/make_benchmarks.py -->\n"


def page_of(page: Path, text: str) -> str:
    """The text of a page with its blocks written again."""
    found = sections(RESULTS.read_text(encoding="utf-8"))
    for name, write in BLOCKS.items():
        if begin(name) not in text:
            continue
        before, rest = text.split(begin(name))
        _, after = rest.split(END, 1)
        text = before + begin(name) + write(found, page) + END + after
    return text


def main() -> int:
    """Write the pages, or compare them."""
    status = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = page_of(page, text)
        if "--check" in sys.argv[1:]:
            status |= new != text
        else:
            page.write_text(new, encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
