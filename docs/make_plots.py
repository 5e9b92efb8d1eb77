"""Draw the results of the benchmarks: a bar for each workload, in an SVG file for each benchmark.

    python docs/make_plots.py             # writes docs/pictures/benchmarks/
    python docs/make_plots.py --check     # fails if that would change a file

The bars are the ratios of make_benchmarks.py, on a logarithmic axis. SVG is written as text, so
that the files are equal on every machine, and a test can compare them with the results.
"""

from __future__ import annotations

import math
import sys
from html import escape
from pathlib import Path

from make_benchmarks import ABOUT_EQUAL, PLOTS, RESULTS, Row, Section, plot_name, sections

WIDTH, LEFT, RIGHT = 800, 20, 250  # the texts of results are right of the bars
ROW, BAR, TOP, BOTTOM = 40, 12, 50, 34
LOWEST, HIGHEST = 0.5, 100.0
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)
# Readable on light and dark pages. Readers who do not see the colors have the side of the line.
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; stroke: #fff; stroke-width: 3px }
text { paint-order: stroke }
.small { font-size: 11px }
.tick { stroke: #8888; stroke-width: 1 }
.equal { stroke: #888; stroke-width: 2 }
.faster { fill: #2f6fb0 } .slower { fill: #c2571a } .same { fill: #888 }
.page { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; stroke: #1c1f26 } }
@media (prefers-color-scheme: dark) { .page { fill: #1c1f26 } }
""".strip()


def position(ratio: float) -> float:
    """The horizontal position of a ratio."""
    share = math.log(ratio / LOWEST) / math.log(HIGHEST / LOWEST)
    return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def bar(row: Row, top: float) -> str:
    """The name of a workload, its bar and its results."""
    ends = sorted((position(1.0), position(row.ratio)))
    if 1 / ABOUT_EQUAL < row.ratio < ABOUT_EQUAL:
        kind = "same"
    else:
        kind = "faster" if row.ratio > 1 else "slower"
    result = f"{row.comparison} ({row.gpuflow}, JAX {row.jax})"
    return (
        f'<text x="{LEFT}" y="{top + 12:g}">{escape(row.workload)}</text>\n'
        f'<rect class="{kind}" x="{ends[0]:.1f}" y="{top + 18:g}" '
        f'width="{max(ends[1] - ends[0], 2):.1f}" height="{BAR}"/>\n'
        f'<text class="small" x="{WIDTH - RIGHT + 10}" y="{top + 28:g}">{escape(result)}</text>\n'
    )


def axis(height: float) -> str:
    """Lines at the ticks, with their ratios above and below."""
    lines = []
    for tick in TICKS:
        x, kind = position(tick), "equal" if tick == 1 else "tick"
        end = height - BOTTOM
        lines.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{end}"/>\n')
        for y in (TOP - 6, end + 16):
            lines.append(
                f'<text class="small" x="{x:.1f}" y="{y}" text-anchor="middle">{tick:g}x</text>\n'
            )
    return "".join(lines)


def plot(section: Section) -> str:
    """The SVG file of one benchmark, with the largest ratio first."""
    rows = sorted(section.rows, key=lambda row: row.ratio, reverse=True)
    height = TOP + ROW * len(rows) + BOTTOM
    title = f"{section.title}: JAX's time or memory divided by gpuflow's"
    bars = (bar(row, TOP + ROW * index) for index, row in enumerate(rows))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{height}"/>\n'
        f'<text x="{LEFT}" y="20">{escape(title)}. Right of 1x: gpuflow is better</text>\n'
        f"{axis(height)}{''.join(bars)}</svg>\n"
    )


def plots() -> dict[Path, str]:
    """The text of each file."""
    found = sections(RESULTS.read_text(encoding="utf-8"))
    return {PLOTS / plot_name(section): plot(section) for section in found}


def main() -> int:
    """Write the files, or compare them."""
    files = plots()
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in files.items()))
    PLOTS.mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
