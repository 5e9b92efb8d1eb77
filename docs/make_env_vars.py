"""Write the tables of env_vars.md from the table of variables in gpuflow/base/variables.py.

python docs/make_env_vars.py              # writes docs/env_vars.md
python docs/make_env_vars.py --check      # fails if that would change it
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated_file import write_or_check

from gpuflow.base.variables import FLAG, TABLES, TEXT, Variable

OUTPUT = Path(__file__).resolve().parent / "env_vars.md"
END = "<!-- end of variables -->\n"
HEAD = "| variable | value | default | meaning |\n| --- | --- | --- | --- |\n"


def begin(name: str) -> str:
    """The line before a table."""
    return f"<!-- variables ({name}): written by docs/make_env_vars.py -->\n"


def row(variable: Variable) -> str:
    """The row of a variable."""
    kind = variable.kind
    value = {FLAG: "flag", TEXT: "text"}.get(kind, kind.requirement)
    return f"| `{variable.name}` | {value} | {variable.default} | {variable.meaning} |\n"


def page(text: str) -> str:
    """The page with each table between its markers."""
    for name, table in TABLES.items():
        before, rest = text.split(begin(name))
        _, after = rest.split(END, 1)
        text = before + begin(name) + HEAD + "".join(map(row, table)) + END + after
    return text


if __name__ == "__main__":
    sys.exit(write_or_check(OUTPUT, page(OUTPUT.read_text(encoding="utf-8"))))
