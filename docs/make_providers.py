"""Write the table of providers into gpu.md: which op is made by what, on which target.

    python docs/make_providers.py             # writes docs/gpu.md
    python docs/make_providers.py --check     # fails if that would change it

Ops say what they are by the annotation of their ``Library.what``; targets say what makes it in
their ``providers/table.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

from generated_file import write_or_check

import gpuflow.ops
from gpuflow.compiler.target import Providers
from gpuflow.core.lowering import Library
from gpuflow.core.primitive import registry
from gpuflow.targets.cpu.library.table import PROVIDERS as CPU
from gpuflow.targets.cuda.library.table import PROVIDERS as CUDA

OUTPUT = Path(__file__).resolve().parent / "gpu.md"
BEGIN = "<!-- providers: written by docs/make_providers.py -->\n"
END = "<!-- end of providers -->\n"
HEAD = "| ops | record | on the CPU | on GPUs |\n| --- | --- | --- | --- |\n"


def ops_of_blocks() -> dict[type[Any], list[str]]:
    """The names of ops by what they are."""
    for module in pkgutil.walk_packages(gpuflow.ops.__path__, "gpuflow.ops."):
        importlib.import_module(module.name)
    ops: dict[type[Any], list[str]] = defaultdict(list)
    for name, primitive in sorted(registry().items()):
        rule = primitive.lower
        if isinstance(rule, Library) and rule.what is not None:
            result = get_type_hints(rule.what)["return"]
            (block,) = [one for one in get_args(result) or (result,) if one is not type(None)]
            ops[block].append(name)
    return ops


def made_by(providers: Providers, block: type[Any]) -> str:
    """What makes such blocks, the first choice first."""
    return ", else ".join(provider.name for provider in providers.get(block, ())) or "-"


def table() -> str:
    """The table of all targets."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | `{block.__name__}` "
        f"| {made_by(CPU, block)} | {made_by(CUDA, block)} |\n"
        for block, names in ops_of_blocks().items()
    ]
    return HEAD + "".join(sorted(rows))


def page(text: str) -> str:
    """The page with the table between its markers."""
    before, rest = text.split(BEGIN)
    _, behind = rest.split(END)
    return before + BEGIN + table() + END + behind


if __name__ == "__main__":
    sys.exit(write_or_check(OUTPUT, page(OUTPUT.read_text(encoding="utf-8"))))
