"""Import the modules of a package one by one; imports.py runs this on JAX and on gpuflow.

usage: imports_child.py PACKAGE RECORDS DONE: RECORDS gets two JSON lines for each module, [name,
null] before it is imported and [name, error] after; the first DONE modules are skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

# Parts of packages that are not for import.
LEFT_OUT = frozenset(
    {"test", "tests", "_tests", "unit_tests", "conftest", "example", "examples", "__main__"}
)


def modules(package: str) -> Iterator[str]:
    """The names of a package and its modules, found without importing any of them but parents."""
    spec = importlib.util.find_spec(package)
    yield package
    if spec is not None:
        for folder in spec.submodule_search_locations or ():
            yield from submodules(package, Path(folder))


def submodules(package: str, folder: Path) -> Iterator[str]:
    """The names of the modules below a folder, those in folders without ``__init__`` included."""
    for path in sorted(folder.iterdir()):
        last = path.name.removesuffix(".py")
        name = f"{package}.{last}"
        if last in LEFT_OUT or last.startswith("test_") or last.endswith("_test"):
            continue
        if not last.isidentifier() or last == "__init__":
            continue
        if path.suffix == ".py":
            yield name
        elif path.is_dir() and next(path.rglob("*.py"), None) is not None:
            yield name
            yield from submodules(name, path)


def imported(name: str) -> str:
    """Import a module; its error, or nothing."""
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    # SystemExit too: programs among the modules end so.
    except BaseException as error:
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text}"[:400]
    return ""


def main() -> None:
    """The command line."""
    package, records, done = sys.argv[1:]
    sys.argv = sys.argv[:1]
    failed: dict[str, str] = {}
    with open(records, "w") as output:
        for number, name in enumerate(modules(package)):
            if number < int(done):
                continue
            output.write(json.dumps([name, None]) + "\n")
            output.flush()
            parent = name.rpartition(".")[0]
            # A package that fails would be executed again for each of its modules.
            error = failed[parent] if parent in failed else imported(name)
            if error:
                failed[name] = error
            output.write(json.dumps([name, error]) + "\n")
            output.flush()


if __name__ == "__main__":
    main()
