"""Count the names of JAX that packages use, and look which of them gpuflow lacks.

    python perf/names.py --jax /path/to/python/with/jax                 the ten packages below
    python perf/names.py --jax /path/to/python/with/jax jaxley matfree  others

Sources are fetched with pip, without what they require, into a temporary folder. A name is an
attribute chain that starts at an import of JAX (``from jax import numpy as jnp; jnp.sin`` is
``jax.numpy.sin``), as far as JAX resolves it. It is private if a part of it starts with an
underscore.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "jaxley",
    "sbijax",
    "dynamiqs",
    "probdiffeq",
    "matfree",
    "liesel",
    "fdtdx",
    "jax-galsim",
    "navix",
    "jaxsim",
)

# Reads names from stdin and prints, for each, its longest prefix that exists.
RESOLVE = """
import importlib, json, sys

def exists(parts):
    try:
        value = importlib.import_module(parts[0])
    except ImportError:
        return 0
    for count, part in enumerate(parts[1:], 1):
        try:
            value = getattr(value, part)
        except Exception:
            try:
                value = importlib.import_module(".".join(parts[: count + 1]))
            except Exception:
                return count
    return len(parts)

names = json.load(sys.stdin)
print(json.dumps({name: ".".join(name.split(".")[: exists(name.split("."))]) for name in names}))
"""


def fetched(packages: list[str], folder: Path) -> dict[str, Path]:
    """Install each package into a folder of its own, without what it requires."""
    result = {}
    for package in packages:
        target = folder / package
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*command, target, package], check=True)
        result[package] = target
    return result


def version_of(target: Path) -> str:
    """The version of the one distribution in a folder."""
    (found,) = metadata.distributions(path=[str(target)])
    return found.version


def is_jax(node: ast.ImportFrom) -> bool:
    """Whether an import is from a module of JAX, and not of a package's own ``jax``."""
    return not node.level and f"{node.module}.".startswith("jax.")


def imported(tree: ast.Module) -> tuple[dict[str, str], list[str]]:
    """The local names that are JAX's, each with its full name; and all full names imported."""
    local: dict[str, str] = {}
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "jax":
                    names.append(one.name)
                    local[one.asname or "jax"] = one.name if one.asname else "jax"
        elif isinstance(node, ast.ImportFrom) and is_jax(node):
            for one in node.names:
                names.append(f"{node.module}.{one.name}")
                local[one.asname or one.name] = f"{node.module}.{one.name}"
    return local, names


def chains(node: ast.AST, local: dict[str, str]) -> Iterator[str]:
    """The longest attribute chains in a tree that start at one of the local names."""
    parts: list[str] = []
    base = node
    while isinstance(base, ast.Attribute):
        parts.append(base.attr)
        base = base.value
    if isinstance(base, ast.Name) and base.id in local:
        yield ".".join([local[base.id], *reversed(parts)])
        return
    for child in ast.iter_child_nodes(base if parts else node):
        yield from chains(child, local)


def uses(target: Path) -> Counter[str]:
    """How often the sources in a folder use each name of JAX."""
    result: Counter[str] = Counter()
    for path in sorted(target.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(errors="replace"))
        except SyntaxError:
            continue
        local, names = imported(tree)
        result.update(names)
        result.update(chains(tree, local))
    return result


def resolved(names: list[str], command: list[str]) -> dict[str, str]:
    """The longest existing prefix of each name, found by a Python program."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "resolve.py"
        script.write_text(RESOLVE)
        done = subprocess.run(
            [*command, script],
            input=json.dumps(names),
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
    return json.loads(done.stdout.splitlines()[-1])


def is_private(name: str) -> bool:
    """Whether a name may change with any version of JAX."""
    return any(part.startswith("_") for part in name.split("."))


def main() -> int:
    """Print the table; 1 if more than one use in a thousand is of a missing public name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="names on PyPI")
    parser.add_argument("--jax", required=True, help="a Python with JAX")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        targets = fetched(list(arguments.packages), Path(folder))
        versions = {package: version_of(target) for package, target in targets.items()}
        counts = {package: uses(target) for package, target in targets.items()}
    names = sorted({name for found in counts.values() for name in found})
    on_jax = resolved(names, [arguments.jax])
    real = sorted({name for name in on_jax.values() if "." in name})
    here = resolved(real, [sys.executable, "-m", "gpuflow.as_jax"])
    missing = {name for name in real if here[name] != name}
    print("| package | version | names | uses | missing public names | uses of them |")
    print("| --- | --- | --- | --- | --- | --- |")
    total, bad = 0, 0
    for package, found in counts.items():
        known: Counter[str] = Counter()
        for name, count in found.items():
            if "." in on_jax[name]:
                known[on_jax[name]] += count
        absent = {
            name: count for name, count in known.items() if name in missing and not is_private(name)
        }
        uses_of_absent = sum(absent.values())
        total, bad = total + sum(known.values()), bad + uses_of_absent
        print(
            f"| {package} | {versions[package]} | {len(known)} | {sum(known.values())} "
            f"| {', '.join(sorted(absent)) or 'none'} | {uses_of_absent} |"
        )
    print(f"\n{bad} of {total} uses are of missing public names.")
    print("Missing private names:", ", ".join(sorted(filter(is_private, missing))) or "none")
    return 1 if bad * 1000 > total else 0


if __name__ == "__main__":
    sys.exit(main())
