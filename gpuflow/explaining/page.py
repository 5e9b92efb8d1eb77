"""The page of an explanation: one self-contained HTML file."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.tables import Table, scaled
from gpuflow.base.util import SourceLocation, short_path
from gpuflow.compiler.explain import Boundary, PlanView
from gpuflow.compiler.planning.plan import KernelStep, Plan, ProgramStep, bytes_of, flops_of
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
        styles: the styles of its classes.
        backend: pygments' function with its lexer and formatter, or None.
    """

    styles: str
    backend: Any

    def lines(self, text: str) -> list[str]:
        """Each line, escaped."""
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
        number: its number in the plan, or a path such as "3.1.2".
        view: its plan.
        index: its index in that.
        cost: of a step of the plan itself.
    """

    number: str
    view: PlanView
    index: int
    cost: StepCost | None

    @property
    def step(self) -> Any:
        return self.view.plan.steps[self.index]


def text_page(title: str, text: str) -> str:
    """A page of a text alone."""
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
) -> str:
    """The page of a plan.

    Args:
        head: its first line.
        plan: the plan.
        target: that it is for.
        costs: of its steps.
        table: of those that take longest.
        memory: bytes while each step runs.
        view: of the plan.
    """
    colors = _highlighter()
    nodes = list(_nodes(view, costs))
    users: dict[SourceLocation, list[str]] = {}
    for node in nodes:
        for origin in origins_of(node.step):
            users.setdefault(origin, []).append(node.number)
    seconds = _origin_shares(costs)
    sources = [_source(source, users, seconds, colors) for source in sources_of(users)]
    seen: dict[str, str] = {}
    steps = [_card(node, target, colors, seen) for node in nodes if node.cost is not None]
    overview = (
        f'<div class="overview"><div>{table._repr_html_()}</div>'
        f"<figure>{memory_picture(memory)}<figcaption>temporaries and results while each step "
        f"runs; {scaled(plan.arena_bytes, 'B')} are reserved for temporaries</figcaption>"
        "</figure></div>"
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
    if not isinstance(node.step, ProgramStep):
        return
    for k, inner in enumerate(node.step.programs, 1):
        view = PlanView(inner.plan, node.view.sources_of, node.view.maker_of)
        for index in range(len(inner.plan.steps)):
            deeper = _StepNode(f"{node.number}.{k}.{index + 1}", view, index, None)
            yield deeper
            yield from _inner_nodes(deeper)


def _origin_shares(costs: Sequence[StepCost]) -> dict[SourceLocation, float]:
    """Share of the time by source line; a step is divided equally among its lines."""
    shares: dict[SourceLocation, float] = {}
    for cost in costs:
        for origin in cost.lines:
            shares[origin] = shares.get(origin, 0.0) + cost.share / len(cost.lines)
    return shares


# --- the source ---------------------------------------------------------------------------------


def _source(
    source: Source,
    users: dict[SourceLocation, list[str]],
    shares: dict[SourceLocation, float],
    colors: _Highlighter,
) -> str:
    steps: dict[int, list[str]] = {}
    share: dict[int, float] = {}
    for origin, numbers in users.items():
        if origin.file == source.file:
            steps.setdefault(origin.line, []).extend(numbers)
            share[origin.line] = share.get(origin.line, 0.0) + shares.get(origin, 0.0)
    highlighted = colors.lines(source.text) if source.text else []
    rows, before = [], None
    for number in source.numbers:
        if before is not None and number != before + 1:
            rows.append('<span class="row"><i>⋮</i></span>')
        before = number
        text = highlighted[number - 1] if number <= len(highlighted) else "(not to be read)"
        of = list(dict.fromkeys(steps.get(number, [])))
        if not of:
            rows.append(f'<span class="row"><i>{number}</i>{text}</span>')
            continue
        outer = of[0].partition(".")[0]
        rows.append(
            f'<span class="row" data-steps="{" ".join(of)}" style="--share:{share[number]:.1%}">'
            f"<i>{number}</i>"
            f'<a href="#step-{outer}" title="{share[number]:.1%} of the time, '
            f'step {", ".join(of[:12])}">{text}</a></span>'
        )
    return f"<h3>{html.escape(short_path(source.file))}</h3><pre>{''.join(rows)}</pre>"


# --- the steps ----------------------------------------------------------------------------------


def _card(node: _StepNode, target: Target, colors: _Highlighter, seen: dict[str, str]) -> str:
    """One step: name, costs, equations, reason of its end, text, and inner programs."""
    view, step, number = node.view, node.step, node.number
    prefix = number.rpartition(".")[0]
    equations = html.escape("\n".join(view.equations(step)))
    boundaries = [_boundary(b, f"{prefix}." if prefix else "") for b in view.boundaries(node.index)]
    inner = [
        _card(deeper, target, colors, seen)
        for deeper in _inner_nodes(node)
        if deeper.number.count(".") == number.count(".") + 2
    ]
    return (
        f'<section class="step" id="step-{number}" data-step="{number}">'
        f"<h2><b>{number}.</b> {html.escape(view.title(step))}</h2>"
        f'<p class="costs">{_costs(node)}</p>'
        f"<pre>{equations}</pre>{''.join(boundaries)}{_texts(node, target, colors, seen)}"
        f"{''.join(inner)}</section>"
    )


def _costs(node: _StepNode) -> str:
    cost, step = node.cost, node.step
    texts = [scaled(bytes_of(node.view.plan, step), "B"), scaled(flops_of(step), "FLOP")]
    if cost is not None:
        label = "measured" if cost.is_measured else "predicted"
        texts.insert(0, f"{format_seconds(cost.seconds)} {label}, {cost.share:.1%}")
        if cost.bytes_per_second is not None and cost.copy_share is not None:
            share = share_text(cost.copy_share)
            of = "" if share == "cached" else " of a copy"
            texts.append(f"{scaled(cost.bytes_per_second, 'B/s')}, {share}{of}")
        if cost.flops_per_second:
            texts.append(scaled(cost.flops_per_second, "FLOP/s"))
    return html.escape(" · ".join(texts))


def _boundary(boundary: Boundary, prefix: str) -> str:
    links = [
        f'<a href="#step-{prefix}{reader + 1}">step {prefix}{reader + 1}</a>'
        for reader in boundary.readers
    ]
    where = f"{', '.join(links)}: " if links else ""
    names = html.escape(", ".join(boundary.names))
    return f'<p class="why">stores {names} for {where}{html.escape(boundary.reason)}</p>'


def _texts(node: _StepNode, target: Target, colors: _Highlighter, seen: dict[str, str]) -> str:
    """The generated text of a kernel; one that was shown before is a link."""
    if not isinstance(node.step, KernelStep):
        return ""
    shown = []
    for text in target.texts_of(node.step):
        first = seen.setdefault(text, node.number)
        if first != node.number:
            shown.append(f'<p>text: as <a href="#step-{first}">step {first}</a></p>')
            continue
        body = "\n".join(colors.lines(text))
        shown.append(f"<details><summary>generated text</summary><pre>{body}</pre></details>")
    return "".join(shown)
