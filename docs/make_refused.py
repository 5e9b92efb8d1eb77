"""Write the table of names that libraries use and gpuflow lacks into differences.md.

    python docs/make_refused.py             # writes docs/differences.md
    python docs/make_refused.py --check     # fails if that would change it

The names are in data/names_used.txt, with the number of packages that use each. A name is missing
if the alias ``jax`` refuses it.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from pathlib import Path

from gpuflow import as_jax

DOCS = Path(__file__).resolve().parent
OUTPUT = DOCS / "differences.md"
NAMES = DOCS / "data" / "names_used.txt"
BEGIN = "<!-- names that libraries use: written by docs/make_refused.py -->\n"
END = "<!-- end of names that libraries use -->\n"
HEAD = "| module | missing names |\n| --- | --- |\n"


def read_names() -> dict[str, int]:
    """How many packages use each name."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {name: int(count) for count, name in rows if not name.endswith("__")}


def is_there(full: str) -> bool:
    """Whether ``import`` and attributes find a name under the alias."""
    parts = full.split(".")
    value = None
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(("jax", "gpuflow")):
                return True  # it needs a package that is not installed here
            continue
        break
    for part in parts[count:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            return False
        except ImportError:
            return True  # likewise
    return True


def missing() -> dict[str, int]:
    """The names that are missing; those inside of a missing module or object are left out."""
    as_jax.install()
    try:
        absent = {name: count for name, count in read_names().items() if not is_there(name)}
    finally:
        as_jax.uninstall()
    return {
        name: count
        for name, count in absent.items()
        if not any(name.startswith(f"{other}.") for other in absent)
    }


def table(names: dict[str, int]) -> str:
    """A row for each module; names that several packages use have their number."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name, count in sorted(names.items()):
        module, _, last = name.rpartition(".")
        modules[module].append(f"`{last}`" + (f" ({count})" if count > 1 else ""))
    rows = [f"| `{module}` | {', '.join(listed)} |\n" for module, listed in modules.items()]
    return HEAD + "".join(rows)


def page(text: str) -> str:
    """The page with the table between its markers."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END, 1)
    return before + BEGIN + table(missing()) + END + after


def main() -> int:
    """Write the page, or compare it."""
    text = OUTPUT.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(page(text) != text)
    OUTPUT.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
