"""The result of ``gpuflow.explain``.

Tests: tests/explaining/test_explanation.py.
"""

from __future__ import annotations

import html
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuflow.base.cached import cached_property
from gpuflow.base.records import record
from gpuflow.base.tables import Table
from gpuflow.compiler.explain import PlanView, SourcesOf, explain_plan, headline
from gpuflow.compiler.planning.plan import Plan
from gpuflow.compiler.target import Target
from gpuflow.control.stages import Compiled
from gpuflow.explaining.costs import Rates, StepCost, ceilings_of, cost_table, step_costs
from gpuflow.explaining.measuring import step_seconds
from gpuflow.explaining.memory import memory_over
from gpuflow.explaining.page import page, text_page
from gpuflow.runtime.device import Device, default_device

_MAX_ROWS = 40  # of a step in ``str``; loops have programs in them


@record(eq=False)
class Subject:
    """The plan that an Explanation is about.

    Attributes:
        plan: the plan.
        target: the compilation target of the plan.
        sources_of: from a kernel step to the files with its generated source.
        device: the device whose rates predict times.
        stage_text: the text of the shown stage; None: that of the plan.
    """

    plan: Plan
    target: Target
    sources_of: SourcesOf
    device: Device
    stage_text: str | None


def explained(
    compiled: Compiled,
    stage: str,
    platform: str | None,
    top: int | None,
    operands: Sequence[Any] | None,
) -> Explanation:
    """Explain a compiled program.

    Args:
        compiled: the program.
        stage, platform, top: as for ``gpuflow.explain``.
        operands: the program runs on them to measure its steps; None: times are predicted.
    """
    executable, device = compiled.runtime_executable(), default_device()
    text = None
    if stage != "plan" or platform is not None:
        text = compiled.explain(stage, platform)
    program = executable.compiled(device)  # the device at the time: the plan is for its platform
    subject = Subject(program.plan, program.target, program.program.sources_of, device, text)
    seconds = None if operands is None else step_seconds(executable, program.plan, operands, device)
    return Explanation(compiled.fun_name, stage, top, subject, seconds)


class Explanation:
    """Explanation of a compiled program, returned by ``gpuflow.explain``.

    ``print`` it, or show it in a notebook or with ``rich``: a table of the slowest steps, and their
    paragraphs. For another stage than "plan" there is only a text, without steps.

    Attributes:
        name: name of the function.
        stage: the shown stage, as for ``gpuflow.explain``.
        top: number of steps that ``str`` shows.
    """

    _hint = ", measure=True measures"  # how to get better times

    def __init__(
        self,
        name: str,
        stage: str,
        top: int | None,
        subject: Subject,
        seconds: Sequence[float] | None = None,
    ) -> None:
        self.name, self.stage, self.top = name, stage, top
        self._subject, self._seconds = subject, seconds

    @cached_property
    def text(self) -> str:
        """All of it as text."""
        subject = self._subject
        if subject.stage_text is not None:
            return subject.stage_text
        describe = subject.target.describe_provider
        return explain_plan(subject.plan, self.name, subject.sources_of, describe)

    @cached_property
    def steps(self) -> tuple[StepCost, ...]:
        """The steps in execution order, with the costs of each."""
        if self.stage != "plan":
            return ()
        return step_costs(self._subject.plan, self._seconds, self._rates)

    @property
    def _rates(self) -> Rates:
        return ceilings_of(self._subject.device)

    @property
    def memory(self) -> tuple[int, ...]:
        """Bytes of temporaries and new results while each step runs."""
        return memory_over(self._subject.plan) if self.stage == "plan" else ()

    @property
    def is_measured(self) -> bool:
        """Whether times are measured; otherwise they are predicted."""
        return self._seconds is not None

    @property
    def table(self) -> Table:
        """The ``top`` steps, those that take longest first."""
        shown = len(self._shown())
        of = f" of {len(self.steps)}" if shown < len(self.steps) else ""
        how = "measured" if self.is_measured else f"predicted{self._hint}"
        title = f"{shown}{of} step{'s' if shown != 1 else ''}, longest first; times {how}"
        return cost_table(self.steps, self.top, title)

    def __str__(self) -> str:
        if not self.steps:
            return self.text
        return "\n\n".join([self._head, str(self.table), *self._paragraphs()])

    __repr__ = __str__

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        del console
        import rich.text

        width: int = options.max_width

        if not self.steps:
            yield rich.text.Text(self.text)
            return
        yield rich.text.Text(self._head, style="bold")
        yield self.table
        rows = "\n\n".join(self._paragraphs()).splitlines()
        yield rich.text.Text("\n".join(_wrapped(row, width) for row in rows))

    def _repr_html_(self) -> str:
        text = html.escape(self.text)
        if not self.steps:
            return f"<pre>{text}</pre>"
        return (
            f"<p><b>{html.escape(self._head)}</b></p>{self.table._repr_html_()}"
            f"<details><summary>all steps</summary><pre>{text}</pre></details>"
        )

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page: source and kernels with corresponding lines, memory, texts.

        Args:
            path: of the file; it needs no other, and no network.

        Returns:
            The path.

        Raises:
            OSError: if it cannot be written.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> path = gf.explain(jnp.sin, jnp.ones(3)).to_html(f"{folder}/sin.html")
            >>> path.name
            'sin.html'
        """
        if self.stage == "plan":
            content = page(
                self._head,
                self._subject.plan,
                self._subject.target,
                self.steps,
                self.table,
                self.memory,
                self._view,
                self._sections(),
            )
        else:
            content = text_page(f"{self.name}: {self.stage}", self.text)
        path = Path(path)
        path.write_text(content, encoding="utf-8")
        return path

    def _sections(self) -> Sequence[str]:
        """HTML that the page shows after its table."""
        return ()

    @property
    def _head(self) -> str:
        return headline(self._subject.plan, self.name)

    @property
    def _view(self) -> PlanView:
        subject = self._subject
        return PlanView(subject.plan, subject.sources_of, subject.target.describe_provider)

    def _shown(self) -> list[int]:
        """The numbers of the steps that are shown, from 0, in the order in which they run."""
        longest = sorted(self.steps, key=lambda cost: -cost.seconds)[: self.top]
        return sorted(cost.number - 1 for cost in longest)

    def _paragraphs(self) -> list[str]:
        shown = self._shown()
        view = self._view
        texts = [view.step(number) for number in shown]
        if self.top is not None:
            texts = list(map(_folded, texts))
        remaining = len(self.steps) - len(shown)
        if remaining:
            texts.append(f"... and {remaining} steps more, in .text and .to_html(path)")
        return texts


def _wrapped(row: str, width: int) -> str:
    """Wrap a row of a paragraph, with a hanging indent."""
    indent = row[: len(row) - len(row.lstrip())]
    wrapped = textwrap.wrap(row, width, subsequent_indent=f"{indent}    ", break_on_hyphens=False)
    return "\n".join(wrapped)


def _folded(text: str) -> str:
    rows = text.splitlines()
    if len(rows) <= _MAX_ROWS:
        return text
    more = len(rows) - _MAX_ROWS
    return "\n".join([*rows[:_MAX_ROWS], f"   ... and {more} lines more, in .text"])
