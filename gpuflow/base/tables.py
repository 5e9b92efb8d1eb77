"""Small printable tables: as text, in a terminal through rich, and as HTML.

Tests: tests/explaining/test_explanation.py, tests/test_profiler.py.
"""

from __future__ import annotations

import html
from typing import Any

from gpuflow.base.records import record


def scaled(amount: float, unit: str) -> str:
    """Three digits with a unit prefix: ``1.25 MB``."""
    value, prefixes = float(amount), ["", "k", "M", "G", "T", "P", "E"]
    while value >= 999.5 and len(prefixes) > 1:  # less would show as 1e+03
        value /= 1000
        prefixes.pop(0)
    return f"{value:.3g} {prefixes[0]}{unit}"


@record
class Table:
    """Rows of texts below a title.

    Attributes:
        title: one line, or "".
        columns: the heads.
        rows: for each column a text.
        left: indices of the left-aligned columns; others are right-aligned.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        all_rows = [self.columns, *self.rows]
        widths = [max(map(len, texts)) for texts in zip(*all_rows, strict=True)]
        text_rows = [self.title] if self.title else []
        for texts in all_rows:
            cells = [
                text.ljust(width) if k in self.left else text.rjust(width)
                for k, (text, width) in enumerate(zip(texts, widths, strict=True))
            ]
            text_rows.append("  ".join(cells).rstrip())
        return "\n".join(text_rows)

    def __rich__(self) -> Any:
        import rich.table
        import rich.text

        table = rich.table.Table(title=rich.text.Text(self.title), title_justify="left")
        for k, name in enumerate(self.columns):
            side = "left" if k in self.left else "right"
            table.add_column(rich.text.Text(name), justify=side, overflow="fold")
        for texts in self.rows:
            table.add_row(*map(rich.text.Text, texts))
        return table

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.title)}</p>{self.html()}"

    def html(self) -> str:
        """The columns and rows as an HTML table."""

        def row(tag: str, texts: tuple[str, ...]) -> str:
            cells = [
                f'<{tag} style="text-align:{"left" if k in self.left else "right"}">'
                f"{html.escape(text)}</{tag}>"
                for k, text in enumerate(texts)
            ]
            return f"<tr>{''.join(cells)}</tr>"

        body = "".join(row("td", texts) for texts in self.rows)
        return f"<table><thead>{row('th', self.columns)}</thead><tbody>{body}</tbody></table>"
