"""Every benchmark table and plot of the README and the docs comes from one file of results."""

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make_benchmarks():
    return load("make_benchmarks")


@pytest.fixture
def make_plots(make_benchmarks, monkeypatch):
    monkeypatch.setitem(sys.modules, "make_benchmarks", make_benchmarks)
    return load("make_plots")


def test_the_pages_are_up_to_date(make_benchmarks):
    for page in make_benchmarks.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "written by docs/make_benchmarks.py" in text
        assert make_benchmarks.page_of(page, text) == text, "Fix: python docs/make_benchmarks.py"


def test_rows_of_figures_are_generated(make_benchmarks):
    """Tables copied by hand disagreed: one workload took 0.27 of JAX's time and 0.37."""
    table = r"(?m)^\|.* JAX .*\|$(?:\n\|.*)+"
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for name in make_benchmarks.BLOCKS:
            if make_benchmarks.begin(name) in text:
                before, rest = text.split(make_benchmarks.begin(name))
                text = before + rest.split(make_benchmarks.END, 1)[1]
        for found in re.findall(table, text):
            timed = re.search(r"\| [\d.]+ (ms|s|µs|us) \|", found)
            assert not timed, f"{page.name}: generate this table by docs/make_benchmarks.py"


def test_the_results_are_those_of_the_runs(make_benchmarks):
    text = make_benchmarks.RESULTS.read_text(encoding="utf-8")
    for part in text.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        run = re.search(r"- run: .*\((.+)\)", part)[1]
        lines = [line for line in lines if line.startswith(("- ", "| ")) and "- run" not in line]
        original = (make_benchmarks.RESULTS.parent / run).read_text(encoding="utf-8").splitlines()
        assert original[0] == f"# {title}"
        assert lines and [line for line in lines if line not in original] == []


@pytest.mark.parametrize(
    ("cells", "shown", "comparison"),
    [
        (("1.5 ms ± 1", "3.6 ms"), ("1.5 ms", "3.6 ms"), "2.4x faster"),
        (("0.01044 ms ± 1", "0.00522 ms"), ("10.4 µs", "5.22 µs"), "2.0x slower"),
        (("1365 ms ± 91", "1.996e+04 ms ± 9"), ("1.36 s", "20 s"), "15x faster"),
        (("10 ms", "10.3 ms"), ("10 ms", "10.3 ms"), "about equal"),
        (("45 MB ± 0", "90 MB"), ("45 MB", "90 MB"), "2.0x less"),
    ],
)
def test_factors_are_of_the_medians_shown(make_benchmarks, cells, shown, comparison):
    row = make_benchmarks.Row("work", *map(make_benchmarks._shown, cells))
    assert (row.gpuflow, row.jax) == shown and row.comparison == comparison
    with pytest.raises(ValueError, match="a cell must start with a time"):
        make_benchmarks._shown("FAILED")


def test_the_plots_are_up_to_date(make_plots):
    files = make_plots.plots()
    assert set(files) == set(make_plots.PLOTS.glob("*.svg")), "Fix: python docs/make_plots.py"
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, "Fix: python docs/make_plots.py"


def test_plots_agree_with_the_results(make_benchmarks, make_plots):
    """Read the files as a viewer does: every workload has a bar whose length is its ratio."""
    svg = "{http://www.w3.org/2000/svg}"
    one, ten = make_plots.position(1.0), make_plots.position(10.0)
    found = make_benchmarks.sections(make_benchmarks.RESULTS.read_text(encoding="utf-8"))
    assert len(found) == len(list(make_plots.PLOTS.glob("*.svg")))
    for section in found:
        root = ElementTree.parse(make_plots.PLOTS / make_plots.plot_name(section)).getroot()
        texts = [node.text for node in root.iter(f"{svg}text")]
        bars = [node for node in root.iter(f"{svg}rect") if node.get("class") != "page"]
        names = [row.workload for row in section.rows]
        shown = [text for text in texts if text in names]
        assert sorted(shown) == sorted(names) and len(bars) == len(names)
        rows = {row.workload: row for row in section.rows}
        for name, drawn in zip(shown, bars, strict=True):
            row, left = rows[name], float(drawn.get("x"))
            end = left if row.ratio < 1 else left + float(drawn.get("width"))
            ratio = 10 ** ((end - one) / (ten - one))
            # Positions have one digit, and a bar is at least two pixels wide.
            assert ratio == pytest.approx(row.ratio, rel=0.03), name
            assert f"{row.comparison} ({row.gpuflow}, JAX {row.jax})" in texts
            colors = {"faster": row.ratio > 1.05, "slower": row.ratio < 1 / 1.05}
            assert colors.get(drawn.get("class"), abs(row.ratio - 1) < 0.06)


def test_a_bar_ends_at_the_ends_of_the_axis(make_plots):
    assert make_plots.position(1e-9) == make_plots.position(make_plots.LOWEST) == make_plots.LEFT
    assert make_plots.position(1e9) == make_plots.position(make_plots.HIGHEST)
