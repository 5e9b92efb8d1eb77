"""The result of ``gpuflow.explain``."""

from __future__ import annotations

import html
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuflow.base.cached import cached_property
from gpuflow.base.tables import Table
from gpuflow.compiler.explain import PlanView, headline
from gpuflow.control.stages import Compiled
from gpuflow.explaining.costs import StepCost, ceilings_of, cost_table, step_costs
from gpuflow.explaining.measuring import step_seconds
from gpuflow.explaining.memory import memory_over
from gpuflow.explaining.page import page, text_page
from gpuflow.runtime.device import default_device

_MAX_ROWS = 40  # of a step in ``str``; loops have programs in them


class Explanation:
    """Explanation of a compiled program, returned by ``gpuflow.explain``.

    ``print`` it, or show it in a notebook or with ``rich``: a table of the slowest steps, and their
    paragraphs. For another stage than "plan" there is only a text, without steps.

    Attributes:
        name: name of the function.
        stage: the shown stage, as for ``gpuflow.explain``.
        text: all of it as text.
        top: number of steps that ``str`` shows.
    """

    def __init__(
        self,
        compiled: Compiled,
        stage: str,
        platform: str | None,
        top: int | None,
        operands: Sequence[Any] | None,
    ) -> None:
        self.name, self.stage, self.top = compiled.fun_name, stage, top
        self.text: str = compiled.explain(stage, platform)
        executable = compiled.runtime_executable()
        # The device at the time: the plan is for its platform.
        self._device = default_device()
        self._compiled = executable.compiled(self._device)
        self._seconds: Sequence[float] | None = None
        if operands is not None:
            plan = self._compiled.plan
            self._seconds = step_seconds(executable, plan, operands, self._device)

    @cached_property
    def steps(self) -> tuple[StepCost, ...]:
        """The steps in execution order, with the costs of each."""
        if self.stage != "plan":
            return ()
        return step_costs(self._compiled.plan, self._seconds, ceilings_of(self._device))

    @property
    def memory(self) -> tuple[int, ...]:
        """Bytes of temporaries and new results while each step runs."""
        return memory_over(self._compiled.plan) if self.stage == "plan" else ()

    @property
    def is_measured(self) -> bool:
        """Whether times are measured; otherwise they are predicted."""
        return self._seconds is not None

    @property
    def table(self) -> Table:
        """The ``top`` steps, those that take longest first."""
        shown = len(self._shown())
        of = f" of {len(self.steps)}" if shown < len(self.steps) else ""
        how = "measured" if self.is_measured else "predicted, measure=True measures"
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
                self._compiled.plan,
                self._compiled.target,
                self.steps,
                self.table,
                self.memory,
                self._view,
            )
        else:
            content = text_page(f"{self.name}: {self.stage}", self.text)
        path = Path(path)
        path.write_text(content, encoding="utf-8")
        return path

    @property
    def _head(self) -> str:
        return headline(self._compiled.plan, self.name)

    @property
    def _view(self) -> PlanView:
        compiled = self._compiled
        return PlanView(
            compiled.plan, compiled.program.sources_of, compiled.target.describe_provider
        )

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
