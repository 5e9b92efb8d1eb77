"""The page of an explanation: one self-contained HTML file.

It shows the source lines of a program and the steps of its plan, with their shares of the time.
``Explanation.to_html`` writes it.

Tests: tests/explaining/test_page.py.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.tables import Table, scaled
from gpuflow.base.util import SourceLocation, short_path
from gpuflow.compiler.explain import Boundary, PlanView
from gpuflow.compiler.planning.plan import KernelStep, Plan, ProgramStep, flops_of, traffic_bytes
from gpuflow.compiler.target import Target
from gpuflow.explaining.costs import StepCost, origins_of, share_text
from gpuflow.explaining.memory import memory_picture
from gpuflow.explaining.sources import Source, sources_of
from gpuflow.timing import format_seconds

_HERE = Path(__file__).parent


@record
class _Highlighter:
    """Python as HTML, row by row; in colors if pygments is installed.

    Attributes:
        styles: CSS rules of the classes in its HTML; "" without pygments.
        backend: pygments' ``highlight`` with its lexer and formatter; None without pygments.
    """

    styles: str
    backend: Any

    def lines(self, text: str) -> list[str]:
        """The HTML of each line; text is escaped."""
        if self.backend is None:
            return html.escape(text).split("\n")
        highlight, lexer, formatter = self.backend
        return highlight(text, lexer, formatter).split("\n")


def _highlighter() -> _Highlighter:
    try:
        import pygments
        import pygments.formatters
        import pygments.lexers
    except ImportError:
        return _Highlighter("", None)
    formatter = pygments.formatters.HtmlFormatter(nowrap=True)
    dark = pygments.formatters.HtmlFormatter(style="monokai").get_style_defs("pre")
    lexer = pygments.lexers.PythonLexer(stripnl=False, ensurenl=False)
    light = formatter.get_style_defs("pre")
    styles = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    return _Highlighter(styles, (pygments.highlight, lexer, formatter))


@record
class _StepNode:
    """A step of the plan, or of a program inside one.

    Attributes:
        number: its number in the plan, from 1. For a step of an inner program, a path such as
            "3.1.2": step 3 of the plan, its program 1, step 2 of that.
        view: the view of the plan that contains it.
        index: its index in that plan, from 0.
        cost: its cost; None for a step of an inner program.
    """

    number: str
    view: PlanView
    index: int
    cost: StepCost | None

    @property
    def step(self) -> Any:
        return self.view.plan.steps[self.index]


def text_page(title: str, text: str) -> str:
    """A page with a title and preformatted text; both are escaped."""
    return _document(
        title,
        "",
        f"<header><h1>{html.escape(title)}</h1></header>"
        f"<main><pre>{html.escape(text)}</pre></main>",
        "",
    )


def page(
    head: str,
    plan: Plan,
    target: Target,
    costs: Sequence[StepCost],
    table: Table,
    memory: Sequence[int],
    view: PlanView,
    sections: Sequence[str] = (),
) -> str:
    """The page of a plan.

    Args:
        head: the page's first line; the page's title is the part before a colon.
        plan: the plan.
        target: the target of the plan.
        costs: the cost of each step, in order.
        table: the table of the steps that take longest.
        memory: bytes of temporaries and results while each step runs.
        view: the view of the plan.
        sections: HTML below the table and the picture of memory.
    """
    colors = _highlighter()
    nodes = list(_nodes(view, costs))
    steps_of_location: dict[SourceLocation, list[str]] = {}
    for node in nodes:
        for origin in origins_of(node.step):
            steps_of_location.setdefault(origin, []).append(node.number)
    line_shares = _line_shares(costs)
    sources = [
        _source(source, steps_of_location, line_shares, colors)
        for source in sources_of(steps_of_location)
    ]
    first_steps: dict[str, str] = {}
    steps = [_card(node, target, colors, first_steps) for node in nodes if node.cost is not None]
    overview = (
        f'<div class="overview"><div>{table._repr_html_()}</div>'
        f"<figure>{memory_picture(memory)}<figcaption>temporaries and results while each step "
        f"runs; {scaled(plan.arena_bytes, 'B')} are reserved for temporaries</figcaption>"
        f"</figure></div>{''.join(sections)}"
        '<p class="legend"><i class="heat"></i> share of the time of a line '
        '<i class="mark"></i> lines and steps that belong together '
        '<i class="end"></i> why a kernel ends: this array is stored</p>'
    )
    body = (
        f"<header><h1>{html.escape(head)}</h1>{overview}</header><main>"
        f'<section class="sources">{"".join(sources) or "<p>no line is known</p>"}</section>'
        f'<section class="steps">{"".join(steps)}</section></main>'
    )
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return _document(head.partition(":")[0], colors.styles, body, f"<script>{script}</script>")


def _document(title: str, styles: str, body: str, script: str) -> str:
    """A complete HTML document; only the title is escaped here."""
    sheet = (_HERE / "page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{styles}{sheet}</style></head>"
        f"<body>{body}{script}</body></html>\n"
    )


def _nodes(view: PlanView, costs: Sequence[StepCost]) -> Iterator[_StepNode]:
    """All steps; those of inner programs follow the step that runs them."""
    for index, cost in enumerate(costs):
        node = _StepNode(str(cost.number), view, index, cost)
        yield node
        yield from _inner_nodes(node)


def _inner_nodes(node: _StepNode) -> Iterator[_StepNode]:
    """The steps of the programs that a step runs, and of the programs inside these."""
    if not isinstance(node.step, ProgramStep):
        return
    for program_number, program in enumerate(node.step.programs, 1):
        view = PlanView(program.plan, node.view.sources_of, node.view.describe_provider)
        for index in range(len(program.plan.steps)):
            inner_node = _StepNode(f"{node.number}.{program_number}.{index + 1}", view, index, None)
            yield inner_node
            yield from _inner_nodes(inner_node)


def _line_shares(costs: Sequence[StepCost]) -> dict[SourceLocation, float]:
    """Share of the time by source line; a step is divided equally among its lines."""
    shares: dict[SourceLocation, float] = {}
    for cost in costs:
        for location in cost.lines:
            shares[location] = shares.get(location, 0.0) + cost.share / len(cost.lines)
    return shares


# --- the source ---------------------------------------------------------------------------------


def _source(
    source: Source,
    steps_of_location: dict[SourceLocation, list[str]],
    shares: dict[SourceLocation, float],
    colors: _Highlighter,
) -> str:
    """The shown lines of one file, with links to the steps that compute them.

    Args:
        source: the file.
        steps_of_location: the numbers of the steps of each source line, of any file.
        shares: the share of the time of each source line, 0 to 1.
        colors: the highlighter.
    """
    steps_of_line: dict[int, list[str]] = {}
    share_of_line: dict[int, float] = {}
    for location, step_numbers in steps_of_location.items():
        if location.file == source.file:
            line = location.line
            steps_of_line.setdefault(line, []).extend(step_numbers)
            share_of_line[line] = share_of_line.get(line, 0.0) + shares.get(location, 0.0)
    highlighted = colors.lines(source.text) if source.text else []
    rows, previous = [], None
    for line in source.numbers:
        if previous is not None and line != previous + 1:
            rows.append('<span class="row"><i>⋮</i></span>')
        previous = line
        text = highlighted[line - 1] if line <= len(highlighted) else "(not to be read)"
        steps = list(dict.fromkeys(steps_of_line.get(line, [])))
        if not steps:
            rows.append(f'<span class="row"><i>{line}</i>{text}</span>')
            continue
        outer_step, share = steps[0].partition(".")[0], f"{share_of_line[line]:.1%}"
        rows.append(
            f'<span class="row" data-steps="{" ".join(steps)}" style="--share:{share}">'
            f"<i>{line}</i>"
            f'<a href="#step-{outer_step}" title="{share} of the time, '
            f'step {", ".join(steps[:12])}">{text}</a></span>'
        )
    return f"<h3>{html.escape(short_path(source.file))}</h3><pre>{''.join(rows)}</pre>"


# --- the steps ----------------------------------------------------------------------------------


def _card(
    node: _StepNode, target: Target, colors: _Highlighter, first_steps: dict[str, str]
) -> str:
    """One step: name, costs, equations, reason of its end, text, and inner programs.

    ``first_steps`` has the number of the step that has shown a text first, by text; it is updated.
    """
    view, step, number = node.view, node.step, node.number
    prefix = number.rpartition(".")[0]
    equations = html.escape("\n".join(view.equations(step)))
    boundaries = [_boundary(b, f"{prefix}." if prefix else "") for b in view.boundaries(node.index)]
    inner_cards = [
        _card(inner_node, target, colors, first_steps)
        for inner_node in _inner_nodes(node)
        if inner_node.number.count(".") == number.count(".") + 2
    ]
    return (
        f'<section class="step" id="step-{number}" data-step="{number}">'
        f"<h2><b>{number}.</b> {html.escape(view.title(step))}</h2>"
        f'<p class="costs">{_costs(node)}</p>'
        f"<pre>{equations}</pre>{''.join(boundaries)}{_texts(node, target, colors, first_steps)}"
        f"{''.join(inner_cards)}</section>"
    )


def _costs(node: _StepNode) -> str:
    """The costs of a step: time and share, bytes, operations, and rates."""
    cost, step = node.cost, node.step
    texts = [scaled(traffic_bytes(node.view.plan, step), "B"), scaled(flops_of(step), "FLOP")]
    if cost is not None:
        label = "measured" if cost.is_measured else "predicted"
        texts.insert(0, f"{format_seconds(cost.seconds)} {label}, {cost.share:.1%}")
        if cost.bytes_per_second is not None and cost.copy_share is not None:
            share = share_text(cost.copy_share)
            suffix = "" if share == "cached" else " of a copy"
            texts.append(f"{scaled(cost.bytes_per_second, 'B/s')}, {share}{suffix}")
        if cost.flops_per_second:
            texts.append(scaled(cost.flops_per_second, "FLOP/s"))
    return html.escape(" · ".join(texts))


def _boundary(boundary: Boundary, prefix: str) -> str:
    """Why a step ends; ``prefix`` is the path of its program with a dot, or ""."""
    links = [
        f'<a href="#step-{prefix}{reader + 1}">step {prefix}{reader + 1}</a>'
        for reader in boundary.readers
    ]
    links_text = f"{', '.join(links)}: " if links else ""
    names = html.escape(", ".join(boundary.names))
    return f'<p class="why">stores {names} for {links_text}{html.escape(boundary.reason)}</p>'


def _texts(
    node: _StepNode, target: Target, colors: _Highlighter, first_steps: dict[str, str]
) -> str:
    """The generated text of a kernel; one that was shown before is a link."""
    if not isinstance(node.step, KernelStep):
        return ""
    text_blocks = []
    for text in target.texts_of(node.step):
        first = first_steps.setdefault(text, node.number)
        if first != node.number:
            text_blocks.append(f'<p>text: as <a href="#step-{first}">step {first}</a></p>')
            continue
        body = "\n".join(colors.lines(text))
        text_blocks.append(f"<details><summary>generated text</summary><pre>{body}</pre></details>")
    return "".join(text_blocks)
